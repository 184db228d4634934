// What tests of the library share: tensors that own guarded memory, random problems, comparison of bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cases/random.h"
#include "cpu/kernels.h"
#include "problem/number.h"
#include "problem/rules.h"
#include "tidegate/forward.h"

namespace tidegate::test {

using Sizes = std::vector<std::int64_t>;

/// All rules, or those that a predicate of src/problem/rules.h holds of.
inline std::vector<Rule> every_rule(bool (*has)(const RuleRow&) = nullptr) {
    std::vector<Rule> list;
    for (const RuleRow& row : rules())
        if (has == nullptr || has(row)) list.push_back(row.rule);
    return list;
}
/// Names the tests of a suite that runs once a rule.
inline std::string rule_name(const ::testing::TestParamInfo<Rule>& info) { return name_of(info.param); }

/// Calls f(offset in elements) for every element of a view, row-major.
template <class F>
void each(const Tensor& t, const F& f) {
    for (std::int64_t n = 0; n < t.size(); ++n) {
        std::int64_t rest = n, offset = 0;
        for (auto d = static_cast<std::size_t>(t.rank); d-- > 0; rest /= t.shape[d])
            offset += rest % t.shape[d] * t.stride[d];
        f(offset);
    }
}

inline std::vector<double> values(const Tensor& t) {
    std::vector<double> x;
    each(t, [&](std::int64_t at) { x.push_back(load_element(t.data, t.dtype, at)); });
    return x;
}

inline std::vector<std::uint64_t> bits(const Tensor& t) {
    std::vector<std::uint64_t> x;
    const std::int64_t size = bytes_of(t.dtype);
    each(t, [&](std::int64_t at) {
        x.push_back(0);
        std::memcpy(&x.back(), static_cast<const std::byte*>(t.data) + at * size, static_cast<std::size_t>(size));
    });
    return x;
}

/// "" when two views of one shape and dtype hold the same bits, else the first element that differs.
inline std::string difference(const Tensor& x, const Tensor& y) {
    if (shape_text(x) != shape_text(y) || x.dtype != y.dtype) return shape_text(x) + " against " + shape_text(y);
    const auto a = bits(x), b = bits(y);
    const auto n = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
    if (n == a.size()) return "";
    return "element " + std::to_string(n) + " of " + shape_text(x) + ": " + std::to_string(values(x)[n]) + " against " +
           std::to_string(values(y)[n]);
}

/// Entries [first, first + count) of one dimension.
inline Tensor narrow(Tensor t, std::size_t dimension, std::int64_t first, std::int64_t count) {
    if (!t.present()) return t;
    t.data = static_cast<std::byte*>(t.data) + first * t.stride[dimension] * bytes_of(t.dtype);
    t.shape[dimension] = count;
    return t;
}

/// Row-major strides with a gap behind every last dimension.
inline Sizes gapped(const Sizes& shape, std::int64_t gap) {
    Sizes stride(shape.size(), 1);
    for (std::size_t d = shape.size() - 1; d-- > 0;)
        stride[d] = stride[d + 1] * shape[d + 1] + (d + 2 == shape.size() ? gap : 0);
    return stride;
}

/// A tensor that owns its bytes: any stride, negative too; gaps and 64 bytes on either side hold a guard pattern, as
/// the elements do until they are written.
class Owned {
public:
    Owned() = default;
    Owned(Dtype dtype, const Sizes& shape, const Sizes& stride = {}) {
        const Sizes steps = stride.empty() ? gapped(shape, 0) : stride;
        t_.dtype = dtype;
        t_.rank = static_cast<std::int32_t>(shape.size());
        std::int64_t low = 0, high = 0;
        for (std::size_t d = 0; d < shape.size(); ++d) {
            t_.shape[d] = shape[d];
            t_.stride[d] = steps[d];
            (steps[d] < 0 ? low : high) += (shape[d] - 1) * steps[d];
        }
        const std::int64_t elements = t_.size() == 0 ? 0 : high - low + 1;
        first_ = kGuard - (t_.size() == 0 ? 0 : low) * bytes_of(dtype);
        bytes_.assign(static_cast<std::size_t>(elements * bytes_of(dtype) + 2 * kGuard), kPattern);
    }

    Tensor view() const {
        Tensor t = t_;
        if (t.present()) t.data = const_cast<std::byte*>(bytes_.data()) + first_;
        return t;
    }
    const std::vector<std::byte>& bytes() const { return bytes_; }

    /// Element n, counted row-major, becomes f(n).
    template <class F>
    Owned& fill(const F& f) {
        std::int64_t n = 0;
        const Tensor t = view();
        each(t, [&](std::int64_t at) { store_element(t.data, t.dtype, at, f(n++)); });
        return *this;
    }
    Owned& normal(std::uint64_t seed, double size = 1) {
        const cases::Random random(seed, 99);
        return fill([&](std::int64_t n) { return random.normal(static_cast<std::uint64_t>(n)) * size; });
    }

