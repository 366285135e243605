// Compares the solver with a plain augmenting-path solver on random layered networks of kinds that
// are hard to solve, and with known flows: maxflow_test [--graphs N] [--seed S]
#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "flows.hpp"
#include "network.hpp"
#include "rounding.hpp"
#include "solver.hpp"

namespace {

using maxflow::Amount;

constexpr Amount one = Amount{1} << 50;

struct Graph {
    std::string family;
    std::size_t L, n;
    std::vector<std::vector<Amount>> layers;

    std::vector<const Amount*> pointers() const {
        std::vector<const Amount*> result;
        for (const auto& layer : layers) result.push_back(layer.data());
        return result;
    }
};

// Augmenting paths found breadth first over an explicit list of edges: nothing in common with the
// solver under test.
Amount reference(const Graph& g, std::size_t top, std::size_t s, std::size_t t) {
    struct Edge {
        std::size_t to;
        Amount left;
    };
    std::vector<Edge> edges;
    std::vector<std::vector<std::size_t>> leaving((top + 1) * g.n);
    for (std::size_t l = 1; l <= top; ++l) {
        for (std::size_t k = 0; k < g.n; ++k) {
            for (std::size_t m = 0; m < g.n; ++m) {
                const Amount capacity = g.layers[l - 1][k * g.n + m];
                if (capacity == 0) continue;
                leaving[l * g.n + k].push_back(edges.size());
                edges.push_back({(l - 1) * g.n + m, capacity});
                leaving[(l - 1) * g.n + m].push_back(edges.size());
                edges.push_back({l * g.n + k, 0});
            }
        }
    }
    const std::size_t source = top * g.n + s, sink = t, none = edges.size();
    Amount total = 0;
    for (;;) {
        std::vector<std::size_t> by(leaving.size(), none);
        std::queue<std::size_t> queue;
        queue.push(source);
        while (!queue.empty() && by[sink] == none) {
            const std::size_t u = queue.front();
            queue.pop();
            for (const std::size_t e : leaving[u]) {
                const std::size_t v = edges[e].to;
                if (edges[e].left > 0 && by[v] == none && v != source) {
                    by[v] = e;
                    queue.push(v);
                }
            }
        }
        if (by[sink] == none) return total;
        Amount least = maxflow::unlimited;
        for (std::size_t v = sink; v != source; v = edges[by[v] ^ 1].to) {
            least = std::min(least, edges[by[v]].left);
        }
        for (std::size_t v = sink; v != source; v = edges[by[v] ^ 1].to) {
            edges[by[v]].left -= least;
            edges[by[v] ^ 1].left += least;
        }
        total += least;
    }
}

class Maker {
   public:
    explicit Maker(std::uint64_t seed) : random_(seed) {}

    std::size_t between(std::size_t low, std::size_t high) {
        return std::uniform_int_distribution<std::size_t>(low, high)(random_);
    }
    double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

    Graph make() {
        static const char* families[] = {"one-hot", "uniform", "peaked",  "soft",  "causal",
                                         "banded",  "blocks",  "sink",    "ties",  "tiny",
                                         "sparse",  "wide",    "passing", "steep", "wide steep"};
        Graph g;
        g.family = families[between(0, std::size(families) - 1)];
        const bool deep = between(0, 9) == 0;
        g.L = deep ? between(7, 30) : between(1, 6);
        g.n = deep ? between(1, 10) : between(1, 24);
        // Two words and more of positions, where bit rows have borders.
        if (g.family == "wide" || g.family == "wide steep") {
            g.L = between(3, 4);
            g.n = between(60, 70);
        }
        const double residual = between(0, 3) == 0 ? 0.0 : between(0, 3) == 0 ? uniform() : 0.5;
        for (std::size_t l = 0; l < g.L; ++l) g.layers.push_back(layer(g, residual));
        return g;
    }

   private:
    std::vector<Amount> layer(const Graph& g, double residual) {
        const std::size_t n = g.n;
        std::vector<Amount> result(n * n);
        for (std::size_t k = 0; k < n; ++k) {
            std::vector<double> row(n, 0);
            for (std::size_t m = 0; m < n; ++m) row[m] = weight(g, k, m);
            if (g.family == "one-hot") row[between(0, n - 1)] = 1;
            const double sum = std::accumulate(row.begin(), row.end(), 0.0);
            for (std::size_t m = 0; m < n; ++m) {
                double share = sum > 0 ? row[m] / sum * (1 - residual) : 0;
                if (m == k) share += sum > 0 ? residual : 1;
                result[k * n + m] = static_cast<Amount>(share * static_cast<double>(one) + 0.5);
            }
            // A position of the other side of an encoder-decoder passes a step unchanged.
            if (g.family == "passing" && k < n / 2) {
                for (std::size_t m = 0; m < n; ++m) {
                    result[k * n + m] = m == k ? maxflow::unlimited : 0;
                }
            }
            // Small whole numbers: equal capacities and equal cuts everywhere.
            if (g.family == "ties") {
                for (std::size_t m = 0; m < n; ++m) {
                    result[k * n + m] = static_cast<Amount>(between(0, 2));
                }
            }
        }
        return result;
    }

