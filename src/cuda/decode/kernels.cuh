// The decode kernels. A CTA owns one request, one value head and a slice of state columns: it reads the slice once,
// takes all of the request's tokens over it, and writes it once.
//   decode          rows of V or of K dense, K 64 or 128: the slice lies in registers (slice.cuh)
//   decode_general  any layout, stride, K and V: the slice lies in shared memory
#pragma once

#include "cuda/decode/front.cuh"
#include "cuda/decode/slice.cuh"
#include "cuda/ptx.cuh"
#include "plan/cuda_plan.h"

namespace tidegate::cuda {

/// The CTA's request, head and slice.
struct Place {
    int n, h, slice;
    __device__ explicit Place(const DecodeParams& p) {
        const int block = static_cast<int>(blockIdx.x);
        n = block / p.slices / p.HV, h = block / p.slices % p.HV, slice = block % p.slices;
    }
};

/// A row's front end, in shared memory.
template <int kK>
struct FrontRow {
    alignas(16) float2 look[kK], put[kK];
    float b[kK], sums[4 * kWarps];
    float v[kThreads];  ///< of the columns that the threads own
    __device__ RowCoefficients coefficients() { return {look, put, b, sums}; }
};

template <class L, bool kMany>
struct Shared {
    static constexpr int kTogether = kMany ? 2 : 1;  ///< rows whose front ends are done at once
    uint4 slice[L::kLoads][kThreads];
    FrontRow<L::kK> rows[kTogether];
    typename L::Exchange exchange;
};

/// CTAs an SM: what shared memory holds of passing slices, or registers of those that stay.
template <class L, bool kMany>
constexpr int ctas() {
    return kMany ? 3 : L::kLoads == 16 ? 5 : 4;
}

/// The first of kSplit accumulators becomes their sum.
template <int kSplit, int kSums>
__device__ void sum_split(float (&x)[kSplit][kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
        if constexpr (kSplit == 2) x[0][i] += x[1][i];
    }
}

/// kMany: a request has more than one row (tokens times Householder steps). One is the common case, and without the
/// loop nothing outlives it in registers.
template <class L, bool kMany>
__global__ void __launch_bounds__(kThreads, ctas<L, kMany>()) decode(const __grid_constant__ DecodeParams p) {
    using S = typename L::S;
    using Held = std::conditional_t<kMany, Staying<L>, Passing<L>>;
    constexpr int kLoads = L::kLoads, kValues = L::kValues;
    constexpr int kTogether = Shared<L, kMany>::kTogether;
    extern __shared__ uint4 raw_memory[];
    auto& memory = *reinterpret_cast<Shared<L, kMany>*>(raw_memory);
    auto& exchange = memory.exchange;
    const Place place(p);
    const int n = place.n, h = place.h, first = place.slice * L::kColumns, left = min(p.V - first, L::kColumns);
    const int thread = static_cast<int>(threadIdx.x), rows = kMany ? p.T * p.steps : 1;
    const bool owns = L::owns(thread) && L::owned(thread) < left;
    const int own = owns ? first + L::owned(thread) : p.V;
    // The thread's 16 bytes of load m in a state tensor [.., K, V] at `at`, and whether they are inside it.
    const auto place_in = [&](const View& t, std::int64_t at, int k_dim) {
        const int k = t.stride[k_dim], v = t.stride[k_dim + 1];
        S* const base =
            static_cast<S*>(t.data) + at + wide(L::channel(thread, 0, 0), k) + wide(first + L::column(thread, 0, 0), v);
        return [base, stride = ptx::as_if_new(L::load_stride(k, v))](int m) { return base + m * stride; };
    };
    const auto inside = [&](int m) { return L::column(thread, m, 0) < left; };

    // 0. While the kernel before still runs: bring what is probably the state into L2. No value is used.
    if (const int guess = gridDim.x < kAtOnce && thread % 8 == 0 ? probable_source(p, n) : -1; guess >= 0) {
        const auto in = place_in(p.state, at(p.state, guess, h), 2);
#pragma unroll
        for (int m = 0; m < kLoads; ++m)
            if (inside(m)) ptx::prefetch(in(m));
    }
    ptx::wait_for_kernel_before();
    ptx::let_kernel_after_start();

    // 1. Ask for the slot, the first rows, and the state; all are in flight before any but the slot is looked at.
    const Source source(p, n);
    Channel channels[kTogether];
    Column columns[kTogether];
    const auto ask = [&](int row0) {
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
            if (row0 + r < rows) {
                channels[r] = Channel(p, n, h, row0 + r, min(thread, L::kK - 1));
                columns[r] = Column(p, n, h, row0 + r, own);
            }
    };
    ask(0);
    const int from = source.slot(p, n);
    if (from < 0) return zero_pad(p, n, h, first, first + left);
    Held slice{memory.slice};
    const auto in = place_in(p.state, at(p.state, from, h), 2);
#pragma unroll
    for (int m = 0; m < kLoads; ++m) slice.ask(m, inside(m) ? in(m) : in(0), inside(m));

    // 2. Rows of tokens over the slice.
    for (int row = 0; row < rows; ++row) {
        if (row % kTogether == 0) {
            if (row > 0) {
                ask(row);
                __syncthreads();  // these rows overwrite what those before them read
            }
#pragma unroll
            for (int r = 0; r < kTogether; ++r)
                if (row + r < rows) {
                    write_row(p, memory.rows[r].coefficients(), n, h, row + r, channels[r]);
                    memory.rows[r].v[thread] = columns[r].value(p);
                }
            __syncthreads();
        }
        auto& c = memory.rows[row % kTogether];
        const Scales scales = scales_of(p, c.coefficients());
        const float v = c.v[thread];
        const int t = row / p.steps;
        const bool last_step = row % p.steps + 1 == p.steps;
        if (row == 0) slice.arrive();

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
        sum_split<L::kSplit>(reads), sum_split<L::kSplit>(queries);
        exchange.template give<0>(reads[0], thread);
        exchange.template give<1>(queries[0], thread);
        exchange.given();

        // The column that the thread owns.
        const float read = exchange.template take<0>(reads[0], thread) * (p.tied ? scales.k : 1.0F);
        const float query = exchange.template take<1>(queries[0], thread);
        const float written = p.tied ? v - read : v;
        exchange.template answer_with<0>(scales.k * written, thread);
        if (!p.tied) exchange.template answer_with<1>(read, thread);
        exchange.answered();
        if (last_step && owns) {
            float answer = fmaf(scales.q, query, scales.qk * written);
            if (!p.tied) answer = fmaf(scales.qb, read, answer);
            store(p.o.data, p.o.dtype, at(p.o, n, t, h, own), answer);
        }

        // The state after the row, to where it belongs.
        const int to = last_step ? target(p, n, t, from) : -1;
        const bool each = last_step && p.state_tokens.data != nullptr;
        const auto out = place_in(p.state, to < 0 ? 0 : at(p.state, to, h), 2);
        const auto out_each = place_in(p.state_tokens, each ? at(p.state_tokens, n, t, h) : 0, 3);
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
                const uint4 raw = Pack<S>::narrow(x);
                if (to >= 0 && inside(m)) __stcs(reinterpret_cast<uint4*>(out(m)), raw);
                if (each && inside(m)) __stcs(reinterpret_cast<uint4*>(out_each(m)), raw);
            }
        };
        if (p.tied) {
            update(std::true_type{});
        } else {
            update(std::false_type{});
        }
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
    float* const s = memory + 5 * p.K + 16;        // [K, columns]
    float* const partial = s + p.K * columns;      // [2][kThreads]
    float* const values = partial + 2 * kThreads;  // [columns]
    const Place place(p);
    const int n = place.n, h = place.h, first = place.slice * columns;
    ptx::wait_for_kernel_before();
    ptx::let_kernel_after_start();
    const int from = Source(p, n).slot(p, n);
    if (from < 0) return zero_pad(p, n, h, first, min(first + columns, p.V));
    const int thread = static_cast<int>(threadIdx.x), column = thread % columns, group = thread / columns;
    const int groups = kThreads / columns, j = first + column;
    const bool active = j < p.V;
    for (int i = group; active && i < p.K; i += groups)
        s[i * columns + column] = load(p.state.data, p.state.dtype, at(p.state, from, h, i, j));
    for (int row = 0; row < p.T * p.steps; ++row) {
        const int t = row / p.steps;
        if (thread < columns) values[thread] = Column(p, n, h, row, first + thread).value(p);
        write_row(p, c, n, h, row, Channel(p, n, h, row, min(thread, p.K - 1)));
        __syncthreads();
        const Scales scales = scales_of(p, c);
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
        const int to = last_step ? target(p, n, t, from) : -1;
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
