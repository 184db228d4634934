// The contract's invariants bit for bit, on every instruction set and with 1 to 4 threads, and the kinds of
// docs/cases.md that need more than one call (their numbers in comments).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "testing.h"
#include "tidegate/error.h"

using namespace tidegate;
using namespace tidegate::test;

namespace {

Plan plan_of(Forward p) {
    const Owned o(Dtype::fp32, {p.v.shape[0], p.v.shape[1], p.v.shape[2], p.v.shape[3]});
    p.o = o.view();
    return plan(p);
}

std::int64_t pass_of(const Forward& p) { return plan_of(p).arithmetic.pass; }

/// Sequence n of a packed or batched problem as a problem of its own.
Forward alone(Forward p, std::int64_t n) {
    if (p.cu_seqlens.present()) {
        const auto* cu = static_cast<const std::int64_t*>(p.cu_seqlens.data);
        p = tokens(p, cu[n], cu[n + 1] - cu[n]);
        p.cu_seqlens = {};
    } else {
        for (Tensor* t : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.a, &p.b}) *t = narrow(*t, 0, n, 1);
    }
    p.initial_state = narrow(p.initial_state, 0, n, 1);
    return p;
}

/// The rows of o that belong to sequence n.
Tensor rows_of(const Forward& p, const Tensor& o, std::int64_t n) {
    if (!p.cu_seqlens.present()) return narrow(o, 0, n, 1);
    const auto* cu = static_cast<const std::int64_t*>(p.cu_seqlens.data);
    return narrow(o, 1, cu[n], cu[n + 1] - cu[n]);
}

Tensor state_of(const Result& r, std::int64_t n) { return narrow(r.state.view(), 0, n, 1); }

/// sqrt(sum (x - y)^2 / sum y^2)
double nrmse(const Tensor& got, const Tensor& want) {
    const auto x = values(got), y = values(want);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) error += (x[i] - y[i]) * (x[i] - y[i]), size += y[i] * y[i];
    return std::sqrt(error / std::max(size, 1e-300));
}

/// Two calls, the state handed on, against one: o and the final state.
struct Cut {
    Result whole, first, second;
    Tensor first_rows, second_rows;

    Cut(const Forward& p, std::int64_t at, int threads = 1) : whole(run(p, threads)), first(run(tokens(p, 0, at))) {
        Forward rest = tokens(p, at, p.q.shape[1] - at);
        rest.initial_state = first.state.view();
        second = run(rest, threads);
        first_rows = narrow(whole.o.view(), 1, 0, at);
        second_rows = narrow(whole.o.view(), 1, at, p.q.shape[1] - at);
    }
    std::string difference_to_whole() const {
        return difference(first.o.view(), first_rows) + difference(second.o.view(), second_rows) +
               difference(second.state.view(), whole.state.view());
    }
};

Spec random_spec(bool packed) {
    Spec s;
    s.rule = *rc::gen::element(Rule::gdn, Rule::kda);
    s.dtype = *rc::gen::element(Dtype::fp32, Dtype::bf16, Dtype::fp16);
    s.B = packed ? 1 : *rc::gen::inRange<std::int64_t>(1, 4);
    s.T = *rc::gen::inRange<std::int64_t>(1, 30);
    s.H = *rc::gen::inRange<std::int64_t>(1, 3);
    s.HV = s.H * *rc::gen::inRange<std::int64_t>(1, 3);
    s.K = *rc::gen::inRange<std::int64_t>(1, 50);
    s.V = *rc::gen::inRange<std::int64_t>(1, 80);
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

/// Every property case takes one instruction set of this machine.
void random_isa() {
    const auto isas = cpu::available_isas();
    unsetenv("TIDEGATE_ISA");
    cpu::force_isa(*rc::gen::elementOf(isas));
}

class ContractTest : public ::testing::Test {
protected:
    void TearDown() override { cpu::force_isa(""); }
};

void spoil(const Tensor& t, std::uint64_t seed) {
    std::uint64_t n = 0;
    const cases::Random random(seed, 7);
    each(t, [&](std::int64_t at) {
        const double x = load_element(t.data, t.dtype, at);
        store_element(t.data, t.dtype, at, x * 0.5 * random.uniform(n++));  // still a gate <= 0, a beta, a key
    });
}

}  // namespace

