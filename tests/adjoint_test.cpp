// The oracle's adjoint against differences of the oracle's recurrence in long double, for every rule and option; its
// flat places, its magnitudes, the mistakes it can make, and how gradients are stored.
#include "reference/adjoint.h"

#include <gtest/gtest.h>

#include "backward_testing.h"
#include "problem/raise.h"
#include "reference/recurrence.h"

namespace tidegate {
namespace {

using backward_test::Call;
using backward_test::into;
using backward_test::memory_for;
using backward_test::Row;
using backward_test::row_of_name;
using backward_test::Spec;
using reference::adjoint;
using reference::Mistake;
using test::Owned;
using test::Sizes;

constexpr double kInf = std::numeric_limits<double>::infinity();

// ---- differences ----------------------------------------------------------------------------------------------------

struct Loss {
    long double value = 0, terms = 0;  ///< terms: sum of absolute values
};

/// sum(o * do) + sum(final_state * dht). The states and sums are long double, o and final_state doubles.
Loss loss(const Call& call) {
    const Backward p = call.view();
    Forward f;
    static_cast<Inputs&>(f) = p;
    f.initial_state = p.initial_state, f.cu_seqlens = p.cu_seqlens;
    const reference::Answer answer = reference::recurrence<long double>(lower(f));
    Loss sum;
    const auto add = [&sum](const std::vector<double>& x, const std::vector<double>& by) {
        for (std::size_t i = 0; i < by.size(); ++i) {
            sum.value += static_cast<long double>(x[i]) * by[i];
            sum.terms += std::fabs(static_cast<long double>(x[i]) * by[i]);
        }
    };
    add(answer.o, test::values(p.d_o));
    if (p.dht.present()) add(answer.final_state, test::values(lower(p).dht));
    return sum;
}

/// d(loss)/d(element at `offset` of x) by five points, and what it may be wrong by for the roundings of o and
/// final_state. With steps of 2^-12 what is left of the Taylor series is 2^-48 / 30 of the fifth derivative.
struct Difference {
    double value, noise;
};
Difference difference(const Call& call, const Tensor& x, std::int64_t offset) {
    const double at = load_element(x.data, x.dtype, offset), step = 0x1p-12;
    const auto with = [&](double d) {
        store_element(x.data, x.dtype, offset, at + d);
        return loss(call);
    };
    const Loss far[] = {with(-2 * step), with(2 * step)}, near[] = {with(-step), with(step)};
    store_element(x.data, x.dtype, offset, at);
    const long double slope = (8 * (near[1].value - near[0].value) - (far[1].value - far[0].value)) / (12 * step);
    return {static_cast<double>(slope), static_cast<double>(1.5L * near[0].terms * 0x1p-53L / step)};
}

constexpr std::uint64_t kSeeds = 96;

/// Options of a call from the bits of `seed`, every one of them on and off in turn with every other.
Spec spec_of(Rule rule, std::uint64_t seed) {
    const auto bit = [bits = cases::mix(seed)](unsigned i) { return (bits >> i & 1) != 0; };
    Spec s;
    s.rule = rule, s.seed = seed, s.dtypes = {Dtype::fp64};
    s.logits = seed % 2 == 0, s.bounded = bit(0), s.bias = bit(1) || bit(2), s.twice = bit(3), s.clamps = bit(4);
    s.l2norm = bit(5), s.tiled = bit(6), s.v_first = bit(7), s.h0 = bit(8), s.dht = bit(9) || bit(10);
    if (bit(11)) s.scale = bit(12) ? -0.75 : 1.5;
    s.H = bit(13) ? 2 : 1, s.HV = s.H * (bit(14) ? 1 : bit(15) ? 2 : 3);
    s.n = 1 + static_cast<std::int64_t>(seed % 3);
    s.K = bit(16) ? 4 : 3, s.V = bit(17) ? 3 : 2, s.B = bit(18) ? 2 : 1, s.T = bit(19) ? 5 : 3;
    if (bit(20)) s.lengths = bit(21) ? Sizes{2, 0, 3} : Sizes{0, 4, 1};
    if (seed % 16 == 15) s.lengths = {}, s.T = 0;
    return s;
}

/// Every gradient of one call at up to `samples` elements each; adds the names of those that were there and not 0.
void expect_slopes(Call call, std::size_t samples, std::set<std::string>& seen) {
    if (!call.spec.h0) {  // the initial state is one of zeros then, whose gradient can be asked for
        call.of("dh0") = Owned(Dtype::fp64, call.state_shape());
        call.of("dh0").fill([](std::int64_t) { return 0; });
    }
    const std::vector<double> gates =
        row_of(call.spec.rule).decay == Decay::none ? std::vector<double>{} : call.gates();
    for (const double g : gates)
        ASSERT_GT(std::fabs(g - call.gate_min.value_or(1)), 0.01) << "a difference would straddle gate_min";
    const Row out = memory_for(call.view(), Dtype::fp64), longer = memory_for(call.view(), Dtype::fp64);
    check(into(call.view(), out), true);
    const BackwardForm form = lower(into(call.view(), out)), form_l = lower(into(call.view(), longer));
    reference::Gradients magnitude(form);
    const reference::Gradients exact = adjoint<double>(form, {}, &magnitude), exact_l = adjoint<long double>(form_l);
    store(exact, form);
    store(exact_l, form_l);
    for (std::size_t r = 0; r < kRoles; ++r)
        for (std::size_t i = 0; i < exact.by_role[r].size(); ++i) {
            const double size = magnitude.by_role[r][i];
            EXPECT_TRUE(std::isfinite(size) && size >= std::fabs(exact.by_role[r][i]) * (1 - 1e-14)) << "role " << r;
        }
    for (std::size_t i = 0; i < out.size(); ++i) {
        const Tensor x = call.in[i].view(), d = out[i].view();
        if (!x.present()) continue;
        const char* const name = gradients()[i].name;
        const std::vector<double> got = test::values(d), by_l = test::values(longer[i].view());
        double scale = 0;
        for (const double y : got) scale = std::max(scale, std::fabs(y));
        for (std::size_t e = 0; e < got.size(); ++e) EXPECT_NEAR(got[e], by_l[e], 1e-13 * scale) << name;
        if (scale > 0) seen.insert(name);
        std::vector<std::int64_t> offsets;
        test::each(x, [&](std::int64_t at) { offsets.push_back(at); });
        const cases::Random random(call.spec.seed, 1000 + i);
        for (std::size_t k = 0; k < std::min(samples, offsets.size()); ++k) {
            const std::size_t e = offsets.size() <= samples ? k : random.bits(k) % offsets.size();
            const Difference want = difference(call, x, offsets[e]);
            ASSERT_NEAR(got[e], want.value, 1e-9 * scale + want.noise) << name << ", element " << e;
        }
    }
}

/// What a rule may be given, as names of gradients.
std::set<std::string> gradients_of(Rule rule) {
    const RuleRow& row = row_of(rule);
    std::set<std::string> all{"dq", "dk", "dv", "dh0"};
    if (row.decay != Decay::none) all.insert({"dg", "da", "dA_log", "ddt_bias"});
    if (has_beta(row)) all.insert({"dbeta", "db"});
    if (row.erase == Width::vector_k) all.insert("derase");
    if (row.write == Width::vector_v) all.insert("dwrite");
    if (!row.tied) all.insert({"dlr_a", "dlr_b"});
    return all;
}

class EveryRule : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(, EveryRule, ::testing::ValuesIn(backward_test::every_rule()), backward_test::rule_name);

TEST_P(EveryRule, EveryGradientIsTheSlopeOfTheLoss) {
    std::set<std::string> seen;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        expect_slopes(Call(spec_of(GetParam(), seed)), 8, seen);
        if (HasFatalFailure()) return;
    }
    EXPECT_EQ(seen, gradients_of(GetParam())) << "each must have been there, and not 0";
}

TEST(Adjoint, EveryGradientIsOfSomeRule) {
    std::set<std::string> all;
    for (const Rule rule : backward_test::every_rule()) all.merge(gradients_of(rule));
    EXPECT_EQ(all.size(), gradients().size());
    for (const GradientRow& row : gradients()) EXPECT_EQ(all.count(row.name), 1u) << row.name;
}

TEST(Adjoint, OptionsOfTheDifferencesTakeEveryValue) {
    std::map<std::string, std::set<double>> values;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        const Spec s = spec_of(Rule::gdp, seed);
        const std::pair<const char*, double> options[] = {
            {"logits", s.logits},
            {"bias", s.bias},
            {"twice", s.twice && s.logits},
            {"clamps", s.clamps},
            {"l2norm", s.l2norm},
            {"tiled", s.tiled && s.H > 1 && s.HV > s.H},
            {"v_first", s.v_first},
            {"h0", s.h0},
            {"dht", s.dht},
            {"bounded", s.bounded && s.logits},
            {"scale", s.scale.has_value()},
            {"empty", !s.lengths.empty()},
            {"T = 0", s.T == 0},
            {"both clamped and softplus", s.clamps && s.logits && !s.bounded},
            {"both clamped and bounded", s.clamps && s.logits && s.bounded}};
        for (const auto& [name, value] : options) values[name].insert(value);
        values["n"].insert(static_cast<double>(s.n));
    }
    for (const auto& [name, seen] : values) EXPECT_EQ(seen.size(), name == "n" ? 3u : 2u) << name;
}

