// What both formats share: a bounded source of bytes, a write that is whole or absent, sizes that cannot overflow.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/bundle.h"

namespace tidegate::io {

/// A file, or bytes already in memory, read once from front to back.
class Source {
public:
    explicit Source(const std::string& path);  ///< throws unless it is a regular file that opens
    Source(std::span<const std::byte> bytes, std::string name)
        : name_(std::move(name)), bytes_(bytes), left_(bytes.size()) {}

    std::uint64_t left() const { return left_; }
    std::vector<std::byte> take(std::uint64_t count);  ///< throws before allocating if fewer bytes are left
    [[noreturn]] void fail(const std::string& what) const;

private:
    std::string name_;
    std::ifstream stream_;
    std::span<const std::byte> bytes_;
    std::uint64_t left_ = 0;
};

/// Written to a temporary beside `path`, then renamed; on failure the temporary is removed and Error("file") thrown.
void write_whole(const std::string& path, std::span<const std::byte> bytes);

/// Bytes of a dense array; nothing if an extent is negative, or if the extents other than 0 overflow int64: then no
/// row-major stride can overflow either.
std::optional<std::int64_t> checked_bytes(const std::vector<std::int64_t>& shape, Dtype dtype);
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Throws Error naming the array unless its shape, strides and bytes fit together.
void check(const Array& array);
/// Appends the elements of a checked array in row-major order.
void append_dense(std::vector<std::byte>& out, const Array& array);

std::string in_quotes(std::string_view text);  ///< for messages: shortened, control characters as '?'

}  // namespace tidegate::io
