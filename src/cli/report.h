// What a person reads: aligned tables, colour on a terminal only, progress for long work.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "cli/records.h"

namespace tidegate::cli {

/// Aligned columns; the first line is the heading.
class Table {
public:
    explicit Table(std::vector<std::string> heading) { rows_.push_back(std::move(heading)); }
    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
    void print(std::FILE* to) const;

private:
    std::vector<std::vector<std::string>> rows_;
};

class Report {
public:
    Report(std::FILE* to, bool quiet);
    ~Report();

    void progress(int done, int of, const std::string& now);
    void progress_done() { clear_progress(); }
    /// One line for a case; in detail if it is the only one or did not pass.
    void result(const Labels& labels, const judge::CaseResult& result, bool detail);
    /// A line if it did not hold.
    void property(const Labels& labels, const judge::PropertyResult& property);
    void summary(const Counts& counts, double seconds);
    std::FILE* file() const { return to_; }
    bool quiet() const { return quiet_; }

private:
    void clear_progress();
    std::string coloured(judge::Verdict verdict) const;
    void tensors(const Labels& labels, const judge::CaseResult& result);

    std::FILE* to_;
    bool quiet_, colour_, progress_, shown_ = false;
};

}  // namespace tidegate::cli
