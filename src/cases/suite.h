// Suites: lists of case ids. `field` holds the kinds of inputs that have broken real kernels (docs/cases.md).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cases/case.h"

namespace tidegate::cases {

struct Suite {
    const char* name;
    const char* what;
    bool in_all = true;
};
std::span<const Suite> suites();

struct Filter {
    std::optional<Rule> rule;
    std::optional<Dtype> dtype;
    std::string pass = "forward";
};

/// Throws Error("suite") that lists the known suites. Every case once, in a fixed order.
std::vector<Case> suite(const std::string& name, const Filter& filter = {});

}  // namespace tidegate::cases