class EveryGate : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(, EveryGate, ::testing::ValuesIn(backward_test::rules_that_decay()), backward_test::rule_name);

// ---- flat places ----------------------------------------------------------------------------------------------------

void expect_finite(const Row& out) {
    for (std::size_t i = 0; i < out.size(); ++i)
        for (const double x : test::values(out[i].view())) ASSERT_TRUE(std::isfinite(x)) << gradients()[i].name;
}

TEST_P(EveryGate, AnEmptyDecayHasNoGradientAndMakesNoNaN) {
    for (const double low : {-kInf, -200.0, -1000.0}) {
        Call call({.rule = GetParam(), .B = 2, .T = 6, .HV = 2, .dtypes = {Dtype::fp64}});
        const Tensor g = call.of("dg").view();
        std::vector<bool> is_low;
        test::each(g, [&](std::int64_t at) {
            is_low.push_back(is_low.size() % 3 == 1);
            if (is_low.back()) store_element(g.data, g.dtype, at, low);
        });
        const Row out = backward_test::exact(call.view());
        expect_finite(out);
        const std::vector<double> dg = test::values(out[row_of_name("dg")].view());
        for (std::size_t i = 0; i < dg.size(); ++i) EXPECT_EQ(dg[i] == 0, is_low[i]) << low << ", element " << i;
    }
}

