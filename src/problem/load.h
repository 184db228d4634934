// One step of the normal form, loaded for one (sequence, token, value head): where front ends and lowering are applied.
// R is the type the caller computes in: double for the oracle, float for twins and CPU kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "problem/normal_form.h"
#include "problem/number.h"

namespace tidegate {

/// log(1 + exp(x)) without overflow.
template <class R>
R softplus(R x) {
    return std::max(x, R(0)) + std::log1p(std::exp(-std::fabs(x)));
}

template <class R>
R sigmoid(R x) {
    if (x >= 0) return 1 / (1 + std::exp(-x));
    const R e = std::exp(x);
    return e / (1 + e);
}

/// -exp(A_log) softplus(x). For very negative x, softplus(x) = exp(x) to rounding, and the exponents are added first:
/// exp(A_log) = inf times softplus = 0 would be NaN.
template <class R>
R softplus_gate(R A_log, R x) {
    constexpr R kTail = sizeof(R) == sizeof(float) ? R(-17) : R(-38);
    return x < kTail ? -std::exp(A_log + x) : -(std::exp(A_log) * softplus(x));
}

template <class R>
R bounded_gate(R A_log, R x, R lower_bound) {
    return lower_bound * sigmoid(x == 0 ? R(0) : std::exp(A_log) * x);
}

template <class R>
R load_as(const Tensor& t, std::int64_t offset) {
    return static_cast<R>(load_element(t.data, t.dtype, offset));
}

/// Log-decay of (batch, token, value head, channel); channel is ignored by scalar gates.
template <class R>
R load_gate(const GateSource& s, std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) {
    if (s.decay == Decay::none) return 0;
    const bool vector = s.decay == Decay::vector;
    R g = load_as<R>(s.x, offset_of(s.x, b, t, h) + (vector ? c : 0));
    if (s.kind != GateKind::given) {
        const R A_log = load_as<R>(s.A_log, offset_of(s.A_log, h));
        const R bias = !s.dt_bias.present() ? R(0)
                       : vector             ? load_as<R>(s.dt_bias, offset_of(s.dt_bias, h, c))
                                            : load_as<R>(s.dt_bias, offset_of(s.dt_bias, h));
        g = s.kind == GateKind::softplus ? softplus_gate(A_log, g + bias)
                                         : bounded_gate(A_log, g + bias, static_cast<R>(s.lower_bound));
    }
    if (s.min && g < static_cast<R>(*s.min)) g = static_cast<R>(*s.min);  // NaN stays NaN
    return g;
}

template <class R>
R load_strength(const StrengthSource& s, std::int64_t b, std::int64_t row, std::int64_t h, std::int64_t c) {
    if (s.kind == StrengthKind::one) return 1;
    const R x = load_as<R>(s.x, offset_of(s.x, b, row, h) + (s.vector ? c : 0));
    switch (s.kind) {
        case StrengthKind::sigmoid:
            return sigmoid(x);
        case StrengthKind::twice_sigmoid:
            return 2 * sigmoid(x);
        default:
            return x;
    }
}

/// A row of q or k, L2-normalised on request: x / sqrt(sum x^2 + 1e-6).
template <class R>
void load_row(const Tensor& t, std::int64_t offset, bool l2norm, std::vector<R>& out) {
    R sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = load_as<R>(t, offset + static_cast<std::int64_t>(i));
        sum += out[i] * out[i];
    }
    if (!l2norm) return;
    const R norm = std::sqrt(sum + R(1e-6));
    for (R& x : out) x /= norm;
}

/// Everything one Householder step needs, widened to vectors: clear, for the reference and for first kernels.
template <class R>
struct Step {
    std::vector<R> q, k, v;  ///< K, K, V (v already times w)
    std::vector<R> g;        ///< K log-decays; 0 in steps after the first of a token
    std::vector<R> ek;       ///< K: e o k (tied)
    std::vector<R> a, b;     ///< K: free form

    explicit Step(const NormalForm& nf) {
        const auto K = static_cast<std::size_t>(nf.K), V = static_cast<std::size_t>(nf.V);
        for (auto* x : {&q, &k, &g}) x->resize(K);
        v.resize(V);
        if (nf.tied)
            ek.resize(K);
        else
            a.resize(K), b.resize(K);
    }

    /// `token` counts in rows of q; `step` < nf.steps. `each`: the token's decay in every step, not only in the first.
    void load(const NormalForm& nf, std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t step,
              bool each = false) {
        const std::int64_t row = token * nf.steps + step, hk = nf.key_head(head);
        load_row(nf.q, offset_of(nf.q, batch, token, hk), nf.qk_l2norm, q);
        load_row(nf.k, offset_of(nf.k, batch, row, hk), nf.qk_l2norm, k);
        const std::int64_t v_at = offset_of(nf.v, batch, row, head);
        for (std::size_t j = 0; j < v.size(); ++j)
            v[j] = load_strength<R>(nf.write, batch, row, head, static_cast<std::int64_t>(j)) *
                   load_as<R>(nf.v, v_at + static_cast<std::int64_t>(j));
        const bool per_channel = nf.gate.decay == Decay::vector;
        for (std::size_t i = 0; i < g.size(); ++i)
            g[i] = step > 0 && !each       ? R(0)
                   : i > 0 && !per_channel ? g[0]
                                           : load_gate<R>(nf.gate, batch, token, head, static_cast<std::int64_t>(i));
        if (nf.tied) {
            for (std::size_t i = 0; i < k.size(); ++i)
                ek[i] = load_strength<R>(nf.erase, batch, row, head, static_cast<std::int64_t>(i)) * k[i];
        } else {
            for (std::size_t i = 0; i < k.size(); ++i) {
                a[i] = load_as<R>(nf.a, offset_of(nf.a, batch, token, head) + static_cast<std::int64_t>(i));
                b[i] = load_as<R>(nf.b, offset_of(nf.b, batch, token, head) + static_cast<std::int64_t>(i));
            }
        }
    }
};

}  // namespace tidegate
