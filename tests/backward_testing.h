// What tests of gradients share: random backward calls of every rule in memory of their own, what the CPU makes of
// them, and what the oracle does.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "problem/load.h"
#include "problem/rules.h"
#include "reference/adjoint.h"
#include "testing.h"

namespace tidegate::backward_test {

using test::Owned;
using test::Sizes;

struct Spec {
    Rule rule = Rule::gdn;
    std::int64_t B = 1, T = 5, H = 1, HV = 2, K = 4, V = 3;
    std::int64_t n = 2;  ///< Householder steps of rules that have them
    Sizes lengths{};     ///< of packed sequences; B = 1 and T their sum
    bool h0 = true, dht = true;
    bool logits = false;   ///< a, A_log and b instead of g and beta, where the rule has them
    bool bias = true;      ///< logits: dt_bias is given
    bool bounded = false;  ///< logits: the bounded gate
    bool clamps = false;   ///< gate_min, in a gap of the gates: some are below, none is near
    bool twice = false;    ///< logits: allow_neg_eigval
    bool l2norm = false, tiled = false, v_first = false;
    std::optional<double> scale{};
    std::vector<Dtype> dtypes{Dtype::fp32};  ///< of the float tensors, in turn
    std::uint64_t seed = 1;
};

/// One tensor a row of gradients(): inputs, or gradients.
using Row = std::vector<Owned>;

inline std::size_t row_of_name(const std::string& name) {
    for (std::size_t i = 0; i < gradients().size(); ++i)
        if (name == gradients()[i].name) return i;
    throw std::out_of_range(name);
}

struct Call {
    Spec spec;
    Row in{gradients().size()};
    Owned d_o, dht, cu;
    std::optional<double> gate_min;

    explicit Call(const Spec& s) : spec(s) {
        if (!s.lengths.empty()) {
            spec.B = 1, spec.T = 0;
            cu = Owned(Dtype::int32, {static_cast<std::int64_t>(s.lengths.size()) + 1});
            cu.fill([&](std::int64_t i) {
                return static_cast<double>(i == 0 ? 0 : spec.T += s.lengths[static_cast<std::size_t>(i - 1)]);
            });
        }
        const RuleRow& rule = row_of(s.rule);
        if (!rule.householder) spec.n = 1;
        const std::int64_t B = spec.B, T = spec.T, R = T * spec.n, H = s.H, HV = s.HV, K = s.K, V = s.V;
        const bool decays = rule.decay != Decay::none, channels = rule.decay == Decay::vector, beta = has_beta(rule);
        const Sizes wide{B, T, HV, K}, gate = channels ? wide : Sizes{B, T, HV};
        const double unit = 1 / std::sqrt(static_cast<double>(K));
        std::size_t made = 0;
        const auto make = [&](bool wanted, const Sizes& shape, const std::function<double(double, double)>& value) {
            const cases::Random random(s.seed, ++made);
            if (!wanted) return Owned();
            Owned t(s.dtypes[made % s.dtypes.size()], shape);
            t.fill([&](std::int64_t i) {
                const auto at = static_cast<std::uint64_t>(i);
                return value(random.normal(2 * at), random.uniform(2 * at + 1));
            });
            return t;
        };
        const auto put = [&](const char* gradient, bool wanted, const Sizes& shape, const auto& value) {
            in[row_of_name(gradient)] = make(wanted, shape, value);
        };
        const auto key = [unit](double normal, double) { return unit * normal; };
        const auto normal = [](double x, double) { return x; };
        const auto half = [](double x, double) { return x / 2; };
        const auto strength = [](double, double u) { return 0.05 + 0.9 * u; };
        put("dq", true, {B, T, H, K}, key);
        put("dk", true, {B, R, H, K}, key);
        put("dv", true, {B, R, HV, V}, normal);
        put("dg", decays && !s.logits, gate, [](double, double u) { return -std::exp2(1 - 6 * u); });
        put("dbeta", beta && !s.logits, Sizes{B, R, HV}, strength);
        put("derase", rule.erase == Width::vector_k, wide, strength);
        put("dwrite", rule.write == Width::vector_v, Sizes{B, T, HV, V}, strength);
        put("dlr_a", !rule.tied, wide, key);
        put("dlr_b", !rule.tied, wide, [unit](double x, double) { return unit * x / 2; });
        put("da", decays && s.logits, gate, normal);
        put("db", beta && s.logits, Sizes{B, R, HV}, normal);
        put("dA_log", decays && s.logits, Sizes{HV}, half);
        put("ddt_bias", decays && s.logits && s.bias, Sizes{channels ? HV * K : HV}, half);
        put("dh0", s.h0, state_shape(), half);
        d_o = make(true, {B, T, HV, V}, normal);
        dht = make(s.dht, state_shape(), normal);
        if (s.clamps && decays) clamp();
    }

    Owned& of(const char* gradient) { return in[row_of_name(gradient)]; }
    Sizes state_shape() const {
        const std::int64_t N = cu.view().present() ? cu.view().shape[0] - 1 : spec.B;
        return {N, spec.HV, spec.v_first ? spec.V : spec.K, spec.v_first ? spec.K : spec.V};
    }

