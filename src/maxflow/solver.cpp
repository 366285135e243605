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
    for (heavy_ = net_.few_heavy();; heavy_ = false) {
        total += rows(bound - total);
        if (total == bound) break;
        link();
        while (total < bound && !stopped() && search()) total += block(bound - total);
        if (!heavy_ || total == bound) break;
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
        heavy_ = false;
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
        above(0, source_.left(l), n_, low_word_, high_word_, source_.open(l));
        if (l == top_) continue;
        // What a column carries here: what it carried and received above, less what it sent on.
        fall(&spare_[first], own_.left(l) + first, net_.diagonal(l) + first,
             net_.row(l + 1, s_) + first, source_.left(l + 1) + first, column(l, t_) + first,
             sink_.left(l) + first, width);
        // The source's and the token's columns are kept elsewhere.
        own_.left(l)[s_] = net_.diagonal(l)[s_];
        own_.left(l)[t_] = net_.diagonal(l)[t_];
        spare_[s_] = spare_[t_] = 0;
        above(0, own_.left(l), n_, low_word_, high_word_, own_.open(l));
        above(0, sink_.left(l), n_, low_word_, high_word_, sink_.open(l));
        erase(own_.open(l), s_);
        erase(own_.open(l), t_);
    }
    Word* last = &alive_[set(1)];
    above(0, sink_.left(1), n_, low_word_, high_word_, last);
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
    for (std::size_t l = 2; l < top_; ++l) fill(&alive_[set(l)], words_, low_, high_);
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
        const Word* heavy = net_.heavy(l, k);
        const Word not_token = ~(Word{1} << (t_ % word_bits));
        for (std::size_t w = low_word_; w < high_word_ && left > 0; ++w) {
            Word allowed = w == t_ / word_bits ? not_token : ~Word{0};
            if (heavy_) allowed &= heavy[w];
            while (left > 0) {
                const Word can = open[w] & below[w] & allowed;
                if (!can) break;
                const std::size_t m = w * word_bits + lowest(can);
                if (send(row[m], open, m, m) > 0) touch(l, k, m);
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
        if (!linked_) clear(&fed_[set(l)], words_);
    }
    for (const Touch& e : touched_) {
        insert(&others_back_[edges(e.l, e.m)], e.k);
        insert(&fed_[set(e.l)], e.m);
    }
    touched_.clear();
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
                    if (take(to, unseen, &others_open_[edges(l, k)],
                             heavy_ ? net_.heavy(l, k) : nullptr, words_) &&
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

// Leaves in the sets of `search` only those nodes from which a shortest path leads to the token, so
// that `block` does not try the others.
void Solver::prune() {
    for (std::size_t b = turns_ + 1; b-- > 0;) {
        for (std::size_t l = 1; l < top_; ++l) {
            Word* const nodes = reached(b, l);
            if (b == turns_ && l == 1) {
                for (std::size_t w = 0; w < words_; ++w) nodes[w] &= alive_[set(1) + w];
                continue;
            }
            const Word* const down = reached(b, l - 1);
            const Word* const up = reached(b + 1, l + 1);
            const bool falls = l > 1, rises = b < turns_ && l + 1 < top_;
            const bool token_down = falls && has(down, t_);
            const bool source_up = rises && has(up, s_);
            for (std::size_t w = low_word_; w < high_word_; ++w) {
                Word kept = 0;
                if (falls) {
                    kept |= own_.open(l)[w] & down[w];
                    if (token_down) kept |= sink_.open(l)[w];
                }
                if (rises) {
                    kept |= own_.back(l + 1)[w] & up[w];
                    if (source_up) kept |= source_.back(l + 1)[w];
                }
                for (Word left = nodes[w] & ~kept; left; left &= left - 1) {
                    const std::size_t k = w * word_bits + lowest(left);
                    bool good = false;
                    if (falls && k == s_) {
                        good = meet(source_.open(l), down, words_);
                    } else if (falls) {
                        const Word* open = &others_open_[edges(l, k)];
                        const Word* mask = heavy_ ? net_.heavy(l, k) : open;
                        for (std::size_t v = low_word_; v < high_word_ && !good; ++v) {
                            Word can = open[v] & mask[v] & down[v];
                            if (v == t_ / word_bits) can &= ~(Word{1} << (t_ % word_bits));
                            good = can != 0;
                        }
                    }
                    if (rises && !good) {
                        good = k == t_ ? meet(sink_.back(l + 1), up, words_)
                                       : meet(&others_back_[edges(l + 1, k)], up, words_);
                    }
                    if (good) kept |= left & -left;
                }
                nodes[w] &= kept;
            }
        }
    }
}

// A blocking flow over the paths that `search` found. Like `descend`, but paths may be long, so it
// has its own stack instead of recursion.
Amount Solver::block(Amount want) {
    prune();
    if (visits_.size() < top_ + 2 * turns_) visits_.resize(top_ + 2 * turns_);
    Visit* v = visits_.data();
    const auto enter = [&](std::size_t turns, std::size_t l, std::size_t k, Amount ask) {
        v->turns = static_cast<std::uint32_t>(turns);
        v->l = static_cast<std::uint32_t>(l);
        v->k = static_cast<std::uint32_t>(k);
        v->word = static_cast<std::uint32_t>(low_word_);
        v->light = false;
        v->want = v->left = ask;
    };
    enter(0, top_, s_, want);
    for (;;) {
        while (v->left > 0 && advance(*v)) {
            const Amount ask = std::min(v->left, v->room);
            const std::size_t next = v->next, turns = v->turns + !v->down;
            const std::size_t l = v->down ? v->l - 1 : v->l + 1;
            if (l == 1 && turns == turns_) {
                push(*v, deliver(1, next, ask));
            } else {
                ++v;
                enter(turns, l, next, ask);
            }
        }
        if (v->left > 0) erase(reached(v->turns, v->l), v->k);
        const Amount sent = v->want - v->left;
        if (v == visits_.data()) return sent;
        --v;
        push(*v, sent);
    }
}

// Sets the visit's next edge towards the token, and what that edge can take.
inline bool Solver::advance(Visit& v) {
    const std::size_t l = v.l, k = v.k;
    const auto down = [&](std::size_t next, const Edge& edge, bool other) {
        v.down = true;
        v.other = other;
        v.next = static_cast<std::uint32_t>(next);
        v.edge = edge;
        v.room = *edge.left;
        return true;
    };
    const auto up = [&](std::size_t next, const Edge& edge) {
        v.down = v.other = false;
        v.next = static_cast<std::uint32_t>(next);
        v.edge = edge;
        v.room = net_.row(l + 1, next)[k] - *edge.left;
        return true;
    };
    // The first position that is in both sets, n if there is none.
    const auto first = [&](const Word* a, const Word* b) {
        for (std::size_t w = low_word_; w < high_word_; ++w) {
            if (a[w] & b[w]) return w * word_bits + lowest(a[w] & b[w]);
        }
        return n_;
    };
    if (l >= 2) {
        const Word* to = v.turns == turns_ && l == 2 ? &alive_[set(1)] : reached(v.turns, l - 1);
        const bool source = k == s_;
        if (!source && has(own_.open(l), k) && has(to, k)) return down(k, edge(own_, l, k), false);
        if (!source && has(sink_.open(l), k) && has(to, t_)) {
            return down(t_, edge(sink_, l, k), false);
        }
        const Word* const open = source ? source_.open(l) : &others_open_[edges(l, k)];
        const Word not_token = source ? ~Word{0} : ~(Word{1} << (t_ % word_bits));
        for (;;) {
            const Word* const mask = v.light ? open : net_.heavy(l, k);
            for (; v.word < high_word_; ++v.word) {
                Word can = open[v.word] & to[v.word] & mask[v.word];
                if (v.word == t_ / word_bits) can &= not_token;
                if (!can) continue;
                const std::size_t m = v.word * word_bits + lowest(can);
                return source ? down(m, edge(source_, l, m), false) : down(m, other(l, k, m), true);
            }
            if (v.light || (heavy_ && !source)) break;
            v.light = true;
            v.word = static_cast<std::uint32_t>(low_word_);
        }
    }
    if (v.turns == turns_ || l + 1 >= top_) return false;
    const Word* to = reached(v.turns + 1, l + 1);
    if (has(to, s_) && has(source_.back(l + 1), k)) return up(s_, edge(source_, l + 1, k));
    if (k == t_) {
        const std::size_t next = first(sink_.back(l + 1), to);
        return next < n_ && up(next, edge(sink_, l + 1, next));
    }
    if (has(to, k) && has(own_.back(l + 1), k)) return up(k, edge(own_, l + 1, k));
    const std::size_t next = first(&others_back_[edges(l + 1, k)], to);
    return next < n_ && up(next, other(l + 1, next, k));
}

// Sends `amount` along the visit's edge, or takes it back from there.
inline void Solver::push(Visit& v, Amount amount) {
    if (amount == 0) return;
    v.left -= amount;
    const Edge& e = v.edge;
    if (v.down) {
        *e.left -= amount;
        if (amount == v.room) *e.open &= ~e.open_bit;
        *e.back |= e.back_bit;
        if (v.other) insert(&fed_[set(v.l)], v.next);
    } else {
        *e.left += amount;
        *e.open |= e.open_bit;
        if (amount == v.room) *e.back &= ~e.back_bit;
    }
}

// Restores `others_`.
void Solver::undo() {
    const auto restore = [&](std::size_t l, std::size_t k, std::size_t m) {
        others_[l][k * n_ + m] = net_.row(l, k)[m];
        insert(&others_open_[edges(l, k)], m);
    };
    for (const Touch& e : touched_) restore(e.l, e.k, e.m);
    for (std::size_t l = 2; l < top_ && linked_; ++l) {
        each(&fed_[set(l)], [&](std::size_t m) {
            Word* const back = &others_back_[edges(l, m)];
            each(back, [&](std::size_t k) { restore(l, k, m); });
            clear(back, words_);
        });
    }
    touched_.clear();
}

}  // namespace maxflow