TEST_P(EveryGate, LogitsThatOverflowMakeNoNaN) {
    struct Logits {
        double A_log, x;
    };
    // exp(100) is inf in fp32, exp(800) in double; softplus(-200) and softplus(-900) are 0 beside it
    for (const Logits l : {Logits{100, -200}, {100, -90}, {100, 3}, {800, -900}, {800, -790}, {800, 2}, {-800, 5}})
        for (const bool bounded : {false, true}) {
            Spec s{.rule = GetParam(), .T = 4, .logits = true, .bounded = bounded, .dtypes = {Dtype::fp64}};
            Call call(s);
            call.of("dA_log").fill([&](std::int64_t i) { return i == 0 ? l.A_log : 0.5; });
            call.of("ddt_bias").fill([&](std::int64_t) { return 1.0; });
            const Tensor a = call.of("da").view();
            test::each(a, [&](std::int64_t at) { store_element(a.data, a.dtype, at, l.x - 1); });
            expect_finite(backward_test::exact(call.view()));
        }
}

TEST_P(EveryGate, GateMinStopsTheGradientBelowItAlone) {
    Call call({.rule = GetParam(), .T = 6, .dtypes = {Dtype::fp64}});
    const double near[] = {-0.5 - 0x1p-50, -0.5, -0.5 + 0x1p-50, -3, -0.01};
    call.of("dg").fill([&](std::int64_t i) { return near[i % 5]; });
    call.gate_min = -0.5;
    const std::vector<double> dg = test::values(backward_test::exact(call.view())[row_of_name("dg")].view());
    for (std::size_t i = 0; i < dg.size(); ++i) EXPECT_EQ(dg[i] == 0, near[i % 5] < -0.5) << near[i % 5];
}

TEST(GateSlope, PassesWhereTheGateIsAtItsLimits) {
    GateSource s;
    s.kind = GateKind::given;
    EXPECT_EQ(gate_slope<double>(s, 0, -128).by_x, 1);
    EXPECT_EQ(gate_slope<double>(s, 0, -128.0001).by_x, 0);
    s.min = -500;  // never below -128, whatever the minimum
    EXPECT_EQ(gate_slope<double>(s, 0, -129).by_x, 0);
    s.min = -2;
    EXPECT_EQ(gate_slope<double>(s, 0, -2.5).by_x, 0);
    EXPECT_EQ(gate_slope<double>(s, 0, -2.5, false).by_x, 1) << "the minimum ignored";
    EXPECT_EQ(times(0.0, kInf), 0) << "what is flat takes no part";
}

// ---- magnitudes and mistakes ----------------------------------------------------------------------------------------

TEST_P(EveryRule, MagnitudesBoundEveryGradientAlsoOfLongerCalls) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        Spec s{.rule = GetParam(), .B = 2, .T = 40, .H = 1, .HV = 2, .K = 6, .V = 5, .seed = seed};
        s.logits = seed % 2 == 0, s.l2norm = seed % 3 == 0, s.v_first = seed > 3, s.clamps = seed > 2;
        const Call call(s);
        const BackwardForm f = lower(call.view());
        reference::Gradients magnitude(f);
        const reference::Gradients exact = adjoint<double>(f, {}, &magnitude);
        const reference::Gradients single = adjoint<float>(f);
        for (std::size_t r = 0; r < kRoles; ++r) {
            EXPECT_LT(backward_test::apart(single.by_role[r], exact.by_role[r]), 2e-5) << "fp32, role " << r;
            for (std::size_t i = 0; i < exact.by_role[r].size(); ++i)
                ASSERT_GE(magnitude.by_role[r][i], std::fabs(exact.by_role[r][i]) * (1 - 1e-13)) << "role " << r;
        }
    }
}

