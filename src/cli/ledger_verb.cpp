#include "cli/ledger_verb.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/exit_code.h"
#include "cli/ledger.h"
#include "cli/ledger_print.h"
#include "cli/ledger_record.h"
#include "ledger/import.h"
#include "ledger/import_csv.h"
#include "tidegate/error.h"

namespace tidegate::cli {

struct LedgerVerb::Options {
    CLI::App *verb = nullptr, *import = nullptr, *show = nullptr, *trend = nullptr, *compare = nullptr,
             *flaky = nullptr;
    std::string file, json, build, other, pattern, tensor, measure = "nrmse";
    std::vector<std::string> files, builds;
    std::string format = "auto", expected, standing = "quoted";
    int exit_status = 0;
    bool cases = false, details = false;
    ledger::Run run;
    LedgerFlakyOptions flaky_options;
};

namespace {

using ledger::Store;

std::string contents(const std::string& path) {
    if (std::filesystem::is_directory(path)) throw Error("import", "import: given '" + path + "', which is a folder");
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) throw Error("import", "import: given '" + path + "', which cannot be read");
    return text.str();
}

/// What a file is, by what it begins with.
std::string format_of(const std::string& text, const std::string& path) {
    const std::size_t at = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
    if (at == std::string::npos) throw Error("import", "import: '" + path + "' is empty");
    if (text[at] == '{') return "jsonl";
    if (text[at] != '<') return "csv";
    return text.find("<Site") != std::string::npos ? "ctest" : "junit";
}

std::vector<std::string> lines_of(const std::string& path) {
    std::vector<std::string> lines;
    std::istringstream text(contents(path));
    for (std::string line; std::getline(text, line);) {
        if (!line.empty() && line.back() == '\r') line.pop_back();
        if (!line.empty()) lines.push_back(line);
    }
    return lines;
}

/// A test runner's file as one run.
void import_results(Store& store, ledger::Run run, ledger::Imported imported, const std::vector<std::string>& expected,
                    int exit_status) {
    const std::vector<std::string> names = ledger::complete(imported, expected, exit_status);
    if (run.started.empty()) run.started = imported.started;
    std::vector<ledger::Expected> list;
    for (const std::string& test : names) list.push_back({test, ""});
    std::int64_t id = store.imported_run(run);
    if (id == 0 || run.started.empty()) {
        id = store.begin(run, list);
        store.finish(id, exit_status);
    }
    store.add(id, imported.results);
    store.add_flags(id, imported.notes);
}

/// "-": stdout. The table goes to stderr then, or nowhere.
template <class Print>
int answer(const ledger::Json& json, const std::string& path, const Print& print) {
    if (path == "-") {
        fmt::print("{}\n", json.dump(2, ' ', false, ledger::Json::error_handler_t::replace));
        return kPass;
    }
    if (!path.empty()) {
        std::ofstream file(path);
        file << json.dump(2, ' ', false, ledger::Json::error_handler_t::replace) << "\n";
        if (!file.flush()) throw Error("json", "json: given '" + path + "', which cannot be written");
    }
    print(json, stdout);
    return kPass;
}

}  // namespace

