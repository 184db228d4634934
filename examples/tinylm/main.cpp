// tinylm: a small hybrid language model run through the library. Its weights are data/tinylm.safetensors.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <optional>

#include "tasks.h"
#include "tidegate/error.h"

namespace {

constexpr const char* kSample = "data/sample.txt";
constexpr const char* kPrompt = "To build the project, ";
constexpr std::int64_t kTokens = 64, kCompared = 512;
constexpr int kWrong = 1, kUsage = 2;

tinylm::Fault fault_from(const std::string& name) {
    if (name.empty()) return tinylm::Fault::none;
    if (name == "beta-bf16") return tinylm::Fault::beta_bf16;
    throw tidegate::Error("fault", "unknown fault '" + name + "', expected beta-bf16");
}

int run(int argc, char** argv) {
    CLI::App app("A small byte-level language model with gated delta-rule layers, run through Tidegate.", "tinylm");
    std::string model_path = "data/tinylm.safetensors", fault_name;
    std::optional<std::string> bits, prompt;
    std::string compared = kSample;
    std::optional<std::int64_t> tokens;
    bool windows = false;
    app.add_option("--model", model_path, "the weights")->capture_default_str();
    app.add_option("--bits", bits, "bits per byte of FILE, in windows of 2048 bytes from a fresh state")
        ->type_name("FILE");
    app.add_flag("--verbose", windows, "with --bits: also of every window");
    app.add_option("--prompt", prompt, "TEXT, and what greedy decode makes of it")->type_name("TEXT");
    auto* compare = app.add_option("--compare", compared, "decode by the token beside one prefill, block by block")
                        ->expected(0, 1)
                        ->type_name("[FILE]")
                        ->capture_default_str();
    app.add_option("--tokens", tokens, "how many: to decode (64), or to compare (512)")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000}))
        ->type_name("N");
    app.add_option("--fault", fault_name,
                   "beta-bf16: what rounding beta to bf16 changes in --bits and --prompt, or in the decode of "
                   "--compare; alone: in both of a default file and prompt")
        ->type_name("NAME");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        return app.exit(e) == 0 ? 0 : kUsage;
    }
    const bool comparing = compare->count() > 0;
    if (!bits && !prompt && !comparing) {
        if (fault_name.empty()) throw tidegate::Error("", "give one of --bits, --prompt, --compare and --fault");
        bits = kSample;
        prompt = kPrompt;
    }
    const tinylm::Fault fault = fault_from(fault_name);
    const tinylm::Model model = tinylm::load_model(model_path);
    if (bits) report_bits(model, *bits, fault, windows);
    if (prompt) report_text(model, *prompt, tokens.value_or(kTokens), fault);
    return !comparing || report_comparison(model, compared, tokens.value_or(kCompared), fault) ? 0 : kWrong;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "tinylm: %s\n", e.what());
        return kUsage;
    }
}
