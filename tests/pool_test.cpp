// The thread pool and calls from many threads; run under ThreadSanitizer too.
#include "cpu/pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <numeric>
#include <thread>

#include "testing.h"

using namespace tidegate;
using cpu::parallel_for;

namespace {

/// A job whose tasks count themselves, and watch that no two share a worker id at a time.
struct Watched {
    std::deque<std::atomic<int>> ran, busy;
    std::atomic<int> shared{0}, outside{0}, most{0}, now{0};

    Watched(std::int64_t tasks, int threads)
        : ran(static_cast<std::size_t>(tasks)), busy(static_cast<std::size_t>(threads)) {}

    void task(std::int64_t i, int worker) {
        if (worker < 0 || worker >= static_cast<int>(busy.size())) {
            ++outside;
            return;
        }
        const int together = ++now;
        int seen = most.load();
        while (together > seen && !most.compare_exchange_weak(seen, together)) {
        }
        if (busy[static_cast<std::size_t>(worker)].exchange(1) != 0) ++shared;
        std::this_thread::yield();
        ++ran[static_cast<std::size_t>(i)];
        busy[static_cast<std::size_t>(worker)] = 0;
        --now;
    }

    void expect_each_once() {
        EXPECT_EQ(outside, 0) << "a worker id out of range";
        EXPECT_EQ(shared, 0) << "two tasks had one worker id at a time";
        for (std::size_t i = 0; i < ran.size(); ++i) ASSERT_EQ(ran[i], 1) << "task " << i;
    }
};

void expect_each_once(std::int64_t tasks, int threads) {
    SCOPED_TRACE(std::to_string(tasks) + " tasks on " + std::to_string(threads) + " threads");
    Watched w(tasks, threads);
    parallel_for(tasks, threads, [&](std::int64_t i, int worker) { w.task(i, worker); });
    w.expect_each_once();
    EXPECT_LE(w.most, threads);
}

/// Waits until two tasks are in their bodies at once; false when that never happens.
bool runs_side_by_side(int threads) {
    std::atomic<int> inside{0};
    std::atomic<bool> met{false};
    parallel_for(2, threads, [&](std::int64_t, int) {
        ++inside;
        for (int spin = 0; spin < 20000 && inside < 2; ++spin)
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        if (inside == 2) met = true;
    });
    return met;
}

}  // namespace

TEST(PoolTest, RunsEachTaskOnce) {
    for (const std::int64_t tasks : {0, 1, 2, 3, 7, 64, 1000})
        for (const int threads : {1, 2, 3, 4, 8}) expect_each_once(tasks, threads);
}

TEST(PoolTest, RunsTasksSideBySide) {
    EXPECT_TRUE(runs_side_by_side(2));
    EXPECT_TRUE(runs_side_by_side(4));
}

TEST(PoolTest, StaysWithinTheThreadsAsked) {
    expect_each_once(64, 8);  // the pool now has seven workers; fewer may take part in what follows
    for (const int threads : {1, 2, 3}) expect_each_once(64, threads);
}

TEST(PoolTest, OneThreadOrOneTaskStaysOnTheCaller) {
    const auto here = std::this_thread::get_id();
    const auto on_caller = [&](std::int64_t, int worker) {
        EXPECT_EQ(worker, 0);
        EXPECT_EQ(std::this_thread::get_id(), here);
    };
    parallel_for(5, 1, on_caller);
    parallel_for(1, 4, on_caller);
}

TEST(PoolTest, WhatTasksWroteIsSeenWhenTheCallReturns) {
    for (int round = 0; round < 200; ++round) {
        std::vector<std::int64_t> plain(100, -1);  // not atomic: TSan objects to a missing hand-over
        parallel_for(100, 4, [&](std::int64_t i, int) { plain[static_cast<std::size_t>(i)] = i + round; });
        EXPECT_EQ(std::accumulate(plain.begin(), plain.end(), std::int64_t{0}), 4950 + 100 * round);
    }
}

