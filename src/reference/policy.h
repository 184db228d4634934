// How an evaluation rounds, and which mistake it makes. Real = double without mistake is the oracle.
#pragma once

#include <vector>

#include "problem/normal_form.h"
#include "problem/number.h"

namespace tidegate::reference {

/// Mistakes that only the recurrence itself can make; others are edits of the normal form (src/faults).
enum class Mistake { none, error_before_decay, read_before_write, chunk_reset };

struct Policy {
    Dtype operand = Dtype::fp64;  ///< what the chunked form's products read; fp64: as computed
    Dtype state = Dtype::fp64;    ///< what the state is rounded to after every step of the recurrence
    Mistake mistake = Mistake::none;
};

inline constexpr std::int64_t kResetChunk = 64;  ///< tokens, of Mistake::chunk_reset

/// Outputs before they are rounded to the output type; row-major, state as [N, HV, K, V] whatever the caller's layout.
struct Answer {
    std::vector<double> o;            ///< [B, T, HV, V]
    std::vector<double> final_state;  ///< [N, HV, K, V]

    explicit Answer(const NormalForm& nf)
        : o(static_cast<std::size_t>(nf.batch * nf.tokens * nf.value_heads * nf.V)),
          final_state(static_cast<std::size_t>(nf.sequences * nf.value_heads * nf.K * nf.V)) {}
};

/// Stores an answer into nf.o and nf.final_state, rounded once to their types.
void store(const Answer& answer, const NormalForm& nf);

}  // namespace tidegate::reference
