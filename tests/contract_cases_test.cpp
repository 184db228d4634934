// The kinds of docs/cases.md that need more than one call (their numbers in comments), and what else the contract
// promises of fixed shapes: of every rule, on every instruction set and with 1 to 4 threads.
#include <gtest/gtest.h>

#include "contract_testing.h"

using namespace tidegate;
using namespace tidegate::test;

namespace {

class ContractCases : public ::testing::TestWithParam<Rule> {
protected:
    void TearDown() override { cpu::force_isa(""); }
    static Spec spec(std::int64_t T, std::int64_t K, std::int64_t V) {
        Spec s;
        s.rule = GetParam(), s.T = T, s.K = K, s.V = V;
        return s;
    }
};
INSTANTIATE_TEST_SUITE_P(, ContractCases, ::testing::ValuesIn(every_rule()), rule_name);

class LogitCases : public ContractCases {};
INSTANTIATE_TEST_SUITE_P(, LogitCases, ::testing::ValuesIn(every_rule(has_logits)), rule_name);

}  // namespace

TEST_P(ContractCases, ResumedAnywhere) {  // 3
    on_every_isa([] {
        for (const bool h0 : {false, true})
            for (const int threads : {1, 2, 3, 4}) {
                Spec s = spec(70, 20, 36);
                s.HV = 2, s.h0 = h0;
                const Problem problem(s);
                const Forward p = problem.view();
                for (const std::int64_t at : {64, 40, 1, 69}) {
                    const Cut cut(p, at, threads);
                    EXPECT_LE(nrmse(cut.first.o.view(), cut.first_rows), 1e-5) << at;
                    EXPECT_LE(nrmse(cut.second.o.view(), cut.second_rows), 1e-5) << at;
                    EXPECT_LE(nrmse(cut.second.state.view(), cut.whole.state.view()), 1e-5) << at;
                    if (at % pass_of(p) == 0) {
                        EXPECT_EQ(cut.difference_to_whole(), "") << at;
                    }
                }
            }
    });
}

TEST_P(ContractCases, BatchRowsHaveTheirOwnStrengthsAndStates) {  // 7
    on_every_isa([] {
        for (const bool packed : {false, true}) {
            Spec s = spec(9, 20, 36);
            s.HV = 2, s.logits = true;
            if (packed)
                s.lengths = {9, 9};
            else
                s.B = 2;
            Problem problem(s);
            const std::int64_t half = problem.b.view().size() / 2;
            problem.b.fill([&](std::int64_t n) { return n < half ? -8.0 : 8.0; });
            const Forward p = problem.view();
            const Result both = run(p, 2);
            for (const std::int64_t n : {0, 1}) {
                const Result one = run(alone(p, n));
                EXPECT_EQ(difference(rows_of(p, both.o.view(), n), one.o.view()), "") << n;
                EXPECT_EQ(difference(state_of(both, n), one.state.view()), "") << n;
                Forward swapped = alone(p, n);  // and what must not come out: the other row's
                swapped.initial_state = alone(p, 1 - n).initial_state;
                EXPECT_GT(nrmse(run(swapped).o.view(), one.o.view()), 1e-3) << n;
                if (!p.b.present()) continue;
                swapped = alone(p, n);
                swapped.b = alone(p, 1 - n).b;
                EXPECT_GT(nrmse(run(swapped).state.view(), one.state.view()), 1e-3) << n;
            }
        }
    });
}

// 13; its other half, N = 1025 with 64 heads, is a case of the suite `field` (cpu_test).
TEST_P(ContractCases, IdenticalSequences) {
    on_every_isa([] {
        Spec s = spec(7, 24, 48);
        s.H = 2, s.HV = 4;
        const Problem one(s);
        const Result want = run(one.view());
        for (const int threads : {1, 2, 3, 4})
            for (const std::int64_t N : {3, 4, 5, 6}) {
                Forward p = one.view();  // N times the same memory
                for (Tensor* t : of_rows(p)) t->shape[0] = N, t->stride[0] = 0;
                p.initial_state.shape[0] = N, p.initial_state.stride[0] = 0;
                const Result got = run(p, threads);
                for (std::int64_t n = 0; n < N; ++n) {
                    EXPECT_EQ(difference(rows_of(p, got.o.view(), n), want.o.view()), "") << n << " of " << N;
                    EXPECT_EQ(difference(state_of(got, n), want.state.view()), "") << n << " of " << N;
                }
            }
    });
}

