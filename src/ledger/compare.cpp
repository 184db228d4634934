// Two builds side by side.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "ledger/query.h"
#include "ledger/stats.h"
#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

int rank(Verdict v) {
    switch (v) {
        case Verdict::pass:
            return 0;
        case Verdict::blind:
        case Verdict::skipped:
            return 1;
        case Verdict::not_run:
            return 2;
        case Verdict::fail:
            return 3;
        default:
            return 4;
    }
}

/// The measured runs of a label, oldest first; performance runs are labels of their own.
std::map<std::string, std::vector<RunRow>> by_label(const std::vector<RunRow>& rows) {
    std::map<std::string, std::vector<RunRow>> labels;
    for (const RunRow& row : rows)
        if (row.run.measured) labels[row.run.label + (row.run.performance ? " (performance)" : "")].push_back(row);
    return labels;
}

/// The cases of several runs of one label: of a case that more than one has, the newest, and all of its attempts.
std::map<std::string, CaseRow> cases_of_all(Store& store, const std::vector<RunRow>& runs) {
    std::map<std::string, CaseRow> all;
    for (const RunRow& run : runs)
        for (CaseRow& c : cases_of(store, run.id, true)) {
            const auto before = all.find(c.test);
            if (before != all.end()) {
                if (c.verdict == Verdict::not_run && before->second.verdict != Verdict::not_run) continue;
                c.attempts += before->second.attempts;
                c.crashes += before->second.crashes;
                if (c.values.empty()) c.values = before->second.values;
            }
            all[c.test] = std::move(c);
        }
    return all;
}

/// What is counted of the runs of a label: its cases, or where not all are named what the newest run counts.
std::map<Verdict, std::int64_t> counts_of(const std::vector<RunRow>& runs,
                                          const std::map<std::string, CaseRow>& cases) {
    std::map<Verdict, std::int64_t> counts;
    const RunRow& newest = runs.back();
    if (newest.unnamed > 0) {
        for (const Verdict v : kVerdicts) counts[v] = newest.count(v);
    } else {
        for (const auto& [test, c] : cases) ++counts[c.verdict];
    }
    return counts;
}

std::string words_of(const std::vector<RunRow>& runs, std::string Run::*field) {
    std::string words;
    for (const RunRow& row : runs)
        if (words.find(row.run.*field) == std::string::npos) words += (words.empty() ? "" : ", ") + row.run.*field;
    return words;
}

struct Difference {
    Json values = Json::array();
    bool worse = false;
};

/// Numbers of one case in two runs that are not the same.
Difference values_between(const CaseRow& a, const CaseRow& b, bool performance) {
    Difference d;
    for (const Value& x : a.values)
        for (const Value& y : b.values) {
            if (x.tensor != y.tensor || x.name != y.name || x.source != y.source) continue;
            const bool same = x.value == y.value || (std::isnan(x.value) && std::isnan(y.value));
            if (same) continue;
            Json j = {{"tensor", x.tensor}, {"measure", x.name}, {"a", number_of(x.value)}, {"b", number_of(y.value)}};
            const double sign = larger_is_better(x.name) ? -1 : 1;
            const bool finite = std::isfinite(x.value) && std::isfinite(y.value);
            double percent = 0;
            if (finite && x.value != 0) {
                percent = 100 * (y.value - x.value) / std::fabs(x.value);
                j["percent"] = percent;
            }
            if (finite && x.limit) j["a_over_limit_percent"] = distance_percent(x.value, *x.limit);
            if (finite && y.limit) j["b_over_limit_percent"] = distance_percent(y.value, *y.limit);
            // Only a number that a gate limits can get worse; others are what it is made of, or timings, which vary.
            const double tolerance = b.verdict == Verdict::pass ? 10 : 1;
            const bool worse = !performance && (x.limit || y.limit) &&
                               ((std::isfinite(x.value) && !std::isfinite(y.value)) || sign * percent > tolerance ||
                                (x.value == 0 && sign * y.value > 0));
            if (worse) j["worse"] = true;
            d.worse = d.worse || worse;
            d.values.push_back(std::move(j));
        }
    return d;
}

