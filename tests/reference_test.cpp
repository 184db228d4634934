// The oracle against dense matrix products (brute_force.h), through the front door, once a rule, and on hand-built
// normal forms. Its invariants are in chunked_test.cpp: one body for every evaluator.
#include "reference/recurrence.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "brute_inputs.h"
#include "reference/chunked.h"
#include "testing.h"

namespace tidegate {
namespace {

using brute::apart;
using brute::Arena;
using brute::at;
using brute::Form;
using brute::Index;
using brute::Real;
using reference::chunked;
using reference::Mistake;
using reference::Policy;
using reference::recurrence;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Dtype kDtypes[] = {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp64};

/// Uniform whatever RapidCheck's size is.
Index pick(Index low, Index high) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<Index>(low, high + 1)); }
bool flip() { return pick(0, 1) == 1; }
Dtype any_dtype() { return kDtypes[pick(0, 3)]; }

/// What a value becomes when it is stored once.
Real rounded(Real x, Dtype dtype) {
    if (dtype == Dtype::fp64) return static_cast<double>(x);
    if (dtype == Dtype::fp32) return static_cast<float>(x);
    return brute::decode16(brute::encode16(x, brute::mantissa_of(dtype)), brute::mantissa_of(dtype));
}

/// Row begins of 1 to 4 sequences of 0 to 3 tokens.
std::vector<Index> any_cu() {
    std::vector<Index> cu = {0};
    for (Index n = pick(1, 4); n > 0; --n) cu.push_back(cu.back() + pick(0, 3));
    return cu;
}

/// What only some rules have: gates, or logits for them, of any strength; erase and write; a and b.
void add_gates(Forward& f, const RuleRow& row, Arena& arena, Index B, Index T, Index HV, Index K, Index V) {
    const bool channels = row.decay == Decay::vector;
    const std::vector<Index> wide = {B, T, HV, K}, scalar = {B, T * f.n_householder, HV};
    const std::vector<Index> gate = channels ? wide : std::vector<Index>{B, T, HV};
    if (row.decay != Decay::none && flip()) {
        const auto spiky = [&](Index) {
            const double kind = arena.uniform(0, 1);
            return kind < 0.08 ? -kInf : kind < 0.16 ? -arena.uniform(20, 1000) : -arena.uniform(0, 2);
        };
        f.g = arena.make(any_dtype(), gate, spiky, channels);
    } else if (row.decay != Decay::none) {
        f.a = arena.make(
            any_dtype(), gate, [&](Index) { return arena.normal(3); }, channels);
        f.A_log = arena.make(
            any_dtype(), {HV}, [&](Index) { return arena.uniform(-3, 1); }, false);
        if (flip()) f.dt_bias = arena.normals(any_dtype(), {channels ? HV * K : HV});
        f.gate_form = flip() ? GateForm::bounded : GateForm::softplus;
        f.lower_bound = -double(pick(1, 50)) / 10;
    }
    if (flip()) f.gate_min = -double(pick(0, 30)) / 10;  // of no consequence where there is no decay
    const auto part = [&](Index) { return arena.uniform(0, 1); };
    if (has_beta(row) && flip()) {
        f.beta = arena.make(any_dtype(), scalar, part, false);
    } else if (has_beta(row)) {
        f.b = arena.make(
            any_dtype(), scalar, [&](Index) { return arena.normal(2); }, false);
        f.allow_neg_eigval = flip();
    }
    if (row.erase == Width::vector_k) f.erase = arena.make(any_dtype(), wide, part);
    if (row.write == Width::vector_v) f.write = arena.make(any_dtype(), {B, T, HV, V}, part);
    if (row.tied) return;
    f.lr_b = arena.normals(any_dtype(), wide, 0.7 / std::sqrt(double(K)));
    f.lr_a = arena.make(any_dtype(), wide, [&](Index i) {  // near -b, in whatever order the elements lie
        const double b = double(brute::element(f.lr_b, {i / (HV * K * T), i / (HV * K) % T, i / K % HV, i % K}));
        return arena.normal(0.3 / std::sqrt(double(K))) - b;
    });
}

