// Decode and packed decode against prefill calls on the same states, which know nothing of slots; pads, speculative
// columns, pools of any type, layout and stride; errors; and what a call must not touch.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>

#include "contract_testing.h"
#include "tidegate/decode.h"
#include "tidegate/error.h"

using namespace tidegate;
using namespace tidegate::test;

namespace {

/// Requests as a prefill problem without states, and a pool beside it.
struct Pool {
    Problem problem;
    Owned pool, o, slots, accepted, tokens_;
    Decode call;

    Pool(const Spec& s, std::int64_t P, const Sizes& indices, std::int64_t W = 0, Dtype dtype = Dtype::fp32,
         std::int64_t slot_gap = 0)
        : problem(s) {
        const Sizes shape{P, s.HV, s.v_first ? s.V : s.K, s.v_first ? s.K : s.V};
        Sizes stride = gapped(shape, 0);
        stride[0] += slot_gap;
        pool = Owned(dtype, shape, stride).normal(s.seed + 77);
        o = Owned(Dtype::fp32, {s.B, s.T, s.HV, s.V});
        slots = Owned(Dtype::int32, W > 0 ? Sizes{s.B, W} : Sizes{s.B});
        slots.fill([&](std::int64_t i) { return static_cast<double>(indices[static_cast<std::size_t>(i)]); });
        static_cast<Inputs&>(call) = problem.view();
        call.state = pool.view(), call.state_indices = slots.view(), call.o = o.view();
    }
    void accept(const Sizes& counts) {
        accepted = Owned(Dtype::int64, {problem.spec.B});
        accepted.fill([&](std::int64_t i) { return static_cast<double>(counts[static_cast<std::size_t>(i)]); });
        call.num_accepted = accepted.view();
    }
    void keep_tokens(Dtype dtype) {
        const Tensor s = pool.view();
        tokens_ = Owned(dtype, {problem.spec.B, problem.spec.T, s.shape[1], s.shape[2], s.shape[3]});
        call.state_tokens = tokens_.view();
    }
    Tensor slot(std::int64_t i) const { return narrow(pool.view(), 0, i, 1); }
    /// Request n, tokens [first, first + count), as prefill from `state`.
    Forward prefill(std::int64_t n, std::int64_t first, std::int64_t count, const Tensor& state) const {
        Forward p = tokens(batch_row(problem.view(), n), first, count);
        p.initial_state = state;
        return p;
    }
};

class DecodeTest : public testing::TestWithParam<Rule> {
protected:
    static Spec spec(std::int64_t B, std::int64_t T, std::int64_t K, std::int64_t V) {
        Spec s;
        s.rule = GetParam(), s.B = B, s.T = T, s.H = 2, s.HV = 4, s.K = K, s.V = V, s.h0 = false;
        return s;
    }
};
INSTANTIATE_TEST_SUITE_P(, DecodeTest, ::testing::ValuesIn(every_rule()), rule_name);

TEST_P(DecodeTest, EqualsPrefillOnItsSlot) {
    on_every_isa([] {
        for (const Dtype stored : {Dtype::fp32, Dtype::bf16, Dtype::fp16})
            for (const bool v_first : {false, true})
                for (const std::int64_t T : {1, 2, 5})
                    for (const int threads : {1, 3}) {
                        Spec s = spec(3, T, 20, 36);
                        s.v_first = v_first, s.gap = 3, s.logits = threads == 3;
                        s.dtype = s.logits ? Dtype::bf16 : Dtype::fp32;
                        Pool x(s, 6, {4, 0, 3}, 0, stored, 5);
                        const Pool before(s, 6, {4, 0, 3}, 0, stored, 5);
                        decode(x.call, {threads});
                        const Sizes slots{4, 0, 3};
                        for (std::int64_t n = 0; n < 3; ++n) {
                            const auto at = slots[static_cast<std::size_t>(n)];
                            const Result want = run(before.prefill(n, 0, T, before.slot(at)), 1, Dtype::fp32, stored);
                            EXPECT_EQ(difference(narrow(x.o.view(), 0, n, 1), want.o.view()), "") << n;
                            EXPECT_EQ(difference(x.slot(at), want.state.view()), "") << n;
                        }
                        for (const std::int64_t other : {1, 2, 5})
                            EXPECT_EQ(difference(x.slot(other), before.slot(other)), "") << other;
                        EXPECT_TRUE(x.pool.intact_outside(x.pool.view())) << "gaps between slots were written";
                        EXPECT_TRUE(x.o.intact_outside(x.o.view()));
                    }
    });
}

// 32: start slot = index[n, accepted - 1]; token t's state goes to index[n, t]; inside a call the state is fp32.
TEST_P(DecodeTest, SpeculativeColumns) {
    on_every_isa([] {
        for (const bool v_first : {false, true})
            for (const int threads : {1, 2}) {
                Spec s = spec(3, 3, 24, 40);
                s.v_first = v_first;
                const Sizes slots{9, 1, 2, 3, 4, 5, 6, 0, -1, 8, 7, 11};  // W = 4; request 2's first token has no slot
                Pool x(s, 12, slots, 4), before(s, 12, slots, 4);
                x.accept({2, 4, 2});
                x.keep_tokens(Dtype::fp32);
                decode(x.call, {threads});
                for (std::int64_t n = 0; n < 3; ++n) {
                    const std::int64_t start = Sizes{1, 0, 8}[static_cast<std::size_t>(n)];
                    Result last;
                    for (std::int64_t t = 0; t < 3; ++t) {
                        const Tensor from = t == 0 ? before.slot(start) : last.state.view();
                        Result next = run(before.prefill(n, t, 1, from));
                        last = std::move(next);
                        EXPECT_EQ(difference(narrow(narrow(x.o.view(), 0, n, 1), 1, t, 1), last.o.view()), "");
                        const std::int64_t to = slots[static_cast<std::size_t>(4 * n + t)];
                        if (to >= 0) {
                            EXPECT_EQ(difference(x.slot(to), last.state.view()), "") << n << " " << t;
                        }
                        Tensor kept = narrow(narrow(x.tokens_.view(), 0, n, 1), 1, t, 1);
                        for (std::size_t d = 1; d < 4; ++d)
                            kept.shape[d] = kept.shape[d + 1], kept.stride[d] = kept.stride[d + 1];
                        kept.rank = 4;
                        EXPECT_EQ(difference(kept, last.state.view()), "") << n << " " << t;
                    }
                }
                for (const std::int64_t other : {3, 11, 10})
                    EXPECT_EQ(difference(x.slot(other), before.slot(other)), "") << other;
                EXPECT_TRUE(x.tokens_.intact_outside(x.tokens_.view()));
            }
    });
}

// 28, 32: pads, with and without a null slot; accepted out of range.
TEST_P(DecodeTest, PadsWriteZerosAndTouchNothing) {
    on_every_isa([] {
        const Spec s = spec(4, 2, 16, 16);
        for (const bool null : {false, true}) {
            Pool x(s, 3, {1, 2, 0, -1});
            const Pool before(s, 3, {1, 2, 0, -1});
            if (null) x.call.null_slot = 0;
            x.keep_tokens(Dtype::bf16);
            decode(x.call, {2});
            for (std::int64_t n = 0; n < 4; ++n) {
                const bool pad = n == 3 || (null && n == 2);
                const auto o = values(narrow(x.o.view(), 0, n, 1)), kept = values(narrow(x.tokens_.view(), 0, n, 1));
                EXPECT_EQ(std::all_of(o.begin(), o.end(), [](double y) { return y == 0; }), pad) << n;
                EXPECT_EQ(std::all_of(kept.begin(), kept.end(), [](double y) { return y == 0; }), pad) << n;
            }
            EXPECT_EQ(difference(x.slot(0), before.slot(0)) == "", null);
        }
        Pool x(spec(2, 2, 16, 16), 8, {0, 1, 2, 3, 4, 5, 6, 7}, 4);
        const Pool before(spec(2, 2, 16, 16), 8, {0, 1, 2, 3, 4, 5, 6, 7}, 4);
        x.accept({0, 5});
        decode(x.call);
        for (const double y : values(x.o.view())) EXPECT_EQ(y, 0);
        EXPECT_EQ(difference(x.pool.view(), before.pool.view()), "");
    });
}

// 22: what one request's slot holds never reaches another's.
TEST_P(DecodeTest, NaNStaysInItsSlot) {
    on_every_isa([] {
        const Spec s = spec(3, 2, 20, 36);
        Pool clean(s, 4, {3, 1, 0}), bad(s, 4, {3, 1, 0});
        each(bad.slot(1), [&](std::int64_t at) { store_element(bad.slot(1).data, Dtype::fp32, at, std::nan("")); });
        decode(clean.call, {2});
        decode(bad.call, {2});
        for (const std::int64_t n : {0, 2})
            EXPECT_EQ(difference(narrow(bad.o.view(), 0, n, 1), narrow(clean.o.view(), 0, n, 1)), "") << n;
        for (const std::int64_t slot : {0, 2, 3}) EXPECT_EQ(difference(bad.slot(slot), clean.slot(slot)), "") << slot;
    });
}

/// A decode problem's one token, packed: rows with a gap behind them.
struct Packed {
    Owned mixed, o;
    PackedDecode call;
    explicit Packed(const Pool& x) {
        const Spec& s = x.problem.spec;
        const std::int64_t keys = s.H * s.K, width = 2 * keys + s.HV * s.V;
        mixed = Owned(s.dtype, {s.B, width}, {width + 7, 1});
        const Tensor to = mixed.view();
        const auto put = [&](const Tensor& from, std::int64_t first) {
            for (std::int64_t b = 0; b < s.B; ++b)
                for (std::int64_t h = 0; h < from.shape[2]; ++h)
                    for (std::int64_t i = 0; i < from.shape[3]; ++i)
                        store_element(to.data, to.dtype, offset_of(to, b) + first + h * from.shape[3] + i,
                                      load_element(from.data, from.dtype, offset_of(from, b, 0, h, i)));
        };
        put(x.call.q, 0), put(x.call.k, keys), put(x.call.v, 2 * keys);
        o = Owned(Dtype::fp32, {s.B, 1, s.HV, s.V});
        static_cast<Inputs&>(call) = x.call;
        call.q = call.k = call.v = call.g = call.beta = {};
        for (Tensor* t : {&call.a, &call.b}) {  // without the dimension of one token
            if (!t->present()) continue;
            for (std::size_t d = 1; d + 1 < static_cast<std::size_t>(t->rank); ++d)
                t->shape[d] = t->shape[d + 1], t->stride[d] = t->stride[d + 1];
            --t->rank;
        }
        call.mixed_qkv = mixed.view(), call.state = x.call.state, call.state_indices = x.call.state_indices;
        call.o = o.view();
    }
};

class PackedTest : public DecodeTest {};
INSTANTIATE_TEST_SUITE_P(, PackedTest, ::testing::ValuesIn(every_rule(packs)), rule_name);

TEST_P(PackedTest, EqualsUnpacked) {
    on_every_isa([] {
        for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
            Spec s = spec(4, 1, 33, 24);
            s.dtype = dtype, s.logits = s.l2norm = true;
            Pool x(s, 5, {2, 4, -1, 0}), y(s, 5, {2, 4, -1, 0});
            decode(x.call, {1});
            Packed packed(y);
            packed_decode(packed.call, {2});
            EXPECT_EQ(difference(packed.o.view(), x.o.view()), "");
            EXPECT_EQ(difference(y.pool.view(), x.pool.view()), "");
            EXPECT_EQ(plan(packed.call).arithmetic, plan(x.call).arithmetic);
            PackedDecode same = packed.call;  // slot n for request n
            same.state_indices = {};
            packed_decode(same);
        }
    });
}

