// exec: subjects: one process a request, or a persistent one that is replaced by a lone one when it fails.
#include "subjects/exec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "io/safetensors.h"
#include "subjects/child.h"
#include "subjects/poison.h"
#include "subjects/shell.h"
#include "tidegate/error.h"

namespace tidegate::subjects {
namespace {

constexpr int kSkipped = 77;
constexpr double kGoodbye = 0.5;  // s that a persistent child gets to end by itself
constexpr std::string_view kReply = "@tidegate ";
constexpr std::size_t kLongestLine = 65'536;

struct Signal {
    int number;
    const char* name;
};
constexpr std::array<Signal, 15> kFatal{{{SIGHUP, "SIGHUP"},
                                         {SIGINT, "SIGINT"},
                                         {SIGQUIT, "SIGQUIT"},
                                         {SIGILL, "SIGILL"},
                                         {SIGTRAP, "SIGTRAP"},
                                         {SIGABRT, "SIGABRT"},
                                         {SIGBUS, "SIGBUS"},
                                         {SIGFPE, "SIGFPE"},
                                         {SIGKILL, "SIGKILL"},
                                         {SIGSEGV, "SIGSEGV"},
                                         {SIGPIPE, "SIGPIPE"},
                                         {SIGTERM, "SIGTERM"},
                                         {SIGXCPU, "SIGXCPU"},
                                         {SIGXFSZ, "SIGXFSZ"},
                                         {SIGSYS, "SIGSYS"}}};

const char* signal_name(int number) {
    const auto* found = std::find_if(kFatal.begin(), kFatal.end(), [&](const Signal& s) { return s.number == number; });
    return found == kFatal.end() ? nullptr : found->name;
}

/// A directory of its own for one request and its answer; gone afterwards with all that was put there.
class Scratch {
public:
    Scratch() {
        const char* set = std::getenv("TMPDIR");
        path_ = std::string(set != nullptr && *set != '\0' ? set : "/tmp") + "/tidegate-XXXXXX";
        if (mkdtemp(path_.data()) != nullptr) return;
        throw Error("TMPDIR", "cannot make " + path_ + ": " + std::strerror(errno));
    }
    ~Scratch() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    std::string request() const { return path_ + "/request.safetensors"; }
    std::string answer() const { return path_ + "/answer.safetensors"; }

private:
    std::string path_;
};

Outcome read_answer(const std::string& path) {
    Outcome outcome;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) {
        outcome.status = Status::crashed;
        outcome.reason = "no answer file";
        return outcome;
    }
    try {
        outcome.answer = io::read_safetensors(path);
        outcome.unwritten = parse_unwritten(outcome.answer.meta("unwritten"));
    } catch (const std::exception& error) {
        outcome = {};
        outcome.status = Status::crashed;
        std::string defect = error.what();
        // The path differs from run to run and is gone by now: the same defect shall read the same.
        if (defect.starts_with(path + ": ")) defect.erase(0, path.size() + 2);
        outcome.reason = "unreadable answer: " + defect;
    }
    return outcome;
}

/// A compiled kernel that a cache promised and did not hold: the machine's fault, not the kernel's.
bool misses_cached_kernel(std::string_view text) {
    constexpr std::array<std::string_view, 3> places{"cache", "triton", "torchinductor"};
    constexpr std::array<std::string_view, 4> endings{".cubin", ".so", ".hsaco", ".ptx"};
    const auto is_artifact = [&](std::string_view word) {
        if (word.find('/') != word.npos && std::any_of(places.begin(), places.end(), [&](std::string_view place) {
                return word.find(place) != word.npos;
            })) {
            return true;
        }
        return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) {
            const auto at = word.rfind(ending);
            if (at == word.npos || at == 0) return false;
            const auto rest = word.substr(at + ending.size());  // libx.so.1 is one, lib.source is not
            return rest.empty() || rest[0] == '.';
        });
    };
    while (!text.empty()) {
        auto line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        if (line.find("No such file or directory") == line.npos) continue;
        while (!line.empty()) {
            const auto word = line.substr(0, line.find_first_of(" \t\r'\"`:,;()[]<>="));
            line.remove_prefix(std::min(word.size() + 1, line.size()));
            if (is_artifact(word)) return true;
        }
    }
    return false;
}

Outcome crashed(const Ending& ending, const Child& child) {
    Outcome outcome;
    outcome.status = Status::crashed;
    const char* by_shell = ending.how == Ending::How::exited ? signal_name(ending.code - 128) : nullptr;
    if (ending.how == Ending::How::signalled) {
        outcome.signal = ending.code;
        const char* name = signal_name(ending.code);
        outcome.reason = fmt::format("signal {}{}", ending.code, name ? fmt::format(" ({})", name) : "");
    } else if (by_shell != nullptr) {  // a compound COMMAND: the shell outlives its child and tells of it so
        outcome.signal = ending.code - 128;
        outcome.reason = fmt::format("signal {} ({}, by the shell's exit code)", outcome.signal, by_shell);
    } else {
        outcome.reason = fmt::format("exit {}", ending.code);
    }
    // The shell reports such an end on stderr too, below what its child had to say.
    const auto words = child.last_words(by_shell != nullptr ? strsignal(outcome.signal) : "");
    if (!words.empty()) outcome.reason += " (last words: " + words + ")";
    if (misses_cached_kernel(child.err_tail())) outcome.reason = "crashed (environment): " + outcome.reason;
    return outcome;
}