/// A problem with everything the contract allows, sizes small.
Forward any_forward(Arena& arena, const RuleRow& row) {
    Forward f;
    f.rule = row.rule;
    f.n_householder = row.householder ? pick(1, 3) : 1;
    const bool packed = flip();
    const std::vector<Index> cu = packed ? any_cu() : std::vector<Index>{};
    const Index B = packed ? 1 : pick(1, 3), T = packed ? cu.back() : pick(1, 8), N = packed ? Index(cu.size()) - 1 : B;
    const Index H = pick(1, 3), HV = H * pick(1, 3), K = pick(1, 9), V = pick(1, 7), rows = T * f.n_householder;
    f.q = arena.normals(any_dtype(), {B, T, H, K}, 0.6);
    f.k = arena.normals(any_dtype(), {B, rows, H, K}, 1 / std::sqrt(double(K)));
    f.v = arena.normals(any_dtype(), {B, rows, HV, V});
    add_gates(f, row, arena, B, T, HV, K, V);
    f.head_map = flip() ? HeadMap::tiled : HeadMap::grouped;
    f.qk_l2norm = flip();
    f.state_v_first = flip();
    if (flip()) f.scale = double(pick(-20, 20)) / 10;
    const std::vector<Index> state =
        f.state_v_first ? std::vector<Index>{N, HV, V, K} : std::vector<Index>{N, HV, K, V};
    if (flip()) f.initial_state = arena.normals(any_dtype(), state);
    const auto row_of = [&](Index i) { return double(cu[at(i)]); };
    if (packed) f.cu_seqlens = arena.make(flip() ? Dtype::int32 : Dtype::int64, {N + 1}, row_of);
    f.o = arena.normals(any_dtype(), {B, T + pick(0, 2), HV, V});
    if (flip()) f.final_state = arena.normals(any_dtype(), state);
    return f;
}

/// Every byte of every tensor after storing is what one rounding of the answer gives; all others stay.
void expect_stored(Arena& arena, const Forward& f, const NormalForm& nf, const reference::Answer& answer) {
    const auto before = arena.memory;
    store(answer, nf);
    const auto after = arena.memory;
    for (std::size_t i = 0; i < before.size(); ++i) {
        std::copy(before[i].begin(), before[i].end(), arena.memory[i].begin());
    }
    const Index rows = f.o.shape[1], width = nf.value_heads * nf.V;
    for (Index i = 0; i < Index(answer.o.size()); ++i) {
        const Index row = i / width, to = row / std::max<Index>(nf.tokens, 1) * rows + row % nf.tokens;
        Arena::put(f.o, to * width + i % width, answer.o[at(i)]);
    }
    for (Index i = 0; f.final_state.present() && i < Index(answer.final_state.size()); ++i) {
        const Index head = i / (nf.K * nf.V), k = i / nf.V % nf.K, v = i % nf.V;
        const Index inside = f.state_v_first ? v * nf.K + k : k * nf.V + v;
        Arena::put(f.final_state, head * nf.K * nf.V + inside, answer.final_state[at(i)]);
    }
    RC_ASSERT(arena.memory == after);
}

class ReferenceForward : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(, ReferenceForward, ::testing::ValuesIn(test::every_rule()), test::rule_name);

TEST_P(ReferenceForward, EqualsMatrixProducts) {
    const RuleRow& row = row_of(GetParam());
    EXPECT_TRUE(rc::check([&](std::uint64_t seed) {
        Arena arena(seed, flip());
        const Forward f = any_forward(arena, row);
        check(f, true);
        const NormalForm nf = lower(f);
        const brute::Answer want = brute::answer(f);
        reference::Answer magnitude(nf);
        const reference::Answer got = recurrence<double>(nf, {}, &magnitude), single = recurrence<float>(nf);
        const reference::Answer chunks = chunked<double>(nf, pick(1, 5));
        RC_ASSERT(apart(got.o, want.o, nf.V) < 1e-12);
        RC_ASSERT(apart(got.final_state, want.final_state, nf.K * nf.V) < 1e-12);
        RC_ASSERT(apart(chunks.o, want.o) < 1e-12);
        RC_ASSERT(apart(chunks.final_state, want.final_state) < 1e-12);
        // Below 1e-5 but for one tiny problem in a thousand, whose few values are what a cancellation left;
        // chunked_test.cpp asks for 1e-5 on large ones.
        RC_ASSERT(apart(single.o, want.o) < 1e-4);
        RC_ASSERT(apart(single.final_state, want.final_state) < 1e-4);
        RC_ASSERT(apart(magnitude.o, want.magnitude, nf.V) < 1e-12);
        for (std::size_t i = 0; i < got.o.size(); ++i) {
            RC_ASSERT(std::isfinite(magnitude.o[i]) && magnitude.o[i] >= std::fabs(got.o[i]) * (1 - 1e-15));
        }
        for (std::size_t i = 0; i < got.final_state.size(); ++i) {
            RC_ASSERT(std::isfinite(magnitude.final_state[i]));
            RC_ASSERT(magnitude.final_state[i] >= std::fabs(got.final_state[i]) * (1 - 1e-15));
        }
        expect_stored(arena, f, nf, got);
    }));
}