std::map<std::pair<std::string, std::string>, std::string> plan_of(Store& store, const std::vector<RunRow>& rows) {
    std::map<std::pair<std::string, std::string>, std::string> plan;
    for (const RunRow& row : rows) {
        SQLite::Statement s(store.database(), "SELECT what, name, value FROM plan WHERE run_id = ?");
        s.bind(1, row.id);
        while (s.executeStep())
            plan[{s.getColumn(0).getString(), s.getColumn(1).getString()}] = s.getColumn(2).getString();
    }
    return plan;
}

std::optional<double> number_in(const std::string& text) {
    double x = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return x;
}

Json plans_between(Store& store, const std::vector<RunRow>& a, const std::vector<RunRow>& b) {
    Json list = Json::array();
    const auto of_a = plan_of(store, a), of_b = plan_of(store, b);
    for (const auto& [key, value] : of_a) {
        const auto other = of_b.find(key);
        if (other == of_b.end() || other->second == value) continue;
        Json j = {{"what", key.first}, {"name", key.second}, {"a", value}, {"b", other->second}};
        const auto x = number_in(value), y = number_in(other->second);
        if (x && y && *y != 0 && *x != 0) {
            j["difference"] = *y - *x;
            j["percent"] = 100 * (*y - *x) / *x;                // b against a
            j["percent_the_other_way"] = 100 * (*x - *y) / *y;  // a against b
        }
        list.push_back(std::move(j));
    }
    return list;
}

Json buckets_between(Store& store, const std::vector<RunRow>& a, const std::vector<RunRow>& b) {
    const auto of = [&](const std::vector<RunRow>& rows) {
        std::map<std::string, std::string> table;
        for (const RunRow& row : rows) {
            SQLite::Statement s(store.database(), "SELECT suffix, meaning FROM bucket WHERE build_id = ?");
            s.bind(1, row.build_id);
            while (s.executeStep()) table[s.getColumn(0).getString()] = s.getColumn(1).getString();
        }
        return table;
    };
    Json list = Json::array();
    const auto of_a = of(a), of_b = of(b);
    for (const auto& [suffix, meaning] : of_a) {
        const auto other = of_b.find(suffix);
        if (other == of_b.end() || other->second != meaning)
            list.push_back({{"suffix", suffix}, {"a", meaning}, {"b", other == of_b.end() ? "none" : other->second}});
    }
    for (const auto& [suffix, meaning] : of_b)
        if (of_a.find(suffix) == of_a.end()) list.push_back({{"suffix", suffix}, {"a", "none"}, {"b", meaning}});
    return list;
}

}  // namespace

