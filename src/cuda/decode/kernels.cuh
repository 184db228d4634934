// The decode kernels. A CTA owns one request, one value head and a slice of state columns: it reads the slice once,
// takes all of the request's tokens over it, and writes it once.
//   kv       rows of V dense: a lane holds 16 bytes of columns and K / 16 rows; sums go over lanes and warps
//   vk       rows of K dense: a group of lanes holds a column; sums go over the group
//   general  any layout, stride, K and V: the slice lies in shared memory
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

template <int kK>
struct Shared {
    alignas(16) float d[kK], k[kK], read[kK], query[kK], b[kK];
    float sums[4 * kWarps];
    __device__ RowCoefficients row() { return {d, k, read, query, b, sums}; }
};

template <class S>
constexpr int kv_columns() {
    return 8 * Pack<S>::kValues;
}

/// CTAs an SM that registers must leave room for: fp32 slices take half of what 16-bit ones do.
template <class S>
constexpr int least_ctas() {
    return sizeof(S) == 4 ? 5 : 3;
}

template <class S, int kK>
__global__ void __launch_bounds__(kThreads, least_ctas<S>()) decode_kv(const __grid_constant__ DecodeParams p) {
    constexpr int kValues = Pack<S>::kValues, kColumns = kv_columns<S>(), kRows = kK / 16;
    __shared__ Shared<kK> shared;
    __shared__ alignas(16) float values[kColumns], reads[kColumns];
    __shared__ float partial[2][kWarps][kColumns];
    const Place at_(p);
    const int n = at_.n, h = at_.h, first = at_.slice * kColumns;
    const std::int64_t from = source(p, n);
    if (from < 0) return zero_pad(p, n, h, first, min(first + kColumns, p.V));
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int column = lane % 8 * kValues, row0 = warp * 4 + lane / 8;
    const bool active = first + column < p.V;  // V is a multiple of 16 bytes

    // 1. The state, all of it in flight before anything else is looked at.
    const auto mine = [&](const View& t, std::int64_t state_at, std::int64_t row_stride) {
        return static_cast<S*>(t.data) + state_at + row0 * row_stride + first + column;
    };
    uint4 raw[kRows];
    const S* const in = mine(p.state, at(p.state, from, h), p.state.stride[2]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) raw[i] = active ? load_once(in + 16 * i * p.state.stride[2]) : uint4{0, 0, 0, 0};
    float s[kRows][kValues];
    const auto store_to = [&](S* out, std::int64_t row_stride) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            if (active) store_once(out + 16 * i * row_stride, Pack<S>::narrow(s[i]));
    };

    load_values(p, n, h, 0, first, kColumns, values);
    float2 q_on = load_row(p, shared.row(), n, h, 0);
#pragma unroll
    for (int i = 0; i < kRows; ++i) Pack<S>::widen(raw[i], s[i]);

    // 2. Rows of tokens over the slice.
    for (int row = 0; row < p.T * p.steps; ++row) {
        const int t = row / p.steps;
        const bool last_step = row % p.steps + 1 == p.steps;
        if (row > 0) {
            __syncthreads();  // this row overwrites what the one before it read
            load_values(p, n, h, row, first, kColumns, values);
            q_on = load_row(p, shared.row(), n, h, row);
        }
        float sum[2][kValues] = {};
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float e = shared.read[row0 + 16 * i], q = shared.query[row0 + 16 * i];
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
        if (thread < kColumns) {  // one thread a column: what the row writes, and its output
            float read = 0, out = 0;
            for (int w = 0; w < kWarps; ++w) read += partial[0][w][thread], out += partial[1][w][thread];
            const float value = p.tied ? values[thread] - read : values[thread];
            out = fmaf(q_on.x, value, out);
            if (!p.tied) out = fmaf(q_on.y, read, out);
            values[thread] = value;
            reads[thread] = read;
            if (last_step && first + thread < p.V) store(p.o.data, p.o.dtype, at(p.o, n, t, h, first + thread), out);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float d = shared.d[row0 + 16 * i], k = shared.k[row0 + 16 * i];
#pragma unroll
            for (int c = 0; c < kValues; ++c) s[i][c] = fmaf(k, values[column + c], d * s[i][c]);
            if (p.tied) continue;
            const float b = shared.b[row0 + 16 * i];
#pragma unroll
            for (int c = 0; c < kValues; ++c) s[i][c] = fmaf(b, reads[column + c], s[i][c]);
        }
        if (last_step) {
            const View &pool = p.state, &tokens = p.state_tokens;
            if (const std::int64_t to = target(p, n, t, from); to >= 0)
                store_to(mine(pool, at(pool, to, h), pool.stride[2]), pool.stride[2]);
            if (tokens.data != nullptr) store_to(mine(tokens, at(tokens, n, t, h), tokens.stride[3]), tokens.stride[3]);
        }
    }
}

