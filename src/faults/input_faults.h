// Faults of the inputs: what a wrapper that prepares them wrongly would hand to a right kernel.
#pragma once

#include "io/bundle.h"
#include "problem/normal_form.h"

namespace tidegate::faults {

void beta_bf16(const NormalForm& nf, io::Bundle& request);
void gate_bf16(const NormalForm& nf, io::Bundle& request);
void gate_next_token(const NormalForm& nf, io::Bundle& request);
void head_map(const NormalForm& nf, io::Bundle& request);
void varlen_leak(const NormalForm& nf, io::Bundle& request);
void varlen_off_by_one(const NormalForm& nf, io::Bundle& request);
void slots_ignored(const NormalForm& nf, io::Bundle& request);
void slot_offset_32bit(const NormalForm& nf, io::Bundle& request);
void null_slot_ignored(const NormalForm& nf, io::Bundle& request);
void accepted_off_by_one(const NormalForm& nf, io::Bundle& request);
void dht_ignored(const NormalForm& nf, io::Bundle& request);
void pool_bf16(const NormalForm& nf, io::Bundle& request);

/// Slots a 32-bit byte offset reaches when a slot is 2 MiB (32 heads of 128 x 128 in fp32).
inline constexpr std::int64_t kSlots32 = 2048;

}  // namespace tidegate::faults
