// The adjoint of the recurrence. With G the gradient of the state after a step, P = D S the decayed state before it:
//   tied: u = v - P^T ek; dv = G^T k, dk = G u, d(ek) = -P dv, dP = G - ek dv^T, dg = rowsum(dP o P), G <- D dP
//   free: p = S^T a; dv = G^T k, dk = G v, dp = G^T b, db = G p, da = S dp, dg = rowsum(G o P), G <- D G + a dp^T
// and before that, at a token's last step, G += scale q do^T and dq = scale S do.
#include "reference/adjoint.h"

#include <numeric>

#include "problem/raise.h"
#include "reference/update.h"

namespace tidegate::reference {
namespace {

template <class Real>
using Vector = std::vector<Real>;

/// x[i] += sum_j S[i, j] c[j]
template <class Real>
void add_rows(const Vector<Real>& S, const Vector<Real>& c, Vector<Real>& x, Real factor = 1) {
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] += factor * std::transform_reduce(c.begin(), c.end(), S.data() + i * c.size(), Real(0));
}

/// S += factor x y^T
template <class Real>
void add_outer(const Vector<Real>& x, const Vector<Real>& y, Vector<Real>& S, Real factor = 1) {
    for (std::size_t i = 0; i < x.size(); ++i)
        for (std::size_t j = 0; j < y.size(); ++j) S[i * y.size() + j] += factor * x[i] * y[j];
}

/// Steps of one sequence and value head, from the last to the first. With `magnitudes` every term counts with its
/// absolute value, and a decay made from logits also with what a rounding of the gate moves it by.
template <class Real>
class Steps {
public:
    Steps(const BackwardForm& form, const Policy& policy, std::int64_t n, std::int64_t h, bool magnitudes,
          Gradients& out)
        : f_(form),
          nf_(form.nf),
          policy_(policy),
          batch_(nf_.sequence(n).batch),
          h_(h),
          hk_(nf_.key_head(h)),
          minus_(magnitudes ? Real(1) : Real(-1)),
          magnitudes_(magnitudes),
          out_(out),
          K_(static_cast<std::size_t>(nf_.K)),
          V_(static_cast<std::size_t>(nf_.V)) {}

    /// The token's output, read from the state S after its last step.
    void read(const Step<Real>& s, const Vector<Real>& S, std::int64_t t, Vector<Real>& G) {
        Vector<Real> d_o(V_), dq(K_, Real(0));
        for (std::size_t j = 0; j < V_; ++j) d_o[j] = abs(load_as<Real>(f_.d_o, offset_of(f_.d_o, batch_, t, h_, j)));
        const Real scale = abs(static_cast<Real>(nf_.scale));
        add_rows(S, d_o, dq, scale);
        add_outer(s.q, d_o, G, scale);
        raise_key(nf_.q, t, s.q, dq);
        add_to(Role::q, t * nf_.key_heads + hk_, nf_.tokens * nf_.key_heads, dq);
    }

    /// One update of the state S before it; G becomes the gradient of that.
    void update(const Step<Real>& s, const Vector<Real>& S, std::int64_t t, std::int64_t step, Vector<Real>& G) {
        Vector<Real> P = S, p(V_, Real(0)), dv(V_, Real(0)), dk(K_, Real(0)), de(K_, Real(0)), db(K_, Real(0)),
                     dg(K_, Real(0)), dp(V_, Real(0));
        decay(s.g, P);
        add_read(s.k, G, dv);
        if (nf_.tied) {
            add_read(s.ek, P, p);
            Vector<Real> u = s.v;
            for (std::size_t j = 0; j < V_; ++j) u[j] += minus_ * p[j];
            add_rows(G, u, dk);
            add_rows(P, dv, de, minus_);
            const Vector<Real> before = G;
            add_outer(s.ek, dv, G, minus_);
            gate(policy_.mistake == Mistake::gate_without_erase ? before : G, P, dg);
            decay(s.g, G);
        } else {
            add_read(s.a, S, p);
            add_read(s.b, G, dp);
            add_rows(G, s.v, dk);
            add_rows(G, p, db);
            add_rows(S, dp, de);
            gate(G, P, dg);
            decay(s.g, G);
            add_outer(s.a, dp, G);
        }
        raise(s, t, step, dk, de, db, dv, dg);
    }

private:
    Real abs(Real x) const { return magnitudes_ ? std::fabs(x) : x; }

