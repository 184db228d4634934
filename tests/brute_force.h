// The recurrence by dense matrix products in long double, written from docs alone: it shares no line with src/. Every
// step is S <- M S + k v^T with the explicit K x K matrix M = D + b a^T, so after step i
//   S_i = (M_i ... M_1) h0 + sum_j (M_i ... M_{j+1}) k_j v_j^T,   o_t = scale S_{t n}^T q_t,
// and both are evaluated as these sums of products, never by carrying a state. For a handful of tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <limits>
#include <random>
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
    bool undecayed_error = false;    ///< the error term reads the state as it was before this token's decay
    bool read_before_write = false;  ///< the output reads the state as it was before this token
};

inline Step tied(const Vector& decay, const Vector& k, const Vector& e, Vector v, const Vector& w, Wrong wrong) {
    Vector a;
    for (std::size_t i = 0; i < k.size(); ++i) a.push_back(-(wrong.undecayed_error ? 1 : decay[i]) * e[i] * k[i]);
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
    const Index H = f.q.shape[2], HV = f.v.shape[2], K = f.q.shape[3], V = f.v.shape[3];
    const Index hq = f.head_map == HeadMap::grouped ? p.hv / (HV / H) : p.hv % H;
    const bool channels = f.rule == Rule::kda, logits = f.a.present();
    const GateKind form = f.gate_form == GateForm::softplus ? GateKind::softplus : GateKind::bounded;
    Head head{f.scale ? Real(*f.scale) : 1 / std::sqrt(Real(K)), {}, {}, {}};
    if (f.initial_state.present()) {
        head.h0 = vector(K * V, [&](Index i) {
            return f.state_v_first ? element(f.initial_state, {p.n, p.hv, i % V, i / V})
                                   : element(f.initial_state, {p.n, p.hv, i / V, i % V});
        });
    }
    for (Index t = p.begin; t < p.end; ++t) {
        const Vector decay = vector(K, [&](Index i) {
            const Tensor& from = logits ? f.a : f.g;
            Real x = channels ? element(from, {p.batch, t, p.hv, i}) : element(from, {p.batch, t, p.hv});
            if (f.dt_bias.present()) x += element(f.dt_bias, {channels ? p.hv * K + i : p.hv});
            return decay_of(logits ? form : GateKind::given, x, logits ? element(f.A_log, {p.hv}) : 0, f.lower_bound,
                            f.gate_min);
        });
        const Real beta = f.beta.present() ? element(f.beta, {p.batch, t, p.hv})
                                           : (f.allow_neg_eigval ? 2 : 1) * sigmoid(element(f.b, {p.batch, t, p.hv}));
        const auto row = [&](const Tensor& x) {
            return normalised(vector(K, [&](Index i) { return element(x, {p.batch, t, hq, i}); }), f.qk_l2norm);
        };
        const Vector v = vector(V, [&](Index j) { return element(f.v, {p.batch, t, p.hv, j}); });
        head.q.push_back(row(f.q));
        head.tokens.push_back({tied(decay, row(f.k), Vector(at(K), beta), v, Vector(at(V), beta), wrong)});
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
            if (nf.gate.decay != Decay::none && r == t * nf.steps) {
                for (Real& g : decay = row(nf.gate.x, K, t, p.hv, nf.gate.decay == Decay::vector)) g = std::exp(g);
            }
            const Vector k = normalised(row(nf.k, K, r, hq), nf.qk_l2norm), v = row(nf.v, V, r, p.hv);
            head.tokens.back().push_back(
                nf.tied ? tied(decay, k, strength(nf.erase, K, r), v, strength(nf.write, V, r), wrong)
                        : Step{decay, row(nf.a, K, t, p.hv), row(nf.b, K, t, p.hv), k, v});
        }
    }
    return head;
}

// ---- the whole problem ---------------------------------------------------------------------------------------------

