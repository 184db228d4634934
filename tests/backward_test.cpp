// backward() on the CPU: within the gate on every instruction set, and the same bits whatever is free to choose:
// threads, spacing, strides, types, which gradients are asked for, and what other sequences hold.
// TIDEGATE_LONG=1 runs every case of the suite on every instruction set.
#include "tidegate/backward.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <thread>

#include "backward_testing.h"
#include "cases/request.h"
#include "cases/suite.h"
#include "judge/judge.h"
#include "plan/cpu_plan.h"
#include "subjects/in_process.h"
#include "tidegate/error.h"

namespace {
thread_local std::int64_t allocations = 0;
}

// Counts every plain allocation of this thread, as workspace_test.cpp does. Inlined, GCC 12 takes them for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
    ++allocations;
    if (void* p = std::malloc(size)) return p;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace tidegate {
namespace {

using backward_test::apart;
using backward_test::Call;
using backward_test::exact;
using backward_test::expect_same;
using backward_test::into;
using backward_test::memory_for;
using backward_test::Row;
using backward_test::row_of_name;
using backward_test::Spec;
using test::Owned;
using test::Sizes;

/// All gradients of `got` are those of the oracle: errors are measured by the terms that the sums are made of.
void expect_right(const Row& got, const Backward& p, const std::string& what, double most = 1e-6) {
    Row terms;
    const Row want = exact(p, &terms);
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double error =
            apart(test::values(got[i].view()), test::values(want[i].view()), test::values(terms[i].view()));
        EXPECT_LE(error, most) << what << ": " << gradients()[i].name;
    }
}

Options limited(std::int64_t bytes, int threads = 1) {
    Options options;
    options.threads = threads, options.memory_limit = bytes;
    return options;
}

/// What the error about a limit of one byte says is needed.
std::int64_t least_limit(const Backward& p, int threads = 1) {
    try {
        plan(p, limited(1, threads));
    } catch (const Error& e) {
        EXPECT_EQ(e.argument(), "memory_limit");
        const std::string what = e.what(), before = "at least the ";
        EXPECT_NE(what.find("given 1 bytes"), std::string::npos) << what;
        return std::stoll(what.substr(what.find(before) + before.size()));
    }
    ADD_FAILURE() << "one byte is enough";
    return 0;
}

class EveryRule : public ::testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(, EveryRule, ::testing::ValuesIn(backward_test::every_rule()), backward_test::rule_name);

// ---- against the oracle ---------------------------------------------------------------------------------------------

TEST_P(EveryRule, PassesItsSuiteOnEveryInstructionSetWithOneToFourThreads) {
    const bool all = std::getenv("TIDEGATE_LONG") != nullptr;
    test::on_every_isa([] {});
    const auto isas = cpu::available_isas();
    cases::Filter filter;
    filter.rule = GetParam(), filter.pass = "backward";
    std::size_t number = 0;
    for (const cases::Case& c : cases::suite("quick", filter)) {
        const io::Bundle request = cases::generate(c);
        const judge::Bench bench(request, {}, judge::gate_from("derived"));
        ++number;
        for (std::size_t i = 0; i < isas.size(); ++i) {
            if (!all && c.dtype != Dtype::fp32 && (number + i) % isas.size() != 0) continue;
            cpu::force_isa(isas[i]);
            const int threads = 1 + static_cast<int>((number + i) % 4);
            const judge::CaseResult r = bench.judge(subjects::make_cpu(threads)->answer(request));
            EXPECT_EQ(r.verdict, judge::Verdict::pass) << cases::id_of(c) << " on " << isas[i] << ": " << r.reason;
        }
    }
    cpu::force_isa("");
    EXPECT_GE(number, 12u);
}

TEST_P(EveryRule, AgreesWithTheOracleWhateverTheSizes) {
    struct Size {
        std::int64_t T, H, HV, K, V;
    };
    const Size sizes[] = {{1, 1, 1, 1, 1},    {1, 2, 4, 33, 65}, {40, 1, 1, 1, 1},   {18, 1, 2, 257, 300},
                          {3, 8, 32, 5, 7},   {5, 1, 1, 3, 300}, {5, 1, 1, 300, 3},  {2, 1, 1, 1, 1000},
                          {2, 1, 2, 1000, 1}, {0, 1, 2, 5, 3},   {33, 1, 3, 16, 16}, {7, 2, 2, 513, 33}};
    test::on_every_isa([&] {
        std::uint64_t seed = 0;
        for (const Size& z : sizes) {
            Spec s{.rule = GetParam(), .T = z.T, .H = z.H, .HV = z.HV, .K = z.K, .V = z.V, .seed = ++seed};
            s.logits = seed % 2 == 0, s.l2norm = seed % 3 == 0, s.bounded = seed % 4 == 0, s.v_first = seed % 5 < 2;
            s.n = seed % 5 == 4 ? 17 : 1 + z.T % 3;
            const Call call(s);
            const Backward p = call.view();
            // With one value a head a factor 1 - beta k^2 may cancel at any of its steps.
            expect_right(backward_test::run(p, {1 + static_cast<int>(seed % 4)}), p, "sizes " + std::to_string(seed),
                         z.K * z.V == 1 ? 1e-5 : 1e-6);
        }
    });
}

// ---- the same bits --------------------------------------------------------------------------------------------------

TEST_P(EveryRule, EveryNumberOfThreadsGivesTheSameBits) {
    Spec s{.rule = GetParam(), .H = 2, .HV = 4, .K = 12, .V = 20, .n = 3, .lengths = {3, 0, 40, 17}, .logits = true};
    const Call call(s);
    const Row want = backward_test::run(call.view());
    for (const int threads : {0, 2, 3, 4, 99})
        for (int again = 0; again < 3; ++again)
            expect_same(backward_test::run(call.view(), {threads}), want, std::to_string(threads) + " threads");
}

TEST_P(EveryRule, EverySpacingGivesTheSameBits) {
    std::uint64_t seed = 0;
    for (const std::int64_t T : {0, 1, 15, 16, 17, 100, 333}) {
        SCOPED_TRACE("T = " + std::to_string(T));
        Spec s{.rule = GetParam(), .T = T, .HV = 2, .K = 20, .V = 24, .n = 1 + T % 3, .seed = ++seed};
        s.logits = T % 2 == 1, s.h0 = T != 100;
        const Call call(s);
        const Backward p = call.view();
        const Row want = backward_test::run(p);
        expect_right(want, p, "T");

        // Through the door: limits from what is just enough up to none.
        std::set<std::int64_t> seen;
        const std::int64_t free = plan(p, {1}).schedule.workspace_bytes;
        for (std::int64_t limit = least_limit(p); limit < free + free / 8 + 1; limit += limit / 12) {
            const Plan now = plan(p, limited(limit));
            EXPECT_LE(now.schedule.workspace_bytes, limit);
            if (!seen.insert(now.schedule.spacing).second) continue;
            expect_same(backward_test::run(p, limited(limit)), want, "limit " + std::to_string(limit));
        }
        EXPECT_EQ(seen.count(plan(p, {1}).schedule.spacing), 1u);
        EXPECT_EQ(seen.size() > 1, T * call.spec.n > kBackRows) << "segments to choose from";

        // By hand: every spacing there is, the ones that no limit leads to, too.
        const Row out = memory_for(p);
        const BackwardForm form = lower(into(p, out));
        const std::int64_t rows = std::max<std::int64_t>(T * call.spec.n, 1);
        const auto bytes = [&](std::int64_t spacing) { return backward_floats(form.nf, rows, spacing) * 4; };
        Plan plan = plan_cpu(form, cpu::this_machine(), {1});
        const std::int64_t sums = plan.schedule.workspace_bytes - bytes(plan.schedule.spacing);
        for (std::int64_t spacing = kBackRows; spacing < rows + kBackRows; spacing += kBackRows) {
            plan.schedule.spacing = spacing;
            plan.schedule.workspace_bytes = bytes(spacing) + sums;
            cpu::run(form, plan);
            expect_same(out, want, "spacing " + std::to_string(spacing));
        }
    }
}

TEST_P(EveryRule, ALimitIsKeptAndTheErrorSaysWhatIsNeeded) {
    Spec s{.rule = GetParam(), .B = 3, .T = 200, .H = 1, .HV = 2, .K = 16, .V = 32, .logits = true};
    const Call call(s);
    const Backward p = call.view();
    const Row want = backward_test::run(p, {3});
    for (const int threads : {1, 3}) {
        const std::int64_t least = least_limit(p, threads);
        EXPECT_EQ(plan(p, limited(least, threads)).schedule.workspace_bytes, least);
        EXPECT_EQ(plan(p, limited(least, threads)).schedule.threads, 1);
        expect_same(backward_test::run(p, limited(least, threads)), want, "the least limit");
        const Row out = memory_for(p);
        EXPECT_THROW(backward(into(p, out), limited(least - 1, threads)), Error);
        for (const Owned& t : out) EXPECT_TRUE(t.intact_outside(test::narrow(t.view(), 0, 0, 0))) << "written";
        EXPECT_EQ(plan(p, limited(0, threads)).schedule.extra_flop, 0);
        EXPECT_GT(plan(p, limited(least, threads)).schedule.extra_flop, 0);
        for (std::int64_t limit = least; limit < 12 * least; limit += least / 3) {
            const auto now = plan(p, limited(limit, threads)).schedule;
            EXPECT_TRUE(now.workspace_bytes <= limit && now.threads >= 1 && now.threads <= threads);
            EXPECT_TRUE(now.spacing >= 1 && now.spacing % kBackRows == 0) << now.spacing;
        }
    }
}

TEST_P(EveryRule, WorkspaceIsWhatThePlanSaysAndALaterCallAllocatesNothing) {
    for (const bool logits : {false, true})
        for (const std::int64_t limit : {0, 200000}) {
            Spec s{.rule = GetParam(), .T = 100, .H = 2, .HV = 4, .K = 17, .V = 33, .logits = logits};
            const Call call(s);
            const Row out = memory_for(call.view());
            const Backward p = into(call.view(), out);
            const std::int64_t before = cpu::allocated_bytes();
            std::thread fresh([&] {  // memory is kept by the calling thread, and given back with it
                backward(p, limited(limit, 2));
                EXPECT_EQ(cpu::allocated_bytes() - before, plan(p, limited(limit, 2)).schedule.workspace_bytes);
                const std::int64_t calls = allocations;
                for (int i = 0; i < 3; ++i) backward(p, limited(limit, 2));
                EXPECT_EQ(allocations, calls) << "a later call allocates nothing";
                EXPECT_TRUE(limit == 0 || cpu::allocated_bytes() - before <= limit);
            });
            fresh.join();
            EXPECT_EQ(cpu::allocated_bytes(), before);
        }
}

TEST_P(EveryRule, WhatEarlierCallsLeftInTheWorkspaceChangesNoBit) {
    for (const bool logits : {false, true}) {
        Spec s{.rule = GetParam(), .T = 90, .H = 1, .HV = 2, .K = 40, .V = 40, .logits = logits};
        Call poison(s);
        for (Owned& t : poison.in) t.fill([](std::int64_t) { return std::nan(""); });
        poison.d_o.fill([](std::int64_t) { return std::nan(""); });
        for (const std::int64_t T : {1, 2, 3, 7, 18, 35}) {
            s.T = T, s.K = 2 + T, s.V = 38 - T, s.H = 1 + T % 2;
            const Call call(s);
            Row want, got;
            std::thread([&] { want = backward_test::run(call.view()); }).join();  // memory that was never used
            backward_test::run(poison.view());
            got = backward_test::run(call.view());
            expect_same(got, want, "T = " + std::to_string(T));
            expect_right(got, call.view(), "T = " + std::to_string(T));
        }
    }
}

TEST_P(EveryRule, WhatIsNotAskedForChangesNoBitOfTheRest) {
    for (const bool logits : {false, true}) {
        Spec s{.rule = GetParam(), .T = 37, .H = 1, .HV = 2, .K = 10, .V = 18, .logits = logits, .l2norm = logits};
        const Call call(s);
        const Row want = backward_test::run(call.view());
        for (unsigned i = 0; i < want.size(); ++i)
            for (const unsigned wanted : {1U << i, ~(1U << i), static_cast<unsigned>(cases::mix(i)), 0U}) {
                const Row got = backward_test::run(call.view(), {2}, Dtype::fp32, wanted);
                expect_same(want, got, "some");
            }
    }
}

/// Strides of one shape: gaps; the outer dimensions the other way round; or those of gaps, backwards.
Sizes strides(const Sizes& shape, int kind) {
    Sizes stride = test::gapped(shape, 5);
    if (shape.size() == 1) return {kind == 2 ? -2 : 3};
    const std::size_t channels = shape.size() == 4 ? 1 : 0;  // the last dimension stays dense
    if (kind == 1) {
        std::int64_t step = channels == 1 ? shape[3] + 2 : 2;
        for (std::size_t d = 0; d < shape.size() - channels; ++d) stride[d] = step, step *= shape[d] + 1;
    }
    for (std::size_t d = 0; kind == 2 && d < shape.size() - channels; ++d) stride[d] = -stride[d];
    return stride;
}
Owned restrided(const Tensor& t, int kind) {
    if (!t.present()) return {};
    const Sizes shape(t.shape.begin(), t.shape.begin() + t.rank);
    Owned copy(t.dtype, shape, strides(shape, kind));
    test::copy(t, copy.view());
    return copy;
}

TEST_P(EveryRule, StridesChangeNoBitAndGapsStay) {
    for (int kind = 0; kind < 3; ++kind)
        for (const bool logits : {false, true}) {
            Spec s{.rule = GetParam(), .B = 2, .T = 19, .H = 2, .HV = 4, .K = 9, .V = 7, .logits = logits};
            s.v_first = kind == 1;
            Call call(s);
            const Row want = backward_test::run(call.view());
            for (Owned& t : call.in) t = restrided(t.view(), kind);
            call.d_o = restrided(call.d_o.view(), kind), call.dht = restrided(call.dht.view(), kind);
            const Row dense = memory_for(call.view());
            Row out(dense.size());
            for (std::size_t i = 0; i < out.size(); ++i) {
                const Tensor t = dense[i].view();
                const Sizes shape(t.shape.begin(), t.shape.begin() + t.rank);
                if (t.present()) out[i] = Owned(t.dtype, shape, strides(shape, kind));
            }
            backward(into(call.view(), out), {2});
            expect_same(out, want, "strides " + std::to_string(kind));
            for (const Owned& t : out) EXPECT_TRUE(t.intact_outside(t.view()));
        }
}

TEST_P(EveryRule, TypesOfInputsAndGradientsAreFree) {
    for (const bool logits : {false, true}) {
        Spec s{.rule = GetParam(),
               .T = 21,
               .H = 1,
               .HV = 2,
               .K = 17,
               .V = 32,
               .logits = logits,
               .l2norm = logits,
               .dtypes = {Dtype::bf16, Dtype::fp32, Dtype::fp16}};
        const Call mixed(s);
        const Row want = backward_test::run(mixed.view());
        Call wide = mixed;  // the same values as fp32
        const auto widen = [](Owned& t) {
            if (!t.view().present()) return;
            const std::vector<double> x = test::values(t.view());
            const Tensor v = t.view();
            t = Owned(Dtype::fp32, Sizes(v.shape.begin(), v.shape.begin() + v.rank));
            t.fill([&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; });
        };
        for (Owned& t : wide.in) widen(t);
        widen(wide.d_o), widen(wide.dht);
        expect_same(backward_test::run(wide.view()), want, "widened inputs");
        for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
            const Row got = backward_test::run(mixed.view(), {1}, dtype);
            for (std::size_t i = 0; i < got.size(); ++i) {
                const bool sum = gradients()[i].role == Role::A_log || gradients()[i].role == Role::dt_bias;
                const std::vector<double> x = test::values(got[i].view()), y = test::values(want[i].view());
                for (std::size_t e = 0; e < x.size();
                     ++e)  // sums over tokens are doubles: fp32 is a rounding of its own
                    EXPECT_LE(std::fabs(x[e] - round_to(y[e], dtype)), sum ? ulp(y[e], dtype) : 0)
                        << gradients()[i].name << " as " << name_of(dtype) << ", element " << e;
            }
        }
    }
}

