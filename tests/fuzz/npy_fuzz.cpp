// Whatever the bytes: an array or an Error. An array is readable to its last byte.
#include <cstdint>
#include <cstdlib>

#include "io/npy.h"
#include "tidegate/error.h"

using namespace tidegate;
using namespace tidegate::io;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
    Array array;
    try {
        array = parse_npy(file, "fuzz");
    } catch (const Error&) {
        return 0;
    }
    const auto view = array.view();
    const auto held = static_cast<std::size_t>(view.size() * bytes_of(view.dtype));
    if (held != array.bytes.size() || held > size || !array.stride.empty()) std::abort();
    static volatile unsigned sink;
    for (std::size_t i = 0; i < held; ++i) sink = sink + static_cast<const std::uint8_t*>(view.data)[i];
    return 0;
}