/// Columns (rows of the caller's [V, K]) a CTA holds: 8 loads of 16 bytes a lane in flight.
template <class S, int kK>
struct VkShape {
    static constexpr int kGroup = kK / Pack<S>::kValues;  ///< lanes a column
    static constexpr int kTogether = 32 / kGroup;         ///< columns a warp loads at once
    static constexpr int kLoads = 8;
    static constexpr int kColumns = kWarps * kLoads * kTogether;
};

template <class S, int kK>
__global__ void __launch_bounds__(kThreads, least_ctas<S>()) decode_vk(const __grid_constant__ DecodeParams p) {
    using Shape = VkShape<S, kK>;
    constexpr int kValues = Pack<S>::kValues, kLoads = Shape::kLoads;
    __shared__ Shared<kK> shared;
    __shared__ float values[Shape::kColumns];
    const Place at_(p);
    const int n = at_.n, h = at_.h, first = at_.slice * Shape::kColumns;
    const std::int64_t from = source(p, n);
    if (from < 0) return zero_pad(p, n, h, first, min(first + Shape::kColumns, p.V));
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int channel = lane % Shape::kGroup * kValues;
    const int column0 = warp * kLoads * Shape::kTogether + lane / Shape::kGroup;
    const int left = min(p.V - first, Shape::kColumns);  // columns that exist
    const auto column = [&](int i) { return column0 + i * Shape::kTogether; };

    // 1. The state, all of it in flight before anything else is looked at.
    const auto mine = [&](const View& t, std::int64_t state_at, std::int64_t column_stride) {
        return static_cast<S*>(t.data) + state_at + (first + column0) * column_stride + channel;
    };
    uint4 raw[kLoads];
    const S* const in = mine(p.state, at(p.state, from, h), p.state.stride[3]);
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
        raw[i] = column(i) < left ? load_once(in + i * Shape::kTogether * p.state.stride[3]) : uint4{0, 0, 0, 0};
    float s[kLoads][kValues];
    const auto store_to = [&](S* out, std::int64_t column_stride) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
            if (column(i) < left) store_once(out + i * Shape::kTogether * column_stride, Pack<S>::narrow(s[i]));
    };

    load_values(p, n, h, 0, first, Shape::kColumns, values);
    float2 q_on = load_row(p, shared.row(), n, h, 0);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) Pack<S>::widen(raw[i], s[i]);

    // 2. Rows of tokens over the slice.
    for (int row = 0; row < p.T * p.steps; ++row) {
        const int t = row / p.steps;
        const bool last_step = row % p.steps + 1 == p.steps;
        if (row > 0) {
            __syncthreads();  // this row overwrites what the one before it read
            load_values(p, n, h, row, first, Shape::kColumns, values);
            q_on = load_row(p, shared.row(), n, h, row);
        }
        const float* const d = shared.d + channel;
        const float* const k = shared.k + channel;
        const float* const e = shared.read + channel;
        const float* const q = shared.query + channel;
        const float* const b = shared.b + channel;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            float read = 0, out = 0;
#pragma unroll
            for (int c = 0; c < kValues; ++c) {
                read = fmaf(e[c], s[i][c], read);
                out = fmaf(q[c], s[i][c], out);
            }
#pragma unroll
            for (int other = Shape::kGroup / 2; other > 0; other /= 2) {
                read += __shfl_xor_sync(0xFFFFFFFF, read, other);
                out += __shfl_xor_sync(0xFFFFFFFF, out, other);
            }
            const float value = p.tied ? values[column(i)] - read : values[column(i)];
            out = fmaf(q_on.x, value, out);
            if (!p.tied) out = fmaf(q_on.y, read, out);
#pragma unroll
            for (int c = 0; c < kValues; ++c) s[i][c] = fmaf(k[c], value, d[c] * s[i][c]);
            if (!p.tied) {
#pragma unroll
                for (int c = 0; c < kValues; ++c) s[i][c] = fmaf(b[c], read, s[i][c]);
            }
            if (last_step && column(i) < left && lane % Shape::kGroup == 0)
                store(p.o.data, p.o.dtype, at(p.o, n, t, h, first + column(i)), out);
        }
        if (last_step) {
            const View &pool = p.state, &tokens = p.state_tokens;
            if (const std::int64_t to = target(p, n, t, from); to >= 0)
                store_to(mine(pool, at(pool, to, h), pool.stride[3]), pool.stride[3]);
            if (tokens.data != nullptr) store_to(mine(tokens, at(tokens, n, t, h), tokens.stride[4]), tokens.stride[4]);
        }
    }
}

