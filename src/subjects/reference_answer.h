// The reference's answer to a request, as a bundle.
#pragma once

#include "io/bundle.h"
#include "problem/normal_form.h"
#include "reference/policy.h"

namespace tidegate::subjects {

/// `form` is the request's normal form, or that with a fault in it; its outputs are replaced. The recurrence in double
/// (or in float with `single`), rounded once to the output types.
io::Bundle reference_answer(NormalForm form, const io::Bundle& request, const reference::Policy& policy = {},
                            bool single = false);

}  // namespace tidegate::subjects
