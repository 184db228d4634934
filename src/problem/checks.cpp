// Checks that operations share: presence, shapes, strides, types, options, values, aliasing.
#include "problem/checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "problem/number.h"
#include "tidegate/error.h"

namespace tidegate::checks {
namespace {

std::string text(std::initializer_list<std::int64_t> shape) {
    std::string s = "[";
    for (const std::int64_t n : shape) s += (s.size() > 1 ? ", " : "") + std::to_string(n);
    return s + "]";
}

void float_type(const char* name, const Tensor& t, bool allow_fp64) {
    if (!t.present()) return;
    if (!is_float(t.dtype) || (t.dtype == Dtype::fp64 && !allow_fp64))
        fail(name, name_of(t.dtype), allow_fp64 ? "fp32, bf16, fp16 or fp64" : "fp32, bf16 or fp16");
}

/// Gates and strengths: those that the rule has, each once, and no others.
void gates(const Inputs& p, const RuleRow& row, const Extents& e) {
    const std::int64_t B = e.B, T = e.T, K = e.K, HV = e.HV, V = e.V,
                       R = e.T * e.n;  // clang 14: no structured bindings
    const std::pair<const char*, std::pair<const Tensor*, bool>> optional[] = {
        {"g", {&p.g, row.decay != Decay::none}},
        {"a", {&p.a, row.decay != Decay::none}},
        {"beta", {&p.beta, has_beta(row)}},
        {"b", {&p.b, has_beta(row)}},
        {"erase", {&p.erase, row.erase == Width::vector_k}},
        {"write", {&p.write, row.write == Width::vector_v}},
        {"lr_a", {&p.lr_a, !row.tied}},
        {"lr_b", {&p.lr_b, !row.tied}}};
    for (const auto& [name, use] : optional)
        if (use.first->present() && !use.second)
            fail(name, std::string("it with rule ") + row.name, "none: the rule has no " + std::string(name));
    const auto gate_shape = [&](const char* name, const Tensor& t) {
        if (row.decay == Decay::vector)
            shape(name, t, "[B, T, HV, K]", {B, T, HV, K}, true);
        else
            shape(name, t, "[B, T, HV]", {B, T, HV}, false);
    };
    if (p.g.present() && p.a.present()) fail("g", "both g and a", "one of them");
    if (p.beta.present() && p.b.present()) fail("beta", "both beta and b", "one of them");
    if (p.a.present()) {
        gate_shape("a", p.a);
        shape("A_log", p.A_log, "[HV]", {HV}, false);
        if (p.dt_bias.present()) {
            if (row.decay == Decay::vector)
                shape("dt_bias", p.dt_bias, "[HV * K]", {HV * K}, false);
            else
                shape("dt_bias", p.dt_bias, "[HV]", {HV}, false);
        }
    } else {
        if (row.decay != Decay::none) {
            if (!p.g.present())
                fail("g", "neither g nor a", row.decay == Decay::vector ? "g [B, T, HV, K]" : "g [B, T, HV]");
            gate_shape("g", p.g);
        }
        if (p.A_log.present()) fail("A_log", "A_log without a", "a with A_log, or g alone");
        if (p.dt_bias.present()) fail("dt_bias", "dt_bias without a", "a with A_log and dt_bias, or g alone");
    }
    const char* const rows = row.householder ? "[B, T n, HV]" : "[B, T, HV]";
    if (has_beta(row) && p.b.present())
        shape("b", p.b, rows, {B, R, HV}, false);
    else if (has_beta(row))
        shape("beta", p.beta, rows, {B, R, HV}, false);
    if (row.erase == Width::vector_k) shape("erase", p.erase, "[B, T, HV, K]", {B, T, HV, K}, true);
    if (row.write == Width::vector_v) shape("write", p.write, "[B, T, HV, V]", {B, T, HV, V}, true);
    if (row.tied) return;
    shape("lr_a", p.lr_a, "[B, T, HV, K]", {B, T, HV, K}, true);
    shape("lr_b", p.lr_b, "[B, T, HV, K]", {B, T, HV, K}, true);
}

void options(const Inputs& p) {
    const auto number = [](double x) {
        char text[32];
        std::snprintf(text, sizeof text, "%.9g", x);
        return std::string(text);
    };
    if (p.head_map != HeadMap::grouped && p.head_map != HeadMap::tiled)
        fail("head_map", number(static_cast<double>(p.head_map)), "grouped or tiled");
    if (p.gate_form != GateForm::softplus && p.gate_form != GateForm::bounded)
        fail("gate_form", number(static_cast<double>(p.gate_form)), "softplus or bounded");
    if (p.scale && !std::isfinite(static_cast<float>(*p.scale)))
        fail("scale", number(*p.scale), "a number that is finite in fp32");
    if (p.a.present() && p.gate_form == GateForm::bounded && !(p.lower_bound >= -5 && p.lower_bound < 0))
        fail("lower_bound", number(p.lower_bound), "a number in [-5, 0)");
    if (p.gate_min && !(*p.gate_min <= 0)) fail("gate_min", number(*p.gate_min), "a number <= 0");
    if (p.allow_neg_eigval && !p.b.present())
        fail("allow_neg_eigval", "it with beta given", "beta logits b, which it acts on");
}

void values(const Inputs& p) {
    if (!p.check_values || !p.g.present()) return;
    const Tensor& g = p.g;
    const std::int64_t channels = g.rank == 4 ? g.shape[3] : 1;
    for (std::int64_t b = 0; b < g.shape[0]; ++b)
        for (std::int64_t t = 0; t < g.shape[1]; ++t)
            for (std::int64_t h = 0; h < g.shape[2]; ++h)
                for (std::int64_t c = 0; c < channels; ++c) {
                    const double x = load_element(g.data, g.dtype, offset_of(g, b, t, h) + c);
                    if (x > 0)
                        fail("g",
                             std::to_string(x) + " at batch " + std::to_string(b) + ", token " + std::to_string(t) +
                                 ", head " + std::to_string(h) + ", channel " + std::to_string(c),
                             "a log of a decay, <= 0");
                }
}

/// Bytes [first, last) that a view can touch.
struct Extent {
    std::uintptr_t first = 0, last = 0;
};

Extent extent(const Tensor& t) {
    if (t.size() == 0) return {};
    std::int64_t low = 0, high = 0;
    for (int d = 0; d < t.rank; ++d) {
        const auto i = static_cast<std::size_t>(d);
        (t.stride[i] < 0 ? low : high) += (t.shape[i] - 1) * t.stride[i];
    }
    const auto base = reinterpret_cast<std::uintptr_t>(t.data);
    const std::int64_t size = bytes_of(t.dtype);
    return {base + static_cast<std::uintptr_t>(low * size), base + static_cast<std::uintptr_t>((high + 1) * size)};
}

/// Sufficient for disjoint elements: by growing stride, each dimension steps over all that the ones before it span.
bool meets_itself(const Tensor& t) {
    if (t.size() == 0) return false;
    std::array<std::pair<std::int64_t, std::int64_t>, kMaxRank> dimensions;  // stride, extent; by growing stride
    std::size_t count = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
        if (t.shape[d] < 2) continue;
        std::size_t at = count++;
        for (; at > 0 && dimensions[at - 1].first > std::abs(t.stride[d]); --at) dimensions[at] = dimensions[at - 1];
        dimensions[at] = {std::abs(t.stride[d]), t.shape[d]};
    }
    std::int64_t span = 1;
    for (std::size_t d = 0; d < count; ++d) {
        if (dimensions[d].first < span) return true;
        span += (dimensions[d].second - 1) * dimensions[d].first;
    }
    return false;
}

bool meet(const Tensor& x, const Tensor& y) {
    const Extent a = extent(x), b = extent(y);
    return a.first < b.last && b.first < a.last;
}

/// An output needs memory of its own, but that a state may be written where it was read: every kernel reads a slice of
/// a state before it writes it.
void aliasing(std::span<const Named> tensors) {
    for (const Named& out : tensors) {
        if (out.use != Use::output && out.use != Use::state_out) continue;
        if (meets_itself(*out.tensor))
            fail(out.name, "strides that reach an element by two indices", "an element for every index");
        for (const Named& other : tensors) {
            if (out.tensor == other.tensor || !meet(*out.tensor, *other.tensor)) continue;
            if (out.use == Use::output || other.use != Use::state_in)
                fail(out.name, std::string("memory that overlaps ") + other.name, "memory of its own");
            const bool same = out.tensor->data == other.tensor->data && out.tensor->stride == other.tensor->stride &&
                              out.tensor->dtype == other.tensor->dtype;
            if (!same)
                fail(out.name, std::string("memory that partly overlaps ") + other.name,
                     "the same view, or memory of its own");
        }
    }
}

}  // namespace

