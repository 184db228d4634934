// Faults of an answer: what a kernel that computes rightly and stores wrongly would leave behind.
#pragma once

#include "io/bundle.h"
#include "problem/normal_form.h"

namespace tidegate::faults {

inline constexpr std::int64_t kTile = 64;  ///< tokens; the chunk length of most kernels

void zero_output(const NormalForm& nf, io::Bundle& answer);
void nan_leak(const NormalForm& nf, io::Bundle& answer);
void stale_output(const NormalForm& nf, io::Bundle& answer);
void last_token_zero(const NormalForm& nf, io::Bundle& answer);
void token_duplicated(const NormalForm& nf, io::Bundle& answer);
void tail_zero(const NormalForm& nf, io::Bundle& answer);
void heads_swapped(const NormalForm& nf, io::Bundle& answer);
void final_state_zero(const NormalForm& nf, io::Bundle& answer);
void final_state_transposed(const NormalForm& nf, io::Bundle& answer);
void pad_output(const NormalForm& nf, io::Bundle& answer);
void pad_written(const NormalForm& nf, io::Bundle& answer);
void neighbour_slot(const NormalForm& nf, io::Bundle& answer);
void dh0_zero(const NormalForm& nf, io::Bundle& answer);
void dv_next_token(const NormalForm& nf, io::Bundle& answer);
void state_tokens_last(const NormalForm& nf, io::Bundle& answer);

/// Rows of the answer's state (final_state or pool) that the call stores, once each, in order.
std::vector<std::int64_t> stored_rows(const NormalForm& nf);

}  // namespace tidegate::faults
