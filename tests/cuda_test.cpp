// Decode on a device. Skips, with the reason, where there is none.
#include <gtest/gtest.h>

#include "cases/request.h"
#include "cases/suite.h"
#include "cuda/cuda.h"
#include "plan/cuda_plan.h"
#include "testing.h"
#include "tidegate/error.h"

namespace tidegate {
namespace {

class CudaTest : public testing::Test {
protected:
    void SetUp() override {
        if (const char* why = cuda::unavailable()) GTEST_SKIP() << why;
    }
};

TEST(CudaPlan, NamesThePathThatTheStateAllows) {
    const auto path = [](std::int64_t K, std::int64_t V, Dtype state, bool v_first, std::int64_t gap) {
        NormalForm nf;
        nf.pool = true;
        nf.K = K, nf.V = V, nf.batch = 2, nf.value_heads = 4;
        nf.initial_state = dense(nullptr, state, {3, 4, v_first ? V : K, v_first ? K : V});
        nf.initial_state.stride[0] += gap;
        if (v_first) {
            std::swap(nf.initial_state.shape[2], nf.initial_state.shape[3]);
            std::swap(nf.initial_state.stride[2], nf.initial_state.stride[3]);
        }
        const Plan plan = plan_cuda(nf);
        EXPECT_EQ(plan.schedule.tasks, 8 * ((V + plan.schedule.slice_v - 1) / plan.schedule.slice_v));
        return std::string(plan.arithmetic.path);
    };
    EXPECT_EQ(path(128, 128, Dtype::fp32, false, 0), "cuda/decode/kv");
    EXPECT_EQ(path(64, 40, Dtype::bf16, false, 8), "cuda/decode/kv");
    EXPECT_EQ(path(128, 33, Dtype::fp32, true, 0), "cuda/decode/vk");
    EXPECT_EQ(path(128, 33, Dtype::fp32, false, 0), "cuda/decode/general");   // rows off 16 bytes
    EXPECT_EQ(path(128, 128, Dtype::fp32, false, 1), "cuda/decode/general");  // slots off 16 bytes
    EXPECT_EQ(path(80, 128, Dtype::fp32, false, 0), "cuda/decode/general");
}

TEST(CudaAbsent, SaysSo) {
    if (cuda::unavailable() == nullptr) GTEST_SKIP() << "there is a device";
    EXPECT_STRNE(cuda::unavailable(), "");
}

TEST_F(CudaTest, AThousandRepeatsAndAGraphGiveTheSameBits) {
    for (const char* id : {"gdn/decode/bf16/9,1,2,4,128,128/gates=logits/1",
                           "kda/decode/bf16/9,2,2,4,64,128/layout=vk/2", "gdn/packed/fp16/9,1,2,4,80,40/3"}) {
        io::Bundle request = cases::generate(cases::parse(id));
        io::Bundle answer = cases::empty_answer(request);
        cases::Problem problem = cases::bind(request);
        cases::attach(problem, answer);
        cases::inputs_of(problem).check_values = false;
        std::vector<void*> memory;
        const io::Array pool = *answer.find("state");
        void *state = nullptr, *o = nullptr;
        for (Tensor* t : cases::tensors_of(problem)) {
            if (!t->present()) continue;
            const auto bytes = static_cast<std::size_t>(t->size() * bytes_of(t->dtype));
            memory.push_back(cuda::allocate(bytes));
            cuda::to_device(memory.back(), t->data, bytes);
            if (t->data == answer.find("state")->bytes.data()) state = memory.back();
            if (t->data == answer.find("o")->bytes.data()) o = memory.back();
            t->data = memory.back();
            t->device = Device::cuda;
        }
        io::Array want_o, want_state;
        const auto once = [&](bool graph) {
            cuda::to_device(state, pool.bytes.data(), pool.bytes.size());
            if (graph)  // three warm-up replays and one measured: four calls on one state
                cuda::median_seconds(1, 1, [&](void* stream, int) { cases::run(problem, {0, stream}); });
            else
                for (int i = 0; i < 4; ++i) cases::run(problem, {});
            cuda::synchronise();
            io::Array got_o = *answer.find("o"), got_state = pool;
            cuda::to_host(got_o.bytes.data(), o, got_o.bytes.size());
            cuda::to_host(got_state.bytes.data(), state, got_state.bytes.size());
            if (want_o.bytes.empty()) want_o = got_o, want_state = got_state;
            return got_o.bytes == want_o.bytes && got_state.bytes == want_state.bytes;
        };
        int same = 0;
        for (int i = 0; i < 1000; ++i) same += once(false) ? 1 : 0;
        EXPECT_EQ(same, 1000) << id;
        EXPECT_TRUE(once(true)) << id;
        for (void* m : memory) cuda::release(m);
    }
}

TEST_F(CudaTest, RefusesMixedPlaces) {
    test::Spec spec;
    spec.K = spec.V = 64;
    const test::Problem problem(spec);
    Decode d;
    static_cast<Inputs&>(d) = problem.view();
    const test::Owned pool(Dtype::fp32, {1, 1, 64, 64}), o(Dtype::fp32, {1, 1, 1, 64});
    d.state = pool.view(), d.o = o.view();
    d.state.device = Device::cuda;
    EXPECT_THROW(decode(d), Error);
}

}  // namespace
}  // namespace tidegate
