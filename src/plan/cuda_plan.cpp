#include "plan/cuda_plan.h"

#include <algorithm>

namespace tidegate {
namespace {

/// Whether 16-byte accesses along dimension `dense` are possible everywhere in a state tensor [.., K, V].
bool in_16_bytes(const Tensor& t, std::size_t dense) {
    const std::int64_t size = bytes_of(t.dtype);
    bool fits =
        reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && t.stride[dense] == 1 && t.shape[dense] * size % 16 == 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d)
        fits = fits && (d == dense || t.stride[d] * size % 16 == 0);
    return fits;
}

/// The dense dimension of a decode call's states: 'V', 'K', or 0 where neither allows 16-byte accesses.
char dense_dimension(const NormalForm& nf) {
    const Tensor &pool = nf.initial_state, &tokens = nf.state_tokens;
    if (nf.K != 64 && nf.K != 128) return 0;
    for (const auto& [name, from_last] : {std::pair{'V', std::size_t{1}}, {'K', std::size_t{2}}})
        if (in_16_bytes(pool, 4 - from_last) &&
            (!tokens.present() || (tokens.dtype == pool.dtype && in_16_bytes(tokens, 5 - from_last))))
            return name;
    return 0;
}

}  // namespace

Plan plan_cuda(const NormalForm& nf) {
    Plan plan;
    auto& a = plan.arithmetic;
    auto& s = plan.schedule;
    a.isa = "sm_90a";
    a.bucket_k = nf.K;
    a.bucket_v = nf.V;
    a.pass = 1;
    a.operands = "fp32";
    a.accumulate = "fp32";
    s.threads = static_cast<int>(kDecodeThreads);
    if (!nf.pool) {
        a.path = "cuda/none";  // there is no prefill kernel yet
        return plan;
    }
    const std::int64_t size = bytes_of(nf.initial_state.dtype), heads = nf.batch * nf.value_heads;
    const char dense = dense_dimension(nf);
    const auto slices = [&] { return (nf.V + s.slice_v - 1) / s.slice_v; };
    a.path = dense == 'V' ? "cuda/decode/kv" : dense == 'K' ? "cuda/decode/vk" : "cuda/decode/general";
    if (dense == 0) {
        s.slice_v = 32;  // columns side by side; fewer where K fills shared memory, or V has fewer
        while (s.slice_v > 1 && (s.slice_v * nf.K * 4 > kGeneralBytes || s.slice_v / 2 >= nf.V)) s.slice_v /= 2;
    }
    const bool stays = nf.tokens * nf.steps > 1;
    for (const DecodeShape& shape : kDecodeShapes) {
        if (shape.dense != dense || shape.state_bytes != size || shape.K != nf.K) continue;
        s.slice_v = shape.columns;
        if (heads * slices() >= shape.ctas && !(stays && shape.columns * shape.K > 64 * kDecodeThreads)) break;
    }
    s.tasks = heads * slices();
    return plan;
}

}  // namespace tidegate
