#include "io/npy.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>

#include "io/file.h"
#include "tidegate/error.h"

namespace tidegate::io {
namespace {

constexpr std::uint64_t kPreamble = 8;       // "\x93NUMPY", major, minor
constexpr std::uint64_t kMaxHeader = 65535;  // what version 1.0 can say; NumPy itself refuses more than 10,000
constexpr const char* kMagic = "\x93NUMPY";

struct Descr {
    Dtype dtype;
    const char* text;
};
constexpr Descr kDescrs[] = {
    {Dtype::fp32, "<f4"}, {Dtype::fp16, "<f2"}, {Dtype::fp64, "<f8"}, {Dtype::int32, "<i4"}, {Dtype::int64, "<i8"}};

struct Header {
    std::optional<Dtype> dtype;
    std::optional<bool> fortran;
    std::optional<std::vector<std::int64_t>> shape;
};

// The literal of a Python dict, of the three keys and kinds of value that NumPy writes.
class HeaderReader {
public:
    HeaderReader(std::string_view text, const Source& source) : text_(text), source_(source) {}

    Header read() {
        Header header;
        expect('{');
        while (!accept('}')) {
            const auto key = string();
            expect(':');
            if (key == "descr")
                once(key, header.dtype, dtype());
            else if (key == "fortran_order")
                once(key, header.fortran, boolean());
            else if (key == "shape")
                once(key, header.shape, shape());
            else
                fail("unknown key " + in_quotes(key) + ", expected descr, fortran_order and shape");
            if (accept('}')) break;
            expect(',');
        }
        skip();
        if (at_ < text_.size()) fail("text behind the dict, expected spaces");
        if (!header.dtype) fail("no key descr");
        if (!header.fortran) fail("no key fortran_order");
        if (!header.shape) fail("no key shape");
        return header;
    }

private:
    [[noreturn]] void fail(const std::string& what) const {
        source_.fail("header at byte " + std::to_string(at_) + ": " + what);
    }

    void skip() {
        while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != '\0') ++at_;
    }

    bool accept(char c) {
        skip();
        const bool found = at_ < text_.size() && text_[at_] == c;
        if (found) ++at_;
        return found;
    }

    void expect(char c) {
        if (!accept(c)) fail(std::string("expected '") + c + "'");
    }

    std::string_view string() {
        const char quote = accept('"') ? '"' : '\'';
        if (quote == '\'') expect('\'');
        const auto end = text_.find(quote, at_);
        if (end == std::string_view::npos) fail("a string without end");
        const auto out = text_.substr(at_, end - at_);
        if (out.find('\\') != std::string_view::npos)
            fail("an escape in " + in_quotes(out) + ", expected a plain string");
        at_ = end + 1;
        return out;
    }

    bool boolean() {
        skip();
        for (const bool value : {false, true}) {
            const std::string_view word = value ? "True" : "False";
            if (text_.substr(at_, word.size()) != word) continue;
            at_ += word.size();
            return value;
        }
        fail("fortran_order is neither True nor False");
    }

    Dtype dtype() {
        if (accept('[')) fail("descr is a list: structured dtypes are not taken");
        const auto text = string();
        const auto* known =
            std::find_if(std::begin(kDescrs), std::end(kDescrs), [&](const Descr& d) { return text == d.text; });
        if (known != std::end(kDescrs)) return known->dtype;
        const char* why = text.substr(0, 1) == ">"                   ? " is big-endian"
                          : text.find('O') != std::string_view::npos ? " is an object dtype"
                                                                     : " is not taken";
        fail("descr " + in_quotes(text) + why + ", expected one of <f4 <f2 <f8 <i4 <i8");
    }

    std::vector<std::int64_t> shape() {
        std::vector<std::int64_t> out;
        expect('(');
        bool comma = true;
        while (!accept(')')) {
            if (!comma) fail("expected ',' or ')' in shape");
            if (out.size() == kMaxRank) fail("shape has more than " + std::to_string(kMaxRank) + " extents");
            out.push_back(extent());
            comma = accept(',');
        }
        if (out.empty()) fail("shape (), scalars are not taken: expected rank 1 to " + std::to_string(kMaxRank));
        if (out.size() == 1 && !comma) fail("shape is a number in brackets, expected a tuple (N,)");
        return out;
    }

