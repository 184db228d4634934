// tidegate check: cases or a file through a subject, judged.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "cases/request.h"
#include "cases/suite.h"
#include "cli/exit_code.h"
#include "cli/report.h"
#include "cli/verbs.h"
#include "io/safetensors.h"
#include "judge/mutants.h"
#include "subjects/shell.h"
#include "tidegate/error.h"

namespace tidegate::cli {
namespace {

struct Job {
    std::optional<cases::Case> generated;  ///< else the file
    io::Bundle file;
    std::string label;
};

struct Done {
    Labels labels;
    judge::CaseResult result;
    std::vector<std::pair<const char*, judge::Sight>> sights;
    std::vector<judge::PropertyResult> properties;
};

class Check {
public:
    explicit Check(const CheckOptions& options) : o_(options), gate_(judge::gate_from(options.gate)) {
        if (!o_.twin.empty()) judge::twin_from(o_.twin);
        plan_jobs();
    }

    int list() const {
        for (const Job& job : jobs_) fmt::print("{}\n", job.label);
        return kPass;
    }

    int run(subjects::Subject& subject, std::FILE* to) {
        if (o_.subject.rfind("file:", 0) == 0) {
            if (jobs_.size() != 1 || jobs_[0].generated)
                throw Error("subject", "subject: given '" + o_.subject + "' with cases, expected it with FILE only");
            subject.answer(jobs_[0].file);  // an unreadable answer file is bad input, not a crash
        }
        Records records(o_.json, o_.sink);
        Report report(to, o_.quiet);
        records.run(about(subject));
        const auto start = std::chrono::steady_clock::now();
        work(subject, records, report);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (o_.mutants) mutant_table(report);
        const Counts broken = o_.properties ? property_table(report) : Counts();
        report.summary(counts_, seconds);
        records.summary(counts_, seconds);
        if (counts_.not_run > 0) return kUsage;  // each said why
        if (counts_.crashed + counts_.hung + broken.crashed + broken.hung > 0) return kCrashed;
        if (counts_.failed + broken.failed > 0) return kWrong;
        return counts_.passed == 0 ? kNothing : kPass;
    }

private:
    void plan_jobs() {
        if (o_.target.empty() == o_.suite.empty())
            throw Error("check", "check: expected one of FILE, a case id, or --suite NAME");
        if (!o_.suite.empty()) {
            cases::Filter filter;
            if (!o_.rule.empty()) filter.rule = rule_from(o_.rule);
            if (!o_.dtype.empty()) filter.dtype = cases::dtype_from(o_.dtype);
            if (!o_.pass.empty()) filter.pass = o_.pass;
            if (!o_.gates.empty()) throw Error("gates", "gates: given with a suite, expected it with FILE");
            for (cases::Case& c : cases::suite(o_.suite, filter)) {
                Job job;
                job.label = cases::id_of(c);
                job.generated = std::move(c);
                jobs_.push_back(std::move(job));
            }
            return;
        }
        Job job;
        job.label = o_.target;
        if (cases::looks_like_id(o_.target) && !std::filesystem::exists(o_.target)) {
            if (!o_.rule.empty() || !o_.dtype.empty() || !o_.pass.empty() || !o_.gates.empty())
                throw Error("check",
                            "check: --rule, --dtype, --pass and --gates go with FILE or a suite; a case id says them");
            job.generated = cases::parse(o_.target);
            job.label = cases::id_of(*job.generated);
        } else {
            job.file = io::read_safetensors(o_.target);
            const std::pair<const char*, const std::string*> overrides[] = {
                {"rule", &o_.rule}, {"pass", &o_.pass}, {"out_dtype", &o_.dtype}, {"gates", &o_.gates}};
            for (const auto& [key, value] : overrides)
                if (!value->empty()) job.file.metadata[key] = *value;
            if (!o_.dtype.empty() && job.file.meta("pass") == "backward")  // a gradient has its input's type
                cases::widen(job.file, cases::dtype_from(o_.dtype));
            cases::validate(job.file, o_.allow_nan);
            for (const std::string& key : cases::unknown_metadata(job.file))
                fmt::print(stderr, "tidegate: metadata '{}' is not one of docs/protocol.md's and is ignored\n", key);
        }
        jobs_.push_back(std::move(job));
    }

