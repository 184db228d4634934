// Rows of the fault table tried on a request's right answer: can the gate see them here?
#pragma once

#include "faults/faults.h"
#include "judge/judge.h"

namespace tidegate::judge {

enum class Sight { does_not_apply, inert, caught, missed };
const char* name_of(Sight sight);

/// `inert`: the fault moves the exact answer by less than 1e-9 (nrmse, on every tensor).
Sight try_mutant(const Bench& bench, const faults::Fault& fault);

}  // namespace tidegate::judge
