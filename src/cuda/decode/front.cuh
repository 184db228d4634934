// A decode row's front end on the device: elements of any type, gates, strengths, norms, slots.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/decode/lanes.cuh"
#include "cuda/decode/params.h"
#include "cuda/decode/slice.cuh"

namespace tidegate::cuda {

// NOTES: a load and its conversion are apart. With the conversion inside the choice of a type every load would be
// waited for before the next is issued, and a row's front end is eight of them.
__device__ inline std::uint32_t load_bits(const void* data, Dtype dtype, std::int64_t i) {
    return dtype == Dtype::fp32 ? static_cast<const std::uint32_t*>(data)[i]
                                : static_cast<const std::uint16_t*>(data)[i];
}
__device__ inline float widen_bits(std::uint32_t bits, Dtype dtype) {
    if (dtype == Dtype::fp32) return __uint_as_float(bits);
    if (dtype == Dtype::bf16) return __uint_as_float(bits << 16);
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ inline float load(const void* data, Dtype dtype, std::int64_t i) {
    return widen_bits(load_bits(data, dtype, i), dtype);
}

__device__ inline void store(void* data, Dtype dtype, std::int64_t i, float x) {
    switch (dtype) {
        case Dtype::bf16:
            static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(x);
            break;
        case Dtype::fp16:
            static_cast<__half*>(data)[i] = __float2half_rn(x);
            break;
        default:
            static_cast<float*>(data)[i] = x;
    }
}

/// An index as it lies in memory, asked for and not yet looked at.
struct IndexBits {
    std::uint32_t low = 0, high = 0;
    IndexBits() = default;
    __device__ IndexBits(const View& t, std::int64_t i) {
        const bool wide = t.dtype == Dtype::int64;
        const auto* const x = static_cast<const std::uint32_t*>(t.data) + (wide ? 2 * i : i);
        low = x[0];
        if (wide) high = x[1];
    }
    __device__ std::int64_t value(const View& t) const {
        return t.dtype == Dtype::int64 ? static_cast<std::int64_t>(std::uint64_t{high} << 32 | low)
                                       : static_cast<std::int32_t>(low);
    }
};

/// An offset in elements: one instruction a dimension, since strides have 32 bits.
__device__ inline std::int64_t wide(int index, int stride) { return std::int64_t{index} * stride; }
template <class... Index>
__device__ std::int64_t at(const View& t, Index... index) {
    std::int64_t offset = 0;
    int d = 0;
    ((offset += wide(index, t.stride[d++])), ...);
    return offset;
}

// NOTES: slots are data on the device and cannot be checked before the call: one that is not in the pool is a pad.
__device__ inline int in_pool(const DecodeParams& p, std::int64_t slot) {
    return slot < 0 || slot >= p.P || slot == p.null_slot ? -1 : static_cast<int>(slot);
}
/// Which slot request n starts from: asked for first of all, since the state waits for it.
struct Source {
    IndexBits bits;
    __device__ Source(const DecodeParams& p, int n) {
        if (p.columns == 0) {
            if (p.state_indices.data != nullptr) bits = {p.state_indices, at(p.state_indices, n)};
        } else if (p.num_accepted.data != nullptr) {
            bits = {p.num_accepted, at(p.num_accepted, n)};
        }
    }
    /// -1: a pad.
    __device__ int slot(const DecodeParams& p, int n) const {
        if (p.columns == 0) return in_pool(p, p.state_indices.data == nullptr ? n : bits.value(p.state_indices));
        const std::int64_t accepted = p.num_accepted.data == nullptr ? 1 : bits.value(p.num_accepted);
        if (accepted < 1 || accepted > p.columns) return -1;
        return in_pool(
            p,
            IndexBits(p.state_indices, at(p.state_indices, n, static_cast<int>(accepted) - 1)).value(p.state_indices));
    }
};
/// The slot that request n starts from, if no kernel that still runs is about to change it; -1: none to tell.
__device__ inline int probable_source(const DecodeParams& p, int n) {
    if (p.columns > 0) return -1;
    const View& t = p.state_indices;
    if (t.data == nullptr) return in_pool(p, n);
    const std::int64_t i = at(t, n);
    return in_pool(p, t.dtype == Dtype::int64 ? ptx::peek(static_cast<const std::int64_t*>(t.data) + i)
                                              : ptx::peek(static_cast<const std::int32_t*>(t.data) + i));
}
/// Where request n's state goes after token t; -1: nowhere.
__device__ inline int target(const DecodeParams& p, int n, int t, int from) {
    if (p.columns > 0) return in_pool(p, IndexBits(p.state_indices, at(p.state_indices, n, t)).value(p.state_indices));
    return t + 1 == p.T ? from : -1;
}

__device__ inline float sigmoid(float x) {
    const float e = expf(-fabsf(x));
    return (x < 0 ? e : 1.0F) / (1.0F + e);
}

__device__ inline float strength(float x, StrengthKind kind) {
    if (kind == StrengthKind::given) return x;
    return kind == StrengthKind::one ? 1.0F : sigmoid(x) * (kind == StrengthKind::twice_sigmoid ? 2.0F : 1.0F);
}
__device__ inline std::uint32_t ask_strength(const View& x, StrengthKind kind, bool vector, int n, int row, int h,
                                             int c) {
    return kind == StrengthKind::one ? 0 : load_bits(x.data, x.dtype, at(x, n, row, h) + (vector ? c : 0));
}

/// What a thread has asked for of a row, as bits: channel i of q, k, gate and erase strength (or a, b). Asked for
/// before the state, so that it is there when the state is on its way.
struct Channel {
    std::uint32_t q, k, gate, A_log, bias, erase, b;

    Channel() = default;
    __device__ Channel(const DecodeParams& p, int n, int h, int row, int i) {
        const int t = row / p.steps, hk = p.tiled ? h % p.H : h / (p.HV / p.H);
        const bool vector = p.decay == Decay::vector;
        q = load_bits(p.q.data, p.q.dtype, at(p.q, n, t, hk) + i);
        k = load_bits(p.k.data, p.k.dtype, at(p.k, n, row, hk) + i);
        gate = A_log = bias = b = 0;
        if (p.decay != Decay::none && row % p.steps == 0) {
            gate = load_bits(p.gate.data, p.gate.dtype, at(p.gate, n, t, h) + (vector ? i : 0));
            if (p.gate_kind != GateKind::given) {
                A_log = load_bits(p.A_log.data, p.A_log.dtype, at(p.A_log, h));
                if (p.dt_bias.data != nullptr)
                    bias = load_bits(p.dt_bias.data, p.dt_bias.dtype,
                                     at(p.dt_bias, h) + (vector ? i * p.dt_bias.stride[1] : 0));
            }
        }
        if (p.tied) {
            erase = ask_strength(p.erase, p.erase_kind, p.erase_vector, n, row, h, i);
        } else {
            erase = load_bits(p.a.data, p.a.dtype, at(p.a, n, t, h) + i);
            b = load_bits(p.b.data, p.b.dtype, at(p.b, n, t, h) + i);
        }
    }

    /// exp(g), as problem/load.h forms it. The bounded form in double: its float is off by enough to be seen in a
    /// state.
    __device__ float decay(const DecodeParams& p, bool first_step) const {
        if (p.decay == Decay::none || !first_step) return 1.0F;
        float g = widen_bits(gate, p.gate.dtype);
        if (p.gate_kind != GateKind::given) {
            const float log = widen_bits(A_log, p.A_log.dtype), shift = widen_bits(bias, p.dt_bias.dtype);
            if (p.gate_kind == GateKind::softplus) {
                // Far below zero softplus(x) = exp(x), and the exponents are added first: inf times 0 would be NaN.
                const float x = g + shift;
                g = x < -17.0F ? -expf(log + x) : -(expf(log) * (fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x)))));
                if (isnan(x)) g = x;
            } else {
                const double x = static_cast<double>(g) + shift;
                const double z = x == 0 ? 0.0 : exp(static_cast<double>(log)) * x, e = exp(-fabs(z));
                const double exact = p.lower_bound * ((z < 0 ? e : 1.0) / (1.0 + e));
                return static_cast<float>(
                    exp(p.has_min && exact < p.gate_min ? static_cast<double>(p.gate_min) : exact));
            }
        }
        if (p.has_min && g < p.gate_min) g = p.gate_min;
        return expf(g);
    }
};

