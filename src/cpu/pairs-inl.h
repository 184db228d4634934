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

/// Tied rows read P_t o e_t after their decay, and what they read is subtracted; free ones a_t before it, added.
template <bool kTied>
HWY_NOINLINE void pairs(const BlockRows& b, std::size_t n, std::size_t Kp) {
    const F f;
    constexpr std::size_t R = kBackRows;
    for (std::size_t i = 0; i < Kp; i += hn::Lanes(f)) {
        Vec q_then[R][R], e_then[R][R];  // [t][m]: q_m and e_m carried back to row t
        Vec y[R], z[R], E_then[R];       // products with S carried on; what E is worth at row t
        const auto at = [&](const float* x, std::size_t t)
                            TIDEGATE_INNER { return hn::LoadU(f, x + t * b.x.stride + i); };
        const auto put = [&](Vec v, float* x, std::size_t t)
                             TIDEGATE_INNER { hn::StoreU(v, f, x + t * b.x.stride + i); };
        const auto scalar = [&](const float* c, std::size_t m, std::size_t t)
                                TIDEGATE_INNER { return hn::Set(f, c[t * 2 * R + m]); };
        E_then[n - 1] = hn::Set(f, 1.0F);
        for (std::size_t t = n; t-- > 0;) {
            if (t + 1 < n) {
                const Vec d = at(b.x.d, t + 1);
                E_then[t] = hn::Mul(d, E_then[t + 1]);
                for (std::size_t m = t + 1; m < n; ++m) q_then[t][m] = hn::Mul(d, q_then[t + 1][m]);
                for (std::size_t m = t + (kTied ? 1 : 2); m < n; ++m) e_then[t][m] = hn::Mul(d, e_then[t + 1][m]);
                if (!kTied) e_then[t][t + 1] = at(b.x.e, t + 1);
            }
            q_then[t][t] = at(b.x.q, t);
            if (kTied) e_then[t][t] = at(b.x.e, t);
            const auto gradient = [&](float* x, const float* with_do, const float* with_dw) TIDEGATE_INNER {
                Vec sum = hn::Mul(E_then[t], at(x, t));
                for (std::size_t m = t; m < n; ++m) sum = hn::MulAdd(q_then[t][m], scalar(with_do, m, t), sum);
                for (std::size_t m = t + 1; m < n; ++m)
                    sum = kTied ? hn::NegMulAdd(e_then[t][m], scalar(with_dw, m, t), sum)
                                : hn::MulAdd(e_then[t][m], scalar(with_dw, m, t), sum);
                return sum;
            };
            y[t] = gradient(b.by_write, b.do_u, b.dw_u);  // kept apart: E u_t is needed below
            if (!kTied) z[t] = gradient(b.by_b, b.do_p, b.dw_p);
        }
        Vec dk[R], db[R];
        for (std::size_t t = 0; t < n; ++t) {
            dk[t] = y[t];
            if (!kTied) db[t] = z[t];
            y[t] = at(b.on_do, t);
            z[t] = at(b.on_dw, t);
        }
        Vec inner = hn::LoadU(f, b.inner + i);
        for (std::size_t t = 0; t < n; ++t) {
            const Vec d = at(b.x.d, t), k = at(b.x.k, t);
            if (!kTied) put(z[t], b.on_dw, t);
            inner = hn::Mul(d, inner);
            Vec dg = hn::Mul(E_then[t], inner);
            for (std::size_t m = t; m < n; ++m) {
                y[m] = hn::Mul(d, y[m]);
                dg = hn::MulAdd(q_then[t][m], y[m], dg);
                y[m] = hn::MulAdd(k, scalar(b.do_u, m, t), y[m]);
            }
            for (std::size_t m = t + (kTied ? 0 : 1); m < n; ++m) {
                z[m] = hn::Mul(d, z[m]);
                dg = kTied ? hn::NegMulAdd(e_then[t][m], z[m], dg) : hn::MulAdd(e_then[t][m], z[m], dg);
            }
            if (kTied) put(hn::Neg(z[t]), b.on_dw, t);
            for (std::size_t m = t + 1; m < n; ++m) z[m] = hn::MulAdd(k, scalar(b.dw_u, m, t), z[m]);
            inner = hn::MulAdd(k, at(b.by_write, t), inner);
            if (!kTied) {
                const Vec along_b = at(b.x.b, t);
                for (std::size_t m = t; m < n; ++m) y[m] = hn::MulAdd(along_b, scalar(b.do_p, m, t), y[m]);
                for (std::size_t m = t + 1; m < n; ++m) z[m] = hn::MulAdd(along_b, scalar(b.dw_p, m, t), z[m]);
                inner = hn::MulAdd(along_b, at(b.by_b, t), inner);
            }
            put(y[t], b.on_do, t);
            put(dg, b.dg, t);
        }
        for (std::size_t t = 0; t < n; ++t) {
            put(dk[t], b.by_write, t);
            if (!kTied) put(db[t], b.by_b, t);
        }
    }
}

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