    std::int64_t extent() {
        skip();
        const auto begin = at_;
        std::int64_t value = 0;
        for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
            if (__builtin_mul_overflow(value, std::int64_t{10}, &value) ||
                __builtin_add_overflow(value, std::int64_t{text_[at_] - '0'}, &value))
                fail("an extent above 2^63 - 1");
        if (at_ == begin || (text_[begin] == '0' && at_ - begin > 1)) fail("shape holds no decimal integer from 0 up");
        return value;
    }

    template <class T>
    void once(std::string_view key, std::optional<T>& to, T value) {
        if (to) fail("key " + in_quotes(key) + " given twice");
        to = std::move(value);
    }

    std::string_view text_;
    const Source& source_;
    std::size_t at_ = 0;
};

Array parse(Source source) {
    if (source.left() == 0) source.fail("is empty, expected an .npy file");
    if (source.left() < kPreamble + 2) source.fail(std::to_string(source.left()) + " bytes, expected at least 10");
    const auto preamble = source.take(kPreamble);
    if (std::memcmp(preamble.data(), kMagic, 6) != 0)
        source.fail("does not start with \\x93NUMPY, expected an .npy file");
    const auto major = std::to_integer<int>(preamble[6]), minor = std::to_integer<int>(preamble[7]);
    if (major < 1 || major > 3 || minor != 0)
        source.fail("version " + std::to_string(major) + "." + std::to_string(minor) + ", expected 1.0, 2.0 or 3.0");
    std::uint32_t length = 0;
    const std::uint64_t width = major == 1 ? 2 : 4;
    std::memcpy(&length, source.take(width).data(), width);
    if (length == 0 || length > std::min(kMaxHeader, source.left()))
        source.fail("header length " + std::to_string(length) + " in byte 8 on, expected 1 to " +
                    std::to_string(std::min(kMaxHeader, source.left())));
    const auto text = source.take(length);
    const auto header = HeaderReader({reinterpret_cast<const char*>(text.data()), text.size()}, source).read();

    Array array;
    array.dtype = *header.dtype;
    array.shape = *header.shape;
    const auto bytes = checked_bytes(array.shape, array.dtype);
    if (!bytes) source.fail("the size of shape " + shape_text(array.shape) + " overflows");
    if (source.left() != static_cast<std::uint64_t>(*bytes))
        source.fail(std::to_string(source.left()) + " bytes behind the header, expected " + std::to_string(*bytes) +
                    " for shape " + shape_text(array.shape) + " " + name_of(array.dtype));
    array.bytes = source.take(source.left());
    if (*header.fortran && array.shape.size() > 1) {
        std::int64_t step = 1;
        for (const auto extent : array.shape) {
            array.stride.push_back(step);
            step *= extent;
        }
        std::vector<std::byte> rows;
        rows.reserve(array.bytes.size());
        append_dense(rows, array);
        array.bytes = std::move(rows);
        array.stride.clear();
    }
    return array;
}

}  // namespace

Array read_npy(const std::string& path) { return parse(Source(path)); }

Array parse_npy(std::span<const std::byte> file, const std::string& path_for_errors) {
    return parse(Source(file, path_for_errors));
}

void write_npy(const std::string& path, const Array& array) {
    check(array);
    const auto* known =
        std::find_if(std::begin(kDescrs), std::end(kDescrs), [&](const Descr& d) { return d.dtype == array.dtype; });
    if (known == std::end(kDescrs))
        throw Error("file", path + ": tensor " + in_quotes(array.name) + " is " + name_of(array.dtype) +
                                ", which .npy has no type for: expected fp32, fp16, fp64, int32 or int64");
    std::string header = std::string("{'descr': '") + known->text + "', 'fortran_order': False, 'shape': (";
    for (std::size_t d = 0; d < array.shape.size(); ++d) header += (d > 0 ? ", " : "") + std::to_string(array.shape[d]);
    header += array.shape.size() == 1 ? ",), }" : "), }";
    // The data starts at a multiple of 64, as NumPy wants it for mapping; the header ends with a newline.
    constexpr std::size_t kBefore = kPreamble + 2, kAlign = 64;
    header.resize((kBefore + header.size() + kAlign) / kAlign * kAlign - kBefore - 1, ' ');
    header += '\n';

    const auto length = static_cast<std::uint16_t>(header.size());
    std::vector<std::byte> out(kBefore + header.size());
    std::memcpy(out.data(), "\x93NUMPY\x01\x00", kPreamble);
    std::memcpy(out.data() + kPreamble, &length, 2);
    std::memcpy(out.data() + kBefore, header.data(), header.size());
    append_dense(out, array);
    write_whole(path, out);
}

}  // namespace tidegate::io
