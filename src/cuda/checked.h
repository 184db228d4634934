// Errors of the CUDA runtime as ours.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "tidegate/error.h"

namespace tidegate::cuda {

inline void checked(cudaError_t error, const char* what) {
    if (error != cudaSuccess) throw Error("cuda", std::string("cuda: ") + what + ": " + cudaGetErrorString(error));
}

}  // namespace tidegate::cuda
