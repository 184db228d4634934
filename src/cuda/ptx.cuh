// One instruction, one name.
#pragma once

#include <cstdint>

namespace tidegate::cuda::ptx {

/// Until the kernel before in the stream is done and its memory is visible. Nothing is read or written earlier.
__device__ inline void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// The kernel behind in the stream may take free places of the chip; it waits for this one's end as above.
__device__ inline void let_kernel_after_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/// Global memory that another kernel may be writing; it does not stay in L1.
__device__ inline std::int32_t peek(const std::int32_t* from) {
    std::int32_t x;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}
__device__ inline std::int64_t peek(const std::int64_t* from) {
    std::int64_t x;
    asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(x) : "l"(from));
    return x;
}
/// A line of global memory into L2; a hint.
__device__ inline void prefetch(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }
/// 16 bytes from global to shared memory without a register, past L1; zeros unless `active`.
__device__ inline void copy_async(void* to, const void* from, bool active) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
        "l"(from), "r"(active ? 16 : 0)
        : "memory");
}
/// Until the thread's own copies are there, for the thread itself.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// 16 bytes of shared memory, loaded anew whenever they are looked at and not kept in registers in between.
__device__ inline uint4 load_anew(const uint4* from) {
    uint4 x;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(from))));
    return x;
}
/// No instruction: what the compiler computes of x is not shared with what it computed of it before.
__device__ inline std::int64_t as_if_new(std::int64_t x) {
    asm volatile("" : "+l"(x));
    return x;
}

}  // namespace tidegate::cuda::ptx
