// Measures of one output tensor, and the gauge that takes them.
//   nrmse = RMS(err) / RMS(ref): 0 if both are 0, inf if only ref is. cosine: 1 if both are 0, 0 if one is.
//   size_ratio = |out| / |ref|: 1 if both are 0, inf if only ref is.
// Elements whose right value is not finite, as the output type holds it, enter no sum; they must be met in kind.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "judge/expected.h"

namespace tidegate::judge {

struct Worst {
    std::int64_t sequence = -1, token = -1, head = -1, channel = -1;  ///< token: packed, B T of a batch
    std::int64_t own_token = -1;                                      ///< counted in its sequence
};

struct Measures {
    double nrmse = 0, cosine = 1, size_ratio = 1, max_abs = 0, absmax_out = 0, absmax_ref = 0;
    double worst_token_nrmse = 0, min_token_cosine = 1;  ///< over (token, head); for states over (sequence, head)
    double worst_sequence_nrmse = 0, worst_head_nrmse = 0;
    double zeros_nrmse = 0;                          ///< what zeros would have scored
    double share_out = 0;                            ///< share of elements over their own limit
    double zero_share = 0;                           ///< share of exact zeros where the right value is not
    std::int64_t nan = 0, inf = 0;                   ///< in the answer
    std::int64_t mismatched = 0;                     ///< finite where it must not be, or the other way round
    std::map<int, std::int64_t> hist_abs, hist_rel;  ///< counts by floor(log2); INT_MIN: zero
    double limit = 0;                                ///< the gate's tensor-wide limit on nrmse (or its own unit)
    double needed = 0;                               ///< error over limit, worst over all the gate looks at; > 1 fails
    Worst worst;                                     ///< where `needed` is, and its largest element
    std::int64_t first_over = -1;                    ///< first packed token over its limit; -1: none
    std::vector<std::int64_t> heads_over;            ///< value heads with a cell over its limit
    std::string why;                                 ///< what exceeded the gate, in words; empty if nothing did
};

enum class Profile { derived, kcp, chunk_fp16, decode_fp16, packed_decode };
struct Gate {
    Profile profile = Profile::derived;
    const char* name = "derived";
    int version = 1;
    const char* what = "";
};
std::span<const Gate> gates();
/// Throws Error("gate") that lists the names.
Gate gate_from(const std::string& name);

/// Sums over a group of elements, of values times the gauge's scale.
struct Sums {
    double err = 0, ref = 0, out = 0, dot = 0, count = 0;
    double twin = 0, ulp = 0, magnitude = 0;  ///< squares of the twin's error, of half ulps, of magnitudes
};

class Gauge {
public:
    Gauge(const Output& output, const Gate& gate);

    /// Everything, for a report.
    Measures measure(std::span<const double> out) const;
    /// Only whether the gate lets it pass.
    bool passes(std::span<const double> out) const;

    const Output& output() const { return output_; }
    double reference_rms() const { return reference_rms_; }
    /// Elements that say nothing: the twin overflowed where the exact value is finite, or they are too small beside the
    /// tensor's largest to be squared in one range with it.
    std::int64_t undecided() const { return undecided_; }
    bool zero_reference() const { return zero_reference_; }  ///< identically zero, or empty
    std::span<const char> finite() const { return finite_; }

private:
    struct Totals {
        Sums all;
        std::vector<Sums> cells, heads, sequences;
        std::vector<Sums> pairs;  ///< by sequence and head: others' values say nothing about theirs
        std::int64_t mismatched = 0;
        std::int64_t first_mismatch = -1;
        double max_abs = 0;
    };
    Totals add_up(std::span<const double> out) const;
    void apply_gate(const Totals& t, Measures& m) const;
    double cell_limit(std::size_t cell, const Totals& t) const;
    std::size_t pair_of(const Cell& cell) const {
        return static_cast<std::size_t>(cell.sequence) * heads_ + static_cast<std::size_t>(cell.head);
    }

    const Output& output_;
    Gate gate_;
    std::vector<char> finite_;  ///< 1: enters the sums
    std::vector<Sums> fixed_;   ///< per cell: twin, ulp, magnitude, count
    double scale_ = 1;          ///< power of two that keeps squares in range
    double reference_rms_ = 0;  ///< not scaled
    std::int64_t undecided_ = 0;
    bool zero_reference_ = true;
    std::size_t heads_ = 0, sequences_ = 0;
};

}  // namespace tidegate::judge
