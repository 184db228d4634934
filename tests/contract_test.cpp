// The contract's invariants bit for bit, on random problems of every rule, every instruction set and 1 to 4 threads.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <deque>

#include "contract_testing.h"

using namespace tidegate;
using namespace tidegate::test;

namespace {

Spec random_spec(Rule rule, bool packed) {
    Spec s;
    s.rule = rule;
    s.dtype = *rc::gen::element(Dtype::fp32, Dtype::bf16, Dtype::fp16);
    s.B = packed ? 1 : *rc::gen::inRange<std::int64_t>(1, 4);
    s.T = *rc::gen::inRange<std::int64_t>(1, 30);
    s.H = *rc::gen::inRange<std::int64_t>(1, 3);
    s.HV = s.H * *rc::gen::inRange<std::int64_t>(1, 3);
    s.K = *rc::gen::inRange<std::int64_t>(1, 50);
    s.V = *rc::gen::inRange<std::int64_t>(1, 80);
    s.steps = *rc::gen::element<std::int64_t>(1, 2, 3, 5, 8);
    if (packed) s.lengths = *rc::gen::nonEmpty(rc::gen::container<Sizes>(rc::gen::inRange<std::int64_t>(0, 12)));
    if (s.lengths.size() > 6) s.lengths.resize(6);
    s.h0 = *rc::gen::arbitrary<bool>();
    s.logits = *rc::gen::arbitrary<bool>();
    s.l2norm = *rc::gen::arbitrary<bool>();
    s.v_first = *rc::gen::arbitrary<bool>();
    s.gap = *rc::gen::inRange<std::int64_t>(0, 4);
    s.seed = *rc::gen::inRange<std::uint64_t>(1, 1000);
    return s;
}

int random_threads() { return *rc::gen::inRange(1, 5); }

class ContractTest : public ::testing::TestWithParam<Rule> {
protected:
    void TearDown() override { cpu::force_isa(""); }

    /// A hundred cases, each on one instruction set of this machine.
    template <class F>
    static void holds(const F& property) {
        const auto isas = cpu::available_isas();
        unsetenv("TIDEGATE_ISA");
        EXPECT_TRUE(rc::check([&] {
            cpu::force_isa(*rc::gen::elementOf(isas));
            property();
        }));
    }
    static Spec packed_or_batched() { return random_spec(GetParam(), *rc::gen::arbitrary<bool>()); }
};
INSTANTIATE_TEST_SUITE_P(, ContractTest, ::testing::ValuesIn(every_rule()), rule_name);

void spoil(const Tensor& t, std::uint64_t seed) {
    std::uint64_t n = 0;
    const cases::Random random(seed, 7);
    each(t, [&](std::int64_t at) {
        const double x = load_element(t.data, t.dtype, at);
        store_element(t.data, t.dtype, at, x * 0.5 * random.uniform(n++));  // still a gate <= 0, a beta, a key
    });
}

}  // namespace

TEST_P(ContractTest, PackedEqualsSeparate) {  // 7, 12 of docs/cases.md
    holds([] {
        const Problem problem(packed_or_batched());
        const Forward p = problem.view();
        const Result together = run(p, random_threads());
        for (std::int64_t n = 0; n < problem.sequences(); ++n) {
            const Result one = run(alone(p, n), random_threads());
            RC_ASSERT(difference(rows_of(p, together.o.view(), n), one.o.view()) == "");
            RC_ASSERT(difference(state_of(together, n), one.state.view()) == "");
        }
    });
}

TEST_P(ContractTest, Causal) {  // 19
    holds([] {
        const Problem problem(random_spec(GetParam(), false));
        const Forward p = problem.view();
        const std::int64_t T = problem.spec.T, cut = *rc::gen::inRange<std::int64_t>(0, T);
        const Result before = run(p, random_threads());
        const Result appended = run(tokens(p, 0, cut), random_threads());  // the later tokens were not there at all
        Forward late = tokens(p, cut, T - cut);
        for (const Tensor* t : of_rows(late)) spoil(*t, problem.spec.seed);
        const Result after = run(p, random_threads());
        RC_ASSERT(difference(narrow(before.o.view(), 1, 0, cut), narrow(after.o.view(), 1, 0, cut)) == "");
        RC_ASSERT(difference(narrow(before.o.view(), 1, 0, cut), appended.o.view()) == "");
        RC_ASSERT(difference(narrow(before.o.view(), 1, cut, T - cut), narrow(after.o.view(), 1, cut, T - cut)) != "");
    });
}

TEST_P(ContractTest, RepeatableOnAnyNumberOfThreads) {
    holds([] {
        const Problem problem(packed_or_batched()), other(random_spec(GetParam(), false));
        const Dtype out = *rc::gen::element(Dtype::fp32, Dtype::bf16, Dtype::fp16);
        const Result first = run(problem.view(), 1, out, out);
        for (const int threads : {0, 1, 2, 3, 4}) {
            run(other.view(), random_threads());  // leaves its traces in whatever memory calls share
            const Result again = run(problem.view(), threads, out, out);
            RC_ASSERT(difference(first.o.view(), again.o.view()) == "");
            RC_ASSERT(difference(first.state.view(), again.state.view()) == "");
        }
    });
}

