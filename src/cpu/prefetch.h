// Asks for what the next block reads while this one is computed: the head's next rows, or, at its end, the first rows
// and the state of the head after it. A head's rows lie a whole token apart, often on a page each, where the hardware
// prefetches nothing.
#pragma once

#include <hwy/cache_control.h>

#include <algorithm>

#include "cpu/kernels.h"
#include "problem/number.h"

namespace tidegate::cpu {

class Prefetch {
public:
    /// Rows [row, row + most) of a task; all of them past: the first rows of the same task for the next head.
    Prefetch(const NormalForm& nf, const Task& task, std::int64_t row, std::int64_t most)
        : nf_(nf), state_(task.state), n_(task.sequence), batch_(nf.sequence(task.sequence).batch), head_(task.head) {
        const bool next_head = row >= task.end;
        if (next_head && task.end - task.begin == 1) return;  // a single row is over before anything would arrive
        if (next_head) ++head_;
        if (head_ >= nf.value_heads) return;
        row_ = next_head ? task.begin : row;
        rows_ = std::min(most, task.end - row_);
        states_ = next_head && state_.present() ? nf.K : 0;
        key_head_ = nf.key_head(head_);
    }

    /// The next share of it, of `shares` in all. Shares are small: more than a core's open misses would stall it.
    void some(std::int64_t shares) {
        const std::int64_t all = rows_ * kTensors + states_, until = std::min(all, all * ++turn_ / shares);
        for (; asked_ < until; ++asked_) {
            if (asked_ >= rows_ * kTensors) {
                line(state_, n_, head_, asked_ - rows_ * kTensors, nf_.V);
                continue;
            }
            const std::int64_t row = row_ + asked_ / kTensors, token = row / nf_.steps;
            switch (asked_ % kTensors) {
                case 0:
                    line(nf_.k, batch_, row, key_head_, nf_.K);
                    break;
                case 1:
                    line(nf_.q, batch_, token, key_head_, nf_.K);
                    break;
                case 2:
                    line(nf_.v, batch_, row, head_, nf_.V);
                    break;
                case 3:
                    line(nf_.o, batch_, token, head_, nf_.V);
                    break;
                default:
                    if (nf_.gate.decay == Decay::vector) line(nf_.gate.x, batch_, token, head_, nf_.K);
            }
        }
    }

private:
    static void line(const Tensor& t, std::int64_t i, std::int64_t j, std::int64_t k, std::int64_t n) {
        const std::int64_t size = bytes_of(t.dtype);
        const char* first = static_cast<const char*>(t.data) + offset_of(t, i, j, k) * size;
        for (std::int64_t at = 0; at < n * size; at += 64) hwy::Prefetch(first + at);
    }

    static constexpr std::int64_t kTensors = 5;  // k, q, v, o, g

    const NormalForm& nf_;
    const Tensor& state_;
    std::int64_t n_, batch_, head_, key_head_ = 0, row_ = 0, rows_ = 0, states_ = 0, asked_ = 0, turn_ = 0;
};

}  // namespace tidegate::cpu
