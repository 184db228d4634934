// Every rule of the contract, once, in one order: presence, shapes, strides, types, lengths, options, values, aliasing.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>

#include "problem/normal_form.h"
#include "problem/number.h"
#include "problem/rules.h"
#include "tidegate/error.h"

namespace tidegate {
namespace {

/// Every tensor of a call, in the order of its declaration.
constexpr std::pair<const char*, Tensor Forward::*> kTensors[] = {{"q", &Forward::q},
                                                                  {"k", &Forward::k},
                                                                  {"v", &Forward::v},
                                                                  {"g", &Forward::g},
                                                                  {"beta", &Forward::beta},
                                                                  {"a", &Forward::a},
                                                                  {"b", &Forward::b},
                                                                  {"A_log", &Forward::A_log},
                                                                  {"dt_bias", &Forward::dt_bias},
                                                                  {"initial_state", &Forward::initial_state},
                                                                  {"cu_seqlens", &Forward::cu_seqlens},
                                                                  {"o", &Forward::o},
                                                                  {"final_state", &Forward::final_state}};

[[noreturn]] void fail(const std::string& name, const std::string& given, const std::string& expected) {
    throw Error(name, name + ": given " + given + ", expected " + expected);
}

std::string text(std::initializer_list<std::int64_t> shape) {
    std::string s = "[";
    for (const std::int64_t n : shape) s += (s.size() > 1 ? ", " : "") + std::to_string(n);
    return s + "]";
}

void require(const char* name, const Tensor& t, const char* layout) {
    if (!t.present()) fail(name, "nothing", std::string("a tensor ") + layout);
    if (t.rank < 0 || t.rank > kMaxRank)
        fail(name, "rank " + std::to_string(t.rank), std::string("a tensor ") + layout);
}

/// Rank, extents, memory, device and, where the last dimension is a channel, its density.
void shape(const char* name, const Tensor& t, const char* layout, std::initializer_list<std::int64_t> want,
           bool channels) {
    require(name, t, layout);
    bool fits = t.rank == static_cast<std::int32_t>(want.size());
    std::size_t d = 0;
    for (const std::int64_t n : want) fits = fits && t.shape[d++] == n;
    if (!fits) fail(name, "shape " + shape_text(t), std::string(layout) + " = " + text(want));
    if (t.size() > 0 && t.data == nullptr) fail(name, "a null pointer", "memory for " + shape_text(t));
    if (t.device != Device::cpu) fail(name, "a CUDA tensor", "CPU memory: this build has no CUDA backend");
    const auto last = static_cast<std::size_t>(t.rank - 1);
    if (channels && t.shape[last] > 1 && t.stride[last] != 1)
        fail(name, "stride " + std::to_string(t.stride[last]) + " in the last dimension", "1 (dense)");
}

void float_type(const char* name, const Tensor& t, bool allow_fp64) {
    if (!t.present()) return;
    if (!is_float(t.dtype) || (t.dtype == Dtype::fp64 && !allow_fp64))
        fail(name, name_of(t.dtype), allow_fp64 ? "fp32, bf16, fp16 or fp64" : "fp32, bf16 or fp16");
}

void cu_seqlens(const NormalForm& nf, const Tensor& cu) {
    if (!cu.present()) return;
    require("cu_seqlens", cu, "[N + 1]");
    if (cu.rank != 1 || cu.shape[0] < 2) fail("cu_seqlens", "shape " + shape_text(cu), "[N + 1] with N >= 1");
    if (cu.dtype != Dtype::int32 && cu.dtype != Dtype::int64) fail("cu_seqlens", name_of(cu.dtype), "int32 or int64");
    if (cu.data == nullptr) fail("cu_seqlens", "a null pointer", "memory for " + shape_text(cu));
    if (cu.device != Device::cpu) fail("cu_seqlens", "a CUDA tensor", "CPU memory");
    if (nf.batch != 1) fail("cu_seqlens", "B = " + std::to_string(nf.batch), "B = 1 with packed sequences");
    if (nf.sequence(0).begin != 0) fail("cu_seqlens[0]", std::to_string(nf.sequence(0).begin), "0");
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        const Span s = nf.sequence(n);
        if (s.end < s.begin)
            fail("cu_seqlens[" + std::to_string(n + 1) + "]", std::to_string(s.end),
                 "at least cu_seqlens[" + std::to_string(n) + "] = " + std::to_string(s.begin));
    }
    const std::int64_t last = nf.sequence(nf.sequences - 1).end;
    if (last != nf.tokens)
        fail("cu_seqlens[" + std::to_string(nf.sequences) + "]", std::to_string(last),
             "the inputs' T = " + std::to_string(nf.tokens));
}

void gates(const Forward& p, const RuleRow& row, std::int64_t B, std::int64_t T, std::int64_t HV, std::int64_t K) {
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
        if (!p.g.present())
            fail("g", "neither g nor a", row.decay == Decay::vector ? "g [B, T, HV, K]" : "g [B, T, HV]");
        gate_shape("g", p.g);
        if (p.A_log.present()) fail("A_log", "A_log without a", "a with A_log, or g alone");
        if (p.dt_bias.present()) fail("dt_bias", "dt_bias without a", "a with A_log and dt_bias, or g alone");
    }
    if (p.b.present())
        shape("b", p.b, "[B, T, HV]", {B, T, HV}, false);
    else
        shape("beta", p.beta, "[B, T, HV]", {B, T, HV}, false);
}