    void decay(const Vector<Real>& g, Vector<Real>& S) const {
        for (std::size_t i = 0; i < K_; ++i) {
            Real d = std::exp(g[i]);
            if (magnitudes_ && nf_.gate.kind != GateKind::given) d *= 1 + std::min(std::fabs(g[i]), Real(128));
            for (std::size_t j = 0; j < V_; ++j) S[i * V_ + j] *= d;
        }
    }

    void gate(const Vector<Real>& dP, const Vector<Real>& P, Vector<Real>& dg) const {
        for (std::size_t i = 0; i < K_; ++i) {
            const Real* const row = dP.data() + i * V_;
            dg[i] += std::transform_reduce(row, row + V_, P.data() + i * V_, Real(0));
        }
    }

    /// Adds x to the elements of a role's row `at` of its batch row, which has `rows`.
    void add_to(Role role, std::int64_t at, std::int64_t rows, const Vector<Real>& x) {
        std::vector<double>& to = out_.of(role);
        const bool shared = role == Role::q || role == Role::k;
        const std::size_t first = static_cast<std::size_t>(batch_ * rows + at) * x.size();
        for (std::size_t i = 0; i < x.size(); ++i) {
            const Real sum =
                policy_.mistake == Mistake::last_head_only && shared ? x[i] : static_cast<Real>(to[first + i]) + x[i];
            to[first + i] = static_cast<double>(sum);
        }
    }
    void add_by_step(Role role, std::int64_t row, const Vector<Real>& x) {
        add_to(role, row * nf_.value_heads + h_, nf_.tokens * nf_.steps * nf_.value_heads, x);
    }
    void add_by_token(Role role, std::int64_t t, const Vector<Real>& x) {
        add_to(role, t * nf_.value_heads + h_, nf_.tokens * nf_.value_heads, x);
    }

    void raise_key(const Tensor& x, std::int64_t row, const Vector<Real>& normalised, Vector<Real>& d) const {
        if (nf_.qk_l2norm && policy_.mistake != Mistake::norm_skipped)
            raise_row(x, offset_of(x, batch_, row, hk_), normalised, minus_, d);
    }

    /// d(source's x) of a strength from the gradient of each of its values; a scalar has one value for all.
    Vector<Real> raise_strength(const StrengthSource& s, std::int64_t row, const Vector<Real>& d) const {
        Vector<Real> x(s.vector ? d.size() : 1, Real(0));
        for (std::size_t i = 0; i < d.size(); ++i) x[s.vector ? i : 0] += d[i];
        for (std::size_t i = 0; i < x.size(); ++i)
            x[i] *= abs(strength_slope(
                s.kind, load_as<Real>(s.x, offset_of(s.x, batch_, row, h_) + static_cast<std::int64_t>(i))));
        return x;
    }

    void raise(const Step<Real>& s, std::int64_t t, std::int64_t step, Vector<Real>& dk, const Vector<Real>& de,
               const Vector<Real>& db, const Vector<Real>& dv, const Vector<Real>& dg) {
        const std::int64_t row = t * nf_.steps + step;
        Vector<Real> to_erase(K_), to_write(V_), to_v(V_);
        for (std::size_t i = 0; i < K_ && nf_.tied; ++i) {
            const auto channel = static_cast<std::int64_t>(i);
            to_erase[i] = de[i] * s.k[i];
            if (policy_.mistake != Mistake::key_without_erase)
                dk[i] += abs(load_strength<Real>(nf_.erase, batch_, row, h_, channel)) * de[i];
        }
        for (std::size_t j = 0; j < V_; ++j) {
            const auto column = static_cast<std::int64_t>(j);
            to_v[j] = abs(load_strength<Real>(nf_.write, batch_, row, h_, column)) * dv[j];
            to_write[j] = abs(load_as<Real>(nf_.v, offset_of(nf_.v, batch_, row, h_) + column)) * dv[j];
        }
        if (f_.one_strength()) {
            Vector<Real> sum = raise_strength(nf_.write, row, to_write);
            if (policy_.mistake != Mistake::strength_without_erase)
                sum[0] += raise_strength(nf_.erase, row, to_erase)[0];
            add_by_step(Role::erase, row, sum);
        } else {
            if (f_.has(Role::erase)) add_by_step(Role::erase, row, raise_strength(nf_.erase, row, to_erase));
            if (f_.has(Role::write)) add_by_step(Role::write, row, raise_strength(nf_.write, row, to_write));
        }
        if (!nf_.tied) {
            add_by_token(Role::a, t, de);
            add_by_token(Role::b, t, db);
        }
        raise_key(nf_.k, row, s.k, dk);
        add_to(Role::k, row * nf_.key_heads + hk_, nf_.tokens * nf_.steps * nf_.key_heads, dk);
        add_by_step(Role::v, row, to_v);
        if (step == 0 && nf_.gate.decay != Decay::none) raise_gate(t, dg);
    }

