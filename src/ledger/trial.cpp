#include "ledger/trial.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "cases/case.h"
#include "judge/judge.h"
#include "ledger/flaky.h"
#include "subjects/child.h"
#include "subjects/lib.h"
#include "subjects/shell.h"
#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

constexpr int kMostParallel = 64;  // children that Ctrl-C reaches

std::string_view after_environment(std::string_view reason) {
    constexpr std::string_view kEnvironment = "crashed (environment): ";
    if (reason.starts_with(kEnvironment)) reason.remove_prefix(kEnvironment.size());
    return reason;
}

std::string tool() {
    return subjects::lib_tool().empty() ? "/proc/" + std::to_string(getpid()) + "/exe" : subjects::lib_tool();
}

/// A spec without its +fault: (as subjects/spec.h has it, for subjects that are no commands), and that.
std::pair<std::string, std::string> split_fault(const std::string& spec) {
    const std::size_t at = spec.rfind("+fault:");
    if (at == std::string::npos || spec.find_first_of(" \t'\"", at) != std::string::npos) return {spec, ""};
    return {spec.substr(0, at), spec.substr(at)};
}

/// lib: subjects keep one process and try again alone what fails in it. Here each attempt has a process of its own, and
/// the second try ends before the library is loaded.
std::string untried_again(const std::string& spec) {
    const auto [base, fault] = split_fault(spec);
    const std::string file = std::filesystem::absolute(base.substr(4)).string();
    return "exec:[ -n \"$TIDEGATE_PERSISTENT\" ] || exit 99; exec " + subjects::in_shell(tool()) + " lib-child " +
           subjects::in_shell(file) + fault;
}

/// The first try is what counts.
void take_first_try(subjects::Outcome& outcome) {
    if (outcome.first_try.empty()) return;
    subjects::Outcome first;
    first.reason = outcome.first_try.substr(0, outcome.first_try.rfind(", in persistent process"));
    first.status = first.reason.starts_with("hung") ? subjects::Status::hung : subjects::Status::crashed;
    first.seconds = outcome.seconds;
    if (const std::string_view how = after_environment(first.reason); how.starts_with("signal "))
        first.signal = std::atoi(how.data() + 7);
    outcome = std::move(first);
}

void finish(Result& r, int signal) {
    if (signal != 0) r.signal = signal;
    r.fingerprint = fingerprint_of(r.verdict, signal, r.reason);
    if (r.verdict != Verdict::crashed) return;
    if (const std::string_view how = after_environment(r.reason); how.starts_with("exit "))
        r.exit_code = std::atoi(how.data() + 5);
}

Result result_of(const judge::CaseResult& judged) {
    Result r;
    r.verdict = judged.verdict;
    r.reason = judged.reason;
    r.seconds = judged.seconds;
    for (const judge::TensorResult& t : judged.tensors) {
        if (!t.measured) continue;
        const judge::Measures& m = t.measures;
        for (const auto& [name, value] : {std::pair{"nrmse", m.nrmse},
                                          {"cos", m.cosine},
                                          {"size_ratio", m.size_ratio},
                                          {"max_abs", m.max_abs},
                                          {"worst_token_nrmse", m.worst_token_nrmse},
                                          {"needed", m.needed},
                                          {"nan", static_cast<double>(m.nan)},
                                          {"inf", static_cast<double>(m.inf)}}) {
            Measure measure;
            measure.tensor = t.name, measure.name = name, measure.value = value;
            if (measure.name == "needed") measure.limit = 1;
            r.measures.push_back(std::move(measure));
        }
    }
    finish(r, judged.signal);
    return r;
}

/// The measures that result_of() has, from a child's record.
void add_measures(Result& r, const nlohmann::json& tensor) {
    for (const char* name : {"nrmse", "cos", "size_ratio", "max_abs", "worst_token_nrmse", "needed", "nan", "inf"}) {
        const auto x = tensor.find(name);
        if (x == tensor.end()) continue;
        Measure measure;
        measure.tensor = tensor.value("tensor", ""), measure.name = name;
        measure.value = x->is_number() ? x->get<double>()
                        : *x == "inf"  ? HUGE_VAL
                        : *x == "-inf" ? -HUGE_VAL
                                       : std::nan("");
        if (measure.name == "needed") measure.limit = 1;
        r.measures.push_back(std::move(measure));
    }
}

