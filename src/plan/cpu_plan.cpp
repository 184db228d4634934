#include "plan/cpu_plan.h"

#include <algorithm>

namespace tidegate {

Plan plan_cpu(const NormalForm& nf, const CpuMachine& machine, const Options& options) {
    constexpr std::int64_t kColumns = 16;  // the widest vector: tails are masked the same way on every instruction set
    Plan plan;
    auto& a = plan.arithmetic;
    a.path = nf.tied ? "cpu/recurrent/tied" : "cpu/recurrent/free";
    a.isa = machine.isa;
    a.bucket_k = nf.K;
    a.bucket_v = (nf.V + kColumns - 1) / kColumns * kColumns;
    a.pass = 1;
    a.operands = "fp32";
    a.accumulate = "fp32";

    auto& s = plan.schedule;
    s.slice_v = slice_columns(a.bucket_v);
    s.tasks = nf.sequences * nf.value_heads * ((nf.V + s.slice_v - 1) / s.slice_v);
    const std::int64_t wanted = options.threads > 0 ? options.threads : machine.cores;
    s.threads = static_cast<int>(std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(s.tasks, 1)));
    s.workspace_bytes = s.threads * workspace_floats(nf.K, s.slice_v) * static_cast<std::int64_t>(sizeof(float));
    return plan;
}

}  // namespace tidegate
