// A record's raw counts and figures as CSV. The heading says what a file holds; docs/ledger.md lists the columns.
#pragma once

#include <string>

#include "ledger/store.h"

namespace tidegate::ledger {

/// Writes all of a file's rows, or, throwing Error("import") with the line, none. `base` is what rows leave out.
/// Returns the number of rows.
std::int64_t import_csv(Store& store, const Run& base, const std::string& text, const std::string& source);

}  // namespace tidegate::ledger