    void raise_gate(std::int64_t t, const Vector<Real>& dg) {
        const GateSource& source = nf_.gate;
        const bool clamps = policy_.mistake != Mistake::clamped_gate_has_gradient;
        const bool vector = source.decay == Decay::vector;
        Vector<Real> d(vector ? K_ : 1, Real(0)), d_A_log(1, Real(0)), d_bias(d.size(), Real(0));
        for (std::size_t i = 0; i < K_; ++i) d[vector ? i : 0] += dg[i];
        const Real A_log = f_.has(Role::A_log) ? load_as<Real>(source.A_log, offset_of(source.A_log, h_)) : Real(0);
        for (std::size_t i = 0; i < d.size(); ++i) {
            const auto channel = static_cast<std::int64_t>(i);
            Real x = load_as<Real>(source.x, offset_of(source.x, batch_, t, h_) + channel);
            if (f_.has(Role::dt_bias))
                x += load_as<Real>(source.dt_bias,
                                   vector ? offset_of(source.dt_bias, h_, channel) : offset_of(source.dt_bias, h_));
            const GateSlope<Real> slope = gate_slope(source, A_log, x, clamps);
            d_A_log[0] += times(abs(slope.by_A_log), d[i]);
            d[i] = d_bias[i] = times(abs(slope.by_x), d[i]);
        }
        add_by_token(Role::gate, t, d);
        if (f_.has(Role::A_log)) add_parameter(Role::A_log, d_A_log);
        if (f_.has(Role::dt_bias)) add_parameter(Role::dt_bias, d_bias);
    }

    void add_parameter(Role role, const Vector<Real>& x) {
        std::vector<double>& to = out_.of(role);
        const std::size_t first = static_cast<std::size_t>(h_) * x.size();
        for (std::size_t i = 0; i < x.size(); ++i)
            to[first + i] = static_cast<double>(static_cast<Real>(to[first + i]) + x[i]);
    }

