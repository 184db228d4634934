// The CPU backend against the oracle: every case of the suites, free and multi-step normal forms, strides, large
// offsets, on every instruction set. TIDEGATE_LONG=1 runs every case on all of them.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <deque>
#include <optional>

#include "brute_force.h"
#include "cases/request.h"
#include "cases/suite.h"
#include "plan/cpu_plan.h"
#include "problem/load.h"
#include "reference/recurrence.h"
#include "testing.h"
#include "tidegate/error.h"

using namespace tidegate;
using test::Owned;
using test::Sizes;

namespace {

/// fp32: twenty roundings of a sum of random signs; 16-bit: half an ulp of the output and some.
double tolerance(Dtype dtype) { return dtype == Dtype::bf16 ? 3e-3 : dtype == Dtype::fp16 ? 4e-4 : 5e-6; }

/// "" when `got` is `want` rounded to its dtype, up to nrmse over every block of `block` values; elements that are inf
/// or NaN in one must be so in the other.
/// Where `terms` are given, they are what a block's errors are measured by: a sum may cancel.
std::string mismatch(const Tensor& got, const std::vector<double>& want, std::int64_t block, double factor = 1,
                     const std::vector<double>* terms = nullptr) {
    const std::vector<double> x = test::values(got);
    if (x.size() != want.size()) return "sizes differ";
    double error = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double y = round_to(want[i], got.dtype);
        if (std::isfinite(x[i]) != std::isfinite(y))
            return "element " + std::to_string(i) + ": " + std::to_string(x[i]) + ", oracle " + std::to_string(want[i]);
        if (std::isfinite(y)) {
            error += (x[i] - want[i]) * (x[i] - want[i]);
            const double by = terms != nullptr ? (*terms)[i] : want[i];
            size += by * by;
        }
        if ((i + 1) % static_cast<std::size_t>(block) != 0) continue;
        const double floor = ulp(0, got.dtype);  // results may be subnormal
        const double nrmse = std::sqrt(error / std::max(size, 1e-300));
        if (!(nrmse <= factor * tolerance(got.dtype)) &&
            std::sqrt(error) > floor * std::sqrt(static_cast<double>(block)))
            return "block " + std::to_string(i / static_cast<std::size_t>(block)) + ": nrmse " + std::to_string(nrmse);
        error = size = 0;
    }
    return "";
}

/// All outputs together; and, so that no error hides behind larger values, every token's and every head's state. A
/// token may see more: where the decay has emptied the state, its output is k.q times v, and k.q may cancel.
/// So may what several Householder steps leave of a state: there the terms decide.
void expect_answer(const NormalForm& nf, const reference::Answer& want, const char* what) {
    const Tensor o = test::narrow(nf.o, 1, 0, nf.tokens);
    EXPECT_EQ(mismatch(o, want.o, std::max<std::int64_t>(o.size(), 1)), "") << what << ": o";
    EXPECT_EQ(mismatch(o, want.o, nf.value_heads * nf.V, 10), "") << what << ": tokens of o";
    if (nf.final_state.present()) {
        reference::Answer terms(nf);
        if (nf.steps > 1) reference::recurrence<double>(nf, {}, &terms);
        EXPECT_EQ(
            mismatch(nf.final_state, want.final_state, nf.K * nf.V, 1, nf.steps > 1 ? &terms.final_state : nullptr), "")
            << what << ": final_state";
    }
}

void expect_forward(const Forward& p, const reference::Answer& want, int threads, const char* what) {
    for (const Tensor* t : {&p.o, &p.final_state})
        test::each(*t, [&](std::int64_t at) { store_element(t->data, t->dtype, at, 12345); });
    forward(p, {threads});
    expect_answer(lower(p), want, what);
}

class SuiteTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, SuiteTest, ::testing::Values("tails", "gates", "varlen", "states", "field"));

/// A way to lay a tensor out: its first three dimensions innermost first, gaps behind each, signs of their strides.
struct Layout {
    const char* what;
    std::array<std::size_t, 3> order;
    std::int64_t gap;
    std::array<std::int64_t, 3> sign;

