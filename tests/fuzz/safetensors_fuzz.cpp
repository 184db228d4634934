// Whatever the bytes: a bundle or an Error. A bundle is readable to its last byte and survives being written.
#include <cstdint>
#include <cstdlib>

#include "io/safetensors.h"
#include "tidegate/error.h"

using namespace tidegate;
using namespace tidegate::io;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
    Bundle bundle;
    try {
        bundle = parse_safetensors(file, "fuzz");
    } catch (const Error&) {
        return 0;
    }
    std::size_t bytes = 0;
    static volatile unsigned sink;
    for (const auto& array : bundle.tensors) {
        const auto view = array.view();
        const auto held = static_cast<std::size_t>(view.size() * bytes_of(view.dtype));
        for (std::size_t i = 0; i < held; ++i) sink = sink + static_cast<const std::uint8_t*>(view.data)[i];
        bytes += held;
    }
    // No Error may come from here on: what was read can be written, and reads as the same.
    const auto back = parse_safetensors(serialize_safetensors(bundle), "rewritten");
    if (bytes > size || back.metadata != bundle.metadata || back.tensors.size() != bundle.tensors.size()) std::abort();
    for (const auto& array : bundle.tensors) {
        const auto* other = back.find(array.name);
        if (!other || other->dtype != array.dtype || other->shape != array.shape || other->bytes != array.bytes)
            std::abort();
    }
    return 0;
}
