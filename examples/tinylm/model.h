// The model run through the library: a prompt in one call, or one byte at a time on states that are kept.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weights.h"

namespace tinylm {

/// What a sequence leaves behind, a block: the delta rule's state, and the inputs that the convolution still needs.
struct State {
    struct OfBlock {
        std::vector<float> delta;   ///< [1, value_heads, head_dim, head_dim]: final_state, or a pool of one slot
        std::vector<float> recent;  ///< [kTaps - 1, channels], oldest first
    };
    std::vector<OfBlock> blocks;

    explicit State(const Model& model);  ///< fresh: zeros
};

enum class Call { prefill, decode };   ///< tidegate::forward, or tidegate::decode
enum class Fault { none, beta_bf16 };  ///< beta_bf16: beta is rounded to bf16

/// What passed through the blocks, appended row by row.
struct Trace {
    struct OfBlock {
        std::vector<float> delta;   ///< [T, values]: the delta rule's output
        std::vector<float> stream;  ///< [T, width]: the residual stream behind the block
    };
    std::vector<OfBlock> blocks;
};

/// Logits [T, kBytes] of the bytes, one at least, which go on from `state`; it is left behind the last of them.
std::vector<float> advance(const Model& model, State& state, std::span<const std::byte> bytes, Call call,
                           Fault fault = Fault::none, Trace* trace = nullptr);

}  // namespace tinylm
