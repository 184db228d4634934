#include "cases/request.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cases/case.h"
#include "problem/normal_form.h"
#include "problem/number.h"
#include "tidegate/error.h"

namespace tidegate::cases {
namespace {

[[noreturn]] void bad(const std::string& key, const std::string& given, const std::string& expected) {
    throw Error(key, "metadata " + key + ": given '" + given + "', expected " + expected);
}

std::optional<double> number(const io::Bundle& request, const std::string& key) {
    const std::string text = request.meta(key);
    if (text.empty()) return std::nullopt;
    double x = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(x))
        bad(key, text, "a finite number");
    return x;
}

/// The index of the metadata's value among `choices`; the first is the default.
std::size_t choice(const io::Bundle& request, const std::string& key, std::initializer_list<const char*> choices) {
    const std::string text = request.meta(key, *choices.begin());
    std::size_t i = 0;
    std::string known;
    for (const char* c : choices) {
        if (text == c) return i;
        known += std::string(i++ == 0 ? "" : " or ") + c;
    }
    bad(key, text, known);
}

struct Input {
    const char* name;
    Tensor Forward::*member;
    const char* gates;  ///< the only value of metadata `gates` under which it is read
};
constexpr Input kInputs[] = {{"q", &Forward::q, nullptr},
                             {"k", &Forward::k, nullptr},
                             {"v", &Forward::v, nullptr},
                             {"g", &Forward::g, "given"},
                             {"beta", &Forward::beta, "given"},
                             {"a", &Forward::a, "logits"},
                             {"b", &Forward::b, "logits"},
                             {"A_log", &Forward::A_log, "logits"},
                             {"dt_bias", &Forward::dt_bias, "logits"},
                             {"initial_state", &Forward::initial_state, nullptr},
                             {"cu_seqlens", &Forward::cu_seqlens, nullptr}};
constexpr const char* kOthers[] = {"do", "dht"};  // of other passes, legal in a forward request

}  // namespace

Forward bind(const io::Bundle& request) {
    Forward p;
    if (const std::string protocol = request.meta("protocol", "1"); protocol != "1") bad("protocol", protocol, "1");
    if (request.meta("rule").empty()) throw Error("rule", "metadata rule: given nothing, expected a rule's name");
    p.rule = rule_from(request.meta("rule"));
    choice(request, "pass", {"forward"});
    const bool logits = choice(request, "gates", {"given", "logits"}) == 1;
    p.scale = number(request, "scale");
    p.qk_l2norm = choice(request, "qk_l2norm", {"0", "1"}) == 1;
    p.gate_form = choice(request, "gate_form", {"softplus", "bounded"}) == 1 ? GateForm::bounded : GateForm::softplus;
    p.lower_bound = number(request, "lower_bound").value_or(p.lower_bound);
    p.gate_min = number(request, "gate_min");
    const bool neg = choice(request, "allow_neg_eigval", {"0", "1"}) == 1;
    p.allow_neg_eigval = logits && neg;
    p.head_map = choice(request, "head_map", {"grouped", "tiled"}) == 1 ? HeadMap::tiled : HeadMap::grouped;
    p.state_v_first = choice(request, "state_layout", {"kv", "vk"}) == 1;
    p.check_values = true;
    for (const Input& in : kInputs) {
        const io::Array* array = request.find(in.name);
        if (array == nullptr || (in.gates != nullptr && std::string(in.gates) != (logits ? "logits" : "given")))
            continue;
        p.*in.member = array->view();
    }
    return p;
}

std::vector<OutputSpec> outputs_of(const io::Bundle& request) {
    const Forward p = bind(request);
    if (p.q.rank != 4 || p.v.rank != 4) check(p, true);  // throws, and says which
    const std::int64_t B = p.v.shape[0], T = p.v.shape[1], HV = p.v.shape[2], V = p.v.shape[3], K = p.q.shape[3];
    const std::int64_t N = p.cu_seqlens.present() ? p.cu_seqlens.shape[0] - 1 : B;
    // Extents of empty tensors are bounded by no file size: an answer of 2^40 elements is nobody's intention.
    const double elements =
        static_cast<double>(HV) * static_cast<double>(V) *
        std::max(static_cast<double>(B) * static_cast<double>(T), static_cast<double>(N) * static_cast<double>(K));
    if (N < 0 || !(elements < 0x1p40))
        throw Error("v", "v: given shape " + shape_text(p.v) + ", expected an answer of fewer than 2^40 elements");
    const Dtype out = dtype_from(request.meta("out_dtype", name_of(p.v.dtype)));
    const Dtype state = dtype_from(request.meta("state_dtype", "fp32"));
    return {{"o", out, {B, T, HV, V}},
            {"final_state", state, {N, HV, p.state_v_first ? V : K, p.state_v_first ? K : V}}};
}

