// Subjects inside the process, their specifications, and faults injected into them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "cases/request.h"
#include "cases/suite.h"
#include "faults/faults.h"
#include "io/safetensors.h"
#include "judge/judge.h"
#include "subjects/poison.h"
#include "subjects/spec.h"

namespace tidegate::subjects {
namespace {

io::Bundle request_of(const std::string& id) { return cases::generate(cases::parse(id)); }

judge::Verdict verdict_of(const std::string& spec, const io::Bundle& request) {
    const judge::Bench bench(request, {}, judge::gate_from("derived"));
    return bench.judge(make_subject(spec, {})->answer(request)).verdict;
}

float load_element_fp32(const io::Bundle& answer, const std::string& name) {
    float x = 0;
    std::memcpy(&x, answer.find(name)->bytes.data(), sizeof x);
    return x;
}

std::string refusal(const std::string& spec) {
    try {
        make_subject(spec, {});
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

TEST(Spec, NamesWhatItDoesNotKnow) {
    EXPECT_NE(refusal("gpu").find("cpu, cuda, reference, exec:"), std::string::npos);
    EXPECT_NE(refusal("exec:").find("exec:COMMAND"), std::string::npos);
    EXPECT_NE(refusal("cpu+fault:gremlins").find("zero-output"), std::string::npos);
    EXPECT_NE(refusal("exec:true+fault:no-decay").find("formula fault"), std::string::npos);
    EXPECT_NE(refusal("file:x+fault:beta-bf16").find("answer fault"), std::string::npos);
    EXPECT_THROW(make_subject("cuda", {}), Unavailable);
}

TEST(Spec, AFaultBelongsToTheCommandOrToUs) {
    EXPECT_EQ(make_subject("exec:tool run --subject cpu+fault:no-decay", {})->name(),
              "exec:tool run --subject cpu+fault:no-decay");
    EXPECT_EQ(make_subject("exec:tool run --subject=cpu+fault:no-decay", {})->name(),
              "exec:tool run --subject=cpu+fault:no-decay");
    EXPECT_EQ(make_subject("exec:./kernel+fault:zero-output", {})->name(), "exec:./kernel+fault:zero-output");
    EXPECT_EQ(make_subject("exec:./kernel --fast +fault:tail-zero", {})->name(),
              "exec:./kernel --fast+fault:tail-zero");
    EXPECT_EQ(make_subject("exec:tool --subject cpu+fault:no-decay +fault:tail-zero", {})->name(),
              "exec:tool --subject cpu+fault:no-decay+fault:tail-zero");
    EXPECT_EQ(make_subject("cpu+fault:no-decay", {})->name(), "cpu+fault:no-decay (reference)");
    EXPECT_EQ(make_subject("cpu+fault:beta-bf16", {})->name(), "cpu+fault:beta-bf16");
}

TEST(Poison, IsFoundBitForBit) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16, Dtype::fp64}) {
        io::Array a("o", dtype, {7});
        EXPECT_EQ(poisoned(a.bytes.data(), dtype, 7), 0);
        poison(a.bytes.data(), dtype, 7);
        EXPECT_EQ(poisoned(a.bytes.data(), dtype, 7), 7);
        a.bytes[0] = std::byte{1};
        EXPECT_EQ(poisoned(a.bytes.data(), dtype, 7), 6);
    }
}

TEST(InProcess, CpuAndReferencePassQuickOfBothRules) {
    for (const cases::Case& c : cases::suite("quick"))
        for (const char* spec : {"cpu", "reference"})
            EXPECT_EQ(verdict_of(spec, cases::generate(c)), judge::Verdict::pass) << spec << " " << cases::id_of(c);
}

TEST(InProcess, CpuSkipsWhatItDoesNotTake) {
    const io::Bundle request = request_of("gdn/forward/fp64/1,9,1,2,16,16/h0=1/1");
    EXPECT_EQ(make_subject("cpu", {})->answer(request).status, Status::skipped);
    EXPECT_EQ(verdict_of("reference", request), judge::Verdict::pass);
}

TEST(InProcess, EveryFaultOfTheTableFailsOnACaseThatItAppliesTo) {
    const char* const ids[] = {
        "gdn/forward/bf16/1,139,2,4,32,64/lengths=3,0,70,1,65/h0=1/2",
        "gdn/decode/bf16/3,1,2,4,16,16/pool=2100/slots=-1,0,2060/null=0/1",
        "gdn/decode/bf16/2,3,2,4,32,16/columns=4/accepted=1,2/each=1/1",
        "gdp/forward/bf16/1,20,2,4,16,24/h0=1/1",
        "gdn/backward/fp32/1,139,2,4,32,48/lengths=3,0,70,1,65/h0=1/dht=1/l2norm=1/gate_min=-0.5/2",
        "gdn/packed/bf16/4,1,2,4,32,16/slots=1,2,0,-1/null=0/1"};
    std::map<std::pair<std::string, std::string>, int> failed;  // by fault and subject
    for (const char* id : ids) {
        const io::Bundle request = request_of(id);
        const judge::Bench bench(request, {}, judge::gate_from("derived"));
        for (const faults::Fault& fault : faults::table())
            for (const char* base : {"cpu", "reference"}) {
                const std::string spec = std::string(base) + "+fault:" + fault.name;
                const judge::Verdict v = bench.judge(make_subject(spec, {})->answer(request)).verdict;
                EXPECT_TRUE(v == judge::Verdict::fail || v == judge::Verdict::skipped) << spec << " " << id;
                failed[{fault.name, base}] += v == judge::Verdict::fail ? 1 : 0;
            }
    }
    for (const faults::Fault& fault : faults::table())
        for (const char* base : {"cpu", "reference"}) {
            const int times = failed[{fault.name, base}];
            EXPECT_GE(times, 1) << base << " " << fault.name;
        }
}

TEST(InProcess, AFaultThatDoesNotApplyIsSkippedNotPassed) {
    const io::Bundle request = request_of("gdn/forward/bf16/1,9,1,2,16,16/h0=1/1");
    EXPECT_EQ(verdict_of("cpu+fault:varlen-leak", request), judge::Verdict::skipped);
    EXPECT_EQ(verdict_of("cpu+fault:chunk-reset", request), judge::Verdict::skipped);
}

TEST(InProcess, FaultsOfLogitsActOnTheGatesTheyMake) {
    const io::Bundle request = request_of("gdn/forward/bf16/1,1,1,1,1,1/x=ones/gates=logits/b=0.5/23");
    Outcome right = make_subject("cpu", {})->answer(request);
    EXPECT_NEAR(load_element_fp32(right.answer, "final_state"), 0.62245935, 1e-6);
    Outcome rounded = make_subject("cpu+fault:beta-bf16", {})->answer(request);
    EXPECT_EQ(load_element_fp32(rounded.answer, "final_state"), 0.62109375F);
    EXPECT_EQ(verdict_of("cpu+fault:beta-bf16", request), judge::Verdict::fail);
}

TEST(Files, AnAnswerFileIsJudgedAsTheAnswerItIs) {
    const std::string path =
        std::filesystem::temp_directory_path() / ("tidegate_subject_test_" + std::to_string(getpid()));
    const io::Bundle request = request_of("gdn/forward/bf16/1,70,1,2,16,16/h0=1/1");
    io::write_safetensors(path, make_subject("cpu", {})->answer(request).answer);
    EXPECT_EQ(verdict_of("file:" + path, request), judge::Verdict::pass);
    EXPECT_EQ(verdict_of("file:" + path + "+fault:tail-zero", request), judge::Verdict::fail);
    std::filesystem::remove(path);
    EXPECT_THROW(make_subject("file:" + path, {})->answer(request), Error);
}

}  // namespace
}  // namespace tidegate::subjects
