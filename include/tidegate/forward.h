// Prefill: o and final_state of a batch of sequences.
#pragma once

#include <optional>

#include "tidegate/plan.h"
#include "tidegate/rule.h"
#include "tidegate/tensor.h"

namespace tidegate {

enum class GateForm { softplus, bounded };
/// Which key head serves value head hv: grouped hv / (HV / H), tiled hv % H.
enum class HeadMap { grouped, tiled };

/// One forward call. Last dimension dense for tensors with a K or V dimension, any other stride. Float tensors may
/// each be fp32, bf16 or fp16 (fp64 too on the reference). B == 1 with cu_seqlens; else N = B.
///
/// S_t = D_t S_{t-1} + k_t (beta_t (v_t - (D_t S_{t-1})^T k_t))^T,  o_t = scale S_t^T q_t,  D_t = Diag(exp(g_t))
/// (gdn: Yang et al., "Gated Delta Networks", 2024; kda: Kimi Team, "Kimi Linear", 2025).
struct Forward {
    Rule rule = Rule::gdn;

    // Inputs.
    Tensor q;              ///< [B, T, H, K]
    Tensor k;              ///< [B, T, H, K]
    Tensor v;              ///< [B, T, HV, V]
    Tensor g;              ///< gdn [B, T, HV], kda [B, T, HV, K]: natural log of the decay, <= 0; or `a` with `A_log`
    Tensor beta;           ///< [B, T, HV]; or `b`
    Tensor a;              ///< shape of g: raw gate logits, absent when `g` is given
    Tensor b;              ///< shape of beta: raw beta logits, absent when `beta` is given
    Tensor A_log;          ///< [HV], with `a`
    Tensor dt_bias;        ///< [HV], kda [HV * K], with `a`; may be absent (zeros)
    Tensor initial_state;  ///< [N, HV, K, V] ([N, HV, V, K] with state_v_first); may be absent (zeros)
    Tensor cu_seqlens;     ///< [N + 1] int32 or int64, from 0 to T, non-decreasing; absent: N = B sequences of T

    // Outputs, written by the call. Rows of `o` past T are left untouched.
    Tensor o;            ///< [B, >= T, HV, V]
    Tensor final_state;  ///< shape of initial_state; may be absent

    // Options.
    std::optional<double> scale;              ///< default K^-0.5
    bool qk_l2norm = false;                   ///< x / sqrt(sum x^2 + 1e-6) on q and k
    GateForm gate_form = GateForm::softplus;  ///< with `a`: -exp(A_log) softplus(a + dt_bias), or
                                              ///< lower_bound sigmoid(exp(A_log) (a + dt_bias))
    double lower_bound = -5;                  ///< of the bounded form, in [-5, 0)
    std::optional<double> gate_min;           ///< g = max(g, gate_min), <= 0
    bool allow_neg_eigval = false;            ///< with `b`: beta = 2 sigmoid(b)
    HeadMap head_map = HeadMap::grouped;
    bool state_v_first = false;
    bool check_values = false;  ///< also reject g > 0
};

/// Throws Error naming the argument that breaks the contract; writes nothing then.
void forward(const Forward& problem, const Options& options = {});

/// The plan that forward() would follow. Checks the problem first.
Plan plan(const Forward& problem, const Options& options = {});

}  // namespace tidegate
