// The parts of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace tidegate::python {

void bind_check(nanobind::module_& m);

}  // namespace tidegate::python
