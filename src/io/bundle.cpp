#include "io/bundle.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "io/file.h"
#include "tidegate/error.h"

namespace tidegate::io {

Array::Array(std::string called, Dtype type, std::vector<std::int64_t> extents)
    : name(std::move(called)), dtype(type), shape(std::move(extents)) {
    const auto count = shape.empty() ? std::optional<std::int64_t>(0) : checked_bytes(shape, dtype);
    if (!count)
        throw Error(name, "tensor " + in_quotes(name) + ": shape " + shape_text(shape) + " is negative or too large");
    bytes.resize(static_cast<std::size_t>(*count));
}

std::int64_t Array::size() const {
    return shape.empty() ? 0 : std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Tensor Array::view() const {
    if (shape.empty()) return {};
    check(*this);
    Tensor t;
    t.data = const_cast<std::byte*>(bytes.data());
    t.dtype = dtype;
    t.rank = static_cast<std::int32_t>(shape.size());
    std::int64_t step = 1;
    for (auto d = shape.size(); d-- > 0; step *= shape[d]) {
        t.shape[d] = shape[d];
        t.stride[d] = stride.empty() ? step : stride[d];
    }
    return t;
}

const Array* Bundle::find(const std::string& name) const {
    const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const Array& a) { return a.name == name; });
    return at == tensors.end() ? nullptr : &*at;
}

Array* Bundle::find(const std::string& name) { return const_cast<Array*>(std::as_const(*this).find(name)); }

Array& Bundle::add(Array array) {
    if (auto* old = find(array.name)) return *old = std::move(array);
    return tensors.emplace_back(std::move(array));
}

std::string Bundle::meta(const std::string& key, const std::string& otherwise) const {
    const auto at = metadata.find(key);
    return at == metadata.end() ? otherwise : at->second;
}

}  // namespace tidegate::io
