// Steps over whole rows of amounts.
#pragma once

#include <cstddef>

#include "bits.hpp"
#include "network.hpp"

namespace maxflow {

// sum over k of min(a[k], b[k]), and of min(a[k], b[k], c[k]).
Amount sum_of_minima(const Amount* a, const Amount* b, std::size_t n);
Amount sum_of_minima(const Amount* a, const Amount* b, const Amount* c, std::size_t n);

// to[k] = min(limit, to[k] + min(x, a[k]))
void add_minima(Amount* to, Amount x, const Amount* a, Amount limit, std::size_t n);

// Takes the smallest of a, b and c off all three, position by position, `limit` in all, and returns
// how much that was.
Amount transfer(Amount* a, Amount* b, Amount* c, std::size_t n, Amount limit);

// carried[k] += (got[k] - got_left[k]) - (sent[k] - sent_left[k])
// left[k] = capacity[k] - carried[k]
void fall(Amount* carried, Amount* left, const Amount* capacity, const Amount* got,
          const Amount* got_left, const Amount* sent, const Amount* sent_left, std::size_t n);

// Words `first` to `last` of the set of positions with more than `least` (nothing is negative), and
// of those with less left than they had. n is the length of the whole row.
void above(Amount least, const Amount* amounts, std::size_t n, std::size_t first, std::size_t last,
           Word* out);
void smaller(const Amount* now, const Amount* before, std::size_t n, std::size_t first,
             std::size_t last, Word* out);

}  // namespace maxflow