class BetaTest : public DecodeTest {};
INSTANTIATE_TEST_SUITE_P(, BetaTest, ::testing::ValuesIn(every_rule(has_beta)), rule_name);

// 23, 27: sigmoid(0.5) enters as 0.62245935, through every path.
TEST_P(BetaTest, IsNotRoundedToTheInputType) {
    on_every_isa([] {
        for (const Dtype dtype : {Dtype::bf16, Dtype::fp16})
            for (const double b : {0.5, -6.85, 0.1}) {
                Spec s;
                s.rule = GetParam(), s.dtype = dtype, s.logits = true, s.h0 = false;
                Pool x(s, 1, {0});
                for (Owned* t : {&x.problem.q, &x.problem.k, &x.problem.v}) t->fill([](std::int64_t) { return 1.0; });
                x.problem.b.fill([&](std::int64_t) { return b; });
                const double beta = 1 / (1 + std::exp(-values(x.problem.b.view())[0]));  // of b in its type
                const double want = 1 - std::pow(1 - beta, static_cast<double>(x.problem.spec.steps));
                if (b == 0.5) {
                    EXPECT_NEAR(beta, 0.62245933, 1e-8);
                }
                const auto zero = [](std::int64_t) { return 0.0; };
                x.pool.fill(zero);
                decode(x.call);
                EXPECT_NEAR(values(x.pool.view())[0], want, 1e-6 * want);
                EXPECT_NEAR(values(x.o.view())[0], want, 1e-6 * want);
                const Result prefill = run(x.problem.view());
                EXPECT_NEAR(values(prefill.state.view())[0], want, 1e-6 * want);
                EXPECT_NEAR(values(prefill.o.view())[0], want, 1e-6 * want);
                if (!packs(row_of(s.rule))) continue;
                x.pool.fill(zero);
                Packed packed(x);
                packed_decode(packed.call);
                EXPECT_NEAR(values(x.pool.view())[0], want, 1e-6 * want);
            }
    });
}