/// One `tidegate check` in a child.
Result checked_apart(const Trial& trial, const subjects::Limits& limits) {
    std::vector<std::string> words{tool(),   "check",    trial.test, "--subject", trial.subject,
                                   "--gate", trial.gate, "--quiet",  "--json",    "-"};
    if (trial.settings.threads != 0) words.insert(words.end(), {"--threads", std::to_string(trial.settings.threads)});
    words.insert(words.end(), trial.check_options.begin(), trial.check_options.end());
    subjects::Child child(words, {}, false);
    std::string records;
    const subjects::Ending ending = *child.wait(limits, [&](std::string_view text) {
        records += text;
        return false;
    });
    Result r;
    r.seconds = ending.seconds;
    int signal = 0;
    using How = subjects::Ending::How;
    const std::string last = child.last_words().empty() ? "" : " (last words: " + child.last_words() + ")";
    bool judged = false;
    for (std::size_t at = 0; ending.how == How::exited && at < records.size();) {
        const std::size_t end = std::min(records.find('\n', at), records.size());
        const auto j = nlohmann::json::parse(records.substr(at, end - at), nullptr, false);
        at = end + 1;
        if (!j.is_object()) continue;
        if (j.value("record", "") == "tensor") add_measures(r, j);
        if (j.value("record", "") != "case") continue;
        judged = true;
        r.verdict = verdict_from(j.value("verdict", ""));
        r.reason = j.value("reason", "");
        signal = j.value("signal", 0);
        if (j["seconds"].is_number()) r.seconds = j["seconds"].get<double>();
    }
    if (ending.how == How::hung_busy || ending.how == How::hung_idle) {
        r.verdict = Verdict::hung;
        r.reason = subjects::hung_text(ending);
    } else if (ending.how == How::signalled) {
        r.verdict = Verdict::crashed;
        signal = ending.code;
        const char* name = sigabbrev_np(signal);
        r.reason = fmt::format("signal {}{}{}", signal, name != nullptr ? fmt::format(" (SIG{})", name) : "", last);
    } else if (!judged || ending.code > 4) {  // 2 and 3 without a record: refused before it began
        r.verdict = ending.code == 2 || ending.code == 3 ? Verdict::not_run : Verdict::crashed;
        r.reason = fmt::format("exit {}{}", ending.code, last);
    } else if (r.verdict == Verdict::not_run && r.reason.starts_with("cuda: ")) {
        r.verdict = Verdict::crashed;  // the device's error is this process' last, and the kernel's doing
    }
    finish(r, signal);
    return r;
}

/// One request for all attempts, and the gauges of every twin that an answer declares.
class Judge {
public:
    explicit Judge(const Trial& trial)
        : request_(cases::generate(cases::parse(trial.test))), gate_(judge::gate_from(trial.gate)) {
        const auto start = std::chrono::steady_clock::now();
        bench("recurrent");
        seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    double seconds() const { return seconds_; }

    Result ask(subjects::Subject& subject) {
        subjects::Outcome outcome = subject.answer(request_);
        take_first_try(outcome);
        const judge::Bench* bench = nullptr;
        try {
            bench = &this->bench(outcome.answer.meta("twin", "recurrent"));
        } catch (const Error& e) {  // as `check` has it
            outcome.status = subjects::Status::failed;
            outcome.reason = std::string("answer metadata: ") + e.what();
            bench = &this->bench("recurrent");
        }
        return result_of(bench->judge(outcome));
    }

private:
    const judge::Bench& bench(const std::string& twin) {
        const std::lock_guard lock(mutex_);
        const auto found = benches_.find(twin);
        if (found != benches_.end()) return found->second;
        return benches_.try_emplace(twin, request_, judge::twin_from(twin), gate_).first->second;
    }

    const io::Bundle request_;
    const judge::Gate gate_;
    double seconds_ = 0;
    std::mutex mutex_;
    std::map<std::string, judge::Bench> benches_;
};

}  // namespace

bool require_trial(const Trial& trial) {
    if (trial.runs < 1) throw Error("runs", fmt::format("runs: given {}, expected at least 1", trial.runs));
    if (trial.parallel < 1 || trial.parallel > kMostParallel)
        throw Error("parallel", fmt::format("parallel: given {}, expected 1 to {}", trial.parallel, kMostParallel));
    if (trial.subject.starts_with("file:"))
        throw Error("subject", "subject: given '" + trial.subject + "', expected one that runs");
    cases::parse(trial.test);
    judge::gate_from(trial.gate);
    subjects::Settings settings = trial.settings;
    settings.persistent = false;
    return subjects::make_subject(trial.subject, settings)->crashes_apart();
}

void run_trial(const Trial& trial, const std::function<void(const Result&)>& seen) {
    const bool apart = require_trial(trial);
    subjects::Settings settings = trial.settings;
    const bool lib = trial.subject.starts_with("lib:");
    const std::string spec = lib ? untried_again(trial.subject) : trial.subject;
    settings.persistent = lib;
    Judge judge(trial);
    subjects::Limits limits = settings.limits;
    limits.timeout += 4 * judge.seconds() * trial.parallel;  // such a child judges too, beside the others
    const cases::Case tried = cases::parse(trial.test);
    std::atomic<int> next{1};
    std::mutex mutex;
    std::exception_ptr stopped;
    const auto worker = [&] {
        try {
            for (int i = next.fetch_add(1); i <= trial.runs; i = next.fetch_add(1)) {
                Result r = apart ? judge.ask(*subjects::make_subject(spec, settings)) : checked_apart(trial, limits);
                r.test = cases::id_of(tried);
                r.hash = cases::hash_of(tried);
                r.attempt = i;
                const std::lock_guard lock(mutex);
                seen(r);
            }
        } catch (...) {
            next = trial.runs + 1;
            const std::lock_guard lock(mutex);
            if (!stopped) stopped = std::current_exception();
        }
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < std::min(trial.parallel, trial.runs); ++i) threads.emplace_back(worker);
    worker();
    for (std::thread& t : threads) t.join();
    if (stopped) std::rethrow_exception(stopped);
}

}  // namespace tidegate::ledger
