// A checked problem in the normal form: views are renamed and re-strided, nothing is copied.
#include <cmath>

#include "problem/gradients.h"
#include "problem/normal_form.h"
#include "problem/number.h"
#include "problem/rules.h"

namespace tidegate {
namespace {

/// `own`: the tensor of a strength that is no beta.
StrengthSource strength(Width width, const Inputs& p, const Tensor& own) {
    StrengthSource s;
    if (width == Width::one) return s;
    s.vector = width != Width::scalar;
    if (s.vector) {
        s.x = own;
        s.kind = StrengthKind::given;
        return s;
    }
    const bool logits = p.b.present();
    s.x = logits ? p.b : p.beta;
    s.kind = !logits ? StrengthKind::given : p.allow_neg_eigval ? StrengthKind::twice_sigmoid : StrengthKind::sigmoid;
    return s;
}

/// The last two dimensions as K, V.
Tensor state_as_kv(Tensor state, bool v_first) {
    if (state.present() && v_first) {
        const auto last = static_cast<std::size_t>(state.rank - 1);
        std::swap(state.shape[last - 1], state.shape[last]);
        std::swap(state.stride[last - 1], state.stride[last]);
    }
    return state;
}

/// [HV * K] as [HV, K].
Tensor by_head(Tensor t, std::int64_t K) {
    if (!t.present()) return t;
    t.rank = 2;
    t.shape = {t.shape[0] / K, K};
    t.stride = {t.stride[0] * K, t.stride[0]};
    return t;
}

GateSource gate(const RuleRow& row, const Inputs& p, std::int64_t K) {
    GateSource s;
    s.decay = row.decay;
    const bool logits = p.a.present();
    s.x = logits ? p.a : p.g;
    s.min = p.gate_min;
    if (!logits) return s;
    s.kind = p.gate_form == GateForm::softplus ? GateKind::softplus : GateKind::bounded;
    s.lower_bound = p.lower_bound;
    s.A_log = p.A_log;
    s.dt_bias = p.dt_bias;
    if (row.decay == Decay::vector) s.dt_bias = by_head(s.dt_bias, K);
    return s;
}

NormalForm lower_inputs(const Inputs& p) {
    const RuleRow& row = row_of(p.rule);
    NormalForm nf;
    nf.batch = nf.sequences = p.q.shape[0];
    nf.tokens = p.q.shape[1];
    nf.key_heads = p.q.shape[2];
    nf.K = p.q.shape[3];
    nf.value_heads = p.v.shape[2];
    nf.V = p.v.shape[3];
    nf.steps = p.n_householder;
    nf.tied = row.tied;
    nf.head_map = p.head_map;
    nf.qk_l2norm = p.qk_l2norm;
    nf.scale = p.scale.value_or(row.unit_scale ? 1.0 : 1.0 / std::sqrt(static_cast<double>(nf.K)));
    nf.q = p.q;
    nf.k = p.k;
    nf.v = p.v;
    nf.a = p.lr_a;
    nf.b = p.lr_b;
    nf.gate = gate(row, p, nf.K);
    nf.erase = strength(row.erase, p, p.erase);
    nf.write = strength(row.write, p, p.write);
    return nf;
}

}  // namespace

NormalForm lower(const Forward& p) {
    NormalForm nf = lower_inputs(p);
    if (p.cu_seqlens.present()) nf.sequences = p.cu_seqlens.shape[0] - 1;
    nf.cu_seqlens = p.cu_seqlens;
    nf.initial_state = state_as_kv(p.initial_state, p.state_v_first);
    nf.final_state = state_as_kv(p.final_state, p.state_v_first);
    nf.o = p.o;
    return nf;
}

NormalForm lower(const Decode& p) {
    NormalForm nf = lower_inputs(p);
    nf.pool = true;
    nf.initial_state = nf.final_state = state_as_kv(p.state, p.state_v_first);
    nf.state_tokens = state_as_kv(p.state_tokens, p.state_v_first);
    nf.state_indices = p.state_indices;
    nf.num_accepted = p.num_accepted;
    nf.null_slot = p.null_slot;
    nf.o = p.o;
    return nf;
}

BackwardForm lower(const Backward& p) {
    BackwardForm form;
    NormalForm& nf = form.nf = lower_inputs(p);
    if (p.cu_seqlens.present()) nf.sequences = p.cu_seqlens.shape[0] - 1;
    nf.cu_seqlens = p.cu_seqlens;
    nf.initial_state = state_as_kv(p.initial_state, p.state_v_first);
    form.d_o = p.d_o;
    form.dht = state_as_kv(p.dht, p.state_v_first);
    for (const GradientRow& row : gradients())
        if ((p.*row.gradient).present()) form.of(row.role) = p.*row.gradient;
    form.of(Role::h0) = state_as_kv(form.of(Role::h0), p.state_v_first);
    if (nf.gate.decay == Decay::vector) form.of(Role::dt_bias) = by_head(form.of(Role::dt_bias), nf.K);
    return form;
}

Span NormalForm::sequence(std::int64_t n) const {
    if (!cu_seqlens.present()) return {n, 0, tokens};
    return {0, load_index(cu_seqlens, n), load_index(cu_seqlens, n + 1)};
}

std::int64_t NormalForm::source(std::int64_t n) const {
    if (!pool) return n;
    std::int64_t slot = n;
    if (state_indices.rank == 2) {
        const std::int64_t accepted = num_accepted.present() ? load_index(num_accepted, n) : 1;
        if (accepted < 1 || accepted > state_indices.shape[1]) return -1;
        slot = load_index(state_indices, n, accepted - 1);
    } else if (state_indices.present()) {
        slot = load_index(state_indices, n);
    }
    return slot < 0 || slot == null_slot ? -1 : slot;
}

std::int64_t NormalForm::target(std::int64_t n, std::int64_t token) const {
    if (state_indices.rank == 2) {
        const std::int64_t slot = load_index(state_indices, n, token);
        return slot < 0 || slot == null_slot ? -1 : slot;
    }
    return token + 1 == sequence(n).end ? source(n) : -1;
}

}  // namespace tidegate
