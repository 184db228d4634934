#include "judge/judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cases/random.h"
#include "cases/request.h"
#include "problem/number.h"

namespace tidegate::judge {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string text = "[";
    for (const std::int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
    return text + "]";
}

/// What is wrong with a tensor before its values are looked at; "" if nothing.
std::string misfit(const cases::OutputSpec& spec, const io::Array* array) {
    if (array == nullptr) return "missing from the answer";
    if (array->shape != spec.shape) return "shape " + shape_text(array->shape) + ", expected " + shape_text(spec.shape);
    if (array->dtype != spec.dtype)
        return std::string("type ") + tidegate::name_of(array->dtype) + ", expected " + tidegate::name_of(spec.dtype);
    return "";
}

/// The exact values with tokens exchanged: whole rows of all heads.
std::vector<double> shuffled(const Output& output) {
    std::size_t heads = 1;
    while (heads < output.cells.size() && output.cells[heads].token == output.cells[0].token) ++heads;
    const std::size_t row = heads * static_cast<std::size_t>(output.width), rows = output.exact.size() / row;
    std::vector<std::size_t> order(rows);
    for (std::size_t t = 0; t < rows; ++t) order[t] = t;
    const cases::Random random(1, 1);
    for (std::size_t t = rows - 1; t > 0; --t) std::swap(order[t], order[random.bits(t) % t]);  // Sattolo: no row stays
    std::vector<double> values(output.exact.size());
    for (std::size_t t = 0; t < rows; ++t)
        std::copy_n(output.exact.begin() + static_cast<std::ptrdiff_t>(order[t] * row), row,
                    values.begin() + static_cast<std::ptrdiff_t>(t * row));
    return values;
}

}  // namespace

const char* name_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::pass:
            return "pass";
        case Verdict::fail:
            return "fail";
        case Verdict::blind:
            return "blind";
        case Verdict::crashed:
            return "crashed";
        case Verdict::hung:
            return "hung";
        case Verdict::skipped:
            return "skipped";
        case Verdict::not_run:
            return "not_run";
    }
    return "?";
}

std::vector<std::string> passing_mutants(const Gauge& gauge) {
    const Output& output = gauge.output();
    std::vector<std::string> passing;
    if (output.exact.empty()) return {"zeros"};
    const auto attempt = [&](const char* name, std::vector<double> values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            // Where the right value is not finite the mutant keeps it, so that it is judged by its numbers alone.
            values[i] = round_to(gauge.finite()[i] != 0 ? values[i] : output.exact[i], output.dtype);
        }
        if (!gauge.passes(values)) return false;
        passing.emplace_back(name);
        return true;
    };
    const std::size_t n = output.exact.size();
    attempt("zeros", std::vector<double>(n, 0));
    attempt("constant", std::vector<double>(n, 1.5 * gauge.reference_rms() + 1));
    std::vector<double> values(n);
    for (std::uint64_t draw = 0; draw < 3; ++draw) {  // redrawn if within the gate: three times in a row is no chance
        const cases::Random random(draw, 2);
        for (std::size_t i = 0; i < n; ++i) values[i] = random.normal(i) * gauge.reference_rms();
        const std::size_t before = passing.size();
        if (!attempt("random", values)) break;
        if (draw < 2) passing.resize(before);
    }
    for (std::size_t i = 0; i < n; ++i) values[i] = -output.exact[i];
    attempt("negated", values);
    if (output.cells[0].token >= 0 && output.cells.front().token != output.cells.back().token)
        attempt("token-shuffled", shuffled(output));
    if (!output.stale.empty()) attempt("stale", output.stale);
    return passing;
}

Bench::Bench(const io::Bundle& request, const Twin& twin, const Gate& gate)
    : request_(request), expected_(expect(request, twin)) {
    for (const Output& output : expected_.outputs) {
        gauges_.emplace_back(output, gate);
        blinding_.push_back(passing_mutants(gauges_.back()));
    }
}

