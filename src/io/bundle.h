// Named tensors and metadata in memory: what a safetensors file holds. Requests and answers are bundles.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "tidegate/tensor.h"

namespace tidegate::io {

/// A tensor that owns its bytes. Row-major unless `stride` says otherwise (elements, then `bytes` also holds the gaps).
struct Array {
    std::string name;
    Dtype dtype = Dtype::fp32;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> stride;  ///< empty: row-major
    std::vector<std::byte> bytes;

    Array() = default;
    Array(std::string called, Dtype type, std::vector<std::int64_t> extents);  ///< zero-filled, row-major
    std::int64_t size() const;                                                 ///< elements of the shape
    bool operator==(const Array&) const = default;
    Tensor view() const;  ///< rank <= kMaxRank; data stays ours
};

struct Bundle {
    std::map<std::string, std::string> metadata;
    std::vector<Array> tensors;

    const Array* find(const std::string& name) const;
    Array* find(const std::string& name);
    bool operator==(const Bundle&) const = default;
    Array& add(Array array);  ///< replaces a tensor of that name
    std::string meta(const std::string& key, const std::string& otherwise = "") const;
};

}  // namespace tidegate::io
