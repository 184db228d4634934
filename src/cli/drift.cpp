// tidegate drift: a subject decodes step by step, each step on the state that it left, beside the fp64 oracle.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <span>

#include "cases/pieces.h"
#include "cases/request.h"
#include "cli/exit_code.h"
#include "cli/plot.h"
#include "cli/report.h"
#include "cli/verbs.h"
#include "faults/faults.h"
#include "io/file.h"
#include "judge/judge.h"
#include "problem/number.h"
#include "reference/recurrence.h"
#include "tidegate/error.h"

namespace tidegate::cli {
namespace {

/// sqrt(sum (x - y)^2 / sum y^2)
double rel_l2(const std::vector<double>& x, const std::vector<double>& y) {
    double err = 0, ref = 0;
    for (std::size_t i = 0; i < x.size(); ++i) err += (x[i] - y[i]) * (x[i] - y[i]), ref += y[i] * y[i];
    return ref > 0 ? std::sqrt(err / ref) : err > 0 ? HUGE_VAL : 0;
}

/// One step's output and state, as doubles.
struct Point {
    std::vector<double> o, state;
};
struct Errors {
    double state = 0, o = 0;
};

/// A trajectory of the subject: how its requests are made from the exact ones, and its pool.
struct Track {
    const char* gate;  ///< as records name it
    const char* what;
    bool rounded, packed;
    io::Array pool;
    Point now;
    std::string lost;                                     ///< why it ended; empty: it goes on
    subjects::Status ended = subjects::Status::answered;  ///< how
    double needed = 0, worst = 0;                         ///< of the derived gate's limit: at this step, and so far
    std::string over;                                     ///< where it first was over it
};

class Drift {
public:
    explicit Drift(const DriftOptions& o)
        : o_(o), records_(o.json, o.sink), report_(o.json == "-" ? stderr : stdout, o.quiet) {
        if (o.steps < 1 || o.steps > 10'000'000)
            throw Error("steps", "steps: given " + std::to_string(o.steps) + ", expected 1 to 10000000");
        if (!o.svg.empty() && o.svg == o.json) throw Error("svg", "svg: given the file of --json, expected another");
        if (const auto folder = std::filesystem::path(o.svg).parent_path();
            !o.svg.empty() && !std::filesystem::is_directory(folder.empty() ? "." : folder))
            throw Error("svg", "svg: given '" + o.svg + "', whose folder does not exist");
        if (cases::dtype_from(o.dtype) == Dtype::fp64)
            throw Error("dtype", "dtype: given 'fp64', expected fp32, bf16 or fp16");
        round_ = cases::dtype_from(o.dtype) == Dtype::fp32 ? Dtype::bf16 : cases::dtype_from(o.dtype);
        id_ = fmt::format("{}/decode/{}/1,{},{},{},{},{}/gates=logits/out=fp32/{}", o.rule, o.dtype, o.steps, o.heads,
                          o.heads, o.K, o.V, o.seed);
        records_.run({"drift", id_, o.subject, judge::gate_from("derived"), {}});
        exact_ = cases::generate(cases::parse(id_));
        rounded_ = exact_;
        faults::materialise_gates(cases::form_of(cases::bind(exact_)), rounded_);
        for (const char* name : {"g", "beta"}) {
            io::Array& a = *rounded_.find(name);
            for (std::int64_t i = 0; i < a.size(); ++i)
                store_element(a.bytes.data(), a.dtype, i, round_to(load_element(a.bytes.data(), a.dtype, i), round_));
        }
        slot_ = cases::form_of(cases::bind(exact_)).source(0);
        for (Track& t : tracks_) t.pool = *exact_.find("state");
        oracle_ = as_type(*exact_.find("state"), Dtype::fp64);
        twin_ = *exact_.find("state");
    }

