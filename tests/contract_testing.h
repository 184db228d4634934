// What tests of the contract share: sequences and cuts of a problem as problems of their own.
#pragma once

#include "testing.h"

namespace tidegate::test {

inline Plan plan_of(Forward p) {
    const Owned o(Dtype::fp32, {p.q.shape[0], p.q.shape[1], p.v.shape[2], p.v.shape[3]});
    p.o = o.view();
    return plan(p);
}

inline std::int64_t pass_of(const Forward& p) { return plan_of(p).arithmetic.pass; }

/// Sequence n of a packed or batched problem as a problem of its own.
inline Forward alone(Forward p, std::int64_t n) {
    if (p.cu_seqlens.present()) {
        const auto* cu = static_cast<const std::int64_t*>(p.cu_seqlens.data);
        p = tokens(p, cu[n], cu[n + 1] - cu[n]);
        p.cu_seqlens = {};
    } else {
        p = batch_row(p, n);
    }
    p.initial_state = narrow(p.initial_state, 0, n, 1);
    return p;
}

/// The rows of o that belong to sequence n.
inline Tensor rows_of(const Forward& p, const Tensor& o, std::int64_t n) {
    if (!p.cu_seqlens.present()) return narrow(o, 0, n, 1);
    const auto* cu = static_cast<const std::int64_t*>(p.cu_seqlens.data);
    return narrow(o, 1, cu[n], cu[n + 1] - cu[n]);
}

inline Tensor state_of(const Result& r, std::int64_t n) { return narrow(r.state.view(), 0, n, 1); }

/// sqrt(sum (x - y)^2 / sum y^2)
inline double nrmse(const Tensor& got, const Tensor& want) {
    const auto x = values(got), y = values(want);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) error += (x[i] - y[i]) * (x[i] - y[i]), size += y[i] * y[i];
    return std::sqrt(error / std::max(size, 1e-300));
}

/// Two calls, the state handed on, against one: o and the final state.
struct Cut {
    Result whole, first, second;
    Tensor first_rows, second_rows;

    Cut(const Forward& p, std::int64_t at, int threads = 1) : whole(run(p, threads)), first(run(tokens(p, 0, at))) {
        Forward rest = tokens(p, at, p.q.shape[1] - at);
        rest.initial_state = first.state.view();
        second = run(rest, threads);
        first_rows = narrow(whole.o.view(), 1, 0, at);
        second_rows = narrow(whole.o.view(), 1, at, p.q.shape[1] - at);
    }
    std::string difference_to_whole() const {
        return difference(first.o.view(), first_rows) + difference(second.o.view(), second_rows) +
               difference(second.state.view(), whole.state.view());
    }
};

}  // namespace tidegate::test