    std::string replay(const Job& job) const {
        if (o_.replay) return o_.replay(job.label);
        std::string text =
            "tidegate check " + subjects::in_shell(job.label) + " --subject " + subjects::in_shell(o_.subject);
        if (!job.generated)
            for (const auto& [flag, value] : {std::pair{" --rule ", &o_.rule},
                                              {" --pass ", &o_.pass},
                                              {" --dtype ", &o_.dtype},
                                              {" --gates ", &o_.gates}})
                if (!value->empty()) text += flag + *value;
        if (o_.allow_nan && !job.generated) text += " --allow-nan";
        if (o_.properties) text += o_.bit_exact ? " --properties --bit-exact" : " --properties";
        if (o_.gate != "derived") text += " --gate " + o_.gate;
        if (!o_.twin.empty()) text += " --twin " + o_.twin;
        const subjects::Settings usual, &now = o_.settings;
        if (now.persistent) text += " --persistent";
        if (now.limits.timeout != usual.limits.timeout) text += fmt::format(" --timeout {}", now.limits.timeout);
        if (now.limits.grace != usual.limits.grace) text += fmt::format(" --grace {}", now.limits.grace);
        if (now.memory_limit != usual.memory_limit) text += fmt::format(" --memory-limit {}", now.memory_limit);
        if (now.threads != usual.threads) text += fmt::format(" --threads {}", now.threads);
        if (!o_.isa.empty()) text += " --isa " + o_.isa;
        return text;
    }

    RunRecord about(const subjects::Subject& subject) const {
        RunRecord run{"check", o_.suite.empty() ? o_.target : o_.suite, subject.name(), gate_, {}};
        for (const Job& job : jobs_)
            run.cases.emplace_back(job.label, job.generated ? cases::hash_of(*job.generated) : "");
        return run;
    }

    std::string plan_words(const io::Bundle& request) const {
        cases::Problem problem = cases::bind(request);
        io::Bundle answer = cases::empty_answer(request);
        cases::attach(problem, answer);
        Options options;
        options.threads = o_.settings.threads;
        options.memory_limit = o_.settings.memory_limit;
        if (o_.subject == "cuda")
            for (Tensor* t : cases::tensors_of(problem)) t->device = Device::cuda;
        std::string text = cases::plan_of(problem, options).text();
        for (char& c : text)
            if (c == '\n') c = ' ';
        return text;
    }

    Done one(const Job& job, subjects::Subject& subject) {
        const io::Bundle request = job.generated ? cases::generate(*job.generated) : job.file;
        Done done;
        Labels& l = done.labels;
        l.id = job.label;
        l.rule = request.meta("rule");
        l.pass = request.meta("pass", "forward");
        l.dtype = tidegate::name_of(cases::outputs_of(request)[0].dtype);
        if (job.generated) l.dtype = tidegate::name_of(job.generated->dtype);
        l.subject = subject.name();
        l.gate = gate_;
        l.replay = replay(job);
        const bool recorded = !o_.json.empty() || o_.sink != nullptr;
        if (recorded && (o_.subject == "cpu" || o_.subject == "cuda")) l.plan = plan_words(request);

        // The subject first, alone: what it takes is its own, and it may declare the twin it is judged by.
        subjects::Outcome outcome;
        {
            const std::lock_guard alone(subject_mutex_);
            outcome = subject.answer(request);
        }
        l.twin = !o_.twin.empty() ? o_.twin : outcome.answer.meta("twin", "recurrent");
        judge::Twin twin;
        try {
            twin = judge::twin_from(l.twin);
        } catch (const Error& e) {
            if (!o_.twin.empty()) throw;
            outcome.status = subjects::Status::failed;
            outcome.reason = std::string("answer metadata: ") + e.what();
        }
        const judge::Bench bench(request, twin, gate_);
        l.V = bench.expected().form.V;
        done.result = bench.judge(outcome);
        done.result.id = job.label;
        if (o_.properties) {
            const std::lock_guard alone(subject_mutex_);
            done.properties = judge::try_properties(bench, subject, outcome, o_.bit_exact);
        }
        if (o_.mutants)
            for (const faults::Fault& fault : faults::table())
                done.sights.emplace_back(fault.name, judge::try_mutant(bench, fault));
        return done;
    }

    /// Judging is most of the work and runs on every core; the subject is asked one case at a time, and results are
    /// reported in the order of the cases.
    void work(subjects::Subject& subject, Records& records, Report& report) {
        std::mutex mutex;
        std::condition_variable ready;
        std::vector<std::optional<Done>> done(jobs_.size());
        std::atomic<std::size_t> next{0};
        const auto worker = [&] {
            for (std::size_t i = next.fetch_add(1); i < jobs_.size(); i = next.fetch_add(1)) {
                Done d;
                try {
                    d = one(jobs_[i], subject);
                } catch (const std::exception& e) {  // this case was not run; the others still are
                    d.labels.id = d.result.id = jobs_[i].label;
                    d.labels.subject = subject.name();
                    d.labels.replay = replay(jobs_[i]);
                    d.result.reason = e.what();
                }
                {
                    const std::lock_guard lock(mutex);
                    done[i] = std::move(d);
                }
                ready.notify_one();
            }
        };
        struct Threads : std::vector<std::thread> {  // joined also when a record cannot be written
            std::atomic<std::size_t>& next;
            std::size_t all;
            Threads(std::atomic<std::size_t>& n, std::size_t jobs) : next(n), all(jobs) {}
            ~Threads() {
                next.store(all);
                for (std::thread& t : *this) t.join();
            }
        } threads(next, jobs_.size());
        const std::size_t workers =
            std::min<std::size_t>(jobs_.size(), std::max(1U, std::thread::hardware_concurrency()));
        for (std::size_t i = 0; i < workers; ++i) threads.emplace_back(worker);
        for (std::size_t i = 0; i < jobs_.size(); ++i) {
            report.progress(static_cast<int>(i), static_cast<int>(jobs_.size()), jobs_[i].label);
            std::unique_lock lock(mutex);
            ready.wait(lock, [&] { return done[i].has_value(); });
            Done d = std::move(*done[i]);
            done[i] = Done{};
            lock.unlock();
            report.result(d.labels, d.result, jobs_.size() == 1);
            records.tensors(d.labels, d.result);
            records.result(d.labels, d.result);
            for (const auto& [name, sight] : d.sights) records.mutant(d.labels, name, sight);
            for (const judge::PropertyResult& p : d.properties) {
                records.property(d.labels, p);
                report.property(d.labels, p);
            }
            counts_.add(d.result.verdict);
            d.result.tensors.clear();
            finished_.push_back(std::move(d));
        }
    }

