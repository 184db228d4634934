#include "ledger/stats.h"

#include <algorithm>
#include <boost/math/special_functions/beta.hpp>
#include <cmath>
#include <limits>
#include <string>

#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

void check_counts(std::int64_t k, std::int64_t n) {
    if (k >= 0 && k <= n) return;
    throw Error("counts",
                "counts: given " + std::to_string(k) + "/" + std::to_string(n) + ", expected K/N with 0 <= K <= N");
}

void check_confidence(double confidence) {
    if (confidence > 0 && confidence < 1) return;
    throw Error("confidence", "confidence: given " + std::to_string(confidence) + ", expected it between 0 and 1");
}

/// What find_step compares: logarithms where all numbers are positive, and one level above all for what is no number.
/// long double: differences of doubles do not overflow.
std::vector<long double> levels_of(std::span<const double> history) {
    const bool logarithms =
        std::all_of(history.begin(), history.end(), [](double x) { return !std::isfinite(x) || x > 0; });
    std::vector<long double> levels;
    long double low = std::numeric_limits<long double>::infinity(), high = -low;
    for (const double x : history) {
        const long double level = logarithms ? std::log(static_cast<long double>(x)) : static_cast<long double>(x);
        levels.push_back(level);
        if (!std::isfinite(x)) continue;
        low = std::min(low, level);
        high = std::max(high, level);
    }
    const long double worst = high >= low ? high + (high - low) + 1 : 0;
    for (std::size_t i = 0; i < levels.size(); ++i)
        if (!std::isfinite(history[i])) levels[i] = worst;
    return levels;
}

long double deviation(std::vector<long double> part) {
    const auto middle = part.begin() + static_cast<std::ptrdiff_t>(part.size() / 2);
    std::nth_element(part.begin(), middle, part.end());
    const long double median = *middle;  // of an even number either middle one: the sum is the same
    long double sum = 0;
    for (const long double x : part) sum += std::fabs(x - median);
    return sum;
}

}  // namespace

Interval clopper_pearson(std::int64_t k, std::int64_t n, double confidence) {
    check_counts(k, n);
    check_confidence(confidence);
    const auto seen = static_cast<double>(k), rest = static_cast<double>(n - k);
    const double tail = (1 - confidence) / 2;
    return {k == 0 ? 0 : boost::math::ibeta_inv(seen, rest + 1, tail),
            k == n ? 1 : boost::math::ibetac_inv(seen + 1, rest, tail)};
}

double fisher_exact(std::int64_t k1, std::int64_t n1, std::int64_t k2, std::int64_t n2) {
    check_counts(k1, n1);
    check_counts(k2, n2);
    const std::int64_t seen = k1 + k2, first = std::max<std::int64_t>(0, seen - n2), last = std::min(seen, n1);
    // Logarithms of the tables' probabilities over the observed one's, each from its neighbour's.
    const auto ratio = [&](std::int64_t x) {  // of x + 1 to x
        return std::log(static_cast<double>(seen - x)) + std::log(static_cast<double>(n1 - x)) -
               std::log(static_cast<double>(x + 1)) - std::log(static_cast<double>(n2 - seen + x + 1));
    };
    std::vector<double> tables{0};
    double weight = 0;
    for (std::int64_t x = k1; x < last; ++x) tables.push_back(weight += ratio(x));
    weight = 0;
    for (std::int64_t x = k1; x > first; --x) tables.push_back(weight -= ratio(x - 1));
    const double most = *std::max_element(tables.begin(), tables.end());
    const double as_extreme = std::log1p(1e-7);  // equal tables differ by rounding
    double all = 0, extreme = 0;
    for (const double w : tables) {
        all += std::exp(w - most);
        if (w <= as_extreme) extreme += std::exp(w - most);
    }
    // Where the observed table is so unlikely that its share is no double, p is not 0 all the same.
    return std::clamp(extreme / all, std::numeric_limits<double>::min(), 1.0);
}

std::int64_t runs_to_see(double p, double confidence) {
    check_confidence(confidence);
    if (!(p > 0 && p <= 1)) throw Error("rate", "rate: given " + std::to_string(p) + ", expected 0 < rate <= 1");
    // A whole number that rounding lifted a little must not become the next one.
    const double runs = std::ceil(std::log1p(-confidence) / std::log1p(-p) * (1 - 1e-12));
    if (runs >= 0x1p63) return std::numeric_limits<std::int64_t>::max();
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(runs));
}

std::optional<std::size_t> find_step(std::span<const double> history) {
    const std::vector<long double> levels = levels_of(history);
    if (levels.size() < 2) return std::nullopt;
    const long double whole = deviation(levels);
    if (!(whole > 0)) return std::nullopt;
    std::size_t best = 0;
    long double most = 0;
    for (std::size_t i = 1; i < levels.size(); ++i) {
        const auto split = levels.begin() + static_cast<std::ptrdiff_t>(i);
        const long double drop = whole - deviation({levels.begin(), split}) - deviation({split, levels.end()});
        if (drop > most) {
            most = drop;
            best = i;
        }
    }
    if (best == 0 || most < whole / 2) return std::nullopt;
    return best;
}

}  // namespace tidegate::ledger
