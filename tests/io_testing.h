// What the tests of src/io share: files by hand, random arrays, a folder that goes away.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "io/bundle.h"
#include "tidegate/error.h"

namespace tidegate::io {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

inline constexpr Dtype kAll[] = {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp64, Dtype::int32, Dtype::int64};

inline Bytes bytes_of_text(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

template <class Int>
inline std::string little(Int value) {
    std::string out(sizeof value, '\0');
    std::memcpy(out.data(), &value, sizeof value);
    return out;
}

// The message of the Error that parsing throws, "" if it throws none.
template <class Parse>
inline std::string why(const Parse& parse) {
    try {
        parse();
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

inline void expect_says(const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << "message: " << message << "\nexpected in it: " << part;
}

struct Folder {
    fs::path path = fs::temp_directory_path() / ("tidegate_io_test." + std::to_string(::getpid()));
    Folder() { fs::create_directories(path); }
    ~Folder() { fs::remove_all(path); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    std::string operator/(const std::string& name) const { return (path / name).string(); }
    std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(path), fs::directory_iterator()); }
};

inline void spill(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

inline bool same(const Array& a, const Array& b) {
    return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && b.stride.empty() && a.bytes == b.bytes;
}

inline Array random_array(const std::string& name) {
    const auto rank = *rc::gen::inRange<std::size_t>(1, kMaxRank + 1);
    Array a(name, *rc::gen::elementOf(std::vector<Dtype>(std::begin(kAll), std::end(kAll))),
            *rc::gen::container<std::vector<std::int64_t>>(rank, rc::gen::inRange<std::int64_t>(0, 5)));
    for (auto& b : a.bytes) b = static_cast<std::byte>(*rc::gen::inRange(0, 256));
    return a;
}

// An int32 array whose element at (i, j, ...) is its row-major number, with the gaps of `stride` at -1.
inline Array counting(std::vector<std::int64_t> shape, std::vector<std::int64_t> stride) {
    Array dense("x", Dtype::int32, shape);
    std::int64_t last = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) last += (shape[d] - 1) * stride[d];
    std::vector<std::int32_t> held(static_cast<std::size_t>(last) + 1, -1);
    for (std::int64_t n = 0; n < dense.size(); ++n) {
        std::int64_t rest = n, offset = 0;
        for (auto d = shape.size(); d-- > 0; rest /= shape[d]) offset += rest % shape[d] * stride[d];
        held[static_cast<std::size_t>(offset)] = static_cast<std::int32_t>(n);
    }
    dense.bytes.resize(held.size() * 4);
    std::memcpy(dense.bytes.data(), held.data(), dense.bytes.size());
    dense.stride = std::move(stride);
    return dense;
}

inline void expect_counting(const Array& a) {
    EXPECT_TRUE(a.stride.empty());
    ASSERT_EQ(a.bytes.size(), static_cast<std::size_t>(a.size()) * 4);
    for (std::int32_t n = 0; n < a.size(); ++n) {
        std::int32_t got = 0;
        std::memcpy(&got, a.bytes.data() + 4 * n, 4);
        ASSERT_EQ(got, n);
    }
}

}  // namespace tidegate::io
