// The chunked evaluation of the normal form, with every stage at hand. Clear, not fast.
//   tied: L = tril(ek K^T o exp(G_i - G_j), -1), A = (I + L)^{-1}, u = A v, w = A (ek o exp(G)), v_new = u - w S
//   free: the same with L = -tril(a B^T o exp(G_{i-1} - G_j), -1), since a acts before the decay;
//         u = A tril(a K^T o ..., -1) v, w = -A (a o exp(G_{i-1})), and v_new = u - w S is a^T S, written along b
//   o = scale ((q o exp(G)) S + tril(q K^T o exp(G_i - G_j)) v_new),  S <- exp(G_C) S + (k o exp(G_C - G))^T v_new
#include "reference/chunked.h"

#include "problem/load.h"

namespace tidegate::reference {
namespace {

template <class Real>
struct Matrix {
    std::size_t rows, cols;
    std::vector<Real> x;
    Matrix(std::size_t r, std::size_t c) : rows(r), cols(c), x(r * c, Real(0)) {}
    Real& operator()(std::size_t i, std::size_t j) { return x[i * cols + j]; }
    Real operator()(std::size_t i, std::size_t j) const { return x[i * cols + j]; }
};

template <class Real>
struct Chunk {
    const NormalForm& nf;
    const Policy& policy;
    std::size_t n, K, V;         ///< rows, channels, columns
    Matrix<Real> q, k, v, e, b;  ///< e: ek (tied) or -a (free); b: what v_new is written along
    Matrix<double> G, before;    ///< cumulative log-decay after row i, and where e acts
    Matrix<Real> A, u, w, v_new;

    Chunk(const NormalForm& form, const Policy& how, std::size_t rows)
        : nf(form),
          policy(how),
          n(rows),
          K(static_cast<std::size_t>(form.K)),
          V(static_cast<std::size_t>(form.V)),
          q(n, K),
          k(n, K),
          v(n, V),
          e(n, K),
          b(n, K),
          G(n, K),
          before(n, K),
          A(n, n),
          u(n, V),
          w(n, K),
          v_new(n, V) {}

    Real op(Real x) const {
        if (policy.operand == Dtype::fp64) return x;
        return static_cast<Real>(round_to(static_cast<double>(x), policy.operand));
    }

    void load(std::int64_t batch, std::int64_t token, std::int64_t head) {
        Step<Real> s(nf);
        std::vector<double> sum(K, 0.0);
        for (std::size_t i = 0; i < n; ++i) {
            const auto row = static_cast<std::int64_t>(i);
            s.load(nf, batch, token + row / nf.steps, head, row % nf.steps);
            for (std::size_t c = 0; c < K; ++c) {
                q(i, c) = s.q[c];
                k(i, c) = s.k[c];
                e(i, c) = nf.tied ? s.ek[c] : -s.a[c];
                b(i, c) = nf.tied ? s.k[c] : s.b[c];
                const double g = static_cast<double>(s.g[c]);
                before(i, c) = sum[c];
                sum[c] += g < -128 ? -128 : g;  // written so that NaN stays NaN
                G(i, c) = sum[c];
                if (nf.tied) before(i, c) = sum[c];
            }
            for (std::size_t j = 0; j < V; ++j) v(i, j) = s.v[j];
        }
    }

    static Real decay(double from, double to) { return std::exp(static_cast<Real>(to - from)); }

    /// sum_c x_i[c] exp(at_i[c] - G_j[c]) y_j[c]
    Real product(const Matrix<Real>& x, const Matrix<double>& at, std::size_t i, const Matrix<Real>& y,
                 std::size_t j) const {
        Real sum = 0;
        for (std::size_t c = 0; c < K; ++c) sum += op(x(i, c)) * decay(G(j, c), at(i, c)) * op(y(j, c));
        return sum;
    }

    /// out = op(X) op(Y)
    void multiply(const Matrix<Real>& X, const Matrix<Real>& Y, Matrix<Real>& out) const {
        for (std::size_t i = 0; i < X.rows; ++i)
            for (std::size_t m = 0; m < X.cols; ++m) {
                const Real x = op(X(i, m));
                if (x == 0) continue;  // masked entries
                for (std::size_t j = 0; j < Y.cols; ++j) out(i, j) += x * op(Y(m, j));
            }
    }

    void wy() {
        for (std::size_t i = 0; i < n; ++i) {  // forward substitution: row i of (I + L)^{-1}
            A(i, i) = 1;
            for (std::size_t j = 0; j < i; ++j) {
                const Real L = product(e, before, i, b, j);
                for (std::size_t m = 0; m <= j; ++m) A(i, m) -= L * A(j, m);
            }
        }
        Matrix<Real> right = v, eG(n, K);
        if (!nf.tied) {
            right = Matrix<Real>(n, V);
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t j = 0; j < i; ++j) {
                    const Real ak = -product(e, before, i, k, j);
                    for (std::size_t m = 0; m < V; ++m) right(i, m) += ak * v(j, m);
                }
        }
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t c = 0; c < K; ++c) eG(i, c) = e(i, c) * decay(0, before(i, c));
        multiply(A, right, u);
        multiply(A, eG, w);
    }