/// Shared memory: the slice [K, columns], five coefficients [K], sums, and partial sums of the rows' groups.
inline std::size_t general_bytes(std::int64_t K, std::int64_t columns) {
    return static_cast<std::size_t>(K * columns + 5 * K + 4 * kWarps + 3 * kThreads) * sizeof(float);
}

__global__ void __launch_bounds__(kThreads) decode_general(const __grid_constant__ DecodeParams p, int columns) {
    extern __shared__ float memory[];
    float* s = memory;
    float* next = s + p.K * columns;
    const RowCoefficients c{next, next + p.K, next + 2 * p.K, next + 3 * p.K, next + 4 * p.K, next + 5 * p.K};
    float* partial = next + 5 * p.K + 4 * kWarps;  // [2][kThreads]
    float* values = partial + 2 * kThreads;        // [columns]
    const Place at_(p);
    const int n = at_.n, h = at_.h, first = at_.slice * columns;
    const std::int64_t from = source(p, n);
    if (from < 0) return zero_pad(p, n, h, first, min(first + columns, p.V));
    const int thread = static_cast<int>(threadIdx.x), column = thread % columns, group = thread / columns;
    const int groups = kThreads / columns;
    const int j = first + column;
    const bool active = j < p.V && group < groups;
    for (int i = group; active && i < p.K; i += groups)
        s[i * columns + column] = load(p.state.data, p.state.dtype, at(p.state, from, h, i, j));
    for (int row = 0; row < p.T * p.steps; ++row) {
        const int t = row / p.steps;
        load_values(p, n, h, row, first, columns, values);
        const float2 q_on = load_row(p, c, n, h, row);
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
        const float value = p.tied ? values[column] - read : values[column];
        out = fmaf(q_on.x, value, out);
        if (!p.tied) out = fmaf(q_on.y, read, out);
        const bool reads = row % p.steps + 1 == p.steps;
        const std::int64_t to = reads ? target(p, n, t, from) : -1;
        for (int i = group; active && i < p.K; i += groups) {
            float x = fmaf(c.k[i], value, c.d[i] * s[i * columns + column]);
            if (!p.tied) x = fmaf(c.b[i], read, x);
            s[i * columns + column] = x;
            if (to >= 0) store(p.state.data, p.state.dtype, at(p.state, to, h, i, j), x);
            if (reads && p.state_tokens.data != nullptr)
                store(p.state_tokens.data, p.state_tokens.dtype, at(p.state_tokens, n, t, h, i, j), x);
        }
        if (reads && active && group == 0) store(p.o.data, p.o.dtype, at(p.o, n, t, h, j), out);
        __syncthreads();
    }
}

}  // namespace tidegate::cuda
