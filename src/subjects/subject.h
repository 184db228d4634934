// Whoever is tried: one request in, one outcome out. A crash or a hang is an outcome, never the end of the run.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "io/bundle.h"

namespace tidegate::subjects {

enum class Status { answered, skipped, failed, crashed, hung };

struct Outcome {
    Status status = Status::answered;
    io::Bundle answer;   ///< with `answered`
    std::string reason;  ///< "hung (busy)", "signal 11 (SIGSEGV)", the skip reason, ...
    int signal = 0;      ///< of the child, 0 if none
    double seconds = 0;
    std::map<std::string, std::int64_t> unwritten;  ///< elements still poisoned, by output; empty: not checked
    std::string first_try;                          ///< what the persistent process did, when it was tried again alone
};

/// How long, and how patiently, a child is waited for.
struct Limits {
    double timeout = 60;  ///< seconds a case
    double grace = 0;     ///< extra seconds while the child's CPU time grows
};

class Subject {
public:
    virtual ~Subject() = default;
    virtual Outcome answer(const io::Bundle& request) = 0;
    virtual std::string name() const = 0;                 ///< as records show it
    virtual bool crashes_apart() const { return false; }  ///< runs in a child process
};

}  // namespace tidegate::subjects