io::Bundle empty_answer(const io::Bundle& request) {
    io::Bundle answer;
    answer.metadata["protocol"] = "1";
    if (const std::string id = request.meta("case"); !id.empty()) answer.metadata["case"] = id;
    for (const OutputSpec& spec : outputs_of(request)) answer.add(io::Array(spec.name, spec.dtype, spec.shape));
    return answer;
}

void attach(Forward& problem, io::Bundle& answer) {
    problem.o = answer.find("o")->view();
    problem.final_state = answer.find("final_state")->view();
}

std::vector<std::string> unknown_metadata(const io::Bundle& request) {
    constexpr const char* kKnown[] = {"protocol",        "rule",      "pass",         "scale",       "qk_l2norm",
                                      "gates",           "gate_form", "lower_bound",  "gate_min",    "allow_neg_eigval",
                                      "n_householder",   "head_map",  "state_layout", "state_dtype", "out_dtype",
                                      "per_token_state", "ranks",     "layout",       "lengths",     "case",
                                      "source"};
    std::vector<std::string> unknown;
    for (const auto& [key, value] : request.metadata)
        if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) unknown.push_back(key);
    return unknown;
}

void validate(const io::Bundle& request, bool allow_nan) {
    for (const io::Array& array : request.tensors) {
        bool known = false;
        for (const Input& in : kInputs) known = known || array.name == in.name;
        for (const char* other : kOthers) known = known || array.name == other;
        if (!known)
            throw Error(array.name, "tensor '" + array.name + "': expected one of the names in docs/protocol.md");
    }
    Forward p = bind(request);
    // Shapes come first: the answer's are made from q and v, and a zero-sized stand-in must not be reported.
    const bool sized = p.q.rank == 4 && p.v.rank == 4;
    io::Bundle answer;
    if (sized && (!p.cu_seqlens.present() || (p.cu_seqlens.rank == 1 && p.cu_seqlens.shape[0] >= 2))) {
        answer = empty_answer(request);
        attach(p, answer);
    }
    check(p, true);
    // A file may hold both kinds of gates, and upstream gradients: what this call does not use must be sound too.
    io::Bundle other = request;
    other.metadata["gates"] = request.meta("gates", "given") == "given" ? "logits" : "given";
    const bool both = other.metadata["gates"] == "given"
                          ? request.find("g") != nullptr && request.find("beta") != nullptr
                          : request.find("a") != nullptr && request.find("b") != nullptr;
    if (both) {
        Forward q = bind(other);
        q.o = p.o;
        q.final_state = p.final_state;
        q.allow_neg_eigval = false;
        check(q, true);
    }
    if (const io::Array* d = request.find("do"); d != nullptr && d->shape != request.find("v")->shape)
        throw Error("do", "do: given shape " + shape_text(d->view()) + ", expected v's " + shape_text(p.v));
    if (allow_nan) return;
    for (const Input& in : kInputs) {
        const Tensor& t = p.*in.member;
        if (!t.present() || !is_float(t.dtype)) continue;
        const io::Array& array = *request.find(in.name);
        const bool may_be_minus_inf = std::string(in.name) == "g";
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(array.bytes.size()) / bytes_of(array.dtype); ++i) {
            const double x = load_element(array.bytes.data(), array.dtype, i);
            if (std::isfinite(x) || (may_be_minus_inf && x < 0)) continue;
            throw Error(in.name, std::string(in.name) + ": given " + (std::isnan(x) ? "NaN" : "inf") + " at element " +
                                     std::to_string(i) + ", expected finite values (--allow-nan takes them)");
        }
    }
}

}  // namespace tidegate::cases
