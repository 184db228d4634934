// The recurrence by dense matrix products in long double, written from docs alone: it shares no line with src/. Every
// step is S <- M S + k v^T with the explicit K x K matrix M = D + b a^T, so after step i
//   S_i = (M_i ... M_1) h0 + sum_j (M_i ... M_{j+1}) k_j v_j^T,   o_t = scale S_{t n}^T q_t,
// and both are evaluated as these sums of products, never by carrying a state. For a handful of tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <vector>

#include "problem/normal_form.h"

namespace tidegate::brute {

using Real = long double;
using Vector = std::vector<Real>;
using Index = std::int64_t;

inline std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// ---- elements ------------------------------------------------------------------------------------------------------

/// A 16-bit float by its definition; `wide` gives the code of infinity the value that would follow the largest finite.
inline Real decode16(unsigned bits, int mantissa, bool wide = false) {
    const int exponent_bits = 15 - mantissa, bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    const Real sign = bits >> 15 ? -1 : 1, fraction = std::ldexp(Real(bits & ((1u << mantissa) - 1)), -mantissa);
    const int exponent = static_cast<int>((bits & 0x7fffu) >> mantissa);
    if (exponent == top && !wide) {
        return fraction > 0 ? std::numeric_limits<Real>::quiet_NaN() : sign * std::numeric_limits<Real>::infinity();
    }
    return sign * (exponent > 0 ? std::ldexp(1 + fraction, exponent - bias) : std::ldexp(fraction, 1 - bias));
}

/// The nearest of all 16-bit floats, ties to even, found by bisection.
inline std::uint16_t encode16(Real x, int mantissa) {
    const unsigned infinity = ((1u << (15 - mantissa)) - 1) << mantissa;
    if (std::isnan(x)) return static_cast<std::uint16_t>(infinity | (1u << (mantissa - 1)));
    const Real size = std::fabs(x);
    unsigned low = 0, high = infinity;  // low <= size, as far as the codes reach
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        (decode16(middle, mantissa) <= size ? low : high) = middle;
    }
    const Real half = (decode16(low, mantissa) + decode16(high, mantissa, true)) / 2;
    if (size > half || (size == half && low % 2 == 1)) low = high;
    return static_cast<std::uint16_t>(low | (std::signbit(x) ? 0x8000u : 0u));
}

inline int mantissa_of(Dtype dtype) { return dtype == Dtype::bf16 ? 7 : 10; }

inline Real element(const Tensor& t, std::initializer_list<Index> index) {
    Index offset = 0;
    std::size_t axis = 0;
    for (const Index i : index) offset += i * t.stride.at(axis++);
    const auto read = [&](auto x) {
        std::memcpy(&x, static_cast<const char*>(t.data) + offset * Index(sizeof(x)), sizeof(x));
        return x;
    };
    if (t.dtype == Dtype::fp32) return read(0.0F);
    if (t.dtype == Dtype::fp64) return read(0.0);
    if (t.dtype == Dtype::int32) return read(std::int32_t(0));
    if (t.dtype == Dtype::int64) return Real(read(std::int64_t(0)));
    return decode16(read(std::uint16_t(0)), mantissa_of(t.dtype));
}

// ---- front ends ----------------------------------------------------------------------------------------------------

