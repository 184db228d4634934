// Decode of one row a request where there are many heads: one CTA an SM goes over heads whose states are whole blocks
// of memory. The copy engine moves them through a ring in shared memory; memory is never idle, whatever the arithmetic
// does.
//   producer  one thread: asks for the next heads' states
//   front     128 threads: gates, norms and values of the next head
//   math      256 threads: groups of step.cuh's size, each with a slice at a time, as there: the same sums in the same
//   order
#pragma once

#include "cuda/decode/step.cuh"
#include "cuda/ptx.cuh"
#include "plan/cuda_plan.h"

namespace tidegate::cuda {

inline constexpr int kMath = 256, kFront = 128;
static_assert(kBulkThreads == kMath + kFront + 32);
inline constexpr int kRingBytes = 192 << 10, kMostStages = 6, kValuesAhead = 128;

/// What front hands to math about a head; two of them, in turns.
template <int kK>
struct Head {
    Shared<kK, 8> row;
    alignas(16) float values[kValuesAhead];
    Scales scales;
    std::int64_t from, to;
};

template <class S, int kK>
struct BulkShared {
    alignas(128) unsigned char ring[kRingBytes];
    Head<kK> heads[2];
    alignas(16) float partial[kMath / Shape<S>::kThreads][2][2][Shape<S>::kWarps][8 * Shape<S>::kValues];  // by group
    std::uint64_t full[kMostStages], empty[kMostStages], head_full[2], head_empty[2];
};

/// What a thread of front has asked for of a job.
struct Asked {
    Channel channel;
    Column column;
    std::int64_t from;
};

/// Walks a ring: its place, and the parity of the phase to wait for.
struct Turn {
    int at = 0;
    std::uint32_t parity = 0;
    __device__ void next(int size) {
        if (++at == size) at = 0, parity ^= 1;
    }
};

template <class S, int kK>
__device__ void bulk_math(const DecodeParams& p, BulkShared<S, kK>& shared, int stages, std::uint32_t bytes) {
    constexpr int kValues = Shape<S>::kValues, kWarps = Shape<S>::kWarps, kGroupThreads = Shape<S>::kThreads;
    constexpr int kGroups = kMath / kGroupThreads;
    const int group = static_cast<int>(threadIdx.x) / kGroupThreads,
              thread = static_cast<int>(threadIdx.x) % kGroupThreads;
    const int warp = thread / 32, lane = thread % 32;
    Turn stage, head;
    int stores = 0;
    for (int job = static_cast<int>(blockIdx.x); job < p.B * p.HV; job += static_cast<int>(gridDim.x)) {
        const int n = job / p.HV, h = job % p.HV;
        Head<kK>& now = shared.heads[head.at];
        ptx::mbarrier_wait(&shared.head_full[head.at], head.parity);
        const std::int64_t to = now.to;
        if (now.from < 0) {
            for (int j = static_cast<int>(threadIdx.x); j < p.V; j += kMath)
                store(p.o.data, p.o.dtype, at(p.o, n, 0, h, j), 0.0F);
            ptx::mbarrier_arrive(&shared.head_empty[head.at]);
            head.next(2);
            continue;
        }
        S* const ring = reinterpret_cast<S*>(shared.ring + static_cast<std::size_t>(stage.at) * bytes);
        const Scales scales = now.scales;
        const auto& row = now.row;
        ptx::mbarrier_wait(&shared.full[stage.at], stage.parity);
        {
            constexpr int kColumns = 8 * kValues, kStep = 4 * kWarps, kRows = kK / kStep;
            const int column = lane % 8 * kValues, row0 = warp * 4 + lane / 8;
            int turn = 0;
            for (int base = group * kColumns; base < p.V; base += kGroups * kColumns, turn ^= 1) {
                const bool active = base + column < p.V;
                uint4* const mine = reinterpret_cast<uint4*>(ring + row0 * p.V + base + column);
                const int step = kStep * p.V / kValues;
                float s[kRows][kValues], sum[2][kValues] = {};
#pragma unroll
                for (int i = 0; i < kRows; ++i) Pack<S>::widen(active ? mine[i * step] : uint4{0, 0, 0, 0}, s[i]);
#pragma unroll
                for (int i = 0; i < kRows; ++i) {
                    const float e = row.read[row0 + kStep * i], q = row.query[row0 + kStep * i];
#pragma unroll
                    for (int c = 0; c < kValues; ++c) {
                        sum[0][c] = fmaf(e, s[i][c], sum[0][c]);
                        sum[1][c] = fmaf(q, s[i][c], sum[1][c]);
                    }
                }
                auto& parts = shared.partial[group][turn];
#pragma unroll
                for (int x = 0; x < 2; ++x)
#pragma unroll
                    for (int c = 0; c < kValues; ++c) {
                        sum[x][c] += __shfl_xor_sync(0xFFFFFFFF, sum[x][c], 8);
                        sum[x][c] += __shfl_xor_sync(0xFFFFFFFF, sum[x][c], 16);
                        if (lane < 8) parts[x][warp][column + c] = sum[x][c];
                    }
                ptx::named_barrier(2 + group, kGroupThreads);
                float x[kValues], read[kValues];
#pragma unroll
                for (int c = 0; c < kValues; ++c) {
                    read[c] = 0;
#pragma unroll
                    for (int w = 0; w < kWarps; ++w) read[c] += parts[0][w][column + c];
                    if (p.tied) read[c] *= scales.k;
                    const float v = now.values[base + column + c];
                    x[c] = p.tied ? v - read[c] : v;
                }
                if (thread < 8 && active) {
#pragma unroll
                    for (int c = 0; c < kValues; ++c) {
                        float out = 0;
                        for (int w = 0; w < kWarps; ++w) out += parts[1][w][column + c];
                        out = fmaf(scales.q, out, scales.qk * x[c]);
                        if (!p.tied) out = fmaf(scales.qb, read[c], out);
                        store(p.o.data, p.o.dtype, at(p.o, n, 0, h, base + column + c), out);
                    }
                }
#pragma unroll
                for (int i = 0; i < kRows; ++i) {
                    const float d = row.d[row0 + kStep * i], k = scales.k * row.k[row0 + kStep * i];
#pragma unroll
                    for (int c = 0; c < kValues; ++c) s[i][c] = fmaf(k, x[c], d * s[i][c]);
                    if (!p.tied) {
                        const float b = row.b[row0 + kStep * i];
#pragma unroll
                        for (int c = 0; c < kValues; ++c) s[i][c] = fmaf(b, read[c], s[i][c]);
                    }
                    if (active) mine[i * step] = Pack<S>::narrow(s[i]);
                }
            }
        }
        ptx::mbarrier_arrive(&shared.head_empty[head.at]);
        ptx::fence_async_shared();
        ptx::named_barrier(1, kMath);
        if (threadIdx.x == 0) {
            if (to >= 0) ptx::bulk_store(static_cast<S*>(p.state.data) + at(p.state, to, h), ring, bytes);
            ptx::bulk_commit();
            ptx::bulk_wait_read<1>();  // the store before this one is out of the ring
            if (stores++ > 0) ptx::mbarrier_arrive(&shared.empty[(stage.at + stages - 1) % stages]);
        }
        head.next(2);
        stage.next(stages);
    }
    if (threadIdx.x == 0) ptx::bulk_wait_read<0>();
}

template <class S, int kK>
__global__ void __launch_bounds__(kBulkThreads, 1) step_bulk(const __grid_constant__ DecodeParams p) {
    extern __shared__ __align__(128) unsigned char bulk_memory[];
    auto& shared = *reinterpret_cast<BulkShared<S, kK>*>(bulk_memory);
    const auto bytes = static_cast<std::uint32_t>(kK * p.V * sizeof(S));
    const int stages = min(kMostStages, kRingBytes / static_cast<int>(bytes));
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; ++i)
            ptx::mbarrier_init(&shared.full[i], 1), ptx::mbarrier_init(&shared.empty[i], 1);
        for (int i = 0; i < 2; ++i)
            ptx::mbarrier_init(&shared.head_full[i], kFront), ptx::mbarrier_init(&shared.head_empty[i], kMath);
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x) - kMath, jobs = p.B * p.HV;
    if (thread < 0) {
        bulk_math<S, kK>(p, shared, stages, bytes);
    } else if (thread < kFront) {
        // A job's row is asked for while the one before it is worked on.
        const auto ask = [&](int job) {
            job = min(job, jobs - 1);
            const int n = job / p.HV, h = job % p.HV;
            return Asked{Channel(p, n, h, 0, min(thread, kK - 1)), Column(p, n, h, 0, thread), source(p, n)};
        };
        Turn head;
        const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
        Asked asked = ask(first);
        for (int job = first; job < jobs; job += step) {
            const Asked now = asked;
            asked = ask(job + step);
            const int n = job / p.HV, h = job % p.HV;
            Head<kK>& next = shared.heads[head.at];
            const std::int64_t to = now.from < 0 ? -1 : target(p, n, 0, now.from);
            ptx::mbarrier_wait(&shared.head_empty[head.at], head.parity ^ 1);
            next.values[thread] = now.column.value(p);
            const Scales scales = write_row<kFront>(p, next.row.row(), n, h, 0, now.channel, thread,
                                                    [] { ptx::named_barrier(6, kFront); });
            if (thread == 0) next.scales = scales, next.from = now.from, next.to = to;
            ptx::mbarrier_arrive(&shared.head_full[head.at]);
            head.next(2);
        }
    } else if (thread == kFront) {
        Turn stage;
        for (int job = static_cast<int>(blockIdx.x); job < jobs; job += static_cast<int>(gridDim.x)) {
            const int n = job / p.HV, h = job % p.HV;
            const std::int64_t from = source(p, n);
            if (from < 0) continue;
            ptx::mbarrier_wait(&shared.empty[stage.at], stage.parity ^ 1);
            ptx::mbarrier_expect(&shared.full[stage.at], bytes);
            ptx::bulk_load(shared.ring + static_cast<std::size_t>(stage.at) * bytes,
                           static_cast<const S*>(p.state.data) + at(p.state, from, h), bytes, &shared.full[stage.at]);
            stage.next(stages);
        }
    }
}

}  // namespace tidegate::cuda