RC_GTEST_FIXTURE_PROP(ContractTest, PackedEqualsSeparate, ()) {  // 12
    random_isa();
    const Problem problem(random_spec(*rc::gen::arbitrary<bool>()));
    const Forward p = problem.view();
    const Result together = run(p, random_threads());
    for (std::int64_t n = 0; n < problem.sequences(); ++n) {
        const Result one = run(alone(p, n), random_threads());
        RC_ASSERT(difference(rows_of(p, together.o.view(), n), one.o.view()) == "");
        RC_ASSERT(difference(state_of(together, n), one.state.view()) == "");
    }
}

RC_GTEST_FIXTURE_PROP(ContractTest, Causal, ()) {  // 19
    random_isa();
    const Problem problem(random_spec(false));
    const Forward p = problem.view();
    const std::int64_t T = problem.spec.T, cut = *rc::gen::inRange<std::int64_t>(0, T);
    const Result before = run(p, random_threads());
    const Result appended = run(tokens(p, 0, cut), random_threads());  // the later tokens were not there at all
    const Forward late = tokens(p, cut, T - cut);
    for (const Tensor& t : {late.q, late.k, late.v, late.g, late.beta, late.a, late.b}) spoil(t, problem.spec.seed);
    const Result after = run(p, random_threads());
    RC_ASSERT(difference(narrow(before.o.view(), 1, 0, cut), narrow(after.o.view(), 1, 0, cut)) == "");
    RC_ASSERT(difference(narrow(before.o.view(), 1, 0, cut), appended.o.view()) == "");
    RC_ASSERT(difference(narrow(before.o.view(), 1, cut, T - cut), narrow(after.o.view(), 1, cut, T - cut)) != "");
}

RC_GTEST_FIXTURE_PROP(ContractTest, RepeatableOnAnyNumberOfThreads, ()) {
    random_isa();
    const Problem problem(random_spec(*rc::gen::arbitrary<bool>())), other(random_spec(false));
    const Dtype out = *rc::gen::element(Dtype::fp32, Dtype::bf16, Dtype::fp16);
    const Result first = run(problem.view(), 1, out, out);
    for (const int threads : {0, 1, 2, 3, 4}) {
        run(other.view(), random_threads());  // leaves its traces in whatever memory calls share
        const Result again = run(problem.view(), threads, out, out);
        RC_ASSERT(difference(first.o.view(), again.o.view()) == "");
        RC_ASSERT(difference(first.state.view(), again.state.view()) == "");
    }
}

RC_GTEST_FIXTURE_PROP(ContractTest, ResumableAtMultiplesOfThePass, ()) {
    random_isa();
    Spec s = random_spec(false);
    const std::int64_t pass = pass_of(Problem(s).view());
    s.T = 3 * pass + *rc::gen::inRange<std::int64_t>(0, 9);
    const Problem problem(s);
    const std::int64_t at = pass * *rc::gen::inRange<std::int64_t>(0, 4);
    RC_ASSERT(Cut(problem.view(), at, random_threads()).difference_to_whole() == "");
}

RC_GTEST_FIXTURE_PROP(ContractTest, IsolatedSequences, ()) {  // 22
    random_isa();
    Spec s = random_spec(*rc::gen::arbitrary<bool>());
    for (std::int64_t& n : s.lengths) ++n;
    const Problem problem(s);
    const Forward p = problem.view();
    const std::int64_t N = problem.sequences(), bad = *rc::gen::inRange<std::int64_t>(0, N);
    const Result clean = run(p, random_threads());
    const Forward one = alone(p, bad);
    const std::vector<Tensor> targets = s.h0 ? std::vector{one.v, one.k, one.q, one.initial_state}
                                             : std::vector{one.v, one.k, one.q, s.logits ? one.a : one.g};
    const Tensor t = targets[*rc::gen::inRange<std::size_t>(0, 4)];
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
}

