// The front door: every rule of the contract and its message, number types, names, and what plan() may depend on.
#include <gtest/gtest.h>

#include <set>

#include "problem/normal_form.h"
#include "problem/number.h"
#include "problem/rules.h"
#include "problem_testing.h"

using namespace tidegate;
using test::Good;

namespace {

enum class Base { gdn, kda, logits, kda_logits, packed };

/// B = 2, T = 5, H = 2, HV = 4, K = 8, V = 6; packed: B = 1, lengths 2, 0, 3.
test::Spec spec_of(Base base) {
    test::Spec s;
    s.rule = base == Base::kda || base == Base::kda_logits ? Rule::kda : Rule::gdn;
    s.B = base == Base::packed ? 1 : 2, s.T = 5, s.H = 2, s.HV = 4, s.K = 8, s.V = 6;
    s.logits = base == Base::logits || base == Base::kda_logits;
    if (base == Base::packed) s.lengths = {2, 0, 3};
    return s;
}

struct Rejected {
    Base base;
    const char* what;
    void (*change)(Good&);
    const char* argument;
    std::vector<std::string> words;  ///< that the message holds
};

double nan() { return std::numeric_limits<double>::quiet_NaN(); }

const Rejected kRejected[] = {
    // Presence.
    {Base::gdn, "no q", [](Good& c) { c.p.q = {}; }, "q", {"nothing", "[B, T, H, K]"}},
    {Base::gdn, "no k", [](Good& c) { c.p.k = {}; }, "k", {"nothing", "[B, T, H, K]"}},
    {Base::gdn, "no v", [](Good& c) { c.p.v = {}; }, "v", {"nothing", "[B, T, HV, V]"}},
    {Base::gdn, "no g", [](Good& c) { c.p.g = {}; }, "g", {"neither g nor a", "[B, T, HV]"}},
    {Base::kda, "no g", [](Good& c) { c.p.g = {}; }, "g", {"neither g nor a", "[B, T, HV, K]"}},
    {Base::gdn, "no beta", [](Good& c) { c.p.beta = {}; }, "beta", {"nothing", "[B, T, HV]"}},
    {Base::gdn, "no o", [](Good& c) { c.p.o = {}; }, "o", {"nothing", "[B, T, HV, V]"}},
    {Base::logits, "no A_log", [](Good& c) { c.p.A_log = {}; }, "A_log", {"nothing", "[HV]"}},
    {Base::gdn, "null q", [](Good& c) { c.p.q.data = nullptr; }, "q", {"null pointer", "[2, 5, 2, 8]"}},
    {Base::gdn, "null o", [](Good& c) { c.p.o.data = nullptr; }, "o", {"null pointer"}},
    {Base::packed, "null cu", [](Good& c) { c.p.cu_seqlens.data = nullptr; }, "cu_seqlens", {"null pointer"}},
    // Ranks and shapes.
    {Base::gdn, "rank of q", [](Good& c) { c.p.q.rank = 3; }, "q", {"[2, 5, 2]", "[B, T, H, K]"}},
    {Base::gdn, "rank 6 of q", [](Good& c) { c.p.q.rank = 6; }, "q", {"rank 6"}},
    {Base::gdn, "rank 9 of k", [](Good& c) { c.p.k.rank = 9; }, "k", {"rank 9"}},
    {Base::packed, "rank 9 of cu", [](Good& c) { c.p.cu_seqlens.rank = 9; }, "cu_seqlens", {"rank 9"}},
    {Base::gdn, "rank of v", [](Good& c) { c.p.v.rank = 5; }, "v", {"[B, T, HV, V]"}},
    {Base::gdn, "rank of g", [](Good& c) { c.p.g.rank = 2; }, "g", {"[2, 5]", "[2, 5, 4]"}},
    {Base::gdn, "gate of kda for gdn", [](Good& c) { c.p.rule = Rule::kda; }, "g", {"[2, 5, 4]", "[2, 5, 4, 8]"}},
    {Base::kda, "gate of gdn for kda", [](Good& c) { c.p.rule = Rule::gdn; }, "g", {"[2, 5, 4, 8]", "[2, 5, 4]"}},
    {Base::gdn, "no heads", [](Good& c) { c.p.q.shape[2] = 0; }, "q", {">= 1"}},
    {Base::gdn, "no channels", [](Good& c) { c.p.q.shape[3] = 0; }, "q", {">= 1"}},
    {Base::gdn, "no batch", [](Good& c) { c.p.q.shape[0] = 0; }, "q", {">= 1"}},
    {Base::gdn, "T < 0", [](Good& c) { c.p.q.shape[1] = -1; }, "q", {"extents >= 0"}},
    {Base::gdn, "no columns", [](Good& c) { c.p.v.shape[3] = 0; }, "v", {">= 1"}},
    {Base::gdn, "HV % H", [](Good& c) { c.p.v.shape[2] = 3; }, "v", {"HV = 3", "multiple", "H = 2"}},
    {Base::gdn, "T of k", [](Good& c) { c.p.k.shape[1] = 4; }, "k", {"[2, 4, 2, 8]", "[2, 5, 2, 8]"}},
    {Base::gdn, "heads of k", [](Good& c) { c.p.k.shape[2] = 1; }, "k", {"[2, 5, 1, 8]", "[2, 5, 2, 8]"}},
    {Base::gdn, "T of v", [](Good& c) { c.p.v.shape[1] = 4; }, "v", {"[2, 4, 4, 6]", "[2, 5, 4, 6]"}},
    {Base::gdn, "HV of g", [](Good& c) { c.p.g.shape[2] = 2; }, "g", {"[2, 5, 2]", "[2, 5, 4]"}},
    {Base::gdn, "T of beta", [](Good& c) { c.p.beta.shape[1] = 6; }, "beta", {"[2, 6, 4]", "[2, 5, 4]"}},
    {Base::logits, "T of a", [](Good& c) { c.p.a.shape[1] = 4; }, "a", {"[2, 4, 4]", "[2, 5, 4]"}},
    {Base::logits, "T of b", [](Good& c) { c.p.b.shape[1] = 4; }, "b", {"[2, 4, 4]", "[2, 5, 4]"}},
    {Base::logits, "A_log", [](Good& c) { c.p.A_log.shape[0] = 2; }, "A_log", {"[2]", "[HV] = [4]"}},
    {Base::logits, "dt_bias", [](Good& c) { c.p.dt_bias.shape[0] = 2; }, "dt_bias", {"[2]", "[HV] = [4]"}},
    {Base::kda_logits, "dt_bias", [](Good& c) { c.p.dt_bias.shape[0] = 4; }, "dt_bias", {"[4]", "[HV * K] = [32]"}},
    {Base::gdn,
     "layout of h0",
     [](Good& c) { c.p.state_v_first = true; },
     "initial_state",
     {"[N, HV, V, K]", "[2, 4, 6, 8]", "[2, 4, 8, 6]"}},
    {Base::packed, "N of h0", [](Good& c) { c.p.initial_state.shape[0] = 1; }, "initial_state", {"[3, 4, 8, 6]"}},
    {Base::packed, "N of ht", [](Good& c) { c.p.final_state.shape[0] = 4; }, "final_state", {"[3, 4, 8, 6]"}},
    {Base::gdn, "rank of h0", [](Good& c) { c.p.initial_state.rank = 3; }, "initial_state", {"[2, 4, 8]"}},
    {Base::gdn, "few rows of o", [](Good& c) { c.p.o.shape[1] = 4; }, "o", {"[2, 4, 4, 6]", "[2, 5, 4, 6]"}},
    {Base::gdn, "columns of o", [](Good& c) { c.p.o.shape[3] = 5; }, "o", {"[2, 5, 4, 5]", "[2, 5, 4, 6]"}},
    // Strides of the last dimension.
    {Base::gdn, "stride of q", [](Good& c) { c.p.q.stride[3] = 2; }, "q", {"stride 2", "dense"}},
    {Base::gdn, "stride of k", [](Good& c) { c.p.k.stride[3] = -1; }, "k", {"stride -1", "dense"}},
    {Base::gdn, "stride of v", [](Good& c) { c.p.v.stride[3] = 0; }, "v", {"stride 0", "dense"}},
    {Base::kda, "stride of g", [](Good& c) { c.p.g.stride[3] = 4; }, "g", {"stride 4", "dense"}},
    {Base::gdn, "stride of o", [](Good& c) { c.p.o.stride[3] = 7; }, "o", {"stride 7", "dense"}},
    {Base::gdn, "stride of h0", [](Good& c) { c.p.initial_state.stride[3] = 2; }, "initial_state", {"stride 2"}},
    {Base::gdn, "stride of ht", [](Good& c) { c.p.final_state.stride[3] = 3; }, "final_state", {"stride 3"}},
    // Types and devices.
    {Base::gdn, "fp64 q", [](Good& c) { c.p.q.dtype = Dtype::fp64; }, "q", {"fp64", "fp32, bf16 or fp16"}},
    {Base::gdn, "int32 v", [](Good& c) { c.p.v.dtype = Dtype::int32; }, "v", {"int32", "fp32, bf16 or fp16"}},
    {Base::gdn, "int64 g", [](Good& c) { c.p.g.dtype = Dtype::int64; }, "g", {"int64"}},
    {Base::logits, "fp64 A_log", [](Good& c) { c.p.A_log.dtype = Dtype::fp64; }, "A_log", {"fp64"}},
    {Base::logits, "fp64 dt_bias", [](Good& c) { c.p.dt_bias.dtype = Dtype::fp64; }, "dt_bias", {"fp64"}},
    {Base::gdn, "int64 o", [](Good& c) { c.p.o.dtype = Dtype::int64; }, "o", {"int64"}},
    {Base::gdn, "fp64 ht", [](Good& c) { c.p.final_state.dtype = Dtype::fp64; }, "final_state", {"fp64"}},
    {Base::packed, "fp32 cu", [](Good& c) { c.p.cu_seqlens.dtype = Dtype::fp32; }, "cu_seqlens", {"fp32", "int64"}},
    {Base::gdn, "cuda q", [](Good& c) { c.p.q.device = Device::cuda; }, "k", {"CPU tensor", "CUDA", "as q is"}},
    {Base::gdn, "cuda ht", [](Good& c) { c.p.final_state.device = Device::cuda; }, "final_state", {"CUDA", "CPU"}},
    {Base::packed, "cuda cu", [](Good& c) { c.p.cu_seqlens.device = Device::cuda; }, "cu_seqlens", {"CUDA", "CPU"}},
    // Packed sequences.
    {Base::packed, "cu too short", [](Good& c) { c.lengths({0}); }, "cu_seqlens", {"[1]", "[N + 1]", "N >= 1"}},
    {Base::packed, "rank of cu", [](Good& c) { c.p.cu_seqlens.rank = 2; }, "cu_seqlens", {"[N + 1]"}},
    {Base::gdn,
     "B = 2",
     [](Good& c) {
         c.lengths({0, 5});
     },
     "cu_seqlens",
     {"B = 2", "B = 1"}},
    {Base::packed,
     "from 1",
     [](Good& c) {
         c.lengths({1, 2, 2, 5});
     },
     "cu_seqlens[0]",
     {"given 1", "expected 0"}},
    {Base::packed,
     "decreasing",
     [](Good& c) {
         c.lengths({0, 3, 2, 5});
     },
     "cu_seqlens[2]",
     {"given 2", "[1] = 3"}},
    {Base::packed,
     "negative",
     [](Good& c) {
         c.lengths({0, -1, 2, 5});
     },
     "cu_seqlens[1]",
     {"given -1"}},
    {Base::packed,
     "not covering",
     [](Good& c) {
         c.lengths({0, 2, 2, 4});
     },
     "cu_seqlens[3]",
     {"given 4", "T = 5"}},
    {Base::packed,
     "past the end",
     [](Good& c) {
         c.lengths({0, 2, 2, 6});
     },
     "cu_seqlens[3]",
     {"given 6", "T = 5"}},
    {Base::packed,
     "past, then back",
     [](Good& c) {
         c.lengths({0, 9, 9, 5});
     },
     "cu_seqlens[3]",
     {"given 5"}},
    {Base::packed,
     "int32 decreasing",
     [](Good& c) { c.cu32[1] = 3, c.p.cu_seqlens = dense(c.cu32.data(), Dtype::int32, {4}); },
     "cu_seqlens[2]",
     {"given 2", "= 3"}},
    {Base::packed,
     "int64 beyond int32",
     [](Good& c) {
         c.lengths({0, 2, 2, (std::int64_t{1} << 32) + 5});
     },
     "cu_seqlens[3]",
     {"given 4294967301"}},
    // Front ends and options.
    {Base::logits, "g and a", [](Good& c) { c.p.g = c.p.a; }, "g", {"both g and a"}},
    {Base::logits, "beta and b", [](Good& c) { c.p.beta = c.p.b; }, "beta", {"both beta and b"}},
    {Base::gdn, "A_log alone", [](Good& c) { c.p.A_log = c.p.beta; }, "A_log", {"without a"}},
    {Base::gdn, "dt_bias alone", [](Good& c) { c.p.dt_bias = c.p.g; }, "dt_bias", {"without a"}},
    {Base::gdn, "scale inf", [](Good& c) { c.p.scale = HUGE_VAL; }, "scale", {"inf", "finite"}},
    {Base::gdn, "scale NaN", [](Good& c) { c.p.scale = nan(); }, "scale", {"nan", "finite"}},
    {Base::logits,
     "lower_bound -6",
     [](Good& c) { c.p.gate_form = GateForm::bounded, c.p.lower_bound = -6; },
     "lower_bound",
     {"-6", "[-5, 0)"}},
    {Base::logits,
     "lower_bound 0",
     [](Good& c) { c.p.gate_form = GateForm::bounded, c.p.lower_bound = 0; },
     "lower_bound",
     {"0", "[-5, 0)"}},
    {Base::logits,
     "lower_bound NaN",
     [](Good& c) { c.p.gate_form = GateForm::bounded, c.p.lower_bound = nan(); },
     "lower_bound",
     {"nan", "[-5, 0)"}},
    {Base::gdn, "gate_min 0.5", [](Good& c) { c.p.gate_min = 0.5; }, "gate_min", {"0.5", "<= 0"}},
    {Base::gdn, "gate_min NaN", [](Good& c) { c.p.gate_min = nan(); }, "gate_min", {"nan", "<= 0"}},
    {Base::gdn, "neg, no b", [](Good& c) { c.p.allow_neg_eigval = true; }, "allow_neg_eigval", {"beta", "b"}},
    {Base::gdn, "no rule", [](Good& c) { c.p.rule = static_cast<Rule>(77); }, "rule", {"77"}},
    // Values.
    {Base::gdn,
     "g > 0",
     [](Good& c) {
         c.p.check_values = true;
         store_element(c.p.g.data, Dtype::fp32, offset_of(c.p.g, 1, 3, 2), 0.5);
     },
     "g",
     {"0.5", "batch 1", "token 3", "head 2"}},
    {Base::kda,
     "g > 0 in a channel",
     [](Good& c) {
         c.p.check_values = true;
         store_element(c.p.g.data, Dtype::fp32, offset_of(c.p.g, 1, 0, 3, 7), 1e-30);
     },
     "g",
     {"batch 1", "token 0", "head 3", "channel 7"}},
    // Outputs that share memory.
    {Base::gdn, "o is v", [](Good& c) { c.p.v.data = c.p.o.data; }, "o", {"overlaps v"}},
    {Base::gdn,
     "o ends in q",
     [](Good& c) { c.p.q.data = static_cast<float*>(c.p.o.data) + 239; },
     "o",
     {"overlaps q"}},
    {Base::gdn, "ht in beta", [](Good& c) { c.p.beta.data = c.p.final_state.data; }, "final_state", {"overlaps beta"}},
    {Base::gdn, "o is ht", [](Good& c) { c.p.o.data = c.p.final_state.data; }, "o", {"overlaps final_state"}},
    {Base::gdn, "o is h0", [](Good& c) { c.p.o.data = c.p.initial_state.data; }, "o", {"overlaps initial_state"}},
    {Base::gdn,
     "ht is h0, one row on",
     [](Good& c) { c.p.initial_state.data = static_cast<float*>(c.p.final_state.data) + 6; },
     "final_state",
     {"partly overlaps initial_state"}},
    {Base::gdn, "stride 0 of o", [](Good& c) { c.p.o.stride[1] = 0; }, "o", {"two indices"}},
    {Base::gdn, "stride 0 of ht", [](Good& c) { c.p.final_state.stride[0] = 0; }, "final_state", {"two indices"}},
    {Base::gdn, "negative rank", [](Good& c) { c.p.final_state.rank = -1; }, "final_state", {"rank -1"}},
    {Base::gdn, "unknown dtype", [](Good& c) { c.p.q.dtype = static_cast<Dtype>(77); }, "q", {"unknown dtype"}},
    {Base::gdn, "rows of o that overlap", [](Good& c) { c.p.o.stride[1] = 1; }, "o", {"two indices"}},
    {Base::gdn,
     "negative strides reach v",
     [](Good& c) {
         const std::int64_t T = c.p.o.stride[1];
         c.p.o.stride[1] = -T, c.p.o.data = static_cast<float*>(c.p.o.data) + 4 * T;
         c.p.v.data = static_cast<float*>(c.p.o.data) - 4 * T;
     },
     "o",
     {"overlaps v"}},
};

}  // namespace

