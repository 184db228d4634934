// Sums over lanes of a warp.
#pragma once

namespace tidegate::cuda {

/// N sums over the lanes that differ in lane bits kHigh down to kLow (powers of two). Each exchange halves the sums
/// that a lane works on, so that in the end a lane owns one; lanes that differ in left-over bits own the same. The
/// order of additions is that of a plain exchange of all sums, from bit kHigh down.
template <int N, int kHigh, int kLow>
struct LaneSums {
    static_assert(N * kLow <= 2 * kHigh, "a lane owns one sum");

    /// Which sum the lane owns.
    __device__ static int owned(int lane) {
        int index = 0;
#pragma unroll
        for (int half = N / 2, bit = kHigh; half > 0; half /= 2, bit /= 2) index += (lane & bit) != 0 ? half : 0;
        return index;
    }
    /// The lane bits of a sum's first owner.
    __device__ static constexpr int owner(int index) {
        int lane = 0;
        for (int half = N / 2, bit = kHigh; half > 0; half /= 2, bit /= 2) lane += (index & half) != 0 ? bit : 0;
        return lane;
    }
    /// Whether the lane is the first owner of its sum among its equals.
    __device__ static bool is_first(int lane) { return (lane & (2 * kHigh / N - kLow)) == 0; }

    /// The lane's own sum; destroys `x`.
    __device__ static float sum(float (&x)[N], int lane) {
        exchange<N / 2, kHigh>(x, lane);
        return x[0];
    }
    /// Sum `index` of the lane's equals, from its owner's `mine`.
    __device__ static float from_owner(float mine, int index, int lane) {
        return __shfl_sync(0xFFFFFFFF, mine, (lane & ~(2 * kHigh - kLow)) + owner(index));
    }

private:
    template <int kHalf, int kBit>
    __device__ static void exchange(float (&x)[N], int lane) {
        if constexpr (kHalf == 0) x[0] += __shfl_xor_sync(0xFFFFFFFF, x[0], kBit);
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
            const bool upper = (lane & kBit) != 0;
            const float keep = upper ? x[i + kHalf] : x[i], send = upper ? x[i] : x[i + kHalf];
            x[i] = keep + __shfl_xor_sync(0xFFFFFFFF, send, kBit);
        }
        if constexpr (kBit > kLow) exchange<kHalf / 2, kBit / 2>(x, lane);
    }
};

}  // namespace tidegate::cuda
