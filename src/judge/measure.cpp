#include "judge/measure.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <limits>

#include "problem/number.h"
#include "tidegate/error.h"

namespace tidegate::judge {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

constexpr std::array kGates{
    Gate{
        Profile::derived, "derived", 3,
        "error <= 2x the twin's per tensor and head, 8x per token; plus half an ulp and 2^-23 of the step's magnitude"},
    Gate{Profile::kcp, "kcp", 1, "nrmse < 5e-3 per sequence"},
    Gate{Profile::chunk_fp16, "chunk-fp16", 1, "cosine >= 0.999 and nrmse <= 0.02"},
    Gate{Profile::decode_fp16, "decode-fp16", 1, "|err| <= 1e-3 per element"},
    Gate{Profile::packed_decode, "packed-decode", 1, "state within 1e-6 per element; o as under derived"},
};
constexpr double kKcp = 5e-3, kChunkNrmse = 0.02, kChunkCosine = 0.999, kDecode = 1e-3, kPacked = 1e-6;

double rms(double squares, double count) { return count > 0 ? std::sqrt(squares / count) : 0; }
/// x / y; 0 / 0 is 0, and what is no number counts as infinitely far.
double ratio(double x, double y) {
    const double r = y > 0 ? x / y : x > 0 ? kInf : 0;
    return std::isnan(r) || std::isnan(x) ? kInf : r;
}
double nrmse(const Sums& s) { return ratio(std::sqrt(s.err), std::sqrt(s.ref)); }
double cosine(const Sums& s) {
    if (s.out == 0 && s.ref == 0) return 1;
    return s.out == 0 || s.ref == 0 ? 0 : s.dot / std::sqrt(s.out) / std::sqrt(s.ref);
}
double size_ratio(const Sums& s) { return s.out == 0 && s.ref == 0 ? 1 : ratio(std::sqrt(s.out), std::sqrt(s.ref)); }
/// 2 or 8 times the twin, plus half an ulp, plus two roundings of the step's magnitude.
double derived_limit(double twin, const Sums& s) {
    return twin + rms(s.ulp, s.count) + 0x1p-23 * rms(s.magnitude, s.count);
}
/// Of a tensor or a head. The RMS of a few errors is no measure of the next few: they are judged as a token's are.
double whole_limit(const Sums& s) { return derived_limit((s.count < 16 ? 8 : 2) * rms(s.twin, s.count), s); }

void accumulate(Sums& to, const Sums& s) {
    to.err += s.err, to.ref += s.ref, to.out += s.out, to.dot += s.dot, to.count += s.count;
    to.twin += s.twin, to.ulp += s.ulp, to.magnitude += s.magnitude;
}

/// Within a step of where the output type overflows, a right kernel may land on either side.
bool near_overflow(double exact, Dtype dtype) {
    const double max = format_of(dtype).max;
    return std::isfinite(exact) && std::fabs(std::fabs(exact) / max - 1) < 0x1p-8;
}

/// Whether `x` is met in kind by an element that enters no sum. NaN may be met by inf: what arithmetic makes of either
/// depends on its order. A finite value that the output type cannot hold must become the inf a cast gives.
bool met_in_kind(double exact, double x, Dtype dtype) {
    const bool overflows = std::isinf(round_to(exact, dtype));
    if (near_overflow(exact, dtype))
        return std::signbit(x) == std::signbit(exact) && (std::isinf(x) || near_overflow(x, dtype));
    if (!std::isfinite(exact)) return !std::isfinite(x);
    return overflows && x == std::copysign(kInf, exact);
}

/// Whose every bit was given.
std::string kept_name(const Output& output, std::size_t cell) {
    const std::string n = std::to_string(output.cells[cell].sequence);
    return output.name == "state" ? "slot " + n + ", which no request may write"
                                  : "request " + n + ", a pad, whose rows are zeros";
}

int exponent(double x) { return x == 0 ? INT_MIN : std::isfinite(x) ? std::ilogb(x) : INT_MAX; }

}  // namespace

std::span<const Gate> gates() { return kGates; }

Gate gate_from(const std::string& name) {
    std::string known;
    for (const Gate& gate : kGates) {
        if (name == gate.name) return gate;
        known += std::string(known.empty() ? "" : ", ") + gate.name;
    }
    throw Error("gate", "gate: given '" + name + "', expected one of " + known);
}

