// Runs of one case, each in a fresh process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ledger/model.h"
#include "subjects/spec.h"

namespace tidegate::ledger {

/// A case to be run again and again.
struct Trial {
    std::string test;  ///< the case's id
    std::string subject = "cpu";
    std::string gate = "derived";
    std::vector<std::string> check_options;  ///< more words for `tidegate check`, which runs subjects of this process
    int runs = 20, parallel = 1;
    subjects::Settings settings;
};

/// Throws Error for what cannot be tried: no run of it shall begin. Returns whether the subject is itself a child.
bool require_trial(const Trial& trial);

/// Runs and judges a trial, every attempt in a process of its own, and hands each result over as it comes: one at a
/// time, with parallel runs in any order. Never asks again: a retry that passes would hide the crash. Throws as
/// require_trial() does; an exception of `seen` ends the trial and is passed on.
///
/// The tool is subjects::lib_tool(), or the running program.
void run_trial(const Trial& trial, const std::function<void(const Result&)>& seen);

}  // namespace tidegate::ledger