TEST(CheckTest, RejectsEveryBreachByNameAndWritesNothing) {
    for (const Rejected& row : kRejected) {
        SCOPED_TRACE(row.what);
        Good c(spec_of(row.base));
        ASSERT_NO_THROW(plan(c.p)) << "the call is good before the change";
        row.change(c);
        test::expect_rejected(c, row.argument, row.words);
    }
}

TEST(CheckTest, AcceptsWhatTheContractAllows) {
    const std::pair<Base, void (*)(Good&)> allowed[] = {
        {Base::gdn, [](Good& c) { c.p.final_state = {}, c.p.initial_state = {}; }},
        {Base::gdn, [](Good& c) { c.p.check_values = true; }},
        {Base::gdn, [](Good& c) { c.p.final_state = c.p.initial_state; }},  // in place
        {Base::gdn, [](Good& c) { c.p.q = c.p.k; }},
        {Base::gdn,
         [](Good& c) {
             c.p.beta.stride = {0, 0, 0};
         }},  // an input may repeat itself
        {Base::gdn, [](Good& c) { c.p.gate_min = 0, c.p.scale = 0; }},
        {Base::gdn, [](Good& c) { c.p.lower_bound = 7; }},  // of a form that is not in use
        {Base::logits, [](Good& c) { c.p.dt_bias = {}, c.p.allow_neg_eigval = true; }},
        {Base::logits, [](Good& c) { c.p.gate_form = GateForm::bounded; }},
        {Base::kda_logits, [](Good& c) { c.p.gate_form = GateForm::bounded, c.p.lower_bound = -1e-3; }},
        {Base::packed, [](Good& c) { c.p.cu_seqlens = dense(c.cu32.data(), Dtype::int32, {4}); }},
        {Base::packed,
         [](Good& c) {
             c.lengths({0, 0, 0, 5});
         }},
    };
    for (const auto& [base, change] : allowed) {
        Good c(spec_of(base));
        change(c);
        EXPECT_NO_THROW(forward(c.p)) << "row " << (&change - &allowed[0].second);
    }
}

