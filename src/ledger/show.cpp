// Builds and runs with their counts, what does not add up, and what changed from run to run.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ledger/query.h"
#include "ledger/stats.h"

namespace tidegate::ledger {
namespace {

constexpr int kNamesShown = 5;

bool wanted(const std::vector<std::string>& builds, const std::string& build) {
    return builds.empty() || builds[0][0] == '#' || std::find(builds.begin(), builds.end(), build) != builds.end();
}

std::vector<std::string> names(Store& store, const std::string& sql, std::initializer_list<std::int64_t> ids) {
    SQLite::Statement s(store.database(), sql);
    int at = 1;
    for (const std::int64_t id : ids) s.bind(at++, id);
    std::vector<std::string> list;
    while (s.executeStep()) list.push_back(s.getColumn(0).getString());
    return list;
}

Json json_of(Store& store, const RunRow& row) {
    Json j;
    j["run"] = row.id;
    j["build"] = row.run.build.name;
    if (row.run.build.dirty) j["dirty"] = true;
    j["kind"] = row.run.kind, j["label"] = row.run.label, j["started"] = row.run.started;
    j["machine"] = row.run.machine, j["subject"] = row.run.subject, j["source"] = row.run.source;
    j["gate"] = {{"name", row.run.gate}, {"version", row.run.gate_version}};
    j["standing"] = name_of(row.run.standing);
    j["performance"] = row.run.performance, j["measured"] = row.run.measured, j["finished"] = row.finished;
    j["collected"] = row.collected >= 0 ? row.collected : row.sum();
    j["collected_is"] = row.collected >= 0 ? "given" : row.counted ? "derived" : "counted";
    if (row.unnamed > 0) j["unnamed"] = row.unnamed;
    for (const Verdict v : kVerdicts) j["counts"][v == Verdict::not_run ? "not run" : judge::name_of(v)] = row.count(v);
    j["executable"] = row.sum() - row.count(Verdict::skipped);
    j["failing"] = names(store,
                         fmt::format("SELECT DISTINCT t.name FROM result r JOIN test t ON t.id = r.test_id"
                                     " WHERE r.run_id = ? AND r.verdict IN ('fail', 'crashed', 'hung')"
                                     " AND NOT EXISTS (SELECT 1 FROM result l WHERE l.run_id = r.run_id"
                                     " AND l.test_id = r.test_id AND l.attempt > r.attempt) LIMIT {}",
                                     kNamesShown),
                         {row.id});
    if (!row.run.note.empty()) j["note"] = row.run.note;
    j["flags"] = row.flags;
    return j;
}

/// How a count went from one run to the next of its label, case by case where the cases are known.
Json change_of(Store& store, const RunRow& from, const RunRow& to) {
    Json j;
    const auto collected = [](const RunRow& r) { return r.collected >= 0 ? r.collected : r.sum(); };
    const auto executable = [&](const RunRow& r) { return r.sum() - r.count(Verdict::skipped); };
    j["label"] = to.run.label;
    j["from"] = {{"run", from.id}, {"build", from.run.build.name}, {"collected", collected(from)}};
    j["to"] = {{"run", to.id}, {"build", to.run.build.name}, {"collected", collected(to)}};
    const char* const only =
        "SELECT t.name FROM test t WHERE t.id IN (SELECT test_id FROM result WHERE run_id = ?1 UNION"
        " SELECT test_id FROM expected WHERE run_id = ?1) AND t.id NOT IN (SELECT test_id FROM result"
        " WHERE run_id = ?2 UNION SELECT test_id FROM expected WHERE run_id = ?2) ORDER BY t.name";
    if (from.unnamed == 0 && to.unnamed == 0) {
        j["new"] = names(store, only, {to.id, from.id});
        j["gone"] = names(store, only, {from.id, to.id});
        j["words"] = fmt::format("{} -> {}: {} new, {} gone, by name", collected(from), collected(to), j["new"].size(),
                                 j["gone"].size());
        return j;
    }
    const std::int64_t skipped = to.count(Verdict::skipped) - from.count(Verdict::skipped),
                       more = executable(to) - executable(from);
    j["executable"] = {{"from", executable(from)}, {"to", executable(to)}, {"new", more}, {"standing", "derived"}};
    j["words"] = fmt::format(
        "{} -> {}: skipped {} -> {}, executable {} -> {}; so {} {} {} that run{}, which the record does"
        " not name",
        collected(from), collected(to), from.count(Verdict::skipped), to.count(Verdict::skipped), executable(from),
        executable(to), std::abs(more), more >= 0 ? "new" : "fewer", std::abs(more) == 1 ? "case" : "cases",
        skipped == 0 ? "" : " and others that are skipped");
    return j;
}

/// Whether what a case asserts could fail on a wrong answer: that numbers are finite or shaped says nothing of them.
bool has_anchor(const std::string& asserts) {
    static const std::set<std::string> kNone = {"isfinite", "finite", "shape", "shapes", "dtype", "dtypes",
                                                "no",       "nan",    "crash", "and",    "only",  ""};
    std::string word;
    for (const char c : asserts + " ") {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
            word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        } else {
            if (kNone.count(word) == 0) return true;
            word.clear();
        }
    }
    return false;
}

/// A run's cases by what they assert.
Json asserts_of(Store& store, const RunRow& row) {
    std::map<std::string, std::map<std::string, int>> by;
    std::vector<std::string> hollow;
    bool any_fails = false;
    for (const CaseRow& c : cases_of(store, row.id, false)) {
        if (c.asserts.empty()) continue;
        ++by[c.asserts][judge::name_of(c.verdict)];
        any_fails = any_fails || c.verdict == Verdict::fail;
        if (c.verdict == Verdict::pass && !has_anchor(c.asserts)) hollow.push_back(c.test);
    }
    Json j = Json::array();
    for (const auto& [asserts, counts] : by)
        j.push_back({{"asserts", asserts}, {"anchor", has_anchor(asserts)}, {"counts", counts}});
    if (j.empty()) return j;
    Json all;
    all["run"] = row.id, all["build"] = row.run.build.name;
    all["by"] = j;
    all["passes_without_anchor"] = hollow;
    all["suspect"] = any_fails && !hollow.empty();
    return all;
}

/// A fingerprint with the build's own reading of the kernel suffixes in it.
std::string read_suffixes(Store& store, std::int64_t build, const std::string& fingerprint) {
    SQLite::Statement s(store.database(), "SELECT suffix, meaning FROM bucket WHERE build_id = ? ORDER BY suffix");
    s.bind(1, build);
    std::string read;
    while (s.executeStep()) {
        const std::string suffix = s.getColumn(0).getString();
        const std::size_t at = fingerprint.find(suffix);
        if (at == std::string::npos) continue;
        const std::size_t end = at + suffix.size();
        if (end < fingerprint.size() && std::isalnum(static_cast<unsigned char>(fingerprint[end])) != 0) continue;
        read += (read.empty() ? "" : ", ") + suffix + " = " + s.getColumn(1).getString();
    }
    return read;
}

/// Cases of which an attempt crashed or hung: their attempts in order, over all runs of a build.
Json crashes_of(Store& store, const std::vector<std::string>& builds) {
    SQLite::Statement s(
        store.database(),
        "SELECT b.name, t.name, r.verdict, r.fingerprint, b.id, n.started FROM result r"
        " JOIN run n ON n.id = r.run_id JOIN build b ON b.id = n.build_id JOIN test t ON t.id = r.test_id"
        " WHERE r.follow_on = 0 AND r.verdict NOT IN ('skipped', 'not_run') AND r.test_id IN (SELECT test_id FROM "
        "result WHERE verdict IN ('crashed',"
        " 'hung')) ORDER BY n.started, n.id, r.id");
    struct Row {
        std::string sequence;
        std::int64_t runs = 0, crashes = 0, build = 0;
        std::map<std::string, int> fingerprints;
    };
    std::map<std::pair<std::string, std::string>, Row> rows;
    std::vector<std::pair<std::string, std::string>> order;
    while (s.executeStep()) {
        const std::pair key{s.getColumn(0).getString(), s.getColumn(1).getString()};
        if (!wanted(builds, key.first)) continue;
        if (rows.find(key) == rows.end()) order.push_back(key);
        Row& row = rows[key];
        const std::string verdict = s.getColumn(2).getString();
        const bool crash = verdict == "crashed" || verdict == "hung";
        row.build = s.getColumn(4).getInt64();
        row.sequence += (row.sequence.empty() ? "" : "/") + (verdict == "crashed" ? std::string("crash") : verdict);
        ++row.runs;
        row.crashes += crash ? 1 : 0;
        if (crash) ++row.fingerprints[s.getColumn(3).getString()];
    }
    Json list = Json::array();
    for (const auto& key : order) {
        const Row& row = rows[key];
        const Interval rate = clopper_pearson(row.crashes, row.runs);
        Json j = {
            {"build", key.first}, {"case", key.second},   {"attempts", row.sequence}, {"crashes", row.crashes},
            {"runs", row.runs},   {"rate_low", rate.low}, {"rate_high", rate.high},   {"fingerprints", Json::array()}};
        for (const auto& [print, n] : row.fingerprints)
            j["fingerprints"].push_back(
                {{"words", print}, {"n", n}, {"suffixes", read_suffixes(store, row.build, print)}});
        list.push_back(std::move(j));
    }
    return list;
}

/// Figures of one name that two sources give differently, kept side by side.
Json conflicts_of(Store& store, const std::vector<std::string>& builds) {
    SQLite::Statement s(
        store.database(),
        "SELECT b.name, t.name, m.tensor, m.name, m.source, m.value, m.special, m.standing FROM measure m"
        " JOIN result r ON r.id = m.result_id JOIN run n ON n.id = r.run_id JOIN build b ON b.id = n.build_id"
        " JOIN test t ON t.id = r.test_id WHERE m.result_id IN (SELECT result_id FROM measure WHERE"
        " source <> '') ORDER BY r.id, m.tensor, m.name, m.source");
    std::map<std::string, Json> groups;
    std::vector<std::string> order;
    while (s.executeStep()) {
        if (!wanted(builds, s.getColumn(0).getString())) continue;
        std::string key;
        for (int i = 0; i < 4; ++i) key += s.getColumn(i).getString() + "\n";
        if (groups.find(key) == groups.end()) {
            order.push_back(key);
            groups[key] = {{"build", s.getColumn(0).getString()},
                           {"case", s.getColumn(1).getString()},
                           {"tensor", s.getColumn(2).getString()},
                           {"measure", s.getColumn(3).getString()},
                           {"values", Json::array()}};
        }
        const std::string special = s.getColumn(6).getString();
        groups[key]["values"].push_back({{"value", special.empty() ? Json(s.getColumn(5).getDouble()) : Json(special)},
                                         {"source", s.getColumn(4).getString()},
                                         {"standing", s.getColumn(7).getString()}});
    }
    Json list = Json::array();
    for (const std::string& key : order) {
        const Json& values = groups[key]["values"];
        const bool differ =
            std::any_of(values.begin(), values.end(), [&](const Json& v) { return v["value"] != values[0]["value"]; });
        if (differ) list.push_back(groups[key]);
    }
    return list;
}

/// A run's cases with what there is to say of them.
Json list_of(Store& store, const RunRow& row) {
    Json list = Json::array();
    for (const CaseRow& c : cases_of(store, row.id, false)) {
        Json j = {{"run", row.id}, {"case", c.test}, {"verdict", judge::name_of(c.verdict)}, {"attempts", c.attempts}};
        for (const auto& [key, text] :
             {std::pair{"reason", &c.reason}, {"fingerprint", &c.fingerprint}, {"replay", &c.replay}})
            if (!text->empty()) j[key] = *text;
        if (c.follow_on) j["follow_on"] = true;
        list.push_back(std::move(j));
    }
    return list;
}

}  // namespace

