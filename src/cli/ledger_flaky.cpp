// tidegate ledger flaky: how often a case fails or crashes, and whether two rates differ.
#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <span>
#include <tuple>

#include "cases/case.h"
#include "cli/exit_code.h"
#include "cli/ledger.h"
#include "cli/ledger_record.h"
#include "cli/report.h"
#include "cpu/kernels.h"
#include "judge/measure.h"
#include "ledger/flaky.h"
#include "ledger/trial.h"
#include "subjects/shell.h"
#include "tidegate/error.h"

namespace tidegate::cli {
namespace {

using ledger::Attempts;

struct Count {
    std::int64_t k = 0, n = 0;
};

Count count_from(const std::string& text) {
    Count c;
    const char *at = text.data(), *end = at + text.size();
    const auto k = std::from_chars(at, end, c.k);
    if (k.ec == std::errc() && k.ptr != end && *k.ptr == '/') {
        const auto n = std::from_chars(k.ptr + 1, end, c.n);
        if (n.ec == std::errc() && n.ptr == end) return c;
    }
    throw Error("counts", "counts: given '" + text + "', expected K/N such as 2/24");
}

double rate_of(Count c) { return c.n > 0 ? static_cast<double>(c.k) / static_cast<double>(c.n) : 0; }

std::string interval_text(Count c) {
    const ledger::Interval i = ledger::clopper_pearson(c.k, c.n);
    return fmt::format("[{:.4f}, {:.4f}]", i.low, i.high);
}

/// The fields of a rate: of a crash or hang, or of what the caller counted.
std::string rate_fields(Count c) {
    const ledger::Interval i = ledger::clopper_pearson(c.k, c.n);
    return fmt::format(R"(,"rate":{},"low":{},"high":{})", c.n > 0 ? number(rate_of(c)) : "\"nan\"", number(i.low),
                       number(i.high));
}

std::string head(const std::string& test, const std::string& build, std::int64_t runs) {
    return fmt::format(R"("record":"flaky","protocol":1,"test":{},"build":{},"runs":{})", quoted(test), quoted(build),
                       runs);
}

std::string fields_of(const std::string& test, const std::string& build, const Attempts& a) {
    std::string text = head(test, build, a.all()) +
                       fmt::format(R"(,"passed":{},"failed":{},"crashed":{},"hung":{},"other":{})", a.passed, a.failed,
                                   a.crashed, a.hung, a.other) +
                       rate_fields({a.ended(), a.ran()}) + R"(,"fingerprints":[)";
    for (const auto& [fingerprint, times] : a.fingerprints)
        text += fmt::format(R"({}{{"fingerprint":{},"count":{}}})", text.back() == '[' ? "" : ",", quoted(fingerprint),
                            times);
    return text + "]";
}

std::string verdict_fields(const ledger::Verdict2& v) {
    return fmt::format(R"(,"p":{},"words":{})", number(v.p), quoted(v.words));
}

void print_groups(std::FILE* to, const Attempts& a) {
    if (a.fingerprints.empty()) return;
    Table groups({"times", "crash or hang"});
    for (const auto& [fingerprint, times] : a.fingerprints) groups.add({std::to_string(times), fingerprint});
    groups.print(to);
}

int compare_counts(const LedgerFlakyOptions& o, Records& records, std::FILE* to) {
    if (!o.test.empty() || !o.build.empty() || !o.other.empty())
        throw Error("counts", "counts: given with a test or builds, expected them alone");
    if (o.counts.size() != 2)
        throw Error("counts", fmt::format("counts: given {}, expected two, such as 2/24 0/24", o.counts.size()));
    const Count a = count_from(o.counts[0]), b = count_from(o.counts[1]);
    const ledger::Verdict2 v = ledger::compare_rates(a.k, a.n, b.k, b.n);
    fmt::print(to, "{}\n", v.words);
    for (const Count c : {a, b})
        records.drift(head("", "", c.n) + fmt::format(R"(,"seen":{})", c.k) + rate_fields(c) + verdict_fields(v));
    return kPass;
}

int compare_builds(const LedgerFlakyOptions& o, Records& records, std::FILE* to) {
    if (o.ledger.empty()) throw Error("ledger", "ledger: given none, expected the one that has the builds");
    if (o.build.empty()) throw Error("build", "build: given --other without --build, expected both");
    if (o.test.empty()) throw Error("test", "test: given none, expected one that the ledger has");
    ledger::Store store(o.ledger, ledger::Store::Mode::read);
    const std::pair<const std::string&, Attempts> sides[] = {{o.build, attempts_of(store, o.build, o.test)},
                                                             {o.other, attempts_of(store, o.other, o.test)}};
    const auto& [a, b] = std::tie(sides[0].second, sides[1].second);
    const ledger::Verdict2 v = ledger::compare_rates(a.ended(), a.ran(), b.ended(), b.ran());
    fmt::print(to, "{}\n", o.test);
    Table table({"build", "passed", "failed", "crashed", "hung", "other", "crash or hang", "exact 95 %"});
    for (const auto& [build, x] : sides)
        table.add({build, std::to_string(x.passed), std::to_string(x.failed), std::to_string(x.crashed),
                   std::to_string(x.hung), std::to_string(x.other), fmt::format("{}/{}", x.ended(), x.ran()),
                   interval_text({x.ended(), x.ran()})});
    table.print(to);
    for (const auto& [build, x] : sides)
        if (!x.fingerprints.empty() && !o.quiet) {
            fmt::print(to, "{}:\n", build);
            print_groups(to, x);
        }
    fmt::print(to, "{}\n", v.words);
    for (const auto& [build, x] : sides) records.drift(fields_of(o.test, build, x) + verdict_fields(v));
    return kPass;
}

std::string words_of(const LedgerFlakyOptions& o, const std::string& id) {
    const subjects::Settings usual, &now = o.settings;
    std::string text = subjects::in_shell(id) + " --subject " + subjects::in_shell(o.subject);
    if (now.limits.timeout != usual.limits.timeout) text += fmt::format(" --timeout {}", now.limits.timeout);
    if (now.limits.grace != usual.limits.grace) text += fmt::format(" --grace {}", now.limits.grace);
    if (now.threads != usual.threads) text += fmt::format(" --threads {}", now.threads);
    return text;
}

/// A run in a ledger, if there is one: begun before the first attempt, ended after the last.
class Recorded {
public:
    Recorded(const LedgerFlakyOptions& o, const std::string& id, const ledger::Trial& trial) {
        if (o.ledger.empty()) return;
        const judge::Gate gate = judge::gate_from(trial.gate);
        ledger::Run run;
        run.build = build_here(o.build);
        run.kind = "flaky";
        run.label = id;
        run.machine = machine_here();
        run.subject = o.subject;
        run.subject_hash = subject_hash(o.subject);
        run.gate = gate.name;
        run.gate_version = gate.version;
        run.generator_version = cases::kGeneratorVersion;
        run.source =
            fmt::format("tidegate ledger flaky {} --runs {} --parallel {}", words_of(o, id), o.runs, o.parallel);
        run.note = fmt::format("{} attempts in fresh processes, {} at a time", o.runs, o.parallel);
        store_.emplace(o.ledger, ledger::Store::Mode::write);
        const ledger::Expected expected{id, cases::hash_of(cases::parse(id))};
        run_ = store_->begin(run, std::span(&expected, 1));
        build_ = run.build.name;
    }
    void add(const ledger::Result& result) {
        if (store_) store_->add(run_, result);
    }
    void finish(int code) {
        if (store_) store_->finish(run_, code);
    }
    const std::string& build() const { return build_; }

private:
    std::optional<ledger::Store> store_;
    std::int64_t run_ = 0;
    std::string build_;
};

void print_rates(std::FILE* to, const Attempts& a) {
    Table table({"", "seen", "rate", "exact 95 %", "runs to see this rate", "runs to see the highest rate"});
    for (const auto& [what, k] : {std::pair{"crash or hang", a.ended()}, {"fail", a.failed}}) {
        const Count c{k, a.ran()};
        const ledger::Interval i = ledger::clopper_pearson(c.k, c.n);
        table.add({what, fmt::format("{}/{}", c.k, c.n), c.n > 0 ? fmt::format("{:.4f}", rate_of(c)) : "-",
                   interval_text(c), k > 0 ? std::to_string(ledger::runs_to_see(rate_of(c))) : "-",
                   std::to_string(ledger::runs_to_see(i.high))});
    }
    table.print(to);
    fmt::print(to, "  runs to see: how many see it at least once with 95 %; the highest rate: the interval's end\n");
}

int exit_code(const Attempts& a, bool not_run) {
    if (not_run) return kUsage;  // each said why
    if (a.ended() > 0) return kCrashed;
    if (a.failed > 0) return kWrong;
    return a.passed == 0 ? kNothing : kPass;
}

int try_case(const LedgerFlakyOptions& o, Records& records, std::FILE* to) {
    if (o.test.empty())
        throw Error("flaky", "flaky: expected a case id, --counts K/N K/N, or --build A --other B and a test");
    ledger::Trial trial;
    trial.test = cases::id_of(cases::parse(o.test));
    trial.subject = o.subject;
    trial.runs = o.runs;
    trial.parallel = o.parallel;
    trial.settings = o.settings;
    // Whatever forced it here, a child takes the same kernels.
    if (o.subject.rfind("cpu", 0) == 0) trial.check_options = {"--isa", std::string(cpu::current_isa())};
    ledger::require_trial(trial);
    Recorded recorded(o, trial.test, trial);
    std::vector<ledger::Result> results;
    bool not_run = false;
    Report report(to, o.quiet);
    report.progress(0, o.runs, trial.test);
    ledger::run_trial(trial, [&](ledger::Result r) {
        r.replay = "tidegate check " + words_of(o, trial.test);
        recorded.add(r);
        r.measures.clear();
        not_run = not_run || r.verdict == judge::Verdict::not_run;
        report.progress_done();
        const bool good = r.verdict == judge::Verdict::pass || r.verdict == judge::Verdict::skipped;
        if (!good && !o.quiet) fmt::print(to, "{:<7} run {}: {}\n", judge::name_of(r.verdict), r.attempt, r.reason);
        results.push_back(std::move(r));
        report.progress(static_cast<int>(results.size()), o.runs, trial.test);
    });
    report.progress_done();
    const Attempts a = ledger::count_attempts(results);
    fmt::print(to, "{} on {}, {} runs in fresh processes: {} passed, {} failed, {} crashed, {} hung, {} other\n",
               trial.test, o.subject, o.runs, a.passed, a.failed, a.crashed, a.hung, a.other);
    print_rates(to, a);
    print_groups(to, a);
    records.drift(fields_of(trial.test, recorded.build(), a));
    const int code = exit_code(a, not_run);
    recorded.finish(code);
    return code;
}

}  // namespace

int ledger_flaky(const LedgerFlakyOptions& o) {
    Records records(o.json);
    std::FILE* to = o.json == "-" ? stderr : stdout;
    if (!o.counts.empty()) return compare_counts(o, records, to);
    if (!o.other.empty()) return compare_builds(o, records, to);
    return try_case(o, records, to);
}

}  // namespace tidegate::cli
