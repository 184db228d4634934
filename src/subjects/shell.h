// Words as /bin/sh needs them.
#pragma once

#include <string>

namespace tidegate::subjects {

/// `text` as one word: in single quotes, unless every character is plain.
inline std::string in_shell(const std::string& text) {
    constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
    if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
    std::string word = "'";
    for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return word + "'";
}

}  // namespace tidegate::subjects
