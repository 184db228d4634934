#include "ledger/ingest.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "ledger/flaky.h"
#include "tidegate/error.h"

namespace tidegate::ledger {

struct Ingest::Json {
    nlohmann::json j;

    std::string text(const char* key) const {
        const auto i = j.is_object() ? j.find(key) : j.end();
        return i == j.end() || !i->is_string() ? "" : i->get<std::string>();
    }
    /// Numbers, and "nan" and "inf" as protocol.md writes them.
    static std::optional<double> number(const nlohmann::json& x) {
        if (x.is_number()) return x.get<double>();
        if (x == "nan") return std::nan("");
        if (x == "inf") return HUGE_VAL;
        if (x == "-inf") return -HUGE_VAL;
        return std::nullopt;
    }
    std::optional<double> number(const char* key) const {
        const auto i = j.is_object() ? j.find(key) : j.end();
        return i == j.end() ? std::nullopt : number(*i);
    }
};

namespace {

/// Fields of a record that are numbers and no measures.
constexpr const char* kNoMeasures[] = {"protocol", "seconds", "signal", "step", "rank", "seq"};

bool is_measure(const std::string& key) {
    for (const char* no : kNoMeasures)
        if (key == no) return false;
    return true;
}

/// The measure that a gate's limit is a limit of: how large the worst error may be, by its own limit (`needed` <= 1).
constexpr const char* kGated = "needed";
constexpr const char* kDrift = "drift";

}  // namespace

void Ingest::begin(const Json& record) {
    if (run_ != 0 && !over_) end(0);
    Run run = base_;
    std::vector<Expected> expected;
    if (record.text("record") == "run") {
        if (const std::string kind = record.text("kind"); !kind.empty() && run.kind != "import") run.kind = kind;
        for (const auto& [key, to] : {std::pair{"label", &run.label}, {"subject", &run.subject}})
            if (to->empty()) *to = record.text(key);
        if (const auto gate = record.j.find("gate"); gate != record.j.end() && gate->is_object()) {
            const Json of{*gate};
            run.gate = of.text("name");
            run.gate_version = static_cast<std::int64_t>(of.number("version").value_or(0));
        }
        run.generator_version = static_cast<std::int64_t>(record.number("generator").value_or(0));
        if (const auto cases = record.j.find("cases"); cases != record.j.end() && cases->is_array())
            for (const auto& c : *cases)
                if (const Json of{c}; !of.text("case").empty()) expected.push_back({of.text("case"), of.text("hash")});
    }
    run.performance = run.performance || run.kind == "bench";
    run_ = store_.begin(run, expected);
    hashes_.clear();
    for (const Expected& e : expected) hashes_[e.test] = e.hash;
    over_ = false;
    attempts_.clear();
    pending_ = Result();
    pending_test_.clear();
}

int Ingest::attempt_of(const std::string& test) {
    // Cases come one after the other, and their attempts together.
    if (attempts_.empty() || attempts_.back().first != test) attempts_.emplace_back(test, 0);
    return ++attempts_.back().second;
}

void Ingest::add(Result r) {
    r.attempt = attempt_of(r.test);
    store_.add(run_, r);
    ++results_;
}

void Ingest::line(const std::string& text) {
    Json record;
    record.j = nlohmann::json::parse(text, nullptr, false);
    if (!record.j.is_object() || record.text("record").empty())
        throw Error("record", "record: given '" + text.substr(0, 80) + "', expected a JSON object with a \"record\"");
    const std::string kind = record.text("record"), test = record.text("case");
    if (kind == "run") return begin(record);
    if (kind == "summary") return;  // what it counts is here already
    if (run_ == 0) begin(record);
    const auto measures_of = [&](const std::string& tensor) {
        std::vector<Measure> measures;
        for (const auto& [key, value] : record.j.items())
            if (const auto x = Json::number(value); x && is_measure(key)) {
                Measure m;
                m.tensor = tensor, m.name = key, m.value = *x;
                if (key == kGated) m.limit = 1;
                measures.push_back(std::move(m));
            }
        return measures;
    };
    if (kind == "tensor") {
        if (pending_test_ != test) pending_ = Result(), pending_test_ = test;
        const std::string tensor = record.text("tensor");
        for (Measure& m : measures_of(tensor)) pending_.measures.push_back(std::move(m));
        for (const char* name : {"hist_abs", "hist_rel"})
            if (const auto h = record.j.find(name); h != record.j.end() && !h->empty())
                pending_.histograms.push_back({tensor, name, h->dump()});
    } else if (kind == "case") {
        Result r = pending_test_ == test || pending_test_ == kDrift ? std::move(pending_) : Result();
        pending_ = Result(), pending_test_.clear();
        r.test = test;
        if (const std::string first = record.text("first_try"); !first.empty()) {
            Result before;
            before.test = test, before.verdict = Verdict::crashed, before.reason = before.fingerprint = first;
            add(before);
        }
        r.verdict = verdict_from(record.text("verdict"));
        r.reason = record.text("reason"), r.replay = record.text("replay");
        r.seconds = record.number("seconds").value_or(0);
        if (const auto signal = record.number("signal"); signal && *signal != 0) r.signal = static_cast<int>(*signal);
        if (r.verdict == Verdict::crashed || r.verdict == Verdict::hung)
            r.fingerprint = fingerprint_of(r.verdict, r.signal.value_or(0), r.reason);
        if (const auto hash = hashes_.find(test); hash != hashes_.end()) r.hash = hash->second;
        const std::string plan = record.text("plan");
        add(std::move(r));
        if (!plan.empty()) store_.add_plan(run_, test, "plan", plan);
    } else if (kind == "property") {
        Result r;
        r.test = test + " property " + record.text("name");
        r.verdict = verdict_from(record.text("verdict"));
        r.reason = record.text("where"), r.replay = record.text("replay");
        add(std::move(r));
    } else if (kind == "bench") {
        Result r;
        r.test = test + " on " + record.text("path") +
                 (record.j.contains("threads") ? " threads " + record.j["threads"].dump() : "");
        r.verdict = Verdict::pass;
        r.measures = measures_of("");
        add(std::move(r));
    } else if (kind == "drift") {  // steps are measures of the case that closes them
        const std::string tensor =
            record.text("gate") + " step " + (record.j.contains("step") ? record.j["step"].dump() : "");
        for (Measure& m : measures_of(tensor)) pending_.measures.push_back(std::move(m));
        pending_test_ = kDrift;
    } else if (kind == "kcp") {
        Result r;
        r.test = kind;
        for (const char* key : {"rank", "seq", "tensor", "vs"})
            if (const auto x = record.j.find(key); x != record.j.end())
                r.test += std::string(" ") + key + "=" + (x->is_string() ? x->get<std::string>() : x->dump());
        r.verdict = Verdict::pass;
        r.measures = measures_of("");
        add(std::move(r));
    } else if (kind == "plan") {
        for (const char* part : {"arithmetic", "schedule"})
            if (const auto p = record.j.find(part); p != record.j.end() && p->is_object())
                for (const auto& [key, value] : p->items())
                    store_.add_plan(run_, record.text("rule"), key,
                                    value.is_string() ? value.get<std::string>() : value.dump());
    }
}

void Ingest::end(int exit_status) {
    if (run_ == 0 || over_) return;
    store_.finish(run_, exit_status);
    over_ = true;
}

std::int64_t ingest_file(Store& store, const Run& base, const std::string& text, const std::string& source) {
    std::vector<std::string> lines;
    for (std::size_t at = 0, number = 1; at < text.size(); ++number) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        at = end + 1;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const auto parsed = nlohmann::json::parse(line, nullptr, false);
        // A killed writer leaves half a line behind; what came before it stands.
        if (parsed.is_discarded() && end == text.size() && !lines.empty()) break;
        if (parsed.is_discarded())
            throw Error("import", "import: '" + source + "', line " + std::to_string(number) + ": given '" +
                                      line.substr(0, 60) + "', which is no whole JSON object");
        if (!parsed.is_object() || !parsed.contains("record"))
            throw Error("import", "import: '" + source + "', line " + std::to_string(number) + ": given '" +
                                      line.substr(0, 60) + "', expected a JSON object with a \"record\"");
        lines.push_back(line);
    }
    Ingest ingest(store, base);
    for (std::size_t i = 0; i < lines.size(); ++i) {
        try {
            ingest.line(lines[i]);
        } catch (const Error& e) {
            throw Error("import", "import: '" + source + "', record " + std::to_string(i + 1) + ": " + e.what());
        }
    }
    ingest.end(0);
    return ingest.results();
}

}  // namespace tidegate::ledger
