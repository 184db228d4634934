// One tiny gated-delta-rule forward through the public headers, against the recurrence written out in plain loops.
#include <cmath>
#include <cstdio>

#include <tidegate/tidegate.h>

int main() try {
    constexpr int T = 3, K = 2, V = 2;
    const float q[T][K] = {{1.0f, 0.5f}, {-0.5f, 1.0f}, {0.25f, -1.0f}};
    const float k[T][K] = {{0.6f, 0.8f}, {-0.8f, 0.6f}, {0.0f, 1.0f}};
    const float v[T][V] = {{1.0f, -2.0f}, {0.5f, 3.0f}, {-1.0f, 0.25f}};
    const float g[T] = {-0.1f, -0.5f, -1.0f};
    const float beta[T] = {0.5f, 1.0f, 0.25f};
    float o[T][V] = {}, final_state[K][V] = {};

    // [B, T, H, K] and so on with B = H = HV = 1; the views own nothing.
    using tidegate::Dtype;
    tidegate::Forward problem;
    problem.rule = tidegate::Rule::gdn;
    problem.q = tidegate::dense(q, Dtype::fp32, {1, T, 1, K});
    problem.k = tidegate::dense(k, Dtype::fp32, {1, T, 1, K});
    problem.v = tidegate::dense(v, Dtype::fp32, {1, T, 1, V});
    problem.g = tidegate::dense(g, Dtype::fp32, {1, T, 1});
    problem.beta = tidegate::dense(beta, Dtype::fp32, {1, T, 1});
    problem.o = tidegate::dense(o, Dtype::fp32, {1, T, 1, V});
    problem.final_state = tidegate::dense(final_state, Dtype::fp32, {1, 1, K, V});
    std::printf("Tidegate %s\n%s\n", TIDEGATE_VERSION, tidegate::plan(problem).text().c_str());
    tidegate::forward(problem);

    double worst = 0;
    bool ok = true;
    const auto compare = [&](double got, double want) {
        worst = std::fmax(worst, std::fabs(got - want));
        ok = ok && std::fabs(got - want) < 1e-6;  // false for a NaN too, which fmax would drop
    };
    // S <- exp(g) S;  S <- S + k (beta (v - S^T k))^T;  o = K^-0.5 S^T q
    double S[K][V] = {};
    for (int t = 0; t < T; ++t) {
        for (int j = 0; j < V; ++j) {
            double seen = 0, out = 0;
            for (int i = 0; i < K; ++i) seen += (S[i][j] *= std::exp(double{g[t]})) * k[t][i];
            for (int i = 0; i < K; ++i) S[i][j] += k[t][i] * beta[t] * (v[t][j] - seen);
            for (int i = 0; i < K; ++i) out += S[i][j] * q[t][i] / std::sqrt(double{K});
            compare(o[t][j], out);
        }
    }
    for (int i = 0; i < K; ++i)
        for (int j = 0; j < V; ++j) compare(final_state[i][j], S[i][j]);
    std::printf("%s: largest difference from the plain loops %.1e\n", ok ? "ok" : "WRONG", worst);
    return ok ? 0 : 1;
} catch (const tidegate::Error& e) {
    std::fprintf(stderr, "%s: %s\n", e.argument().c_str(), e.what());
    return 1;
}
