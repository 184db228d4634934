// The tool from outside: exit codes, messages, records, replay. TIDEGATE_TOOL is the executable.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "cases/request.h"
#include "cases/suite.h"
#include "io/safetensors.h"
#include "tool.h"

namespace tidegate {
namespace {

using test::Ran;
using test::tool;

/// A folder of the test's own, removed with it.
class Cli : public testing::Test {
protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("tidegate cli test " + std::to_string(getpid()) +
                                                      testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string file(const std::string& name) const { return folder_ / name; }
    static std::string quoted(const std::string& path) { return "'" + path + "'"; }
    std::string write(const std::string& name, const std::string& bytes) const {
        std::ofstream(file(name), std::ios::binary) << bytes;
        return quoted(file(name));
    }
    std::string request(const std::string& id) const {
        io::write_safetensors(file("request.safetensors"), cases::generate(cases::parse(id)));
        return quoted(file("request.safetensors"));
    }
    std::filesystem::path folder_;
};

const std::string kCase = "'gdn/forward/bf16/1,70,2,4,80,96/h0=1/7'";
const std::string kData = std::string("'") + TIDEGATE_ROOT + "/data/";

TEST_F(Cli, VersionAndHelp) {
    EXPECT_EQ(tool("--version").code, 0);
    EXPECT_TRUE(tool("--version").has("tidegate 0."));
    const Ran help = tool("check --help");
    EXPECT_EQ(help.code, 0);
    for (const char* word : {"quick", "field", "derived", "chunk-fp16", "zero-output", "exec:COMMAND"})
        EXPECT_TRUE(help.has(word)) << word;
}

TEST_F(Cli, UsageErrorsAreTwoAndSayWhatWasExpected) {
    const std::pair<std::string, const char*> bad[] = {
        {"", "subcommand"},
        {"bogus", "check, run, plan, bench, drift or ledger"},
        {"check " + kCase + " --subject exec:true --grace nan", "grace"},
        {"run " + kCase + " /tmp/x --subject exec:true --timeout -1", "timeout"},
        {"check", "FILE"},
        {"check --suite some", "quick"},
        {"check " + kCase + " --subject gpu", "cpu, cuda, reference"},
        {"check " + kCase + " --subject cpu+fault:gremlins", "zero-output"},
        {"check " + kCase + " --gate loose", "derived"},
        {"check " + kCase + " --twin half", "chunked:"},
        {"check " + kCase + " --suite quick", "one of"},
        {"check " + kCase + " --speed", "--speed"},
        {"check " + kCase + " --timeout 0", "timeout"},
        {"check 'gdn/forward/bf16/1,70,2,4,80/7'", "B,T,H,HV,K,V"},
        {"check --suite quick --rule mamba", "gdn, kda"},
        {"check --suite quick --subject file:x", "FILE only"},
        {"--isa AVX9 check " + kCase, "isa"},
        {"plan --rule gdn --dk 0 --dv 8", "dk: given 0"},
        {"run " + kCase, "OUT"},
    };
    for (const auto& [arguments, words] : bad) {
        const Ran run = tool(arguments);
        EXPECT_EQ(run.code, 2) << arguments << "\n" << run.out;
        EXPECT_TRUE(run.has(words)) << arguments << "\n" << run.out;
    }
}

TEST_F(Cli, BadFilesAreTwoWithOneClearMessage) {
    const std::string header = R"({"q":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}})";
    const std::string overlap =
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})";
    const auto with_length = [](const std::string& json, const std::string& data) {
        std::string size(8, '\0');
        for (std::size_t i = 0; i < 8; ++i) size[i] = static_cast<char>((json.size() >> (8 * i)) & 255);
        return size + json + data;
    };
    std::ifstream layer(std::string(TIDEGATE_ROOT) + "/data/gdn_layer.safetensors", std::ios::binary);
    std::string half(100'000, '\0');
    layer.read(half.data(), static_cast<std::streamsize>(half.size()));
    const std::string files[] = {quoted(file("absent")),
                                 write("empty", ""),
                                 write("huge", std::string("\0\0\0\0\0\0\0\x80", 8) + "{}"),
                                 write("overlap", with_length(overlap, "123456")),
                                 write("fp8", with_length(header, "1")),
                                 write("half", half),
                                 quoted(folder_)};
    for (const std::string& path : files) {
        const Ran run = tool("check " + path + " --subject cpu");
        EXPECT_EQ(run.code, 2) << path << run.out;
        EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1) << run.out;
        EXPECT_EQ(tool("run " + path + " " + quoted(file("answer"))).code, 2);
        EXPECT_FALSE(std::filesystem::exists(file("answer")));
    }
}

TEST_F(Cli, TheRealLayersPassInBothOutputTypes) {
    for (const char* layer : {"gdn_layer.safetensors'", "kda_layer.safetensors'"})
        for (const char* dtype : {"", " --dtype fp32", " --gates logits"}) {
            const Ran run = tool("check " + kData + layer + dtype);
            EXPECT_EQ(run.code, 0) << run.out;
            EXPECT_TRUE(run.has("final_state")) << run.out;
            EXPECT_TRUE(run.has("1 cases: 1 passed")) << run.out;
        }
}

TEST_F(Cli, ExitCodesFollowTheVerdict) {
    EXPECT_EQ(tool("check " + kCase).code, 0);
    EXPECT_EQ(tool("check " + kCase + " --subject cpu+fault:no-decay").code, 1);
    EXPECT_EQ(tool("check " + kCase + " --subject cpu+fault:varlen-leak").code, 3);  // skipped: does not apply
    EXPECT_EQ(tool("check " + kCase + " --subject cuda").code, 3);
    EXPECT_EQ(tool("check " + kCase + " --subject 'exec:exit 3;'").code, 4);
    EXPECT_EQ(tool("check " + kCase + " --subject 'exec:exit 77;'").code, 3);
    EXPECT_EQ(tool("check 'gdn/forward/fp32/1,0,1,2,16,16/lengths=0,0/10'").code, 3);  // blind
}

TEST_F(Cli, AFailureSaysWhereAndPrintsTheCommandThatReplaysIt) {
    const Ran run = tool("check " + kCase + " --subject cpu+fault:tail-zero");
    ASSERT_EQ(run.code, 1);
    EXPECT_TRUE(run.has("worst at seq 0 token 6")) << run.out;
    EXPECT_TRUE(run.has("smallest tolerance that would pass")) << run.out;
    EXPECT_TRUE(run.has("exact zeros")) << run.out;
    const std::string marker = "replay: tidegate ";
    const std::size_t at = run.out.find(marker);
    ASSERT_NE(at, std::string::npos);
    const std::string replay = run.out.substr(at + marker.size(), run.out.find('\n', at) - at - marker.size());
    const Ran again = tool(replay);
    EXPECT_EQ(again.code, 1);
    EXPECT_TRUE(again.has("worst at seq 0 token 6"));
}

TEST_F(Cli, ASubjectThatMisbehavesIsAResultAndTheOthersStillRun) {
    // Cases with K = 80 go wrong in the named way, the others are answered by the tool itself.
    struct Way {
        const char *command, *word;
    };
    const Way ways[] = {{"kill -SEGV $$", "SIGSEGV"}, {"kill -ABRT $$", "SIGABRT"},
                        {"exit 3", "exit 3"},         {"while :; do :; done", "hung (busy)"},
                        {"sleep 60", "hung (idle)"},  {"printf truncated > \"$2\"; exit 0", "unreadable answer"}};
    for (const Way& way : ways) {
        write("subject.sh", std::string("if grep -q '80,96' \"$1\"; then ") + way.command + "; fi\nexec '" +
                                TIDEGATE_TOOL + "' run \"$1\" \"$2\"\n");
        const Ran run = tool("check --suite quick --rule gdn --dtype bf16 --timeout 0.7 --subject \"exec:sh '" +
                             file("subject.sh") + "'\"");
        EXPECT_EQ(run.code, 4) << run.out;
        EXPECT_TRUE(run.has(way.word)) << way.word << "\n" << run.out;
        EXPECT_TRUE(run.has("8 cases: 7 passed, 0 failed, 0 blind,")) << run.out;
    }
}

TEST_F(Cli, RecordsAreJsonLinesThatAddUp) {
    const Ran run = tool("check --suite quick --rule kda --dtype fp16 --json " + quoted(file("records")) +
                         " --subject cpu+fault:last-token-zero --mutants");
    EXPECT_EQ(run.code, 1);
    std::ifstream in(file("records"));
    std::string line, last;
    int tensors = 0, cases = 0, mutants = 0;
    while (std::getline(in, line)) {
        ASSERT_EQ(line.front(), '{');
        ASSERT_EQ(line.back(), '}');
        tensors += line.find(R"("record":"tensor")") != std::string::npos ? 1 : 0;
        cases += line.find(R"("record":"case")") != std::string::npos ? 1 : 0;
        mutants += line.find(R"("record":"mutant")") != std::string::npos ? 1 : 0;
        last = line;
    }
    EXPECT_EQ(cases, 8);
    EXPECT_EQ(tensors, 16);
    EXPECT_GE(mutants, 8 * 20);
    EXPECT_NE(last.find(R"("record":"summary","protocol":1,"cases":8,"passed":0,"failed":8,)"), std::string::npos)
        << last;
    EXPECT_EQ(tool("check " + kCase + " --json /nowhere/at/all").code, 2);
}

TEST_F(Cli, RunWritesAnAnswerThatCheckTakes) {
    const std::string in = request("gdn/forward/bf16/1,70,2,4,32,48/h0=1/7"), out = quoted(file("answer.safetensors"));
    ASSERT_EQ(tool("run " + in + " " + out).code, 0);
    EXPECT_EQ(tool("check " + in + " --subject file:" + out).code, 0);
    EXPECT_EQ(tool("check " + in + " --subject file:" + out + "+fault:zero-output").code, 1);
    EXPECT_EQ(tool("check " + in + " --subject file:" + quoted(file("absent"))).code, 2);
    ASSERT_EQ(tool("run " + in + " " + out + " --subject cpu+fault:no-decay").code, 0);
    EXPECT_EQ(tool("check " + in + " --subject file:" + out).code, 1);
    // The tool as a black box behind exec:, with a fault of its own.
    EXPECT_EQ(tool("check " + in + " --subject \"exec:'" TIDEGATE_TOOL "' run --subject cpu\"").code, 0);
    EXPECT_EQ(tool("check " + in + " --subject \"exec:'" TIDEGATE_TOOL "' run --subject cpu+fault:no-decay\"").code, 1);
}

TEST_F(Cli, PlanIsPrintedWithoutRunning) {
    const Ran run = tool("plan --rule gdn --dk 80 --dv 96");
    EXPECT_EQ(run.code, 0);
    for (const char* word : {"arithmetic: path=cpu/", "isa=", "bucket=", "pass=", "schedule:", "workspace="})
        EXPECT_TRUE(run.has(word)) << word << run.out;
    EXPECT_TRUE(tool("plan --rule kda --dk 80 --dv 96 --json -").has(R"({"record":"plan",)"));
    EXPECT_EQ(tool("plan --rule gdn --dk 80 --dv 96 --subject cuda").code, 3);
    setenv("TIDEGATE_LOG", "plan", 1);
    EXPECT_TRUE(tool("check " + kCase).has("arithmetic: path=cpu/"));
    unsetenv("TIDEGATE_LOG");
}

TEST_F(Cli, EveryInstructionSetCanBeForced) {
    const Ran plan = tool("--isa SSSE3 plan --rule gdn --dk 16 --dv 16");
    EXPECT_EQ(plan.code, 0) << plan.out;
    EXPECT_TRUE(plan.has("isa=SSSE3")) << plan.out;
    EXPECT_EQ(tool("--isa SSSE3 check " + kCase).code, 0);
}

TEST_F(Cli, WhatCannotBeWrittenIsAnError) {
    EXPECT_EQ(tool("check " + kCase + " --json /dev/full").code, 2);
    EXPECT_TRUE(tool("check " + kCase + " --json /dev/full").has("cannot be written"));
    const std::string quoted_tool = "'" TIDEGATE_TOOL "' ";
    EXPECT_EQ(WEXITSTATUS(std::system((quoted_tool + "check " + kCase + " >/dev/full 2>&1").c_str())), 2);
    EXPECT_EQ(WEXITSTATUS(std::system((quoted_tool + "check --suite quick --list >/dev/full 2>&1").c_str())), 2);
    // With stdout closed, the records' file must not become stdout.
    EXPECT_EQ(
        WEXITSTATUS(std::system((quoted_tool + "check " + kCase + " --json " + quoted(file("r")) + " >&-").c_str())),
        0);
    std::ifstream in(file("r"));
    for (std::string line; std::getline(in, line);) EXPECT_EQ(line.front(), '{') << line;
}

TEST_F(Cli, ChildrenEndWithTheTool) {
    for (const std::string signal : {"INT", "TERM", "HUP", "PIPE"}) {
        const std::string mark = "sleep 31." + std::to_string(getpid());
        write("end.sh", "'" TIDEGATE_TOOL "' check " + kCase + " --subject 'exec:exec " + mark + " #' &\np=$!\n" +
                            "for i in $(seq 50); do pgrep -xf '" + mark + "' && break; sleep 0.1; done\n" + "kill -" +
                            signal + " $p\nwait $p\nsleep 0.2\n! pgrep -xf '" + mark + "'\n");
        const auto start = std::chrono::steady_clock::now();
        EXPECT_EQ(WEXITSTATUS(std::system(("bash '" + file("end.sh") + "' >/dev/null 2>&1").c_str())), 0) << signal;
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << signal;
    }
}

TEST_F(Cli, AFileIsAFileWhateverItsPath) {
    std::filesystem::create_directories(folder_ / "x,y" / "z");
    std::filesystem::copy_file(std::string(TIDEGATE_ROOT) + "/data/kda_layer.safetensors",
                               folder_ / "x,y" / "z" / "f.safetensors");
    EXPECT_EQ(tool("check " + quoted(file("x,y/z/f.safetensors"))).code, 0);
}

TEST_F(Cli, TheFlagBeatsTheEnvironment) {
    setenv("TIDEGATE_ISA", "SSE4", 1);
    EXPECT_TRUE(tool("plan --rule gdn --dk 16 --dv 16").has("isa=SSE4"));
    EXPECT_TRUE(tool("plan --rule gdn --dk 16 --dv 16 --isa SSSE3").has("isa=SSSE3"));
    setenv("TIDEGATE_ISA", "wide", 1);
    EXPECT_EQ(tool("check " + kCase + " --subject reference").code, 2);
    unsetenv("TIDEGATE_ISA");
}

TEST_F(Cli, NanIsTakenOnRequestOnly) {
    const std::string in = request("gdn/forward/fp32/1,84,1,2,32,32/lengths=5,70,9/nan=1/22");
    const Ran run = tool("check " + in);
    EXPECT_EQ(run.code, 2);
    EXPECT_TRUE(run.has("--allow-nan")) << run.out;
    EXPECT_EQ(tool("check --allow-nan " + in).code, 0);
}

}  // namespace
}  // namespace tidegate
