#include "cases/request.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cases/case.h"
#include "io/file.h"
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

template <class P>
inline constexpr bool kPrefill = std::is_same_v<P, Forward> || std::is_same_v<P, Backward>;

/// Calls f(name, tensor, the only value of metadata `gates` under which it is read or nullptr) for every input.
template <class P, class F>
void each_input(P& p, const F& f) {
    using T = std::remove_const_t<P>;
    if constexpr (std::is_same_v<T, PackedDecode>) {
        f("mixed_qkv", p.mixed_qkv, nullptr);
    } else {
        f("q", p.q, nullptr);
        f("k", p.k, nullptr);
        f("v", p.v, nullptr);
        f("g", p.g, "given");
        f("beta", p.beta, "given");
        f("erase", p.erase, nullptr);
        f("write", p.write, nullptr);
        f("lr_a", p.lr_a, nullptr);
        f("lr_b", p.lr_b, nullptr);
    }
    f("a", p.a, "logits");
    f("b", p.b, "logits");
    f("A_log", p.A_log, "logits");
    f("dt_bias", p.dt_bias, "logits");
    if constexpr (kPrefill<T>) {
        f("initial_state", p.initial_state, nullptr);
        f("cu_seqlens", p.cu_seqlens, nullptr);
        if constexpr (std::is_same_v<T, Backward>) {
            f("do", p.d_o, nullptr);
            f("dht", p.dht, nullptr);
        }
    } else {
        f("state", p.state, nullptr);
        f("state_indices", p.state_indices, nullptr);
    }
    if constexpr (std::is_same_v<T, Decode>) f("num_accepted", p.num_accepted, nullptr);
}
constexpr const char* kOthers[] = {"do", "dht"};  // of other passes, legal in a forward request

std::optional<std::int64_t> whole(const io::Bundle& request, const std::string& key) {
    const std::optional<double> x = number(request, key);
    if (!x) return std::nullopt;
    if (*x != std::floor(*x) || std::fabs(*x) > 0x1p52) bad(key, request.meta(key), "a whole number");
    return static_cast<std::int64_t>(*x);
}

void options(const io::Bundle& request, bool logits, Inputs& p) {
    p.rule = rule_from(request.meta("rule"));
    p.scale = number(request, "scale");
    p.n_householder = whole(request, "n_householder").value_or(1);
    p.qk_l2norm = choice(request, "qk_l2norm", {"0", "1"}) == 1;
    p.gate_form = choice(request, "gate_form", {"softplus", "bounded"}) == 1 ? GateForm::bounded : GateForm::softplus;
    p.lower_bound = number(request, "lower_bound").value_or(p.lower_bound);
    p.gate_min = number(request, "gate_min");
    const bool neg = choice(request, "allow_neg_eigval", {"0", "1"}) == 1;
    p.allow_neg_eigval = logits && neg;
    p.head_map = choice(request, "head_map", {"grouped", "tiled"}) == 1 ? HeadMap::tiled : HeadMap::grouped;
    p.state_v_first = choice(request, "state_layout", {"kv", "vk"}) == 1;
    p.check_values = true;
}

Tensor cu_seqlens_of(const Problem& problem) {
    if (const auto* forward = std::get_if<Forward>(&problem)) return forward->cu_seqlens;
    if (const auto* backward = std::get_if<Backward>(&problem)) return backward->cu_seqlens;
    return {};
}

/// Extents of a request's answer. Throws where the inputs that give them are misshapen.
struct Sizes {
    std::int64_t B, T, HV, V, K, N;
    Dtype dtype;  ///< of v
};
Sizes sizes_of(const Problem& problem) {
    if (const auto* packed = std::get_if<PackedDecode>(&problem)) {
        const Decode d = unpack(*packed);
        return {d.v.shape[0], 1, d.v.shape[2], d.v.shape[3], d.q.shape[3], d.v.shape[0], d.v.dtype};
    }
    const Inputs& p = inputs_of(problem);
    if (p.q.rank != 4 || p.v.rank != 4) check(problem, true);  // throws, and says which
    const Tensor cu = cu_seqlens_of(problem);
    return {p.q.shape[0], p.q.shape[1], p.v.shape[2],
            p.v.shape[3], p.q.shape[3], cu.present() ? cu.shape[0] - 1 : p.q.shape[0],
            p.v.dtype};
}

}  // namespace

