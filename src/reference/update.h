// One step of the recurrence: what recurrence and adjoint share.
#pragma once

#include <algorithm>

#include "problem/load.h"
#include "reference/policy.h"

namespace tidegate::reference {

template <class Real>
std::vector<Real> initial_state(const NormalForm& nf, std::int64_t n, std::int64_t h) {
    std::vector<Real> S(static_cast<std::size_t>(nf.K * nf.V), Real(0));
    if (!nf.initial_state.present()) return S;
    for (std::int64_t i = 0; i < nf.K; ++i)
        for (std::int64_t j = 0; j < nf.V; ++j)
            S[static_cast<std::size_t>(i * nf.V + j)] =
                load_as<Real>(nf.initial_state, offset_of(nf.initial_state, nf.source(n), h, i, j));
    return S;
}

/// x[j] += sum_i c[i] S[i, j]
template <class Real>
void add_read(const std::vector<Real>& c, const std::vector<Real>& S, std::vector<Real>& x) {
    const std::size_t V = x.size();
    for (std::size_t i = 0; i < c.size(); ++i)
        for (std::size_t j = 0; j < V; ++j) x[j] += c[i] * S[i * V + j];
}

template <class Real>
std::vector<Real> absolute(std::vector<Real> x) {
    for (Real& y : x) y = std::fabs(y);
    return x;
}

template <class Real>
struct Token {
    const NormalForm& nf;
    const Policy& policy;
    Step<Real> s;
    std::vector<Real> p;  ///< what this step reads from the state

    Token(const NormalForm& form, const Policy& how) : nf(form), policy(how), s(form), p(s.v.size()) {}

    void decay(std::vector<Real>& S) {
        for (std::size_t i = 0; i < s.g.size(); ++i) {
            const Real d = std::exp(s.g[i]);
            for (std::size_t j = 0; j < p.size(); ++j) S[i * p.size() + j] *= d;
        }
    }

    /// S <- D S + b (a^T S) + k v^T; in the tied form D S + k (v - (D S)^T (e o k))^T.
    void update(std::vector<Real>& S) {
        const std::size_t V = p.size();
        std::fill(p.begin(), p.end(), Real(0));
        if (nf.tied) {
            const bool late = policy.mistake == Mistake::error_before_decay;
            if (!late) decay(S);
            add_read(s.ek, S, p);
            if (late) decay(S);
            for (std::size_t i = 0; i < s.k.size(); ++i)
                for (std::size_t j = 0; j < V; ++j) S[i * V + j] += s.k[i] * (s.v[j] - p[j]);
        } else {
            const bool late = policy.mistake == Mistake::error_before_decay;
            if (!late) add_read(s.a, S, p);
            decay(S);
            if (late) add_read(s.a, S, p);
            for (std::size_t i = 0; i < s.k.size(); ++i)
                for (std::size_t j = 0; j < V; ++j) S[i * V + j] += s.b[i] * p[j] + s.k[i] * s.v[j];
        }
        if (policy.state != Dtype::fp64)
            for (Real& x : S) x = static_cast<Real>(round_to(static_cast<double>(x), policy.state));
    }

    /// Absolute values of the terms of the update that follows, given the state before it (or its own magnitude).
    std::vector<Real> magnitude(const std::vector<Real>& before) {
        std::vector<Real> S = absolute(before), read(p.size(), Real(0));
        if (!nf.tied) add_read(absolute(s.a), S, read);
        decay(S);
        if (nf.tied) add_read(absolute(s.ek), S, read);
        const std::vector<Real>& b = nf.tied ? s.k : s.b;
        for (std::size_t i = 0; i < s.k.size(); ++i)
            for (std::size_t j = 0; j < p.size(); ++j)
                S[i * p.size() + j] += std::fabs(b[i]) * read[j] + std::fabs(s.k[i] * s.v[j]);
        return S;
    }
};

}  // namespace tidegate::reference
