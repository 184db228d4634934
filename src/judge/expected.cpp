#include "judge/expected.h"

#include <algorithm>
#include <array>
#include <future>

#include "cases/case.h"
#include "cases/request.h"
#include "problem/number.h"
#include "reference/adjoint.h"
#include "reference/chunked.h"
#include "reference/recurrence.h"
#include "tidegate/error.h"

namespace tidegate::judge {
namespace {

/// Where the values of an output lie: kind, rows, heads, width.
Output layout(const NormalForm& nf, const cases::OutputSpec& spec) {
    Output out;
    out.name = spec.name;
    out.dtype = spec.dtype;
    out.heads = nf.value_heads;
    if (spec.name == "state" || spec.name == "final_state" || spec.name == "dh0") {
        out.kind = spec.name == "state" ? Kind::pool : Kind::states;
        out.width = nf.K * nf.V;
    } else if (spec.name == "state_tokens") {
        out.width = nf.K * nf.V;
    } else if (spec.shape.size() == 1) {
        out.kind = Kind::parameters;
        out.width = spec.shape[0] / nf.value_heads;
    } else {
        out.rows = nf.tokens > 0 ? spec.shape[1] / nf.tokens : 1;
        out.heads = spec.shape[2];
        out.width = spec.shape.size() == 4 ? spec.shape[3] : 1;
    }
    return out;
}

std::vector<Cell> cells_of(const NormalForm& nf, const Output& out) {
    std::vector<Cell> cells;
    const auto heads = static_cast<std::int32_t>(out.heads);
    if (out.kind == Kind::tokens) {
        cells.resize(static_cast<std::size_t>(nf.batch * nf.tokens * out.rows * out.heads));
        for (std::int64_t n = 0; n < nf.sequences; ++n) {
            const Span s = nf.sequence(n);
            for (std::int64_t row = (s.batch * nf.tokens + s.begin) * out.rows;
                 row < (s.batch * nf.tokens + s.end) * out.rows; ++row)
                for (std::int32_t h = 0; h < heads; ++h)
                    cells[static_cast<std::size_t>(row * heads + h)] = {static_cast<std::int32_t>(n), row / out.rows, h,
                                                                        nf.source(n) < 0};
        }
        return cells;
    }
    const std::int64_t rows = out.kind == Kind::pool         ? nf.final_state.shape[0]
                              : out.kind == Kind::parameters ? 1
                                                             : nf.sequences;
    const bool pool = out.kind == Kind::pool;
    for (std::int64_t n = 0; n < rows; ++n)
        for (std::int32_t h = 0; h < heads; ++h) cells.push_back({static_cast<std::int32_t>(n), -1, h, pool});
    for (std::int64_t n = 0; pool && n < nf.sequences; ++n)
        for (std::int64_t t = 0; nf.source(n) >= 0 && t < nf.tokens; ++t)
            if (const std::int64_t slot = nf.target(n, t); slot >= 0)
                for (std::int32_t h = 0; h < heads; ++h) cells[static_cast<std::size_t>(slot * heads + h)].kept = false;
    return cells;
}

/// The pool after a call: what it was (or zeros), and over it what the call stores.
std::vector<double> pool_after(const NormalForm& nf, const reference::Answer& answer, bool zeros) {
    const std::int64_t P = nf.initial_state.shape[0], size = nf.value_heads * nf.K * nf.V;
    std::vector<double> pool(static_cast<std::size_t>(P * size), 0);
    std::size_t i = 0;
    for (std::int64_t p = 0; !zeros && p < P; ++p)
        for (std::int64_t h = 0; h < nf.value_heads; ++h)
            for (std::int64_t k = 0; k < nf.K; ++k)
                for (std::int64_t v = 0; v < nf.V; ++v)
                    pool[i++] = load_element(nf.initial_state.data, nf.initial_state.dtype,
                                             offset_of(nf.initial_state, p, h, k, v));
    answer.each_stored(nf, [&](std::int64_t row, std::size_t at, const std::vector<double>& from) {
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), size, pool.begin() + row * size);
    });
    return pool;
}

std::vector<double> part(const NormalForm& nf, const reference::Answer& answer, const std::string& name,
                         bool magnitude = false) {
    if (name == "state") return pool_after(nf, answer, magnitude);
    return name == "o" ? answer.o : name == "state_tokens" ? answer.state_tokens : answer.final_state;
}

using Values = std::vector<std::vector<double>>;  // by output

/// `outputs` of a request's evaluation under `form`; `magnitude` as in the reference.
template <class Real>
Values run(const io::Bundle& request, const NormalForm& form, const std::vector<cases::OutputSpec>& outputs,
           const Twin& twin, const reference::Policy& policy, Values* magnitude = nullptr) {
    const cases::Problem problem = cases::bind(request);
    Values values;
    if (const auto* p = std::get_if<Backward>(&problem)) {
        BackwardForm backward = lower(*p);
        backward.nf = form;
        reference::Gradients sizes(backward);
        const reference::Gradients exact =
            reference::adjoint<Real>(backward, policy, magnitude != nullptr ? &sizes : nullptr);
        for (const cases::OutputSpec& spec : outputs)
            for (const GradientRow& row : gradients())
                if (spec.name == row.name) {
                    values.push_back(exact.of(row.role));
                    if (magnitude == nullptr) continue;
                    magnitude->push_back(sizes.of(row.role));
                    // A product of two recurrences, each with roundings of its own.
                    for (double& x : magnitude->back()) x *= 2;
                }
        return values;
    }
    reference::Answer sizes(form);
    const reference::Answer exact =
        twin.chunk == 0 ? reference::recurrence<Real>(form, policy, magnitude != nullptr ? &sizes : nullptr)
                        : reference::chunked<float>(form, twin.chunk, policy);
    for (const cases::OutputSpec& spec : outputs) {
        values.push_back(part(form, exact, spec.name));
        if (magnitude != nullptr) magnitude->push_back(part(form, sizes, spec.name, true));
    }
    return values;
}

