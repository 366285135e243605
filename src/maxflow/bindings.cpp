// attnflow._maxflow: the solver for NumPy arrays. Arguments are checked in Python (attnflow.flow).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "flows.hpp"
#include "network.hpp"
#include "rounding.hpp"
#include "solver.hpp"
#include "watch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Matrix = nb::ndarray<const maxflow::Amount, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Weights = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Units = nb::ndarray<nb::numpy, maxflow::Amount, nb::ndim<2>, nb::c_contig>;
using Result = nb::ndarray<nb::numpy, maxflow::Amount, nb::ndim<3>, nb::c_contig>;

// The pointers of layers 1 .. L and the number of positions they share.
std::pair<std::size_t, std::vector<const maxflow::Amount*>> read(
    const std::vector<Matrix>& capacities) {
    if (capacities.empty()) throw std::invalid_argument("capacities: at least one layer");
    const std::size_t n = capacities[0].shape(0);
    std::vector<const maxflow::Amount*> layers;
    for (const Matrix& matrix : capacities) {
        if (matrix.shape(0) != n || matrix.shape(1) != n) {
            throw std::invalid_argument("capacities: every layer must be n x n");
        }
        layers.push_back(matrix.data());
    }
    return {n, std::move(layers)};
}

void check_range(const std::vector<std::size_t>& values, std::size_t low, std::size_t high,
                 const char* message) {
    for (const std::size_t value : values) {
        if (value < low || value >= high) throw std::out_of_range(message);
    }
}

// Whether a signal handler (Ctrl-C) or the caller's check has raised an exception. The exception
// stays set in this thread until the GIL is held again and it can be thrown.
bool raised(const nb::object& check) {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) return true;
    if (check.is_none()) return false;
    PyObject* const result = PyObject_CallNoArgs(check.ptr());
    Py_XDECREF(result);
    return result == nullptr;
}

// A Python object that frees an array.
nb::capsule owner_of(std::unique_ptr<maxflow::Amount[]> values) {
    return nb::capsule(values.release(),
                       [](void* p) noexcept { delete[] static_cast<maxflow::Amount*>(p); });
}

Units round_rows(const Weights& weights) {
    const std::size_t shape[2] = {weights.shape(0), weights.shape(1)};
    // Every element is written, so none is initialised.
    std::unique_ptr<maxflow::Amount[]> values(new maxflow::Amount[shape[0] * shape[1]]);
    {
        const nb::gil_scoped_release release;
        maxflow::round_rows(weights.data(), shape[0], shape[1], values.get());
    }
    maxflow::Amount* data = values.get();
    return Units(data, 2, shape, owner_of(std::move(values)));
}

Result flow(const std::vector<Matrix>& capacities, std::vector<std::size_t> layers,
            std::vector<std::size_t> positions, std::vector<std::size_t> tokens,
            std::size_t num_threads, const nb::object& check) {
    auto [n, matrices] = read(capacities);
    check_range(layers, 1, matrices.size() + 1, "layers: out of range");
    check_range(positions, 0, n, "positions: out of range");
    check_range(tokens, 0, n, "tokens: out of range");
    const maxflow::Request request{std::move(layers), std::move(positions), std::move(tokens)};
    const std::size_t shape[3] = {request.tops.size(), request.positions.size(),
                                  request.tokens.size()};
    auto values = std::make_unique<maxflow::Amount[]>(shape[0] * shape[1] * shape[2]);
    bool complete;
    {
        const nb::gil_scoped_release release;
        std::atomic<bool> stop{false};
        maxflow::Watch watch(stop, [&] { return raised(check); });
        const maxflow::Network network(n, std::move(matrices), &watch);
        complete = !stop && maxflow::flows(network, request, num_threads, values.get(), watch);
    }
    if (!complete) throw nb::python_error();
    maxflow::Amount* data = values.get();
    return Result(data, 3, shape, owner_of(std::move(values)));
}

std::pair<maxflow::Amount, std::vector<std::pair<std::size_t, std::size_t>>> min_cut(
    const std::vector<Matrix>& capacities, std::size_t position, std::size_t token,
    const nb::object& check) {
    auto [n, matrices] = read(capacities);
    check_range({position}, 0, n, "position: out of range");
    check_range({token}, 0, n, "token: out of range");
    maxflow::Cut cut;
    bool stopped;
    {
        const nb::gil_scoped_release release;
        std::atomic<bool> stop{false};
        maxflow::Watch watch(stop, [&] { return raised(check); });
        const maxflow::Network network(n, std::move(matrices), &watch);
        if (!stop) cut = maxflow::Solver(network, &watch).cut(network.depth(), position, token);
        stopped = stop;
    }
    if (stopped) throw nb::python_error();
    return {cut.value, std::move(cut.source_side)};
}

}  // namespace

NB_MODULE(_maxflow, m) {
    m.doc() = "Exact maximum flow in layered networks with integer capacities.";
    m.attr("UNLIMITED") = maxflow::unlimited;
    m.def(
        "flow", &flow, "capacities"_a, "layers"_a, "positions"_a, "tokens"_a, "num_threads"_a,
        "check"_a = nb::none(),
        "Maximum flows from (layer, position) to token, as an array (layers, positions, tokens).");
    m.def("round_rows", &round_rows, "weights"_a,
          "Rows of weights that sum to 1 as integers that sum to 2**50.");
    m.def("min_cut", &min_cut, "capacities"_a, "position"_a, "token"_a, "check"_a = nb::none(),
          "The value of a minimum cut below (len(capacities), position), and its source side.");
}