TEST_P(EveryRule, EachMistakeChangesTheGradientsItNames) {
    const RuleRow& row = row_of(GetParam());
    Spec s{.rule = GetParam(),
           .T = reference::kResetChunk + 3,
           .H = 1,
           .HV = 2,
           .clamps = true,
           .l2norm = true,
           .dtypes = {Dtype::fp64}};
    const Call call(s);
    const BackwardForm form = lower(call.view());
    const reference::Gradients right = adjoint<double>(form);
    const std::set<Role> scaled = row.decay == Decay::none ? std::set<Role>{} : std::set<Role>{Role::gate};
    struct Wrong {
        Mistake mistake;
        std::set<Role> changed;
    };
    const bool tied = row.tied, beta = has_beta(row);
    const Wrong table[] = {{Mistake::gate_without_erase, tied ? scaled : std::set<Role>{}},
                           {Mistake::key_without_erase, tied ? std::set<Role>{Role::k} : std::set<Role>{}},
                           {Mistake::strength_without_erase, beta ? std::set<Role>{Role::erase} : std::set<Role>{}},
                           {Mistake::last_head_only, {Role::q, Role::k}},
                           {Mistake::norm_skipped, {Role::q, Role::k}},
                           {Mistake::clamped_gate_has_gradient, scaled}};
    for (const Wrong& wrong : table) {
        reference::Policy policy;
        policy.mistake = wrong.mistake;
        const reference::Gradients got = adjoint<double>(form, policy);
        for (std::size_t r = 0; r < kRoles; ++r)
            EXPECT_EQ(got.by_role[r] != right.by_role[r], wrong.changed.count(static_cast<Role>(r)) == 1)
                << "mistake " << static_cast<int>(wrong.mistake) << ", role " << r;
    }
    reference::Policy policy;
    policy.mistake = Mistake::state_gradient_reset;
    const std::vector<double> got = adjoint<double>(form, policy).of(Role::v), want = right.of(Role::v);
    const std::size_t half = static_cast<std::size_t>(reference::kResetChunk * form.nf.steps * 2 * s.V);
    EXPECT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(half), got.end(),
                           want.begin() + static_cast<std::ptrdiff_t>(half)));
    EXPECT_FALSE(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(half), want.begin()));
}

// ---- store ----------------------------------------------------------------------------------------------------------

TEST_P(EveryRule, StoreRoundsOnceIntoWhatIsAskedForAndNothingElse) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp64})
        for (const bool logits : {false, true}) {
            Spec s{.rule = GetParam(),
                   .B = 2,
                   .T = 3,
                   .H = 2,
                   .HV = 4,
                   .logits = logits,
                   .v_first = logits,
                   .dtypes = {Dtype::fp32, Dtype::bf16, Dtype::fp64}};
            const Call call(s);
            const BackwardForm all = lower(call.view());
            const reference::Gradients exact = adjoint<double>(all);
            for (const unsigned wanted : {~0U, 0x1555U, 0x2AAAU}) {
                const Row out = memory_for(call.view(), dtype, wanted, 3);
                const BackwardForm form = lower(into(call.view(), out));
                store(exact, form);
                for (std::size_t i = 0; i < out.size(); ++i)
                    EXPECT_TRUE(out[i].intact_outside(out[i].view())) << gradients()[i].name;
                for (std::size_t r = 0; r < kRoles; ++r) {
                    if (!form.out[r].present()) continue;
                    const std::vector<double> got = test::values(form.out[r]);
                    ASSERT_EQ(got.size(), exact.by_role[r].size()) << "role " << r;
                    for (std::size_t i = 0; i < got.size(); ++i)
                        ASSERT_EQ(got[i], round_to(exact.by_role[r][i], dtype)) << "role " << r << ", element " << i;
                }
            }
        }
}

TEST(Adjoint, OfNoTokensIsTheGradientOfTheStateAlone) {
    for (const Rule rule : backward_test::every_rule()) {
        Spec s{.rule = rule, .B = 2, .T = 0, .logits = true, .v_first = true, .dtypes = {Dtype::fp64}};
        const Call call(s);
        const Row out = backward_test::exact(call.view());
        EXPECT_EQ(test::difference(out[row_of_name("dh0")].view(), call.dht.view()), "") << name_of(rule);
        for (const char* sum : {"dA_log", "ddt_bias"})
            for (const double x : test::values(out[row_of_name(sum)].view())) EXPECT_EQ(x, 0) << sum;
    }
}

}  // namespace
}  // namespace tidegate