Gauge::Gauge(const Output& output, const Gate& gate) : output_(output), gate_(gate), finite_(output.exact.size()) {
    fixed_.resize(output.cells.size());
    double largest = 0;
    for (const double exact : output.exact)
        if (std::isfinite(exact)) largest = std::max(largest, std::fabs(exact));
    if (largest > 0) scale_ = std::ldexp(1.0, std::clamp(-std::ilogb(largest), -1000, 1000));
    double squares = 0, count = 0;
    for (std::size_t i = 0; i < output.exact.size(); ++i) {
        const double exact = output.exact[i], twin = (output.twin[i] - exact) * scale_;
        zero_reference_ = zero_reference_ && exact == 0;
        const bool in_range = std::isfinite(round_to(exact, output.dtype));
        const bool vanishes = exact != 0 && std::fabs(exact) * scale_ < 0x1p-500;
        finite_[i] = in_range && std::isfinite(twin) && !vanishes ? 1 : 0;
        undecided_ += in_range && finite_[i] == 0 && !near_overflow(exact, output.dtype) ? 1 : 0;
        if (finite_[i] == 0) continue;
        Sums& s = fixed_[i / static_cast<std::size_t>(output.width)];
        const bool kept = output.cells[i / static_cast<std::size_t>(output.width)].kept;
        const double half = kept ? 0 : 0.5 * ulp(exact, output.dtype) * scale_,
                     magnitude = output.magnitude[i] * scale_;
        s.twin += twin * twin;
        s.ulp += half * half;
        s.magnitude += std::isfinite(magnitude) ? magnitude * magnitude : 0;
        s.count += 1;
        squares += exact * scale_ * exact * scale_;
        count += 1;
    }
    reference_rms_ = rms(squares, count) / scale_;
    for (const Cell& cell : output.cells) {
        heads_ = std::max(heads_, static_cast<std::size_t>(cell.head) + 1);
        sequences_ = std::max(sequences_, static_cast<std::size_t>(cell.sequence) + 1);
    }
}

Gauge::Totals Gauge::add_up(std::span<const double> out) const {
    Totals t;
    t.cells = fixed_;
    t.heads.resize(heads_);
    t.sequences.resize(sequences_);
    t.pairs.resize(sequences_ * heads_);
    const auto width = static_cast<std::size_t>(output_.width);
    for (std::size_t c = 0; c < t.cells.size(); ++c) {
        Sums& s = t.cells[c];
        for (std::size_t i = c * width; i < (c + 1) * width; ++i) {
            const double exact = output_.exact[i], x = out[i];
            if (finite_[i] == 0 || !std::isfinite(x)) {
                const bool decided =
                    !std::isfinite(round_to(exact, output_.dtype)) || near_overflow(exact, output_.dtype);
                const bool met = decided ? met_in_kind(exact, x, output_.dtype) : finite_[i] == 0;
                if (!met && t.mismatched++ == 0) t.first_mismatch = static_cast<std::int64_t>(i);
                continue;
            }
            const double e = (x - exact) * scale_, ref = exact * scale_, got = x * scale_;
            s.err += e * e;
            s.ref += ref * ref;
            s.out += got * got;
            s.dot += got * ref;
            t.max_abs = std::max(t.max_abs, std::fabs(x - exact));
        }
        accumulate(t.all, s);
        accumulate(t.heads[static_cast<std::size_t>(output_.cells[c].head)], s);
        accumulate(t.pairs[pair_of(output_.cells[c])], s);
        accumulate(t.sequences[static_cast<std::size_t>(output_.cells[c].sequence)], s);
    }
    return t;
}

double Gauge::cell_limit(std::size_t cell, const Totals& t) const {
    const Sums& s = t.cells[cell];
    if (output_.cells[cell].kept) return 0;
    const Sums& pair = t.pairs[pair_of(output_.cells[cell])];
    return derived_limit(8 * std::max(rms(s.twin, s.count), rms(pair.twin, pair.count)), s);
}

void Gauge::apply_gate(const Totals& t, Measures& m) const {
    m.needed = 0;
    const auto look = [&](double error, double limit, const std::string& what) {
        const double needed = ratio(error, limit);
        if (needed > m.needed) {
            m.needed = needed;
            m.why = "error over the limit: " + what;
        }
    };
    if (t.mismatched > 0) {
        m.needed = kInf;
        m.why = std::to_string(t.mismatched) + " elements not finite where they must be, or the other way round";
    }
    for (std::size_t c = 0; c < t.cells.size(); ++c)
        if (output_.cells[c].kept) look(rms(t.cells[c].err, t.cells[c].count), 0, kept_name(output_, c));
    const bool state = !output_.cells.empty() && output_.cells[0].token < 0;
    switch (gate_.profile) {
        case Profile::kcp:
            m.limit = kKcp;
            for (std::size_t n = 0; n < t.sequences.size(); ++n)
                look(nrmse(t.sequences[n]), kKcp, "nrmse of sequence " + std::to_string(n));
            return;
        case Profile::chunk_fp16:
            m.limit = kChunkNrmse;
            look(nrmse(t.all), kChunkNrmse, "nrmse");
            look(1 - cosine(t.all), 1 - kChunkCosine, "1 - cosine");
            return;
        case Profile::decode_fp16:
            m.limit = kDecode;
            look(t.max_abs, kDecode, "|err|");
            return;
        case Profile::packed_decode:
            if (state) {
                m.limit = kPacked;
                look(t.max_abs, kPacked, "|err|");
                return;
            }
            [[fallthrough]];
        case Profile::derived:
            break;
    }
    const double limit = whole_limit(t.all);
    m.limit = ratio(limit, rms(t.all.ref, t.all.count));
    look(rms(t.all.err, t.all.count), limit, "the tensor");
    for (std::size_t h = 0; h < t.heads.size(); ++h)
        look(rms(t.heads[h].err, t.heads[h].count), whole_limit(t.heads[h]), "head " + std::to_string(h));
    for (std::size_t c = 0; c < t.cells.size(); ++c) {
        const Cell& cell = output_.cells[c];
        const Sums& s = t.cells[c];
        const double cell_max = cell_limit(c, t);
        if (ratio(rms(s.err, s.count), cell_max) <= m.needed) continue;
        look(rms(s.err, s.count), cell_max,
             (state ? (output_.name == "state" ? "slot " : "sequence ") + std::to_string(cell.sequence)
                    : "token " + std::to_string(cell.token)) +
                 ", head " + std::to_string(cell.head));
    }
}

