#include "network.hpp"

#include <algorithm>
#include <bit>

#include "vector.hpp"

namespace maxflow {
namespace {

Amount capped_sum(Amount a, Amount b) { return std::min(unlimited, a + b); }

}  // namespace

Network::Network(std::size_t n, std::vector<const Amount*> layers, Watch* watch)
    : n_(n), words_(words_for(n)), layers_(std::move(layers)) {
    const std::size_t L = depth();
    diagonals_.resize(L * n);
    spare_.assign(L * n, unlimited);
    out_.assign(L * n, 0);
    in_.assign(n, 0);
    others_.assign(L * n * words_, 0);
    heavy_.assign(L * n * words_, 0);
    std::size_t existing = 0, heavy = 0;

    for (std::size_t l = 1; l <= L; ++l) {
        for (std::size_t k = 0; k < n; ++k) {
            if (k % word_bits == 0 && watch && watch->stopped()) return;
            const Amount* from = row(l, k);
            Amount sum = 0;
            for (std::size_t m = 0; m < n; ++m) sum = capped_sum(sum, from[m]);
            const std::size_t at = ((l - 1) * n + k) * words_;
            Word* bits = others_.data() + at;
            above(0, from, n, 0, words_, bits);
            above(sum / 4096, from, n, 0, words_, heavy_.data() + at);
            for (std::size_t w = 0; w < words_; ++w) {
                existing += static_cast<std::size_t>(std::popcount(bits[w]));
                heavy += static_cast<std::size_t>(std::popcount(heavy_[at + w]));
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
    few_heavy_ = heavy < existing / 4;
    for (std::size_t k = 0; k < n; ++k) {
        const Amount* from = row(1, k);
        for (std::size_t t = 0; t < n; ++t) in_[t] = capped_sum(in_[t], from[t]);
    }
}

void Columns::gather(std::size_t block) {
    const std::size_t n = net_.size(), L = net_.depth();
    const std::size_t first = block * together, count = std::min(together, n - first);
    gathered_.resize(together * L * n);
    for (std::size_t l = 1; l <= L; ++l) {
        for (std::size_t k = 0; k < n; ++k) {
            const Amount* from = net_.row(l, k) + first;
            for (std::size_t i = 0; i < count; ++i) gathered_[(i * L + l - 1) * n + k] = from[i];
        }
    }
    block_ = block;
}

}  // namespace maxflow
