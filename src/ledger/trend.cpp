// A measure's history, case by case.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ledger/query.h"
#include "ledger/stats.h"
#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

constexpr int kMostCases = 200;

/// A pattern with * as SQL's LIKE, with \ as its escape.
std::string like(const std::string& pattern) {
    std::string text;
    for (const char c : pattern) {
        if (c == '%' || c == '_' || c == '\\') text += '\\';
        text += c == '*' ? '%' : c;
    }
    return text;
}

}  // namespace

Json trend(Store& store, const std::string& pattern, const std::string& tensor, const std::string& measure) {
    SQLite::Database& db = store.database();
    SQLite::Statement tests(
        db,
        fmt::format("SELECT id, name FROM test WHERE name LIKE ? ESCAPE '\\' ORDER BY name LIMIT {}", kMostCases + 1));
    tests.bind(1, like(pattern));
    std::vector<std::pair<std::int64_t, std::string>> found;
    while (tests.executeStep()) found.emplace_back(tests.getColumn(0).getInt64(), tests.getColumn(1).getString());
    if (found.empty())
        throw Error("case", "case: given '" + pattern + "', expected a case of the ledger (* is anything)");
    Json all;
    all["measure"] = measure, all["tensor"] = tensor.empty() ? "*" : tensor;
    all["cut"] = found.size() > kMostCases;
    if (found.size() > kMostCases) found.pop_back();
    all["cases"] = Json::array();
    SQLite::Statement history(
        db,
        "SELECT n.id, b.name, n.started, r.verdict, r.attempt, m.tensor, m.value, m.special, m.bound, m.source,"
        " m.standing, (SELECT x.value FROM measure x WHERE x.result_id = r.id AND x.tensor = m.tensor AND"
        " x.name = 'nan') FROM result r JOIN run n ON n.id = r.run_id JOIN build b ON b.id = n.build_id"
        " LEFT JOIN measure m ON m.result_id = r.id AND m.name = ?2 AND (?3 = '' OR m.tensor = ?3)"
        " WHERE r.test_id = ?1 ORDER BY n.started, n.id, r.attempt, m.tensor, m.source");
    const double direction = larger_is_better(measure) ? -1 : 1;
    for (const auto& [id, name] : found) {
        history.reset();
        history.bind(1, id);
        history.bind(2, measure);
        history.bind(3, tensor);
        std::map<std::string, Json> rows;  // by tensor
        std::map<std::string, std::vector<double>> values;
        while (history.executeStep()) {
            const std::string verdict = history.getColumn(3).getString();
            const bool lost = verdict == "crashed" || verdict == "hung";
            if (history.getColumn(5).isNull() && !lost) continue;
            const std::string of = history.getColumn(5).isNull() ? tensor : history.getColumn(5).getString();
            Json row = {{"run", history.getColumn(0).getInt64()},
                        {"build", history.getColumn(1).getString()},
                        {"started", history.getColumn(2).getString()},
                        {"verdict", verdict},
                        {"attempt", history.getColumn(4).getInt()}};
            // Attempts of one run are one row, the last; how many crashed is said beside it.
            if (Json& past = rows[of];
                !past.empty() && past.back()["run"] == row["run"] && past.back()["attempt"] != row["attempt"]) {
                row["crashes"] = past.back().value("crashes", 0);
                past.erase(past.size() - 1);
                values[of].pop_back();
            }
            if (lost) row["crashes"] = row.value("crashes", 0) + 1;
            double value = std::nan("");  // a crash and a hang have no number, and rank with NaN: worst
            if (!history.getColumn(5).isNull()) {
                const std::string special = history.getColumn(7).getString();
                value = value_of(history.getColumn(6), special);
                row["value"] = special.empty() ? Json(value) : Json(special);
                if (const double nan = history.getColumn(11).isNull() ? 0 : history.getColumn(11).getDouble();
                    nan > 0) {
                    row["nan_elements"] = nan;  // the number is of the others: it ranks as NaN
                    value = std::nan("");
                }
                row["standing"] = history.getColumn(10).getString();
                if (const std::string source = history.getColumn(9).getString(); !source.empty())
                    row["source"] = source;
                if (!history.getColumn(8).isNull()) {
                    row["limit"] = history.getColumn(8).getDouble();
                    if (std::isfinite(value))
                        row["over_limit_percent"] = distance_percent(value, history.getColumn(8).getDouble());
                }
            } else {
                row["value"] = verdict;
            }
            std::vector<double>& past = values[of];
            if (!past.empty() && std::isfinite(past.back()) && std::isfinite(value) && past.back() != 0) {
                const double percent = 100 * (value - past.back()) / std::fabs(past.back());
                row["change_percent"] = percent;
                if (direction * percent > 1) row["worse"] = true;
            } else if (!past.empty() && std::isfinite(past.back()) && !std::isfinite(value)) {
                row["worse"] = true;
            }
            past.push_back(value);
            rows[of].push_back(std::move(row));
        }
        for (auto& [of, list] : rows) {
            Json one = {{"case", name}, {"tensor", of}, {"history", list}};
            const std::vector<double>& past = values[of];
            if (const auto step = find_step(past)) one["step_at_run"] = list[*step]["run"];
            double best = std::nan("");
            for (const double x : past)
                if (std::isfinite(x) && !(direction * x > direction * best)) best = x;
            if (past.size() >= 2 && std::isfinite(past.back()) && list.back()["verdict"] == "pass" &&
                direction * (past.back() - best) > 0.1 * std::fabs(best))
                one["passing_but_worse_than_best"] = true;
            all["cases"].push_back(std::move(one));
        }
    }
    return all;
}

}  // namespace tidegate::ledger
