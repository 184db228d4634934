// Backward: the blocked recurrence in reverse; compiled once for every target.
//
// A segment's states are recomputed from its checkpoint, and the state that enters each block of kBackRows rows is
// kept. From the last block to the first, the gradient E of the state then passes over the slices of state columns as
// the state does in forward, with the same coefficients in other places: what forward writes along, E is read with, and
// what forward reads with, E is written along. Gradients along K are products of a block's rows with the two states
// (products-inl.h), carried to each row by its decays (pairs-inl.h). Cost a token and head: 16 K V FLOP for tied rows,
// 4 of them the recomputation; 22 for free ones.
#include <algorithm>
#include <utility>

#include "cpu/kernels.h"
#include "problem/load.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_hwy.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include "cpu/front-inl.h"
#include "cpu/pairs-inl.h"
#include "cpu/products-inl.h"
#include "cpu/raise-inl.h"
#include "cpu/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {

/// One sequence and key head: its value heads in turn.
template <bool kTied>
class Reverse {
public:
    Reverse(const BackwardForm& form, const BackwardTask& task)
        : f_(form),
          nf_(form.nf),
          task_(task),
          n_(task.sequence),
          K_(static_cast<std::size_t>(nf_.K)),
          V_(static_cast<std::size_t>(nf_.V)),
          Kp_(static_cast<std::size_t>(cpu_bucket(nf_.K))),
          Vp_(static_cast<std::size_t>(cpu_bucket(nf_.V))),
          span_(nf_.sequence(n_)),
          first_(span_.begin * nf_.steps),
          rows_((span_.end - span_.begin) * nf_.steps),
          spacing_(std::max(std::min(task.spacing, rows_), std::int64_t{1})) {
        float* w = task.workspace;
        const auto take = [&w](std::size_t floats) { return std::exchange(w, w + floats); };
        S_ = take(K_ * Vp_);
        E_ = take(K_ * Vp_);
        ET_ = take(Vp_ * Kp_);
        uT_ = take(Vp_ * R);
        for (Coefficients& c : c_) c = {take(Kp_), take(kRank * Kp_), take(kRank * Kp_), take(kRank * Kp_)};
        b_.x = {take(R * Kp_), take(R * Kp_), take(R * Kp_), take(R * Kp_), take(R * Kp_), Kp_};
        for (float** x : {&b_.on_do, &b_.on_dw, &b_.by_write, &b_.by_b, &b_.dg}) *x = take(R * Kp_);
        b_.inner = take(Kp_);
        for (float** x : {&bias_, &ones_, &line_, &raw_}) *x = take(std::max(Kp_, Vp_));
        for (float** x : {&v_, &do_, &dv_, &dp_, &p_}) *x = take(R * Vp_);
        for (float** x : {&delta_, &delta_b_, &read_}) *x = take(kRank * Vp_);
        for (float*& x : dots_) x = take(R * R);
        dq_sum_ = take(task.shared ? static_cast<std::size_t>(task.longest) * Kp_ : 0);
        dk_sum_ = take(task.shared ? static_cast<std::size_t>(task.longest) * Kp_ : 0);
        const auto segment = static_cast<std::size_t>(task.spacing);
        written_ = take(segment * Vp_);
        entering_ = take((segment + R - 1) / R * Vp_ * Kp_);
        checkpoints_ = w;
        std::fill_n(ones_, std::max(Kp_, Vp_), 1.0F);
        b_.do_u = dots_[0], b_.dw_u = dots_[1], b_.do_p = dots_[2], b_.dw_p = dots_[3];
    }

    void run() {
        const std::int64_t group = nf_.value_heads / nf_.key_heads;
        for (std::int64_t i = 0; i < group; ++i) {
            h_ = nf_.head_map == HeadMap::grouped ? task_.key_head * group + i : i * nf_.key_heads + task_.key_head;
            before_ = i > 0, after_ = i + 1 < group;
            head();
        }
    }

private:
    static constexpr std::size_t R = kBackRows, kRows = pass_rows(kTied), kPasses = R / kRows;
    static constexpr std::size_t kSlice = kSliceVectors;

