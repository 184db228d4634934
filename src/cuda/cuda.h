// What the CUDA backend offers to the rest of the library. Declared without CUDA's headers: builds without it link a
// stub that says so.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "problem/normal_form.h"
#include "tidegate/plan.h"

namespace tidegate::cuda {

/// Carries a plan out on Options::stream. Throws Error("device") where this build has no CUDA backend, or no kernel for
/// the operation; Error("cuda") with the runtime's words if a launch fails. Asynchronous.
void run(const NormalForm& nf, const Plan& plan, const Options& options);

/// Why no device can be used here; nullptr if one can.
const char* unavailable();

// Memory and time for the tool and for tests; all of it blocks.
void* allocate(std::size_t bytes);
void release(void* memory);
void to_device(void* to, const void* from, std::size_t bytes);
void to_host(void* to, const void* from, std::size_t bytes);
void synchronise();
void copy(void* to, const void* from, std::size_t bytes, void* stream);  ///< device to device, asynchronous

/// Median seconds of one of `calls` calls in a CUDA graph, over `repeats` replays: call(stream, i) for i < calls.
double median_seconds(int calls, int repeats, const std::function<void(void* stream, int i)>& call);
/// "NVIDIA H200" and the like.
std::string device_name();

}  // namespace tidegate::cuda
