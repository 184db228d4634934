// Measures, gates, blindness, faults: what the judge says of answers whose defects are known.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <limits>

#include "cases/request.h"
#include "cases/suite.h"
#include "judge/mutants.h"
#include "problem/number.h"
#include "subjects/reference_answer.h"
#include "tidegate/error.h"

namespace tidegate::judge {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

io::Bundle request_of(const std::string& id) { return cases::generate(cases::parse(id)); }
io::Bundle right_answer(const io::Bundle& request) {
    return subjects::reference_answer(request, request, cases::form_of(cases::bind(request)));
}

/// One row a token, one head, `width` channels; twin error `twin` everywhere.
Output synthetic(std::vector<double> exact, std::int64_t width, double twin, Dtype dtype = Dtype::fp64) {
    Output o;
    o.name = "o";
    o.dtype = dtype;
    o.width = width;
    for (std::size_t c = 0; c < exact.size() / static_cast<std::size_t>(width); ++c)
        o.cells.push_back({0, static_cast<std::int64_t>(c), 0});
    o.twin = exact;
    for (double& x : o.twin) x += twin;
    o.magnitude.assign(exact.size(), 0);
    o.exact = std::move(exact);
    return o;
}

TEST(Measures, AreTheirDefinitions) {
    const Output o = synthetic({3, 4, 0, 0}, 2, 1e-3);
    const Gauge gauge(o, gate_from("derived"));
    const std::vector<double> out{3, 4.5, 0, 0.25};
    const Measures m = gauge.measure(out);
    EXPECT_NEAR(m.nrmse, std::sqrt(0.25 + 0.0625) / 5, 1e-15);
    EXPECT_NEAR(m.cosine, (9 + 18) / (5 * std::sqrt(9 + 20.25 + 0.0625)), 1e-15);
    EXPECT_NEAR(m.size_ratio, std::sqrt(29.3125) / 5, 1e-15);
    EXPECT_EQ(m.max_abs, 0.5);
    EXPECT_EQ(m.absmax_out, 4.5);
    EXPECT_EQ(m.absmax_ref, 4);
    EXPECT_EQ(m.worst_token_nrmse, kInf);  // the second token's right value is zero, its answer is not
    EXPECT_EQ(m.min_token_cosine, 0);
    EXPECT_EQ(m.zeros_nrmse, 1);
    EXPECT_EQ(m.hist_abs.at(-1), 1);
    EXPECT_EQ(m.hist_abs.at(-2), 1);
    EXPECT_EQ(m.hist_abs.at(INT_MIN), 2);
    EXPECT_EQ(m.worst.token, 0);
    EXPECT_EQ(m.worst.channel, 1);
    EXPECT_GT(m.needed, 1);
}

TEST(Measures, ZeroOverZeroIsDefined) {
    const Output zero = synthetic({0, 0}, 2, 0);
    const Gauge gauge(zero, gate_from("derived"));
    const Measures right = gauge.measure(std::vector<double>{0, 0});
    EXPECT_EQ(right.nrmse, 0);
    EXPECT_EQ(right.cosine, 1);
    EXPECT_EQ(right.size_ratio, 1);
    EXPECT_LE(right.needed, 1);
    const Measures wrong = gauge.measure(std::vector<double>{0, 1});
    EXPECT_EQ(wrong.nrmse, kInf);
    EXPECT_EQ(wrong.cosine, 0);
    EXPECT_EQ(wrong.size_ratio, kInf);
    EXPECT_GT(wrong.needed, 1);
    EXPECT_TRUE(gauge.zero_reference());
}

TEST(Measures, ValuesThatAreNotFiniteAreMetInKind) {
    const double nan = std::nan("");
    const Output o = synthetic({1, nan, 2, 1e6}, 2, 1e-3, Dtype::fp16);  // 1e6 is inf in fp16
    const Gauge gauge(o, gate_from("derived"));
    EXPECT_TRUE(gauge.passes(std::vector<double>{1, nan, 2, kInf}));
    EXPECT_TRUE(gauge.passes(std::vector<double>{1, kInf, 2, kInf}));  // NaN or inf: the order of sums decides
    EXPECT_FALSE(gauge.passes(std::vector<double>{1, 1, 2, kInf}));    // finite where NaN must flow
    EXPECT_FALSE(gauge.passes(std::vector<double>{1, nan, 2, nan}));   // NaN where a cast gives inf
    EXPECT_FALSE(gauge.passes(std::vector<double>{1, nan, 2, -kInf}));
    EXPECT_FALSE(gauge.passes(std::vector<double>{nan, nan, 2, kInf}));  // NaN that leaked
    EXPECT_EQ(gauge.measure(std::vector<double>{nan, nan, 2, kInf}).mismatched, 1);
}

TEST(Measures, NearOverflowAValueMayLandOnEitherSideButNotAnywhere) {
    const Output o = synthetic({65530, 1}, 2, 1e-3, Dtype::fp16);
    const Gauge gauge(o, gate_from("derived"));
    EXPECT_TRUE(gauge.passes(std::vector<double>{kInf, 1}));
    EXPECT_TRUE(gauge.passes(std::vector<double>{65504, 1}));
    for (const double wrong : {0.0, -123.0, -kInf, -65504.0})
        EXPECT_FALSE(gauge.passes(std::vector<double>{wrong, 1})) << wrong;
}

TEST(Measures, ATwinThatOverflowsDecidesNothingAndHidesNothing) {
    Output o = synthetic({1, 2, 3, 4}, 1, 1e-3);
    o.twin[1] = kInf;
    const Gauge gauge(o, gate_from("derived"));
    EXPECT_EQ(gauge.undecided(), 1);  // the judge calls the tensor blind
    EXPECT_TRUE(gauge.passes(std::vector<double>{1, 2, 3, 4}));
    EXPECT_FALSE(gauge.passes(std::vector<double>{1, 2, 5, 4}));
}

TEST(Measures, SquaresThatWouldOverflowAreMeasuredAllTheSame) {
    const Output o = synthetic({1e200, -2e200, 3e200, 1e200}, 1, 1e190);
    const Gauge gauge(o, gate_from("derived"));
    EXPECT_TRUE(gauge.passes(std::vector<double>{1e200, -2e200, 3e200, 1e200}));
    EXPECT_FALSE(gauge.passes(std::vector<double>{1e200, -2e200, -3e200, 1e200}));
    EXPECT_FALSE(gauge.passes(std::vector<double>{1e200, -2e200, 3e200, 1e308}));
    EXPECT_NEAR(gauge.measure(std::vector<double>{1e200, -2e200, 3e200, 2e200}).nrmse, 1 / std::sqrt(15.0), 1e-12);
}

TEST(DerivedGate, IsTwiceTheTwinForTheTensorAndEightTimesForAToken) {
    std::vector<double> exact(2000, 1.0);
    const Output o = synthetic(exact, 1, 1e-3);
    const Gauge gauge(o, gate_from("derived"));
    const auto off_by = [&](double e) {
        std::vector<double> out(exact.size(), 1 + e);
        return gauge.passes(out);
    };
    EXPECT_TRUE(off_by(1.99e-3));
    EXPECT_FALSE(off_by(2.01e-3));
    std::vector<double> one = exact;
    one[700] += 7.9e-3;
    EXPECT_TRUE(gauge.passes(one));
    one[700] = 1 + 8.1e-3;
    EXPECT_FALSE(gauge.passes(one));
    EXPECT_EQ(gauge.measure(one).worst.token, 700);
}

TEST(DerivedGate, AllowsHalfAnUlpOfTheOutputTypeAndTwoRoundingsOfTheMagnitude) {
    const Output bf16 = synthetic({1.0, 1.0}, 1, 0, Dtype::bf16);
    EXPECT_TRUE(Gauge(bf16, gate_from("derived")).passes(std::vector<double>{1 + 0x1p-8, 1 - 0x1p-8}));
    EXPECT_FALSE(Gauge(bf16, gate_from("derived")).passes(std::vector<double>{1 + 0x1p-7, 1}));
    Output cancelled = synthetic({0.0, 1.0}, 1, 0);
    cancelled.magnitude = {4, 4};
    EXPECT_TRUE(Gauge(cancelled, gate_from("derived")).passes(std::vector<double>{0x1p-21, 1}));
    EXPECT_FALSE(Gauge(cancelled, gate_from("derived")).passes(std::vector<double>{0x1p-20, 1}));
}

TEST(NamedGates, SayWhatTheyAreNamedFor) {
    const Output o = synthetic({1, 1, 1, 1}, 1, 0);
    EXPECT_TRUE(Gauge(o, gate_from("kcp")).passes(std::vector<double>{1.004, 1.004, 1.004, 1.004}));
    EXPECT_FALSE(Gauge(o, gate_from("kcp")).passes(std::vector<double>{1.006, 1.006, 1.006, 1.006}));
    EXPECT_TRUE(Gauge(o, gate_from("chunk-fp16")).passes(std::vector<double>{1.019, 1.019, 1.019, 1.019}));
    EXPECT_FALSE(Gauge(o, gate_from("chunk-fp16")).passes(std::vector<double>{1.021, 1.021, 1.021, 1.021}));
    EXPECT_TRUE(Gauge(o, gate_from("decode-fp16")).passes(std::vector<double>{1.0009, 1, 1, 1}));
    const Gauge decode(o, gate_from("decode-fp16"));
    const Measures m = decode.measure(std::vector<double>{1.0104, 1.0104, 1, 1});
    EXPECT_NEAR(m.needed, 10.4, 1e-9);
    EXPECT_EQ(m.share_out, 0.5);
    EXPECT_THROW(gate_from("loose"), Error);
}

TEST(Verdicts, AreThoseOfTheAnchors) {
    const auto result = [](Verdict v) {
        TensorResult t;
        t.verdict = v;
        return t;
    };
    const TensorResult pass = result(Verdict::pass), fail = result(Verdict::fail), blind = result(Verdict::blind);
    EXPECT_EQ(case_verdict({pass, pass}, {false, false}), Verdict::pass);
    EXPECT_EQ(case_verdict({pass, fail}, {false, false}), Verdict::fail);
    EXPECT_EQ(case_verdict({blind, fail}, {false, false}), Verdict::fail);
    EXPECT_EQ(case_verdict({pass, blind}, {false, false}), Verdict::blind);
    EXPECT_EQ(case_verdict({pass, blind}, {false, true}), Verdict::pass);  // identically zero, another is anchored
    EXPECT_EQ(case_verdict({blind, blind}, {true, true}), Verdict::blind);
}

TEST(Verdicts, AWrongGateIsBlind) {
    // Values of 1e-4 under |err| <= 1e-3: zeros would pass, so a right answer proves nothing.
    const Output small = synthetic({1e-4, -1e-4, 1e-4}, 1, 0);
    const std::vector<std::string> passing = passing_mutants(Gauge(small, gate_from("decode-fp16")));
    EXPECT_NE(std::find(passing.begin(), passing.end(), "zeros"), passing.end());
    EXPECT_NE(std::find(passing.begin(), passing.end(), "negated"), passing.end());
    EXPECT_EQ(std::find(passing.begin(), passing.end(), "constant"), passing.end());
}

TEST(Verdicts, MissingMisshapenMistypedAndUnwrittenTensorsFail) {
    const io::Bundle request = request_of("gdn/forward/bf16/1,9,1,2,16,16/h0=1/1");
    const Bench bench(request, {}, gate_from("derived"));
    subjects::Outcome good;
    good.answer = right_answer(request);
    EXPECT_EQ(bench.judge(good).verdict, Verdict::pass);

    subjects::Outcome bad = good;
    bad.answer.tensors.pop_back();
    EXPECT_EQ(bench.judge(bad).verdict, Verdict::fail);
    EXPECT_NE(bench.judge(bad).reason.find("missing"), std::string::npos);
    bad = good;
    bad.answer.tensors[0].shape = {1, 9, 16, 2};
    EXPECT_NE(bench.judge(bad).reason.find("shape"), std::string::npos);
    bad = good;
    bad.answer.tensors[0].dtype = Dtype::fp16;
    EXPECT_NE(bench.judge(bad).reason.find("type"), std::string::npos);
    bad = good;
    bad.unwritten["o"] = 3;
    EXPECT_NE(bench.judge(bad).reason.find("never written"), std::string::npos);
    EXPECT_EQ(bench.judge(bad).verdict, Verdict::fail);
}

TEST(Verdicts, OutcomesKeepTheirWords) {
    const io::Bundle request = request_of("gdn/forward/bf16/1,9,1,2,16,16/h0=1/1");
    const Bench bench(request, {}, gate_from("derived"));
    const std::pair<subjects::Status, Verdict> words[] = {{subjects::Status::skipped, Verdict::skipped},
                                                          {subjects::Status::failed, Verdict::fail},
                                                          {subjects::Status::crashed, Verdict::crashed},
                                                          {subjects::Status::hung, Verdict::hung}};
    for (const auto& [status, verdict] : words) {
        subjects::Outcome o;
        o.status = status;
        o.reason = "because";
        EXPECT_EQ(bench.judge(o).verdict, verdict);
        EXPECT_EQ(bench.judge(o).reason, "because");
    }
}

TEST(Twins, AreParsedAndForgiveTheirRounding) {
    EXPECT_EQ(name_of(twin_from("chunked:bf16:64")), "chunked:bf16:64");
    EXPECT_EQ(name_of(twin_from("recurrent")), "recurrent");
    for (const char* bad :
         {"", "chunked", "chunked:bf16", "chunked:bf16:", "chunked:bf16:0", "chunked:bf16:6x", "chunked:fp8:64"})
        EXPECT_THROW(twin_from(bad), Error) << bad;
    const io::Bundle request = request_of("gdn/forward/bf16/1,130,1,2,64,64/h0=1/1");
    const Bench strict(request, twin_from("recurrent"), gate_from("derived"));
    const Bench wide(request, twin_from("chunked:bf16:64"), gate_from("derived"));
    io::Bundle answer = right_answer(request);
    const Tensor state = answer.find("final_state")->view();
    for (std::int64_t i = 0; i < state.size(); ++i)  // 1e-3 off, alternating
        store_element(state.data, state.dtype, i,
                      load_element(state.data, state.dtype, i) * (i % 2 == 0 ? 1.001 : 0.999));
    EXPECT_EQ(strict.judge(answer, {})[1].verdict, Verdict::fail);
    EXPECT_EQ(wide.judge(answer, {})[1].verdict, Verdict::pass);
}

struct Tally {
    int applies = 0, live = 0, caught = 0;
};

// Under a sanitizer one type has to do: the reference, which all of this runs on, sees the same numbers in all of them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::optional<Dtype> kTypes = Dtype::fp32;
#else
constexpr std::optional<Dtype> kTypes;
#endif

/// What accuracy.md asks of every row of the fault table, on a suite.
void every_fault_is_caught(const std::string& name, Rule rule, int at_least, double most_blind) {
    for (const char* pass : cases::passes()) {
        std::map<std::string, Tally> tally;
        int total = 0, blind = 0;
        for (const cases::Case& c : cases::suite(name, {rule, kTypes, pass})) {
            const io::Bundle request = cases::generate(c);
            const Bench bench(request, {}, gate_from("derived"));
            subjects::Outcome right;
            right.answer = right_answer(request);
            const Verdict verdict = bench.judge(right).verdict;
            EXPECT_TRUE(verdict == Verdict::pass || verdict == Verdict::blind) << cases::id_of(c);
            ++total;
            blind += verdict == Verdict::blind ? 1 : 0;
            for (const faults::Fault& fault : faults::table()) {
                const Sight sight = try_mutant(bench, fault);
                tally[fault.name].applies += sight != Sight::does_not_apply ? 1 : 0;
                tally[fault.name].live += sight == Sight::caught || sight == Sight::missed ? 1 : 0;
                tally[fault.name].caught += sight == Sight::caught ? 1 : 0;
            }
        }
        EXPECT_LE(blind, most_blind * total);
        for (const faults::Fault& fault : faults::table())
            if (tally[fault.name].applies > 0) {
                EXPECT_GE(tally[fault.name].caught, at_least)
                    << name_of(rule) << " " << pass << " " << fault.name << ", live on " << tally[fault.name].live;
            }
    }
}

class FaultsOf : public ::testing::TestWithParam<Rule> {};
std::vector<Rule> every_rule() {
    std::vector<Rule> list;
    for (const RuleRow& row : rules()) list.push_back(row.rule);
    return list;
}
INSTANTIATE_TEST_SUITE_P(, FaultsOf, ::testing::ValuesIn(every_rule()), [](const auto& p) { return name_of(p.param); });

TEST_P(FaultsOf, AreCaughtByQuick) { every_fault_is_caught("quick", GetParam(), 1, 0); }

TEST_P(FaultsOf, AreCaughtByFiveCasesOfAll) {
    if (std::getenv("TIDEGATE_LONG") == nullptr) GTEST_SKIP() << "long: set TIDEGATE_LONG (scripts/test.sh --long)";
    every_fault_is_caught("all", GetParam(), 5, 0.05);
}

TEST(Faults, EachAppliesToACaseOfQuick) {
    std::map<std::string, bool> applies;
    for (const char* pass : cases::passes())
        for (const cases::Case& c : cases::suite("quick", {std::nullopt, Dtype::fp32, pass})) {
            const io::Bundle request = cases::generate(c);
            const NormalForm form = cases::form_of(cases::bind(request));
            for (const faults::Fault& fault : faults::table())
                applies[fault.name] |= faults::applies(fault, pass, form);
        }
    for (const faults::Fault& fault : faults::table()) EXPECT_TRUE(applies[fault.name]) << fault.name;
}

TEST(Faults, AnInertOneIsNotCalledLive) {
    const io::Bundle request = request_of("gdn/forward/fp32/1,9,1,2,16,16/h0=1/gate=zero/1");
    const Bench bench(request, {}, gate_from("derived"));
    EXPECT_EQ(try_mutant(bench, faults::find("no-decay")), Sight::inert);
    EXPECT_EQ(try_mutant(bench, faults::find("chunk-reset")), Sight::does_not_apply);
    EXPECT_EQ(try_mutant(bench, faults::find("head-map")), Sight::does_not_apply);
    EXPECT_EQ(try_mutant(bench, faults::find("zero-output")), Sight::caught);
    EXPECT_THROW(faults::find("gremlins"), Error);
}

}  // namespace
}  // namespace tidegate::judge
