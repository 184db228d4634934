// Case ids: parsing, canonical form, hash.
#include "cases/case.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tidegate/error.h"

namespace tidegate::cases {
namespace {

/// A finite number in full.
bool is_number(const std::string& text) {
    double x = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
    return !text.empty() && error == std::errc() && end == text.data() + text.size() && std::isfinite(x);
}
bool is_one(const std::string& text) { return text == "1"; }
bool is_dtype(const std::string& text) { return text == "fp32" || text == "bf16" || text == "fp16"; }
bool is_anything(const std::string&) { return true; }  // looked at where it is used
bool is_x(const std::string& text) { return text == "ones" || text == "raw" || text == "alike"; }
bool is_gate(const std::string& text) {
    if (text == "zero" || text == "half-zero") return true;
    for (const char* kind : {"const:", "spike:", "mild-spike:", "channel:"})
        if (text.rfind(kind, 0) == 0) {
            const std::string x = text.substr(std::string(kind).size());
            return x == "-inf" || is_number(x);
        }
    return false;
}
bool is_b(const std::string& text) { return is_number(text.rfind("split:", 0) == 0 ? text.substr(6) : text); }
bool is_logits(const std::string& text) { return text == "logits"; }
bool is_bounded(const std::string& text) { return text == "bounded"; }
bool is_tiled(const std::string& text) { return text == "tiled"; }
bool is_vk(const std::string& text) { return text == "vk"; }
bool is_strides(const std::string& text) { return text == "padded" || text == "interleaved"; }

constexpr std::array kPasses{"forward", "backward", "decode", "packed"};

bool decays(const RuleRow& rule) { return rule.decay != Decay::none; }
bool erases(const RuleRow& rule) { return rule.erase != Width::one; }
bool gated(const RuleRow& rule) { return decays(rule) || erases(rule); }
bool householder(const RuleRow& rule) { return rule.householder; }

constexpr std::array kKeys{
    Key{"lengths", is_anything, "L,L*n,...: packed sequences that add up to T, B = 1", Key::either, "forward backward"},
    Key{"same", is_one, "1: every sequence holds the same data"},
    Key{"h0", is_number, "X: initial state, normal times X (decode: always there, X = 1)"},
    Key{"dht", is_number, "X: gradient of the final state, normal times X", Key::either, "backward"},
    Key{"x", is_x, "ones | raw | alike: q = k = v = 1; keys not normalised; keys not normalised and nearly equal"},
    Key{"gate", is_gate,
        "zero | half-zero | const:X | spike:X | mild-spike:X | channel:X: log-decays instead of random ones",
        Key::given, nullptr, decays},
    Key{"beta", is_number, "X: constant beta (gdn2: erase and write)", Key::given, nullptr, erases},
    Key{"gates", is_logits, "logits: a, b, A_log, dt_bias instead of g, beta", Key::either, nullptr, has_logits},
    Key{"form", is_bounded, "bounded: the bounded gate", Key::logits, nullptr, decays},
    Key{"A_log", is_number, "X: constant A_log", Key::logits, nullptr, decays},
    Key{"a", is_number, "X: constant a, dt_bias = 0", Key::logits, nullptr, decays},
    Key{"b", is_b, "X | split:X: constant b; -X in even and +X in odd sequences", Key::logits, nullptr, has_beta},
    Key{"neg", is_one, "1: beta = 2 sigmoid(b)", Key::logits, nullptr, has_beta},
    Key{"params", is_dtype, "fp32 | bf16 | fp16: type of A_log and dt_bias", Key::logits, nullptr, decays},
    Key{"gate_min", is_number, "X: g = max(g, X)", Key::either, nullptr, decays},
    Key{"gb", is_dtype, "fp32 | bf16 | fp16: type of g and beta, or of erase and write", Key::given, nullptr, gated},
    Key{"householder", is_number, "n: Householder steps a token (default 2)", Key::either, nullptr, householder},
    Key{"l2norm", is_one, "1: q, k raw, normalised in the kernel"},
    Key{"scale", is_number, "X"},
    Key{"map", is_tiled, "tiled: head map"},
    Key{"layout", is_vk, "vk: state as [N, HV, V, K]"},
    Key{"state", is_dtype, "bf16 | fp16: type of the final state or of the pool", Key::either, "forward decode packed"},
    Key{"out", is_dtype, "fp32 | bf16 | fp16: type of o, or of do"},
    Key{"strides", is_strides,
        "padded | interleaved: gaps of 1e30 behind every head (decode: slot, row of the batch); g and beta inside one "
        "buffer"},
    Key{"pool", is_number, "P: slots (default: 2 more than are named)", Key::either, "decode packed"},
    Key{"slots", is_anything, "I,I,...: state_indices [B], negative for a pad (default: from the last slot down)",
        Key::either, "decode packed"},
    Key{"null", is_number, "I: null_slot", Key::either, "decode packed"},
    Key{"columns", is_number, "W: state_indices [B, W], one slot a token", Key::either, "decode"},
    Key{"accepted", is_anything, "A,A,...: num_accepted, with columns", Key::either, "decode"},
    Key{"each", is_one, "1: the state after every token too", Key::either, "decode"},
    Key{"nan", is_anything, "n: a NaN in v of sequence n"},
    Key{"inf", is_anything, "n: an inf in v of sequence n"},
};

template <class T>
T number(const std::string& text, const std::string& where) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || text.empty())
        throw Error("case", "case: given '" + text + "' as " + where + ", expected a number");
    return value;
}