Json compare(Store& store, const std::string& a, const std::string& b) {
    const std::vector<RunRow> all = runs_of(store), rows_a = runs_named(store, all, a),
                              rows_b = runs_named(store, all, b);
    auto of_a = by_label(rows_a), of_b = by_label(rows_b);
    if (a[0] == '#' && b[0] == '#' && of_a.size() == 1 && of_b.size() == 1 &&
        of_a.begin()->first != of_b.begin()->first) {
        auto node = of_b.extract(of_b.begin());  // two runs that were named are compared whatever their labels
        node.key() = of_a.begin()->first;
        of_b.insert(std::move(node));
    }
    Json j;
    j["a"] = a, j["b"] = b;
    bool worse = false;
    j["runs"] = Json::array(), j["changed"] = Json::array(), j["same_verdict_other_numbers"] = Json::array();
    j["new"] = Json::array(), j["gone"] = Json::array();
    std::map<std::string, bool> numbers_differ;
    for (const auto& [label, runs_a] : of_a) {
        const auto found = of_b.find(label);
        if (found == of_b.end()) continue;
        const std::vector<RunRow>& runs_b = found->second;
        const bool named_a = runs_a.back().unnamed == 0, named_b = runs_b.back().unnamed == 0;
        auto cases_a = cases_of_all(store, runs_a), cases_b = cases_of_all(store, runs_b);
        auto counts_a = counts_of(runs_a, cases_a), counts_b = counts_of(runs_b, cases_b);
        Json counts, ids_a = Json::array(), ids_b = Json::array();
        for (const Verdict v : kVerdicts)
            if (counts_a[v] + counts_b[v] > 0)
                counts[v == Verdict::not_run ? "not run" : judge::name_of(v)] = {counts_a[v], counts_b[v]};
        for (const RunRow& row : runs_a) ids_a.push_back(row.id);
        for (const RunRow& row : runs_b) ids_b.push_back(row.id);
        Json pair = {{"label", label}, {"a", ids_a}, {"b", ids_b}, {"counts", counts}};
        const std::string who_a = words_of(runs_a, &Run::subject), who_b = words_of(runs_b, &Run::subject);
        if (who_a != who_b) pair["subjects"] = {who_a, who_b};
        j["runs"].push_back(std::move(pair));
        if (!(named_a && named_b))
            for (const Verdict v : kVerdicts) worse = worse || (rank(v) >= 2 && counts_b[v] > counts_a[v]);
        for (const auto& [test, y] : cases_b)
            if (named_a && cases_a.find(test) == cases_a.end()) {
                j["new"].push_back(test);
                worse = worse || rank(y.verdict) >= 3;
            }
        for (const auto& [test, x] : cases_a) {
            const auto other = cases_b.find(test);
            if (other == cases_b.end()) {
                if (named_b) j["gone"].push_back(test);
                continue;
            }
            const CaseRow& y = other->second;
            Difference d = values_between(x, y, runs_a.back().run.performance);
            const bool attempts = x.crashes * y.attempts != y.crashes * x.attempts;
            if (x.verdict == y.verdict && d.values.empty() && !attempts) continue;
            bool got_worse = d.worse || rank(y.verdict) > rank(x.verdict);
            numbers_differ[test] = !d.values.empty();
            Json row = {
                {"case", test}, {"label", label}, {"a", judge::name_of(x.verdict)}, {"b", judge::name_of(y.verdict)}};
            if (attempts) {
                const double p = fisher_exact(x.crashes, x.attempts, y.crashes, y.attempts);
                row["crashes"] = {{"a", x.crashes},
                                  {"a_attempts", x.attempts},
                                  {"b", y.crashes},
                                  {"b_attempts", y.attempts},
                                  {"p", p}};
                got_worse = got_worse || (y.crashes * x.attempts > x.crashes * y.attempts && p < 0.05);
            }
            row["worse"] = got_worse, row["values"] = d.values;
            if (!y.reason.empty()) row["reason"] = y.reason;
            if (!y.replay.empty()) row["replay"] = y.replay;
            worse = worse || got_worse;
            j[x.verdict != y.verdict || attempts ? "changed" : "same_verdict_other_numbers"].push_back(std::move(row));
        }
    }
    for (const auto& [side, mine, other] : {std::tuple{"only_in_a", &of_a, &of_b}, {"only_in_b", &of_b, &of_a}}) {
        j[side] = Json::array();
        for (const auto& [label, runs] : *mine)
            if (other->find(label) == other->end()) j[side].push_back(label);
    }
    if (j["runs"].empty())
        throw Error("build",
                    "build: '" + a + "' and '" + b + "' have no measured run of one label: nothing to compare");
    j["claims"] = Json::array();
    SQLite::Statement s(store.database(),
                        "SELECT test, words, source FROM claim WHERE (build = ?1 AND other = ?2) OR"
                        " (build = ?2 AND other = ?1) ORDER BY id");
    s.bind(1, a);
    s.bind(2, b);
    while (s.executeStep()) {
        const std::string test = s.getColumn(0).getString();
        j["claims"].push_back({{"case", test},
                               {"words", s.getColumn(1).getString()},
                               {"source", s.getColumn(2).getString()},
                               {"numbers_differ", numbers_differ[test]}});
    }
    j["plans"] = plans_between(store, rows_a, rows_b);
    j["buckets"] = buckets_between(store, rows_a, rows_b);
    j["worse"] = worse;
    return j;
}

}  // namespace tidegate::ledger