    double weight(const Graph& g, std::size_t k, std::size_t m) {
        const std::string& f = g.family;
        const auto apart = k > m ? k - m : m - k;
        if (f == "one-hot") return 0;
        if (f == "uniform") return 1;
        if (f == "peaked") return std::exp(8 * uniform());
        if (f == "causal") return m > k ? 0 : std::exp(4 * uniform()) * (m == 0 ? 20 : 1);
        if (f == "banded") return apart <= 2 ? uniform() : 0;
        if (f == "blocks") return k * 3 / g.n == m * 3 / g.n ? uniform() : 0;
        if (f == "sink") return m == g.n - 1 ? static_cast<double>(g.n) : uniform();
        if (f == "tiny") return between(0, 2) == 0 ? 1.0 : 5e-324;
        // Most edges are far lighter than the few that carry most of the flow.
        if (f == "steep" || f == "wide steep") return std::exp(45 * uniform() * uniform());
        if (f == "sparse") return between(0, 3) == 0 ? uniform() : 0;
        return uniform();
    }

    std::mt19937_64 random_;
};

struct Tally {
    long passed = 0, failed = 0;

    void check(bool good, const Graph& g, const char* what) {
        good ? ++passed : ++failed;
        if (!good) {
            std::printf("FAILED %s: %s, %zu layers, %zu positions\n", what, g.family.c_str(), g.L,
                        g.n);
        }
    }
};

bool cut_holds(const Graph& g, const maxflow::Cut& cut, std::size_t top, std::size_t s,
               std::size_t t) {
    std::vector<bool> inside((top + 1) * g.n, false);
    for (const auto& [l, k] : cut.source_side) inside[l * g.n + k] = true;
    if (!inside[top * g.n + s] || inside[t]) return false;
    Amount across = 0;
    for (std::size_t l = 1; l <= top; ++l) {
        for (std::size_t k = 0; k < g.n; ++k) {
            for (std::size_t m = 0; m < g.n; ++m) {
                if (inside[l * g.n + k] && !inside[(l - 1) * g.n + m]) {
                    across += g.layers[l - 1][k * g.n + m];
                }
            }
        }
    }
    return across == cut.value;
}

void check_graph(const Graph& g, Maker& random, Tally& tally) {
    std::vector<std::size_t> all(g.n);
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::vector<std::size_t> tops(g.L);
    std::iota(tops.begin(), tops.end(), std::size_t{1});
    const maxflow::Network network(g.n, g.pointers());
    maxflow::Solver solver(network);

    for (int i = 0; i < 4; ++i) {
        const std::size_t top = i == 0 ? g.L : random.between(1, g.L);
        const std::size_t s = random.between(0, g.n - 1);
        const std::size_t t = i == 1 ? s : random.between(0, g.n - 1);
        const Amount expected = reference(g, top, s, t);
        tally.check(solver.flow(top, s, t) == expected, g, "flow");
        tally.check(solver.flow(top, s, t, expected) == expected, g, "flow with a tight bound");
        const maxflow::Cut cut = solver.cut(top, s, t);
        tally.check(cut.value == expected, g, "value of the cut");
        tally.check(cut_holds(g, cut, top, s, t), g, "the cut separates and is as large");
    }

    // Every pair of every layer, with what pairs share, in one thread and in three.
    const auto run = [&](const maxflow::Request& request, std::size_t threads) {
        std::vector<Amount> result(request.tops.size() * request.positions.size() *
                                   request.tokens.size());
        std::atomic<bool> stop{false};
        maxflow::Watch watch(stop);
        maxflow::flows(network, request, threads, result.data(), watch);
        return result;
    };
    const maxflow::Request whole{tops, all, all};
    const std::vector<Amount> flows = run(whole, 1);
    tally.check(run(whole, 3) == flows, g, "the same on three threads");
    bool same = true;
    for (std::size_t i = 0; i < flows.size() && same; i += 1 + flows.size() / 64) {
        const std::size_t top = tops[i / (g.n * g.n)], s = i / g.n % g.n, t = i % g.n;
        same = solver.flow(top, s, t) == flows[i];
    }
    tally.check(same, g, "many pairs at once and one by one");

    // Some positions, and a layer named twice, give the same numbers.
    const std::size_t s = random.between(0, g.n - 1), t = random.between(0, g.n - 1);
    const auto at = [&](std::size_t top, std::size_t k, std::size_t m) {
        return flows[((top - 1) * g.n + k) * g.n + m];
    };
    const auto row = run({{g.L, 1, g.L}, {s}, all}, 2);
    const auto column = run({{g.L, 1, g.L}, all, {t}}, 2);
    bool rows = true, columns = true;
    for (std::size_t k = 0; k < g.n; ++k) {
        rows = rows && row[k] == at(g.L, s, k) && row[g.n + k] == at(1, s, k) &&
               row[2 * g.n + k] == row[k];
        columns = columns && column[k] == at(g.L, k, t) && column[g.n + k] == at(1, k, t) &&
                  column[2 * g.n + k] == column[k];
    }
    tally.check(rows, g, "one source, all tokens");
    tally.check(columns, g, "all sources, one token");
}

// Checks the graphs of a file that the tests of Python and JavaScript read, too. It is JSON in
// which all numbers are integers; of each graph first layers and positions, then capacities, then
// flows.
void check_golden(const char* path, Tally& tally) {
    std::ifstream file(path);
    std::vector<Amount> numbers;
    for (int c = file.peek(); c != EOF; c = file.peek()) {
        if (std::isdigit(c)) {
            file >> numbers.emplace_back();
        } else {
            file.get();
        }
    }
    Graph g{"golden", 0, 0, {}};
    std::size_t next = 0;
    while (next + 2 < numbers.size()) {
        g.L = static_cast<std::size_t>(numbers[next]);
        g.n = static_cast<std::size_t>(numbers[next + 1]);
        next += 2;
        const std::size_t square = g.n * g.n;
        if (next + 2 * g.L * square > numbers.size()) break;
        g.layers.clear();
        for (std::size_t l = 0; l < g.L; ++l, next += square) {
            g.layers.emplace_back(&numbers[next], &numbers[next] + square);
        }
        std::vector<std::size_t> all(g.n);
        std::iota(all.begin(), all.end(), std::size_t{0});
        const maxflow::Network network(g.n, g.pointers());
        maxflow::Solver solver(network);
        for (std::size_t top = 1; top <= g.L; ++top) {
            for (std::size_t s = 0; s < g.n; ++s) {
                for (std::size_t t = 0; t < g.n; ++t) {
                    const Amount expected = numbers[next++];
                    tally.check(solver.flow(top, s, t) == expected, g, "flow on file");
                    tally.check(solver.cut(top, s, t).value == expected, g, "cut on file");
                }
            }
        }
    }
    tally.check(g.n > 0 && next == numbers.size(), g, "the file is read to its end");
}

void check_interruption(Tally& tally) {
    Graph g{"uniform", 4, 64, {}};
    for (std::size_t l = 0; l < g.L; ++l) {
        g.layers.emplace_back(g.n * g.n, one / static_cast<Amount>(g.n));
    }
    std::vector<std::size_t> all(g.n);
    std::iota(all.begin(), all.end(), std::size_t{0});
    const maxflow::Network network(g.n, g.pointers());
    // Several blocks of work for each thread, so that there is a next one not to begin. Without an
    // interval the question is asked at the first chance, however fast or busy the machine is.
    const maxflow::Request request{std::vector<std::size_t>(20, 4), {0, 1, 2, 3}, all};
    std::vector<Amount> result(20 * 4 * g.n);
    for (const std::size_t threads : {1, 2}) {
        int asked = 0;
        std::atomic<bool> stop{false};
        maxflow::Watch watch(stop, [&] { return ++asked; }, std::chrono::milliseconds(0));
        const bool complete = maxflow::flows(network, request, threads, result.data(), watch);
        tally.check(!complete && asked == 1, g, "stops when told to");
    }
}

// Rows of random weights are rounded to one exact sum, and every weight by less than one unit.
void check_rounding(Tally& tally) {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    for (std::size_t n = 1; n <= 200; ++n) {
        std::vector<double> row(n);
        double sum = 0.0;
        for (double& weight : row) sum += weight = std::pow(uniform(random), 8);
        for (double& weight : row) weight /= sum;
        std::vector<Amount> units(n);
        maxflow::round_rows(row.data(), 1, n, units.data());
        bool good = std::accumulate(units.begin(), units.end(), Amount{0}) == one;
        for (std::size_t i = 0; i < n; ++i) {
            // A row whose sum is off is divided by it first, which may move a weight a little.
            good &= std::abs(row[i] * static_cast<double>(one) - static_cast<double>(units[i])) < 2;
        }
        tally.check(good, Graph{"rounded", 1, n, {}}, "rounding");
    }
}

}  // namespace

int main(int argc, char** argv) {
    long graphs = 5000;
    std::uint64_t seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!std::strcmp(argv[i], "--graphs")) graphs = std::atol(argv[i + 1]);
        if (!std::strcmp(argv[i], "--seed")) seed = std::strtoull(argv[i + 1], nullptr, 10);
    }
    Tally tally;
    Maker random(seed);
    for (long i = 0; i < graphs; ++i) check_graph(random.make(), random, tally);
    check_interruption(tally);
    check_rounding(tally);
    check_golden(GOLDEN_GRAPHS, tally);
    std::printf("%ld passed, %ld failed\n", tally.passed, tally.failed);
    return tally.failed || !tally.passed ? 1 : 0;
}
