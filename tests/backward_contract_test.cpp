// The contract of backward(): what it refuses and in which words, where gates are flat, sums over value heads that
// share a key head, and rules that contain one another, on the CPU and in the reference.
#include <gtest/gtest.h>

#include "backward_testing.h"
#include "tidegate/error.h"

namespace tidegate {
namespace {

using backward_test::apart;
using backward_test::Call;
using backward_test::exact;
using backward_test::into;
using backward_test::memory_for;
using backward_test::Row;
using backward_test::row_of_name;
using backward_test::Spec;
using test::Owned;
using test::Sizes;

constexpr double kInf = std::numeric_limits<double>::infinity();

Sizes shape_of(const Tensor& t) { return {t.shape.begin(), t.shape.begin() + t.rank}; }

// ---- refusals -------------------------------------------------------------------------------------------------------

/// One call that asks for all, to be broken in one place.
struct Whole {
    Call call;
    Row out;
    Backward p;
    explicit Whole(const Spec& s) : call(s), out(memory_for(call.view())), p(into(call.view(), out)) {}
    Tensor& gradient(const char* name) { return p.*gradients()[row_of_name(name)].gradient; }
    /// Throws an Error of `argument` whose text starts with it and has all of `words`; and nothing has been written.
    void expect_refused(const std::string& argument, const std::vector<std::string>& words) {
        try {
            backward(p, {1});
            ADD_FAILURE() << "not refused: " << argument << ", " << words.front();
        } catch (const Error& e) {
            const std::string what = e.what();
            EXPECT_EQ(e.argument(), argument) << what;
            EXPECT_EQ(what.rfind(argument + ": given ", 0), 0u) << what;
            for (const std::string& word : words) EXPECT_NE(what.find(word), std::string::npos) << what << "\n" << word;
        }
        EXPECT_THROW(plan(p), Error);
        for (const Owned& t : out) EXPECT_TRUE(t.intact_outside(test::narrow(t.view(), 0, 0, 0))) << argument;
    }
};
Spec spec_of(Rule rule, bool logits = false) {
    return {.rule = rule, .B = 2, .T = 3, .H = 1, .HV = 2, .K = 4, .V = 5, .logits = logits};
}

TEST(BackwardErrors, AGradientNeedsItsInput) {
    for (const Rule rule : backward_test::every_rule())
        for (const bool logits : {false, true})
            for (const GradientRow& row : gradients()) {
                Whole w(spec_of(rule, logits));
                if ((w.p.*row.gradient).present()) continue;
                const Owned any(Dtype::fp32, {2, 3, 2});
                w.p.*row.gradient = any.view();
                w.expect_refused(row.name, {"it without " + std::string(row.name + 1), "none, or"});
            }
    Whole w(spec_of(Rule::gdn));
    w.p.initial_state = {};  // but dh0: the gradient of a state of zeros
    EXPECT_NO_THROW(backward(w.p, {1}));
}

TEST(BackwardErrors, AGradientHasTheShapeOfItsInput) {
    for (const Rule rule : {Rule::gdn, Rule::kda, Rule::gdn2, Rule::gdp, Rule::dplr})
        for (const bool logits : {false, true}) {
            Whole w(spec_of(rule, logits));
            for (const GradientRow& row : gradients()) {
                const Tensor right = w.p.*row.gradient;
                if (!right.present()) continue;
                Sizes shape = shape_of(right);
                const std::string of =
                    row.role == Role::h0 ? "[N, HV, K, V] = " : "that of " + std::string(row.name + 1);
                for (std::size_t d = 0; d < shape.size(); ++d) {
                    shape[d] += d % 2 == 0 ? 1 : -1;
                    const Owned wrong(Dtype::fp32, shape);
                    w.p.*row.gradient = wrong.view();
                    w.expect_refused(row.name, {"shape " + shape_text(wrong.view()), of, shape_text(right)});
                    shape[d] -= d % 2 == 0 ? 1 : -1;
                }
                shape.push_back(1);
                const Owned longer(Dtype::fp32, shape);
                w.p.*row.gradient = longer.view();
                w.expect_refused(row.name, {"shape "});
                w.p.*row.gradient = right;
                (w.p.*row.gradient).data = nullptr;
                w.expect_refused(row.name, {"a null pointer", "memory for"});
                w.p.*row.gradient = right;
                if (right.rank != 4) continue;
                (w.p.*row.gradient).stride = {200, 60, 20, 2};
                w.expect_refused(row.name, {"stride 2 in the last dimension", "1 (dense)"});
                w.p.*row.gradient = right;
            }
            backward(w.p, {1});
        }
}

TEST(BackwardErrors, UpstreamGradientsHaveTheirShapes) {
    Whole w(spec_of(Rule::gdn));
    const Backward right = w.p;
    w.p.d_o = {};
    w.expect_refused("do", {"nothing", "[B, T, HV, V]"});
    w.p.d_o = test::narrow(right.d_o, 1, 0, 2);
    w.expect_refused("do", {"shape [2, 2, 2, 5]", "[B, T, HV, V] = [2, 3, 2, 5]"});
    w.p = right, w.p.d_o.stride[3] = -1;
    w.expect_refused("do", {"stride -1 in the last dimension"});
    w.p = right, w.p.d_o.data = nullptr;
    w.expect_refused("do", {"a null pointer"});
    w.p = right, w.p.dht = test::narrow(right.dht, 0, 0, 1);
    w.expect_refused("dht", {"shape [1, 2, 4, 5]", "[N, HV, K, V] = [2, 2, 4, 5]"});
    w.p = right, w.p.state_v_first = true;  // states are [N, HV, V, K] then
    w.p.initial_state = {};
    w.expect_refused("dht", {"shape [2, 2, 4, 5]", "[N, HV, V, K] = [2, 2, 5, 4]"});
    w.p.dht = {};
    w.expect_refused("dh0", {"shape [2, 2, 4, 5]", "[N, HV, V, K] = [2, 2, 5, 4]"});
    w.p = right, w.p.q = {};
    w.expect_refused("q", {"nothing"});
}

TEST(BackwardErrors, TypesAreFloatsOfTheCPU) {
    Whole w(spec_of(Rule::kda, true));
    const Backward right = w.p;
    for (const Dtype dtype : {Dtype::int32, Dtype::int64, Dtype::fp64}) {
        for (const GradientRow& row : gradients()) {
            if (!(right.*row.gradient).present()) continue;
            const Owned wrong(dtype, shape_of(right.*row.gradient));
            w.p = right, w.p.*row.gradient = wrong.view();
            w.expect_refused(row.name, {name_of(dtype), "fp32, bf16 or fp16"});
        }
        const Owned d_o(dtype, shape_of(right.d_o)), dht(dtype, shape_of(right.dht));
        w.p = right, w.p.d_o = d_o.view();
        w.expect_refused("do", {name_of(dtype)});
        w.p = right, w.p.dht = dht.view();
        w.expect_refused("dht", {name_of(dtype)});
    }
    w.p = right, w.gradient("dk").dtype = static_cast<Dtype>(77);
    w.expect_refused("dk", {"an unknown dtype"});
    w.p = right, w.gradient("da").rank = 9;
    w.expect_refused("da", {"rank 9"});
}

TEST(BackwardErrors, TensorsAreOnTheCPU) {
    Whole w(spec_of(Rule::gdn, true));
    const Backward right = w.p;
    std::vector<std::pair<std::string, Tensor Backward::*>> all{{"do", &Backward::d_o}, {"dht", &Backward::dht}};
    for (const GradientRow& row : gradients())
        if ((right.*row.gradient).present()) all.push_back({row.name, row.gradient});
    for (const auto& one : all) {
        w.p = right, (w.p.*one.second).device = Device::cuda;
        w.expect_refused(one.first, {"a CUDA tensor", "a CPU tensor, as q is"});
    }
    w.p = right;
    for (const auto& one : all) (w.p.*one.second).device = Device::cuda;
    for (const GradientRow& row : gradients()) (w.p.*row.input).device = Device::cuda;
    w.expect_refused("q", {"a CUDA tensor", "no CUDA backward"});
}

TEST(BackwardErrors, OutputsHaveMemoryOfTheirOwn) {
    Whole w(spec_of(Rule::gdn));
    const Backward right = w.p;
    const auto at = [&](Tensor t, const Tensor& memory, std::int64_t bytes = 0) {
        t.data = static_cast<std::byte*>(memory.data) + bytes;
        return t;
    };
    w.p.dk = at(right.dk, right.dq);
    w.expect_refused("dq", {"overlaps dk"});
    w.p = right, w.p.dv = at(right.dv, right.v, 8);
    w.expect_refused("dv", {"overlaps v", "memory of its own"});
    w.p = right, w.p.dv = at(right.dv, right.d_o);
    w.expect_refused("dv", {"overlaps do"});
    w.p = right, w.p.dbeta = at(right.dbeta, right.dht);
    w.expect_refused("dbeta", {"overlaps dht"});
    w.p = right, w.p.dh0 = right.initial_state;
    w.expect_refused("dh0", {"overlaps initial_state"});
    w.p = right, w.p.dh0 = at(right.dh0, right.dht, 20);
    w.expect_refused("dh0", {"partly overlaps dht", "the same view"});
    w.p = right, w.p.dh0 = right.dht, w.p.dh0.dtype = Dtype::bf16;
    w.expect_refused("dh0", {"partly overlaps dht"});
    w.p = right, w.p.dq.stride[1] = 0;
    w.expect_refused("dq", {"reach an element by two indices"});
    w.p = right, w.p.dg.stride = {1, 2, 1};
    w.expect_refused("dg", {"reach an element by two indices"});
}

// ---- flat gates -----------------------------------------------------------------------------------------------------

class EveryGate : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(, EveryGate, ::testing::ValuesIn(backward_test::rules_that_decay()), backward_test::rule_name);

/// On every instruction set: finite, near the oracle by its terms, and of the gates 0 where the oracle's is.
void expect_flat_where_the_oracle_is(const Backward& p, const std::string& what) {
    Row terms;
    const Row want = exact(p, &terms);
    test::on_every_isa([&] {
        const Row got = backward_test::run(p);
        for (std::size_t i = 0; i < got.size(); ++i) {
            const std::vector<double> x = test::values(got[i].view()), y = test::values(want[i].view());
            for (std::size_t e = 0; e < x.size(); ++e) {
                ASSERT_TRUE(std::isfinite(x[e])) << what << ": " << gradients()[i].name;
                EXPECT_TRUE(gradients()[i].role != Role::gate || y[e] != 0 || x[e] == 0)
                    << what << ": " << gradients()[i].name << ", element " << e << ": " << x[e];
            }
            const double error = apart(x, y, test::values(terms[i].view()));
            EXPECT_TRUE(error <= 1e-6 || apart(x, y, std::vector<double>(x.size(), 1)) < 1e-38)  // subnormal in fp32
                << what << ": " << gradients()[i].name << ", by " << error;
        }
    });
}

TEST_P(EveryGate, EmptyDecaysHaveNoGradientAndMakeNoNaN) {
    for (const double low : {-kInf, -200.0, -128.5, -90.0}) {
        Call call({.rule = GetParam(), .T = 35, .K = 20, .V = 18});
        const Tensor g = call.of("dg").view();
        std::int64_t n = 0;
        test::each(g, [&](std::int64_t at) {
            if (n++ % 3 == 1) store_element(g.data, g.dtype, at, low);
        });
        expect_flat_where_the_oracle_is(call.view(), std::to_string(low));
    }
}

TEST_P(EveryGate, LogitsThatOverflowMakeNoNaN) {
    for (const double x : {-200.0, -90.0, 3.0, 60.0})
        for (const double A_log : {100.0, -100.0, 0.0})
            for (const bool bounded : {false, true}) {
                Call call({.rule = GetParam(), .T = 20, .K = 6, .V = 7, .logits = true, .bounded = bounded});
                call.of("dA_log").fill([&](std::int64_t i) { return i == 0 ? A_log : 0.5; });
                call.of("ddt_bias").fill([&](std::int64_t) { return 1.0; });
                call.of("da").fill([&](std::int64_t) { return x - 1; });
                expect_flat_where_the_oracle_is(call.view(), std::to_string(A_log) + " and " + std::to_string(x));
            }
}

TEST_P(EveryGate, GateMinStopsTheGradientBelowItAlone) {
    for (const double least : {-0.5, -0.75, 0.0, -3.0}) {
        Call call({.rule = GetParam(), .T = 35, .K = 5});
        const double near[] = {-0.5 - 0x1p-20, -0.5, -0.5 + 0x1p-20, -0.75, -0.01, 0, -2, -140};
        call.of("dg").fill([&](std::int64_t i) { return near[i % 8]; });
        call.gate_min = least;
        expect_flat_where_the_oracle_is(call.view(), "gate_min " + std::to_string(least));
        const std::vector<double> dg = test::values(backward_test::run(call.view())[row_of_name("dg")].view());
        for (std::size_t i = 0; i < dg.size(); ++i)
            EXPECT_EQ(dg[i] == 0, near[i % 8] < std::max(least, -128.0)) << near[i % 8];
    }
    for (const bool bounded : {false, true}) {
        Spec s{.rule = GetParam(), .T = 35, .K = 5, .logits = true, .bounded = bounded, .clamps = true};
        expect_flat_where_the_oracle_is(Call(s).view(), "logits");
    }
}

// ---- value heads that share a key head ------------------------------------------------------------------------------

TEST(BackwardHeads, SharedKeysGetTheSumOverTheirValueHeads) {
    for (const Rule rule : backward_test::every_rule())
        for (const bool tiled : {false, true})
            for (const bool l2norm : {false, true}) {
                Spec s{.rule = rule, .T = 37, .H = 2, .HV = 6, .K = 9, .V = 11, .l2norm = l2norm, .tiled = tiled};
                const Call shared(s);
                Call own = shared;  // every value head with a key head of its own
                own.spec.H = 6;
                const auto key_head = [&](std::int64_t h) { return tiled ? h % 2 : h / 3; };
                for (const char* name : {"dq", "dk"}) {
                    const Tensor x = shared.in[row_of_name(name)].view();
                    own.of(name) = Owned(x.dtype, {x.shape[0], x.shape[1], 6, 9});
                    for (std::int64_t h = 0; h < 6; ++h)
                        test::copy(test::narrow(x, 2, key_head(h), 1), test::narrow(own.of(name).view(), 2, h, 1));
                }
                const Row got = backward_test::run(shared.view(), {2}), by_head = backward_test::run(own.view(), {3});
                for (std::size_t i = 0; i < got.size(); ++i) {
                    const Tensor x = got[i].view(), y = by_head[i].view();
                    const std::string what = std::string(name_of(rule)) + ", " + gradients()[i].name;
                    if (gradients()[i].role != Role::q && gradients()[i].role != Role::k) {
                        EXPECT_EQ(test::difference(x, y), "") << what;
                        continue;
                    }
                    for (std::int64_t hk = 0; hk < 2; ++hk) {
                        const std::vector<double> sum = test::values(test::narrow(x, 2, hk, 1));
                        std::vector<double> want(sum.size(), 0), terms = want;
                        for (std::int64_t h = 0; h < 6; ++h) {
                            if (key_head(h) != hk) continue;
                            const std::vector<double> part = test::values(test::narrow(y, 2, h, 1));
                            for (std::size_t e = 0; e < part.size(); ++e)
                                want[e] += part[e], terms[e] += std::fabs(part[e]);
                        }
                        EXPECT_LE(apart(sum, want, terms), 3e-7) << what << ", key head " << hk;
                    }
                }
            }
}

// ---- rules that contain one another ---------------------------------------------------------------------------------

/// Each value `times` times in a row, as `shape`.
Owned repeated(const Tensor& t, std::int64_t times, const Sizes& shape) {
    const std::vector<double> x = test::values(t);
    Owned wide(t.dtype, shape);
    return wide.fill([&](std::int64_t i) { return x[static_cast<std::size_t>(i / times)]; });
}
/// Sums of `times` values in a row.
std::vector<double> summed(const Tensor& t, std::int64_t times) {
    const std::vector<double> x = test::values(t);
    std::vector<double> y(x.size() / static_cast<std::size_t>(times), 0);
    for (std::size_t i = 0; i < x.size(); ++i) y[i / static_cast<std::size_t>(times)] += x[i];
    return y;
}

using Map = std::function<std::vector<double>(const Row& of_wide, const std::string& name)>;

/// Every gradient of `narrow` is what `map` makes of those of `wide`, on the CPU and in the reference.
void expect_contained(const Call& narrow, const Call& wide, const Map& map) {
    Row terms;
    const Row by_reference = exact(narrow.view(), &terms), wide_by_reference = exact(wide.view());
    const Row by_cpu = backward_test::run(narrow.view(), {2}), wide_by_cpu = backward_test::run(wide.view(), {1});
    for (std::size_t i = 0; i < terms.size(); ++i) {
        if (!terms[i].view().present()) continue;
        const char* const name = gradients()[i].name;
        const std::vector<double> by = test::values(terms[i].view());
        const std::string what =
            std::string(name_of(narrow.spec.rule)) + " of " + name_of(wide.spec.rule) + ": " + name;
        EXPECT_LE(apart(test::values(by_reference[i].view()), map(wide_by_reference, name)), 1e-12) << what;
        EXPECT_LE(apart(test::values(by_cpu[i].view()), map(wide_by_cpu, name), by), 1e-6) << what;
    }
}
std::vector<double> itself(const Row& of_wide, const std::string& name) {
    return test::values(of_wide[row_of_name(name)].view());
}

Spec contained(Rule rule, bool logits) {
    Spec s{.rule = rule, .B = 2, .T = 41, .H = 2, .HV = 4, .K = 10, .V = 21, .n = 1, .logits = logits};
    s.l2norm = logits, s.tiled = !logits;
    return s;
}

TEST(BackwardRules, GdnIsKdaWithEqualChannels) {
    for (const bool logits : {false, true}) {
        Spec s = contained(Rule::gdn, logits);
        s.bounded = logits;
        const Call gdn(s);
        Call kda = gdn;
        kda.spec.rule = Rule::kda;
        const auto widen = [&](const char* name, const Sizes& shape) {
            kda.of(name) = repeated(gdn.in[row_of_name(name)].view(), s.K, shape);
        };
        widen(logits ? "da" : "dg", {s.B, s.T, s.HV, s.K});
        if (logits) widen("ddt_bias", {s.HV * s.K});
        expect_contained(gdn, kda, [&](const Row& of_kda, const std::string& name) {
            const bool channels = name == "dg" || name == "da" || name == "ddt_bias";
            return channels ? summed(of_kda[row_of_name(name)].view(), s.K) : itself(of_kda, name);
        });
    }
}

TEST(BackwardRules, KdaIsGdn2WithEqualStrengths) {
    const Spec s = contained(Rule::kda, false);
    const Call kda(s);
    Call gdn2 = kda;
    gdn2.spec.rule = Rule::gdn2;
    gdn2.of("dbeta") = Owned();
    const Tensor beta = kda.in[row_of_name("dbeta")].view();
    gdn2.of("derase") = repeated(beta, s.K, {s.B, s.T, s.HV, s.K});
    gdn2.of("dwrite") = repeated(beta, s.V, {s.B, s.T, s.HV, s.V});
    expect_contained(kda, gdn2, [&](const Row& of_gdn2, const std::string& name) {
        if (name != "dbeta") return itself(of_gdn2, name);
        std::vector<double> sum = summed(of_gdn2[row_of_name("derase")].view(), s.K);
        const std::vector<double> write = summed(of_gdn2[row_of_name("dwrite")].view(), s.V);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += write[i];
        return sum;
    });
}

TEST(BackwardRules, WithoutDecayTheyAreThoseWithADecayOfOne) {
    for (const auto& [rule, with] :
         {std::pair{Rule::deltanet, Rule::gdn}, {Rule::deltanet, Rule::kda}, {Rule::iplr, Rule::dplr}}) {
        const Call plain(contained(rule, false));
        Call one = plain;
        one.spec.rule = with;
        one.of("dg") = with == Rule::gdn ? Owned(Dtype::fp32, {2, 41, 4}) : Owned(Dtype::fp32, {2, 41, 4, 10});
        one.of("dg").fill([](std::int64_t) { return 0; });
        expect_contained(plain, one, itself);
    }
}

TEST(BackwardRules, Rwkv7IsDplrOfScaleOneAndGdpOfOneStepIsGdn) {
    for (const bool logits : {false, true})
        for (const auto& [rule, other] : {std::pair{Rule::rwkv7, Rule::dplr}, {Rule::gdp, Rule::gdn}}) {
            const Call first(contained(rule, logits));
            Call second = first;
            second.spec.rule = other;
            if (rule == Rule::rwkv7) second.spec.scale = 1;
            backward_test::expect_same(backward_test::run(first.view()), backward_test::run(second.view()),
                                       name_of(rule));
            backward_test::expect_same(exact(first.view()), exact(second.view()), name_of(rule));
        }
}

TEST(BackwardRules, GdpIsGdnOverItsStepsWithDecayInTheFirstAndOutputAfterTheLast) {
    for (const std::int64_t n : {2, 3}) {
        Spec s = contained(Rule::gdp, false);
        s.n = n;
        const Call gdp(s);
        Call gdn = gdp;
        gdn.spec.rule = Rule::gdn, gdn.spec.T = s.T * n, gdn.spec.n = 1;
        const auto spread = [&](const Owned& from,
                                std::int64_t step) {  // a token's values in one step, 0 in the others
            const Tensor t = from.view();
            Sizes shape = shape_of(t);
            shape[1] *= n;
            Owned to(t.dtype, shape);
            to.fill([](std::int64_t) { return 0; });
            Tensor every = to.view();
            every.data = static_cast<std::byte*>(every.data) + step * every.stride[1] * bytes_of(t.dtype);
            every.shape[1] /= n, every.stride[1] *= n;
            test::copy(t, every);
            return to;
        };
        gdn.of("dg") = spread(gdp.in[row_of_name("dg")], 0);
        gdn.of("dq") = spread(gdp.in[row_of_name("dq")], n - 1);
        gdn.d_o = spread(gdp.d_o, n - 1);
        expect_contained(gdp, gdn, [&](const Row& of_gdn, const std::string& name) {
            if (name != "dq" && name != "dg") return itself(of_gdn, name);
            Tensor every = of_gdn[row_of_name(name)].view();
            every.data = static_cast<std::byte*>(every.data) +
                         (name == "dq" ? n - 1 : 0) * every.stride[1] * bytes_of(every.dtype);
            every.shape[1] /= n, every.stride[1] *= n;
            return test::values(every);
        });
    }
}

}  // namespace
}  // namespace tidegate
