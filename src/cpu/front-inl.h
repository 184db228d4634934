// What a pass needs of its rows, for all state columns at once: coefficients of the sweep and the small triangles that
// connect the pass's own rows. A row is one Householder step of one token.
#include "cpu/kernels.h"

#if defined(TIDEGATE_CPU_FRONT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_CPU_FRONT_INL_H
#undef TIDEGATE_CPU_FRONT_INL_H
#else
#define TIDEGATE_CPU_FRONT_INL_H
#endif

#include <hwy/highway.h>

#include "cpu/gates-inl.h"
#include "cpu/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {

/// Rows of a pass as loaded, each of `stride` floats, zero behind K.
struct Rows {
    float *q, *k, *d;  ///< [kRank, stride]: scale q, k, exp(g)
    float *e, *b;      ///< tied: e o k and unused; free: a and b
    std::size_t stride;
    float* at(float* x, std::size_t t) const { return x + t * stride; }
};

/// What a row writes: `factor` times each of its columns.
struct Values {
    const float* row;
    float factor;
};

/// erase_on_x[t][j]: what row t reads of what row j < t wrote along x; read_on_x[t][j]: what its output does, j <= t.
/// Tied rows write along k alone; free ones along k (their value) and b (what they read).
struct Triangles {
    float erase_on_k[kRank][kRank], read_on_k[kRank][kRank], erase_on_b[kRank][kRank], read_on_b[kRank][kRank];
};

HWY_INLINE float sum(F f, Vec x) { return hn::GetLane(hn::SumOfLanes(f, x)); }

/// Four vectors side by side: lane i of v[u] to to[4 * i + u].
HWY_INLINE void store_by_row(F f, const Vec (&v)[kRank], float* to) {
    hn::StoreInterleaved4(v[0], v[1], v[2], v[3], f, to);
}

/// Tied: with P_t = d_0 ... d_t, row t reads (P_t o e_t)^T S and (P_t o q_t)^T S of the state S entering the pass, and
/// what it writes along k_t has decayed by d_{t+1} ... d_{M-1} when the pass ends.
/// Without queries, what rows read for their outputs is left out.
template <std::size_t M, bool kQueries = true>
void front_tied(const Rows& x, std::size_t K, const Coefficients& to, Triangles& tri) {
    const F f;
    const Vec zero = hn::Zero(f);
    Vec ek[M][M], qk[M][M];
    TIDEGATE_UNROLL
    for (std::size_t t = 0; t < M; ++t) TIDEGATE_UNROLL
    for (std::size_t j = 0; j < M; ++j) ek[t][j] = qk[t][j] = zero;
    for (std::size_t i = 0; i < K; i += hn::Lanes(f)) {
        Vec d[M], q[M], k[M], e[M], w[kRank], r[kRank], o[kRank];
        TIDEGATE_UNROLL
        for (std::size_t t = 0; t < M; ++t) {
            d[t] = hn::Load(f, x.at(x.d, t) + i);
            if (kQueries) q[t] = hn::Load(f, x.at(x.q, t) + i);
            k[t] = hn::Load(f, x.at(x.k, t) + i);
            e[t] = hn::Load(f, x.at(x.e, t) + i);
        }
        TIDEGATE_UNROLL
        for (std::size_t t = 0; t < kRank; ++t) w[t] = r[t] = o[t] = zero;
        Vec P = hn::Set(f, 1.0F), left = P;
        TIDEGATE_UNROLL
        for (std::size_t t = 0; t < M; ++t) {
            P = hn::Mul(P, d[t]);
            r[t] = hn::Mul(P, e[t]);
            if (kQueries) o[t] = hn::Mul(P, q[t]);
        }
        TIDEGATE_UNROLL
        for (std::size_t u = 0; u < M; ++u) {
            const std::size_t t = M - 1 - u;
            w[t] = hn::Mul(left, k[t]);
            left = hn::Mul(left, d[t]);
        }
        TIDEGATE_UNROLL
        for (std::size_t j = 0; j < M; ++j) {
            Vec c = k[j];
            if (kQueries) qk[j][j] = hn::MulAdd(q[j], c, qk[j][j]);
            TIDEGATE_UNROLL
            for (std::size_t t = j + 1; t < M; ++t) {
                c = hn::Mul(c, d[t]);
                ek[t][j] = hn::MulAdd(e[t], c, ek[t][j]);
                if (kQueries) qk[t][j] = hn::MulAdd(q[t], c, qk[t][j]);
            }
        }
        hn::Store(P, f, to.decay + i);
        store_by_row(f, w, to.write + kRank * i);
        store_by_row(f, r, to.erase + kRank * i);
        if (kQueries) store_by_row(f, o, to.query + kRank * i);
    }
    TIDEGATE_UNROLL
    for (std::size_t t = 0; t < M; ++t) TIDEGATE_UNROLL
    for (std::size_t j = 0; j <= t; ++j) {
        tri.erase_on_k[t][j] = sum(f, ek[t][j]);
        if (kQueries) tri.read_on_k[t][j] = sum(f, qk[t][j]);
    }
}

