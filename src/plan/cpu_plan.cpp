#include "plan/cpu_plan.h"

#include <algorithm>
#include <numeric>

#include "tidegate/error.h"

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

Plan plan_cpu(const BackwardForm& form, const CpuMachine& machine, const Options& options) {
    const NormalForm& nf = form.nf;
    Plan plan;
    auto& a = plan.arithmetic;
    a.path = nf.tied ? "cpu/reverse/tied" : "cpu/reverse/free";
    a.isa = machine.isa;
    a.bucket_k = cpu_bucket(nf.K);
    a.bucket_v = cpu_bucket(nf.V);
    a.pass = std::lcm(kBackRows, nf.steps) / nf.steps;
    a.operands = "fp32";
    a.accumulate = "fp32";

    // A task is a sequence and a key head: sums over value heads that share it then have one order.
    auto& s = plan.schedule;
    s.tasks = nf.sequences * nf.key_heads;
    s.slice_v = a.bucket_v;
    std::int64_t longest = 1;
    for (std::int64_t n = 0; n < nf.sequences; ++n)
        longest = std::max(longest, (nf.sequence(n).end - nf.sequence(n).begin) * nf.steps);
    const std::int64_t blocks = (longest + kBackRows - 1) / kBackRows;
    const auto spacing = [&](std::int64_t segments) { return (blocks + segments - 1) / segments * kBackRows; };
    const std::int64_t channels = nf.gate.decay == Decay::vector ? nf.K : 1;
    const std::int64_t parameters =
        form.has(Role::A_log) ? nf.sequences * nf.value_heads * (channels + 1) * std::int64_t{sizeof(double)} : 0;
    const auto bytes = [&](std::int64_t threads, std::int64_t segments) {
        return threads * backward_floats(nf, longest, spacing(segments)) * std::int64_t{sizeof(float)} + parameters;
    };
    if (options.memory_limit < 0)
        throw Error("memory_limit", "memory_limit: given " + std::to_string(options.memory_limit) +
                                        ", expected bytes, or 0 for no limit");
    const std::int64_t limit = options.memory_limit, wanted = options.threads > 0 ? options.threads : machine.cores;
    std::int64_t threads = std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(s.tasks, 1)), segments = 1;
    const auto fits = [&] { return limit <= 0 || bytes(threads, segments) <= limit; };
    // One segment recomputes each state once, several all but the last segment's twice: as few as fit.
    std::int64_t least = bytes(threads, segments);
    while (!fits()) {
        least = std::min(least, bytes(threads, segments));
        if (segments < blocks) {
            ++segments;
        } else if (threads > 1) {
            --threads;
            segments = 1;
        } else {
            throw Error("memory_limit", "memory_limit: given " + std::to_string(limit) +
                                            " bytes, expected at least the " + std::to_string(least) +
                                            " that one thread needs");
        }
    }
    s.threads = static_cast<int>(threads);
    s.spacing = spacing(segments);
    const double again =
        static_cast<double>(std::max<std::int64_t>(longest - s.spacing, 0)) / static_cast<double>(longest);
    s.extra_flop = again * (nf.tied ? 4.0 / 16 : 6.0 / 22);
    s.workspace_bytes = bytes(threads, segments);
    return plan;
}

}  // namespace tidegate