// 30: slots past 2^31 elements, on memory that is only reserved.
TEST_P(DecodeTest, SlotsFarAway) {
    const std::int64_t HV = 32, K = 128, V = 128, P = 65537, size = HV * K * V;
    void* memory = mmap(nullptr, static_cast<std::size_t>(P * size * 4), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) GTEST_SKIP() << "no 128 GiB of address space to reserve";
    Spec s = spec(3, 1, K, V);
    s.H = 16, s.HV = HV;
    Pool x(s, 3, {0, 1, 2});
    const Pool before(s, 3, {0, 1, 2});
    decode(x.call);
    Decode far = before.call;
    const Owned o(Dtype::fp32, {3, 1, HV, V});
    Owned slots(Dtype::int64, {3});
    const Sizes at{4096, 65536, 0};
    slots.fill([&](std::int64_t i) { return static_cast<double>(at[static_cast<std::size_t>(i)]); });
    far.state = dense(memory, Dtype::fp32, {P, HV, K, V});
    far.state_indices = slots.view(), far.o = o.view();
    for (std::size_t i = 0; i < 3; ++i)
        std::memcpy(static_cast<float*>(memory) + at[i] * size, before.slot(static_cast<std::int64_t>(i)).data,
                    static_cast<std::size_t>(size) * 4);
    decode(far, {2});
    EXPECT_EQ(difference(o.view(), x.o.view()), "");
    for (std::size_t i = 0; i < 3; ++i)
        EXPECT_EQ(std::memcmp(static_cast<float*>(memory) + at[i] * size, x.slot(static_cast<std::int64_t>(i)).data,
                              static_cast<std::size_t>(size) * 4),
                  0)
            << at[i];
    munmap(memory, static_cast<std::size_t>(P * size * 4));
}

