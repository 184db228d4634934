// What a ledger holds: runs of a build, the cases they were to run, results with their measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "judge/judge.h"

namespace tidegate::ledger {

using judge::Verdict;
inline constexpr Verdict kVerdicts[] = {Verdict::pass, Verdict::fail,    Verdict::blind,  Verdict::crashed,
                                        Verdict::hung, Verdict::skipped, Verdict::not_run};
/// Throws Error("verdict") with the known words.
Verdict verdict_from(const std::string& word);

/// Where a figure comes from: seen by the tool, copied from somebody's record, or computed from such.
enum class Standing { measured, quoted, derived };
const char* name_of(Standing standing);
Standing standing_from(const std::string& word);

struct Build {
    std::string name;  ///< as users call it: a commit's short hash
    bool dirty = false;
    std::string compiler, flags;
};

/// One run of one build. A commit measured twice is two runs; one that was not measured may have a row that says so.
struct Run {
    Build build;
    std::string kind = "check";  ///< check, drift, bench, kcp, doctor, flaky, import
    std::string label;           ///< what was run: a suite, a file, an operator
    std::string machine, subject, subject_hash, gate;
    std::int64_t gate_version = 0, generator_version = 0;
    std::string started;  ///< ISO 8601, UTC; a date alone where no more is known
    std::string source;   ///< the command, or the file that was imported
    Standing standing = Standing::measured;
    bool performance = false;  ///< kept apart from correctness counts
    bool measured = true;      ///< false: the build is known not to have been measured
    std::string note;
};

/// `value` may be NaN or infinite, which ranks worst. Measures of one name from two sources stand side by side.
struct Measure {
    std::string tensor, name;
    double value = 0;
    std::optional<double> limit;  ///< the gate's, where it has one for this measure
    std::string unit;
    std::string source;  ///< empty: the run's
    Standing standing = Standing::measured;
};

struct Histogram {
    std::string tensor, name, counts;  ///< counts: JSON, bucket to count
};

struct Result {
    std::string test;  ///< the case's id
    std::string hash;  ///< of what the case is, where known
    int attempt = 1;   ///< of this case in this run; the last one counts
    Verdict verdict = Verdict::not_run;
    std::string reason;
    std::string asserts;      ///< what the case asserts, where known: "isfinite" is no anchor
    std::string fingerprint;  ///< of a crash: signal, exit, last words, a kernel's name
    std::optional<int> signal, exit_code;
    double seconds = 0;
    bool follow_on = false;  ///< an error after a crash of the same process
    std::string replay;
    std::vector<Measure> measures;
    std::vector<Histogram> histograms;
};

/// A case that a run is going to run.
struct Expected {
    std::string test, hash;
};

}  // namespace tidegate::ledger