Json show(Store& store, const std::vector<std::string>& builds, bool cases) {
    for (const std::string& name : builds)
        if (name.empty() || name[0] != '#') require_build(store, name);
    std::vector<RunRow> rows = runs_of(store);
    if (!builds.empty()) {
        const auto place = [&](const RunRow& row) {
            return std::find_if(builds.begin(), builds.end(),
                                [&](const std::string& b) {
                                    return b == row.run.build.name || b == "#" + std::to_string(row.id);
                                }) -
                   builds.begin();
        };
        std::erase_if(rows, [&](const RunRow& row) { return place(row) == std::ssize(builds); });
        std::stable_sort(rows.begin(), rows.end(),
                         [&](const RunRow& a, const RunRow& b) { return place(a) < place(b); });
    }
    Json j;
    j["ledger"] = {{"protocol", 1}, {"runs", rows.size()}};
    j["runs"] = Json::array(), j["performance"] = Json::array(), j["changes"] = Json::array();
    Json totals;
    for (const Verdict v : kVerdicts) totals[v == Verdict::not_run ? "not run" : judge::name_of(v)] = 0;
    std::map<std::string, const RunRow*> last;
    std::map<std::string, std::vector<std::string>> chains;
    for (const RunRow& row : rows) {
        j[row.run.performance ? "performance" : "runs"].push_back(json_of(store, row));
        if (row.run.performance || !row.run.measured) continue;
        for (const Verdict v : kVerdicts) {
            Json& total = totals[v == Verdict::not_run ? "not run" : judge::name_of(v)];
            total = total.get<std::int64_t>() + row.count(v);
        }
        const auto before = last.find(row.run.label);
        const auto collected = [](const RunRow& r) { return r.collected >= 0 ? r.collected : r.sum(); };
        if (before != last.end() && collected(*before->second) != collected(row))
            j["changes"].push_back(change_of(store, *before->second, row));
        last[row.run.label] = &row;
        const std::string failures =
            std::to_string(row.count(Verdict::fail) + row.count(Verdict::crashed) + row.count(Verdict::hung));
        std::vector<std::string>& chain = chains[row.run.label];
        if (chain.empty() || chain.back() != failures) chain.push_back(failures);
    }
    j["totals"] = totals;
    for (const auto& [label, chain] : chains) j["failures_by_run"][label] = fmt::format("{}", fmt::join(chain, " -> "));
    SQLite::Statement unique(store.database(),
                             "SELECT b.name, COUNT(DISTINCT r.test_id) FROM result r JOIN run n ON n.id = r.run_id"
                             " JOIN build b ON b.id = n.build_id WHERE r.verdict IN ('fail', 'crashed', 'hung')"
                             " AND n.performance = 0 GROUP BY b.name");
    j["unique_failures"] = Json::object();
    while (unique.executeStep())
        if (wanted(builds, unique.getColumn(0).getString()))
            j["unique_failures"][unique.getColumn(0).getString()] = unique.getColumn(1).getInt64();
    j["crashes"] = crashes_of(store, builds);
    j["conflicts"] = conflicts_of(store, builds);
    if (cases) {
        j["cases"] = Json::array();
        for (const RunRow& row : rows)
            for (Json& c : list_of(store, row)) j["cases"].push_back(std::move(c));
    }
    j["asserts"] = Json::array();
    if (builds.size() == 1)
        for (const RunRow& row : rows)
            if (Json a = asserts_of(store, row); !a.empty()) j["asserts"].push_back(std::move(a));
    return j;
}

}  // namespace tidegate::ledger
