#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tasks.h"
#include "tidegate/error.h"

namespace tinylm {
namespace {

// Both ways do the same arithmetic but in the delta rule, where sums of fp32 products run in another order. A sum of
// 768 of them (the longest here) is off by about sqrt(768) 2^-24 = 1.7e-6, and four blocks hand such errors on, while
// decays forget them. A real fault is far above: beta rounded to bf16 is off by up to 2^-9 = 2e-3.
constexpr double kBound = 1e-5;

struct Worst {
    double difference = 0;
    std::size_t row = 0;

    bool within() const { return difference <= kBound; }  // false for NaN
};

/// The largest |x - y| / |y| (L2) of a row of `width` numbers.
Worst worst_row(const std::vector<float>& x, const std::vector<float>& y, std::int64_t width) {
    Worst worst;
    const auto n = static_cast<std::size_t>(width);
    for (std::size_t row = 0; row * n < y.size(); ++row) {
        double apart = 0, size = 0;
        for (std::size_t i = row * n; i < (row + 1) * n; ++i) {
            const double right = static_cast<double>(y[i]), d = static_cast<double>(x[i]) - right;
            apart += d * d;
            size += right * right;
        }
        const double difference = apart == 0 ? 0 : std::sqrt(apart / size);
        if (!(difference <= worst.difference)) worst = {difference, row};
        if (std::isnan(difference)) break;
    }
    return worst;
}

}  // namespace

bool report_comparison(const Model& model, const std::string& path, std::int64_t tokens, Fault fault) {
    const std::vector<std::byte> file = read_bytes(path);
    const std::span text = std::span(file).first(std::min(file.size(), static_cast<std::size_t>(tokens)));
    if (text.empty()) throw tidegate::Error("compare", path + ": no bytes to compare on");

    State one_call(model), by_token(model);
    Trace prefill, decode;
    advance(model, one_call, text, Call::prefill, Fault::none, &prefill);
    for (std::size_t t = 0; t < text.size(); ++t)
        advance(model, by_token, text.subspan(t, 1), Call::decode, fault, &decode);

    std::printf("decode by the token%s beside one prefill: %zu tokens of %s\n",
                fault == Fault::none ? "" : ", beta rounded to bf16,", text.size(), path.c_str());
    std::printf("block rule output  position stream  position state   head\n");
    bool right = true;
    for (std::size_t i = 0; i < model.blocks.size(); ++i) {
        const Block& b = model.blocks[i];
        const Worst output = worst_row(decode.blocks[i].delta, prefill.blocks[i].delta, b.values());
        const Worst stream = worst_row(decode.blocks[i].stream, prefill.blocks[i].stream, model.width);
        const Worst state = worst_row(by_token.blocks[i].delta, one_call.blocks[i].delta, b.head_dim * b.head_dim);
        std::printf("%-5zu %-4s %.1e %-8zu %.1e %-8zu %.1e %zu\n", i, tidegate::name_of(b.rule), output.difference,
                    output.row, stream.difference, stream.row, state.difference, state.row);
        right = right && output.within() && stream.within() && state.within();
    }
    std::printf("largest relative L2 difference at any position (state: of any head); %s %.0e\n",
                right ? "all within" : "NOT all within", kBound);
    return right;
}

}  // namespace tinylm
