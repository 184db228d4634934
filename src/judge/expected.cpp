#include "judge/expected.h"

#include <algorithm>
#include <future>

#include "cases/case.h"
#include "cases/request.h"
#include "problem/number.h"
#include "reference/chunked.h"
#include "reference/recurrence.h"
#include "tidegate/error.h"

namespace tidegate::judge {
namespace {

enum class Kind { tokens, states, pool };
Kind kind_of(const std::string& name) {
    return name == "final_state" ? Kind::states : name == "state" ? Kind::pool : Kind::tokens;
}

std::vector<Cell> cells_of(const NormalForm& nf, Kind kind) {
    std::vector<Cell> cells;
    const auto heads = static_cast<std::int32_t>(nf.value_heads);
    if (kind == Kind::tokens) {
        cells.resize(static_cast<std::size_t>(nf.batch * nf.tokens * nf.value_heads));
        for (std::int64_t n = 0; n < nf.sequences; ++n) {
            const Span s = nf.sequence(n);
            for (std::int64_t t = s.begin; t < s.end; ++t)
                for (std::int32_t h = 0; h < heads; ++h) {
                    const std::int64_t row = s.batch * nf.tokens + t;
                    cells[static_cast<std::size_t>(row * heads + h)] = {static_cast<std::int32_t>(n), row, h,
                                                                        nf.source(n) < 0};
                }
        }
        return cells;
    }
    const std::int64_t rows = kind == Kind::pool ? nf.final_state.shape[0] : nf.sequences;
    for (std::int64_t n = 0; n < rows; ++n)
        for (std::int32_t h = 0; h < heads; ++h)
            cells.push_back({static_cast<std::int32_t>(n), -1, h, kind == Kind::pool});
    for (std::int64_t n = 0; kind == Kind::pool && n < nf.sequences; ++n)
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

/// The exact answers to the same case under another seed, by output; empty if there is no such case.
std::vector<std::vector<double>> stale_answers(const io::Bundle& request, const NormalForm& nf,
                                               const std::vector<cases::OutputSpec>& outputs) {
    std::vector<std::vector<double>> values;
    try {
        cases::Case other = cases::parse(request.meta("case"));
        other.seed += 1'000'003;
        const io::Bundle bundle = cases::generate(other);
        const NormalForm form = cases::form_of(cases::bind(bundle));
        if (form.v.shape != nf.v.shape || form.K != nf.K || form.sequences != nf.sequences) return {};
        const reference::Answer answer = reference::recurrence<double>(form);
        for (const cases::OutputSpec& spec : outputs) values.push_back(part(form, answer, spec.name));
    } catch (const Error&) {
        return {};  // a file's own name for its case is no id
    }
    return values;
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
    if (nf.pool && twin.chunk > 0)
        throw Error("twin", "twin: given " + name_of(twin) + " with pass " + request.meta("pass") +
                                ", expected recurrent: chunks are prefill's");
    auto twin_run = std::async(std::launch::async, [&] {
        if (twin.chunk == 0) return reference::recurrence<float>(nf);
        reference::Policy policy;
        if (twin.operand != Dtype::fp32) policy.operand = twin.operand;
        return reference::chunked<float>(nf, twin.chunk, policy);
    });
    reference::Answer magnitude(nf);
    const reference::Answer exact = reference::recurrence<double>(nf, {}, &magnitude);
    const reference::Answer same = twin_run.get();
    const std::vector<cases::OutputSpec> specs = cases::outputs_of(request);
    std::vector<std::vector<double>> stale = stale_answers(request, nf, specs);
    for (std::size_t i = 0; i < specs.size(); ++i) {
        Output out;
        out.name = specs[i].name;
        out.dtype = specs[i].dtype;
        out.width = out.name == "o" ? nf.V : nf.K * nf.V;
        out.cells = cells_of(nf, kind_of(out.name));
        out.exact = part(nf, exact, out.name);
        out.twin = part(nf, same, out.name);
        for (double& x : out.twin) x = round_to(x, out.dtype);
        out.magnitude = part(nf, magnitude, out.name, true);
        if (!stale.empty() && stale[i].size() == out.exact.size()) out.stale = std::move(stale[i]);
        if (out.stale == out.exact) out.stale.clear();
        e.outputs.push_back(std::move(out));
    }
    return e;
}

std::vector<std::vector<double>> evaluate(const Expected& e, const NormalForm& form, const reference::Policy& policy) {
    const reference::Answer answer = reference::recurrence<double>(form, policy);
    std::vector<std::vector<double>> values;
    for (const Output& output : e.outputs) values.push_back(part(form, answer, output.name));
    return values;
}

std::vector<double> values_of(const io::Bundle& answer, const std::string& name, const io::Bundle& request) {
    Tensor t = answer.find(name)->view();
    if (t.rank == 5) {  // tokens of all requests in a row
        for (std::size_t d = 0; d < 4; ++d) {
            t.shape[d] = d == 0 ? t.shape[0] * t.shape[1] : t.shape[d + 1];
            t.stride[d] = t.stride[d + 1];
        }
        t.rank = 4;
    }
    const bool vk = name != "o" && request.meta("state_layout", "kv") == "vk";
    const std::size_t r = vk ? 3 : 2, c = vk ? 2 : 3;
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(t.size()));
    for (std::int64_t a = 0; a < t.shape[0]; ++a)
        for (std::int64_t b = 0; b < t.shape[1]; ++b)
            for (std::int64_t i = 0; i < t.shape[r]; ++i)
                for (std::int64_t j = 0; j < t.shape[c]; ++j)
                    values.push_back(load_element(
                        t.data, t.dtype, a * t.stride[0] + b * t.stride[1] + i * t.stride[r] + j * t.stride[c]));
    return values;
}

}  // namespace tidegate::judge
