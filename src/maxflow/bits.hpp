// Sets of positions as rows of 64-bit words.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace maxflow {

using Word = std::uint64_t;

constexpr std::size_t word_bits = 64;

constexpr std::size_t words_for(std::size_t n) { return (n + word_bits - 1) / word_bits; }

inline bool has(const Word* set, std::size_t i) {
    return (set[i / word_bits] >> (i % word_bits)) & 1U;
}
inline void insert(Word* set, std::size_t i) { set[i / word_bits] |= Word{1} << (i % word_bits); }
inline void erase(Word* set, std::size_t i) { set[i / word_bits] &= ~(Word{1} << (i % word_bits)); }

// The first member of a word that is not empty.
inline std::size_t lowest(Word word) { return static_cast<std::size_t>(std::countr_zero(word)); }

inline bool empty(const Word* set, std::size_t words) {
    for (std::size_t w = 0; w < words; ++w) {
        if (set[w]) return false;
    }
    return true;
}
inline bool meet(const Word* a, const Word* b, std::size_t words) {
    for (std::size_t w = 0; w < words; ++w) {
        if (a[w] & b[w]) return true;
    }
    return false;
}
// Exactly the positions low .. high - 1.
inline void fill(Word* set, std::size_t words, std::size_t low, std::size_t high) {
    for (std::size_t w = 0; w < words; ++w) {
        const std::size_t first = w * word_bits;
        Word word = ~Word{0};
        if (low > first) word = low - first >= word_bits ? 0 : word << (low - first);
        if (high < first + word_bits) {
            word &= high <= first ? 0 : ~Word{0} >> (first + word_bits - high);
        }
        set[w] = word;
    }
}
inline void clear(Word* set, std::size_t words) {
    for (std::size_t w = 0; w < words; ++w) set[w] = 0;
}

}  // namespace maxflow
