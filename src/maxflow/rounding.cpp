#include "rounding.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

namespace maxflow {

namespace {

constexpr double one = 1125899906842624.0;  // 2^50

class Rounder {
   public:
    explicit Rounder(std::size_t n) : remainders_(n), ordered_(n) {}

    void round(const double* weights, Amount* units) {
        const std::size_t n = remainders_.size();
        Amount sum = 0;
        double rest = 0.0;
        for (std::size_t i = 0; i < n; ++i) {
            const double scaled = weights[i] * one;
            units[i] = static_cast<Amount>(scaled);
            remainders_[i] = scaled - static_cast<double>(units[i]);
            sum += units[i];
            rest += remainders_[i];
        }
        if (sum == 0) return;
        const Amount missing = static_cast<Amount>(one) - sum;
        // How far the sum of the weights is from 1, in units. If that is less than 1, the row has
        // enough weights to round up.
        const double off = rest - static_cast<double>(missing);
        if (std::abs(off) > 0.75) {
            const double total = 1.0 + off / one;
            std::vector<double> divided(weights, weights + n);
            for (double& weight : divided) weight /= total;
            round(divided.data(), units);
        } else if (missing > 0) {
            round_up(weights, static_cast<std::size_t>(missing), units);
        }
    }

   private:
    // Adds 1 to the units with the `count` largest remainders.
    void round_up(const double* weights, std::size_t count, Amount* units) {
        const std::size_t n = remainders_.size();
        const double least = largest(count);
        std::size_t taken = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const bool up = remainders_[i] >= least;
            units[i] += up;
            taken += up;
        }
        if (taken == count) return;
        // Too many have the smallest remainder to be rounded up. Round the excess down again.
        tied_.clear();
        for (std::size_t i = 0; i < n; ++i) {
            if (remainders_[i] == least) tied_.push_back(i);
        }
        std::stable_sort(tied_.begin(), tied_.end(), [weights](std::size_t a, std::size_t b) {
            return weights[a] > weights[b];
        });
        for (std::size_t i = tied_.size() - (taken - count); i < tied_.size(); ++i) {
            units[tied_[i]] -= 1;
        }
    }

    // Returns the remainder that `count` remainders reach or exceed. Most remainders are spread
    // evenly from 0 to 1, so counting them by size leaves few to be ordered.
    double largest(std::size_t count) {
        const std::size_t n = remainders_.size();
        std::array<std::size_t, sizes> counted{};
        for (std::size_t i = 0; i < n; ++i) ++counted[size_of(remainders_[i])];
        std::size_t size = sizes - 1;
        while (counted[size] < count) count -= counted[size--];
        std::size_t found = 0;
        for (std::size_t i = 0; i < n; ++i) {
            ordered_[found] = remainders_[i];
            found += size_of(remainders_[i]) == size;
        }
        const auto begin = ordered_.begin();
        const auto place = begin + static_cast<std::ptrdiff_t>(count - 1);
        std::nth_element(begin, place, begin + static_cast<std::ptrdiff_t>(found),
                         std::greater<>());
        return *place;
    }

    static constexpr std::size_t sizes = 64;

    static std::size_t size_of(double remainder) {
        return static_cast<std::size_t>(static_cast<int>(remainder * sizes));
    }

    std::vector<double> remainders_;
    std::vector<double> ordered_;
    std::vector<std::size_t> tied_;
};

}  // namespace

void round_rows(const double* weights, std::size_t rows, std::size_t n, Amount* units) {
    Rounder rounder(n);
    for (std::size_t row = 0; row < rows; ++row) {
        rounder.round(weights + row * n, units + row * n);
    }
}

}  // namespace maxflow
