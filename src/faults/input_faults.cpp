#include "faults/input_faults.h"

#include <algorithm>

#include "faults/faults.h"
#include "problem/load.h"
#include "reference/recurrence.h"

namespace tidegate::faults {
namespace {

void round_all(io::Array& array, Dtype to) {
    const auto n = static_cast<std::int64_t>(array.bytes.size()) / bytes_of(array.dtype);
    for (std::int64_t i = 0; i < n; ++i)
        store_element(array.bytes.data(), array.dtype, i,
                      round_to(load_element(array.bytes.data(), array.dtype, i), to));
}

/// A packed request as the decode request it stands for.
void unpack_request(const NormalForm& nf, io::Bundle& request) {
    const auto copy = [&](const char* name, const Tensor& from, std::int64_t heads, std::int64_t channels) {
        io::Array to(name, from.dtype, {nf.batch, 1, heads, channels});
        std::int64_t i = 0;
        for (std::int64_t b = 0; b < nf.batch; ++b)
            for (std::int64_t h = 0; h < heads; ++h)
                for (std::int64_t c = 0; c < channels; ++c)
                    store_element(to.bytes.data(), to.dtype, i++,
                                  load_element(from.data, from.dtype, offset_of(from, b, 0, h, c)));
        request.add(std::move(to));
    };
    copy("q", nf.q, nf.key_heads, nf.K);
    copy("k", nf.k, nf.key_heads, nf.K);
    copy("v", nf.v, nf.value_heads, nf.V);
    std::erase_if(request.tensors, [](const io::Array& t) {
        return t.name == "mixed_qkv" || t.name == "a" || t.name == "b" || t.name == "A_log" || t.name == "dt_bias";
    });
    request.metadata["pass"] = "decode";
}

}  // namespace

void materialise_gates(const NormalForm& nf, io::Bundle& request) {
    const bool packed = request.meta("pass") == "packed";
    if (request.meta("gates", "given") != "logits" && !packed) return;
    std::vector<io::Array> made;
    const auto of_heads = [&](const char* name, std::int64_t rows, std::int64_t channels, const auto& value) {
        std::vector<std::int64_t> shape{nf.batch, rows, nf.value_heads};
        if (channels > 0) shape.push_back(channels);
        io::Array array(name, Dtype::fp32, shape);
        std::int64_t at = 0;
        for (std::int64_t b = 0; b < nf.batch; ++b)
            for (std::int64_t t = 0; t < rows; ++t)
                for (std::int64_t h = 0; h < nf.value_heads; ++h)
                    for (std::int64_t c = 0; c < std::max<std::int64_t>(channels, 1); ++c)
                        store_element(array.bytes.data(), array.dtype, at++, value(b, t, h, c));
        made.push_back(std::move(array));
    };
    if (nf.gate.decay != Decay::none)
        of_heads("g", nf.tokens, nf.gate.decay == Decay::vector ? nf.K : 0,
                 [&](auto b, auto t, auto h, auto c) { return load_gate<double>(nf.gate, b, t, h, c); });
    if (nf.erase.kind != StrengthKind::one && !nf.erase.vector)
        of_heads("beta", nf.tokens * nf.steps, 0,
                 [&](auto b, auto t, auto h, auto c) { return load_strength<double>(nf.erase, b, t, h, c); });
    if (packed) unpack_request(nf, request);
    for (io::Array& array : made) request.add(std::move(array));
    request.metadata["gates"] = "given";
    request.metadata.erase("allow_neg_eigval");
}

void beta_bf16(const NormalForm& nf, io::Bundle& request) {
    materialise_gates(nf, request);
    for (const char* name : {"beta", "erase", "write"})
        if (io::Array* array = request.find(name)) round_all(*array, Dtype::bf16);
}

void gate_bf16(const NormalForm& nf, io::Bundle& request) {
    materialise_gates(nf, request);
    round_all(*request.find("g"), Dtype::bf16);
}

void gate_next_token(const NormalForm& nf, io::Bundle& request) {
    materialise_gates(nf, request);
    const Tensor g = request.find("g")->view();
    const std::int64_t channels = g.rank == 4 ? g.shape[3] : 1;
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        const Span s = nf.sequence(n);
        for (std::int64_t t = s.begin; t + 1 < s.end; ++t)
            for (std::int64_t h = 0; h < nf.value_heads; ++h)
                for (std::int64_t c = 0; c < channels; ++c)
                    store_element(g.data, g.dtype, offset_of(g, s.batch, t, h) + c,
                                  load_element(g.data, g.dtype, offset_of(g, s.batch, t + 1, h) + c));
    }
}