    /// True if no byte but those of `written`, a view into this memory, has changed.
    bool intact_outside(const Tensor& written) const {
        std::vector<std::byte> rest = bytes_;
        const auto base = static_cast<const std::byte*>(written.data) - bytes_.data();
        const std::int64_t size = bytes_of(t_.dtype);
        each(written, [&](std::int64_t at) { std::fill_n(rest.begin() + base + at * size, size, kPattern); });
        return std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == kPattern; });
    }

private:
    static constexpr std::int64_t kGuard = 64;
    static constexpr std::byte kPattern{0xC3};
    Tensor t_;
    std::int64_t first_ = 0;
    std::vector<std::byte> bytes_;
};

/// Copies elements of one dtype between views of one shape.
inline void copy(const Tensor& from, const Tensor& to) {
    const auto x = bits(from);
    const std::int64_t size = bytes_of(to.dtype);
    std::size_t n = 0;
    each(to, [&](std::int64_t at) {
        std::memcpy(static_cast<std::byte*>(to.data) + at * size, &x[n++], static_cast<std::size_t>(size));
    });
}

struct Spec {
    Rule rule = Rule::gdn;
    Dtype dtype = Dtype::fp32;  ///< of all but g, beta, A_log, dt_bias and states, which are fp32
    std::int64_t B = 1, T = 1, H = 1, HV = 1, K = 1, V = 1;
    std::int64_t steps = 2;                                           ///< a token, where the rule has Householder steps
    Sizes lengths{};                                                  ///< of packed sequences; B = 1 and T their sum
    bool h0 = true, logits = false, l2norm = false, v_first = false;  ///< logits: for what the rule has of them
    std::int64_t gap = 0;
    std::uint64_t seed = 1;
};

/// Random inputs: |q|, |k| <= 1, gates from -2^-9 to -2, beta, erase and write in [0, 1); lr_a = -x and lr_b = e o x
/// with |x| <= 1 and e in [0, 1).
struct Problem {
    Spec spec;
    Owned q, k, v, g, beta, erase, write, lr_a, lr_b, a, b, A_log, dt_bias, h0, cu;

    explicit Problem(const Spec& s) : spec(s) {
        const RuleRow& row = row_of(s.rule);
        const bool vector = row.decay == Decay::vector;
        spec.steps = row.householder ? s.steps : 1;
        if (!s.lengths.empty()) {
            spec.T = 0;
            for (const std::int64_t n : s.lengths) spec.T += n;
            cu = Owned(Dtype::int64, {static_cast<std::int64_t>(s.lengths.size()) + 1});
            std::int64_t sum = 0;
            cu.fill([&](std::int64_t n) {
                return static_cast<double>(n == 0 ? 0 : sum += s.lengths[static_cast<std::size_t>(n - 1)]);
            });
        }
        const auto tensor = [&](Dtype dtype, const Sizes& shape) { return Owned(dtype, shape, gapped(shape, s.gap)); };
        const auto uniform = [&](std::uint64_t stream, std::int64_t n) {
            return cases::Random(s.seed, stream).uniform(static_cast<std::uint64_t>(n));
        };
        const double unit = 1 / std::sqrt(static_cast<double>(s.K));
        const std::int64_t rows = spec.T * spec.steps;
        q = tensor(s.dtype, {s.B, spec.T, s.H, s.K}).fill([&](auto n) { return (2 * uniform(1, n) - 1) * unit; });
        k = tensor(s.dtype, {s.B, rows, s.H, s.K}).fill([&](auto n) { return (2 * uniform(2, n) - 1) * unit; });
        v = tensor(s.dtype, {s.B, rows, s.HV, s.V}).normal(s.seed + 3);
        const Sizes heads{s.B, rows, s.HV}, wide{s.B, spec.T, s.HV, s.K};
        const Sizes gates = vector ? wide : Sizes{s.B, spec.T, s.HV};
        if (row.decay != Decay::none && s.logits) {
            a = tensor(s.dtype, gates).normal(s.seed + 4);
            A_log = Owned(Dtype::fp32, {s.HV}).normal(s.seed + 6, 0.5);
            dt_bias = Owned(Dtype::fp32, {vector ? s.HV * s.K : s.HV}).normal(s.seed + 7);
        } else if (row.decay != Decay::none) {
            g = tensor(Dtype::fp32, gates).fill([&](auto n) { return -std::exp2(1 - 10 * uniform(4, n)); });
        }
        if (has_beta(row) && s.logits) b = tensor(s.dtype, heads).normal(s.seed + 5);
        if (has_beta(row) && !s.logits) beta = tensor(Dtype::fp32, heads).fill([&](auto n) { return uniform(5, n); });
        if (row.erase == Width::vector_k) erase = tensor(s.dtype, wide).fill([&](auto n) { return uniform(6, n); });
        if (row.write == Width::vector_v)
            write = tensor(s.dtype, {s.B, spec.T, s.HV, s.V}).fill([&](auto n) { return uniform(7, n); });
        if (!row.tied) {
            const auto x = [&](auto n) { return (2 * uniform(8, n) - 1) * unit; };
            lr_a = tensor(s.dtype, wide).fill([&](auto n) { return -x(n); });
            lr_b = tensor(s.dtype, wide).fill([&](auto n) { return uniform(9, n) * x(n); });
        }
        if (s.h0) h0 = tensor(Dtype::fp32, state_shape()).normal(s.seed + 8);
    }

