// The one loop that touches the state: a pass's pending updates and the next pass's reads, in one go over its rows.
#include "plan/cpu_plan.h"

#if defined(TIDEGATE_CPU_SWEEP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TIDEGATE_CPU_SWEEP_INL_H
#undef TIDEGATE_CPU_SWEEP_INL_H
#else
#define TIDEGATE_CPU_SWEEP_INL_H
#endif

#include <hwy/highway.h>

#include "cpu/convert-inl.h"
#include "cpu/prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace tidegate::cpu::HWY_NAMESPACE {

// Loops over register arrays must be gone before the compiler decides what lives in registers.
#define TIDEGATE_UNROLL _Pragma("GCC unroll 16")
// The pieces of a loop's body: a call in their place would keep the register arrays in memory.
#define TIDEGATE_INNER HWY_ATTR __attribute__((always_inline))

inline constexpr std::size_t kRank = kPassRank;  ///< rank-1 updates a pass

/// Coefficients of a pass by row of the state, kRank a row: what its updates are written along, and what it reads with.
struct Coefficients {
    float* decay;  ///< [K]
    float* write;  ///< [K, kRank]
    float* erase;  ///< [K, kRank]
    float* query;  ///< [K, kRank]
};

struct StateView {
    float* rows;
    std::ptrdiff_t stride;  ///< floats between rows; 0 repeats one row (a zero state)
};

// NOTES: a slice is two vectors, so that a coefficient that is broadcast serves two multiply-adds; with one, loads are
// the limit. 32 registers hold all that a pass needs of it; with 16 three walks over the slice, which L1 holds, do.
inline constexpr bool kManyRegisters = hn::MaxLanes(F()) >= 16;
inline constexpr std::size_t kSliceVectors = 2;

/// One walk over K rows of kVectors vectors of state columns:
///   S_i = decay_i S_i + sum_{u < kWrites} write_i[u] delta_u      (read at `from`, stored at `to`; not without writes)
///   read_m += erase_i[m] S_i if kErase, out_m += query_i[m] S_i if kQuery    (m < kReads)
/// With kAlso, S_i += sum_{u < kAlso} also_i[u] also_delta_u follows the first updates.
/// Every column's sums run over rows in order and over u in order, however walks are split and slices cut: the bits are
/// the same. 3 * kRank multiply-adds stand against one load and one store of the state.
template <std::size_t kWrites, std::size_t kReads, bool kErase, bool kQuery, std::size_t kVectors,
          std::size_t kAlso = 0>
