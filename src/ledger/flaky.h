// What attempts of one case say: a rate has an exact interval, two rates a test.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ledger/model.h"
#include "ledger/stats.h"
#include "ledger/store.h"

namespace tidegate::ledger {

struct Attempts {
    std::int64_t passed = 0, failed = 0, crashed = 0, hung = 0;
    std::int64_t other = 0;  ///< blind, skipped, not run, or an error after a crash of the same process
    std::vector<std::pair<std::string, std::int64_t>> fingerprints;  ///< of crashes and hangs, the most frequent first
    std::int64_t blind = 0;                                          ///< of `other`: ran to its end
    std::int64_t ended() const { return crashed + hung; }
    std::int64_t ran() const { return passed + failed + ended() + blind; }  ///< what a rate is of
    std::int64_t all() const { return passed + failed + ended() + other; }
};
Attempts count_attempts(std::span<const Result> results);

/// All attempts of a test in all runs of a build, timings too. Throws Error("build") or
/// Error("test") with up to five known ones.
Attempts attempts_of(Store& store, const std::string& build, const std::string& test);

/// What tells one crash or hang from another and is the same in every run: signal or exit code, and the child's last
/// words, with addresses, process ids and numbers of over 4 digits as <n>. Empty for other verdicts. `reason`: the
/// outcome's.
std::string fingerprint_of(Verdict verdict, int signal, const std::string& reason);

struct Verdict2 {
    double p;           ///< Fisher's exact, two-sided
    std::string words;  ///< "evidence: ..." or "not evidence either way: ...", with intervals, p and the runs needed
};
Verdict2 compare_rates(std::int64_t k1, std::int64_t n1, std::int64_t k2, std::int64_t n2);

}  // namespace tidegate::ledger
