// The checks of each operation, in one order: presence, shapes, lengths or slots, then what checks.h shares.
#include <algorithm>
#include <array>
#include <set>

#include "problem/checks.h"
#include "problem/gradients.h"
#include "problem/number.h"

namespace tidegate {
namespace {

using checks::Extents;
using checks::fail;
using checks::Named;
using checks::require;
using checks::Use;

/// Every tensor of Inputs, in the order of its declaration, then the operation's own.
template <std::size_t N>
std::array<Named, 13 + N> tensors_of(const Inputs& p, const std::array<Named, N>& own) {
    std::array<Named, 13 + N> all{{{"q", &p.q, Use::input},
                                   {"k", &p.k, Use::input},
                                   {"v", &p.v, Use::input},
                                   {"g", &p.g, Use::input},
                                   {"beta", &p.beta, Use::input},
                                   {"erase", &p.erase, Use::input},
                                   {"write", &p.write, Use::input},
                                   {"lr_a", &p.lr_a, Use::input},
                                   {"lr_b", &p.lr_b, Use::input},
                                   {"a", &p.a, Use::input},
                                   {"b", &p.b, Use::input},
                                   {"A_log", &p.A_log, Use::input},
                                   {"dt_bias", &p.dt_bias, Use::input}}};
    std::copy(own.begin(), own.end(), all.begin() + 13);
    return all;
}

void cu_seqlens(const NormalForm& nf, const Tensor& cu) {
    if (!cu.present()) return;
    require("cu_seqlens", cu, "[N + 1]");
    if (cu.rank != 1 || cu.shape[0] < 2) fail("cu_seqlens", "shape " + shape_text(cu), "[N + 1] with N >= 1");
    if (cu.dtype != Dtype::int32 && cu.dtype != Dtype::int64) fail("cu_seqlens", name_of(cu.dtype), "int32 or int64");
    if (cu.data == nullptr) fail("cu_seqlens", "a null pointer", "memory for " + shape_text(cu));
    if (nf.batch != 1) fail("cu_seqlens", "B = " + std::to_string(nf.batch), "B = 1 with packed sequences");
    if (nf.sequence(0).begin != 0) fail("cu_seqlens[0]", std::to_string(nf.sequence(0).begin), "0");
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        const Span s = nf.sequence(n);
        if (s.end < s.begin)
            fail("cu_seqlens[" + std::to_string(n + 1) + "]", std::to_string(s.end),
                 "at least cu_seqlens[" + std::to_string(n) + "] = " + std::to_string(s.begin));
    }
    const std::int64_t last = nf.sequence(nf.sequences - 1).end;
    if (last != nf.tokens)
        fail("cu_seqlens[" + std::to_string(nf.sequences) + "]", std::to_string(last),
             "the inputs' T = " + std::to_string(nf.tokens));
}

/// Slots that requests name: below the pool's size, and no slot for two requests. On a device they cannot be read.
void slots(const Decode& p, const Extents& e, bool readable) {
    const std::int64_t P = p.state.shape[0];
    if (!p.state_indices.present()) {
        if (p.num_accepted.present()) fail("num_accepted", "it without state_indices", "state_indices [B, W]");
        if (P < e.B) fail("state", "shape " + shape_text(p.state), "a slot for each of B = " + std::to_string(e.B));
        return;
    }
    const bool columns = p.state_indices.rank == 2;
    const std::int64_t W = columns ? p.state_indices.shape[1] : 1;
    if (p.state_indices.rank > 2) fail("state_indices", "shape " + shape_text(p.state_indices), "[B] or [B, W]");
    if (columns) {
        checks::indices("state_indices", p.state_indices, "[B, W]", {e.B, W});
        if (W < e.T)
            fail("state_indices", "shape " + shape_text(p.state_indices),
                 "[B, W] with W >= T = " + std::to_string(e.T));
    } else {
        checks::indices("state_indices", p.state_indices, "[B] or [B, W]", {e.B});
    }
    if (p.num_accepted.present()) {
        if (!columns) fail("num_accepted", "it with state_indices [B]", "state_indices [B, W]");
        checks::indices("num_accepted", p.num_accepted, "[B]", {e.B});
    }
    if (!readable) return;
    std::set<std::int64_t> others, own;  // slots of the requests before, and of this one; only where values are checked
    NormalForm sizes;                    // says which requests are pads: their slots are nobody's
    sizes.pool = true;
    sizes.state_indices = p.state_indices;
    sizes.num_accepted = p.num_accepted;
    sizes.null_slot = p.null_slot;
    for (std::int64_t n = 0; n < e.B; ++n) {
        const bool pad = sizes.source(n) < 0;
        for (std::int64_t w = 0; w < W; ++w) {
            const auto bad = [&](std::int64_t slot, const std::string& expected) {
                fail("state_indices[" + std::to_string(n) + (columns ? ", " + std::to_string(w) : "") + "]",
                     std::to_string(slot), expected);
            };
            const std::int64_t slot = columns ? load_index(p.state_indices, n, w) : load_index(p.state_indices, n);
            if (slot >= P) bad(slot, "a slot below the pool's " + std::to_string(P));
            if (!p.check_values || pad || slot < 0 || slot == p.null_slot) continue;
            if (others.count(slot) > 0) bad(slot, "a slot that no other request names");
            own.insert(slot);
        }
        others.merge(own);
        own.clear();
    }
}

}  // namespace

