// Forward: the blocked recurrence; compiled once for every target.
//
// A pass is kRank rank-1 updates. One sweep over a slice of state columns applies a pass's updates and reads the state
// for the next pass (3 FMAs an element and update, one load and one store a pass); what rows of one pass owe each other
// comes from small triangles of their products. Cost a token and head: 6 K V FLOP and about 5 kRank K.
#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "cpu/kernels.h"
#include "problem/load.h"
#include "tidegate/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_hwy.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "cpu/front-inl.h"
#include "cpu/prefetch.h"
#include "cpu/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {

using Sweep = void (*)(std::size_t K, const Coefficients& pending, const Coefficients& next, StateView from,
                       StateView to, const float* delta, float* read, float* out, std::size_t width,
                       const Ahead& ahead);

/// The sweep for `writes` pending updates and `reads` rows that read: all reads after a full pass or after none, and
/// the last updates alone.
template <std::size_t kVectors, std::size_t kReads>
Sweep sweep_for(std::size_t writes, std::size_t reads) {
    if constexpr (kReads > 0) {
        if (reads == kReads) return writes == 0 ? &sweep<0, kReads, kVectors> : &sweep<kRank, kReads, kVectors>;
        return sweep_for<kVectors, kReads - 1>(writes, reads);
    } else {
        constexpr Sweep last[] = {nullptr, &sweep<1, 0, kVectors>, &sweep<2, 0, kVectors>, &sweep<3, 0, kVectors>,
                                  &sweep<4, 0, kVectors>};
        return last[writes];
    }
}

/// The kernel of one task: rows in blocks, blocks in passes, all slices of the task's columns through each block.
template <bool kTied>
class Kernel {
public:
    Kernel(const NormalForm& nf, const Task& task)
        : nf_(nf),
          task_(task),
          row_(nf.source(task.sequence)),
          h_(task.head),
          first_(task.first_column),
          K_(static_cast<std::size_t>(nf.K)),
          Kp_(static_cast<std::size_t>(cpu_bucket(nf.K))),
          V_(static_cast<std::size_t>(task.columns)),
          columns_(static_cast<std::size_t>(std::min(task.columns, nf.V - task.first_column))),
          batch_(nf.sequence(task.sequence).batch) {
        float* w = task.workspace;
        const auto take = [&w](std::size_t floats) { return std::exchange(w, w + floats); };
        S_ = take(K_ * V_);
        for (Coefficients& c : coefficients_) c = {take(Kp_), take(kRank * Kp_), take(kRank * Kp_), take(kRank * Kp_)};
        rows_ = {take(kRank * Kp_), take(kRank * Kp_), take(kRank * Kp_), take(kRank * Kp_), take(kRank * Kp_), Kp_};
        bias_ = take(Kp_);
        v_ = take(kBlock * V_);
        o_ = take(kBlock * V_);
        scratch_ = take(V_);
        delta_ = take(kRank * V_);
        read_ = take(kRank * V_);
        out_ = take(kRank * V_);
        zero_ = take(V_);
        line_ = take(Kp_);
        std::fill_n(zero_, V_, 0.0F);
    }

    void run() {
        const std::int64_t begin = task_.begin, end = task_.end;
        choose_width(nf_.every_token() ? nf_.steps : end - begin);
        load_state();
        Loader loader(nf_, batch_, h_, Kp_, bias_);
        const auto most = static_cast<std::int64_t>(kBlock), step = nf_.every_token() ? nf_.steps : most;
        for (std::int64_t row = begin, next = 0; row < end; row = next) {
            next = std::min(row + step, end);
            for (std::int64_t at = row; at < next; at += most)
                block(loader, at, static_cast<std::size_t>(std::min(most, next - at)));
            if (nf_.every_token()) settle(next - 1);
        }
        if (!nf_.every_token()) store_state(nf_.final_state, row_);
        if (streams_) hwy::FlushStream();  // what was streamed is not ordered otherwise
    }

private:
    static constexpr std::size_t kRows = pass_rows(kTied);
    static constexpr std::size_t kBlock = kRows * kPassesPerBlock;
    static constexpr std::size_t kTurns = kManyRegisters ? 1 : 2;  ///< slices that L1 holds beside coefficients

