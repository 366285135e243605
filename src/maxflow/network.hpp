// The layered network of an attention graph, as the solver reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "bits.hpp"
#include "watch.hpp"

namespace maxflow {

using Amount = std::int64_t;

// No flow exceeds this. Capacities are at most `unlimited`, and row and column sums are capped
// there.
constexpr Amount unlimited = Amount{1} << 61;

// Node (l, k) is position k after layer l; layer 0 holds the tokens. The edge from (l, k) to
// (l - 1, m) has capacity `row(l, k)[m]`. The matrices belong to the caller and must outlive the
// network, which does not copy them. All solvers share what is derived from them here and do not
// change it:
//   - which edges exist and which are heavy, one bit an edge each;
//   - diagonals, row sums of every layer and column sums of the first.
class Network {
   public:
    // `layers[l - 1]` is the n x n row-major matrix of layer l. If the watch says to stop, the
    // network is incomplete and must not be used.
    Network(std::size_t n, std::vector<const Amount*> layers, Watch* watch = nullptr);

    std::size_t size() const { return n_; }
    std::size_t depth() const { return layers_.size(); }
    std::size_t words() const { return words_; }

    // True where no edge goes from a position to a later one, in any layer.
    bool causal() const { return causal_; }

    // An edge is heavy if it has more than a 4096th of what leaves its node. Where rows are sharply
    // peaked, less than a quarter of the edges are heavy.
    bool few_heavy() const { return few_heavy_; }

    const Amount* row(std::size_t l, std::size_t k) const { return layers_[l - 1] + k * n_; }
    const Amount* diagonal(std::size_t l) const { return diagonals_.data() + (l - 1) * n_; }
    // The smallest diagonal entry of each position over layers 2 .. l.
    const Amount* column_spare(std::size_t l) const { return spare_.data() + (l - 1) * n_; }
    // The edges of (l, k) to other positions.
    const Word* others(std::size_t l, std::size_t k) const {
        return others_.data() + ((l - 1) * n_ + k) * words_;
    }
    const Word* heavy(std::size_t l, std::size_t k) const {
        return heavy_.data() + ((l - 1) * n_ + k) * words_;
    }
    Amount out(std::size_t l, std::size_t k) const { return out_[(l - 1) * n_ + k]; }
    Amount in(std::size_t t) const { return in_[t]; }

   private:
    std::size_t n_;
    std::size_t words_;
    bool causal_ = true;
    bool few_heavy_ = false;
    std::vector<const Amount*> layers_;
    std::vector<Amount> diagonals_;
    std::vector<Amount> spare_;
    std::vector<Amount> out_;
    std::vector<Amount> in_;
    std::vector<Word> others_;
    std::vector<Word> heavy_;
};

// The columns of the matrices, contiguous, for a few tokens at a time. A cache line of a row holds
// eight neighbours, so they are gathered together. To keep the columns of all tokens would take as
// much memory as the matrices.
class Columns {
   public:
    explicit Columns(const Network& network) : net_(network) {}

    // Capacities of the edges into (l - 1, t), by the position they come from. Valid until another
    // token is asked for.
    const Amount* operator()(std::size_t l, std::size_t t) {
        if (t / together != block_) gather(t / together);
        return gathered_.data() + (t % together * net_.depth() + l - 1) * net_.size();
    }

   private:
    static constexpr std::size_t together = 64 / sizeof(Amount);

    void gather(std::size_t block);

    const Network& net_;
    std::size_t block_ = std::numeric_limits<std::size_t>::max();
    std::vector<Amount> gathered_;
};

}  // namespace maxflow
