#include "ledger/import_csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

[[noreturn]] void fail(const std::string& source, std::size_t line, const std::string& what) {
    throw Error("import", "import: '" + source + "', line " + std::to_string(line) + ": " + what);
}

/// RFC 4180: fields in quotes may hold commas, quotes (doubled) and ends of lines.
std::vector<std::pair<std::size_t, std::vector<std::string>>> split(const std::string& text,
                                                                    const std::string& source) {
    std::vector<std::pair<std::size_t, std::vector<std::string>>> rows;
    std::vector<std::string> row;
    std::string field;
    bool quoted = false, any = false;
    std::size_t line = 1, start = 1;
    const auto end_row = [&] {
        row.push_back(std::move(field));
        field.clear();
        if (row.size() > 1 || !row[0].empty()) rows.emplace_back(start, std::move(row));
        row.clear();
        any = false;
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (!any) start = line;
        any = true;
        if (c == '\n') ++line;
        if (quoted) {
            if (c != '"') {
                field += c;
            } else if (i + 1 < text.size() && text[i + 1] == '"') {
                field += text[++i];
            } else {
                quoted = false;
            }
        } else if (c == '"' && field.empty()) {
            quoted = true;
        } else if (c == ',') {
            row.push_back(std::move(field));
            field.clear();
        } else if (c == '\n') {
            end_row();
        } else if (c != '\r') {
            field += c;
        }
    }
    if (quoted) fail(source, start, "a quoted field has no end");
    if (any) end_row();
    return rows;
}

class Row {
public:
    Row(const std::vector<std::string>& heading, const std::vector<std::string>& fields, const std::string& source,
        std::size_t line)
        : source_(source), line_(line) {
        if (fields.size() != heading.size())
            fail(source, line,
                 "given " + std::to_string(fields.size()) + " fields, expected " + std::to_string(heading.size()) +
                     " as in the heading");
        for (std::size_t i = 0; i < fields.size(); ++i) fields_[heading[i]] = fields[i];
    }
    std::string text(const std::string& key) const {
        const auto i = fields_.find(key);
        return i == fields_.end() ? "" : i->second;
    }
    std::string need(const std::string& key) const {
        std::string x = text(key);
        if (x.empty()) fail(source_, line_, key + ": given nothing, expected a value");
        return x;
    }
    double number(const std::string& key) const {
        const std::string x = need(key);
        if (x == "nan") return std::nan("");
        if (x == "inf" || x == "-inf") return x == "inf" ? HUGE_VAL : -HUGE_VAL;
        double value = 0;
        const auto [end, error] = std::from_chars(x.data(), x.data() + x.size(), value);
        if (error != std::errc() || end != x.data() + x.size())
            fail(source_, line_, key + ": given '" + x + "', expected a number");
        return value;
    }
    std::int64_t count(const std::string& key) const {
        const double x = number(key);
        if (!(x >= 0) || x != std::floor(x) || x > 1e15)
            fail(source_, line_, key + ": given '" + text(key) + "', expected a count");
        return static_cast<std::int64_t>(x);
    }
    bool yes(const std::string& key, bool otherwise) const {
        const std::string x = text(key);
        if (x.empty()) return otherwise;
        if (x != "yes" && x != "no") fail(source_, line_, key + ": given '" + x + "', expected yes or no");
        return x == "yes";
    }
    const std::map<std::string, std::string>& fields() const { return fields_; }
    std::size_t line() const { return line_; }

private:
    std::map<std::string, std::string> fields_;
    const std::string& source_;
    std::size_t line_;
};

/// Words of counts as records have them, and the verdicts they count.
constexpr std::pair<const char*, Verdict> kCounts[] = {{"passed", Verdict::pass},    {"failed", Verdict::fail},
                                                       {"blind", Verdict::blind},    {"crashed", Verdict::crashed},
                                                       {"hung", Verdict::hung},      {"skipped", Verdict::skipped},
                                                       {"not_run", Verdict::not_run}};

class Import {
public:
    Import(Store& store, const Run& base, const std::string& source) : store_(store), base_(base), source_(source) {}

    void counts(const Row& row) {
        const std::int64_t id = run(row);
        const std::string from = row.text("source");
        const auto add = [&](const char* column, const std::string& word) {
            if (!row.text(column).empty()) store_.add_count(id, word, row.count(column), from, standing(row));
        };
        bool any = !row.text("collected").empty();
        for (const auto& [column, verdict] : kCounts) any = any || !row.text(column).empty();
        if (any != row.yes("measured", true))
            fail(source_, row.line(), any ? "measured: given no, and counts" : "expected counts, or measured: no");
        add("collected", "collected");
        for (const auto& [column, verdict] : kCounts) add(column, judge::name_of(verdict));
    }

    void cases(const Row& row) {
        Result r;
        const std::int64_t id = run(row);
        r.test = row.need("case");
        r.verdict = verdict_from(row.need("verdict"));
        r.reason = row.text("reason"), r.asserts = row.text("asserts"), r.fingerprint = row.text("fingerprint");
        if (!row.text("seconds").empty()) r.seconds = row.number("seconds");
        r.attempt = ++attempts_[{id, r.test}];
        r.follow_on = row.yes("follow_on", false);
        for (const auto& [key, value] : row.fields())
            if (key.rfind("measure:", 0) == 0 && !value.empty()) {
                Measure m;
                m.name = key.substr(8), m.value = row.number(key), m.standing = standing(row);
                if (!row.text("limit:" + m.name).empty()) m.limit = row.number("limit:" + m.name);
                r.measures.push_back(std::move(m));
            }
        store_.add(id, r);
    }

