// raise() on rows: from gradients of a row of the normal form to what the caller asked for. The SIMD twin of
// problem/raise.h.
#include "problem/gradients.h"
#include "problem/raise.h"

#if defined(TIDEGATE_CPU_RAISE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_CPU_RAISE_INL_H
#undef TIDEGATE_CPU_RAISE_INL_H
#else
#define TIDEGATE_CPU_RAISE_INL_H
#endif

#include <hwy/highway.h>

#include "cpu/front-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {

/// sum_i x_i y_i; n is padded.
HWY_INLINE float dot(const float* x, const float* y, std::size_t n) {
    const F f;
    Vec s = hn::Zero(f);
    for (std::size_t i = 0; i < n; i += hn::Lanes(f)) s = hn::MulAdd(hn::LoadU(f, x + i), hn::LoadU(f, y + i), s);
    return sum(f, s);
}

/// y += c x
HWY_INLINE void add(float c, const float* x, std::size_t n, float* y) {
    const F f;
    for (std::size_t i = 0; i < n; i += hn::Lanes(f))
        hn::StoreU(hn::MulAdd(hn::Set(f, c), hn::LoadU(f, x + i), hn::LoadU(f, y + i)), f, y + i);
}

/// y = c x
HWY_INLINE void scaled(float c, const float* x, std::size_t n, float* y) {
    const F f;
    for (std::size_t i = 0; i < n; i += hn::Lanes(f)) hn::StoreU(hn::Mul(hn::Set(f, c), hn::LoadU(f, x + i)), f, y + i);
}

/// z = x o y
HWY_INLINE void multiply(const float* x, const float* y, std::size_t n, float* z) {
    const F f;
    for (std::size_t i = 0; i < n; i += hn::Lanes(f))
        hn::StoreU(hn::Mul(hn::LoadU(f, x + i), hn::LoadU(f, y + i)), f, z + i);
}

/// x o slopes of the strengths that `raw` holds.
inline void times_strength_slope(StrengthKind kind, const float* raw, std::size_t n, float* x) {
    if (kind == StrengthKind::given) return;
    const F f;
    const Vec factor = hn::Set(f, kind == StrengthKind::twice_sigmoid ? 2.0F : 1.0F);
    for (std::size_t i = 0; i < n; i += hn::Lanes(f)) {
        const Vec r = hn::LoadU(f, raw + i), s = hn::Mul(sigmoid_of(f, r), sigmoid_of(f, hn::Neg(r)));
        hn::StoreU(hn::Mul(hn::LoadU(f, x + i), hn::Mul(factor, s)), f, x + i);
    }
}

/// The gradient d of x / sqrt(sum x^2 + 1e-6) becomes that of x.
inline void raise_norm(const float* x, std::size_t n, float* d) {
    const F f;
    const float squares = dot(x, x, n) + 1e-6F, inverse = 1 / std::sqrt(squares);
    const Vec by = hn::Set(f, inverse), along = hn::Set(f, dot(x, d, n) / squares);
    for (std::size_t i = 0; i < n; i += hn::Lanes(f))
        hn::StoreU(hn::Mul(by, hn::NegMulAdd(along, hn::LoadU(f, x + i), hn::LoadU(f, d + i))), f, d + i);
}

/// Gradients dg of n log-decays become those of the source's elements `x` (bias not yet added); returns the share of
/// dA_log. As gate_slope() of problem/raise.h.
inline float raise_gates(const GateSource& s, float A_log, const float* bias, const float* x, std::size_t n,
                         float* dg) {
    const F f;
    const Vec log = hn::Set(f, A_log), bound = hn::Set(f, static_cast<float>(s.lower_bound)), zero = hn::Zero(f);
    const Vec least = hn::Set(f, static_cast<float>(std::max(s.min.value_or(-128), -128.0)));
    Vec of_log = zero;
    for (std::size_t i = 0; i < n; i += hn::Lanes(f)) {
        Vec g = hn::LoadU(f, x + i), by_x = hn::Set(f, 1.0F), by_log = zero;
        if (s.kind != GateKind::given) {
            const Vec y = hn::Add(g, hn::LoadU(f, bias + i));
            if (s.kind == GateKind::softplus) {
                const Vec minus = hn::Neg(y);
                const Vec plus =
                    hn::Add(hn::Max(minus, zero), hn::Log1p(f, exp_of(f, hn::Neg(hn::Abs(y)))));  // softplus(-y)
                g = by_log = softplus_of(f, log, y);
                by_x = hn::Neg(exp_of(f, hn::Sub(log, plus)));
            } else {
                const Vec z = hn::IfThenElse(hn::Eq(y, zero), y, hn::Mul(exp_of(f, log), y));
                const Vec up = sigmoid_of(f, z), slope = hn::Mul(bound, hn::Mul(up, sigmoid_of(f, hn::Neg(z))));
                const auto flat = hn::Eq(slope, zero);
                g = hn::Mul(bound, up);
                by_x = hn::IfThenZeroElse(flat, hn::Mul(slope, exp_of(f, log)));
                by_log = hn::IfThenZeroElse(flat, hn::Mul(slope, z));
            }
        }
        const auto below = hn::Lt(g, least);
        const Vec d = hn::LoadU(f, dg + i);
        const auto flat_x = hn::Or(below, hn::Eq(by_x, zero)), flat_log = hn::Or(below, hn::Eq(by_log, zero));
        hn::StoreU(hn::IfThenZeroElse(flat_x, hn::Mul(by_x, d)), f, dg + i);
        of_log = hn::Add(of_log, hn::IfThenZeroElse(flat_log, hn::Mul(by_log, d)));
    }
    return sum(f, of_log);
}

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
