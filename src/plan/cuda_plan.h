// The CUDA plan.
#pragma once

#include "problem/normal_form.h"
#include "tidegate/plan.h"

namespace tidegate {

/// Shared memory a CTA of the general decode kernel may fill with its slice of the state (Hopper has 227 KiB a CTA).
inline constexpr std::int64_t kGeneralBytes = 192 << 10;

/// Threads of a decode CTA: four warps, each with its own state columns, and 128 registers a thread.
inline constexpr int kDecodeThreads = 128;
/// State columns that the CTA takes. Wide: 8 KiB a warp, 64 registers of raw state a thread, all of it in flight at
/// once. Narrow: half of that, for calls that would leave multiprocessors without work, and for 16-bit states of
/// several rows, which are held in fp32.
struct DecodeShape {
    char dense;  ///< the dimension of the state that is dense: 'V' or 'K'
    std::int64_t state_bytes, K, wide, narrow;
};
inline constexpr DecodeShape kDecodeShapes[] = {{'V', 4, 128, 64, 32},  {'V', 4, 64, 64, 32},  {'V', 2, 128, 128, 64},
                                                {'V', 2, 64, 128, 64},  {'K', 4, 128, 64, 32}, {'K', 4, 64, 64, 32},
                                                {'K', 2, 128, 128, 64}, {'K', 2, 64, 128, 64}};

/// An H200's multiprocessors, with four decode CTAs each.
inline constexpr std::int64_t kCtasAtOnce = 4 * 132;

Plan plan_cuda(const NormalForm& nf);

}  // namespace tidegate