    std::int64_t sequences() const { return cu.view().present() ? cu.view().shape[0] - 1 : spec.B; }
    Sizes state_shape() const {
        return {sequences(), spec.HV, spec.v_first ? spec.V : spec.K, spec.v_first ? spec.K : spec.V};
    }
    /// Inputs and options; outputs are still absent.
    Forward view() const {
        Forward p;
        p.rule = spec.rule;
        p.n_householder = spec.steps;
        p.qk_l2norm = spec.l2norm;
        p.state_v_first = spec.v_first;
        p.q = q.view(), p.k = k.view(), p.v = v.view(), p.g = g.view(), p.beta = beta.view();
        p.erase = erase.view(), p.write = write.view(), p.lr_a = lr_a.view(), p.lr_b = lr_b.view();
        p.a = a.view(), p.b = b.view(), p.A_log = A_log.view(), p.dt_bias = dt_bias.view();
        p.initial_state = h0.view(), p.cu_seqlens = cu.view();
        return p;
    }
    std::vector<const Owned*> owned() const {
        return {&q, &k, &v, &g, &beta, &erase, &write, &lr_a, &lr_b, &a, &b, &A_log, &dt_bias, &h0, &cu};
    }
};

/// The inputs [B, rows, ..]: of tokens, and of their steps.
inline std::vector<Tensor*> of_tokens(Inputs& p) { return {&p.q, &p.g, &p.a, &p.erase, &p.write, &p.lr_a, &p.lr_b}; }
inline std::vector<Tensor*> of_steps(Inputs& p) { return {&p.k, &p.v, &p.beta, &p.b}; }
inline std::vector<Tensor*> of_rows(Inputs& p) {
    std::vector<Tensor*> all = of_tokens(p);
    for (Tensor* t : of_steps(p)) all.push_back(t);
    return all;
}

/// The problem restricted to tokens [first, first + count).
inline Forward tokens(Forward p, std::int64_t first, std::int64_t count) {
    for (Tensor* t : of_tokens(p)) *t = narrow(*t, 1, first, count);
    for (Tensor* t : of_steps(p)) *t = narrow(*t, 1, first * p.n_householder, count * p.n_householder);
    return p;
}

/// The inputs of batch row n; states stay as they are.
inline Forward batch_row(Forward p, std::int64_t n) {
    for (Tensor* t : of_rows(p)) *t = narrow(*t, 0, n, 1);
    return p;
}

struct Result {
    Owned o, state;
};

/// forward() into fresh memory; also checks that nothing around the outputs was written.
inline Result run(Forward p, int threads = 1, Dtype out = Dtype::fp32, Dtype state = Dtype::fp32) {
    const std::int64_t N = p.cu_seqlens.present() ? p.cu_seqlens.shape[0] - 1 : p.q.shape[0];
    const std::int64_t HV = p.v.shape[2], K = p.q.shape[3], V = p.v.shape[3];
    Result r{Owned(out, {p.q.shape[0], p.q.shape[1], HV, V}),
             Owned(state, {N, HV, p.state_v_first ? V : K, p.state_v_first ? K : V})};
    p.o = r.o.view();
    p.final_state = r.state.view();
    forward(p, {threads});
    EXPECT_TRUE(r.o.intact_outside(r.o.view())) << "memory around o was written";
    EXPECT_TRUE(r.state.intact_outside(r.state.view())) << "memory around final_state was written";
    return r;
}

/// Runs f() on every instruction set of this machine.
template <class F>
void on_every_isa(const F& f) {
    unsetenv("TIDEGATE_ISA");  // the first call reads it
    for (const std::string& isa : cpu::available_isas()) {
        SCOPED_TRACE("isa " + isa);
        cpu::force_isa(isa);
        ASSERT_EQ(cpu::current_isa(), isa);
        f();
        EXPECT_EQ(cpu::current_isa(), isa);
    }
    cpu::force_isa("");
}

}  // namespace tidegate::test
