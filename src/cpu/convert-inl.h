// Rows of any float type to fp32 and back, rounded once to nearest even. Per-target code: included by *_hwy.cpp.
#include "problem/number.h"
#include "tidegate/tensor.h"

#if defined(TIDEGATE_CPU_CONVERT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_CPU_CONVERT_INL_H
#undef TIDEGATE_CPU_CONVERT_INL_H
#else
#define TIDEGATE_CPU_CONVERT_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;  // 16 is what buckets are multiples of
using Vec = hn::Vec<F>;

// Highway 1.0.3 emulates fp16 on SSE with truncation and without inf or NaN: those targets take the scalar path.
inline constexpr bool kHalfInHardware = HWY_TARGET <= HWY_AVX2;

HWY_INLINE Vec widen_bf16(F f, const std::uint16_t* from) {
    const hn::Rebind<std::uint16_t, F> u16;
    const hn::RebindToUnsigned<F> u32;
    return hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(u32, hn::LoadU(u16, from))));
}

HWY_INLINE void narrow_bf16(F, Vec x, std::uint16_t* to) {
    const hn::Rebind<std::uint16_t, F> u16;
    const hn::RebindToUnsigned<F> u32;
    const auto bits = hn::BitCast(u32, x);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(u32, 0x7FFF)));
    // The carry would turn a NaN into an inf, or lose its payload: NaNs are quietened instead.
    const auto nan = hn::Or(bits, hn::Set(u32, 0x400000));
    const auto kept = hn::ShiftRight<16>(hn::IfThenElse(hn::RebindMask(u32, hn::IsNaN(x)), nan, rounded));
    hn::StoreU(hn::DemoteTo(u16, hn::BitCast(hn::RebindToSigned<F>(), kept)), u16, to);
}

/// to[0, n) = factor * from[first, first + n) of `dtype`, widened.
inline void widen(Dtype dtype, const void* from, std::int64_t first, std::size_t n, float* to, float factor = 1.0F) {
    const F f;
    const Vec by = hn::Set(f, factor);
    const std::size_t lanes = hn::Lanes(f);
    std::size_t i = 0;
    if (dtype == Dtype::fp32) {
        const float* x = static_cast<const float*>(from) + first;
        for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(by, hn::LoadU(f, x + i)), f, to + i);
    } else if (dtype == Dtype::bf16) {
        const auto* x = static_cast<const std::uint16_t*>(from) + first;
        for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(by, widen_bf16(f, x + i)), f, to + i);
    } else if constexpr (kHalfInHardware) {
        const hn::Rebind<hwy::float16_t, F> f16;
        const auto* x = static_cast<const hwy::float16_t*>(from) + first;
        for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(by, hn::PromoteTo(f, hn::LoadU(f16, x + i))), f, to + i);
    }
    for (; i < n; ++i)
        to[i] = factor * static_cast<float>(load_element(from, dtype, first + static_cast<std::int64_t>(i)));
}

/// to[first, first + n) of `dtype` = from[0, n), rounded.
inline void narrow(Dtype dtype, const float* from, std::size_t n, void* to, std::int64_t first) {
    const F f;
    const std::size_t lanes = hn::Lanes(f);
    std::size_t i = 0;
    if (dtype == Dtype::fp32) {
        float* x = static_cast<float*>(to) + first;
        for (; i + lanes <= n; i += lanes) hn::StoreU(hn::LoadU(f, from + i), f, x + i);
    } else if (dtype == Dtype::bf16) {
        auto* x = static_cast<std::uint16_t*>(to) + first;
        for (; i + lanes <= n; i += lanes) narrow_bf16(f, hn::LoadU(f, from + i), x + i);
    } else if constexpr (kHalfInHardware) {
        const hn::Rebind<hwy::float16_t, F> f16;
        auto* x = static_cast<hwy::float16_t*>(to) + first;
        for (; i + lanes <= n; i += lanes) hn::StoreU(hn::DemoteTo(f16, hn::LoadU(f, from + i)), f16, x + i);
    }
    for (; i < n; ++i) store_element(to, dtype, first + static_cast<std::int64_t>(i), static_cast<double>(from[i]));
}

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
