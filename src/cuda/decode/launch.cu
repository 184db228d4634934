// Decode on a device: parameters from the normal form, the plan's kernel, one launch.
#include <algorithm>
#include <string>
#include <string_view>

#include "cuda/checked.h"
#include "cuda/cuda.h"
#include "cuda/decode/bulk.cuh"
#include "plan/cuda_plan.h"
#include "tidegate/error.h"

namespace tidegate::cuda {
namespace {

View view_of(const Tensor& t) {
    View v{t.present() ? t.data : nullptr, t.dtype, {}};
    for (std::size_t d = 0; d < kMaxRank; ++d) v.stride[d] = t.stride[d];
    return v;
}

DecodeParams params_of(const NormalForm& nf, const Plan& plan) {
    DecodeParams p{};
    p.q = view_of(nf.q), p.k = view_of(nf.k), p.v = view_of(nf.v), p.a = view_of(nf.a), p.b = view_of(nf.b);
    p.gate = view_of(nf.gate.x), p.A_log = view_of(nf.gate.A_log), p.dt_bias = view_of(nf.gate.dt_bias);
    p.erase = view_of(nf.erase.x), p.write = view_of(nf.write.x), p.o = view_of(nf.o);
    p.state = view_of(nf.initial_state), p.state_tokens = view_of(nf.state_tokens);
    p.state_indices = view_of(nf.state_indices), p.num_accepted = view_of(nf.num_accepted);
    const auto extent = [](std::int64_t n) { return static_cast<int>(n); };  // the plan has checked their range
    p.B = extent(nf.batch), p.T = extent(nf.tokens), p.H = extent(nf.key_heads), p.HV = extent(nf.value_heads);
    p.K = extent(nf.K), p.V = extent(nf.V);
    p.P = nf.initial_state.shape[0];
    p.columns = nf.state_indices.rank == 2 ? extent(nf.state_indices.shape[1]) : 0;
    p.null_slot = nf.null_slot.value_or(-1);
    p.steps = extent(nf.steps);
    p.slices = extent((nf.V + plan.schedule.slice_v - 1) / plan.schedule.slice_v);
    p.slices_a_cta = extent(std::max<std::int64_t>(plan.schedule.round, 1));
    p.decay = nf.gate.decay, p.gate_kind = nf.gate.kind;
    p.erase_kind = nf.erase.kind, p.write_kind = nf.write.kind;
    p.erase_vector = nf.erase.vector, p.write_vector = nf.write.vector;
    p.tied = nf.tied, p.tiled = nf.head_map == HeadMap::tiled, p.l2norm = nf.qk_l2norm;
    p.has_min = nf.gate.min.has_value(), p.every_token = nf.every_token();
    p.scale = static_cast<float>(nf.scale), p.lower_bound = static_cast<float>(nf.gate.lower_bound);
    p.gate_min = static_cast<float>(nf.gate.min.value_or(0));
    return p;
}

using Kernel = void (*)(DecodeParams);

/// The inventory of kernels on 16-byte accesses: path, state type, K; for one row a request, for one row and many heads
/// whose states are whole blocks, and for several rows. All sum in one order.
struct Row {
    std::string_view path;
    Dtype state;
    std::int64_t K;
    Kernel one, bulk, many;
    std::size_t bulk_bytes;
};
template <class S, int kK>
constexpr Row kv(Dtype state) {
    Row row{"cuda/decode/kv", state, kK, step_kv<S, kK>, nullptr, decode_kv<S, kK>, 0};
    if constexpr (sizeof(S) == 4) {  // by measurement: a 16-bit slice needs more registers than the ring leaves
        row.bulk = step_bulk<S, kK>;
        row.bulk_bytes = sizeof(BulkShared<S, kK>);
    }
    return row;
}
template <class S, int kK>
constexpr Row vk(Dtype state) {
    return {"cuda/decode/vk", state, kK, step_vk<S, kK>, nullptr, decode_vk<S, kK>, 0};
}
constexpr Row kRows[] = {
    kv<float, 64>(Dtype::fp32),          kv<float, 128>(Dtype::fp32), kv<__nv_bfloat16, 64>(Dtype::bf16),
    kv<__nv_bfloat16, 128>(Dtype::bf16), kv<__half, 64>(Dtype::fp16), kv<__half, 128>(Dtype::fp16),
    vk<float, 64>(Dtype::fp32),          vk<float, 128>(Dtype::fp32), vk<__nv_bfloat16, 64>(Dtype::bf16),
    vk<__nv_bfloat16, 128>(Dtype::bf16), vk<__half, 64>(Dtype::fp16), vk<__half, 128>(Dtype::fp16)};

}  // namespace

void run(const NormalForm& nf, const Plan& plan, const Options& options) {
    if (!nf.pool)
        throw Error("device", "device: given CUDA tensors, expected CPU tensors: there is no CUDA prefill yet");
    const DecodeParams p = params_of(nf, plan);
    const auto ctas = static_cast<unsigned>(plan.schedule.tasks);
    const auto stream = static_cast<cudaStream_t>(options.stream);
    if (plan.arithmetic.path == "cuda/decode/general") {
        const std::size_t bytes = general_bytes(nf.K, plan.schedule.slice_v);
        checked(
            cudaFuncSetAttribute(decode_general, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
            "shared memory of the general decode kernel");
        decode_general<<<ctas, kGeneralThreads, bytes, stream>>>(p, static_cast<int>(plan.schedule.slice_v));
        return checked(cudaGetLastError(), "launch of cuda/decode/general");
    }
    for (const Row& row : kRows)
        if (row.path == plan.arithmetic.path && row.state == nf.initial_state.dtype && row.K == nf.K) {
            const auto threads = static_cast<unsigned>(plan.schedule.threads);
            if (plan.schedule.bulk) {
                checked(cudaFuncSetAttribute(row.bulk, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(row.bulk_bytes)),
                        "shared memory of a decode kernel");
                row.bulk<<<ctas, threads, row.bulk_bytes, stream>>>(p);
            } else {
                const bool one = p.T * p.steps == 1 && p.state_tokens.data == nullptr;
                (one ? row.one : row.many)<<<ctas, threads, 0, stream>>>(p);
            }
            return checked(cudaGetLastError(), "launch of a decode kernel");
        }
    throw Error("plan", "plan: no CUDA kernel is called " + std::string(plan.arithmetic.path));
}

}  // namespace tidegate::cuda
