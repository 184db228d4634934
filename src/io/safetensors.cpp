#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "io/file.h"
#include "tidegate/error.h"

namespace tidegate::io {
namespace {

constexpr std::uint64_t kPrefix = 8;             // the header's length
constexpr std::uint64_t kMaxHeader = 100000000;  // the official reader's limit
constexpr const char* kMetadata = "__metadata__";

struct DtypeName {
    Dtype dtype;
    const char* name;
};
// In the order of the official enumeration: its writer stores the last first, so that wide types are aligned.
constexpr DtypeName kDtypes[] = {{Dtype::fp16, "F16"}, {Dtype::bf16, "BF16"}, {Dtype::int32, "I32"},
                                 {Dtype::fp32, "F32"}, {Dtype::fp64, "F64"},  {Dtype::int64, "I64"}};

const DtypeName* entry_of(Dtype dtype) {
    return std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeName& d) { return d.dtype == dtype; });
}

struct Entry {
    std::string name;
    Dtype dtype = Dtype::fp32;
    std::vector<std::int64_t> shape;
    std::vector<std::uint64_t> offsets;  // begin, end
};

// Takes the one structure a header may have, event by event: nothing deeper is ever built, whatever the JSON nests.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
public:
    explicit HeaderReader(const Source& source) : source_(source) {}

    std::map<std::string, std::string> metadata;
    std::vector<Entry> entries;

    bool null() override { wrong("null"); }
    bool boolean(bool) override { wrong("a boolean"); }
    bool number_integer(number_integer_t) override { wrong("a negative number"); }
    bool number_float(number_float_t, const string_t& text) override { wrong("the number " + in_quotes(text)); }
    bool binary(binary_t&) override { wrong("binary data"); }

    bool number_unsigned(number_unsigned_t value) override {
        if (at_ == At::shape) {
            if (value > static_cast<std::uint64_t>(INT64_MAX)) wrong("the number " + std::to_string(value));
            if (entries.back().shape.size() == kMaxRank) fail("more than " + std::to_string(kMaxRank) + " extents");
            entries.back().shape.push_back(static_cast<std::int64_t>(value));
        } else if (at_ == At::offsets) {
            if (entries.back().offsets.size() == 2) wrong("a third number");
            entries.back().offsets.push_back(value);
        } else {
            wrong("the number " + std::to_string(value));
        }
        return true;
    }

    bool string(string_t& value) override {
        if (at_ == At::metadata) {
            metadata[key_] = value;
            return true;
        }
        if (at_ != At::tensor || key_ != "dtype") wrong("the string " + in_quotes(value));
        const auto* known =
            std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeName& d) { return value == d.name; });
        if (known == std::end(kDtypes)) fail(in_quotes(value) + ", expected one of F32 BF16 F16 F64 I32 I64");
        entries.back().dtype = known->dtype;
        return true;
    }

    bool start_object(std::size_t) override {
        if (at_ == At::before) {
            at_ = At::top;
        } else if (at_ == At::top && name_ == kMetadata) {
            at_ = At::metadata;
        } else if (at_ == At::top) {
            entries.emplace_back().name = name_;
            seen_.clear();
            at_ = At::tensor;
        } else {
            wrong("an object");
        }
        return true;
    }

    bool key(string_t& text) override {
        auto& now = at_ == At::top ? name_ : key_;
        now = text;
        if (at_ == At::tensor && text != "dtype" && text != "shape" && text != "data_offsets")
            fail("unknown key, expected dtype, shape and data_offsets");
        const bool fresh = at_ == At::top        ? names_.insert(text).second
                           : at_ == At::metadata ? metadata.count(text) == 0
                                                 : seen_.insert(text).second;
        if (!fresh) fail("given twice");
        return true;
    }

    bool end_object() override {
        for (const char* needed : {"dtype", "shape", "data_offsets"})
            if (at_ == At::tensor && seen_.count(needed) == 0)
                source_.fail("tensor " + in_quotes(name_) + " has no " + needed + " in the header");
        at_ = At::top;
        return true;
    }

    bool start_array(std::size_t) override {
        if (at_ != At::tensor || key_ == "dtype") wrong("an array");
        at_ = key_ == "shape" ? At::shape : At::offsets;
        return true;
    }

    bool end_array() override {
        if (at_ == At::offsets && entries.back().offsets.size() != 2) wrong("fewer numbers");
        at_ = At::tensor;
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
        // The rest would quote what was read last, which may be megabytes.
        const std::string what = error.what();
        source_.fail("the header is not UTF-8 JSON: byte " + std::to_string(kPrefix + position) +
                     " of the file: " + what.substr(0, std::min<std::size_t>(what.find("; last read"), 200)));
    }

