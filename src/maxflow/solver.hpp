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
// The method is Dinic's (1970), adapted to attention graphs, which are layered and dense and have a
// heavy diagonal (the residual connection) and thousands of tiny edges.
//
//   1. No flow exceeds min(out(s), in(t)), so the search ends when the flow reaches it.
//   2. Most flow leaves the source's column sideways, falls down another column, and enters the
//      token's column sideways. Those paths use only the source's rows, the diagonals and the
//      token's columns, 3 n numbers a layer, which have arrays of their own and are filled by
//      whole-vector steps (`columns`).
//   3. The rest is sent depth first (`rows`), as a first blocking flow in layer order. Sets are bit
//      rows, so "the open edges of this node to nodes still alive" is one AND of a few words, and a
//      node that cannot deliver any more is removed from its layer by clearing one bit.
//   4. Only then are reverse edges recorded, and further blocking flows found along shortest
//      augmenting paths (`search`, `prune`, `block`). Sets make the search cheap, too: one row of a
//      dense graph reaches nearly the whole next layer.
//   5. Where rows are sharply peaked, steps 3 and 4 first use only heavy edges, then all. Otherwise
//      most paths would be made of edges that carry nearly nothing. This is the scaling of
//      capacities (Gabow 1985; Ahuja and Orlin 1991) with two scales. Only how much work is done
//      depends on it: the last search always uses all edges.
//
// Amounts are integers, so the value of the flow equals that of the cut, and does not depend on the
// order of work.
class Solver {
   public:
    // Without a watch it never stops early. If it is stopped early, its answers are too low.
    explicit Solver(const Network& network, Watch* watch = nullptr);

    // The maximum flow from (top, s) to (0, t), if it is known not to exceed `bound`.
    Amount flow(std::size_t top, std::size_t s, std::size_t t, Amount bound = unlimited);

    // The same flow, and the nodes that the source can still reach when the flow is at its maximum:
    // the smallest source side of a minimum cut.
    Cut cut(std::size_t top, std::size_t s, std::size_t t);

    // Capacities of the edges into (l - 1, t), by the position they come from. Valid until another
    // token is asked for, here or for a flow.
    const Amount* column(std::size_t l, std::size_t t) { return columns_of_(l, t); }

   private:
    // Edges of one kind, of which each layer has one for each position.
    struct Fan {
        Fan(const Network& network)
            : n(network.size()),
              words(network.words()),
              amounts((network.depth() + 1) * n),
              open_words((network.depth() + 1) * words),
              back_words(open_words.size()) {}

        Amount* left(std::size_t l) { return amounts.data() + l * n; }
        Word* open(std::size_t l) { return open_words.data() + l * words; }
        Word* back(std::size_t l) { return back_words.data() + l * words; }

        std::size_t n, words;
        std::vector<Amount> amounts;   // what an edge can still take
        std::vector<Word> open_words;  // the edges that can take more
        std::vector<Word> back_words;  // the edges that carry flow
    };
    // One edge: what it can still take, and its bits in the sets of open edges and of edges that
    // carry flow.
    struct Edge {
        Amount* left;
        Word *open, *back;
        Word open_bit, back_bit;
    };
    // An edge in `others_` that carries flow and is not in `others_back_` yet.
    struct Touch {
        std::uint32_t l, k, m;
    };
    // A node on the path of `block`: what it was asked for, what of that is left to send, and the
    // edge it is using: down to (l - 1, next), or back up to (l + 1, next), which takes at most
    // `room` more. The edges down before those of word `word` are used up, and so are all heavy
    // edges, if it is at the light ones.
    struct Visit {
        std::uint32_t turns, l, k, next, word;
        bool light, down, other;
        Amount want, left, room;
        Edge edge;
    };

    void begin(std::size_t top, std::size_t s, std::size_t t, std::size_t low, std::size_t high);
    Amount source_down(std::size_t l, Amount limit);
    Amount columns(Amount limit);
    bool open();  // false if it was stopped on the way
    Amount rows(Amount limit);
    Amount descend(std::size_t l, std::size_t k, Amount want);
    Amount deliver(std::size_t l, std::size_t k, Amount want);
    void link();
    bool search();
    void prune();
    Amount block(Amount want);
    bool advance(Visit& visit);
    void push(Visit& visit, Amount amount);
    void undo();

    // Calls `what` for each member of a set that can be between s and t.
    template <class What>
    void each(const Word* members, const What& what) const {
        for (std::size_t w = low_word_; w < high_word_; ++w) {
            for (Word left = members[w]; left; left &= left - 1) what(w * word_bits + lowest(left));
        }
    }
    static Edge edge(Fan& fan, std::size_t l, std::size_t k) {
        const std::size_t w = k / word_bits;
        const Word bit = Word{1} << (k % word_bits);
        return {&fan.left(l)[k], fan.open(l) + w, fan.back(l) + w, bit, bit};
    }
    Edge other(std::size_t l, std::size_t k, std::size_t m) {
        return {&others_[l][k * n_ + m], &others_open_[edges(l, k) + m / word_bits],
                &others_back_[edges(l, m) + k / word_bits], Word{1} << (m % word_bits),
                Word{1} << (k % word_bits)};
    }
    void touch(std::size_t l, std::size_t k, std::size_t m) {
        touched_.push_back({static_cast<std::uint32_t>(l), static_cast<std::uint32_t>(k),
                            static_cast<std::uint32_t>(m)});
    }
    bool stopped() const { return watch_ && watch_->stopped(); }
    std::size_t set(std::size_t l) const { return l * words_; }
    std::size_t edges(std::size_t l, std::size_t k) const { return ((l - 2) * n_ + k) * words_; }
    Word* reached(std::size_t turns, std::size_t l) {
        return reached_.data() + turns * sets_ + set(l);
    }

    const Network& net_;
    Columns columns_of_;
    Watch* watch_;
    const std::size_t n_;
    const std::size_t words_;
    const std::size_t sets_;  // words of one set for each layer

    std::size_t top_ = 0, s_ = 0, t_ = 0;
    std::size_t low_ = 0, high_ = 0;            // positions that can be between s and t
    std::size_t low_word_ = 0, high_word_ = 0;  // and the words that hold them

    // An edge of the source's column is in `source_`, any other into the token's column in `sink_`
    // (layer 1 included), any other on the diagonal in `own_`, and the rest in `others_` (layers
    // 2 .. top - 1).
    Fan source_, sink_, own_;
    std::vector<std::vector<Amount>> others_;
    std::vector<Word> others_open_, others_back_;
    std::vector<Amount> spare_;  // what a column can still carry from top to bottom
    std::vector<Word> fed_;      // positions that get flow over edges in `others_`
    std::vector<Word> alive_;    // nodes that may still deliver
    std::vector<Word> unseen_;   // nodes that a search has not reached
    std::vector<Word> reached_;  // nodes by layer and number of turns upwards on the path
    std::size_t turns_ = 0;      // turns on a shortest augmenting path
    std::size_t copied_ = 1;     // layers 2 .. copied_ of `others_` are filled in
    bool linked_ = false;        // `back`, `others_back_` and `fed_` are up to date
    bool heavy_ = false;         // of `others_`, only heavy edges are used
    std::vector<Touch> touched_;
    std::vector<Visit> visits_;
};

}  // namespace maxflow
