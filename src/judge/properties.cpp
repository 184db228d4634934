#include "judge/properties.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "cases/pieces.h"
#include "cases/request.h"
#include "problem/number.h"
#include "tidegate/error.h"

namespace tidegate::judge {
namespace {

using cases::Piece;

constexpr std::array kProperties{
    PropertyRow{"repeatable", "the same call gives the same answer"},
    PropertyRow{"packed", "a sequence gives the same alone or packed with others"},
    PropertyRow{"causal", "changing or dropping later tokens changes nothing before them"},
    PropertyRow{"resumable", "cut at a multiple of the step, with the state handed on, it is the one call"},
    PropertyRow{"isolated", "NaN or inf in one sequence never reaches another"},
    PropertyRow{"untouched", "memory outside the result is not written"},
    PropertyRow{"padded", "K and V zero-padded to the bucket, scale held, give the same"},
};
constexpr std::int64_t kMostSequences = 4;  // of a case, tried alone

/// Ends a property early with a verdict that is not about its numbers.
struct Stop {
    Verdict verdict;
    std::string why;
};

bool same_bits(double x, double y) {
    return (std::isnan(x) && std::isnan(y)) || std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
}

class Trial {
public:
    Trial(const Bench& bench, subjects::Subject& subject, const subjects::Outcome& base, bool strict)
        : bench_(bench), subject_(subject), base_(base), nf_(bench.expected().form) {
        const std::string claims = " " + base.answer.meta("bit_exact") + " ";
        for (const PropertyRow& row : kProperties)
            exact_.push_back(strict || claims == " all " ||
                             claims.find(" " + std::string(row.name) + " ") != std::string::npos);
        for (const Output& output : bench.expected().outputs)
            values_.push_back(values_of(base.answer, output.name, bench.request()));
        for (std::int64_t n = 0; n < nf_.sequences; ++n) longest_ = std::max(longest_, length(n));
    }

    std::vector<PropertyResult> run() {
        using Body = void (Trial::*)();
        constexpr Body bodies[] = {&Trial::repeatable, &Trial::packed,    &Trial::causal, &Trial::resumable,
                                   &Trial::isolated,   &Trial::untouched, &Trial::padded};
        std::vector<PropertyResult> results;
        std::size_t i = 0;
        for (const Body body : bodies) {
            now_ = PropertyResult{kProperties[i].name, Verdict::pass, exact_[i], ""};
            try {
                (this->*body)();
            } catch (const Stop& stop) {
                now_.verdict = stop.verdict;
                now_.where = stop.why;
            }
            results.push_back(now_);
            ++i;
        }
        return results;
    }

private:
    // ---- asking and comparing
    std::int64_t length(std::int64_t n) const { return nf_.sequence(n).end - nf_.sequence(n).begin; }
    Piece whole(std::int64_t n) const { return {n, 0, length(n)}; }
    std::vector<Piece> all() const {
        std::vector<Piece> pieces;
        for (std::int64_t n = 0; n < nf_.sequences; ++n) pieces.push_back(whole(n));
        return pieces;
    }

    io::Bundle ask(const io::Bundle& request) {
        subjects::Outcome outcome = subject_.answer(request);
        switch (outcome.status) {
            case subjects::Status::answered:
                break;
            case subjects::Status::skipped:
                throw Stop{Verdict::skipped, outcome.reason};
            case subjects::Status::failed:
                throw Stop{Verdict::fail, outcome.reason};
            case subjects::Status::crashed:
                throw Stop{Verdict::crashed, outcome.reason};
            case subjects::Status::hung:
                throw Stop{Verdict::hung, outcome.reason};
        }
        if (!fits(outcome.answer, request))
            throw Stop{Verdict::fail, "an output is missing, misshapen or mistyped in the answer to a variation"};
        return std::move(outcome.answer);
    }

