// Tensor views: what the caller hands over. A view never owns its memory.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace tidegate {

/// Element types; the numbers are those of the C ABI.
enum class Dtype : std::int32_t { fp32 = 0, bf16 = 1, fp16 = 2, fp64 = 3, int32 = 4, int64 = 5 };
enum class Device : std::int32_t { cpu = 0, cuda = 1 };

inline constexpr int kMaxRank = 5;

/// A strided view. `rank == 0` means "absent": optional arguments are left default-constructed.
struct Tensor {
    void* data = nullptr;  ///< first element; inputs are only read through it
    Dtype dtype = Dtype::fp32;
    Device device = Device::cpu;
    std::int32_t rank = 0;
    std::array<std::int64_t, kMaxRank> shape{};
    std::array<std::int64_t, kMaxRank> stride{};  ///< in elements

    bool present() const { return rank > 0; }
    std::int64_t size() const;  ///< number of elements; 0 for an absent tensor
};

/// A view with row-major strides. `data` may be null only if the tensor has no elements.
Tensor dense(const void* data, Dtype dtype, std::initializer_list<std::int64_t> shape);

std::int64_t bytes_of(Dtype dtype);       ///< bytes of one element
const char* name_of(Dtype dtype);         ///< "fp32", "bf16", ...
std::string shape_text(const Tensor& t);  ///< "[1, 70, 4, 96]"

}  // namespace tidegate
