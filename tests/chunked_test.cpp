// The chunked form against the recurrence, which reference_test.cpp proves: every tail, hard gates, its stages; and the
// invariants of both.
#include "reference/chunked.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "brute_inputs.h"
#include "reference/recurrence.h"

namespace tidegate {
namespace {

using brute::apart;
using brute::Arena;
using brute::at;
using brute::Form;
using brute::Index;
using reference::Answer;
using reference::chunked;
using reference::Policy;
using reference::recurrence;
using reference::Stages;

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<Index> lengths_for(Index C) { return {1, 2, 3, C - 1, C, C + 1, 2 * C + 5}; }

/// Errors of o and of the final state, relative to the RMS; where the recurrence is finite, so is the chunked form.
void expect_equal(const NormalForm& nf, Index C, const std::string& what, double tolerance = 1e-12) {
    const Answer want = recurrence<double>(nf), got = chunked<double>(nf, C);
    EXPECT_LE(apart(got.o, want.o), tolerance) << what << ", C " << C << ", T " << nf.tokens;
    EXPECT_LE(apart(got.final_state, want.final_state), tolerance) << what << ", C " << C << ", T " << nf.tokens;
}

std::vector<Form> forms() {
    std::vector<Form> all;
    for (const Decay decay : {Decay::none, Decay::scalar, Decay::vector}) {
        all.push_back({.decay = decay, .h0 = true, .K = 5, .V = 3});
        all.push_back({.decay = decay, .vector_erase = true, .h0 = false, .H = 2, .HV = 4, .K = 4, .V = 5});
        all.push_back({.decay = decay, .vector_erase = true, .vector_write = true, .h0 = true, .K = 6, .V = 2});
        all.push_back({.decay = decay, .h0 = true, .steps = 2, .K = 5, .V = 4});
        all.push_back({.decay = decay, .vector_write = true, .h0 = false, .steps = 3, .B = 2, .K = 3, .V = 3});
        all.push_back({.decay = decay, .tied = false, .h0 = true, .K = 5, .V = 3});
        all.push_back({.decay = decay, .tied = false, .h0 = false, .B = 2, .H = 1, .HV = 2, .K = 4, .V = 5});
        all.push_back({.decay = decay, .h0 = true, .K = 1, .V = 1});
    }
    return all;
}

std::string text(const Form& f) {
    return "decay " + std::to_string(int(f.decay)) + (f.tied ? " tied" : " free") + " steps " +
           std::to_string(f.steps) + (f.vector_erase ? " vector erase" : "") + (f.vector_write ? " vector write" : "") +
           (f.h0 ? " h0" : "");
}

TEST(Chunked, EveryFormOnEveryTail) {
    for (const Index C : {4, 16, 64}) {
        for (const Index T : lengths_for(C)) {
            for (Form form : forms()) {
                form.T = T;
                Arena arena(std::uint64_t(100 * C + T));
                expect_equal(build(arena, form), C, text(form));
            }
        }
    }
}

TEST(Chunked, HardGates) {
    struct Gate {
        const char* name;
        std::function<double(Index, Index)> g;  ///< channel is -1 for a scalar decay
    };
    std::vector<Gate> gates = {{"zero", [](Index, Index) { return 0; }},
                               {"strong", [](Index, Index) { return -27.6; }},
                               {"all -1000", [](Index, Index) { return -1000; }},
                               {"all -inf", [](Index, Index) { return -kInf; }}};
    for (const double spike : {-90.0, -104.0, -1e4, -kInf}) {
        for (const Index where : {0, 3, 9}) {
            gates.push_back({"spike in zeros", [=](Index t, Index) { return t == where ? spike : 0; }});
            gates.push_back({"spike in mild", [=](Index t, Index i) {
                                 return t == where ? spike : -0.01 * double((7 * t + 3 * i + 3) % 10) / 10;
                             }});
            gates.push_back({"one channel", [=](Index t, Index i) { return t == where && i <= 0 ? spike : -0.02; }});
        }
        gates.push_back(
            {"one channel always", [=](Index t, Index i) { return i <= 0 ? spike : -0.01 * double(t % 3); }});
        gates.push_back({"every other", [=](Index t, Index) { return t % 2 == 1 ? spike : -0.5; }});
    }
    for (const Gate& gate : gates) {
        for (const Index C : {4, 16, 64}) {
            for (const Index T : {C, 2 * C + 5}) {
                for (Form form : forms()) {
                    if (form.decay == Decay::none || form.K == 1) continue;
                    form.T = T, form.gate = gate.g;
                    Arena arena(std::uint64_t(C + T));
                    expect_equal(build(arena, form), C, text(form) + ", gate " + gate.name);
                }
            }
        }
    }
}

RC_GTEST_PROP(Chunked, PackedSequencesAndSharedHeads, (std::uint64_t seed)) {
    Arena arena(seed);
    Form form;
    const auto pick = [&](Index low, Index high) { return low + Index(arena.uniform(0, 1) * double(high - low + 1)); };
    form.decay = Decay(pick(0, 2));
    form.tied = pick(0, 2) > 0, form.steps = form.tied ? pick(1, 3) : 1;
    form.vector_erase = pick(0, 1) == 1, form.vector_write = pick(0, 1) == 1, form.h0 = pick(0, 1) == 1;
    form.H = pick(1, 2), form.HV = form.H * pick(1, 2), form.K = pick(1, 6), form.V = pick(1, 6);
    form.cu = {0};
    for (Index n = pick(1, 4); n > 0; --n) form.cu.push_back(form.cu.back() + pick(0, 12));
    form.T = form.cu.back();
    NormalForm nf = build(arena, form);
    if (pick(0, 1) == 1) nf.head_map = HeadMap::tiled;
    const Index C = pick(1, 7);
    const Answer want = recurrence<double>(nf), got = chunked<double>(nf, C);
    RC_ASSERT(apart(got.o, want.o) <= 1e-12);
    RC_ASSERT(apart(got.final_state, want.final_state) <= 1e-12);
}

TEST(Chunked, NeverNanWhereTheRecurrenceIsFinite) {  // ill-conditioned: long keys, strengths near 1
    for (const double length : {1.0, 1.5, 3.0}) {
        for (const double g : {0.0, -0.01, -30.0}) {
            Arena arena(9);
            NormalForm nf = build(arena, {.K = 8, .V = 4, .T = 133, .gate = [g](Index, Index) { return g; }});
            nf.qk_l2norm = false;
            for (Index i = 0; i < nf.k.size(); ++i) Arena::put(nf.k, i, length * arena.uniform(0.3, 0.4));
            for (Index i = 0; i < 133; ++i) Arena::put(nf.erase.x, i, 0.999);
            const Answer want = recurrence<double>(nf), got = chunked<double>(nf, 64), single = chunked<float>(nf, 64);
            for (std::size_t i = 0; i < want.o.size(); ++i) {
                EXPECT_FALSE(std::isfinite(want.o[i]) && !std::isfinite(got.o[i])) << length << ' ' << g;
                EXPECT_FALSE(std::fabs(want.o[i]) < 1e20 && std::isnan(single.o[i])) << length << ' ' << g;
            }
            if (length == 1) expect_equal(nf, 64, "ill-conditioned", 1e-10);
        }
    }
}

/// The same problem's first `tokens` tokens (one batch row).
NormalForm first(NormalForm nf, Index tokens) {
    nf.tokens = tokens;
    return nf;
}

TEST(Chunked, Stages) {
    for (const Form& base : forms()) {
        if (base.B != 1) continue;
        Form form = base;
        form.T = 21;
        const Index C = 8, K = form.K, V = form.V, HV = form.HV, rows = C * form.steps, all = form.T * form.steps;
        Arena arena(11);
        const NormalForm nf = build(arena, form);
        Stages x;
        chunked<double>(nf, C, {}, &x);
        ASSERT_EQ(x.rows, rows);
        ASSERT_EQ(x.chunk_begin, (std::vector<Index>{0, 8, 16}));
        for (std::size_t c = 0; c < 3; ++c) {  // h: the recurrence's state after the tokens before the chunk
            const Answer before = recurrence<double>(first(nf, x.chunk_begin[c]));
            const auto begin = x.h.begin() + Index(c) * HV * K * V;
            EXPECT_LE(apart(std::vector<double>(begin, begin + HV * K * V), before.final_state), 1e-12) << text(form);
        }
        ASSERT_EQ(x.A.size(), at(all * HV * rows));
        for (Index hv = 0; hv < HV; ++hv) {
            const brute::Head head = brute::head_of(nf, {0, 0, 0, form.T, hv}, {});
            std::vector<brute::Step> steps;
            for (const auto& token : head.tokens) steps.insert(steps.end(), token.begin(), token.end());
            for (Index start = 0; start < all; start += rows) {
                const Index n = std::min(rows, all - start);
                const auto A = [&](Index i, Index j) { return x.A[at(((start + i) * HV + hv) * rows + j)]; };
                // a_i^T (decays of the steps between j and i) b_j: what step i reads of step j's row, minus for erase
                const auto L = [&](Index i, Index j) {
                    brute::Real sum = 0;
                    for (std::size_t l = 0; l < at(K); ++l) {
                        brute::Real term = steps[at(start + i)].a[l] * steps[at(start + j)].b[l];
                        for (Index s = j + 1; s < i; ++s) term *= steps[at(start + s)].decay[l];
                        sum -= term;
                    }
                    return sum;
                };
                for (Index i = 0; i < n; ++i) {
                    EXPECT_EQ(A(i, i), 1);
                    for (Index j = 0; j < n; ++j) {
                        EXPECT_TRUE(j <= i || A(i, j) == 0);
                        brute::Real sum = A(i, j);  // (I + L) A
                        for (Index l = j; l < i; ++l) sum += L(i, l) * A(l, j);
                        EXPECT_NEAR(double(sum), i == j ? 1 : 0, 1e-13) << text(form);
                    }
                    for (Index j = 0; j < V; ++j) {
                        const std::size_t row = at((start + i) * HV + hv);
                        double v_new = x.u[row * at(V) + at(j)];
                        for (Index l = 0; l < K; ++l) {
                            v_new -= x.w[row * at(K) + at(l)] * x.h[at(((start / rows * HV + hv) * K + l) * V + j)];
                        }
                        EXPECT_NEAR(x.v_new[row * at(V) + at(j)], v_new, 1e-13) << text(form);
                    }
                }
            }
        }
    }
}

double nrmse(const Answer& got, const Answer& want) {
    double error = 0, size = 0;
    for (std::size_t i = 0; i < want.o.size(); ++i) {
        error += (got.o[i] - want.o[i]) * (got.o[i] - want.o[i]);
        size += want.o[i] * want.o[i];
    }
    return std::sqrt(error / size);
}

TEST(Chunked, OperandsRoundAsTheirType) {
    for (const Form& base : forms()) {
        Form form = base;
        if (form.B != 1 || form.K == 1) continue;
        form.T = 133, form.K = 24, form.V = 8;
        Arena arena(12);
        const NormalForm nf = build(arena, form);
        const Answer want = recurrence<double>(nf);
        const double fp32 = nrmse(chunked<float>(nf, 64), want);
        const double fp16 = nrmse(chunked<float>(nf, 64, Policy{.operand = Dtype::fp16}), want);
        const double bf16 = nrmse(chunked<float>(nf, 64, Policy{.operand = Dtype::bf16}), want);
        EXPECT_LT(apart(recurrence<float>(nf).o, want.o), 1e-5) << text(form);
        EXPECT_LT(fp32, 5e-6) << text(form);
        EXPECT_GT(fp16, 2 * fp32) << text(form);
        EXPECT_GT(bf16, 1e-4) << text(form);
        EXPECT_LT(bf16, 2e-2) << text(form);
        EXPECT_GT(bf16, 4 * fp16) << text(form);  // 8 in theory: 3 more bits
    }
}

// ---- invariants of every evaluator, bit for bit
// ----------------------------------------------------------------------

using Evaluate = Answer (*)(const NormalForm&);
constexpr Evaluate kEvaluators[] = {
    [](const NormalForm& nf) { return recurrence<double>(nf); },
    [](const NormalForm& nf) { return recurrence<float>(nf); },
    [](const NormalForm& nf) { return chunked<double>(nf, 8); },
    [](const NormalForm& nf) { return chunked<float>(nf, 8); },
    [](const NormalForm& nf) { return chunked<float>(nf, 8, Policy{.operand = Dtype::bf16}); },
};

std::vector<Tensor> inputs_of(const NormalForm& nf) {
    return {nf.q, nf.k, nf.v, nf.gate.x, nf.erase.x, nf.write.x, nf.a, nf.b};  // absent ones have no elements
}

TEST(EveryEvaluator, IsCausal) {
    for (const Evaluate& evaluate : kEvaluators) {
        for (Form form : forms()) {
            if (form.B != 1) continue;
            for (const Index t : {0, 1, 5, 7, 8, 9, 16, 20, 21}) {
                form.T = 21;
                Arena arena(13);
                const NormalForm nf = build(arena, form);
                const Answer before = evaluate(nf), cut = evaluate(first(nf, t));
                for (const Tensor& x : inputs_of(nf)) {
                    for (Index i = x.size() / 21 * t; i < x.size(); ++i) Arena::put(x, i, -arena.uniform(0, 3));
                }
                const Answer changed = evaluate(nf);
                const auto kept = before.o.begin() + t * form.HV * form.V;
                EXPECT_TRUE(std::equal(before.o.begin(), kept, changed.o.begin())) << text(form) << ", t " << t;
                EXPECT_TRUE(std::equal(cut.o.begin(), cut.o.end(), before.o.begin())) << text(form) << ", t " << t;
                EXPECT_EQ(before.o == changed.o, t == 21);
            }
        }
    }
}

TEST(EveryEvaluator, KeepsNanInItsSequence) {
    const std::vector<Index> cu = {0, 9, 14, 14, 30};
    for (const Evaluate& evaluate : kEvaluators) {
        for (const double bad : {std::nan(""), kInf}) {
            for (Form form : forms()) {
                if (form.B != 1) continue;
                form.cu = cu, form.T = 30;
                Arena arena(14);
                const NormalForm nf = build(arena, form);
                const Answer clean = evaluate(nf);
                for (const Tensor& x : inputs_of(nf)) {
                    for (Index i = x.size() / 30 * 9; i < x.size() / 30 * 14; ++i) Arena::put(x, i, bad);
                }
                const Index row = nf.value_heads * nf.V, state = row * nf.K;
                if (form.h0) Arena::put(nf.initial_state, state, bad);
                const Answer dirty = evaluate(nf);
                for (Index i = 0; i < Index(clean.o.size()); ++i) {
                    const bool inside = i / row >= 9 && i / row < 14;
                    EXPECT_EQ(inside, !std::isfinite(dirty.o[at(i)]) && clean.o[at(i)] != dirty.o[at(i)]);
                    EXPECT_TRUE(inside || clean.o[at(i)] == dirty.o[at(i)]) << text(form);
                }
                for (Index i = 0; i < Index(clean.final_state.size()); ++i) {
                    EXPECT_TRUE(i / state == 1 || clean.final_state[at(i)] == dirty.final_state[at(i)]) << text(form);
                }
            }
        }
    }
}

}  // namespace
}  // namespace tidegate
