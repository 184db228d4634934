// Asks for what the next block reads while this one is computed: the head's next rows, or, at its end, the first rows
// and the state of the head after it. A head's rows lie a whole token apart, often on a page each, where the hardware
// prefetches nothing.
#pragma once

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "problem/number.h"

namespace tidegate::cpu {

/// Bytes that a sweep asks for as it walks: a piece of the run every row. All at once they would stall it, having more
/// lines than a core has open misses.
struct Run {
    const char* first;
    std::uint32_t bytes;
};

/// What one sweep asks for.
struct Ahead {
    static constexpr std::size_t kMost = 16;
    Run runs[kMost];
    std::size_t count = 0;
};

class Prefetch {
public:
    /// Rows [row, row + most) of a task; all of them past: the first rows of the same task for the next head. `shares`:
    /// how many parts to ask for it in. `output`: rows of o too, which a plain store reads before it writes.
    Prefetch(const NormalForm& nf, const Task& task, bool output, std::int64_t row, std::int64_t most,
             std::int64_t shares)
        : nf_(nf), task_(task), batch_(nf.sequence(task.sequence).batch), head_(task.head) {
        const bool next_head = row >= task.end;
        if (next_head && task.end - task.begin == 1) return;  // a single row is over before anything would arrive
        if (next_head) ++head_;
        if (head_ >= nf.value_heads) return;
        row_ = next_head ? task.begin : row;
        end_ = std::min(row_ + most, task.end);
        states_ = next_head && task.state.present() ? nf.K : 0;
        key_head_ = nf.key_head(head_);
        columns_ = std::min(task.columns, nf.V - task.first_column);
        tensors_ = 3;
        if (nf.gate.decay == Decay::vector) gate_ = tensors_++;
        if (output) output_ = tensors_++;
        share_ = static_cast<std::size_t>(((end_ - row_) * tensors_ + states_ + shares - 1) / shares);
        share_ = std::min(share_, Ahead::kMost);
    }

    /// The next share of it.
    const Ahead& share() {
        ahead_.count = 0;
        for (; ahead_.count < share_ && row_ < end_; ++ahead_.count) {
            ahead_.runs[ahead_.count] = run(row_, nf_.steps == 1 ? row_ : row_ / nf_.steps);
            if (++tensor_ == tensors_) {
                tensor_ = 0;
                ++row_;
            }
        }
        for (; ahead_.count < share_ && state_ < states_; ++state_)
            ahead_.runs[ahead_.count++] =
                piece(task_.state,
                      offset_of(task_.state, nf_.source(task_.sequence), head_, state_, task_.first_column), columns_);
        return ahead_;
    }

private:
    Run run(std::int64_t row, std::int64_t token) const {
        if (tensor_ == gate_) return piece(nf_.gate.x, offset_of(nf_.gate.x, batch_, token, head_), nf_.K);
        if (tensor_ == output_)
            return piece(nf_.o, offset_of(nf_.o, batch_, token, head_) + task_.first_column, columns_);
        if (tensor_ == 0) return piece(nf_.k, offset_of(nf_.k, batch_, row, key_head_), nf_.K);
        if (tensor_ == 1) return piece(nf_.q, offset_of(nf_.q, batch_, token, key_head_), nf_.K);
        return piece(nf_.v, offset_of(nf_.v, batch_, row, head_) + task_.first_column, columns_);
    }
    static Run piece(const Tensor& t, std::int64_t offset, std::int64_t n) {
        return {static_cast<const char*>(t.data) + offset * bytes_of(t.dtype),
                static_cast<std::uint32_t>(n * bytes_of(t.dtype))};
    }

    const NormalForm& nf_;
    const Task& task_;
    std::int64_t batch_, head_, key_head_ = 0, columns_ = 0;
    std::int64_t row_ = 0, end_ = 0, tensor_ = 0, tensors_ = 0;  ///< rows to come, and the next tensor of the first
    std::int64_t gate_ = -1, output_ = -1;                       ///< their numbers, after k, q, v
    std::int64_t state_ = 0, states_ = 0;                        ///< rows of the state
    std::size_t share_ = 0;
    Ahead ahead_;
};

}  // namespace tidegate::cpu