    const BackwardForm& f_;
    const NormalForm& nf_;
    const Policy& policy_;
    std::int64_t batch_, h_, hk_;
    Real minus_;
    bool magnitudes_;
    Gradients& out_;
    std::size_t K_, V_;
};

/// The state before every step, and after the last; `sizes`, if given, gets the terms that each was the sum of.
template <class Real>
std::vector<Vector<Real>> states(const NormalForm& nf, const Policy& policy, std::int64_t n, std::int64_t h,
                                 std::vector<Vector<Real>>* sizes) {
    const Span span = nf.sequence(n);
    std::vector<Vector<Real>> all{initial_state<Real>(nf, n, h)};
    if (sizes != nullptr) sizes->push_back(absolute(all.back()));
    Token<Real> token(nf, policy);
    Vector<Real> terms = absolute(all.back());
    for (std::int64_t t = span.begin; t < span.end; ++t) {
        if (policy.mistake == Mistake::chunk_reset && t > span.begin && (t - span.begin) % kResetChunk == 0)
            std::fill(all.back().begin(), all.back().end(), Real(0));
        for (std::int64_t step = 0; step < nf.steps; ++step) {
            token.s.load(nf, span.batch, t, h, step);
            if (sizes != nullptr) {
                sizes->push_back(token.magnitude(terms));
                terms = token.magnitude(all.back());
            }
            all.push_back(all.back());
            token.update(all.back());
        }
    }
    return all;
}

template <class Real>
Step<Real> sizes_of(Step<Real> s) {
    for (auto* x : {&s.q, &s.k, &s.v, &s.ek, &s.a, &s.b}) *x = absolute(std::move(*x));
    return s;
}

template <class Real>
void sequence(const BackwardForm& f, const Policy& policy, std::int64_t n, std::int64_t h, Gradients& out,
              Gradients* mag, Gradients* scratch) {
    const NormalForm& nf = f.nf;
    const Span span = nf.sequence(n);
    std::vector<Vector<Real>> sizes;
    const std::vector<Vector<Real>> S = states<Real>(nf, policy, n, h, mag != nullptr ? &sizes : nullptr);
    Vector<Real> G(static_cast<std::size_t>(nf.K * nf.V), Real(0));
    for (std::int64_t i = 0; f.dht.present() && i < nf.K; ++i)
        for (std::int64_t j = 0; j < nf.V; ++j)
            G[static_cast<std::size_t>(i * nf.V + j)] = load_as<Real>(f.dht, offset_of(f.dht, n, h, i, j));
    // Terms of G as of S: those of the step that made it, from the true gradient that the step started from.
    Vector<Real> M = absolute(G), next = M, before = M;
    Steps<Real> steps(f, policy, n, h, false, out), terms(f, policy, n, h, true, mag != nullptr ? *mag : out),
        carried(f, policy, n, h, true, scratch != nullptr ? *scratch : out);
    Step<Real> s(nf);
    for (std::int64_t t = span.end - 1; t >= span.begin; --t) {
        if (policy.mistake == Mistake::state_gradient_reset && (t + 1 - span.begin) % kResetChunk == 0 &&
            t + 1 < span.end)
            std::fill(G.begin(), G.end(), Real(0));
        for (std::int64_t step = nf.steps - 1; step >= 0; --step) {
            next = absolute(G);
            const auto at = static_cast<std::size_t>((t - span.begin) * nf.steps + step);
            s.load(nf, span.batch, t, h, step);
            if (step + 1 == nf.steps) steps.read(s, S[at + 1], t, G);
            steps.update(s, S[at], t, step, G);
            if (mag == nullptr) continue;
            const Step<Real> size = sizes_of(s);
            if (step + 1 == nf.steps) terms.read(size, sizes[at + 1], t, M);
            if (step + 1 == nf.steps) carried.read(size, sizes[at + 1], t, next);
            terms.update(size, sizes[at], t, step, M);
            carried.update(size, sizes[at], t, step, next);
            before = M;
            M = next;
        }
    }
    const auto keep = [&](const Vector<Real>& from, Gradients& to) {
        std::transform(from.begin(), from.end(),
                       to.of(Role::h0).begin() + static_cast<std::ptrdiff_t>((n * nf.value_heads + h) * nf.K * nf.V),
                       [](Real x) { return static_cast<double>(x); });
    };
    keep(G, out);
    if (mag != nullptr) keep(before, *mag);
}

}  // namespace

Gradients::Gradients(const BackwardForm& form) {
    for (std::size_t i = 0; i < kRoles; ++i) {
        const Role role = static_cast<Role>(i);
        if (!form.has(role)) continue;
        std::int64_t size = 1;
        for (const std::int64_t n : form.shape(role)) size *= n;
        by_role[i].resize(static_cast<std::size_t>(size));
    }
}

template <class Real>
Gradients adjoint(const BackwardForm& form, const Policy& policy, Gradients* magnitude) {
    Gradients out(form), scratch(form);
    for (std::int64_t n = 0; n < form.nf.sequences; ++n)
        for (std::int64_t h = 0; h < form.nf.value_heads; ++h)
            sequence<Real>(form, policy, n, h, out, magnitude, magnitude != nullptr ? &scratch : nullptr);
    return out;
}

template Gradients adjoint<float>(const BackwardForm&, const Policy&, Gradients*);
template Gradients adjoint<double>(const BackwardForm&, const Policy&, Gradients*);
template Gradients adjoint<long double>(const BackwardForm&, const Policy&, Gradients*);

void store(const Gradients& gradients, const BackwardForm& form) {
    for (std::size_t r = 0; r < kRoles; ++r) {
        const Tensor& to = form.out[r];
        if (!to.present()) continue;
        const std::vector<double>& from = gradients.by_role[r];
        for (std::size_t i = 0; i < from.size(); ++i) {
            std::int64_t offset = 0, rest = static_cast<std::int64_t>(i);
            for (auto d = static_cast<std::size_t>(to.rank); d-- > 0; rest /= to.shape[d])
                offset += rest % to.shape[d] * to.stride[d];
            store_element(to.data, to.dtype, offset, from[i]);
        }
    }
}

}  // namespace tidegate::reference
