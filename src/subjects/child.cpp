// Child processes: spawn, watch, kill.
#include "subjects/child.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "tidegate/error.h"

namespace tidegate::subjects {
namespace {

constexpr std::size_t kTail = 65'536;
constexpr double kWindow = 5;        // s: the last part of a wait, in which CPU time must grow to be called busy
constexpr double kBusyShare = 0.05;  // of one core: a busy child on a crowded machine has more, a poller less
constexpr double kKillPatience = 2;  // s for SIGKILL to work
constexpr std::size_t kWordsShown = 300;

std::array<std::atomic<pid_t>, 64> living;  // groups, for kill_children; more than that at once are not listed

void enlist(pid_t pid) {
    for (auto& slot : living) {
        pid_t empty = 0;
        if (slot.compare_exchange_strong(empty, pid)) return;
    }
}

void forget(pid_t pid) {
    for (auto& slot : living) {
        pid_t held = pid;
        if (slot.compare_exchange_strong(held, 0)) return;
    }
}

class Stopwatch {
public:
    double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point start_ = Clock::now();
};

/// Close-on-exec, so that a child spawned by another thread meanwhile does not hold it open; above 2, so that the
/// child's dup2 calls cannot overwrite one end with another when our own standard streams are closed.
struct Pipe {
    Fd reader, writer;
    Pipe() {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) throw Error("subject", std::string("no pipe: ") + std::strerror(errno));
        reader = raised(ends[0]);
        writer = raised(ends[1]);
    }
    static Fd raised(int fd) {
        if (fd > STDERR_FILENO) return Fd(fd);
        const Fd low(fd);
        return Fd(fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    }
};

Fd unblocked(Fd fd) {
    fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
    return fd;
}

std::vector<std::string> changed_environment(const std::vector<std::string>& changes) {
    std::vector<std::string> all;
    const auto name = [](const std::string& entry) { return entry.substr(0, entry.find('=')); };
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string inherited = *entry;
        if (std::none_of(changes.begin(), changes.end(), [&](const auto& c) { return name(c) == name(inherited); })) {
            all.push_back(inherited);
        }
    }
    std::copy_if(changes.begin(), changes.end(), std::back_inserter(all),
                 [](const auto& change) { return change.find('=') != std::string::npos; });
    return all;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> list;
    for (auto& string : strings) list.push_back(string.data());
    list.push_back(nullptr);
    return list;
}

/// User and system seconds of all processes of a group, those of children they have reaped included.
double group_cpu(pid_t group) {
    const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
    if (!proc) return 0;
    long ticks = 0;
    while (const dirent* entry = readdir(proc.get())) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
        const Fd file(open((std::string("/proc/") + entry->d_name + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
        char text[1024];
        const ssize_t got = file.get() < 0 ? -1 : read(file.get(), text, sizeof text - 1);
        if (got <= 0) continue;  // it has ended meanwhile
        text[got] = '\0';
        const char* after_name = std::strrchr(text, ')');  // a process name may hold spaces and parentheses
        int process_group = 0;
        long user = 0, system = 0, reaped_user = 0, reaped_system = 0;
        if (after_name != nullptr &&
            std::sscanf(after_name + 1, " %*c %*d %d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld %ld %ld", &process_group,
                        &user, &system, &reaped_user, &reaped_system) == 5 &&
            process_group == group) {
            ticks += user + system + reaped_user + reaped_system;
        }
    }
    return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

/// The kernel counts whole ticks: one is the least growth that can be seen.
bool grew(double from, double to, double span) {
    const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
    return to - from > std::max(kBusyShare * span, 0.5 * tick);
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
}

void Fd::reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
}

std::string hung_text(const Ending& ending) {
    return fmt::format("hung ({}): {:.1f} s, CPU {:.1f} s, {} bytes printed{}",
                       ending.how == Ending::How::hung_busy ? "busy" : "idle", ending.seconds, ending.cpu,
                       ending.printed, ending.unkillable ? ", survived SIGKILL" : "");
}

void kill_children() noexcept {
    for (const auto& slot : living) {
        if (const pid_t pid = slot.load(); pid > 0) kill(-pid, SIGKILL);
    }
}

Child::Child(const std::vector<std::string>& argv, const std::vector<std::string>& environment, bool feed) {
    Pipe out, err;
    std::optional<Pipe> in;
    if (feed) in.emplace();

    struct Spawn {  // posix_spawn and not fork: nothing of a threaded parent runs in the child
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        Spawn() { posix_spawn_file_actions_init(&actions), posix_spawnattr_init(&attributes); }
        ~Spawn() { posix_spawn_file_actions_destroy(&actions), posix_spawnattr_destroy(&attributes); }
    } spawn;
    if (feed) {
        posix_spawn_file_actions_adddup2(&spawn.actions, in->reader.get(), STDIN_FILENO);
    } else {
        posix_spawn_file_actions_addopen(&spawn.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    }
    posix_spawn_file_actions_adddup2(&spawn.actions, out.writer.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&spawn.actions, err.writer.get(), STDERR_FILENO);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&spawn.attributes, &none);
    posix_spawnattr_setsigdefault(&spawn.attributes, &all);
    posix_spawnattr_setpgroup(&spawn.attributes, 0);
    posix_spawnattr_setflags(&spawn.attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

    auto words = argv;
    auto variables = changed_environment(environment);
    const int error = posix_spawn(&pid_, words.at(0).c_str(), &spawn.actions, &spawn.attributes, pointers(words).data(),
                                  pointers(variables).data());
    if (error != 0) throw Error("subject", "cannot start " + words[0] + ": " + std::strerror(error));
    enlist(pid_);
    out_ = unblocked(std::move(out.reader));
    err_ = unblocked(std::move(err.reader));
    if (feed) in_ = unblocked(std::move(in->writer));
}

bool Child::write(std::string_view text) {
    // The signal of a broken pipe goes to the writing thread: hold it back here and take it away, for this thread only.
    sigset_t broken, before, pending;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    bool ok = in_.get() >= 0;
    while (ok && !text.empty()) {
        const ssize_t wrote = ::write(in_.get(), text.data(), text.size());
        if (wrote >= 0) {
            text.remove_prefix(static_cast<std::size_t>(wrote));
        } else if (errno == EPIPE) {
            const timespec at_once{};
            if (sigismember(&pending, SIGPIPE) == 0) sigtimedwait(&broken, nullptr, &at_once);
            ok = false;
        } else {
            ok = errno == EINTR;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return ok;
}

bool Child::drain(const Heard& heard) {
    bool satisfied = false;
    std::array<char, 65'536> chunk;
    const auto read_some = [&](Fd& fd, std::string& tail, bool is_out) {
        for (int reads = 0; fd.get() >= 0 && reads < 16; ++reads) {  // a child that floods us must not hold us here
            const ssize_t got = read(fd.get(), chunk.data(), chunk.size());
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return;  // EAGAIN
            if (got == 0) return fd.reset();
            const std::string_view text(chunk.data(), static_cast<std::size_t>(got));
            printed_ += got;
            tail += text;
            if (tail.size() > kTail) tail.erase(0, tail.size() - kTail);
            if (is_out && heard && heard(text)) satisfied = true;
        }
    };
    read_some(err_, err_text_, false);  // first: what was said before a reply is then known with it
    read_some(out_, out_text_, true);
    return satisfied;
}

/// Does not reap: until then nobody else can get the process group's number.
bool Child::ended() {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
        if (errno == EINTR) return false;
        info.si_pid = pid_;  // somebody else reaped it (SIGCHLD ignored): how it ended is lost, so no success
        info.si_code = CLD_EXITED;
        info.si_status = 255;
    }
    if (info.si_pid == 0) return false;
    ending_.how = info.si_code == CLD_EXITED ? Ending::How::exited : Ending::How::signalled;
    ending_.code = info.si_status;
    return true;
}

/// Kills whatever is left of the group and reaps the child.
void Child::end_group() {
    if (pid_ < 0) return;
    kill(-pid_, SIGKILL);
    const Stopwatch watch;
    bool dead = ended();
    while (!dead && watch.seconds() < kKillPatience) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        dead = ended();
    }
    ending_.unkillable = !dead;
    forget(pid_);
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG);
    pid_ = -1;
    in_.reset();
}

std::optional<Ending> Child::wait(const Limits& limits, const Heard& heard) {
    const Stopwatch watch;
    printed_ = 0;
    const double window = std::min(limits.timeout / 2, kWindow);
    std::optional<double> base;  // CPU seconds before this wait; a later wait looks only when it lasts: a look is dear
    if (std::exchange(first_wait_, false)) base = 0;
    double look = limits.timeout - window, seen = 0, seen_at = -1;
    const auto finish = [&](Ending::How how, double cpu) {
        ending_.how = how;
        ending_.seconds = watch.seconds();
        ending_.cpu = cpu;
        ending_.printed = printed_;
        return ending_;
    };
    for (;;) {
        std::array<pollfd, 2> sources{{{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}}};
        const bool silent = out_.get() < 0 && err_.get() < 0;  // then the end of the child wakes nobody
        const double tick = std::clamp(look - watch.seconds(), 0.0, silent ? 0.002 : 0.02);
        if (pid_ >= 0) poll(sources.data(), sources.size(), static_cast<int>(tick * 1000) + 1);
        if (drain(heard)) return std::nullopt;
        if (pid_ < 0 || ended()) {
            end_group();
            if (drain(heard)) return std::nullopt;
            return finish(ending_.how, 0);
        }
        const double now = watch.seconds();
        if (!base && now > 0.05) base = group_cpu(pid_);
        if (now < look) continue;
        const double cpu = group_cpu(pid_);
        if (seen_at >= 0) {
            const bool busy = grew(seen, cpu, now - seen_at);
            if (!busy || now >= limits.timeout + limits.grace) {
                end_group();
                drain({});
                return finish(busy ? Ending::How::hung_busy : Ending::How::hung_idle, cpu - base.value_or(cpu));
            }
            look = std::min(now + std::clamp(limits.grace / 8, 0.1, 1.0), limits.timeout + limits.grace);
        } else {
            look = std::max(limits.timeout, now + window);
        }
        seen = cpu;
        seen_at = now;
    }
}

std::string Child::last_words(std::string_view besides) const {
    constexpr const char* kBlank = " \t\r\n";
    std::string words = err_text_.substr(0, err_text_.find_last_not_of(kBlank) + 1);
    std::size_t begin = words.find_last_of("\r\n") + 1;  // npos + 1 is 0: there is one line only
    if (!besides.empty() && words.find(besides, begin) != std::string::npos) {
        words.resize(begin == 0 ? 0 : words.find_last_not_of(kBlank, begin - 1) + 1);
        begin = words.find_last_of("\r\n") + 1;
    }
    words.erase(0, begin);
    for (char& c : words) {
        if ((c >= 0 && c < ' ') || c == '\x7f') c = ' ';
    }
    if (words.size() > kWordsShown) {
        std::size_t cut = kWordsShown;
        while (cut > 0 && (static_cast<unsigned char>(words[cut]) & 0xC0) == 0x80) --cut;  // whole UTF-8 characters
        words = words.substr(0, cut) + "...";
    }
    return words;
}

}  // namespace tidegate::subjects
