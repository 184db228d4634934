// Properties: they hold for our kernels bit for bit, and each finds the subject made to break it.
#include "judge/properties.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "cases/pieces.h"
#include "cases/request.h"
#include "cases/suite.h"
#include "cpu/kernels.h"
#include "problem/number.h"
#include "subjects/in_process.h"

namespace tidegate::judge {
namespace {

io::Bundle request_of(const std::string& id) { return cases::generate(cases::parse(id)); }

/// The CPU subject with a change to what it is asked, or to what it answers.
class Changed : public subjects::Subject {
public:
    using Change = std::function<void(const io::Bundle& request, io::Bundle& answer)>;
    explicit Changed(Change change) : change_(std::move(change)) {}
    std::string name() const override { return "changed"; }
    subjects::Outcome answer(const io::Bundle& request) override {
        subjects::Outcome out = cpu_->answer(request);
        change_(request, out.answer);
        return out;
    }

private:
    std::unique_ptr<subjects::Subject> cpu_ = subjects::make_cpu(1);
    Change change_;
};

std::map<std::string, PropertyResult> results_of(subjects::Subject& subject, const io::Bundle& request,
                                                 bool strict = false) {
    const Bench bench(request, {}, gate_from("derived"));
    const subjects::Outcome base = subject.answer(request);
    std::map<std::string, PropertyResult> results;
    for (const PropertyResult& r : try_properties(bench, subject, base, strict)) results[r.name] = r;
    return results;
}

const char* const kTail = "/forward/fp32/1,150,2,4,24,40/lengths=70,0,80/h0=1/3";
const std::string kPacked = std::string("gdn") + kTail;

TEST(Properties, HoldBitForBitOnCpuOnEveryInstructionSetWithOneToFourThreads) {
    int round = 0;
    for (const std::string& isa : cpu::available_isas()) {
        cpu::force_isa(isa);
        for (const cases::Case& c : cases::suite("quick")) {
            const auto subject = subjects::make_cpu(1 + round++ % 4);
            for (const auto& [name, r] : results_of(*subject, cases::generate(c), true))
                EXPECT_TRUE(r.verdict == Verdict::pass || r.verdict == Verdict::skipped)
                    << isa << " " << cases::id_of(c) << " " << name << ": " << r.where;
        }
    }
    cpu::force_isa("");
}

TEST(Properties, AreAllTriedOnACaseThatHasRoomForThem) {
    const auto subject = subjects::make_cpu(2);
    for (const RuleRow& row : rules())
        for (const auto& [name, r] : results_of(*subject, request_of(row.name + std::string(kTail)))) {
            EXPECT_EQ(r.verdict, Verdict::pass) << row.name << " " << name << ": " << r.where;
            EXPECT_TRUE(r.bit_for_bit) << row.name << " " << name;
        }
}

/// Element (token, head 0, channel 0) of o times `factor`.
void scale_row(io::Bundle& answer, std::int64_t token, double factor) {
    const Tensor o = answer.find("o")->view();
    if (token >= o.shape[1]) return;
    const std::int64_t at = offset_of(o, 0, token, 0);
    store_element(o.data, o.dtype, at, load_element(o.data, o.dtype, at) * factor + (factor - 1));
}

struct Break {
    const char* property;
    Changed::Change change;
};

TEST(Properties, FindTheSubjectThatBreaksThem) {
    int calls = 0;
    const Break breaks[] = {
        {"repeatable", [&calls](const io::Bundle&, io::Bundle& a) { scale_row(a, 3, 1 + 0.01 * calls++); }},
        {"packed",
         [](const io::Bundle& r, io::Bundle& a) { scale_row(a, 3, r.find("cu_seqlens") != nullptr ? 1.0 : 1.1); }},
        {"causal",
         [](const io::Bundle& r, io::Bundle& a) {
             const Tensor v = r.find("v")->view();  // the first token sees the last of the batch
             if (v.shape[1] == 0) return;
             scale_row(a, 0, 1 + 0.1 * load_element(v.data, v.dtype, offset_of(v, 0, v.shape[1] - 1, 0)));
         }},
        {"resumable",
         [](const io::Bundle& r, io::Bundle& a) {
             if (r.find("v")->shape[1] < 100) scale_row(a, 5, 1.1);  // only the rest of a cut call is this short
         }},
        {"isolated",
         [](const io::Bundle& r, io::Bundle& a) {
             const io::Array& v = *r.find("v");
             for (std::int64_t i = 0; i < v.size(); ++i)
                 if (!std::isfinite(load_element(v.bytes.data(), v.dtype, i)))
                     scale_row(a, v.shape[1] - 1, std::nan(""));
         }},
        {"padded",
         [](const io::Bundle& r, io::Bundle& a) { scale_row(a, 4, r.find("q")->shape[3] == 24 ? 1.0 : 1.1); }},
    };
    for (const Break& b : breaks) {
        Changed subject(b.change);
        const auto results = results_of(subject, request_of(kPacked));
        EXPECT_EQ(results.at(b.property).verdict, Verdict::fail) << b.property;
        EXPECT_NE(results.at(b.property).where.find("first at seq"), std::string::npos) << results.at(b.property).where;
    }
}

TEST(Properties, AreAskedWithinTheGateUnlessClaimedOrDemanded) {
    // One ulp that depends on the packing: within the gate, not bit for bit.
    Changed subject([](const io::Bundle& r, io::Bundle& a) {
        a.metadata.erase("bit_exact");
        if (r.find("cu_seqlens") == nullptr) scale_row(a, 3, 1 + 0x1p-23);
    });
    const io::Bundle request = request_of(kPacked);
    EXPECT_EQ(results_of(subject, request).at("packed").verdict, Verdict::pass);
    EXPECT_FALSE(results_of(subject, request).at("packed").bit_for_bit);
    EXPECT_EQ(results_of(subject, request, true).at("packed").verdict, Verdict::fail);
}

TEST(Properties, ACrashInAVariationIsItsVerdict) {
    class Crashes : public subjects::Subject {
    public:
        std::string name() const override { return "crashes"; }
        subjects::Outcome answer(const io::Bundle& request) override {
            subjects::Outcome out = cpu_->answer(request);
            if (calls_++ > 0) out.status = subjects::Status::crashed;
            return out;
        }

    private:
        std::unique_ptr<subjects::Subject> cpu_ = subjects::make_cpu(1);
        int calls_ = 0;
    } subject;
    EXPECT_EQ(results_of(subject, request_of(kPacked)).at("repeatable").verdict, Verdict::crashed);
}

TEST(Pieces, SelectKeepsRowsAndStates) {
    const io::Bundle request = request_of("kda/forward/bf16/1,12,1,2,8,8/lengths=5,0,7/h0=1/gates=logits/1");
    const NormalForm nf = cases::form_of(cases::bind(request));
    const io::Bundle one = cases::select(request, nf, {{2, 2, 6}});
    ASSERT_EQ(one.find("cu_seqlens"), nullptr);
    const Tensor from = request.find("a")->view(), to = one.find("a")->view();
    ASSERT_EQ(to.shape[1], 4);
    for (std::int64_t t = 0; t < 4; ++t)
        EXPECT_EQ(load_element(from.data, from.dtype, offset_of(from, 0, 7 + t, 1, 3)),
                  load_element(to.data, to.dtype, offset_of(to, 0, t, 1, 3)));
    const Tensor h0 = request.find("initial_state")->view(), h = one.find("initial_state")->view();
    EXPECT_EQ(load_element(h0.data, h0.dtype, offset_of(h0, 2, 1, 4, 5)),
              load_element(h.data, h.dtype, offset_of(h, 0, 1, 4, 5)));
    EXPECT_EQ(*reinterpret_cast<const std::int64_t*>(
                  cases::select(request, nf, {{0, 0, 5}, {2, 0, 7}}).find("cu_seqlens")->bytes.data()),
              0);
}

// Every row of a tensor by token, steps of a token included, goes where its token goes.
TEST(Pieces, SelectKeepsRowsOfEveryRule) {
    for (const RuleRow& row : rules()) {
        const io::Bundle request =
            request_of(row.name + std::string("/forward/fp32/1,12,1,2,8,6/lengths=5,0,7/h0=1/1"));
        const NormalForm nf = cases::form_of(cases::bind(request));
        const io::Bundle two = cases::select(request, nf, {{2, 2, 6}, {0, 1, 3}});
        for (const io::Array& array : request.tensors) {
            const std::string& name = array.name;
            ASSERT_NE(two.find(name), nullptr) << row.name << " " << name;
            if (name == "initial_state" || name == "cu_seqlens") continue;
            const std::int64_t n = row.householder && (name == "k" || name == "v" || name == "beta") ? 2 : 1;
            const Tensor from = array.view(), to = two.find(name)->view();
            ASSERT_EQ(from.shape[1], 12 * n) << row.name << " " << name;
            ASSERT_EQ(to.shape[1], 6 * n) << row.name << " " << name;
            const std::int64_t head = from.shape[2] - 1, last = from.rank == 4 ? from.shape[3] - 1 : 0;
            for (std::int64_t r = 0; r < 6 * n; ++r) {
                const std::int64_t was = r < 4 * n ? 7 * n + r : n + r - 4 * n;
                EXPECT_EQ(load_element(from.data, from.dtype, offset_of(from, 0, was, head) + last),
                          load_element(to.data, to.dtype, offset_of(to, 0, r, head) + last))
                    << row.name << " " << name << " " << r;
            }
        }
    }
}

}  // namespace
}  // namespace tidegate::judge
