// What the checks of every operation share. Throws Error naming the argument; nothing has been written then.
#pragma once

#include <initializer_list>
#include <span>
#include <string>

#include "problem/normal_form.h"
#include "problem/rules.h"

namespace tidegate::checks {

/// A tensor of a call, and what the call does with it; a state may be written where it was read.
enum class Use { input, index, state_in, state_out, output };
struct Named {
    const char* name;
    const Tensor* tensor;
    Use use;
};

struct Extents {
    std::int64_t B, T, H, K, HV, V, n;  ///< n: Householder steps a token
};
inline constexpr std::int64_t kMostSteps = 64;

[[noreturn]] void fail(const std::string& name, const std::string& given, const std::string& expected);

/// Ranks and extents that no later arithmetic can trip over.
void sane(std::span<const Named> tensors);
/// Whether all tensors are on a CUDA device; throws unless all are in one place.
bool on_device(std::span<const Named> tensors);
void require(const char* name, const Tensor& t, const char* layout);
/// Rank, extents, memory, device and, where the last dimension is a channel, its density.
void shape(const char* name, const Tensor& t, const char* layout, std::initializer_list<std::int64_t> want,
           bool channels);
/// int32 or int64 host memory of the given extents.
void indices(const char* name, const Tensor& t, const char* layout, std::initializer_list<std::int64_t> want);
/// [N, HV, K, V], or [N, HV, V, K]; absent is fine. `rows`: what N is called.
void state(const char* name, const Tensor& t, const Inputs& p, std::int64_t N, const Extents& e, char rows = 'N');
/// The extents of `model`, whose channels are dense where the model's are.
void like(const char* name, const Tensor& t, const char* model_name, const Tensor& model);
/// o [B, >= T, HV, V].
void output(const Tensor& o, const Extents& e);

/// Shapes of q, k, v, gates and strengths.
Extents inputs(const Inputs& p);
/// Types of `tensors`, options, values, and memory that outputs must have to themselves.
void rest(const Inputs& p, std::span<const Named> tensors, bool allow_fp64);

}  // namespace tidegate::checks