Form any_form() {
    Form form;
    form.decay = *rc::gen::element(Decay::none, Decay::scalar, Decay::vector);
    form.tied = flip(), form.vector_erase = flip(), form.vector_write = flip(), form.h0 = flip();
    form.steps = form.tied ? pick(1, 3) : 1;
    form.H = pick(1, 2), form.HV = form.H * pick(1, 2), form.K = pick(1, 7), form.V = pick(1, 6);
    if (flip()) {
        form.cu = any_cu(), form.T = form.cu.back();
    } else {
        form.B = pick(1, 2), form.T = pick(1, 6);
    }
    return form;
}

RC_GTEST_PROP(ReferenceNormalForm, EqualsMatrixProducts, (std::uint64_t seed)) {
    Arena arena(seed);
    const NormalForm nf = build(arena, any_form());
    const brute::Answer want = brute::answer(nf);
    const reference::Answer got = recurrence<double>(nf), single = recurrence<float>(nf);
    RC_ASSERT(apart(got.o, want.o, nf.V) < 1e-12);
    RC_ASSERT(apart(got.final_state, want.final_state, nf.K * nf.V) < 1e-12);
    RC_ASSERT(apart(single.o, want.o) < 1e-4);
    RC_ASSERT(apart(single.final_state, want.final_state) < 1e-4);
}

// ---- values --------------------------------------------------------------------------------------------------------

/// One token, K = V = 1, q = k = v = 1.
struct One {
    Arena arena{1};
    Forward f;

    explicit One(Dtype dtype, Index T = 1) {
        const auto one = [](Index) { return 1; };
        f.q = f.k = f.v = arena.make(dtype, {1, T, 1, 1}, one);
        f.o = arena.normals(dtype, {1, T, 1, 1});
        f.g = arena.make(Dtype::fp32, {1, T, 1}, [](Index) { return 0; });
    }
    template <class R>
    double state() {
        check(f, true);
        return recurrence<R>(lower(f)).final_state[0];
    }
    void forget_by_logits(double A_log, double a) {  // with beta 0 the final state is exp(g) of the initial one
        f.g = {};
        f.a = scalar(a), f.beta = scalar(0);
        f.A_log = arena.make(Dtype::fp32, {1}, [&](Index) { return A_log; });
        f.initial_state = arena.make(Dtype::fp32, {1, 1, 1, 1}, [](Index) { return 1; });
    }
    Tensor scalar(double x) {
        return arena.make(Dtype::fp32, {1, f.q.shape[1], 1}, [x](Index) { return x; });
    }
};

TEST(ReferenceValues, GateOfExtremeLogits) {
    struct Row {
        double A_log, a;
    };
    for (const Row row : {Row{100, -200},
                          {100, -95},
                          {100, -101},
                          {89, -100},
                          {89, -89},
                          {89, -90},
                          {89, 0},
                          {0, 30},
                          {28, -30},
                          {0, -30},
                          {-3, 30},
                          {-100, 200},
                          {87, -104}}) {
        One one(Dtype::fp32);
        one.forget_by_logits(row.A_log, row.a);
        const Real g = -std::exp(Real(row.A_log)) * std::log1p(std::exp(Real(row.a)));
        const double want = static_cast<double>(std::exp(g)), got = one.state<double>(), single = one.state<float>();
        EXPECT_NEAR(got, want, 1e-13 * want) << "A_log " << row.A_log << ", a " << row.a;
        EXPECT_NEAR(single, want, 1e-5 * want + 1e-30) << "A_log " << row.A_log << ", a " << row.a;
    }
}

