#include "tensors.h"

#include <nanobind/stl/string.h>

namespace tidegate::python {
namespace {

[[noreturn]] void fail(const char* name, const std::string& given, const std::string& expected) {
    throw Error(name, std::string(name) + ": given " + given + ", expected " + expected);
}

std::string type_of(const nb::object& value) { return nb::cast<std::string>(nb::str(value.type().attr("__name__"))); }

/// Why a tensor cannot be exported, in its framework's words.
std::string refusal(const nb::object& value) {
    if (!nb::hasattr(value, "__dlpack__")) return "";
    try {
        value.attr("__dlpack__")();
    } catch (nb::python_error& e) {
        return " (" + nb::cast<std::string>(nb::str(e.value())) + ")";
    }
    return "";
}

bool is_index(const std::string& name) {
    return name == "cu_seqlens" || name == "state_indices" || name == "num_accepted";
}

Dtype dtype_of(const char* name, nb::dlpack::dtype type, bool bf16) {
    const auto is = [&](nb::dlpack::dtype_code code, int bits) {
        return type.code == static_cast<std::uint8_t>(code) && type.bits == bits && type.lanes == 1;
    };
    using Code = nb::dlpack::dtype_code;
    if (is(Code::Float, 32)) return Dtype::fp32;
    if (is(Code::Float, 16)) return Dtype::fp16;
    if (is(Code::Bfloat, 16) || (bf16 && is(Code::UInt, 16))) return Dtype::bf16;
    if (is(Code::Float, 64)) return Dtype::fp64;
    if (is(Code::Int, 32)) return Dtype::int32;
    if (is(Code::Int, 64)) return Dtype::int64;
    const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
    const std::string kind = type.code < std::size(kinds) ? kinds[type.code] : "DLPack type ";
    std::string expected = is_index(name) ? "int32 or int64" : "fp32, bf16 or fp16";
    if (is(Code::UInt, 16)) expected += " (a NumPy array of bf16 has the dtype of ml_dtypes.bfloat16)";
    fail(name, kind + std::to_string(type.bits), expected);
}

}  // namespace

nb::object Given::find(const char* name) const {
    return arguments_.contains(name) ? nb::borrow(arguments_[name]) : nb::none();
}

std::size_t Given::choice(const char* name, std::initializer_list<const char*> known) const {
    const std::string word = option<std::string>(name, "a word").value_or(*known.begin());
    std::size_t i = 0;
    std::string all;
    for (const char* each : known) {
        if (word == each) return i;
        all += std::string(i++ == 0 ? "" : " or ") + each;
    }
    fail(name, "'" + word + "'", all);
}

Tensor Given::view(const char* name, const nb::ndarray<nb::ro>& array) const {
    Tensor t;
    t.rank = static_cast<std::int32_t>(array.ndim());
    // Rank 0 is how an absent tensor looks.
    if (array.ndim() < 1 || array.ndim() > static_cast<std::size_t>(kMaxRank))
        fail(name, "rank " + std::to_string(array.ndim()), "1 to " + std::to_string(kMaxRank));
    switch (array.device_type()) {
        case nb::device::cpu::value:
        case nb::device::cuda_host::value:
            break;
        case nb::device::cuda::value:
        case nb::device::cuda_managed::value:
            t.device = Device::cuda;  // what the library says of it holds
            break;
        default:
            fail(name, "a tensor on a device of DLPack type " + std::to_string(array.device_type()), "CPU memory");
    }
    t.dtype = dtype_of(name, array.dtype(), bf16_.contains(nb::str(name)));
    t.data = const_cast<void*>(array.data());
    std::int64_t dense = 1;
    for (std::size_t d = array.ndim(); d-- > 0;) {
        t.shape[d] = static_cast<std::int64_t>(array.shape(d));
        t.stride[d] = array.size() > 0 ? array.stride(d) : dense;  // NumPy's of an empty array are zeros
        dense *= t.shape[d];
    }
    return t;
}

Tensor Given::input(const char* name) const {
    const nb::object value = find(name);
    if (value.is_none()) return {};
    nb::ndarray<nb::ro> array;
    if (!nb::try_cast(value, array, false))
        fail(name, "a " + type_of(value) + refusal(value),
             "a tensor: an object with DLPack or the buffer protocol, of numbers in native byte order");
    kept_.push_back(array);
    return view(name, array);
}

Tensor Given::output(const char* name) const {
    const nb::object value = find(name);
    if (value.is_none()) return {};
    nb::ndarray<> array;
    if (!nb::try_cast(value, array, false)) {
        input(name);  // throws where it is no tensor at all
        fail(name, "a read-only " + type_of(value), "memory that may be written");
    }
    kept_.emplace_back(array);
    return view(name, kept_.back());
}

}  // namespace tidegate::python