TEST(PoolTest, NestedCallsEnd) {
    std::atomic<int> inner{0}, strange{0};
    parallel_for(8, 4, [&](std::int64_t, int) {
        parallel_for(5, 4, [&](std::int64_t, int worker) {
            ++inner;
            if (worker < 0 || worker >= 4) ++strange;
            parallel_for(2, 2, [&](std::int64_t, int) { ++inner; });
        });
    });
    EXPECT_EQ(inner, 8 * 5 * 3);
    EXPECT_EQ(strange, 0);
    EXPECT_TRUE(runs_side_by_side(2)) << "a nested call left the pool unusable";
}

TEST(PoolTest, ManySmallJobs) {
    std::atomic<std::int64_t> sum{0};
    for (int job = 0; job < 5000; ++job)
        parallel_for(1 + job % 4, 1 + job % 5, [&](std::int64_t i, int) { sum += i + 1; });
    EXPECT_EQ(sum, 1250 * (1 + 3 + 6 + 10));
}

TEST(PoolTest, ConcurrentCallers) {
    std::vector<std::thread> callers;
    std::deque<Watched> jobs;
    for (int c = 0; c < 4 * 50; ++c) jobs.emplace_back(37, 3);
    for (std::size_t c = 0; c < 4; ++c)
        callers.emplace_back([&jobs, c] {
            for (std::size_t round = 0; round < 50; ++round)
                parallel_for(37, 3, [&](std::int64_t i, int w) { jobs[c * 50 + round].task(i, w); });
        });
    for (std::thread& t : callers) t.join();
    for (Watched& job : jobs) job.expect_each_once();
}

TEST(PoolTest, CallersComeAndGo) {
    for (int round = 0; round < 50; ++round) std::thread([] { expect_each_once(16, 3); }).join();
}

TEST(ThreadsTest, ForwardFromManyThreads) {
    test::Spec spec;
    spec.T = 20, spec.B = 2, spec.H = 2, spec.HV = 4, spec.K = 24, spec.V = 40, spec.logits = true;
    std::vector<std::unique_ptr<test::Problem>> problems;
    std::vector<test::Result> alone;
    for (const Rule rule : test::every_rule())
        for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
            spec.rule = rule, spec.dtype = dtype, ++spec.seed;
            problems.push_back(std::make_unique<test::Problem>(spec));
            alone.push_back(test::run(problems.back()->view(), 1));
        }
    std::vector<std::thread> callers;
    std::vector<std::string> wrong(4);
    for (std::size_t c = 0; c < 4; ++c)
        callers.emplace_back([&, c] {
            for (std::size_t round = 0; round < problems.size(); ++round) {
                const std::size_t i = (c + round) % problems.size();  // mostly different problems at a time
                const test::Result r = test::run(problems[i]->view(), 1 + static_cast<int>((c + round) % 4));
                wrong[c] += test::difference(r.o.view(), alone[i].o.view());
                wrong[c] += test::difference(r.state.view(), alone[i].state.view());
            }
        });
    for (std::thread& t : callers) t.join();
    for (const std::string& text : wrong) EXPECT_EQ(text, "");
}

TEST(ThreadsTest, SharedInputs) {
    for (const Rule rule : test::every_rule()) {
        test::Spec spec;
        spec.rule = rule, spec.T = 9, spec.HV = 4, spec.K = 16, spec.V = 32;
        const test::Problem problem(spec);
        const test::Result alone = test::run(problem.view(), 1);
        std::vector<std::thread> callers;
        std::vector<std::string> wrong(4);
        for (std::size_t c = 0; c < 4; ++c)
            callers.emplace_back([&, c] {
                for (int round = 0; round < 12; ++round)
                    wrong[c] += test::difference(test::run(problem.view(), 2).o.view(), alone.o.view());
            });
        for (std::thread& t : callers) t.join();
        for (const std::string& text : wrong) EXPECT_EQ(text, "") << name_of(rule);
    }
}
