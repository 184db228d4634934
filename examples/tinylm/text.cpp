#include <algorithm>
#include <cstdio>

#include "tasks.h"
#include "tidegate/error.h"

namespace tinylm {
namespace {

/// Greedy: the most probable byte, again and again. The prompt is one prefill, and decode goes on from its state.
std::vector<std::byte> continuation(const Model& model, std::span<const std::byte> prompt, std::int64_t tokens,
                                    Fault fault) {
    State state(model);
    std::vector<float> logits = advance(model, state, prompt, Call::prefill, fault);
    std::vector<std::byte> text;
    while (static_cast<std::int64_t>(text.size()) < tokens) {
        const auto row = logits.end() - kBytes;
        text.push_back(static_cast<std::byte>(std::max_element(row, logits.end()) - row));
        logits = advance(model, state, std::span(text).last(1), Call::decode, fault);
    }
    return text;
}

void print(std::span<const std::byte> text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

void report_text(const Model& model, const std::string& prompt, std::int64_t tokens, Fault fault) {
    if (prompt.empty()) throw tidegate::Error("prompt", "the prompt is empty: there is no byte to start from");
    const std::span<const std::byte> given = std::as_bytes(std::span(prompt));
    const std::vector<std::byte> exact = continuation(model, given, tokens, Fault::none);
    print(given);
    print(exact);
    std::printf("\n");
    if (fault == Fault::none) return;
    const std::vector<std::byte> faulty = continuation(model, given, tokens, fault);
    const auto differs = std::mismatch(exact.begin(), exact.end(), faulty.begin()).first - exact.begin();
    if (differs == tokens) {
        std::printf("first token that differs with beta rounded to bf16: none within %td\n", differs);
        return;
    }
    std::printf("first token that differs with beta rounded to bf16: %td, byte %td of the text (from 0); it goes on:\n",
                differs, differs + static_cast<std::ptrdiff_t>(prompt.size()));
    print(given);
    print(faulty);
    std::printf("\n");
}

}  // namespace tinylm
