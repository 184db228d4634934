// A plan carried out on the CPU.
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "problem/number.h"
#include "tidegate/error.h"

namespace tidegate {
namespace cpu {

CpuMachine this_machine() {
    static const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    return {current_isa(), cores};
}

namespace {

std::atomic<std::int64_t> allocated{0};

/// The calling thread's workspace. It grows and is kept: a fresh one would cost a page fault every 4 KiB of every call.
float* workspace_of(std::int64_t bytes) {
    struct Kept {
        hwy::AlignedFreeUniquePtr<float[]> data;  // at least on cache lines
        std::int64_t bytes = 0;
        ~Kept() { allocated -= bytes; }
    };
    thread_local Kept kept;
    if (bytes > kept.bytes) {
        kept.data.reset();  // before the larger one is asked for
        allocated -= std::exchange(kept.bytes, 0);
        kept.data = hwy::AllocateAligned<float>(static_cast<std::size_t>(bytes) / sizeof(float));
        if (kept.data == nullptr) throw std::bad_alloc();
        allocated += kept.bytes = bytes;
    }
    return kept.data.get();
}

/// A pad's rows of o and state_tokens.
void zero_pad(const NormalForm& nf, std::int64_t n) {
    const Tensor &o = nf.o, &s = nf.state_tokens;
    for (std::int64_t t = 0; t < nf.tokens; ++t)
        for (std::int64_t h = 0; h < nf.value_heads; ++h)
            for (std::int64_t j = 0; j < nf.V; ++j) {
                store_element(o.data, o.dtype, offset_of(o, n, t, h, j), 0);
                for (std::int64_t i = 0; s.present() && i < nf.K; ++i)
                    store_element(s.data, s.dtype, offset_of(s, n, t, h, i, j), 0);
            }
}

}  // namespace

std::int64_t allocated_bytes() { return allocated; }

void run(const NormalForm& nf, const Plan& plan) {
    Kernel kernel = nullptr;
    for (const KernelRow& row : inventory())
        if (row.path == plan.arithmetic.path) kernel = row.kernel;
    if (kernel == nullptr) throw Error("plan", "plan: no CPU kernel is called " + std::string(plan.arithmetic.path));

    const auto& s = plan.schedule;
    float* const workspace = workspace_of(s.workspace_bytes);
    const std::int64_t slices = (nf.V + s.slice_v - 1) / s.slice_v, heads = nf.value_heads;
    const std::int64_t each = workspace_floats(nf.K, s.slice_v);
    for (std::int64_t n = 0; nf.pool && n < nf.sequences; ++n)
        if (nf.source(n) < 0) zero_pad(nf, n);
    std::int64_t longest = 0;  // tokens
    for (std::int64_t n = 0; n < nf.sequences; ++n)
        longest = std::max(longest, nf.sequence(n).end - nf.sequence(n).begin);
    const std::int64_t round = s.round > 0 ? s.round : std::max<std::int64_t>(longest, 1);
    for (std::int64_t from = 0; from < std::max<std::int64_t>(longest, 1); from += round)
        parallel_for(s.tasks, s.threads, [&](std::int64_t i, int worker) {
            const std::int64_t n = i / slices / heads;
            if (nf.source(n) < 0) return;
            const Span span = nf.sequence(n);
            const std::int64_t begin = span.begin + from, end = std::min(begin + round, span.end);
            if (from > 0 && begin >= end) return;  // this sequence is over
            kernel(nf, {.sequence = n,
                        .head = i / slices % heads,
                        .begin = std::min(begin, span.end) * nf.steps,
                        .end = end * nf.steps,
                        .state = from > 0 ? nf.final_state : nf.initial_state,
                        .first_column = i % slices * s.slice_v,
                        .columns = s.slice_v,
                        .workspace = workspace + worker * each});
        });
}

void run(const BackwardForm& form, const Plan& plan) {
    ReverseKernel kernel = nullptr;
    for (const ReverseRow& row : reverse_inventory())
        if (row.path == plan.arithmetic.path) kernel = row.kernel;
    if (kernel == nullptr) throw Error("plan", "plan: no CPU kernel is called " + std::string(plan.arithmetic.path));

    const NormalForm& nf = form.nf;
    const auto& s = plan.schedule;
    float* const workspace = workspace_of(s.workspace_bytes);
    std::int64_t longest = 1;  // rows
    for (std::int64_t n = 0; n < nf.sequences; ++n)
        longest = std::max(longest, (nf.sequence(n).end - nf.sequence(n).begin) * nf.steps);
    const std::int64_t each = backward_floats(nf, longest, s.spacing);
    const std::int64_t width = 1 + (nf.gate.decay == Decay::vector ? nf.K : 1), row = nf.value_heads * width;
    double* sums = nullptr;  // [N, HV, width]
    if (form.has(Role::A_log)) {
        sums = reinterpret_cast<double*>(workspace + s.threads * each);
        std::uninitialized_fill_n(sums, nf.sequences * row, 0.0);
    }
    parallel_for(s.tasks, s.threads, [&](std::int64_t i, int worker) {
        const std::int64_t n = i / nf.key_heads;
        kernel(form, {.sequence = n,
                      .key_head = i % nf.key_heads,
                      .spacing = s.spacing,
                      .longest = longest,
                      .shared = nf.value_heads > nf.key_heads,
                      .workspace = workspace + worker * each,
                      .parameters = sums == nullptr ? nullptr : sums + n * row});
    });
    if (sums == nullptr) return;
    for (std::int64_t n = 1; n < nf.sequences; ++n)  // in order
        for (std::int64_t i = 0; i < row; ++i) sums[i] += sums[n * row + i];
    const Tensor &A_log = form.of(Role::A_log), &bias = form.of(Role::dt_bias);
    for (std::int64_t h = 0; h < nf.value_heads; ++h) {
        if (A_log.present()) store_element(A_log.data, A_log.dtype, offset_of(A_log, h), sums[h * width]);
        for (std::int64_t c = 0; bias.present() && c + 1 < width; ++c)
            store_element(bias.data, bias.dtype, bias.rank == 2 ? offset_of(bias, h, c) : offset_of(bias, h),
                          sums[h * width + 1 + c]);
    }
}

}  // namespace cpu

}  // namespace tidegate