    Owned tensor(const Tensor& like) const {
        const Sizes shape(like.shape.begin(), like.shape.begin() + like.rank);
        Sizes stride(shape.size(), 1);
        std::int64_t step = shape.size() == 4 ? shape[3] + gap : 1;
        for (const std::size_t d : order) {
            stride[d] = sign[d] * step;
            step = step * shape[d] + gap;
        }
        return {like.dtype, shape, stride};
    }
};

/// Random data of a rule in another layout: the same bits out.
void expect_strided(Rule rule, bool logits, const Layout& layout) {
    test::Spec spec;
    spec.rule = rule, spec.logits = logits;
    spec.B = 2, spec.T = 3, spec.H = 2, spec.HV = 4, spec.K = 9, spec.V = 7;
    const test::Problem plain(spec);
    Forward p = plain.view();
    const test::Result want = test::run(p);
    std::vector<Tensor*> inputs = test::of_rows(p);
    inputs.push_back(&p.initial_state);
    std::deque<Owned> memory;
    for (Tensor* t : inputs) {
        if (!t->present()) continue;
        memory.push_back(layout.tensor(*t));
        test::copy(*t, memory.back().view());
        *t = memory.back().view();
    }
    const Owned o = layout.tensor(want.o.view()), ht = layout.tensor(want.state.view());
    p.o = o.view(), p.final_state = ht.view();
    forward(p, {2});
    EXPECT_EQ(test::difference(o.view(), want.o.view()), "") << name_of(rule) << ", " << layout.what;
    EXPECT_EQ(test::difference(ht.view(), want.state.view()), "") << name_of(rule) << ", " << layout.what;
    EXPECT_TRUE(o.intact_outside(o.view()) && ht.intact_outside(ht.view())) << name_of(rule) << ", " << layout.what;
}

/// A normal form, most of which no rule of today lowers to, with random tensors.
struct Form {
    NormalForm nf;
    std::vector<std::unique_ptr<Owned>> owned;

    Tensor tensor(const Sizes& shape, double size, bool positive = false, Dtype dtype = Dtype::fp32) {
        owned.push_back(std::make_unique<Owned>(dtype, shape, test::gapped(shape, 3)));
        const cases::Random random(owned.size(), 5);
        owned.back()->fill([&](std::int64_t n) {
            const double x = random.uniform(static_cast<std::uint64_t>(n));
            return size * (positive ? x : 2 * x - 1);
        });
        return owned.back()->view();
    }

    Form(std::int64_t steps, bool tied, Decay decay, std::int64_t K, std::int64_t V, bool vector_strengths) {
        const std::int64_t B = 2, T = 19, H = 2, HV = 4;
        const double unit = 1 / std::sqrt(static_cast<double>(K));
        nf.batch = nf.sequences = B, nf.tokens = T, nf.key_heads = H, nf.value_heads = HV, nf.K = K, nf.V = V;
        nf.steps = steps, nf.tied = tied, nf.scale = 0.7;
        nf.q = tensor({B, T, H, K}, unit);
        nf.k = tensor({B, T * steps, H, K}, unit);
        nf.v = tensor({B, T * steps, HV, V}, 1);
        nf.gate.decay = decay;
        if (decay == Decay::scalar) nf.gate.x = tensor({B, T, HV}, -1, true);
        if (decay == Decay::vector) nf.gate.x = tensor({B, T, HV, K}, -1, true);
        if (!tied) nf.a = tensor({B, T, HV, K}, unit), nf.b = tensor({B, T, HV, K}, unit);
        if (tied) {
            nf.erase.kind = nf.write.kind = StrengthKind::given;
            nf.erase.vector = nf.write.vector = vector_strengths;
            nf.erase.x =
                vector_strengths ? tensor({B, T * steps, HV, K}, 1, true) : tensor({B, T * steps, HV}, 1, true);
            nf.write.x = vector_strengths ? tensor({B, T * steps, HV, V}, 1, true) : nf.erase.x;
        }
        nf.initial_state = tensor({B, HV, K, V}, 1);
        owned.push_back(
            std::make_unique<Owned>(Dtype::fp32, Sizes{B, T + 1, HV, V}, test::gapped({B, T + 1, HV, V}, 3)));
        nf.o = owned.back()->view();
        nf.final_state = tensor({B, HV, K, V}, 9);
    }

