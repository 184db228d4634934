// Memory: what a call allocates is the workspace its plan prints, kept for the next call, whatever T is.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "cases/request.h"
#include "cases/suite.h"
#include "cpu/kernels.h"
#include "problem/rules.h"
#include "tidegate/forward.h"

namespace {
thread_local std::int64_t allocations = 0;
}

// Counts every allocation of this thread; plain new only, which is what a forgotten vector or string would use.
void* operator new(std::size_t size) {
    ++allocations;
    if (void* p = std::malloc(size)) return p;
    throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace tidegate {
namespace {

/// The ids that rule/head/tail is of the rules that take it.
std::vector<std::string> of_every_rule(const std::string& head, const std::string& tail) {
    std::vector<std::string> ids;
    const std::string pass = head.substr(0, head.find('/'));
    for (const RuleRow& row : rules())
        if (cases::takes(row, pass, tail) && (pass != "packed" || packs(row)))
            ids.push_back(std::string(row.name) + "/" + head + "/" + tail);
    return ids;
}

struct Bound {
    io::Bundle request, answer;
    Forward problem;
    explicit Bound(const std::string& id)
        : request(cases::generate(cases::parse(id))), answer(cases::empty_answer(request)) {
        problem = std::get<Forward>(cases::bind(request));
        problem.check_values = false;
        problem.o = answer.find("o")->view();
        problem.final_state = answer.find("final_state")->view();
    }
};

TEST(Workspace, IsWhatThePlanPrintsAndIndependentOfT) {
    for (const RuleRow& row : rules()) {
        std::int64_t first = 0;
        for (const char* T : {"1", "5", "64", "300", "1000"}) {
            Bound b(row.name + std::string("/forward/fp32/1,") + T + ",2,4,40,72/h0=1/1");
            Options options;
            options.threads = 2;
            const std::int64_t planned = plan(b.problem, options).schedule.workspace_bytes;
            if (first == 0) first = planned;
            EXPECT_EQ(planned, first) << row.name << ", T " << T;
            forward(b.problem, options);
            EXPECT_EQ(cpu::allocated_bytes(), planned) << row.name << ", T " << T;
        }
    }
}

TEST(Workspace, ALaterCallAllocatesNothing) {
    for (const auto& [head, tail] : {std::pair{"forward/bf16", "1,70,2,4,40,72/h0=1/1"},
                                     {"forward/fp32", "3,9,2,4,33,65/h0=1/gates=logits/l2norm=1/2"},
                                     {"forward/fp16", "1,12,1,2,16,16/lengths=5,0,7/layout=vk/3"}})
        for (const std::string& id : of_every_rule(head, tail)) {
            Bound b(id);
            for (const int threads : {1, 3}) {
                Options options;
                options.threads = threads;
                forward(b.problem, options);
                const std::int64_t before = allocations;
                for (int i = 0; i < 3; ++i) forward(b.problem, options);
                EXPECT_EQ(allocations, before) << id << " with " << threads << " threads";
            }
        }
}

TEST(Workspace, ALaterDecodeAllocatesNothing) {
    for (const auto& [head, tail] : {std::pair{"decode/bf16", "3,1,2,4,40,72/slots=4,-1,0/1"},
                                     {"decode/fp32", "2,3,2,4,33,65/columns=4/each=1/2"},
                                     {"packed/bf16", "5,1,2,4,40,72/state=bf16/layout=vk/1"}})
        for (const std::string& id : of_every_rule(head, tail)) {
            const io::Bundle request = cases::generate(cases::parse(id));
            io::Bundle answer = cases::empty_answer(request);
            cases::Problem problem = cases::bind(request);
            cases::inputs_of(problem).check_values = false;
            cases::attach(problem, answer);
            for (const int threads : {1, 3}) {
                const Options options{threads};
                const std::int64_t planned = cases::plan_of(problem, options).schedule.workspace_bytes;
                cases::run(problem, options);
                EXPECT_GE(cpu::allocated_bytes(), planned);
                const std::int64_t before = allocations;
                for (int i = 0; i < 3; ++i) cases::run(problem, options);
                EXPECT_EQ(allocations, before) << id << " with " << threads << " threads";
            }
        }
}

}  // namespace
}  // namespace tidegate
