// The CUDA backend of a build without one.
#include "cuda/cuda.h"
#include "tidegate/error.h"

namespace tidegate::cuda {
namespace {
[[noreturn]] void absent() {
    throw Error("device", "device: given CUDA tensors, expected CPU tensors: this build has no CUDA backend");
}
}  // namespace

void run(const NormalForm&, const Plan&, const Options&) { absent(); }
const char* unavailable() { return "this build has no CUDA backend (configure with -DTIDEGATE_CUDA=ON)"; }
void* allocate(std::size_t) { absent(); }
void release(void*) {}
void to_device(void*, const void*, std::size_t) { absent(); }
void to_host(void*, const void*, std::size_t) { absent(); }
void synchronise() {}
void copy(void*, const void*, std::size_t, void*) { absent(); }
double median_seconds(int, int, const std::function<void(void*, int)>&) { absent(); }
std::string device_name() { return "none"; }

}  // namespace tidegate::cuda
