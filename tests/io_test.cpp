// Bundles and safetensors: what is written is read back, and whatever is not well-formed is refused for the reason
// that applies.
#include "io/safetensors.h"

#include <sys/stat.h>

#include "io_testing.h"

using namespace tidegate;
using namespace tidegate::io;

namespace {

std::string tensors_file(const std::string& header, std::size_t data = 0) {
    return little(std::uint64_t{header.size()}) + header + std::string(data, '\x01');
}

std::string entry(const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
    return '"' + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + '}';
}

std::string why_tensors(const std::string& file) {
    return why([&] { parse_safetensors(bytes_of_text(file), "f.safetensors"); });
}

Bundle random_bundle() {
    Bundle out;
    const auto text = rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127));
    out.metadata = *rc::gen::container<std::map<std::string, std::string>>(text, text);
    for (const auto& name : *rc::gen::unique<std::vector<std::string>>(text)) out.add(random_array(name));
    return out;
}

}  // namespace

// ---- bundles -------------------------------------------------------------------------------------------------------

TEST(Bundle, FindsAddsAndReplaces) {
    Bundle b;
    b.add(Array("q", Dtype::bf16, {2, 3}));
    b.add(Array("k", Dtype::fp32, {4}));
    EXPECT_EQ(b.find("q")->bytes.size(), 12u);
    EXPECT_EQ(b.find("v"), nullptr);
    EXPECT_EQ(b.add(Array("q", Dtype::fp64, {1})).dtype, Dtype::fp64);
    EXPECT_EQ(b.tensors.size(), 2u);
    b.metadata["rule"] = "gdn";
    EXPECT_EQ(b.meta("rule"), "gdn");
    EXPECT_EQ(b.meta("pass", "forward"), "forward");
    EXPECT_EQ(b.meta("pass"), "");
}

TEST(Bundle, ViewsHaveRowMajorOrGivenStrides) {
    const Array dense("x", Dtype::fp16, {2, 3, 4});
    auto t = dense.view();
    EXPECT_EQ(t.rank, 3);
    EXPECT_EQ(t.dtype, Dtype::fp16);
    EXPECT_EQ(t.data, dense.bytes.data());
    EXPECT_EQ(t.shape, (std::array<std::int64_t, 5>{2, 3, 4}));
    EXPECT_EQ(t.stride, (std::array<std::int64_t, 5>{12, 4, 1}));
    t = counting({2, 3}, {10, 2}).view();
    EXPECT_EQ(t.stride, (std::array<std::int64_t, 5>{10, 2}));
    EXPECT_FALSE(Array().view().present());
    EXPECT_EQ(Array().size(), 0);
}

TEST(Bundle, RefusesArraysThatDoNotFitTheirBytes) {
    const auto refused = [](Array a, const std::string& part) {
        expect_says(why([&] { a.view(); }), part);
        Bundle b;
        b.tensors.push_back(a);
        expect_says(why([&] { serialize_safetensors(b); }), part);
    };
    Array a("x", Dtype::fp32, {2, 3});
    a.bytes.pop_back();
    refused(a, "holds 23 bytes, expected 24");
    a = Array("x", Dtype::fp32, {1, 1, 1, 1, 1, 1});
    refused(a, "rank 6, expected at most 5");
    a = counting({2, 3}, {10, 2});
    a.bytes.resize(a.bytes.size() - 1);
    refused(a, "reach element 14");
    a.stride = {10};
    refused(a, "of another rank");
    a.stride = {-10, 1};
    refused(a, "none below 0");
    a.stride = {INT64_MAX, INT64_MAX};
    refused(a, "overflow");
    a.shape = {2, -3};
    refused(a, "negative");
    EXPECT_NE(why([] { Array("x", Dtype::fp32, {INT64_MAX, 2}); }), "");
    EXPECT_NE(why([] { Array("x", Dtype::fp32, {-1, 2}); }), "");
}

// ---- safetensors ---------------------------------------------------------------------------------------------------