private:
    enum class At { before, top, metadata, tensor, shape, offsets };

    [[noreturn]] void fail(const std::string& what) const {
        const auto tensor = "tensor " + in_quotes(name_);
        const auto place = at_ == At::metadata  ? "metadata " + in_quotes(key_)
                           : at_ != At::top     ? tensor + ", " + in_quotes(key_)
                           : name_ == kMetadata ? std::string(kMetadata)
                                                : tensor;
        source_.fail("header, " + place + ": " + what);
    }

    [[noreturn]] void wrong(const std::string& given) const {
        fail(given + ", expected " +
             (at_ == At::top                           ? "an object"
              : at_ == At::metadata || key_ == "dtype" ? "a string"
              : key_ == "shape"                        ? "an array of integers from 0 to 2^63 - 1"
                                                       : "an array of two integers from 0 to 2^64 - 1"));
    }

    const Source& source_;
    At at_ = At::before;
    std::string name_, key_;
    std::set<std::string> names_, seen_;
};

// Every byte behind the header belongs to exactly one tensor: the format allows neither holes nor sharing.
void check_entries(std::vector<Entry>& entries, const Source& source) {
    const auto size = source.left();
    for (const auto& e : entries) {
        const auto begin = e.offsets[0], end = e.offsets[1];
        const auto where = "tensor " + in_quotes(e.name) + ": ";
        const auto range = "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
        if (e.shape.empty()) source.fail(where + "shape [], scalars are not taken: expected rank 1 to 5");
        if (begin > end) source.fail(where + range + ", expected begin <= end");
        if (end > size)
            source.fail(where + range + ", expected at most " + std::to_string(size) + " (end of the file)");
        const auto bytes = checked_bytes(e.shape, e.dtype);
        if (!bytes) source.fail(where + "the size of shape " + shape_text(e.shape) + " overflows");
        if (end - begin != static_cast<std::uint64_t>(*bytes))
            source.fail(where + range + ", expected " + std::to_string(*bytes) + " bytes for shape " +
                        shape_text(e.shape) + " " + name_of(e.dtype));
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
    std::uint64_t covered = 0;
    for (const auto& e : entries) {
        const auto begin = e.offsets[0];
        if (begin != covered)
            source.fail("tensor " + in_quotes(e.name) + ": data_offsets begin at " + std::to_string(begin) +
                        (begin < covered ? ", overlapping the tensor before it, expected "
                                         : ", leaving a hole behind the tensor before it, expected ") +
                        std::to_string(covered));
        covered = e.offsets[1];
    }
    if (covered != size)
        source.fail(std::to_string(size - covered) + " trailing bytes, expected none behind the last tensor");
}

Bundle parse(Source source) {
    if (source.left() < kPrefix)
        source.fail(source.left() == 0 ? "is empty, expected a safetensors file"
                                       : std::to_string(source.left()) + " bytes, expected at least 8 (header length)");
    std::uint64_t length = 0;
    std::memcpy(&length, source.take(kPrefix).data(), kPrefix);
    if (length == 0 || length > std::min(kMaxHeader, source.left()))
        source.fail("header length " + std::to_string(length) + " in bytes 0 to 7, expected 1 to " +
                    std::to_string(std::min(kMaxHeader, source.left())));
    const auto header = source.take(length);
    if (header[0] != std::byte{'{'}) source.fail("byte 8 is not '{', expected the start of a JSON object");
    // The JSON reader would take a NUL for the end and leave the rest unread.
    if (std::find(header.begin(), header.end(), std::byte{0}) != header.end())
        source.fail("the header holds a NUL byte");
    HeaderReader reader(source);
    const auto* text = reinterpret_cast<const char*>(header.data());
    nlohmann::json::sax_parse(text, text + length, &reader);
    check_entries(reader.entries, source);

    Bundle bundle;
    bundle.metadata = std::move(reader.metadata);
    bundle.tensors.reserve(reader.entries.size());
    for (auto& e : reader.entries) {
        auto& array = bundle.tensors.emplace_back();
        array.name = std::move(e.name);
        array.dtype = e.dtype;
        array.shape = std::move(e.shape);
        array.bytes = source.take(e.offsets[1] - e.offsets[0]);
    }
    return bundle;
}

std::string json_text(const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Bundle read_safetensors(const std::string& path) { return parse(Source(path)); }

Bundle parse_safetensors(std::span<const std::byte> file, const std::string& path_for_errors) {
    return parse(Source(file, path_for_errors));
}

std::vector<std::byte> serialize_safetensors(const Bundle& bundle) {
    std::vector<const Array*> order;
    for (const auto& array : bundle.tensors) {
        check(array);
        order.push_back(&array);
    }
    std::sort(order.begin(), order.end(), [](const Array* a, const Array* b) {
        return a->dtype == b->dtype ? a->name < b->name : entry_of(a->dtype) > entry_of(b->dtype);
    });

    std::string header = "{";
    // Names that are not UTF-8 are written with replacement characters and may meet there.
    const auto add_key = [&](std::set<std::string>& keys, const std::string& name) {
        const auto key = json_text(name);
        if (!keys.insert(key).second) throw Error(name, in_quotes(name) + " would be written twice");
        if (header.back() != '{') header += ',';
        header += key + ':';
    };
    std::set<std::string> names, meta_names;
    if (!bundle.metadata.empty()) {
        add_key(names, kMetadata);
        header += '{';
        for (const auto& [key, value] : bundle.metadata) {
            add_key(meta_names, key);
            header += json_text(value);
        }
        header += '}';
    }
    names.insert(json_text(kMetadata));
    std::int64_t offset = 0;
    for (const auto* array : order) {
        add_key(names, array->name);
        header += std::string("{\"dtype\":\"") + entry_of(array->dtype)->name + "\",\"shape\":[";
        for (std::size_t d = 0; d < array->shape.size(); ++d)
            header += (d > 0 ? "," : "") + std::to_string(array->shape[d]);
        header += "],\"data_offsets\":[" + std::to_string(offset);
        offset += *checked_bytes(array->shape, array->dtype);
        header += "," + std::to_string(offset) + "]}";
    }
    header += '}';
    header.resize((header.size() + kPrefix - 1) / kPrefix * kPrefix, ' ');
    if (header.size() > kMaxHeader) throw Error("file", "the safetensors header would exceed 100 MB");

    const std::uint64_t length = header.size();
    std::vector<std::byte> out(kPrefix + header.size());
    std::memcpy(out.data(), &length, kPrefix);
    std::memcpy(out.data() + kPrefix, header.data(), header.size());
    out.reserve(out.size() + static_cast<std::size_t>(offset));
    for (const auto* array : order) append_dense(out, *array);
    return out;
}

void write_safetensors(const std::string& path, const Bundle& bundle) {
    write_whole(path, serialize_safetensors(bundle));
}

}  // namespace tidegate::io
