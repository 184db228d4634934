// Gradients of a block's rows along K: what its own rows owe each other, channel by channel.
//
// With S the state that enters the block and E the gradient of the one that leaves it, the state after row t is
// P_{0..t} S + sum_{j <= t} P_{j+1..t} (k_j u_j^T [+ b_j p_j^T]), and the gradient of it P_{t+1..} E + sum_{m >= t}
// P_{t+1..m} q_m do_m^T + sum_{m > t} (what row m reads) dw_m^T, P a product of decays. Products with S and E are
// given; here decays carry them from row to row, so that no factor is above 1 and none is divided by.
#include "cpu/kernels.h"

#if defined(TIDEGATE_CPU_PAIRS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_CPU_PAIRS_INL_H
#undef TIDEGATE_CPU_PAIRS_INL_H
#else
#define TIDEGATE_CPU_PAIRS_INL_H
#endif

#include <hwy/highway.h>

#include "cpu/front-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {

/// Rows [kBackRows, stride] of a block and of its products.
struct BlockRows {
    Rows x;                    ///< q (scaled), k, d, e, b
    float *on_do, *on_dw;      ///< S do_t, S dw_t; become S_t do_t and what row t reads times dw_t
    float *by_write, *by_b;    ///< E u_t (free: E v_t), E p_t; become gradients of k and b along their writes
    float *dg, *inner;         ///< gradient of the log-decays; [stride]: sum_j S[:, j] E[:, j]
    const float *do_u, *dw_u;  ///< [t, m], 2 kBackRows a row: do_m . u_t, dw_m . u_t (free: v_t)
    const float *do_p, *dw_p;  ///< free: do_m . p_t, dw_m . p_t
};

/// One vector of channels of a block. Tied rows read e_t after their decay, and what they read is subtracted; free ones
/// a_t before it, added. Rows stand in groups of kGroup: decays carry sums from group to group, and inside one from row
/// to row, so that a pair of rows costs a multiplication only where it stands in one group.
template <bool kTied>
class Channels {
public:
    Channels(const BlockRows& b, std::size_t n, std::size_t channel) : b_(b), n_(n), i_(channel) {
        for (std::size_t g = 0; g * kGroup < n; ++g) groups_ = g + 1;
    }

