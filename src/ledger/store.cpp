#include "ledger/store.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "ledger/schema.h"
#include "ledger/words.h"
#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
    throw Error("ledger", "ledger: '" + path + "' " + what);
}

bool is_busy(const SQLite::Exception& e) {
    return e.getErrorCode() == SQLITE_BUSY || e.getErrorCode() == SQLITE_LOCKED;
}

/// The number that a query finds first, 0 if none. Reset, since one that is not read to its end holds a snapshot.
std::int64_t only(SQLite::Statement& s) {
    const std::int64_t x = s.executeStep() ? s.getColumn(0).getInt64() : 0;
    s.reset();
    return x;
}

void bind(SQLite::Statement& s, int i, const std::optional<int>& x) {
    if (x) s.bind(i, *x);
}

/// SQLite takes a file that lost its end, or holds next to nothing, as it is. Its header says how long it is to be:
/// the page size at byte 16, the number of pages at 28.
void check_size(const std::string& path, std::int64_t size) {
    std::array<unsigned char, 32> head{};
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) fail(path, std::string("cannot be read: ") + std::strerror(errno));
    const std::size_t got = std::fread(head.data(), 1, head.size(), file);
    std::fclose(file);
    if (got < head.size() || std::memcmp(head.data(), "SQLite format 3", 16) != 0) fail(path, "is no ledger");
    const std::int64_t page = head[16] == 0 && head[17] == 1 ? 65536 : head[16] * 256 + head[17];
    std::int64_t pages = 0;
    for (std::size_t i = 28; i < 32; ++i) pages = pages * 256 + head[i];
    if (size < page * pages)
        fail(path, fmt::format("is no whole ledger: it has {} bytes, its header says {}", size, page * pages));
}

}  // namespace

void Store::transact(const std::function<void()>& work) {
    if (inside_) return work();
    struct Inside {
        bool& flag;
        explicit Inside(bool& f) : flag(f) { flag = true; }
        ~Inside() { flag = false; }
    } inside(inside_);
    // IMMEDIATE takes the write lock at once: a transaction that has begun is not refused half-way. SQLite's own
    // waiting gives up where readers and writers alternate quickly, so we ask again.
    for (int tries = 0;; ++tries) {
        try {
            SQLite::Transaction transaction(*database_, SQLite::TransactionBehavior::IMMEDIATE);
            work();
            transaction.commit();
            return;
        } catch (const SQLite::Exception& e) {
            if (e.getErrorCode() == SQLITE_CONSTRAINT)
                fail(path_, std::string("has this already, for this build, label and start: ") + e.what());
            if (!is_busy(e)) fail(path_, std::string("cannot be written: ") + e.what());
            if (tries == 0) std::fprintf(stderr, "tidegate: waiting for another writer of '%s'\n", path_.c_str());
            std::this_thread::sleep_for(std::chrono::milliseconds(std::min(200, 5 + tries)));
        }
    }
}

