#include "faults/answer_faults.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "problem/number.h"

namespace tidegate::faults {
namespace {

/// Bytes of one token's row of o, all heads.
struct Rows {
    io::Array& o;
    std::size_t bytes;
    std::int64_t tokens;
    Rows(const NormalForm& nf, io::Bundle& answer)
        : o(*answer.find("o")),
          bytes(static_cast<std::size_t>(nf.value_heads * nf.V * bytes_of(o.dtype))),
          tokens(nf.tokens) {}
    std::byte* at(std::int64_t batch, std::int64_t t) {
        return o.bytes.data() + static_cast<std::size_t>(batch * tokens + t) * bytes;
    }
};

void zero(io::Array& array) { std::fill(array.bytes.begin(), array.bytes.end(), std::byte{0}); }

}  // namespace

void zero_output(const NormalForm&, io::Bundle& answer) { zero(*answer.find("o")); }
void final_state_zero(const NormalForm&, io::Bundle& answer) { zero(*answer.find("final_state")); }

void nan_leak(const NormalForm& nf, io::Bundle& answer) {
    Rows rows(nf, answer);
    for (std::int64_t n = nf.sequences - 1; n >= 0; --n) {
        const Span s = nf.sequence(n);
        if (s.begin == s.end) continue;
        for (std::int64_t j = 0; j < nf.V; ++j)
            store_element(rows.at(s.batch, s.begin), rows.o.dtype, j, std::numeric_limits<double>::quiet_NaN());
        return;
    }
}

void stale_output(const NormalForm& nf, io::Bundle& answer) {
    Rows rows(nf, answer);
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        const Span s = nf.sequence(n);
        const std::int64_t tail = std::min(kTile, (s.end - s.begin) / 2);
        for (std::int64_t t = s.end - tail; t < s.end; ++t)
            std::memcpy(rows.at(s.batch, t), rows.at(s.batch, t - tail), rows.bytes);
    }
}

void last_token_zero(const NormalForm& nf, io::Bundle& answer) {
    Rows rows(nf, answer);
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        const Span s = nf.sequence(n);
        if (s.end > s.begin) std::memset(rows.at(s.batch, s.end - 1), 0, rows.bytes);
    }
}

void token_duplicated(const NormalForm& nf, io::Bundle& answer) {
    Rows rows(nf, answer);
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        const Span s = nf.sequence(n);
        const std::int64_t t = (s.begin + s.end) / 2;
        if (t > s.begin) std::memcpy(rows.at(s.batch, t), rows.at(s.batch, t - 1), rows.bytes);
    }
}

void tail_zero(const NormalForm& nf, io::Bundle& answer) {
    Rows rows(nf, answer);
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        const Span s = nf.sequence(n);
        for (std::int64_t t = s.end - (s.end - s.begin) % kTile; t < s.end; ++t)
            std::memset(rows.at(s.batch, t), 0, rows.bytes);
    }
}

void heads_swapped(const NormalForm& nf, io::Bundle& answer) {
    for (io::Array& array : answer.tensors) {
        const std::int64_t head = array.name == "o" ? nf.V : nf.K * nf.V;
        const auto bytes = static_cast<std::size_t>(head * bytes_of(array.dtype));
        const std::size_t stride = bytes * static_cast<std::size_t>(nf.value_heads);
        for (std::size_t at = 0; stride > 0 && at + stride <= array.bytes.size(); at += stride) {
            const auto first = array.bytes.begin() + static_cast<std::ptrdiff_t>(at);
            std::swap_ranges(first, first + static_cast<std::ptrdiff_t>(bytes),
                             first + static_cast<std::ptrdiff_t>(bytes));
        }
    }
}

/// The memory order of the last two dimensions exchanged, the shape as declared.
void final_state_transposed(const NormalForm& nf, io::Bundle& answer) {
    io::Array& state = *answer.find("final_state");
    const io::Array right = state;
    const std::int64_t rows = state.shape[2], columns = state.shape[3];
    for (std::int64_t s = 0; s < nf.sequences * nf.value_heads; ++s)
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c)
                store_element(state.bytes.data(), state.dtype, s * rows * columns + c * rows + r,
                              load_element(right.bytes.data(), right.dtype, s * rows * columns + r * columns + c));
}

}  // namespace tidegate::faults
