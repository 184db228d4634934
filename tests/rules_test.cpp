// One rule contains another: the same problem said by two rules, in double on the reference and in fp32 on every
// instruction set; bit for bit where both are the same arithmetic.
#include <gtest/gtest.h>

#include <deque>

#include "contract_testing.h"
#include "problem/normal_form.h"
#include "reference/recurrence.h"

using namespace tidegate;
using namespace tidegate::test;

namespace {

using Index = std::int64_t;

/// A call by another rule; tensors of its own are of one type.
struct Said {
    Forward p;
    Dtype dtype;
    std::deque<Owned> memory{};

    /// [B, rows, heads, width], or without width; f(batch, row, head, channel).
    template <class F>
    Tensor make(Index rows, Index heads, Index width, const F& f) {
        Sizes shape{p.q.shape[0], rows, heads};
        if (width > 0) shape.push_back(width);
        const Index last = std::max<Index>(width, 1);
        memory.emplace_back(dtype, shape);
        memory.back().fill([&](Index n) {
            return f(n / (last * heads * rows), n / (last * heads) % rows, n / last % heads, n % last);
        });
        return memory.back().view();
    }
};

template <class... I>
double at(const Tensor& t, I... index) {
    return load_element(t.data, t.dtype, offset_of(t, index...));
}

/// Log-decay of a channel.
double gate(const Forward& p, Index b, Index t, Index h, Index c) {
    return !p.g.present() ? 0 : p.g.rank == 3 ? at(p.g, b, t, h) : at(p.g, b, t, h, c);
}
/// The erase or write strength of a channel: `wide` where the rule has it, else beta.
double strength(const Forward& p, const Tensor& wide, Index b, Index t, Index h, Index c) {
    return wide.present() ? at(wide, b, t, h, c) : at(p.beta, b, t, h);
}

/// A call into fresh fp64 memory, evaluated by the oracle.
Result oracle(Forward p) {
    const Index N = p.cu_seqlens.present() ? p.cu_seqlens.shape[0] - 1 : p.q.shape[0];
    const Index HV = p.v.shape[2], K = p.q.shape[3], V = p.v.shape[3];
    Result r{Owned(Dtype::fp64, {p.q.shape[0], p.q.shape[1], HV, V}),
             Owned(Dtype::fp64, {N, HV, p.state_v_first ? V : K, p.state_v_first ? K : V})};
    p.o = r.o.view(), p.final_state = r.state.view();
    check(p, true);
    const NormalForm nf = lower(p);
    reference::store(reference::recurrence<double>(nf), nf);
    return r;
}

/// Rows n - 1, 2 n - 1, ... of o.
Tensor every(Tensor o, Index n) {
    o = narrow(o, 1, std::min(n - 1, o.shape[1]), o.shape[1]);
    o.shape[1] /= n, o.stride[1] *= n;
    return o;
}

enum class Same { bits, closely };

/// `say(p, said)` makes a copy of p the same problem by another rule, of n tokens for each of p's.
template <class F>
void expect_same(const Spec& spec, Same same, const F& say, Index n = 1) {
    for (const bool packed : {false, true})
        for (const bool tiled : {false, true}) {
            SCOPED_TRACE(std::string(name_of(spec.rule)) + (packed ? ", packed" : "") + (tiled ? ", tiled" : ""));
            Spec s = spec;
            s.B = packed ? 1 : 2, s.T = 37, s.H = 2, s.HV = 4, s.K = 20, s.V = 36, s.v_first = tiled;
            if (packed) s.lengths = {5, 0, 1, 40};
            const Problem problem(s);
            Forward p = problem.view();
            if (tiled) p.head_map = HeadMap::tiled;
            const auto other = [&](Dtype dtype) {
                Said said{p, dtype};
                say(p, said);
                return said;
            };
            const Said exact = other(Dtype::fp64), single = other(Dtype::fp32);
            EXPECT_NE(exact.p.rule, p.rule);
            const Result want = oracle(p), got = oracle(exact.p);
            EXPECT_LE(nrmse(every(got.o.view(), n), want.o.view()), 1e-12);
            EXPECT_LE(nrmse(got.state.view(), want.state.view()), 1e-12);
            on_every_isa([&] {
                const Result x = run(p, 2), y = run(single.p, 3);
                EXPECT_LE(nrmse(every(y.o.view(), n), x.o.view()), 2e-6);
                EXPECT_LE(nrmse(y.state.view(), x.state.view()), 2e-6);
                if (same == Same::closely) return;
                EXPECT_EQ(difference(every(y.o.view(), n), x.o.view()), "");
                EXPECT_EQ(difference(y.state.view(), x.state.view()), "");
            });
        }
}

Spec of(Rule rule, bool logits = false, bool l2norm = false) {
    Spec s;
    s.rule = rule, s.logits = logits, s.l2norm = l2norm;
    return s;
}

/// A tied rule as a free one: lr_a = -D (e o k), lr_b = k, v' = w o v.
void say_freely(const Forward& p, Said& said, Rule rule) {
    Forward& f = said.p;
    const Index T = p.q.shape[1], H = p.q.shape[2], K = p.q.shape[3], HV = p.v.shape[2], V = p.v.shape[3];
    const auto key = [&](Index b, Index t, Index h, Index c) {
        return at(p.k, b, t, p.head_map == HeadMap::tiled ? h % H : h / (HV / H), c);
    };
    f.rule = rule;
    f.beta = f.erase = f.write = {};
    f.lr_b = said.make(T, HV, K, key);
    f.lr_a = said.make(T, HV, K, [&](Index b, Index t, Index h, Index c) {
        return -std::exp(gate(p, b, t, h, c)) * strength(p, p.erase, b, t, h, c) * key(b, t, h, c);
    });
    f.v = said.make(T, HV, V, [&](Index b, Index t, Index h, Index c) {
        return strength(p, p.write, b, t, h, c) * at(p.v, b, t, h, c);
    });
    if (rule == Rule::iplr) return;
    f.g = said.make(T, HV, K, [&](Index b, Index t, Index h, Index c) { return gate(p, b, t, h, c); });
}

}  // namespace