TEST_P(ContractCases, UntouchedMemory) {  // 14
    on_every_isa([] {
        for (const int threads : {1, 2, 3, 4})
            for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
                Spec s = spec(5, 13, 35);
                s.B = 2, s.HV = 2, s.gap = 3, s.dtype = dtype;
                const Problem problem(s);
                Forward p = problem.view();
                const Sizes rows{2, 9, 2, 35}, state{2, 2, 13, 35};
                const Owned o(dtype, rows, gapped(rows, 5)), ht(dtype, state, gapped(state, 2));
                const auto inputs = [&] {
                    std::vector<std::vector<std::byte>> all;
                    for (const Owned* t : problem.owned()) all.push_back(t->bytes());
                    return all;
                };
                const auto before = inputs();
                const Result want = run(p, 1, dtype, dtype);
                p.o = o.view(), p.final_state = ht.view();
                forward(p, {threads});
                EXPECT_EQ(difference(narrow(o.view(), 1, 0, 5), want.o.view()), "");
                EXPECT_EQ(difference(ht.view(), want.state.view()), "");
                EXPECT_TRUE(o.intact_outside(narrow(o.view(), 1, 0, 5))) << "gaps or spare rows of o were written";
                EXPECT_TRUE(ht.intact_outside(ht.view())) << "gaps of final_state were written";
                EXPECT_TRUE(inputs() == before) << "an input was written";
            }
    });
}

// Rows of o on cache lines are streamed past the caches: the same bits as stored ones, and nothing beside them.
TEST_P(ContractCases, OutputOnCacheLines) {
    on_every_isa([] {
        for (const int threads : {1, 2, 4})
            for (const std::int64_t V : {16, 32, 80})
                for (const std::int64_t T : {1, 2, 5, 70}) {
                    Spec s = spec(T, 24, V);
                    s.B = 2, s.HV = 2;
                    const Problem problem(s);
                    Forward p = problem.view();
                    const Result want = run(p);
                    const Sizes shape{2, T, 2, V}, stride = gapped(shape, 16);
                    std::vector<float> memory(static_cast<std::size_t>(2 * stride[0] + 64), -7.0F);
                    for (const std::size_t shift : {0UL, 4UL}) {
                        const std::size_t line = (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) / 4 % 16;
                        Tensor o = want.o.view();
                        o.data = memory.data() + line + shift;
                        for (std::size_t d = 0; d < 4; ++d) o.stride[d] = stride[d];
                        p.o = o;
                        const Owned ht(Dtype::fp32, problem.state_shape());
                        p.final_state = ht.view();
                        std::fill(memory.begin(), memory.end(), -7.0F);
                        forward(p, {threads});
                        EXPECT_EQ(difference(o, want.o.view()), "") << "T " << T << " V " << V << " shift " << shift;
                        EXPECT_EQ(std::count(memory.begin(), memory.end(), -7.0F),
                                  static_cast<std::int64_t>(memory.size()) - o.size());
                    }
                }
    });
}

// Where a thread has several heads, every head advances a round of tokens before any goes on.
TEST_P(ContractCases, RoundsChangeNoBit) {
    on_every_isa([] {
        for (const std::int64_t steps : {2, 3, 5}) {
            Spec s = spec(0, 20, 24);
            s.lengths = {530, 0, 70}, s.HV = 2, s.steps = steps;
            const Problem problem(s);
            if (problem.spec.steps != steps && steps > 2) continue;  // a rule without Householder steps
            Forward p = problem.view();
            const Result want = run(p, 1);
            const Owned o(Dtype::fp32, {1, 600, 2, 24}), ht(Dtype::fp32, problem.state_shape());
            for (const int threads : {1, 2, 3, 6}) {
                const Result got = run(p, threads);
                EXPECT_EQ(difference(got.o.view(), want.o.view()), "") << threads;
                EXPECT_EQ(difference(got.state.view(), want.state.view()), "") << threads;
                p.o = o.view(), p.final_state = ht.view();
                EXPECT_EQ(plan(p, {threads}).schedule.round > 0, threads < 6);  // 6 heads
            }
            p.final_state = {};  // no rounds: there is nowhere to keep a state
            EXPECT_EQ(plan(p, {1}).schedule.round, 0);
            forward(p, {1});
            EXPECT_EQ(difference(p.o, want.o.view()), "");
        }
    });
}

TEST_P(ContractCases, EmptySequences) {  // 10
    on_every_isa([] {
        for (const bool h0 : {false, true})
            for (const Sizes& lengths : {Sizes{0, 3, 0}, Sizes{0}, Sizes{0, 0}}) {
                Spec s = spec(0, 5, 7);
                s.lengths = lengths, s.HV = 2, s.h0 = h0;
                const Problem problem(s);
                const Forward p = problem.view();
                const Result r = run(p, 2);
                for (std::size_t n = 0; n < lengths.size(); ++n) {
                    if (lengths[n] > 0) continue;
                    const Tensor state = state_of(r, static_cast<std::int64_t>(n));
                    const auto x = values(state);
                    EXPECT_EQ(x, h0 ? values(alone(p, static_cast<std::int64_t>(n)).initial_state)
                                    : std::vector<double>(x.size(), 0.0));
                }
            }
    });
}

TEST_P(ContractCases, AStateFullOfNaNIsNotReadWithoutAnInitialOne) {  // 31
    on_every_isa([] {
        Spec s = spec(1, 20, 36);
        s.HV = 2, s.h0 = false;
        const Problem problem(s);
        Forward p = problem.view();
        const Result want = run(p);
        Owned slot(Dtype::fp32, problem.state_shape());
        slot.fill([](std::int64_t) { return std::nan(""); });
        const Owned o(Dtype::fp32, {1, 1, 2, 36});
        p.o = o.view(), p.final_state = slot.view();
        forward(p, {2});
        EXPECT_EQ(difference(o.view(), want.o.view()), "");
        EXPECT_EQ(difference(slot.view(), want.state.view()), "");
        for (const double x : values(slot.view())) EXPECT_TRUE(std::isfinite(x));
    });
}