TEST(CheckTest, PositiveGateFlowsUnlessValuesAreChecked) {
    Good c(spec_of(Base::gdn));
    store_element(c.p.g.data, Dtype::fp32, 0, 0.5);
    EXPECT_NO_THROW(forward(c.p));
    for (const double x : test::values(c.p.o)) EXPECT_TRUE(std::isfinite(x));
}

TEST(RuleTest, NamesGoBothWaysAndErrorsListThem) {
    for (const RuleRow& row : rules()) {
        EXPECT_EQ(rule_from(row.name), row.rule);
        EXPECT_STREQ(name_of(row.rule), row.name);
    }
    for (const char* name : {"", "GDN", "gdn ", "mamba"}) try {
            rule_from(name);
            ADD_FAILURE() << name;
        } catch (const Error& e) {
            EXPECT_EQ(e.argument(), "rule");
            const std::string message = e.what();
            for (const std::string& word : {"'" + std::string(name) + "'", std::string("gdn"), std::string("kda")})
                EXPECT_NE(message.find(word), std::string::npos) << message;
        }
}

// ---- numbers -------------------------------------------------------------------------------------------------------

class NumberTest : public ::testing::TestWithParam<Dtype> {
protected:
    // Eight bytes, so that the compiler sees no branch of load_element leave its object.
    static double decode(std::uint16_t h) {
        alignas(8) const std::uint16_t at[4] = {h};
        return load_element(at, GetParam(), 0);
    }
    static std::uint16_t encode(double x) {
        alignas(8) std::uint16_t at[4] = {0x5555};
        store_element(at, GetParam(), 0, x);
        return at[0];
    }
    /// round_to and storing agree on what x becomes, and so does -x.
    static void expect_rounds(double x, double to) {
        ASSERT_EQ(round_to(x, GetParam()), to) << x;
        ASSERT_EQ(decode(encode(x)), to) << x;
        ASSERT_EQ(round_to(-x, GetParam()), -to) << -x;
        ASSERT_EQ(decode(encode(-x)), -to) << -x;
        ASSERT_TRUE(std::signbit(round_to(-x, GetParam())) && std::signbit(decode(encode(-x)))) << -x;
    }
};
INSTANTIATE_TEST_SUITE_P(, NumberTest, ::testing::Values(Dtype::bf16, Dtype::fp16));

