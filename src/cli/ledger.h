// tidegate ledger: the verbs that write and ask a ledger, and what the command line gives them.
#pragma once

#include <string>
#include <vector>

#include "subjects/spec.h"

namespace tidegate::cli {

/// Three uses: TEST is run again and again; `counts` are compared; `build` and `other` are, as the ledger has them.
struct LedgerFlakyOptions {
    std::string ledger;               ///< file; empty: none
    std::string test;                 ///< a case id; of a ledger's, any test it has
    std::vector<std::string> counts;  ///< two of K/N
    std::string build, other;         ///< with TEST alone, `build` is the name that the runs are recorded under
    std::string subject = "cpu";
    int runs = 20, parallel = 1;
    std::string json;  ///< path, or "-"
    bool quiet = false;
    subjects::Settings settings;
};
int ledger_flaky(const LedgerFlakyOptions& options);

}  // namespace tidegate::cli
