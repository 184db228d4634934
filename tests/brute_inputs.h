// Inputs of tests against brute_force.h: tensors of any type and layout, and hand-built normal forms.
#pragma once

#include <deque>
#include <functional>
#include <random>

#include "brute_force.h"

namespace tidegate::brute {

/// Owns tensors; in a `spread` one every axis but the dense last has gaps and any place in memory, gaps hold NaN.
class Arena {
public:
    explicit Arena(std::uint64_t seed, bool spread = false) : random_(seed), spread_(spread) {}

    double uniform(double low, double high) { return std::uniform_real_distribution(low, high)(random_); }
    double normal(double sigma = 1) { return std::normal_distribution(0.0, sigma)(random_); }

    /// value(i) for the i-th element in row-major order. `last_dense` is false for tensors without K or V.
    template <class F>
    Tensor make(Dtype dtype, const std::vector<Index>& shape, F value, bool last_dense = true) {
        Tensor t;
        t.dtype = dtype;
        t.rank = static_cast<std::int32_t>(shape.size());
        std::vector<std::size_t> order;  // of axes, innermost first
        for (std::size_t axis = shape.size(); axis-- > 0;) order.push_back(axis);
        if (spread_) std::shuffle(order.begin() + last_dense, order.end(), random_);
        Index step = 1, count = 1;
        for (const std::size_t axis : order) {
            if (spread_ && !(last_dense && axis + 1 == shape.size())) step += Index(random_() % 3);
            t.shape[axis] = shape[axis];
            t.stride[axis] = step;
            step *= std::max<Index>(shape[axis], 1);
            count *= shape[axis];
        }
        memory.emplace_back(at(step * bytes_of(dtype)), '\xff');
        t.data = memory.back().data();
        for (Index i = 0; i < count; ++i) put(t, i, double(value(i)));
        return t;
    }
    /// Overwrites the i-th element in row-major order.
    static void put(const Tensor& t, Index i, double value) {
        Index offset = 0;
        for (std::size_t axis = at(t.rank); axis-- > 0; i /= t.shape[axis]) {
            offset += i % t.shape[axis] * t.stride[axis];
        }
        const auto write = [&](auto x) {
            std::memcpy(static_cast<char*>(t.data) + offset * Index(sizeof(x)), &x, sizeof(x));
        };
        if (t.dtype == Dtype::fp32) return write(static_cast<float>(value));
        if (t.dtype == Dtype::fp64) return write(value);
        if (t.dtype == Dtype::int32) return write(static_cast<std::int32_t>(value));
        if (t.dtype == Dtype::int64) return write(static_cast<std::int64_t>(value));
        write(encode16(value, mantissa_of(t.dtype)));
    }
    Tensor normals(Dtype dtype, const std::vector<Index>& shape, double sigma = 1) {
        return make(dtype, shape, [&](Index) { return normal(sigma); });
    }

    std::deque<std::vector<char>> memory;  ///< of every tensor made

private:
    std::mt19937_64 random_;
    bool spread_;
};

/// A hand-built normal form: keys of length about 1, strengths in (0, 1).
struct Form {
    Decay decay = Decay::scalar;
    bool tied = true, vector_erase = false, vector_write = false, h0 = true;
    Index steps = 1, B = 1, H = 1, HV = 1, K = 4, V = 3;
    std::vector<Index> cu = {};  ///< packed when not empty
    Index T = 8;
    std::function<double(Index token, Index channel)> gate = {};  ///< default: random, mild
};

inline NormalForm build(Arena& arena, const Form& f) {
    NormalForm nf;
    nf.batch = f.B, nf.tokens = f.T, nf.key_heads = f.H, nf.value_heads = f.HV, nf.K = f.K, nf.V = f.V;
    nf.sequences = f.cu.empty() ? f.B : Index(f.cu.size()) - 1;
    nf.steps = f.steps, nf.tied = nf.qk_l2norm = f.tied, nf.scale = 0.37;
    const Index rows = f.T * f.steps;
    const double unit = std::pow(double(f.K), -0.5);
    nf.q = arena.normals(Dtype::fp32, {f.B, f.T, f.H, f.K}, unit);
    nf.k = arena.normals(Dtype::fp32, {f.B, rows, f.H, f.K}, unit);
    nf.v = arena.normals(Dtype::fp32, {f.B, rows, f.HV, f.V});
    const auto strength = [&](bool vector, Index width) {
        const std::vector<Index> shape = {f.B, rows, f.HV, width};
        const auto value = [&](Index) { return arena.uniform(0.05, 0.95); };
        const Tensor x = arena.make(Dtype::fp32, {shape.begin(), shape.end() - (vector ? 0 : 1)}, value, vector);
        return StrengthSource{StrengthKind::given, vector, x};
    };
    if (f.tied) {
        nf.erase = strength(f.vector_erase, f.K), nf.write = strength(f.vector_write, f.V);
    } else {  // a near -b, both shorter than 1: the state hardly grows
        const auto [shape, count] = std::pair(std::vector<Index>{f.B, f.T, f.HV, f.K}, f.B * f.T * f.HV * f.K);
        const Vector r = vector(count, [&](Index) { return arena.normal(0.7 * unit); });
        nf.b = arena.make(Dtype::fp32, shape, [&](Index i) { return r[at(i)]; });
        nf.a = arena.make(Dtype::fp32, shape, [&](Index i) { return arena.normal(0.1 * unit) - r[at(i)]; });
    }
    nf.gate.decay = f.decay;
    if (f.decay != Decay::none) {
        const bool vector = f.decay == Decay::vector;
        const Index width = vector ? f.K : 1;
        const auto value = [&](Index i) {
            const Index token = i / (f.HV * width) % f.T;
            return f.gate ? f.gate(token, vector ? i % f.K : -1) : -arena.uniform(0, 0.5);
        };
        nf.gate.x = vector ? arena.make(Dtype::fp32, {f.B, f.T, f.HV, f.K}, value)
                           : arena.make(Dtype::fp32, {f.B, f.T, f.HV}, value, false);
    }
    const auto row_of = [&](Index i) { return f.cu[at(i)]; };
    if (!f.cu.empty()) nf.cu_seqlens = arena.make(Dtype::int32, {nf.sequences + 1}, row_of);
    if (f.h0) nf.initial_state = arena.normals(Dtype::fp32, {nf.sequences, f.HV, f.K, f.V});
    return nf;
}

}  // namespace tidegate::brute
