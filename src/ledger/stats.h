// The arithmetic of counts: exact intervals, exact tests, steps in a history.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tidegate::ledger {

struct Interval {
    double low, high;
};
/// The exact (Clopper-Pearson) interval of a rate seen `k` times in `n`, at `confidence`. n = 0: [0, 1].
Interval clopper_pearson(std::int64_t k, std::int64_t n, double confidence = 0.95);

/// Fisher's exact test, two-sided: how likely tables at least as extreme as k1/n1 against k2/n2 are with one rate.
double fisher_exact(std::int64_t k1, std::int64_t n1, std::int64_t k2, std::int64_t n2);

/// Runs needed to see an event of rate p at least once with `confidence`.
std::int64_t runs_to_see(double p, double confidence = 0.95);

/// The index at which the level of a history changes most, if it changes at all: the split with the largest drop of the
/// summed absolute deviation from the medians, of at least half of it; values are compared by their logarithms where
/// all are positive. NaN and infinity rank above every number.
std::optional<std::size_t> find_step(std::span<const double> history);

}  // namespace tidegate::ledger