    /// Slices of a vector or two keep coefficients, sums and a pass's updates in registers. A single row has room for
    /// more, and then reads and writes longer runs of the caller's state. Columns never meet: the bits are the same.
    void choose_width(std::int64_t rows) {
        const std::size_t slice = kSliceVectors * hn::Lanes(F()), wide = kWide * hn::Lanes(F());
        wide_ = rows == 1 && V_ % wide == 0 && columns_ == V_;
        W_ = wide_ ? wide : slice;
        streams_ = rows > 1 && slice * sizeof(float) >= kLine && nf_.steps == 1 && columns_ == V_ && on_lines(nf_.o);
    }
    /// Whether o is written past the caches, line by line: nothing of it is read first, and no other core, busy on its
    /// neighbours, can take the lines away between.
    static bool on_lines(const Tensor& t) {
        bool whole = plain(t) && reinterpret_cast<std::uintptr_t>(t.data) % kLine == 0;
        for (std::size_t d = 0; d < 3; ++d)
            whole = whole && static_cast<std::size_t>(t.stride[d]) * sizeof(float) % kLine == 0;
        return whole;
    }
    Sweep choose_sweep(std::size_t writes, std::size_t reads, std::size_t column) const {
        if (wide_) return sweep_for<kWide, 1>(writes, reads);
        return width(column) == W_ ? sweep_for<kSliceVectors, kRows>(writes, reads)
                                   : sweep_for<1, kRows>(writes, reads);
    }
    /// Columns of the slice at `column`: the last slice can be a single vector.
    std::size_t width(std::size_t column) const { return std::min(W_, V_ - column); }

    // ---- state: the caller's memory where its rows are plain fp32, the workspace otherwise --------------------------
    static bool plain(const Tensor& t) {
        return t.dtype == Dtype::fp32 && t.stride[static_cast<std::size_t>(t.rank - 1)] == 1;
    }
    bool whole(std::size_t column) const { return column + width(column) <= columns_; }
    float* slice(std::size_t column) const { return S_ + column * K_; }
    StateView workspace(std::size_t column) const {
        return {slice(column), static_cast<std::ptrdiff_t>(width(column))};
    }
    CallersState callers(const Tensor& t, std::int64_t first, std::size_t column) const {
        const auto last = static_cast<std::size_t>(t.rank - 1);
        const std::int64_t head = first + h_ * t.stride[last - 2];
        return {t.data, t.dtype, head + (first_ + static_cast<std::int64_t>(column)) * t.stride[last],
                t.stride[last - 1], t.stride[last]};
    }
    static StateView in_place(const CallersState& s) {
        return {static_cast<float*>(s.data) + s.first, static_cast<std::ptrdiff_t>(s.row)};
    }
    bool direct(const Tensor& t, std::size_t column) const { return plain(t) && whole(column); }
    std::size_t existing(std::size_t column) const {  ///< columns of the slice that exist
        return std::min(width(column), columns_ - std::min(columns_, column));
    }
    StateView source(std::size_t column) const {
        const Tensor& t = task_.state;
        if (updated_) return workspace(column);
        if (!t.present()) return {zero_, 0};
        return direct(t, column) ? in_place(callers(t, offset_of(t, row_), column)) : workspace(column);
    }

    void load_state() {
        const Tensor& t = task_.state;
        if (!t.present()) return;
        for (std::size_t c = 0; c < V_; c += W_)
            if (!direct(t, c))
                load_slice(callers(t, offset_of(t, row_), c), K_, existing(c), slice(c), width(c), line_);
    }

    /// Applies what is pending to the slice at column c, into `to`.
    void apply(std::size_t c, StateView from, StateView to) const {
        choose_sweep(writes_, 0, c)(K_, coefficients_[0], coefficients_[0], from, to, delta_ + c * kRank, nullptr,
                                    nullptr, width(c), {});
    }

    void store_state(const Tensor& t, std::int64_t row) {
        if (!t.present()) return;
        for (std::size_t c = 0; c < V_; c += W_) {
            const CallersState target = callers(t, offset_of(t, row), c);
            StateView from = source(c);
            if (writes_ > 0) {
                const StateView to = direct(t, c) ? in_place(target) : workspace(c);
                apply(c, from, to);
                if (direct(t, c)) continue;
                from = to;
            }
            store_slice(from, K_, existing(c), target, line_);
        }
    }

    /// Where states are stored after every token: the state after `row` into the workspace, and from there.
    void settle(std::int64_t row) {
        for (std::size_t c = 0; c < V_; c += W_) apply(c, source(c), workspace(c));
        updated_ = true;
        writes_ = 0;
        if ((row + 1) % nf_.steps != 0) return;
        const std::int64_t token = row / nf_.steps, slot = nf_.target(task_.sequence, token);
        if (slot >= 0) store_state(nf_.final_state, slot);
        const Tensor& t = nf_.state_tokens;
        for (std::size_t c = 0; c < V_ && t.present(); c += W_)
            store_slice(workspace(c), K_, existing(c), callers(t, offset_of(t, batch_, token), c), line_);
    }