std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts{""};
    for (const char c : text) {
        if (c == by)
            parts.emplace_back();
        else
            parts.back() += c;
    }
    return parts;
}

const Key* key_named(const std::string& name) {
    for (const Key& key : kKeys)
        if (name == key.name) return &key;
    return nullptr;
}

/// Parts 4 to the last but one, into the order of the table.
void read_keys(const std::vector<std::string>& parts, Case& c) {
    for (std::size_t i = 4; i + 1 < parts.size(); ++i) {
        const std::string name = parts[i].substr(0, parts[i].find('='));
        if (std::none_of(kKeys.begin(), kKeys.end(),
                         [&](const Key& k) { return parts[i].rfind(std::string(k.name) + "=", 0) == 0; })) {
            std::string known;
            for (const Key& k : kKeys) known += std::string(known.empty() ? "" : ", ") + k.name;
            throw Error("case", "case: given key '" + parts[i] + "', expected key=value with a key of " + known);
        }
        if (!c.key(name).empty()) throw Error("case", "case: given key '" + name + "' twice");
        const Key& key = *key_named(name);
        if (const std::string value = parts[i].substr(name.size() + 1); value.empty() || !key.fits(value))
            throw Error("case", "case: given " + parts[i] + ", expected " + name + " of " + key.values);
        c.keys.emplace_back(name, parts[i].substr(name.size() + 1));
    }
    std::sort(c.keys.begin(), c.keys.end(),
              [](const auto& x, const auto& y) { return key_named(x.first) < key_named(y.first); });
    const bool logits = c.key("gates") == "logits" || c.pass == "packed";
    for (const auto& [name, value] : c.keys) {
        const Key& key = *key_named(name);
        if (key.has != nullptr && !key.has(row_of(c.rule)))
            throw Error("case", "case: given " + name + "=" + value + " with rule " + name_of(c.rule) +
                                    ", expected it with a rule that has what it sets");
        if (key.passes != nullptr && std::string(key.passes).find(c.pass) == std::string::npos)
            throw Error("case", "case: given " + name + "=" + value + " with pass " + c.pass + ", expected it with " +
                                    key.passes);
        if (key.needs != Key::either && (key.needs == Key::logits) != logits)
            throw Error("case", "case: given " + name + "=" + value + (logits ? " with" : " without") +
                                    " gates=logits, expected it " + (logits ? "without" : "with"));
    }
}

/// What only decode cases have: one list entry a request, slots in the pool.
void slots(const Case& c) {
    const auto sized = [&c](const char* key) {
        const auto n = static_cast<std::int64_t>(numbers(c.key(key), key).size());
        if (!c.key(key).empty() && n != c.B)
            throw Error("case", std::string("case: given ") + std::to_string(n) + " entries of " + key +
                                    ", expected B = " + std::to_string(c.B));
    };
    sized("slots");
    sized("accepted");
    if (c.T < 1 || (c.pass == "packed" && c.T != 1))
        throw Error("case", "case: given T = " + std::to_string(c.T) + ", expected T " +
                                (c.pass == "packed" ? "= 1 with pass packed" : ">= 1 with pass decode"));
    const std::int64_t W = columns_of(c), P = pool_of(c);
    const auto bad = [](const std::string& text) { throw Error("case", "case: " + text); };
    if (!c.key("columns").empty() && W < c.T)
        bad("given columns=" + c.key("columns") + ", expected at least T = " + std::to_string(c.T));
    if (!c.key("accepted").empty() && W == 0) bad("given accepted without columns, expected both");
    if (!c.key("slots").empty() && W > 0) bad("given slots and columns, expected one of them");
    for (const std::int64_t slot : numbers(c.key("slots"), "slots"))
        if (slot >= P)
            bad("given slot " + std::to_string(slot) + ", expected one below the pool's " + std::to_string(P));
    if (P < c.B * std::max<std::int64_t>(W, 1) && c.key("slots").empty())
        bad("given pool=" + c.key("pool") + ", expected a slot for every request and column");
}

}  // namespace

