// Attempts in fresh processes, from subjects that crash on their n-th run, and what their counts are worth.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "cases/case.h"
#include "ledger/flaky.h"
#include "ledger/trial.h"
#include "subjects/lib.h"
#include "subjects/shell.h"
#include "tidegate/error.h"

namespace tidegate::ledger {
namespace {

namespace fs = std::filesystem;
using Groups = std::vector<std::pair<std::string, std::int64_t>>;

constexpr const char* kCase = "gdn/forward/fp32/1,3,1,1,16,5/1";

std::string crashed(int signal, const std::string& reason) { return fingerprint_of(Verdict::crashed, signal, reason); }
std::string words(const std::string& text) {
    return crashed(SIGSEGV, "signal 11 (SIGSEGV) (last words: " + text + ")");
}

std::string refusal(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& e) {
        return e.argument() + "|" + e.what();
    }
    return "";
}

TEST(Fingerprint, IsSignalOrExitCodeAndLastWords) {
    EXPECT_EQ(crashed(SIGSEGV, "signal 11 (SIGSEGV)"), "SIGSEGV");
    EXPECT_EQ(crashed(SIGSEGV, "signal 11 (SIGSEGV, by the shell's exit code) (last words: CUDA error)"),
              "SIGSEGV: CUDA error");
    EXPECT_EQ(crashed(0, "exit 3 (last words: ValueError: bad (really))"), "exit 3: ValueError: bad (really)");
    EXPECT_EQ(crashed(0, "exit 3 (last words: ValueError), without a reply, in persistent process"),
              "exit 3: ValueError");
    EXPECT_EQ(crashed(SIGABRT, "signal 6 (SIGABRT), in persistent process"), "SIGABRT");
    EXPECT_EQ(crashed(0, "crashed (environment): exit 1 (last words: k.so: No such file or directory)"),
              "environment: exit 1: k.so: No such file or directory");
    EXPECT_EQ(crashed(0, "no answer file"), "no answer file");
    EXPECT_EQ(crashed(0, ""), "crashed");
    EXPECT_EQ(fingerprint_of(Verdict::hung, 0, "hung (busy): 4.0 s, CPU 3.9 s, 0 bytes printed"), "hung (busy)");
    EXPECT_EQ(fingerprint_of(Verdict::fail, 0, "o: 3 elements never written"), "");
}

TEST(Fingerprint, LeavesOutWhatDiffersFromRunToRun) {
    EXPECT_EQ(words("fault at 0x7f3a8c001230 in gemm_128x64"), "SIGSEGV: fault at <n> in gemm_128x64");
    EXPECT_EQ(words("at 00007f3a8c001230"), "SIGSEGV: at <n>");
    EXPECT_EQ(words("/tmp/x-1234567/k_98765.so line 812"), "SIGSEGV: /tmp/x-<n>/k_<n>.so line 812");
    EXPECT_EQ(words("pid 812: Process 77, tid=5 [thread #9]"), "SIGSEGV: pid <n>: Process <n>, tid=<n> [thread #<n>]");
    EXPECT_EQ(words("==812==ERROR: 1234 bytes"), "SIGSEGV: ==<n>==ERROR: 1234 bytes");
    EXPECT_EQ(words("CUDA error 700: deadbeef"), "SIGSEGV: CUDA error 700: deadbeef");
}

/// Words around the numbers must not matter, and a fingerprint of a fingerprint's words is the same.
RC_GTEST_PROP(Fingerprint, IsTheSameForEveryAddress, ()) {
    const auto address = [] { return fmt::format("{:#x}", *rc::gen::arbitrary<std::uint64_t>()); };
    const auto number = [] { return std::to_string(*rc::gen::inRange(10000, 1000000000)); };
    const auto line = [&] { return "Xid(" + address() + ") " + number() + ":" + address() + "," + number(); };
    RC_ASSERT(words(line()) == words(line()));
    RC_ASSERT(words(line()) == "SIGSEGV: Xid(<n>) <n>:<n>,<n>");
}

TEST(CompareRates, SaysWhatIsEvidence) {
    Verdict2 v = compare_rates(20, 42, 1, 42);
    EXPECT_NEAR(v.p, 1.35e-6, 1e-8);
    EXPECT_EQ(v.words,
              "evidence: 20/42 [0.3200, 0.6358] against 1/42 [0.0006, 0.1257], p = 1.35e-06; runs needed to see the "
              "larger rate with 95 %: 5");
    v = compare_rates(2, 24, 0, 24);
    EXPECT_EQ(v.words,
              "not evidence either way: 2/24 [0.0103, 0.2700] against 0/24 [0.0000, 0.1425], p = 0.489; runs needed to "
              "see the larger rate with 95 %: 35");
    v = compare_rates(0, 2, 1, 3);
    EXPECT_EQ(v.p, 1);
    EXPECT_NE(v.words.find("not evidence either way"), std::string::npos);
    EXPECT_NE(v.words.find("95 %: 8"), std::string::npos) << v.words;
    EXPECT_NE(compare_rates(0, 5, 0, 0).words.find("unknown, none was seen"), std::string::npos);
    EXPECT_EQ(refusal([] { compare_rates(5, 3, 0, 1); }).rfind("counts|", 0), 0u);
}

Result result(Verdict verdict, int attempt, const std::string& fingerprint = "") {
    Result r;
    r.test = "t";
    r.attempt = attempt;
    r.verdict = verdict;
    r.fingerprint = fingerprint;
    return r;
}

const std::vector<Result>& mixed() {
    static const std::vector<Result> results = [] {
        std::vector<Result> all{result(Verdict::pass, 1),
                                result(Verdict::crashed, 2, "SIGSEGV"),
                                result(Verdict::fail, 3),
                                result(Verdict::hung, 4, "hung (idle)"),
                                result(Verdict::crashed, 5, "SIGABRT"),
                                result(Verdict::crashed, 6, "SIGSEGV"),
                                result(Verdict::blind, 7),
                                result(Verdict::skipped, 8),
                                result(Verdict::crashed, 9),
                                result(Verdict::fail, 10)};
        all.back().follow_on = true;
        return all;
    }();
    return results;
}

void expect_mixed(const Attempts& a) {
    EXPECT_EQ(a.passed, 1);
    EXPECT_EQ(a.failed, 1);
    EXPECT_EQ(a.crashed, 4);
    EXPECT_EQ(a.hung, 1);
    EXPECT_EQ(a.other, 3);
    EXPECT_EQ(a.blind, 1);
    EXPECT_EQ(a.ran(), 8);
    EXPECT_EQ(a.all(), 10);
    EXPECT_EQ(a.fingerprints, (Groups{{"SIGSEGV", 2}, {"SIGABRT", 1}, {"hung (idle)", 1}, {"unknown", 1}}));
}

TEST(Attempts, AreCountedByVerdictAndFingerprint) {
    expect_mixed(count_attempts(mixed()));
    EXPECT_EQ(count_attempts({}).all(), 0);
}

class Flaky : public ::testing::Test {
protected:
    void SetUp() override {
        subjects::lib_tool() = TIDEGATE_TOOL;
        std::string path = ::testing::TempDir() + "tidegate-flaky-XXXXXX";
        ASSERT_NE(mkdtemp(path.data()), nullptr);
        home_ = path;
    }
    void TearDown() override {
        unsetenv("TIDEGATE_LIB_MODE");
        fs::remove_all(home_);
    }

