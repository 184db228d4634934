// A library that does what TIDEGATE_LIB_MODE in the environment says, after zeroing its outputs.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tidegate/subject.h"

namespace {

std::int64_t elements(const tg_tensor& t) {
    std::int64_t n = 1;
    for (std::int32_t d = 0; d < t.rank; ++d) n *= t.shape[d];
    return n;
}

}  // namespace

int tidegate_subject(const char* metadata_json, const tg_tensor* in, int, tg_tensor* out, int n_out, char* message,
                     std::size_t message_size) {
    const char* set = std::getenv("TIDEGATE_LIB_MODE");
    const std::string mode = set != nullptr ? set : "";
    if (mode == "untouched") return TG_ANSWERED;
    for (int i = 0; i < n_out; ++i)
        std::memset(out[i].data, 0, static_cast<std::size_t>(elements(out[i])) * sizeof(float));
    auto* o = static_cast<float*>(out[0].data);
    if (mode == "past-end") o[elements(out[0])] = 1;
    if (mode == "far-past-end") o[elements(out[0]) + 1000] = 1;
    if (mode == "before-start") o[-1] = 1;
    if (mode == "input") static_cast<float*>(in[0].data)[0] = 1;
    if (mode == "read-past-end") o[0] = static_cast<const float*>(in[0].data)[elements(in[0]) + 1000];
    if (mode == "message-overflow") std::memset(message, 'x', message_size + 1);
    volatile bool looping = mode == "loop";
    while (looping) {
    }
    if (mode == "exit") std::exit(3);
    if (mode == "abort") std::abort();
    if (mode == "throw") throw std::runtime_error("no such tile");
    if (mode == "print") {
        std::printf("@tidegate error not a reply\nno line end");
        char line[8];
        if (std::fgets(line, sizeof line, stdin) != nullptr) return 9;  // requests are not for the library
        if (write(STDOUT_FILENO, "@tidegate skip neither\n", 23) < 0) return 10;
    }
    if (mode == "abort-in-company" && std::getenv("TIDEGATE_PERSISTENT") != nullptr) std::abort();
    std::string text = metadata_json;
    if (mode == "skip") text = "no kernel for\tK\n";
    if (mode == "long") {
        text.clear();
        while (text.size() < message_size) text += "\xE2\x82\xAC";  // a character of three bytes
    }
    std::snprintf(message, message_size, "%s", text.c_str());
    if (mode == "skip") return TG_SKIPPED;
    return mode == "error" || mode == "long" ? 5 : TG_ANSWERED;
}