LedgerVerb::LedgerVerb(CLI::App& app) : o_(std::make_unique<Options>()) {
    Options& o = *o_;
    o.verb = app.add_subcommand("ledger", "what was seen: runs of builds, their cases and measures");
    o.verb->require_subcommand(1);
    const auto sub = [&](const char* name, const char* what, bool json = true) {
        CLI::App* s = o.verb->add_subcommand(name, what);
        s->add_option("--ledger", o.file, "the ledger's file");
        if (json) s->add_option("--json", o.json, "write the answer as JSON to a file, - for stdout");
        return s;
    };
    o.import = sub("import", "others' files: JUnit XML, CTest's Test.xml, our JSON Lines, CSV (docs/ledger.md)", false);
    o.import->add_option(
        "FILE", o.files,
        "files of one run, or CSV of many; none, where --expected alone says what a runner that died was to run");
    o.import->add_option("--build", o.run.build.name, "the build, as you call it: a commit's short hash");
    o.import->add_option("--started", o.run.started, "when, ISO 8601; default: what the file says, else now");
    o.import->add_option("--label", o.run.label, "what was run, where one build has several");
    o.import->add_option("--machine", o.run.machine, "where");
    o.import->add_option("--subject", o.run.subject, "who was judged");
    o.import->add_option("--note", o.run.note, "kept with the run");
    o.import->add_flag("--performance", o.run.performance, "counts of timings, kept apart from correctness");
    o.import->add_option("--format", o.format, "auto | junit | ctest | jsonl | csv")
        ->check(CLI::IsMember({"auto", "junit", "ctest", "jsonl", "csv"}))
        ->capture_default_str();
    o.import->add_option("--standing", o.standing, "measured | quoted | derived")->capture_default_str();
    o.import->add_option("--expected", o.expected,
                         "for test runners' files: a file that names the cases that should run, one a line, in order "
                         "(pytest --collect-only -q)");
    o.import
        ->add_option("--exit-status", o.exit_status,
                     "for test runners' files: the runner's, as a shell says it: 128 + n after signal n")
        ->check(CLI::Range(0, 255));
    o.show = sub("show", "builds and runs with their counts, crashes, what does not add up");
    o.show
        ->add_option("--build", o.builds,
                     "these builds, in this order, by commas; one: with its cases by what they assert")
        ->delimiter(',');
    o.show->add_flag("--cases", o.cases, "also every case with its verdict and reason");
    o.trend = sub("trend", "a measure's history, with the distance to its limit");
    o.trend->add_option("CASE", o.pattern, "a case, * is anything")->required();
    o.trend->add_option("--measure", o.measure, "nrmse, needed (worst error by its own limit), cos, ms, ..")
        ->capture_default_str();
    o.trend->add_option("--tensor", o.tensor, "o, final_state, ..; default: all");
    o.compare = sub("compare", "two builds side by side: which cases changed, and by how much");
    o.compare->add_flag("--details", o.details, "every number that changed, not one a case");
    o.compare->footer(
        "Exit code 1 when something got worse: a verdict, a limited number by more than 10 % (1 % where the case "
        "fails), or crashes with p < 0.05.");
    o.compare->add_option("A", o.build, "a build, or #N a run")->required();
    o.compare->add_option("B", o.other, "a build, or #N a run")->required();
    LedgerFlakyOptions& f = o.flaky_options;
    o.flaky = sub("flaky", "how often a case crashes: runs in fresh processes, or counts compared");
    o.flaky->add_option("CASE", f.test, "a case id");
    o.flaky->add_option("--counts", f.counts, "two counts to compare: 2/24 0/24")->expected(2);
    o.flaky->add_option("--build", f.build, "compare a recorded build ..");
    o.flaky->add_option("--other", f.other, ".. with another");
    o.flaky->add_option("--subject", f.subject, "who runs the case")->capture_default_str();
    o.flaky->add_option("--runs", f.runs, "how many")->check(CLI::Range(1, 1000000))->capture_default_str();
    o.flaky->add_option("--parallel", f.parallel, "at once")->check(CLI::Range(1, 1024))->capture_default_str();
    o.flaky->add_option("--timeout", f.settings.limits.timeout, "seconds a run")->capture_default_str();
    o.flaky->add_flag("--quiet", f.quiet, "no progress");
}

LedgerVerb::~LedgerVerb() = default;

bool LedgerVerb::parsed() const { return o_->verb->parsed(); }