    /// Counts its runs in a file, does `body` with the number in $n, then answers rightly.
    std::string counting(const std::string& body) const {
        const std::string counter = home_ + "/count";
        return "exec:exec /bin/sh -c " +
               subjects::in_shell("n=$(($(cat " + counter + " 2>/dev/null || echo 0) + 1)); echo $n > " + counter +
                                  "; " + body + "; exec '" TIDEGATE_TOOL "' run --subject reference \"$1\" \"$2\"") +
               " script";
    }
    static std::vector<Result> run(const Trial& trial) {
        std::vector<Result> results;
        run_trial(trial, [&](const Result& r) { results.push_back(r); });
        return results;
    }
    static Trial trial(const std::string& subject, int runs) {
        Trial t;
        t.test = kCase;
        t.subject = subject;
        t.runs = runs;
        t.settings.limits.timeout = 20;
        return t;
    }

    std::string home_;
};

TEST_F(Flaky, PassCrashPassIsOneCrashOfThree) {
    const auto results = run(trial(counting("echo run $n at 0x7ffc0$n >&2; if [ $n = 2 ]; then kill -SEGV $$; fi"), 3));
    ASSERT_EQ(results.size(), 3u);
    const Verdict expected[] = {Verdict::pass, Verdict::crashed, Verdict::pass};
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(results[i].verdict, expected[i]) << results[i].reason;
        EXPECT_EQ(results[i].attempt, static_cast<int>(i) + 1);
        EXPECT_EQ(results[i].test, kCase);
        EXPECT_EQ(results[i].hash, cases::hash_of(cases::parse(kCase)));
        EXPECT_GT(results[i].seconds, 0);
    }
    EXPECT_EQ(results[1].signal, SIGSEGV);
    EXPECT_EQ(results[1].fingerprint, "SIGSEGV: run 2 at <n>");
    EXPECT_EQ(results[0].signal, std::nullopt);
    ASSERT_FALSE(results[0].measures.empty());
    EXPECT_EQ(results[0].measures[0].tensor, "o");
    const Attempts a = count_attempts(results);
    EXPECT_EQ(a.passed, 2);
    EXPECT_EQ(a.ended(), 1);
}

