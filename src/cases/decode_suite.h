// The decode passes' part of the one list of cases.
#pragma once

#include <string>
#include <vector>

#include "tidegate/tensor.h"

namespace tidegate::cases {

/// Ids without rule, pass and dtype ("B,T,H,HV,K,V/keys.../seed"), in the order they are tried.
using Tails = std::vector<std::string>;

/// Of suite `name` and pass `decode` or `packed`.
Tails decode_tails(const std::string& name, const std::string& pass, Dtype dtype, bool vector);

}  // namespace tidegate::cases
