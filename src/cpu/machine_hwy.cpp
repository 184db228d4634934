// What this machine can do at best, measured: fused multiply-adds and copies. The ceilings beside every benchmark.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/machine_hwy.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Twelve independent chains, which hide the latency of every core there is. Returns FLOP done.
double multiply_adds(std::int64_t rounds) {
    const hn::CappedTag<float, 16> f;
    const auto m = hn::Set(f, 0.999F), b = hn::Set(f, 1e-3F);
    const auto start = [f](float x) { return hn::Set(f, x); };  // all different, or the compiler computes one for all
    auto a0 = start(0), a1 = start(1), a2 = start(2), a3 = start(3), a4 = start(4), a5 = start(5);
    auto a6 = start(6), a7 = start(7), a8 = start(8), a9 = start(9), a10 = start(10), a11 = start(11);
    for (std::int64_t i = 0; i < rounds; ++i) {
        a0 = hn::MulAdd(a0, m, b), a1 = hn::MulAdd(a1, m, b), a2 = hn::MulAdd(a2, m, b), a3 = hn::MulAdd(a3, m, b);
        a4 = hn::MulAdd(a4, m, b), a5 = hn::MulAdd(a5, m, b), a6 = hn::MulAdd(a6, m, b), a7 = hn::MulAdd(a7, m, b);
        a8 = hn::MulAdd(a8, m, b), a9 = hn::MulAdd(a9, m, b), a10 = hn::MulAdd(a10, m, b), a11 = hn::MulAdd(a11, m, b);
    }
    const auto sum = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
    volatile float sink = hn::GetLane(hn::Add(sum, hn::Add(hn::Add(a8, a9), hn::Add(a10, a11))));
    static_cast<void>(sink);
    return 24.0 * static_cast<double>(hn::Lanes(f)) * static_cast<double>(rounds);
}

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tidegate::cpu {
namespace {

HWY_EXPORT(multiply_adds);

template <class F>
double best_seconds(const F& body) {
    double best = 1e30;
    for (int i = 0; i < 7; ++i) {
        const auto start = std::chrono::steady_clock::now();
        body();
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

}  // namespace

double fma_peak(int threads) {
    constexpr std::int64_t kRounds = 3'000'000;
    const auto f = &HWY_DYNAMIC_DISPATCH(multiply_adds);
    const double flop = f(1000) / 1000 * kRounds * threads;
    return flop / best_seconds([&] { parallel_for(threads, threads, [&](std::int64_t, int) { f(kRounds); }); });
}

double copy_bandwidth(int threads) {
    constexpr std::size_t kBytes = 64 << 20;  // a thread; beyond the caches
    std::vector<std::vector<char>> from(static_cast<std::size_t>(threads), std::vector<char>(kBytes, 1)), to = from;
    const double seconds = best_seconds([&] {
        parallel_for(threads, threads, [&](std::int64_t i, int) {
            const auto t = static_cast<std::size_t>(i);
            std::memcpy(to[t].data(), from[t].data(), kBytes);
        });
    });
    return 2.0 * static_cast<double>(kBytes) * threads / seconds;
}

}  // namespace tidegate::cpu
#endif  // HWY_ONCE