TEST(ReferenceValues, BoundedGateOfExtremeLogits) {
    for (const double A_log : {-100.0, 0.0, 89.0, 100.0}) {
        for (const double a : {-200.0, -1e-30, 0.0, 1e-30, 30.0}) {
            One one(Dtype::fp32);
            one.forget_by_logits(A_log, a);
            one.f.gate_form = GateForm::bounded;
            const Real x = brute::element(one.f.a, {0, 0, 0});
            const double want = static_cast<double>(std::exp(-5 * brute::sigmoid(std::exp(Real(A_log)) * x)));
            EXPECT_NEAR(one.state<double>(), want, 1e-13 * want) << "A_log " << A_log << ", a " << a;
            EXPECT_NEAR(one.state<float>(), want, 1e-5 * want) << "A_log " << A_log << ", a " << a;
        }
    }
}

TEST(ReferenceValues, BetaIsNeverRoundedToTheInputType) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
        for (const Index T : {1, 1000}) {
            One one(dtype, T);
            one.f.b = one.arena.make(dtype, {1, T, 1}, [](Index) { return 0.5; });
            const double want = T == 1 ? 0.62245933120185459 : 1;
            EXPECT_NEAR(one.state<double>(), want, 1e-15);
            EXPECT_NEAR(one.state<float>(), want, 1e-6);
        }
    }
}

TEST(ReferenceValues, GateOfMinusInfinityForgets) {
    for (const bool vector : {false, true}) {
        Arena arena(3);
        Form form{.decay = vector ? Decay::vector : Decay::scalar, .T = 6};
        form.gate = [](Index t, Index) { return t == 3 ? -kInf : -0.1; };
        NormalForm whole = build(arena, form), tail = whole;
        tail.tokens = 3;
        tail.initial_state = {};
        for (Tensor* x : {&tail.q, &tail.k, &tail.v, &tail.erase.x, &tail.write.x, &tail.gate.x}) {
            x->data = static_cast<char*>(x->data) + 3 * x->stride[1] * bytes_of(x->dtype);
        }
        const reference::Answer all = recurrence<double>(whole), alone = recurrence<double>(tail);
        EXPECT_EQ(all.final_state, alone.final_state);
        EXPECT_TRUE(std::equal(alone.o.begin(), alone.o.end(), all.o.end() - Index(alone.o.size())));
    }
}

TEST(ReferenceValues, StoreRoundsOnce) {  // 1 + 2^-8 + 2^-40 through fp32 becomes a tie, and the tie goes to even
    struct Row {
        Dtype dtype;
        double x, want;
    };
    for (const Row row : {Row{Dtype::bf16, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7},
                          {Dtype::bf16, 1 + 0x1p-8, 1},
                          {Dtype::fp16, 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-10},
                          {Dtype::fp16, 65519.999, 65504},
                          {Dtype::fp16, 65520, kInf},
                          {Dtype::fp16, -1e9, -kInf},
                          {Dtype::fp16, 0x1p-25, 0},
                          {Dtype::fp16, 0x1.8p-24, 0x1p-23},
                          {Dtype::fp16, 0x1.004p-24, 0x1p-24},
                          {Dtype::bf16, 0x1p-133, 0x1p-133},
                          {Dtype::bf16, 3.4e38, kInf},
                          {Dtype::fp32, 1e39, kInf},
                          {Dtype::fp32, 1 + 0x1p-24, 1},
                          {Dtype::fp64, 1 + 0x1p-40, 1 + 0x1p-40}}) {
        One one(row.dtype);
        one.f.beta = one.scalar(1);
        const NormalForm nf = lower(one.f);
        reference::Answer answer(nf);
        answer.o[0] = row.x;
        store(answer, nf);
        EXPECT_EQ(brute::element(nf.o, {0, 0, 0, 0}), Real(row.want)) << name_of(row.dtype) << ' ' << row.x;
        EXPECT_EQ(rounded(row.x, row.dtype), Real(row.want)) << name_of(row.dtype) << ' ' << row.x;
        answer.o[0] = std::nan("");
        store(answer, nf);
        EXPECT_TRUE(std::isnan(brute::element(nf.o, {0, 0, 0, 0})));
    }
}

TEST(ReferenceValues, StateIsRoundedAfterEveryToken) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        Arena arena(4);
        NormalForm nf = build(arena, {.decay = Decay::vector, .T = 3});
        const reference::Answer all = recurrence<double>(nf, Policy{.state = dtype});
        for (Index t = 0; t < 3; ++t) {  // by hand: one token at a time, the state rounded and handed on
            nf.tokens = 1;
            const reference::Answer token = recurrence<double>(nf);
            const auto hand_on = [&](Index i) { return double(rounded(token.final_state[at(i)], dtype)); };
            nf.initial_state = arena.make(Dtype::fp64, {1, 1, nf.K, nf.V}, hand_on);
            for (Tensor* x : {&nf.q, &nf.k, &nf.v, &nf.erase.x, &nf.write.x, &nf.gate.x}) {
                x->data = static_cast<char*>(x->data) + x->stride[1] * bytes_of(x->dtype);
            }
        }
        for (Index i = 0; i < nf.K * nf.V; ++i) {
            EXPECT_EQ(Real(all.final_state[at(i)]), brute::element(nf.initial_state, {0, 0, i / nf.V, i % nf.V}));
        }
    }
}

