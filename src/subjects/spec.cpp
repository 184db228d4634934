#include "subjects/spec.h"

#include <cmath>

#include "cuda/cuda.h"
#include "subjects/exec.h"
#include "subjects/in_process.h"
#include "subjects/lib.h"
#include "tidegate/error.h"

namespace tidegate::subjects {
namespace {

constexpr const char* kFault = "+fault:";

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

/// Where our own +fault: starts, npos if there is none.
std::size_t fault_at(const std::string& spec) {
    const std::size_t at = spec.rfind(kFault);
    if (at == std::string::npos || spec.find_first_of(" \t'\"", at) != std::string::npos) return std::string::npos;
    if (!starts_with(spec, "exec:")) return at;
    const std::size_t space = spec.find_last_of(" \t='\"", at);
    const std::string word = spec.substr(space + 1, at - space - 1);
    const bool of_the_command = space != std::string::npos && (word == "cpu" || word == "cuda" || word == "reference" ||
                                                               starts_with(word, "lib:") || starts_with(word, "file:"));
    return of_the_command ? std::string::npos : at;
}

std::string trimmed(std::string text) {
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.pop_back();
    return text;
}

}  // namespace

std::unique_ptr<Subject> make_subject(const std::string& spec, const Settings& settings) {
    const Limits& limits = settings.limits;
    if (!(limits.timeout > 0 && std::isfinite(limits.timeout)))
        throw Error("timeout", "timeout: given " + std::to_string(limits.timeout) + ", expected seconds > 0");
    if (!(limits.grace >= 0 && std::isfinite(limits.grace)))
        throw Error("grace", "grace: given " + std::to_string(limits.grace) + ", expected seconds >= 0");
    const std::size_t at = fault_at(spec);
    const std::string base = trimmed(spec.substr(0, at));
    std::unique_ptr<Subject> subject;
    if (base == "cpu")
        subject = make_cpu(settings.threads, settings.memory_limit);
    else if (base == "reference")
        subject = make_reference();
    else if (starts_with(base, "exec:") && base.size() > 5)
        subject = make_exec(base.substr(5), settings.persistent, settings.limits);
    else if (starts_with(base, "lib:") && base.size() > 4)
        subject = make_lib(base.substr(4), settings.limits);
    else if (starts_with(base, "file:") && base.size() > 5)
        subject = make_file(base.substr(5));
    else if (base == "cuda" && cuda::unavailable() != nullptr)
        throw Unavailable("subject", std::string("subject: given 'cuda', but ") + cuda::unavailable());
    else if (base == "cuda")
        subject = make_cuda();
    else
        throw Error("subject", "subject: given '" + spec +
                                   "', expected cpu, cuda, reference, exec:COMMAND, lib:PATH.so or file:PATH, with an "
                                   "optional +fault:NAME");
    if (at == std::string::npos) return subject;
    const faults::Fault& fault = faults::find(spec.substr(at + std::string(kFault).size()));
    const bool ours = base == "cpu" || base == "cuda" || base == "reference";
    if (fault.where == faults::Where::formula && !ours)
        throw Error("fault", std::string("fault: given formula fault '") + fault.name + "' on '" + base +
                                 "', expected it on cpu or reference (its formula cannot be changed from outside)");
    if (fault.where != faults::Where::answer && starts_with(base, "file:"))
        throw Error("fault", std::string("fault: given ") + faults::name_of(fault.where) + " fault '" + fault.name +
                                 "' on a file, expected an answer fault");
    return with_fault(std::move(subject), fault);
}

}  // namespace tidegate::subjects
