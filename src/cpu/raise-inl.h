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

/// Gradients of a row of the normal form, and what it was loaded as; rows are padded.
struct RowGradients {
    const float *k, *value;              ///< normalised k; v as it was given
    float *dq, *dk, *de, *db, *dv, *dg;  ///< by the scaled q, k, e o k (free: a), b, the value, log-decays
};

/// Stores the gradients of one sequence and key head, value head by value head.
class Raiser {
public:
    Raiser(const BackwardForm& form, std::int64_t batch, std::int64_t first, std::int64_t key_head, std::size_t Kp,
           std::size_t Vp)
        : f_(form),
          nf_(form.nf),
          batch_(batch),
          first_(first),
          key_head_(key_head),
          K_(static_cast<std::size_t>(nf_.K)),
          V_(static_cast<std::size_t>(nf_.V)),
          Kp_(Kp),
          Vp_(Vp) {}

    /// Scratch of max(Kp, Vp) values each, sums of [rows, Kp] where value heads share a key head, and [HV, 1 + n] sums
    /// for dA_log and ddt_bias where they exist.
    float *line_ = nullptr, *raw_ = nullptr, *spare_ = nullptr, *dq_sum_ = nullptr, *dk_sum_ = nullptr;
    const float *ones_ = nullptr, *bias_ = nullptr;
    double* parameters_ = nullptr;

    /// The value head that follows; whether others of its key head came before, and come after it.
    void head(std::int64_t h, bool before, bool after) {
        h_ = h;
        before_ = before;
        after_ = after;
    }

    /// Row `index` of the sequence.
    void row(const Loader& loader, std::int64_t index, const RowGradients& d) {
        const std::int64_t row = first_ + index, token = row / nf_.steps;
        std::int64_t at = 0;
        if ((row + 1) % nf_.steps == 0) {
            scaled(static_cast<float>(nf_.scale), d.dq, Kp_, d.dq);
            add_up(Role::q, nf_.q, token, dq_sum_, index / nf_.steps, d.dq);
        }
        if (nf_.tied) strengths(loader, row, d);
        add_up(Role::k, nf_.k, row, dk_sum_, index, d.dk);
        if (wants(Role::v, at, row, h_)) put(Role::v, at, d.dv, V_);
        if (!nf_.tied) {
            if (wants(Role::a, at, token, h_)) put(Role::a, at, d.de, K_);
            if (wants(Role::b, at, token, h_)) put(Role::b, at, d.db, K_);
        }
        if (row % nf_.steps == 0 && nf_.gate.decay != Decay::none) gates(token, d.dg);
    }

private:
    void put(Role role, std::int64_t offset, const float* x, std::size_t n) const {
        narrow(f_.of(role).dtype, x, n, f_.of(role).data, offset);
    }
    template <class... Index>
    bool wants(Role role, std::int64_t& offset, Index... index) const {
        const Tensor& t = f_.of(role);
        if (t.present()) offset = offset_of(t, batch_, index...);
        return t.present();
    }
    const float* raw(const Tensor& t, std::int64_t offset, std::size_t n, std::size_t padded) const {
        widen(t.dtype, t.data, offset, n, raw_);
        std::fill(raw_ + n, raw_ + padded, 0.0F);
        return raw_;
    }

    /// A row's gradient that all value heads of the key head add to, in their order; the last one stores it.
    void add_up(Role role, const Tensor& x, std::int64_t row, float* sums, std::int64_t index, float* d) const {
        float* const sum = sums + static_cast<std::size_t>(index) * Kp_;
        if (before_) add(1.0F, sum, Kp_, d);
        if (after_) std::copy_n(d, Kp_, sum);
        std::int64_t at = 0;
        if (after_ || !wants(role, at, row, key_head_)) return;
        if (nf_.qk_l2norm) raise_norm(raw(x, offset_of(x, batch_, row, key_head_), K_, Kp_), Kp_, d);
        put(role, at, d, K_);
    }

