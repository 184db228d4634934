// Requests: from a bundle with docs/protocol.md's names to the library's problem, and what its answer must hold.
#pragma once

#include <functional>
#include <variant>

#include "io/bundle.h"
#include "problem/gradients.h"

namespace tidegate::cases {

/// What a request asks for, by its pass.
using Problem = std::variant<Forward, Backward, Decode, PackedDecode>;

struct OutputSpec {
    std::string name;
    Dtype dtype;
    std::vector<std::int64_t> shape;
};

/// Inputs and options; the views point into `request`, which must outlive them. Throws Error naming the metadata key
/// or tensor. Which of g, beta and a, b is used follows metadata `gates` (default given).
Problem bind(const io::Bundle& request);

Inputs& inputs_of(Problem& problem);
const Inputs& inputs_of(const Problem& problem);
NormalForm form_of(const Problem& problem);
void check(const Problem& problem, bool allow_fp64 = false);
/// Every tensor of a problem, absent ones too.
std::vector<Tensor*> tensors_of(Problem& problem);
void run(const Problem& problem, const Options& options);
Plan plan_of(const Problem& problem, const Options& options);

/// Tensors that an answer to `request` holds, in order: o, then states; or gradients, each of its input's type.
std::vector<OutputSpec> outputs_of(const io::Bundle& request);

/// As outputs_of() says, row-major: zeros, and the request's pool.
io::Bundle empty_answer(const io::Bundle& request);

/// Points the problem's outputs at what `find` gives for their names, or into `answer`.
void attach(Problem& problem, const std::function<Tensor(const std::string&)>& find);
void attach(Problem& problem, io::Bundle& answer);

/// Metadata keys that mean nothing to us: legal, but perhaps a misspelt option.
std::vector<std::string> unknown_metadata(const io::Bundle& request);

/// All that is checked before anything runs: names, metadata, shapes, types, cu_seqlens, slots, g > 0, and NaN or inf
/// unless `allow_nan`. Throws Error.
void validate(const io::Bundle& request, bool allow_nan);

/// Every float tensor of 16 bits in `dtype`. Throws Error("dtype") where that would round.
void widen(io::Bundle& request, Dtype dtype);

/// A copy of a tensor, row-major.
io::Array row_major(const io::Array& array);

}  // namespace tidegate::cases
