// The public verbs: a problem is checked, lowered, planned, and handed to the backend where its tensors are.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cpu/kernels.h"
#include "cuda/cuda.h"
#include "plan/cuda_plan.h"
#include "problem/gradients.h"
#include "tidegate/decode.h"
#include "tidegate/forward.h"

namespace tidegate {
namespace {

template <class Problem>
auto checked(const Problem& problem) {
    cpu::read_environment();
    check(problem);
    return lower(problem);
}

Plan decide(const BackwardForm& form, const Options& options) { return plan_cpu(form, cpu::this_machine(), options); }
Plan decide(const NormalForm& nf, const Options& options) {
    return nf.q.device == Device::cuda ? plan_cuda(nf) : plan_cpu(nf, cpu::this_machine(), options);
}

void run(const BackwardForm& form, const Plan& plan, const Options&) { cpu::run(form, plan); }
void run(const NormalForm& nf, const Plan& plan, const Options& options) {
    if (nf.q.device == Device::cuda)
        cuda::run(nf, plan, options);
    else
        cpu::run(nf, plan);
}

template <class Form>
void carry_out(const Form& form, const Options& options) {
    const Plan plan = decide(form, options);
    const char* log = std::getenv("TIDEGATE_LOG");  // "plan": every plan that runs, to stderr
    if (log != nullptr && std::string_view(log) == "plan") std::fprintf(stderr, "%s\n", plan.text().c_str());
    run(form, plan, options);
}

}  // namespace

Plan plan(const Forward& problem, const Options& options) { return decide(checked(problem), options); }
Plan plan(const Backward& problem, const Options& options) { return decide(checked(problem), options); }
Plan plan(const Decode& problem, const Options& options) { return decide(checked(problem), options); }
Plan plan(const PackedDecode& problem, const Options& options) { return plan(unpack(problem), options); }

void forward(const Forward& problem, const Options& options) { carry_out(checked(problem), options); }
void backward(const Backward& problem, const Options& options) { carry_out(checked(problem), options); }
void decode(const Decode& problem, const Options& options) { carry_out(checked(problem), options); }
void packed_decode(const PackedDecode& problem, const Options& options) { decode(unpack(problem), options); }
}  // namespace tidegate
