#include "cli/ledger_print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/report.h"

namespace tidegate::cli {
namespace {

using ledger::Json;

std::string word(const Json& x) {
    if (x.is_string()) {  // names come from others: nothing of them moves the cursor
        std::string text = x.get<std::string>();
        for (char& c : text)
            if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
        return text;
    }
    if (x.is_number_float()) return fmt::format("{:.4g}", x.get<double>());
    return x.dump();
}

std::string percent(const Json& row, const char* key) {
    return row.contains(key) && row[key].is_number() ? fmt::format("{:+.2f} %", row[key].get<double>()) : "";
}

std::string join(const Json& list, const char* with = ", ") {
    std::string text;
    for (const Json& x : list) text += (text.empty() ? "" : with) + word(x);
    return text;
}

void print_runs(const Json& runs, std::FILE* to) {
    Table table({"run", "build", "started", "subject", "label", "collected", "pass", "fail", "blind", "crashed", "hung",
                 "skipped", "not run", "failing"});
    for (const Json& r : runs) {
        std::vector<std::string> row = {"#" + word(r["run"]),
                                        word(r["build"]) + (r.value("dirty", false) ? " (dirty)" : ""),
                                        word(r["started"]), word(r["subject"]), word(r["label"])};
        if (!r["measured"].get<bool>()) {
            row.insert(row.end(), {"not measured", "", "", "", "", "", "", ""});
        } else {
            row.push_back(word(r["collected"]) + (r["collected_is"] == "derived" ? " (derived)" : ""));
            for (const char* v : {"pass", "fail", "blind", "crashed", "hung", "skipped", "not run"})
                row.push_back(word(r["counts"][v]));
        }
        std::string last = r["failing"].empty() ? "" : word(r["failing"][0]);
        std::int64_t failing = 0;
        for (const char* v : {"fail", "crashed", "hung"}) failing += r["counts"][v].get<std::int64_t>();
        if (!last.empty() && failing > 1) last += fmt::format(" and {} more", failing - 1);
        if (r.contains("note")) last += (last.empty() ? "" : "; ") + word(r["note"]);
        row.push_back(std::move(last));
        table.add(std::move(row));
    }
    table.print(to);
    for (const Json& r : runs)
        for (const Json& flag : r["flags"]) fmt::print(to, "  flag: run #{}: {}\n", word(r["run"]), word(flag));
}

}  // namespace

void print_show(const Json& a, std::FILE* to) {
    print_runs(a["runs"], to);
    if (!a["performance"].empty()) {
        fmt::print(to, "\nperformance, kept apart\n");
        print_runs(a["performance"], to);
    }
    std::string totals;
    for (const auto& [verdict, n] : a["totals"].items())
        totals += fmt::format("{}{} {}", totals.empty() ? "" : ", ", verdict, n.get<std::int64_t>());
    fmt::print(to, "\nall runs: {}\n", totals);
    if (!a["unique_failures"].empty()) {
        std::string list;
        for (const auto& [build, n] : a["unique_failures"].items())
            list += fmt::format("{}{} {}", list.empty() ? "" : ", ", build, n.get<std::int64_t>());
        fmt::print(to, "cases that ever failed, by build: {}\n", list);
    }
    if (a.contains("failures_by_run"))
        for (const auto& [label, chain] : a["failures_by_run"].items())
            fmt::print(to, "failures, run by run{}: {}\n", label.empty() ? "" : " of " + label, word(chain));
    for (const Json& c : a["changes"]) {
        fmt::print(to, "cases, {} to {}{}: {}\n", word(c["from"]["build"]), word(c["to"]["build"]),
                   word(c["label"]).empty() ? "" : " of " + word(c["label"]), word(c["words"]));
        for (const char* side : {"new", "gone"})
            if (c.contains(side) && !c[side].empty()) {
                const std::size_t more = c[side].size() > 5 ? c[side].size() - 5 : 0;
                Json first = Json::array();
                for (std::size_t i = 0; i + more < c[side].size(); ++i) first.push_back(c[side][i]);
                fmt::print(to, "  {}: {}{}\n", side, join(first), more > 0 ? fmt::format(" and {} more", more) : "");
            }
    }
    if (!a["crashes"].empty()) {
        fmt::print(to, "\ncrashes\n");
        Table table({"build", "case", "attempts", "crashes", "rate, 95 %", "fingerprint"});
        for (const Json& c : a["crashes"]) {
            std::string prints;
            for (const Json& f : c["fingerprints"]) {
                prints += (prints.empty() ? "" : "; ") + word(f["words"]);
                if (!word(f["suffixes"]).empty()) prints += " (" + word(f["suffixes"]) + " in this build)";
            }
            table.add(
                {word(c["build"]), word(c["case"]), word(c["attempts"]), word(c["crashes"]) + "/" + word(c["runs"]),
                 fmt::format("{:.3f} to {:.3f}", c["rate_low"].get<double>(), c["rate_high"].get<double>()), prints});
        }
        table.print(to);
    }
    for (const Json& c : a["conflicts"]) {
        std::string values;
        for (const Json& v : c["values"])
            values += fmt::format("{}{} ({}{})", values.empty() ? "" : ", ", word(v["value"]), word(v["standing"]),
                                  word(v["source"]).empty() ? "" : ": " + word(v["source"]));
        fmt::print(to, "flag: {} {} {}: sources differ: {}\n", word(c["build"]), word(c["case"]), word(c["measure"]),
                   values);
    }
    if (a.contains("cases")) {
        fmt::print(to, "\n");
        Table table({"run", "case", "verdict", "attempts", "reason"});
        for (const Json& c : a["cases"]) {
            std::string reason = c.value("reason", std::string());
            reason = reason.substr(0, std::min(reason.find('\n'), std::size_t{100}));
            table.add({"#" + word(c["run"]), word(c["case"]), word(c["verdict"]), word(c["attempts"]), reason});
        }
        table.print(to);
    }
    for (const Json& run : a["asserts"]) {
        fmt::print(to, "\nrun #{}, by what its cases assert\n", word(run["run"]));
        Table table({"asserts", "anchor", "outcomes"});
        for (const Json& row : run["by"]) {
            std::string outcomes;
            for (const auto& [verdict, n] : row["counts"].items())
                outcomes += fmt::format("{}{} {}", outcomes.empty() ? "" : ", ", verdict, n.get<int>());
            table.add({word(row["asserts"]), row["anchor"].get<bool>() ? "yes" : "none", outcomes});
        }
        table.print(to);
        if (run["suspect"].get<bool>())
            fmt::print(to, "flag: passes that no value anchors, in a run where others fail: {}\n",
                       join(run["passes_without_anchor"]));
    }
}

void print_trend(const Json& a, std::FILE* to) {
    for (const Json& c : a["cases"]) {
        fmt::print(to, "{}  {} {}\n", word(c["case"]), word(c["tensor"]), word(a["measure"]));
        Table table({"run", "build", "started", "case", "value", "limit", "over (+) or under (-)", "change", "note"});
        for (const Json& r : c["history"]) {
            std::string note = r.value("worse", false) ? "worse" : "";
            if (c.contains("step_at_run") && c["step_at_run"] == r["run"]) note += note.empty() ? "step" : ", step";
            if (r.contains("source"))
                note += (note.empty() ? "" : ", ") + word(r["standing"]) + ": " + word(r["source"]);
            table.add({"#" + word(r["run"]), word(r["build"]), word(r["started"]), word(r["verdict"]), word(r["value"]),
                       r.contains("limit") ? word(r["limit"]) : "", percent(r, "over_limit_percent"),
                       percent(r, "change_percent"), note});
        }
        table.print(to);
        if (c.value("passing_but_worse_than_best", false))
            fmt::print(to, "  it passes, and is more than 10 % worse than its best\n");
    }
    if (a["cases"].empty()) fmt::print(to, "no case of that name has the measure {}\n", word(a["measure"]));
    if (a["cut"].get<bool>()) fmt::print(to, "more cases than are shown: a narrower pattern\n");
}

namespace {

/// Of a case's numbers the one that says most: the worst that a gate limits, else the first that changed most.
const Json* telling(const Json& values) {
    const Json* best = nullptr;
    const auto weight = [](const Json& v) {
        return (v.contains("a_over_limit_percent") || v.contains("b_over_limit_percent") ? 1e30 : 0.0) +
               (v.contains("percent") ? std::min(std::fabs(v["percent"].get<double>()), 1e29) : 0.0);
    };
    for (const Json& v : values)
        if (best == nullptr || weight(v) > weight(*best)) best = &v;
    return best;
}

std::string names_of(const Json& list) {
    constexpr std::size_t kShown = 5;
    std::string text;
    for (std::size_t i = 0; i < std::min(kShown, list.size()); ++i) text += (i > 0 ? ", " : "") + word(list[i]);
    return list.size() > kShown ? text + fmt::format(" and {} more", list.size() - kShown) : text;
}

/// a -> b as a factor where the percentage would be no number to read.
std::string change_of(const Json& v) {
    if (!v.contains("percent")) return "";
    const double percent = v["percent"].get<double>();
    return std::fabs(percent) < 1000 ? fmt::format("{:+.2f} %", percent) : fmt::format("{:.3g} x", 1 + percent / 100);
}

void print_rows(const Json& rows, const char* title, bool details, std::FILE* to) {
    if (rows.empty()) return;
    fmt::print(to, "\n{}\n", title);
    std::vector<const Json*> order;
    for (const Json& c : rows) order.push_back(&c);
    std::stable_sort(order.begin(), order.end(), [](const Json* a, const Json* b) {
        return (*a)["worse"].get<bool>() > (*b)["worse"].get<bool>();
    });
    Table table({"", "case", "a", "b", "measure", "in a", "in b", "change", "b over (+) or under (-) its limit"});
    for (const Json* c : order) {
        std::string mark = (*c)["worse"].get<bool>() ? "worse" : "", name = word((*c)["case"]), from = word((*c)["a"]),
                    into = word((*c)["b"]);
        if (c->contains("crashes")) {
            const Json& k = (*c)["crashes"];
            table.add({mark, name, from, into, "crashed or hung", word(k["a"]) + "/" + word(k["a_attempts"]),
                       word(k["b"]) + "/" + word(k["b_attempts"]), fmt::format("p = {:.2g}", k["p"].get<double>()),
                       ""});
            mark = name = from = into = "";
        }
        const Json* const one = telling((*c)["values"]);
        for (const Json& v : (*c)["values"]) {
            if (!details && &v != one && !v.value("worse", false)) continue;
            const std::string tensor = word(v["tensor"]);
            table.add({mark, name, from, into, tensor + (tensor.empty() ? "" : " ") + word(v["measure"]), word(v["a"]),
                       word(v["b"]), change_of(v), percent(v, "b_over_limit_percent")});
            mark = name = from = into = "";
        }
        if (!name.empty()) table.add({mark, name, from, into, "", "", "", "", ""});
    }
    table.print(to);
}

}  // namespace

void print_compare(const Json& a, bool details, std::FILE* to) {
    fmt::print(to, "a: {}   b: {}\n", word(a["a"]), word(a["b"]));
    for (const Json& r : a["runs"]) {
        std::string counts;
        for (const auto& [verdict, pair] : r["counts"].items())
            counts += fmt::format("{}{} {} -> {}", counts.empty() ? "" : ", ", verdict, pair[0].get<std::int64_t>(),
                                  pair[1].get<std::int64_t>());
        fmt::print(to, "{}run #{} and #{}: {}\n", word(r["label"]).empty() ? "" : word(r["label"]) + ": ",
                   join(r["a"], ", #"), join(r["b"], ", #"), counts);
        if (r.contains("subjects"))
            fmt::print(to, "  flag: other subjects: {} in a, {} in b\n", word(r["subjects"][0]),
                       word(r["subjects"][1]));
    }
    for (const auto& [key, side] : {std::pair{"only_in_a", "a"}, {"only_in_b", "b"}})
        if (!a[key].empty()) fmt::print(to, "only {} has runs of: {}\n", side, names_of(a[key]));
    print_rows(a["changed"], "changed", details, to);
    print_rows(a["same_verdict_other_numbers"], "the same verdict, other numbers", details, to);
    if (!details && !(a["changed"].empty() && a["same_verdict_other_numbers"].empty()))
        fmt::print(to, "  one number a case: --details prints all\n");
    if (!a["new"].empty()) fmt::print(to, "new in b: {}\n", names_of(a["new"]));
    if (!a["gone"].empty()) fmt::print(to, "gone in b: {}\n", names_of(a["gone"]));
    for (const Json& c : a["claims"])
        fmt::print(to, "{}the record ({}) says of {}: \"{}\"{}\n", c["numbers_differ"].get<bool>() ? "flag: " : "",
                   word(c["source"]), word(c["case"]), word(c["words"]),
                   c["numbers_differ"].get<bool>() ? "; its numbers differ" : "");
    for (const Json& p : a["plans"])
        fmt::print(to, "plan {} {}: {} -> {}{}\n", word(p["what"]), word(p["name"]), word(p["a"]), word(p["b"]),
                   p.contains("percent")
                       ? fmt::format(" ({:+.6g}; b against a {}, a against b {})", p["difference"].get<double>(),
                                     percent(p, "percent"), percent(p, "percent_the_other_way"))
                       : "");
    for (const Json& b : a["buckets"])
        fmt::print(to, "bucket suffix {}: {} in a, {} in b\n", word(b["suffix"]), word(b["a"]), word(b["b"]));
    fmt::print(to, "{}\n", a["worse"].get<bool>() ? "something got worse" : "nothing got worse");
}

}  // namespace tidegate::cli