/// A row's coefficients by channel, in shared memory, [K] each: S <- d o S + k x^T + b p^T with p = read^T S, and
/// o = query^T S + qk x + qb p, of the state S before the row. Not yet times the row's Scales.
struct RowCoefficients {
    float2* look;  ///< read, query
    float2* put;   ///< d, k
    float* b;      ///< free form only
    float* sums;   ///< [4][warps]: q^2, k^2, q.k, q.b by warp
};
/// What l2norm and `scale` make of them, and the two products.
struct Scales {
    float q, k, qk, qb;
};

/// Writes channels i, i + kThreads, ... of a row; `mine` is the thread's first. To be seen behind a barrier.
__device__ inline void write_row(const DecodeParams& p, const RowCoefficients& c, int n, int h, int row,
                                 const Channel& mine) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    float sums[4] = {0, 0, 0, 0};
    const bool first_step = row % p.steps == 0;
    const auto write = [&](int i, const Channel& x) {
        const float q = widen_bits(x.q, p.q.dtype), k = widen_bits(x.k, p.k.dtype), d = x.decay(p, first_step);
        const float b = p.tied ? 0.0F : widen_bits(x.b, p.b.dtype);
        const float read = p.tied ? strength(widen_bits(x.erase, p.erase.dtype), p.erase_kind) * k * d
                                  : widen_bits(x.erase, p.a.dtype);
        c.look[i] = {read, q * d};
        c.put[i] = {d, k};
        if (!p.tied) c.b[i] = b;
        sums[0] += q * q, sums[1] += k * k, sums[2] += q * k, sums[3] += q * b;
    };
    if (thread < p.K) write(thread, mine);
    for (int i = thread + kThreads; i < p.K; i += kThreads) write(i, Channel(p, n, h, row, i));
    using Lanes = LaneSums<4, 16, 1>;
    const float mine_of_warp = Lanes::sum(sums, lane);
    if (Lanes::is_first(lane)) c.sums[Lanes::owned(lane) * kWarps + thread / 32] = mine_of_warp;
}
/// Of a row that is written, behind the barrier.
__device__ inline Scales scales_of(const DecodeParams& p, const RowCoefficients& c) {
    float total[4] = {0, 0, 0, 0};
    for (int s = 0; s < 4; ++s)
        for (int w = 0; w < kWarps; ++w) total[s] += c.sums[s * kWarps + w];
    Scales scales;
    scales.q = p.l2norm ? p.scale / sqrtf(total[0] + 1e-6F) : p.scale;
    scales.k = p.l2norm ? 1.0F / sqrtf(total[1] + 1e-6F) : 1.0F;
    scales.qk = scales.q * scales.k * total[2];
    scales.qb = scales.q * total[3];
    return scales;
}