/// Free: row t reads (P_{t-1} o a_t)^T S, before its decay, and writes along k_t (write 0, 1) and b_t (write 2, 3).
template <std::size_t M>
void front_free(const Rows& x, std::size_t K, const Coefficients& to, Triangles& tri) {
    const F f;
    const Vec zero = hn::Zero(f);
    Vec ak[M][M], ab[M][M], qk[M][M], qb[M][M];
    for (std::size_t t = 0; t < M; ++t)
        for (std::size_t j = 0; j < M; ++j) ak[t][j] = ab[t][j] = qk[t][j] = qb[t][j] = zero;
    for (std::size_t i = 0; i < K; i += hn::Lanes(f)) {
        Vec d[M], q[M], a[M], w[kRank], r[kRank], o[kRank];
        for (std::size_t t = 0; t < kRank; ++t) w[t] = r[t] = o[t] = zero;
        Vec P = hn::Set(f, 1.0F), left = P;
        for (std::size_t t = 0; t < M; ++t) {
            d[t] = hn::Load(f, x.at(x.d, t) + i);
            q[t] = hn::Load(f, x.at(x.q, t) + i);
            a[t] = hn::Load(f, x.at(x.e, t) + i);
            r[t] = hn::Mul(P, a[t]);
            P = hn::Mul(P, d[t]);
            o[t] = hn::Mul(P, q[t]);
        }
        for (std::size_t t = M; t-- > 0;) {
            w[t] = hn::Mul(left, hn::Load(f, x.at(x.k, t) + i));
            w[t + 2] = hn::Mul(left, hn::Load(f, x.at(x.b, t) + i));
            left = hn::Mul(left, d[t]);
        }
        for (std::size_t j = 0; j < M; ++j) {
            Vec k = hn::Load(f, x.at(x.k, j) + i), b = hn::Load(f, x.at(x.b, j) + i);
            for (std::size_t t = j; t < M; ++t) {
                if (t > j) {
                    ak[t][j] = hn::MulAdd(a[t], k, ak[t][j]);
                    ab[t][j] = hn::MulAdd(a[t], b, ab[t][j]);
                    k = hn::Mul(k, d[t]);
                    b = hn::Mul(b, d[t]);
                }
                qk[t][j] = hn::MulAdd(q[t], k, qk[t][j]);
                qb[t][j] = hn::MulAdd(q[t], b, qb[t][j]);
            }
        }
        hn::Store(P, f, to.decay + i);
        store_by_row(f, w, to.write + kRank * i);
        store_by_row(f, r, to.erase + kRank * i);
        store_by_row(f, o, to.query + kRank * i);
    }
    for (std::size_t t = 0; t < M; ++t)
        for (std::size_t j = 0; j <= t; ++j) {
            tri.erase_on_k[t][j] = sum(f, ak[t][j]);
            tri.erase_on_b[t][j] = sum(f, ab[t][j]);
            tri.read_on_k[t][j] = sum(f, qk[t][j]);
            tri.read_on_b[t][j] = sum(f, qb[t][j]);
        }
}