    void read_state(const Matrix<Real>& S) {
        Matrix<Real> wS(n, V);
        multiply(w, S, wS);
        for (std::size_t i = 0; i < u.x.size(); ++i) v_new.x[i] = u.x[i] - wS.x[i];
    }

    /// Rows of o of the tokens that end in this chunk: row i is a token's last step.
    Matrix<Real> output(const Matrix<Real>& S) const {
        Matrix<Real> qG(n, K), P(n, n), Pv(n, n), o(n, V);
        for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t c = 0; c < K; ++c) qG(i, c) = q(i, c) * decay(0, G(i, c));
            for (std::size_t j = 0; j <= i; ++j) {
                P(i, j) = product(q, G, i, b, j);
                if (!nf.tied) Pv(i, j) = product(q, G, i, k, j);
            }
        }
        multiply(qG, S, o);
        multiply(P, v_new, o);
        if (!nf.tied) multiply(Pv, v, o);
        for (Real& x : o.x) x *= static_cast<Real>(nf.scale);
        return o;
    }

    void write_state(Matrix<Real>& S) const {
        Matrix<Real> keys(K, n), more(K, n);
        for (std::size_t c = 0; c < K; ++c) {
            for (std::size_t j = 0; j < V; ++j) S(c, j) *= decay(0, G(n - 1, c));
            for (std::size_t i = 0; i < n; ++i) {
                keys(c, i) = b(i, c) * decay(G(i, c), G(n - 1, c));
                if (!nf.tied) more(c, i) = k(i, c) * decay(G(i, c), G(n - 1, c));
            }
        }
        multiply(keys, v_new, S);
        if (!nf.tied) multiply(more, v, S);
    }
};

template <class Real>
void keep(const Chunk<Real>& c, std::int64_t batch, std::int64_t token, std::int64_t head, const Matrix<Real>& S,
          Stages& out) {
    const NormalForm& nf = c.nf;
    const auto put = [&](std::vector<double>& to, const Matrix<Real>& m, std::size_t width) {
        to.resize(static_cast<std::size_t>(nf.batch * nf.tokens * nf.steps * nf.value_heads) * width);
        for (std::size_t i = 0; i < m.rows; ++i) {
            const std::int64_t row = (batch * nf.tokens + token) * nf.steps + static_cast<std::int64_t>(i);
            for (std::size_t j = 0; j < m.cols; ++j)
                to[static_cast<std::size_t>(row * nf.value_heads + head) * width + j] = static_cast<double>(m(i, j));
        }
    };
    put(out.A, c.A, static_cast<std::size_t>(out.rows));
    put(out.u, c.u, c.V);
    put(out.w, c.w, c.K);
    put(out.v_new, c.v_new, c.V);
    for (const Real x : S.x) out.h.push_back(static_cast<double>(x));
}

}  // namespace

template <class Real>
Answer chunked(const NormalForm& nf, std::int64_t C, const Policy& policy, Stages* stages) {
    Answer out(nf);
    if (stages != nullptr) stages->rows = C * nf.steps;
    const auto K = static_cast<std::size_t>(nf.K), V = static_cast<std::size_t>(nf.V);
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        if (nf.source(n) < 0) continue;
        const Span span = nf.sequence(n);
        std::vector<Matrix<Real>> states(static_cast<std::size_t>(nf.value_heads), Matrix<Real>(K, V));
        for (std::int64_t h = 0; h < nf.value_heads && nf.initial_state.present(); ++h)
            for (std::size_t i = 0; i < K * V; ++i)
                states[static_cast<std::size_t>(h)].x[i] =
                    load_as<Real>(nf.initial_state, offset_of(nf.initial_state, nf.source(n), h, i / V, i % V));
        for (std::int64_t begin = span.begin; begin < span.end; begin += C) {
            const std::int64_t tokens = std::min(C, span.end - begin);
            if (stages != nullptr) stages->chunk_begin.push_back(begin);
            for (std::int64_t h = 0; h < nf.value_heads; ++h) {
                Matrix<Real>& S = states[static_cast<std::size_t>(h)];
                Chunk<Real> chunk(nf, policy, static_cast<std::size_t>(tokens * nf.steps));
                chunk.load(span.batch, begin, h);
                chunk.wy();
                chunk.read_state(S);
                if (stages != nullptr) keep(chunk, span.batch, begin, h, S, *stages);
                const Matrix<Real> o = chunk.output(S);
                for (std::int64_t t = 0; t < tokens; ++t)
                    for (std::size_t j = 0; j < V; ++j)
                        out.o[static_cast<std::size_t>((span.batch * nf.tokens + begin + t) * nf.value_heads + h) * V +
                              j] = static_cast<double>(o(static_cast<std::size_t>((t + 1) * nf.steps - 1), j));
                chunk.write_state(S);
            }
        }
        for (std::int64_t h = 0; h < nf.value_heads; ++h)
            for (std::size_t i = 0; i < K * V; ++i)
                out.final_state[static_cast<std::size_t>(n * nf.value_heads + h) * K * V + i] =
                    static_cast<double>(states[static_cast<std::size_t>(h)].x[i]);
    }
    return out;
}

template Answer chunked<float>(const NormalForm&, std::int64_t, const Policy&, Stages*);
template Answer chunked<double>(const NormalForm&, std::int64_t, const Policy&, Stages*);

}  // namespace tidegate::reference
