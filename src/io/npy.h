// Strict reader and writer of NumPy .npy files (versions 1.0 to 3.0, C and Fortran order, little-endian).
#pragma once

#include <span>
#include <string>

#include "io/bundle.h"

namespace tidegate::io {

/// Throws Error("file") naming path and defect. The array's name is left empty. Fortran order becomes row-major.
Array read_npy(const std::string& path);
Array parse_npy(std::span<const std::byte> file, const std::string& path_for_errors);

/// fp32, fp64, fp16, int32, int64; bf16 has no npy type and is an Error.
void write_npy(const std::string& path, const Array& array);

}  // namespace tidegate::io