    HWY_INLINE void run() {
        const F f;
        for (std::size_t t = 0; t < n_; ++t) {
            y_[t] = at(b_.on_do, t);
            z_[t] = at(b_.on_dw, t);
            x_[t] = at(b_.by_write, t);
            if (!kTied) xb_[t] = at(b_.by_b, t);
        }
        for (std::size_t g = 0; g < groups_; ++g) carry(g);
        later();
        Vec inner = hn::LoadU(f, b_.inner + i_);
        for (std::size_t g = 0; g < groups_; ++g) {  // S on to each group, and with it S o E as E leaves that group
            Vec M = hn::Mul(E_then_[g], inner);
            for (std::size_t m = end(g); m < n_; ++m)
                M = subtract(hn::MulAdd(q_then_[g][m], y_[m], M), e_then_[g][m], z_[m]);
            M_[g] = M;
            if (g + 1 == groups_) break;
            inner = hn::Mul(D_[g], inner);
            for (std::size_t j = first(g); j < end(g); ++j) {
                inner = hn::MulAdd(k_[j], at(b_.by_write, j), inner);
                if (!kTied) inner = hn::MulAdd(kb_[j], at(b_.by_b, j), inner);
            }
            for (std::size_t m = end(g); m < n_; ++m) {
                Vec y = hn::Mul(D_[g], y_[m]), z = hn::Mul(D_[g], z_[m]);
                for (std::size_t j = first(g); j < end(g); ++j) {
                    y = hn::MulAdd(k_[j], scalar(b_.do_u, m, j), y);
                    z = hn::MulAdd(k_[j], scalar(b_.dw_u, m, j), z);
                    if (kTied) continue;
                    y = hn::MulAdd(kb_[j], scalar(b_.do_p, m, j), y);
                    z = hn::MulAdd(kb_[j], scalar(b_.dw_p, m, j), z);
                }
                y_[m] = y;
                z_[m] = z;
            }
        }
        for (std::size_t g = groups_; g-- > 1;)  // E back to each group
            for (std::size_t t = 0; t < first(g); ++t) {
                const auto back = [&](Vec x, const float* with_do, const float* with_dw) TIDEGATE_INNER {
                    x = hn::Mul(D_[g], x);
                    for (std::size_t m = first(g); m < end(g); ++m)
                        x = subtract(hn::MulAdd(q_[m], scalar(with_do, m, t), x), e_[m], scalar(with_dw, m, t));
                    return x;
                };
                x_[t] = back(x_[t], b_.do_u, b_.dw_u);
                if (!kTied) xb_[t] = back(xb_[t], b_.do_p, b_.dw_p);
            }
        for (std::size_t g = 0; g < groups_; ++g) within(g);
    }

private:
    static constexpr std::size_t R = kBackRows, kGroup = 4, kGroups = R / kGroup;
    static std::size_t first(std::size_t g) { return g * kGroup; }
    std::size_t end(std::size_t g) const { return std::min((g + 1) * kGroup, n_); }
    HWY_INLINE Vec at(const float* x, std::size_t t) const { return hn::LoadU(F(), x + t * b_.x.stride + i_); }
    HWY_INLINE void put(Vec v, float* x, std::size_t t) const { hn::StoreU(v, F(), x + t * b_.x.stride + i_); }
    static HWY_INLINE Vec scalar(const float* c, std::size_t m, std::size_t t) {
        return hn::Set(F(), c[t * 2 * R + m]);
    }
    /// sum - e x (free: + e x)
    static HWY_INLINE Vec subtract(Vec sum, Vec e, Vec x) {
        return kTied ? hn::NegMulAdd(e, x, sum) : hn::MulAdd(e, x, sum);
    }

    /// What group g's rows write, carried on to its end, and read with, carried back to its start.
    HWY_INLINE void carry(std::size_t g) {
        const F f;
        Vec left = hn::Set(f, 1.0F);
        for (std::size_t t = end(g); t-- > first(g);) {
            k_[t] = hn::Mul(left, at(b_.x.k, t));
            if (!kTied) kb_[t] = hn::Mul(left, at(b_.x.b, t));
            left = hn::Mul(left, at(b_.x.d, t));
        }
        D_[g] = left;
        Vec P = hn::Set(f, 1.0F);
        for (std::size_t t = first(g); t < end(g); ++t) {
            if (!kTied) e_[t] = hn::Mul(P, at(b_.x.e, t));
            P = hn::Mul(P, at(b_.x.d, t));
            q_[t] = hn::Mul(P, at(b_.x.q, t));
            if (kTied) e_[t] = hn::Mul(P, at(b_.x.e, t));
        }
    }

    /// What later rows read with, carried back to the end of each group; and what E is worth there.
    HWY_INLINE void later() {
        E_then_[groups_ - 1] = hn::Set(F(), 1.0F);
        for (std::size_t g = groups_ - 1; g-- > 0;) {
            E_then_[g] = hn::Mul(D_[g + 1], E_then_[g + 1]);
            for (std::size_t m = first(g + 1); m < n_; ++m) {
                const bool next = m < end(g + 1);
                q_then_[g][m] = next ? q_[m] : hn::Mul(D_[g + 1], q_then_[g + 1][m]);
                e_then_[g][m] = next ? e_[m] : hn::Mul(D_[g + 1], e_then_[g + 1][m]);
            }
        }
    }

