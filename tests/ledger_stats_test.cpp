// The arithmetic of counts against published values, scipy's, and what must hold for all counts.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "ledger/stats.h"
#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

std::optional<std::size_t> step(const std::vector<double>& history) { return find_step(history); }

template <class Call>
std::string refusal(const Call& call) {
    try {
        call();
    } catch (const Error& e) {
        return e.argument() + "|" + e.what();
    }
    return "";
}

TEST(ClopperPearson, IsScipys) {
    struct Row {
        std::int64_t k, n;
        double confidence, low, high;
    };
    for (const Row& r : {Row{1, 3, 0.95, 0.008403758659612643, 0.9057006759497539},
                         {0, 24, 0.95, 0, 0.14247359772252563},
                         {2, 24, 0.95, 0.010256341281250152, 0.26997280155760356},
                         {20, 42, 0.95, 0.32004050886022606, 0.6358220290786673},
                         {10, 10, 0.95, 0.6915028921812392, 1},
                         {5, 100, 0.99, 0.010940333584790034, 0.1351446825356235},
                         {500, 100000, 0.95, 0.0045722441500705875, 0.005456841177010281},
                         {0, 0, 0.95, 0, 1}}) {
        const Interval i = clopper_pearson(r.k, r.n, r.confidence);
        EXPECT_NEAR(i.low, r.low, 1e-12) << r.k << "/" << r.n;
        EXPECT_NEAR(i.high, r.high, 1e-12) << r.k << "/" << r.n;
    }
}

TEST(FisherExact, IsScipys) {
    EXPECT_NEAR(fisher_exact(2, 24, 0, 24), 0.4893617021276596, 1e-12);
    EXPECT_NEAR(fisher_exact(20, 42, 1, 42), 1.3519573778128181e-06, 1e-17);
    EXPECT_NEAR(fisher_exact(1, 3, 0, 2), 1, 1e-15);
    EXPECT_NEAR(fisher_exact(3, 10, 7, 12), 0.23053107882829244, 1e-12);
    EXPECT_NEAR(fisher_exact(0, 5, 0, 7), 1, 0);
    EXPECT_NEAR(fisher_exact(5, 5, 0, 5), 0.007936507936507938, 1e-14);
    EXPECT_NEAR(fisher_exact(500, 1000, 430, 1000), 0.00197151809168443, 1e-11);
    EXPECT_EQ(fisher_exact(0, 0, 3, 5), 1);
    EXPECT_GT(fisher_exact(100000, 100000, 0, 100000), 0) << "less than the smallest double, but not impossible";
}

TEST(Counts, OutOfRangeAreRefused) {
    EXPECT_EQ(refusal([] { clopper_pearson(5, 3); }).rfind("counts|counts: given 5/3, expected ", 0), 0u);
    EXPECT_EQ(refusal([] { fisher_exact(1, 3, -1, 2); }).rfind("counts|counts: given -1/2, expected ", 0), 0u);
    EXPECT_EQ(refusal([] { fisher_exact(0, -1, 0, 2); }).rfind("counts|counts: given 0/-1, expected ", 0), 0u);
    EXPECT_NE(refusal([] { clopper_pearson(1, 3, 1); }), "");
    for (const double p : {0.0, -0.5, 1.5, kNaN}) EXPECT_EQ(refusal([&] { runs_to_see(p); }).rfind("rate|", 0), 0u);
}

TEST(RunsToSee, IsTheFirstNumberThatIsEnough) {
    EXPECT_EQ(runs_to_see(1.0 / 3), 8);
    EXPECT_EQ(runs_to_see(0.01), 299);
    EXPECT_EQ(runs_to_see(1), 1);
    EXPECT_EQ(runs_to_see(0.95), 1);
    EXPECT_EQ(runs_to_see(0.5, 0.75), 2);
    EXPECT_EQ(runs_to_see(1e-300), std::numeric_limits<std::int64_t>::max());
}

RC_GTEST_PROP(RunsToSee, FewerAreNotEnough, ()) {
    const double p = *rc::gen::inRange(1, 1000) / 1000.0;
    const std::int64_t runs = runs_to_see(p);
    RC_ASSERT(1 - std::pow(1 - p, static_cast<double>(runs)) >= 0.95 - 1e-9);
    RC_ASSERT(1 - std::pow(1 - p, static_cast<double>(runs - 1)) < 0.95);
}

RC_GTEST_PROP(ClopperPearson, HoldsTheRateSeenAndMirrors, ()) {
    const auto n = *rc::gen::inRange<std::int64_t>(1, 5000);
    const auto k = *rc::gen::inRange<std::int64_t>(0, n + 1);
    const Interval i = clopper_pearson(k, n), mirrored = clopper_pearson(n - k, n), wide = clopper_pearson(k, n, 0.99);
    const double rate = static_cast<double>(k) / static_cast<double>(n);
    RC_ASSERT(0 <= i.low && i.low <= rate && rate <= i.high && i.high <= 1);
    RC_ASSERT(std::fabs(i.low - (1 - mirrored.high)) < 1e-9);
    RC_ASSERT(wide.low <= i.low && i.high <= wide.high);
}

