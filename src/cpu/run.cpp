// A plan carried out on the CPU, and the public verbs of the library.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>
#include <thread>

#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "tidegate/error.h"
#include "tidegate/forward.h"

namespace tidegate {
namespace cpu {

CpuMachine this_machine() {
    return {current_isa(), static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))};
}

void run(const NormalForm& nf, const Plan& plan) {
    Kernel kernel = nullptr;
    for (const KernelRow& row : inventory())
        if (row.path == plan.arithmetic.path) kernel = row.kernel;
    if (kernel == nullptr) throw Error("plan", "plan: no CPU kernel is called " + plan.arithmetic.path);

    constexpr std::align_val_t kAlignment{64};
    const auto& s = plan.schedule;
    const auto bytes = static_cast<std::size_t>(s.workspace_bytes);
    const auto release = [](float* p) { ::operator delete(p, kAlignment); };
    const std::unique_ptr<float, decltype(release)> workspace(static_cast<float*>(::operator new(bytes, kAlignment)),
                                                              release);
    const std::int64_t slices = (nf.V + s.slice_v - 1) / s.slice_v, heads = nf.value_heads;
    const std::int64_t each = workspace_floats(nf.K, s.slice_v);
    parallel_for(s.tasks, s.threads, [&](std::int64_t i, int worker) {
        const std::int64_t column = i % slices * s.slice_v;
        kernel(nf, {i / slices / heads, i / slices % heads, column, s.slice_v, workspace.get() + worker * each});
    });
}

}  // namespace cpu

namespace {}  // namespace

Plan plan(const Forward& problem, const Options& options) {
    cpu::read_environment();
    check(problem);
    return plan_cpu(lower(problem), cpu::this_machine(), options);
}

void forward(const Forward& problem, const Options& options) {
    cpu::read_environment();
    check(problem);
    const NormalForm nf = lower(problem);
    const Plan decided = plan_cpu(nf, cpu::this_machine(), options);
    const char* log = std::getenv("TIDEGATE_LOG");  // "plan": every plan that runs, to stderr
    if (log != nullptr && std::string_view(log) == "plan") std::fprintf(stderr, "%s\n", decided.text().c_str());
    cpu::run(nf, decided);
}

}  // namespace tidegate
