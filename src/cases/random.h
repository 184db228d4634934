// Counter-based random numbers: value = f(seed, stream, index), the same bytes on every machine and in any order.
#pragma once

#include <cstdint>

namespace tidegate::cases {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
constexpr std::uint64_t mix(std::uint64_t x) {
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

class Random {
public:
    constexpr Random(std::uint64_t seed, std::uint64_t stream) : key_(mix(mix(seed) ^ stream)) {}
    constexpr std::uint64_t bits(std::uint64_t i) const { return mix(key_ ^ mix(i)); }
    /// In [0, 1), a multiple of 2^-24: exact in every float type but the 16-bit ones.
    constexpr double uniform(std::uint64_t i) const { return static_cast<double>(bits(i) >> 40) * 0x1p-24; }
    /// Mean 0, variance 1: four 16-bit uniforms added (exact), times sqrt(3) (one rounding).
    constexpr double normal(std::uint64_t i) const {
        const std::uint64_t b = bits(i);
        const auto sum = (b & 0xFFFF) + ((b >> 16) & 0xFFFF) + ((b >> 32) & 0xFFFF) + (b >> 48);
        return (static_cast<double>(sum) - 131070.0) * 0x1p-16 * 1.7320508075688772;
    }

private:
    std::uint64_t key_;
};

}  // namespace tidegate::cases