[[noreturn]] void fail(const std::string& name, const std::string& given, const std::string& expected) {
    throw Error(name, name + ": given " + given + ", expected " + expected);
}

void sane(std::span<const Named> tensors) {
    for (const auto& [name, tensor, use] : tensors) {
        const Tensor& t = *tensor;
        if (t.rank < 0 || t.rank > kMaxRank) fail(name, "rank " + std::to_string(t.rank), "0 (absent) to 5");
        for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d)
            if (t.shape[d] < 0) fail(name, "shape " + shape_text(t), "extents >= 0");
        if (t.present() && bytes_of(t.dtype) == 0) fail(name, "an unknown dtype", "fp32, bf16, fp16, int32 or int64");
    }
}

bool on_device(std::span<const Named> tensors) {
    const Named* first = nullptr;
    for (const Named& t : tensors) {
        if (!t.tensor->present()) continue;
        if (first == nullptr) first = &t;
        if (t.tensor->device != first->tensor->device) {
            const auto where = [](const Named& x) { return x.tensor->device == Device::cuda ? "a CUDA" : "a CPU"; };
            fail(t.name, std::string(where(t)) + " tensor",
                 std::string(where(*first)) + " tensor, as " + first->name + " is");
        }
    }
    return first != nullptr && first->tensor->device == Device::cuda;
}