std::vector<std::int64_t> numbers(const std::string& text, const std::string& where) {
    std::vector<std::int64_t> list;
    if (text.empty()) return list;
    for (const std::string& part : split(text, ',')) list.push_back(number<std::int64_t>(part, where));
    return list;
}

bool decodes(const Case& c) { return c.pass == "decode" || c.pass == "packed"; }

bool takes(const RuleRow& rule, const std::string& pass, const std::string& tail) {
    for (const std::string& part : split(tail, '/')) {
        const Key* key = key_named(part.substr(0, part.find('=')));
        if (key == nullptr) continue;
        if (key->has != nullptr && !key->has(rule)) return false;
        if (key->passes != nullptr && std::string(key->passes).find(pass) == std::string::npos) return false;
    }
    return true;
}

std::int64_t steps_of(const Case& c) {
    if (!row_of(c.rule).householder) return 1;
    if (c.key("householder").empty()) return 2;
    const auto n = number<std::int64_t>(c.key("householder"), "householder");
    if (n < 1 || n > 64) throw Error("case", "case: given householder=" + c.key("householder") + ", expected 1 to 64");
    return n;
}

std::int64_t columns_of(const Case& c) {
    return c.key("columns").empty() ? 0 : number<std::int64_t>(c.key("columns"), "columns");
}

std::int64_t pool_of(const Case& c) {
    if (!c.key("pool").empty()) {
        const auto P = number<std::int64_t>(c.key("pool"), "pool");
        if (P < 1 || P > (1LL << 31)) throw Error("case", "case: given pool=" + c.key("pool") + ", expected a size");
        return P;
    }
    std::int64_t named = c.B * std::max<std::int64_t>(columns_of(c), 1);
    for (const std::int64_t slot : numbers(c.key("slots"), "slots")) named = std::max(named, slot + 1);
    return named + 2;
}

std::span<const Key> keys() { return kKeys; }
std::span<const char* const> passes() { return kPasses; }

std::string Case::key(const std::string& name) const {
    for (const auto& [k, v] : keys)
        if (k == name) return v;
    return "";
}

Dtype dtype_from(const std::string& name) {
    for (const Dtype d : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp64})
        if (name == name_of(d)) return d;
    throw Error("dtype", "dtype: given '" + name + "', expected fp32, bf16, fp16 or fp64");
}

bool looks_like_id(const std::string& text) {
    return std::count(text.begin(), text.end(), '/') >= 4 && text.find(',') != std::string::npos;
}

