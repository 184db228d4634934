// Prefill: o and final_state of a batch of sequences.
#pragma once

#include "tidegate/inputs.h"
#include "tidegate/plan.h"

namespace tidegate {

/// One forward call. B == 1 with cu_seqlens; else N = B.
struct Forward : Inputs {
    Tensor initial_state;  ///< [N, HV, K, V] ([N, HV, V, K] with state_v_first); may be absent (zeros)
    Tensor cu_seqlens;  ///< [N + 1] int32 or int64 in tokens, from 0 to T, non-decreasing; absent: N = B sequences of T

    // Outputs, written by the call. Rows of `o` past T are left untouched.
    Tensor o;            ///< [B, >= T, HV, V]
    Tensor final_state;  ///< shape of initial_state; may be absent
};

/// Throws Error naming the argument that breaks the contract; writes nothing then.
void forward(const Forward& problem, const Options& options = {});

/// The plan that forward() would follow. Checks the problem first.
Plan plan(const Forward& problem, const Options& options = {});

}  // namespace tidegate
