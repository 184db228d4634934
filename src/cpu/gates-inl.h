// exp, sigmoid and the two gate forms on vectors, and a token's decays and strengths from their sources.
#include "problem/load.h"
#include "problem/normal_form.h"

#if defined(TIDEGATE_CPU_GATES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_CPU_GATES_INL_H
#undef TIDEGATE_CPU_GATES_INL_H
#else
#define TIDEGATE_CPU_GATES_INL_H
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {

/// e^x; Highway's own takes NaN to 0 and is not defined above 104.
HWY_INLINE Vec exp_of(F f, Vec x) {
    const Vec y = hn::Exp(f, hn::Min(x, hn::Set(f, 89.0F)));  // 89: inf in fp32
    return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenElse(hn::Ge(x, hn::Set(f, 88.72284F)), hn::Inf(f), y));
}

HWY_INLINE Vec sigmoid_of(F f, Vec x) {
    const Vec one = hn::Set(f, 1.0F), e = exp_of(f, hn::Neg(hn::Abs(x)));
    return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(f)), e, one), hn::Add(one, e));
}

/// As softplus_gate() of problem/load.h.
HWY_INLINE Vec softplus_of(F f, Vec A_log, Vec x) {
    const Vec plus = hn::Add(hn::Max(x, hn::Zero(f)), hn::Log1p(f, exp_of(f, hn::Neg(hn::Abs(x)))));
    const Vec g =
        hn::IfThenElse(hn::Lt(x, hn::Set(f, -17.0F)), exp_of(f, hn::Add(A_log, x)), hn::Mul(exp_of(f, A_log), plus));
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Neg(g));
}

HWY_INLINE Vec bounded_of(F f, Vec A_log, Vec x, Vec lower_bound) {
    const Vec z = hn::IfThenElse(hn::Eq(x, hn::Zero(f)), x, hn::Mul(exp_of(f, A_log), x));
    return hn::Mul(lower_bound, sigmoid_of(f, z));
}

/// d[0, n) = exp(g) where d holds g or, by the source's kind, logits a, of one head; `bias` and `n` as d, padded.
inline void decays(const GateSource& s, float A_log, const float* bias, std::size_t n, float* d) {
    const F f;
    const Vec log = hn::Set(f, A_log), bound = hn::Set(f, static_cast<float>(s.lower_bound));
    const Vec least = hn::Set(f, static_cast<float>(s.min.value_or(0)));
    for (std::size_t i = 0; i < n; i += hn::Lanes(f)) {
        Vec g = hn::LoadU(f, d + i);
        if (s.kind != GateKind::given) {
            const Vec x = hn::Add(g, hn::LoadU(f, bias + i));
            g = s.kind == GateKind::softplus ? softplus_of(f, log, x) : bounded_of(f, log, x, bound);
        }
        if (s.min) g = hn::IfThenElse(hn::Lt(g, least), least, g);  // NaN stays NaN
        hn::StoreU(exp_of(f, g), f, d + i);
    }
}

/// x[0, n) from given strengths or logits to strengths; n is padded.
inline void strengths(StrengthKind kind, std::size_t n, float* x) {
    if (kind == StrengthKind::given) return;
    const F f;
    const Vec factor = hn::Set(f, kind == StrengthKind::twice_sigmoid ? 2.0F : 1.0F);
    for (std::size_t i = 0; i < n; i += hn::Lanes(f)) {
        const Vec y =
            kind == StrengthKind::one ? hn::Set(f, 1.0F) : hn::Mul(factor, sigmoid_of(f, hn::LoadU(f, x + i)));
        hn::StoreU(y, f, x + i);
    }
}

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
