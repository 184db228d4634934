#include "faults/faults.h"

#include <algorithm>
#include <array>

#include "faults/answer_faults.h"
#include "faults/input_faults.h"
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

bool any(const NormalForm& nf) { return longest(nf) >= 1; }
bool two_tokens(const NormalForm& nf) { return longest(nf) >= 2; }
bool two_heads(const NormalForm& nf) { return nf.value_heads >= 2; }
bool always(const NormalForm&) { return true; }
bool matrix_state(const NormalForm& nf) { return nf.K > 1 && nf.V > 1; }
bool partial_tile(const NormalForm& nf) {
    for (std::int64_t n = 0; n < nf.sequences; ++n)
        if ((nf.sequence(n).end - nf.sequence(n).begin) % kTile != 0) return true;
    return false;
}
bool grouped_heads(const NormalForm& nf) { return nf.key_heads > 1 && nf.value_heads > nf.key_heads; }
bool packed(const NormalForm& nf) { return nf.cu_seqlens.present() && nf.sequences > 1 && nf.tokens > 0; }
bool strengths(const NormalForm& nf) { return any(nf) && nf.tied && nf.erase.kind != StrengthKind::one; }
bool decays(const NormalForm& nf) { return any(nf) && nf.gate.decay != Decay::none; }
bool tied_decays(const NormalForm& nf) { return decays(nf) && nf.tied; }
bool decays_twice(const NormalForm& nf) { return two_tokens(nf) && nf.gate.decay != Decay::none; }
bool scaled(const NormalForm& nf) { return any(nf) && nf.scale != 1; }
bool two_chunks(const NormalForm& nf) { return longest(nf) > reference::kResetChunk; }

void error_before_decay(NormalForm&, Policy& policy) { policy.mistake = Mistake::error_before_decay; }
void read_before_write(NormalForm&, Policy& policy) { policy.mistake = Mistake::read_before_write; }
void chunk_reset(NormalForm&, Policy& policy) { policy.mistake = Mistake::chunk_reset; }
void bf16_state(NormalForm&, Policy& policy) { policy.state = Dtype::bf16; }
void no_decay(NormalForm& nf, Policy&) { nf.gate.decay = Decay::none; }
void beta_one(NormalForm& nf, Policy&) { nf.erase.kind = nf.write.kind = StrengthKind::one; }
void missing_scale(NormalForm& nf, Policy&) { nf.scale = 1; }

using AnswerFault = decltype(Fault::answer);
using InputFault = decltype(Fault::input);
using FormulaFault = decltype(Fault::formula);

constexpr Fault row(const char* name, const char* what, decltype(Fault::applies) applies, AnswerFault f) {
    return {name, Where::answer, what, false, applies, f, nullptr, nullptr};
}
constexpr Fault row(const char* name, const char* what, decltype(Fault::applies) applies, InputFault f,
                    bool precision) {
    return {name, Where::input, what, precision, applies, nullptr, f, nullptr};
}
constexpr Fault row(const char* name, const char* what, decltype(Fault::applies) applies, FormulaFault f,
                    bool precision) {
    return {name, Where::formula, what, precision, applies, nullptr, nullptr, f};
}

constexpr std::array kTable{
    row("zero-output", "o is all zeros", any, zero_output),
    row("nan-leak", "the last sequence's first token is NaN", any, nan_leak),
    row("stale-output", "the last rows of each sequence, 64 at most, hold earlier rows", two_tokens, stale_output),
    row("last-token-zero", "each sequence's last row of o is zero", any, last_token_zero),
    row("token-duplicated", "each sequence's middle row of o is the row before it", two_tokens, token_duplicated),
    row("tail-zero", "rows past the last full 64-token tile are zero", partial_tile, tail_zero),
    row("heads-swapped", "value heads 0 and 1 exchanged in o and final_state", two_heads, heads_swapped),
    row("final-state-zero", "final_state is all zeros", always, final_state_zero),
    row("final-state-transposed", "final_state in the other memory order", matrix_state, final_state_transposed),
    row("beta-bf16", "beta rounded to bf16", strengths, beta_bf16, true),
    row("gate-bf16", "g rounded to bf16", decays, gate_bf16, true),
    row("gate-next-token", "each token decays by the next token's gate", decays_twice, gate_next_token, false),
    row("head-map", "grouped heads read as tiled, or the other way", grouped_heads, head_map, false),
    row("varlen-leak", "a packed sequence starts from the state the one before it left", packed, varlen_leak, false),
    row("varlen-off-by-one", "every inner cu_seqlens entry one too large", packed, varlen_off_by_one, false),
    row("error-before-decay", "the error term reads the state before decay", tied_decays, error_before_decay, false),
    row("no-decay", "the gate is ignored", decays, no_decay, false),
    row("beta-one", "beta is ignored", strengths, beta_one, false),
    row("missing-scale", "scale is ignored", scaled, missing_scale, false),
    row("read-before-write", "o reads the state before the token's update", any, read_before_write, false),
    row("bf16-state", "the state is rounded to bf16 after every token", any, bf16_state, true),
    row("chunk-reset", "the state is zeroed every 64 tokens", two_chunks, chunk_reset, false),
};

}  // namespace

std::span<const Fault> table() { return kTable; }

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
