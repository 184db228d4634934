// Products that a block of rows has with a state: small matrices times large ones, and the transposes they need.
#include "cpu/kernels.h"

#if defined(TIDEGATE_CPU_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_CPU_PRODUCTS_INL_H
#undef TIDEGATE_CPU_PRODUCTS_INL_H
#else
#define TIDEGATE_CPU_PRODUCTS_INL_H
#endif

#include <hwy/highway.h>

#include "cpu/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {

/// to[c, r] = from[r, c] for r < rows, and 0 up to `padded`; columns are a multiple of 4. Strides in floats.
HWY_NOINLINE void transpose(const float* from, std::size_t from_stride, std::size_t rows, std::size_t padded,
                            std::size_t columns, float* to, std::size_t to_stride) {
    const hn::FixedTag<float, 4> q;
    std::size_t r = 0;
    for (; r + 4 <= rows; r += 4)
        for (std::size_t c = 0; c < columns; c += 4) {
            const float* x = from + r * from_stride + c;
            const auto a = hn::LoadU(q, x), b = hn::LoadU(q, x + from_stride), d = hn::LoadU(q, x + 2 * from_stride),
                       e = hn::LoadU(q, x + 3 * from_stride);
            const auto ad = hn::InterleaveLower(q, a, d), be = hn::InterleaveLower(q, b, e),
                       AD = hn::InterleaveUpper(q, a, d), BE = hn::InterleaveUpper(q, b, e);
            float* y = to + c * to_stride + r;
            hn::StoreU(hn::InterleaveLower(q, ad, be), q, y);
            hn::StoreU(hn::InterleaveUpper(q, ad, be), q, y + to_stride);
            hn::StoreU(hn::InterleaveLower(q, AD, BE), q, y + 2 * to_stride);
            hn::StoreU(hn::InterleaveUpper(q, AD, BE), q, y + 3 * to_stride);
        }
    for (; r < padded; ++r)
        for (std::size_t c = 0; c < columns; ++c) to[c * to_stride + r] = r < rows ? from[r * from_stride + c] : 0.0F;
}

/// out[t, :] = sum_j x[t, j] m[j, :] for kRows rows and kVectors vectors of columns; sums run over j in order.
template <std::size_t kRows, std::size_t kVectors>
HWY_INLINE void tile(const float* x, std::size_t x_stride, const float* m, std::size_t m_stride, std::size_t n,
                     float* out, std::size_t out_stride) {
    const F f;
    const std::size_t lanes = hn::Lanes(f);
    Vec sum[kRows][kVectors];
    TIDEGATE_UNROLL
    for (std::size_t t = 0; t < kRows; ++t) TIDEGATE_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) sum[t][v] = hn::Zero(f);
    for (std::size_t j = 0; j < n; ++j, m += m_stride) {
        Vec y[kVectors];
        TIDEGATE_UNROLL
        for (std::size_t v = 0; v < kVectors; ++v) y[v] = hn::LoadU(f, m + v * lanes);
        TIDEGATE_UNROLL
        for (std::size_t t = 0; t < kRows; ++t) {
            const Vec c = hn::Set(f, x[t * x_stride + j]);
            TIDEGATE_UNROLL
            for (std::size_t v = 0; v < kVectors; ++v) sum[t][v] = hn::MulAdd(c, y[v], sum[t][v]);
        }
    }
    TIDEGATE_UNROLL
    for (std::size_t t = 0; t < kRows; ++t) TIDEGATE_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[t][v], f, out + t * out_stride + v * lanes);
}

/// out[t, c] = sum_j x[t, j] m[j, c] for kBackRows rows t, n values j and `columns` (a multiple of 16) columns c.
HWY_NOINLINE void product(const float* x, std::size_t x_stride, const float* m, std::size_t m_stride, std::size_t n,
                          std::size_t columns, float* out, std::size_t out_stride) {
    // Two vectors of eight rows fill half of 32 registers, of six rows all of 16: enough sums for the latency of one.
    constexpr std::size_t kRows = kManyRegisters ? 8 : 6, kRest = kBackRows % kRows;
    const std::size_t lanes = hn::Lanes(F());
    std::size_t c = 0;
    const auto column = [&](auto vectors) TIDEGATE_INNER {
        constexpr std::size_t kVectors = decltype(vectors)::value;
        std::size_t t = 0;
        for (; t + kRows <= kBackRows; t += kRows)
            tile<kRows, kVectors>(x + t * x_stride, x_stride, m + c, m_stride, n, out + t * out_stride + c, out_stride);
        if constexpr (kRest > 0)
            tile<kRest, kVectors>(x + t * x_stride, x_stride, m + c, m_stride, n, out + t * out_stride + c, out_stride);
        c += kVectors * lanes;
    };
    while (c + 2 * lanes <= columns) column(std::integral_constant<std::size_t, 2>());
    while (c < columns) column(std::integral_constant<std::size_t, 1>());
}

/// out[c] = sum_j x[j, c] y[j, c] for n rows j of `columns` columns.
inline void sum_of_products(const float* x, const float* y, std::size_t n, std::size_t columns, float* out) {
    const F f;
    for (std::size_t c = 0; c < columns; c += hn::Lanes(f)) {
        Vec even = hn::Zero(f), odd = even;
        for (std::size_t j = 0; j < n; j += 2) {  // n is a multiple of 16
            even = hn::MulAdd(hn::LoadU(f, x + j * columns + c), hn::LoadU(f, y + j * columns + c), even);
            odd = hn::MulAdd(hn::LoadU(f, x + (j + 1) * columns + c), hn::LoadU(f, y + (j + 1) * columns + c), odd);
        }
        hn::StoreU(hn::Add(even, odd), f, out + c);
    }
}

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
