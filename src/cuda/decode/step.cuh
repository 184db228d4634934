// Decode of one row a request, the common case: a CTA takes several slices of one head, with the next slice in flight
// while one is computed; the front end is done once. The arithmetic is that of kv and vk in kernels.cuh.
#pragma once

#include "cuda/decode/kernels.cuh"

namespace tidegate::cuda {

/// CTAs an SM: registers hold a slice and the raw bytes of the next.
template <class S>
constexpr int step_ctas() {
    return sizeof(S) == 4 ? 4 : 2;
}
inline constexpr int kMostColumns = 256;  ///< of a CTA, over all of its slices

/// The CTA's part of a head: `count` slices of kColumns from column `first` on.
struct Part {
    int n, h, first, count;
    __device__ Part(const DecodeParams& p, int columns) {
        const Place place(p);
        n = place.n, h = place.h, first = place.slice * p.slices_a_cta * columns;
        count = min(p.slices_a_cta, (p.V - first + columns - 1) / columns);
    }
};

template <class S, int kK>
__global__ void __launch_bounds__(Shape<S>::kThreads, step_ctas<S>()) step_kv(const __grid_constant__ DecodeParams p) {
    constexpr int kValues = Shape<S>::kValues, kThreads = Shape<S>::kThreads, kWarps = Shape<S>::kWarps;
    constexpr int kColumns = 8 * kValues, kStep = 4 * kWarps, kRows = kK / kStep;
    __shared__ Shared<kK, kWarps> shared;
    __shared__ alignas(16) float values[kMostColumns];
    __shared__ alignas(16) float partial[2][2][kWarps][kColumns];  // of this slice and of the next
    const Part part(p, kColumns);
    const int n = part.n, h = part.h, first = part.first;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int column = lane % 8 * kValues, row0 = warp * 4 + lane / 8;

    // 1. Ask for the row, then for the first slice; both are in flight before either is looked at.
    const Channel channel(p, n, h, 0, min(thread, kK - 1));
    const int columns = part.count * kColumns;
    const Column asked(p, n, h, 0, thread < columns ? first + thread : p.V);
    const std::int64_t from = source(p, n);
    if (from < 0) return zero_pad<kThreads>(p, n, h, first, min(first + columns, p.V));
    S* const mine = static_cast<S*>(p.state.data) + at(p.state, from, h) + row0 * p.state.stride[2] + first + column;
    const std::int64_t step = kStep * p.state.stride[2];
    uint4 raw[kRows];
    const auto ask = [&](int slice) {
        const bool active = first + slice * kColumns + column < p.V;
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            raw[i] = active ? load_once(mine + slice * kColumns + i * step) : uint4{0, 0, 0, 0};
    };
    ask(0);
    if (thread < columns) values[thread] = asked.value(p);
    for (int c = thread + kThreads; c < columns; c += kThreads) values[c] = Column(p, n, h, 0, first + c).value(p);
    const Scales scales = write_row<kThreads>(p, shared.row(), n, h, 0, channel);
    const std::int64_t to = target(p, n, 0, from);
    const std::int64_t shift = to < 0 ? 0 : (to - from) * p.state.stride[0];  // speculative columns: another slot

    // 2. The slices.
    for (int slice = 0; slice < part.count; ++slice) {
        float s[kRows][kValues];
#pragma unroll
        for (int i = 0; i < kRows; ++i) Pack<S>::widen(raw[i], s[i]);
        if (slice + 1 < part.count) ask(slice + 1);
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
        auto& parts = partial[slice % 2];
#pragma unroll
        for (int x = 0; x < 2; ++x)
#pragma unroll
            for (int c = 0; c < kValues; ++c) {
                sum[x][c] += __shfl_xor_sync(0xFFFFFFFF, sum[x][c], 8);
                sum[x][c] += __shfl_xor_sync(0xFFFFFFFF, sum[x][c], 16);
                if (lane < 8) parts[x][warp][column + c] = sum[x][c];
            }
        __syncthreads();  // the one before the last is read by all: its memory is free for the next
        const int base = first + slice * kColumns + column;
        const bool active = base < p.V;
        float x[kValues], read[kValues];
#pragma unroll
        for (int c = 0; c < kValues; ++c) {
            read[c] = 0;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) read[c] += parts[0][w][column + c];
            if (p.tied) read[c] *= scales.k;
            const float v = values[slice * kColumns + column + c];
            x[c] = p.tied ? v - read[c] : v;
        }
        if (thread < 8 && active) {
#pragma unroll
            for (int c = 0; c < kValues; ++c) {
                float out = 0;
                for (int w = 0; w < kWarps; ++w) out += parts[1][w][column + c];
                out = fmaf(scales.q, out, scales.qk * x[c]);
                if (!p.tied) out = fmaf(scales.qb, read[c], out);
                store(p.o.data, p.o.dtype, at(p.o, n, 0, h, base + c), out);
            }
        }
        if (!active) continue;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float d = shared.d[row0 + kStep * i], k = scales.k * shared.k[row0 + kStep * i];
#pragma unroll
            for (int c = 0; c < kValues; ++c) s[i][c] = fmaf(k, x[c], d * s[i][c]);
            if (!p.tied) {
                const float b = shared.b[row0 + kStep * i];
#pragma unroll
                for (int c = 0; c < kValues; ++c) s[i][c] = fmaf(b, read[c], s[i][c]);
            }
            if (to >= 0) store_once(mine + shift + slice * kColumns + i * step, Pack<S>::narrow(s[i]));
        }
    }
}

