// The CUDA plan.
#pragma once

#include "problem/normal_form.h"
#include "tidegate/plan.h"

namespace tidegate {

/// Shared memory a CTA of the general decode kernel may fill with its slice of the state (Hopper has 227 KiB a CTA).
inline constexpr std::int64_t kGeneralBytes = 192 << 10;

/// Threads of a decode CTA: four warps, each with its own state columns, and 128 registers a thread.
inline constexpr std::int64_t kDecodeThreads = 128;
/// State columns that the CTA takes, from wide to narrow. The wider, the longer the pieces of memory that are read and
/// written together, and the fewer the CTAs: a slice is taken if there are `ctas` of it at least, and by a call of
/// several rows, whose slice stays in registers in fp32, if it has at most 64 values a thread. By measurement; the
/// limit is what finds a place at once on an H200: five CTAs, by shared memory, on each of 132 multiprocessors.
struct DecodeShape {
    char dense;  ///< the dimension of the state that is dense: 'V' or 'K'
    std::int64_t state_bytes, K, columns, ctas;
};
inline constexpr std::int64_t kAtOnce = std::int64_t{5} * 132;
inline constexpr DecodeShape kDecodeShapes[] = {
    {'V', 4, 128, 64, kAtOnce},  {'V', 4, 128, 32, 0}, {'V', 4, 64, 64, kAtOnce},  {'V', 4, 64, 32, 0},
    {'V', 2, 128, 128, kAtOnce}, {'V', 2, 128, 64, 0}, {'V', 2, 64, 128, kAtOnce}, {'V', 2, 64, 64, 0},
    {'K', 4, 128, 64, kAtOnce},  {'K', 4, 128, 32, 0}, {'K', 4, 64, 64, kAtOnce},  {'K', 4, 64, 32, 0},
    {'K', 2, 128, 128, kAtOnce}, {'K', 2, 128, 64, 0}, {'K', 2, 64, 128, kAtOnce}, {'K', 2, 64, 64, 0}};

Plan plan_cuda(const NormalForm& nf);

}  // namespace tidegate
