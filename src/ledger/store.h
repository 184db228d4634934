// The store: one file, append-only, safe for many writers. SQL is kept to what a server database would take too.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "ledger/model.h"

namespace tidegate::ledger {

class Store {
public:
    enum class Mode { read, write };

    /// A missing or empty file is a new ledger where mode is write, and an empty one where it is read. Throws
    /// Error("ledger"), changing nothing, for a file that is no ledger, is newer than this tool, is damaged, or cannot
    /// be opened or written.
    Store(const std::string& path, Mode mode);

    /// A run and what it is going to run, on disk before it starts. Returns the run's number.
    std::int64_t begin(const Run& run, std::span<const Expected> expected);
    /// Results, each with all of its measures, in one transaction.
    void add(std::int64_t run, std::span<const Result> results);
    void add(std::int64_t run, const Result& result) { add(run, std::span(&result, 1)); }
    /// Totals that a record gives without naming cases: word ("collected", "passed", ..) and number.
    void add_count(std::int64_t run, const std::string& word, std::int64_t n, const std::string& source,
                   Standing standing);
    /// What a run's file says of itself that does not add up.
    void add_flags(std::int64_t run, std::span<const std::string> flags);
    /// A line of a plan: `key` = `value` for a rule or shape.
    void add_plan(std::int64_t run, const std::string& what, const std::string& key, const std::string& value);
    /// What a kernel's bucket suffix stands for in a build: "_2" is 128 in one and 96 in another.
    void add_bucket(const Build& build, const std::string& suffix, const std::string& meaning);
    /// What a record says of builds: kept beside the numbers, flagged where they differ from it.
    void add_claim(const std::string& build, const std::string& other, const std::string& test,
                   const std::string& words, const std::string& source);
    /// The run is over; status as a shell reports it, 128 + n for signal n.
    void finish(std::int64_t run, int exit_status);

    /// For queries.
    SQLite::Database& database() { return *database_; }
    /// Runs `work` in one transaction, waiting for other writers as long as it takes. Inside of another it joins that:
    /// so an import is written whole or not at all.
    void transact(const std::function<void()>& work);

    /// The imported run of a build, label and start that is there already; 0: none. Files of one run add to it.
    std::int64_t imported_run(const Run& run);
    /// A further measure of a case's last attempt. Throws Error("case") if the run has no result of it.
    void add_measure(std::int64_t run, const std::string& test, const Measure& measure);

private:
    std::int64_t build_id(const Build& build);
    std::int64_t test_id(const std::string& name);
    void insert(std::int64_t run, const Result& r);
    void insert(std::int64_t result, const Measure& x);
    void create();
    /// A statement of this text, kept for the next time.
    SQLite::Statement& prepared(const char* sql);

    std::string path_;
    std::unique_ptr<SQLite::Database> database_;
    std::map<const char*, std::unique_ptr<SQLite::Statement>> prepared_;  ///< by the literal's address
    bool inside_ = false;
};

/// The version of the tables; a ledger of a later one is refused.
inline constexpr int kSchemaVersion = 1;

}  // namespace tidegate::ledger
