#include "vector.hpp"

#include <algorithm>

// The whole-vector steps are compiled for any x86-64 and for AVX2, and one is chosen at run time.
// The address sanitizer starts after that choice and does not support it.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define MAXFLOW_VECTOR __attribute__((target_clones("avx2", "default")))
#else
#define MAXFLOW_VECTOR
#endif

namespace maxflow {

MAXFLOW_VECTOR Amount sum_of_minima(const Amount* a, const Amount* b, std::size_t n) {
    Amount sum = 0;
    for (std::size_t k = 0; k < n; ++k) sum += a[k] < b[k] ? a[k] : b[k];
    return sum;
}

MAXFLOW_VECTOR Amount sum_of_minima(const Amount* a, const Amount* b, const Amount* c,
                                    std::size_t n) {
    Amount sum = 0;
    for (std::size_t k = 0; k < n; ++k) {
        const Amount x = a[k] < b[k] ? a[k] : b[k];
        sum += x < c[k] ? x : c[k];
    }
    return sum;
}

MAXFLOW_VECTOR void add_minima(Amount* __restrict to, Amount x, const Amount* __restrict a,
                               Amount limit, std::size_t n) {
    for (std::size_t k = 0; k < n; ++k) {
        const Amount sum = to[k] + (a[k] < x ? a[k] : x);
        to[k] = sum < limit ? sum : limit;
    }
}

namespace {

MAXFLOW_VECTOR void subtract_minima(Amount* __restrict a, Amount* __restrict b,
                                    Amount* __restrict c, std::size_t n) {
    for (std::size_t k = 0; k < n; ++k) {
        Amount x = a[k] < b[k] ? a[k] : b[k];
        x = x < c[k] ? x : c[k];
        a[k] -= x;
        b[k] -= x;
        c[k] -= x;
    }
}

}  // namespace

Amount transfer(Amount* a, Amount* b, Amount* c, std::size_t n, Amount limit) {
    const Amount sum = sum_of_minima(a, b, c, n);
    if (sum == 0) return 0;
    if (sum <= limit) {
        subtract_minima(a, b, c, n);
        return sum;
    }
    Amount left = limit;
    for (std::size_t k = 0; left > 0; ++k) {
        const Amount x = std::min(std::min(a[k], b[k]), std::min(c[k], left));
        a[k] -= x;
        b[k] -= x;
        c[k] -= x;
        left -= x;
    }
    return limit;
}

// No amount is negative, so the sign bit of a difference tells which of two is larger. Compilers
// turn these shifts and ORs into vector code.
MAXFLOW_VECTOR void above(Amount least, const Amount* amounts, std::size_t n, std::size_t first,
                          std::size_t last, Word* out) {
    for (std::size_t w = first; w < last; ++w) {
        const Amount* from = amounts + w * word_bits;
        Word word = 0;
        if (n - w * word_bits >= word_bits) {
            for (std::size_t i = 0; i < word_bits; ++i) {
                word |= (static_cast<Word>(least) - static_cast<Word>(from[i])) >> 63 << i;
            }
        } else {
            for (std::size_t i = 0; i < n - w * word_bits; ++i) word |= Word{from[i] > least} << i;
        }
        out[w] = word;
    }
}

MAXFLOW_VECTOR void smaller(const Amount* now, const Amount* before, std::size_t n,
                            std::size_t first, std::size_t last, Word* out) {
    for (std::size_t w = first; w < last; ++w) {
        const Amount* a = now + w * word_bits;
        const Amount* b = before + w * word_bits;
        Word word = 0;
        if (n - w * word_bits >= word_bits) {
            for (std::size_t i = 0; i < word_bits; ++i) {
                word |= (static_cast<Word>(a[i]) - static_cast<Word>(b[i])) >> 63 << i;
            }
        } else {
            for (std::size_t i = 0; i < n - w * word_bits; ++i) word |= Word{a[i] < b[i]} << i;
        }
        out[w] = word;
    }
}

MAXFLOW_VECTOR void fall(Amount* __restrict carried, Amount* __restrict left,
                         const Amount* __restrict capacity, const Amount* __restrict got,
                         const Amount* __restrict got_left, const Amount* __restrict sent,
                         const Amount* __restrict sent_left, std::size_t n) {
    for (std::size_t k = 0; k < n; ++k) {
        carried[k] += (got[k] - got_left[k]) - (sent[k] - sent_left[k]);
        left[k] = capacity[k] - carried[k];
    }
}

}  // namespace maxflow
