#include "io/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "tidegate/error.h"

namespace tidegate::io {

static_assert(std::endian::native == std::endian::little, "both formats are little-endian and read in place");

Source::Source(const std::string& path) : name_(path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) fail(error.message());
    if (std::filesystem::is_directory(status)) fail("is a directory, expected a file");
    if (!std::filesystem::is_regular_file(status)) fail("is a device, pipe or socket, expected a regular file");
    left_ = std::filesystem::file_size(path, error);
    if (error) fail(error.message());
    errno = 0;
    stream_.open(path, std::ios::binary);
    if (!stream_) fail(std::string("cannot be opened: ") + std::strerror(errno));
}

std::vector<std::byte> Source::take(std::uint64_t count) {
    if (count > left_) fail("has " + std::to_string(left_) + " bytes left, expected " + std::to_string(count));
    std::vector<std::byte> out;
    try {
        out.resize(count);
    } catch (const std::exception&) {
        fail(std::to_string(count) + " bytes do not fit into memory");
    }
    if (stream_.is_open()) {
        // The size was asked for earlier: a writer may have shortened the file since.
        stream_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(count));
        if (!stream_) fail("could not be read to its end (still being written?)");
    } else if (count > 0) {
        std::memcpy(out.data(), bytes_.data() + (bytes_.size() - left_), count);
    }
    left_ -= count;
    return out;
}

void Source::fail(const std::string& what) const { throw Error("file", name_ + ": " + what); }

void write_whole(const std::string& path, std::span<const std::byte> bytes) {
    const auto fail = [&](const std::string& doing, int code) {
        throw Error("file", path + ": " + doing + ": " + std::strerror(code));
    };
    // rename() would replace a device node such as /dev/null by our file.
    std::error_code ignored;
    const auto status = std::filesystem::status(path, ignored);
    if (std::filesystem::is_directory(status)) fail("cannot be written", EISDIR);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
        throw Error("file", path + ": is a device, pipe or socket, expected a regular file or nothing there");

    static std::atomic<unsigned> counter{0};
    const auto folder = std::filesystem::path(path).parent_path();
    std::string temporary;
    int file = -1;
    do {  // a killed process of the same id may have left its temporary
        temporary = (folder / (".tidegate." + std::to_string(::getpid()) + "." + std::to_string(counter++))).string();
        file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (file < 0 && (errno == EEXIST || errno == EINTR));
    if (file < 0) fail("cannot create a temporary file beside it", errno);

    int code = 0;
    for (std::size_t done = 0; code == 0 && done < bytes.size();) {
        const auto wrote = ::write(file, bytes.data() + done, bytes.size() - done);
        if (wrote >= 0)
            done += static_cast<std::size_t>(wrote);
        else if (errno != EINTR)
            code = errno;
    }
    if (::close(file) != 0 && code == 0) code = errno;
    if (code == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) code = errno;
    if (code != 0) {
        ::unlink(temporary.c_str());
        fail("cannot be written", code);
    }
}

std::optional<std::int64_t> checked_bytes(const std::vector<std::int64_t>& shape, Dtype dtype) {
    std::int64_t product = bytes_of(dtype);
    bool empty = false;
    for (const auto extent : shape) {
        if (extent < 0) return std::nullopt;
        if (extent == 0)
            empty = true;
        else if (__builtin_mul_overflow(product, extent, &product))
            return std::nullopt;
    }
    return empty ? 0 : product;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string text = "[";
    for (const auto extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
    return text + "]";
}

void check(const Array& array) {
    const auto fail = [&](const std::string& what) {
        throw Error(array.name,
                    "tensor " + in_quotes(array.name) + " of shape " + shape_text(array.shape) + ": " + what);
    };
    if (array.shape.empty()) fail("scalars are not taken, expected rank 1 to " + std::to_string(kMaxRank));
    if (array.shape.size() > kMaxRank)
        fail("rank " + std::to_string(array.shape.size()) + ", expected at most " + std::to_string(kMaxRank));
    const auto dense = checked_bytes(array.shape, array.dtype);
    if (!dense) fail("an extent is negative or the size overflows");
    const auto held = std::to_string(array.bytes.size());
    if (array.stride.empty()) {
        if (array.bytes.size() != static_cast<std::uint64_t>(*dense))
            fail("holds " + held + " bytes, expected " + std::to_string(*dense));
        return;
    }
    if (array.stride.size() != array.shape.size()) fail("strides " + shape_text(array.stride) + " of another rank");
    std::int64_t last = 0;
    for (std::size_t d = 0; d < array.shape.size(); ++d) {
        std::int64_t step = 0;
        if (array.stride[d] < 0) fail("strides " + shape_text(array.stride) + ", expected none below 0");
        if (*dense == 0) continue;
        if (__builtin_mul_overflow(array.shape[d] - 1, array.stride[d], &step) ||
            __builtin_add_overflow(last, step, &last))
            fail("strides " + shape_text(array.stride) + " overflow");
    }
    const auto fits = array.bytes.size() / static_cast<std::uint64_t>(bytes_of(array.dtype));
    if (*dense > 0 && static_cast<std::uint64_t>(last) >= fits)
        fail("strides " + shape_text(array.stride) + " reach element " + std::to_string(last) + ", holds " + held +
             " bytes");
}

void append_dense(std::vector<std::byte>& out, const Array& array) {
    if (array.stride.empty()) {
        out.insert(out.end(), array.bytes.begin(), array.bytes.end());
        return;
    }
    if (array.size() == 0) return;
    const auto width = static_cast<std::size_t>(bytes_of(array.dtype));
    const auto rank = array.shape.size();
    // A row whose elements are adjacent is copied at once.
    const bool rows = array.stride.back() == 1;
    const auto run = width * (rows ? static_cast<std::size_t>(array.shape.back()) : 1);
    std::vector<std::int64_t> index(rank, 0);
    for (std::size_t d = rank; d > 0;) {
        std::int64_t offset = 0;
        for (std::size_t i = 0; i < rank; ++i) offset += index[i] * array.stride[i];
        const auto* from = array.bytes.data() + static_cast<std::size_t>(offset) * width;
        out.insert(out.end(), from, from + run);
        for (d = rows ? rank - 1 : rank; d > 0 && ++index[d - 1] == array.shape[d - 1]; --d) index[d - 1] = 0;
    }
}

std::string in_quotes(std::string_view text) {
    constexpr std::size_t kLongest = 80;
    std::string out(text.substr(0, kLongest));
    // Do not cut a UTF-8 character in two.
    if (text.size() > kLongest) {
        auto end = kLongest;
        while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
        out.resize(end);
        out += "...";
    }
    for (auto& c : out)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
    return '"' + out + '"';
}

}  // namespace tidegate::io
