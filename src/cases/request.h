// Requests: from a bundle with docs/protocol.md's names to the library's problem, and what its answer must hold.
#pragma once

#include "io/bundle.h"
#include "tidegate/forward.h"

namespace tidegate::cases {

struct OutputSpec {
    std::string name;
    Dtype dtype;
    std::vector<std::int64_t> shape;
};

/// Inputs and options; the views point into `request`, which must outlive them. Throws Error naming the metadata key
/// or tensor. Which of g, beta and a, b is used follows metadata `gates` (default given).
Forward bind(const io::Bundle& request);

/// Tensors that an answer to `request` holds, in order.
std::vector<OutputSpec> outputs_of(const io::Bundle& request);

/// Zero-filled, as outputs_of() says.
io::Bundle empty_answer(const io::Bundle& request);

/// Points the problem's outputs into `answer`.
void attach(Forward& problem, io::Bundle& answer);

/// Metadata keys that mean nothing to us: legal, but perhaps a misspelt option.
std::vector<std::string> unknown_metadata(const io::Bundle& request);

/// All that is checked before anything runs: names, metadata, shapes, types, cu_seqlens, g > 0, and NaN or inf unless
/// `allow_nan`. Throws Error.
void validate(const io::Bundle& request, bool allow_nan);

}  // namespace tidegate::cases
