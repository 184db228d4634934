// raise(): the transpose of lower() and of the front ends, for one row: from gradients of what the recurrence reads to
// gradients of what the caller gave. R as in load.h.
#pragma once

#include "problem/gradients.h"
#include "problem/load.h"

namespace tidegate {

/// x where the factor is 0: what is flat takes no part, whatever is infinite beside it.
template <class R>
R times(R factor, R x) {
    return factor == 0 ? R(0) : factor * x;
}

/// d(gate)/d(logit + bias), and the gate itself, whose share of dA_log is times dg for softplus.
template <class R>
struct GateSlope {
    R by_x;      ///< of the source's x and its bias
    R by_A_log;  ///< of A_log
};

/// `x`: the source's element, with the bias added to logits. 0 where the gate is flat: below its minimum, and below
/// -128, where the decay is 0 in fp32. Without `clamps` the minimum is ignored.
template <class R>
GateSlope<R> gate_slope(const GateSource& s, R A_log, R x, bool clamps = true) {
    const R least = static_cast<R>(s.min && clamps ? std::max(*s.min, -128.0) : -128.0);
    if (s.kind == GateKind::given) return {x < least ? R(0) : R(1), R(0)};
    if (s.kind == GateKind::softplus) {
        const R g = softplus_gate(A_log, x);
        if (g < least) return {0, 0};
        return {-std::exp(A_log - softplus(-x)), g};  // exp(A_log) sigmoid(x), exponents added first
    }
    const R y = x == 0 ? R(0) : std::exp(A_log) * x, bound = static_cast<R>(s.lower_bound);
    if (bound * sigmoid(y) < least) return {0, 0};
    const R slope = bound * sigmoid(y) * sigmoid(-y);
    return {times(slope, std::exp(A_log)), times(slope, y)};
}

/// d(strength)/d(the source's x).
template <class R>
R strength_slope(StrengthKind kind, R x) {
    if (kind == StrengthKind::sigmoid) return sigmoid(x) * sigmoid(-x);
    if (kind == StrengthKind::twice_sigmoid) return 2 * sigmoid(x) * sigmoid(-x);
    return 1;
}

/// Gradient of a row before its L2 normalisation: (d - y (y . d)) / norm for y = x / norm, in place. `minus` is -1, or
/// 1 for sums of magnitudes.
template <class R>
void raise_row(const Tensor& t, std::int64_t offset, const std::vector<R>& y, R minus, std::vector<R>& d) {
    R sum = 0, dot = 0;
    for (std::size_t i = 0; i < d.size(); ++i) {
        const R x = load_as<R>(t, offset + static_cast<std::int64_t>(i));
        sum += x * x;
        dot += y[i] * d[i];
    }
    const R norm = std::sqrt(sum + R(1e-6));
    for (std::size_t i = 0; i < d.size(); ++i) d[i] = (d[i] + minus * y[i] * dot) / norm;
}

}  // namespace tidegate