/// x / sqrt(sum x^2 + 1e-6) times `scale`; x is zero behind its channels, n is padded.
inline void normalise(float* x, std::size_t n, float scale) {
    const F f;
    Vec squares = hn::Zero(f);
    for (std::size_t i = 0; i < n; i += hn::Lanes(f)) {
        const Vec y = hn::Load(f, x + i);
        squares = hn::MulAdd(y, y, squares);
    }
    const Vec factor = hn::Set(f, scale / std::sqrt(sum(f, squares) + 1e-6F));
    for (std::size_t i = 0; i < n; i += hn::Lanes(f)) hn::Store(hn::Mul(hn::Load(f, x + i), factor), f, x + i);
}

/// Loads rows of one head, block by block; `bias` is scratch for its dt_bias, [Kp].
class Loader {
public:
    Loader(const NormalForm& nf, std::int64_t batch, std::int64_t head, std::size_t Kp, float* bias)
        : nf_(nf), batch_(batch), head_(head), key_head_(nf.key_head(head)), Kp_(Kp), bias_(bias) {
        const GateSource& g = nf.gate;
        std::fill_n(bias_, Kp_, 0.0F);
        if (g.kind == GateKind::given || g.decay == Decay::none) return;
        A_log_ = load_as<float>(g.A_log, offset_of(g.A_log, head));
        if (!g.dt_bias.present()) return;
        for (std::size_t i = 0; i < (g.decay == Decay::vector ? static_cast<std::size_t>(nf.K) : 1); ++i)
            bias_[i] = load_as<float>(
                g.dt_bias, g.decay == Decay::vector ? offset_of(g.dt_bias, head, i) : offset_of(g.dt_bias, head));
        if (g.decay == Decay::scalar) std::fill_n(bias_, Kp_, bias_[0]);
    }

    /// What a block's rows have one number of: gates and strengths, a vector of rows at a time.
    void block(std::int64_t row, std::size_t rows) {
        first_row_ = row;
        scalars(nf_.erase, row, rows, erases_);
        scalars(nf_.write, row, rows, writes_);
        const GateSource& s = nf_.gate;
        if (s.decay != Decay::scalar) return;
        for (std::size_t r = 0; r < rows; ++r)
            decays_[r] =
                load_as<float>(s.x, offset_of(s.x, batch_, (row + static_cast<std::int64_t>(r)) / nf_.steps, head_));
        for (std::size_t r = 0; r < rows; r += kCpuBucket) decays(s, A_log_, bias_, kCpuBucket, decays_ + r);
    }

    /// Rows [row, row + m) of the block; without queries, q is left as it is.
    void rows(std::int64_t row, std::size_t m, const Rows& x, bool queries = true) const {
        for (std::size_t t = 0; t < m; ++t) {
            const std::int64_t r = row + static_cast<std::int64_t>(t), token = r / nf_.steps;
            const auto scale = static_cast<float>(nf_.scale);
            if (queries)
                load(nf_.q, offset_of(nf_.q, batch_, token, key_head_), x.at(x.q, t), nf_.qk_l2norm ? 1.0F : scale);
            load(nf_.k, offset_of(nf_.k, batch_, r, key_head_), x.at(x.k, t));
            if (nf_.qk_l2norm) {
                if (queries) normalise(x.at(x.q, t), Kp_, scale);
                normalise(x.at(x.k, t), Kp_, 1.0F);
            }
            decay(r, x.at(x.d, t));
            if (nf_.tied) {
                erase(r, x.at(x.k, t), x.at(x.e, t));
            } else {
                load(nf_.a, offset_of(nf_.a, batch_, token, head_), x.at(x.e, t));
                load(nf_.b, offset_of(nf_.b, batch_, token, head_), x.at(x.b, t));
            }
        }
    }

