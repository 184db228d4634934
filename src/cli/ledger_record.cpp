#include "cli/ledger_record.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cases/case.h"
#include "tidegate/error.h"
#include "tidegate/version.h"

namespace tidegate::cli {
namespace {

/// A command's first line; empty where it fails.
std::string first_line(const char* command) {
    std::FILE* pipe = popen(command, "r");
    if (pipe == nullptr) return "";
    std::array<char, 512> buffer{};
    const bool got = std::fgets(buffer.data(), buffer.size(), pipe) != nullptr;
    if (pclose(pipe) != 0 || !got) return "";
    const std::string line = buffer.data();
    return line.substr(0, line.find('\n'));
}

std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

ledger::Run run_here(const LedgerOptions& o, const std::string& subject, const std::string& command) {
    ledger::Run run;
    run.build = build_here(o.build);
    run.machine = o.machine.empty() ? machine_here() : o.machine;
    run.subject_hash = subject_hash(subject);
    run.source = command;
    run.note = o.note;
    return run;
}

}  // namespace

ledger::Build build_here(const std::string& name) {
    ledger::Build build;
    build.name = name;
    if (name.empty()) {
        build.name = first_line("git rev-parse --short HEAD 2>/dev/null");
        build.dirty = !build.name.empty() && !first_line("git status --porcelain 2>/dev/null").empty();
        if (build.name.empty()) build.name = "unknown";
    }
#ifdef __clang__
    build.compiler = "clang " __clang_version__;
#else
    build.compiler = "g++ " __VERSION__;
#endif
    build.flags = TIDEGATE_BUILD_FLAGS;
    return build;
}

std::string subject_hash(const std::string& spec) {
    const std::string word = spec.substr(0, spec.find("+fault:"));
    if (word.rfind("lib:", 0) == 0) return cases::hash_of(contents(word.substr(4)));
    if (word.rfind("exec:", 0) == 0) return cases::hash_of(word);
    if (word.rfind("file:", 0) == 0) return cases::hash_of(contents(word.substr(5)));
    return cases::hash_of(contents("/proc/self/exe"));
}

std::string machine_here() {
    std::array<char, 256> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.rfind("model name", 0) == 0) return name.data() + (", " + line.substr(line.find(':') + 2));
    return name.data();
}

void not_the_ledger(const std::string& json, const std::string& ledger) {
    if (!ledger.empty() && ledger[0] == ':')
        throw Error("ledger", "ledger: given '" + ledger + "', expected the name of a file");
    std::error_code none;
    if (!json.empty() && !ledger.empty() && (json == ledger || std::filesystem::equivalent(json, ledger, none)))
        throw Error("json", "json: given the ledger's file '" + json + "', expected another");
}

LedgerSink::LedgerSink(const LedgerOptions& options, const std::string& subject, const std::string& command)
    : LedgerSink(options, run_here(options, subject, command)) {}

LedgerSink::LedgerSink(const LedgerOptions& options, const ledger::Run& run)
    : file_(options.file),
      build_(run.build.name + (run.build.dirty ? " (dirty)" : "")),
      store_(options.file, ledger::Store::Mode::write),
      ingest_(store_, run) {}

std::string LedgerSink::words() const {
    if (ingest_.run() == 0) return "nothing, since nothing ran";
    return "run #" + std::to_string(ingest_.run()) + " of build " + build_ + " in " + file_;
}

}  // namespace tidegate::cli
