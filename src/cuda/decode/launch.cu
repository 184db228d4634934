// Decode on a device: parameters from the normal form, the plan's kernel, one launch.
#include <string>
#include <string_view>

#include "cuda/checked.h"
#include "cuda/cuda.h"
#include "cuda/decode/kernels.cuh"
#include "plan/cuda_plan.h"
#include "tidegate/error.h"

namespace tidegate::cuda {
namespace {

/// As the kernels count: in 32 bits, also strides; their products have 64.
int in_32_bits(std::int64_t n, const char* what) {
    if (n < INT32_MIN || n > INT32_MAX)
        throw Error(what, std::string(what) + ": given " + std::to_string(n) +
                              ", expected one that fits 32 bits on a CUDA device");
    return static_cast<int>(n);
}

View view_of(const Tensor& t) {
    View v{t.present() ? t.data : nullptr, t.dtype, {}};
    for (std::size_t d = 0; d < kMaxRank && t.present(); ++d)
        v.stride[d] = t.shape[d] > 1 ? in_32_bits(t.stride[d], "stride") : 0;
    return v;
}

DecodeParams params_of(const NormalForm& nf, const Plan& plan) {
    DecodeParams p{};
    p.q = view_of(nf.q), p.k = view_of(nf.k), p.v = view_of(nf.v), p.a = view_of(nf.a), p.b = view_of(nf.b);
    p.gate = view_of(nf.gate.x), p.A_log = view_of(nf.gate.A_log), p.dt_bias = view_of(nf.gate.dt_bias);
    p.erase = view_of(nf.erase.x), p.write = view_of(nf.write.x), p.o = view_of(nf.o);
    p.state = view_of(nf.initial_state), p.state_tokens = view_of(nf.state_tokens);
    p.state_indices = view_of(nf.state_indices), p.num_accepted = view_of(nf.num_accepted);
    const auto extent = [](std::int64_t n) { return in_32_bits(n, "extent"); };
    p.B = extent(nf.batch), p.T = extent(nf.tokens), p.H = extent(nf.key_heads), p.HV = extent(nf.value_heads);
    p.K = extent(nf.K), p.V = extent(nf.V);
    p.P = extent(nf.initial_state.shape[0]);
    p.columns = nf.state_indices.rank == 2 ? extent(nf.state_indices.shape[1]) : 0;
    p.null_slot = nf.null_slot.value_or(-1);
    p.steps = extent(nf.steps);
    p.slices = extent((nf.V + plan.schedule.slice_v - 1) / plan.schedule.slice_v);
    p.decay = nf.gate.decay, p.gate_kind = nf.gate.kind;
    p.erase_kind = nf.erase.kind, p.write_kind = nf.write.kind;
    p.erase_vector = nf.erase.vector, p.write_vector = nf.write.vector;
    p.tied = nf.tied, p.tiled = nf.head_map == HeadMap::tiled, p.l2norm = nf.qk_l2norm;
    p.has_min = nf.gate.min.has_value();
    p.scale = static_cast<float>(nf.scale), p.lower_bound = static_cast<float>(nf.gate.lower_bound);
    p.gate_min = static_cast<float>(nf.gate.min.value_or(0));
    return p;
}

using Kernel = void (*)(DecodeParams);

/// The inventory of kernels on 16-byte accesses: path, state type, K, columns a CTA; for one row a request and for
/// several, each with its shared memory. A slice of several rows is held in fp32 registers, so wide ones have none.
struct Row {
    std::string_view path;
    Dtype state;
    std::int64_t K, columns;
    Kernel one, many;
    std::size_t one_bytes, many_bytes;
};
template <class L>
constexpr Row row(std::string_view path, Dtype state) {
    Row r{path, state, L::kK, L::kColumns, decode<L, false>, nullptr, sizeof(Shared<L, false>), 0};
    if constexpr (L::kLoads * L::kValues <= 64) r.many = decode<L, true>, r.many_bytes = sizeof(Shared<L, true>);
    return r;
}
template <class S, int kK, int kLanes>
constexpr Row kv(Dtype state) {
    return row<Kv<S, kK, kLanes>>("cuda/decode/kv", state);
}
template <class S, int kK, int kLoads>
constexpr Row vk(Dtype state) {
    return row<Vk<S, kK, kLoads>>("cuda/decode/vk", state);
}
constexpr Row kRows[] = {kv<float, 128, 16>(Dtype::fp32),         kv<float, 128, 8>(Dtype::fp32),
                         kv<float, 64, 16>(Dtype::fp32),          kv<float, 64, 8>(Dtype::fp32),
                         kv<__nv_bfloat16, 128, 16>(Dtype::bf16), kv<__nv_bfloat16, 128, 8>(Dtype::bf16),
                         kv<__nv_bfloat16, 64, 16>(Dtype::bf16),  kv<__nv_bfloat16, 64, 8>(Dtype::bf16),
                         kv<__half, 128, 16>(Dtype::fp16),        kv<__half, 128, 8>(Dtype::fp16),
                         kv<__half, 64, 16>(Dtype::fp16),         kv<__half, 64, 8>(Dtype::fp16),
                         vk<float, 128, 16>(Dtype::fp32),         vk<float, 128, 8>(Dtype::fp32),
                         vk<float, 64, 8>(Dtype::fp32),           vk<float, 64, 4>(Dtype::fp32),
                         vk<__nv_bfloat16, 128, 16>(Dtype::bf16), vk<__nv_bfloat16, 128, 8>(Dtype::bf16),
                         vk<__nv_bfloat16, 64, 8>(Dtype::bf16),   vk<__nv_bfloat16, 64, 4>(Dtype::bf16),
                         vk<__half, 128, 16>(Dtype::fp16),        vk<__half, 128, 8>(Dtype::fp16),
                         vk<__half, 64, 8>(Dtype::fp16),          vk<__half, 64, 4>(Dtype::fp16)};

/// In the stream, to start when the kernel before lets it: every kernel waits by itself before it touches memory.
template <class... Arguments>
void launch(void (*kernel)(Arguments...), std::int64_t ctas, std::size_t shared, void* stream, Arguments... arguments) {
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(ctas);
    config.blockDim = kThreads;
    config.dynamicSmemBytes = shared;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &early;
    config.numAttrs = 1;
    checked(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
            "shared memory of a decode kernel");
    checked(cudaLaunchKernelEx(&config, kernel, arguments...), "launch of a decode kernel");
}

}  // namespace

void run(const NormalForm& nf, const Plan& plan, const Options& options) {
    if (!nf.pool)
        throw Error("device", "device: given CUDA tensors, expected CPU tensors: there is no CUDA prefill yet");
    const DecodeParams p = params_of(nf, plan);
    const auto& schedule = plan.schedule;
    if (plan.arithmetic.path == "cuda/decode/general") {
        const std::size_t bytes = general_bytes(nf.K, schedule.slice_v);
        return launch(decode_general, schedule.tasks, bytes, options.stream, p, static_cast<int>(schedule.slice_v));
    }
    const bool many = nf.tokens * nf.steps > 1;
    for (const Row& r : kRows)
        if (r.path == plan.arithmetic.path && r.state == nf.initial_state.dtype && r.K == nf.K &&
            r.columns == schedule.slice_v)
            if (const Kernel kernel = many ? r.many : r.one; kernel != nullptr)
                return launch(kernel, schedule.tasks, many ? r.many_bytes : r.one_bytes, options.stream, p);
    throw Error("plan", "plan: no CUDA kernel is called " + std::string(plan.arithmetic.path));
}

}  // namespace tidegate::cuda