// 29 and the other breaches: the argument named, nothing written.
TEST_P(DecodeTest, RejectsByNameAndWritesNothing) {
    const Spec s = spec(2, 2, 16, 16);
    const auto expect = [&](const char* argument, const char* text, const Sizes& indices, std::int64_t W,
                            const std::function<void(Pool&)>& change) {
        Pool x(s, 8, indices, W);
        change(x);
        const auto o = x.o.bytes(), pool = x.pool.bytes();
        try {
            decode(x.call);
            ADD_FAILURE() << "no error: " << argument << " " << text;
        } catch (const Error& e) {
            EXPECT_EQ(std::string(e.argument()), argument);
            EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
        }
        EXPECT_TRUE(x.o.bytes() == o && x.pool.bytes() == pool) << argument;
    };
    const auto nothing = [](Pool&) {};
    expect("state_indices[1]", "given 8, expected a slot below the pool's 8", {0, 8}, 0, nothing);
    expect("state_indices[1, 2]", "given 9", {0, 1, 2, 3, 4, 9}, 3, nothing);
    expect("state_indices[1]", "no other request names", {3, 3}, 0, [](Pool& x) { x.call.check_values = true; });
    expect("state_indices", "W >= T = 2", {0, 1}, 1, nothing);
    expect("state_indices", "[B] or [B, W]", {0, 1}, 0, [](Pool& x) { x.call.state_indices.shape[0] = 1; });
    expect("state_indices", "int32 or int64", {0, 1}, 0, [](Pool& x) { x.call.state_indices.dtype = Dtype::fp32; });
    expect("num_accepted", "state_indices [B, W]", {0, 1}, 0, [](Pool& x) { x.accept({1, 1}); });
    expect("num_accepted", "without state_indices", {0, 1}, 0, [](Pool& x) {
        x.accept({1, 1});
        x.call.state_indices = {};
    });
    expect("state", "a slot for each of B = 2", {0, 1}, 0, [](Pool& x) {
        x.call.state_indices = {};
        x.call.state.shape[0] = 1;
    });
    expect("state", "given nothing", {0, 1}, 0, [](Pool& x) { x.call.state = {}; });
    expect("state", "[P, HV, K, V]", {0, 1}, 0, [](Pool& x) { x.call.state.rank = 3; });
    expect("state", "reach an element by two indices", {0, 1}, 0, [](Pool& x) { x.call.state.stride[0] = 16; });
    expect("state_tokens", "[B, T, HV, K, V]", {0, 1}, 0, [](Pool& x) { x.call.state_tokens = x.call.state; });
    expect("state", "overlaps o", {0, 1}, 0, [](Pool& x) { x.call.o.data = x.call.state.data; });
    expect("q", "T >= 1", {0, 1}, 0, [](Pool& x) {
        for (Tensor* t : of_rows(x.call)) t->shape[1] = 0;
    });
}