/// The first slot that no request names and that is not, bit for bit, what it was; -1: none.
std::int64_t Bench::changed_slot(const io::Array& state, const Output& output) const {
    const io::Array before = cases::row_major(*request_.find("state")), after = cases::row_major(state);
    const auto bytes = static_cast<std::size_t>(output.width * bytes_of(state.dtype));
    for (std::size_t c = 0; c < output.cells.size(); ++c)
        if (output.cells[c].kept &&
            std::memcmp(before.bytes.data() + c * bytes, after.bytes.data() + c * bytes, bytes) != 0)
            return output.cells[c].sequence;
    return -1;
}

std::vector<TensorResult> Bench::judge(const io::Bundle& answer,
                                       const std::map<std::string, std::int64_t>& unwritten) const {
    std::vector<TensorResult> results;
    const std::vector<cases::OutputSpec> specs = cases::outputs_of(request_);
    for (std::size_t i = 0; i < specs.size(); ++i) {
        TensorResult r;
        r.name = specs[i].name;
        r.reason = misfit(specs[i], answer.find(r.name));
        if (!r.reason.empty()) {
            r.verdict = Verdict::fail;
            results.push_back(r);
            continue;
        }
        r.measured = true;
        r.measures = gauges_[i].measure(values_of(answer, r.name, request_));
        const std::int64_t changed = r.name == "state" ? changed_slot(*answer.find(r.name), expected_.outputs[i]) : -1;
        if (const auto it = unwritten.find(r.name); it != unwritten.end()) r.unwritten = it->second;
        if (r.unwritten > 0) {
            r.verdict = Verdict::fail;
            r.reason = std::to_string(r.unwritten) + " elements never written";
        } else if (changed >= 0 && r.measures.needed <= 1) {
            r.verdict = Verdict::fail;
            r.reason = "bits changed in slot " + std::to_string(changed) + ", which no request may write";
        } else if (!(r.measures.needed <= 1)) {
            r.verdict = Verdict::fail;
            r.reason = r.measures.why;
        } else if (gauges_[i].undecided() > 0) {
            r.verdict = Verdict::blind;
            r.reason = "the twin overflows, or the value vanishes beside the largest, in " +
                       std::to_string(gauges_[i].undecided()) + " elements: nothing is known there";
        } else if (!blinding_[i].empty()) {
            r.verdict = Verdict::blind;
            r.reason = "would pass:";
            for (const std::string& mutant : blinding_[i]) r.reason += " " + mutant;
        }
        results.push_back(std::move(r));
    }
    return results;
}

bool fits(const io::Bundle& answer, const io::Bundle& request) {
    const std::vector<cases::OutputSpec> specs = cases::outputs_of(request);
    return std::all_of(specs.begin(), specs.end(),
                       [&](const cases::OutputSpec& spec) { return misfit(spec, answer.find(spec.name)).empty(); });
}

Verdict case_verdict(const std::vector<TensorResult>& tensors, const std::vector<bool>& zero_reference) {
    bool all_blind = true, blinded = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].verdict == Verdict::fail) return Verdict::fail;
        const bool blind = tensors[i].verdict == Verdict::blind;
        all_blind = all_blind && blind;
        blinded = blinded || (blind && !zero_reference[i]);
    }
    return all_blind || blinded ? Verdict::blind : Verdict::pass;
}

CaseResult Bench::judge(const subjects::Outcome& outcome) const {
    CaseResult result;
    result.id = request_.meta("case");
    result.seconds = outcome.seconds;
    result.signal = outcome.signal;
    result.reason = outcome.reason;
    result.first_try = outcome.first_try;
    switch (outcome.status) {
        case subjects::Status::skipped:
            result.verdict = Verdict::skipped;
            return result;
        case subjects::Status::failed:
            result.verdict = Verdict::fail;
            return result;
        case subjects::Status::crashed:
            result.verdict = Verdict::crashed;
            return result;
        case subjects::Status::hung:
            result.verdict = Verdict::hung;
            return result;
        case subjects::Status::answered:
            break;
    }
    result.tensors = judge(outcome.answer, outcome.unwritten);
    std::vector<bool> zero_reference;
    for (const Gauge& gauge : gauges_) zero_reference.push_back(gauge.zero_reference());
    result.verdict = case_verdict(result.tensors, zero_reference);
    for (const TensorResult& t : result.tensors)
        if (result.reason.empty() && t.verdict != Verdict::pass && t.verdict == result.verdict)
            result.reason = t.name + ": " + t.reason;
    return result;
}

}  // namespace tidegate::judge