    std::size_t width(std::size_t c) const { return std::min(kSlice * hn::Lanes(F()), Vp_ - c); }
    std::size_t existing(std::size_t c) const { return std::min(width(c), V_ - std::min(V_, c)); }
    template <class Body>
    void each_slice(const Body& body) const {
        for (std::size_t c = 0; c < Vp_; c += width(c)) body(c);
    }
    StateView slice(float* state, std::size_t c) const {
        return {state + c * K_, static_cast<std::ptrdiff_t>(width(c))};
    }

    void head() {
        Loader loader(nf_, span_.batch, h_, Kp_, bias_);
        load(nf_.initial_state, S_);
        load(f_.dht, E_);
        const std::int64_t segments = (rows_ + spacing_ - 1) / spacing_;
        const std::size_t state = K_ * Vp_;
        const auto checkpoint = [&](std::int64_t s) { return checkpoints_ + static_cast<std::size_t>(s - 1) * state; };
        const auto end = [&](std::int64_t s) { return std::min((s + 1) * spacing_, rows_); };
        for (std::int64_t s = 0; s + 1 < segments; ++s) {
            recompute(loader, s * spacing_, end(s));
            std::copy_n(S_, state, checkpoint(s + 1));
        }
        for (std::int64_t s = segments; s-- > 0;) {
            if (s == 0 && segments > 1) load(nf_.initial_state, S_);
            if (s > 0 && s + 1 < segments) std::copy_n(checkpoint(s), state, S_);
            recompute(loader, s * spacing_, end(s));
            for (std::int64_t at = (end(s) - s * spacing_ - 1) / kBackRows; at >= 0; --at) {
                const std::int64_t row = s * spacing_ + at * kBackRows;
                block(loader, row, static_cast<std::size_t>(std::min(kBackRows, end(s) - row)), s * spacing_);
            }
        }
        store_gradient_of_state();
    }

    CallersState callers(const Tensor& t, std::size_t c) const {
        return {t.data, t.dtype, offset_of(t, n_, h_, 0, c), t.stride[2], t.stride[3]};
    }
    void load(const Tensor& t, float* to) const {
        if (!t.present()) return std::fill_n(to, K_ * Vp_, 0.0F), void();
        each_slice([&](std::size_t c) { load_slice(callers(t, c), K_, existing(c), to + c * K_, width(c), line_); });
    }
    void store_gradient_of_state() const {
        const Tensor& t = f_.of(Role::h0);
        if (!t.present()) return;
        each_slice([&](std::size_t c) { store_slice(slice(E_, c), K_, existing(c), callers(t, c), line_); });
    }

    // ---- what both directions need of a block's rows
    Rows rows_of(std::size_t p) const {
        const std::size_t at = p * kRows * Kp_;
        return {b_.x.q + at, b_.x.k + at, b_.x.d + at, b_.x.e + at, b_.x.b + at, Kp_};
    }
    std::size_t rows_in(std::size_t p, std::size_t n) const { return std::min(kRows, n - p * kRows); }

    /// Rows [row, row + n) of the sequence: rows, coefficients, triangles and values.
    void prepare(Loader& loader, std::int64_t row, std::size_t n) {
        loader.block(first_ + row, n);
        for (std::size_t p = 0; p * kRows < n; ++p) {
            const std::size_t m = rows_in(p, n);
            const Rows x = rows_of(p);
            loader.rows(first_ + row + static_cast<std::int64_t>(p * kRows), m, x);
            const auto go = [&](auto front) { front(x, Kp_, c_[p], triangles_[p]); };
            if constexpr (kTied)
                m == 4   ? go(front_tied<4>)
                : m == 3 ? go(front_tied<3>)
                : m == 2 ? go(front_tied<2>)
                         : go(front_tied<1>);
            else
                m == 2 ? go(front_free<2>) : go(front_free<1>);
        }
        for (std::size_t r = 0; r < n; ++r)
            values_[r] = loader.value(first_ + row + static_cast<std::int64_t>(r), 0, V_, Vp_, v_ + r * Vp_, raw_);
    }