int LedgerVerb::run() {
    Options& o = *o_;
    if (o.flaky->parsed()) {
        not_the_ledger(o.json, o.file);
        o.flaky_options.ledger = o.file, o.flaky_options.json = o.json;
        return ledger_flaky(o.flaky_options);
    }
    if (o.file.empty()) throw Error("ledger", "ledger: expected --ledger FILE");
    not_the_ledger(o.json, o.file);
    if (!o.import->parsed()) {
        Store store(o.file, Store::Mode::read);
        if (o.show->parsed()) return answer(ledger::show(store, o.builds, o.cases), o.json, print_show);
        if (o.trend->parsed()) return answer(ledger::trend(store, o.pattern, o.tensor, o.measure), o.json, print_trend);
        const ledger::Json compared = ledger::compare(store, o.build, o.other);
        answer(compared, o.json, [&](const ledger::Json& j, std::FILE* to) { print_compare(j, o.details, to); });
        return compared["worse"].get<bool>() ? kWrong : kPass;
    }
    o.run.kind = "import";
    o.run.standing = ledger::standing_from(o.standing);
    if (o.files.empty() && (o.expected.empty() || o.run.build.name.empty()))
        throw Error("import", "import: expected FILE, or --expected and --build for a runner that left none");
    struct File {
        std::string text, format;
    };
    std::vector<File> files;  // all are read, and named wrong, before the ledger is opened
    for (const std::string& path : o.files) {
        File file{contents(path), o.format};
        if (file.format == "auto") file.format = format_of(file.text, path);
        if (file.format != "csv" && o.run.build.name.empty())
            throw Error("build", "build: expected --build NAME: '" + path + "' does not say it");
        if ((file.format == "csv" || file.format == "jsonl") && (!o.expected.empty() || o.exit_status != 0))
            throw Error("expected", "expected: given --expected or --exit-status with '" + path +
                                        "', which says itself what ran; they go with test runners' files");
        files.push_back(std::move(file));
    }
    std::vector<ledger::Imported> imported(files.size());
    for (std::size_t i = 0; i < files.size(); ++i) {
        if (files[i].format == "junit") imported[i] = ledger::read_junit(files[i].text, o.files[i]);
        if (files[i].format == "ctest") imported[i] = ledger::read_ctest(files[i].text, o.files[i]);
    }
    std::vector<std::string> expected;
    if (!o.expected.empty()) expected = lines_of(o.expected);
    // A file that was made for an import that is refused goes again.
    struct Fresh {
        std::string path;
        bool gone = false, keep = false;
        ~Fresh() {
            for (const char* more : {"", "-wal", "-shm"})
                if (gone && !keep) std::remove((path + more).c_str());
        }
    } fresh{o.file, !std::filesystem::exists(o.file)};
    Store store(o.file, Store::Mode::write);
    const auto last_run = [&] {
        return store.database().execAndGet("SELECT COALESCE(MAX(id), 0) FROM run").getInt64();
    };
    std::string words;
    store.transact([&] {
        if (files.empty()) {
            o.run.source = o.expected;
            import_results(store, o.run, {}, expected, o.exit_status);
            words = fmt::format("recorded {} expected cases of which none has a result\n", expected.size());
        }
        for (std::size_t i = 0; i < files.size(); ++i) {
            ledger::Run run = o.run;
            run.source = o.files[i];
            const std::int64_t before = last_run();
            std::string what;
            if (files[i].format == "csv") {
                what = fmt::format("{} rows", ledger::import_csv(store, run, files[i].text, o.files[i]));
            } else if (files[i].format == "jsonl") {
                what = fmt::format("{} results", ledger::ingest_file(store, run, files[i].text, o.files[i]));
            } else {
                what = fmt::format("{} results", imported[i].results.size());
                import_results(store, run, imported[i], expected, o.exit_status);
            }
            const std::int64_t after = last_run();
            words += fmt::format("imported {} ({}): {}, {}\n", o.files[i], files[i].format, what,
                                 after == before       ? std::string("added to runs that are there")
                                 : after == before + 1 ? fmt::format("run #{}", after)
                                                       : fmt::format("runs #{} to #{}", before + 1, after));
        }
    });
    fresh.keep = true;
    fmt::print("{}", words);
    return kPass;
}

}  // namespace tidegate::cli
