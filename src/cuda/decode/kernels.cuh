// The decode kernels. A CTA owns one request, one value head and a slice of state columns: it reads the slice once,
// takes all of the request's tokens over it, and writes it once.
//   decode          rows of V or of K dense, K 64 or 128: the slice lies in registers (slice.cuh)
//   decode_general  any layout, stride, K and V: the slice lies in shared memory
#pragma once

#include "cuda/decode/front.cuh"
#include "cuda/decode/slice.cuh"
#include "cuda/ptx.cuh"

namespace tidegate::cuda {

/// Loads and stores of a state in flight are what decode is made of: each is asked for once, so no cache keeps it.
__device__ inline uint4 load_once(const void* from) { return __ldcs(static_cast<const uint4*>(from)); }
__device__ inline void store_once(void* to, const uint4& x) { __stcs(static_cast<uint4*>(to), x); }

/// The CTA's request, head and slice.
struct Place {
    int n, h, slice;
    __device__ explicit Place(const DecodeParams& p) {
        const int block = static_cast<int>(blockIdx.x);
        n = block / p.slices / p.HV, h = block / p.slices % p.HV, slice = block % p.slices;
    }
};

template <int kK>
struct Shared {
    alignas(16) float2 look[kK], put[kK];
    float b[kK], sums[4 * kWarps];
    __device__ RowCoefficients row() { return {look, put, b, sums}; }
};

/// CTAs an SM by registers a thread: 128, or 168 where a row is asked for during the one before it (kMany) or 16 bytes
/// are eight values.
template <class L, bool kMany>
constexpr int ctas() {
    return kMany || L::kLoads * L::kValues > 64 ? 3 : 4;
}

/// kMany: a request has more than one row (tokens times Householder steps). One is the common case, and without the
/// loop nothing outlives it in registers.
template <class L, bool kMany>
__global__ void __launch_bounds__(kThreads, ctas<L, kMany>()) decode(const __grid_constant__ DecodeParams p) {
    using S = typename L::S;
    constexpr int kLoads = L::kLoads, kValues = L::kValues;
    __shared__ Shared<L::kK> shared[kMany ? 2 : 1];
    __shared__ typename L::Exchange exchange;
    const Place place(p);
    const int n = place.n, h = place.h, first = place.slice * L::kColumns, left = min(p.V - first, L::kColumns);
    const int thread = static_cast<int>(threadIdx.x);
    ptx::wait_for_kernel_before();
    ptx::let_kernel_after_start();

    // 1. Ask for the first row, then for the state; both are in flight before either is looked at.
    Channel channel(p, n, h, 0, min(thread, L::kK - 1));
    const bool owns = L::owns(thread) && L::owned(thread) < left;
    const int own = owns ? first + L::owned(thread) : p.V;
    Column column(p, n, h, 0, own);
    const std::int64_t from = source(p, n);
    if (from < 0) return zero_pad<kThreads>(p, n, h, first, first + left);
    // The thread's places in a state tensor, load by load, and whether they are inside it.
    const auto memory = [&](const View& t, std::int64_t at, int k_dim, const auto& each) {
        S* const base = static_cast<S*>(t.data) + at + first * t.stride[k_dim + 1];
#pragma unroll
        for (int m = 0; m < kLoads; ++m)
            each(m, base + L::offset(thread, m, t.stride[k_dim], t.stride[k_dim + 1]), L::column(thread, m, 0) < left);
    };
    Slice<L, !kMany || sizeof(S) == 4> slice;
    {
        uint4 raw[kLoads];
        memory(p.state, at(p.state, from, h), 2, [&](int m, const S* x, bool active) {
            raw[m] = active ? load_once(x) : uint4{0, 0, 0, 0};
        });
#pragma unroll
        for (int m = 0; m < kLoads; ++m) slice.set_raw(m, raw[m]);
    }

    // 2. Rows of tokens over the slice.
    const int rows = kMany ? p.T * p.steps : 1;
    for (int row = 0; row < rows; ++row) {
        const int t = row / p.steps;
        const bool last_step = row % p.steps + 1 == p.steps;
        auto& c = shared[kMany ? row % 2 : 0];
        const Scales scales = write_row<kThreads>(p, c.row(), n, h, row, channel);
        const float v = column.value(p);
        if (kMany && row + 1 < rows) {
            channel = Channel(p, n, h, row + 1, min(thread, L::kK - 1));
            column = Column(p, n, h, row + 1, own);
        }

        // What the row reads of the state, and what the query does.
        float reads[L::kSplit][L::kSums] = {}, queries[L::kSplit][L::kSums] = {};
#pragma unroll
        for (int m = 0; m < kLoads; ++m) {
            float x[kValues];
            slice.get(m, x);
#pragma unroll
            for (int e = 0; e < kValues; ++e) {
                const float2 look = c.look[L::channel(thread, m, e)];
                float &read = reads[L::split(m)][L::sum(m, e)], &query = queries[L::split(m)][L::sum(m, e)];
                read = fmaf(look.x, x[e], read), query = fmaf(look.y, x[e], query);
            }
        }
        slice.forget_widened();
#pragma unroll
        for (int i = 0; L::kSplit == 2 && i < L::kSums; ++i) {
            reads[0][i] += reads[L::kSplit - 1][i];
            queries[0][i] += queries[L::kSplit - 1][i];
        }
        exchange.template give<0>(reads[0], thread);
        exchange.template give<1>(queries[0], thread);
        exchange.given();

        // The column that the thread owns.
        const float read = exchange.template take<0>(reads[0], thread) * (p.tied ? scales.k : 1.0F);
        const float written = p.tied ? v - read : v;
        exchange.template answer_with<0>(scales.k * written, thread);
        if (!p.tied) exchange.template answer_with<1>(read, thread);
        exchange.answered();
        if (last_step && owns) {
            float out = fmaf(scales.q, exchange.template take<1>(queries[0], thread), scales.qk * written);
            if (!p.tied) out = fmaf(scales.qb, read, out);
            store(p.o.data, p.o.dtype, at(p.o, n, t, h, own), out);
        }

        // The state after the row.
        const auto update = [&](auto tied) {
            float along_k[L::kSums], along_b[L::kSums];
#pragma unroll
            for (int i = 0; i < L::kSums; ++i) {
                along_k[i] = exchange.template answer_of<0>(scales.k * written, i, thread);
                if constexpr (!tied) along_b[i] = exchange.template answer_of<1>(read, i, thread);
            }
#pragma unroll
            for (int m = 0; m < kLoads; ++m) {
                float x[kValues];
                slice.get(m, x);
#pragma unroll
                for (int e = 0; e < kValues; ++e) {
                    const float2 put = c.put[L::channel(thread, m, e)];
                    x[e] = fmaf(put.y, along_k[L::sum(m, e)], put.x * x[e]);
                    if constexpr (!tied) x[e] = fmaf(c.b[L::channel(thread, m, e)], along_b[L::sum(m, e)], x[e]);
                }
                slice.set(m, x);
            }
        };
        if (p.tied) {
            update(std::true_type{});
        } else {
            update(std::false_type{});
        }
        if (!last_step) continue;
        const auto store_to = [&](int m, S* x, bool active) {
            if (active) store_once(x, slice.raw(m));
        };
        if (const std::int64_t to = target(p, n, t, from); to >= 0) memory(p.state, at(p.state, to, h), 2, store_to);
        if (p.state_tokens.data != nullptr) memory(p.state_tokens, at(p.state_tokens, n, t, h), 3, store_to);
    }
}

/// Shared memory: five coefficients [K], sums, the slice [K, columns], partial sums of the rows' groups, values.
inline std::size_t general_bytes(std::int64_t K, std::int64_t columns) {
    return static_cast<std::size_t>(K * columns + 5 * K + 16 + 3 * kThreads) * sizeof(float);
}

__global__ void __launch_bounds__(kThreads) decode_general(const __grid_constant__ DecodeParams p, int columns) {
    extern __shared__ float memory[];
    float2* const pairs = reinterpret_cast<float2*>(memory);
    const RowCoefficients c{pairs, pairs + p.K, memory + 4 * p.K, memory + 5 * p.K};
    float* const s = memory + 5 * p.K + 16;      // [K, columns]
    float* const partial = s + p.K * columns;      // [2][kThreads]
    float* const values = partial + 2 * kThreads;  // [columns]
    const Place place(p);
    const int n = place.n, h = place.h, first = place.slice * columns;
    ptx::wait_for_kernel_before();
    ptx::let_kernel_after_start();
    const std::int64_t from = source(p, n);
    if (from < 0) return zero_pad<kThreads>(p, n, h, first, min(first + columns, p.V));
    const int thread = static_cast<int>(threadIdx.x), column = thread % columns, group = thread / columns;
    const int groups = kThreads / columns, j = first + column;
    const bool active = j < p.V;
    for (int i = group; active && i < p.K; i += groups)
        s[i * columns + column] = load(p.state.data, p.state.dtype, at(p.state, from, h, i, j));
    for (int row = 0; row < p.T * p.steps; ++row) {
        const int t = row / p.steps;
        if (thread < columns) values[thread] = Column(p, n, h, row, first + thread).value(p);
        const Scales scales = write_row<kThreads>(p, c, n, h, row, Channel(p, n, h, row, min(thread, p.K - 1)));
        float read = 0, out = 0;
        for (int i = group; active && i < p.K; i += groups) {
            read = fmaf(c.look[i].x, s[i * columns + column], read);
            out = fmaf(c.look[i].y, s[i * columns + column], out);
        }
        partial[thread] = read;
        partial[kThreads + thread] = out;
        __syncthreads();
        read = out = 0;
        for (int g = 0; g < groups; ++g) {
            read += partial[g * columns + column];
            out += partial[kThreads + g * columns + column];
        }
        if (p.tied) read *= scales.k;
        const float x = p.tied ? values[column] - read : values[column];
        out = fmaf(scales.q, out, scales.qk * x);
        if (!p.tied) out = fmaf(scales.qb, read, out);
        const bool last_step = row % p.steps + 1 == p.steps;
        const std::int64_t to = last_step ? target(p, n, t, from) : -1;
        for (int i = group; active && i < p.K; i += groups) {
            float y = fmaf(scales.k * c.put[i].y, x, c.put[i].x * s[i * columns + column]);
            if (!p.tied) y = fmaf(c.b[i], read, y);
            s[i * columns + column] = y;
            if (to >= 0) store(p.state.data, p.state.dtype, at(p.state, to, h, i, j), y);
            if (last_step && p.state_tokens.data != nullptr)
                store(p.state_tokens.data, p.state_tokens.dtype, at(p.state_tokens, n, t, h, i, j), y);
        }
        if (last_step && active && group == 0) store(p.o.data, p.o.dtype, at(p.o, n, t, h, j), out);
        __syncthreads();
    }
}

}  // namespace tidegate::cuda
