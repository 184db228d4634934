#include "products.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tinylm {
namespace {

// Four floats as one value (g++ and clang): left to itself g++ makes a third of the speed of these loops.
using Lanes = float __attribute__((vector_size(16)));
constexpr std::size_t kVectors = 4;
constexpr std::int64_t kPanel = 4 * kVectors;  // outputs at a time

// x W^T for `Rows` rows and one panel. Every output is one sum in the order of the inputs, whatever Rows is.
template <std::size_t Rows>
void panel(const float* x, std::int64_t in, const float* w, float (&result)[Rows][kPanel]) {
    Lanes sums[Rows][kVectors] = {};
    for (std::int64_t i = 0; i < in; ++i, ++x, w += kPanel) {
        Lanes weights[kVectors];
        std::memcpy(weights, w, sizeof weights);
        const float* row = x;
        for (Lanes(&of_row)[kVectors] : sums) {
            for (std::size_t v = 0; v < kVectors; ++v) of_row[v] += weights[v] * *row;
            row += in;
        }
    }
    std::memcpy(result, sums, sizeof result);
}

template <std::size_t Rows>
void rows_of(const float* x, std::int64_t in, const float* panels, std::int64_t out, float* y, bool add) {
    for (std::int64_t first = 0; first < out; first += kPanel, panels += in * kPanel) {
        float sums[Rows][kPanel];
        panel<Rows>(x, in, panels, sums);
        const std::int64_t width = std::min(kPanel, out - first);
        float* row = y + first;
        for (const float(&of_row)[kPanel] : sums) {
            for (std::int64_t c = 0; c < width; ++c) row[c] = add ? row[c] + of_row[c] : of_row[c];
            row += out;
        }
    }
}

}  // namespace

Matrix::Matrix(std::int64_t out, std::int64_t in, const std::vector<float>& weight)
    : out_(out), in_(in), panels_(static_cast<std::size_t>((out + kPanel - 1) / kPanel * kPanel * in)) {
    for (std::int64_t o = 0; o < out; ++o)
        for (std::int64_t i = 0; i < in; ++i)
            panels_[static_cast<std::size_t>((o / kPanel * in + i) * kPanel + o % kPanel)] =
                weight[static_cast<std::size_t>(o * in + i)];
}

void Matrix::apply(const float* x, std::int64_t rows, float* y, bool add) const {
    std::int64_t r = 0;
    for (; r + 2 <= rows; r += 2) rows_of<2>(x + r * in_, in_, panels_.data(), out_, y + r * out_, add);
    for (; r < rows; ++r) rows_of<1>(x + r * in_, in_, panels_.data(), out_, y + r * out_, add);
}

void rms_norm(const float* x, const std::vector<float>& weight, float* y) {
    double squares = 0;
    for (std::size_t i = 0; i < weight.size(); ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const float factor = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(weight.size()) + 1e-6));
    for (std::size_t i = 0; i < weight.size(); ++i) y[i] = x[i] * factor * weight[i];
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
float silu(float x) { return x * sigmoid(x); }

}  // namespace tinylm
