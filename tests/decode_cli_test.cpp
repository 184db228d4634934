// The decode passes and `drift` from outside: exit codes, messages, records, files. TIDEGATE_TOOL is the executable.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cases/case.h"
#include "io/safetensors.h"
#include "problem/number.h"
#include "tool.h"

namespace tidegate {
namespace {

using test::Ran;
using test::tool;

class DecodeCli : public testing::Test {
protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("tidegate decode test " + std::to_string(getpid()) +
                                                      testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string file(const std::string& name) const { return folder_ / name; }
    std::string quoted(const std::string& name) const { return "'" + file(name) + "'"; }
    std::string write(const io::Bundle& request) const {
        io::write_safetensors(file("request.safetensors"), request);
        return quoted("request.safetensors");
    }
    std::filesystem::path folder_;
};

const std::string kDecode = "gdn/decode/bf16/3,2,2,4,16,24/columns=3/accepted=1,0,3/each=1/1";
const std::string kPacked = "kda/packed/fp16/4,1,2,4,16,24/slots=1,2,0,-1/null=0/1";

TEST_F(DecodeCli, AFileAndItsAnswer) {
    for (const std::string& id : {kDecode, kPacked}) {
        const std::string request = write(cases::generate(cases::parse(id)));
        EXPECT_EQ(tool("check " + request).code, 0) << id;
        EXPECT_EQ(tool("run " + request + " " + quoted("answer.safetensors")).code, 0) << id;
        const io::Bundle answer = io::read_safetensors(file("answer.safetensors"));
        ASSERT_NE(answer.find("state"), nullptr);
        EXPECT_EQ(answer.find("state_tokens") != nullptr, id == kDecode);
        EXPECT_EQ(tool("check " + request + " --subject 'file:" + file("answer.safetensors") + "'").code, 0) << id;
        EXPECT_EQ(
            tool("check " + request + " --subject 'file:" + file("answer.safetensors") + "+fault:neighbour-slot'").code,
            1)
            << id;
        const std::string black_box = "exec:\"$TOOL\" run --subject cpu";
        setenv("TOOL", TIDEGATE_TOOL, 1);
        EXPECT_EQ(tool("check '" + id + "' --subject '" + black_box + "'").code, 0) << id;
        EXPECT_EQ(tool("check '" + id + "' --subject '" + black_box + "+fault:beta-bf16'").code, 1) << id;
    }
}

/// An answer with one element changed; the request as `id` says.
TEST_F(DecodeCli, WhatMustNotDifferByABit) {
    const std::string id = "gdn/decode/bf16/4,2,1,2,16,16/pool=6/slots=1,2,-1,4/each=1/1";
    const std::string request = write(cases::generate(cases::parse(id)));
    ASSERT_EQ(tool("run " + request + " " + quoted("answer.safetensors")).code, 0);
    const io::Bundle right = io::read_safetensors(file("answer.safetensors"));
    const struct {
        const char* tensor;
        std::int64_t element;
        double value;
        const char* words;
    } rows[] = {
        {"o", 2 * 2 * 32 + 5, 1e-3, "request 2, a pad"},                    // a pad's row
        {"state_tokens", 2 * 2 * 512 + 7, 1e-20, "request 2, a pad"},       // and its states
        {"state", 3 * 512 + 9, 0.0, "slot 3, which no request may write"},  // a slot nobody names
        {"state", 5 * 512 + 9, -0.0, "slot 5, which no request may write"},
    };
    for (const auto& [tensor, element, value, words] : rows) {
        io::Bundle answer = right;
        io::Array& array = *answer.find(tensor);
        store_element(array.bytes.data(), array.dtype, element, value);
        io::write_safetensors(file("answer.safetensors"), answer);
        const Ran ran = tool("check " + request + " --subject 'file:" + file("answer.safetensors") + "'");
        EXPECT_EQ(ran.code, 1) << tensor << " " << element;
        EXPECT_TRUE(ran.has(words)) << ran.out;
    }
    // A large request forgives nothing of another's.
    io::Bundle wide = cases::generate(cases::parse("gdn/decode/bf16/2,1,1,2,16,16/1"));
    const Tensor state = wide.find("state")->view();
    for (std::int64_t i = 0; i < 512; ++i)  // request 0's slot is the last
        store_element(state.data, state.dtype, 3 * 512 + i, load_element(state.data, state.dtype, 3 * 512 + i) * 1e5);
    const std::string scaled = write(wide);
    ASSERT_EQ(tool("check " + scaled).code, 0);
    ASSERT_EQ(tool("run " + scaled + " " + quoted("answer.safetensors")).code, 0);
    io::Bundle answer = io::read_safetensors(file("answer.safetensors"));
    io::Array& o = *answer.find("o");
    std::fill(o.bytes.begin() + static_cast<std::ptrdiff_t>(o.bytes.size() / 2), o.bytes.end(), std::byte{0});
    io::write_safetensors(file("answer.safetensors"), answer);
    EXPECT_EQ(tool("check " + scaled + " --subject 'file:" + file("answer.safetensors") + "'").code, 1);
}

TEST_F(DecodeCli, SmallHeadsAreNotFailedByLuck) {
    for (int seed = 1; seed <= 10; ++seed)
        for (const char* id : {"gdn/decode/fp32/1,1,64,64,2,1/", "gdn/packed/fp32/2,1,32,64,4,1/",
                               "kda/decode/fp32/1,1,128,128,64,1/", "gdn/forward/fp32/1,3,32,32,8,2/h0=1/"})
            EXPECT_EQ(tool("check '" + std::string(id) + std::to_string(seed) + "'").code, 0) << id << seed;
    EXPECT_EQ(tool("drift --steps 60 --heads 32 --dk 16 --dv 1").code, 0);
}

TEST_F(DecodeCli, AnUntouchedSlotKeepsEveryBit) {
    const std::string id = "gdn/decode/fp32/2,1,1,2,16,16/pool=5/1";
    const std::string request = write(cases::generate(cases::parse(id)));
    ASSERT_EQ(tool("run " + request + " " + quoted("answer.safetensors")).code, 0);
    io::Bundle answer = io::read_safetensors(file("answer.safetensors"));
    io::Array& state = *answer.find("state");
    const double x = load_element(state.bytes.data(), state.dtype, 7);
    store_element(state.bytes.data(), state.dtype, 7, std::nextafter(static_cast<float>(x), 10.0F));
    io::write_safetensors(file("answer.safetensors"), answer);
    const Ran ran = tool("check " + request + " --subject 'file:" + file("answer.safetensors") + "'");
    EXPECT_EQ(ran.code, 1);
    EXPECT_TRUE(ran.has("slot 0, which no request may write")) << ran.out;
}

TEST_F(DecodeCli, BadFilesAreBadInput) {
    const struct {
        const char* words;
        void (*change)(io::Bundle&);
    } rows[] = {
        {"state_indices[1]: given 99, expected a slot below the pool's 5",
         [](io::Bundle& b) { store_element(b.find("state_indices")->bytes.data(), Dtype::int32, 1, 99); }},
        {"state_indices[1]: given 4, expected a slot that no other request names",
         [](io::Bundle& b) { store_element(b.find("state_indices")->bytes.data(), Dtype::int32, 1, 4); }},
        {"state: given nothing",
         [](io::Bundle& b) { std::erase_if(b.tensors, [](auto& t) { return t.name == "state"; }); }},
        {"metadata null_slot: given '1.5', expected a whole number",
         [](io::Bundle& b) { b.metadata["null_slot"] = "1.5"; }},
        {"metadata pass: given 'sideways', expected forward or backward or decode or packed",
         [](io::Bundle& b) { b.metadata["pass"] = "sideways"; }},
        {"metadata per_token_state: given '2'", [](io::Bundle& b) { b.metadata["per_token_state"] = "2"; }},
        {"tensor 'initial_state': expected one of the names that docs/protocol.md gives for pass decode",
         [](io::Bundle& b) {
             b.add(io::Array("initial_state", Dtype::fp32, {3, 2, 16, 16}));
         }},
        {"metadata gates: given 'given', expected logits", [](io::Bundle& b) { b.metadata["pass"] = "packed"; }},
        {"mixed_qkv: given nothing",
         [](io::Bundle& b) {
             b.metadata["pass"] = "packed";
             b.metadata.erase("gates");
         }},
        {"metadata state_dtype: given 'bf16', expected fp32, the type of the pool",
         [](io::Bundle& b) { b.metadata["state_dtype"] = "bf16"; }},
    };
    for (const auto& [words, change] : rows) {
        io::Bundle request = cases::generate(cases::parse("gdn/decode/fp32/3,1,1,2,16,16/1"));
        change(request);
        if (request.metadata["pass"] == "packed")
            std::erase_if(request.tensors, [](auto& t) { return t.name != "state" && t.name != "state_indices"; });
        const Ran ran = tool("check " + write(request));
        EXPECT_EQ(ran.code, 2) << words;
        EXPECT_TRUE(ran.has(words)) << ran.out;
    }
    for (const char* bad : {"gdn/packed/fp32/1,2,1,1,8,8/1", "gdn/decode/fp32/2,1,1,1,8,8/slots=1/1",
                            "gdn/decode/fp32/1,1,1,1,8,8/accepted=1/1", "gdn/decode/fp32/1,3,1,1,8,8/columns=2/1",
                            "gdn/decode/fp32/1,1,1,1,8,8/pool=2/slots=2/1", "gdn/forward/fp32/1,1,1,1,8,8/null=0/1",
                            "gdn/decode/fp32/1,1,1,1,8,8/lengths=1/1"})
        EXPECT_EQ(tool("check '" + std::string(bad) + "'").code, 2) << bad;
}

TEST_F(DecodeCli, SuitesOfAPass) {
    EXPECT_EQ(tool("check --suite quick --pass decode --quiet").code, 0);
    EXPECT_EQ(tool("check --suite quick --pass packed --quiet").code, 0);
    const Ran none = tool("check --suite varlen --pass decode");
    EXPECT_EQ(none.code, 3) << none.out;
    EXPECT_EQ(tool("check --suite quick --pass sideways").code, 2);
    EXPECT_EQ(tool("check --suite quick --pass decode --twin chunked:bf16:64 --rule gdn --dtype bf16").code, 2);
    EXPECT_EQ(tool("bench --suite peers-cpu --pass decode --rule gdn --threads 1 --seconds 0.05").code, 0);
}

TEST_F(DecodeCli, DriftOfARightAndAWrongDecoder) {
    const Ran right = tool("drift --steps 120 --json " + quoted("d.jsonl") + " --svg " + quoted("d.svg"));
    EXPECT_EQ(right.code, 0) << right.out;
    EXPECT_TRUE(right.has("within the derived gate at every step")) << right.out;
    std::ifstream file_in(file("d.jsonl"));
    std::map<std::string, double> last;
    int lines = 0;
    std::string verdict, last_record;
    for (std::string line; std::getline(file_in, line);) {
        const auto record = nlohmann::json::parse(line);
        last_record = record["record"];
        if (last_record == "case") verdict = record["verdict"];
        if (last_record != "drift") continue;
        ++lines;
        EXPECT_TRUE(record["o_rel_l2"].is_number());
        const std::string gate = record["gate"];
        last[gate] = record["state_rel_l2"];
        if (gate == "exact") {
            EXPECT_LE(last[gate], 1e-6) << line;
        }
    }
    EXPECT_EQ(verdict, "pass");
    EXPECT_EQ(last_record, "summary");
    EXPECT_EQ(lines, 360);
    EXPECT_GE(last["rounded"], 100 * last["exact"]);
    EXPECT_LE(last["packed"], 1e-7);
    std::ifstream svg_in(file("d.svg"));
    std::stringstream svg;
    svg << svg_in.rdbuf();
    EXPECT_EQ(svg.str().rfind("<svg ", 0), 0u);
    EXPECT_NE(svg.str().find("<polyline"), std::string::npos);

    for (const char* fault : {"beta-bf16", "bf16-state", "error-before-decay"}) {
        const Ran wrong = tool("drift --steps 3 --subject cpu+fault:" + std::string(fault));
        EXPECT_EQ(wrong.code, 1) << fault;
        EXPECT_TRUE(wrong.has("over the derived gate, first at step")) << wrong.out;
    }
    // What goes wrong on the packed track alone is a verdict too.
    setenv("TOOL", TIDEGATE_TOOL, 1);
    for (const auto& [does, code] : {std::pair{"kill -9 $$", 4},
                                     {"exit 77", 0},
                                     {"echo x >\"$2\"; exit 0", 4},
                                     {"exec \"$TOOL\" run --subject cpu+fault:bf16-state \"$1\" \"$2\"", 1}}) {
        std::ofstream(file("sub.sh")) << "if grep -q mixed_qkv \"$1\"; then " << does
                                      << "; fi\nexec \"$TOOL\" run --subject cpu \"$1\" \"$2\"\n";
        const Ran ran = tool("drift --steps 2 --dk 8 --dv 8 --subject \"exec:sh '" + file("sub.sh") + "'\"");
        EXPECT_EQ(ran.code, code) << does << "\n" << ran.out;
    }
    EXPECT_EQ(tool("drift --steps 0").code, 2);
    EXPECT_EQ(tool("drift --steps 2 --svg /nonexistent/x.svg").code, 2);
    EXPECT_EQ(tool("drift --steps 2 --dtype fp64").code, 2);
    EXPECT_EQ(tool("drift --steps 2 --seed -1").code, 2);
    EXPECT_EQ(tool("drift --rule nonesuch").code, 2);
    EXPECT_EQ(tool("drift --steps 2 --subject 'exec:exit 77'").code, 3);
    EXPECT_EQ(tool("drift --steps 2 --subject 'exec:kill -9 $$'").code, 4);
}

}  // namespace
}  // namespace tidegate
