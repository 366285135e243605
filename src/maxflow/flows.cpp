#include "flows.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>

#include "solver.hpp"
#include "vector.hpp"

namespace maxflow {
namespace {

// Bounds cost one pass over the matrices, which pays off if this many pairs share it.
constexpr std::size_t enough_to_share = 8;

// The pairs of one token, or of one source, share upper bounds. A flow through layer j is at most
// the sum, over the nodes of that layer, of the smaller of what can reach the node and what the
// node can deliver. Applied layer by layer, this bounds the flows of all pairs of a token (or
// source) in one pass over the matrices. The solver stops when it reaches the bound, without having
// to show that there is no further path.
class Worker {
   public:
    Worker(const Network& network, const Request& request, Amount* result, Watch& watch)
        : net_(network),
          request_(request),
          result_(result),
          watch_(watch),
          solver_(network, &watch),
          n_(network.size()) {}

    // All layers for token j and positions first .. last - 1.
    void token(std::size_t j, std::size_t first, std::size_t last) {
        const std::size_t t = request_.tokens[j];
        const std::size_t P = request_.positions.size();
        const std::size_t deepest = *std::max_element(request_.tops.begin(), request_.tops.end());
        const bool share = last - first >= enough_to_share && deepest > 2;
        // If all positions are asked for, the flows of the layer below are known exactly.
        const bool whole = share && last - first == P && covers_all(request_.positions);
        if (!share) {
            for (std::size_t i = 0; i < request_.tops.size(); ++i) {
                for (std::size_t p = first; p < last; ++p) {
                    if (watch_.stopped()) return;
                    put(i, p, j) = solver_.flow(request_.tops[i], request_.positions[p], t);
                }
            }
            return;
        }
        std::vector<Amount> below(n_), here(n_);
        std::vector<std::size_t> order(n_);
        bool exact = true;
        for (std::size_t l = 1; l <= deepest; ++l) {
            const std::size_t* wanted =
                std::find(request_.tops.data(), request_.tops.data() + request_.tops.size(), l);
            const std::size_t i = static_cast<std::size_t>(wanted - request_.tops.data());
            const bool asked = i < request_.tops.size();
            for (std::size_t k = 0; k < n_ && l < deepest; ++k) {
                here[k] = l == 1 ? solver_.column(1, t)[k] : ceiling(l, k, t, below.data());
            }
            bool here_exact = l <= 2;
            if (asked) {
                if (exact && l > 2) sort_by(below, order);
                for (std::size_t p = first; p < last; ++p) {
                    if (watch_.stopped()) return;
                    const std::size_t s = request_.positions[p];
                    Amount bound = unlimited;
                    if (l > 2) {
                        bound = ceiling(l, s, t, below.data());
                        if (exact && floor(l, s, below, order) == bound) {
                            put(i, p, j) = bound;
                            continue;
                        }
                    }
                    put(i, p, j) = solver_.flow(l, s, t, bound);
                }
                if (whole) {
                    for (std::size_t p = 0; p < P; ++p) here[request_.positions[p]] = put(i, p, j);
                    here_exact = true;
                }
            }
            exact = here_exact;
            below.swap(here);
        }
        for (std::size_t i = 0; i < request_.tops.size(); ++i) copy_repeated(i, j, first, last);
    }

    // Tokens first .. last - 1 for position p of layer tops[i].
    void source(std::size_t i, std::size_t p, std::size_t first, std::size_t last) {
        const std::size_t top = request_.tops[i];
        const std::size_t s = request_.positions[p];
        const bool share = last - first >= enough_to_share && top > 2;
        if (share && (top != shared_top_ || s != shared_source_)) {
            // What the source can bring to each node of a layer, from the top down to layer 1.
            reach_.assign(net_.row(top, s), net_.row(top, s) + n_);
            std::vector<Amount> next(n_);
            for (std::size_t l = top - 1; l >= 2; --l) {
                std::fill(next.begin(), next.end(), 0);
                for (std::size_t k = 0; k < n_; ++k) {
                    if (reach_[k] > 0) {
                        add_minima(next.data(), reach_[k], net_.row(l, k), net_.out(top, s), n_);
                    }
                }
                reach_.swap(next);
                if (watch_.stopped()) return;
            }
            shared_top_ = top;
            shared_source_ = s;
        }
        for (std::size_t j = first; j < last; ++j) {
            if (watch_.stopped()) return;
            const std::size_t t = request_.tokens[j];
            const Amount bound =
                share ? sum_of_minima(reach_.data(), solver_.column(1, t), n_) : unlimited;
            put(i, p, j) = solver_.flow(top, s, t, bound);
        }
    }