Store::Store(const std::string& path, Mode mode) : path_(path) {
    struct stat file {};
    const bool there = stat(path.c_str(), &file) == 0;
    if (there && !S_ISREG(file.st_mode)) fail(path, "is no file");
    const bool fresh = !there || file.st_size == 0;
    if (!fresh) check_size(path, file.st_size);
    if (mode == Mode::read && fresh) {
        database_ = std::make_unique<SQLite::Database>(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
        create();
        return;
    }
    try {
        const int flags = mode == Mode::read ? SQLite::OPEN_READONLY : SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE;
        database_ = std::make_unique<SQLite::Database>(path, flags, 60000);
        const auto version = [&] {
            return database_->execAndGet("SELECT CAST(value AS INTEGER) FROM ledger_meta WHERE name = 'schema_version'")
                .getInt();
        };
        for (int tries = 0;; ++tries) {
            try {
                const bool ours = database_->tableExists("ledger_meta");
                if (!ours &&
                    (mode == Mode::read || database_->execAndGet("SELECT COUNT(*) FROM sqlite_master").getInt() > 0))
                    fail(path, "is a database, but no ledger");
                if (ours && (version() < 1 || !database_->tableExists("run"))) fail(path, "is no whole ledger");
                if (ours && version() > kSchemaVersion)
                    fail(path, fmt::format("has tables of version {}, this tool knows {}: use a newer tool", version(),
                                           kSchemaVersion));
                database_->exec("PRAGMA case_sensitive_like = ON");
                if (mode == Mode::read) return;
                // With WAL, NORMAL keeps every commit when a process is killed; a power failure may take the last.
                database_->exec("PRAGMA journal_mode = WAL");
                database_->exec("PRAGMA synchronous = NORMAL");
                database_->exec("PRAGMA foreign_keys = ON");
                transact([&] {  // another writer may have made the tables by now
                    if (!database_->tableExists("ledger_meta")) create();
                });
                return;
            } catch (const SQLite::Exception& e) {
                if (!is_busy(e) || tries > 400) throw;
                std::this_thread::sleep_for(std::chrono::milliseconds(25));
            }
        }
    } catch (const SQLite::Exception& e) {
        fail(path,
             std::string("is no ledger, or cannot be ") + (mode == Mode::read ? "read: " : "written: ") + e.what());
    }
}

void Store::create() {
    for (const char* statement : kTables) database_->exec(statement);
    SQLite::Statement s(*database_, "INSERT INTO ledger_meta (name, value) VALUES ('schema_version', ?)");
    s.bind(1, std::to_string(kSchemaVersion));
    s.exec();
}

SQLite::Statement& Store::prepared(const char* sql) {
    const auto [at, fresh] = prepared_.try_emplace(sql);
    if (fresh) at->second = std::make_unique<SQLite::Statement>(*database_, sql);
    at->second->reset();
    at->second->clearBindings();
    return *at->second;
}

std::int64_t Store::build_id(const Build& b) {
    SQLite::Statement& add = prepared(
        "INSERT INTO build (name, dirty, compiler, flags) SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS"
        " (SELECT 1 FROM build WHERE name = ?1 AND dirty = ?2 AND compiler = ?3 AND flags = ?4)");
    SQLite::Statement& find =
        prepared("SELECT id FROM build WHERE name = ? AND dirty = ? AND compiler = ? AND flags = ?");
    for (SQLite::Statement* s : {&add, &find}) {
        s->bind(1, b.name);
        s->bind(2, b.dirty ? 1 : 0);
        s->bind(3, b.compiler);
        s->bind(4, b.flags);
    }
    add.exec();
    return only(find);
}

std::int64_t Store::test_id(const std::string& name) {
    SQLite::Statement& find = prepared("SELECT id FROM test WHERE name = ?");
    find.bind(1, name);
    if (const std::int64_t id = only(find); id != 0) return id;
    SQLite::Statement& add = prepared("INSERT INTO test (name) VALUES (?)");
    add.bind(1, name);
    add.exec();
    return database_->getLastInsertRowid();
}

std::int64_t Store::begin(const Run& r, std::span<const Expected> expected) {
    std::int64_t id = 0;
    transact([&] {
        SQLite::Statement s(
            *database_,
            "INSERT INTO run (build_id, kind, label, machine, subject, subject_hash, gate, gate_version,"
            " generator_version, started, source, standing, performance, measured, note)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
        s.bind(1, build_id(r.build));
        int at = 2;
        for (const std::string* text : {&r.kind, &r.label, &r.machine, &r.subject, &r.subject_hash, &r.gate})
            s.bind(at++, *text);
        s.bind(at++, r.gate_version);
        s.bind(at++, r.generator_version);
        s.bind(at++, r.started.empty() && r.measured ? now() : r.started);
        s.bind(at++, r.source);
        s.bind(at++, name_of(r.standing));
        s.bind(at++, r.performance ? 1 : 0);
        s.bind(at++, r.measured ? 1 : 0);
        s.bind(at, r.note);
        s.exec();
        id = database_->getLastInsertRowid();
        SQLite::Statement& e = prepared("INSERT INTO expected (run_id, place, test_id, hash) VALUES (?, ?, ?, ?)");
        for (std::size_t i = 0; i < expected.size(); ++i) {
            e.bind(1, id);
            e.bind(2, static_cast<std::int64_t>(i));
            e.bind(3, test_id(expected[i].test));
            e.bind(4, expected[i].hash);
            e.exec();
            e.reset();
        }
    });
    return id;
}

void Store::add(std::int64_t run, std::span<const Result> results) {
    transact([&] {
        for (const Result& r : results) insert(run, r);
    });
}

void Store::insert(std::int64_t run, const Result& r) {
    SQLite::Statement& s = prepared(
        "INSERT INTO result (run_id, test_id, attempt, verdict, hash, reason, asserts, fingerprint,"
        " signal_number, exit_code, seconds, follow_on, replay)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    s.bind(1, run);
    s.bind(2, test_id(r.test));
    s.bind(3, r.attempt);
    s.bind(4, judge::name_of(r.verdict));
    s.bind(5, r.hash);
    s.bind(6, r.reason);
    s.bind(7, r.asserts);
    s.bind(8, r.fingerprint);
    bind(s, 9, r.signal);
    bind(s, 10, r.exit_code);
    s.bind(11, r.seconds);
    s.bind(12, r.follow_on ? 1 : 0);
    s.bind(13, r.replay);
    s.exec();
    const std::int64_t id = database_->getLastInsertRowid();
    for (const Measure& m : r.measures) insert(id, m);
    for (const Histogram& h : r.histograms) {
        SQLite::Statement& t = prepared("INSERT INTO histogram (result_id, tensor, name, counts) VALUES (?, ?, ?, ?)");
        t.bind(1, id);
        t.bind(2, h.tensor);
        t.bind(3, h.name);
        t.bind(4, h.counts);
        t.exec();
    }
}

void Store::insert(std::int64_t result, const Measure& x) {
    SQLite::Statement& m = prepared(
        "INSERT INTO measure (result_id, tensor, name, source, value, special, bound, unit, standing)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)");
    m.bind(1, result);
    m.bind(2, x.tensor);
    m.bind(3, x.name);
    m.bind(4, x.source);
    if (std::isfinite(x.value)) m.bind(5, x.value);
    m.bind(6, std::isnan(x.value) ? "nan" : std::isinf(x.value) ? (x.value > 0 ? "inf" : "-inf") : "");
    if (x.limit && std::isfinite(*x.limit)) m.bind(7, *x.limit);
    m.bind(8, x.unit);
    m.bind(9, name_of(x.standing));
    m.exec();
}

std::int64_t Store::imported_run(const Run& r) {
    SQLite::Statement& s = prepared(
        "SELECT r.id FROM run r JOIN build b ON b.id = r.build_id WHERE b.name = ? AND r.kind = ? AND"
        " r.label = ? AND r.started = ? AND r.performance = ? ORDER BY r.id DESC");
    s.bind(1, r.build.name);
    s.bind(2, r.kind);
    s.bind(3, r.label);
    s.bind(4, r.started);
    s.bind(5, r.performance ? 1 : 0);
    return only(s);
}

void Store::add_measure(std::int64_t run, const std::string& test, const Measure& measure) {
    transact([&] {
        SQLite::Statement s(
            *database_,
            "SELECT r.id FROM result r JOIN test t ON t.id = r.test_id WHERE r.run_id = ? AND t.name = ?"
            " ORDER BY r.attempt DESC");
        s.bind(1, run);
        s.bind(2, test);
        const std::int64_t result = only(s);
        if (result == 0) throw Error("case", "case: given '" + test + "', expected one that the run has a result of");
        insert(result, measure);
    });
}

void Store::add_count(std::int64_t run, const std::string& word, std::int64_t n, const std::string& source,
                      Standing standing) {
    transact([&] {
        SQLite::Statement& s =
            prepared("INSERT INTO run_count (run_id, word, source, number, standing) VALUES (?, ?, ?, ?, ?)");
        s.bind(1, run);
        s.bind(2, word);
        s.bind(3, source);
        s.bind(4, n);
        s.bind(5, name_of(standing));
        s.exec();
    });
}

void Store::add_flags(std::int64_t run, std::span<const std::string> flags) {
    transact([&] {
        SQLite::Statement& s = prepared(
            "INSERT INTO run_flag (run_id, place, words) SELECT ?1, COUNT(*), ?2 FROM run_flag WHERE run_id = ?1");
        for (const std::string& words : flags) {
            s.bind(1, run);
            s.bind(2, words);
            s.exec();
            s.reset();
        }
    });
}

void Store::add_plan(std::int64_t run, const std::string& what, const std::string& key, const std::string& value) {
    transact([&] {
        SQLite::Statement& s = prepared("INSERT INTO plan (run_id, what, name, value) VALUES (?, ?, ?, ?)");
        s.bind(1, run);
        s.bind(2, what);
        s.bind(3, key);
        s.bind(4, value);
        s.exec();
    });
}

void Store::add_bucket(const Build& build, const std::string& suffix, const std::string& meaning) {
    transact([&] {
        SQLite::Statement& s = prepared("INSERT INTO bucket (build_id, suffix, meaning) VALUES (?, ?, ?)");
        s.bind(1, build_id(build));
        s.bind(2, suffix);
        s.bind(3, meaning);
        s.exec();
    });
}

void Store::add_claim(const std::string& build, const std::string& other, const std::string& test,
                      const std::string& words, const std::string& source) {
    transact([&] {
        SQLite::Statement& s = prepared("INSERT INTO claim (build, other, test, words, source) VALUES (?, ?, ?, ?, ?)");
        int at = 1;
        for (const std::string* text : {&build, &other, &test, &words, &source}) s.bind(at++, *text);
        s.exec();
    });
}

void Store::finish(std::int64_t run, int exit_status) {
    transact([&] {
        SQLite::Statement& s = prepared("INSERT INTO run_end (run_id, finished, exit_status) VALUES (?, ?, ?)");
        s.bind(1, run);
        s.bind(2, now());
        s.bind(3, exit_status);
        s.exec();
    });
}

}  // namespace tidegate::ledger
