// What benchmarks share: times, work and memory.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "problem/normal_form.h"
#include "problem/number.h"

namespace tidegate::cli {

double seconds_of(const auto& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Times {
    std::vector<double> all;
    double at(double share) {  // a quantile
        std::sort(all.begin(), all.end());
        return all[static_cast<std::size_t>(std::lround(share * static_cast<double>(all.size() - 1)))];
    }
    double median() { return at(0.5); }
};

/// FLOP of a call's products with states: 6 K V a tied row and head and 8 a free one; backward, with its recomputation,
/// 16 and 22.
inline double flop_of(const NormalForm& nf, bool backward) {
    const double each = backward ? (nf.tied ? 16.0 : 22.0) : nf.tied ? 6.0 : 8.0;
    return each * static_cast<double>(nf.K * nf.V) *
           static_cast<double>(nf.batch * nf.tokens * nf.steps * nf.value_heads);
}

/// Tensors where frameworks put them, on cache lines; a bundle's own memory is wherever the heap had room.
class Aligned {
public:
    void take(Tensor& t) {
        if (!t.present()) return;
        std::int64_t last = 0;
        for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) last += (t.shape[d] - 1) * t.stride[d];
        const auto bytes = static_cast<std::size_t>(t.size() > 0 ? (last + 1) * bytes_of(t.dtype) : 0);
        void* memory = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
        if (memory == nullptr) throw std::bad_alloc();
        kept_.emplace_back(memory, std::free);
        if (bytes > 0) std::memcpy(memory, t.data, bytes);
        t.data = memory;
    }

private:
    std::vector<std::unique_ptr<void, decltype(&std::free)>> kept_;
};

}  // namespace tidegate::cli