    /// The slice at column c of a state: `writes` rank-1 updates along the columns of `along`.
    template <std::size_t kWrites>
    void apply(float* state, std::size_t c, const float* decay, const float* along, const float* delta) const {
        float *d = const_cast<float*>(decay), *x = const_cast<float*>(along);
        const Coefficients pending{d, x, x, x};
        const StateView s = slice(state, c);
        if (width(c) == kSlice * hn::Lanes(F()))
            write_sweep<kWrites, kSlice>(K_, pending, s, delta, width(c));
        else
            write_sweep<kWrites, 1>(K_, pending, s, delta, width(c));
    }
    template <std::size_t kWrites, std::size_t kVectors>
    HWY_NOINLINE static void write_sweep(std::size_t K, const Coefficients& pending, StateView s, const float* delta,
                                         std::size_t width) {
        walk<kWrites, 0, false, false, kVectors>(K, pending, pending, s, s, delta, nullptr, nullptr, width, {});
    }
    /// read_[m] = the slice's columns times column m of `with`.
    void read(float* state, std::size_t c, const float* with) const {
        float* const x = const_cast<float*>(with);
        const Coefficients next{x, x, x, x};
        const StateView s = slice(state, c);
        if (width(c) == kSlice * hn::Lanes(F()))
            read_sweep<kSlice>(K_, next, s, read_, width(c));
        else
            read_sweep<1>(K_, next, s, read_, width(c));
    }
    template <std::size_t kVectors>
    HWY_NOINLINE static void read_sweep(std::size_t K, const Coefficients& next, StateView s, float* read,
                                        std::size_t width) {
        walk<0, kRank, true, false, kVectors>(K, next, next, s, s, nullptr, read, nullptr, width, {});
    }

