#pragma once

#include "reference/policy.h"

namespace tidegate::reference {

/// Intermediates of the chunked form, by packed row (token * steps + step); names are the field's.
struct Stages {
    std::int64_t rows = 0;                  ///< rows a full chunk: C * steps
    std::vector<double> A;                  ///< [B, T * steps, HV, rows]: row of the WY inverse inside its chunk
    std::vector<double> u, v_new;           ///< [B, T * steps, HV, V]
    std::vector<double> w;                  ///< [B, T * steps, HV, K]
    std::vector<double> h;                  ///< [chunks, HV, K, V]: state entering each chunk, sequences in order
    std::vector<std::int64_t> chunk_begin;  ///< first token of each chunk (packed; of its batch row when B > 1)
};

/// The chunked evaluation, C tokens a chunk counted from each sequence's first token; policy.operand rounds what the
/// products read (q, k, A, w, S, v_new, P). Masks come before exp and only exponents <= 0 are evaluated; sums of g are
/// formed in double after g < -128 became -128. Equal to recurrence() up to rounding.
template <class Real>
Answer chunked(const NormalForm& nf, std::int64_t C, const Policy& policy = {}, Stages* stages = nullptr);

}  // namespace tidegate::reference
