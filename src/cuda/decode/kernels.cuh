// The decode kernels. A CTA owns one request, one value head and a slice of state columns: it reads the slice once,
// takes all of the request's tokens over it, and writes it once.
//   kv       rows of V dense: a lane holds 16 bytes of columns; sums go over lanes and warps
//   vk       rows of K dense: a group of lanes holds a column; sums go over the group
//   general  any layout, stride, K and V: the slice lies in shared memory
// kv and vk are for requests of several rows; with one row (step_kv, step_vk in step.cuh) a CTA takes several slices.
#pragma once

#include "cuda/decode/front.cuh"

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

/// A slice is 32 fp32 values a thread at K = 128, whatever the pool stores: twice the threads for 16-bit states.
template <class S>
struct Shape {
    static constexpr int kValues = Pack<S>::kValues;  ///< of 16 bytes
    static constexpr int kThreads = 32 * kValues;     ///< 128 or 256
    static constexpr int kWarps = kThreads / 32;
    static constexpr int kCtas = 512 / kThreads;  ///< an SM: 128 registers a thread
};

template <int kK, int kWarps>
struct Shared {
    alignas(16) float d[kK], k[kK], read[kK], query[kK], b[kK];
    float sums[4 * kWarps];
    __device__ RowCoefficients row() { return {d, k, read, query, b, sums}; }
};

/// kMany: a request has more than one row (tokens times Householder steps). One is the common case, and without the
/// loop nothing outlives it in registers.
template <class S, int kK>
__global__ void __launch_bounds__(Shape<S>::kThreads, Shape<S>::kCtas)
    decode_kv(const __grid_constant__ DecodeParams p) {
    constexpr int kValues = Shape<S>::kValues, kThreads = Shape<S>::kThreads, kWarps = Shape<S>::kWarps;
    constexpr int kColumns = 8 * kValues, kStep = 4 * kWarps, kRows = kK / kStep;  // a warp loads 4 rows of 8 lanes
    __shared__ Shared<kK, kWarps> shared;
    __shared__ alignas(16) float values[kColumns];
    __shared__ alignas(16) float partial[2][kWarps][kColumns];
    const Place place(p);
    const int n = place.n, h = place.h, first = place.slice * kColumns;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int column = lane % 8 * kValues, row0 = warp * 4 + lane / 8;
    const bool active = first + column < p.V;  // V is a multiple of 16 bytes

    // 1. Ask for the first row, then for the state; both are in flight before either is looked at.
    Channel channel(p, n, h, 0, min(thread, kK - 1));
    Column asked(p, n, h, 0, thread < kColumns ? first + thread : p.V);
    const std::int64_t from = source(p, n);
    if (from < 0) return zero_pad<kThreads>(p, n, h, first, min(first + kColumns, p.V));
    const auto mine = [&](const View& t, std::int64_t state_at, std::int64_t row_stride) {
        return static_cast<S*>(t.data) + state_at + row0 * row_stride + first + column;
    };
    uint4 raw[kRows];
    const S* const in = mine(p.state, at(p.state, from, h), p.state.stride[2]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) raw[i] = active ? load_once(in + kStep * i * p.state.stride[2]) : uint4{0, 0, 0, 0};
    if (thread < kColumns) values[thread] = asked.value(p);
    Scales scales = write_row<kThreads>(p, shared.row(), n, h, 0, channel);
    float s[kRows][kValues];
#pragma unroll
    for (int i = 0; i < kRows; ++i) Pack<S>::widen(raw[i], s[i]);
    const auto store_to = [&](S* out, std::int64_t row_stride) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            if (active) store_once(out + kStep * i * row_stride, Pack<S>::narrow(s[i]));
    };

    // 2. Rows of tokens over the slice.
    for (int row = 0; row < p.T * p.steps; ++row) {
        const int t = row / p.steps;
        const bool last_step = row % p.steps + 1 == p.steps;
        if (row > 0) {
            channel = Channel(p, n, h, row, min(thread, kK - 1));
            asked = Column(p, n, h, row, thread < kColumns ? first + thread : p.V);
            __syncthreads();  // this row overwrites what the one before it read
            if (thread < kColumns) values[thread] = asked.value(p);
            scales = write_row<kThreads>(p, shared.row(), n, h, row, channel);
        }
        float sum[2][kValues] = {};
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float e = shared.read[row0 + kStep * i], q = shared.query[row0 + kStep * i];
#pragma unroll
            for (int c = 0; c < kValues; ++c) {
                sum[0][c] = fmaf(e, s[i][c], sum[0][c]);
                sum[1][c] = fmaf(q, s[i][c], sum[1][c]);
            }
        }