TEST_P(NumberTest, EveryBitPatternSurvives) {
    const std::uint16_t inf = GetParam() == Dtype::bf16 ? 0x7F80 : 0x7C00;
    for (unsigned bits = 0; bits < 65536; ++bits) {
        const auto h = static_cast<std::uint16_t>(bits);
        const double x = decode(h);
        ASSERT_EQ(std::isnan(x), (h & 0x7FFF) > inf) << bits;
        ASSERT_EQ(std::isinf(x), (h & 0x7FFF) == inf) << bits;
        if (std::isnan(x)) {
            ASSERT_TRUE(std::isnan(decode(encode(x))) && std::isnan(round_to(x, GetParam()))) << bits;
        } else {
            ASSERT_EQ(encode(x), h);
            ASSERT_EQ(round_to(x, GetParam()), x);
        }
    }
}

TEST_P(NumberTest, RoundsToTheNearestNeighbourAndTiesToEven) {
    const std::uint16_t inf = GetParam() == Dtype::bf16 ? 0x7F80 : 0x7C00;
    for (std::uint16_t h = 0; h < inf; ++h) {
        const auto up = static_cast<std::uint16_t>(h + 1);
        const double low = decode(h),
                     gap = h + 1 == inf ? low - decode(static_cast<std::uint16_t>(h - 1)) : decode(up) - low;
        const double middle = low + gap / 2, high = h + 1 == inf ? HUGE_VAL : low + gap;
        expect_rounds(middle, h % 2 == 0 ? low : high);
        expect_rounds(std::nextafter(middle, 0), low);
        expect_rounds(std::nextafter(middle, HUGE_VAL), high);
        ASSERT_EQ(ulp(low, GetParam()), gap) << low;
        ASSERT_EQ(ulp(-std::nextafter(low + gap, 0), GetParam()), gap) << low;
    }
    expect_rounds(1e300, HUGE_VAL);
    expect_rounds(5e-324, 0);
}
