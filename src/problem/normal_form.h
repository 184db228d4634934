// The normal form that every rule is lowered to, and all that oracle and kernels know:
//   S_t = D_t S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T,   o_t = scale S_t^T q_t,   D_t = Diag(exp(g_t))
// tied: a = -D (e o k), b = k, value w o v, so that  S_t = D S + k (w o v - (D S)^T (e o k))^T.
#pragma once

#include "tidegate/decode.h"
#include "tidegate/forward.h"

namespace tidegate {

enum class Decay { none, scalar, vector };
enum class GateKind { given, softplus, bounded };
enum class StrengthKind { one, given, sigmoid, twice_sigmoid };

/// Where log-decays come from. Sources are applied where tensors are loaded; nothing is materialised.
struct GateSource {
    Decay decay = Decay::none;
    GateKind kind = GateKind::given;
    Tensor x;        ///< [B, T, HV] scalar, [B, T, HV, K] vector: g, or logits a
    Tensor A_log;    ///< [HV]
    Tensor dt_bias;  ///< [HV] scalar, [HV, K] vector; may be absent
    double lower_bound = 0;
    std::optional<double> min;
};

/// Where an erase or write strength comes from.
struct StrengthSource {
    StrengthKind kind = StrengthKind::one;
    bool vector = false;
    Tensor x;  ///< [B, T * steps, HV] or [B, T, HV, K or V]
};

struct Span {
    std::int64_t batch, begin, end;  ///< rows [begin, end) of batch row `batch`
};

struct NormalForm {
    std::int64_t batch = 0, tokens = 0, sequences = 0, key_heads = 0, value_heads = 0, K = 0, V = 0;
    std::int64_t steps = 1;  ///< Householder steps a token; decay acts in the first, read-out follows the last
    bool tied = true;
    HeadMap head_map = HeadMap::grouped;
    bool qk_l2norm = false;
    double scale = 1;

    Tensor q;     ///< [B, T, H, K]
    Tensor k;     ///< [B, T * steps, H, K]
    Tensor v;     ///< [B, T * steps, HV, V]
    Tensor a, b;  ///< [B, T, HV, K], free form only
    GateSource gate;
    StrengthSource erase, write;
    Tensor cu_seqlens;                  ///< absent: sequence n is batch row n
    Tensor initial_state, final_state;  ///< [N or P, HV, K, V] by strides, whatever the caller's layout
    Tensor o;                           ///< [B, >= T, HV, V]

    // Decode: initial_state and final_state are one pool, and sequences name their slots in it.
    bool pool = false;
    Tensor state_indices, num_accepted;
    std::optional<std::int64_t> null_slot;
    Tensor state_tokens;  ///< [B, T, HV, K, V] by strides

    Span sequence(std::int64_t n) const;
    /// Row of initial_state that sequence n starts from; -1: a pad, of which nothing is computed.
    std::int64_t source(std::int64_t n) const;
    /// Row of final_state that takes sequence n's state after row `token` of its span; -1: none does.
    std::int64_t target(std::int64_t n, std::int64_t token) const;
    /// Whether states are stored after every token, not only after the last.
    bool every_token() const { return state_indices.rank == 2 || state_tokens.present(); }
    std::int64_t key_head(std::int64_t value_head) const {
        return head_map == HeadMap::grouped ? value_head / (value_heads / key_heads) : value_head % key_heads;
    }
};

/// Every rule of the contract, checked in one order at the door. Throws Error naming the argument. `allow_fp64` is
/// for the reference, which computes in double.
void check(const Forward& problem, bool allow_fp64 = false);
void check(const Decode& problem, bool allow_fp64 = false);

/// The packed call as views of a decode call. Throws Error where it is misshapen; check() does the rest.
Decode unpack(const PackedDecode& problem);

/// A problem that check() has passed, in the normal form.
NormalForm lower(const Forward& problem);
NormalForm lower(const Decode& problem);

}  // namespace tidegate
