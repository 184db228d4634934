// The CUDA plan.
#pragma once

#include "problem/normal_form.h"
#include "tidegate/plan.h"

namespace tidegate {

/// Shared memory a CTA of the general decode kernel may fill with its slice of the state (Hopper has 227 KiB a CTA).
inline constexpr std::int64_t kGeneralBytes = 192 << 10;

/// State columns a CTA, by what limits it. 16-byte loads, eight in flight a lane, 128 threads:
///   kv  8 lanes side by side: whole 128-byte lines of every row, K / 16 rows a lane
///   vk  a group of lanes holds a column of K; 4 warps of 8 loads
constexpr std::int64_t kv_slice(std::int64_t state_bytes) { return 128 / state_bytes; }
constexpr std::int64_t vk_slice(std::int64_t state_bytes, std::int64_t K) {
    const std::int64_t lanes_a_column = K * state_bytes / 16;
    return 4 * 8 * (32 / lanes_a_column);
}

Plan plan_cuda(const NormalForm& nf);

}  // namespace tidegate