#pragma unroll
        for (int x = 0; x < 2; ++x)
#pragma unroll
            for (int c = 0; c < kValues; ++c) {
                sum[x][c] += __shfl_xor_sync(0xFFFFFFFF, sum[x][c], 8);
                sum[x][c] += __shfl_xor_sync(0xFFFFFFFF, sum[x][c], 16);
                if (lane < 8) partial[x][warp][column + c] = sum[x][c];
            }
        __syncthreads();
        float x[kValues], read[kValues];  // what the row writes along k, and what it read
#pragma unroll
        for (int c = 0; c < kValues; ++c) {
            read[c] = 0;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) read[c] += partial[0][w][column + c];
            if (p.tied) read[c] *= scales.k;
            x[c] = p.tied ? values[column + c] - read[c] : values[column + c];
        }
        if (last_step && thread < 8 && active) {
#pragma unroll
            for (int c = 0; c < kValues; ++c) {
                float out = 0;
                for (int w = 0; w < kWarps; ++w) out += partial[1][w][column + c];
                out = fmaf(scales.q, out, scales.qk * x[c]);
                if (!p.tied) out = fmaf(scales.qb, read[c], out);
                store(p.o.data, p.o.dtype, at(p.o, n, t, h, first + column + c), out);
            }
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float d = shared.d[row0 + kStep * i], k = scales.k * shared.k[row0 + kStep * i];
#pragma unroll
            for (int c = 0; c < kValues; ++c) s[i][c] = fmaf(k, x[c], d * s[i][c]);
            if (p.tied) continue;
            const float b = shared.b[row0 + kStep * i];
#pragma unroll
            for (int c = 0; c < kValues; ++c) s[i][c] = fmaf(b, read[c], s[i][c]);
        }
        if (!last_step) continue;
        const View &pool = p.state, &tokens = p.state_tokens;
        if (const std::int64_t to = target(p, n, t, from); to >= 0)
            store_to(mine(pool, at(pool, to, h), pool.stride[2]), pool.stride[2]);
        if (tokens.data != nullptr) store_to(mine(tokens, at(tokens, n, t, h), tokens.stride[3]), tokens.stride[3]);
    }
}

