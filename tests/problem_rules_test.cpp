// The front door once a rule: which tensors it takes, and in which shapes; Householder steps; what packs.
#include <gtest/gtest.h>

#include "problem_testing.h"
#include "tidegate/decode.h"

using namespace tidegate;
using namespace tidegate::test;

namespace {

struct Member {
    const char* name;
    Tensor Inputs::*tensor;
};
constexpr Member kMembers[] = {{"q", &Inputs::q},
                               {"k", &Inputs::k},
                               {"v", &Inputs::v},
                               {"g", &Inputs::g},
                               {"beta", &Inputs::beta},
                               {"erase", &Inputs::erase},
                               {"write", &Inputs::write},
                               {"lr_a", &Inputs::lr_a},
                               {"lr_b", &Inputs::lr_b},
                               {"a", &Inputs::a},
                               {"b", &Inputs::b},
                               {"A_log", &Inputs::A_log},
                               {"dt_bias", &Inputs::dt_bias}};

/// The contract's table: what a rule takes beside q, k and v (`a` with A_log and dt_bias).
std::vector<std::string> has(Rule rule) {
    switch (rule) {
        case Rule::deltanet:
            return {"beta", "b"};
        case Rule::gdn2:
            return {"g", "a", "A_log", "dt_bias", "erase", "write"};
        case Rule::dplr:
        case Rule::rwkv7:
            return {"g", "a", "A_log", "dt_bias", "lr_a", "lr_b"};
        case Rule::iplr:
            return {"lr_a", "lr_b"};
        default:
            return {"g", "a", "A_log", "dt_bias", "beta", "b"};
    }
}
bool has(Rule rule, const std::string& name) {
    const std::vector<std::string> all = has(rule);
    return name.size() == 1 && std::string("qkv").find(name) != std::string::npos
               ? true
               : std::find(all.begin(), all.end(), name) != all.end();
}

/// A good call of the rule: B = 2, T = 5, n = 3, H = 2, HV = 4, K = 8, V = 6; packed: B = 1, lengths 2, 0, 3.
class RuleChecks : public ::testing::TestWithParam<Rule> {
protected:
    static Spec spec(bool logits, bool packed = false) {
        Spec s;
        s.rule = GetParam(), s.logits = logits, s.steps = 3;
        s.B = packed ? 1 : 2, s.T = 5, s.H = 2, s.HV = 4, s.K = 8, s.V = 6;
        if (packed) s.lengths = {2, 0, 3};
        return s;
    }
    /// f(call, name, tensor of the call) for every input that is there, of a fresh good call each.
    template <class F>
    static void each_input(const F& f) {
        for (const bool logits : {false, true})
            for (const Member& m : kMembers) {
                Good c(spec(logits));
                Tensor& t = c.p.*m.tensor;
                if (!t.present()) continue;
                SCOPED_TRACE(std::string(m.name) + (logits ? " with logits" : ""));
                f(c, std::string(m.name), t);
            }
    }
    static bool householder() { return GetParam() == Rule::gdp; }
    static std::string steps(const std::string& layout) {
        return householder() ? "[B, T n, " + layout : "[B, T, " + layout;
    }
    static std::string the_rule() { return name_of(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(, RuleChecks, ::testing::ValuesIn(every_rule()), rule_name);

}  // namespace

TEST_P(RuleChecks, TakesWhatItHas) {
    for (const bool logits : {false, true})
        for (const bool packed : {false, true}) {
            Good c(spec(logits, packed));
            for (const Member& m : kMembers) {
                if ((c.p.*m.tensor).present()) {
                    EXPECT_TRUE(has(GetParam(), m.name)) << m.name;
                }
            }
            EXPECT_NO_THROW(forward(c.p));
            c.p.dt_bias = {}, c.p.check_values = true;
            EXPECT_NO_THROW(forward(c.p));
        }
}

TEST_P(RuleChecks, NeedsAllThatItHas) {
    each_input([](Good& c, const std::string& name, Tensor& t) {
        if (name == "dt_bias") return;  // the one that may be absent
        t = {};
        if (name == "g" || name == "a") return expect_rejected(c, "g", {"given neither g nor a, expected g [B, T, HV"});
        const std::string layout = name == "q"                      ? "[B, T, H, K]"
                                   : name == "k"                    ? steps("H, K]")
                                   : name == "v" || name == "write" ? "HV, V]"  // whose rows are known by then
                                   : name == "beta" || name == "b"  ? steps("HV]")
                                   : name == "A_log"                ? "[HV]"
                                                                    : "[B, T, HV, K]";
        expect_rejected(c, name == "b" ? "beta" : name, {"given nothing, expected a tensor ", layout});
    });
}

TEST_P(RuleChecks, RefusesWhatItLacks) {
    const Owned scalar(Dtype::fp32, {2, 15, 4}), wide(Dtype::fp32, {2, 5, 4, 8}), heads(Dtype::fp32, {4});
    for (const bool logits : {false, true})
        for (const Member& m : kMembers) {
            if (has(GetParam(), m.name)) continue;
            const bool parameter = m.tensor == &Inputs::A_log || m.tensor == &Inputs::dt_bias;
            for (const Owned* given : {&scalar, &wide, &heads}) {
                Good c(spec(logits));
                c.p.*m.tensor = given->view();
                const std::string name = m.name;
                expect_rejected(c, name,
                                parameter ? std::vector{"given " + name + " without a, expected"}
                                          : std::vector{"given it with rule " + the_rule(),
                                                        "expected none: the rule has no " + name});
            }
        }
}

TEST_P(RuleChecks, TakesGatesAndStrengthsOnce) {
    Good logits(spec(true));
    const bool forgets = logits.p.a.present(), beta = logits.p.b.present();
    logits.p.g = logits.p.a;
    if (forgets) expect_rejected(logits, "g", {"given both g and a, expected one of them"});
    logits.p.g = {}, logits.p.beta = logits.p.b;
    if (beta) expect_rejected(logits, "beta", {"given both beta and b, expected one of them"});
    Good given(spec(false));
    given.p.allow_neg_eigval = true;  // acts on b
    expect_rejected(given, "allow_neg_eigval", {"beta logits b"});
    Good alone(spec(false));
    alone.p.A_log = logits.p.A_log;
    if (forgets) expect_rejected(alone, "A_log", {"without a"});
}

TEST_P(RuleChecks, NamesTheTensorWhoseExtentIsWrong) {
    each_input([](Good& c, const std::string& name, Tensor& t) {
        const Tensor right = t;
        for (std::int32_t d = 0; d < right.rank; ++d) {
            if (name == "q" || (name == "v" && d > 1)) continue;  // what the others are measured by
            for (const std::int64_t by : {-1, 1}) {
                t = right;
                t.shape[static_cast<std::size_t>(d)] += by;
                expect_rejected(c, name, {"given shape " + shape_text(t) + ", expected [", " = " + shape_text(right)});
            }
        }
        t = right;
        --t.rank;
        if (t.rank > 0) expect_rejected(c, name, {"given shape " + shape_text(t) + ", expected ["});
        t = right;
        ++t.rank;
        expect_rejected(c, name, {"given shape " + shape_text(t) + ", expected ["});
    });
}

TEST_P(RuleChecks, NamesTheTensorWhoseMemoryOrTypeIsWrong) {
    each_input([](Good& c, const std::string& name, Tensor& t) {
        const Tensor right = t;
        const auto last = static_cast<std::size_t>(right.rank - 1);
        const bool channels = right.rank == 4;
        t.stride[last] = 2;
        if (channels) expect_rejected(c, name, {"given stride 2 in the last dimension, expected 1 (dense)"});
        t = right;
        t.data = nullptr;
        expect_rejected(c, name, {"given a null pointer, expected memory for " + shape_text(right)});
        t = right;
        for (const Dtype dtype : {Dtype::fp64, Dtype::int32, Dtype::int64}) {
            t.dtype = dtype;
            expect_rejected(c, name, {std::string("given ") + name_of(dtype) + ", expected fp32, bf16 or fp16"});
        }
        t = right;
        t.device = Device::cuda;
        expect_rejected(c, name == "q" ? "k" : name, {"a CUDA tensor", "a CPU tensor", ", as q is"});
        t = right;
        t.data = c.p.o.data;
        expect_rejected(c, "o", {"given memory that overlaps " + name + ", expected memory of its own"});
        t.data = c.p.final_state.data;
        expect_rejected(c, "final_state", {"given memory that overlaps " + name + ", expected memory of its own"});
    });
}

TEST_P(RuleChecks, PositiveGatesAreErrorsWhereValuesAreChecked) {  // docs/cases.md 21
    Good c(spec(false));
    if (!c.p.g.present()) {
        c.p.check_values = true;
        EXPECT_NO_THROW(forward(c.p));
        return;
    }
    const bool channels = c.p.g.rank == 4;
    store_element(c.p.g.data, Dtype::fp32, offset_of(c.p.g, 1, 3, 2) + (channels ? 7 : 0), 0.5);
    EXPECT_NO_THROW(forward(c.p));
    for (const double x : values(c.p.o)) EXPECT_TRUE(std::isfinite(x));
    Good again(spec(false));
    again.p.g = c.p.g;
    again.p.check_values = true;
    expect_rejected(again, "g", {"0.5", "batch 1", "token 3", "head 2", channels ? "channel 7" : "channel 0", "<= 0"});
}

TEST_P(RuleChecks, LengthsAreCountedInTokens) {  // 11
    const std::pair<std::vector<std::int64_t>, std::pair<const char*, const char*>> bad[] = {
        {{1, 2, 2, 5}, {"cu_seqlens[0]", "given 1, expected 0"}},
        {{0, 3, 2, 5}, {"cu_seqlens[2]", "given 2, expected at least cu_seqlens[1] = 3"}},
        {{0, 2, 2, 4}, {"cu_seqlens[3]", "given 4, expected the inputs' T = 5"}},
        {{0, 6, 6, 15}, {"cu_seqlens[3]", "given 15, expected the inputs' T = 5"}}};
    for (const auto& row : bad) {
        Good c(spec(false, true));
        c.lengths(row.first);
        expect_rejected(c, row.second.first, {row.second.second});
    }
}

TEST_P(RuleChecks, OnlyGdpHasHouseholderSteps) {
    for (const std::int64_t n : {-1, 0, 2, 4, 65}) {
        Good c(spec(false));
        c.p.n_householder = n;
        const std::string given = "given " + std::to_string(n) + ", expected ";
        if (!householder())
            expect_rejected(c, "n_householder", {given + "1 with rule " + the_rule()});
        else if (n < 1 || n > 64)
            expect_rejected(c, "n_householder", {given + "1 to 64 steps a token"});
        else  // the tensors have 3
            expect_rejected(c, "k", {"given shape [2, 15, 2, 8], expected [B, T n, H, K] = [2, "});
    }
    if (!householder()) return;
    Spec most = spec(false);
    most.steps = 64;
    EXPECT_NO_THROW(forward(Good(most).p));
}

TEST_P(RuleChecks, StepsOfATokenAreRowsOfKeysValuesAndBetaAlone) {
    each_input([](Good& c, const std::string& name, Tensor& t) {
        if (t.rank < 3 || name == "q") return;
        const bool of_steps = householder() && (name == "k" || name == "v" || name == "beta" || name == "b");
        const Tensor right = t;
        ASSERT_EQ(right.shape[1], of_steps ? 15 : 5);
        t.shape[1] = of_steps ? 5 : 15;
        expect_rejected(c, name,
                        {"given shape " + shape_text(t) + ", expected " + (of_steps ? "[B, T n, " : "[B, T, "),
                         " = " + shape_text(right)});
    });
}

TEST_P(RuleChecks, DecodeAsksForTheSame) {
    Good c(spec(false));
    Decode d;
    static_cast<Inputs&>(d) = c.p;
    d.state = c.p.final_state, d.o = c.p.o;
    c.state.fill([](std::int64_t) { return 0.5; });
    EXPECT_NO_THROW(decode(d));
    for (const Member& m : kMembers) {
        const Tensor right = d.*m.tensor;
        const auto before = c.state.bytes();
        d.*m.tensor = right.present() ? Tensor{} : c.p.k;
        EXPECT_THROW(decode(d), Error) << m.name;
        EXPECT_TRUE(c.state.bytes() == before) << m.name;
        d.*m.tensor = right;
    }
    EXPECT_NO_THROW(decode(d));
}

TEST_P(RuleChecks, PackedRowsAreTakenWhereTheySayAllOfAToken) {
    const bool packs = GetParam() == Rule::deltanet || GetParam() == Rule::gdn || GetParam() == Rule::kda;
    const bool forgets = GetParam() != Rule::deltanet, channels = GetParam() == Rule::kda;
    const Owned heads = Owned(Dtype::fp32, {2, 4}).normal(1), wide = Owned(Dtype::fp32, {2, 4, 8}).normal(2);
    const Owned row = Owned(Dtype::fp32, {2, 2 * 2 * 8 + 4 * 6}).normal(3), A_log = Owned(Dtype::fp32, {4}).normal(4);
    Owned state(Dtype::fp32, {3, 4, 8, 6}), o(Dtype::fp32, {2, 1, 4, 6});
    state.normal(5);
    PackedDecode p;
    p.rule = GetParam();
    p.mixed_qkv = row.view(), p.state = state.view(), p.o = o.view(), p.b = heads.view();
    if (forgets) p.a = channels ? wide.view() : heads.view(), p.A_log = A_log.view();
    if (packs) {
        EXPECT_NO_THROW(packed_decode(p));
        return;
    }
    const auto before = state.bytes(), rows = o.bytes();
    for (const bool planning : {false, true}) {
        try {
            planning ? static_cast<void>(plan(p)) : packed_decode(p);
            ADD_FAILURE() << "accepted";
        } catch (const Error& e) {
            expect_says(e, "rule", {"given " + the_rule(), "expected", "deltanet, gdn or kda"});
        }
    }
    EXPECT_TRUE(state.bytes() == before && o.bytes() == rows);
}
