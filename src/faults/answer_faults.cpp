#include "faults/answer_faults.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

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

/// A state of all heads: of final_state, or of the pool.
struct States {
    io::Array& array;
    std::size_t bytes;
    States(const NormalForm& nf, io::Bundle& answer)
        : array(*answer.find(nf.pool ? "state" : "final_state")),
          bytes(static_cast<std::size_t>(nf.value_heads * nf.K * nf.V * bytes_of(array.dtype))) {}
    std::byte* at(std::int64_t row) { return array.bytes.data() + static_cast<std::size_t>(row) * bytes; }
};

void zero(io::Array& array) { std::fill(array.bytes.begin(), array.bytes.end(), std::byte{0}); }

}  // namespace

std::vector<std::int64_t> stored_rows(const NormalForm& nf) {
    std::set<std::int64_t> rows;
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        if (nf.source(n) < 0) continue;
        if (!nf.pool) rows.insert(n);
        for (std::int64_t t = 0; nf.pool && t < nf.tokens; ++t)
            if (const std::int64_t row = nf.target(n, t); row >= 0) rows.insert(row);
    }
    return {rows.begin(), rows.end()};
}

void dh0_zero(const NormalForm&, io::Bundle& answer) { zero(*answer.find("dh0")); }

void dv_next_token(const NormalForm& nf, io::Bundle& answer) {
    io::Array& dv = *answer.find("dv");
    const auto bytes = static_cast<std::size_t>(nf.steps * nf.value_heads * nf.V * bytes_of(dv.dtype));
    for (std::int64_t n = 0; n < nf.sequences; ++n) {
        const Span s = nf.sequence(n);
        if (s.end - s.begin < 2) continue;
        std::byte* const first = dv.bytes.data() + static_cast<std::size_t>(s.batch * nf.tokens + s.begin) * bytes;
        std::memmove(first, first + bytes, static_cast<std::size_t>(s.end - s.begin - 1) * bytes);
    }
}

void zero_output(const NormalForm&, io::Bundle& answer) { zero(*answer.find("o")); }

void final_state_zero(const NormalForm& nf, io::Bundle& answer) {
    States states(nf, answer);
    for (const std::int64_t row : stored_rows(nf)) std::memset(states.at(row), 0, states.bytes);
}

/// A pad's rows of o hold the row of a request that is none.
void pad_output(const NormalForm& nf, io::Bundle& answer) {
    Rows rows(nf, answer);
    std::int64_t real = -1;
    for (std::int64_t n = 0; n < nf.sequences && real < 0; ++n)
        if (nf.source(n) >= 0) real = n;
    for (std::int64_t n = 0; real >= 0 && n < nf.sequences; ++n)
        if (nf.source(n) < 0) std::memcpy(rows.at(n, 0), rows.at(real, 0), rows.bytes);
}

/// What a pad computes lands in the pool's last slot.
void pad_written(const NormalForm& nf, io::Bundle& answer) {
    States states(nf, answer);
    const std::int64_t last = states.array.shape[0] - 1;
    for (std::int64_t i = 0; i < states.array.size() / states.array.shape[0]; ++i) {
        const std::int64_t at = last * (states.array.size() / states.array.shape[0]) + i;
        store_element(states.array.bytes.data(), states.array.dtype, at,
                      load_element(states.array.bytes.data(), states.array.dtype, at) * 0.5 + 1);
    }
}

/// A store runs one row of a state past its slot.
void neighbour_slot(const NormalForm& nf, io::Bundle& answer) {
    States states(nf, answer);
    const std::int64_t row = states.array.shape[3] * bytes_of(states.array.dtype);
    for (const std::int64_t slot : stored_rows(nf))
        if (slot + 1 < states.array.shape[0])
            std::memcpy(states.at(slot + 1), states.at(slot + 1) - row, static_cast<std::size_t>(row));
}

/// Every token's state is the last one.
void state_tokens_last(const NormalForm& nf, io::Bundle& answer) {
    io::Array& array = *answer.find("state_tokens");
    const auto bytes = static_cast<std::size_t>(nf.value_heads * nf.K * nf.V * bytes_of(array.dtype));
    for (std::int64_t b = 0; b < nf.batch; ++b)
        for (std::int64_t t = 0; t + 1 < nf.tokens; ++t)
            std::memcpy(array.bytes.data() + static_cast<std::size_t>(b * nf.tokens + t) * bytes,
                        array.bytes.data() + static_cast<std::size_t>((b + 1) * nf.tokens - 1) * bytes, bytes);
}

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
    const auto swap = [](std::byte* first, std::size_t head) { std::swap_ranges(first, first + head, first + head); };
    Rows rows(nf, answer);
    States states(nf, answer);
    for (std::int64_t b = 0; b < nf.batch; ++b)
        for (std::int64_t t = 0; t < nf.tokens; ++t)
            swap(rows.at(b, t), rows.bytes / static_cast<std::size_t>(nf.value_heads));
    for (const std::int64_t row : stored_rows(nf))
        swap(states.at(row), states.bytes / static_cast<std::size_t>(nf.value_heads));
}

/// The memory order of the last two dimensions exchanged, the shape as declared.
void final_state_transposed(const NormalForm& nf, io::Bundle& answer) {
    io::Array& state = States(nf, answer).array;
    const io::Array right = state;
    const std::int64_t rows = state.shape[2], columns = state.shape[3];
    for (const std::int64_t stored : stored_rows(nf))
        for (std::int64_t s = stored * nf.value_heads; s < (stored + 1) * nf.value_heads; ++s)
            for (std::int64_t r = 0; r < rows; ++r)
                for (std::int64_t c = 0; c < columns; ++c)
                    store_element(state.bytes.data(), state.dtype, s * rows * columns + c * rows + r,
                                  load_element(right.bytes.data(), right.dtype, s * rows * columns + r * columns + c));
}

}  // namespace tidegate::faults