Case parse(const std::string& id) {
    const std::vector<std::string> parts = split(id, '/');
    if (parts.size() < 5)
        throw Error("case", "case: given '" + id + "', expected rule/pass/dtype/B,T,H,HV,K,V/key=value.../seed");
    Case c;
    c.rule = rule_from(parts[0]);
    c.pass = parts[1];
    std::string known;
    for (const char* pass : kPasses) known += std::string(known.empty() ? "" : ", ") + pass;
    if (std::find(kPasses.begin(), kPasses.end(), c.pass) == kPasses.end())
        throw Error("case", "case: given pass '" + c.pass + "', expected one of " + known);
    c.dtype = dtype_from(parts[2]);
    const std::vector<std::string> sizes = split(parts[3], ',');
    if (sizes.size() != 6) throw Error("case", "case: given sizes '" + parts[3] + "', expected B,T,H,HV,K,V");
    std::int64_t* const fields[] = {&c.B, &c.T, &c.H, &c.HV, &c.K, &c.V};
    const char* const names[] = {"B", "T", "H", "HV", "K", "V"};
    for (std::size_t i = 0; i < 6; ++i) {
        *fields[i] = number<std::int64_t>(sizes[i], names[i]);
        if (*fields[i] < (i == 1 ? 0 : 1) || *fields[i] > (1LL << 31))
            throw Error("case", std::string("case: given ") + names[i] + " = " + sizes[i] + ", expected a size");
    }
    if (c.HV % c.H != 0)
        throw Error("case", "case: given H,HV = " + sizes[2] + "," + sizes[3] + ", expected HV % H == 0");
    read_keys(parts, c);
    c.seed = number<std::uint64_t>(parts.back(), "the seed");
    if (c.pass == "packed" && !packs(row_of(c.rule)))
        throw Error("case", std::string("case: given rule ") + name_of(c.rule) +
                                " with pass packed, expected one that a packed row says all of");
    const std::vector<std::int64_t> lengths = lengths_of(c);
    std::int64_t sum = 0;
    for (const std::int64_t n : lengths) sum += n;
    const auto sequences = static_cast<std::int64_t>(lengths.empty() ? c.B : static_cast<std::int64_t>(lengths.size()));
    for (const char* name : {"nan", "inf"})
        if (const std::string n = c.key(name); !n.empty() && number<std::int64_t>(n, name) >= sequences)
            throw Error("case", std::string("case: given ") + name + "=" + n + ", expected a sequence below " +
                                    std::to_string(sequences));
    if (decodes(c)) slots(c);
    const double states =
        !decodes(c) ? 2.0 * static_cast<double>(sequences)
                    : static_cast<double>(pool_of(c)) + (c.key("each") == "1" ? static_cast<double>(c.B * c.T) : 0.0);
    const double elements = static_cast<double>(c.B) * static_cast<double>(c.T) * static_cast<double>(steps_of(c)) *
                                (2.0 * static_cast<double>(c.H * c.K) +
                                 static_cast<double>(c.HV) * static_cast<double>(4 * c.K + 3 * c.V)) +
                            states * static_cast<double>(c.HV) * static_cast<double>(c.K * c.V);
    if (!(elements < 0x1p31))
        throw Error("case", "case: given sizes " + parts[3] + " of " + std::to_string(elements) +
                                " elements, expected fewer than 2^31");
    if (!lengths.empty() && (c.B != 1 || sum != c.T))
        throw Error("case", "case: given B,T = " + sizes[0] + "," + sizes[1] + " with lengths that add up to " +
                                std::to_string(sum) + ", expected B = 1 and T their sum");
    return c;
}

std::string id_of(const Case& c) {
    std::string id = std::string(name_of(c.rule)) + "/" + c.pass + "/" + name_of(c.dtype) + "/";
    for (const std::int64_t n : {c.B, c.T, c.H, c.HV, c.K, c.V}) id += std::to_string(n) + ",";
    id.back() = '/';
    for (const auto& [k, v] : c.keys) id += k + "=" + v + "/";
    return id + std::to_string(c.seed);
}

std::string hash_of(const Case& c) { return hash_of(id_of(c) + "#" + std::to_string(kGeneratorVersion)); }

std::string hash_of(std::string_view text) {
    const std::uint64_t hash = XXH3_64bits(text.data(), text.size());
    std::string hex(16, '0');
    for (std::size_t i = 0; i < 16; ++i) hex[15 - i] = "0123456789abcdef"[(hash >> (4 * i)) & 15];
    return hex;
}

std::vector<std::int64_t> lengths_of(const Case& c) {
    const std::string text = c.key("lengths");
    std::vector<std::int64_t> lengths;
    if (text.empty()) return lengths;
    for (const std::string& part : split(text, ',')) {
        const std::vector<std::string> factors = split(part, '*');
        if (factors.size() > 2) throw Error("case", "case: given lengths '" + text + "', expected L or L*n, by commas");
        const auto length = number<std::int64_t>(factors[0], "a length");
        const auto times = factors.size() == 2 ? number<std::int64_t>(factors[1], "a count of sequences") : 1;
        if (length < 0 || length > (1LL << 31) || times < 1 || times > 1'000'000)
            throw Error("case", "case: given lengths '" + text + "', expected lengths >= 0 and counts >= 1");
        lengths.insert(lengths.end(), static_cast<std::size_t>(times), length);
    }
    return lengths;
}

}  // namespace tidegate::cases