    void expect_right(const std::string& what) {
        const auto want = reference::recurrence<double>(nf);
        for (const int threads : {1, 3}) {
            cpu::run(nf, plan_cpu(nf, cpu::this_machine(), {threads}));
            expect_answer(nf, want, what.c_str());
        }
        EXPECT_TRUE(owned[owned.size() - 2]->intact_outside(test::narrow(nf.o, 1, 0, nf.tokens))) << what;
    }
};

}  // namespace

TEST_P(SuiteTest, AgreesWithTheOracle) {
    const bool all = std::getenv("TIDEGATE_LONG") != nullptr;
    const auto isas = cpu::available_isas();
    std::size_t number = 0, calls = 0;
    test::on_every_isa([] {});
    for (const cases::Case& c : cases::suite(GetParam())) {
        const std::string id = cases::id_of(c);
        const io::Bundle request = cases::generate(c);
        io::Bundle answer = cases::empty_answer(request);
        Forward p = std::get<Forward>(cases::bind(request));
        p.o = answer.find("o")->view();
        p.final_state = answer.find("final_state")->view();
        const auto want = reference::recurrence<double>(lower(p));
        ++number;
        for (std::size_t i = 0; i < isas.size(); ++i) {
            if (!all && (number + i) % 2 != 0) continue;  // half of the instruction sets, in turn
            cpu::force_isa(isas[i]);
            ASSERT_EQ(cpu::current_isa(), isas[i]);
            const int threads = 1 + static_cast<int>((number + number / 4 + i) % 4);
            expect_forward(p, want, threads, (id + " on " + isas[i]).c_str());
            ++calls;
        }
    }
    cpu::force_isa("");
    EXPECT_GT(number, 50u);
    EXPECT_GE(calls, number);
}

// The contract's table row by row, without the library's loading and lowering, which the oracle shares.
TEST(FormulaTest, AgreesWithTheTextOfTheContract) {
    for (const Rule rule : test::every_rule())
        for (unsigned bits = 0; bits < 64; ++bits) {
            test::Spec spec;
            spec.rule = rule, spec.B = 2, spec.T = 5, spec.H = 2, spec.HV = 4, spec.K = 5, spec.V = 3;
            spec.seed = bits, spec.steps = 1 + bits % 3;
            spec.logits = (bits & 1) != 0, spec.l2norm = (bits & 2) != 0, spec.v_first = (bits & 4) != 0;
            const test::Problem problem(spec);
            Forward p = problem.view();
            if ((bits & 8) != 0) p.head_map = HeadMap::tiled;
            if ((bits & 16) != 0) p.gate_min = -0.4, p.scale = 1.25;
            if ((bits & 32) != 0) p.gate_form = GateForm::bounded, p.lower_bound = -2;
            if ((bits & 32) != 0) p.allow_neg_eigval = p.b.present();
            const test::Result got = test::run(p);
            const brute::Answer want = brute::answer(p);
            const Tensor state = got.state.view();
            std::vector<double> h;
            for (std::int64_t n = 0; n < 2 * 4 * 5 * 3; ++n) {
                const std::int64_t i = n / 3 % 5, j = n % 3;
                const std::int64_t at =
                    offset_of(state, n / 60, n / 15 % 4, spec.v_first ? j : i, spec.v_first ? i : j);
                h.push_back(load_element(state.data, state.dtype, at));
            }
            EXPECT_LE(brute::apart(test::values(got.o.view()), want.o), 3e-6) << name_of(rule) << ", options " << bits;
            EXPECT_LE(brute::apart(h, want.final_state), 3e-6) << name_of(rule) << ", options " << bits;
        }
}