namespace {

/// The sequences of a prefill call; checks cu_seqlens.
std::int64_t sequences(const Tensor& cu, const Extents& e) {
    NormalForm sizes;
    sizes.batch = e.B;
    sizes.tokens = e.T;
    sizes.cu_seqlens = cu;
    sizes.sequences = cu.present() ? std::max<std::int64_t>(cu.shape[0] - 1, 0) : e.B;
    cu_seqlens(sizes, cu);
    return sizes.sequences;
}

}  // namespace

void check(const Forward& p, bool allow_fp64) {
    const auto tensors = tensors_of(p, std::array<Named, 4>{{{"initial_state", &p.initial_state, Use::state_in},
                                                             {"cu_seqlens", &p.cu_seqlens, Use::index},
                                                             {"o", &p.o, Use::output},
                                                             {"final_state", &p.final_state, Use::state_out}}});
    checks::sane(tensors);
    if (checks::on_device(tensors)) fail("q", "a CUDA tensor", "a CPU tensor: there is no CUDA prefill yet");
    const Extents e = checks::inputs(p);
    const std::int64_t N = sequences(p.cu_seqlens, e);
    checks::state("initial_state", p.initial_state, p, N, e);
    checks::output(p.o, e);
    checks::state("final_state", p.final_state, p, N, e);
    checks::rest(p, tensors, allow_fp64);
}

void check(const Backward& p, bool allow_fp64) {
    std::array<Named, 18> own{{{"initial_state", &p.initial_state, Use::input},
                               {"cu_seqlens", &p.cu_seqlens, Use::index},
                               {"do", &p.d_o, Use::input},
                               {"dht", &p.dht, Use::state_in}}};
    std::size_t at = 4;
    for (const GradientRow& row : gradients())
        own[at++] = {row.name, &(p.*row.gradient), row.role == Role::h0 ? Use::state_out : Use::output};
    const auto tensors = tensors_of(p, own);
    checks::sane(tensors);
    if (checks::on_device(tensors)) fail("q", "a CUDA tensor", "a CPU tensor: there is no CUDA backward yet");
    const Extents e = checks::inputs(p);
    const std::int64_t N = sequences(p.cu_seqlens, e);
    checks::state("initial_state", p.initial_state, p, N, e);
    checks::shape("do", p.d_o, "[B, T, HV, V]", {e.B, e.T, e.HV, e.V}, true);
    checks::state("dht", p.dht, p, N, e);
    for (const GradientRow& row : gradients()) {
        const Tensor &input = p.*row.input, &gradient = p.*row.gradient;
        if (row.role == Role::h0)
            checks::state(row.name, gradient, p, N, e);
        else if (gradient.present() && !input.present())
            fail(row.name, "it without " + std::string(row.name + 1), "none, or " + std::string(row.name + 1));
        else if (gradient.present())
            checks::like(row.name, gradient, row.name + 1, input);
    }
    checks::rest(p, tensors, allow_fp64);
}

void check(const Decode& p, bool allow_fp64) {
    const auto tensors = tensors_of(p, std::array<Named, 5>{{{"state", &p.state, Use::output},
                                                             {"state_indices", &p.state_indices, Use::index},
                                                             {"num_accepted", &p.num_accepted, Use::index},
                                                             {"o", &p.o, Use::output},
                                                             {"state_tokens", &p.state_tokens, Use::output}}});
    checks::sane(tensors);
    const bool device = checks::on_device(tensors);
    const Extents e = checks::inputs(p);
    if (e.T < 1) fail("q", "shape " + shape_text(p.q), "T >= 1");
    require("state", p.state, "[P, HV, K, V]");
    checks::state("state", p.state, p, p.state.shape[0], e, 'P');
    slots(p, e, !device);
    checks::output(p.o, e);
    if (p.state_tokens.present()) {
        if (p.state_v_first)
            checks::shape("state_tokens", p.state_tokens, "[B, T, HV, V, K]", {e.B, e.T, e.HV, e.V, e.K}, true);
        else
            checks::shape("state_tokens", p.state_tokens, "[B, T, HV, K, V]", {e.B, e.T, e.HV, e.K, e.V}, true);
    }
    checks::rest(p, tensors, allow_fp64);
}

