// The model as its file describes it: every size follows from the shapes of the tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "products.h"
#include "tidegate/rule.h"

namespace tinylm {

inline constexpr std::int64_t kBytes = 256;  // the vocabulary
inline constexpr std::int64_t kTaps = 4;     // of the causal convolution

struct Block {
    tidegate::Rule rule = tidegate::Rule::gdn;
    std::int64_t key_heads = 0, value_heads = 0, head_dim = 0;
    Matrix in;  ///< q, k, v, gate, a and b in one product, in this order
    Matrix o, up, down;
    std::vector<float> conv;  ///< [kTaps, channels]; the last tap is the current token's
    std::vector<float> n1, n2, norm, A_log, dt_bias;

    std::int64_t keys() const { return key_heads * head_dim; }
    std::int64_t values() const { return value_heads * head_dim; }
    std::int64_t channels() const { return 2 * keys() + values(); }  ///< of q, k and v together
    std::int64_t hidden() const { return down.in(); }
};

struct Model {
    std::int64_t width = 0;
    std::vector<float> embedding;  ///< [kBytes, width]
    Matrix logits;                 ///< the embedding again
    std::vector<float> nf;
    std::vector<Block> blocks;
};

/// Throws tidegate::Error for a file that does not hold such a model, whole and nothing else.
Model load_model(const std::string& path);

}  // namespace tinylm