void require(const char* name, const Tensor& t, const char* layout) {
    if (!t.present()) fail(name, "nothing", std::string("a tensor ") + layout);
    if (t.rank < 0 || t.rank > kMaxRank)
        fail(name, "rank " + std::to_string(t.rank), std::string("a tensor ") + layout);
}

void shape(const char* name, const Tensor& t, const char* layout, std::initializer_list<std::int64_t> want,
           bool channels) {
    require(name, t, layout);
    bool fits = t.rank == static_cast<std::int32_t>(want.size());
    std::size_t d = 0;
    for (const std::int64_t n : want) fits = fits && t.shape[d++] == n;
    if (!fits) fail(name, "shape " + shape_text(t), std::string(layout) + " = " + text(want));
    if (t.size() > 0 && t.data == nullptr) fail(name, "a null pointer", "memory for " + shape_text(t));
    const auto last = static_cast<std::size_t>(t.rank - 1);
    if (channels && t.shape[last] > 1 && t.stride[last] != 1)
        fail(name, "stride " + std::to_string(t.stride[last]) + " in the last dimension", "1 (dense)");
}

void indices(const char* name, const Tensor& t, const char* layout, std::initializer_list<std::int64_t> want) {
    shape(name, t, layout, want, false);
    if (t.dtype != Dtype::int32 && t.dtype != Dtype::int64) fail(name, name_of(t.dtype), "int32 or int64");
}