RC_GTEST_FIXTURE_PROP(ContractTest, PaddedEqualsUnpadded, ()) {  // 8
    random_isa();
    Spec s = random_spec(false);
    s.logits = s.logits && s.rule == Rule::gdn;
    const Problem problem(s);
    Forward p = problem.view();
    p.scale = 1 / std::sqrt(static_cast<double>(s.K));
    const auto chosen = plan_of(p).arithmetic;
    const std::int64_t K = chosen.bucket_k, V = chosen.bucket_v;
    RC_ASSERT(K >= s.K && V >= s.V);
    const auto pad = [](const Tensor& t, std::int64_t rows, std::int64_t last) {
        if (!t.present()) return Owned();
        Owned wide(t.dtype, {t.shape[0], t.shape[1], rows, last});
        wide.fill([](std::int64_t) { return 0.0; });
        copy(t, narrow(narrow(wide.view(), 2, 0, t.shape[2]), 3, 0, t.shape[3]));
        return wide;
    };
    const Owned q = pad(p.q, s.H, K), k = pad(p.k, s.H, K), v = pad(p.v, s.HV, V),
                g = s.rule == Rule::kda ? pad(p.g, s.HV, K) : Owned(),
                h0 = pad(p.initial_state, s.v_first ? V : K, s.v_first ? K : V);
    Forward w = p;
    w.q = q.view(), w.k = k.view(), w.v = v.view(), w.initial_state = h0.view();
    if (s.rule == Rule::kda) w.g = g.view();
    RC_ASSERT(plan_of(w).arithmetic == chosen);
    const Result narrow_call = run(p, random_threads()), wide_call = run(w, random_threads());
    const Tensor state = wide_call.state.view();
    RC_ASSERT(difference(narrow_call.o.view(), narrow(wide_call.o.view(), 3, 0, s.V)) == "");
    RC_ASSERT(difference(narrow_call.state.view(),
                         narrow(narrow(state, 2, 0, s.v_first ? s.V : s.K), 3, 0, s.v_first ? s.K : s.V)) == "");
    for (const double x : values(narrow(wide_call.o.view(), 3, s.V, V - s.V))) RC_ASSERT(x == 0);
}

