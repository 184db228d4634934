// Python's tensors as views, and Python's options: whatever is wrong with one is a tidegate::Error that names it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "tidegate/error.h"
#include "tidegate/tensor.h"

namespace tidegate::python {

namespace nb = nanobind;

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

/// The arguments of one call, by name; None is absent. Keeps the tensors' memory alive as long as it lives.
class Given {
public:
    /// `bf16`: names of tensors whose uint16 elements are bf16 patterns.
    Given(const nb::dict& arguments, const nb::set& bf16) : arguments_(arguments), bf16_(bf16) {}

    Tensor input(const char* name) const;
    Tensor output(const char* name) const;  ///< writable

    bool flag(const char* name) const { return option<bool>(name, "True or False").value_or(false); }
    /// The index of a word among those known; the first is the default.
    std::size_t choice(const char* name, std::initializer_list<const char*> known) const;
    template <class T>
    std::optional<T> option(const char* name, const char* expected) const {
        return python::option<T>(arguments_, name, expected);
    }

private:
    nb::object find(const char* name) const;
    Tensor view(const char* name, const nb::ndarray<nb::ro>& array) const;

    const nb::dict& arguments_;
    const nb::set& bf16_;
    mutable std::vector<nb::ndarray<nb::ro>> kept_;
};

}  // namespace tidegate::python
