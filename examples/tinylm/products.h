// Matrix products and what else is done row by row, in fp32.
//
// A row's result never depends on how many rows are computed with it: one token alone gives the bits that it gives
// inside a window. What differs between prefill and decode is then the delta rule's doing alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace tinylm {

/// x -> x W^T, with W [out, in] kept so that the outputs of one step of the sum lie side by side.
class Matrix {
public:
    Matrix() = default;
    Matrix(std::int64_t out, std::int64_t in, const std::vector<float>& weight);  ///< weight: row-major

    std::int64_t out() const { return out_; }
    std::int64_t in() const { return in_; }
    /// y [rows, out] from x [rows, in], both dense; `add`: on top of what y holds.
    void apply(const float* x, std::int64_t rows, float* y, bool add = false) const;

private:
    std::int64_t out_ = 0, in_ = 0;
    std::vector<float> panels_;  // [out / kPanel, rounded up][in][kPanel]
};

/// y = x / sqrt(mean x^2 + 1e-6) * weight over n elements; y may be x.
void rms_norm(const float* x, const std::vector<float>& weight, float* y);
float sigmoid(float x);
float silu(float x);

/// Calls f(begin, end) for parts of [0, rows) that together are all of it, one a core. What f throws, as where memory
/// runs out, ends the program.
template <class F>
void for_rows(std::int64_t rows, const F& f) {
    constexpr std::int64_t kWorthwhile = 32;  // fewer rows take less time than starting a thread
    const std::int64_t cores = std::thread::hardware_concurrency(), parts = std::min(cores, rows / kWorthwhile);
    std::vector<std::thread> others;
    for (std::int64_t i = 1; i < parts; ++i) others.emplace_back(f, rows * i / parts, rows * (i + 1) / parts);
    f(0, parts > 1 ? rows / parts : rows);
    for (std::thread& other : others) other.join();
}

}  // namespace tinylm
