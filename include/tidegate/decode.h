// Decode: a few tokens of every request, on states that live in a pool and are updated in place.
#pragma once

#include "tidegate/inputs.h"
#include "tidegate/plan.h"

namespace tidegate {

/// One decode call: request n has T tokens (T >= 1) and starts from a slot of the pool.
///
/// state_indices [B]: request n reads slot state_indices[n] and leaves its state after token T - 1 there.
/// state_indices [B, W], T <= W (speculative decoding): it reads slot state_indices[n, num_accepted[n] - 1] (column 0
/// without num_accepted), and the state after token t goes to slot state_indices[n, t].
///
/// A request whose first slot is negative, or null_slot, or whose num_accepted is not in 1..W, is a pad: its rows of o
/// and state_tokens are zeros and the pool is not touched. A negative or null slot is never written. Slots that no
/// request names keep every bit. Offsets are 64-bit: a pool may be larger than 2^31 elements. Inside a call the state
/// is fp32, whatever the pool stores.
struct Decode : Inputs {
    Tensor state;          ///< [P, HV, K, V] ([P, HV, V, K] with state_v_first), read and written
    Tensor state_indices;  ///< [B] or [B, W] int32 or int64, below P; absent: slot n for request n
    Tensor num_accepted;   ///< [B] int32 or int64, with state_indices [B, W]; may be absent

    std::optional<std::int64_t> null_slot;  ///< a slot that stands for "none", as negative ones do

    // Outputs besides the state. Rows of `o` past T are left untouched.
    Tensor o;             ///< [B, >= T, HV, V]
    Tensor state_tokens;  ///< [B, T, HV, K, V] (V, K with state_v_first): the state after every token; may be absent
};

/// One token of every request, as serving engines hold it: q, k and v side by side in one row, and raw gate logits.
/// Gates and beta are formed in fp32 from the logits. Of Inputs, q, k, v, g and beta stay absent.
struct PackedDecode : Inputs {
    Tensor mixed_qkv;  ///< [B, 2 H K + HV V]: q, k, v of a request; any row stride. H follows from the width.
    // a [B, HV] (kda [B, HV, K]) with A_log, and b [B, HV]

    Tensor state;                           ///< as in Decode
    Tensor state_indices;                   ///< [B]; absent: slot n for request n
    std::optional<std::int64_t> null_slot;  ///< as in Decode

    Tensor o;  ///< [B, 1, HV, V]
};

/// Throws Error naming the argument that breaks the contract; writes nothing then.
void decode(const Decode& problem, const Options& options = {});
void packed_decode(const PackedDecode& problem, const Options& options = {});

/// The plan that the call would follow. Checks the problem first.
Plan plan(const Decode& problem, const Options& options = {});
Plan plan(const PackedDecode& problem, const Options& options = {});

}  // namespace tidegate
