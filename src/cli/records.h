// JSON Lines, as docs/protocol.md defines the records.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cases/case.h"
#include "judge/judge.h"
#include "judge/mutants.h"
#include "judge/properties.h"
#include "tidegate/plan.h"

namespace tidegate::cli {

/// Context of a case that its records repeat.
struct Labels {
    std::string id, rule, pass, dtype, subject, twin, replay;
    std::string plan;  ///< of our own kernels: what ran
    judge::Gate gate;
    std::int64_t V = 1;
};

struct Counts {
    int cases = 0, passed = 0, failed = 0, blind = 0, crashed = 0, hung = 0, skipped = 0, not_run = 0;
    void add(judge::Verdict verdict);
};

/// Somebody else who wants the records: a ledger.
class Sink {
public:
    virtual ~Sink() = default;
    virtual void line(const std::string& json) = 0;
};

/// What a verb is about to do.
struct RunRecord {
    std::string kind, label, subject;
    judge::Gate gate;
    std::vector<std::pair<std::string, std::string>> cases;  ///< id and hash
};

/// Writes records to a file or stdout, and to a sink; does nothing when it has no destination.
class Records {
public:
    /// `path` "-" is stdout, "" nowhere. Throws Error("json") if the file cannot be opened.
    explicit Records(const std::string& path, Sink* sink = nullptr);
    ~Records();
    Records(const Records&) = delete;
    Records& operator=(const Records&) = delete;

    void run(const RunRecord& run);
    void tensors(const Labels& labels, const judge::CaseResult& result);
    void result(const Labels& labels, const judge::CaseResult& result);
    void mutant(const Labels& labels, const char* name, judge::Sight sight);
    void property(const Labels& labels, const judge::PropertyResult& property);
    void plan(const std::string& rule, const Plan& plan);
    void bench(const std::string& fields) { line(fields); }
    void drift(const std::string& fields) { line(fields); }
    void summary(const Counts& counts, double seconds);

private:
    void line(const std::string& json);
    std::string path_;
    std::FILE* file_ = nullptr;
    Sink* sink_;
};

/// A JSON string literal; bytes that are not UTF-8 are replaced.
std::string quoted(const std::string& text);
/// 9 significant digits; NaN and inf as strings.
std::string number(double x);

}  // namespace tidegate::cli
