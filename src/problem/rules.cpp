#include "problem/rules.h"

#include <array>

#include "tidegate/error.h"

namespace tidegate {
namespace {

constexpr std::array kRules{
    RuleRow{Rule::deltanet, "deltanet", Decay::none, true, Width::scalar, Width::scalar, false, false,
            "S = S + k (beta (v - S^T k))^T (DeltaNet, arXiv:2406.06484)"},
    RuleRow{Rule::gdn, "gdn", Decay::scalar, true, Width::scalar, Width::scalar, false, false,
            "S = exp(g) S + k (beta (v - exp(g) S^T k))^T, one decay a head (Gated DeltaNet, arXiv:2412.06464)"},
    RuleRow{Rule::kda, "kda", Decay::vector, true, Width::scalar, Width::scalar, false, false,
            "S = D S + k (beta (v - (D S)^T k))^T, one decay a channel (Kimi Delta Attention, arXiv:2510.26692)"},
    RuleRow{Rule::gdn2, "gdn2", Decay::vector, true, Width::vector_k, Width::vector_v, false, false,
            "S = D S + k (write o v - (D S)^T (erase o k))^T, erase a channel, write a column (Gated DeltaNet-2)"},
    RuleRow{Rule::gdp, "gdp", Decay::scalar, true, Width::scalar, Width::scalar, true, false,
            "n steps of gdn a token, the decay in the first (Gated DeltaProduct, arXiv:2502.10297)"},
    RuleRow{Rule::dplr, "dplr", Decay::vector, false, Width::one, Width::one, false, false,
            "S = D S + lr_b (lr_a^T S) + k v^T: diagonal plus low rank"},
    RuleRow{Rule::iplr, "iplr", Decay::none, false, Width::one, Width::one, false, false,
            "S = S + lr_b (lr_a^T S) + k v^T: identity plus low rank"},
    RuleRow{Rule::rwkv7, "rwkv7", Decay::vector, false, Width::one, Width::one, false, true,
            "S = D S + lr_b (lr_a^T S) + k v^T, scale 1; lr_a = -kk, lr_b = kk o eta (RWKV-7, arXiv:2503.14456)"},
};

}  // namespace

std::span<const RuleRow> rules() { return kRules; }

const RuleRow& row_of(Rule rule) {
    for (const RuleRow& row : kRules)
        if (row.rule == rule) return row;
    throw Error("rule", "rule: given number " + std::to_string(static_cast<int>(rule)) + ", which names no rule");
}

const char* name_of(Rule rule) { return row_of(rule).name; }

Rule rule_from(const std::string& name) {
    std::string known;
    for (const RuleRow& row : kRules) {
        if (name == row.name) return row.rule;
        known += std::string(known.empty() ? "" : ", ") + row.name;
    }
    throw Error("rule", "rule: given '" + name + "', expected one of " + known);
}

}  // namespace tidegate