TEST(CpuTest, AnySizes) {
    test::on_every_isa([] {
        for (const std::pair<std::int64_t, std::int64_t>& size : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                                                  {300, 300},
                                                                  {300, 5},
                                                                  {3, 300},
                                                                  {513, 33},
                                                                  {1, 1000},
                                                                  {1000, 1}})
            for (const Rule rule : test::every_rule()) {
                test::Spec spec;
                spec.rule = rule, spec.T = 6, spec.HV = 2, spec.K = size.first, spec.V = size.second, spec.gap = 1;
                const test::Problem problem(spec);
                Forward p = problem.view();
                const Owned o(Dtype::fp32, {1, 6, 2, spec.V}), ht(Dtype::fp32, problem.state_shape());
                p.o = o.view(), p.final_state = ht.view();
                const std::string what = std::string(name_of(rule)) + " " + shape_text(p.initial_state);
                expect_forward(p, reference::recurrence<double>(lower(p)), 2, what.c_str());
            }
    });
}

TEST(CpuTest, AnyStrides) {
    test::on_every_isa([] {
        for (const Rule rule : test::every_rule())
            for (const bool logits : {false, true}) {
                expect_strided(rule, logits, {"odd gaps", {2, 1, 0}, 7, {1, 1, 1}});
                expect_strided(rule, logits, {"negative", {2, 1, 0}, 0, {-1, -1, -1}});
                expect_strided(rule, logits, {"dimensions in another order", {0, 1, 2}, 0, {1, 1, 1}});
                expect_strided(rule, logits, {"mixed", {0, 2, 1}, 3, {1, -1, 1}});
            }
    });
}

TEST(NormalFormTest, FreeFormsAndSeveralStepsAToken) {
    test::on_every_isa([] {
        for (const Decay decay : {Decay::none, Decay::scalar, Decay::vector})
            for (const auto& [K, V] : {std::pair<std::int64_t, std::int64_t>{16, 16}, {33, 70}, {65, 5}}) {
                const std::string what =
                    "decay " + std::to_string(static_cast<int>(decay)) + ", K " + std::to_string(K);
                Form(1, false, decay, K, V, false).expect_right(what + ", free");
                for (const std::int64_t steps : {1, 2, 3})
                    for (const bool vector : {false, true})
                        Form(steps, true, decay, K, V, vector)
                            .expect_right(what + ", steps " + std::to_string(steps) + (vector ? ", vectors" : ""));
            }
    });
}

TEST(OffsetTest, AreSixtyFourBits) {
    Tensor t;
    t.rank = 4;
    t.stride = {std::int64_t{1} << 33, (std::int64_t{1} << 31) + 7, -(std::int64_t{1} << 32), 1};
    EXPECT_EQ(offset_of(t, 3, 2, 1, 5), (3LL << 33) + 2 * ((1LL << 31) + 7) - (1LL << 32) + 5);
    EXPECT_EQ(offset_of(t, std::int32_t{3}, std::uint8_t{2}, 0U, std::size_t{5}),
              (3LL << 33) + 2 * ((1LL << 31) + 7) + 5);
    Tensor slots = dense(nullptr, Dtype::fp32, {65537, 32, 128, 128});  // docs/cases.md 30
    EXPECT_EQ(offset_of(slots, 4096), 2147483648LL);
    EXPECT_EQ(offset_of(slots, 65536, 31, 127, 127), 65537LL * 32 * 128 * 128 - 1);
}

// A real run over memory that is mostly not there: rows lie more than 2^31 elements apart.
TEST(OffsetTest, ForwardReachesFarRows) {
    const std::int64_t far = (std::int64_t{1} << 31) + 1024, bytes = 3 * far * 4;
    const auto map = [&] {
        void* at = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return at == MAP_FAILED ? nullptr : at;
    };
    void* const in = map();
    void* const out = map();
    void* const states = map();  // outputs must not lie between inputs, nor in each other
    for (const Rule rule : test::every_rule()) {
        if (in == nullptr || out == nullptr || states == nullptr) continue;
        test::Spec spec;
        spec.rule = rule, spec.B = 2, spec.T = 2, spec.K = 8, spec.V = 16;
        const test::Problem near(spec);
        Forward p = near.view();
        const test::Result want = test::run(p);
        std::int64_t used = 0;
        const auto place = [&](Tensor& t, void* memory) {
            Tensor moved = t;
            moved.data = static_cast<float*>(memory) + used;
            moved.stride[0] = far;
            used += 4096;
            test::copy(t, moved);
            t = moved;
        };
        std::vector<Tensor*> inputs = test::of_rows(p);
        inputs.push_back(&p.initial_state);
        for (Tensor* t : inputs)
            if (t->present()) place(*t, in);
        const Owned o(Dtype::fp32, {2, 2, 1, 16}), ht(Dtype::fp32, {2, 1, 8, 16});
        p.o = o.view(), p.final_state = ht.view();
        place(p.o, out);
        place(p.final_state, states);
        p.o.stride = {2048, far, 16, 1};  // far tokens too
        forward(p, {2});
        EXPECT_EQ(test::difference(p.o, want.o.view()), "") << name_of(rule);
        EXPECT_EQ(test::difference(p.final_state, want.state.view()), "") << name_of(rule);
    }
    for (void* at : {in, out, states})
        if (at != nullptr) munmap(at, static_cast<std::size_t>(bytes));
    if (in == nullptr || out == nullptr || states == nullptr) GTEST_SKIP() << "no address space for a sparse mapping";
}