Problem bind(const io::Bundle& request) {
    if (const std::string protocol = request.meta("protocol", "1"); protocol != "1") bad("protocol", protocol, "1");
    if (request.meta("rule").empty()) throw Error("rule", "metadata rule: given nothing, expected a rule's name");
    Problem problem;
    switch (choice(request, "pass", {"forward", "backward", "decode", "packed"})) {
        case 1:
            problem = Backward();
            break;
        case 2:
            problem = Decode();
            break;
        case 3:
            problem = PackedDecode();
            break;
        default:
            break;
    }
    const bool logits = std::holds_alternative<PackedDecode>(problem)
                            ? choice(request, "gates", {"logits"}) == 0
                            : choice(request, "gates", {"given", "logits"}) == 1;
    options(request, logits, inputs_of(problem));
    std::visit(
        [&](auto& p) {
            each_input(p, [&](const char* name, Tensor& tensor, const char* gates) {
                const io::Array* array = request.find(name);
                if (array != nullptr && (gates == nullptr || std::string(gates) == (logits ? "logits" : "given")))
                    tensor = array->view();
            });
            using P = std::decay_t<decltype(p)>;
            if constexpr (!kPrefill<P>) {
                p.null_slot = whole(request, "null_slot");
                if (const std::string type = request.meta("state_dtype");
                    !type.empty() && p.state.present() && type != name_of(p.state.dtype))
                    bad("state_dtype", type, std::string(name_of(p.state.dtype)) + ", the type of the pool");
            }
            if constexpr (std::is_same_v<P, Decode>)
                if (choice(request, "per_token_state", {"0", "1"}) == 1 && p.q.rank == 4 && p.state.rank == 4)
                    p.state_tokens = dense(nullptr, p.state.dtype,
                                           {p.q.shape[0], p.q.shape[1], p.state.shape[1], p.state.shape[2],
                                            p.state.shape[3]});  // memory comes with attach()
        },
        problem);
    return problem;
}

Inputs& inputs_of(Problem& problem) {
    return std::visit([](auto& p) -> Inputs& { return p; }, problem);
}
const Inputs& inputs_of(const Problem& problem) {
    return std::visit([](const auto& p) -> const Inputs& { return p; }, problem);
}

namespace {
const Forward& plain(const Forward& p) { return p; }
const Backward& plain(const Backward& p) { return p; }
const Decode& plain(const Decode& p) { return p; }
Decode plain(const PackedDecode& p) { return unpack(p); }
NormalForm form(NormalForm nf) { return nf; }
NormalForm form(const BackwardForm& f) { return f.nf; }
}  // namespace

NormalForm form_of(const Problem& problem) {
    return std::visit([](const auto& p) { return form(lower(plain(p))); }, problem);
}
void check(const Problem& problem, bool allow_fp64) {
    std::visit([&](const auto& p) { tidegate::check(plain(p), allow_fp64); }, problem);
}
Plan plan_of(const Problem& problem, const Options& options) {
    return std::visit([&](const auto& p) { return plan(p, options); }, problem);
}
void run(const Problem& problem, const Options& options) {
    if (const auto* p = std::get_if<Forward>(&problem)) return forward(*p, options);
    if (const auto* p = std::get_if<Backward>(&problem)) return backward(*p, options);
    if (const auto* p = std::get_if<Decode>(&problem)) return decode(*p, options);
    packed_decode(std::get<PackedDecode>(problem), options);
}

std::vector<Tensor*> tensors_of(Problem& problem) {
    std::vector<Tensor*> all;
    std::visit(
        [&](auto& p) {
            all = {&p.q,     &p.k,     &p.v,    &p.g,    &p.beta,  &p.a,      &p.b,
                   &p.erase, &p.write, &p.lr_a, &p.lr_b, &p.A_log, &p.dt_bias};
            const auto add = [&all](std::initializer_list<Tensor*> more) { all.insert(all.end(), more); };
            using P = std::decay_t<decltype(p)>;
            if constexpr (std::is_same_v<P, Forward>) {
                add({&p.o, &p.initial_state, &p.cu_seqlens, &p.final_state});
            } else if constexpr (std::is_same_v<P, Backward>) {
                add({&p.initial_state, &p.cu_seqlens, &p.d_o, &p.dht});
                for (const GradientRow& row : gradients()) add({&(p.*row.gradient)});
            } else {
                add({&p.o, &p.state, &p.state_indices});
                if constexpr (std::is_same_v<P, Decode>)
                    add({&p.num_accepted, &p.state_tokens});
                else
                    add({&p.mixed_qkv});
            }
        },
        problem);
    return all;
}

