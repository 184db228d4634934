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

}  // namespace tidegate::faults
