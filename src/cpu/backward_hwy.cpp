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
          spacing_(std::max(std::min(task.spacing, rows_), std::int64_t{1})),
          raiser_(form, span_.batch, first_, task.key_head, Kp_, Vp_) {
        float* w = task.workspace;
        const auto take = [&w](std::size_t floats) { return std::exchange(w, w + floats); };
        S_ = take(K_ * Vp_);
        E_ = take(K_ * Vp_);
        upT_ = take(Vp_ * 2 * R);
        outT_ = take(Vp_ * 2 * R);
        on_ = take(K_ * 2 * R);
        by_ = take(K_ * 2 * R);
        part_ = take(K_ * R);
        for (Coefficients& c : c_) c = {take(Kp_), take(kRank * Kp_), take(kRank * Kp_), take(kRank * Kp_)};
        b_.x = {take(R * Kp_), take(R * Kp_), take(R * Kp_), take(R * Kp_), take(R * Kp_), Kp_};
        b_.on_do = take(2 * R * Kp_), b_.on_dw = b_.on_do + R * Kp_;
        b_.by_write = take(2 * R * Kp_), b_.by_b = b_.by_write + R * Kp_;
        b_.dg = take(R * Kp_);
        b_.inner = take(Kp_);
        for (float** x : {&bias_, &ones_, &line_, &raw_}) *x = take(std::max(Kp_, Vp_));
        for (float** x : {&v_, &do_, &dv_, &dp_, &p_}) *x = take(R * Vp_);
        for (float** x : {&delta_, &delta_b_, &read_}) *x = take(kRank * Vp_);
        for (float*& x : dots_) x = take(2 * R * R);
        raiser_.dq_sum_ = take(task.shared ? static_cast<std::size_t>(task.longest) * Kp_ : 0);
        raiser_.dk_sum_ = take(task.shared ? static_cast<std::size_t>(task.longest) * Kp_ : 0);
        const auto segment = static_cast<std::size_t>(task.spacing);
        written_ = take(segment * Vp_);
        entering_ = take((segment + R - 1) / R * K_ * Vp_);
        checkpoints_ = w;
        std::fill_n(ones_, std::max(Kp_, Vp_), 1.0F);
        raiser_.line_ = line_, raiser_.raw_ = raw_, raiser_.spare_ = p_, raiser_.ones_ = ones_, raiser_.bias_ = bias_;
        raiser_.parameters_ = task.parameters;
        b_.do_u = dots_[0], b_.dw_u = dots_[0] + R, b_.do_p = dots_[1], b_.dw_p = dots_[1] + R;
    }

    void run() {
        const std::int64_t group = nf_.value_heads / nf_.key_heads;
        for (std::int64_t i = 0; i < group; ++i) {
            h_ = nf_.head_map == HeadMap::grouped ? task_.key_head * group + i : i * nf_.key_heads + task_.key_head;
            last_ = i + 1 == group;
            raiser_.head(h_, i > 0, !last_);
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
    void prepare(Loader& loader, std::int64_t row, std::size_t n, bool queries) {
        loader.block(first_ + row, n);
        for (std::size_t p = 0; p * kRows < n; ++p) {
            const std::size_t m = rows_in(p, n);
            const Rows x = rows_of(p);
            loader.rows(first_ + row + static_cast<std::int64_t>(p * kRows), m, x, queries);
            const auto go = [&](auto front, auto again) {
                queries ? front(x, Kp_, c_[p], triangles_[p]) : again(x, Kp_, c_[p], triangles_[p]);
            };
            if constexpr (kTied) {
                if (m == 4)
                    go(front_tied<4>, front_tied<4, false>);
                else if (m == 3)
                    go(front_tied<3>, front_tied<3, false>);
                else if (m == 2)
                    go(front_tied<2>, front_tied<2, false>);
                else
                    go(front_tied<1>, front_tied<1, false>);
            } else if (m == 2) {
                go(front_free<2>, front_free<2>);
            } else {
                go(front_free<1>, front_free<1>);
            }
        }
        for (std::size_t r = 0; r < n; ++r)
            values_[r] = loader.value(first_ + row + static_cast<std::int64_t>(r), 0, V_, Vp_, v_ + r * Vp_, raw_);
    }

    /// A sweep over the slice at column c of a state, from one place to another: kWrites rank-1 updates along the
    /// columns of `along`, then, if kReads, read_[m] = its columns times column m of `with`.
    template <std::size_t kWrites, bool kReads>
    void sweep(float* from, float* to, std::size_t c, const float* decay, const float* along, const float* delta,
               const float* with = nullptr) const {
        const auto table = [](const float* d, const float* x) {
            float* const y = const_cast<float*>(x);
            return Coefficients{const_cast<float*>(d), y, y, y};
        };
        const Coefficients pending = table(decay, along != nullptr ? along : with),
                           next = table(decay, kReads ? with : along);
        if (width(c) == kSlice * hn::Lanes(F()))
            go<kWrites, kReads, kSlice>(K_, pending, next, slice(from, c), slice(to, c), delta, read_, width(c));
        else
            go<kWrites, kReads, 1>(K_, pending, next, slice(from, c), slice(to, c), delta, read_, width(c));
    }
    template <std::size_t kWrites, bool kReads, std::size_t kVectors>
    HWY_NOINLINE static void go(std::size_t K, const Coefficients& pending, const Coefficients& next, StateView from,
                                StateView to, const float* delta, float* read, std::size_t width) {
        constexpr std::size_t kM = kReads ? kRank : 0;
        if constexpr (kManyRegisters || kWrites == 0 || !kReads) {
            walk<kWrites, kM, kReads, false, kVectors>(K, pending, next, from, to, delta, read, nullptr, width, {});
        } else {
            walk<kWrites, 0, false, false, kVectors>(K, pending, next, from, to, delta, read, nullptr, width, {});
            walk<0, kM, true, false, kVectors>(K, pending, next, to, to, delta, read, nullptr, width, {});
        }
    }

    /// The slice of E: a pass's updates along what its outputs and its error terms were read with, then reads.
    template <std::size_t kWrites, bool kReads>
    void back(std::size_t c, const Coefficients& pass, const float* with) const {
        if constexpr (kManyRegisters) {
            if (width(c) == kSlice * hn::Lanes(F())) return back_at_once<kWrites, kReads>(c, pass, with);
        }
        sweep<kWrites, false>(E_, E_, c, pass.decay, pass.query, delta_);
        sweep<kWrites, kReads>(E_, E_, c, ones_, pass.erase, delta_b_, with);
    }
    template <std::size_t kWrites, bool kReads>
    HWY_NOINLINE void back_at_once(std::size_t c, const Coefficients& pass, const float* with) const {
        float* const x = const_cast<float*>(kReads ? with : pass.query);
        const Coefficients pending{pass.decay, pass.query, x, x}, next{x, x, x, x};
        const StateView E = slice(E_, c);
        walk<kWrites, kReads ? kRank : 0, kReads, false, kSlice, kWrites>(K_, pending, next, E, E, delta_, read_,
                                                                          nullptr, width(c), {}, pass.erase, delta_b_);
    }

    /// Lines of the block that comes next, from row `next` and below `end`, into L2: a share of it for each slice and
    /// pass of this one. Rows of a head lie pages apart, where the machine's own prefetchers do not go.
    void fetch(std::int64_t next, std::int64_t end, std::size_t c, std::size_t p, bool backward) const {
        const std::size_t slices = (Vp_ + width(0) - 1) / width(0), turns = slices * kPasses;
        for (std::size_t r = c / width(0) * kPasses + p; r < R; r += turns) {
            const std::int64_t index = next + static_cast<std::int64_t>(r), row = first_ + index;
            if (index < 0 || index >= end) return;
            const std::int64_t token = row / nf_.steps;
            lines(nf_.k, row, task_.key_head, K_);
            lines(nf_.v, row, h_, V_);
            if (nf_.gate.decay == Decay::vector) lines(nf_.gate.x, token, h_, K_);
            if (!kTied) lines(nf_.a, token, h_, K_), lines(nf_.b, token, h_, K_);
            if (!backward) continue;
            lines(nf_.q, token, task_.key_head, K_);
            lines(f_.d_o, token, h_, V_);
            if (f_.of(Role::v).present()) lines<1>(f_.of(Role::v), row, h_, V_);
            if (f_.of(Role::k).present() && last_) lines<1>(f_.of(Role::k), row, task_.key_head, K_);
            if (f_.of(Role::q).present() && last_) lines<1>(f_.of(Role::q), token, task_.key_head, K_);
        }
    }
    void fetch_state(const float* state, std::size_t c, std::size_t p) const {
        const std::size_t share = K_ * width(c) / kPasses;
        const float* const x = state + c * K_ + p * share;
        for (std::size_t i = 0; i < share; i += 16) __builtin_prefetch(x + i, 0, 2);
    }
    template <int kWrite = 0>
    void lines(const Tensor& t, std::int64_t row, std::int64_t head, std::size_t n) const {
        const std::int64_t size = bytes_of(t.dtype);
        const char* const x = static_cast<const char*>(t.data) + offset_of(t, span_.batch, row, head) * size;
        for (std::size_t i = 0; i < n * static_cast<std::size_t>(size); i += 64) __builtin_prefetch(x + i, kWrite, 2);
    }

    // ---- forward again
    void recompute(Loader& loader, std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; row += kBackRows) {
            const auto n = static_cast<std::size_t>(std::min(kBackRows, end - row));
            const std::size_t at = static_cast<std::size_t>(row - begin);
            float *const before = entering(at / R), *const after = row + kBackRows < end ? entering(at / R + 1) : S_;
            if (row == begin) std::copy_n(S_, K_ * Vp_, before);
            prepare(loader, row, n, false);
            each_slice([&](std::size_t c) {
                sweep<0, true>(before, before, c, ones_, nullptr, nullptr, c_[0].erase);
                for (std::size_t p = 0; p * kRows < n; ++p) {
                    float* const from = p == 0 ? before : S_;
                    fetch(row + kBackRows, end, c, p, false);
                    connect(p, rows_in(p, n), c, written_ + at * Vp_);
                    if ((p + 1) * kRows < n)
                        sweep<kRank, true>(from, S_, c, c_[p].decay, c_[p].write, delta_, c_[p + 1].erase);
                    else
                        sweep<kRank, false>(from, after, c, c_[p].decay, c_[p].write, delta_);
                }
            });
        }
    }
    /// The state that enters a block of the segment.
    float* entering(std::size_t block) const { return entering_ + block * K_ * Vp_; }

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
        prepare(loader, row, n, true);
        for (std::size_t r = 0; r < n; ++r) upstream(row + static_cast<std::int64_t>(r), do_ + r * Vp_);
        const auto at = static_cast<std::size_t>(row - segment);
        const float *S = entering(at / R), *written = written_ + at * Vp_, *with_k = written;
        if constexpr (!kTied) {
            for (std::size_t r = 0; r < n; ++r)
                std::copy_n(values_[r].row, Vp_, p_ + r * Vp_);  // what is written along k: the values
            with_k = p_;
        }
        // Products along K, with rows as lanes: first of what rows wrote, with E as it leaves the block.
        constexpr std::size_t kBy = kTied ? R : 2 * R;
        transpose(with_k, Vp_, R, R, Vp_, upT_, kBy);
        if (!kTied) transpose(written, Vp_, R, R, Vp_, upT_ + R, kBy);
        each_slice([&](std::size_t c) {
            product(E_ + c * K_, width(c), upT_ + c * kBy, width(c), K_, kBy, by_, c > 0);
            fold_products(S + c * K_, E_ + c * K_, K_, width(c), part_, c > 0);
        });
        constexpr std::size_t kQuery = kTied ? 4 : 2;
        const std::size_t passes = (n + kRows - 1) / kRows;
        each_slice([&](std::size_t c) {
            sweep<0, true>(E_, E_, c, ones_, nullptr, nullptr, c_[passes - 1].write);
            for (std::size_t p = passes; p-- > 0;) {
                fetch(row - kBackRows, row, c, p, true);
                if (at >= R) fetch_state(entering(at / R - 1), c, p);
                connect_back(p, rows_in(p, n), c);
                if (p > 0)
                    back<kQuery, true>(c, c_[p], c_[p - 1].write);
                else
                    back<kQuery, false>(c, c_[p], nullptr);
            }
        });
        // Then of what rows were read for, with the state as it enters.
        transpose(do_, Vp_, R, R, Vp_, outT_, 2 * R);
        transpose(kTied ? dv_ : dp_, Vp_, R, R, Vp_, outT_ + R, 2 * R);
        each_slice(
            [&](std::size_t c) { product(S + c * K_, width(c), outT_ + c * 2 * R, width(c), K_, 2 * R, on_, c > 0); });
        transpose(by_, kBy, K_, Kp_, kBy, b_.by_write, Kp_);
        transpose(on_, 2 * R, K_, Kp_, 2 * R, b_.on_do, Kp_);
        add_parts();
        product(with_k, Vp_, outT_, Vp_, R, 2 * R, dots_[0]);
        if (!kTied) product(written, Vp_, outT_, Vp_, R, 2 * R, dots_[1]);
        pairs<kTied>(b_, n, Kp_);
        for (std::size_t r = 0; r < n; ++r)
            raiser_.row(loader, row + static_cast<std::int64_t>(r),
                        {b_.x.k + r * Kp_, values_[r].row, b_.on_do + r * Kp_, b_.by_write + r * Kp_,
                         b_.on_dw + r * Kp_, b_.by_b + r * Kp_, dv_ + r * Vp_, b_.dg + r * Kp_});
    }

    /// inner[i] = the sum of row i of part_.
    void add_parts() {
        const F f;
        const std::size_t lanes = hn::Lanes(f);
        float* const rows = b_.dg;  // [lanes, Kp]; free until pairs() writes it
        transpose(part_, lanes, K_, Kp_, lanes, rows, Kp_);
        for (std::size_t i = 0; i < Kp_; i += lanes) {
            Vec all = hn::LoadU(f, rows + i);
            for (std::size_t l = 1; l < lanes; ++l) all = hn::Add(all, hn::LoadU(f, rows + l * Kp_ + i));
            hn::StoreU(all, f, b_.inner + i);
        }
    }

    /// do of a token at its last step; zeros before.
    void upstream(std::int64_t row, float* to) const {
        const std::int64_t at = first_ + row;
        const std::size_t n = (at + 1) % nf_.steps == 0 ? V_ : 0;
        if (n > 0) widen(f_.d_o.dtype, f_.d_o.data, offset_of(f_.d_o, span_.batch, at / nf_.steps, h_), n, to);
        std::fill(to + n, to + Vp_, 0.0F);
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

    const BackwardForm& f_;
    const NormalForm& nf_;
    const BackwardTask& task_;
    const std::int64_t n_;
    const std::size_t K_, V_, Kp_, Vp_;
    const Span span_;
    const std::int64_t first_, rows_, spacing_;  ///< first_: of nf.k; rows_: of the sequence
    std::int64_t h_ = 0;
    bool last_ = false;  ///< of the value heads that share the key head
    Raiser raiser_;
    Coefficients c_[kPasses];
    Triangles triangles_[kPasses];
    Values values_[R];
    BlockRows b_;
    float *S_, *E_, *upT_, *outT_, *on_, *by_, *part_, *bias_, *ones_, *line_, *raw_, *v_, *do_, *dv_, *dp_, *p_,
        *delta_, *delta_b_, *read_;
    float* dots_[2];
    float *written_, *entering_,
        *checkpoints_;  ///< of a segment: u (free: p) by row, states by block; of all: states
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
