// Decode on a device. Skips, with the reason, where there is none.
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

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

/// A case's problem with all of its tensors on the device.
class Placed {
public:
    explicit Placed(const char* id)
        : request_(cases::generate(cases::parse(id))),
          answer_(cases::empty_answer(request_)),
          problem_(cases::bind(request_)) {
        cases::attach(problem_, answer_);
        cases::inputs_of(problem_).check_values = false;
        for (Tensor* t : cases::tensors_of(problem_)) {
            if (!t->present()) continue;
            const auto bytes = static_cast<std::size_t>(t->size() * bytes_of(t->dtype));
            memory_.push_back(cuda::allocate(bytes));
            cuda::to_device(memory_.back(), t->data, bytes);
            if (t->data == pool().bytes.data()) state_ = memory_.back();
            if (t->data == answer_.find("o")->bytes.data()) o_ = memory_.back();
            t->data = memory_.back();
            t->device = Device::cuda;
        }
    }
    ~Placed() {
        for (void* m : memory_) cuda::release(m);
    }
    Placed(const Placed&) = delete;
    Placed& operator=(const Placed&) = delete;

    cases::Problem& problem() { return problem_; }
    const io::Array& pool() const { return *answer_.find("state"); }
    const io::Bundle& request() const { return request_; }
    void reset() { cuda::to_device(state_, pool().bytes.data(), pool().bytes.size()); }
    /// o and the pool, as they are now.
    std::pair<io::Array, io::Array> outputs() const {
        cuda::synchronise();
        io::Array o = *answer_.find("o"), state = pool();
        cuda::to_host(o.bytes.data(), o_, o.bytes.size());
        cuda::to_host(state.bytes.data(), state_, state.bytes.size());
        return {o, state};
    }

private:
    io::Bundle request_, answer_;
    cases::Problem problem_;
    std::vector<void*> memory_;
    void *state_ = nullptr, *o_ = nullptr;
};

TEST_F(CudaTest, AThousandRepeatsAndAGraphGiveTheSameBits) {
    for (const char* id : {"gdn/decode/bf16/9,1,2,4,128,128/gates=logits/1",
                           "kda/decode/bf16/9,2,2,4,64,128/layout=vk/2", "gdn/packed/fp16/9,1,2,4,80,40/3"}) {
        Placed placed(id);
        const auto once = [&](bool graph) {
            placed.reset();
            if (graph)  // three warm-up replays and one measured: four calls on one state
                cuda::median_seconds(1, 1, [&](void* stream, int) { cases::run(placed.problem(), {0, stream}); });
            else
                for (int i = 0; i < 4; ++i) cases::run(placed.problem(), {});
            return placed.outputs();
        };
        const auto [o, state] = once(false);
        int same = 0;
        for (int i = 0; i < 1000; ++i) {
            const auto again = once(false);
            same += again.first.bytes == o.bytes && again.second.bytes == state.bytes ? 1 : 0;
        }
        EXPECT_EQ(same, 1000) << id;
        const auto graph = once(true);
        EXPECT_TRUE(graph.first.bytes == o.bytes && graph.second.bytes == state.bytes) << id;
    }
}

// A call of one request takes narrow slices, a call of many takes wide ones: other kernels, the same sums.
TEST_F(CudaTest, NarrowAndWideSlicesGiveTheSameBits) {
    for (const char* id :
         {"gdn/decode/fp32/200,1,2,4,128,128/1", "kda/decode/bf16/200,1,2,4,128,128/layout=vk/2",
          "gdn/decode/bf16/200,1,2,4,128,128/state=bf16/3", "kda/decode/fp16/200,1,2,4,64,128/state=fp16/layout=vk/4",
          "kda/decode/fp32/200,2,2,4,128,128/5", "gdn/decode/fp32/200,3,2,4,64,128/layout=vk/6"}) {
        Placed placed(id);
        const auto slice = [&] { return cases::plan_of(placed.problem(), {}).schedule.slice_v; };
        const std::int64_t B = std::get<Decode>(placed.problem()).q.shape[0], wide = slice();
        cases::run(placed.problem(), {});
        const auto all = placed.outputs();
        for (Tensor* t : cases::tensors_of(placed.problem()))
            if (t->present() && t->shape[0] == B) t->shape[0] = 1;
        placed.reset();
        EXPECT_LT(slice(), wide) << id;
        cases::run(placed.problem(), {});
        const auto one = placed.outputs();
        const std::size_t o = all.first.bytes.size() / static_cast<std::size_t>(B);
        EXPECT_EQ(std::memcmp(all.first.bytes.data(), one.first.bytes.data(), o), 0) << id;
        const std::size_t slot = all.second.bytes.size() / static_cast<std::size_t>(all.second.shape[0]);
        std::int32_t first = 0;
        std::memcpy(&first, placed.request().find("state_indices")->bytes.data(), sizeof first);
        const std::size_t at = static_cast<std::size_t>(first) * slot;
        ASSERT_LT(at, all.second.bytes.size()) << id;
        EXPECT_EQ(std::memcmp(all.second.bytes.data() + at, one.second.bytes.data() + at, slot), 0) << id;
        EXPECT_NE(std::memcmp(placed.pool().bytes.data() + at, one.second.bytes.data() + at, slot), 0) << id;
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
