// Forward, one token at a time over a slice of state columns that stays in cache; compiled once for every target.
#include "cpu/kernels.h"
#include "problem/load.h"
#include "tidegate/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward_hwy.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 16>;  // 16 columns are the padding that the plan names

/// Views into the task's workspace; what is loaded as vectors comes first, where it is aligned whatever K is.
struct Buffers {
    float *S, *v, *o, *q, *k, *ek, *a, *b, *decay;
    Buffers(float* w, std::size_t K, std::size_t W)
        : S(w), v(S + K * W), o(v + W), q(o + W), k(q + K), ek(k + K), a(ek + K), b(a + K), decay(b + K) {}
};

/// One step: S <- D S + ..., o = S^T q. The columns of a slice do not meet: any slicing gives the same bits.
template <bool kTied>
void step(const Buffers& x, std::size_t K, std::size_t W) {
    const F f;
    const std::size_t lanes = hn::Lanes(f);
    for (std::size_t j = 0; j < W; j += lanes) {
        const auto v = hn::Load(f, x.v + j);
        auto read = hn::Zero(f), out = hn::Zero(f);
        if constexpr (kTied) {
            for (std::size_t i = 0; i < K; ++i) {
                const auto s = hn::Mul(hn::Set(f, x.decay[i]), hn::Load(f, x.S + i * W + j));
                hn::Store(s, f, x.S + i * W + j);
                read = hn::MulAdd(hn::Set(f, x.ek[i]), s, read);
            }
            const auto error = hn::Sub(v, read);
            for (std::size_t i = 0; i < K; ++i) {
                const auto s = hn::MulAdd(hn::Set(f, x.k[i]), error, hn::Load(f, x.S + i * W + j));
                hn::Store(s, f, x.S + i * W + j);
                out = hn::MulAdd(hn::Set(f, x.q[i]), s, out);
            }
        } else {
            for (std::size_t i = 0; i < K; ++i)
                read = hn::MulAdd(hn::Set(f, x.a[i]), hn::Load(f, x.S + i * W + j), read);
            for (std::size_t i = 0; i < K; ++i) {
                const auto old = hn::Mul(hn::Set(f, x.decay[i]), hn::Load(f, x.S + i * W + j));
                const auto s = hn::MulAdd(hn::Set(f, x.k[i]), v, hn::MulAdd(hn::Set(f, x.b[i]), read, old));
                hn::Store(s, f, x.S + i * W + j);
                out = hn::MulAdd(hn::Set(f, x.q[i]), s, out);
            }
        }
        hn::Store(out, f, x.o + j);
    }
}

template <bool kTied>
void forward(const NormalForm& nf, const Task& task) {
    const auto K = static_cast<std::size_t>(nf.K), W = static_cast<std::size_t>(task.slice);
    const std::int64_t n = task.sequence, h = task.head;
    const auto columns = static_cast<std::size_t>(std::min(task.slice, nf.V - task.first_column));
    const Buffers x(task.workspace, K, W);
    for (std::size_t i = 0; i < K; ++i)
        for (std::size_t j = 0; j < W; ++j)
            x.S[i * W + j] =
                nf.initial_state.present() && j < columns
                    ? load_as<float>(nf.initial_state, offset_of(nf.initial_state, n, h, i, task.first_column) +
                                                           static_cast<std::int64_t>(j) * nf.initial_state.stride[3])
                    : 0.0F;

    const float scale = static_cast<float>(nf.scale);
    Step<float> s(nf);
    const Span span = nf.sequence(n);
    for (std::int64_t t = span.begin; t < span.end; ++t) {
        for (std::int64_t inner = 0; inner < nf.steps; ++inner) {
            s.load(nf, span.batch, t, h, inner);
            for (std::size_t i = 0; i < K; ++i) {
                x.q[i] = s.q[i];
                x.k[i] = s.k[i];
                x.decay[i] = nf.gate.decay == Decay::none ? 1.0F : std::exp(s.g[i]);
                if constexpr (kTied)
                    x.ek[i] = s.ek[i];
                else
                    x.a[i] = s.a[i], x.b[i] = s.b[i];
            }
            for (std::size_t j = 0; j < W; ++j)
                x.v[j] = j < columns ? s.v[static_cast<std::size_t>(task.first_column) + j] : 0.0F;
            step<kTied>(x, K, W);
        }
        const std::int64_t at = offset_of(nf.o, span.batch, t, h, task.first_column);
        for (std::size_t j = 0; j < columns; ++j)
            store_element(nf.o.data, nf.o.dtype, at + static_cast<std::int64_t>(j),
                          static_cast<double>(scale * x.o[j]));
    }
    if (!nf.final_state.present()) return;
    for (std::size_t i = 0; i < K; ++i)
        for (std::size_t j = 0; j < columns; ++j)
            store_element(nf.final_state.data, nf.final_state.dtype,
                          offset_of(nf.final_state, n, h, i, task.first_column) +
                              static_cast<std::int64_t>(j) * nf.final_state.stride[3],
                          static_cast<double>(x.S[i * W + j]));
}

void forward_tied(const NormalForm& nf, const Task& task) { forward<true>(nf, task); }
void forward_free(const NormalForm& nf, const Task& task) { forward<false>(nf, task); }
const char* isa() { return hwy::TargetName(HWY_TARGET); }

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::cpu {

HWY_EXPORT(isa);
#define KERNEL(function, path, tied) HWY_EXPORT(function);
#include "cpu/inventory.inc"
#undef KERNEL

std::vector<KernelRow> inventory() {
    return {
#define KERNEL(function, path, tied) {path, tied, &HWY_DYNAMIC_DISPATCH(function)},
#include "cpu/inventory.inc"
#undef KERNEL
    };
}

std::string current_isa() { return HWY_DYNAMIC_DISPATCH(isa)(); }

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(target));
    return names;
}

void force_isa(const std::string& name) {
    hwy::SetSupportedTargetsForTest(0);
    if (name.empty()) return;
    std::string known;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
        if (name == hwy::TargetName(target)) return hwy::SetSupportedTargetsForTest(target);
        known += std::string(known.empty() ? "" : ", ") + hwy::TargetName(target);
    }
    throw Error("isa", "isa: given '" + name + "', expected one that is compiled in and runs here: " + known);
}

}  // namespace tidegate::cpu
#endif  // HWY_ONCE
