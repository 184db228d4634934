// What will run, decided before anything runs, and printable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tidegate {

/// Choices that change no bit of the result.
struct Options {
    int threads = 0;                ///< CPU; 0: every core of the machine
    void* stream = nullptr;         ///< CUDA: the cudaStream_t that a call is put on; calls return before they are done
    std::int64_t memory_limit = 0;  ///< backward on the CPU: bytes it may allocate; 0: no limit
};

/// `arithmetic` holds all that can change a bit; it follows from rule, K, V, dtypes, gate kind and the machine's
/// instruction set alone. `schedule` holds what changes none.
struct Plan {
    struct Arithmetic {
        std::string_view path;        ///< the kernel's name in the inventory
        std::string_view isa;         ///< instruction set the kernel was compiled for
        std::int64_t bucket_k = 0;    ///< K as the kernel pads it
        std::int64_t bucket_v = 0;    ///< V as the kernel pads it
        std::int64_t pass = 0;        ///< tokens a pass: `resumable` holds at multiples of it
        std::string_view operands;    ///< type of the products' operands
        std::string_view accumulate;  ///< type of state and sums
        bool operator==(const Arithmetic&) const = default;
    } arithmetic;
    struct Schedule {
        int threads = 1;
        std::int64_t round = 0;            ///< CPU: tokens of every head before any goes on; 0: all
        std::int64_t tasks = 0;            ///< independent pieces of work a round
        std::int64_t slice_v = 0;          ///< state columns a task
        std::int64_t workspace_bytes = 0;  ///< all the call allocates
        std::int64_t spacing = 0;          ///< backward: rows between checkpoints of the state
        double extra_flop = 0;             ///< backward: share that recomputing states twice adds
    } schedule;

    std::string text() const;  ///< two lines, one a part
};

}  // namespace tidegate
