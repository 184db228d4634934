// How an evaluation rounds, and which mistake it makes. Real = double without mistake is the oracle.
#pragma once

#include <vector>

#include "problem/normal_form.h"
#include "problem/number.h"

namespace tidegate::reference {

/// Mistakes that only the recurrence itself can make; others are edits of the normal form (src/faults).
enum class Mistake {
    none,
    error_before_decay,  ///< what a step reads of the state: before its decay where after is right, or the reverse
    decay_each_step,     ///< a token's decay in every Householder step
    read_before_write,
    chunk_reset,
    // Of the adjoint:
    state_gradient_reset,      ///< the gradient of the state is zeroed every kResetChunk tokens
    gate_without_erase,        ///< dg lacks what the gate does through the error term
    key_without_erase,         ///< dk lacks its part in the error term
    strength_without_erase,    ///< dbeta is that of the write strength alone
    last_head_only,            ///< dq and dk of the last value head of a group instead of the sum
    norm_skipped,              ///< dq and dk of the normalised rows
    clamped_gate_has_gradient  ///< dg passes below gate_min
};

struct Policy {
    Dtype operand = Dtype::fp64;  ///< what the chunked form's products read; fp64: as computed
    Dtype state = Dtype::fp64;    ///< what the state is rounded to after every step of the recurrence
    Mistake mistake = Mistake::none;
};

inline constexpr std::int64_t kResetChunk = 64;  ///< tokens, of Mistake::chunk_reset

/// Outputs before they are rounded to the output type; row-major, states as [.., HV, K, V] whatever the caller's
/// layout. Of pads: zeros.
struct Answer {
    std::vector<double> o;             ///< [B, T, HV, V]
    std::vector<double> final_state;   ///< [N, HV, K, V]
    std::vector<double> state_tokens;  ///< [B, T, HV, K, V] of a decode call that stores them all, else empty

    explicit Answer(const NormalForm& nf)
        : o(static_cast<std::size_t>(nf.batch * nf.tokens * nf.value_heads * nf.V)),
          final_state(static_cast<std::size_t>(nf.sequences * nf.value_heads * nf.K * nf.V)),
          state_tokens(nf.every_token() ? o.size() * static_cast<std::size_t>(nf.K) : 0) {}

    /// Calls f(row of final_state, index of the first of its HV K V values, the vector they are in) for every state
    /// that the call stores, in order.
    template <class F>
    void each_stored(const NormalForm& nf, const F& f) const {
        const auto size = static_cast<std::size_t>(nf.value_heads * nf.K * nf.V);
        for (std::int64_t n = 0; n < nf.sequences; ++n) {
            if (nf.source(n) < 0) continue;
            if (state_tokens.empty()) f(nf.source(n), static_cast<std::size_t>(n) * size, final_state);
            for (std::int64_t t = 0; !state_tokens.empty() && t < nf.tokens; ++t)
                if (const std::int64_t row = nf.target(n, t); row >= 0)
                    f(row, static_cast<std::size_t>(n * nf.tokens + t) * size, state_tokens);
        }
    }
};

/// Stores an answer into the form's outputs, rounded once to their types.
void store(const Answer& answer, const NormalForm& nf);

}  // namespace tidegate::reference