    /// Rows are cases, columns mutants; below it what each mutant is worth, by rule.
    void mutant_table(Report& report) const {
        if (finished_.empty() || finished_[0].sights.empty()) return;
        std::FILE* to = report.file();
        fmt::print(to, "\nmutants: x caught, ! missed (live, but within the gate), . inert, - does not apply\n");
        const auto& names = finished_[0].sights;
        for (std::size_t m = 0; m < names.size(); ++m) fmt::print(to, "  {:>2} {}\n", m + 1, names[m].first);
        std::string heading;
        for (std::size_t m = 0; m < names.size(); ++m) heading += fmt::format("{:>3}", m + 1);
        fmt::print(to, "{}\n", heading);
        for (const Done& d : finished_) {
            std::string row;
            for (const auto& [name, sight] : d.sights)
                row += fmt::format("{:>3}", std::string(1, "-.x!"[static_cast<int>(sight)]));
            fmt::print(to, "{}  {}\n", row, d.labels.id);
        }
        Table table({"rule", "mutant", "applies", "live", "caught", "what"});
        std::vector<std::string> rules;
        for (const Done& d : finished_)
            if (std::find(rules.begin(), rules.end(), d.labels.rule) == rules.end()) rules.push_back(d.labels.rule);
        for (const std::string& rule : rules)
            for (std::size_t m = 0; m < names.size(); ++m) {
                int applies = 0, live = 0, caught = 0;
                for (const Done& d : finished_) {
                    if (d.labels.rule != rule) continue;
                    const judge::Sight s = d.sights[m].second;
                    applies += s != judge::Sight::does_not_apply ? 1 : 0;
                    live += s == judge::Sight::caught || s == judge::Sight::missed ? 1 : 0;
                    caught += s == judge::Sight::caught ? 1 : 0;
                }
                const faults::Fault& fault = faults::find(names[m].first);
                const std::string note = applies == 0                     ? "does not apply"
                                         : caught == 0 && fault.precision ? "not visible under this gate"
                                                                          : fault.what;
                table.add({rule, names[m].first, std::to_string(applies), std::to_string(live), std::to_string(caught),
                           note});
            }
        table.print(to);
    }

    /// By property: on how many cases it held. Returns their verdicts, all together.
    Counts property_table(Report& report) const {
        Counts total;
        Table table({"property", "passed", "failed", "crashed", "skipped", "asked for", "what"});
        for (const judge::PropertyRow& row : judge::properties()) {
            Counts counts;
            bool exact = false;
            for (const Done& d : finished_)
                for (const judge::PropertyResult& p : d.properties) {
                    if (p.name != row.name) continue;
                    counts.add(p.verdict);
                    total.add(p.verdict);
                    exact = exact || p.bit_for_bit;
                }
            table.add({row.name, std::to_string(counts.passed), std::to_string(counts.failed),
                       std::to_string(counts.crashed + counts.hung), std::to_string(counts.skipped),
                       exact ? "every bit" : "within the gate", row.what});
        }
        table.print(report.file());
        return total;
    }

    const CheckOptions& o_;
    judge::Gate gate_;
    std::vector<Job> jobs_;
    std::vector<Done> finished_;
    Counts counts_;
    std::mutex subject_mutex_;
};

}  // namespace

int check(const CheckOptions& options) {
    Check check(options);
    if (options.list) return check.list();
    const std::unique_ptr<subjects::Subject> subject = subjects::make_subject(options.subject, options.settings);
    return check.run(*subject, options.json == "-" ? stderr : stdout);
}

int check(const CheckOptions& options, subjects::Subject& subject, std::FILE* to) {
    return Check(options).run(subject, to);
}

}  // namespace tidegate::cli
