// The CPU's plan.
#pragma once

#include <algorithm>
#include <string_view>

#include "problem/gradients.h"
#include "tidegate/plan.h"

namespace tidegate {

/// What the plan may know of the machine.
struct CpuMachine {
    std::string_view isa;  ///< instruction set that dispatch will take
    int cores = 1;
};

/// K and V are padded to the widest vector: tails are computed alike on every instruction set.
inline constexpr std::int64_t kCpuBucket = 16;
constexpr std::int64_t cpu_bucket(std::int64_t n) { return (n + kCpuBucket - 1) / kCpuBucket * kCpuBucket; }

/// Rank-1 updates a pass. A pass loads and stores the state once and does 3 FMAs an element for each: with four, loads
/// and stores hide behind them, and coefficients and sums still fit 16 vector registers.
inline constexpr std::int64_t kPassRank = 4;
/// Rows (Householder steps) a pass: a tied row is one rank-1 update, a free one two.
constexpr std::int64_t pass_rows(bool tied) { return tied ? kPassRank : kPassRank / 2; }
/// Passes prepared at a time: their coefficients stay in L2 while every slice of the state runs through them.
inline constexpr std::int64_t kPassesPerBlock = 8;

/// Tokens that every head advances before any goes on, where a thread has several. Rows of different heads share pages:
/// a round's pages then stay in the TLB while all heads pass over them, which 4 KiB pages under a long sequence would
/// not. Needs an fp32 final state to keep each head's state between rounds; a multiple of every pass, so that no bit
/// changes.
inline constexpr std::int64_t kRoundTokens = 256;

/// fp32 values a thread needs for `columns` state columns (a multiple of the bucket).
constexpr std::int64_t workspace_floats(std::int64_t K, std::int64_t columns) {
    const std::int64_t Kp = cpu_bucket(K);
    const std::int64_t coefficients = (kPassesPerBlock + 1) * (1 + 3 * kPassRank) * Kp;
    const std::int64_t rows = (5 * kPassRank + 2) * Kp;                           // q, k, d, e, b; dt_bias; a line
    const std::int64_t values = (2 * kPassesPerBlock * kPassRank + 1) * columns;  // v and o of a block; scratch
    const std::int64_t pending = 3 * kPassRank * columns;                         // deltas, reads, outputs; a zero row
    return K * columns + coefficients + rows + values + pending + columns;
}

/// Rows a block of backward: the states that enter blocks are kept, and gradients along K are products of a block's
/// rows with them. A larger block has fewer states and more pairs of rows.
inline constexpr std::int64_t kBackRows = 16;

/// fp32 values that a thread of backward needs, with segments of `spacing` rows of `longest`.
constexpr std::int64_t backward_floats(const NormalForm& nf, std::int64_t longest, std::int64_t spacing) {
    const std::int64_t K = nf.K, Kp = cpu_bucket(K), Vp = cpu_bucket(nf.V), R = kBackRows;
    const std::int64_t states = 2 * K * Vp;  // S, E
    const std::int64_t coefficients = R / pass_rows(nf.tied) * (1 + 3 * kPassRank) * Kp;
    const std::int64_t rows = 10 * R * Kp + Kp + 5 * R * Vp + 4 * std::max(Kp, Vp);
    const std::int64_t products = 4 * R * Vp + 5 * R * K + 4 * R * R;  // of rows with states and each other
    const std::int64_t pending = 3 * kPassRank * Vp;
    const std::int64_t sums = nf.value_heads > nf.key_heads ? 2 * longest * Kp : 0;
    const std::int64_t segment = spacing * Vp + (spacing + R - 1) / R * K * Vp;
    const std::int64_t segments = std::max<std::int64_t>((longest + spacing - 1) / spacing, 1);
    return states + coefficients + rows + products + pending + sums + segment + (segments - 1) * K * Vp;
}

/// Throws Error("memory_limit") where options ask for less than one thread needs.
Plan plan_cpu(const BackwardForm& form, const CpuMachine& machine, const Options& options);
Plan plan_cpu(const NormalForm& nf, const CpuMachine& machine, const Options& options);

}  // namespace tidegate
