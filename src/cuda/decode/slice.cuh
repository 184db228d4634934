// A slice of a head's state: all K channels of some columns of V, in the registers of a CTA, 16 bytes a load.
//   Kv  rows of V dense: kLanes lanes side by side hold 16 bytes of a row each, other lanes and warps other rows; sums
//       go over loads, lanes, and warps through shared memory
//   Vk  rows of K dense: a group of lanes holds a column, and each warp has its own columns; sums go over 16 bytes and
//       over the group
// A value is (load m, element e) of a thread; a layout says its channel and its column. A thread owns the sums of one
// column: Exchange brings them to it and its answer back. What is summed, and in which order, does not depend on how
// many columns a slice has.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/decode/lanes.cuh"
#include "cuda/ptx.cuh"

namespace tidegate::cuda {

/// 16 bytes of a state as fp32 and back.
template <class S>
struct Pack {
    static constexpr int kValues = 16 / static_cast<int>(sizeof(S));
    // NOTES: word by word. Elements taken by address would be loaded one by one where the 16 bytes lie in memory.
    __device__ static void widen(uint4 raw, float (&to)[kValues]) {
        const unsigned words[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            if constexpr (std::is_same_v<S, float>) {
                to[w] = __uint_as_float(words[w]);
            } else if constexpr (std::is_same_v<S, __nv_bfloat16>) {
                to[2 * w] = __uint_as_float(words[w] << 16), to[2 * w + 1] = __uint_as_float(words[w] & 0xFFFF0000);
            } else {
                const float2 pair = __half22float2(
                    __halves2half2(__ushort_as_half(words[w] & 0xFFFF), __ushort_as_half(words[w] >> 16)));
                to[2 * w] = pair.x, to[2 * w + 1] = pair.y;
            }
        }
    }
    __device__ static uint4 narrow(const float (&from)[kValues]) {
        if constexpr (sizeof(S) == 4) {
            return {__float_as_uint(from[0]), __float_as_uint(from[1]), __float_as_uint(from[2]),
                    __float_as_uint(from[3])};
        } else {
            return {pair(from[0], from[1]), pair(from[2], from[3]), pair(from[4], from[5]), pair(from[6], from[7])};
        }
    }

private:
    __device__ static unsigned pair(float low, float high) {
        unsigned bits;
        if constexpr (std::is_same_v<S, __half>) {
            const __half2 x = __floats2half2_rn(low, high);
            memcpy(&bits, &x, 4);
        } else {
            const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
            memcpy(&bits, &x, 4);
        }
        return bits;
    }
};

inline constexpr int kThreads = 128, kWarps = kThreads / 32;

template <class T, int K, int kLanes>
struct Kv {
    using S = T;
    static constexpr int kK = K, kValues = Pack<S>::kValues;
    static constexpr int kRows = 32 / kLanes, kStep = kWarps * kRows;  ///< rows that a warp and the CTA load at once
    static constexpr int kLoads = K / kStep, kColumns = kLanes * kValues;
    /// Rows that are lanes of a narrow slice are accumulators of a wide one, and added in the same order.
    static constexpr int kSplit = 4 / kRows, kSums = kValues;
    static_assert(kRows == 2 || kRows == 4);

    __device__ static int channel(int thread, int m, int) {
        return (m * kRows + thread % 32 / kLanes) * kWarps + thread / 32;
    }
    __device__ static int column(int thread, int, int e) { return thread % kLanes * kValues + e; }
    __device__ static constexpr int sum(int, int e) { return e; }
    __device__ static constexpr int split(int m) { return m % kSplit; }
    __device__ static int owned(int thread) { return thread; }
    __device__ static bool owns(int thread) { return thread < kColumns; }
    __device__ static std::int64_t load_stride(int k_stride, int) { return std::int64_t{kStep} * k_stride; }

    struct Exchange {
        float partial[2][kWarps][kColumns], answer[2][kColumns];