Decode unpack(const PackedDecode& p) {
    const std::pair<const char*, const Tensor*> absent[] = {
        {"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"g", &p.g}, {"beta", &p.beta}};
    for (const auto& [name, tensor] : absent)
        if (tensor->present()) fail(name, "it with mixed_qkv", "mixed_qkv, a and b alone");
    const Named own[] = {{"mixed_qkv", &p.mixed_qkv, Use::input},
                         {"a", &p.a, Use::input},
                         {"b", &p.b, Use::input},
                         {"state", &p.state, Use::output},
                         {"o", &p.o, Use::output}};
    checks::sane(own);
    const RuleRow& row = row_of(p.rule);
    if (!packs(row)) fail("rule", row.name, "one that a packed row says all of: deltanet, gdn or kda");
    require("state", p.state, "[P, HV, K, V]");
    if (p.state.rank != 4) fail("state", "shape " + shape_text(p.state), "[P, HV, K, V]");
    const std::int64_t HV = p.state.shape[1], K = p.state.shape[p.state_v_first ? 3 : 2],
                       V = p.state.shape[p.state_v_first ? 2 : 3];
    if (HV < 1 || K < 1 || V < 1) fail("state", "shape " + shape_text(p.state), "HV, K, V >= 1");
    require("mixed_qkv", p.mixed_qkv, "[B, 2 H K + HV V]");
    if (p.mixed_qkv.rank != 2) fail("mixed_qkv", "shape " + shape_text(p.mixed_qkv), "[B, 2 H K + HV V]");
    if (p.mixed_qkv.shape[0] < 1) fail("mixed_qkv", "shape " + shape_text(p.mixed_qkv), "B >= 1");
    if (!is_float(p.mixed_qkv.dtype)) fail("mixed_qkv", name_of(p.mixed_qkv.dtype), "fp32, bf16 or fp16");
    const std::int64_t B = p.mixed_qkv.shape[0], width = p.mixed_qkv.shape[1], H = (width - HV * V) / (2 * K);
    if (B < 1 || H < 1 || width != 2 * H * K + HV * V || HV % H != 0)
        fail("mixed_qkv", "shape " + shape_text(p.mixed_qkv),
             "[B, 2 H K + HV V] with HV = " + std::to_string(HV) + ", K = " + std::to_string(K) +
                 ", V = " + std::to_string(V) + " of the state and HV a multiple of H");
    checks::shape("mixed_qkv", p.mixed_qkv, "[B, 2 H K + HV V]", {B, width}, true);
    if (p.state_indices.present() && p.state_indices.rank != 1)
        fail("state_indices", "shape " + shape_text(p.state_indices), "[B]");
    if (row.decay == Decay::vector)
        checks::shape("a", p.a, "[B, HV, K]", {B, HV, K}, true);
    else if (row.decay == Decay::none && p.a.present())
        fail("a", "it with rule " + std::string(row.name), "none: the rule has no a");
    else if (row.decay == Decay::scalar)
        checks::shape("a", p.a, "[B, HV]", {B, HV}, false);
    checks::shape("b", p.b, "[B, HV]", {B, HV}, false);

    Decode d;
    static_cast<Inputs&>(d) = p;
    const auto part = [&](std::int64_t first, std::int64_t heads, std::int64_t channels) {
        Tensor t = p.mixed_qkv;
        if (t.data != nullptr) t.data = static_cast<std::byte*>(t.data) + first * bytes_of(t.dtype);
        t.rank = 4;
        t.shape = {B, 1, heads, channels};
        t.stride = {p.mixed_qkv.stride[0], width, channels, 1};
        return t;
    };
    const auto one_token = [](Tensor t) {  // [B, HV, ..] as [B, 1, HV, ..]
        for (auto i = static_cast<std::size_t>(t.rank++); i > 1; --i) {
            t.shape[i] = t.shape[i - 1];
            t.stride[i] = t.stride[i - 1];
        }
        t.shape[1] = 1;
        return t;
    };
    d.q = part(0, H, K);
    d.k = part(H * K, H, K);
    d.v = part(2 * H * K, HV, V);
    if (p.a.present()) d.a = one_token(p.a);
    d.b = one_token(p.b);
    d.state = p.state;
    d.state_indices = p.state_indices;
    d.null_slot = p.null_slot;
    d.o = p.o;
    return d;
}

}  // namespace tidegate
