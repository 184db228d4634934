// Case ids, generators, suites, requests.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "cases/random.h"
#include "cases/request.h"
#include "cases/suite.h"
#include "problem/number.h"
#include "tidegate/error.h"

namespace tidegate::cases {
namespace {

std::string message_of(const std::string& id) {
    try {
        parse(id);
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

TEST(Cases, IdsAreCanonicalWhateverTheOrderOfTheirKeys) {
    const std::string id = "gdn/forward/bf16/1,70,2,4,80,96/h0=1/map=tiled/layout=vk/7";
    EXPECT_EQ(id_of(parse(id)), id);
    EXPECT_EQ(id_of(parse("gdn/forward/bf16/1,70,2,4,80,96/layout=vk/map=tiled/h0=1/7")), id);
    EXPECT_EQ(id_of(parse("kda/forward/fp32/2,1,1,1,1,1/0")), "kda/forward/fp32/2,1,1,1,1,1/0");
}

TEST(Cases, ABadIdSaysWhichPartIsWrong) {
    const std::pair<const char*, const char*> bad[] = {
        {"gdn/forward/bf16/1,70,2,4,80/7", "B,T,H,HV,K,V"},
        {"gdn/forward/bf16/1,70,3,4,80,96/7", "HV % H"},
        {"gdx/forward/bf16/1,70,2,4,80,96/7", "gdn, kda"},
        {"gdn/sideways/bf16/1,70,2,4,80,96/7", "pass"},
        {"gdn/forward/fp8/1,70,2,4,80,96/7", "dtype"},
        {"gdn/forward/bf16/1,70,2,4,80,96/h1=1/7", "h1=1"},
        {"gdn/forward/bf16/1,70,2,4,80,96/h0=1/h0=2/7", "twice"},
        {"gdn/forward/bf16/1,70,2,4,80,96/x", "seed"},
        {"gdn/forward/bf16/1,70,2,4,80,96/lengths=30,30/7", "60"},
        {"gdn/forward/bf16/2,60,2,4,80,96/lengths=30,30/7", "B = 1"},
        {"gdn/forward/bf16/1,-1,2,4,80,96/7", "T = -1"},
        {"gdn/forward/bf16/1,1000000000,64,64,256,256/7", "2^31"},
        {"gdn/forward/fp32/1,5,1,1,1,1/lengths=9223372036854775807,9223372036854775807,7/1", "lengths"},
        {"gdn/forward/fp32/2,5,1,1,1,1/nan=2/1", "below 2"},
        {"gdn/forward/fp32/2,5,1,1,1,1/same=5/1", "1: every sequence"},
        {"gdn/forward/fp32/2,5,1,1,1,1/strides=x/1", "padded"},
        {"gdn/forward/fp32/2,5,1,1,1,1/h0=/1", "normal times X"},
        {"gdn/forward/fp32/2,5,1,1,1,1/h0=nan/1", "normal times X"},
    };
    for (const auto& [id, words] : bad)
        EXPECT_NE(message_of(id).find(words), std::string::npos) << id << ": " << message_of(id);
}

TEST(Cases, BadKeyValuesAreErrors) {
    for (const char* key :
         {"h0=much", "gate=wavy", "gate=const:x", "x=twos", "gb=fp8", "gates=raw", "b=1", "gates=logits/gb=bf16",
          "gates=logits/gate=zero", "gates=logits/params=int", "gates=logits/b=split:", "gates=logits/beta=1"})
        EXPECT_THROW(generate(parse(std::string("gdn/forward/bf16/1,7,1,2,8,8/") + key + "/1")), Error) << key;
}

/// FNV-1a over names and bytes.
std::uint64_t digest(const io::Bundle& bundle) {
    std::uint64_t h = 0xcbf29ce484222325ULL;
    const auto eat = [&h](const void* data, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) h = (h ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3ULL;
    };
    for (const io::Array& a : bundle.tensors) {
        eat(a.name.data(), a.name.size());
        eat(a.bytes.data(), a.bytes.size());
    }
    return h;
}

// The bytes are part of the agreement between machines and versions: if one of these changes, kGeneratorVersion must.
TEST(Cases, GeneratedBytesAreFixed) {
    ASSERT_EQ(kGeneratorVersion, 1);
    EXPECT_EQ(digest(generate(parse("gdn/forward/bf16/1,70,2,4,80,96/h0=1/7"))), 0x7a4efc68e62b8535ULL);
    EXPECT_EQ(digest(generate(parse("kda/forward/fp32/1,9,1,2,32,32/lengths=5,4/gates=logits/1"))),
              0x352973d011a55e1dULL);
    EXPECT_EQ(hash_of(parse("gdn/forward/bf16/1,70,2,4,80,96/h0=1/7")), "91518060a0655dff");
    const std::pair<const char*, std::uint64_t> others[] = {
        {"deltanet", 0xc1fc161613211965ULL}, {"gdn2", 0xcd805bb0e6c62e61ULL}, {"gdp", 0xa7ba61b37f552efbULL},
        {"dplr", 0x81ce5ccdb9fe02b4ULL},     {"iplr", 0x1c12deee7588fda5ULL}, {"rwkv7", 0x81ce5ccdb9fe02b4ULL}};
    for (const auto& [rule, bytes] : others)
        EXPECT_EQ(digest(generate(parse(rule + std::string("/forward/bf16/1,9,1,2,16,24/lengths=5,4/h0=1/7")))), bytes)
            << rule;
}

TEST(Cases, NoInputHoldsPoisonAndAllAreFiniteUnlessTheyAskForIt) {
    for (const Case& c : suite("all", {})) {
        if (!c.key("nan").empty() || !c.key("inf").empty()) continue;
        const io::Bundle bundle = generate(c);
        ASSERT_NO_THROW(validate(bundle, false)) << id_of(c);
    }
}

TEST(Cases, NormalNumbersHaveMeanZeroAndVarianceOne) {
    const Random random(3, 4);
    double sum = 0, squares = 0;
    constexpr int kDraws = 100'000;
    for (int i = 0; i < kDraws; ++i) {
        const double x = random.normal(static_cast<std::uint64_t>(i));
        sum += x;
        squares += x * x;
    }
    EXPECT_NEAR(sum / kDraws, 0, 0.02);
    EXPECT_NEAR(squares / kDraws, 1, 0.02);
}

TEST(Cases, SuitesListEveryCaseOnceAndAllHoldsTheOthers) {
    std::set<std::string> all;
    for (const Case& c : suite("all")) EXPECT_TRUE(all.insert(id_of(c)).second) << id_of(c);
    for (const Suite& s : suites())
        for (const Case& c : suite(s.name == std::string("peers-cpu") ? "all" : s.name))
            EXPECT_TRUE(all.count(id_of(c)) == 1) << s.name << ": " << id_of(c);
    EXPECT_THROW(suite("some"), Error);
    for (const Case& c : suite("quick", {Rule::kda, Dtype::fp16, "forward"})) {
        EXPECT_EQ(c.rule, Rule::kda);
        EXPECT_EQ(c.dtype, Dtype::fp16);
    }
    std::set<std::int64_t> K;
    for (const Case& c : suite("tails")) K.insert(c.K);
    for (const std::int64_t k : {63, 65, 79, 80, 81, 95, 96, 97, 127}) EXPECT_TRUE(K.count(k) == 1) << k;
}

TEST(Cases, TheSameDataPackedOrBatched) {
    for (const RuleRow& row : rules()) {
        const std::string rule = row.name;
        const io::Bundle packed = generate(parse(rule + "/forward/fp32/1,12,1,2,8,8/lengths=6*2/h0=1/5"));
        const io::Bundle batch = generate(parse(rule + "/forward/fp32/2,6,1,2,8,8/h0=1/5"));
        EXPECT_EQ(packed.tensors.size(), batch.tensors.size() + 1) << rule;  // cu_seqlens
        for (const io::Array& array : batch.tensors)
            EXPECT_EQ(packed.find(array.name)->bytes, array.bytes) << rule << " " << array.name;
    }
    const io::Bundle same = generate(parse("gdn/forward/fp32/2,6,1,2,8,8/same=1/h0=1/5"));
    const std::vector<std::byte>& v = same.find("v")->bytes;
    EXPECT_EQ(0, std::memcmp(v.data(), v.data() + v.size() / 2, v.size() / 2));
}

TEST(Cases, VFirstStatesAreTheTransposedStates) {
    const io::Bundle kv = generate(parse("gdn/forward/fp32/2,6,1,2,8,5/h0=1/5"));
    const io::Bundle vk = generate(parse("gdn/forward/fp32/2,6,1,2,8,5/h0=1/layout=vk/5"));
    const Tensor a = kv.find("initial_state")->view(), b = vk.find("initial_state")->view();
    for (std::int64_t i = 0; i < 8; ++i)
        for (std::int64_t j = 0; j < 5; ++j)
            EXPECT_EQ(load_element(a.data, a.dtype, offset_of(a, 1, 1, i, j)),
                      load_element(b.data, b.dtype, offset_of(b, 1, 1, j, i)));
}

struct Refusal {
    const char* what;
    void (*change)(io::Bundle&);
    const char* argument;
    const char* words;
};

TEST(Requests, EveryDefectIsNamedBeforeAnythingRuns) {
    const Refusal refusals[] = {
        {"no rule", [](io::Bundle& b) { b.metadata.erase("rule"); }, "rule", "nothing"},
        {"unknown rule", [](io::Bundle& b) { b.metadata["rule"] = "mamba"; }, "rule", "mamba"},
        {"protocol 2", [](io::Bundle& b) { b.metadata["protocol"] = "2"; }, "protocol", "expected 1"},
        {"pass", [](io::Bundle& b) { b.metadata["pass"] = "backwards"; }, "pass", "forward"},
        {"scale", [](io::Bundle& b) { b.metadata["scale"] = "big"; }, "scale", "a finite number"},
        {"head map", [](io::Bundle& b) { b.metadata["head_map"] = "odd"; }, "head_map", "grouped or tiled"},
        {"no q", [](io::Bundle& b) { b.find("q")->name = "dht"; }, "q", "nothing"},
        {"no beta", [](io::Bundle& b) { b.find("beta")->name = "dht"; }, "beta", "nothing"},
        {"typo", [](io::Bundle& b) { b.find("initial_state")->name = "inital_state"; }, "inital_state", "protocol"},
        {"shape of v",
         [](io::Bundle& b) {
             b.add(io::Array("v", Dtype::fp32, {1, 9, 1, 64}));
         },
         "v", "multiple"},
        {"rank of q",
         [](io::Bundle& b) {
             b.add(io::Array("q", Dtype::fp32, {9, 32}));
         },
         "q", "[B, T, H, K]"},
        {"int q", [](io::Bundle& b) { b.find("q")->dtype = Dtype::int32; }, "q", "int32"},
        {"cu_seqlens end", [](io::Bundle& b) { store_element(b.find("cu_seqlens")->bytes.data(), Dtype::int64, 2, 8); },
         "cu_seqlens[2]", "T = 9"},
        {"cu_seqlens start",
         [](io::Bundle& b) { store_element(b.find("cu_seqlens")->bytes.data(), Dtype::int64, 0, 1); }, "cu_seqlens[0]",
         "expected 0"},
        {"cu_seqlens order",
         [](io::Bundle& b) { store_element(b.find("cu_seqlens")->bytes.data(), Dtype::int64, 1, 12); }, "cu_seqlens[2]",
         "at least"},
        {"g > 0", [](io::Bundle& b) { store_element(b.find("g")->bytes.data(), Dtype::fp32, 3, 0.5); }, "g", "token 1"},
        {"NaN", [](io::Bundle& b) { store_element(b.find("v")->bytes.data(), Dtype::fp32, 7, std::nan("")); }, "v",
         "NaN"},
        {"inf", [](io::Bundle& b) { store_element(b.find("k")->bytes.data(), Dtype::fp32, 7, HUGE_VAL); }, "k", "inf"},
    };
    for (const Refusal& r : refusals) {
        io::Bundle b = generate(parse("gdn/forward/fp32/1,9,2,2,32,32/lengths=5,4/h0=1/1"));
        ASSERT_NO_THROW(validate(b, false));
        r.change(b);
        try {
            validate(b, false);
            ADD_FAILURE() << r.what << ": taken";
        } catch (const Error& e) {
            EXPECT_EQ(e.argument(), r.argument) << r.what << ": " << e.what();
            EXPECT_NE(std::string(e.what()).find(r.words), std::string::npos) << r.what << ": " << e.what();
        }
    }
}

TEST(Requests, MinusInfinityIsALegalGateAndAllowNanTakesTheRest) {
    io::Bundle b = generate(parse("gdn/forward/fp32/1,9,1,2,8,8/gate=spike:-inf/1"));
    EXPECT_NO_THROW(validate(b, false));
    store_element(b.find("v")->bytes.data(), Dtype::fp32, 7, std::nan(""));
    EXPECT_THROW(validate(b, false), Error);
    EXPECT_NO_THROW(validate(b, true));
}

TEST(Requests, OutputsFollowTheMetadata) {
    for (const RuleRow& row : rules()) {
        const io::Bundle b =
            generate(parse(std::string(row.name) + "/forward/bf16/2,9,1,2,8,5/layout=vk/state=fp16/out=fp32/1"));
        const std::vector<OutputSpec> specs = outputs_of(b);
        ASSERT_EQ(specs.size(), 2U) << row.name;
        EXPECT_EQ(specs[0].dtype, Dtype::fp32) << row.name;
        EXPECT_EQ(specs[0].shape, (std::vector<std::int64_t>{2, 9, 2, 5})) << row.name;
        EXPECT_EQ(specs[1].dtype, Dtype::fp16) << row.name;
        EXPECT_EQ(specs[1].shape, (std::vector<std::int64_t>{2, 2, 5, 8})) << row.name;
    }
}

}  // namespace
}  // namespace tidegate::cases
