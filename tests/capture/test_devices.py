"""Long texts on another device: nothing is mixed with the CPU, and only results are moved to it.

There is no second device here, so one is made up: its tensors say that they are on "meta", and hold
their numbers on the CPU. An operation that mixes them with tensors of the CPU is an error, as it is
on a GPU, and each move to the CPU is counted. Speed, and kernels of a GPU, are not tested.
"""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from attnflow.capture import capture, contribute, rows
from attnflow.scoring import Scorer
from tests.support.architectures import build, score_of, texts

DEVICE = torch.device("meta")


class Elsewhere(torch.Tensor):
    """A tensor of the device that is made up."""

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


MOVED = []
"""How many numbers each tensor had that was moved from the device to the CPU."""


class Machine(TorchDispatchMode):
    """Makes new tensors on the device where that is asked for."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


def computed(function, args, kwargs):
    """Run a function on the CPU that is meant for the device, or for both."""
    if function is torch.ops.aten.zeros.default and not args[0]:
        # A `RowMask` is made of a zero that stays on torch's own "meta" device.
        return function(*args, **kwargs)
    given = tree_flatten((args, kwargs))[0]
    mine = [one for one in given if isinstance(one, Elsewhere)]
    wanted = kwargs.get("device")
    there = bool(mine) if wanted is None else torch.device(wanted) == DEVICE
    if mine and not there:
        MOVED.extend(one.numel() for one in mine)
    for one in given if mine and function is not torch.ops.aten._to_copy.default else ():
        if torch.is_tensor(one) and not isinstance(one, Elsewhere) and one.ndim:
            raise AssertionError(f"{function} mixes the device with the CPU")
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain, named = (tree_map(held, value) for value in (args, kwargs))
    result = function(*plain, **named)

    def back(value):
        if not torch.is_tensor(value) or not there:
            return value
        same = [one for one in mine if one.held is value]
        return same[0] if same else Elsewhere(value)

    return tree_map(back, result)


def held(value):
    """Return what a value is on the CPU."""
    if isinstance(value, Elsewhere):
        return value.held
    zero = torch.is_tensor(value) and value.device == DEVICE and not value.ndim
    return torch.zeros((), dtype=value.dtype) if zero else value


def move(model):
    """Put all parameters and buffers of a model on the device."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = torch.nn.Parameter(
                    Elsewhere(parameter.detach()), requires_grad=parameter.requires_grad
                )
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = Elsewhere(buffer)
    return model


@pytest.fixture(params=["Llama", "BERT", "Mistral"])
def pair(request, monkeypatch):
    """A model on the CPU, and the same on the device, with blocks of a few rows."""
    monkeypatch.setattr(rows, "BLOCK_BYTES", 4 * 4 * 24 * 5)
    monkeypatch.setattr(rows, "DEVICE_BLOCK_BYTES", 4 * 4 * 24 * 5)
    return build(request.param), move(build(request.param))


COUNT = 24


def test_rollout_stays_on_its_device(pair):
    here, there = pair
    inputs = {"input_ids": texts(COUNT)["input_ids"]}
    MOVED.clear()
    with Machine():
        found = capture(there, {name: Elsewhere(one) for name, one in inputs.items()}, keep=False)
        streamed = found.rows.text(0, COUNT, 0.5)
        scores = Scorer(streamed).scores("rollout", [COUNT - 1])
    expected = Scorer(capture(here, inputs, keep=False).rows.text(0, COUNT, 0.5))
    np.testing.assert_allclose(scores, expected.scores("rollout", [COUNT - 1]), atol=1e-6)
    # Two layers: raw attention, rollout, what is received, and two offsets for each position.
    assert 0 < sum(MOVED) <= 2 * (2 * COUNT + 2 * COUNT) + COUNT


def test_contributions_stay_on_their_device(pair):
    here, there = pair
    inputs = {"input_ids": texts(COUNT)["input_ids"]}
    MOVED.clear()
    with Machine():
        moved = {name: Elsewhere(one) for name, one in inputs.items()}
        found = contribute(there, moved, score_of, again=True)
    expected = contribute(here, inputs, score_of, again=True)
    torch.testing.assert_close(found.scores[0], expected.scores[0], rtol=1e-4, atol=1e-6)
    # The scores, what the head reads, twice, and a few numbers for each item.
    assert 0 < sum(MOVED) <= 4 * COUNT + 8