TEST(Rules, GdnIsKdaWithEqualChannels) {
    for (const bool logits : {false, true})
        expect_same(of(Rule::gdn, logits, true), Same::bits, [&](const Forward& p, Said& said) {
            const Index T = p.q.shape[1], K = p.q.shape[3], HV = p.v.shape[2];
            said.p.rule = Rule::kda;
            const auto wide = [&](const Tensor& from) {
                return said.make(T, HV, K, [&](Index b, Index t, Index h, Index) { return at(from, b, t, h); });
            };
            if (!logits) {
                said.p.g = wide(p.g);
                return;
            }
            said.p.a = wide(p.a);
            said.memory.emplace_back(Dtype::fp32, Sizes{HV * K});
            said.p.dt_bias = said.memory.back().fill([&](Index n) { return at(p.dt_bias, n / K); }).view();
        });
}

TEST(Rules, KdaIsGdn2WithOneStrength) {
    expect_same(of(Rule::kda), Same::bits, [](const Forward& p, Said& said) {
        const auto wide = [&](Index width) {
            return said.make(p.q.shape[1], p.v.shape[2], width,
                             [&](Index b, Index t, Index h, Index) { return at(p.beta, b, t, h); });
        };
        said.p.rule = Rule::gdn2;
        said.p.erase = wide(p.q.shape[3]), said.p.write = wide(p.v.shape[3]);
        said.p.beta = {};
    });
}

TEST(Rules, TiedRulesAreDplr) {
    for (const Rule rule : {Rule::gdn, Rule::kda, Rule::gdn2, Rule::deltanet})
        expect_same(of(rule), Same::closely, [](const Forward& p, Said& said) { say_freely(p, said, Rule::dplr); });
    expect_same(of(Rule::deltanet), Same::closely,
                [](const Forward& p, Said& said) { say_freely(p, said, Rule::iplr); });
}

TEST(Rules, GdpOfOneStepIsGdn) {
    for (const bool logits : {false, true}) {
        Spec s = of(Rule::gdp, logits, true);
        s.steps = 1;
        expect_same(s, Same::bits, [](const Forward&, Said& said) { said.p.rule = Rule::gdn; });
    }
}

// n tokens for one: the decay in the first, o read in the last.
TEST(Rules, GdpIsGdnOfMoreTokens) {
    for (const Index n : {2, 3}) {
        Spec s = of(Rule::gdp, false, true);
        s.steps = n;
        expect_same(
            s, Same::bits,
            [n](const Forward& p, Said& said) {
                Forward& f = said.p;
                const Index T = p.q.shape[1] * n, HV = p.v.shape[2];
                f.rule = Rule::gdn, f.n_householder = 1;
                f.q = said.make(T, p.q.shape[2], p.q.shape[3],
                                [&](Index b, Index t, Index h, Index c) { return at(p.q, b, t / n, h, c); });
                f.g = said.make(
                    T, HV, 0, [&](Index b, Index t, Index h, Index) { return t % n == 0 ? at(p.g, b, t / n, h) : 0; });
                if (!p.cu_seqlens.present()) return;
                said.memory.emplace_back(Dtype::int64, Sizes{p.cu_seqlens.shape[0]});
                f.cu_seqlens = said.memory.back().fill([&](Index i) { return at(p.cu_seqlens, i) * double(n); }).view();
            },
            n);
    }
}

TEST(Rules, DeltanetIsGdnWithoutDecay) {
    for (const bool logits : {false, true})
        expect_same(of(Rule::deltanet, logits, true), Same::bits, [](const Forward& p, Said& said) {
            said.p.rule = Rule::gdn;
            said.p.g = said.make(p.q.shape[1], p.v.shape[2], 0, [](Index, Index, Index, Index) { return 0; });
        });
}

TEST(Rules, IplrIsDplrWithoutDecay) {
    expect_same(of(Rule::iplr, false, true), Same::bits, [](const Forward& p, Said& said) {
        said.p.rule = Rule::dplr;
        said.p.g = said.make(p.q.shape[1], p.v.shape[2], p.q.shape[3], [](Index, Index, Index, Index) { return 0; });
    });
}

TEST(Rules, Rwkv7IsDplrWithScaleOne) {
    for (const bool logits : {false, true})
        expect_same(of(Rule::rwkv7, logits, true), Same::bits,
                    [](const Forward&, Said& said) { said.p.rule = Rule::dplr, said.p.scale = 1; });
    Spec s = of(Rule::rwkv7);
    s.T = 5, s.K = 16, s.V = 8;
    const Problem problem(s);
    Forward p = problem.view(), half = p;
    half.scale = 0.25;
    Forward dplr = p;
    dplr.rule = Rule::dplr;  // scale K^-0.5 = 0.25
    EXPECT_EQ(difference(run(half).o.view(), run(dplr).o.view()), "");
    EXPECT_GT(nrmse(run(p).o.view(), run(dplr).o.view()), 2.9);
}
