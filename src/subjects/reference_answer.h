// The reference's answer to a request, as a bundle.
#pragma once

#include "io/bundle.h"
#include "problem/normal_form.h"
#include "reference/policy.h"

namespace tidegate::subjects {

/// What `request` asks for, of `given` (itself, or with a fault in it), whose normal form is `form` (or that with a
/// fault in it). The recurrence or its adjoint in double (or in float with `single`), rounded once to the output types.
io::Bundle reference_answer(const io::Bundle& request, const io::Bundle& given, NormalForm form,
                            const reference::Policy& policy = {}, bool single = false);

}  // namespace tidegate::subjects