HWY_INLINE void walk(std::size_t K, const Coefficients& pending, const Coefficients& next, StateView from, StateView to,
                     const float* delta, float* read, float* out, std::size_t width, const Ahead& ahead,
                     const float* also = nullptr, const float* also_delta = nullptr) {
    const F f;
    const std::size_t lanes = hn::Lanes(f);
    constexpr std::size_t kW = kWrites > 0 ? kWrites : 1, kR = kReads > 0 ? kReads : 1, kA = kAlso > 0 ? kAlso : 1;
    Vec d[kW][kVectors], r[kR][kVectors], o[kR][kVectors], more[kA][kVectors];
    TIDEGATE_UNROLL
    for (std::size_t u = 0; u < kAlso; ++u) TIDEGATE_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) more[u][v] = hn::Load(f, also_delta + u * width + v * lanes);
    TIDEGATE_UNROLL
    for (std::size_t u = 0; u < kWrites; ++u) TIDEGATE_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) d[u][v] = hn::Load(f, delta + u * width + v * lanes);
    TIDEGATE_UNROLL
    for (std::size_t m = 0; m < kReads; ++m) TIDEGATE_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) r[m][v] = o[m][v] = hn::Zero(f);
    const float* HWY_RESTRICT decay = pending.decay;
    const float* HWY_RESTRICT write = pending.write;
    const float* HWY_RESTRICT erase = next.erase;
    const float* HWY_RESTRICT query = next.query;
    const float* source = from.rows;
    float* target = to.rows;
    // A row's updates are a chain of kWrites; the sums over the row before it fill the wait.
    Vec s[kVectors], last[kVectors];
    const auto decayed = [&](std::size_t i) TIDEGATE_INNER {
        TIDEGATE_UNROLL
        for (std::size_t v = 0; v < kVectors; ++v) s[v] = hn::LoadU(f, source + v * lanes);
        source += from.stride;
        if constexpr (kWrites > 0) {
            const Vec a = hn::Set(f, decay[i]);
            TIDEGATE_UNROLL
            for (std::size_t v = 0; v < kVectors; ++v) s[v] = hn::Mul(a, s[v]);
        }
    };
    const auto update = [&](std::size_t u) TIDEGATE_INNER {
        const Vec b = hn::Set(f, write[u]);
        TIDEGATE_UNROLL
        for (std::size_t v = 0; v < kVectors; ++v) s[v] = hn::MulAdd(b, d[u][v], s[v]);
    };
    const auto update_more = [&]() TIDEGATE_INNER {
        TIDEGATE_UNROLL
        for (std::size_t u = 0; u < kAlso; ++u) {
            const Vec b = hn::Set(f, also[u]);
            TIDEGATE_UNROLL
            for (std::size_t v = 0; v < kVectors; ++v) s[v] = hn::MulAdd(b, more[u][v], s[v]);
        }
        if constexpr (kAlso > 0) also += kRank;
    };
    const auto sum_up = [&](std::size_t m) TIDEGATE_INNER {
        if constexpr (kErase) {
            const Vec e = hn::Set(f, erase[m]);
            TIDEGATE_UNROLL
            for (std::size_t v = 0; v < kVectors; ++v) r[m][v] = hn::MulAdd(e, last[v], r[m][v]);
        }
        if constexpr (kQuery) {
            const Vec q = hn::Set(f, query[m]);
            TIDEGATE_UNROLL
            for (std::size_t v = 0; v < kVectors; ++v) o[m][v] = hn::MulAdd(q, last[v], o[m][v]);
        }
    };
    const auto store = [&]() TIDEGATE_INNER {
        TIDEGATE_UNROLL
        for (std::size_t v = 0; v < kVectors; ++v) {
            if constexpr (kWrites > 0) hn::StoreU(s[v], f, target + v * lanes);
            last[v] = s[v];
        }
        target += to.stride;
        write += kRank;
    };
    decayed(0);
    TIDEGATE_UNROLL
    for (std::size_t u = 0; u < kWrites; ++u) update(u);
    update_more();
    store();
    const auto runs = static_cast<std::uint32_t>(std::max<std::size_t>(ahead.count, 1));
    const std::uint32_t rows = std::max(static_cast<std::uint32_t>(K - 1) / runs, 1U);
    for (std::size_t i = 1, at = 0; i < K; ++at) {
        const Run run = at < ahead.count ? ahead.runs[at] : Run{reinterpret_cast<const char*>(query), 0};
        const std::size_t step = (run.bytes + rows - 1) / rows, end = at + 1 < runs ? i + rows : K;
        const char* line = run.first;
#pragma GCC unroll 4
        for (; i < end; ++i) {
            __builtin_prefetch(line, 0, 2);
            line += step;
            decayed(i);
            TIDEGATE_UNROLL
            for (std::size_t u = 0; u < kRank; ++u) {
                if (u < kWrites) update(u);
                if (u < kReads) sum_up(u);
            }
            update_more();
            store();
            erase += kRank;
            query += kRank;
        }
    }
    TIDEGATE_UNROLL
    for (std::size_t m = 0; m < kReads; ++m) sum_up(m);
    TIDEGATE_UNROLL
    for (std::size_t m = 0; m < kReads; ++m) TIDEGATE_UNROLL
    for (std::size_t v = 0; v < kVectors; ++v) {
        const std::size_t at = m * width + v * lanes;
        if constexpr (kErase) hn::Store(r[m][v], f, read + at);
        if constexpr (kQuery) hn::Store(o[m][v], f, out + at);
    }
}

/// A pass's pending updates, then the next pass's reads.
template <std::size_t kWrites, std::size_t kReads, std::size_t kVectors>
HWY_NOINLINE void sweep(std::size_t K, const Coefficients& pending, const Coefficients& next, StateView from,
                        StateView to, const float* delta, float* read, float* out, std::size_t width,
                        const Ahead& ahead) {
    if constexpr (kManyRegisters || kReads < 2) {
        walk<kWrites, kReads, true, true, kVectors>(K, pending, next, from, to, delta, read, out, width, ahead);
    } else {
        if constexpr (kWrites > 0)
            walk<kWrites, 0, false, false, kVectors>(K, pending, next, from, to, delta, read, out, width, ahead);
        const StateView now = kWrites > 0 ? to : from;
        walk<0, kReads, true, false, kVectors>(K, pending, next, now, now, delta, read, out, width, ahead);
        walk<0, kReads, false, true, kVectors>(K, pending, next, now, now, delta, read, out, width, ahead);
    }
}

}  // namespace tidegate::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