void state(const char* name, const Tensor& t, const Inputs& p, std::int64_t N, const Extents& e, char rows) {
    if (!t.present()) return;
    char layout[] = "[N, HV, K, V]";
    layout[1] = rows;
    if (p.state_v_first) std::swap(layout[8], layout[11]);
    shape(name, t, layout, {N, e.HV, p.state_v_first ? e.V : e.K, p.state_v_first ? e.K : e.V}, true);
}

void like(const char* name, const Tensor& t, const char* model_name, const Tensor& model) {
    bool fits = t.rank == model.rank;
    for (std::size_t d = 0; fits && d < static_cast<std::size_t>(t.rank); ++d) fits = t.shape[d] == model.shape[d];
    if (!fits) fail(name, "shape " + shape_text(t), std::string("that of ") + model_name + " = " + shape_text(model));
    if (t.size() > 0 && t.data == nullptr) fail(name, "a null pointer", "memory for " + shape_text(t));
    const auto last = static_cast<std::size_t>(t.rank - 1);
    if (t.rank == 4 && t.shape[last] > 1 && t.stride[last] != 1)
        fail(name, "stride " + std::to_string(t.stride[last]) + " in the last dimension", "1 (dense)");
}

void output(const Tensor& o, const Extents& e) {
    require("o", o, "[B, T, HV, V]");
    const std::int64_t rows = o.rank == 4 ? std::max(o.shape[1], e.T) : e.T;
    shape("o", o, rows > e.T ? "[B, >= T, HV, V]" : "[B, T, HV, V]", {e.B, rows, e.HV, e.V}, true);
}

Extents inputs(const Inputs& p) {
    const RuleRow& row = row_of(p.rule);
    require("q", p.q, "[B, T, H, K]");
    if (p.q.rank != 4) fail("q", "shape " + shape_text(p.q), "[B, T, H, K]");
    const char* const values = row.householder ? "[B, T n, HV, V]" : "[B, T, HV, V]";
    require("v", p.v, values);
    if (p.v.rank != 4) fail("v", "shape " + shape_text(p.v), values);
    const std::int64_t n = p.n_householder;
    if (n < 1 || n > kMostSteps || (n > 1 && !row.householder))
        fail("n_householder", std::to_string(n),
             row.householder ? "1 to " + std::to_string(kMostSteps) + " steps a token"
                             : "1 with rule " + std::string(row.name));
    const Extents e{p.q.shape[0], p.q.shape[1], p.q.shape[2], p.q.shape[3], p.v.shape[2], p.v.shape[3], n};
    if (e.B < 1 || e.T < 0 || e.H < 1 || e.K < 1) fail("q", "shape " + shape_text(p.q), "B, H, K >= 1 and T >= 0");
    if (e.HV < 1 || e.V < 1) fail("v", "shape " + shape_text(p.v), "HV, V >= 1");
    if (e.HV % e.H != 0)
        fail("v", "HV = " + std::to_string(e.HV) + " value heads", "a multiple of q's H = " + std::to_string(e.H));
    shape("q", p.q, "[B, T, H, K]", {e.B, e.T, e.H, e.K}, true);
    shape("k", p.k, row.householder ? "[B, T n, H, K]" : "[B, T, H, K]", {e.B, e.T * n, e.H, e.K}, true);
    shape("v", p.v, values, {e.B, e.T * n, e.HV, e.V}, true);
    gates(p, row, e);
    return e;
}

void rest(const Inputs& p, std::span<const Named> tensors, bool allow_fp64) {
    for (const auto& [name, tensor, use] : tensors)
        if (use != Use::index) float_type(name, *tensor, allow_fp64);
    options(p);
    if (p.check_values && on_device(tensors))
        fail("check_values", "it with CUDA tensors", "CPU tensors: values on a device are not read");
    values(p);
    aliasing(tensors);
}

}  // namespace tidegate::checks
