#include "faults/faults.h"

#include <algorithm>
#include <array>

#include "faults/answer_faults.h"
#include "faults/input_faults.h"
#include "problem/number.h"
#include "tidegate/error.h"

namespace tidegate::faults {
namespace {

using reference::Mistake;
using reference::Policy;

std::int64_t longest(const NormalForm& nf) {
    std::int64_t length = 0;
    for (std::int64_t n = 0; n < nf.sequences; ++n)
        length = std::max(length, nf.sequence(n).end - nf.sequence(n).begin);
    return length;
}

/// Whether anything is computed: not so where all requests are pads.
bool stores(const NormalForm& nf) { return !stored_rows(nf).empty(); }
bool computes(const NormalForm& nf) {
    for (std::int64_t n = 0; n < nf.sequences; ++n)
        if (nf.source(n) >= 0) return true;
    return false;
}
bool any(const NormalForm& nf) { return longest(nf) >= 1 && computes(nf); }
bool two_tokens(const NormalForm& nf) { return longest(nf) >= 2 && computes(nf); }
bool two_heads(const NormalForm& nf) { return nf.value_heads >= 2; }
bool matrix_state(const NormalForm& nf) { return stores(nf) && nf.K > 1 && nf.V > 1; }
bool pads(const NormalForm& nf) {
    std::int64_t n = 0;
    for (std::int64_t i = 0; i < nf.sequences; ++i) n += nf.source(i) < 0 ? 1 : 0;
    return n > 0 && n < nf.sequences;
}
bool last_slot_kept(const NormalForm& nf) {
    return pads(nf) && (!stores(nf) || stored_rows(nf).back() + 1 < nf.final_state.shape[0]);
}
bool neighbour_kept(const NormalForm& nf) {
    if (!nf.pool) return false;
    const std::vector<std::int64_t> rows = stored_rows(nf);
    return std::any_of(rows.begin(), rows.end(), [&](std::int64_t row) {
        return row + 1 < nf.final_state.shape[0] && !std::binary_search(rows.begin(), rows.end(), row + 1);
    });
}
bool one_slot_each(const NormalForm& nf) {
    if (!nf.pool || nf.state_indices.rank != 1 || nf.sequences > nf.final_state.shape[0]) return false;
    for (std::int64_t n = 0; n < nf.sequences; ++n)
        if (nf.source(n) >= 0 && nf.source(n) != n) return true;
    return false;
}
bool far_slot(const NormalForm& nf) {
    for (std::int64_t n = 0; nf.pool && nf.state_indices.rank == 1 && n < nf.sequences; ++n)
        if (nf.source(n) >= kSlots32) return true;
    return false;
}
bool null_named(const NormalForm& nf) {
    if (!nf.null_slot || *nf.null_slot < 0 || nf.state_indices.rank != 1) return false;
    for (std::int64_t n = 0; n < nf.sequences; ++n)
        if (load_index(nf.state_indices, n) == *nf.null_slot) return true;
    return false;
}
bool accepts(const NormalForm& nf) {
    for (std::int64_t n = 0; nf.num_accepted.present() && n < nf.sequences; ++n)
        if (nf.source(n) >= 0 && load_index(nf.num_accepted, n) < nf.state_indices.shape[1]) return true;
    return false;
}
bool tokens_stored(const NormalForm& nf) { return nf.state_tokens.present() && nf.tokens > 1 && stores(nf); }
bool wide_pool(const NormalForm& nf) { return nf.pool && stores(nf) && nf.initial_state.dtype != Dtype::bf16; }
bool partial_tile(const NormalForm& nf) {
    for (std::int64_t n = 0; n < nf.sequences; ++n)
        if ((nf.sequence(n).end - nf.sequence(n).begin) % kTile != 0) return true;
    return false;
}
bool grouped_heads(const NormalForm& nf) { return nf.key_heads > 1 && nf.value_heads > nf.key_heads; }
bool packed(const NormalForm& nf) { return nf.cu_seqlens.present() && nf.sequences > 1 && nf.tokens > 0; }
bool strengths(const NormalForm& nf) { return any(nf) && nf.tied && nf.erase.kind != StrengthKind::one; }
bool decays(const NormalForm& nf) { return any(nf) && nf.gate.decay != Decay::none; }
bool decays_in_steps(const NormalForm& nf) { return decays(nf) && nf.steps > 1; }
bool decays_twice(const NormalForm& nf) { return two_tokens(nf) && nf.gate.decay != Decay::none; }
bool scaled(const NormalForm& nf) { return any(nf) && nf.scale != 1; }
bool two_chunks(const NormalForm& nf) { return longest(nf) > reference::kResetChunk; }

bool erasing_decays(const NormalForm& nf) { return decays(nf) && strengths(nf); }
bool one_strength(const NormalForm& nf) { return strengths(nf) && !nf.erase.vector; }
bool shared_keys(const NormalForm& nf) { return any(nf) && nf.value_heads > nf.key_heads; }
bool normalised(const NormalForm& nf) { return any(nf) && nf.qk_l2norm; }
bool clamped(const NormalForm& nf) { return decays(nf) && nf.gate.min.has_value(); }

template <Mistake kMistake>
void mistake(NormalForm&, Policy& policy) {
    policy.mistake = kMistake;
}

void bf16_state(NormalForm&, Policy& policy) { policy.state = Dtype::bf16; }
void no_decay(NormalForm& nf, Policy&) { nf.gate.decay = Decay::none; }
void beta_one(NormalForm& nf, Policy&) { nf.erase.kind = nf.write.kind = StrengthKind::one; }
void missing_scale(NormalForm& nf, Policy&) { nf.scale = 1; }

using AnswerFault = decltype(Fault::answer);
using InputFault = decltype(Fault::input);
using FormulaFault = decltype(Fault::formula);

constexpr const char* kEvery = "forward backward decode packed";
constexpr const char* kStateful = "forward decode packed";  // with o and a state to answer
constexpr const char* kBackward = "backward";

constexpr Fault row(const char* name, const char* what, decltype(Fault::applies) applies, AnswerFault f,
                    const char* passes = kStateful) {
    return {name, Where::answer, what, false, applies, f, nullptr, nullptr, passes};
}
constexpr Fault row(const char* name, const char* what, decltype(Fault::applies) applies, InputFault f, bool precision,
                    const char* passes = kEvery) {
    return {name, Where::input, what, precision, applies, nullptr, f, nullptr, passes};
}
constexpr Fault row(const char* name, const char* what, decltype(Fault::applies) applies, FormulaFault f,
                    bool precision, const char* passes = kEvery) {
    return {name, Where::formula, what, precision, applies, nullptr, nullptr, f, passes};
}

constexpr std::array kTable{
    row("zero-output", "o is all zeros", any, zero_output),
    row("nan-leak", "the last sequence's first token is NaN", any, nan_leak),
    row("stale-output", "the last rows of each sequence, 64 at most, hold earlier rows", two_tokens, stale_output),
    row("last-token-zero", "each sequence's last row of o is zero", any, last_token_zero),
    row("token-duplicated", "each sequence's middle row of o is the row before it", two_tokens, token_duplicated),
    row("tail-zero", "rows past the last full 64-token tile are zero", partial_tile, tail_zero),
    row("heads-swapped", "value heads 0 and 1 exchanged in o and the stored states", two_heads, heads_swapped),
    row("final-state-zero", "the stored states are all zeros", stores, final_state_zero),
    row("final-state-transposed", "the stored states in the other memory order", matrix_state, final_state_transposed),
    row("pad-output", "a pad's row of o holds another request's", pads, pad_output),
    row("pad-written", "a pad's state lands in the pool's last slot", last_slot_kept, pad_written),
    row("neighbour-slot", "a state's store runs into the next slot", neighbour_kept, neighbour_slot),
    row("state-tokens-last", "the state after every token is the last one", tokens_stored, state_tokens_last),
    row("beta-bf16", "beta rounded to bf16", strengths, beta_bf16, true),
    row("gate-bf16", "g rounded to bf16", decays, gate_bf16, true),
    row("gate-next-token", "each token decays by the next token's gate", decays_twice, gate_next_token, false),
    row("head-map", "grouped heads read as tiled, or the other way", grouped_heads, head_map, false),
    row("varlen-leak", "a packed sequence starts from the state the one before it left", packed, varlen_leak, false),
    row("varlen-off-by-one", "every inner cu_seqlens entry one too large", packed, varlen_off_by_one, false),
    row("slots-ignored", "request n uses slot n of the pool", one_slot_each, slots_ignored, false),
    row("slot-offset-32bit", "slots past 2047 wrap, as 32-bit byte offsets of 2 MiB slots do", far_slot,
        slot_offset_32bit, false),
    row("null-slot-ignored", "the null slot is read and written", null_named, null_slot_ignored, false),
    row("accepted-off-by-one", "the start slot is one column late", accepts, accepted_off_by_one, false),
    row("pool-bf16", "states are read from a bf16 pool", wide_pool, pool_bf16, true),
    row("error-before-decay", "the error term reads the state before decay (dplr, rwkv7: after it)", decays,
        mistake<Mistake::error_before_decay>, false, kStateful),
    row("decay-each-step", "every Householder step decays, not only a token's first", decays_in_steps,
        mistake<Mistake::decay_each_step>, false, kStateful),
    row("no-decay", "the gate is ignored", decays, no_decay, false),
    row("beta-one", "beta is ignored", strengths, beta_one, false),
    row("missing-scale", "scale is ignored", scaled, missing_scale, false),
    row("read-before-write", "o reads the state before the token's update", any, mistake<Mistake::read_before_write>,
        false, kStateful),
    row("bf16-state", "the state is rounded to bf16 after every token", any, bf16_state, true),
    row("chunk-reset", "the state is zeroed every 64 tokens", two_chunks, mistake<Mistake::chunk_reset>, false),
    row("dh0-zero", "the gradient of the initial state is all zeros", any, dh0_zero, kBackward),
    row("dv-next-token", "each sequence's rows of dv are those of the token after", two_tokens, dv_next_token,
        kBackward),
    row("dht-ignored", "the gradient of the final state is taken as zero", any, dht_ignored, false, kBackward),
    row("dh-chunk-reset", "the gradient of the state is zeroed every 64 tokens", two_chunks,
        mistake<Mistake::state_gradient_reset>, false, kBackward),
    row("dg-without-erase", "dg lacks what the gate does through the error term", erasing_decays,
        mistake<Mistake::gate_without_erase>, false, kBackward),
    row("dk-without-erase", "dk lacks its part in the error term", strengths, mistake<Mistake::key_without_erase>,
        false, kBackward),
    row("dbeta-without-erase", "dbeta lacks what beta does in the error term", one_strength,
        mistake<Mistake::strength_without_erase>, false, kBackward),
    row("last-head-only", "dq and dk are those of a group's last value head, not the sum", shared_keys,
        mistake<Mistake::last_head_only>, false, kBackward),
    row("norm-skipped", "dq and dk are those of the normalised rows", normalised, mistake<Mistake::norm_skipped>, false,
        kBackward),
    row("clamped-dg", "dg passes below gate_min", clamped, mistake<Mistake::clamped_gate_has_gradient>, false,
        kBackward),
};

}  // namespace

std::span<const Fault> table() { return kTable; }

bool applies(const Fault& fault, const std::string& pass, const NormalForm& nf) {
    // Where gates come from logits, a changed gate would have other gradients than those asked for.
    const bool logits = nf.gate.kind != GateKind::given || nf.erase.kind == StrengthKind::sigmoid ||
                        nf.erase.kind == StrengthKind::twice_sigmoid;
    const bool of_gates = fault.input == beta_bf16 || fault.input == gate_bf16 || fault.input == gate_next_token;
    if (pass == "backward" && of_gates && logits) return false;
    return std::string(fault.passes).find(pass) != std::string::npos && fault.applies(nf);
}

const Fault& find(const std::string& name) {
    std::string known;
    for (const Fault& fault : kTable) {
        if (name == fault.name) return fault;
        known += std::string(known.empty() ? "" : ", ") + fault.name;
    }
    throw Error("fault", "fault: given '" + name + "', expected one of " + known);
}

const char* name_of(Where where) {
    switch (where) {
        case Where::answer:
            return "answer";
        case Where::input:
            return "input";
        case Where::formula:
            return "formula";
        case Where::rank:
            return "rank";
        case Where::environment:
            return "environment";
    }
    return "?";
}

}  // namespace tidegate::faults
