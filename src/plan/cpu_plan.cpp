#include "plan/cpu_plan.h"

#include <algorithm>
#include <numeric>

namespace tidegate {

Plan plan_cpu(const NormalForm& nf, const CpuMachine& machine, const Options& options) {
    Plan plan;
    auto& a = plan.arithmetic;
    a.path = nf.tied ? "cpu/blocked/tied" : "cpu/blocked/free";
    a.isa = machine.isa;
    a.bucket_k = cpu_bucket(nf.K);
    a.bucket_v = cpu_bucket(nf.V);
    a.pass = nf.every_token() ? 1 : std::lcm(pass_rows(nf.tied), nf.steps) / nf.steps;
    a.operands = "fp32";
    a.accumulate = "fp32";

    // A task is one sequence and head. Columns are split over tasks only where heads alone would leave threads idle:
    // every part repeats the work on q, k and gates.
    auto& s = plan.schedule;
    const std::int64_t heads = nf.sequences * nf.value_heads;
    const std::int64_t threads = std::max<std::int64_t>(1, options.threads > 0 ? options.threads : machine.cores);
    const bool even = heads % threads == 0 || heads >= 8 * threads;
    const std::int64_t parts = std::min(even ? 1 : threads, a.bucket_v / kCpuBucket);
    const bool keeps_state = !nf.pool && nf.final_state.present() && nf.final_state.dtype == Dtype::fp32;
    s.round = keeps_state && heads > threads ? kRoundTokens : 0;
    s.slice_v = cpu_bucket((a.bucket_v + parts - 1) / parts);
    s.tasks = heads * ((a.bucket_v + s.slice_v - 1) / s.slice_v);
    s.threads = static_cast<int>(std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(s.tasks, 1)));
    s.workspace_bytes = s.threads * workspace_floats(nf.K, s.slice_v) * static_cast<std::int64_t>(sizeof(float));
    return plan;
}

}  // namespace tidegate
