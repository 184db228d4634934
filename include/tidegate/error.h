// The one exception type of the library.
#pragma once

#include <stdexcept>
#include <string>

namespace tidegate {

/// Thrown for every argument that breaks the contract. The message says what was given, what was expected and where;
/// `argument` is the name of the offending tensor or option. Nothing has been written when it is thrown.
class Error : public std::runtime_error {
public:
    Error(std::string argument, const std::string& what) : std::runtime_error(what), argument_(std::move(argument)) {}
    const std::string& argument() const noexcept { return argument_; }

private:
    std::string argument_;
};

}  // namespace tidegate
