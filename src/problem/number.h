// Element types: exact widening, correctly rounded narrowing, typed access by index.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tidegate/tensor.h"

namespace tidegate {

/// Value bits of a float type: p (with the hidden one), least exponent of a normal number, largest finite value.
struct FloatFormat {
    int precision;
    int min_exponent;
    double max;
};

inline constexpr FloatFormat format_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::bf16:
            return {8, -126, 3.3895313892515355e38};
        case Dtype::fp16:
            return {11, -14, 65504};
        case Dtype::fp32:
            return {24, -126, 3.4028234663852886e38};
        default:
            return {53, -1022, std::numeric_limits<double>::max()};
    }
}

/// The distance between neighbours of `dtype` at |x| (that of the smallest normal number below it).
inline double ulp(double x, Dtype dtype) {
    const FloatFormat f = format_of(dtype);
    int e = f.min_exponent;
    if (std::isfinite(x) && x != 0) e = std::max(std::ilogb(x), f.min_exponent);
    return std::ldexp(1.0, e - f.precision + 1);
}

/// x rounded once, to nearest even, as a cast to `dtype` rounds: overflow gives inf, subnormals are kept, NaN stays.
inline double round_to(double x, Dtype dtype) {
    if (dtype == Dtype::fp32) return static_cast<double>(static_cast<float>(x));
    if (dtype == Dtype::fp64 || !std::isfinite(x) || x == 0) return x;
    const FloatFormat f = format_of(dtype);
    const double quantum = ulp(x, dtype);
    const double rounded = std::nearbyint(x / quantum) * quantum;  // powers of two: only nearbyint rounds
    return std::fabs(rounded) > f.max ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

inline double half_bits_to_double(std::uint16_t h) {
    const int exponent = (h >> 10) & 31;
    const double mantissa = h & 1023;
    const double sign = (h & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
    return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

inline std::uint16_t double_to_half_bits(double x) {
    const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
    if (std::isnan(x)) return static_cast<std::uint16_t>(sign | 0x7E00);
    const double a = std::fabs(round_to(x, Dtype::fp16));
    if (std::isinf(a)) return static_cast<std::uint16_t>(sign | 0x7C00);
    if (a < 0x1p-14) return static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(a, 24)));
    const int e = std::ilogb(a);
    return static_cast<std::uint16_t>(sign | ((e + 15) << 10) | (static_cast<int>(std::ldexp(a, 10 - e)) - 1024));
}

inline float bf16_bits_to_float(std::uint16_t h) { return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16); }

inline std::uint16_t double_to_bf16_bits(double x) {
    if (std::isnan(x)) return static_cast<std::uint16_t>(std::signbit(x) ? 0xFFC0 : 0x7FC0);
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(round_to(x, Dtype::bf16))) >> 16);
}

/// Element i of an array of `dtype`, widened exactly (int64 beyond 2^53 excepted).
inline double load_element(const void* data, Dtype dtype, std::int64_t i) {
    switch (dtype) {
        case Dtype::fp32:
            return static_cast<double>(static_cast<const float*>(data)[i]);
        case Dtype::bf16:
            return static_cast<double>(bf16_bits_to_float(static_cast<const std::uint16_t*>(data)[i]));
        case Dtype::fp16:
            return half_bits_to_double(static_cast<const std::uint16_t*>(data)[i]);
        case Dtype::fp64:
            return static_cast<const double*>(data)[i];
        case Dtype::int32:
            return static_cast<double>(static_cast<const std::int32_t*>(data)[i]);
        case Dtype::int64:
            return static_cast<double>(static_cast<const std::int64_t*>(data)[i]);
    }
    return std::numeric_limits<double>::quiet_NaN();
}

/// Rounds x once to `dtype` and stores it as element i.
inline void store_element(void* data, Dtype dtype, std::int64_t i, double x) {
    switch (dtype) {
        case Dtype::fp32:
            static_cast<float*>(data)[i] = static_cast<float>(x);
            break;
        case Dtype::bf16:
            static_cast<std::uint16_t*>(data)[i] = double_to_bf16_bits(x);
            break;
        case Dtype::fp16:
            static_cast<std::uint16_t*>(data)[i] = double_to_half_bits(x);
            break;
        case Dtype::fp64:
            static_cast<double*>(data)[i] = x;
            break;
        case Dtype::int32:
            static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(x);
            break;
        case Dtype::int64:
            static_cast<std::int64_t*>(data)[i] = static_cast<std::int64_t>(x);
            break;
    }
}

inline bool is_float(Dtype dtype) { return dtype != Dtype::int32 && dtype != Dtype::int64; }

/// Offset in elements of an index, in 64 bits whatever the index's type.
template <class... Index>
std::int64_t offset_of(const Tensor& t, Index... index) {
    std::int64_t offset = 0;
    std::size_t d = 0;
    ((offset += static_cast<std::int64_t>(index) * t.stride[d++]), ...);
    return offset;
}

/// An element of an int32 or int64 tensor.
template <class... Index>
std::int64_t load_index(const Tensor& t, Index... index) {
    const std::int64_t at = offset_of(t, index...);
    return t.dtype == Dtype::int32 ? static_cast<const std::int32_t*>(t.data)[at]
                                   : static_cast<const std::int64_t*>(t.data)[at];
}

}  // namespace tidegate
