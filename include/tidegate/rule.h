// The update rules, by their names in the field.
#pragma once

#include <string>

namespace tidegate {

enum class Rule { deltanet, gdn, kda, gdn2, gdp, dplr, iplr, rwkv7 };

const char* name_of(Rule rule);
/// Throws Error("rule") that lists the known names.
Rule rule_from(const std::string& name);

}  // namespace tidegate