/// The definition: each bound is the rate at which what was seen, or more of it, has the chance of one tail.
RC_GTEST_PROP(ClopperPearson, TheTailsAreWhatWasAskedFor, ()) {
    const auto n = *rc::gen::inRange<int>(1, 60);
    const auto k = *rc::gen::inRange<int>(0, n + 1);
    const Interval i = clopper_pearson(k, n);
    const auto chance = [&](int seen, double p) {
        return std::exp(std::lgamma(n + 1) - std::lgamma(seen + 1) - std::lgamma(n - seen + 1) + seen * std::log(p) +
                        (n - seen) * std::log1p(-p));
    };
    double above = 0, below = 0;
    for (int seen = k; seen <= n; ++seen) above += chance(seen, i.low);
    for (int seen = 0; seen <= k; ++seen) below += chance(seen, i.high);
    if (k > 0) RC_ASSERT(std::fabs(above - 0.025) < 1e-9);
    if (k < n) RC_ASSERT(std::fabs(below - 0.025) < 1e-9);
}

/// The definition again, from the hypergeometric distribution.
RC_GTEST_PROP(FisherExact, IsAProbabilityTheSameWithTheGroupsSwapped, ()) {
    const auto n1 = *rc::gen::inRange<int>(0, 80), n2 = *rc::gen::inRange<int>(0, 80);
    const auto k1 = *rc::gen::inRange<int>(0, n1 + 1), k2 = *rc::gen::inRange<int>(0, n2 + 1);
    const double p = fisher_exact(k1, n1, k2, n2);
    RC_ASSERT(p > 0 && p <= 1);
    RC_ASSERT(std::fabs(p - fisher_exact(k2, n2, k1, n1)) <= 1e-9 * p);
    RC_ASSERT(std::fabs(p - fisher_exact(n1 - k1, n1, n2 - k2, n2)) <= 1e-9 * p);
    const auto choose = [](int n, int k) { return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1); };
    const auto table = [&](int x) {
        return std::exp(choose(n1, x) + choose(n2, k1 + k2 - x) - choose(n1 + n2, k1 + k2));
    };
    double sum = 0;
    for (int x = std::max(0, k1 + k2 - n2); x <= std::min(n1, k1 + k2); ++x)
        if (table(x) <= table(k1) * (1 + 1e-7)) sum += table(x);
    RC_ASSERT(std::fabs(p - sum) <= 1e-9);
}

TEST(FindStep, SaysWhereTheLevelChanges) {
    EXPECT_EQ(step({}), std::nullopt);
    EXPECT_EQ(step({1}), std::nullopt);
    EXPECT_EQ(step(std::vector<double>(50, 0.1)), std::nullopt);
    EXPECT_EQ(step({1, 1, 1, 2, 2, 2}), 3u);
    EXPECT_EQ(step({0, 0, -1, -1, -1}), 2u);
    EXPECT_EQ(step({1, 1.01, 0.99, 1.02, 1.5, 1.49, 1.52, 1.51}), 4u);
    EXPECT_EQ(step({1, 1, 1, 1, 5}), 4u);
    EXPECT_EQ(step({5, 1, 1, 1, 1}), 1u);
    EXPECT_EQ(step({1, 1, 5, 1, 1}), std::nullopt) << "one outlier is no level";
    EXPECT_EQ(step({1, 2, 1, 2, 1, 2, 1, 2}), std::nullopt);
}

TEST(FindStep, ComparesPositiveValuesByTheirLogarithms) {
    // By size alone the last value would be all there is to see.
    EXPECT_EQ(step({1e-9, 1e-9, 1e-9, 1e-3, 1e-3, 1e-3, 1e-3, 1e-2}), 3u);
    EXPECT_EQ(step({0, 1e-9, 1e-9, 1e-3, 1e-3, 1e-3, 1e-3, 1e-2}), 7u);
}

TEST(FindStep, WhatIsNoNumberRanksAboveAll) {
    EXPECT_EQ(step({1, 1.1, 0.9, kNaN, kNaN}), 3u);
    EXPECT_EQ(step({1, 1.1, 0.9, 1, kNaN}), 4u);
    EXPECT_EQ(step({kInf, kNaN, 1, 1.1, 0.9}), 2u);
    EXPECT_EQ(step({kNaN, kNaN, kInf, -kInf}), std::nullopt);
    EXPECT_EQ(step({-1e308, 1e308, -1e308, kNaN, kNaN, kNaN}), 3u) << "above 1e308 too, by as much as the range";
    EXPECT_EQ(step({1, kNaN, 1, 1, kNaN, 1}), std::nullopt);
}

RC_GTEST_PROP(FindStep, FindsAStepUnderNoise, ()) {
    const auto before = *rc::gen::inRange<std::size_t>(3, 30), after = *rc::gen::inRange<std::size_t>(3, 30);
    std::vector<double> history;
    for (std::size_t i = 0; i < before + after; ++i)
        history.push_back((i < before ? 1 : 2) * (1 + *rc::gen::inRange(-100, 101) / 10000.0));
    RC_ASSERT(find_step(history) == before);
}

}  // namespace
}  // namespace tidegate::ledger
