// Subjects inside this process, and wrappers.
#pragma once

#include <memory>

#include "faults/faults.h"
#include "subjects/subject.h"

namespace tidegate::subjects {

std::unique_ptr<Subject> make_cpu(int threads, std::int64_t memory_limit = 0);
std::unique_ptr<Subject> make_cuda();
/// The oracle, rounded once.
std::unique_ptr<Subject> make_reference();
/// The answer to whatever is asked, read from a file.
std::unique_ptr<Subject> make_file(const std::string& path);
/// `inner` behind an answer or input fault; a formula fault is evaluated by the reference in its place.
std::unique_ptr<Subject> with_fault(std::unique_ptr<Subject> inner, const faults::Fault& fault);

}  // namespace tidegate::subjects