TEST_F(ContractTest, ResumedAnywhere) {  // 3
    on_every_isa([] {
        for (const Rule rule : {Rule::gdn, Rule::kda})
            for (const bool h0 : {false, true})
                for (const int threads : {1, 2, 3, 4}) {
                    Spec s;
                    s.rule = rule, s.T = 70, s.HV = 2, s.K = 20, s.V = 36, s.h0 = h0;
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

// 13; its other half, N = 1025 with 64 heads, is a case of the suite `field` (cpu_test).
TEST_F(ContractTest, IdenticalSequences) {
    on_every_isa([] {
        Spec s;
        s.T = 7, s.H = 2, s.HV = 4, s.K = 24, s.V = 48;
        const Problem one(s);
        const Result want = run(one.view());
        for (const int threads : {1, 2, 3, 4})
            for (const std::int64_t N : {3, 4, 5, 6}) {
                Forward p = one.view();  // N times the same memory
                for (Tensor* t : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.initial_state}) t->shape[0] = N, t->stride[0] = 0;
                const Result got = run(p, threads);
                for (std::int64_t n = 0; n < N; ++n) {
                    EXPECT_EQ(difference(rows_of(p, got.o.view(), n), want.o.view()), "") << n << " of " << N;
                    EXPECT_EQ(difference(state_of(got, n), want.state.view()), "") << n << " of " << N;
                }
            }
    });
}

TEST_F(ContractTest, UntouchedMemory) {  // 14
    on_every_isa([] {
        for (const int threads : {1, 2, 3, 4})
            for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
                Spec s;
                s.B = 2, s.T = 5, s.HV = 2, s.K = 13, s.V = 35, s.gap = 3, s.dtype = dtype;
                const Problem problem(s);
                Forward p = problem.view();
                const Sizes rows{2, 9, 2, 35}, state{2, 2, 13, 35};
                const Owned o(dtype, rows, gapped(rows, 5)), ht(dtype, state, gapped(state, 2));
                const auto inputs = [&] {
                    std::vector<std::vector<std::byte>> all;
                    for (const Owned* t : {&problem.q, &problem.k, &problem.v, &problem.g, &problem.beta, &problem.h0})
                        all.push_back(t->bytes());
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
TEST_F(ContractTest, OutputOnCacheLines) {
    on_every_isa([] {
        for (const int threads : {1, 2, 4})
            for (const std::int64_t V : {16, 32, 80})
                for (const std::int64_t T : {1, 2, 5, 70}) {
                    Spec s;
                    s.B = 2, s.T = T, s.HV = 2, s.K = 24, s.V = V;
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

TEST_F(ContractTest, EmptySequences) {  // 10
    on_every_isa([] {
        for (const bool h0 : {false, true})
            for (const Sizes& lengths : {Sizes{0, 3, 0}, Sizes{0}, Sizes{0, 0}}) {
                Spec s;
                s.lengths = lengths, s.HV = 2, s.K = 5, s.V = 7, s.h0 = h0;
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

TEST_F(ContractTest, FinalStateInPlace) {
    on_every_isa([] {
        for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16})
            for (const bool v_first : {false, true}) {
                Spec s;
                s.B = 2, s.T = 6, s.HV = 3, s.K = 21, s.V = 70, s.v_first = v_first, s.gap = 2;
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

TEST_F(ContractTest, DecodeEqualsPrefill) {  // 24
    on_every_isa([] {
        for (const Rule rule : {Rule::gdn, Rule::kda}) {
            Spec s;
            s.rule = rule, s.T = 64, s.HV = 2, s.K = 32, s.V = 32, s.dtype = Dtype::bf16;
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
        }
    });
}

TEST_F(ContractTest, GatesAreNotRoundedToTheInputType) {  // 23
    on_every_isa([] {
        for (const Dtype dtype : {Dtype::bf16, Dtype::fp16})
            for (const Rule rule : {Rule::gdn, Rule::kda}) {
                Spec s;
                s.rule = rule, s.T = 1000, s.dtype = dtype, s.logits = true, s.h0 = false;
                Problem x(s);
                for (Owned* t : {&x.q, &x.k, &x.v}) t->fill([](std::int64_t) { return 1.0; });
                x.b.fill([](std::int64_t) { return 0.5; });
                x.a.fill([](std::int64_t) { return -3.0; });
                x.A_log.fill([](std::int64_t) { return 0.25; });
                x.dt_bias.fill([](std::int64_t) { return 0.125; });
                const Result one = run(tokens(x.view(), 0, 1)), all = run(x.view());
                EXPECT_NEAR(values(one.state.view())[0], 0.62245935, 1e-6);
                EXPECT_NEAR(values(one.o.view())[0], 0.62245935, 1e-6);
                const double beta = 1 / (1 + std::exp(-0.5)),
                             decay = std::exp(-std::exp(0.25) * std::log1p(std::exp(-2.875)));
                double S = 0;
                Owned state(Dtype::fp32, x.state_shape());
                state.fill([](std::int64_t) { return 0.0; });
                const auto o = values(all.o.view());
                for (std::int64_t t = 0; t < 1000; ++t) {
                    S = decay * S + beta * (1 - decay * S);
                    ASSERT_NEAR(o[static_cast<std::size_t>(t)], S, 1e-6) << t;
                    Forward call = tokens(x.view(), t, 1);
                    const Owned row(Dtype::fp32, {1, 1, 1, 1});
                    call.o = row.view(), call.initial_state = call.final_state = state.view();
                    forward(call);
                    ASSERT_NEAR(values(row.view())[0], S, 1e-6) << t;
                }
                EXPECT_NEAR(values(all.state.view())[0], S, 1e-6);
                EXPECT_NEAR(values(state.view())[0], S, 1e-6);
            }
    });
}
