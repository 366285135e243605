#include "network.hpp"

#include <algorithm>

namespace maxflow {
namespace {

constexpr std::size_t absent = std::numeric_limits<std::size_t>::max();

Amount capped_sum(Amount a, Amount b) { return std::min(unlimited, a + b); }

}  // namespace

Network::Network(std::size_t n, std::vector<const Amount*> layers,
                 const std::vector<std::size_t>& tokens, Watch* watch)
    : n_(n), words_(words_for(n)), layers_(std::move(layers)), slot_(n, absent) {
    std::vector<std::size_t> sinks;
    for (const std::size_t t : tokens) {
        if (slot_[t] == absent) {
            slot_[t] = sinks.size();
            sinks.push_back(t);
        }
    }
    const std::size_t L = depth();
    columns_.resize(sinks.size() * L * n);
    diagonals_.resize(L * n);
    spare_.assign(L * n, unlimited);
    out_.assign(L * n, 0);
    in_.assign(sinks.size(), 0);
    others_.assign(L * n * words_, 0);

    // Columns are gathered in blocks of rows, so that a cache line of the input is used whole.
    constexpr std::size_t block = 8;
    for (std::size_t l = 1; l <= L; ++l) {
        for (std::size_t k0 = 0; k0 < n; k0 += block) {
            if (watch && watch->stopped()) return;
            const std::size_t k1 = std::min(n, k0 + block);
            for (std::size_t i = 0; i < sinks.size(); ++i) {
                Amount* to = columns_.data() + (i * L + l - 1) * n;
                for (std::size_t k = k0; k < k1; ++k) to[k] = row(l, k)[sinks[i]];
            }
        }
        for (std::size_t k = 0; k < n; ++k) {
            const Amount* from = row(l, k);
            Word* bits = others_.data() + ((l - 1) * n + k) * words_;
            Amount sum = 0;
            for (std::size_t w = 0; w < words_; ++w) {
                const std::size_t m0 = w * word_bits;
                const std::size_t m1 = std::min(n, m0 + word_bits);
                Word word = 0;
                for (std::size_t m = m0; m < m1; ++m) {
                    word |= Word{from[m] > 0} << (m - m0);
                    sum = capped_sum(sum, from[m]);
                }
                bits[w] = word;
            }
            erase(bits, k);
            for (std::size_t w = k / word_bits; w < words_ && causal_; ++w) {
                const Word later = w == k / word_bits ? ~Word{0} << (k % word_bits) : ~Word{0};
                if (bits[w] & later) causal_ = false;
            }
            out_[(l - 1) * n + k] = sum;
            diagonals_[(l - 1) * n + k] = from[k];
            if (l >= 2) {
                spare_[(l - 1) * n + k] = std::min(spare_[(l - 2) * n + k], from[k]);
            }
        }
    }
    for (std::size_t i = 0; i < sinks.size(); ++i) {
        const Amount* first = columns_.data() + i * L * n;
        for (std::size_t k = 0; k < n; ++k) in_[i] = capped_sum(in_[i], first[k]);
    }
}

}  // namespace maxflow
