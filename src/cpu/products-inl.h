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

/// to[c, r] = from[r, c] for r < rows, and 0 up to `padded`; columns are a multiple of 8. Strides in floats.
HWY_NOINLINE void transpose(const float* from, std::size_t from_stride, std::size_t rows, std::size_t padded,
                            std::size_t columns, float* to, std::size_t to_stride) {
    const hn::CappedTag<float, 8> d;  // two blocks of four columns, or one
    constexpr std::size_t kLanes = hn::MaxLanes(d);
    const hn::FixedTag<float, 4> four;
    const std::size_t whole = rows / 4 * 4;
    for (std::size_t c = 0; c < columns; c += kLanes)
        for (std::size_t r = 0; r < whole; r += 4) {  // along the columns of `to`: whole lines, one after another
            const float* x = from + r * from_stride + c;
            const auto row0 = hn::LoadU(d, x), row1 = hn::LoadU(d, x + from_stride),
                       row2 = hn::LoadU(d, x + 2 * from_stride), row3 = hn::LoadU(d, x + 3 * from_stride);
            const auto even = hn::InterleaveLower(d, row0, row2), odd = hn::InterleaveLower(d, row1, row3),
                       EVEN = hn::InterleaveUpper(d, row0, row2), ODD = hn::InterleaveUpper(d, row1, row3);
            const auto put = [&](auto v, std::size_t column) TIDEGATE_INNER {
                float* const y = to + (c + column) * to_stride + r;
                if constexpr (kLanes == 8) {
                    hn::StoreU(hn::LowerHalf(four, v), four, y);
                    hn::StoreU(hn::UpperHalf(four, v), four, y + 4 * to_stride);
                } else {
                    hn::StoreU(v, four, y);
                }
            };
            put(hn::InterleaveLower(d, even, odd), 0);
            put(hn::InterleaveUpper(d, even, odd), 1);
            put(hn::InterleaveLower(d, EVEN, ODD), 2);
            put(hn::InterleaveUpper(d, EVEN, ODD), 3);
        }
    for (std::size_t r = whole; r < padded; ++r)
        for (std::size_t c = 0; c < columns; ++c) to[c * to_stride + r] = r < rows ? from[r * from_stride + c] : 0.0F;
}

/// out[r, :] (+)= sum_j x[r, j] m[j, :] for kRows rows and kVectors vectors of columns; sums run over j in order.
template <std::size_t kRows, std::size_t kVectors>
HWY_INLINE void tile(const float* x, std::size_t x_stride, const float* m, std::size_t m_stride, std::size_t n,
                     float* out, std::size_t out_stride, bool more) {
    const F f;
    const std::size_t lanes = hn::Lanes(f);
    Vec sum[kRows][kVectors];
    TIDEGATE_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) TIDEGATE_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v)
        sum[r][v] = more ? hn::LoadU(f, out + r * out_stride + v * lanes) : hn::Zero(f);
    for (std::size_t j = 0; j < n; ++j, m += m_stride) {
        Vec y[kVectors];
        TIDEGATE_UNROLL
        for (std::size_t v = 0; v < kVectors; ++v) y[v] = hn::LoadU(f, m + v * lanes);
        TIDEGATE_UNROLL
        for (std::size_t r = 0; r < kRows; ++r) {
            const Vec c = hn::Set(f, x[r * x_stride + j]);
            TIDEGATE_UNROLL
            for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(c, y[v], sum[r][v]);
        }
    }
    TIDEGATE_UNROLL
    for (std::size_t r = 0; r < kRows; ++r) TIDEGATE_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], f, out + r * out_stride + v * lanes);
}

/// tile() for `rows` rows, kRows at most at a time.
template <std::size_t kRows, std::size_t kVectors>
HWY_INLINE void tiles(const float* x, std::size_t x_stride, const float* m, std::size_t m_stride, std::size_t n,
                      std::size_t rows, float* out, std::size_t out_stride, bool more) {
    std::size_t r = 0;
    for (; r + kRows <= rows; r += kRows)
        tile<kRows, kVectors>(x + r * x_stride, x_stride, m, m_stride, n, out + r * out_stride, out_stride, more);
    if constexpr (kRows > 1) {
        if (r < rows)
            tiles<kRows / 2, kVectors>(x + r * x_stride, x_stride, m, m_stride, n, rows - r, out + r * out_stride,
                                       out_stride, more);
    }
}

/// out[r, c] = sum_j x[r, j] m[j, c] for n values j and `columns` (a multiple of 16) columns c, dense in m and out;
/// with `more`, added to what out holds.
HWY_NOINLINE void product(const float* x, std::size_t x_stride, const float* m, std::size_t n, std::size_t rows,
                          std::size_t columns, float* out, bool more = false) {
    // Eight rows of two vectors fill half of 32 registers, six all of 16: enough sums for the latency of one.
    constexpr std::size_t kRows = kManyRegisters ? 8 : 6;
    const std::size_t lanes = hn::Lanes(F());
    std::size_t c = 0;
    for (; c + 2 * lanes <= columns; c += 2 * lanes)
        tiles<kRows, 2>(x, x_stride, m + c, columns, n, rows, out + c, columns, more);
    for (; c < columns; c += lanes) tiles<2 * kRows, 1>(x, x_stride, m + c, columns, n, rows, out + c, columns, more);
}

/// part[r, :] (+)= x[r, :] o y[r, :] folded onto one vector of lanes, `width` columns a row.
HWY_NOINLINE void fold_products(const float* x, const float* y, std::size_t rows, std::size_t width, float* part,
                                bool more) {
    const F f;
    const std::size_t lanes = hn::Lanes(f);
    for (std::size_t r = 0; r < rows; ++r) {
        Vec sum = more ? hn::LoadU(f, part + r * lanes) : hn::Zero(f);
        for (std::size_t c = 0; c < width; c += lanes)
            sum = hn::MulAdd(hn::LoadU(f, x + r * width + c), hn::LoadU(f, y + r * width + c), sum);
        hn::StoreU(sum, f, part + r * lanes);
    }
}

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
