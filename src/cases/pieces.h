// Requests made of parts of another: sequences alone, cut, repeated, or zero-padded.
#pragma once

#include <vector>

#include "io/bundle.h"
#include "problem/normal_form.h"

namespace tidegate::cases {

/// Tokens [begin, end) of sequence n, counted from its start, as a sequence of its own.
struct Piece {
    std::int64_t sequence, begin, end;
};

/// The pieces as packed sequences, in order (one piece: a batch of one); of a decode request, whose pieces are equally
/// long, as requests on the same pool. Initial states follow their sequences; those of pieces that do not begin at 0
/// are the caller's to set.
io::Bundle select(const io::Bundle& request, const NormalForm& form, const std::vector<Piece>& pieces);

/// Rows a token of the input tensor called `name`; 0 if it is not by token.
std::int64_t rows_a_token(const std::string& name, const NormalForm& form);

/// K and V zero-padded; the scale is held, decays of new channels are 1.
io::Bundle zero_pad(const io::Bundle& request, const NormalForm& form, std::int64_t K, std::int64_t V);

/// A decode request of one token and logits as a packed one: q, k and v side by side in one row.
void pack(io::Bundle& request);

}  // namespace tidegate::cases