    // ---- rows
    void block(Loader& loader, std::int64_t row, std::size_t rows) {
        const auto at = [row](std::size_t r) { return row + static_cast<std::int64_t>(r); };
        loader.block(row, rows);
        for (std::size_t r = 0; r < rows; ++r) {
            values_[r] = loader.value(at(r), first_, columns_, V_, v_ + r * V_, scratch_);
            const bool read = (at(r) + 1) % nf_.steps == 0;
            outputs_[r] = read && plain(nf_.o) && columns_ == V_ ? output(at(r)) : o_ + r * V_;
        }
        const std::size_t passes = (rows + kRows - 1) / kRows;
        const auto reads = [&](std::size_t p) { return std::min(kRows, rows - p * kRows); };
        for (std::size_t p = 0; p < passes; ++p) {
            loader.rows(at(p * kRows), reads(p), rows_);
            front(reads(p), coefficients_[p + 1], triangles_[p]);
        }
        // Slices take turns: while the rows of one pass wait for each other in connect(), another slice sweeps.
        Prefetch ahead(nf_, task_, !streams_, at(rows), kBlock,
                       static_cast<std::int64_t>(passes * ((V_ + W_ - 1) / W_)));
        for (std::size_t c = 0; c < V_; c += kTurns * W_)
            for (std::size_t p = 0; p < passes; ++p)
                for (std::size_t d = c; d < std::min(c + kTurns * W_, V_); d += W_) {
                    pass(p, reads(p), d, ahead.share());
                }
        updated_ = updated_ || writes_ > 0 || passes > 1;
        writes_ = kTied ? reads(passes - 1) : kRank;
        std::copy_n(coefficients_[passes].write, kRank * Kp_, coefficients_[0].write);
        std::copy_n(coefficients_[passes].decay, Kp_, coefficients_[0].decay);
        for (std::size_t r = 0; r < rows; ++r)
            if (at(r + 1) % nf_.steps == 0 && outputs_[r] == o_ + r * V_)
                narrow(nf_.o.dtype, outputs_[r], columns_, nf_.o.data,
                       offset_of(nf_.o, batch_, at(r) / nf_.steps, h_, first_));
    }
    float* output(std::int64_t row) const {
        return static_cast<float*>(nf_.o.data) + offset_of(nf_.o, batch_, row / nf_.steps, h_, first_);
    }

    /// Pass p of the block over the slice at column c.
    void pass(std::size_t p, std::size_t reads, std::size_t c, const Ahead& ahead) {
        const std::size_t writes = p > 0 ? kRank : writes_;
        const bool moved = p > 1 || (p == 1 && writes_ > 0);  // into the workspace, by an earlier pass of this block
        const StateView from = moved ? workspace(c) : source(c);
        float* delta = delta_ + c * kRank;
        choose_sweep(writes, reads, c)(K_, coefficients_[p], coefficients_[p + 1], from, workspace(c), delta, read_,
                                       out_, width(c), ahead);
        connect(triangles_[p], reads, values_ + p * kRows, outputs_ + p * kRows, c, delta);
    }

    void front(std::size_t m, const Coefficients& c, Triangles& tri) {
        const auto go = [&](auto f) { f(rows_, Kp_, c, tri); };
        if constexpr (kTied) {
            if (m == 4)
                go(front_tied<4>);
            else if (m == 3)
                go(front_tied<3>);
            else if (m == 2)
                go(front_tied<2>);
            else
                go(front_tied<1>);
        } else {
            if (m == 2)
                go(front_free<2>);
            else
                go(front_free<1>);
        }
    }

