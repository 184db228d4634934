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
/// S_t = D_t S_{t-1} + k_t (beta_t (v_t - (D_t S_{t-1})^T k_t))^T,  o_t = scale S_t^T q_t,  D_t = Diag(exp(g_t))
/// (gdn: Yang et al., "Gated Delta Networks", 2024; kda: Kimi Team, "Kimi Linear", 2025).
struct Inputs {
    Rule rule = Rule::gdn;

    Tensor q;        ///< [B, T, H, K]
    Tensor k;        ///< [B, T, H, K]
    Tensor v;        ///< [B, T, HV, V]
    Tensor g;        ///< gdn [B, T, HV], kda [B, T, HV, K]: natural log of the decay, <= 0; or `a` with `A_log`
    Tensor beta;     ///< [B, T, HV]; or `b`
    Tensor a;        ///< shape of g: raw gate logits, absent when `g` is given
    Tensor b;        ///< shape of beta: raw beta logits, absent when `beta` is given
    Tensor A_log;    ///< [HV], with `a`
    Tensor dt_bias;  ///< [HV], kda [HV * K], with `a`; may be absent (zeros)

    std::optional<double> scale;              ///< default K^-0.5
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
