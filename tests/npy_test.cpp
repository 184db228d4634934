// .npy files, and the whole-or-absent writing that both formats share.
#include "io/npy.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "io/safetensors.h"
#include "io_testing.h"

using namespace tidegate;
using namespace tidegate::io;

namespace {

std::string npy_file(const std::string& header, std::size_t data = 0, const std::string& version = {"\x01\x00", 2}) {
    const auto length = static_cast<std::uint32_t>(header.size());
    return "\x93NUMPY" + version + little(length).substr(0, version[0] == 1 ? 2 : 4) + header +
           std::string(data, '\x01');
}

std::string why_npy(const std::string& file) {
    return why([&] { parse_npy(bytes_of_text(file), "f.npy"); });
}

}  // namespace

// ---- writing is whole or absent ------------------------------------------------------------------------------------

TEST(Writing, LeavesNothingBehindWhenItFails) {
    const Folder folder;
    Bundle b;
    b.add(Array("x", Dtype::fp32, {100000}));
    const auto absent = folder / "no/such/folder/x.safetensors";
    expect_says(why([&] { write_safetensors(absent, b); }), absent);
    expect_says(why([&] { write_npy(absent, b.tensors[0]); }), std::strerror(ENOENT));
    fs::create_directory(folder / "d");
    expect_says(why([&] { write_safetensors(folder / "d", b); }), std::strerror(EISDIR));
    EXPECT_EQ(folder.files(), 1);

    // A disk that fills up half-way: the old content stays, the temporary goes.
    const auto path = folder / "x.safetensors";
    spill(path, "before");
    rlimit old{};
    ::getrlimit(RLIMIT_FSIZE, &old);
    const rlimit small{4096, old.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &small);
    const auto message = why([&] { write_safetensors(path, b); });
    ::setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, handler);
    expect_says(message, path + ": cannot be written: " + std::strerror(EFBIG));
    EXPECT_EQ(folder.files(), 2);
    EXPECT_EQ(fs::file_size(path), 6u);
}

TEST(Writing, NeverReplacesADevice) {
    const Folder folder;
    const auto pipe = folder / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    expect_says(why([&] { write_safetensors(pipe, {}); }), "is a device, pipe or socket");
    EXPECT_TRUE(fs::is_fifo(pipe));
}

// ---- npy -----------------------------------------------------------------------------------------------------------

RC_GTEST_PROP(Npy, RoundTrip, ()) {
    const Folder folder;
    const auto path = folder / "a.npy";
    auto array = random_array("");
    RC_PRE(array.dtype != Dtype::bf16);
    write_npy(path, array);
    RC_ASSERT(same(array, read_npy(path)));
}

TEST(Npy, ReadsEveryDtypeVersionAndOrder) {
    const std::pair<const char*, Dtype> dtypes[] = {
        {"<f2", Dtype::fp16}, {"<f4", Dtype::fp32}, {"<f8", Dtype::fp64}, {"<i4", Dtype::int32}, {"<i8", Dtype::int64}};
    for (const auto& [text, dtype] : dtypes)
        for (const char* version : {"\x01", "\x02", "\x03"}) {
            const auto file =
                npy_file(std::string("{'descr': '") + text + "', 'fortran_order': False, 'shape': (3,), }  \n",
                         static_cast<std::size_t>(3 * bytes_of(dtype)), std::string(version) + '\0');
            const auto array = parse_npy(bytes_of_text(file), "f");
            EXPECT_EQ(array.dtype, dtype);
            EXPECT_EQ(array.shape, std::vector<std::int64_t>{3});
        }
    // Other spellings of the same dict.
    for (const char* dict : {R"({"shape":(2,3),"descr":"<f4","fortran_order":False})",
                             "{ 'shape' : ( 2 , 3 , ) , 'fortran_order' : True , 'descr' : '<f4' }"})
        EXPECT_EQ(why_npy(npy_file(dict, 24)), "");
}

TEST(Npy, FortranOrderBecomesRowMajor) {
    const auto columns = counting({2, 3, 4}, {1, 2, 6});
    auto file = bytes_of_text(npy_file("{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3, 4), }\n"));
    file.insert(file.end(), columns.bytes.begin(), columns.bytes.end());
    expect_counting(parse_npy(file, "f"));
}

TEST(Npy, StoresStridedArraysDense) {
    const Folder folder;
    write_npy(folder / "a.npy", counting({2, 3, 4}, {40, 10, 2}));
    expect_counting(read_npy(folder / "a.npy"));
    EXPECT_EQ(fs::file_size(folder / "a.npy"), 128u + 96u);
}

