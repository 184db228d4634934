// exec: subjects: every outcome word, from small /bin/sh commands; nothing outlives a child.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "io/safetensors.h"
#include "subjects/child.h"
#include "subjects/exec.h"

namespace {

namespace fs = std::filesystem;
using namespace tidegate;
using subjects::Outcome;
using subjects::Status;

constexpr subjects::Limits kLimits{10, 0};  // for what must end by itself
constexpr subjects::Limits kShort{0.5, 0};  // for what must hang

std::string quoted(const std::string& word) {
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
}

/// A shell script as a COMMAND: it finds REQUEST in $1 and ANSWER in $2.
std::string script(const std::string& body) { return "/bin/sh -c " + quoted(body) + " script"; }

std::size_t entries(const std::string& directory) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

/// Running, not merely a zombie that nobody has reaped yet.
bool alive(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string text((std::istreambuf_iterator<char>(stat)), {});
    const auto name_end = text.rfind(')');
    return name_end != text.npos && text.size() > name_end + 2 && text[name_end + 2] != 'Z';
}

bool dies_soon(pid_t pid) {
    for (int i = 0; i < 200 && alive(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return !alive(pid);
}

class Exec : public ::testing::Test {
protected:
    void SetUp() override {
        std::string path = ::testing::TempDir() + "tidegate exec's XXXXXX";  // a blank and a quote in every path
        ASSERT_NE(mkdtemp(path.data()), nullptr);
        home_ = path;
        scratch_ = home_ + "/tmp";
        fs::create_directory(scratch_);
        setenv("TMPDIR", scratch_.c_str(), 1);
        io::Array o("o", Dtype::fp32, {1, 2, 1, 3});
        o.bytes[5] = std::byte{7};
        good_.add(o);
        good_.metadata = {{"protocol", "1"}, {"twin", "recurrent"}};
        io::write_safetensors(file("good"), good_);
        request_.add(io::Array("q", Dtype::fp32, {1, 2, 1, 4}));
        request_.metadata["rule"] = "gdn";
    }

    void TearDown() override {
        EXPECT_EQ(entries(scratch_), 0u) << "a temporary directory was left behind";
        EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child was left behind";
        EXPECT_EQ(errno, ECHILD);
        unsetenv("TMPDIR");
        fs::remove_all(home_);
    }

    std::string file(const std::string& name) const { return home_ + "/" + name; }
    std::string read(const std::string& name) const {
        std::ifstream stream(file(name));
        return {std::istreambuf_iterator<char>(stream), {}};
    }
    pid_t pid_in(const std::string& name) const { return static_cast<pid_t>(std::stol(read(name))); }
    std::string copy_good() const { return "cp " + quoted(file("good")) + " \"$2\""; }
    Outcome once(const std::string& command, const subjects::Limits& limits = kLimits) const {
        return subjects::make_exec(command, false, limits)->answer(request_);
    }
    /// A persistent subject whose loop body has REQUEST in $1 and ANSWER in $2; run with paths (alone), it runs `lone`.
    std::string loop(const std::string& body, const std::string& lone) const {
        return script("[ -z \"$TIDEGATE_PERSISTENT\" ] && { " + lone +
                      "; exit; }; tab=$(printf '\\t'); "
                      "while IFS=$tab read -r request answer; do set -- \"$request\" \"$answer\"; " +
                      body + "; done");
    }

    std::string home_, scratch_;
    io::Bundle good_, request_;
};

TEST_F(Exec, AnswersWithTheFileThatTheCommandWrote) {
    const auto command = script("cp \"$1\" " + quoted(file("seen")) + "; " + copy_good());
    const auto subject = subjects::make_exec(command, false, kLimits);
    EXPECT_EQ(subject->name().substr(0, 15), "exec:/bin/sh -c");
    EXPECT_TRUE(subject->crashes_apart());
    const Outcome outcome = subject->answer(request_);
    ASSERT_EQ(outcome.status, Status::answered) << outcome.reason;
    ASSERT_NE(outcome.answer.find("o"), nullptr);
    EXPECT_EQ(outcome.answer.find("o")->bytes, good_.find("o")->bytes);
    EXPECT_EQ(outcome.answer.meta("twin"), "recurrent");
    EXPECT_TRUE(outcome.unwritten.empty());
    EXPECT_GT(outcome.seconds, 0);
    EXPECT_EQ(io::read_safetensors(file("seen")).meta("rule"), "gdn");
}

TEST_F(Exec, TakesTheCountOfUnwrittenElementsFromTheMetadata) {
    good_.metadata["unwritten"] = "o:3,final_state:0";
    io::write_safetensors(file("good"), good_);
    const std::map<std::string, std::int64_t> expected{{"o", 3}, {"final_state", 0}};
    EXPECT_EQ(once(script(copy_good())).unwritten, expected);
    good_.metadata["unwritten"] = "o:many";
    io::write_safetensors(file("good"), good_);
    const Outcome outcome = once(script(copy_good()));
    EXPECT_EQ(outcome.status, Status::crashed);
    EXPECT_NE(outcome.reason.find("o:many"), std::string::npos) << outcome.reason;
}

TEST_F(Exec, Exit77IsASkipWithTheLastLineOfStderr) {
    const Outcome outcome = once(script("echo first >&2; echo no such GPU >&2; echo >&2; exit 77"));
    EXPECT_EQ(outcome.status, Status::skipped);
    EXPECT_EQ(outcome.reason, "no such GPU");
}

TEST_F(Exec, OtherExitCodesAreCrashes) {
    const Outcome outcome = once(script(copy_good() + "; echo ValueError: bad >&2; exit 3"));
    EXPECT_EQ(outcome.status, Status::crashed);
    EXPECT_EQ(outcome.reason, "exit 3 (last words: ValueError: bad)");
    EXPECT_EQ(outcome.signal, 0);
}

TEST_F(Exec, SignalsAreCrashesWithTheirName) {
    Outcome outcome = once("exec " + script("kill -SEGV $$"));
    EXPECT_EQ(outcome.status, Status::crashed);
    EXPECT_EQ(outcome.signal, SIGSEGV);
    EXPECT_EQ(outcome.reason, "signal 11 (SIGSEGV)");
    outcome = once("exec " + script("echo oops >&2; kill -ABRT $$"));
    EXPECT_EQ(outcome.signal, SIGABRT);
    EXPECT_EQ(outcome.reason, "signal 6 (SIGABRT) (last words: oops)");
}

TEST_F(Exec, AShellThatOutlivesItsChildTellsTheSignalByItsExitCode) {
    const Outcome outcome = once(script("sh -c 'echo CUDA error >&2; kill -SEGV $$'"));
    EXPECT_EQ(outcome.status, Status::crashed);
    EXPECT_EQ(outcome.signal, SIGSEGV);
    EXPECT_EQ(outcome.reason, "signal 11 (SIGSEGV, by the shell's exit code) (last words: CUDA error)");
    EXPECT_EQ(once(script("sh -c 'kill -SEGV $$'")).reason, "signal 11 (SIGSEGV, by the shell's exit code)");
    EXPECT_EQ(once(script("exit 200")).signal, 0);
}

TEST_F(Exec, MissingAndTruncatedAnswersAreCrashes) {
    Outcome outcome = once("true");
    EXPECT_EQ(outcome.status, Status::crashed);
    EXPECT_EQ(outcome.reason, "no answer file");
    EXPECT_EQ(once(script("mkfifo \"$2\"")).reason, "no answer file");  // reading that would never end
    outcome = once(script("head -c 60 " + quoted(file("good")) + " > \"$2\""));
    EXPECT_EQ(outcome.status, Status::crashed);
    EXPECT_EQ(outcome.reason.rfind("unreadable answer: ", 0), 0u) << outcome.reason;
    EXPECT_EQ(outcome.reason.find("tidegate-"), std::string::npos) << outcome.reason;
}

TEST_F(Exec, AMissingFileOfAKernelCacheIsTheEnvironment) {
    const auto reason = [&](const std::string& words) {
        return once(script("echo " + quoted(words) + " >&2; exit 1")).reason;
    };
    for (const char* words : {"[Errno 2] No such file or directory: '/root/.triton/x/k.json'",
                              "OSError: No such file or directory: \"/tmp/torchinductor_me/k.py\"",
                              "open /var/cache/k: No such file or directory", "k.hsaco: No such file or directory",
                              "libk.so.1: cannot open shared object file: No such file or directory"}) {
        EXPECT_EQ(reason(words), std::string("crashed (environment): exit 1 (last words: ") + words + ")");
    }
    for (const char* words :
         {"No such file or directory: '/data/q.bin'", "cache miss: No such file or directory: /data/q",
          "k.source: No such file or directory", "error in /root/.triton/k.cubin"}) {
        EXPECT_EQ(reason(words), std::string("exit 1 (last words: ") + words + ")");
    }
}

TEST_F(Exec, ABusyHangIsToldFromAnIdleOne) {
    const Outcome busy = once(script("while :; do :; done"), kShort);
    EXPECT_EQ(busy.status, Status::hung);
    EXPECT_EQ(busy.reason.rfind("hung (busy): 0.", 0), 0u) << busy.reason;
    EXPECT_NE(busy.reason.find(" s, 0 bytes printed"), std::string::npos) << busy.reason;
    EXPECT_LT(busy.seconds, 3);
    const Outcome idle = once(script("echo 12345; sleep 100"), kShort);
    EXPECT_EQ(idle.status, Status::hung);
    EXPECT_EQ(idle.reason.rfind("hung (idle): 0.", 0), 0u) << idle.reason;
    EXPECT_NE(idle.reason.find("CPU 0.0 s, 6 bytes printed"), std::string::npos) << idle.reason;
}

TEST_F(Exec, TheCpuTimeOfAGrandchildCounts) {
    const Outcome outcome = once(script("sh -c 'while :; do :; done'; true"), kShort);
    EXPECT_EQ(outcome.reason.rfind("hung (busy)", 0), 0u) << outcome.reason;
}

TEST_F(Exec, GraceIsForTheBusyOnly) {
    const std::string slow = "i=0; while [ ! -e " + quoted(file("go")) + " ]; do i=$((i+1)); done; ";
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        std::ofstream(file("go")) << "go";
    });
    const Outcome busy = once(script(slow + copy_good()), {0.3, 10});
    later.join();
    EXPECT_EQ(busy.status, Status::answered) << busy.reason;
    EXPECT_GT(busy.seconds, 0.5);
    const Outcome idle = once("sleep 100 #", {0.3, 10});
    EXPECT_EQ(idle.status, Status::hung);
    EXPECT_LT(idle.seconds, 2);
    const Outcome endless = once(script("while :; do :; done"), {0.2, 0.3});
    EXPECT_EQ(endless.reason.rfind("hung (busy)", 0), 0u) << endless.reason;
    EXPECT_GE(endless.seconds, 0.5);
}

TEST_F(Exec, AFloodOfOutputNeitherBlocksNorHides) {
    const Outcome outcome = once(script("yes | head -c 3000000; yes >&2"), kShort);
    EXPECT_EQ(outcome.status, Status::hung);
    EXPECT_GT(std::stoll(outcome.reason.substr(outcome.reason.rfind(", ") + 2)), 3000000) << outcome.reason;
}

TEST_F(Exec, GrandchildrenDieAfterAHangAndAfterANormalEnd) {
    const std::string spawn = "sleep 100 & echo $! > " + quoted(file("pid")) + "; ";
    EXPECT_EQ(once(script(spawn + "wait"), kShort).status, Status::hung);
    EXPECT_TRUE(dies_soon(pid_in("pid")));
    EXPECT_EQ(once(script(spawn + copy_good())).status, Status::answered);
    EXPECT_TRUE(dies_soon(pid_in("pid")));
}

TEST_F(Exec, FiftyRunsLeakNoDescriptor) {
    const auto before = entries("/proc/self/fd");
    for (int i = 0; i < 50; ++i) once("true");
    EXPECT_EQ(entries("/proc/self/fd"), before);
}

TEST_F(Exec, ParallelChildrenDoNotSeeEachOthersPipes) {
    const auto pipes = script("ls -l /proc/$$/fd > \"$2\"; exit $(grep -c pipe: \"$2\")");
    const std::string lone = once(pipes).reason;  // "exit 2", or more where the test runner leaks pipes to us
    ASSERT_EQ(lone.rfind("exit ", 0), 0u) << lone;
    ASSERT_GE(std::stoi(lone.substr(5)), 2);
    int wrong[2] = {0, 0};
    const auto run = [&](int* count) {
        for (int i = 0; i < 20; ++i) *count += once(pipes).reason != lone;
    };
    std::thread other(run, &wrong[0]);
    run(&wrong[1]);
    other.join();
    EXPECT_EQ(wrong[0] + wrong[1], 0);
}

TEST_F(Exec, KillChildrenEndsWhatRuns) {
    std::thread killer([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        subjects::kill_children();
    });
    const Outcome outcome = once("sleep 100 #");
    killer.join();
    EXPECT_EQ(outcome.signal, SIGKILL);
}

TEST_F(Exec, AnUnusableTmpdirIsAnErrorThatNamesIt) {
    setenv("TMPDIR", "/nonexistent", 1);
    EXPECT_THROW(once("true"), std::runtime_error);
}

TEST_F(Exec, PersistentServesManyRequestsFromOneProcess) {
    const std::string note = "echo $$ >> " + quoted(file("pids")) + "; ";
    {
        const auto serve = note + "echo log; printf half; echo; " + copy_good() + "; echo '@tidegate ok'";
        const auto subject = subjects::make_exec(loop(serve, "exit 9"), true, kLimits);
        for (int i = 0; i < 3; ++i) {
            const Outcome outcome = subject->answer(request_);
            ASSERT_EQ(outcome.status, Status::answered) << outcome.reason;
            EXPECT_EQ(outcome.answer.find("o")->bytes, good_.find("o")->bytes);
            EXPECT_EQ(outcome.first_try, "");
        }
    }
    const std::string pids = read("pids"), first = pids.substr(0, pids.find('\n') + 1);
    EXPECT_EQ(pids, first + first + first);
    EXPECT_TRUE(dies_soon(static_cast<pid_t>(std::stol(first))));
}

TEST_F(Exec, PersistentSkipAndErrorKeepTheProcess) {
    const auto reply = [&](const std::string& text) {
        return subjects::make_exec(loop("echo '@tidegate " + text + "'", "exit 9"), true, kLimits)->answer(request_);
    };
    EXPECT_EQ(reply("skip K too large").status, Status::skipped);
    EXPECT_EQ(reply("skip K too large").reason, "K too large");
    EXPECT_EQ(reply("error bad shape").status, Status::failed);
    EXPECT_EQ(reply("error bad shape").reason, "bad shape");
    EXPECT_EQ(reply("error bad shape").first_try, "");
    EXPECT_EQ(reply("perhaps").first_try, "unknown reply: perhaps, in persistent process");
    EXPECT_EQ(reply("ok").first_try, "no answer file, in persistent process");
}

TEST_F(Exec, AfterACrashInThePersistentProcessTheLoneTryIsTheVerdict) {
    const std::string note = "echo $$ >> " + quoted(file("pids")) + "; ";
    const auto subject = subjects::make_exec("exec " + loop(note + "kill -SEGV $$", copy_good()), true, kLimits);
    for (int i = 0; i < 2; ++i) {
        const Outcome outcome = subject->answer(request_);
        EXPECT_EQ(outcome.status, Status::answered) << outcome.reason;
        EXPECT_EQ(outcome.first_try, "signal 11 (SIGSEGV), in persistent process");
    }
    const std::string pids = read("pids"), first = pids.substr(0, pids.find('\n'));
    EXPECT_NE(pids, first + "\n" + first + "\n");  // the second request met a fresh process
    const Outcome both = subjects::make_exec(loop("exit 4", "exit 5"), true, kLimits)->answer(request_);
    EXPECT_EQ(both.status, Status::crashed);
    EXPECT_EQ(both.reason, "exit 5");
    EXPECT_EQ(both.first_try, "exit 4, without a reply, in persistent process");
}

TEST_F(Exec, APersistentProcessThatNeverReadsIsNoSigpipe) {
    const auto command = "exec 0<&-; " + script("[ $# = 2 ] && exit 77; sleep 0.2; exit 6");
    const Outcome outcome = subjects::make_exec(command, true, kLimits)->answer(request_);
    EXPECT_EQ(outcome.status, Status::skipped);
    EXPECT_EQ(outcome.first_try, "exit 6, without a reply, in persistent process");
    subjects::Child gone({"/bin/true"}, {}, true);
    ASSERT_TRUE(gone.wait(kLimits).has_value());
    EXPECT_FALSE(gone.write("anybody there?\n"));
    subjects::Child deaf({"/bin/sh", "-c", "exec 0<&-; echo shut; sleep 100"}, {}, true);
    ASSERT_FALSE(deaf.wait(kLimits, [](std::string_view) { return true; }).has_value());
    EXPECT_FALSE(deaf.write("anybody there?\n"));  // SIGPIPE would end the test here
}

TEST_F(Exec, AHangInThePersistentProcessIsTriedAgainAlone) {
    const auto subject =
        subjects::make_exec(loop("sleep 100 & echo $! > " + quoted(file("pid")) + "; wait", copy_good()), true, kShort);
    const Outcome outcome = subject->answer(request_);
    EXPECT_EQ(outcome.status, Status::answered) << outcome.reason;
    EXPECT_EQ(outcome.first_try.rfind("hung (idle): 0.", 0), 0u) << outcome.first_try;
    EXPECT_NE(outcome.first_try.find(", in persistent process"), std::string::npos);
    EXPECT_TRUE(dies_soon(pid_in("pid")));
}

TEST_F(Exec, APersistentProcessThatIgnoresTheEndOfInputIsKilled) {
    {
        const auto subject = subjects::make_exec(
            loop(copy_good() + "; echo $$ > " + quoted(file("pid")) + "; echo '@tidegate ok'; sleep 100", "exit 9"),
            true, kLimits);
        EXPECT_EQ(subject->answer(request_).status, Status::answered);
        EXPECT_TRUE(alive(pid_in("pid")));
    }
    EXPECT_TRUE(dies_soon(pid_in("pid")));
}

TEST_F(Exec, TheEnvironmentTellsBothFormsApart) {
    setenv("TIDEGATE_PERSISTENT", "1", 1);  // we may be a persistent subject ourselves
    EXPECT_EQ(once(script("[ -z \"${TIDEGATE_PERSISTENT+set}\" ] && exit 77")).status, Status::skipped);
    unsetenv("TIDEGATE_PERSISTENT");
    const auto told = script("[ $# = 0 ] && [ $TIDEGATE_PERSISTENT = 1 ] && read -r x && echo '@tidegate skip right'");
    EXPECT_EQ(subjects::make_exec(told, true, kLimits)->answer(request_).reason, "right");
}

}  // namespace
