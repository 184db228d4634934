// Tensor views: construction, sizes, names.
#include "tidegate/tensor.h"

#include <algorithm>

#include "tidegate/error.h"

namespace tidegate {

std::int64_t Tensor::size() const {
    if (rank == 0) return 0;
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[static_cast<std::size_t>(d)];
    return n;
}

Tensor dense(const void* data, Dtype dtype, std::initializer_list<std::int64_t> shape) {
    if (shape.size() > static_cast<std::size_t>(kMaxRank))
        throw Error("shape", "shape: given " + std::to_string(shape.size()) + " extents, expected at most 5");
    Tensor t;
    t.data = const_cast<void*>(data);
    t.dtype = dtype;
    t.rank = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape.begin());
    std::int64_t stride = 1;
    for (int d = t.rank - 1; d >= 0; --d) {
        t.stride[static_cast<std::size_t>(d)] = stride;
        stride *= t.shape[static_cast<std::size_t>(d)];
    }
    return t;
}

std::int64_t bytes_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::bf16:
        case Dtype::fp16:
            return 2;
        case Dtype::fp32:
        case Dtype::int32:
            return 4;
        case Dtype::fp64:
        case Dtype::int64:
            return 8;
    }
    return 0;
}

const char* name_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::fp32:
            return "fp32";
        case Dtype::bf16:
            return "bf16";
        case Dtype::fp16:
            return "fp16";
        case Dtype::fp64:
            return "fp64";
        case Dtype::int32:
            return "int32";
        case Dtype::int64:
            return "int64";
    }
    return "unknown dtype";
}

std::string shape_text(const Tensor& t) {
    std::string text = "[";
    for (int d = 0; d < t.rank; ++d) text += (d > 0 ? ", " : "") + std::to_string(t.shape[static_cast<std::size_t>(d)]);
    return text + "]";
}

}  // namespace tidegate
