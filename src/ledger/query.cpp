#include "ledger/query.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

constexpr const char* kRunColumns =
    "r.id, r.build_id, b.name, b.dirty, b.compiler, b.flags, r.kind, r.label, r.machine, r.subject, r.started, "
    "r.source,"
    " r.standing, r.performance, r.measured, r.note, r.gate, r.gate_version,"
    " (SELECT COUNT(*) FROM run_end e WHERE e.run_id = r.id)";

}  // namespace

std::int64_t RunRow::sum() const {
    std::int64_t all = 0;
    for (const std::int64_t n : counts) all += n;
    return all;
}

Json number_of(double x) {
    if (std::isnan(x)) return "nan";
    if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
    return x;
}

double value_of(const SQLite::Column& value, const std::string& special) {
    if (special == "nan") return std::nan("");
    if (special == "inf") return HUGE_VAL;
    if (special == "-inf") return -HUGE_VAL;
    return value.getDouble();
}

double distance_percent(double x, double limit) { return 100 * (x - limit) / std::fabs(limit); }

bool larger_is_better(const std::string& m) {
    for (const char* name :
         {"cos", "cosine", "min_token_cos", "gflops", "peak_gflops", "gbytes_s", "copy_gbytes_s", "ratio_ggml"})
        if (m == name) return true;
    return false;
}