   private:
    Amount& put(std::size_t i, std::size_t p, std::size_t j) {
        const std::size_t P = request_.positions.size(), T = request_.tokens.size();
        return result_[(i * P + p) * T + j];
    }

    // A layer that is given twice is computed once.
    void copy_repeated(std::size_t i, std::size_t j, std::size_t first, std::size_t last) {
        const auto original = static_cast<std::size_t>(
            std::find(request_.tops.begin(), request_.tops.end(), request_.tops[i]) -
            request_.tops.begin());
        for (std::size_t p = first; original != i && p < last; ++p) {
            put(i, p, j) = put(original, p, j);
        }
    }

    bool covers_all(const std::vector<std::size_t>& positions) const {
        std::vector<bool> seen(n_, false);
        for (const std::size_t p : positions) seen[p] = true;
        return std::find(seen.begin(), seen.end(), false) == seen.end();
    }

    // flow(l, k, t) <= sum over m of min(capacity of the edge to m, what (l - 1, m) delivers)
    Amount ceiling(std::size_t l, std::size_t k, std::size_t t, const Amount* below) const {
        return std::min(net_.in(t), sum_of_minima(net_.row(l, k), below, n_));
    }

    static void sort_by(const std::vector<Amount>& below, std::vector<std::size_t>& order) {
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::sort(order.begin(), order.end(),
                  [&](std::size_t a, std::size_t b) { return below[a] < below[b]; });
    }

    // What the nodes of a layer can deliver together is a polymatroid, and a set of nodes delivers
    // at least as much as its best node. So amounts can all be delivered if, in ascending order of
    // what their nodes deliver alone, their running sum never exceeds that.
    Amount floor(std::size_t l, std::size_t s, const std::vector<Amount>& below,
                 const std::vector<std::size_t>& order) const {
        const Amount* row = net_.row(l, s);
        Amount sum = 0;
        for (const std::size_t k : order) sum = std::min(sum + row[k], below[k]);
        return sum;
    }

    const Network& net_;
    const Request& request_;
    Amount* result_;
    Watch& watch_;
    Solver solver_;
    const std::size_t n_;
    std::vector<Amount> reach_;
    std::size_t shared_top_ = 0, shared_source_ = 0;
};

}  // namespace

bool flows(const Network& network, const Request& request, std::size_t threads, Amount* result,
           Watch& watch) {
    const std::size_t L = request.tops.size(), P = request.positions.size(),
                      T = request.tokens.size();
    if (L * P * T == 0) return true;
    threads = std::max<std::size_t>(1, std::min(threads, L * P * T));

    // Pairs share work along the side with more members. Its members are split into only as many
    // parts as keep all threads busy to the end.
    const bool by_token = P >= T;
    const std::size_t groups = by_token ? T : L * P;
    const std::size_t members = by_token ? P : T;
    const std::size_t parts = std::min(
        members, threads == 1 || groups >= 4 * threads ? 1 : (4 * threads + groups - 1) / groups);
    const std::size_t tasks = groups * parts;

    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex failing;
    const auto work = [&](Watch& mine) {
        try {
            Worker worker(network, request, result, mine);
            for (;;) {
                const std::size_t task = next.fetch_add(1);
                if (task >= tasks || mine.stopped()) return;
                const std::size_t group = task / parts, part = task % parts;
                const std::size_t first = members * part / parts;
                const std::size_t last = members * (part + 1) / parts;
                if (by_token) {
                    worker.token(group, first, last);
                } else {
                    worker.source(group / P, group % P, first, last);
                }
            }
        } catch (...) {
            const std::lock_guard lock(failing);
            failure = std::current_exception();
            mine.stop();
        }
    };
    std::vector<std::thread> pool;
    std::size_t running = 0;
    std::mutex counting;
    std::condition_variable finished;
    for (std::size_t i = 1; i < std::min(threads, tasks); ++i) {
        const std::lock_guard lock(counting);
        try {
            pool.emplace_back([&] {
                Watch companion = watch.companion();
                work(companion);
                const std::lock_guard ended(counting);
                --running;
                finished.notify_one();
            });
        } catch (const std::system_error&) {
            break;  // no more threads are available; the answer is the same with fewer
        }
        ++running;
    }
    // The calling thread works, too. When no task is left, it waits for the others, which may take
    // long, and keeps asking whether to stop.
    work(watch);
    {
        std::unique_lock lock(counting);
        while (!finished.wait_for(lock, std::chrono::milliseconds(50), [&] { return !running; })) {
            lock.unlock();
            watch.stopped();
            lock.lock();
        }
    }
    for (std::thread& thread : pool) thread.join();
    if (failure) std::rethrow_exception(failure);
    return !watch.stopped();
}

}  // namespace maxflow