    /// Tied: erase and write strengths; dk gets its part in the error term, dv becomes the gradient of v.
    void strengths(const Loader& loader, std::int64_t row, const RowGradients& d) {
        const StrengthSource &e = nf_.erase, &w = nf_.write;
        std::int64_t at = 0;
        float d_erase = 0, d_write = 0;
        if (w.vector) {
            const float* const x = raw(nf_.v, offset_of(nf_.v, batch_, row, h_), V_, Vp_);
            multiply(x, d.dv, Vp_, spare_);
            widen(w.x.dtype, w.x.data, offset_of(w.x, batch_, row, h_), V_, raw_);
            times_strength_slope(w.kind, raw_, Vp_, spare_);
            if (wants(Role::write, at, row, h_)) put(Role::write, at, spare_, V_);
            cpu::HWY_NAMESPACE::strengths(w.kind, Vp_, raw_);
            multiply(raw_, d.dv, Vp_, d.dv);
        } else if (w.kind != StrengthKind::one) {
            d_write = dot(d.value, d.dv, Vp_);
            scaled(loader.write_of(row), d.dv, Vp_, d.dv);
        }
        if (e.vector) {
            const float* const x = raw(e.x, offset_of(e.x, batch_, row, h_), K_, Kp_);
            multiply(d.k, d.de, Kp_, line_);
            times_strength_slope(e.kind, x, Kp_, line_);
            if (wants(Role::erase, at, row, h_)) put(Role::erase, at, line_, K_);
            cpu::HWY_NAMESPACE::strengths(e.kind, Kp_, raw_);
            multiply(raw_, d.de, Kp_, d.de);
            add(1.0F, d.de, Kp_, d.dk);
        } else {
            d_erase = dot(d.k, d.de, Kp_);
            add(e.kind == StrengthKind::one ? 1.0F : loader.erase_of(row), d.de, Kp_, d.dk);
        }
        const auto scalar = [&](Role role, const StrengthSource& s, float x) {
            if (!wants(role, at, row, h_)) return;
            x *= strength_slope(s.kind, load_as<float>(s.x, offset_of(s.x, batch_, row, h_)));
            put(role, at, &x, 1);
        };
        if (f_.one_strength())
            scalar(Role::erase, e, d_erase + d_write);
        else if (e.kind != StrengthKind::one && !e.vector)
            scalar(Role::erase, e, d_erase);
        else if (w.kind != StrengthKind::one && !w.vector)
            scalar(Role::write, w, d_write);
    }

    void gates(std::int64_t token, float* dg) {
        const GateSource& s = nf_.gate;
        const bool vector = s.decay == Decay::vector;
        const std::size_t n = vector ? K_ : 1;
        if (!vector) {
            const float all = dot(dg, ones_, Kp_);
            std::fill_n(dg, Kp_, 0.0F);
            dg[0] = all;
        }
        const float* const x = raw(s.x, offset_of(s.x, batch_, token, h_), n, Kp_);
        const float A_log = f_.has(Role::A_log) ? load_as<float>(s.A_log, offset_of(s.A_log, h_)) : 0.0F;
        const float of_log = raise_gates(s, A_log, bias_, x, vector ? Kp_ : static_cast<std::size_t>(kCpuBucket), dg);
        std::int64_t at = 0;
        if (wants(Role::gate, at, token, h_)) put(Role::gate, at, dg, n);
        if (parameters_ == nullptr) return;
        double* const sums = parameters_ + static_cast<std::size_t>(h_) * (n + 1);
        sums[0] += static_cast<double>(of_log);
        for (std::size_t i = 0; i < n; ++i) sums[i + 1] += static_cast<double>(dg[i]);
    }

    const BackwardForm& f_;
    const NormalForm& nf_;
    const std::int64_t batch_, first_, key_head_;  ///< first_: row of the sequence's first, in nf.k
    const std::size_t K_, V_, Kp_, Vp_;
    std::int64_t h_ = 0;
    bool before_ = false, after_ = false;
};

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
