// What the example does with the model; each prints its own report.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model.h"

namespace tinylm {

std::vector<std::byte> read_bytes(const std::string& path);

/// Bits per byte of a file in windows from a fresh state; with a fault, also what it changes.
void report_bits(const Model& model, const std::string& path, Fault fault, bool windows);

/// The prompt and what greedy decode makes of it; with a fault, also the first byte that it changes.
void report_text(const Model& model, const std::string& prompt, std::int64_t tokens, Fault fault);

/// Token-by-token decode, with the fault if there is one, beside one prefill without. True where only fp32 rounding
/// separates them.
bool report_comparison(const Model& model, const std::string& path, std::int64_t tokens, Fault fault);

}  // namespace tinylm
