// Slices of a caller's state to fp32 rows and back: any float type, either layout. Per-target code.
#include "problem/number.h"

#if defined(TIDEGATE_CPU_STATE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_CPU_STATE_INL_H
#undef TIDEGATE_CPU_STATE_INL_H
#else
#define TIDEGATE_CPU_STATE_INL_H
#endif

#include <hwy/highway.h>

#include "cpu/convert-inl.h"
#include "cpu/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {

/// One head's state in the caller's memory, from a column on: element (i, j) at `first + i * row + j * column`.
struct CallersState {
    void* data;
    Dtype dtype;
    std::int64_t first, row, column;
};

/// to[K, width] = the state's first `columns` columns, zeros behind them; `line` is scratch of K values.
inline void load_slice(const CallersState& s, std::size_t K, std::size_t columns, float* to, std::size_t width,
                       float* line) {
    if (columns < width) std::fill_n(to, K * width, 0.0F);
    if (s.column == 1) {
        for (std::size_t i = 0; i < K; ++i)
            widen(s.dtype, s.data, s.first + static_cast<std::int64_t>(i) * s.row, columns, to + i * width);
        return;
    }
    for (std::size_t j = 0; j < columns; ++j) {  // V first: a column's channels lie side by side
        const std::int64_t at = s.first + static_cast<std::int64_t>(j) * s.column;
        if (s.row == 1)
            widen(s.dtype, s.data, at, K, line);
        else
            for (std::size_t i = 0; i < K; ++i)
                line[i] = static_cast<float>(load_element(s.data, s.dtype, at + static_cast<std::int64_t>(i) * s.row));
        for (std::size_t i = 0; i < K; ++i) to[i * width + j] = line[i];
    }
}

inline void store_slice(const StateView& from, std::size_t K, std::size_t columns, const CallersState& s, float* line) {
    if (s.column == 1) {
        for (std::size_t i = 0; i < K; ++i)
            narrow(s.dtype, from.rows + static_cast<std::ptrdiff_t>(i) * from.stride, columns, s.data,
                   s.first + static_cast<std::int64_t>(i) * s.row);
        return;
    }
    for (std::size_t j = 0; j < columns; ++j) {
        const std::int64_t at = s.first + static_cast<std::int64_t>(j) * s.column;
        for (std::size_t i = 0; i < K; ++i)
            line[i] = from.rows[static_cast<std::ptrdiff_t>(i) * from.stride + static_cast<std::ptrdiff_t>(j)];
        if (s.row == 1)
            narrow(s.dtype, line, K, s.data, at);
        else
            for (std::size_t i = 0; i < K; ++i)
                store_element(s.data, s.dtype, at + static_cast<std::int64_t>(i) * s.row, static_cast<double>(line[i]));
    }
}

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
