// JSON Lines as docs/protocol.md defines them, into a ledger: while a verb runs, or from a file.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ledger/store.h"

namespace tidegate::ledger {

class Ingest {
public:
    /// `base`: what the records do not say themselves. A run begins with a record "run", or with the first of another
    /// kind; a second "run" record begins a second run.
    Ingest(Store& store, Run base) : store_(store), base_(std::move(base)) {}

    /// Throws Error("record") for what is no record; records of unknown kind are left out.
    void line(const std::string& text);
    /// The run is over.
    void end(int exit_status);
    std::int64_t run() const { return run_; }
    std::int64_t results() const { return results_; }

private:
    struct Json;
    void begin(const Json& record);
    void add(Result result);
    int attempt_of(const std::string& test);

    Store& store_;
    Run base_;
    std::int64_t run_ = 0, results_ = 0;
    bool over_ = false;
    std::string pending_test_;  ///< whose tensors have come, before its case
    Result pending_;
    std::map<std::string, std::string> hashes_;  ///< of the cases that are expected
    std::vector<std::pair<std::string, int>> attempts_;
};

/// Every line of a file, in order; returns the number of results. Nothing is written if a line is no JSON object.
/// Throws Error("import").
std::int64_t ingest_file(Store& store, const Run& base, const std::string& text, const std::string& source);

}  // namespace tidegate::ledger