Outcome hung(const Ending& ending) {
    Outcome outcome;
    outcome.status = Status::hung;
    outcome.reason = hung_text(ending);
    return outcome;
}

bool is_hung(const Ending& ending) {
    return ending.how == Ending::How::hung_busy || ending.how == Ending::How::hung_idle;
}

/// Finds the first reply line in a stream of log lines.
class Replies {
public:
    bool hear(std::string_view text) {
        for (const char c : text) {
            if (c != '\n') {
                if (line_.size() < kLongestLine) line_ += c;
                continue;
            }
            if (!line_.empty() && line_.back() == '\r') line_.pop_back();
            if (!reply && line_.starts_with(kReply)) reply = line_.substr(kReply.size());
            line_.clear();
        }
        return reply.has_value();
    }
    std::optional<std::string> reply;

private:
    std::string line_;
};

class Exec final : public Subject {
public:
    Exec(std::string command, bool persistent, const Limits& limits)
        : command_(std::move(command)), persistent_(persistent), limits_(limits) {}

    ~Exec() override {
        if (!child_) return;
        child_->close_stdin();
        child_->wait({kGoodbye, 0});
    }

    Outcome answer(const io::Bundle& request) override {
        const auto start = std::chrono::steady_clock::now();
        const auto timed = [&](Outcome outcome) {
            outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            return outcome;
        };
        if (!persistent_) return timed(alone(request));
        Outcome first = in_company(request);
        if (first.status != Status::crashed && first.status != Status::hung) return timed(std::move(first));
        child_.reset();
        Outcome second = alone(request);
        second.first_try = first.reason + ", in persistent process";
        return timed(std::move(second));
    }

    std::string name() const override { return "exec:" + command_; }
    bool crashes_apart() const override { return true; }

private:
    Outcome alone(const io::Bundle& request) const {
        const Scratch scratch;
        io::write_safetensors(scratch.request(), request);
        const auto line = command_ + " " + in_shell(scratch.request()) + " " + in_shell(scratch.answer());
        Child child({"/bin/sh", "-c", line}, {"TIDEGATE_PERSISTENT"}, false);
        const auto ending = child.wait(limits_);
        if (is_hung(*ending)) return hung(*ending);
        if (ending->how == Ending::How::exited && ending->code == 0) return read_answer(scratch.answer());
        if (ending->how == Ending::How::exited && ending->code == kSkipped) {
            Outcome outcome;
            outcome.status = Status::skipped;
            outcome.reason = child.last_words();
            if (outcome.reason.empty()) outcome.reason = "no reason given";
            return outcome;
        }
        return crashed(*ending, child);
    }

    Outcome in_company(const io::Bundle& request) {
        const Scratch scratch;
        io::write_safetensors(scratch.request(), request);
        const auto line = scratch.request() + "\t" + scratch.answer() + "\n";
        if (std::count(line.begin(), line.end(), '\t') + std::count(line.begin(), line.end(), '\n') != 2) {
            throw Error("TMPDIR", "has a tab or line end, which persistent subjects cannot take: " + scratch.request());
        }
        if (!child_) {
            child_ = std::make_unique<Child>(std::vector<std::string>{"/bin/sh", "-c", command_},
                                             std::vector<std::string>{"TIDEGATE_PERSISTENT=1"}, true);
            replies_ = {};
        }
        const auto hear = [&](std::string_view text) { return replies_.hear(text); };
        child_->drain(hear);
        replies_.reply.reset();  // whatever it said unasked is no answer to this request
        child_->write(line);     // if that fails, the wait tells why
        if (const auto ending = child_->wait(limits_, hear)) {
            if (is_hung(*ending)) return hung(*ending);
            Outcome outcome = crashed(*ending, *child_);
            if (outcome.signal == 0) outcome.reason += ", without a reply";
            return outcome;
        }
        const std::string& reply = *replies_.reply;
        const auto word = reply.substr(0, reply.find(' '));
        const auto why = reply.substr(std::min(word.size() + 1, reply.size()));
        if (word == "ok") return read_answer(scratch.answer());
        Outcome outcome;
        outcome.status = word == "skip" ? Status::skipped : word == "error" ? Status::failed : Status::crashed;
        outcome.reason = why.empty() ? "no reason given" : why;
        if (outcome.status == Status::crashed) outcome.reason = "unknown reply: " + reply;
        return outcome;
    }

    const std::string command_;
    const bool persistent_;
    const Limits limits_;
    std::unique_ptr<Child> child_;
    Replies replies_;
};

}  // namespace

std::unique_ptr<Subject> make_exec(const std::string& command, bool persistent, const Limits& limits) {
    return std::make_unique<Exec>(command, persistent, limits);
}

}  // namespace tidegate::subjects
