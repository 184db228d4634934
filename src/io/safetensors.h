// Strict reader and writer of safetensors files.
#pragma once

#include <span>
#include <string>

#include "io/bundle.h"

namespace tidegate::io {

/// Throws Error("file") for anything that is not a well-formed safetensors file of our dtypes, naming path and defect.
/// Tensors come in file order; metadata is complete.
Bundle read_safetensors(const std::string& path);
Bundle parse_safetensors(std::span<const std::byte> file, const std::string& path_for_errors);

/// Written to a temporary beside `path` and renamed: never half-written. Strided arrays are stored dense.
void write_safetensors(const std::string& path, const Bundle& bundle);
std::vector<std::byte> serialize_safetensors(const Bundle& bundle);  ///< the file's bytes

}  // namespace tidegate::io
