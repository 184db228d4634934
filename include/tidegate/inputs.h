// What every operation takes: a batch of tokens, their gates and strengths, and how they are read.
#pragma once

#include <optional>

#include "tidegate/rule.h"
#include "tidegate/tensor.h"

namespace tidegate {

enum class GateForm { softplus, bounded };
/// Which key head serves value head hv: grouped hv / (HV / H), tiled hv % H.
enum class HeadMap { grouped, tiled };

/// Last dimension dense for tensors with a K or V dimension, any other stride. Float tensors may each be fp32, bf16 or
/// fp16 (fp64 too on the reference).
///
/// S_t = D_t S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T,  o_t = scale S_t^T q_t,  D_t = Diag(exp(g_t));
/// docs/rules.md says what each rule makes of g, a, b and v, and where it is from. n is n_householder.
struct Inputs {
    Rule rule = Rule::gdn;

    Tensor q;        ///< [B, T, H, K]
    Tensor k;        ///< [B, T n, H, K]: the Householder steps of a token side by side
    Tensor v;        ///< [B, T n, HV, V]
    Tensor g;        ///< gdn, gdp [B, T, HV]; kda, gdn2, dplr, rwkv7 [B, T, HV, K]: natural log of the decay, <= 0;
                     ///< or `a` with `A_log`; deltanet and iplr have none
    Tensor beta;     ///< deltanet, gdn, kda, gdp [B, T n, HV]; or `b`
    Tensor erase;    ///< gdn2 [B, T, HV, K]: erase gate
    Tensor write;    ///< gdn2 [B, T, HV, V]: write gate
    Tensor lr_a;     ///< dplr, iplr, rwkv7 [B, T, HV, K]: a of the formula; acts on the state before its decay
    Tensor lr_b;     ///< dplr, iplr, rwkv7 [B, T, HV, K]: b of the formula
    Tensor a;        ///< shape of g: raw gate logits, absent when `g` is given
    Tensor b;        ///< shape of beta: raw beta logits, absent when `beta` is given
    Tensor A_log;    ///< [HV], with `a`
    Tensor dt_bias;  ///< [HV], or [HV * K] where g has channels, with `a`; may be absent (zeros)

    std::int64_t n_householder = 1;           ///< gdp: steps a token, >= 1; decay acts in the first, o reads the last
    std::optional<double> scale;              ///< default K^-0.5; rwkv7: 1
    bool qk_l2norm = false;                   ///< x / sqrt(sum x^2 + 1e-6) on q and k
    GateForm gate_form = GateForm::softplus;  ///< with `a`: -exp(A_log) softplus(a + dt_bias), or
                                              ///< lower_bound sigmoid(exp(A_log) (a + dt_bias))
    double lower_bound = -5;                  ///< of the bounded form, in [-5, 0)
    std::optional<double> gate_min;           ///< g = max(g, gate_min), <= 0
    bool allow_neg_eigval = false;            ///< with `b`: beta = 2 sigmoid(b)
    HeadMap head_map = HeadMap::grouped;
    bool state_v_first = false;  ///< states are [.., HV, V, K] instead of [.., HV, K, V]
    bool check_values = false;   ///< also reject g > 0, and requests that share a slot
};

}  // namespace tidegate