std::vector<RunRow> runs_of(Store& store) {
    SQLite::Database& db = store.database();
    std::vector<RunRow> rows;
    SQLite::Statement s(
        db,
        fmt::format("SELECT {} FROM run r JOIN build b ON b.id = r.build_id ORDER BY r.started, r.id", kRunColumns));
    while (s.executeStep()) {
        RunRow row;
        int i = 0;
        row.id = s.getColumn(i++).getInt64();
        row.build_id = s.getColumn(i++).getInt64();
        row.run.build.name = s.getColumn(i++).getString();
        row.run.build.dirty = s.getColumn(i++).getInt() != 0;
        for (std::string* text : {&row.run.build.compiler, &row.run.build.flags, &row.run.kind, &row.run.label,
                                  &row.run.machine, &row.run.subject, &row.run.started, &row.run.source})
            *text = s.getColumn(i++).getString();
        row.run.standing = standing_from(s.getColumn(i++).getString());
        row.run.performance = s.getColumn(i++).getInt() != 0;
        row.run.measured = s.getColumn(i++).getInt() != 0;
        row.run.note = s.getColumn(i++).getString();
        row.run.gate = s.getColumn(i++).getString();
        row.run.gate_version = s.getColumn(i++).getInt64();
        row.finished = s.getColumn(i).getInt() != 0;
        rows.push_back(std::move(row));
    }
    std::map<std::int64_t, RunRow*> by_id;
    for (RunRow& row : rows) by_id[row.id] = &row;
    const auto each = [&](const char* sql, const auto& take) {
        SQLite::Statement q(db, sql);
        while (q.executeStep())
            if (const auto row = by_id.find(q.getColumn(0).getInt64()); row != by_id.end()) take(*row->second, q);
    };
    const auto add = [](int sign) {
        return [sign](RunRow& row, SQLite::Statement& q) {
            row.counts[static_cast<std::size_t>(verdict_from(q.getColumn(1).getString()))] +=
                sign * q.getColumn(2).getInt64();
        };
    };
    // All results, less those that a later attempt of the same case replaces.
    each("SELECT run_id, verdict, COUNT(*) FROM result GROUP BY run_id, verdict", add(1));
    each(
        "SELECT r.run_id, r.verdict, COUNT(*) FROM result r JOIN (SELECT DISTINCT run_id, test_id FROM result"
        " WHERE attempt > 1) m ON m.run_id = r.run_id AND m.test_id = r.test_id WHERE EXISTS (SELECT 1 FROM result l"
        " WHERE l.run_id = r.run_id AND l.test_id = r.test_id AND l.attempt > r.attempt) GROUP BY r.run_id, r.verdict",
        add(-1));
    each(
        "SELECT e.run_id, COUNT(*) FROM expected e WHERE NOT EXISTS (SELECT 1 FROM result r WHERE r.run_id = e.run_id"
        " AND r.test_id = e.test_id) GROUP BY e.run_id",
        [](RunRow& row, SQLite::Statement& q) {
            row.counts[static_cast<std::size_t>(Verdict::not_run)] += q.getColumn(1).getInt64();
        });
    std::map<std::pair<std::int64_t, std::string>, std::pair<std::int64_t, std::string>> said;
    each("SELECT run_id, word, number, source FROM run_count ORDER BY run_id, word, source",
         [&](RunRow& row, SQLite::Statement& q) {
             const std::string word = q.getColumn(1).getString(), source = q.getColumn(3).getString();
             const std::int64_t n = q.getColumn(2).getInt64();
             const auto [first, fresh] = said.try_emplace({row.id, word}, n, source);
             if (!fresh) {
                 if (first->second.first != n)
                     row.flags.push_back(fmt::format("{}: '{}' says {}, '{}' says {}", word, first->second.second,
                                                     first->second.first, source, n));
                 return;
             }
             if (word == "collected") {
                 row.collected = n;
                 return;
             }
             // Cases that the record counts and does not name are counted with those it names.
             const Verdict v = verdict_from(word);
             std::int64_t& have = row.counts[static_cast<std::size_t>(v)];
             row.counted = true;
             if (have > n) {
                 row.flags.push_back(fmt::format("{}: the record counts {}, its cases are {}", word, n, have));
             } else {
                 row.unnamed += n - have;
                 have = n;
             }
         });
    each("SELECT run_id, words FROM run_flag ORDER BY run_id, place",
         [](RunRow& row, SQLite::Statement& q) { row.flags.push_back(q.getColumn(1).getString()); });
    each(
        "SELECT l.run_id, COUNT(DISTINCT l.test_id) FROM result l JOIN result r ON r.run_id = l.run_id AND"
        " r.test_id = l.test_id AND r.attempt < l.attempt WHERE l.attempt > 1 AND l.verdict = 'pass' AND r.verdict IN"
        " ('crashed', 'hung') GROUP BY l.run_id",
        [](RunRow& row, SQLite::Statement& q) {
            const std::int64_t n = q.getColumn(1).getInt64();
            row.flags.push_back(fmt::format("{} of the cases that pass crashed or hung in another attempt", n));
        });
    for (RunRow& row : rows) {
        if (row.collected >= 0 && row.run.measured && row.collected != row.sum())
            row.flags.push_back(fmt::format("{} collected, but its outcomes add up to {}", row.collected, row.sum()));
        if (!row.finished && row.run.standing == Standing::measured && row.run.kind != "import")
            row.flags.push_back("the run did not end: killed, or still going on");
    }
    return rows;
}

void require_build(Store& store, const std::string& build) {
    SQLite::Statement s(store.database(), "SELECT COUNT(*) FROM build WHERE name = ?");
    s.bind(1, build);
    s.executeStep();
    if (s.getColumn(0).getInt64() > 0) return;
    std::string known;
    SQLite::Statement names(store.database(), "SELECT DISTINCT name FROM build ORDER BY id DESC LIMIT 5");
    while (names.executeStep()) known += (known.empty() ? "" : ", ") + names.getColumn(0).getString();
    throw Error("build", "build: given '" + build + "', expected one of the ledger" +
                             (known.empty() ? ", which has none" : ": " + known + ", .. ('#N' names a run)"));
}

