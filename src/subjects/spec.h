// Subject specifications, as the command line gives them.
#pragma once

#include <memory>
#include <string>

#include "subjects/subject.h"
#include "tidegate/error.h"

namespace tidegate::subjects {

/// The subject exists but cannot run here: nothing can be measured.
class Unavailable : public Error {
    using Error::Error;
};

struct Settings {
    Limits limits;
    bool persistent = false;        ///< exec: one process for all requests
    int threads = 0;                ///< of in-process subjects
    std::int64_t memory_limit = 0;  ///< bytes, of cpu's backward; 0: none
};

/// cpu | reference | exec:COMMAND | lib:PATH.so | file:PATH, each with an optional +fault:NAME at its end. Inside
/// exec:COMMAND a fault glued to a subject of that command's own (`--subject cpu+fault:X`) belongs to the command.
/// Throws Error("subject").
std::unique_ptr<Subject> make_subject(const std::string& spec, const Settings& settings);

}  // namespace tidegate::subjects
