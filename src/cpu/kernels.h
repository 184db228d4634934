// What the CPU backend offers to the rest of the library and to its tests.
#pragma once

#include <string>
#include <vector>

#include "plan/cpu_plan.h"

namespace tidegate::cpu {

/// One task: state columns [first, first + columns) of one sequence and value head, all its tokens.
struct Task {
    std::int64_t sequence, head, first_column;
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
std::vector<KernelRow> inventory();

/// Instruction sets compiled in and usable on this machine, best first ("AVX3", "AVX2", "SSE4", ...).
std::vector<std::string> available_isas();
/// The one that calls take now.
std::string current_isa();
/// TIDEGATE_ISA forces one, unless force_isa() has; read once. Throws Error("isa") as force_isa().
void read_environment();
/// Forces one for the whole process; "" returns to the best. Throws Error("isa") if it is not available.
void force_isa(const std::string& name);

void run(const NormalForm& nf, const Plan& plan);
CpuMachine this_machine();

}  // namespace tidegate::cpu