TEST_F(Flaky, ExitCodesAndHangsAreGrouped) {
    Trial t = trial(counting("if [ $n = 1 ]; then exit 3; fi; if [ $n = 2 ]; then sleep 100; fi; "
                             "if [ $n = 3 ]; then echo no GPU >&2; exit 77; fi"),
                    4);
    t.settings.limits.timeout = 2;
    const auto results = run(t);
    EXPECT_EQ(results[0].exit_code, 3);
    EXPECT_EQ(results[1].verdict, Verdict::hung) << results[1].reason;
    EXPECT_EQ(results[2].verdict, Verdict::skipped);
    EXPECT_EQ(results[3].verdict, Verdict::pass) << results[3].reason;
    EXPECT_EQ(count_attempts(results).fingerprints, (Groups{{"exit 3", 1}, {"hung (idle)", 1}}));
}

TEST_F(Flaky, ParallelRunsAreEachSeenOnce) {
    Trial t = trial("exec:exec '" TIDEGATE_TOOL "' run --subject reference", 12);
    t.parallel = 3;
    std::set<int> attempts;
    for (const Result& r : run(t)) {
        EXPECT_EQ(r.verdict, Verdict::pass) << r.reason;
        EXPECT_TRUE(attempts.insert(r.attempt).second);
    }
    EXPECT_EQ(attempts.size(), 12u);
    EXPECT_EQ(*attempts.begin(), 1);
    EXPECT_EQ(*attempts.rbegin(), 12);
}

TEST_F(Flaky, SubjectsOfThisProcessRunInChildren) {
    const auto right = run(trial("cpu", 2));
    ASSERT_EQ(right.size(), 2u);
    EXPECT_EQ(right[0].verdict, Verdict::pass) << right[0].reason;
    ASSERT_FALSE(right[0].measures.empty());
    EXPECT_EQ(right[0].measures[0].tensor, "o");
    const auto wrong = run(trial("cpu+fault:missing-scale", 1));
    EXPECT_EQ(wrong[0].verdict, Verdict::fail) << wrong[0].reason;
    const bool has = std::any_of(wrong[0].measures.begin(), wrong[0].measures.end(),
                                 [](const Measure& m) { return m.name == "needed" && m.value > 1 && m.limit == 1.0; });
    EXPECT_TRUE(has);
}

/// In a child that is told to do what it cannot, nothing is measured; one that dies is a crash with its last words.
TEST_F(Flaky, AChildWithoutARecordIsACrashOrWasNotRun) {
    Trial t = trial("cpu", 1);
    t.check_options = {"--isa", "Z80"};
    EXPECT_EQ(run(t)[0].verdict, Verdict::not_run);
    const std::string dying = home_ + "/tool";
    std::ofstream(dying) << "#!/bin/sh\necho CUDA error at 0x7f0012 >&2\nkill -ABRT $$\n";
    fs::permissions(dying, fs::perms::owner_all);
    subjects::lib_tool() = dying;
    const auto results = run(trial("cpu", 1));
    EXPECT_EQ(results[0].verdict, Verdict::crashed);
    EXPECT_EQ(results[0].signal, SIGABRT);
    EXPECT_EQ(results[0].fingerprint, "SIGABRT: CUDA error at <n>");
}