template <class S, int kK>
__global__ void __launch_bounds__(Shape<S>::kThreads, step_ctas<S>()) step_vk(const __grid_constant__ DecodeParams p) {
    constexpr int kValues = Shape<S>::kValues, kThreads = Shape<S>::kThreads, kWarps = Shape<S>::kWarps;
    constexpr int kGroup = kK / kValues, kTogether = 32 / kGroup;
    constexpr int kLoads = 32 / kValues, kColumns = kWarps * kLoads * kTogether;
    __shared__ Shared<kK, kWarps> shared;
    __shared__ float values[kMostColumns];
    const Part part(p, kColumns);
    const int n = part.n, h = part.h, first = part.first;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int channel0 = lane % kGroup * kValues, column0 = warp * kLoads * kTogether + lane / kGroup;
    const int left = min(p.V - first, part.count * kColumns);  // columns that exist
    const auto column = [&](int slice, int i) { return slice * kColumns + column0 + i * kTogether; };

    // 1. Ask for the row, then for the first slice; both are in flight before either is looked at.
    const Channel channel(p, n, h, 0, min(thread, kK - 1));
    const Column asked(p, n, h, 0, thread < left ? first + thread : p.V);
    const std::int64_t from = source(p, n);
    if (from < 0) return zero_pad<kThreads>(p, n, h, first, first + left);
    S* const mine =
        static_cast<S*>(p.state.data) + at(p.state, from, h) + (first + column0) * p.state.stride[3] + channel0;
    const std::int64_t step = kTogether * p.state.stride[3], next = kColumns * p.state.stride[3];
    uint4 raw[kLoads];
    const auto ask = [&](int slice) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
            raw[i] = column(slice, i) < left ? load_once(mine + slice * next + i * step) : uint4{0, 0, 0, 0};
    };
    ask(0);
    if (thread < left) values[thread] = asked.value(p);
    for (int c = thread + kThreads; c < left; c += kThreads) values[c] = Column(p, n, h, 0, first + c).value(p);
    const Scales scales = write_row<kThreads>(p, shared.row(), n, h, 0, channel);
    const std::int64_t to = target(p, n, 0, from);
    const std::int64_t shift = to < 0 ? 0 : (to - from) * p.state.stride[0];  // speculative columns: another slot

    // 2. The slices.
    for (int slice = 0; slice < part.count; ++slice) {
        float s[kLoads][kValues];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) Pack<S>::widen(raw[i], s[i]);
        if (slice + 1 < part.count) ask(slice + 1);
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
            if (column(slice, i) >= left) continue;
            if (p.tied) read[i] *= scales.k;
            const float v = values[column(slice, i)], x = p.tied ? v - read[i] : v;
            float y = fmaf(scales.q, out[i], scales.qk * x);
            if (!p.tied) y = fmaf(scales.qb, read[i], y);
#pragma unroll
            for (int c = 0; c < kValues; ++c) {
                s[i][c] = fmaf(scales.k * shared.k[channel0 + c], x, shared.d[channel0 + c] * s[i][c]);
                if (!p.tied) s[i][c] = fmaf(shared.b[channel0 + c], read[i], s[i][c]);
            }
            if (lane % kGroup == 0) store(p.o.data, p.o.dtype, at(p.o, n, 0, h, first + column(slice, i)), y);
            if (to >= 0) store_once(mine + shift + slice * next + i * step, Pack<S>::narrow(s[i]));
        }
    }
}

}  // namespace tidegate::cuda
