#include <algorithm>
#include <cmath>
#include <cstdio>

#include "io/file.h"
#include "tasks.h"
#include "tidegate/error.h"

namespace tinylm {
namespace {

constexpr std::size_t kWindow = 2048;

struct Score {
    double bits = 0;
    std::size_t bytes = 0;  ///< all but the first of every window

    double mean() const { return bits / static_cast<double>(bytes); }
    void operator+=(const Score& more) {
        bits += more.bits;
        bytes += more.bytes;
    }
};

/// -log2 of the probability that a row of logits gives `byte`.
double bits_of(const float* logits, std::byte byte) {
    const double most = static_cast<double>(*std::max_element(logits, logits + kBytes));
    double sum = 0;
    for (std::int64_t i = 0; i < kBytes; ++i) sum += std::exp(static_cast<double>(logits[i]) - most);
    return (std::log(sum) + most - static_cast<double>(logits[static_cast<std::size_t>(byte)])) / std::log(2.0);
}

Score score_window(const Model& model, std::span<const std::byte> window, Fault fault) {
    State state(model);
    // Nothing is asked of the last byte: its logits would be for one outside the window.
    const std::vector<float> logits = advance(model, state, window.first(window.size() - 1), Call::prefill, fault);
    Score score;
    for (std::size_t t = 1; t < window.size(); ++t)
        score += {bits_of(logits.data() + (t - 1) * static_cast<std::size_t>(kBytes), window[t]), 1};
    return score;
}

Score score_file(const Model& model, std::span<const std::byte> file, Fault fault, bool windows) {
    Score total;
    for (std::size_t at = 0; at + 1 < file.size(); at += kWindow) {
        const Score score = score_window(model, file.subspan(at, std::min(kWindow, file.size() - at)), fault);
        if (windows) std::printf("bytes %zu to %zu: %.3f\n", at, at + score.bytes, score.mean());
        total += score;
    }
    return total;
}

}  // namespace

std::vector<std::byte> read_bytes(const std::string& path) {
    tidegate::io::Source source(path);
    return source.take(source.left());
}

void report_bits(const Model& model, const std::string& path, Fault fault, bool windows) {
    const std::vector<std::byte> file = read_bytes(path);
    if (file.size() < 2)
        throw tidegate::Error("bits", path + ": nothing to score in " + std::to_string(file.size()) +
                                          " bytes: the first of a window is never scored");
    const double exact = score_file(model, file, Fault::none, windows).mean();
    std::printf("%.5f bits per byte\n", exact);
    if (fault == Fault::none) return;
    const double faulty = score_file(model, file, fault, windows).mean();
    std::printf("%.5f with beta rounded to bf16: %+.1e\n", faulty, faulty - exact);
}

}  // namespace tinylm
