#include "solver.hpp"

#include <algorithm>
#include <cstring>

#include "vector.hpp"

namespace maxflow {
namespace {

// Moves the members of `from` (and of `mask`, if given) that are in `unseen` to `to`. Returns
// whether there were any.
bool take(Word* to, Word* unseen, const Word* from, const Word* mask, std::size_t words) {
    Word any = 0;
    for (std::size_t w = 0; w < words; ++w) {
        const Word x = from[w] & unseen[w] & (mask ? mask[w] : ~Word{0});
        to[w] |= x;
        unseen[w] &= ~x;
        any |= x;
    }
    return any != 0;
}

}  // namespace

Solver::Solver(const Network& network, Watch* watch)
    : net_(network),
      columns_of_(network),
      watch_(watch),
      n_(network.size()),
      words_(network.words()),
      sets_((network.depth() + 1) * network.words()),
      source_(network),
      sink_(network),
      own_(network),
      others_(network.depth() + 1),
      spare_(n_),
      fed_(sets_),
      alive_(sets_),
      unseen_(sets_) {}

Amount Solver::flow(std::size_t top, std::size_t s, std::size_t t, Amount bound) {
    if (top == 1) return net_.row(1, s)[t];
    if (net_.causal() && s < t) return 0;
    if (top == 2) return sum_of_minima(net_.row(2, s), column(1, t), n_);
    bound = std::min({bound, net_.out(top, s), net_.in(t)});
    if (bound == 0) return 0;
    begin(top, s, t, net_.causal() ? t : 0, net_.causal() ? s + 1 : n_);
    Amount total = columns(bound);
    if (total == bound) return total;
    if (!open()) return total;
    total += rows(bound - total);
    if (total < bound) {
        link();
        while (total < bound && !stopped() && search()) total += block(bound - total);
    }
    undo();
    return total;
}

Cut Solver::cut(std::size_t top, std::size_t s, std::size_t t) {
    Cut cut;
    cut.source_side.emplace_back(top, s);
    if (top == 1) {
        cut.value = net_.row(1, s)[t];
    } else {
        const Amount bound = std::min(net_.out(top, s), net_.in(t));
        begin(top, s, t, 0, n_);
        cut.value = columns(bound);
        if (!open()) return cut;
        cut.value += rows(bound - cut.value);
        link();
        while (!stopped() && search()) cut.value += block(bound - cut.value);
        for (std::size_t l = top - 1; l >= 1; --l) {
            for (std::size_t k = 0; k < n_; ++k) {
                if (!has(&unseen_[set(l)], k)) cut.source_side.emplace_back(l, k);
            }
        }
        undo();
    }
    // Other tokens have no edges, and belong to the source's side if an edge leads to them.
    std::vector<bool> token(n_, false);
    for (const auto& [l, k] : cut.source_side) {
        if (l != 1) continue;
        for (std::size_t m = 0; m < n_; ++m) token[m] = token[m] || net_.row(1, k)[m] > 0;
    }
    for (std::size_t m = 0; m < n_; ++m) {
        if (token[m] && m != t) cut.source_side.emplace_back(0, m);
    }
    return cut;
}

void Solver::begin(std::size_t top, std::size_t s, std::size_t t, std::size_t low,
                   std::size_t high) {
    top_ = top;
    s_ = s;
    t_ = t;
    low_ = low;
    high_ = high;
    low_word_ = low / word_bits;
    high_word_ = words_for(high);
    const std::size_t first = low_word_ * word_bits;
    const std::size_t bytes = (std::min(n_, high_word_ * word_bits) - first) * sizeof(Amount);
    for (std::size_t l = 1; l <= top; ++l) {
        if (l > 1) std::memcpy(source_.left(l) + first, net_.row(l, s) + first, bytes);
        if (l == top) break;
        std::memcpy(sink_.left(l) + first, column(l, t) + first, bytes);
        if (l > 1) sink_.left(l)[s] = 0;  // this edge is in `source_`
    }
}

// What the source's column can bring down to layer l, at most `limit`.
Amount Solver::source_down(std::size_t l, Amount limit) {
    for (std::size_t above = l + 1; above <= top_; ++above) {
        limit = std::min(limit, source_.left(above)[s_]);
    }
    return limit;
}

Amount Solver::columns(Amount limit) {
    Amount total = 0;
    const auto sink_down = [&](std::size_t l, Amount most) {
        for (std::size_t below = 1; below < l; ++below)
            most = std::min(most, sink_.left(below)[t_]);
        return most;
    };
    const auto send_down = [&](std::size_t off, std::size_t on, Amount x) {
        for (std::size_t l = off + 1; l <= top_; ++l) source_.left(l)[s_] -= x;
        for (std::size_t l = 1; l < on; ++l) sink_.left(l)[t_] -= x;
        total += x;
    };

    // Straight down the source's column, across at layer q, and down the token's.
    for (std::size_t q = 1; q <= (s_ == t_ ? 1 : top_); ++q) {
        Amount& across = q == 1 ? sink_.left(1)[s_] : source_.left(q)[t_];
        const Amount x = source_down(q, sink_down(q, std::min(limit - total, across)));
        if (x == 0) continue;
        across -= x;
        send_down(q, q, x);
    }
    // If the two columns are one, the steps below would count its edges twice.
    if (s_ == t_) return total;

    // Off the source's column at layer p, down column k, onto the token's column at layer q < p.
    // Edges that are far apart can be joined in many ways, edges next to each other in few, so
    // short falls come first. On attention of a trained encoder, this order leaves two to thirty
    // times fewer augmenting paths to find.
    const std::size_t width = high_ - low_;
    std::memcpy(&spare_[low_], net_.column_spare(top_ - 1) + low_, width * sizeof(Amount));
    spare_[s_] = spare_[t_] = 0;
    for (std::size_t fall = 1; fall < top_; ++fall) {
        for (std::size_t q = 1; q + fall <= top_; ++q) {
            const std::size_t p = q + fall;
            const Amount most = source_down(p, sink_down(q, limit - total));
            if (most == 0) continue;
            const Amount x =
                transfer(source_.left(p) + low_, sink_.left(q) + low_, &spare_[low_], width, most);
            if (x > 0) send_down(p, q, x);
        }
    }
    return total;
}

bool Solver::open() {
    const std::size_t first = low_word_ * word_bits;
    const std::size_t width = std::min(n_, high_word_ * word_bits) - first;
    std::fill_n(&spare_[first], width, Amount{0});
    for (std::size_t l = top_; l >= 2; --l) {
        positive(source_.left(l), n_, low_word_, high_word_, source_.open(l));
        fill(&alive_[set(l - 1)], words_, low_, high_);
        if (l == top_) continue;
        // What a column carries here: what it carried and received above, less what it sent on.
        fall(&spare_[first], own_.left(l) + first, net_.diagonal(l) + first,
             net_.row(l + 1, s_) + first, source_.left(l + 1) + first, column(l, t_) + first,
             sink_.left(l) + first, width);
        // The source's and the token's columns are kept elsewhere.
        own_.left(l)[s_] = net_.diagonal(l)[s_];
        own_.left(l)[t_] = net_.diagonal(l)[t_];
        spare_[s_] = spare_[t_] = 0;
        positive(own_.left(l), n_, low_word_, high_word_, own_.open(l));
        positive(sink_.left(l), n_, low_word_, high_word_, sink_.open(l));
        erase(own_.open(l), s_);
        erase(own_.open(l), t_);
    }
    Word* last = &alive_[set(1)];
    positive(sink_.left(1), n_, low_word_, high_word_, last);
    // Layers are copied when they are first needed. After that, `undo` restores the copies.
    for (; copied_ + 1 < top_; ++copied_) {
        if (stopped()) return false;
        const std::size_t l = copied_ + 1;
        others_[l].assign(net_.row(l, 0), net_.row(l, 0) + n_ * n_);
        others_open_.resize(edges(l + 1, 0));
        others_back_.resize(edges(l + 1, 0), 0);
        std::memcpy(&others_open_[edges(l, 0)], net_.others(l, 0), n_ * words_ * sizeof(Word));
    }
    linked_ = false;
    return true;
}

// A blocking flow along downward edges. The source's lowest rows have the fewest paths, so they go
// first, for the same reason as the short falls in `columns`.
Amount Solver::rows(Amount limit) {
    Amount total = 0;
    for (std::size_t l = 2; l <= top_ && total < limit && !stopped(); ++l) {
        const Amount want = source_down(l, limit - total);
        if (want == 0) continue;
        const Amount x = descend(l, s_, want);
        for (std::size_t above = l + 1; above <= top_; ++above) {
            Amount& left = source_.left(above)[s_];
            left -= x;
            if (left == 0) erase(source_.open(above), s_);
        }
        total += x;
    }
    return total;
}

// Sends up to `want` from (l, k) to the token, along downward edges. A node that delivers less than
// it was asked for has no path left.
inline Amount Solver::deliver(std::size_t l, std::size_t k, Amount want) {
    if (l > 1) return descend(l, k, want);
    Amount& last = sink_.left(1)[k];
    const Amount x = std::min(want, last);
    last -= x;
    if (last == 0) erase(&alive_[set(1)], k);
    return x;
}

Amount Solver::descend(std::size_t l, std::size_t k, Amount want) {
    Amount left = want;
    const Word* below = &alive_[set(l - 1)];
    // Sends along edge `i` of a row to (l - 1, m), and returns how much.
    const auto send = [&](Amount& room, Word* open, std::size_t i, std::size_t m) {
        const Amount before = room;
        const Amount x = deliver(l - 1, m, std::min(left, before));
        room = before - x;
        if (x == before) erase(open, i);
        left -= x;
        return x;
    };
    if (k == s_) {
        Amount* row = source_.left(l);
        Word* open = source_.open(l);
        if (has(open, t_) && has(below, t_)) send(row[t_], open, t_, t_);
        for (std::size_t w = low_word_; w < high_word_; ++w) {
            while (left > 0) {
                const Word can = open[w] & below[w];
                if (!can) break;
                const std::size_t m = w * word_bits + lowest(can);
                send(row[m], open, m, m);
            }
        }
    } else {
        if (has(own_.open(l), k) && has(below, k)) send(own_.left(l)[k], own_.open(l), k, k);
        if (left > 0 && has(sink_.open(l), k) && has(below, t_)) {
            send(sink_.left(l)[k], sink_.open(l), k, t_);
        }
        Amount* row = &others_[l][k * n_];
        Word* open = &others_open_[edges(l, k)];
        const Word not_token = ~(Word{1} << (t_ % word_bits));
        for (std::size_t w = low_word_; w < high_word_ && left > 0; ++w) {
            const Word allowed = w == t_ / word_bits ? not_token : ~Word{0};
            while (left > 0) {
                const Word can = open[w] & below[w] & allowed;
                if (!can) break;
                const std::size_t m = w * word_bits + lowest(can);
                const Amount before = row[m];
                if (send(row[m], open, m, m) > 0) touch(l, k, m, before);
            }
        }
    }
    if (left > 0) erase(&alive_[set(l)], k);
    return want - left;
}

// Records which edges carry flow, so that it can be taken back.
void Solver::link() {
    for (std::size_t l = 2; l <= top_; ++l) {
        smaller(source_.left(l), net_.row(l, s_), n_, low_word_, high_word_, source_.back(l));
    }
    for (std::size_t l = 2; l < top_; ++l) {
        smaller(own_.left(l), net_.diagonal(l), n_, low_word_, high_word_, own_.back(l));
        smaller(sink_.left(l), column(l, t_), n_, low_word_, high_word_, sink_.back(l));
        erase(sink_.back(l), s_);
        clear(&fed_[set(l)], words_);
    }
    for (const Touch& e : touched_) {
        insert(&others_back_[edges(e.l, e.m)], e.k);
        insert(&fed_[set(e.l)], e.m);
    }
    linked_ = true;
}

// Breadth-first search of the residual network. A shortest path is one with the fewest turns: steps
// back up an edge that carries flow. reached(b, l) are the nodes first reached after b turns.
bool Solver::search() {
    for (std::size_t l = 1; l < top_; ++l) fill(&unseen_[set(l)], words_, low_, high_);
    const Word* last = &alive_[set(1)];
    for (std::size_t b = 0;; ++b) {
        if (reached_.size() < (b + 2) * sets_) reached_.resize((b + 2) * sets_);
        if (b == 0) {
            clear(reached(0, 0), sets_);
            insert(reached(0, top_), s_);
        }
        clear(reached(b + 1, 0), sets_);

        for (std::size_t l = top_; l >= 2; --l) {
            const Word* from = reached(b, l);
            if (empty(from, words_)) continue;
            Word* to = reached(b, l - 1);
            Word* unseen = &unseen_[set(l - 1)];
            if (has(from, s_)) take(to, unseen, source_.open(l), nullptr, words_);
            if (l == top_) continue;
            take(to, unseen, from, own_.open(l), words_);
            const bool token_unseen = has(unseen, t_);
            const bool token_met = token_unseen && meet(from, sink_.open(l), words_);
            if (token_met) insert(to, t_);
            if (token_unseen) erase(unseen, t_);
            for (std::size_t w = 0; w < words_ && !empty(unseen, words_); ++w) {
                Word members = from[w];
                while (members) {
                    const std::size_t k = w * word_bits + lowest(members);
                    members &= members - 1;
                    if (k == s_) continue;
                    if (take(to, unseen, &others_open_[edges(l, k)], nullptr, words_) &&
                        empty(unseen, words_)) {
                        break;
                    }
                }
            }
            if (token_unseen && !token_met) insert(unseen, t_);
        }
        if (meet(reached(b, 1), last, words_)) {
            turns_ = b;
            return true;
        }

        bool turned = false;
        for (std::size_t l = 1; l + 1 < top_; ++l) {
            const Word* from = reached(b, l);
            Word* to = reached(b + 1, l + 1);
            Word* unseen = &unseen_[set(l + 1)];
            if (empty(from, words_) || empty(unseen, words_)) continue;
            turned |= take(to, unseen, from, own_.back(l + 1), words_);
            if (has(unseen, s_) && meet(from, source_.back(l + 1), words_)) {
                insert(to, s_);
                erase(unseen, s_);
                turned = true;
            }
            if (has(from, t_)) turned |= take(to, unseen, sink_.back(l + 1), nullptr, words_);
            for (std::size_t w = 0; w < words_; ++w) {
                Word members = from[w] & fed_[set(l + 1) + w];
                while (members) {
                    const std::size_t m = w * word_bits + lowest(members);
                    members &= members - 1;
                    turned |= take(to, unseen, &others_back_[edges(l + 1, m)], nullptr, words_);
                }
            }
        }
        if (!turned) return false;
    }
}

// A blocking flow over the paths that `search` found. Like `descend`, but paths may be long, so it
// has its own stack instead of recursion.
Amount Solver::block(Amount want) {
    const auto visit = [&](std::size_t turns, std::size_t l, std::size_t k, Amount ask) {
        Visit& v = visits_.emplace_back();
        v.turns = static_cast<std::uint32_t>(turns);
        v.l = static_cast<std::uint32_t>(l);
        v.k = static_cast<std::uint32_t>(k);
        v.want = v.left = ask;
    };
    visits_.clear();
    visit(0, top_, s_, want);
    for (;;) {
        Visit& v = visits_.back();
        if (v.l == 1 && v.turns == turns_) v.left -= deliver(1, v.k, v.left);
        if (v.left > 0 && advance(v)) {
            visit(v.turns + !v.forward, v.forward ? v.l - 1 : v.l + 1, v.next,
                  std::min(v.left, v.room));
            continue;
        }
        if (v.left > 0) erase(reached(v.turns, v.l), v.k);
        const Amount sent = v.want - v.left;
        visits_.pop_back();
        if (visits_.empty()) return sent;
        Visit& from = visits_.back();
        from.left -= sent;
        if (sent > 0) push(from, sent);
    }
}

// Sets the visit's next edge towards the token, and what that edge can take.
bool Solver::advance(Visit& v) {
    const std::size_t l = v.l, k = v.k;
    const auto choose = [&](bool forward, std::size_t next) {
        v.forward = forward;
        v.next = static_cast<std::uint32_t>(next);
        v.room =
            forward ? edge(l, k, next).left : net_.row(l + 1, next)[k] - edge(l + 1, next, k).left;
        return true;
    };
    // The first position that is in both sets, n if there is none. The bits `apart` of the word
    // that holds the token are ignored.
    const auto first = [&](const Word* a, const Word* b, Word apart = 0) {
        for (std::size_t w = low_word_; w < high_word_; ++w) {
            const Word both = a[w] & b[w] & (w == t_ / word_bits ? ~apart : ~Word{0});
            if (both) return w * word_bits + lowest(both);
        }
        return n_;
    };
    std::size_t next = n_;
    if (l >= 2) {
        const Word* to = reached(v.turns, l - 1);
        if (k == s_) {
            next = first(source_.open(l), to);
        } else if (has(own_.open(l), k) && has(to, k)) {
            next = k;
        } else if (has(sink_.open(l), k) && has(to, t_)) {
            next = t_;
        } else {
            next = first(&others_open_[edges(l, k)], to, Word{1} << (t_ % word_bits));
        }
        if (next < n_) return choose(true, next);
    }
    if (v.turns < turns_ && l + 1 < top_) {
        const Word* to = reached(v.turns + 1, l + 1);
        if (has(to, s_) && has(source_.back(l + 1), k)) {
            next = s_;
        } else if (k == t_) {
            next = first(sink_.back(l + 1), to);
        } else if (has(to, k) && has(own_.back(l + 1), k)) {
            next = k;
        } else {
            next = first(&others_back_[edges(l + 1, k)], to);
        }
        if (next < n_) return choose(false, next);
    }
    return false;
}

// Sends `amount` along the visit's edge, or takes it back from there.
void Solver::push(const Visit& v, Amount amount) {
    const std::size_t l = v.forward ? v.l : v.l + 1;
    const std::size_t k = v.forward ? v.k : v.next;
    const std::size_t m = v.forward ? v.next : v.k;
    const bool back = v.forward || amount < v.room;
    const Edge e = edge(l, k, m);
    if (is_other(k, m)) {
        touch(l, k, m, e.left);
        if (back) insert(&fed_[set(l)], m);
    }
    e.left += v.forward ? -amount : amount;
    assign(e.open, e.open_at, !v.forward || amount < v.room);
    assign(e.back, e.back_at, back);
}

// Restores `others_`, backwards, so that the first value of an edge is the last one written.
void Solver::undo() {
    for (std::size_t i = touched_.size(); i-- > 0;) {
        const Touch& e = touched_[i];
        others_[e.l][e.k * n_ + e.m] = e.before;
        insert(&others_open_[edges(e.l, e.k)], e.m);
        if (linked_) erase(&others_back_[edges(e.l, e.m)], e.k);
    }
    touched_.clear();
}

}  // namespace maxflow
