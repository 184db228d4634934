// exec: subjects. A command that reads a request file and writes an answer file, one process a request or persistent.
#pragma once

#include <memory>

#include "subjects/subject.h"

namespace tidegate::subjects {

/// `COMMAND REQUEST ANSWER` by /bin/sh -c, one process a request; with `persistent` one process for all
/// (docs/protocol.md).
std::unique_ptr<Subject> make_exec(const std::string& command, bool persistent, const Limits& limits);

}  // namespace tidegate::subjects
