// The one table of rules. A rule is a row: what its tensors are called and what they become in the normal form.
#pragma once

#include <span>

#include "problem/normal_form.h"
#include "tidegate/rule.h"

namespace tidegate {

/// How wide a strength (beta, erase, write) is, per token and value head.
enum class Width { one, scalar, vector_k, vector_v };

struct RuleRow {
    Rule rule;
    const char* name;
    Decay decay;       ///< of `g` or `a`
    bool tied;         ///< a = -D (e o k), b = k, value w o v; else `lr_a`, `lr_b` are given
    Width erase;       ///< e; `scalar` is beta
    Width write;       ///< w; `scalar` is beta
    bool householder;  ///< several steps a token
    bool unit_scale;   ///< scale defaults to 1 instead of K^-0.5
    const char* formula;
};

std::span<const RuleRow> rules();
const RuleRow& row_of(Rule rule);

/// Whether the rule has `beta` (or its logits).
inline bool has_beta(const RuleRow& row) { return row.erase == Width::scalar || row.write == Width::scalar; }
/// Whether logits can stand for its gates or strengths.
inline bool has_logits(const RuleRow& row) { return row.decay != Decay::none || has_beta(row); }
/// Whether a packed row of q, k, v and a row of logits say all of a token.
inline bool packs(const RuleRow& row) { return has_beta(row) && !row.householder; }

}  // namespace tidegate
