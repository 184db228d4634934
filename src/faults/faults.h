// The one table of faults.
#pragma once

#include <span>
#include <string>

#include "io/bundle.h"
#include "problem/normal_form.h"
#include "reference/policy.h"

namespace tidegate::faults {

enum class Where { answer, input, formula, rank, environment };
const char* name_of(Where where);

struct Fault {
    const char* name;
    Where where;
    const char* what;
    bool precision;                         ///< a rounding: a gate may be unable to see it
    bool (*applies)(const NormalForm& nf);  ///< false where it could change nothing by construction
    void (*answer)(const NormalForm& nf, io::Bundle& answer);
    void (*input)(const NormalForm& nf, io::Bundle& request);
    void (*formula)(NormalForm& nf, reference::Policy& policy);
    const char* passes;  ///< that it can happen in
};

std::span<const Fault> table();
/// Whether the fault can happen in a request of this pass and form, and change something.
bool applies(const Fault& fault, const std::string& pass, const NormalForm& nf);
/// Throws Error("fault") that lists the names.
const Fault& find(const std::string& name);

/// The request with g and beta given instead of logits, as fp32; unchanged if they are given.
void materialise_gates(const NormalForm& nf, io::Bundle& request);

}  // namespace tidegate::faults