    // ---- forward again
    void recompute(Loader& loader, std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; row += kBackRows) {
            const auto n = static_cast<std::size_t>(std::min(kBackRows, end - row));
            const std::size_t at = static_cast<std::size_t>(row - begin);
            float* const entering = entering_ + at / R * Vp_ * Kp_;
            prepare(loader, row, n);
            each_slice([&](std::size_t c) {
                transpose(S_ + c * K_, width(c), K_, Kp_, width(c), entering + c * Kp_, Kp_);
                for (std::size_t p = 0; p * kRows < n; ++p) {
                    read(S_, c, c_[p].erase);
                    connect(p, rows_in(p, n), c, written_ + at * Vp_);
                    apply<kRank>(S_, c, c_[p].decay, c_[p].write, delta_);
                }
            });
        }
    }

    /// From what the state answered to what a pass's rows write: delta_, and u (free: p) of each row.
    void connect(std::size_t p, std::size_t m, std::size_t c, float* written) const {
        const F f;
        const std::size_t W = width(c);
        const Triangles& tri = triangles_[p];
        for (std::size_t i = 0; i < W; i += hn::Lanes(f)) {
            Vec wrote[kRank];
            for (std::size_t t = 0; t < kRows; ++t) {
                const bool exists = t < m;
                const std::size_t row = p * kRows + t;
                Vec x = exists ? hn::Load(f, read_ + t * W + i) : hn::Zero(f), value = hn::Zero(f);
                if (exists) value = hn::Mul(hn::Set(f, values_[row].factor), hn::LoadU(f, values_[row].row + c + i));
                if constexpr (kTied) {
                    x = hn::Sub(value, x);
                    for (std::size_t j = 0; j < t && exists; ++j)
                        x = hn::NegMulAdd(hn::Set(f, tri.erase_on_k[t][j]), wrote[j], x);
                    wrote[t] = x;
                } else {
                    for (std::size_t j = 0; j < t && exists; ++j) {
                        x = hn::MulAdd(hn::Set(f, tri.erase_on_k[t][j]), wrote[j], x);
                        x = hn::MulAdd(hn::Set(f, tri.erase_on_b[t][j]), wrote[j + 2], x);
                    }
                    wrote[t] = value;
                    wrote[t + 2] = x;
                    hn::Store(x, f, delta_ + (t + 2) * W + i);
                }
                hn::Store(wrote[t], f, delta_ + t * W + i);
                if (exists) hn::StoreU(x, f, written + row * Vp_ + c + i);
            }
        }
    }

    // ---- backward
    void block(Loader& loader, std::int64_t row, std::size_t n, std::int64_t segment) {
        prepare(loader, row, n);
        for (std::size_t r = 0; r < n; ++r) upstream(row + static_cast<std::int64_t>(r), do_ + r * Vp_);
        const auto at = static_cast<std::size_t>(row - segment);
        const float *S = entering_ + at / R * Vp_ * Kp_, *written = written_ + at * Vp_, *with_k = written;
        if constexpr (!kTied) {
            for (std::size_t r = 0; r < n; ++r)
                std::copy_n(values_[r].row, Vp_, p_ + r * Vp_);  // what is written along k: the values
            with_k = p_;
        }
        each_slice([&](std::size_t c) { transpose(E_ + c * K_, width(c), K_, Kp_, width(c), ET_ + c * Kp_, Kp_); });
        product(with_k, Vp_, ET_, Kp_, Vp_, Kp_, b_.by_write, Kp_);
        if (!kTied) product(written, Vp_, ET_, Kp_, Vp_, Kp_, b_.by_b, Kp_);
        sum_of_products(S, ET_, Vp_, Kp_, b_.inner);
        each_slice([&](std::size_t c) {
            for (std::size_t p = (n + kRows - 1) / kRows; p-- > 0;) {
                read(E_, c, c_[p].write);
                connect_back(p, rows_in(p, n), c);
                apply<kTied ? 4 : 2>(E_, c, c_[p].decay, c_[p].query, delta_);
                apply<kTied ? 4 : 2>(E_, c, ones_, c_[p].erase, delta_b_);
            }
        });
        const float* const dw = kTied ? dv_ : dp_;
        product(do_, Vp_, S, Kp_, Vp_, Kp_, b_.on_do, Kp_);
        product(dw, Vp_, S, Kp_, Vp_, Kp_, b_.on_dw, Kp_);
        const auto dots = [&](const float* with, float* of_do, float* of_dw) {
            transpose(with, Vp_, R, R, Vp_, uT_, R);
            product(do_, Vp_, uT_, R, Vp_, R, of_do, R);
            product(dw, Vp_, uT_, R, Vp_, R, of_dw, R);
        };
        dots(with_k, dots_[0], dots_[1]);
        if (!kTied) dots(written, dots_[2], dots_[3]);
        pairs<kTied>(b_, n, Kp_);
        for (std::size_t r = 0; r < n; ++r) raise(loader, row + static_cast<std::int64_t>(r), r);
    }

    /// do of a token at its last step; zeros before.
    void upstream(std::int64_t row, float* to) const {
        const std::int64_t at = first_ + row;
        std::fill_n(to, Vp_, 0.0F);
        if ((at + 1) % nf_.steps == 0)
            widen(f_.d_o.dtype, f_.d_o.data, offset_of(f_.d_o, span_.batch, at / nf_.steps, h_), V_, to);
    }

    /// From what E answered to dv (and dp) of a pass's rows, last first, and to what E is written with.
    void connect_back(std::size_t p, std::size_t m, std::size_t c) const {
        const F f;
        const std::size_t W = width(c);
        const Triangles& tri = triangles_[p];
        for (std::size_t i = 0; i < W; i += hn::Lanes(f)) {
            Vec out[kRows], dw[kRows];
            for (std::size_t t = kRows; t-- > 0;) {
                const std::size_t at = (p * kRows + t) * Vp_ + c + i;
                if (t >= m) {
                    hn::Store(hn::Zero(f), f, delta_ + t * W + i);
                    hn::Store(hn::Zero(f), f, delta_b_ + t * W + i);
                    continue;
                }
                out[t] = hn::LoadU(f, do_ + at);
                Vec v = hn::Load(f, read_ + t * W + i);
                for (std::size_t j = t; j < m; ++j) {
                    v = hn::MulAdd(hn::Set(f, tri.read_on_k[j][t]), out[j], v);
                    if (j == t) continue;
                    const Vec erase = hn::Set(f, tri.erase_on_k[j][t]);
                    v = kTied ? hn::NegMulAdd(erase, dw[j], v) : hn::MulAdd(erase, dw[j], v);
                }
                hn::StoreU(v, f, dv_ + at);
                if constexpr (kTied) {
                    dw[t] = v;
                } else {
                    Vec x = hn::Load(f, read_ + (t + 2) * W + i);
                    for (std::size_t j = t; j < m; ++j) {
                        x = hn::MulAdd(hn::Set(f, tri.read_on_b[j][t]), out[j], x);
                        if (j > t) x = hn::MulAdd(hn::Set(f, tri.erase_on_b[j][t]), dw[j], x);
                    }
                    dw[t] = x;
                    hn::StoreU(x, f, dp_ + at);
                }
                hn::Store(out[t], f, delta_ + t * W + i);
                hn::Store(kTied ? hn::Neg(dw[t]) : dw[t], f, delta_b_ + t * W + i);
            }
        }
    }

    // ---- gradients of the caller's tensors
    void put(Role role, std::int64_t offset, const float* x, std::size_t n) const {
        narrow(f_.of(role).dtype, x, n, f_.of(role).data, offset);
    }
    template <class... Index>
    bool wants(Role role, std::int64_t& offset, Index... index) const {
        const Tensor& t = f_.of(role);
        if (t.present()) offset = offset_of(t, span_.batch, index...);
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
        if (after_ || !wants(role, at, row, task_.key_head)) return;
        if (nf_.qk_l2norm) raise_norm(raw(x, offset_of(x, span_.batch, row, task_.key_head), K_, Kp_), Kp_, d);
        put(role, at, d, K_);
    }

    void raise(const Loader& loader, std::int64_t index, std::size_t r) {
        const std::int64_t row = first_ + index, token = row / nf_.steps;
        float *dq = b_.on_do + r * Kp_, *de = b_.on_dw + r * Kp_, *dk = b_.by_write + r * Kp_, *dv = dv_ + r * Vp_;
        std::int64_t at = 0;
        if ((row + 1) % nf_.steps == 0) {
            std::fill_n(line_, Kp_, 0.0F);
            add(static_cast<float>(nf_.scale), dq, Kp_, line_);
            add_up(Role::q, nf_.q, token, dq_sum_, index / nf_.steps, line_);
        }
        if (kTied) strengths(loader, row, r, de, dk, dv);
        add_up(Role::k, nf_.k, row, dk_sum_, index, dk);
        if (wants(Role::v, at, row, h_)) put(Role::v, at, dv, V_);
        if (!kTied) {
            if (wants(Role::a, at, token, h_)) put(Role::a, at, de, K_);
            if (wants(Role::b, at, token, h_)) put(Role::b, at, b_.by_b + r * Kp_, K_);
        }
        if (row % nf_.steps == 0 && nf_.gate.decay != Decay::none) gates(token, b_.dg + r * Kp_);
    }

    /// Tied: erase and write strengths; dk gets its part in the error term, dv becomes the gradient of v.
    void strengths(const Loader& loader, std::int64_t row, std::size_t r, float* de, float* dk, float* dv) {
        const StrengthSource &e = nf_.erase, &w = nf_.write;
        std::int64_t at = 0;
        float d_erase = 0, d_write = 0;
        if (w.vector) {
            const float* const x = raw(nf_.v, offset_of(nf_.v, span_.batch, row, h_), V_, Vp_);
            multiply(x, dv, Vp_, p_);
            widen(w.x.dtype, w.x.data, offset_of(w.x, span_.batch, row, h_), V_, raw_);
            times_strength_slope(w.kind, raw_, Vp_, p_);
            if (wants(Role::write, at, row, h_)) put(Role::write, at, p_, V_);
            cpu::HWY_NAMESPACE::strengths(w.kind, Vp_, raw_);
            multiply(raw_, dv, Vp_, dv);
        } else if (w.kind != StrengthKind::one) {
            d_write = dot(values_[r].row, dv, Vp_);
            const float strength = loader.write_of(row);
            std::fill_n(line_, Vp_, 0.0F);
            add(strength, dv, Vp_, line_);
            std::copy_n(line_, Vp_, dv);
        }
        const float* const k = b_.x.k + r * Kp_;
        if (e.vector) {
            const float* const x = raw(e.x, offset_of(e.x, span_.batch, row, h_), K_, Kp_);
            multiply(k, de, Kp_, line_);
            times_strength_slope(e.kind, x, Kp_, line_);
            if (wants(Role::erase, at, row, h_)) put(Role::erase, at, line_, K_);
            cpu::HWY_NAMESPACE::strengths(e.kind, Kp_, raw_);
            multiply(raw_, de, Kp_, de);
            add(1.0F, de, Kp_, dk);
        } else {
            d_erase = dot(k, de, Kp_);
            add(e.kind == StrengthKind::one ? 1.0F : loader.erase_of(row), de, Kp_, dk);
        }
        const auto scalar = [&](Role role, const StrengthSource& s, float d) {
            if (!wants(role, at, row, h_)) return;
            d *= strength_slope(s.kind, load_as<float>(s.x, offset_of(s.x, span_.batch, row, h_)));
            put(role, at, &d, 1);
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
        const float* const x = raw(s.x, offset_of(s.x, span_.batch, token, h_), n, Kp_);
        const float A_log = f_.has(Role::A_log) ? load_as<float>(s.A_log, offset_of(s.A_log, h_)) : 0.0F;
        const float of_log = raise_gates(s, A_log, bias_, x, vector ? Kp_ : static_cast<std::size_t>(kCpuBucket), dg);
        std::int64_t at = 0;
        if (wants(Role::gate, at, token, h_)) put(Role::gate, at, dg, n);
        if (task_.parameters == nullptr) return;
        double* const sums = task_.parameters + static_cast<std::size_t>(h_) * (n + 1);
        sums[0] += static_cast<double>(of_log);
        for (std::size_t i = 0; i < n; ++i) sums[i + 1] += static_cast<double>(dg[i]);
    }

    const BackwardForm& f_;
    const NormalForm& nf_;
    const BackwardTask& task_;
    const std::int64_t n_;
    const std::size_t K_, V_, Kp_, Vp_;
    const Span span_;
    const std::int64_t first_, rows_, spacing_;  ///< first_: of nf.k; rows_: of the sequence
    std::int64_t h_ = 0;
    bool before_ = false, after_ = false;  ///< value heads of the same key head
    Coefficients c_[kPasses];
    Triangles triangles_[kPasses];
    Values values_[R];
    BlockRows b_;
    float *S_, *E_, *ET_, *uT_, *bias_, *ones_, *line_, *raw_, *v_, *do_, *dv_, *dp_, *p_, *delta_, *delta_b_, *read_;
    float *dots_[4], *dq_sum_, *dk_sum_;
    float *written_, *entering_,
        *checkpoints_;  ///< of a segment: u (free: p) by row, states^T by block; of all: states
};

void backward_tied(const BackwardForm& form, const BackwardTask& task) { Reverse<true>(form, task).run(); }
void backward_free(const BackwardForm& form, const BackwardTask& task) { Reverse<false>(form, task).run(); }

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::cpu {

#define REVERSE(function, path, tied) HWY_EXPORT(function);
#include "cpu/inventory.inc"

std::array<ReverseRow, kReverseKernels> reverse_inventory() {
    return {{
#define REVERSE(function, path, tied) {path, tied, &HWY_DYNAMIC_DISPATCH(function)},
#include "cpu/inventory.inc"
    }};
}

}  // namespace tidegate::cpu
#endif  // HWY_ONCE
