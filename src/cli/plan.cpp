// tidegate plan: what would run, without running it.
#include <fmt/format.h>

#include "cases/request.h"
#include "cases/suite.h"
#include "cli/exit_code.h"
#include "cli/records.h"
#include "cli/verbs.h"
#include "tidegate/error.h"
#include "tidegate/forward.h"

namespace tidegate::cli {

int plan(const PlanOptions& o) {
    if (o.subject == "cuda")
        throw subjects::Unavailable("subject", "subject: given 'cuda', but this build has no CUDA plan");
    if (o.subject != "cpu") throw Error("subject", "subject: given '" + o.subject + "', expected cpu or cuda");
    cases::Case c;
    c.rule = rule_from(o.rule);
    c.dtype = cases::dtype_from(o.dtype);
    c.T = o.tokens;
    c.H = c.HV = o.heads;
    c.K = o.K;
    c.V = o.V;
    const io::Bundle request = cases::generate(cases::parse(cases::id_of(c)));
    io::Bundle answer = cases::empty_answer(request);
    Forward problem = cases::bind(request);
    cases::attach(problem, answer);
    Options options;
    options.threads = o.threads;
    const Plan decided = tidegate::plan(problem, options);
    Records(o.json).plan(o.rule, decided);
    if (o.json != "-") fmt::print("{}\n", decided.text());
    return kPass;
}

}  // namespace tidegate::cli
