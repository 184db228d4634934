// One instruction, one name.
#pragma once

namespace tidegate::cuda::ptx {

/// Until the kernel before in the stream is done and its memory is visible. Nothing is read or written earlier.
__device__ inline void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// The kernel behind in the stream may take free places of the chip; it waits for this one's end as above.
__device__ inline void let_kernel_after_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace tidegate::cuda::ptx
