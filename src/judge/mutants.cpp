#include "judge/mutants.h"

#include <cmath>

#include "cases/request.h"
#include "subjects/reference_answer.h"

namespace tidegate::judge {
namespace {

constexpr double kInert = 1e-9;

bool moved(const std::vector<double>& exact, const std::vector<double>& mutant) {
    double err = 0, ref = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
        if (std::isfinite(exact[i]) != std::isfinite(mutant[i])) return true;
        if (!std::isfinite(exact[i])) continue;
        err += (mutant[i] - exact[i]) * (mutant[i] - exact[i]);
        ref += exact[i] * exact[i];
    }
    return std::sqrt(err) >= kInert * std::sqrt(ref) && err > 0;
}

}  // namespace

const char* name_of(Sight sight) {
    switch (sight) {
        case Sight::does_not_apply:
            return "does not apply";
        case Sight::inert:
            return "inert";
        case Sight::caught:
            return "caught";
        case Sight::missed:
            return "missed";
    }
    return "?";
}

Sight try_mutant(const Bench& bench, const faults::Fault& fault) {
    const Expected& e = bench.expected();
    const std::string pass = bench.request().meta("pass", "forward");
    if (!faults::applies(fault, pass, e.form)) return Sight::does_not_apply;
    io::Bundle answer;
    bool live = false;
    if (fault.answer != nullptr) {
        answer = subjects::reference_answer(bench.request(), bench.request(), e.form);
        std::vector<std::vector<double>> before;
        for (const Output& o : e.outputs) before.push_back(values_of(answer, o.name, bench.request()));
        fault.answer(e.form, answer);
        for (std::size_t i = 0; i < before.size(); ++i)
            live = live || moved(before[i], values_of(answer, e.outputs[i].name, bench.request()));
    } else {
        io::Bundle request = bench.request();
        NormalForm form = e.form;
        reference::Policy policy;
        if (fault.input != nullptr) {
            fault.input(e.form, request);
            form = cases::form_of(cases::bind(request));
        } else {
            fault.formula(form, policy);
        }
        answer = subjects::reference_answer(bench.request(), request, form, policy);
        const std::vector<std::vector<double>> exact = evaluate(e, request, form, policy);
        for (std::size_t i = 0; i < e.outputs.size(); ++i) live = live || moved(e.outputs[i].exact, exact[i]);
    }
    if (!live) return Sight::inert;
    for (const TensorResult& t : bench.judge(answer, {}))
        if (t.verdict == Verdict::fail) return Sight::caught;
    return Sight::missed;
}

}  // namespace tidegate::judge
