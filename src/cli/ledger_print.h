// What the ledger's answers look like to a person.
#pragma once

#include <cstdio>

#include "ledger/query.h"

namespace tidegate::cli {

void print_show(const ledger::Json& answer, std::FILE* to);
void print_trend(const ledger::Json& answer, std::FILE* to);
/// `details`: every number that changed, else one a case.
void print_compare(const ledger::Json& answer, bool details, std::FILE* to);

}  // namespace tidegate::cli
