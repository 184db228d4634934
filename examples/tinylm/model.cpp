#include "model.h"

#include <algorithm>

#include "problem/number.h"
#include "tidegate/decode.h"
#include "tidegate/forward.h"

namespace tinylm {
namespace {

std::vector<float> buffer(std::int64_t rows, std::int64_t columns) {
    return std::vector<float>(static_cast<std::size_t>(rows * columns));
}

/// Heads that lie in rows of a wider buffer: [1, T, heads, n], or [1, T, heads] for n = 0.
tidegate::Tensor in_rows(const float* first, std::int64_t T, std::int64_t row, std::int64_t heads, std::int64_t n) {
    tidegate::Tensor t = n == 0 ? tidegate::dense(first, tidegate::Dtype::fp32, {1, T, heads})
                                : tidegate::dense(first, tidegate::Dtype::fp32, {1, T, heads, n});
    t.stride[0] = T * row;
    t.stride[1] = row;
    return t;
}

/// q, k and v after the convolution and SiLU. `in` are rows of `width`, of which the first channels count.
void convolve(const Block& b, const std::vector<float>& recent, const float* in, std::int64_t width, std::int64_t t,
              float* out) {
    const std::int64_t channels = b.channels();
    std::fill(out, out + channels, 0.0F);
    for (std::int64_t tap = 0; tap < kTaps; ++tap) {
        const std::int64_t from = t + tap - (kTaps - 1);
        const float* x = from < 0 ? recent.data() + (from + kTaps - 1) * channels : in + from * width;
        const float* weight = b.conv.data() + tap * channels;
        for (std::int64_t c = 0; c < channels; ++c) out[c] += weight[c] * x[c];
    }
    for (std::int64_t c = 0; c < channels; ++c) out[c] = silu(out[c]);
}

/// The last kTaps - 1 rows of what `recent` and then `in` hold.
void remember(const Block& b, std::vector<float>& recent, const float* in, std::int64_t width, std::int64_t T) {
    const std::int64_t channels = b.channels();
    for (std::int64_t i = 0; i < kTaps - 1; ++i) {
        const std::int64_t from = T + i - (kTaps - 1);
        const float* x = from < 0 ? recent.data() + (from + kTaps - 1) * channels : in + from * width;
        std::copy(x, x + channels, recent.data() + i * channels);
    }
}

/// The delta rule's output [T, values]. `in` are the rows of the first product, `qkv` those of the convolution.
std::vector<float> delta_rule(const Block& b, State::OfBlock& state, const std::vector<float>& in,
                              const std::vector<float>& qkv, std::int64_t T, Call call, Fault fault) {
    const std::int64_t H = b.key_heads, HV = b.value_heads, K = b.head_dim, row = b.in.out();
    const float *a = in.data() + b.channels() + b.values(), *beta_logits = in.data() + row - HV;
    std::vector<float> o = buffer(T, b.values()), beta;

    tidegate::Inputs p;
    p.rule = b.rule;
    p.q = in_rows(qkv.data(), T, b.channels(), H, K);
    p.k = in_rows(qkv.data() + b.keys(), T, b.channels(), H, K);
    p.v = in_rows(qkv.data() + 2 * b.keys(), T, b.channels(), HV, K);
    p.a = in_rows(a, T, row, HV, b.rule == tidegate::Rule::gdn ? 0 : K);
    p.A_log = tidegate::dense(b.A_log.data(), tidegate::Dtype::fp32, {HV});
    p.dt_bias = tidegate::dense(b.dt_bias.data(), tidegate::Dtype::fp32, {static_cast<std::int64_t>(b.dt_bias.size())});
    p.b = in_rows(beta_logits, T, row, HV, 0);
    if (fault == Fault::beta_bf16) {
        for (std::int64_t i = 0; i < T * HV; ++i)
            beta.push_back(static_cast<float>(tidegate::round_to(
                static_cast<double>(sigmoid(beta_logits[i / HV * row + i % HV])), tidegate::Dtype::bf16)));
        p.b = {};
        p.beta = in_rows(beta.data(), T, HV, HV, 0);
    }
    p.qk_l2norm = true;
    p.gate_min = -5;

    const tidegate::Tensor states = tidegate::dense(state.delta.data(), tidegate::Dtype::fp32, {1, HV, K, K});
    if (call == Call::prefill) {
        tidegate::Forward problem;
        static_cast<tidegate::Inputs&>(problem) = p;
        problem.initial_state = problem.final_state = states;
        problem.o = in_rows(o.data(), T, b.values(), HV, K);
        tidegate::forward(problem);
    } else {
        tidegate::Decode problem;
        static_cast<tidegate::Inputs&>(problem) = p;
        problem.state = states;
        problem.o = in_rows(o.data(), T, b.values(), HV, K);
        tidegate::decode(problem);
    }
    return o;
}

/// x += o(norm(delta) * silu(gate)); x += down(silu(up_a) * up_b), for rows that are `delta`, `gate` and x.
void finish_rows(const Block& b, const float* delta, const float* gate, std::int64_t gate_row, std::int64_t rows,
                 float* x) {
    const std::int64_t width = b.o.out(), values = b.values(), hidden = b.hidden();
    std::vector<float> mixed = buffer(rows, values), normed = buffer(rows, width), up = buffer(rows, 2 * hidden),
                       inner = buffer(rows, hidden);
    for (std::int64_t r = 0; r < rows; ++r) {
        float* to = mixed.data() + r * values;
        for (std::int64_t c = 0; c < values; c += b.head_dim) rms_norm(delta + r * values + c, b.norm, to + c);
        for (std::int64_t c = 0; c < values; ++c) to[c] *= silu(gate[r * gate_row + c]);
    }
    b.o.apply(mixed.data(), rows, x, true);
    for (std::int64_t r = 0; r < rows; ++r) rms_norm(x + r * width, b.n2, normed.data() + r * width);
    b.up.apply(normed.data(), rows, up.data());
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < hidden; ++c)
            inner[static_cast<std::size_t>(r * hidden + c)] = silu(up[static_cast<std::size_t>(r * 2 * hidden + c)]) *
                                                              up[static_cast<std::size_t>((r * 2 + 1) * hidden + c)];
    b.down.apply(inner.data(), rows, x, true);
}

}  // namespace

