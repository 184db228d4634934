// One child process and everything it starts: its own process group, watched against a limit, and killed as one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "subjects/subject.h"

namespace tidegate::subjects {

/// How a child ended.
struct Ending {
    enum class How { exited, signalled, hung_busy, hung_idle };
    How how = How::exited;
    int code = 0;              ///< exit code, or the signal
    double seconds = 0;        ///< of this wait
    double cpu = 0;            ///< of the whole group in this wait; measured when it hung
    std::int64_t printed = 0;  ///< bytes on stdout and stderr in this wait
    bool unkillable = false;   ///< survived SIGKILL (stuck in a driver): given up, not waited for
};

/// "hung (busy): 4.0 s, CPU 3.9 s, 0 bytes printed".
std::string hung_text(const Ending& ending);

/// Kills the groups of all living children. Async-signal-safe, for a tool's SIGINT and SIGTERM handlers: children in
/// groups of their own do not see the terminal's Ctrl-C.
void kill_children() noexcept;

/// A file descriptor that is closed once.
class Fd {
public:
    explicit Fd(int fd = -1) : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Fd& operator=(Fd&& other) noexcept;
    ~Fd() { reset(); }
    void reset();
    int get() const { return fd_; }

private:
    int fd_;
};

class Child {
public:
    /// Starts argv[0] (a path). `environment` changes the inherited one: "NAME=value" sets, "NAME" removes.
    /// Standard input is a pipe with `feed`, else /dev/null. Throws Error("subject") if it cannot be started.
    Child(const std::vector<std::string>& argv, const std::vector<std::string>& environment, bool feed);
    ~Child() { end_group(); }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    /// To the child's standard input. False when it does not read (any more); no SIGPIPE, never blocks.
    bool write(std::string_view text);
    void close_stdin() { in_.reset(); }

    /// Gets stdout as it comes; true ends the wait.
    using Heard = std::function<bool(std::string_view)>;
    /// Waits until the child ends, or hangs by `limits` and is killed; the group is gone then. nullopt: `heard` was
    /// satisfied first.
    std::optional<Ending> wait(const Limits& limits, const Heard& heard = {});
    bool drain(const Heard& heard);  ///< what is there already, without waiting; true: `heard` was satisfied

    const std::string& out_tail() const { return out_text_; }  ///< the last of stdout, at most 64 KiB
    const std::string& err_tail() const { return err_text_; }
    /// The last non-empty line of stderr, printable, shortened; an end that holds `besides` is passed over.
    std::string last_words(std::string_view besides = "") const;

private:
    bool ended();
    void end_group();

    pid_t pid_ = -1;  ///< -1 once reaped; `ending_` then holds what was learnt
    Fd in_, out_, err_;
    Ending ending_;
    bool first_wait_ = true;
    std::int64_t printed_ = 0;
    std::string out_text_, err_text_;
};

}  // namespace tidegate::subjects