TEST(Npy, RefusesBadFiles) {
    const Folder folder;
    expect_says(why([&] { read_npy(folder / "absent"); }), folder / "absent: No such file or directory");
    expect_says(why([&] { read_npy(folder.path.string()); }), "is a directory");
    expect_says(why_npy(""), "is empty");
    expect_says(why_npy("\x93NUMPY\x01"), "7 bytes, expected at least 10");
    expect_says(why_npy("\x93NUMPx" + std::string(10, '\x01')), "does not start with");
    expect_says(why_npy(npy_file("{}", 0, {"\x04\x00", 2})), "version 4.0");
    expect_says(why_npy(npy_file("{}", 0, {"\x01\x01", 2})), "version 1.1");
    expect_says(why_npy("\x93NUMPY" + std::string("\x01\x00\x00\x00{}", 6)), "header length 0");
    expect_says(why_npy("\x93NUMPY" + std::string("\x01\x00\x03\x00{}", 6)), "header length 3");
    expect_says(why_npy("\x93NUMPY" + std::string("\x02\x00\xFF\xFF\xFF\xFF{}", 8)), "header length 4294967295");
    expect_says(why_npy("\x93NUMPY" + std::string("\x02\x00\x02\x00", 4)), "has 2 bytes left, expected 4");
    expect_says(why([&] { write_npy(folder / "b.npy", Array("x", Dtype::bf16, {1})); }), "is bf16");
    EXPECT_EQ(folder.files(), 0);
}

TEST(Npy, RefusesBadHeaders) {
    const auto refused = [](const std::string& dict, const std::string& part, std::size_t data = 4) {
        const auto message = why_npy(npy_file(dict, data));
        expect_says(message, part);
        expect_says(message, "f.npy: ");
    };
    const auto with = [](const std::string& descr, const std::string& fortran, const std::string& shape) {
        return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + "}";
    };
    refused("[]", "expected '{'");
    refused("{", "expected '''");
    refused("{'descr'}", "expected ':'");
    refused("{'descr': '<f4' 'shape'", "expected ','");
    refused("{'descr': '<f4", "a string without end");
    refused(R"({'de\x73cr': '<f4'})", "an escape");
    refused("{'descr': '<f4', 'more': 1}", "unknown key \"more\"");
    refused("{'descr': '<f4', 'descr': '<f4'}", "key \"descr\" given twice");
    refused("{'fortran_order': False, 'shape': (1,)}", "no key descr");
    refused("{'descr': '<f4', 'shape': (1,)}", "no key fortran_order");
    refused("{'descr': '<f4', 'fortran_order': False}", "no key shape");
    refused(with("'<f4'", "False", "(1,)") + " x", "text behind the dict");
    refused(with("'<f4'", "False", "(1,)") + std::string(1, '\0'), "text behind the dict");
    refused(with("'>f4'", "False", "(1,)"), "\">f4\" is big-endian");
    refused(with("'|O'", "False", "(1,)"), "\"|O\" is an object dtype");
    refused(with("[('x', '<f4')]", "False", "(1,)"), "structured dtypes are not taken");
    refused(with("'<c8'", "False", "(1,)"), "\"<c8\" is not taken");
    refused(with("'|V2'", "False", "(1,)"), "\"|V2\" is not taken");
    refused(with("'<f4'", "0", "(1,)"), "neither True nor False");
    refused(with("'<f4'", "False", "()"), "scalars are not taken");
    refused(with("'<f4'", "False", "(1)"), "expected a tuple (N,)");
    refused(with("'<f4'", "False", "(1 1)"), "expected ',' or ')'");
    refused(with("'<f4'", "False", "[1]"), "expected '('");
    refused(with("'<f4'", "False", "(,)"), "no decimal integer");
    refused(with("'<f4'", "False", "(-1,)"), "no decimal integer");
    refused(with("'<f4'", "False", "(01,)"), "no decimal integer");
    refused(with("'<f4'", "False", "(1.0,)"), "expected ',' or ')'");
    refused(with("'<f4'", "False", "(1, 1, 1, 1, 1, 1)"), "more than 5 extents");
    refused(with("'<f4'", "False", "(9223372036854775808,)"), "above 2^63 - 1");
    refused(with("'<f4'", "False", "(4611686018427387904,)"), "overflows");
    refused(with("'<f4'", "True", "(0, 4294967296, 4294967296)"), "overflows", 0);
    refused(with("'<f4'", "False", "(2,)"), "4 bytes behind the header, expected 8 for shape [2] fp32");
    refused(with("'<f4'", "False", "(1,)"), "5 bytes behind the header, expected 4", 5);
}
