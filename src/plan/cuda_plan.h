// The CUDA plan.
#pragma once

#include "problem/normal_form.h"
#include "tidegate/plan.h"

namespace tidegate {

/// Shared memory a CTA of the general decode kernel may fill with its slice of the state (Hopper has 227 KiB a CTA).
inline constexpr std::int64_t kGeneralBytes = 192 << 10;

/// Threads of a decode CTA: its slice of the state is 16 KiB at K = 128, 32 fp32 values a thread.
constexpr int threads_of(std::int64_t state_bytes) { return static_cast<int>(512 / state_bytes); }
/// State columns a CTA, by what limits it, which is 16-byte loads in flight:
///   kv  8 lanes side by side: whole 128-byte lines of every row
///   vk  a group of lanes holds a column of K; 32 fp32 values a lane
constexpr std::int64_t kv_slice(std::int64_t state_bytes) { return 128 / state_bytes; }
constexpr std::int64_t vk_slice(std::int64_t state_bytes, std::int64_t K) {
    const std::int64_t lanes_a_column = K * state_bytes / 16;
    return threads_of(state_bytes) / 32 * (2 * state_bytes) * (32 / lanes_a_column);
}

/// CTAs that fill the chip: five on each of 132 SMs.
inline constexpr std::int64_t kEnoughCtas = 660;
/// Columns a CTA of the one-row kernels may take, over all of its slices.
inline constexpr std::int64_t kMostStepColumns = 256;

/// The bulk kernels: one CTA on each SM of an H200, a ring of at least three states, heads for two rounds at least.
inline constexpr std::int64_t kSms = 132, kManyHeads = 2 * kSms, kBulkBytes = 64 << 10;
inline constexpr std::int64_t kMostBulkColumns = 128;
inline constexpr int kBulkThreads = 416;  ///< 256 compute, 128 prepare the next head, one of a warp asks for states

Plan plan_cuda(const NormalForm& nf);

}  // namespace tidegate
