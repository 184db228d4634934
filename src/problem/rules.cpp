#include "problem/rules.h"

#include <array>

#include "tidegate/error.h"

namespace tidegate {
namespace {

constexpr std::array kRules{
    RuleRow{Rule::gdn, "gdn", Decay::scalar, true, Width::scalar, Width::scalar, false,
            "S = exp(g) S + k (beta (v - exp(g) S^T k))^T, one decay a head (Gated DeltaNet, arXiv:2412.06464)"},
    RuleRow{Rule::kda, "kda", Decay::vector, true, Width::scalar, Width::scalar, false,
            "S = D S + k (beta (v - (D S)^T k))^T, one decay a channel (Kimi Delta Attention, arXiv:2510.26692)"},
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
