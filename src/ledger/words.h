// Small things that several files of the ledger need.
#pragma once

#include <string>

namespace tidegate::ledger {

/// ISO 8601, UTC, to the second.
std::string now();

}  // namespace tidegate::ledger
