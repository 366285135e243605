// Rounding rows of weights to integer capacities of one exact sum.
#pragma once

#include <cstddef>

#include "network.hpp"

namespace maxflow {

// Rounds rows of weights that sum to 1 to integers, in units of 2^-50, that sum to 2^50.
//
// Rows are rounded by largest remainder: the weights with the largest remainders are rounded up,
// the others down. Of equal remainders those of the largest weights are rounded up, and of equal
// weights the first. A row whose sum is off by more than rounding errors is divided by its sum
// first. A row of zeros stays one.
void round_rows(const double* weights, std::size_t rows, std::size_t n, Amount* units);

}  // namespace maxflow
