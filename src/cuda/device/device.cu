// Device memory, copies and timing, for the tool and for tests.
#include <algorithm>
#include <vector>

#include "cuda/checked.h"
#include "cuda/cuda.h"

namespace tidegate::cuda {

const char* unavailable() {
    int count = -1;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) return cudaGetErrorString(error);
    if (count < 1) return "no CUDA device";
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    return major == 9 ? nullptr : "the device is no Hopper GPU (compute capability 9.0)";
}

void* allocate(std::size_t bytes) {
    void* memory = nullptr;
    checked(cudaMalloc(&memory, bytes > 0 ? bytes : 1), "allocation");
    return memory;
}
void release(void* memory) { cudaFree(memory); }
void to_device(void* to, const void* from, std::size_t bytes) {
    checked(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
}
void to_host(void* to, const void* from, std::size_t bytes) {
    checked(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}
void synchronise() { checked(cudaDeviceSynchronize(), "a kernel"); }

void copy(void* to, const void* from, std::size_t bytes, void* stream) {
    checked(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
            "copy on the device");
}

double median_seconds(int calls, int repeats, const std::function<void(void*, int)>& call) {
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr;
    checked(cudaStreamCreate(&stream), "stream");
    checked(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; ++i) call(stream, i);
    checked(cudaStreamEndCapture(stream, &graph), "capture");
    checked(cudaGraphInstantiate(&ready, graph, 0), "graph");
    checked(cudaEventCreate(&begin), "event");
    checked(cudaEventCreate(&end), "event");
    for (int i = 0; i < 3; ++i) checked(cudaGraphLaunch(ready, stream), "graph launch");
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) {
        checked(cudaEventRecord(begin, stream), "event");
        checked(cudaGraphLaunch(ready, stream), "graph launch");
        checked(cudaEventRecord(end, stream), "event");
        checked(cudaEventSynchronize(end), "a kernel");
        float ms = 0;
        checked(cudaEventElapsedTime(&ms, begin, end), "event");
        seconds.push_back(static_cast<double>(ms) * 1e-3 / calls);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}

std::string device_name() {
    cudaDeviceProp properties{};
    return cudaGetDeviceProperties(&properties, 0) == cudaSuccess ? properties.name : "none";
}

}  // namespace tidegate::cuda
