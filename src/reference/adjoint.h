#pragma once

#include "problem/gradients.h"
#include "reference/policy.h"

namespace tidegate::reference {

/// Gradients by Role before they are rounded to their types, row-major as BackwardForm::shape() says; empty where the
/// form has none.
struct Gradients {
    std::array<std::vector<double>, kRoles> by_role;
    explicit Gradients(const BackwardForm& form);
    std::vector<double>& of(Role role) { return by_role[static_cast<std::size_t>(role)]; }
    const std::vector<double>& of(Role role) const { return by_role[static_cast<std::size_t>(role)]; }
};

/// The exact adjoint of recurrence(), token by token from the last, with raise() to what the caller gave: every sum and
/// product in Real. It keeps the state after every step of one sequence and head. `magnitude`, if given, receives the
/// sums of absolute values of the terms that a gradient's own step adds up.
template <class Real>
Gradients adjoint(const BackwardForm& form, const Policy& policy = {}, Gradients* magnitude = nullptr);

/// Stores gradients into the form's outputs, rounded once to their types.
void store(const Gradients& gradients, const BackwardForm& form);

}  // namespace tidegate::reference