TEST_P(PackedTest, RejectsByNameAndWritesNothing) {
    const bool forgets = row_of(GetParam()).decay != Decay::none;
    Spec one = spec(2, 1, 16, 16);
    one.logits = true;
    const auto expect_packed = [&](const char* argument, const char* text,
                                   const std::function<void(PackedDecode&)>& change) {
        Pool x(one, 4, {0, 1});
        Packed packed(x);
        change(packed.call);
        const auto pool = x.pool.bytes();
        try {
            packed_decode(packed.call);
            ADD_FAILURE() << "no error: " << argument << " " << text;
        } catch (const Error& e) {
            EXPECT_EQ(std::string(e.argument()), argument);
            EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
        }
        EXPECT_TRUE(x.pool.bytes() == pool);
    };
    expect_packed("mixed_qkv", "2 H K + HV V", [](PackedDecode& p) { p.mixed_qkv.shape[1] -= 1; });
    expect_packed("mixed_qkv", "given nothing", [](PackedDecode& p) { p.mixed_qkv = {}; });
    expect_packed("b", "given nothing", [](PackedDecode& p) { p.b = {}; });
    expect_packed("g", "mixed_qkv, a and b alone", [](PackedDecode& p) { p.g = p.b; });
    expect_packed("state", "given nothing", [](PackedDecode& p) { p.state = {}; });
    expect_packed("state_indices[1]", "below the pool's 1", [](PackedDecode& p) { p.state.shape[0] = 1; });
    expect_packed("erase", "the rule has no erase", [](PackedDecode& p) { p.erase = p.b; });
    expect_packed("lr_b", "the rule has no lr_b", [](PackedDecode& p) { p.lr_b = p.b; });
    expect_packed("n_householder", "given 2", [](PackedDecode& p) { p.n_householder = 2; });
    if (forgets) {
        expect_packed("a", "[B, HV", [](PackedDecode& p) { p.a.shape[1] = 3; });
        expect_packed("a", "given nothing", [](PackedDecode& p) { p.a = {}; });
        expect_packed("A_log", "given nothing", [](PackedDecode& p) { p.A_log = {}; });
    } else {
        expect_packed("a", "the rule has no a", [](PackedDecode& p) { p.a = p.b; });
    }
}

}  // namespace
