// The command line: options, help, and one exit code for every error.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <new>
#include <optional>
#include <string_view>

#include "cases/suite.h"
#include "cli/exit_code.h"
#include "cli/ledger_record.h"
#include "cli/ledger_verb.h"
#include "cli/verbs.h"
#include "cpu/kernels.h"
#include "faults/faults.h"
#include "judge/measure.h"
#include "judge/properties.h"
#include "problem/rules.h"
#include "subjects/child.h"
#include "subjects/lib.h"
#include "subjects/shell.h"
#include "tidegate/error.h"
#include "tidegate/version.h"

namespace {

namespace cli = tidegate::cli;

/// "a | b | c" of the names in a table.
template <class Rows>
std::string names(const Rows& rows) {
    std::string text;
    for (const auto& row : rows) text += std::string(text.empty() ? "" : " | ") + row.name;
    return text;
}

void add_memory_limit(CLI::App& app, std::int64_t& bytes) {
    app.add_option("--memory-limit", bytes, "bytes that backward on the CPU may allocate (64MB, 1GB, ...); 0: any")
        ->transform(CLI::AsSizeValue(true))
        ->capture_default_str();
}

const char* const kSubjectHelp =
    "cpu | cuda | reference | lib:KERNEL.so | exec:COMMAND | file:ANSWER.safetensors, with an optional +fault:NAME";

void add_subject(CLI::App& app, std::string& subject, tidegate::subjects::Settings& s) {
    app.add_option("--subject", subject, kSubjectHelp)->capture_default_str();
    app.add_option("--timeout", s.limits.timeout, "seconds a case, for lib and exec subjects")->capture_default_str();
    app.add_option("--grace", s.limits.grace, "more seconds while the child's CPU time grows")->capture_default_str();
    app.add_option("--threads", s.threads, "threads of in-process subjects; 0: all cores")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    add_memory_limit(app, s.memory_limit);
}

void add_ledger(CLI::App& app, cli::LedgerOptions& o) {
    app.add_option("--ledger", o.file, "also record the run in this ledger");
    app.add_option("--build", o.build, "with --ledger: the build; default: the git commit here");
    app.add_option("--note", o.note, "with --ledger: kept with the run");
}

bool has_verb(CLI::App& app, const std::string& name) {
    for (const CLI::App* verb : app.get_subcommands(nullptr))
        if (verb->get_name() == name) return true;
    return false;
}

/// A file that is opened later must not become stdout because stdout was closed.
void fill_standard_streams() {
    int fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
    if (fd >= 0) close(fd);
}

/// Children are in process groups of their own and do not see the terminal's Ctrl-C.
void on_signal(int signal) {
    tidegate::subjects::kill_children();
    std::signal(signal, SIG_DFL);
    std::raise(signal);
}

}  // namespace

