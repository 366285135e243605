// Maximum flows for many pairs at once.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "network.hpp"

namespace maxflow {

struct Request {
    std::vector<std::size_t> tops;       // layers of the sources, from 1
    std::vector<std::size_t> positions;  // of the sources
    std::vector<std::size_t> tokens;     // the sinks
};

// result[(i * P + p) * T + j] is the flow from (tops[i], positions[p]) to token tokens[j].
//
// The answer does not depend on the number of threads. `interrupted`, if given, is asked from the
// calling thread now and then; when it says yes, the work ends and `flows` returns false.
bool flows(const Network& network, const Request& request, std::size_t threads, Amount* result,
           std::function<bool()> interrupted = {});

}  // namespace maxflow
