// A small thread pool: persistent workers, one job at a time.
#pragma once

#include <cstdint>

namespace tidegate::cpu {

/// A reference to a callable task(i, worker); never owns, never allocates.
class TaskRef {
public:
    template <class F>
    TaskRef(const F& f)  // NOLINT(google-explicit-constructor): a lambda is the usual argument
        : object_(&f), call_([](const void* o, std::int64_t i, int w) { (*static_cast<const F*>(o))(i, w); }) {}
    void operator()(std::int64_t task, int worker) const { call_(object_, task, worker); }

private:
    const void* object_;
    void (*call_)(const void*, std::int64_t, int);
};

/// Calls task(i, worker) once for every i in [0, tasks), on up to `threads` threads, the caller among them; worker is
/// in [0, threads) and no two calls share one at a time. Returns when all are done. Tasks must not throw. A caller that
/// finds the pool busy (or is itself a task) does its tasks alone. A child of fork() has no workers: it must exec.
void parallel_for(std::int64_t tasks, int threads, TaskRef task);

}  // namespace tidegate::cpu