    /// Rows of one group: y, z and x are products with the state that enters it and the gradient of the one that
    /// leaves.
    HWY_INLINE void within(std::size_t g) {
        const F f;
        const std::size_t o = first(g), n = end(g) - o;
        Vec q_now[kGroup][kGroup], e_now[kGroup][kGroup], E_now[kGroup], dk[kGroup], db[kGroup];
        E_now[n - 1] = hn::Set(f, 1.0F);
        for (std::size_t t = n; t-- > 0;) {  // [t][m]: row m's q and e carried back to row t
            if (t + 1 < n) {
                const Vec d = at(b_.x.d, o + t + 1);
                E_now[t] = hn::Mul(d, E_now[t + 1]);
                for (std::size_t m = t + 1; m < n; ++m) q_now[t][m] = hn::Mul(d, q_now[t + 1][m]);
                for (std::size_t m = t + (kTied ? 1 : 2); m < n; ++m) e_now[t][m] = hn::Mul(d, e_now[t + 1][m]);
                if (!kTied) e_now[t][t + 1] = at(b_.x.e, o + t + 1);
            }
            q_now[t][t] = at(b_.x.q, o + t);
            if (kTied) e_now[t][t] = at(b_.x.e, o + t);
            const auto gradient = [&](Vec x, const float* with_do, const float* with_dw) TIDEGATE_INNER {
                Vec sum = hn::Mul(E_now[t], x);
                for (std::size_t m = t; m < n; ++m) sum = hn::MulAdd(q_now[t][m], scalar(with_do, o + m, o + t), sum);
                for (std::size_t m = t + 1; m < n; ++m) sum = subtract(sum, e_now[t][m], scalar(with_dw, o + m, o + t));
                return sum;
            };
            dk[t] = gradient(x_[o + t], b_.do_u, b_.dw_u);
            if (!kTied) db[t] = gradient(xb_[o + t], b_.do_p, b_.dw_p);
        }
        Vec inner = M_[g];
        for (std::size_t t = 0; t < n; ++t) {
            const std::size_t r = o + t;
            const Vec d = at(b_.x.d, r), k = at(b_.x.k, r), along_b = kTied ? k : at(b_.x.b, r);
            if (!kTied) put(z_[r], b_.on_dw, r);
            inner = hn::Mul(d, inner);
            Vec dg = hn::Mul(E_now[t], inner);
            for (std::size_t m = t; m < n; ++m) {
                y_[o + m] = hn::Mul(d, y_[o + m]);
                dg = hn::MulAdd(q_now[t][m], y_[o + m], dg);
                y_[o + m] = hn::MulAdd(k, scalar(b_.do_u, o + m, r), y_[o + m]);
                if (!kTied) y_[o + m] = hn::MulAdd(along_b, scalar(b_.do_p, o + m, r), y_[o + m]);
            }
            for (std::size_t m = t + (kTied ? 0 : 1); m < n; ++m) {
                z_[o + m] = hn::Mul(d, z_[o + m]);
                dg = subtract(dg, e_now[t][m], z_[o + m]);
                if (m == t) continue;
                z_[o + m] = hn::MulAdd(k, scalar(b_.dw_u, o + m, r), z_[o + m]);
                if (!kTied) z_[o + m] = hn::MulAdd(along_b, scalar(b_.dw_p, o + m, r), z_[o + m]);
            }
            if (kTied) put(hn::Neg(z_[r]), b_.on_dw, r);
            inner = hn::MulAdd(k, x_[r], inner);
            if (!kTied) inner = hn::MulAdd(along_b, xb_[r], inner);
            put(y_[r], b_.on_do, r);
            put(dg, b_.dg, r);
            put(dk[t], b_.by_write, r);
            if (!kTied) put(db[t], b_.by_b, r);
        }
    }

    const BlockRows& b_;
    const std::size_t n_, i_;
    std::size_t groups_ = 0;
    Vec y_[R], z_[R], x_[R], xb_[R];               // products with S and E, carried along
    Vec k_[R], kb_[R], q_[R], e_[R], D_[kGroups];  // of groups: written at the end, read from the start; whole decays
    Vec q_then_[kGroups][R], e_then_[kGroups][R], E_then_[kGroups], M_[kGroups];
};

template <bool kTied>
HWY_NOINLINE void pairs(const BlockRows& b, std::size_t n, std::size_t Kp) {
    for (std::size_t i = 0; i < Kp; i += hn::Lanes(F())) Channels<kTied>(b, n, i).run();
}

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