TEST_P(EveryRule, TheGradientOfTheStateMayTakeThePlaceOfDht) {
    for (const bool v_first : {false, true})
        for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
            Spec s{.rule = GetParam(), .B = 2, .T = 50, .H = 1, .HV = 2, .K = 18, .V = 20, .v_first = v_first};
            Call call(s);
            const Owned plain = call.dht;
            call.dht = Owned(dtype, call.state_shape());
            const std::vector<double> x = test::values(plain.view());
            call.dht.fill([&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; });
            const Row want = backward_test::run(call.view(), {2}, dtype);
            Row out = memory_for(call.view(), dtype);
            Backward p = into(call.view(), out);
            p.dh0 = p.dht;
            backward(p, limited(least_limit(p)));
            out[row_of_name("dh0")] = call.dht;
            expect_same(out, want, "in place");
        }
}

TEST_P(EveryRule, ANaNStaysInItsSequenceAndHeads) {
    const Sizes lengths{5, 0, 20, 9};
    for (const bool logits : {false, true}) {
        Spec s{.rule = GetParam(), .H = 2, .HV = 4, .K = 6, .V = 18, .lengths = lengths, .logits = logits};
        const Call clean(s);
        const Row want = backward_test::run(clean.view());
        for (std::size_t i = 0; i < gradients().size() + 2; ++i)  // every input by token or state; do; dht
            for (const double bad : {std::nan(""), HUGE_VAL}) {
                Call call = clean;
                const bool input = i < gradients().size(),
                           state = i + 1 == gradients().size() || i > gradients().size();
                const Tensor x = input                     ? call.in[i].view()
                                 : i == gradients().size() ? call.d_o.view()
                                                           : call.dht.view();
                if (!x.present() || x.rank < 3 || (bad > 0 && input && gradients()[i].role == Role::gate)) continue;
                const bool saturates = bad > 0 && input && logits && gradients()[i].role == Role::erase;  // sigmoid
                const bool key = x.shape[2] == 2 && !state;  // a key head: its two value heads are poisoned
                const std::int64_t rows = state ? 0 : x.shape[1] / call.spec.T, last = x.rank == 4 ? 1 : 0;
                const std::int64_t at =
                    (state ? offset_of(x, 2, 1, 1) : offset_of(x, 0, 12 * rows, key ? 0 : 1)) + last;
                store_element(x.data, x.dtype, at, bad);
                const Row got = backward_test::run(call.view(), {2});
                for (std::size_t r = 0; r < got.size(); ++r) {
                    const Tensor a = got[r].view(), b = want[r].view();
                    if (!a.present()) continue;
                    const std::string what = std::string(gradients()[r].name) + " with " + std::to_string(bad) +
                                             " in " +
                                             (input   ? gradients()[i].name + 1
                                              : state ? "dht"
                                                      : "do");
                    const Role role = gradients()[r].role;
                    const bool of_keys = role == Role::q || role == Role::k;
                    const auto same = [&](std::size_t dimension, std::int64_t first, std::int64_t count) {
                        EXPECT_EQ(test::difference(test::narrow(a, dimension, first, count),
                                                   test::narrow(b, dimension, first, count)),
                                  "")
                            << what;
                    };
                    if (a.rank == 1) {  // summed over sequences
                        const std::int64_t each = a.shape[0] / 4;
                        same(0, 2 * each, 2 * each);
                        for (std::int64_t h = 0; h < (key ? 2 : 1); ++h) {
                            double sum = 0;
                            for (const double y : test::values(test::narrow(a, 0, (key ? h : 1) * each, each)))
                                sum += y;
                            EXPECT_TRUE(!std::isfinite(sum) || saturates) << what;
                        }
                        if (!key) same(0, 0, each);
                    } else if (role == Role::h0) {
                        for (const std::int64_t n : {0, 1, 3}) same(0, n, 1);
                        same(1, 2, 2);
                        if (!key) same(1, 0, 1);
                    } else {
                        const std::int64_t n = a.shape[1] / call.spec.T;
                        same(1, 0, 5 * n), same(1, 25 * n, 9 * n);
                        same(2, of_keys ? 1 : 2, of_keys ? 1 : 2);
                        if (!key && !of_keys) same(2, 0, 1);
                    }
                }
            }
    }
}

}  // namespace
}  // namespace tidegate