        template <int kKind>
        __device__ void give(float (&x)[kSums], int thread) {
#pragma unroll
            for (int bit = 16; bit >= kLanes; bit /= 2)
#pragma unroll
                for (float& sum : x) sum += __shfl_xor_sync(0xFFFFFFFF, sum, bit);
#pragma unroll
            for (int e = 0; e < kValues; ++e)
                if (thread % 32 < kLanes) partial[kKind][thread / 32][column(thread, 0, e)] = x[e];
        }
        __device__ void given() { __syncthreads(); }
        template <int kKind>
        __device__ float take(const float (&)[kSums], int thread) const {
            float x = 0;
#pragma unroll
            for (const auto& warp : partial[kKind]) x += owns(thread) ? warp[thread] : 0.0F;
            return x;
        }
        template <int kKind>
        __device__ void answer_with(float x, int thread) {
            if (owns(thread)) answer[kKind][thread] = x;
        }
        __device__ void answered() { __syncthreads(); }
        template <int kKind>
        __device__ float answer_of(float, int i, int thread) const {
            return answer[kKind][column(thread, 0, i)];
        }
    };
};

template <class T, int K, int kLoads_>
struct Vk {
    using S = T;
    static constexpr int kK = K, kValues = Pack<S>::kValues;
    static constexpr int kGroup = K / kValues, kTogether = 32 / kGroup;
    static constexpr int kLoads = kLoads_, kColumns = kWarps * kLoads * kTogether;
    static constexpr int kSplit = 1, kSums = kLoads;
    using Sums = LaneSums<kSums, kGroup / 2, 1>;

    __device__ static int channel(int thread, int, int e) { return thread % kGroup * kValues + e; }
    __device__ static int column(int thread, int m, int) {
        return (thread / 32 * kLoads + m) * kTogether + thread % 32 / kGroup;
    }
    __device__ static constexpr int sum(int m, int) { return m; }
    __device__ static constexpr int split(int) { return 0; }
    __device__ static int owned(int thread) { return column(thread, Sums::owned(thread % 32), 0); }
    __device__ static bool owns(int thread) { return Sums::is_first(thread % 32); }
    __device__ static std::int64_t load_stride(int, int v_stride) { return std::int64_t{kTogether} * v_stride; }

    /// Between lanes of a warp alone.
    struct Exchange {
        template <int kKind>
        __device__ void give(float (&x)[kSums], int thread) {
            x[0] = Sums::sum(x, thread % 32);
        }
        __device__ void given() {}
        template <int kKind>
        __device__ float take(const float (&x)[kSums], int) const {
            return x[0];
        }
        template <int kKind>
        __device__ void answer_with(float, int) {}
        __device__ void answered() {}
        template <int kKind>
        __device__ float answer_of(float mine, int i, int thread) const {
            return Sums::from_owner(mine, i, thread % 32);
        }
    };
};

/// Where a slice arrives: shared memory, without holding registers. Each thread looks only at what it asked for.
template <class L>
struct Passing {
    uint4 (&memory)[L::kLoads][kThreads];

    __device__ void ask(int m, const void* from, bool active) {
        ptx::copy_async(&memory[m][threadIdx.x], from, active);
    }
    __device__ void arrive() { ptx::wait_for_copies(); }
    __device__ void get(int m, float (&to)[L::kValues]) const {
        Pack<typename L::S>::widen(ptx::load_anew(&memory[m][threadIdx.x]), to);
    }
    /// For one row alone: the slice is not needed after it.
    __device__ void set(int, const float (&)[L::kValues]) {}
};
/// A slice that rows are to come for: in registers, in fp32, once it has arrived.
template <class L>
struct Staying {
    Passing<L> arriving;
    float x[L::kLoads][L::kValues];

    __device__ explicit Staying(uint4 (&memory)[L::kLoads][kThreads]) : arriving{memory} {}
    __device__ void ask(int m, const void* from, bool active) { arriving.ask(m, from, active); }
    __device__ void arrive() {
        arriving.arrive();
#pragma unroll
        for (int m = 0; m < L::kLoads; ++m) arriving.get(m, x[m]);
    }
    __device__ void get(int m, float (&to)[L::kValues]) const {
#pragma unroll
        for (int e = 0; e < L::kValues; ++e) to[e] = x[m][e];
    }
    __device__ void set(int m, const float (&from)[L::kValues]) {
#pragma unroll
        for (int e = 0; e < L::kValues; ++e) x[m][e] = from[e];
    }
};

}  // namespace tidegate::cuda