std::vector<OutputSpec> outputs_of(const io::Bundle& request) {
    const Problem problem = bind(request);
    const Sizes s = sizes_of(problem);
    const bool decodes = std::holds_alternative<Decode>(problem) || std::holds_alternative<PackedDecode>(problem);
    const bool vk = inputs_of(problem).state_v_first;
    const std::vector<std::int64_t> state{s.HV, vk ? s.V : s.K, vk ? s.K : s.V};
    const auto states = [&state](std::vector<std::int64_t> first) {
        first.insert(first.end(), state.begin(), state.end());
        return first;
    };
    const io::Array* pool = request.find("state");
    if (decodes && pool == nullptr) throw Error("state", "state: given nothing, expected a tensor [P, HV, K, V]");
    const bool every = decodes && choice(request, "per_token_state", {"0", "1"}) == 1;
    if (every && std::holds_alternative<PackedDecode>(problem))
        bad("per_token_state", "1", "it with pass decode: a packed call has one token");
    // Extents of empty tensors are bounded by no file size: an answer of 2^40 elements is nobody's intention.
    const double rows = static_cast<double>(s.B) * static_cast<double>(s.T);
    const double elements =
        static_cast<double>(s.HV) * static_cast<double>(s.V) *
        std::max(every ? rows * static_cast<double>(s.K) : rows, static_cast<double>(s.N) * static_cast<double>(s.K));
    if (s.N < 0 || !(elements < 0x1p40))
        throw Error("v", "v: given shape " + shape_text(inputs_of(problem).v) +
                             ", expected an answer of fewer than 2^40 elements");
    if (const auto* p = std::get_if<Backward>(&problem)) {
        std::vector<OutputSpec> specs;
        for (const GradientRow& row : gradients()) {
            const Tensor& input = p->*row.input;
            if (row.role == Role::h0)
                specs.push_back({row.name, input.present() ? input.dtype : Dtype::fp32, states({s.N})});
            else if (input.present())
                specs.push_back({row.name, input.dtype, {input.shape.begin(), input.shape.begin() + input.rank}});
        }
        return specs;
    }
    const Dtype out = dtype_from(request.meta("out_dtype", name_of(s.dtype)));
    std::vector<OutputSpec> specs{{"o", out, {s.B, s.T, s.HV, s.V}}};
    if (!decodes) {
        specs.push_back({"final_state", dtype_from(request.meta("state_dtype", "fp32")), states({s.N})});
        return specs;
    }
    specs.push_back({"state", pool->dtype, pool->shape});
    if (every) specs.push_back({"state_tokens", pool->dtype, states({s.B, s.T})});
    return specs;
}

io::Array row_major(const io::Array& array) {
    io::Array dense(array.name, array.dtype, array.shape);
    dense.bytes.clear();
    io::append_dense(dense.bytes, array);
    return dense;
}

io::Bundle empty_answer(const io::Bundle& request) {
    io::Bundle answer;
    answer.metadata["protocol"] = "1";
    if (const std::string id = request.meta("case"); !id.empty()) answer.metadata["case"] = id;
    for (const OutputSpec& spec : outputs_of(request))
        answer.add(spec.name == "state" ? row_major(*request.find("state"))
                                        : io::Array(spec.name, spec.dtype, spec.shape));
    return answer;
}

void attach(Problem& problem, const std::function<Tensor(const std::string&)>& find) {
    if (auto* backward = std::get_if<Backward>(&problem)) {
        for (const GradientRow& row : gradients()) backward->*row.gradient = find(row.name);
    } else if (auto* forward = std::get_if<Forward>(&problem)) {
        forward->o = find("o");
        forward->final_state = find("final_state");
    } else if (auto* decode = std::get_if<Decode>(&problem)) {
        decode->o = find("o");
        decode->state = find("state");
        decode->state_tokens = find("state_tokens");
    } else {
        auto& packed = std::get<PackedDecode>(problem);
        packed.o = find("o");
        packed.state = find("state");
    }
}

void attach(Problem& problem, io::Bundle& answer) {
    attach(problem, [&answer](const std::string& name) {
        const io::Array* array = answer.find(name);
        return array != nullptr ? array->view() : Tensor();
    });
}