    int run() {
        const std::unique_ptr<subjects::Subject> subject = subjects::make_subject(o_.subject, o_.settings);
        Table table({"step", "state exact", "of its limit", "state rounded", "state packed - unpacked", "o exact",
                     "o rounded", "o packed - unpacked"});
        std::vector<Curve> curves{
            {"exact gate", {}}, {"gate, beta in " + std::string(name_of(round_)), {}}, {"packed - unpacked", {}}};
        for (std::int64_t t = 0; t < o_.steps; ++t) {
            report_.progress(static_cast<int>(t), static_cast<int>(o_.steps), subject->name());
            reference(t);
            for (Track& track : tracks_) step(*subject, track, t);
            if (!tracks_[0].lost.empty()) break;
            for (Track& track : tracks_)
                if (!track.rounded && track.lost.empty()) judge_step(track, t);
            const Errors e[] = {against(tracks_[0], exact_now_), against(tracks_[1], exact_now_),
                                against(tracks_[2], tracks_[0].now)};
            for (std::size_t i = 0; i < 3; ++i) {
                if (!tracks_[i].lost.empty()) continue;
                last_[i] = e[i];
                curves[i].points.emplace_back(static_cast<double>(t + 1), e[i].state);
                records_.drift(
                    fmt::format(R"("record":"drift","protocol":1,"case":{},"subject":{},"step":{},"gate":"{}",)"
                                R"("state_rel_l2":{},"o_rel_l2":{})",
                                cli::quoted(id_), cli::quoted(subject->name()), t + 1, tracks_[i].gate,
                                number(e[i].state), number(e[i].o)));
            }
            if (shown(t + 1)) {
                const auto cell = [&](std::size_t i, double x) {
                    return tracks_[i].lost.empty() ? fmt::format("{:.3g}", x) : std::string("-");
                };
                table.add({std::to_string(t + 1), cell(0, e[0].state), fmt::format("{:.2g} x", tracks_[0].needed),
                           cell(1, e[1].state), cell(2, e[2].state), cell(0, e[0].o), cell(1, e[1].o),
                           cell(2, e[2].o)});
            }
        }
        return conclude(*subject, table, curves);
    }

private:
    static io::Array as_type(const io::Array& from, Dtype dtype) {
        io::Array to(from.name, dtype, from.shape);
        for (std::int64_t i = 0; i < from.size(); ++i)
            store_element(to.bytes.data(), dtype, i, load_element(from.bytes.data(), from.dtype, i));
        return to;
    }

    /// 1, 2, 5, 10, ... and the last.
    bool shown(std::int64_t step) const {
        std::int64_t s = step;
        while (s % 10 == 0) s /= 10;
        return s == 1 || s == 2 || s == 5 || step == o_.steps;
    }

    /// Token t of `from` as a request of its own, on `pool`.
    static io::Bundle request_of(const io::Bundle& from, std::int64_t t, const io::Array& pool) {
        io::Bundle request = cases::select(from, cases::form_of(cases::bind(from)), {{0, t, t + 1}});
        request.add(pool);
        return request;
    }

    /// The oracle's step, and that of the same recurrence in fp32, which the derived gate forgives.
    void reference(std::int64_t t) {
        const auto advance = [&](io::Array& pool, auto real, reference::Answer* magnitude) {
            const io::Bundle request = request_of(exact_, t, pool);
            const NormalForm form = cases::form_of(cases::bind(request));
            if (magnitude != nullptr) *magnitude = reference::Answer(form);
            const auto answer = reference::recurrence<decltype(real)>(form, {}, magnitude);
            const auto size = static_cast<std::int64_t>(answer.final_state.size());
            for (std::int64_t i = 0; i < size; ++i)
                store_element(pool.bytes.data(), pool.dtype, slot_ * size + i,
                              answer.final_state[static_cast<std::size_t>(i)]);
            return Point{answer.o, answer.final_state};
        };
        reference::Answer magnitude((NormalForm()));
        exact_now_ = advance(oracle_, double(), &magnitude);
        magnitude_now_ = {magnitude.o, magnitude.final_state};
        twin_now_ = advance(twin_, float(), nullptr);
    }

    void step(subjects::Subject& subject, Track& track, std::int64_t t) {
        if (!track.lost.empty()) return;
        io::Bundle request = request_of(track.rounded ? rounded_ : exact_, t, track.pool);
        if (track.packed) cases::pack(request);
        subjects::Outcome outcome = subject.answer(request);
        if (outcome.status == subjects::Status::answered && !judge::fits(outcome.answer, request)) {
            outcome.status = subjects::Status::failed;
            outcome.reason = "an output is missing, misshapen or mistyped";
        }
        if (outcome.status != subjects::Status::answered) {
            track.lost = fmt::format("step {}: {}", t + 1, outcome.reason);
            track.ended = outcome.status;
            return;
        }
        track.pool = *outcome.answer.find("state");
        track.now.o.clear();
        const io::Array& o = *outcome.answer.find("o");
        for (std::int64_t i = 0; i < o.size(); ++i) track.now.o.push_back(load_element(o.bytes.data(), o.dtype, i));
        const std::int64_t size = track.pool.size() / track.pool.shape[0];
        track.now.state.clear();
        for (std::int64_t i = 0; i < size; ++i)
            track.now.state.push_back(load_element(track.pool.bytes.data(), track.pool.dtype, slot_ * size + i));
    }

    /// Whether a track lies within the derived gate of this step, per tensor and head.
    void judge_step(Track& track, std::int64_t t) {
        track.needed = 0;
        for (const bool state : {false, true}) {
            judge::Output out;
            out.name = state ? "state" : "o";
            out.width = state ? o_.K * o_.V : o_.V;
            for (std::int32_t h = 0; h < o_.heads; ++h) out.cells.push_back({0, state ? -1 : t, h});
            const auto part = [state](const Point& p) { return state ? p.state : p.o; };
            out.exact = part(exact_now_), out.twin = part(twin_now_), out.magnitude = part(magnitude_now_);
            const judge::Measures m = judge::Gauge(out, judge::gate_from("derived")).measure(part(track.now));
            track.needed = std::max(track.needed, m.needed);
            if (!(m.needed <= 1) && track.over.empty())
                track.over = fmt::format("step {}: {}: {}", t + 1, out.name, m.why);
        }
        track.worst = std::max(track.worst, track.needed);
    }

