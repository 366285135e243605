// Whether work should stop before it is done.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <utility>

namespace maxflow {

// Threads that work together share `stop`. One of them has an `ask` function, which returns whether
// the caller wants to stop (because of Ctrl-C, say). It asks at most once an interval, and not
// again once the answer was yes.
class Watch {
   public:
    explicit Watch(std::atomic<bool>& stop, std::function<bool()> ask = {},
                   std::chrono::milliseconds interval = std::chrono::milliseconds(50))
        : stop_(stop), ask_(std::move(ask)), interval_(interval) {}

    // A watch for another thread, which does not ask.
    Watch companion() const { return Watch(stop_); }

    void stop() { stop_.store(true, std::memory_order_relaxed); }

    bool stopped() {
        if (stop_.load(std::memory_order_relaxed)) return true;
        if (!ask_) return false;
        const auto now = std::chrono::steady_clock::now();
        if (now - asked_ < interval_) return false;
        asked_ = now;
        if (!ask_()) return false;
        stop();
        return true;
    }

   private:
    std::atomic<bool>& stop_;
    std::function<bool()> ask_;
    std::chrono::milliseconds interval_;
    std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
};

}  // namespace maxflow