/// Built beside this test (lib_test needs it); a library is never asked twice, and its errors are no crashes.
TEST_F(Flaky, LibrariesAreTriedOnce) {
    const std::string lib = fs::path(TIDEGATE_TOOL).parent_path() / "tests/liblib_misbehaving.so";
    if (!fs::exists(lib)) GTEST_SKIP() << lib << " is not built";
    const auto mode = [&](const char* name) {
        setenv("TIDEGATE_LIB_MODE", name, 1);
        return run(trial("lib:" + lib, 1)).at(0);
    };
    Result r = mode("abort-in-company");  // a second try alone would not crash
    EXPECT_EQ(r.verdict, Verdict::crashed) << r.reason;
    EXPECT_EQ(r.signal, SIGABRT);
    EXPECT_EQ(r.fingerprint, "SIGABRT");
    r = mode("exit");
    EXPECT_EQ(r.verdict, Verdict::crashed) << r.reason;
    EXPECT_EQ(r.exit_code, 3);
    EXPECT_EQ(mode("error").verdict, Verdict::fail);
    EXPECT_EQ(mode("skip").verdict, Verdict::skipped);
    EXPECT_EQ(mode("zeros").verdict, Verdict::fail);
    EXPECT_EQ(mode("far-past-end").signal, SIGSEGV);
}

TEST_F(Flaky, WhatCannotBeTriedIsRefused) {
    Trial t = trial("cpu", 0);
    EXPECT_EQ(refusal([&] { run(t); }).rfind("runs|", 0), 0u);
    t = trial("cpu", 1);
    t.parallel = 0;
    EXPECT_EQ(refusal([&] { run(t); }).rfind("parallel|", 0), 0u);
    EXPECT_EQ(refusal([&] { run(trial("file:a.safetensors", 1)); }).rfind("subject|", 0), 0u);
    EXPECT_EQ(refusal([&] { run(trial("gpu", 1)); }).rfind("subject|", 0), 0u);
    EXPECT_EQ(refusal([&] { run(trial("lib:/nowhere.so", 1)); }).rfind("subject|", 0), 0u);
    t = trial("cpu", 1);
    t.test = "gdn/forward";
    EXPECT_NE(refusal([&] { run(t); }), "");
}

TEST_F(Flaky, AnExceptionOfTheListenerEndsTheTrial) {
    Trial t = trial(counting("true"), 50);
    t.parallel = 2;
    EXPECT_THROW(run_trial(t, [](const Result&) { throw Error("ledger", "full"); }), Error);
    int runs = 0;
    std::ifstream(home_ + "/count") >> runs;
    EXPECT_LT(runs, 10);
}

TEST_F(Flaky, ALedgersAttemptsAreCountedOverAllRunsOfABuild) {
    Store store(home_ + "/ledger.db", Store::Mode::write);
    const auto begin = [&](const std::string& build, bool performance = false, const std::string& flags = "") {
        ledger::Run recorded;
        recorded.build.name = build;
        recorded.build.flags = flags;
        recorded.performance = performance;
        const Expected expected{"t", ""};
        return store.begin(recorded, std::span(&expected, 1));
    };
    const std::vector<Result> all = mixed();
    store.add(begin("a"), std::span(all).first(4));
    store.add(begin("a", true, "-O3"), std::span(all).subspan(4));  // a crash while timing is a crash
    store.add(begin("b"), result(Verdict::pass, 1));
    expect_mixed(attempts_of(store, "a", "t"));
    EXPECT_EQ(attempts_of(store, "b", "t").passed, 1);
    for (const char* name : {"c", "d", "e", "f"}) begin(name);
    EXPECT_EQ(refusal([&] { attempts_of(store, "z", "t"); }),
              "build|build: given 'z', which the ledger does not have; it has 'f', 'e', 'd', 'c', 'b'");
    EXPECT_EQ(refusal([&] { attempts_of(store, "a", "u"); }),
              "test|test: given 'u', of which build 'a' has no result; it has 't'");
    EXPECT_EQ(refusal([&] { attempts_of(store, "c", "t"); }),
              "test|test: given 't', of which build 'c' has no result; it has none");
}

}  // namespace
}  // namespace tidegate::ledger