/// The exact answers to the same case under another seed, by output; empty if there is no such case.
Values stale_answers(const io::Bundle& request, const NormalForm& nf, const std::vector<cases::OutputSpec>& outputs) {
    try {
        cases::Case other = cases::parse(request.meta("case"));
        other.seed += 1'000'003;
        const io::Bundle bundle = cases::generate(other);
        const NormalForm form = cases::form_of(cases::bind(bundle));
        if (form.v.shape != nf.v.shape || form.K != nf.K || form.sequences != nf.sequences) return {};
        return run<double>(bundle, form, outputs, {}, {});
    } catch (const Error&) {
        return {};  // a file's own name for its case is no id
    }
}

}  // namespace

Twin twin_from(const std::string& text) {
    if (text == "recurrent") return {};
    Twin twin;
    const std::size_t colon = text.find(':', 8);
    if (text.rfind("chunked:", 0) == 0 && colon != std::string::npos) {
        twin.operand = cases::dtype_from(text.substr(8, colon - 8));
        const std::string chunk = text.substr(colon + 1);
        if (chunk.find_first_not_of("0123456789") == std::string::npos && !chunk.empty() && chunk.size() < 6)
            twin.chunk = std::stoll(chunk);
        if (twin.chunk > 0) return twin;
    }
    throw Error("twin", "twin: given '" + text + "', expected recurrent or chunked:<operand dtype>:<C>");
}

std::string name_of(const Twin& twin) {
    if (twin.chunk == 0) return "recurrent";
    return std::string("chunked:") + tidegate::name_of(twin.operand) + ":" + std::to_string(twin.chunk);
}

Expected expect(const io::Bundle& request, const Twin& twin) {
    Expected e;
    e.form = cases::form_of(cases::bind(request));
    const NormalForm& nf = e.form;
    const std::string pass = request.meta("pass", "forward");
    if (pass != "forward" && twin.chunk > 0)
        throw Error("twin", "twin: given " + name_of(twin) + " with pass " + pass +
                                ", expected recurrent: there is a chunked twin of forward alone");
    const std::vector<cases::OutputSpec> specs = cases::outputs_of(request);
    auto twin_run = std::async(std::launch::async, [&] {
        reference::Policy policy;
        if (twin.chunk > 0 && twin.operand != Dtype::fp32) policy.operand = twin.operand;
        return run<float>(request, nf, specs, twin, policy);
    });
    Values magnitude, exact = run<double>(request, nf, specs, {}, {}, &magnitude);
    Values same = twin_run.get(), stale = stale_answers(request, nf, specs);
    for (std::size_t i = 0; i < specs.size(); ++i) {
        Output out = layout(nf, specs[i]);
        out.cells = cells_of(nf, out);
        out.exact = std::move(exact[i]);
        out.twin = std::move(same[i]);
        for (double& x : out.twin) x = round_to(x, out.dtype);
        out.magnitude = std::move(magnitude[i]);
        if (!stale.empty() && stale[i].size() == out.exact.size()) out.stale = std::move(stale[i]);
        if (out.stale == out.exact) out.stale.clear();
        e.outputs.push_back(std::move(out));
    }
    return e;
}

std::vector<std::vector<double>> evaluate(const Expected& e, const io::Bundle& request, const NormalForm& form,
                                          const reference::Policy& policy) {
    std::vector<cases::OutputSpec> specs;
    for (const Output& output : e.outputs) specs.push_back({output.name, output.dtype, {}});
    return run<double>(request, form, specs, {}, policy);
}

std::vector<double> values_of(const io::Bundle& answer, const std::string& name, const io::Bundle& request) {
    Tensor t = answer.find(name)->view();
    const bool state = name == "final_state" || name == "state" || name == "state_tokens" || name == "dh0";
    if (state && request.meta("state_layout", "kv") == "vk") {
        const auto last = static_cast<std::size_t>(t.rank - 1);
        std::swap(t.shape[last - 1], t.shape[last]);
        std::swap(t.stride[last - 1], t.stride[last]);
    }
    std::vector<double> values(static_cast<std::size_t>(t.size()));
    std::array<std::int64_t, kMaxRank> at{};
    for (double& value : values) {
        std::int64_t offset = 0;
        for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) offset += at[d] * t.stride[d];
        value = load_element(t.data, t.dtype, offset);
        for (auto d = static_cast<std::size_t>(t.rank); d-- > 0 && ++at[d] == t.shape[d];) at[d] = 0;
    }
    return values;
}

}  // namespace tidegate::judge
