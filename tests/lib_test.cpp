// lib: subjects: the example libraries judged, and every way in which a library can go wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cases/suite.h"
#include "judge/judge.h"
#include "subjects/lib.h"
#include "subjects/spec.h"

namespace tidegate::subjects {
namespace {

/// fp32; o has 15 elements, 4 bytes short of an alignment step; beta is the first input of a file.
constexpr const char* kSmall = "gdn/forward/fp32/1,3,1,1,16,5/1";

io::Bundle request_of(const std::string& id) { return cases::generate(cases::parse(id)); }

judge::CaseResult judged(Subject& subject, const io::Bundle& request) {
    return judge::Bench(request, {}, judge::gate_from("derived")).judge(subject.answer(request));
}

class Lib : public ::testing::Test {
protected:
    void SetUp() override { lib_tool() = TIDEGATE_TOOL; }
    void TearDown() override {
        unsetenv("TIDEGATE_LIB_MODE");
        unsetenv("TIDEGATE_LIB_FAULT");
    }

    static Outcome misbehave(const char* mode, const Limits& limits = {20, 0}) {
        setenv("TIDEGATE_LIB_MODE", mode, 1);
        return make_lib(LIB_MISBEHAVING, limits)->answer(request_of(kSmall));
    }
    static std::string refusal(const std::string& path) {
        try {
            make_lib(path, {20, 0});
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }
    static void expect_crash(const char* mode, int signal, const std::string& words) {
        const Outcome outcome = misbehave(mode);
        EXPECT_EQ(outcome.status, Status::crashed) << mode;
        EXPECT_EQ(outcome.signal, signal) << mode;
        EXPECT_NE(outcome.reason.find(words), std::string::npos) << outcome.reason;
        EXPECT_NE(outcome.first_try.find("in persistent process"), std::string::npos) << outcome.first_try;
    }
};

TEST_F(Lib, TheRightExamplePassesQuick) {
    const auto subject = make_subject(std::string("lib:") + LIB_SUBJECT, {});
    EXPECT_EQ(subject->name(), std::string("lib:") + LIB_SUBJECT);
    EXPECT_TRUE(subject->crashes_apart());
    for (const cases::Case& c : cases::suite("quick", {Rule::gdn, std::nullopt, "forward"})) {
        const judge::CaseResult result = judged(*subject, cases::generate(c));
        EXPECT_EQ(result.verdict, judge::Verdict::pass) << result.id << ": " << result.reason;
        for (const judge::TensorResult& t : result.tensors) EXPECT_EQ(t.unwritten, 0) << result.id << " " << t.name;
    }
    const Outcome outcome = subject->answer(request_of("kda/forward/fp32/1,3,1,1,16,5/1"));
    EXPECT_EQ(outcome.status, Status::skipped);
    EXPECT_EQ(outcome.reason, "only gdn");
}

TEST_F(Lib, FaultsWrapIt) {
    const io::Bundle request = request_of("gdn/forward/bf16/1,70,2,4,80,96/h0=1/7");
    const auto subject = make_subject(std::string("lib:") + LIB_SUBJECT + "+fault:tail-zero", {});
    EXPECT_EQ(judged(*subject, request).verdict, judge::Verdict::fail);
}

TEST_F(Lib, ASegfaultIsTheResultOfItsCaseAlone) {
    setenv("TIDEGATE_LIB_FAULT", "segfault", 1);
    const auto subject = make_lib(LIB_SUBJECT_FAULTY, {20, 0});
    const auto verdict = [&](const char* id) { return judged(*subject, request_of(id)); };
    EXPECT_EQ(verdict("gdn/forward/bf16/1,9,1,2,64,32/h0=1/7").verdict, judge::Verdict::pass);
    const judge::CaseResult crash = verdict("gdn/forward/bf16/1,9,1,2,80,32/h0=1/7");
    EXPECT_EQ(crash.verdict, judge::Verdict::crashed);
    EXPECT_EQ(crash.signal, SIGSEGV);
    EXPECT_EQ(verdict("gdn/forward/bf16/1,9,1,2,96,32/h0=1/7").verdict, judge::Verdict::pass);
}

TEST_F(Lib, AnUnwrittenTailIsCounted) {
    const auto subject = make_lib(LIB_SUBJECT_FAULTY, {20, 0});
    const judge::CaseResult tail = judged(*subject, request_of("gdn/forward/bf16/1,139,2,4,32,64/lengths=8,1,130/2"));
    EXPECT_EQ(tail.verdict, judge::Verdict::fail);
    EXPECT_EQ(tail.reason, "o: 512 elements never written");  // two last tokens of 4 heads and 64 columns
    EXPECT_EQ(judged(*subject, request_of("gdn/forward/bf16/1,64,2,4,32,64/2")).verdict, judge::Verdict::pass);
}

TEST_F(Lib, WhatWasNeverWrittenIsCounted) {
    const Outcome outcome = misbehave("untouched");
    EXPECT_EQ(outcome.status, Status::answered);
    EXPECT_EQ(outcome.unwritten, (std::map<std::string, std::int64_t>{{"o", 15}, {"final_state", 80}}));
}

TEST_F(Lib, WritesOutsideAnOutputAreFound) {
    for (const char* mode : {"past-end", "before-start"}) {
        const Outcome outcome = misbehave(mode);
        EXPECT_EQ(outcome.status, Status::failed) << mode;
        EXPECT_EQ(outcome.reason, "wrote outside o: 1 elements");
    }
    expect_crash("far-past-end", SIGSEGV, "access past the end of o");
}

TEST_F(Lib, InputsAreReadOnlyAndGuarded) {
    expect_crash("input", SIGSEGV, "write to beta");
    expect_crash("read-past-end", SIGSEGV, "access past the end of beta");
    expect_crash("message-overflow", SIGSEGV, "access past the end of message");
}

TEST_F(Lib, OtherEndsAreCrashes) {
    expect_crash("abort", SIGABRT, "SIGABRT");
    expect_crash("exit", 0, "exit 3");
}

TEST_F(Lib, ACrashThatIsNotTheCasesOwnIsRecordedBesideItsResult) {
    const Outcome outcome = misbehave("abort-in-company");
    EXPECT_EQ(outcome.status, Status::answered);
    EXPECT_NE(outcome.first_try.find("SIGABRT"), std::string::npos) << outcome.first_try;
}

TEST_F(Lib, AnEndlessLoopHangsBusily) {
    const Outcome outcome = misbehave("loop", {0.6, 0});
    EXPECT_EQ(outcome.status, Status::hung);
    EXPECT_TRUE(outcome.reason.starts_with("hung (busy)")) << outcome.reason;
}

TEST_F(Lib, CodesAndMessages) {
    Outcome outcome = misbehave("skip");
    EXPECT_EQ(outcome.status, Status::skipped);
    EXPECT_EQ(outcome.reason, "no kernel for K ");
    outcome = misbehave("error");
    EXPECT_EQ(outcome.status, Status::failed);
    EXPECT_TRUE(outcome.reason.starts_with("error 5: {\"")) << outcome.reason;
    EXPECT_NE(outcome.reason.find("\"rule\":\"gdn\""), std::string::npos) << outcome.reason;
    outcome = misbehave("long");
    EXPECT_EQ(outcome.reason.size(), 9u + 1023u / 3 * 3);  // "error 5: " and whole characters alone
    outcome = misbehave("throw");
    EXPECT_EQ(outcome.status, Status::failed);
    EXPECT_EQ(outcome.reason, "no such tile");
}

TEST_F(Lib, WhatItPrintsOrReadsIsNoReplyAndNoRequest) {
    setenv("TIDEGATE_LIB_MODE", "print", 1);
    const auto subject = make_lib(LIB_MISBEHAVING, {20, 0});
    for (int i = 0; i < 3; ++i) {
        const Outcome outcome = subject->answer(request_of(kSmall));
        EXPECT_EQ(outcome.status, Status::answered) << outcome.reason;
        EXPECT_EQ(outcome.first_try, "");
    }
}

TEST_F(Lib, WhatCannotBeLoadedIsRefused) {
    EXPECT_NE(refusal(LIB_NO_SYMBOL).find("undefined symbol: tidegate_subject"), std::string::npos)
        << refusal(LIB_NO_SYMBOL);
    EXPECT_NE(refusal("no/such.so").find("No such file"), std::string::npos) << refusal("no/such.so");
    const std::filesystem::path text =
        std::filesystem::temp_directory_path() / ("tidegate 'lib' " + std::to_string(getpid()) + ".so");
    std::ofstream(text) << std::string(100, 'x');
    EXPECT_NE(refusal(text).find("invalid ELF header"), std::string::npos) << refusal(text);
    std::filesystem::copy_file(LIB_SUBJECT, text, std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(refusal(text), "");  // a blank and quotes in its path
    EXPECT_EQ(make_lib(text, {20, 0})->answer(request_of(kSmall)).status, Status::answered);
    std::filesystem::remove(text);
    EXPECT_THROW(make_subject("lib:", {}), Error);
}

TEST_F(Lib, AProgramThatIsNotTheToolIsRefusedAndDoesNotStartItselfForEver) {
    lib_tool() = "/bin/true";
    EXPECT_NE(refusal(LIB_SUBJECT).find("cannot be loaded"), std::string::npos);
    lib_tool() = TIDEGATE_TOOL;
    setenv(kLibProbe, "1", 1);
    EXPECT_NE(refusal(LIB_SUBJECT).find("lib_tool()"), std::string::npos);
    unsetenv(kLibProbe);
}

}  // namespace
}  // namespace tidegate::subjects
