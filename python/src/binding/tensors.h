// Python's tensors as views, and Python's options: whatever is wrong with one is a tidegate::Error that names it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string>
#include <vector>

#include "tidegate/error.h"
#include "tidegate/tensor.h"

namespace tidegate::python {

namespace nb = nanobind;

/// The tensors of one call, by name. Keeps their memory alive as long as it lives.
class Tensors {
public:
    /// `given`: name -> tensor or None; `bf16`: names of those whose uint16 elements are bf16 patterns.
    Tensors(const nb::dict& given, const nb::set& bf16) : given_(given), bf16_(bf16) {}

    Tensor input(const char* name);   ///< absent if not given
    Tensor output(const char* name);  ///< writable

private:
    nb::object find(const char* name) const;
    Tensor view(const char* name, const nb::ndarray<nb::ro>& array) const;

    const nb::dict& given_;
    const nb::set& bf16_;
    std::vector<nb::ndarray<nb::ro>> kept_;
};

/// An option's value; nothing where it is absent or None.
template <class T>
std::optional<T> option(const nb::dict& options, const char* name, const char* expected) {
    if (!options.contains(name)) return std::nullopt;
    const nb::object value = nb::borrow(options[name]);
    if (value.is_none()) return std::nullopt;
    T result{};
    if (!nb::try_cast(value, result))
        throw Error(name,
                    std::string(name) + ": given " + nb::cast<std::string>(nb::repr(value)) + ", expected " + expected);
    return result;
}

}  // namespace tidegate::python