    static Errors against(const Track& track, const Point& truth) {
        if (!track.lost.empty()) return {};
        return {rel_l2(track.now.state, truth.state), rel_l2(track.now.o, truth.o)};
    }

    int conclude(const subjects::Subject& subject, const Table& table, const std::vector<Curve>& curves) {
        std::FILE* to = report_.file();
        report_.progress_done();
        fmt::print(to, "drift of {} on {}\n", subject.name(), id_);
        table.print(to);
        fmt::print(to,
                   "  relative L2 error against the fp64 oracle; rounded: gate and beta in {}; packed - unpacked: the "
                   "packed call against the plain one\n",
                   name_of(round_));
        for (const Track& track : tracks_)
            if (!track.lost.empty()) fmt::print(to, "  {}: ended at {}\n", track.what, track.lost);
        if (tracks_[0].lost.empty() && tracks_[1].lost.empty()) {
            const double exact = last_[0].state, rounded = last_[1].state;
            if (exact > 0 && std::isfinite(rounded / exact))
                fmt::print(to, "  after {} steps a gate and beta in {} are {:.3g} x as far off as exact ones\n",
                           o_.steps, name_of(round_), rounded / exact);
        }
        for (const Track& track : tracks_) {
            if (track.rounded || !track.lost.empty()) continue;
            if (track.over.empty())
                fmt::print(to, "  {}: within the derived gate at every step, {:.2g} x its limit at most\n", track.what,
                           track.worst);
            else
                fmt::print(to, "  {}: over the derived gate, first at {}\n", track.what, track.over);
        }
        judge::CaseResult result = verdict();
        Labels labels;
        labels.id = id_, labels.rule = o_.rule, labels.pass = "decode", labels.dtype = o_.dtype;
        labels.subject = subject.name();
        Counts counts;
        counts.add(result.verdict);
        records_.result(labels, result);
        records_.summary(counts, 0);
        if (!o_.svg.empty()) {
            const std::string svg =
                log_chart("Decode drift of " + subject.name(), "decode steps", "state, relative L2 error", curves);
            io::write_whole(o_.svg, std::as_bytes(std::span(svg)));
        }
        switch (result.verdict) {
            case judge::Verdict::pass:
                return kPass;
            case judge::Verdict::skipped:
                return kNothing;
            case judge::Verdict::crashed:
            case judge::Verdict::hung:
                return kCrashed;
            default:
                return kWrong;
        }
    }

    /// The worst of the tracks: a crash or hang of any; a wrong answer, or an exact or packed track over the gate. A
    /// subject that skips the plain call skips all; other tracks it may skip.
    judge::CaseResult verdict() const {
        judge::CaseResult result;
        result.verdict = judge::Verdict::pass;
        const auto say = [&](judge::Verdict v, const Track& track, const std::string& why) {
            result.verdict = v;
            result.reason = std::string(track.what) + ": " + why;
        };
        for (const Track& track : tracks_) {
            if (track.ended == subjects::Status::skipped && &track == &tracks_[0])
                say(judge::Verdict::skipped, track, track.lost);
            if (track.ended == subjects::Status::failed) say(judge::Verdict::fail, track, track.lost);
            if (!track.over.empty()) say(judge::Verdict::fail, track, track.over);
        }
        for (const Track& track : tracks_) {
            if (track.ended == subjects::Status::hung) say(judge::Verdict::hung, track, track.lost);
            if (track.ended == subjects::Status::crashed) say(judge::Verdict::crashed, track, track.lost);
        }
        return result;
    }

    const DriftOptions& o_;
    Records records_;
    Report report_;
    Dtype round_ = Dtype::bf16;
    std::string id_;
    io::Bundle exact_, rounded_;  ///< all tokens, as logits; with gate and beta rounded
    std::int64_t slot_ = 0;
    Track tracks_[3] = {{"exact", "exact gate", false, false, {}, {}, "", {}, 0, 0, ""},
                        {"rounded", "rounded gate", true, false, {}, {}, "", {}, 0, 0, ""},
                        {"packed", "packed", false, true, {}, {}, "", {}, 0, 0, ""}};
    io::Array oracle_, twin_;  ///< pools in fp64 and fp32
    Point exact_now_, twin_now_, magnitude_now_;
    Errors last_[3];
};

}  // namespace

int drift(const DriftOptions& options) { return Drift(options).run(); }

}  // namespace tidegate::cli
