// The CPU's plan.
#pragma once

#include <string>

#include "problem/normal_form.h"
#include "tidegate/plan.h"

namespace tidegate {

/// What the plan may know of the machine.
struct CpuMachine {
    std::string isa;  ///< instruction set that dispatch will take
    int cores = 1;
};

/// State columns a task holds: 32 fp32 columns of K = 256 rows are 32 KiB, which an L1 data cache still holds.
constexpr std::int64_t slice_columns(std::int64_t bucket_v) { return bucket_v < 32 ? bucket_v : 32; }

Plan plan_cpu(const NormalForm& nf, const CpuMachine& machine, const Options& options);

/// fp32 values a thread needs: the state slice, two rows of it and six of K, in whole cache lines.
constexpr std::int64_t workspace_floats(std::int64_t K, std::int64_t slice) {
    return (K * slice + 2 * slice + 6 * K + 15) / 16 * 16;
}

}  // namespace tidegate