// ---- mistakes ------------------------------------------------------------------------------------------------------

RC_GTEST_PROP(ReferenceMistakes, ErrorBeforeDecayReadsFromItsOtherSide, (std::uint64_t seed)) {
    Arena arena(seed);
    const NormalForm nf = build(arena, any_form());
    const brute::Answer want = brute::answer(nf, {.other_side = true});
    const reference::Answer got = recurrence<double>(nf, Policy{.mistake = Mistake::error_before_decay});
    RC_ASSERT(apart(got.o, want.o, nf.V) < 1e-12);
    RC_ASSERT(apart(got.final_state, want.final_state, nf.K * nf.V) < 1e-12);
}

RC_GTEST_PROP(ReferenceMistakes, DecayEachStepDecaysInEveryStepOfAToken, (std::uint64_t seed)) {
    Arena arena(seed);
    Form form = any_form();
    form.tied = true, form.steps = pick(1, 3);
    const NormalForm nf = build(arena, form);
    const brute::Answer want = brute::answer(nf, {.decay_each_step = true});
    const reference::Answer got = recurrence<double>(nf, Policy{.mistake = Mistake::decay_each_step});
    RC_ASSERT(apart(got.o, want.o, nf.V) < 1e-12);
    RC_ASSERT(apart(got.final_state, want.final_state, nf.K * nf.V) < 1e-12);
}

RC_GTEST_PROP(ReferenceMistakes, ReadBeforeWriteReadsTheStateBeforeTheToken, (std::uint64_t seed)) {
    Arena arena(seed);
    const NormalForm nf = build(arena, any_form());
    const brute::Answer want = brute::answer(nf, {.read_before_write = true});
    const reference::Answer got = recurrence<double>(nf, Policy{.mistake = Mistake::read_before_write});
    RC_ASSERT(apart(got.o, want.o, nf.V) < 1e-12);
    RC_ASSERT(apart(got.final_state, want.final_state, nf.K * nf.V) < 1e-12);
}

TEST(ReferenceMistakes, EachChangesTheAnswer) {
    Arena arena(7);
    const NormalForm nf = build(arena, {.decay = Decay::vector, .steps = 2, .T = 70});
    const reference::Answer right = recurrence<double>(nf);
    for (const Mistake mistake :
         {Mistake::error_before_decay, Mistake::decay_each_step, Mistake::read_before_write, Mistake::chunk_reset}) {
        EXPECT_GT(apart(recurrence<double>(nf, Policy{.mistake = mistake}).o, right.o), 1e-3);
    }
}

TEST(ReferenceMistakes, ChunkResetStartsAnewEvery64TokensOfASequence) {
    Arena arena(8);
    const NormalForm nf = build(arena, {.cu = {0, 10, 140}, .T = 140});
    NormalForm pieces = nf;  // the same rows, cut where the state is lost
    const std::vector<Index> cuts = {0, 10, 74, 138, 140};
    pieces.sequences = 4;
    pieces.cu_seqlens = arena.make(Dtype::int64, {5}, [&](Index i) { return cuts[at(i)]; });
    const auto h0 = [&](Index i) {
        const Index n = i / (nf.K * nf.V);
        return n < 2 ? double(brute::element(nf.initial_state, {n, 0, i / nf.V % nf.K, i % nf.V})) : 0;
    };
    pieces.initial_state = arena.make(Dtype::fp32, {4, 1, nf.K, nf.V}, h0);
    const reference::Answer want = recurrence<double>(pieces);
    const reference::Answer got = recurrence<double>(nf, Policy{.mistake = Mistake::chunk_reset});
    EXPECT_EQ(got.o, want.o);
    EXPECT_TRUE(
        std::equal(want.final_state.end() - nf.K * nf.V, want.final_state.end(), got.final_state.end() - nf.K * nf.V));
}

}  // namespace
}  // namespace tidegate
