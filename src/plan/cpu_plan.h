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

/// fp32 values a thread needs: the state slice, six rows of K and three of the slice.
constexpr std::int64_t workspace_floats(std::int64_t K, std::int64_t slice) { return K * slice + 6 * K + 3 * slice; }

}  // namespace tidegate