    /// Elements of a variation's answer in place of the base's: `at(i)` is the variation's element for element i of the
    /// base, or -1 where it has none.
    void compare(std::size_t output, const std::vector<double>& variation,
                 const std::function<std::int64_t(std::int64_t)>& at, const std::string& how) {
        const Output& o = bench_.expected().outputs[output];
        std::vector<double> swapped = values_[output];
        std::int64_t differs = 0, first = -1;
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(swapped.size()); ++i) {
            const std::int64_t j = at(i);
            if (j < 0) continue;
            double& x = swapped[static_cast<std::size_t>(i)];
            const double y = variation[static_cast<std::size_t>(j)];
            if (!same_bits(x, y)) {
                ++differs;
                if (first < 0) first = i;
            }
            x = y;
        }
        if (differs == 0 || now_.verdict == Verdict::fail) return;
        if (!now_.bit_for_bit && bench_.gauge(output).passes(swapped)) return;
        const Cell& cell = o.cells[static_cast<std::size_t>(first / o.width)];
        now_.verdict = Verdict::fail;
        now_.where = how + ": " + o.name + " differs in " + std::to_string(differs) + " elements, first at seq " +
                     std::to_string(cell.sequence) + (cell.token >= 0 ? " token " + std::to_string(cell.token) : "") +
                     " head " + std::to_string(cell.head) + " channel " + std::to_string(first % o.width) + " (" +
                     std::to_string(values_[output][static_cast<std::size_t>(first)]) + " against " +
                     std::to_string(swapped[static_cast<std::size_t>(first)]) + ")";
    }

    /// A variation whose sequences are pieces: rows of o of tokens below `limit`, and states of pieces that run to
    /// their sequence's end, unless `states` is false. `skip` is a piece that is not compared.
    void compare_pieces(const io::Bundle& request, const std::vector<Piece>& pieces, const std::string& how,
                        bool states = true, std::int64_t limit = std::numeric_limits<std::int64_t>::max(),
                        std::int64_t skip = -1) {
        const io::Bundle answer = ask(request);
        const std::int64_t state = nf_.value_heads * nf_.K * nf_.V;
        const auto& outputs = bench_.expected().outputs;
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            if (outputs[i].kind == Kind::parameters) continue;                   // sums over all sequences
            if (limit < kAll && backward_ && outputs[i].name != "dq") continue;  // later tokens are what they sum over
            std::vector<std::int64_t> at(values_[i].size(), -1);
            const auto copy = [&at](std::int64_t from, std::int64_t to, std::int64_t count) {
                for (std::int64_t j = 0; j < count; ++j) at[static_cast<std::size_t>(to + j)] = from + j;
            };
            const bool by_token = outputs[i].kind == Kind::tokens;
            const std::int64_t row = outputs[i].rows * outputs[i].heads * outputs[i].width;
            std::int64_t begin = 0;
            for (std::size_t p = 0; p < pieces.size(); begin += pieces[p].end - pieces[p].begin, ++p) {
                const Piece& piece = pieces[p];
                if (static_cast<std::int64_t>(p) == skip) continue;
                const Span s = nf_.sequence(piece.sequence);
                if (by_token) {
                    for (std::int64_t t = piece.begin; t < std::min(piece.end, limit); ++t)
                        copy((begin + t - piece.begin) * row, (s.batch * nf_.tokens + s.begin + t) * row, row);
                } else if (states && nf_.pool && nf_.source(piece.sequence) >= 0) {
                    for (std::int64_t t = piece.begin; t < piece.end; ++t)
                        if (const std::int64_t slot = nf_.target(piece.sequence, t); slot >= 0)
                            copy(slot * state, slot * state, state);
                } else if (states && !nf_.pool && piece.end == length(piece.sequence)) {
                    copy(static_cast<std::int64_t>(p) * state, piece.sequence * state, state);
                }
            }
            compare(
                i, values_of(answer, outputs[i].name, request),
                [&at](std::int64_t e) { return at[static_cast<std::size_t>(e)]; }, how);
        }
        last_ = answer;
    }

    io::Bundle pick(const std::vector<Piece>& pieces) const { return cases::select(bench_.request(), nf_, pieces); }

