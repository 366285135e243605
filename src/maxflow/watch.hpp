// Whether work should end before it is done.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <utility>

namespace maxflow {

// Threads that work together share `stop`. The one that may ask the caller (has the user pressed
// Ctrl-C?) does so at most twenty times a second, and tells the others.
class Watch {
   public:
    explicit Watch(std::atomic<bool>& stop, std::function<bool()> ask = {})
        : stop_(stop), ask_(std::move(ask)) {}

    // For another thread: it is told, but asks nobody.
    Watch companion() const { return Watch(stop_); }

    void stop() { stop_.store(true, std::memory_order_relaxed); }

    bool stopped() {
        if (ask_) {
            const auto now = std::chrono::steady_clock::now();
            if (now - asked_ > std::chrono::milliseconds(50)) {
                asked_ = now;
                if (ask_()) stop();
            }
        }
        return stop_.load(std::memory_order_relaxed);
    }

   private:
    std::atomic<bool>& stop_;
    std::function<bool()> ask_;
    std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
};

}  // namespace maxflow
