// Poison: signalling NaNs that no arithmetic produces. What still holds them was never written.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "io/bundle.h"

namespace tidegate::subjects {

inline std::uint64_t poison_bits(Dtype dtype) {
    switch (dtype) {
        case Dtype::fp32:
            return 0x7FA5A5A5;
        case Dtype::bf16:
            return 0x7FA5;
        case Dtype::fp16:
            return 0x7DA5;
        default:
            return 0x7FF5A5A5A5A5A5A5;
    }
}

inline void poison(std::byte* data, Dtype dtype, std::int64_t elements) {
    const std::uint64_t bits = poison_bits(dtype);
    const auto size = static_cast<std::size_t>(bytes_of(dtype));
    for (std::int64_t i = 0; i < elements; ++i) std::memcpy(data + static_cast<std::size_t>(i) * size, &bits, size);
}

/// How many elements still hold it; compared as integers, before any conversion could quieten them.
inline std::int64_t poisoned(const std::byte* data, Dtype dtype, std::int64_t elements) {
    const std::uint64_t bits = poison_bits(dtype);
    const auto size = static_cast<std::size_t>(bytes_of(dtype));
    std::int64_t n = 0;
    for (std::int64_t i = 0; i < elements; ++i)
        n += std::memcmp(data + static_cast<std::size_t>(i) * size, &bits, size) == 0 ? 1 : 0;
    return n;
}

/// Counts that an answer's metadata `unwritten` reports: "o:3,final_state:0". Throws Error("unwritten").
std::map<std::string, std::int64_t> parse_unwritten(std::string_view text);

}  // namespace tidegate::subjects
