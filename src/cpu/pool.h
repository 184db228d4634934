// A small thread pool: persistent workers, one job at a time.
#pragma once

#include <cstdint>
#include <functional>

namespace tidegate::cpu {

/// Calls task(i, worker) once for every i in [0, tasks), on up to `threads` threads, the caller among them; worker is
/// in [0, threads) and no two calls share one at a time. Returns when all are done. Tasks must not throw. A caller that
/// finds the pool busy (or is itself a task) does its tasks alone.
void parallel_for(std::int64_t tasks, int threads, const std::function<void(std::int64_t task, int worker)>& task);

}  // namespace tidegate::cpu