inline Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }
inline Real softplus(Real x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

/// exp(g), g from what is given: itself, or logits x (bias added already) by one of the two formulas.
inline Real decay_of(GateKind kind, Real x, Real A_log, double lower_bound, std::optional<double> min) {
    const Real A = std::exp(A_log);
    const Real g = kind == GateKind::given      ? x
                   : kind == GateKind::softplus ? -A * softplus(x)
                                                : Real(lower_bound) * sigmoid(A * x);
    return std::exp(min && g < Real(*min) ? Real(*min) : g);
}

inline Vector normalised(Vector x, bool wanted) {
    Real sum = 1e-6L;
    for (const Real e : x) sum += e * e;
    for (Real& e : x) e /= wanted ? std::sqrt(sum) : 1;
    return x;
}

template <class F>
Vector vector(Index n, F element_of) {
    Vector x;
    for (Index i = 0; i < n; ++i) x.push_back(element_of(i));
    return x;
}

// ---- one head of one sequence --------------------------------------------------------------------------------------

struct Step {
    Vector decay, a, b, k, v;  ///< S <- Diag(decay) S + b a^T S + k v^T
};

struct Head {
    Real scale = 1;
    Vector h0 = {};  ///< [K, V]
    std::vector<std::vector<Step>> tokens = {};
    std::vector<Vector> q = {};
};

struct Wrong {
    bool other_side = false;         ///< a step reads the state before its decay where after is right, or the reverse
    bool decay_each_step = false;    ///< a token's decay acts in every one of its steps
    bool read_before_write = false;  ///< the output reads the state as it was before this token
};

inline Step tied(const Vector& decay, const Vector& k, const Vector& e, Vector v, const Vector& w, Wrong wrong) {
    Vector a;
    for (std::size_t i = 0; i < k.size(); ++i) a.push_back(-(wrong.other_side ? 1 : decay[i]) * e[i] * k[i]);
    for (std::size_t j = 0; j < v.size(); ++j) v[j] *= w[j];
    return {decay, a, k, k, v};
}

/// The state after the first `count` of these steps, as the sum of products above.
inline Vector state_after(Vector h0, const std::vector<Step>& steps, std::size_t count, Index K, Index V) {
    Vector product(at(K * K)), state(at(K * V));  // product: M_count ... M_{j+1}
    for (Index i = 0; i < K; ++i) product[at(i * K + i)] = 1;
    const auto times = [&](Vector& out, Index columns, const auto& right) {  // out += product * right
        for (Index i = 0; i < K; ++i) {
            for (Index l = 0; l < K; ++l) {
                for (Index j = 0; j < columns; ++j) out[at(i * columns + j)] += product[at(i * K + l)] * right(l, j);
            }
        }
    };
    for (std::size_t s = count; s-- > 0;) {
        const Step& x = steps[s];
        times(state, V, [&](Index l, Index j) { return x.k[at(l)] * x.v[at(j)]; });
        Vector next(at(K * K));
        times(next, K, [&](Index l, Index j) { return x.b[at(l)] * x.a[at(j)] + (l == j ? x.decay[at(l)] : 0); });
        product = next;
    }
    times(state, V, [&](Index l, Index j) { return h0[at(l * V + j)]; });
    return state;
}

struct Shape {
    Index B, T, N, HV, K, V;
};
struct Place {
    Index n, batch, begin, end, hv;
};  ///< sequence, its rows, and a value head

// ---- from the caller's problem, without lower() --------------------------------------------------------------------

inline Shape shape_of(const Forward& f) {
    const Index B = f.q.shape[0], N = f.cu_seqlens.present() ? f.cu_seqlens.shape[0] - 1 : B;
    return {B, f.q.shape[1], N, f.v.shape[2], f.q.shape[3], f.v.shape[3]};
}

inline Head head_of(const Forward& f, Place p, Wrong wrong) {
    const Index H = f.q.shape[2], HV = f.v.shape[2], K = f.q.shape[3], V = f.v.shape[3], n = f.n_householder;
    const Index hq = f.head_map == HeadMap::grouped ? p.hv / (HV / H) : p.hv % H;
    const bool forgets = f.rule != Rule::deltanet && f.rule != Rule::iplr, logits = f.a.present();
    const bool channels = f.rule != Rule::gdn && f.rule != Rule::gdp, unit = f.rule == Rule::rwkv7;
    const bool free = f.rule == Rule::dplr || f.rule == Rule::iplr || f.rule == Rule::rwkv7;
    const GateKind form = f.gate_form == GateForm::softplus ? GateKind::softplus : GateKind::bounded;
    const auto row = [&](const Tensor& x, Index width, Index r, Index head) {
        return vector(width, [&](Index i) { return element(x, {p.batch, r, head, i}); });
    };
    const auto beta = [&](Index width, Index r) {
        const Tensor& from = f.beta.present() ? f.beta : f.b;
        const Real x = element(from, {p.batch, r, p.hv});
        return Vector(at(width), f.beta.present() ? x : (f.allow_neg_eigval ? 2 : 1) * sigmoid(x));
    };
    Head head{f.scale ? Real(*f.scale) : unit ? 1 : 1 / std::sqrt(Real(K)), {}, {}, {}};
    if (f.initial_state.present()) {
        head.h0 = vector(K * V, [&](Index i) {
            return f.state_v_first ? element(f.initial_state, {p.n, p.hv, i % V, i / V})
                                   : element(f.initial_state, {p.n, p.hv, i / V, i % V});
        });
    }
    for (Index t = p.begin; t < p.end; ++t) {
        const Vector decay = vector(K, [&](Index i) {
            if (!forgets) return Real(1);
            const Tensor& from = logits ? f.a : f.g;
            Real x = channels ? element(from, {p.batch, t, p.hv, i}) : element(from, {p.batch, t, p.hv});
            if (f.dt_bias.present()) x += element(f.dt_bias, {channels ? p.hv * K + i : p.hv});
            return decay_of(logits ? form : GateKind::given, x, logits ? element(f.A_log, {p.hv}) : 0, f.lower_bound,
                            f.gate_min);
        });
        head.q.push_back(normalised(row(f.q, K, t, hq), f.qk_l2norm));
        head.tokens.emplace_back();
        for (Index r = t * n; r < (t + 1) * n; ++r) {
            const Vector D = r == t * n ? decay : Vector(at(K), 1);
            const Vector k = normalised(row(f.k, K, r, hq), f.qk_l2norm), v = row(f.v, V, r, p.hv);
            if (free) {
                head.tokens.back().push_back({D, row(f.lr_a, K, t, p.hv), row(f.lr_b, K, t, p.hv), k, v});
            } else if (f.rule == Rule::gdn2) {
                head.tokens.back().push_back(tied(D, k, row(f.erase, K, t, p.hv), v, row(f.write, V, t, p.hv), wrong));
            } else {
                head.tokens.back().push_back(tied(D, k, beta(K, r), v, beta(V, r), wrong));
            }
        }
    }
    return head;
}

// ---- from a normal form whose gates and strengths are given --------------------------------------------------------

inline Shape shape_of(const NormalForm& nf) { return {nf.batch, nf.tokens, nf.sequences, nf.value_heads, nf.K, nf.V}; }

inline Head head_of(const NormalForm& nf, Place p, Wrong wrong) {
    const Index K = nf.K, V = nf.V, ratio = nf.value_heads / nf.key_heads;
    const Index hq = nf.head_map == HeadMap::grouped ? p.hv / ratio : p.hv % nf.key_heads;
    const auto row = [&](const Tensor& x, Index width, Index t, Index head, bool wide = true) {
        return vector(width, [&](Index i) {
            return wide ? element(x, {p.batch, t, head, i}) : element(x, {p.batch, t, head});
        });
    };
    const auto strength = [&](const StrengthSource& from, Index width, Index r) {
        return from.x.present() ? row(from.x, width, r, p.hv, from.vector) : Vector(at(width), 1);
    };
    Head head{nf.scale, {}, {}, {}};
    if (nf.initial_state.present()) {
        head.h0 = vector(K * V, [&](Index i) { return element(nf.initial_state, {p.n, p.hv, i / V, i % V}); });
    }
    for (Index t = p.begin; t < p.end; ++t) {
        head.q.push_back(normalised(row(nf.q, K, t, hq), nf.qk_l2norm));
        head.tokens.emplace_back();
        for (Index r = t * nf.steps; r < (t + 1) * nf.steps; ++r) {
            Vector decay(at(K), 1);
            if (nf.gate.decay != Decay::none && (r == t * nf.steps || wrong.decay_each_step)) {
                for (Real& g : decay = row(nf.gate.x, K, t, p.hv, nf.gate.decay == Decay::vector)) g = std::exp(g);
            }
            const Vector k = normalised(row(nf.k, K, r, hq), nf.qk_l2norm), v = row(nf.v, V, r, p.hv);
            if (nf.tied) {
                head.tokens.back().push_back(
                    tied(decay, k, strength(nf.erase, K, r), v, strength(nf.write, V, r), wrong));
                continue;
            }
            Vector a = row(nf.a, K, t, p.hv);
            for (std::size_t i = 0; i < a.size(); ++i) a[i] *= wrong.other_side ? decay[i] : 1;
            head.tokens.back().push_back({decay, a, row(nf.b, K, t, p.hv), k, v});
        }
    }
    return head;
}

// ---- the whole problem ---------------------------------------------------------------------------------------------

struct Answer {
    Vector o, final_state;  ///< [B, T, HV, V], [N, HV, K, V]
    Vector magnitude;       ///< of o: scale sum_i M_ij |q_i|, M the absolute terms that the last two steps add to |S|
};

/// The sum of the absolute values of all terms of a step, of a state whose magnitude is `before`.
inline Vector magnitude_after(const Step& step, const Vector& before, Index V) {
    Vector after;
    for (Index i = 0; i < Index(before.size()); ++i) {
        Real read = 0;
        for (std::size_t l = 0; l < step.a.size(); ++l) read += std::fabs(step.a[l]) * before[l * at(V) + at(i % V)];
        after.push_back(step.decay[at(i / V)] * before[at(i)] + std::fabs(step.b[at(i / V)]) * read +
                        std::fabs(step.k[at(i / V)] * step.v[at(i % V)]));
    }
    return after;
}

template <class Problem>
Answer answer(const Problem& problem, Wrong wrong = {}) {
    const Shape s = shape_of(problem);
    Answer out{Vector(at(s.B * s.T * s.HV * s.V)), {}, Vector(at(s.B * s.T * s.HV * s.V))};
    for (Index n = 0; n < s.N; ++n) {
        const bool packed = problem.cu_seqlens.present();
        const Index begin = packed ? Index(element(problem.cu_seqlens, {n})) : 0;
        const Index end = packed ? Index(element(problem.cu_seqlens, {n + 1})) : s.T;
        for (Index hv = 0; hv < s.HV; ++hv) {
            Head head = head_of(problem, Place{n, packed ? 0 : n, begin, end, hv}, wrong);
            head.h0.resize(at(s.K * s.V));
            std::vector<Step> steps;
            for (Index t = begin; t < end; ++t) {
                const auto& now = head.tokens[at(t - begin)];
                const Vector& q = head.q[at(t - begin)];
                const std::size_t before = steps.size();
                steps.insert(steps.end(), now.begin(), now.end());
                const std::size_t count = wrong.read_before_write ? before : steps.size();
                const Vector state = state_after(head.h0, steps, count, s.K, s.V);
                for (Index i = 0; i < s.K * s.V; ++i) {
                    const Index row = ((packed ? 0 : n) * s.T + t) * s.HV + hv;
                    const Real term = head.scale * state[at(i)] * q[at(i / s.V)];
                    out.o[at(row * s.V + i % s.V)] += term;
                }
                // The absolute terms of the last two steps: one may cancel the other.
                const std::size_t from = steps.size() > 1 ? steps.size() - 2 : 0;
                Vector terms = state_after(head.h0, steps, from, s.K, s.V);
                for (Real& x : terms) x = std::fabs(x);
                for (std::size_t l = from; l < steps.size(); ++l) terms = magnitude_after(steps[l], terms, s.V);
                for (Index i = 0; i < s.K * s.V; ++i) {
                    const Index row = ((packed ? 0 : n) * s.T + t) * s.HV + hv;
                    out.magnitude[at(row * s.V + i % s.V)] += std::fabs(head.scale * q[at(i / s.V)]) * terms[at(i)];
                }
            }
            const Vector state = state_after(head.h0, steps, steps.size(), s.K, s.V);
            out.final_state.insert(out.final_state.end(), state.begin(), state.end());
        }
    }
    return out;
}

/// The largest error relative to the RMS of its group (a row of o, a state; 0: everything), or to a hundredth of the
/// RMS of all where that is more: such small values are what cancellation left. NaN and inf must agree.
template <class Got, class Want>
double apart(const std::vector<Got>& got, const std::vector<Want>& want, Index group = 0) {
    const Index count = Index(want.size()), size = group > 0 ? group : count;
    const auto rms = [&](Index begin, Index end) {
        Real sum = 0;
        for (Index i = begin; i < end; ++i) sum += std::isfinite(want[at(i)]) ? Real(want[at(i)]) * want[at(i)] : 0;
        return std::sqrt(sum / Real(end - begin));
    };
    double worst = got.size() == want.size() ? 0 : 1;
    for (Index first = 0; first < count; first += size) {
        const Real unit = std::max(rms(first, first + size), rms(0, count) / 100);
        for (std::size_t i = at(first); i < at(first + size); ++i) {
            if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
            const double error = static_cast<double>(std::fabs(Real(got[i]) - want[i]) / unit);
            worst = std::isfinite(error) ? std::max(worst, error) : std::numeric_limits<double>::infinity();
        }
    }
    return worst;
}

}  // namespace tidegate::brute