State::State(const Model& model) {
    for (const Block& b : model.blocks)
        blocks.push_back({buffer(b.values(), b.head_dim), buffer(kTaps - 1, b.channels())});
}

std::vector<float> advance(const Model& model, State& state, std::span<const std::byte> bytes, Call call, Fault fault,
                           Trace* trace) {
    const auto T = static_cast<std::int64_t>(bytes.size());
    const std::int64_t width = model.width;
    std::vector<float> x = buffer(T, width), logits = buffer(T, kBytes);
    for (std::int64_t t = 0; t < T; ++t) {
        const float* row =
            model.embedding.data() + static_cast<std::int64_t>(bytes[static_cast<std::size_t>(t)]) * width;
        std::copy(row, row + width, x.data() + t * width);
    }
    if (trace != nullptr) trace->blocks.resize(model.blocks.size());
    for (std::size_t i = 0; i < model.blocks.size(); ++i) {
        const Block& b = model.blocks[i];
        State::OfBlock& of = state.blocks[i];
        const std::int64_t row = b.in.out(), channels = b.channels();
        std::vector<float> in = buffer(T, row), qkv = buffer(T, channels), normed = buffer(T, width);
        for_rows(T, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t t = begin; t < end; ++t) rms_norm(x.data() + t * width, b.n1, normed.data() + t * width);
            b.in.apply(normed.data() + begin * width, end - begin, in.data() + begin * row);
        });
        for_rows(T, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t t = begin; t < end; ++t)
                convolve(b, of.recent, in.data(), row, t, qkv.data() + t * channels);
        });
        remember(b, of.recent, in.data(), row, T);
        const std::vector<float> delta = delta_rule(b, of, in, qkv, T, call, fault);
        for_rows(T, [&](std::int64_t begin, std::int64_t end) {
            finish_rows(b, delta.data() + begin * b.values(), in.data() + begin * row + channels, row, end - begin,
                        x.data() + begin * width);
        });
        if (trace != nullptr) {
            Trace::OfBlock& seen = trace->blocks[i];
            seen.delta.insert(seen.delta.end(), delta.begin(), delta.end());
            seen.stream.insert(seen.stream.end(), x.begin(), x.end());
        }
    }
    for_rows(T, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) rms_norm(x.data() + t * width, model.nf, x.data() + t * width);
        model.logits.apply(x.data() + begin * width, end - begin, logits.data() + begin * kBytes);
    });
    return logits;
}

}  // namespace tinylm