/// Column j of a row's v and write strength, as bits; 0 behind V.
struct Column {
    std::uint32_t v, w;
    Column() = default;
    __device__ Column(const DecodeParams& p, int n, int h, int row, int j) : v(0), w(0) {
        if (j >= p.V) return;
        v = load_bits(p.v.data, p.v.dtype, at(p.v, n, row, h) + j);
        w = ask_strength(p.write, p.write_kind, p.write_vector, n, row, h, j);
    }
    __device__ float value(const DecodeParams& p) const {
        return widen_bits(v, p.v.dtype) * strength(widen_bits(w, p.write.dtype), p.write_kind);
    }
};

/// Zeros for a pad: columns [first, last) of its rows of o and state_tokens.
__device__ __noinline__ inline void zero_pad(const DecodeParams& p, int n, int h, int first, int last) {
    for (int t = 0; t < p.T; ++t)
        for (int j = first + static_cast<int>(threadIdx.x); j < last; j += kThreads) {
            store(p.o.data, p.o.dtype, at(p.o, n, t, h, j), 0.0F);
            for (int i = 0; p.state_tokens.data != nullptr && i < p.K; ++i)
                store(p.state_tokens.data, p.state_tokens.dtype, at(p.state_tokens, n, t, h, i, j), 0.0F);
        }
}

}  // namespace tidegate::cuda
