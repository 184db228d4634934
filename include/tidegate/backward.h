// Gradients of prefill: from those of o and final_state to those of every input.
#pragma once

#include "tidegate/inputs.h"
#include "tidegate/plan.h"

namespace tidegate {

/// One backward call for the Forward call with the same inputs: with L a scalar that depends on o and final_state,
/// it takes do = dL/do and dht = dL/d(final_state), recomputes what it needs, and writes the gradients that are asked
/// for. A gradient has the shape of its input, any float type and any strides that its input may have; those that stay
/// absent are not written, and one whose input is absent must be absent too (but dh0, the gradient of an initial state
/// of zeros). Heads of q and k that several value heads share get the sum over them; dA_log and ddt_bias the sum over
/// all tokens. Sums are formed in a fixed order: the same call gives the same bits.
///
/// Where g is below -128 or below gate_min, its gradient is 0. q and k are those before L2 normalisation.
struct Backward : Inputs {
    Tensor initial_state;  ///< as in Forward
    Tensor cu_seqlens;     ///< as in Forward
    Tensor d_o;            ///< [B, T, HV, V]: `do`
    Tensor dht;            ///< [N, HV, K, V] ([N, HV, V, K] with state_v_first); absent: zeros

    Tensor dq;        ///< [B, T, H, K]
    Tensor dk;        ///< [B, T n, H, K]
    Tensor dv;        ///< [B, T n, HV, V]
    Tensor dg;        ///< shape of g
    Tensor dbeta;     ///< [B, T n, HV]
    Tensor derase;    ///< [B, T, HV, K]
    Tensor dwrite;    ///< [B, T, HV, V]
    Tensor dlr_a;     ///< [B, T, HV, K]
    Tensor dlr_b;     ///< [B, T, HV, K]
    Tensor da;        ///< shape of a
    Tensor db;        ///< [B, T n, HV]
    Tensor dA_log;    ///< [HV]
    Tensor ddt_bias;  ///< shape of dt_bias
    Tensor dh0;       ///< shape of dht
};

/// Throws Error naming the argument that breaks the contract; writes nothing then.
void backward(const Backward& problem, const Options& options = {});

/// The plan that backward() would follow. Checks the problem first.
Plan plan(const Backward& problem, const Options& options = {});

}  // namespace tidegate