RC_GTEST_PROP(Safetensors, RoundTrip, ()) {
    const auto bundle = random_bundle();
    const auto bytes = serialize_safetensors(bundle);
    const auto back = parse_safetensors(bytes, "memory");
    RC_ASSERT(back.metadata == bundle.metadata);
    RC_ASSERT(back.tensors.size() == bundle.tensors.size());
    for (const auto& a : bundle.tensors) RC_ASSERT(back.find(a.name) != nullptr && same(a, *back.find(a.name)));
    for (std::size_t i = 1; i < back.tensors.size(); ++i)
        RC_ASSERT(bytes_of(back.tensors[i - 1].dtype) >= bytes_of(back.tensors[i].dtype));
    // Any proper beginning of the file is refused, and a byte more is too.
    auto cut = bytes;
    cut.resize(*rc::gen::inRange<std::size_t>(0, bytes.size()));
    RC_ASSERT_THROWS_AS(parse_safetensors(cut, "memory"), Error);
    auto longer = bytes;
    longer.push_back({});
    RC_ASSERT_THROWS_AS(parse_safetensors(longer, "memory"), Error);
    // Any other single byte gives a bundle or an Error, nothing else.
    auto changed = bytes;
    changed[*rc::gen::inRange<std::size_t>(0, bytes.size())] = static_cast<std::byte>(*rc::gen::inRange(0, 256));
    why([&] { parse_safetensors(changed, "memory"); });
}

TEST(Safetensors, RoundTripThroughAFile) {
    const Folder folder;
    Bundle b;
    b.metadata["rule"] = "gdn";
    b.add(counting({3, 5}, {5, 1})).stride.clear();
    const auto path = folder / "a.safetensors";
    spill(path, "what stood there before");
    write_safetensors(path, b);
    EXPECT_EQ(folder.files(), 1);
    const auto back = read_safetensors(path);
    EXPECT_EQ(back.meta("rule"), "gdn");
    EXPECT_TRUE(same(b.tensors[0], back.tensors.at(0)));
}

TEST(Safetensors, ReadsTheRealLayer) {
    const auto b = read_safetensors(TIDEGATE_ROOT "/data/gdn_layer.safetensors");
    EXPECT_EQ(b.meta("rule"), "gdn");
    ASSERT_NE(b.find("q"), nullptr);
    EXPECT_EQ(b.find("q")->dtype, Dtype::bf16);
    EXPECT_EQ(b.find("q")->shape, (std::vector<std::int64_t>{1, 2048, 3, 64}));
    std::int64_t ends[5] = {};
    std::memcpy(ends, b.find("cu_seqlens")->bytes.data(), sizeof ends);
    EXPECT_EQ(ends[4], 2048);
    EXPECT_EQ(b.tensors.front().name, "cu_seqlens");
    EXPECT_EQ(b.tensors.back().name, "v");
}

TEST(Safetensors, StoresStridedArraysDense) {
    for (const auto& stride : {std::vector<std::int64_t>{40, 10, 2}, {40, 10, 1}, {1, 2, 6}, {12, 4, 1}}) {
        Bundle b;
        b.add(counting({2, 3, 4}, stride));
        expect_counting(parse_safetensors(serialize_safetensors(b), "memory").tensors.at(0));
    }
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
    const auto parsed = [](const std::string& f) { return parse_safetensors(bytes_of_text(f), "f"); };
    EXPECT_TRUE(parsed(tensors_file("{}")).tensors.empty());
    EXPECT_TRUE(parsed(tensors_file("{\"__metadata__\":{}} \n\t ")).metadata.empty());
    // Data order is not header order, and an empty tensor lies anywhere between.
    const auto b = parsed(tensors_file('{' + entry("late", "[1]", "[4,8]") + ',' + entry("none", "[0,9]", "[4,4]") +
                                           ',' + entry("early", "[1]", "[0,4]") + '}',
                                       8));
    ASSERT_EQ(b.tensors.size(), 3u);
    EXPECT_EQ(b.tensors[0].name, "early");
    EXPECT_EQ(b.tensors[1].name, "none");
    EXPECT_EQ(b.tensors[2].name, "late");
}

TEST(Safetensors, RefusesBadFiles) {
    const Folder folder;
    expect_says(why([&] { read_safetensors(folder / "absent"); }), folder / "absent: No such file or directory");
    expect_says(why([&] { read_safetensors(folder.path.string()); }), "is a directory");
    expect_says(why([&] { read_safetensors("/dev/null"); }), "is a device");
    // Sparse: a header above the official limit is refused although the file is long enough.
    spill(folder / "long", little(std::uint64_t{100000001}) + '{');
    fs::resize_file(folder / "long", 200000000);
    expect_says(why([&] { read_safetensors(folder / "long"); }),
                "header length 100000001 in bytes 0 to 7, expected 1 to 100000000");
    spill(folder / "empty", "");
    expect_says(why([&] { read_safetensors(folder / "empty"); }), "is empty");
    try {
        read_safetensors(folder / "absent");
    } catch (const Error& e) {
        EXPECT_EQ(e.argument(), "file");
    }
    if (::geteuid() != 0) {
        spill(folder / "locked", tensors_file("{}"));
        ::chmod((folder / "locked").c_str(), 0);
        expect_says(why([&] { read_safetensors(folder / "locked"); }), "cannot be opened");
    }
}

