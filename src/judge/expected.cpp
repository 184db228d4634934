#include "judge/expected.h"

#include <future>

#include "cases/case.h"
#include "cases/request.h"
#include "problem/number.h"
#include "reference/chunked.h"
#include "reference/recurrence.h"
#include "tidegate/error.h"

namespace tidegate::judge {
namespace {

std::vector<Cell> cells_of(const NormalForm& nf, bool state) {
    std::vector<Cell> cells;
    const auto heads = static_cast<std::int32_t>(nf.value_heads);
    if (!state) cells.resize(static_cast<std::size_t>(nf.batch * nf.tokens * nf.value_heads));
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        const Span s = nf.sequence(n);
        for (std::int64_t t = s.begin; !state && t < s.end; ++t)
            for (std::int32_t h = 0; h < heads; ++h) {
                const std::int64_t row = s.batch * nf.tokens + t;
                cells[static_cast<std::size_t>(row * heads + h)] = {static_cast<std::int32_t>(n), row, h};
            }
        for (std::int32_t h = 0; state && h < heads; ++h) cells.push_back({static_cast<std::int32_t>(n), -1, h});
    }
    return cells;
}

/// The exact answer to the same case under another seed.
std::optional<reference::Answer> stale_answer(const io::Bundle& request, const NormalForm& nf) {
    try {
        cases::Case other = cases::parse(request.meta("case"));
        other.seed += 1'000'003;
        const io::Bundle bundle = cases::generate(other);
        const NormalForm form = lower(cases::bind(bundle));
        if (form.v.shape != nf.v.shape || form.K != nf.K || form.sequences != nf.sequences) return std::nullopt;
        return reference::recurrence<double>(form);
    } catch (const Error&) {
        return std::nullopt;  // a file's own name for its case is no id
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
    e.form = lower(cases::bind(request));
    const NormalForm& nf = e.form;
    auto twin_run = std::async(std::launch::async, [&] {
        if (twin.chunk == 0) return reference::recurrence<float>(nf);
        reference::Policy policy;
        if (twin.operand != Dtype::fp32) policy.operand = twin.operand;
        return reference::chunked<float>(nf, twin.chunk, policy);
    });
    reference::Answer magnitude(nf);
    reference::Answer exact = reference::recurrence<double>(nf, {}, &magnitude);
    reference::Answer same = twin_run.get();
    std::optional<reference::Answer> stale = stale_answer(request, nf);
    for (const cases::OutputSpec& spec : cases::outputs_of(request)) {
        const bool state = spec.name == "final_state";
        const auto part = [state](reference::Answer& a) { return std::move(state ? a.final_state : a.o); };
        Output out;
        out.name = spec.name;
        out.dtype = spec.dtype;
        out.width = state ? nf.K * nf.V : nf.V;
        out.cells = cells_of(nf, state);
        out.exact = part(exact);
        out.twin = part(same);
        for (double& x : out.twin) x = round_to(x, out.dtype);
        out.magnitude = part(magnitude);
        if (stale) out.stale = part(*stale);
        if (out.stale == out.exact) out.stale.clear();
        e.outputs.push_back(std::move(out));
    }
    return e;
}

std::vector<double> values_of(const io::Bundle& answer, const std::string& name, const io::Bundle& request) {
    const Tensor t = answer.find(name)->view();
    const bool vk = name == "final_state" && request.meta("state_layout", "kv") == "vk";
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
