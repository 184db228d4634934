// tidegate plan: what would run, without running it.
#include <fmt/format.h>

#include "cases/case.h"
#include "cli/exit_code.h"
#include "cli/records.h"
#include "cli/verbs.h"
#include "cpu/kernels.h"
#include "plan/cpu_plan.h"
#include "problem/normal_form.h"

namespace tidegate::cli {

int plan(const PlanOptions& o) {
    if (o.subject == "cuda")
        throw subjects::Unavailable("subject", "subject: given 'cuda', but this build has no CUDA plan");
    if (o.subject != "cpu") throw Error("subject", "subject: given '" + o.subject + "', expected cpu or cuda");
    const std::pair<const char*, std::int64_t> sizes[] = {
        {"dk", o.K}, {"dv", o.V}, {"tokens", o.tokens}, {"heads", o.heads}};
    for (const auto& [name, size] : sizes)
        if (size < 1 || size > (1LL << 31))
            throw Error(name, std::string(name) + ": given " + std::to_string(size) + ", expected a size >= 1");
    // Shapes alone decide a plan: no memory is behind these views.
    Forward problem;
    problem.rule = rule_from(o.rule);
    const Dtype dtype = cases::dtype_from(o.dtype);
    problem.q = problem.k = dense(nullptr, dtype, {1, o.tokens, o.heads, o.K});
    problem.v = problem.o = dense(nullptr, dtype, {1, o.tokens, o.heads, o.V});
    Options options;
    options.threads = o.threads;
    const Plan decided = plan_cpu(lower(problem), cpu::this_machine(), options);
    Records(o.json).plan(o.rule, decided);
    if (o.json != "-") fmt::print("{}\n", decided.text());
    return kPass;
}

}  // namespace tidegate::cli