void head_map(const NormalForm& nf, io::Bundle& request) {
    request.metadata["head_map"] = nf.head_map == HeadMap::grouped ? "tiled" : "grouped";
}

/// Sequence n starts from what sequence n - 1 left.
void varlen_leak(const NormalForm& nf, io::Bundle& request) {
    const reference::Answer left = reference::recurrence<double>(nf);
    const bool vk = request.meta("state_layout", "kv") == "vk";
    if (request.find("initial_state") == nullptr)
        request.add(io::Array("initial_state", Dtype::fp32,
                              {nf.sequences, nf.value_heads, vk ? nf.V : nf.K, vk ? nf.K : nf.V}));
    Tensor state = request.find("initial_state")->view();
    if (vk) {
        std::swap(state.shape[2], state.shape[3]);
        std::swap(state.stride[2], state.stride[3]);
    }
    for (std::int64_t n = 1; n < nf.sequences; ++n)
        for (std::int64_t h = 0; h < nf.value_heads; ++h)
            for (std::int64_t i = 0; i < nf.K; ++i)
                for (std::int64_t j = 0; j < nf.V; ++j)
                    store_element(state.data, state.dtype, offset_of(state, n, h, i, j),
                                  left.final_state[static_cast<std::size_t>(
                                      (((n - 1) * nf.value_heads + h) * nf.K + i) * nf.V + j)]);
}

/// Every inner boundary one token late.
void varlen_off_by_one(const NormalForm& nf, io::Bundle& request) {
    io::Array& cu = *request.find("cu_seqlens");
    const auto entry = [&](std::int64_t i) {
        return static_cast<std::int64_t>(load_element(cu.bytes.data(), cu.dtype, i));
    };
    for (std::int64_t n = nf.sequences - 1; n >= 1; --n)
        if (entry(n) + 1 <= entry(n + 1))
            store_element(cu.bytes.data(), cu.dtype, n, static_cast<double>(entry(n) + 1));
}

/// Request n uses slot n.
void slots_ignored(const NormalForm&, io::Bundle& request) {
    io::Array& slots = *request.find("state_indices");
    for (std::int64_t i = 0; i < slots.size(); ++i)
        store_element(slots.bytes.data(), slots.dtype, i, static_cast<double>(i));
}

void slot_offset_32bit(const NormalForm&, io::Bundle& request) {
    io::Array& slots = *request.find("state_indices");
    for (std::int64_t i = 0; i < slots.size(); ++i) {
        const auto slot = static_cast<std::int64_t>(load_element(slots.bytes.data(), slots.dtype, i));
        if (slot >= kSlots32) store_element(slots.bytes.data(), slots.dtype, i, static_cast<double>(slot % kSlots32));
    }
}

void null_slot_ignored(const NormalForm&, io::Bundle& request) { request.metadata.erase("null_slot"); }

/// The start slot is the one after the last accepted token's.
void accepted_off_by_one(const NormalForm& nf, io::Bundle& request) {
    io::Array& accepted = *request.find("num_accepted");
    for (std::int64_t i = 0; i < accepted.size(); ++i) {
        const double a = load_element(accepted.bytes.data(), accepted.dtype, i);
        if (a >= 1 && a < static_cast<double>(nf.state_indices.shape[1]))
            store_element(accepted.bytes.data(), accepted.dtype, i, a + 1);
    }
}

void dht_ignored(const NormalForm&, io::Bundle& request) {
    std::erase_if(request.tensors, [](const io::Array& t) { return t.name == "dht"; });
}

/// States are read from a pool that holds them in bf16.
void pool_bf16(const NormalForm&, io::Bundle& request) { round_all(*request.find("state"), Dtype::bf16); }

}  // namespace tidegate::faults
