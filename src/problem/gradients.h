// Gradients: what each is of, what it is in the normal form, and a backward call lowered.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "problem/normal_form.h"
#include "tidegate/backward.h"

namespace tidegate {

/// What the normal form has a gradient of. Where beta is both strengths, `erase` stands for it.
enum class Role { q, k, v, gate, erase, write, a, b, A_log, dt_bias, h0 };
inline constexpr std::size_t kRoles = 11;

/// The one table of gradients, in the order they are reported.
struct GradientRow {
    const char* name;
    Tensor Backward::*input;
    Tensor Backward::*gradient;
    Role role;
};
std::span<const GradientRow> gradients();

/// A backward call in the normal form.
struct BackwardForm {
    NormalForm nf;                   ///< without outputs
    Tensor d_o;                      ///< [B, T, HV, V]
    Tensor dht;                      ///< [N, HV, K, V] by strides; may be absent
    std::array<Tensor, kRoles> out;  ///< by Role, shaped as shape() says; absent where not asked for

    Tensor& of(Role role) { return out[static_cast<std::size_t>(role)]; }
    const Tensor& of(Role role) const { return out[static_cast<std::size_t>(role)]; }

    /// Extents of a role's gradient: states as [N, HV, K, V], dt_bias as [HV, K] where gates have channels.
    std::vector<std::int64_t> shape(Role role) const;
    /// Whether the form has it at all.
    bool has(Role role) const;
    /// Whether one scalar is both strengths: it takes the gradients of both, as `erase`.
    bool one_strength() const {
        return nf.erase.kind != StrengthKind::one && !nf.erase.vector && nf.write.kind != StrengthKind::one &&
               !nf.write.vector;
    }
};

void check(const Backward& problem, bool allow_fp64 = false);
BackwardForm lower(const Backward& problem);

}  // namespace tidegate
