// tidegate bench, pass backward: beside the forward call of the same inputs in the same run, and with its peak memory.
#include <fmt/format.h>

#include <cstdio>
#include <map>

#include "cases/request.h"
#include "cli/bench_times.h"
#include "cli/exit_code.h"
#include "cli/report.h"
#include "cli/verbs.h"
#include "cpu/kernels.h"

namespace tidegate::cli {
namespace {

/// Bytes of this process in memory, at most since the last reset; 0 where the system does not say.
double peak_memory(bool reset) {
    if (reset) {
        if (std::FILE* refs = std::fopen("/proc/self/clear_refs", "w")) {
            std::fputs("5", refs);
            std::fclose(refs);
        }
    }
    double kilobytes = 0;
    if (std::FILE* status = std::fopen("/proc/self/status", "r")) {
        char line[256];
        while (std::fgets(line, sizeof line, status) != nullptr)
            if (std::strncmp(line, "VmHWM:", 6) == 0) kilobytes = std::strtod(line + 6, nullptr);
        std::fclose(status);
    }
    return kilobytes * 1024;
}

/// A call of 16 tokens: what the process needs to run the code at all is then in memory.
void warm_up(cases::Case c) {
    c.T = 16;
    std::erase_if(c.keys, [](const auto& key) { return key.first == "lengths"; });
    const io::Bundle request = cases::generate(c);
    io::Bundle answer = cases::empty_answer(request);
    cases::Problem problem = cases::bind(request);
    cases::attach(problem, answer);
    Options options;
    options.threads = 1;
    cases::run(problem, options);
}

/// The forward call that a backward one belongs to.
Forward forward_of(const Backward& p, const Tensor& o, const Tensor& final_state) {
    Forward forward;
    static_cast<Inputs&>(forward) = p;
    forward.initial_state = p.initial_state;
    forward.cu_seqlens = p.cu_seqlens;
    forward.o = o;
    forward.final_state = final_state;
    return forward;
}

}  // namespace

int bench_backward(const BenchOptions& o, const std::vector<cases::Case>& list, const std::vector<int>& threads) {
    Records records(o.json, o.sink);
    records.run({"bench", o.suite.empty() ? o.target : o.suite, o.subject, {}, {}});
    std::FILE* to = o.json == "-" ? stderr : stdout;
    std::map<int, double> peaks;
    std::string ceilings;
    for (const int t : threads) {
        peaks[t] = cpu::fma_peak(t);
        ceilings += fmt::format("; {} thread{}: {:.1f} GFLOP/s FMA", t, t == 1 ? "" : "s", peaks[t] * 1e-9);
    }
    fmt::print(to, "isa {}{}\n", cpu::current_isa(), ceilings);
    Table table({"case", "path", "threads", "ms", "spread", "GFLOP/s", "of peak", "forward ms", "ratio", "plan MB",
                 "peak MB", "extra FLOP"});
    for (const cases::Case& c : list) {
        const io::Bundle request = cases::generate(c);
        io::Bundle answer = cases::empty_answer(request);
        cases::Problem problem = cases::bind(request);
        cases::attach(problem, answer);
        cases::check(problem);
        cases::inputs_of(problem).check_values = false;
        Aligned aligned;
        for (Tensor* t : cases::tensors_of(problem)) aligned.take(*t);
        const NormalForm form = cases::form_of(problem);
        const auto& backward_problem = std::get<Backward>(problem);
        const Tensor& d_o = backward_problem.d_o;
        Tensor out = dense(nullptr, d_o.dtype, {d_o.shape[0], d_o.shape[1], d_o.shape[2], d_o.shape[3]});
        Tensor state = dense(nullptr, Dtype::fp32, {form.sequences, form.value_heads, form.K, form.V});
        std::vector<std::byte> memory(static_cast<std::size_t>(out.size() * 4 + state.size() * 4));
        out.data = memory.data();
        state.data = memory.data() + out.size() * 4;
        aligned.take(out);
        aligned.take(state);
        if (backward_problem.state_v_first) std::swap(state.shape[2], state.shape[3]), state.stride[2] = state.shape[3];
        const Forward forward_problem = forward_of(backward_problem, out, state);
        for (const int t : threads) {
            Options options;
            options.threads = t;
            options.memory_limit = o.memory_limit;
            const Plan decided = cases::plan_of(problem, options);
            warm_up(c);
            const double before = peak_memory(true) - static_cast<double>(cpu::allocated_bytes());
            cases::run(problem, options);
            const double peak = peak_memory(false) - before;
            forward(forward_problem, options);
            Times ours, theirs;
            const auto start = std::chrono::steady_clock::now();
            const auto spent = [&] {
                return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            };
            while (ours.all.size() < 3 || spent() < o.seconds) {
                ours.all.push_back(seconds_of([&] { cases::run(problem, options); }));
                for (int i = 0; i < 3; ++i)
                    theirs.all.push_back(seconds_of([&] { forward(forward_problem, options); }));
            }
            const double ms = ours.median() * 1e3, gflops = flop_of(form, true) / ours.median() * 1e-9;
            const double ratio = ours.median() / theirs.median(),
                         spread = (ours.at(0.9) - ours.at(0.1)) / ours.median();
            const auto& s = decided.schedule;
            table.add({cases::id_of(c), std::string(decided.arithmetic.path), std::to_string(t),
                       fmt::format("{:.3f}", ms), fmt::format("{:.0f} %", spread * 100), fmt::format("{:.1f}", gflops),
                       fmt::format("{:.0f} %", 100 * gflops * 1e9 / peaks[t]),
                       fmt::format("{:.3f}", theirs.median() * 1e3), fmt::format("{:.2f}", ratio),
                       fmt::format("{:.2f}", static_cast<double>(s.workspace_bytes) * 1e-6),
                       fmt::format("{:.2f}", peak * 1e-6), fmt::format("{:.0f} %", s.extra_flop * 100)});
            records.bench(fmt::format(
                R"("record":"bench","protocol":1,"case":{},"path":"{}","isa":"{}","threads":{},"ms":{},"spread":{},"runs":{},)"
                R"("gflops":{},"peak_gflops":{},"forward_ms":{},"ratio_forward":{},"workspace_bytes":{},"peak_bytes":{},"extra_flop":{})",
                quoted(cases::id_of(c)), decided.arithmetic.path, decided.arithmetic.isa, t, number(ms), number(spread),
                ours.all.size(), number(gflops), number(peaks[t] * 1e-9), number(theirs.median() * 1e3), number(ratio),
                s.workspace_bytes, number(peak), number(s.extra_flop)));
        }
    }
    table.print(to);
    fmt::print(
        to,
        "  GFLOP/s: of the products with states, 16 K V a head and row (free rules: 22); ratio: ms / forward ms;\n"
        "  plan MB: what the plan says the call allocates; peak MB: growth of the process in its first call\n");
    return kPass;
}

}  // namespace tidegate::cli