std::vector<RunRow> runs_named(Store& store, std::vector<RunRow> rows, const std::string& word) {
    if (!word.empty() && word[0] == '#') {
        const std::size_t all = rows.size();
        std::erase_if(rows, [&](const RunRow& row) { return "#" + std::to_string(row.id) != word; });
        if (rows.empty())
            throw Error("build",
                        fmt::format("build: given '{}', expected '#' and the number of one of {} runs", word, all));
        return rows;
    }
    constexpr std::string_view kDirty = " (dirty)";
    const bool dirty = word.ends_with(kDirty);
    const std::string name = dirty ? word.substr(0, word.size() - kDirty.size()) : word;
    require_build(store, name);
    std::erase_if(rows, [&](const RunRow& row) { return row.run.build.name != name; });
    // Changes that are in no commit are another build; the plain name means the clean one where there is one.
    const bool clean = std::any_of(rows.begin(), rows.end(), [](const RunRow& row) { return !row.run.build.dirty; });
    if (dirty || clean) std::erase_if(rows, [&](const RunRow& row) { return row.run.build.dirty != dirty; });
    if (rows.empty()) throw Error("build", "build: given '" + word + "', of which the ledger has clean runs alone");
    return rows;
}

std::vector<CaseRow> cases_of(Store& store, std::int64_t run, bool values) {
    std::vector<CaseRow> rows;
    std::map<std::int64_t, std::size_t> by_result;
    SQLite::Statement s(
        store.database(),
        "SELECT t.name, r.verdict, r.reason, r.asserts, r.fingerprint, r.replay, r.follow_on, r.attempt,"
        " r.id FROM result r JOIN test t ON t.id = r.test_id WHERE r.run_id = ?"
        " ORDER BY t.name, r.attempt");
    s.bind(1, run);
    std::int64_t last = 0;
    while (s.executeStep()) {
        CaseRow row;
        row.test = s.getColumn(0).getString();
        row.verdict = verdict_from(s.getColumn(1).getString());
        row.reason = s.getColumn(2).getString();
        row.asserts = s.getColumn(3).getString();
        row.fingerprint = s.getColumn(4).getString();
        row.replay = s.getColumn(5).getString();
        row.follow_on = s.getColumn(6).getInt() != 0;
        const std::int64_t id = s.getColumn(8).getInt64();
        if (row.verdict == Verdict::crashed || row.verdict == Verdict::hung) row.crashes = 1;
        if (!rows.empty() && rows.back().test == row.test) {  // an earlier attempt
            row.attempts += rows.back().attempts;
            row.crashes += rows.back().crashes;
            rows.pop_back();
            by_result.erase(last);
        }
        by_result[last = id] = rows.size();
        rows.push_back(std::move(row));
    }
    if (values) {
        SQLite::Statement m(store.database(),
                            "SELECT m.result_id, m.tensor, m.name, m.source, m.value, m.special, m.bound, m.standing"
                            " FROM measure m JOIN result r ON r.id = m.result_id WHERE r.run_id = ?"
                            " ORDER BY m.result_id, m.tensor, m.name, m.source");
        m.bind(1, run);
        while (m.executeStep()) {
            Value v;
            v.tensor = m.getColumn(1).getString();
            v.name = m.getColumn(2).getString();
            v.source = m.getColumn(3).getString();
            v.value = value_of(m.getColumn(4), m.getColumn(5).getString());
            if (!m.getColumn(6).isNull()) v.limit = m.getColumn(6).getDouble();
            v.standing = standing_from(m.getColumn(7).getString());
            const auto at = by_result.find(m.getColumn(0).getInt64());
            if (at != by_result.end() && at->second < rows.size()) rows[at->second].values.push_back(std::move(v));
        }
    }
    SQLite::Statement e(store.database(),
                        "SELECT t.name FROM expected e JOIN test t ON t.id = e.test_id WHERE e.run_id = ?1"
                        " AND NOT EXISTS (SELECT 1 FROM result r WHERE r.run_id = ?1 AND r.test_id = e.test_id)");
    e.bind(1, run);
    while (e.executeStep()) {
        rows.emplace_back().test = e.getColumn(0).getString();
        rows.back().reason = "expected, and no result came";
    }
    std::stable_sort(rows.begin(), rows.end(), [](const CaseRow& a, const CaseRow& b) { return a.test < b.test; });
    return rows;
}

}  // namespace tidegate::ledger
