// tidegate drift: a subject decodes step by step, each step on the state that it left, beside the fp64 oracle.
#include <fmt/format.h>

#include <cmath>
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
    std::string lost;  ///< why it ended; empty: it goes on
};

class Drift {
public:
    explicit Drift(const DriftOptions& o) : o_(o), records_(o.json), report_(o.json == "-" ? stderr : stdout, o.quiet) {
        if (o.steps < 1 || o.steps > 10'000'000)
            throw Error("steps", "steps: given " + std::to_string(o.steps) + ", expected 1 to 10000000");
        round_ = cases::dtype_from(o.dtype) == Dtype::fp32 ? Dtype::bf16 : cases::dtype_from(o.dtype);
        id_ = fmt::format("{}/decode/{}/1,{},{},{},{},{}/gates=logits/out=fp32/{}", o.rule, o.dtype, o.steps, o.heads,
                          o.heads, o.K, o.V, o.seed);
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
            judge_step(t);
            const Errors e[] = {against(tracks_[0], exact_now_), against(tracks_[1], exact_now_),
                                against(tracks_[2], tracks_[0].now)};
            for (std::size_t i = 0; i < 3; ++i) {
                if (!tracks_[i].lost.empty()) continue;
                last_[i] = e[i];
                curves[i].points.emplace_back(static_cast<double>(t + 1), e[i].state);
                records_.drift(fmt::format(
                    R"("record":"drift","protocol":1,"case":{},"subject":{},"step":{},"gate":"{}",)"
                    R"("state_rel_l2":{},"o_rel_l2":{})",
                    quoted(id_), quoted(subject->name()), t + 1, tracks_[i].gate, number(e[i].state), number(e[i].o)));
            }
            if (shown(t + 1)) {
                const auto cell = [&](std::size_t i, double x) {
                    return tracks_[i].lost.empty() ? fmt::format("{:.3g}", x) : std::string("-");
                };
                table.add({std::to_string(t + 1), cell(0, e[0].state), fmt::format("{:.2g} x", needed_),
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
            status_ = &track == &tracks_[0] ? outcome.status : status_;
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

    /// Whether the exact track lies within the derived gate of this step, per tensor and head.
    void judge_step(std::int64_t t) {
        needed_ = 0;
        for (const bool state : {false, true}) {
            judge::Output out;
            out.name = state ? "state" : "o";
            out.width = state ? o_.K * o_.V : o_.V;
            for (std::int32_t h = 0; h < o_.heads; ++h) out.cells.push_back({0, state ? -1 : t, h});
            const auto part = [state](const Point& p) { return state ? p.state : p.o; };
            out.exact = part(exact_now_), out.twin = part(twin_now_), out.magnitude = part(magnitude_now_);
            const judge::Measures m = judge::Gauge(out, judge::gate_from("derived")).measure(part(tracks_[0].now));
            needed_ = std::max(needed_, m.needed);
            if (m.needed > 1 && over_.empty()) over_ = fmt::format("step {}: {}: {}", t + 1, out.name, m.why);
        }
        worst_ = std::max(worst_, needed_);
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
        if (!o_.svg.empty()) {
            const std::string svg =
                log_chart("Decode drift of " + subject.name(), "decode steps", "state, relative L2 error", curves);
            io::write_whole(o_.svg, std::as_bytes(std::span(svg)));
        }
        if (status_ == subjects::Status::skipped) return kNothing;
        if (status_ == subjects::Status::crashed || status_ == subjects::Status::hung) return kCrashed;
        if (status_ == subjects::Status::failed) return kWrong;
        if (tracks_[1].lost.empty())
            fmt::print(to, "  {}\n",
                       last_[0].state > 0
                           ? fmt::format("after {} steps a gate and beta in {} are {:.3g} x as far off as exact ones",
                                         o_.steps, name_of(round_), last_[1].state / last_[0].state)
                           : "the exact track has no error at all");
        if (over_.empty())
            fmt::print(to, "  exact gate: within the derived gate at every step, {:.2g} x its limit at most\n", worst_);
        else
            fmt::print(to, "  exact gate: over the derived gate, first at {}\n", over_);
        return over_.empty() ? kPass : kWrong;
    }

    const DriftOptions& o_;
    Records records_;
    Report report_;
    Dtype round_ = Dtype::bf16;
    std::string id_;
    io::Bundle exact_, rounded_;  ///< all tokens, as logits; with gate and beta rounded
    std::int64_t slot_ = 0;
    Track tracks_[3] = {{"exact", "exact gate", false, false, {}, {}, ""},
                        {"rounded", "rounded gate", true, false, {}, {}, ""},
                        {"packed", "packed", false, true, {}, {}, ""}};
    io::Array oracle_, twin_;  ///< pools in fp64 and fp32
    Point exact_now_, twin_now_, magnitude_now_;
    Errors last_[3];
    double needed_ = 0, worst_ = 0;
    std::string over_;
    subjects::Status status_ = subjects::Status::answered;
};

}  // namespace

int drift(const DriftOptions& options) { return Drift(options).run(); }

}  // namespace tidegate::cli
