#include "problem/gradients.h"

namespace tidegate {
namespace {

constexpr std::array kGradients{
    GradientRow{"dq", &Backward::q, &Backward::dq, Role::q},
    GradientRow{"dk", &Backward::k, &Backward::dk, Role::k},
    GradientRow{"dv", &Backward::v, &Backward::dv, Role::v},
    GradientRow{"dg", &Backward::g, &Backward::dg, Role::gate},
    GradientRow{"dbeta", &Backward::beta, &Backward::dbeta, Role::erase},
    GradientRow{"derase", &Backward::erase, &Backward::derase, Role::erase},
    GradientRow{"dwrite", &Backward::write, &Backward::dwrite, Role::write},
    GradientRow{"dlr_a", &Backward::lr_a, &Backward::dlr_a, Role::a},
    GradientRow{"dlr_b", &Backward::lr_b, &Backward::dlr_b, Role::b},
    GradientRow{"da", &Backward::a, &Backward::da, Role::gate},
    GradientRow{"db", &Backward::b, &Backward::db, Role::erase},
    GradientRow{"dA_log", &Backward::A_log, &Backward::dA_log, Role::A_log},
    GradientRow{"ddt_bias", &Backward::dt_bias, &Backward::ddt_bias, Role::dt_bias},
    GradientRow{"dh0", &Backward::initial_state, &Backward::dh0, Role::h0},
};

}  // namespace

std::span<const GradientRow> gradients() { return kGradients; }

std::vector<std::int64_t> BackwardForm::shape(Role role) const {
    const std::int64_t B = nf.batch, T = nf.tokens, R = nf.tokens * nf.steps, HV = nf.value_heads, K = nf.K, V = nf.V;
    const bool channels = nf.gate.decay == Decay::vector;
    switch (role) {
        case Role::q:
            return {B, T, nf.key_heads, K};
        case Role::k:
            return {B, R, nf.key_heads, K};
        case Role::v:
            return {B, R, HV, V};
        case Role::gate:
            return channels ? std::vector<std::int64_t>{B, T, HV, K} : std::vector<std::int64_t>{B, T, HV};
        case Role::erase:
            return nf.erase.vector ? std::vector<std::int64_t>{B, R, HV, K} : std::vector<std::int64_t>{B, R, HV};
        case Role::write:
            return nf.write.vector ? std::vector<std::int64_t>{B, R, HV, V} : std::vector<std::int64_t>{B, R, HV};
        case Role::a:
        case Role::b:
            return {B, T, HV, K};
        case Role::A_log:
            return {HV};
        case Role::dt_bias:
            return channels ? std::vector<std::int64_t>{HV, K} : std::vector<std::int64_t>{HV};
        case Role::h0:
            return {nf.sequences, HV, K, V};
    }
    return {};
}

bool BackwardForm::has(Role role) const {
    const bool logits = nf.gate.kind != GateKind::given && nf.gate.decay != Decay::none;
    switch (role) {
        case Role::gate:
            return nf.gate.decay != Decay::none;
        case Role::erase:
            return nf.erase.kind != StrengthKind::one;
        case Role::write:
            return nf.write.kind != StrengthKind::one && !one_strength();
        case Role::a:
        case Role::b:
            return !nf.tied;
        case Role::A_log:
            return logits;
        case Role::dt_bias:
            return logits && nf.gate.dt_bias.present();
        default:
            return true;
    }
}

}  // namespace tidegate
