// The recurrence of the normal form: the simplest code in the repository.
#include "reference/recurrence.h"

#include <algorithm>

#include "reference/update.h"

namespace tidegate::reference {
namespace {

/// State number `at` of `to`.
template <class Real>
void keep(const std::vector<Real>& S, std::vector<double>& to, std::size_t at) {
    std::transform(S.begin(), S.end(), to.begin() + static_cast<std::ptrdiff_t>(at * S.size()),
                   [](Real x) { return static_cast<double>(x); });
}

template <class Real>
void sequence(const NormalForm& nf, const Policy& policy, std::int64_t n, std::int64_t h, Answer& out, Answer* mag) {
    const auto V = static_cast<std::size_t>(nf.V);
    const Real scale = static_cast<Real>(nf.scale);
    const Span span = nf.sequence(n);
    std::vector<Real> S = initial_state<Real>(nf, n, h), M = absolute(S), terms = M, o(V);
    Token<Real> token(nf, policy);
    for (std::int64_t t = span.begin; t < span.end; ++t) {
        const auto cell = static_cast<std::size_t>((span.batch * nf.tokens + t) * nf.value_heads + h), row = cell * V;
        const auto read = [&](const std::vector<Real>& q, const std::vector<Real>& state, std::vector<double>& to) {
            std::fill(o.begin(), o.end(), Real(0));
            add_read(q, state, o);
            for (std::size_t j = 0; j < V; ++j) to[row + j] = static_cast<double>(scale * o[j]);
        };
        if (policy.mistake == Mistake::chunk_reset && t > span.begin && (t - span.begin) % kResetChunk == 0)
            std::fill(S.begin(), S.end(), Real(0));
        for (std::int64_t step = 0; step < nf.steps; ++step) {
            token.s.load(nf, span.batch, t, h, step, policy.mistake == Mistake::decay_each_step);
            if (policy.mistake == Mistake::read_before_write && step == 0) read(token.s.q, S, out.o);
            if (mag != nullptr) {  // a step may cancel the one before it: that one's terms count too
                M = token.magnitude(terms);
                terms = token.magnitude(S);
            }
            token.update(S);
        }
        if (policy.mistake != Mistake::read_before_write) read(token.s.q, S, out.o);
        if (mag != nullptr) {
            read(absolute(token.s.q), M, mag->o);
            for (std::size_t j = 0; j < V; ++j) mag->o[row + j] = std::fabs(mag->o[row + j]);
        }
        if (!out.state_tokens.empty()) keep(S, out.state_tokens, cell);
        if (!out.state_tokens.empty() && mag != nullptr) keep(M, mag->state_tokens, cell);
    }
    const auto at = static_cast<std::size_t>(n * nf.value_heads + h);
    keep(S, out.final_state, at);
    if (mag != nullptr) keep(M, mag->final_state, at);
}

}  // namespace

template <class Real>
Answer recurrence(const NormalForm& nf, const Policy& policy, Answer* magnitude) {
    Answer out(nf);
    for (std::int64_t n = 0; n < nf.sequences; ++n)
        for (std::int64_t h = 0; h < nf.value_heads && nf.source(n) >= 0; ++h)
            sequence<Real>(nf, policy, n, h, out, magnitude);
    return out;
}

template Answer recurrence<float>(const NormalForm&, const Policy&, Answer*);
template Answer recurrence<double>(const NormalForm&, const Policy&, Answer*);
template Answer recurrence<long double>(const NormalForm&, const Policy&, Answer*);

namespace {

Tensor last_three(const Tensor& t) {
    Tensor last;
    last.rank = 3;
    for (std::size_t d = 0; d < 3; ++d) last.stride[d] = t.stride[static_cast<std::size_t>(t.rank) - 3 + d];
    return last;
}

}  // namespace

void store(const Answer& answer, const NormalForm& nf) {
    std::size_t i = 0;
    for (std::int64_t b = 0; b < nf.batch; ++b)
        for (std::int64_t t = 0; t < nf.tokens; ++t)
            for (std::int64_t h = 0; h < nf.value_heads; ++h)
                for (std::int64_t j = 0; j < nf.V; ++j)
                    store_element(nf.o.data, nf.o.dtype, offset_of(nf.o, b, t, h, j), answer.o[i++]);
    const auto state = [&nf](const std::vector<double>& from, std::size_t at, const Tensor& to, std::int64_t first) {
        for (std::int64_t h = 0; h < nf.value_heads; ++h)
            for (std::int64_t c = 0; c < nf.K; ++c)
                for (std::int64_t j = 0; j < nf.V; ++j)
                    store_element(to.data, to.dtype, first + offset_of(last_three(to), h, c, j), from[at++]);
    };
    if (nf.final_state.present())
        answer.each_stored(nf, [&](std::int64_t row, std::size_t at, const std::vector<double>& from) {
            state(from, at, nf.final_state, offset_of(nf.final_state, row));
        });
    const auto size = static_cast<std::size_t>(nf.value_heads * nf.K * nf.V);
    for (std::int64_t b = 0; nf.state_tokens.present() && b < nf.batch; ++b)
        for (std::int64_t t = 0; t < nf.tokens; ++t)
            state(answer.state_tokens, static_cast<std::size_t>(b * nf.tokens + t) * size, nf.state_tokens,
                  offset_of(nf.state_tokens, b, t));
}

}  // namespace tidegate::reference