TEST(Safetensors, RefusesBadHeaders) {
    const auto refused = [](const std::string& header, const std::string& part, std::size_t data = 0) {
        const auto message = why_tensors(tensors_file(header, data));
        expect_says(message, part);
        expect_says(message, "f.safetensors: ");
    };
    expect_says(why_tensors("1234567"), "7 bytes, expected at least 8");
    expect_says(why_tensors(little(std::uint64_t{0}) + "{}"), "header length 0");
    expect_says(why_tensors(little(std::uint64_t{1} << 63) + "{}"), "header length 9223372036854775808");
    expect_says(why_tensors(little(~std::uint64_t{0}) + "{}"), "header length 18446744073709551615");
    expect_says(why_tensors(little(std::uint64_t{3}) + "{}"), "header length 3 in bytes 0 to 7, expected 1 to 2");
    refused("[]", "byte 8 is not '{'");
    refused(" {}", "byte 8 is not '{'");
    refused("\xEF\xBB\xBF{}", "byte 8 is not '{'");
    refused("{", "not UTF-8 JSON");
    refused("{} x", "not UTF-8 JSON");
    refused(std::string("{}\0x", 4), "NUL byte");
    refused("{\"__metadata__\":{\"a\":\"\xFF\"}}", "not UTF-8 JSON");
    refused("{\"__metadata__\":{\"a\":\"\\ud800\"}}", "not UTF-8 JSON");
    refused(R"({"a":{"shape":[1e999]}})", "not UTF-8 JSON");
    refused(std::string(1000000, '['), "byte 8 is not '{'");
    refused("{\"a\":" + std::string(1000000, '['), "expected an object");
    refused("{\"a\":{\"shape\":" + std::string(1000000, '['), "an array, expected");
    refused("{\"a\":{\"shape\":[{\"b\":", "an object, expected");
    refused("{\"__metadata__\":{\"a\":{", "an object, expected a string");
    refused(R"({"__metadata__":[]})", "__metadata__: an array, expected an object");
    for (const char* value : {"1", "-1", "1.5", "true", "null", "[]"})
        refused(std::string(R"({"__metadata__":{"key":)") + value + "}}", "metadata \"key\": ");
    refused(R"({"__metadata__":{"a":"1","a":"1"}})", "metadata \"a\": given twice");
    refused(R"({"__metadata__":{},"__metadata__":{}})", "__metadata__: given twice");
    refused('{' + entry("a", "[1]", "[0,4]") + ',' + entry("a", "[1]", "[4,8]") + '}', "tensor \"a\": given twice", 8);
    for (const char* value : {"1", "\"F32\"", "true", "null", "-1", "0.5", "[1]"})
        refused(std::string(R"({"a":)") + value + "}", "tensor \"a\": ");
}

