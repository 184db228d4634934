#include "cases/pieces.h"

#include <fmt/format.h>

#include <cstring>

#include "problem/number.h"

namespace tidegate::cases {
namespace {}  // namespace

std::int64_t rows_a_token(const std::string& name, const NormalForm& form) {
    for (const char* n : {"k", "v", "beta", "b"})
        if (name == n) return form.steps;
    for (const char* n : {"q", "g", "a", "erase", "write", "lr_a", "lr_b", "do"})
        if (name == n) return 1;
    return 0;
}

namespace {

/// Copies the elements of `from` that `to`'s shape has, index by index; the rest of `to` keeps its value.
void copy_common(const Tensor& from, const Tensor& to) {
    std::array<std::int64_t, kMaxRank> i{};
    std::array<std::int64_t, kMaxRank> n{};
    for (std::size_t d = 0; d < static_cast<std::size_t>(to.rank); ++d) {
        n[d] = std::min(from.shape[d], to.shape[d]);
        if (n[d] == 0) return;
    }
    const auto bytes = static_cast<std::size_t>(bytes_of(to.dtype));
    for (bool more = true; more;) {
        std::int64_t a = 0, b = 0;
        for (std::size_t d = 0; d < static_cast<std::size_t>(to.rank); ++d) {
            a += i[d] * from.stride[d];
            b += i[d] * to.stride[d];
        }
        std::memcpy(static_cast<std::byte*>(to.data) + static_cast<std::size_t>(b) * bytes,
                    static_cast<const std::byte*>(from.data) + static_cast<std::size_t>(a) * bytes, bytes);
        more = false;
        for (std::size_t d = static_cast<std::size_t>(to.rank); d-- > 0 && !more;) {
            more = ++i[d] < n[d];
            if (!more) i[d] = 0;
        }
    }
}

/// Rows [first, first + count) of dimension `d`.
Tensor rows_of(Tensor t, std::size_t d, std::int64_t first, std::int64_t count) {
    t.data = static_cast<std::byte*>(t.data) + first * t.stride[d] * bytes_of(t.dtype);
    t.shape[d] = count;
    return t;
}

/// select() of a decode request: rows of the batch, tokens of each; the pool as it is.
io::Bundle select_requests(const io::Bundle& request, const NormalForm& form, const std::vector<Piece>& pieces) {
    io::Bundle out;
    out.metadata = request.metadata;
    out.metadata.erase("case");
    const auto B = static_cast<std::int64_t>(pieces.size());
    for (const io::Array& array : request.tensors) {
        if (array.name == "state" || array.name == "A_log" || array.name == "dt_bias") {
            out.add(array);
            continue;
        }
        const std::int64_t tokens = request.meta("pass") == "decode" ? rows_a_token(array.name, form) : 0;
        std::vector<std::int64_t> shape = array.shape;
        shape[0] = B;
        if (tokens > 0) shape[1] = (pieces[0].end - pieces[0].begin) * tokens;
        io::Array made(array.name, array.dtype, shape);
        for (std::int64_t i = 0; i < B; ++i) {
            const Piece& piece = pieces[static_cast<std::size_t>(i)];
            Tensor from = rows_of(array.view(), 0, piece.sequence, 1);
            if (tokens > 0) from = rows_of(from, 1, piece.begin * tokens, shape[1]);
            copy_common(from, rows_of(made.view(), 0, i, 1));
        }
        out.add(std::move(made));
    }
    if (form.state_indices.present()) return out;
    io::Array slots("state_indices", Dtype::int64, {B});  // they were the requests' numbers
    for (std::int64_t i = 0; i < B; ++i)
        store_element(slots.bytes.data(), slots.dtype, i,
                      static_cast<double>(pieces[static_cast<std::size_t>(i)].sequence));
    out.add(std::move(slots));
    return out;
}

/// Every head's part of q, k and v zero-padded.
io::Array pad_mixed(const io::Array& array, const NormalForm& form, std::int64_t K, std::int64_t V) {
    const std::int64_t keys = form.key_heads, values = form.value_heads;
    io::Array made(array.name, array.dtype, {array.shape[0], 2 * keys * K + values * V});
    const auto heads = [](Tensor t, std::int64_t first, std::int64_t count, std::int64_t channels) {
        t.data = static_cast<std::byte*>(t.data) + first * bytes_of(t.dtype);
        t.rank = 3;
        t.shape = {t.shape[0], count, channels};
        t.stride = {t.stride[0], channels, 1};
        return t;
    };
    for (const std::int64_t part : {0, 1})
        copy_common(heads(array.view(), part * keys * form.K, keys, form.K),
                    heads(made.view(), part * keys * K, keys, K));
    copy_common(heads(array.view(), 2 * keys * form.K, values, form.V), heads(made.view(), 2 * keys * K, values, V));
    return made;
}

}  // namespace

io::Bundle select(const io::Bundle& request, const NormalForm& form, const std::vector<Piece>& pieces) {
    if (form.pool) return select_requests(request, form, pieces);
    io::Bundle out;
    out.metadata = request.metadata;
    out.metadata.erase("case");  // it is another case now
    std::int64_t tokens = 0;
    std::vector<std::int64_t> cu{0};
    for (const Piece& p : pieces) cu.push_back(tokens += p.end - p.begin);
    for (const io::Array& array : request.tensors) {
        const Tensor from = array.view();
        if (const std::int64_t rows = rows_a_token(array.name, form); rows > 0) {
            std::vector<std::int64_t> shape = array.shape;
            shape[0] = 1;
            shape[1] = tokens * rows;
            io::Array made(array.name, array.dtype, shape);
            for (std::size_t i = 0; i < pieces.size(); ++i) {
                const Span s = form.sequence(pieces[i].sequence);
                const std::int64_t count = (pieces[i].end - pieces[i].begin) * rows;
                copy_common(rows_of(rows_of(from, 0, s.batch, 1), 1, (s.begin + pieces[i].begin) * rows, count),
                            rows_of(made.view(), 1, cu[i] * rows, count));
            }
            out.add(std::move(made));
        } else if (array.name == "initial_state" || array.name == "dht") {
            std::vector<std::int64_t> shape = array.shape;
            shape[0] = static_cast<std::int64_t>(pieces.size());
            io::Array made(array.name, array.dtype, shape);
            for (std::size_t i = 0; i < pieces.size(); ++i)
                copy_common(rows_of(from, 0, pieces[i].sequence, 1),
                            rows_of(made.view(), 0, static_cast<std::int64_t>(i), 1));
            out.add(std::move(made));
        } else if (array.name == "A_log" || array.name == "dt_bias") {
            out.add(array);
        }
    }
    if (pieces.size() == 1) return out;
    io::Array made("cu_seqlens", Dtype::int64, {static_cast<std::int64_t>(cu.size())});
    std::memcpy(made.bytes.data(), cu.data(), made.bytes.size());
    out.add(std::move(made));
    return out;
}

io::Bundle zero_pad(const io::Bundle& request, const NormalForm& form, std::int64_t K, std::int64_t V) {
    io::Bundle out;
    out.metadata = request.metadata;
    out.metadata.erase("case");
    out.metadata["scale"] = fmt::format("{}", form.scale);  // shortest text that reads back as the same double
    const bool vk = request.meta("state_layout", "kv") == "vk";
    for (const io::Array& array : request.tensors) {
        std::vector<std::int64_t> shape = array.shape;
        const std::string& n = array.name;
        if (n == "q" || n == "k" || n == "erase" || n == "lr_a" || n == "lr_b" ||
            ((n == "g" || n == "a") && shape.size() == 4))
            shape[3] = K;
        else if (n == "v" || n == "write" || n == "do")
            shape[3] = V;
        else if (n == "a" && shape.size() == 3 && form.gate.decay == Decay::vector)  // packed
            shape[2] = K;
        else if (n == "initial_state" || n == "state" || n == "dht")
            shape[2] = vk ? V : K, shape[3] = vk ? K : V;
        io::Array made(n, array.dtype, shape);
        if (n == "dt_bias" && form.gate.decay == Decay::vector) {  // [HV * K] is [HV, K]
            made = io::Array(n, array.dtype, {form.value_heads, K});
            Tensor from = array.view();
            from.rank = 2;
            from.shape[0] = form.value_heads;
            from.shape[1] = form.K;
            from.stride[0] = form.K;
            from.stride[1] = 1;
            copy_common(from, made.view());
            made.shape = {form.value_heads * K};
        } else if (n == "mixed_qkv") {
            made = pad_mixed(array, form, K, V);
        } else {
            copy_common(array.view(), made.view());
        }
        out.add(std::move(made));
    }
    return out;
}

void pack(io::Bundle& request) {
    const Tensor q = request.find("q")->view(), k = request.find("k")->view(), v = request.find("v")->view();
    const std::int64_t B = q.shape[0], keys = q.shape[2] * q.shape[3], width = 2 * keys + v.shape[2] * v.shape[3];
    io::Array mixed("mixed_qkv", q.dtype, {B, width});
    const auto put = [&](Tensor from, std::int64_t first) {  // [B, 1, heads, channels]
        Tensor to = mixed.view();
        to.data = static_cast<std::byte*>(to.data) + first * bytes_of(to.dtype);
        to.rank = 4;
        to.shape = from.shape;
        to.stride = {width, width, from.shape[3], 1};
        copy_common(from, to);
    };
    put(q, 0), put(k, keys), put(v, 2 * keys);
    for (const char* name : {"a", "b"}) {  // without the dimension of one token
        io::Array* const array = request.find(name);
        if (array == nullptr) continue;
        array->shape.erase(array->shape.begin() + 1);
        if (!array->stride.empty()) array->stride.erase(array->stride.begin() + 1);
    }
    std::erase_if(request.tensors, [](const io::Array& t) { return t.name == "q" || t.name == "k" || t.name == "v"; });
    request.tensors.insert(request.tensors.begin(), std::move(mixed));
    request.metadata["pass"] = "packed";
    request.metadata.erase("gates");  // a packed call has no other kind
}

}  // namespace tidegate::cases
