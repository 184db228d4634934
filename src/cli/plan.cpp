// tidegate plan: what would run, without running it.
#include <fmt/format.h>

#include "cases/case.h"
#include "cli/exit_code.h"
#include "cli/records.h"
#include "cli/verbs.h"
#include "cpu/kernels.h"
#include "plan/cpu_plan.h"
#include "problem/checks.h"

namespace tidegate::cli {

int plan(const PlanOptions& o) {
    if (o.subject == "cuda")
        throw subjects::Unavailable("subject", "subject: given 'cuda', but this build has no CUDA plan");
    if (o.subject != "cpu") throw Error("subject", "subject: given '" + o.subject + "', expected cpu or cuda");
    if (o.pass != "forward" && o.pass != "backward")
        throw Error("pass", "pass: given '" + o.pass + "', expected forward or backward");
    if (o.memory_limit > 0 && o.pass != "backward")
        throw Error("memory-limit", "memory-limit: given with pass forward, expected it with --pass backward");
    const std::pair<const char*, std::int64_t> sizes[] = {
        {"dk", o.K}, {"dv", o.V}, {"tokens", o.tokens}, {"heads", o.heads}, {"n-householder", o.n_householder}};
    for (const auto& [name, size] : sizes)
        if (size < 1 || size > (1LL << 31))
            throw Error(name, std::string(name) + ": given " + std::to_string(size) + ", expected a size >= 1");
    if (o.n_householder > checks::kMostSteps)
        throw Error("n-householder", "n-householder: given " + std::to_string(o.n_householder) + ", expected 1 to " +
                                         std::to_string(checks::kMostSteps));
    if (o.dtype == "fp64") throw Error("dtype", "dtype: given 'fp64', expected fp32, bf16 or fp16");
    const double states = static_cast<double>(o.K + 16) * static_cast<double>(o.V + 16);
    const double rows = static_cast<double>(o.tokens) * static_cast<double>(o.n_householder);
    if (!(states * (o.pass == "backward" ? rows + 64 : 64) < 0x1p52))
        throw Error("dk",
                    fmt::format("dk: given K = {}, V = {} and {} rows, expected sizes of a problem that fits a machine",
                                o.K, o.V, rows));
    // Shapes alone decide a plan: no memory is behind these views.
    Inputs inputs;
    inputs.rule = rule_from(o.rule);
    inputs.n_householder = o.n_householder;
    if (o.n_householder > 1 && !row_of(inputs.rule).householder)
        throw Error("n-householder", "n-householder: given with rule " + o.rule + ", expected it with gdp");
    const Dtype dtype = cases::dtype_from(o.dtype);
    inputs.q = dense(nullptr, dtype, {1, o.tokens, o.heads, o.K});
    inputs.k = dense(nullptr, dtype, {1, o.tokens * o.n_householder, o.heads, o.K});
    inputs.v = dense(nullptr, dtype, {1, o.tokens * o.n_householder, o.heads, o.V});
    Forward forward;
    Backward backward;
    static_cast<Inputs&>(forward) = static_cast<Inputs&>(backward) = inputs;
    Options options;
    options.threads = o.threads;
    options.memory_limit = o.memory_limit;
    const Plan decided = o.pass == "forward" ? plan_cpu(lower(forward), cpu::this_machine(), options)
                                             : plan_cpu(lower(backward), cpu::this_machine(), options);
    Records(o.json).plan(o.rule, decided);
    if (o.json != "-") fmt::print("{}\n", decided.text());
    return kPass;
}

}  // namespace tidegate::cli
