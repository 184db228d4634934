// What the CPU backend offers to the rest of the library and to its tests.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "plan/cpu_plan.h"

namespace tidegate::cpu {

/// One task: rows [begin, end) (Householder steps, packed) and state columns [first, first + columns) of one sequence
/// and value head. `state` is what the state is before `begin`; nf.final_state gets what it is after.
struct Task {
    std::int64_t sequence, head;
    std::int64_t begin, end;
    Tensor state;  ///< [N, HV, K, V]; absent: zeros
    std::int64_t first_column;
    std::int64_t columns;  ///< a multiple of the bucket; those past V are computed and not stored
    float* workspace;      ///< workspace_floats(K, columns) values, 64-byte aligned
};

using Kernel = void (*)(const NormalForm&, const Task&);
struct KernelRow {
    const char* path;
    bool tied;
    Kernel kernel;
};

/// The inventory, for the instruction set in force.
inline constexpr std::size_t kKernels = 0
#define KERNEL(function, path, tied) +1  // NOLINT(bugprone-macro-parentheses): a sum is what it is
#include "cpu/inventory.inc"
    ;
std::array<KernelRow, kKernels> inventory();

/// One task of backward: a sequence and a key head, with the value heads that share it.
struct BackwardTask {
    std::int64_t sequence, key_head;
    std::int64_t spacing, longest;  ///< rows a segment (a multiple of kBackRows), and of the longest sequence
    bool shared;                    ///< whether value heads share key heads
    float* workspace;               ///< backward_floats() values, 64-byte aligned
    double* parameters;  ///< [HV, 1 + K or 1] of the sequence: sums for dA_log and ddt_bias; null where gates are given
};

using ReverseKernel = void (*)(const BackwardForm&, const BackwardTask&);
struct ReverseRow {
    const char* path;
    bool tied;
    ReverseKernel kernel;
};
inline constexpr std::size_t kReverseKernels = 0
#define REVERSE(function, path, tied) +1  // NOLINT(bugprone-macro-parentheses)
#include "cpu/inventory.inc"
    ;
std::array<ReverseRow, kReverseKernels> reverse_inventory();

/// Instruction sets compiled in and usable on this machine, best first ("AVX3", "AVX2", "SSE4", ...).
std::vector<std::string> available_isas();
/// The one that calls take now.
std::string_view current_isa();
/// TIDEGATE_ISA forces one, unless force_isa() has; read once. Throws Error("isa") as force_isa().
void read_environment();
/// Forces one for the whole process; "" returns to the best. Throws Error("isa") if it is not available.
void force_isa(const std::string& name);

/// Carries a plan out. The calling thread keeps its workspace for its next call; nothing else is allocated.
void run(const NormalForm& nf, const Plan& plan);
void run(const BackwardForm& form, const Plan& plan);
/// Bytes of workspace that all threads keep now.
std::int64_t allocated_bytes();
CpuMachine this_machine();

/// Measured now, best of several: FLOP/s of fused multiply-adds on the instruction set in force, and bytes/s read and
/// written by a copy that no cache holds.
double fma_peak(int threads);
double copy_bandwidth(int threads);

}  // namespace tidegate::cpu