template <class S, int kK>
__global__ void __launch_bounds__(Shape<S>::kThreads, Shape<S>::kCtas)
    decode_vk(const __grid_constant__ DecodeParams p) {
    constexpr int kValues = Shape<S>::kValues, kThreads = Shape<S>::kThreads, kWarps = Shape<S>::kWarps;
    constexpr int kGroup = kK / kValues, kTogether = 32 / kGroup;  // lanes a column; columns a warp loads at once
    constexpr int kLoads = 32 / kValues, kColumns = kWarps * kLoads * kTogether;
    __shared__ Shared<kK, kWarps> shared;
    __shared__ float values[kColumns];
    const Place place(p);
    const int n = place.n, h = place.h, first = place.slice * kColumns;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int channel0 = lane % kGroup * kValues, column0 = warp * kLoads * kTogether + lane / kGroup;
    const int left = min(p.V - first, kColumns);  // columns that exist
    const auto column = [&](int i) { return column0 + i * kTogether; };

    // 1. Ask for the first row, then for the state; both are in flight before either is looked at.
    Channel channel(p, n, h, 0, min(thread, kK - 1));
    Column asked(p, n, h, 0, thread < kColumns ? first + thread : p.V);
    const std::int64_t from = source(p, n);
    if (from < 0) return zero_pad<kThreads>(p, n, h, first, first + left);
    const auto mine = [&](const View& t, std::int64_t state_at, std::int64_t column_stride) {
        return static_cast<S*>(t.data) + state_at + (first + column0) * column_stride + channel0;
    };
    uint4 raw[kLoads];
    const S* const in = mine(p.state, at(p.state, from, h), p.state.stride[3]);
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
        raw[i] = column(i) < left ? load_once(in + i * kTogether * p.state.stride[3]) : uint4{0, 0, 0, 0};
    if (thread < kColumns) values[thread] = asked.value(p);
    Scales scales = write_row<kThreads>(p, shared.row(), n, h, 0, channel);
    float s[kLoads][kValues];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) Pack<S>::widen(raw[i], s[i]);
    const auto store_to = [&](S* out, std::int64_t column_stride) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
            if (column(i) < left) store_once(out + i * kTogether * column_stride, Pack<S>::narrow(s[i]));
    };

    // 2. Rows of tokens over the slice.
    for (int row = 0; row < p.T * p.steps; ++row) {
        const int t = row / p.steps;
        const bool last_step = row % p.steps + 1 == p.steps;
        if (row > 0) {
            channel = Channel(p, n, h, row, min(thread, kK - 1));
            asked = Column(p, n, h, row, thread < kColumns ? first + thread : p.V);
            __syncthreads();  // this row overwrites what the one before it read
            if (thread < kColumns) values[thread] = asked.value(p);
            scales = write_row<kThreads>(p, shared.row(), n, h, row, channel);
        }
        float read[kLoads], out[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            read[i] = out[i] = 0;
#pragma unroll
            for (int c = 0; c < kValues; ++c) {
                read[i] = fmaf(shared.read[channel0 + c], s[i][c], read[i]);
                out[i] = fmaf(shared.query[channel0 + c], s[i][c], out[i]);
            }
        }
#pragma unroll
        for (int other = kGroup / 2; other > 0; other /= 2)
#pragma unroll
            for (int i = 0; i < kLoads; ++i) {
                read[i] += __shfl_xor_sync(0xFFFFFFFF, read[i], other);
                out[i] += __shfl_xor_sync(0xFFFFFFFF, out[i], other);
            }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            if (p.tied) read[i] *= scales.k;
            const float x = p.tied ? values[column(i)] - read[i] : values[column(i)];
            float y = fmaf(scales.q, out[i], scales.qk * x);
            if (!p.tied) y = fmaf(scales.qb, read[i], y);
#pragma unroll
            for (int c = 0; c < kValues; ++c) {
                s[i][c] = fmaf(scales.k * shared.k[channel0 + c], x, shared.d[channel0 + c] * s[i][c]);
                if (!p.tied) s[i][c] = fmaf(shared.b[channel0 + c], read[i], s[i][c]);
            }
            if (last_step && column(i) < left && lane % kGroup == 0)
                store(p.o.data, p.o.dtype, at(p.o, n, t, h, first + column(i)), y);
        }
        if (!last_step) continue;
        const View &pool = p.state, &tokens = p.state_tokens;
        if (const std::int64_t to = target(p, n, t, from); to >= 0)
            store_to(mine(pool, at(pool, to, h), pool.stride[3]), pool.stride[3]);
        if (tokens.data != nullptr) store_to(mine(tokens, at(tokens, n, t, h), tokens.stride[4]), tokens.stride[4]);
    }
}

inline constexpr int kGeneralThreads = 128;

/// Shared memory: the slice [K, columns], five coefficients [K], sums, values, and partial sums of the rows' groups.
inline std::size_t general_bytes(std::int64_t K, std::int64_t columns) {
    return static_cast<std::size_t>(K * columns + 5 * K + 16 + 3 * kGeneralThreads) * sizeof(float);
}

__global__ void __launch_bounds__(kGeneralThreads) decode_general(const __grid_constant__ DecodeParams p, int columns) {
    constexpr int kThreads = kGeneralThreads;
    extern __shared__ float memory[];
    float* const s = memory;
    float* const next = s + p.K * columns;
    const RowCoefficients c{next, next + p.K, next + 2 * p.K, next + 3 * p.K, next + 4 * p.K, next + 5 * p.K};
    float* const partial = next + 5 * p.K + 16;    // [2][kThreads]
    float* const values = partial + 2 * kThreads;  // [columns]
    const Place place(p);
    const int n = place.n, h = place.h, first = place.slice * columns;
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
            read = fmaf(c.read[i], s[i * columns + column], read);
            out = fmaf(c.query[i], s[i * columns + column], out);
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
            float y = fmaf(scales.k * c.k[i], x, c.d[i] * s[i * columns + column]);
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
