// The contract's invariants, tried on any subject by asking it again: no oracle decides, its own answers do.
#pragma once

#include "judge/judge.h"
#include "subjects/subject.h"

namespace tidegate::judge {

struct PropertyRow {
    const char* name;
    const char* what;
};
std::span<const PropertyRow> properties();

struct PropertyResult {
    std::string name;
    Verdict verdict = Verdict::pass;  ///< pass, fail, skipped, crashed or hung
    bool bit_for_bit = false;         ///< what was asked of it; else within the case's gate
    std::string where;                ///< of a failure: the first difference; of a skip: why
};

/// A subject claims properties bit for bit in its answer's metadata: `bit_exact` is "all" or names, by spaces; `step`
/// is the tokens that a cut must be a multiple of (default 64), `bucket` what K and V are padded to (default 16).
/// `strict` asks for every bit whatever is claimed. `base` is its answer to the bench's request.
std::vector<PropertyResult> try_properties(const Bench& bench, subjects::Subject& subject,
                                           const subjects::Outcome& base, bool strict);

}  // namespace tidegate::judge
