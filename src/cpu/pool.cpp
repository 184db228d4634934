#include "cpu/pool.h"

#include <hwy/cache_control.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace tidegate::cpu {
namespace {

class Pool {
public:
    ~Pool() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (std::thread& t : workers_) t.join();
    }

    /// False when another caller holds the pool.
    bool run(std::int64_t tasks, int threads, TaskRef task) {
        const std::unique_lock owner(owner_, std::try_to_lock);
        if (!owner) return false;
        {
            const std::lock_guard lock(mutex_);
            try {
                while (static_cast<int>(workers_.size()) < threads - 1)
                    workers_.emplace_back([this, id = static_cast<int>(workers_.size()) + 1] { work(id); });
            } catch (const std::system_error&) {  // the machine has no more threads; fewer give the same bits
                threads = static_cast<int>(workers_.size()) + 1;
            }
            task_ = &task;
            tasks_ = tasks;
            next_.store(0, std::memory_order_relaxed);
            wanted_ = threads - 1;
            running_.store(wanted_, std::memory_order_relaxed);
            job_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        drain(0);
        const auto finished = [this] { return running_.load(std::memory_order_acquire) == 0; };
        spin_until(finished);
        std::unique_lock lock(mutex_);
        done_.wait(lock, finished);
        return true;
    }

private:
    void drain(int id) {
        for (std::int64_t i = next_.fetch_add(1); i < tasks_; i = next_.fetch_add(1)) (*task_)(i, id);
    }

    /// A wake-up by the kernel costs tens of microseconds; back-to-back calls find their workers still looking.
    template <class F>
    static void spin_until(const F& condition) {
        for (int i = 0; i < 2000 && !condition(); ++i) hwy::Pause();
    }

    void work(int id) {
        std::uint64_t seen = 0;
        while (true) {
            const auto called = [&] { return job_.load(std::memory_order_acquire) != seen; };
            spin_until(called);
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return stop_ || called(); });
            if (stop_) return;
            seen = job_.load(std::memory_order_relaxed);
            const bool wanted = id <= wanted_;
            lock.unlock();
            if (!wanted) continue;
            drain(id);
            if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                lock.lock();  // the caller is either before its check of running_, or waiting
                done_.notify_one();
            }
        }
    }

    std::mutex owner_;  // one caller at a time
    std::mutex mutex_;  // guards what follows, and hands the job over
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    const TaskRef* task_ = nullptr;
    std::int64_t tasks_ = 0;
    std::atomic<std::int64_t> next_{0};
    std::atomic<std::uint64_t> job_{0};
    std::atomic<int> running_{0};
    int wanted_ = 0;
    bool stop_ = false;
};

}  // namespace

void parallel_for(std::int64_t tasks, int threads, TaskRef task) {
    static Pool pool;
    thread_local bool inside = false;  // a task that calls us would wait for itself
    if (threads > 1 && tasks > 1 && !inside) {
        inside = true;
        const bool ran = pool.run(tasks, threads, task);
        inside = false;
        if (ran) return;
    }
    for (std::int64_t i = 0; i < tasks; ++i) task(i, 0);
}

}  // namespace tidegate::cpu