    // ---- the properties
    void repeatable() {
        const io::Bundle answer = ask(bench_.request());
        const auto same = [](std::int64_t i) { return i; };
        for (std::size_t i = 0; i < values_.size(); ++i)
            compare(i, values_of(answer, bench_.expected().outputs[i].name, bench_.request()), same, "asked again");
    }

    void packed() {
        if (nf_.sequences == 1 && nf_.pool) throw Stop{Verdict::skipped, "one request, which owns its slots"};
        if (nf_.sequences == 1) {
            const std::vector<Piece> twice{whole(0), whole(0)};
            const io::Bundle request = pick(twice);
            for (const std::int64_t other : {1, 0}) compare_pieces(request, twice, "packed twice", true, kAll, other);
            return;
        }
        for (std::int64_t n = 0; n < std::min(nf_.sequences, kMostSequences); ++n)
            compare_pieces(pick({whole(n)}), {whole(n)}, "sequence " + std::to_string(n) + " alone");
    }

    void causal() {
        if (longest_ < 2) throw Stop{Verdict::skipped, "no sequence has two tokens"};
        const std::int64_t cut = longest_ / 2;
        std::vector<Piece> shorter = all();
        for (Piece& p : shorter) p.end = std::min(p.end, cut);
        compare_pieces(pick(shorter), shorter, "tokens from " + std::to_string(cut) + " dropped", false, cut);

        io::Bundle changed = pick(all());
        const NormalForm form = cases::form_of(cases::bind(changed));
        for (io::Array& array : changed.tensors) {
            const Tensor t = array.view();
            const std::int64_t rows = cases::rows_a_token(array.name, form);
            if (t.rank < 3 || rows == 0) continue;
            for (std::int64_t n = 0; n < form.sequences; ++n) {
                const Span s = form.sequence(n);
                for (std::int64_t r = (s.begin + cut) * rows; r < s.end * rows; ++r)
                    for (std::int64_t h = 0; h < t.shape[2]; ++h)
                        for (std::int64_t i = 0; i < (t.rank == 4 ? t.shape[3] : 1); ++i) {
                            // Halved and a little moved: still a gate <= 0, a strength, a direction.
                            const std::int64_t at = offset_of(t, s.batch, r, h) + i;
                            store_element(t.data, t.dtype, at, load_element(t.data, t.dtype, at) * 0.5 - 0x1p-6);
                        }
            }
        }
        compare_pieces(changed, all(), "tokens from " + std::to_string(cut) + " changed", false, cut);
    }

    void resumable() {
        if (backward_) throw Stop{Verdict::skipped, "a cut gradient needs the state of a forward call"};
        if (bench_.expected().outputs[1].dtype != Dtype::fp32)
            throw Stop{Verdict::skipped, "the state handed on is not fp32"};
        if (nf_.every_token()) throw Stop{Verdict::skipped, "every token has a slot of its own"};
        const std::int64_t step = number("step", 64);
        const std::int64_t cut = std::max<std::int64_t>(longest_ / 2 / step, 1) * step;
        if (cut >= longest_)
            throw Stop{Verdict::skipped, "no sequence is longer than the step of " + std::to_string(step)};
        std::vector<Piece> head = all(), tail = all();
        for (std::size_t i = 0; i < head.size(); ++i) tail[i].begin = head[i].end = std::min(head[i].end, cut);
        const std::string how = "cut at token " + std::to_string(cut);
        compare_pieces(pick(head), head, how, false);
        io::Bundle rest = pick(tail);
        io::Array state = *last_.find(nf_.pool ? "state" : "final_state");
        if (!nf_.pool) state.name = "initial_state";
        rest.add(std::move(state));
        compare_pieces(rest, tail, how);
    }