TEST_P(ContractCases, FinalStateInPlace) {
    on_every_isa([] {
        for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16})
            for (const bool v_first : {false, true}) {
                Spec s = spec(6, 21, 70);
                s.B = 2, s.HV = 3, s.v_first = v_first, s.gap = 2;
                const Problem problem(s);
                Forward p = problem.view();
                const Owned pool(dtype, problem.state_shape(), gapped(problem.state_shape(), 1));
                const Tensor state = pool.view(), from = p.initial_state;
                const auto x = values(from);
                std::size_t n = 0;
                each(state, [&](std::int64_t at) { store_element(state.data, dtype, at, x[n++]); });
                p.initial_state = state;
                const Result want = run(p, 1, Dtype::fp32, dtype);
                const Owned o(Dtype::fp32, {2, 6, 3, 70});
                p.o = o.view(), p.final_state = state;
                forward(p, {4});
                EXPECT_EQ(difference(o.view(), want.o.view()), "");
                EXPECT_EQ(difference(state, want.state.view()), "");
                EXPECT_TRUE(pool.intact_outside(state));
            }
    });
}

TEST_P(ContractCases, DecodeEqualsPrefill) {  // 24
    on_every_isa([] {
        Spec s = spec(64, 32, 32);
        s.HV = 2, s.dtype = Dtype::bf16;
        const Problem problem(s);
        const Forward p = problem.view();
        const Result whole = run(p, 2);
        Result last;
        for (std::int64_t t = 0; t < 64; ++t) {
            Forward call = tokens(p, t, 1);
            if (t > 0) call.initial_state = last.state.view();
            Result next = run(call, 2);
            last = std::move(next);
            EXPECT_LE(nrmse(last.o.view(), narrow(whole.o.view(), 1, t, 1)), 1e-5) << t;
        }
        EXPECT_LE(nrmse(last.state.view(), whole.state.view()), 1e-6);
        if (pass_of(p) == 1) {
            EXPECT_EQ(difference(last.state.view(), whole.state.view()), "");
        }
    });
}

// 23: on 16-bit logits, K = V = 1 and keys and values of 1, 1000 tokens in one call and in as many.
TEST_P(LogitCases, AreNotRoundedToTheInputType) {
    on_every_isa([] {
        const RuleRow& row = row_of(GetParam());
        for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
            Spec s = spec(1000, 1, 1);
            s.dtype = dtype, s.logits = true, s.h0 = false;
            Problem x(s);
            const std::pair<Owned*, double> inputs[] = {{&x.q, 1},       {&x.k, 1},        {&x.v, 1},
                                                        {&x.b, 0.5},     {&x.a, -3},       {&x.A_log, 0.25},
                                                        {&x.erase, 0.5}, {&x.write, 0.25}, {&x.dt_bias, 0.125},
                                                        {&x.lr_a, -0.5}, {&x.lr_b, 0.5}};
            for (const auto& input : inputs) input.first->fill([&](std::int64_t) { return input.second; });
            Forward all = x.view();
            all.scale = 1;
            const double beta = 1 / (1 + std::exp(-0.5));
            const double decay =
                row.decay == Decay::none ? 1 : std::exp(-std::exp(0.25) * std::log1p(std::exp(0.125 - 3)));
            const double erase = row.erase == Width::scalar ? beta : row.tied ? 0.5 : 0.25 / decay;
            const double write = row.write == Width::scalar ? beta : row.tied ? 0.25 : 1;
            const Result one = run(tokens(all, 0, 1)), whole = run(all);
            if (has_beta(row) && x.spec.steps == 1) {
                EXPECT_NEAR(values(one.state.view())[0], 0.62245935, 1e-6);
                EXPECT_NEAR(values(one.o.view())[0], 0.62245935, 1e-6);
            }
            double S = 0;
            Owned state(Dtype::fp32, x.state_shape());
            state.fill([](std::int64_t) { return 0.0; });
            const auto o = values(whole.o.view());
            for (std::int64_t t = 0; t < 1000; ++t) {
                S *= decay;
                for (std::int64_t step = 0; step < x.spec.steps; ++step) S += write - erase * S;
                ASSERT_NEAR(o[static_cast<std::size_t>(t)], S, 1e-6 * std::max(1.0, S)) << t;
                Forward call = tokens(all, t, 1);
                const Owned out(Dtype::fp32, {1, 1, 1, 1});
                call.o = out.view(), call.initial_state = call.final_state = state.view();
                forward(call);
                ASSERT_NEAR(values(out.view())[0], S, 1e-6 * std::max(1.0, S)) << t;
            }
            EXPECT_NEAR(values(whole.state.view())[0], S, 1e-6 * std::max(1.0, S));
            EXPECT_NEAR(values(state.view())[0], S, 1e-6 * std::max(1.0, S));
        }
    });
}