void widen(io::Bundle& request, Dtype dtype) {
    for (io::Array& array : request.tensors) {
        if (!is_float(array.dtype) || bytes_of(array.dtype) != 2 || array.dtype == dtype) continue;
        if (bytes_of(dtype) == 2)
            throw Error("dtype", std::string("dtype: given ") + name_of(dtype) + " for " + array.name + " in " +
                                     name_of(array.dtype) + ", expected a type that holds its values");
        io::Array wide(array.name, dtype, array.shape);
        const io::Array dense = row_major(array);
        for (std::int64_t i = 0; i < dense.size(); ++i)
            store_element(wide.bytes.data(), dtype, i, load_element(dense.bytes.data(), array.dtype, i));
        array = std::move(wide);
    }
}

std::vector<std::string> unknown_metadata(const io::Bundle& request) {
    constexpr const char* kKnown[] = {"protocol",
                                      "rule",
                                      "pass",
                                      "scale",
                                      "qk_l2norm",
                                      "gates",
                                      "gate_form",
                                      "lower_bound",
                                      "gate_min",
                                      "allow_neg_eigval",
                                      "n_householder",
                                      "head_map",
                                      "state_layout",
                                      "state_dtype",
                                      "out_dtype",
                                      "null_slot",
                                      "per_token_state",
                                      "ranks",
                                      "layout",
                                      "lengths",
                                      "case",
                                      "source"};
    std::vector<std::string> unknown;
    for (const auto& [key, value] : request.metadata)
        if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) unknown.push_back(key);
    return unknown;
}

void validate(const io::Bundle& request, bool allow_nan) {
    Problem problem = bind(request);
    const bool forward = std::holds_alternative<Forward>(problem);
    std::vector<std::pair<std::string, Tensor>> inputs;
    std::visit(
        [&](auto& p) {
            each_input(p, [&](const char* name, const Tensor& t, const char*) { inputs.emplace_back(name, t); });
        },
        problem);
    for (const io::Array& array : request.tensors) {
        bool known = false;
        for (const auto& [name, tensor] : inputs) known = known || array.name == name;
        for (const char* other : kOthers) known = known || (forward && array.name == other);
        if (!known)
            throw Error(array.name, "tensor '" + array.name +
                                        "': expected one of the names that docs/protocol.md gives for pass " +
                                        request.meta("pass", "forward"));
    }
    // Shapes come first: the answer's are made from q and v, and a zero-sized stand-in must not be reported.
    io::Bundle answer;
    const auto attach_answer = [&](const io::Bundle& asked, Problem& to) {
        const Inputs& p = inputs_of(to);
        const Tensor cu = cu_seqlens_of(to);
        const bool lengths = !cu.present() || (cu.rank == 1 && cu.shape[0] >= 2);
        if (std::holds_alternative<PackedDecode>(to) || (p.q.rank == 4 && p.v.rank == 4 && lengths)) {
            answer = empty_answer(asked);
            attach(to, answer);
        }
    };
    attach_answer(request, problem);
    check(problem, true);
    // A file may hold both kinds of gates, and upstream gradients: what this call does not use must be sound too.
    io::Bundle other = request;
    other.metadata["gates"] = request.meta("gates", "given") == "given" ? "logits" : "given";
    const RuleRow& row = row_of(inputs_of(problem).rule);
    const auto holds = [&](const char* gate, const char* strength) {
        return (row.decay == Decay::none || request.find(gate) != nullptr) &&
               (!has_beta(row) || request.find(strength) != nullptr);
    };
    const bool both = has_logits(row) && (other.metadata["gates"] == "given" ? holds("g", "beta") : holds("a", "b"));
    if (both && request.meta("pass", "forward") != "packed") {
        Problem also = bind(other);
        attach_answer(other, also);
        inputs_of(also).allow_neg_eigval = false;
        check(also, true);
    }
    if (const io::Array* d = request.find("do"); forward && d != nullptr && d->shape != outputs_of(request)[0].shape)
        throw Error("do", "do: given shape " + shape_text(d->view()) + ", expected o's");
    if (allow_nan) return;
    for (const auto& [name, t] : inputs) {
        if (!t.present() || !is_float(t.dtype)) continue;
        const io::Array& array = *request.find(name);
        const bool may_be_minus_inf = name == "g";
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(array.bytes.size()) / bytes_of(array.dtype); ++i) {
            const double x = load_element(array.bytes.data(), array.dtype, i);
            if (std::isfinite(x) || (may_be_minus_inf && x < 0)) continue;
            throw Error(name, name + ": given " + (std::isnan(x) ? "NaN" : "inf") + " at element " + std::to_string(i) +
                                  ", expected finite values (--allow-nan takes them)");
        }
    }
}

}  // namespace tidegate::cases
