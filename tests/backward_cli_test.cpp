// Pass backward through the tool, as a user runs it: files with `do`, faults, records, plans and memory limits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "cases/request.h"
#include "cases/suite.h"
#include "io/safetensors.h"
#include "tool.h"

namespace tidegate {
namespace {

using test::Ran;
using test::tool;

const std::string kData = std::string("'") + TIDEGATE_ROOT + "/data/";
const char* const kCase = "'kda/backward/bf16/1,70,2,4,24,16/h0=1/dht=1/gates=logits/l2norm=1/gate_min=-0.5/1'";

class BackwardCli : public testing::Test {
protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("tidegate backward " + std::to_string(getpid()) +
                                                      testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string write(const char* name, const io::Bundle& bundle) const {
        io::write_safetensors(folder_ / name, bundle);
        return "'" + std::string(folder_ / name) + "'";
    }
    static io::Bundle request(const char* id = "gdn/backward/fp32/1,9,1,2,16,16/h0=1/dht=1/1") {
        return cases::generate(cases::parse(id));
    }
    std::filesystem::path folder_;
};

TEST_F(BackwardCli, TheRealLayersPassWithTheirUpstreamGradient) {
    for (const char* layer : {"gdn_layer", "kda_layer"})
        for (const char* more : {"", " --dtype fp32", " --gates logits"}) {
            const Ran ran = tool("check " + kData + layer + ".safetensors' --pass backward" + more);
            EXPECT_EQ(ran.code, 0) << layer << more << ran.out;
            for (const char* name : {"dq", "dk", "dv", "dh0"}) EXPECT_TRUE(ran.has(name)) << ran.out;
            EXPECT_EQ(ran.has("dA_log"), std::string(more) == " --gates logits") << ran.out;
        }
}

TEST_F(BackwardCli, GradientsInFp32AreWithinFiveMillionths) {
    for (const char* layer : {"gdn_layer", "kda_layer"}) {
        const Ran ran =
            tool("check " + kData + layer + ".safetensors' --pass backward --dtype fp32 --json - --quiet 2>/dev/null");
        std::size_t tensors = 0;
        const std::string key = "\"nrmse\":";
        for (std::size_t at = ran.out.find(key); at != std::string::npos; at = ran.out.find(key, at + 1)) {
            EXPECT_LE(std::stod(ran.out.substr(at + key.size())), 5e-6);
            ++tensors;
        }
        EXPECT_EQ(tensors, 6u) << ran.out;
    }
}

TEST_F(BackwardCli, SuitesOfEveryRulePass) {
    EXPECT_EQ(tool("check --suite quick --pass backward --quiet").code, 0);
    EXPECT_EQ(tool("check --suite quick --pass backward --quiet --subject reference --rule rwkv7").code, 0);
}

TEST_F(BackwardCli, FaultsAreCaughtAndThoseThatChangeNothingAreSkipped) {
    for (const char* fault :
         {"dk-without-erase", "dg-without-erase", "dbeta-without-erase", "last-head-only", "norm-skipped", "clamped-dg",
          "dh0-zero", "dv-next-token", "dh-chunk-reset", "chunk-reset", "missing-scale"})
        EXPECT_EQ(tool(std::string("check ") + kCase + " --subject cpu+fault:" + fault).code, 1) << fault;
    EXPECT_EQ(tool("check gdn/backward/fp32/1,9,1,2,16,16/dht=1/1 --subject cpu+fault:dht-ignored").code, 1);
    for (const char* fault : {"zero-output", "final-state-zero", "read-before-write", "decay-each-step"})
        EXPECT_EQ(tool(std::string("check ") + kCase + " --subject cpu+fault:" + fault).code, 3) << fault;
    EXPECT_EQ(tool("check gdn/backward/fp32/1,9,1,2,16,16/1 --subject cpu+fault:dht-ignored").code, 3);
    EXPECT_EQ(tool("check gdn/forward/fp32/1,9,1,2,16,16/1 --subject cpu+fault:dh0-zero").code, 3);
}

TEST_F(BackwardCli, BadRequestsAreTwoAndNameTheTensor) {
    const std::pair<const char*, const char*> missing[] = {{"do", "do: given nothing"}, {"q", "q: given nothing"}};
    for (const auto& [name, words] : missing) {
        io::Bundle bundle = request();
        std::erase_if(bundle.tensors, [name = name](const io::Array& t) { return t.name == name; });
        const Ran ran = tool("check " + write("bad.safetensors", bundle));
        EXPECT_EQ(ran.code, 2) << name;
        EXPECT_TRUE(ran.has(words)) << ran.out;
    }
    io::Bundle misshapen = request();
    misshapen.add(io::Array("dht", Dtype::fp32, {1, 2, 16, 8}));
    EXPECT_TRUE(tool("check " + write("bad.safetensors", misshapen)).has("dht: given shape [1, 2, 16, 8]"));
    io::Bundle half = request("gdn/backward/bf16/1,9,1,2,16,16/1");
    const Ran narrowed = tool("check " + write("half.safetensors", half) + " --dtype fp16");
    EXPECT_EQ(narrowed.code, 2);
    EXPECT_TRUE(narrowed.has("dtype: given fp16 for do in bf16")) << narrowed.out;
    for (const char* id :
         {"gdn/backward/fp32/1,9,1,2,16,16/pool=3/1", "gdn/forward/fp32/1,9,1,2,16,16/dht=1/1",
          "gdn/backward/fp32/1,9,1,2,16,16/state=bf16/1", "iplr/forward/fp32/1,9,1,2,16,16/gate=zero/1",
          "gdn/forward/fp32/1,9,1,2,16,16/householder=2/1", "dplr/packed/fp32/1,1,1,2,16,16/1",
          "gdp/forward/fp32/1,9,1,2,16,16/householder=65/1"})
        EXPECT_EQ(tool("check '" + std::string(id) + "'").code, 2) << id;
}

TEST_F(BackwardCli, RunAnswersAndCheckTakesIt) {
    const std::string in =
        write("in.safetensors", request("gdp/backward/fp32/1,20,1,2,16,24/h0=1/dht=1/householder=3/1"));
    const std::string out = "'" + std::string(folder_ / "out.safetensors") + "'";
    EXPECT_EQ(tool("run " + in + " " + out).code, 0);
    EXPECT_EQ(tool("check " + in + " --subject file:" + out).code, 0);
    EXPECT_EQ(
        tool("check " + in + " --subject \"file:" + std::string(folder_ / "out.safetensors") + "+fault:dv-next-token\"")
            .code,
        1);
}

TEST_F(BackwardCli, AMemoryLimitIsKeptAndPrinted) {
    const std::string sizes = "plan --rule gdn --dk 128 --dv 128 --tokens 4096 --heads 4 --pass backward";
    EXPECT_TRUE(tool(sizes).has("spacing=4096 extra_flop=0%")) << tool(sizes).out;
    const Ran limited = tool(sizes + " --memory-limit 8MB --threads 1");
    EXPECT_EQ(limited.code, 0) << limited.out;
    EXPECT_FALSE(limited.has("extra_flop=0%")) << limited.out;
    const std::size_t at = limited.out.find("workspace=");
    ASSERT_NE(at, std::string::npos) << limited.out;
    EXPECT_LE(std::stoll(limited.out.substr(at + 10)), 8'000'000);
    const Ran small = tool(sizes + " --memory-limit 10kB");
    EXPECT_EQ(small.code, 2);
    EXPECT_TRUE(small.has("memory_limit: given 10000 bytes, expected at least")) << small.out;
    EXPECT_EQ(tool("plan --rule gdn --dk 128 --dv 128 --memory-limit 1GB").code, 2);
    const std::string layer = kData + "gdn_layer.safetensors' --pass backward --threads 1 --memory-limit ";
    EXPECT_EQ(tool("check " + layer + "2MB").code, 0);
    EXPECT_EQ(tool("check " + layer + "10kB").code, 2);
}

}  // namespace
}  // namespace tidegate