    void figures(const Row& row) {
        Measure m;
        m.tensor = row.text("tensor"), m.name = row.need("measure"), m.value = row.number("value");
        if (!row.text("limit").empty()) m.limit = row.number("limit");
        m.unit = row.text("unit"), m.source = row.text("source"), m.standing = standing(row);
        store_.add_measure(run(row), row.need("case"), m);
    }

    void plan(const Row& row) { store_.add_plan(run(row), row.need("what"), row.need("name"), row.need("value")); }
    void buckets(const Row& row) {
        Build build = base_.build;
        build.name = name_of_build(row);
        store_.add_bucket(build, row.need("suffix"), row.need("meaning"));
    }
    void claims(const Row& row) {
        store_.add_claim(name_of_build(row), row.text("other"), row.text("case"), row.need("words"),
                         row.text("source"));
    }

private:
    std::string name_of_build(const Row& row) const {
        return row.text("build").empty() && !base_.build.name.empty() ? base_.build.name : row.need("build");
    }
    Standing standing(const Row& row) const {
        return row.text("standing").empty() ? base_.standing : standing_from(row.text("standing"));
    }
    /// The run that a row is of: the one that is there, else a new one.
    std::int64_t run(const Row& row) {
        Run r = base_;
        r.build.name = name_of_build(row);
        for (const auto& [key, to] : {std::pair{"label", &r.label},
                                      {"started", &r.started},
                                      {"machine", &r.machine},
                                      {"subject", &r.subject},
                                      {"note", &r.note}})
            if (const std::string x = row.text(key); !x.empty()) *to = x;
        r.performance = row.yes("performance", r.performance);
        r.measured = row.yes("measured", r.measured);
        const std::string key =
            r.build.name + "\n" + r.label + "\n" + r.started + (r.performance ? "\nperformance" : "");
        std::int64_t& id = runs_[key];
        if (id == 0) id = store_.imported_run(r);
        if (id == 0) {
            r.source = source_;
            id = store_.begin(r, {});
            store_.finish(id, 0);
        }
        return id;
    }

    Store& store_;
    const Run& base_;
    const std::string& source_;
    std::map<std::pair<std::int64_t, std::string>, int> attempts_;
    std::map<std::string, std::int64_t> runs_;
};

struct Kind {
    const char* column;  ///< the column that tells it from the others
    void (Import::*take)(const Row&);
    const char* needs;
};
constexpr Kind kKinds[] = {
    {"suffix", &Import::buckets, "build, suffix, meaning"},       {"words", &Import::claims, "build, words"},
    {"measure", &Import::figures, "build, case, measure, value"}, {"what", &Import::plan, "build, what, name, value"},
    {"verdict", &Import::cases, "build, case, verdict"},          {"passed", &Import::counts, "build, passed"}};

constexpr std::string_view kColumns[] = {
    "build",  "started", "label",   "performance", "machine", "subject", "note",    "standing",    "source",
    "passed", "failed",  "blind",   "crashed",     "hung",    "skipped", "not_run", "collected",   "measured",
    "case",   "verdict", "asserts", "reason",      "seconds", "measure", "value",   "fingerprint", "follow_on",
    "tensor", "limit",   "unit",    "what",        "name",    "suffix",  "meaning", "words",       "other"};

}  // namespace

std::int64_t import_csv(Store& store, const Run& base, const std::string& text, const std::string& source) {
    constexpr std::string_view kMark = "\xEF\xBB\xBF";  // spreadsheets begin UTF-8 with it
    const auto rows = split(text.starts_with(kMark) ? text.substr(kMark.size()) : text, source);
    if (rows.empty()) fail(source, 1, "expected a heading");
    const std::vector<std::string>& heading = rows[0].second;
    const auto has = [&](const std::string& column) {
        return std::find(heading.begin(), heading.end(), column) != heading.end();
    };
    const Kind* kind = nullptr;
    std::string known;
    for (const Kind& k : kKinds) {
        known += std::string(known.empty() ? "" : "; ") + k.needs;
        if (kind == nullptr && has(k.column)) kind = &k;
    }
    if (kind == nullptr)
        fail(source, rows[0].first, "the heading is of no kind: expected the columns of one of: " + known);
    for (const std::string& column : heading)
        if (column.rfind("measure:", 0) != 0 && column.rfind("limit:", 0) != 0 &&
            std::find(std::begin(kColumns), std::end(kColumns), column) == std::end(kColumns))
            fail(source, rows[0].first, "given the column '" + column + "', expected one of docs/ledger.md");
    for (const std::string& column : heading) {
        if (std::count(heading.begin(), heading.end(), column) > 1)
            fail(source, rows[0].first, "the column '" + column + "' is there twice");
        if (column.rfind("limit:", 0) == 0 && !has("measure:" + column.substr(6)))
            fail(source, rows[0].first, "given '" + column + "' without 'measure:" + column.substr(6) + "'");
    }
    if (rows.size() == 1) fail(source, rows[0].first, "a heading and no rows");
    Import import(store, base, source);
    store.transact([&] {
        for (std::size_t i = 1; i < rows.size(); ++i) {
            const Row row(heading, rows[i].second, source, rows[i].first);
            try {
                (import.*kind->take)(row);
            } catch (const Error& e) {
                if (std::string(e.what()).rfind("import:", 0) == 0) throw;
                fail(source, rows[i].first, e.what());
            } catch (const SQLite::Exception& e) {
                fail(source, rows[i].first,
                     std::string("the ledger has this already, for this build, label and start (") + e.what() + ")");
            }
        }
    });
    return static_cast<std::int64_t>(rows.size()) - 1;
}

}  // namespace tidegate::ledger
