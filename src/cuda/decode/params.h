// What the decode kernels take: the normal form flattened for the device. Shapes and nullability beside each field.
#pragma once

#include <cstdint>

#include "problem/normal_form.h"

namespace tidegate::cuda {

/// A strided device tensor; strides in elements, offsets made of them have 64 bits. data == nullptr: absent.
struct View {
    void* data;
    Dtype dtype;
    std::int32_t stride[5];
};

struct DecodeParams {
    View q;                            ///< [B, T, H, K]
    View k;                            ///< [B, T * steps, H, K]
    View v;                            ///< [B, T * steps, HV, V]
    View a, b;                         ///< [B, T, HV, K]; free form only
    View gate;                         ///< [B, T, HV] or [B, T, HV, K]: g, or logits
    View A_log, dt_bias;               ///< [HV]; [HV] or [HV, K], may be absent
    View erase, write;                 ///< [B, T * steps, HV] or [.., K or V]
    View o;                            ///< [B, >= T, HV, V]
    View state;                        ///< [P, HV, K, V] by strides, read and written
    View state_tokens;                 ///< [B, T, HV, K, V] by strides, may be absent
    View state_indices, num_accepted;  ///< [B] or [B, columns]; [B]; may be absent
    std::int64_t null_slot;            ///< -1: none
    int B, T, H, HV, K, V, P;          ///< extents; slots of the pool
    int columns;                       ///< of state_indices; 0: it is [B]
    int steps;                         ///< Householder steps a token
    int slices;                        ///< CTAs a head, each with its own columns of V
    Decay decay;
    GateKind gate_kind;
    StrengthKind erase_kind, write_kind;
    bool erase_vector, write_vector, tied, tiled, l2norm, has_min;
    float scale, lower_bound, gate_min;
};

}  // namespace tidegate::cuda