int main(int argc, char** argv) {
    // Hidden: how a lib: subject runs the tool again (subjects/lib.h).
    if (argc >= 3 && std::string_view(argv[1]) == "lib-child")
        return tidegate::subjects::lib_child({argv + 2, argv + argc});
    fill_standard_streams();
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, on_signal);
    CLI::App app{"Tidegate: delta-rule linear attention, computed and proved", "tidegate"};
    app.set_version_flag("--version", "tidegate " TIDEGATE_VERSION);
    app.require_subcommand(1);
    app.fallthrough();  // options of the tool itself may follow the verb
    std::string isa;
    app.add_option("--isa", isa, "force an instruction set of the CPU kernels (AVX3, AVX2, SSE4, SSSE3)");
    app.footer(
        "Exit codes: 0 pass, 1 wrong, 2 bad input or usage, 3 nothing was measured, 4 the subject crashed or hung.");

    cli::CheckOptions check;
    CLI::App& c = *app.add_subcommand("check", "judge a subject against the fp64 oracle");
    c.add_option("target", check.target,
                 "FILE.safetensors, or a case id: rule/pass/dtype/B,T,H,HV,K,V/key=value.../seed");
    c.add_option("--suite", check.suite, names(tidegate::cases::suites()));
    add_subject(c, check.subject, check.settings);
    c.add_flag("--persistent", check.settings.persistent, "exec: one process for all cases");
    c.add_option("--pass", check.pass,
                 "forward | backward | decode | packed; of a suite (default: forward), or instead of a file's");
    c.add_option("--rule", check.rule, names(tidegate::rules()) + "; filters a suite, overrides a file");
    c.add_option("--dtype", check.dtype, "fp32 | bf16 | fp16; filters a suite, a file's output type");
    c.add_option("--gates", check.gates, "given | logits: which of a file's gate tensors are used");
    c.add_option("--gate", check.gate, names(tidegate::judge::gates()))->capture_default_str();
    c.add_option("--twin", check.twin,
                 "recurrent | chunked:<operand dtype>:<C>; default: what the answer declares, else recurrent");
    c.add_option("--json", check.json, "write JSON Lines to a file, - for stdout");
    c.add_flag("--allow-nan", check.allow_nan, "take a file that holds NaN or inf");
    c.add_flag("--mutants", check.mutants, "also print which faults the gate sees on which case");
    c.add_flag("--properties", check.properties,
               "also try the contract's invariants: " + names(tidegate::judge::properties()));
    c.add_flag("--bit-exact", check.bit_exact, "properties bit for bit, whatever the subject claims");
    c.add_flag("--list", check.list, "print the case ids and stop");
    c.add_flag("--quiet", check.quiet, "print only what did not pass, and the summary");
    c.footer("Faults for +fault: " + names(tidegate::faults::table()));

    cli::RunOptions run;
    CLI::App& r = *app.add_subcommand("run", "answer a request file with a subject");
    r.add_option("IN", run.in, "request: FILE.safetensors, or a case id")->required();
    r.add_option("OUT", run.out, "answer: FILE.safetensors")->required();
    add_subject(r, run.subject, run.settings);
    r.add_flag("--allow-nan", run.allow_nan, "take a file that holds NaN or inf");

    cli::PlanOptions plan;
    CLI::App& p = *app.add_subcommand("plan", "print what would run, and why");
    p.add_option("--rule", plan.rule, names(tidegate::rules()))->required();
    p.add_option("--dk", plan.K, "K, channels of q and k")->required();
    p.add_option("--dv", plan.V, "V, columns of v")->required();
    p.add_option("--dtype", plan.dtype, "fp32 | bf16 | fp16")->capture_default_str();
    p.add_option("--subject", plan.subject, "cpu | cuda")->capture_default_str();
    p.add_option("--tokens", plan.tokens, "T, for the schedule")->capture_default_str();
    p.add_option("--heads", plan.heads, "H = HV, for the schedule")->capture_default_str();
    p.add_option("--pass", plan.pass, "forward | backward")->capture_default_str();
    p.add_option("--n-householder", plan.n_householder, "steps a token, of gdp")->capture_default_str();
    p.add_option("--threads", plan.threads, "0: all cores")->check(CLI::NonNegativeNumber)->capture_default_str();
    add_memory_limit(p, plan.memory_limit);
    p.add_option("--json", plan.json, "write a JSON record to a file, - for stdout");

    cli::DriftOptions drift;
    CLI::App& d =
        *app.add_subcommand("drift", "decode step by step: how the error grows, with an exact and a rounded gate");
    d.add_option("--steps", drift.steps, "decode steps")->capture_default_str();
    d.add_option("--rule", drift.rule, names(tidegate::rules()))->capture_default_str();
    d.add_option("--dtype", drift.dtype, "fp32 | bf16 | fp16: of q, k, v and logits; the state is fp32")
        ->capture_default_str();
    d.add_option("--heads", drift.heads, "H = HV")->capture_default_str();
    d.add_option("--dk", drift.K, "K, channels of q and k")->capture_default_str();
    d.add_option("--dv", drift.V, "V, columns of v")->capture_default_str();
    d.add_option("--seed", drift.seed, "of the inputs")
        ->capture_default_str()
        ->check(CLI::Validator(
            [](const std::string& text) {
                const bool digits = text.find_first_not_of("0123456789") == std::string::npos && text.size() < 20;
                return digits ? std::string() : "given '" + text + "', expected a whole number below 10^19";
            },
            ""));
    add_subject(d, drift.subject, drift.settings);
    d.add_flag("--persistent", drift.settings.persistent, "exec: one process for all steps");
    d.add_option("--json", drift.json, "write JSON Lines to a file, - for stdout");
    d.add_option("--svg", drift.svg, "draw the growth of the state's error to a file");
    d.add_flag("--quiet", drift.quiet, "no progress");

    cli::BenchOptions bench;
    CLI::App& b = *app.add_subcommand("bench", "time the CPU kernels, beside the machine's ceilings and a peer");
    b.add_option("case", bench.target, "a case id");
    b.add_option("--suite", bench.suite, names(tidegate::cases::suites()));
    b.add_option("--rule", bench.rule, names(tidegate::rules()) + "; filters a suite");
    b.add_option("--dtype", bench.dtype, "fp32 | bf16 | fp16; filters a suite");
    b.add_option("--pass", bench.pass, "forward | backward | decode | packed; of a suite (default: forward)");
    b.add_option("--subject", bench.subject, "cpu | cuda")->capture_default_str();
    add_memory_limit(b, bench.memory_limit);
    b.add_option("--threads", bench.threads, "thread counts, by commas; default 1 and all cores")
        ->delimiter(',')
        ->allow_extra_args(false);
    b.add_option("--seconds", bench.seconds, "time spent on a row")->capture_default_str();
    b.add_option("--peer", bench.peer, "a peer's plugin; default: libtidegate_peer_ggml.so beside the tool");
    b.add_option("--json", bench.json, "write JSON Lines to a file, - for stdout");

    cli::LedgerOptions ledger;
    for (CLI::App* verb : {&c, &d, &b}) add_ledger(*verb, ledger);
    cli::LedgerVerb l(app);

    if (argc > 1 && argv[1][0] != '-' && !has_verb(app, argv[1])) {
        std::fprintf(stderr, "tidegate: verb: given '%s', expected check, run, plan, bench, drift or ledger\n",
                     argv[1]);
        return cli::kUsage;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        const int code = app.exit(e);
        return code == 0 ? cli::kPass : cli::kUsage;
    }
    int code = cli::kUsage;
    try {
        check.isa = isa;
        if (!isa.empty()) tidegate::cpu::force_isa(isa);
        tidegate::cpu::read_environment();
        std::optional<cli::LedgerSink> sink;
        if (ledger.file.empty() && !ledger.build.empty())
            throw tidegate::Error("build", "build: given without --ledger, which it goes with");
        for (const std::string* json : {&check.json, &drift.json, &bench.json}) cli::not_the_ledger(*json, ledger.file);
        if (!ledger.file.empty()) {
            std::string command = "tidegate";
            for (int i = 1; i < argc; ++i) command += " " + tidegate::subjects::in_shell(argv[i]);
            sink.emplace(ledger, c.parsed() ? check.subject : d.parsed() ? drift.subject : bench.subject, command);
            check.sink = drift.sink = bench.sink = &*sink;
        }
        code = c.parsed()   ? cli::check(check)
               : l.parsed() ? l.run()
               : r.parsed() ? cli::run(run)
               : d.parsed() ? cli::drift(drift)
               : b.parsed() ? cli::bench(bench)
                            : cli::plan(plan);
        if (sink) {
            sink->end(code);
            std::fprintf(stderr, "recorded: %s\n", sink->words().c_str());
        }
    } catch (const tidegate::subjects::Unavailable& e) {
        std::fprintf(stderr, "tidegate: %s\n", e.what());
        code = cli::kNothing;
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "tidegate: out of memory: a smaller case, or more memory\n");
    } catch (const std::exception& e) {
        std::fprintf(stderr, "tidegate: %s\n", e.what());
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        std::fprintf(stderr, "tidegate: standard output cannot be written\n");
        return cli::kUsage;
    }
    return code;
}