    void isolated() {
        std::vector<Piece> pieces = all();
        if (pieces.size() == 1 && nf_.pool) throw Stop{Verdict::skipped, "one request, which owns its slots"};
        if (pieces.size() == 1) pieces.push_back(pieces[0]);
        std::int64_t victim = -1;
        for (std::size_t p = 0; p < pieces.size() && victim < 0; ++p)
            if (pieces[p].end > 0 && nf_.source(pieces[p].sequence) >= 0) victim = static_cast<std::int64_t>(p);
        if (victim < 0) throw Stop{Verdict::skipped, "no sequence has a token"};
        for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
            io::Bundle request = pick(pieces);
            const NormalForm form = cases::form_of(cases::bind(request));
            const Span s = form.sequence(victim);
            for (const Tensor* t : {&form.q, &form.k, &form.v})
                store_element(t->data, t->dtype, offset_of(*t, s.batch, (s.begin + s.end) / 2, 0), bad);
            if (form.pool)
                store_element(form.initial_state.data, form.initial_state.dtype,
                              offset_of(form.initial_state, form.source(victim), 0, 0, 0), bad);
            compare_pieces(request, pieces,
                           std::string(std::isnan(bad) ? "NaN" : "inf") + " in sequence " + std::to_string(victim),
                           true, kAll, victim);
        }
    }

    void untouched() {
        if (base_.unwritten.empty()) throw Stop{Verdict::skipped, "not checked: the subject owns its memory"};
        // In-process and lib: answers lie between guards; a write outside has failed the call already.
    }

    void padded() {
        const std::int64_t bucket = number("bucket", 16);
        const auto up = [bucket](std::int64_t n) { return (n + bucket - 1) / bucket * bucket; };
        const std::int64_t K = up(nf_.K), V = up(nf_.V);
        if (K == nf_.K && V == nf_.V)
            throw Stop{Verdict::skipped, "K and V fill the bucket of " + std::to_string(bucket)};
        const io::Bundle request = cases::zero_pad(bench_.request(), nf_, K, V);
        const io::Bundle answer = ask(request);
        const std::string how = "padded to " + std::to_string(K) + " x " + std::to_string(V);
        const auto& outputs = bench_.expected().outputs;
        for (std::size_t o = 0; o < outputs.size(); ++o) {
            const Output& out = outputs[o];
            const std::vector<double> values = values_of(answer, out.name, request);
            const auto wide = static_cast<std::int64_t>(values.size() / std::max<std::size_t>(out.cells.size(), 1));
            const bool state = out.name.find("state") != std::string::npos || out.name == "dh0";
            compare(
                o, values,
                [&](std::int64_t i) {
                    const std::int64_t j = i % nf_.V, c = i / nf_.V % nf_.K, s = i / nf_.V / nf_.K;
                    return state ? (s * K + c) * V + j : i / out.width * wide + i % out.width;
                },
                how);
        }
    }

    std::int64_t number(const std::string& key, std::int64_t otherwise) const {
        const std::string text = base_.answer.meta(key);
        if (text.empty()) return otherwise;
        if (text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos || std::stoll(text) == 0)
            throw Stop{Verdict::fail, "answer metadata " + key + ": given '" + text + "', expected a number"};
        return std::stoll(text);
    }

    static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

    const Bench& bench_;
    subjects::Subject& subject_;
    const subjects::Outcome& base_;
    const NormalForm& nf_;
    std::vector<bool> exact_;
    std::vector<std::vector<double>> values_;
    std::int64_t longest_ = 0;
    bool backward_ = bench_.request().meta("pass") == "backward";
    PropertyResult now_;
    io::Bundle last_;
};

}  // namespace

std::span<const PropertyRow> properties() { return kProperties; }

std::vector<PropertyResult> try_properties(const Bench& bench, subjects::Subject& subject,
                                           const subjects::Outcome& base, bool strict) {
    const char* missing = base.status != subjects::Status::answered ? "no answer to start from"
                          : !fits(base.answer, bench.request())     ? "its answer does not fit the request"
                                                                    : nullptr;
    if (missing != nullptr) {
        std::vector<PropertyResult> none;
        for (const PropertyRow& row : kProperties) none.push_back({row.name, Verdict::skipped, false, missing});
        return none;
    }
    return Trial(bench, subject, base, strict).run();
}

}  // namespace tidegate::judge