    /// The call, without any gradient asked for.
    Backward view() const {
        Backward p;
        p.rule = spec.rule;
        p.n_householder = spec.n;
        p.scale = spec.scale;
        p.qk_l2norm = spec.l2norm;
        p.gate_form = spec.bounded ? GateForm::bounded : GateForm::softplus;
        p.lower_bound = -3.5;
        p.gate_min = gate_min;
        p.head_map = spec.tiled ? HeadMap::tiled : HeadMap::grouped;
        p.state_v_first = spec.v_first;
        for (std::size_t i = 0; i < in.size(); ++i) p.*gradients()[i].input = in[i].view();
        p.allow_neg_eigval = spec.twice && p.b.present();
        p.d_o = d_o.view(), p.dht = dht.view(), p.cu_seqlens = cu.view();
        return p;
    }

    /// The log-decays as they would be without gate_min.
    std::vector<double> gates() const {
        Backward p = view();
        p.gate_min.reset();
        const NormalForm nf = lower(p).nf;
        std::vector<double> g;
        for (std::int64_t b = 0; b < nf.batch; ++b)
            for (std::int64_t t = 0; t < nf.tokens; ++t)
                for (std::int64_t h = 0; h < nf.value_heads; ++h)
                    for (std::int64_t c = 0; c < (nf.gate.decay == Decay::vector ? nf.K : 1); ++c)
                        g.push_back(load_gate<double>(nf.gate, b, t, h, c));
        return g;
    }

private:
    /// gate_min goes to the middle of the widest gap between gates that are not among the least or the largest fifth.
    void clamp() {
        std::vector<double> g = gates();
        std::sort(g.begin(), g.end());
        gate_min = -1;
        double widest = 0;
        for (std::size_t i = g.size() / 5; i + 1 < g.size() - g.size() / 5; ++i)
            if (g[i + 1] - g[i] > widest) widest = g[i + 1] - g[i], gate_min = (g[i] + g[i + 1]) / 2;
    }
};

/// Memory for every gradient that a call may ask for; those that `wanted` has no bit for stay absent.
inline Row memory_for(const Backward& p, Dtype dtype = Dtype::fp32, unsigned wanted = ~0U, std::int64_t gap = 0) {
    Row out(gradients().size());
    const std::int64_t N = p.cu_seqlens.present() ? p.cu_seqlens.shape[0] - 1 : p.q.shape[0];
    for (std::size_t i = 0; i < out.size(); ++i) {
        const GradientRow& row = gradients()[i];
        const Tensor& x = p.*row.input;
        if ((wanted >> i & 1) == 0 || (!x.present() && row.role != Role::h0)) continue;
        const std::int64_t HV = p.v.shape[2], K = p.q.shape[3], V = p.v.shape[3];
        const Sizes shape = row.role == Role::h0 ? Sizes{N, HV, p.state_v_first ? V : K, p.state_v_first ? K : V}
                                                 : Sizes(x.shape.begin(), x.shape.begin() + x.rank);
        out[i] = Owned(dtype, shape, test::gapped(shape, gap));
    }
    return out;
}
inline Backward into(Backward p, const Row& out) {
    for (std::size_t i = 0; i < out.size(); ++i) p.*gradients()[i].gradient = out[i].view();
    return p;
}

/// backward() into fresh memory; also checks that nothing around the gradients was written.
inline Row run(const Backward& p, const Options& options = {1}, Dtype dtype = Dtype::fp32, unsigned wanted = ~0U) {
    Row out = memory_for(p, dtype, wanted);
    backward(into(p, out), options);
    for (std::size_t i = 0; i < out.size(); ++i)
        EXPECT_TRUE(out[i].intact_outside(out[i].view())) << "around " << gradients()[i].name;
    return out;
}

/// The gradients by the oracle, stored as double; `terms`, if given, get the sums of absolute values.
inline Row exact(const Backward& p, Row* terms = nullptr) {
    Row out = memory_for(p, Dtype::fp64);
    const BackwardForm form = lower(into(p, out));
    reference::Gradients sizes(form);
    store(reference::adjoint<double>(form, {}, terms != nullptr ? &sizes : nullptr), form);
    if (terms == nullptr) return out;
    *terms = memory_for(p, Dtype::fp64);
    store(sizes, lower(into(p, *terms)));
    return out;
}

/// Expects the same bits of all gradients that `y` has.
inline void expect_same(const Row& x, const Row& y, const std::string& what) {
    for (std::size_t i = 0; i < y.size(); ++i) {
        if (!y[i].view().present()) continue;
        EXPECT_EQ(test::difference(x[i].view(), y[i].view()), "") << what << ": " << gradients()[i].name;
    }
}

/// |x - y| over |y| (or over |terms|), as roots of sums of squares; |x| itself where y is 0.
inline double apart(const std::vector<double>& x, const std::vector<double>& y, const std::vector<double>& terms) {
    double error = 0, size = 0;
    if (x.size() != y.size()) return HUGE_VAL;
    for (std::size_t i = 0; i < x.size(); ++i) error += (x[i] - y[i]) * (x[i] - y[i]), size += terms[i] * terms[i];
    return std::sqrt(size > 0 ? error / size : error);
}
inline double apart(const std::vector<double>& x, const std::vector<double>& y) { return apart(x, y, y); }

inline std::vector<Rule> every_rule() {
    std::vector<Rule> all;
    for (const RuleRow& row : rules()) all.push_back(row.rule);
    return all;
}
inline std::vector<Rule> rules_that_decay() {
    std::vector<Rule> all;
    for (const RuleRow& row : rules())
        if (row.decay != Decay::none) all.push_back(row.rule);
    return all;
}
inline std::string rule_name(const ::testing::TestParamInfo<Rule>& info) { return name_of(info.param); }

}  // namespace tidegate::backward_test
