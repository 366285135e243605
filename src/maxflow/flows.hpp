// Maximum flows for many pairs at once.
#pragma once

#include <cstddef>
#include <vector>

#include "network.hpp"
#include "watch.hpp"

namespace maxflow {

struct Request {
    std::vector<std::size_t> tops;       // layers of the sources, from 1
    std::vector<std::size_t> positions;  // of the sources
    std::vector<std::size_t> tokens;     // the sinks
};

// result[(i * P + p) * T + j] is the flow from (tops[i], positions[p]) to token tokens[j].
//
// The answer does not depend on the number of threads. If the watch says to stop, the work ends and
// `flows` returns false. Only the calling thread asks the watch; it works, too.
bool flows(const Network& network, const Request& request, std::size_t threads, Amount* result,
           Watch& watch);

}  // namespace maxflow