TEST(PlanTest, ArithmeticIsBlindToLengthsBatchAndThreads) {
    test::on_every_isa([] {
        for (const auto& [K, V] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {80, 96}, {128, 128}, {257, 300}})
            for (const Rule rule : test::every_rule()) {
                std::optional<Plan> first;
                for (const std::int64_t B : {1, 3})
                    for (const Sizes& lengths : {Sizes{}, Sizes{0}, Sizes{5, 0, 70}}) {
                        test::Spec s;
                        s.rule = rule, s.B = lengths.empty() ? B : 1, s.T = 17 * B, s.HV = B, s.K = K, s.V = V;
                        s.lengths = lengths;
                        const test::Problem problem(s);
                        Forward p = problem.view();
                        const Owned o(Dtype::fp32, {s.B, problem.spec.T, B, V});
                        p.o = o.view();
                        for (const int threads : {0, 1, 2, 3, 4, 999}) {
                            const Plan now = plan(p, {threads});
                            if (!first) first = now;
                            EXPECT_TRUE(now.arithmetic == first->arithmetic) << now.text() << "\n" << first->text();
                            EXPECT_TRUE(now.schedule.threads >= 1 && (threads == 0 || now.schedule.threads <= threads));
                        }
                    }
                const auto& a = first->arithmetic;
                const auto& b = first->schedule;
                EXPECT_TRUE(a.bucket_k >= K && a.bucket_v >= V && a.pass >= 1 && b.slice_v >= 1) << first->text();
                const std::string text = first->text();
                EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
                const auto n = [](std::int64_t x) { return std::to_string(x); };
                for (const std::string& word :
                     {std::string("arithmetic:"), std::string(a.path), std::string(a.isa),
                      n(a.bucket_k) + "x" + n(a.bucket_v), "pass=" + n(a.pass), "operands=" + std::string(a.operands),
                      "accumulate=" + std::string(a.accumulate), std::string("schedule:"), "threads=" + n(b.threads),
                      "tasks=" + n(b.tasks), "slice_v=" + n(b.slice_v), "workspace=" + n(b.workspace_bytes) + " bytes"})
                    EXPECT_NE(text.find(word), std::string::npos) << text << "\nlacks " << word;
            }
    });
}

TEST(IsaTest, ForcesListsAndRefuses) {
    test::on_every_isa([] {});
    const auto isas = cpu::available_isas();
    ASSERT_FALSE(isas.empty());
    EXPECT_EQ(cpu::current_isa(), isas.front()) << "the best comes first";
    test::Spec spec;
    const test::Problem problem(spec);
    test::on_every_isa([&] {
        Forward p = problem.view();
        const Owned o(Dtype::fp32, {1, 1, 1, 1});
        p.o = o.view();
        EXPECT_EQ(plan(p).arithmetic.isa, cpu::current_isa());
    });
    try {
        cpu::force_isa("AVX1024");
        ADD_FAILURE();
    } catch (const Error& e) {
        EXPECT_EQ(e.argument(), "isa");
        for (const std::string& isa : isas) EXPECT_NE(std::string(e.what()).find(isa), std::string::npos) << e.what();
    }
    EXPECT_EQ(cpu::current_isa(), isas.front());
}