TEST_P(ContractTest, ResumableAtMultiplesOfThePass) {
    holds([] {
        Spec s = random_spec(GetParam(), false);
        const std::int64_t pass = pass_of(Problem(s).view());
        s.T = 3 * pass + *rc::gen::inRange<std::int64_t>(0, 9);
        const Problem problem(s);
        const std::int64_t at = pass * *rc::gen::inRange<std::int64_t>(0, 4);
        RC_ASSERT(Cut(problem.view(), at, random_threads()).difference_to_whole() == "");
    });
}

TEST_P(ContractTest, IsolatedSequences) {  // 22
    holds([] {
        Spec s = packed_or_batched();
        for (std::int64_t& n : s.lengths) ++n;
        const Problem problem(s);
        const Forward p = problem.view();
        const std::int64_t N = problem.sequences(), bad = *rc::gen::inRange<std::int64_t>(0, N);
        const Result clean = run(p, random_threads());
        Forward one = alone(p, bad);
        std::vector<Tensor> targets;
        for (const Tensor* t : of_rows(one))
            if (t->present()) targets.push_back(*t);
        if (s.h0) targets.push_back(one.initial_state);
        const Tensor t = *rc::gen::elementOf(targets);
        const std::int64_t where = *rc::gen::inRange<std::int64_t>(0, t.size());
        const double x = *rc::gen::arbitrary<bool>() ? std::nan("") : HUGE_VAL;
        std::int64_t n = 0;
        each(t, [&](std::int64_t at) {
            if (n++ == where) store_element(t.data, t.dtype, at, x);
        });
        const Result spoilt = run(p, random_threads());
        for (std::int64_t other = 0; other < N; ++other) {
            const std::string o = difference(rows_of(p, clean.o.view(), other), rows_of(p, spoilt.o.view(), other));
            const std::string state = difference(state_of(clean, other), state_of(spoilt, other));
            if (other != bad) RC_ASSERT(o + state == "");
            if (other == bad && std::isnan(x)) RC_ASSERT(o + state != "");
        }
    });
}

TEST_P(ContractTest, PaddedEqualsUnpadded) {  // 8
    holds([] {
        const Spec s = random_spec(GetParam(), false);
        const Problem problem(s);
        Forward p = problem.view();
        p.scale = 1 / std::sqrt(static_cast<double>(s.K));
        const auto chosen = plan_of(p).arithmetic;
        const std::int64_t K = chosen.bucket_k, V = chosen.bucket_v;
        RC_ASSERT(K >= s.K && V >= s.V);
        std::deque<Owned> padded;
        const auto pad = [&](Tensor& t, std::int64_t rows, std::int64_t last) {
            if (!t.present()) return;
            padded.emplace_back(t.dtype, Sizes{t.shape[0], t.shape[1], rows, last});
            padded.back().fill([](std::int64_t) { return 0.0; });
            const Tensor wide = padded.back().view();
            copy(t, narrow(narrow(wide, 2, 0, t.shape[2]), 3, 0, t.shape[3]));
            t = wide;
        };
        Forward w = p;
        for (Tensor* t : {&w.q, &w.k}) pad(*t, s.H, K);
        for (Tensor* t : {&w.erase, &w.lr_a, &w.lr_b}) pad(*t, s.HV, K);
        for (Tensor* t : {&w.v, &w.write}) pad(*t, s.HV, V);
        pad(w.initial_state, s.v_first ? V : K, s.v_first ? K : V);
        if (row_of(s.rule).decay == Decay::vector) {
            for (Tensor* t : {&w.g, &w.a}) pad(*t, s.HV, K);
            if (w.dt_bias.present()) {
                w.dt_bias = dense(p.dt_bias.data, Dtype::fp32, {1, 1, s.HV, s.K});
                pad(w.dt_bias, s.HV, K);
                w.dt_bias = dense(w.dt_bias.data, Dtype::fp32, {s.HV * K});
            }
        }
        RC_ASSERT(plan_of(w).arithmetic == chosen);
        const Result narrow_call = run(p, random_threads()), wide_call = run(w, random_threads());
        const Tensor state = wide_call.state.view();
        RC_ASSERT(difference(narrow_call.o.view(), narrow(wide_call.o.view(), 3, 0, s.V)) == "");
        RC_ASSERT(difference(narrow_call.state.view(),
                             narrow(narrow(state, 2, 0, s.v_first ? s.V : s.K), 3, 0, s.v_first ? s.K : s.V)) == "");
        for (const double x : values(narrow(wide_call.o.view(), 3, s.V, V - s.V))) RC_ASSERT(x == 0);
    });
}