void options(const Forward& p) {
    const auto number = [](double x) {
        char text[32];
        std::snprintf(text, sizeof text, "%.9g", x);
        return std::string(text);
    };
    if (p.scale && !std::isfinite(static_cast<float>(*p.scale)))
        fail("scale", number(*p.scale), "a number that is finite in fp32");
    if (p.a.present() && p.gate_form == GateForm::bounded && !(p.lower_bound >= -5 && p.lower_bound < 0))
        fail("lower_bound", number(p.lower_bound), "a number in [-5, 0)");
    if (p.gate_min && !(*p.gate_min <= 0)) fail("gate_min", number(*p.gate_min), "a number <= 0");
    if (p.allow_neg_eigval && !p.b.present())
        fail("allow_neg_eigval", "it with beta given", "beta logits b, which it acts on");
}

void values(const Forward& p) {
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

void aliasing(const Forward& p) {
    const std::pair<const char*, const Tensor*> outputs[] = {{"o", &p.o}, {"final_state", &p.final_state}};
    for (const auto& [out_name, out] : outputs) {
        if (meets_itself(*out))
            fail(out_name, "strides that reach an element by two indices", "an element for every index");
        const Extent w = extent(*out);
        for (const auto& [in_name, member] : kTensors) {
            const bool state =
                member == &Forward::initial_state || member == &Forward::o || member == &Forward::final_state;
            const Extent r = extent(p.*member);
            if (!state && w.first < r.last && r.first < w.last)
                fail(out_name, std::string("memory that overlaps ") + in_name, "memory of its own");
        }
    }
    const Extent o = extent(p.o), s = extent(p.final_state), i = extent(p.initial_state);
    if (o.first < s.last && s.first < o.last) fail("o", "memory that overlaps final_state", "memory of its own");
    if (o.first < i.last && i.first < o.last) fail("o", "memory that overlaps initial_state", "memory of its own");
    // final_state may be initial_state itself (in place): every kernel reads a state slice before it writes it.
    const bool same = p.final_state.data == p.initial_state.data && p.final_state.stride == p.initial_state.stride &&
                      p.final_state.dtype == p.initial_state.dtype;
    if (!same && s.first < i.last && i.first < s.last)
        fail("final_state", "memory that partly overlaps initial_state", "the same view, or memory of its own");
}

}  // namespace

void check(const Forward& p, bool allow_fp64) {
    const RuleRow& row = row_of(p.rule);
    for (const auto& [name, member] : kTensors) {
        const Tensor& t = p.*member;
        if (t.rank < 0 || t.rank > kMaxRank) fail(name, "rank " + std::to_string(t.rank), "0 (absent) to 5");
        for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d)
            if (t.shape[d] < 0) fail(name, "shape " + shape_text(t), "extents >= 0");
        if (t.present() && bytes_of(t.dtype) == 0) fail(name, "an unknown dtype", "fp32, bf16, fp16, int32 or int64");
    }
    require("q", p.q, "[B, T, H, K]");
    if (p.q.rank != 4) fail("q", "shape " + shape_text(p.q), "[B, T, H, K]");
    require("v", p.v, "[B, T, HV, V]");
    if (p.v.rank != 4) fail("v", "shape " + shape_text(p.v), "[B, T, HV, V]");
    const std::int64_t B = p.q.shape[0], T = p.q.shape[1], H = p.q.shape[2], K = p.q.shape[3];
    const std::int64_t HV = p.v.shape[2], V = p.v.shape[3];
    if (B < 1 || T < 0 || H < 1 || K < 1) fail("q", "shape " + shape_text(p.q), "B, H, K >= 1 and T >= 0");
    if (HV < 1 || V < 1) fail("v", "shape " + shape_text(p.v), "HV, V >= 1");
    if (HV % H != 0)
        fail("v", "HV = " + std::to_string(HV) + " value heads", "a multiple of q's H = " + std::to_string(H));

    shape("q", p.q, "[B, T, H, K]", {B, T, H, K}, true);
    shape("k", p.k, "[B, T, H, K]", {B, T, H, K}, true);
    shape("v", p.v, "[B, T, HV, V]", {B, T, HV, V}, true);
    gates(p, row, B, T, HV, K);

    NormalForm sizes;
    sizes.batch = B;
    sizes.tokens = T;
    sizes.cu_seqlens = p.cu_seqlens;
    sizes.sequences = p.cu_seqlens.present() ? std::max<std::int64_t>(p.cu_seqlens.shape[0] - 1, 0) : B;
    cu_seqlens(sizes, p.cu_seqlens);

    const std::int64_t N = sizes.sequences;
    const auto state = [&](const char* name, const Tensor& t) {
        if (!t.present()) return;
        if (p.state_v_first)
            shape(name, t, "[N, HV, V, K]", {N, HV, V, K}, true);
        else
            shape(name, t, "[N, HV, K, V]", {N, HV, K, V}, true);
    };
    state("initial_state", p.initial_state);
    require("o", p.o, "[B, T, HV, V]");
    const std::int64_t rows = p.o.rank == 4 ? std::max(p.o.shape[1], T) : T;
    shape("o", p.o, rows > T ? "[B, >= T, HV, V]" : "[B, T, HV, V]", {B, rows, HV, V}, true);
    state("final_state", p.final_state);

    for (const auto& [name, member] : kTensors)
        if (member != &Forward::cu_seqlens) float_type(name, p.*member, allow_fp64);
    options(p);
    values(p);
    aliasing(p);
}

}  // namespace tidegate