struct Answer {
    Vector o, final_state;  ///< [B, T, HV, V], [N, HV, K, V]
    Vector magnitude;       ///< of o: scale sum_i M_ij |q_i|, M the absolute terms of the last step of S
};

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
                const Step& last = steps[count > 0 ? count - 1 : 0];
                const Vector entering = state_after(head.h0, steps, count > 0 ? count - 1 : 0, s.K, s.V);
                for (Index j = 0; j < s.V && count > 0; ++j) {
                    Real read = 0;
                    for (Index i = 0; i < s.K; ++i) read += std::fabs(last.a[at(i)] * entering[at(i * s.V + j)]);
                    for (Index i = 0; i < s.K; ++i) {
                        const Real terms = last.decay[at(i)] * std::fabs(entering[at(i * s.V + j)]) +
                                           std::fabs(last.b[at(i)]) * read + std::fabs(last.k[at(i)] * last.v[at(j)]);
                        const Index row = ((packed ? 0 : n) * s.T + t) * s.HV + hv;
                        out.magnitude[at(row * s.V + j)] += std::fabs(head.scale * q[at(i)]) * terms;
                    }
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

// ---- inputs --------------------------------------------------------------------------------------------------------

/// Owns tensors; in a `spread` one every axis but the dense last has gaps and any place in memory, gaps hold NaN.
class Arena {
public:
    explicit Arena(std::uint64_t seed, bool spread = false) : random_(seed), spread_(spread) {}

    double uniform(double low, double high) { return std::uniform_real_distribution(low, high)(random_); }
    double normal(double sigma = 1) { return std::normal_distribution(0.0, sigma)(random_); }

    /// value(i) for the i-th element in row-major order. `last_dense` is false for tensors without K or V.
    template <class F>
    Tensor make(Dtype dtype, const std::vector<Index>& shape, F value, bool last_dense = true) {
        Tensor t;
        t.dtype = dtype;
        t.rank = static_cast<std::int32_t>(shape.size());
        std::vector<std::size_t> order;  // of axes, innermost first
        for (std::size_t axis = shape.size(); axis-- > 0;) order.push_back(axis);
        if (spread_) std::shuffle(order.begin() + last_dense, order.end(), random_);
        Index step = 1, count = 1;
        for (const std::size_t axis : order) {
            if (spread_ && !(last_dense && axis + 1 == shape.size())) step += Index(random_() % 3);
            t.shape[axis] = shape[axis];
            t.stride[axis] = step;
            step *= std::max<Index>(shape[axis], 1);
            count *= shape[axis];
        }
        memory.emplace_back(at(step * bytes_of(dtype)), '\xff');
        t.data = memory.back().data();
        for (Index i = 0; i < count; ++i) put(t, i, double(value(i)));
        return t;
    }
    /// Overwrites the i-th element in row-major order.
    static void put(const Tensor& t, Index i, double value) {
        Index offset = 0;
        for (std::size_t axis = at(t.rank); axis-- > 0; i /= t.shape[axis]) {
            offset += i % t.shape[axis] * t.stride[axis];
        }
        const auto write = [&](auto x) {
            std::memcpy(static_cast<char*>(t.data) + offset * Index(sizeof(x)), &x, sizeof(x));
        };
        if (t.dtype == Dtype::fp32) return write(static_cast<float>(value));
        if (t.dtype == Dtype::fp64) return write(value);
        if (t.dtype == Dtype::int32) return write(static_cast<std::int32_t>(value));
        if (t.dtype == Dtype::int64) return write(static_cast<std::int64_t>(value));
        write(encode16(value, mantissa_of(t.dtype)));
    }
    Tensor normals(Dtype dtype, const std::vector<Index>& shape, double sigma = 1) {
        return make(dtype, shape, [&](Index) { return normal(sigma); });
    }

    std::deque<std::vector<char>> memory;  ///< of every tensor made

private:
    std::mt19937_64 random_;
    bool spread_;
};

/// A hand-built normal form: keys of length about 1, strengths in (0, 1).
struct Form {
    Decay decay = Decay::scalar;
    bool tied = true, vector_erase = false, vector_write = false, h0 = true;
    Index steps = 1, B = 1, H = 1, HV = 1, K = 4, V = 3;
    std::vector<Index> cu = {};  ///< packed when not empty
    Index T = 8;
    std::function<double(Index token, Index channel)> gate = {};  ///< default: random, mild
};

inline NormalForm build(Arena& arena, const Form& f) {
    NormalForm nf;
    nf.batch = f.B, nf.tokens = f.T, nf.key_heads = f.H, nf.value_heads = f.HV, nf.K = f.K, nf.V = f.V;
    nf.sequences = f.cu.empty() ? f.B : Index(f.cu.size()) - 1;
    nf.steps = f.steps, nf.tied = nf.qk_l2norm = f.tied, nf.scale = 0.37;
    const Index rows = f.T * f.steps;
    const double unit = std::pow(double(f.K), -0.5);
    nf.q = arena.normals(Dtype::fp32, {f.B, f.T, f.H, f.K}, unit);
    nf.k = arena.normals(Dtype::fp32, {f.B, rows, f.H, f.K}, unit);
    nf.v = arena.normals(Dtype::fp32, {f.B, rows, f.HV, f.V});
    const auto strength = [&](bool vector, Index width) {
        const std::vector<Index> shape = {f.B, rows, f.HV, width};
        const auto value = [&](Index) { return arena.uniform(0.05, 0.95); };
        const Tensor x = arena.make(Dtype::fp32, {shape.begin(), shape.end() - (vector ? 0 : 1)}, value, vector);
        return StrengthSource{StrengthKind::given, vector, x};
    };
    if (f.tied) {
        nf.erase = strength(f.vector_erase, f.K), nf.write = strength(f.vector_write, f.V);
    } else {  // a near -b, both shorter than 1: the state hardly grows
        const auto [shape, count] = std::pair(std::vector<Index>{f.B, f.T, f.HV, f.K}, f.B * f.T * f.HV * f.K);
        const Vector r = vector(count, [&](Index) { return arena.normal(0.7 * unit); });
        nf.b = arena.make(Dtype::fp32, shape, [&](Index i) { return r[at(i)]; });
        nf.a = arena.make(Dtype::fp32, shape, [&](Index i) { return arena.normal(0.1 * unit) - r[at(i)]; });
    }
    nf.gate.decay = f.decay;
    if (f.decay != Decay::none) {
        const bool vector = f.decay == Decay::vector;
        const Index width = vector ? f.K : 1;
        const auto value = [&](Index i) {
            const Index token = i / (f.HV * width) % f.T;
            return f.gate ? f.gate(token, vector ? i % f.K : -1) : -arena.uniform(0, 0.5);
        };
        nf.gate.x = vector ? arena.make(Dtype::fp32, {f.B, f.T, f.HV, f.K}, value)
                           : arena.make(Dtype::fp32, {f.B, f.T, f.HV}, value, false);
    }
    const auto row_of = [&](Index i) { return f.cu[at(i)]; };
    if (!f.cu.empty()) nf.cu_seqlens = arena.make(Dtype::int32, {nf.sequences + 1}, row_of);
    if (f.h0) nf.initial_state = arena.normals(Dtype::fp32, {nf.sequences, f.HV, f.K, f.V});
    return nf;
}

}  // namespace tidegate::brute
