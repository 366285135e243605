// Exact maximum flow from one node of a layered network to one token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "network.hpp"
#include "watch.hpp"

namespace maxflow {

struct Cut {
    Amount value = 0;
    std::vector<std::pair<std::size_t, std::size_t>> source_side;  // (layer, position)
};

// One solver serves one thread and any number of pairs of one network.
//
// The method is Dinic's (1970), shaped by what attention graphs are: layered, dense, with a heavy
// diagonal (the residual connection) and thousands of tiny edges.
//
//   1. Nothing passes min(out(s), in(t)), so reaching it ends the search at once.
//   2. Most flow leaves the source's column sideways, falls down some other column, and enters the
//      token's column sideways. Those paths use only the source's rows, the diagonals and the
//      token's columns, 3 n numbers a layer, kept in arrays of their own and filled by whole-vector
//      steps (`columns`).
//   3. What they leave is sent depth first (`rows`): a first blocking flow in layer order.
//      Sets are bit rows, so "the open edges of this node to nodes still alive" is one AND of a few
//      words, and a node that can deliver no more is struck from its layer with one bit.
//   4. Only then are reverse edges written down, and further blocking flows are sought along
//      shortest augmenting paths (`search`, `block`). Sets make the search cheap as well: one row
//      of a dense graph reaches nearly the whole next layer.
//
// Amounts are integers, so the flow's value equals the cut's, and no order of work changes it.
class Solver {
   public:
    // Without a watch it never stops early. Stopped early, its answers are too low.
    explicit Solver(const Network& network, Watch* watch = nullptr);

    // The maximum flow from (top, s) to (0, t), when it is known not to exceed `bound`.
    Amount flow(std::size_t top, std::size_t s, std::size_t t, Amount bound = unlimited);

    // The same flow, and the nodes that the source still reaches when it is full: the smallest
    // source side of a minimum cut.
    Cut cut(std::size_t top, std::size_t s, std::size_t t);

   private:
    struct Touch {
        std::uint32_t l, k, m;
        Amount before;
    };
    // A node on the way of `block`: what it was asked for, what of that is left to send, and the
    // edge it is sending along: downwards to (l - 1, next), or back up to (l + 1, next), which
    // carries at most `room` more.
    struct Visit {
        std::uint32_t turns, l, k, next;
        bool forward;
        Amount want, left, room;
    };

    void begin(std::size_t top, std::size_t s, std::size_t t, std::size_t low, std::size_t high);
    Amount source_down(std::size_t l, Amount limit) const;
    Amount columns(Amount limit);
    bool open();  // false if it was stopped on the way
    Amount rows(Amount limit);
    Amount descend(std::size_t l, std::size_t k, Amount want);
    Amount deliver(std::size_t l, std::size_t k, Amount want);
    void link();
    bool search();
    Amount block(Amount want);
    bool advance(Visit& visit) const;
    void push(const Visit& visit, Amount amount);
    void undo();

    void touch(std::size_t l, std::size_t k, std::size_t m, Amount before) {
        touched_.push_back({static_cast<std::uint32_t>(l), static_cast<std::uint32_t>(k),
                            static_cast<std::uint32_t>(m), before});
    }
    bool stopped() const { return watch_ && watch_->stopped(); }
    std::size_t at(std::size_t l) const { return l * n_; }
    std::size_t set(std::size_t l) const { return l * words_; }
    std::size_t edges(std::size_t l, std::size_t k) const { return ((l - 2) * n_ + k) * words_; }
    Word* reached(std::size_t turns, std::size_t l) {
        return reached_.data() + turns * sets_ + set(l);
    }
    const Word* reached(std::size_t turns, std::size_t l) const {
        return reached_.data() + turns * sets_ + set(l);
    }

    const Network& net_;
    Watch* watch_;
    const std::size_t n_;
    const std::size_t words_;
    const std::size_t sets_;  // words of one set for each layer

    std::size_t top_ = 0, s_ = 0, t_ = 0;
    std::size_t low_ = 0, high_ = 0;            // positions that can lie between s and t
    std::size_t low_word_ = 0, high_word_ = 0;  // and the words that hold them

    // What the edges can still take, by layer. An edge of the source's column is in `source_`,
    // any other into the token's column in `sink_` (layer 1 included), any other diagonal one
    // in `own_`, the rest in `others_` (layers 2 .. top - 1).
    std::vector<Amount> source_, sink_, own_;
    std::vector<std::vector<Amount>> others_;
    std::vector<Amount> spare_;  // what a column can still carry from top to bottom
    std::vector<Word> source_open_, sink_open_, own_open_, others_open_;
    std::vector<Word> source_back_, sink_back_, own_back_, others_back_;  // edges that carry flow
    std::vector<Word> fed_;      // positions that get flow over edges in `others_`
    std::vector<Word> alive_;    // nodes that may still deliver
    std::vector<Word> unseen_;   // nodes that a search has not reached
    std::vector<Word> reached_;  // nodes by layer and number of turns upwards on the way
    std::size_t turns_ = 0;      // turns on a shortest augmenting path
    std::size_t copied_ = 1;     // layers 2 .. copied_ of `others_` are filled in
    bool linked_ = false;
    std::vector<Touch> touched_;
    std::vector<Visit> visits_;
};

}  // namespace maxflow
