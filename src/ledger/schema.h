// The tables. A later version adds statements that take an older ledger to it; what is written is never rewritten.
#pragma once

namespace tidegate::ledger {

inline constexpr const char* kTables[] = {
    "CREATE TABLE ledger_meta (name VARCHAR(40) PRIMARY KEY, value VARCHAR(200) NOT NULL)",
    "CREATE TABLE build (id INTEGER PRIMARY KEY, name VARCHAR(200) NOT NULL, dirty INTEGER NOT NULL,"
    " compiler VARCHAR(200) NOT NULL, flags VARCHAR(500) NOT NULL, UNIQUE (name, dirty, compiler, flags))",
    "CREATE TABLE run (id INTEGER PRIMARY KEY, build_id INTEGER NOT NULL REFERENCES build (id),"
    " kind VARCHAR(20) NOT NULL, label VARCHAR(200) NOT NULL, machine VARCHAR(200) NOT NULL,"
    " subject VARCHAR(500) NOT NULL, subject_hash VARCHAR(40) NOT NULL, gate VARCHAR(40) NOT NULL,"
    " gate_version INTEGER NOT NULL, generator_version INTEGER NOT NULL, started VARCHAR(40) NOT NULL,"
    " source VARCHAR(1000) NOT NULL, standing VARCHAR(10) NOT NULL, performance INTEGER NOT NULL,"
    " measured INTEGER NOT NULL, note VARCHAR(1000) NOT NULL)",
    // A row of its own, so that a run is only ever added to.
    "CREATE TABLE run_end (run_id INTEGER PRIMARY KEY REFERENCES run (id), finished VARCHAR(40) NOT NULL,"
    " exit_status INTEGER NOT NULL)",
    "CREATE TABLE test (id INTEGER PRIMARY KEY, name VARCHAR(1000) NOT NULL UNIQUE)",
    "CREATE TABLE expected (run_id INTEGER NOT NULL REFERENCES run (id), place INTEGER NOT NULL,"
    " test_id INTEGER NOT NULL REFERENCES test (id), hash VARCHAR(40) NOT NULL, PRIMARY KEY (run_id, place))",
    "CREATE TABLE result (id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id),"
    " test_id INTEGER NOT NULL REFERENCES test (id), attempt INTEGER NOT NULL, verdict VARCHAR(10) NOT NULL,"
    " hash VARCHAR(40) NOT NULL, reason VARCHAR(4000) NOT NULL, asserts VARCHAR(400) NOT NULL,"
    " fingerprint VARCHAR(1000) NOT NULL, signal_number INTEGER, exit_code INTEGER, seconds DOUBLE PRECISION NOT NULL,"
    " follow_on INTEGER NOT NULL, replay VARCHAR(2000) NOT NULL, UNIQUE (run_id, test_id, attempt))",
    "CREATE INDEX result_by_test ON result (test_id, run_id, attempt, verdict)",
    "CREATE INDEX result_by_run ON result (run_id, verdict, test_id, attempt)",
    // `special` is "nan", "inf" or "-inf" where the value is no number that SQL knows.
    "CREATE TABLE measure (result_id INTEGER NOT NULL REFERENCES result (id), tensor VARCHAR(80) NOT NULL,"
    " name VARCHAR(80) NOT NULL, source VARCHAR(400) NOT NULL, value DOUBLE PRECISION, special VARCHAR(4) NOT NULL,"
    " bound DOUBLE PRECISION, unit VARCHAR(20) NOT NULL, standing VARCHAR(10) NOT NULL,"
    " PRIMARY KEY (result_id, tensor, name, source, standing))",
    "CREATE INDEX measure_of_others ON measure (source, result_id, tensor, name) WHERE source <> ''",
    "CREATE TABLE histogram (result_id INTEGER NOT NULL REFERENCES result (id), tensor VARCHAR(80) NOT NULL,"
    " name VARCHAR(80) NOT NULL, counts VARCHAR(4000) NOT NULL, PRIMARY KEY (result_id, tensor, name))",
    "CREATE TABLE run_count (run_id INTEGER NOT NULL REFERENCES run (id), word VARCHAR(40) NOT NULL,"
    " source VARCHAR(400) NOT NULL, number INTEGER NOT NULL, standing VARCHAR(10) NOT NULL,"
    " PRIMARY KEY (run_id, word, source))",
    // What a file says of itself that does not add up.
    "CREATE TABLE run_flag (run_id INTEGER NOT NULL REFERENCES run (id), place INTEGER NOT NULL,"
    " words VARCHAR(2000) NOT NULL, PRIMARY KEY (run_id, place))",
    "CREATE TABLE plan (run_id INTEGER NOT NULL REFERENCES run (id), what VARCHAR(200) NOT NULL,"
    " name VARCHAR(80) NOT NULL, value VARCHAR(400) NOT NULL, PRIMARY KEY (run_id, what, name))",
    "CREATE TABLE bucket (build_id INTEGER NOT NULL REFERENCES build (id), suffix VARCHAR(40) NOT NULL,"
    " meaning VARCHAR(200) NOT NULL, PRIMARY KEY (build_id, suffix))",
    "CREATE TABLE claim (id INTEGER PRIMARY KEY, build VARCHAR(200) NOT NULL, other VARCHAR(200) NOT NULL,"
    " test VARCHAR(1000) NOT NULL, words VARCHAR(2000) NOT NULL, source VARCHAR(400) NOT NULL)"};

}  // namespace tidegate::ledger
