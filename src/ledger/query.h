// What the verbs ask a ledger for, as JSON: tables are printed from it, so both say the same.
#pragma once

#include <nlohmann/json.hpp>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "ledger/store.h"

namespace tidegate::ledger {

using Json = nlohmann::ordered_json;

/// A run of a ledger and what it counts. Counts are of cases, each by its last attempt; an expected case without result
/// is not run. Where a record names no cases, the counts are those it gives.
struct RunRow {
    std::int64_t id = 0, build_id = 0;
    Run run;
    bool finished = false;
    std::int64_t counts[std::size(kVerdicts)] = {};  ///< in the order of kVerdicts
    std::int64_t collected = -1;                     ///< -1: not given, and then the sum
    bool counted = false;                            ///< a record gave counts
    std::int64_t unnamed = 0;                        ///< cases that are counted and not named
    std::vector<std::string> flags;                  ///< what does not add up
    std::int64_t count(Verdict v) const { return counts[static_cast<std::size_t>(v)]; }
    std::int64_t sum() const;
};

/// Every run, in the order of their start, then of their numbers.
std::vector<RunRow> runs_of(Store& store);
/// Throws Error("build") that names some builds the ledger has.
void require_build(Store& store, const std::string& build);
/// Of all runs those that a word names: a build, or "#N" a run's number. Throws Error("build").
std::vector<RunRow> runs_named(Store& store, std::vector<RunRow> rows, const std::string& word);

struct Value {
    std::string tensor, name, source;
    double value = 0;
    std::optional<double> limit;
    Standing standing = Standing::measured;
};
struct CaseRow {
    std::string test;
    Verdict verdict = Verdict::not_run;
    std::string reason, asserts, fingerprint, replay;
    bool follow_on = false;
    int attempts = 1, crashes = 0;
    std::vector<Value> values;
};
/// The cases of a run, by name, each by its last attempt; those without result too.
std::vector<CaseRow> cases_of(Store& store, std::int64_t run, bool values);

/// Every build and run with its counts; failing cases; performance runs apart; what does not add up, and what changed
/// between runs of one label. `builds`: those, in that order (of commits, say); one: with its cases by what they
/// assert. Empty: all, in the order of their runs.
Json show(Store& store, const std::vector<std::string>& builds, bool cases = false);

/// The history of a measure of the cases that a pattern names (* is anything): value, distance to its limit and change,
/// run by run; NaN, a crash and a hang rank worst; where it steps.
Json trend(Store& store, const std::string& pattern, const std::string& tensor, const std::string& measure);

/// Two builds ("#N": runs) side by side: which cases changed and by how much, also where the verdict is one; claims
/// that differ from the numbers; plans and buckets. "worse" says whether anything got worse.
Json compare(Store& store, const std::string& a, const std::string& b);

/// A measure's value as it is stored: a number, or a word for one that is none.
double value_of(const SQLite::Column& value, const std::string& special);
/// A measure's value for JSON: NaN and infinity are strings.
Json number_of(double x);
/// How far x is over (positive) or under its limit, in percent of the limit.
double distance_percent(double x, double limit);
/// Whether a larger value is better: cosines are, errors are not.
bool larger_is_better(const std::string& measure);

}  // namespace tidegate::ledger