bool Gauge::passes(std::span<const double> out) const {
    Measures m;
    apply_gate(add_up(out), m);
    return m.needed <= 1;
}

Measures Gauge::measure(std::span<const double> out) const {
    const Totals t = add_up(out);
    Measures m;
    apply_gate(t, m);
    if (m.needed <= 1) m.why.clear();
    m.nrmse = nrmse(t.all);
    m.cosine = cosine(t.all);
    m.size_ratio = size_ratio(t.all);
    m.max_abs = t.max_abs;
    if (t.mismatched > 0 && t.all.out == 0) {  // nothing that could be measured: never a perfect score
        m.nrmse = kInf;
        m.cosine = m.size_ratio = 0;
    }
    m.mismatched = t.mismatched;
    m.zeros_nrmse = t.all.ref > 0 ? 1 : 0;
    for (const Sums& s : t.heads) m.worst_head_nrmse = std::max(m.worst_head_nrmse, nrmse(s));
    for (const Sums& s : t.sequences) m.worst_sequence_nrmse = std::max(m.worst_sequence_nrmse, nrmse(s));

    const auto width = static_cast<std::size_t>(output_.width);
    std::size_t worst = t.cells.size();
    double worst_needed = -1;
    std::int64_t over = 0, zeros = 0, nonzero = 0;
    for (std::size_t c = 0; c < t.cells.size(); ++c) {
        const Sums& s = t.cells[c];
        const double limit = cell_limit(c, t);
        const double needed = ratio(rms(s.err, s.count), limit);
        if (needed > worst_needed) {
            worst_needed = needed;
            worst = c;
        }
        if (needed > 1) {
            const Cell& cell = output_.cells[c];
            if (cell.token >= 0 && (m.first_over < 0 || cell.token < m.first_over)) m.first_over = cell.token;
            if (std::find(m.heads_over.begin(), m.heads_over.end(), cell.head) == m.heads_over.end())
                m.heads_over.push_back(cell.head);
        }
        m.worst_token_nrmse = std::max(m.worst_token_nrmse, nrmse(s));
        m.min_token_cosine = std::min(m.min_token_cosine, cosine(s));
        for (std::size_t i = c * width; i < (c + 1) * width; ++i) {
            const double x = out[i], exact = output_.exact[i], e = std::fabs(x - exact);
            m.nan += std::isnan(x) ? 1 : 0;
            m.inf += std::isinf(x) ? 1 : 0;
            if (std::isfinite(x)) m.absmax_out = std::max(m.absmax_out, std::fabs(x));
            if (finite_[i] == 0 || !std::isfinite(x)) continue;
            m.absmax_ref = std::max(m.absmax_ref, std::fabs(exact));
            const bool fixed = gate_.profile == Profile::decode_fp16;
            over += e > (fixed ? kDecode : limit / scale_) ? 1 : 0;
            nonzero += exact != 0 ? 1 : 0;
            zeros += exact != 0 && x == 0 ? 1 : 0;
            ++m.hist_abs[exponent(e)];
            ++m.hist_rel[exponent(exact != 0 ? e / std::fabs(exact) : e == 0 ? 0 : kInf)];
        }
    }
    if (!output_.exact.empty()) m.share_out = static_cast<double>(over) / static_cast<double>(output_.exact.size());
    if (nonzero > 0) m.zero_share = static_cast<double>(zeros) / static_cast<double>(nonzero);
    std::int64_t at = -1;
    if (t.first_mismatch >= 0) {
        at = t.first_mismatch;
    } else if (worst < t.cells.size()) {
        double largest = -1;
        for (std::size_t i = worst * width; i < (worst + 1) * width; ++i) {
            const double e = finite_[i] != 0 && std::isfinite(out[i]) ? std::fabs(out[i] - output_.exact[i]) : -1;
            if (e > largest) {
                largest = e;
                at = static_cast<std::int64_t>(i);
            }
        }
    }
    if (at >= 0) {
        const Cell& cell = output_.cells[static_cast<std::size_t>(at) / width];
        m.worst = {cell.sequence, cell.token, cell.head, at % output_.width, cell.token};
        for (const Cell& other : output_.cells)  // tokens of a sequence lie in order
            if (other.sequence == cell.sequence && cell.token >= 0) {
                m.worst.own_token = cell.token - other.token;
                break;
            }
    }
    return m;
}

}  // namespace tidegate::judge