TEST(Safetensors, RefusesBadTensors) {
    const auto refused = [](const std::string& fields, const std::string& part, std::size_t data = 0) {
        const auto message = why_tensors(tensors_file('{' + fields + '}', data));
        expect_says(message, part);
        expect_says(message, "\"q\"");
    };
    refused(R"("q":{})", "has no dtype");
    refused(R"("q":{"shape":[1],"data_offsets":[0,4]})", "has no dtype", 4);
    refused(R"("q":{"dtype":"F32","data_offsets":[0,4]})", "has no shape", 4);
    refused(R"("q":{"dtype":"F32","shape":[1]})", "has no data_offsets", 4);
    refused(R"("q":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1})", "\"x\": unknown key", 4);
    refused(R"("q":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", "\"dtype\": given twice", 4);
    refused(R"("q":{"dtype":1,"shape":[1],"data_offsets":[0,4]})", "the number 1, expected a string", 4);
    refused(R"("q":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]})", "an array, expected a string", 4);
    refused(R"("q":{"dtype":"F32","shape":1,"data_offsets":[0,4]})", "the number 1, expected an array", 4);
    refused(R"("q":{"dtype":"F32","shape":"1","data_offsets":[0,4]})", "the string \"1\", expected an array", 4);
    refused(entry("q", "[1]", "[0,1]", "F8_E4M3"),
            "tensor \"q\", \"dtype\": \"F8_E4M3\", expected one of F32 BF16 F16 F64 I32 I64", 1);
    refused(entry("q", "[1]", "[0,4]", "f32"), "\"f32\", expected one of", 4);
    refused(entry("q", "[-1]", "[0,4]"), "a negative number", 4);
    refused(entry("q", "[1.0]", "[0,4]"), "the number \"1.0\"", 4);
    refused(entry("q", "[\"1\"]", "[0,4]"), "the string \"1\"", 4);
    refused(entry("q", "[null]", "[0,4]"), "null", 4);
    refused(entry("q", "[9223372036854775808]", "[0,4]"), "the number 9223372036854775808", 4);
    refused(entry("q", "[99999999999999999999]", "[0,4]"), "the number \"99999999999999999999\"", 4);
    refused(entry("q", "[4611686018427387904]", "[0,0]"), "overflows");  // times 4 bytes is 0 modulo 2^64
    refused(entry("q", "[4294967296,4294967296]", "[0,0]"), "overflows");
    refused(entry("q", "[0,4294967296,4294967296]", "[0,0]"), "overflows");
    refused(entry("q", "[]", "[0,4]"), "scalars are not taken", 4);
    refused(entry("q", "[1,1,1,1,1,1]", "[0,4]"), "more than 5 extents", 4);
    refused(entry("q", "[1]", "[0]"), "fewer numbers", 4);
    refused(entry("q", "[1]", "[0,4,8]"), "a third number", 4);
    refused(entry("q", "[1]", "[-4,0]"), "a negative number", 4);
    refused(entry("q", "[1]", "[0,5e0]"), "the number \"5e0\"", 4);
    refused(entry("q", "[1]", "[0,18446744073709551616]"), "expected an array of two", 4);
    refused(entry("q", "[1]", "[4,0]"), "expected begin <= end", 4);
    refused(entry("q", "[2]", "[0,8]"), "[0, 8], expected at most 4", 4);
    refused(entry("q", "[1]", "[18446744073709551611,18446744073709551615]"), "expected at most 4", 4);
    refused(entry("q", "[1,2]", "[0,4]"), "[0, 4], expected 8 bytes for shape [1, 2] fp32", 4);
    refused(entry("q", "[0]", "[0,4]"), "expected 0 bytes", 4);
    refused(entry("a", "[2]", "[0,8]") + ',' + entry("q", "[2]", "[4,12]"), "overlapping", 12);
    refused(entry("a", "[1]", "[0,4]") + ',' + entry("q", "[1]", "[0,4]"), "overlapping", 4);
    refused(entry("a", "[1]", "[0,4]") + ',' + entry("q", "[1]", "[8,12]"), "hole", 12);
    refused(entry("q", "[1]", "[4,8]"), "hole", 8);
    expect_says(why_tensors(tensors_file('{' + entry("q", "[1]", "[0,4]") + '}', 5)), "1 trailing bytes");
    expect_says(why_tensors(tensors_file("{}", 3)), "3 trailing bytes");
}

TEST(Safetensors, MessagesStayShortAndPrintable) {
    const auto message = why_tensors(tensors_file(R"({"\n)" + std::string(100000, 'n') + R"(":1})"));
    EXPECT_LT(message.size(), 300u);
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_LT(why_tensors(tensors_file("{\"" + std::string(100000, 'n') + "\xFF\":1}")).size(), 400u);
}

TEST(Safetensors, WriterRefusesWhatNoReaderWouldTake) {
    Bundle b;
    b.tensors.push_back(Array("x", Dtype::fp32, {1}));
    b.tensors.push_back(Array("x", Dtype::fp32, {1}));
    expect_says(why([&] { serialize_safetensors(b); }), "\"x\" would be written twice");
    b.tensors[1] = Array("__metadata__", Dtype::fp32, {1});
    expect_says(why([&] { serialize_safetensors(b); }), "would be written twice");
    b.tensors[1] = Array();
    expect_says(why([&] { serialize_safetensors(b); }), "scalars are not taken");
}

TEST(Safetensors, MetadataThatIsNotUtf8IsReplaced) {
    Bundle b;
    b.metadata["why"] =
        "a\xFF"
        "b";
    EXPECT_EQ(parse_safetensors(serialize_safetensors(b), "memory").meta("why"),
              "a\xEF\xBF\xBD"
              "b");
    b.metadata["\xFE"] = b.metadata["\xFF"] = "";
    expect_says(why([&] { serialize_safetensors(b); }), "would be written twice");
}