    /// w o v of a row's columns, zero up to `padded`: in place where v is plain fp32 and w a scalar, in `to` otherwise.
    Values value(std::int64_t row, std::int64_t first, std::size_t columns, std::size_t padded, float* to,
                 float* scratch) const {
        const F f;
        const StrengthSource& s = nf_.write;
        const std::int64_t offset = offset_of(nf_.v, batch_, row, head_) + first;
        const float factor = s.vector || s.kind == StrengthKind::one ? 1.0F : writes_[row - first_row_];
        if (nf_.v.dtype == Dtype::fp32 && columns == padded && !s.vector)
            return {static_cast<const float*>(nf_.v.data) + offset, factor};
        widen(nf_.v.dtype, nf_.v.data, offset, columns, to);
        std::fill(to + columns, to + padded, 0.0F);
        if (s.vector) {
            widen(s.x.dtype, s.x.data, offset_of(s.x, batch_, row, head_) + first, columns, scratch);
            std::fill(scratch + columns, scratch + padded, 0.0F);
            strengths(s.kind, padded, scratch);
            for (std::size_t i = 0; i < padded; i += hn::Lanes(f))
                hn::Store(hn::Mul(hn::Load(f, scratch + i), hn::Load(f, to + i)), f, to + i);
        }
        return {to, factor};
    }

    /// Scalar strengths of a row of the block.
    float erase_of(std::int64_t row) const { return erases_[row - first_row_]; }
    float write_of(std::int64_t row) const { return writes_[row - first_row_]; }

private:
    void load(const Tensor& t, std::int64_t offset, float* to, float factor = 1.0F) const {
        widen(t.dtype, t.data, offset, static_cast<std::size_t>(nf_.K), to, factor);
        std::fill(to + nf_.K, to + Kp_, 0.0F);
    }

    /// Scalar strengths of a block's rows.
    void scalars(const StrengthSource& s, std::int64_t row, std::size_t rows, float* to) const {
        if (s.vector || s.kind == StrengthKind::one) return;
        for (std::size_t r = 0; r < rows; ++r)
            to[r] = load_as<float>(s.x, offset_of(s.x, batch_, row + static_cast<std::int64_t>(r), head_));
        strengths(s.kind, kMost, to);
    }

    void erase(std::int64_t row, const float* k, float* to) const {
        const F f;
        const StrengthSource& s = nf_.erase;
        if (s.vector) {
            load(s.x, offset_of(s.x, batch_, row, head_), to);
            strengths(s.kind, Kp_, to);
        }
        const Vec e = hn::Set(f, s.vector || s.kind == StrengthKind::one ? 1.0F : erases_[row - first_row_]);
        for (std::size_t i = 0; i < Kp_; i += hn::Lanes(f))
            hn::Store(hn::Mul(s.vector ? hn::Load(f, to + i) : e, hn::Load(f, k + i)), f, to + i);
    }

    void decay(std::int64_t row, float* to) const {
        const GateSource& s = nf_.gate;
        if (s.decay == Decay::none || row % nf_.steps > 0) {
            std::fill_n(to, Kp_, 1.0F);
        } else if (s.decay == Decay::vector) {
            load(s.x, offset_of(s.x, batch_, row / nf_.steps, head_), to);
            decays(s, A_log_, bias_, Kp_, to);
        } else {
            std::fill_n(to, Kp_, decays_[row - first_row_]);
        }
    }

    static constexpr std::size_t kMost = kRank * kPassesPerBlock;  ///< rows a block

    const NormalForm& nf_;
    std::int64_t batch_, head_, key_head_;
    std::size_t Kp_;
    float* bias_;
    float A_log_ = 0;
    std::int64_t first_row_ = 0;
    alignas(64) float decays_[kMost] = {}, erases_[kMost] = {}, writes_[kMost] = {};
};

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
