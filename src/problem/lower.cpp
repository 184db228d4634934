// A checked problem in the normal form: views are renamed and re-strided, nothing is copied.
#include <cmath>

#include "problem/normal_form.h"
#include "problem/number.h"
#include "problem/rules.h"

namespace tidegate {
namespace {

StrengthSource strength(Width width, const Forward& p) {
    StrengthSource s;
    if (width == Width::one) return s;
    s.vector = width != Width::scalar;
    const bool logits = p.b.present();
    s.x = logits ? p.b : p.beta;
    s.kind = !logits ? StrengthKind::given : p.allow_neg_eigval ? StrengthKind::twice_sigmoid : StrengthKind::sigmoid;
    return s;
}

Tensor state_as_kv(Tensor state, bool v_first) {
    if (state.present() && v_first) {
        std::swap(state.shape[2], state.shape[3]);
        std::swap(state.stride[2], state.stride[3]);
    }
    return state;
}

GateSource gate(const RuleRow& row, const Forward& p, std::int64_t K) {
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
    if (row.decay == Decay::vector && s.dt_bias.present()) {  // [HV * K] as [HV, K]
        s.dt_bias.rank = 2;
        s.dt_bias.shape[0] = p.dt_bias.shape[0] / K;
        s.dt_bias.shape[1] = K;
        s.dt_bias.stride[1] = p.dt_bias.stride[0];
        s.dt_bias.stride[0] = p.dt_bias.stride[0] * K;
    }
    return s;
}

}  // namespace

NormalForm lower(const Forward& p) {
    const RuleRow& row = row_of(p.rule);
    NormalForm nf;
    nf.batch = p.q.shape[0];
    nf.tokens = p.q.shape[1];
    nf.sequences = p.cu_seqlens.present() ? p.cu_seqlens.shape[0] - 1 : nf.batch;
    nf.key_heads = p.q.shape[2];
    nf.K = p.q.shape[3];
    nf.value_heads = p.v.shape[2];
    nf.V = p.v.shape[3];
    nf.tied = row.tied;
    nf.head_map = p.head_map;
    nf.qk_l2norm = p.qk_l2norm;
    nf.scale = p.scale.value_or(row.unit_scale ? 1.0 : 1.0 / std::sqrt(static_cast<double>(nf.K)));
    nf.q = p.q;
    nf.k = p.k;
    nf.v = p.v;
    nf.gate = gate(row, p, nf.K);
    nf.erase = strength(row.erase, p);
    nf.write = strength(row.write, p);
    nf.cu_seqlens = p.cu_seqlens;
    nf.initial_state = state_as_kv(p.initial_state, p.state_v_first);
    nf.final_state = state_as_kv(p.final_state, p.state_v_first);
    nf.o = p.o;
    return nf;
}

Span NormalForm::sequence(std::int64_t n) const {
    if (!cu_seqlens.present()) return {n, 0, tokens};
    const auto entry = [&](std::int64_t i) {
        const std::int64_t at = offset_of(cu_seqlens, i);
        return cu_seqlens.dtype == Dtype::int32 ? static_cast<const std::int32_t*>(cu_seqlens.data)[at]
                                                : static_cast<const std::int64_t*>(cu_seqlens.data)[at];
    };
    return {0, entry(n), entry(n + 1)};
}

}  // namespace tidegate
