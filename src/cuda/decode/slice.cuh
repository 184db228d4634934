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

namespace tidegate::cuda {

/// 16 bytes of a state as fp32 and back.
template <class S>
struct Pack {
    static constexpr int kValues = 16 / static_cast<int>(sizeof(S));
    __device__ static void widen(const uint4& raw, float (&to)[kValues]) {
        const S* x = reinterpret_cast<const S*>(&raw);
#pragma unroll
        for (int i = 0; i < kValues; ++i) to[i] = static_cast<float>(x[i]);
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
    /// Two lanes' rows, 8 apart, are two accumulators of one lane where it has twice the columns.
    static constexpr int kSplit = 4 / kRows, kSums = kValues;
    static_assert(kRows == 2 || kRows == 4);

    __device__ static int channel(int thread, int m, int) {
        const int row = thread % 32 / kLanes;
        return m * kStep + row / 2 * 8 + thread / 32 * 2 + row % 2;
    }
    __device__ static int column(int thread, int, int e) { return thread % kLanes * kValues + e; }
    __device__ static constexpr int sum(int, int e) { return e; }
    __device__ static constexpr int split(int m) { return m % kSplit; }
    __device__ static int owned(int thread) { return thread; }
    __device__ static bool owns(int thread) { return thread < kColumns; }
    __device__ static std::int64_t offset(int thread, int m, std::int64_t k_stride, std::int64_t) {
        return channel(thread, m, 0) * k_stride + column(thread, m, 0);
    }

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
    __device__ static std::int64_t offset(int thread, int m, std::int64_t, std::int64_t v_stride) {
        return column(thread, m, 0) * v_stride + channel(thread, m, 0);
    }

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

/// A slice as it was loaded, or in fp32 where it has to outlive a row.
template <class L, bool kRounded>
struct Slice {
    uint4 x[L::kLoads];
    __device__ void get(int m, float (&to)[L::kValues]) const { Pack<typename L::S>::widen(x[m], to); }
    __device__ void set(int m, const float (&from)[L::kValues]) { x[m] = Pack<typename L::S>::narrow(from); }
    __device__ void set_raw(int m, const uint4& raw) { x[m] = raw; }
    __device__ uint4 raw(int m) const { return x[m]; }
    /// Widened values are not kept for later use: there are no registers for them.
    __device__ void forget_widened() {
#pragma unroll
        for (uint4& raw : x) asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
    }
};
template <class L>
struct Slice<L, false> {
    float x[L::kLoads][L::kValues];
    __device__ void get(int m, float (&to)[L::kValues]) const {
#pragma unroll
        for (int e = 0; e < L::kValues; ++e) to[e] = x[m][e];
    }
    __device__ void set(int m, const float (&from)[L::kValues]) {
#pragma unroll
        for (int e = 0; e < L::kValues; ++e) x[m][e] = from[e];
    }
    __device__ void set_raw(int m, const uint4& raw) { Pack<typename L::S>::widen(raw, x[m]); }
    __device__ uint4 raw(int m) const { return Pack<typename L::S>::narrow(x[m]); }
    __device__ void forget_widened() {}
};

}  // namespace tidegate::cuda
