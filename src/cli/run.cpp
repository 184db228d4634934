// tidegate run: a request file through a subject, its answer to a file.
#include <fmt/format.h>

#include <filesystem>

#include "cases/case.h"
#include "cases/request.h"
#include "cli/exit_code.h"
#include "cli/verbs.h"
#include "io/safetensors.h"
#include "tidegate/error.h"

namespace tidegate::cli {

int run(const RunOptions& o) {
    if (std::filesystem::exists(o.out) && std::filesystem::exists(o.in) && std::filesystem::equivalent(o.in, o.out))
        throw Error("OUT", "OUT: given the request's own file, expected another");
    const bool id = cases::looks_like_id(o.in) && !std::filesystem::exists(o.in);
    const io::Bundle request = id ? cases::generate(cases::parse(o.in)) : io::read_safetensors(o.in);
    cases::validate(request, o.allow_nan || id);
    const subjects::Outcome outcome = subjects::make_subject(o.subject, o.settings)->answer(request);
    switch (outcome.status) {
        case subjects::Status::answered:
            io::write_safetensors(o.out, outcome.answer);
            return kPass;
        case subjects::Status::skipped:
            fmt::print(stderr, "tidegate: skipped: {}\n", outcome.reason);
            return kNothing;
        case subjects::Status::failed:
            fmt::print(stderr, "tidegate: failed: {}\n", outcome.reason);
            return kWrong;
        default:
            fmt::print(stderr, "tidegate: {}\n", outcome.reason);
            return kCrashed;
    }
}

}  // namespace tidegate::cli
