#pragma once

#include "reference/policy.h"

namespace tidegate::reference {

/// The recurrence, token by token, every sum and product in Real (float or double; long double in tests).
/// `magnitude`, if given, receives for every output the sum of the absolute values of the terms its last step adds up:
/// what one rounding of that step can be a fraction of.
template <class Real>
Answer recurrence(const NormalForm& nf, const Policy& policy = {}, Answer* magnitude = nullptr);

}  // namespace tidegate::reference