    /// From what the state answered to what each row writes, and its output: rows of one pass, in order.
    void connect(const Triangles& tri, std::size_t m, const Values* v, float* const* o, std::size_t c,
                 float* delta) const {
        const F f;
        const std::size_t W = width(c);
        for (std::size_t i = 0; i < W; i += hn::Lanes(f)) {
            Vec written[kRank];
            for (std::size_t t = 0; t < m; ++t) {
                const std::size_t at = t * W + i;
                const Vec value = hn::Mul(hn::Set(f, v[t].factor), hn::LoadU(f, v[t].row + c + i));
                Vec x = hn::Load(f, read_ + at), y = hn::Load(f, out_ + at);
                if constexpr (kTied) {
                    x = hn::Sub(value, x);
                    for (std::size_t j = 0; j < t; ++j)
                        x = hn::NegMulAdd(hn::Set(f, tri.erase_on_k[t][j]), written[j], x);
                    written[t] = x;
                    for (std::size_t j = 0; j <= t; ++j) y = hn::MulAdd(hn::Set(f, tri.read_on_k[t][j]), written[j], y);
                } else {
                    for (std::size_t j = 0; j < t; ++j) {
                        x = hn::MulAdd(hn::Set(f, tri.erase_on_k[t][j]), written[j], x);
                        x = hn::MulAdd(hn::Set(f, tri.erase_on_b[t][j]), written[j + 2], x);
                    }
                    written[t] = value;
                    written[t + 2] = x;
                    for (std::size_t j = 0; j <= t; ++j) {
                        y = hn::MulAdd(hn::Set(f, tri.read_on_k[t][j]), written[j], y);
                        y = hn::MulAdd(hn::Set(f, tri.read_on_b[t][j]), written[j + 2], y);
                    }
                    hn::Store(x, f, delta + at + 2 * W);
                }
                hn::Store(written[t], f, delta + at);
                if (streams_)
                    hn::Stream(y, f, o[t] + c + i);
                else
                    hn::StoreU(y, f, o[t] + c + i);
            }
            if constexpr (!kTied) {  // a pass always has kRank writes: those of a missing row are zero
                for (std::size_t t = m; t < kRows; ++t)
                    for (const std::size_t u : {t, t + 2}) hn::Store(hn::Zero(f), f, delta + u * W + i);
            }
        }
    }

    static constexpr std::size_t kLine = 64;  ///< bytes of a cache line
    static constexpr std::size_t kWide = kManyRegisters ? 8 : 4;

    const NormalForm& nf_;
    const Task& task_;
    const std::int64_t row_, h_, first_;      ///< row_: of the states
    const std::size_t K_, Kp_, V_, columns_;  ///< V_: the task's columns, padded; columns_: those that exist
    const std::int64_t batch_;
    std::size_t W_ = 0;  ///< columns a slice, but for a shorter last one
    bool wide_ = false, streams_ = false;
    bool updated_ = false;    ///< the workspace holds the state
    std::size_t writes_ = 0;  ///< updates that the last pass has left pending, coefficients in [0]
    float* S_;                ///< slices of [K, W]
    Coefficients coefficients_[kPassesPerBlock + 1];
    Triangles triangles_[kPassesPerBlock];
    Rows rows_;
    Values values_[kBlock];
    float* outputs_[kBlock];  ///< of a row: the caller's o, or o_ where it is rounded, cut off or not read
    float *bias_, *v_, *o_, *scratch_, *delta_, *read_, *out_, *zero_, *line_;
};

void forward_tied(const NormalForm& nf, const Task& task) { Kernel<true>(nf, task).run(); }
void forward_free(const NormalForm& nf, const Task& task) { Kernel<false>(nf, task).run(); }
const char* isa() { return hwy::TargetName(HWY_TARGET); }

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::cpu {

HWY_EXPORT(isa);
#define KERNEL(function, path, tied) HWY_EXPORT(function);
#include "cpu/inventory.inc"

std::array<KernelRow, kKernels> inventory() {
    return {{
#define KERNEL(function, path, tied) {path, tied, &HWY_DYNAMIC_DISPATCH(function)},
#include "cpu/inventory.inc"
    }};
}

std::string_view current_isa() { return HWY_DYNAMIC_DISPATCH(isa)(); }

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
    return names;
}

namespace {

std::once_flag environment_read;

void choose_isa(const std::string& name) {
    hwy::SetSupportedTargetsForTest(0);
    if (name.empty()) return;
    std::string known;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
        if (name == hwy::TargetName(target)) return hwy::SetSupportedTargetsForTest(target);
        known += std::string(known.empty() ? "" : ", ") + hwy::TargetName(target);
    }
    throw Error("isa", "isa: given '" + name + "', expected one that is compiled in and runs here: " + known);
}

}  // namespace

void read_environment() {
    std::call_once(environment_read, [] {
        if (const char* name = std::getenv("TIDEGATE_ISA")) choose_isa(name);
    });
}

void force_isa(const std::string& name) {
    std::call_once(environment_read, [] {});  // from now on the environment is overruled
    choose_isa(name);
}

}  // namespace tidegate::cpu
#endif  // HWY_ONCE
