"""Limits on the computation of flows: deadlines, and flags that another thread sets."""

import contextvars
import gc
import threading
import time

import numpy as np
import pytest

import attnflow
from attnflow import OptionError, StoppedError, limited
from attnflow.cancel import check_limits
from tests.support.chat import chatter


@pytest.fixture(scope="module")
def graph():
    """A graph whose flows between all pairs take minutes."""
    weights = np.random.default_rng(0).random((12, 400, 400)) ** 6
    graph = attnflow.AttentionGraph(weights / weights.sum(axis=-1, keepdims=True))
    assert graph.units is not None
    return graph


@pytest.fixture
def event():
    """A flag that is set after a fifth of a second."""
    event = threading.Event()
    timer = threading.Timer(0.2, event.set)
    timer.start()
    yield event
    timer.join()


def stops(graph, threads=1):
    """How long it takes until all flows of a graph are stopped."""
    began = time.monotonic()
    with pytest.raises(StoppedError):
        attnflow.attention_flow(graph, num_threads=threads)
    return time.monotonic() - began


@pytest.mark.parametrize("threads", [1, 2])
def test_a_deadline_stops_a_call_that_would_take_minutes(graph, threads):
    with limited(seconds=0.2):
        assert 0.15 < stops(graph, threads) < 20


@pytest.mark.parametrize("threads", [1, 2])
def test_another_thread_stops_a_call_that_would_take_minutes(graph, threads, event):
    with limited(stop=event.is_set):
        assert stops(graph, threads) < 20
    assert event.is_set()


def test_calls_in_any_thread_are_stopped():
    threading_errors = []

    def work():
        try:
            with limited(seconds=0):
                attnflow.attention_flow(np.eye(3)[None])
        except StoppedError as error:
            threading_errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(threading_errors) == 1


def test_the_innermost_and_the_outermost_limit_hold(graph, event):
    with limited(seconds=600):
        with limited(seconds=0.1):
            stops(graph)
        check_limits()
    with limited(stop=event.is_set), limited(seconds=600), limited(stop=lambda: False):
        stops(graph)


def test_every_function_that_solves_is_stopped(attention):
    graph = attnflow.AttentionGraph(attention)
    calls = (
        lambda: attnflow.attention_flow(graph),
        lambda: attnflow.saturation(graph),
        lambda: attnflow.head_flow(attention, 2, 0),
        lambda: attnflow.min_cut(graph, 4, 0, 1),
    )
    for call in calls:
        expected = call()
        with limited(seconds=0), pytest.raises(StoppedError, match="0 seconds"):
            call()
        with limited(stop=lambda: True), pytest.raises(StoppedError, match="stop"):
            call()
        with limited(seconds=600, stop=lambda: False):
            after = call()
        if isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(after, expected)
        else:
            assert after == expected


def test_a_limit_that_is_not_reached_changes_no_bit(graph):
    asked = []
    expected = attnflow.attention_flow(graph, layers=[12], positions=[0])
    with limited(seconds=600, stop=lambda: asked.append(1) or False):
        limited_flow = attnflow.attention_flow(graph, layers=[12], positions=[0])
    np.testing.assert_array_equal(limited_flow, expected)
    assert asked


def test_nothing_is_left_behind(graph, attention):
    def running():
        return threading.active_count()

    before, context = running(), contextvars.copy_context()
    with limited(seconds=0.1):
        stops(graph, threads=2)
        with pytest.raises(StoppedError):
            attnflow.attention_flow(attention)
    assert running() == before
    assert dict(contextvars.copy_context()) == dict(context)
    check_limits()
    gc.collect()
    assert attnflow.attention_flow(attention).shape == (4, 6, 6)


def test_an_error_of_the_function_is_the_callers(graph):
    calls = []

    def stop():
        calls.append(1)
        if len(calls) > 1:
            raise KeyError("mine")
        return False

    with limited(stop=stop), pytest.raises(KeyError, match="mine"):
        attnflow.attention_flow(graph, num_threads=2)
    assert len(calls) == 2


def test_a_limit_of_a_thread_is_not_that_of_another(attention):
    found = []
    with limited(seconds=0):
        thread = threading.Thread(target=lambda: found.append(attnflow.attention_flow(attention)))
        thread.start()
        thread.join()
    assert len(found) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": -1}, "seconds is -1"),
        ({"seconds": float("inf")}, "seconds is inf"),
        ({"seconds": "2"}, "seconds is '2'"),
        ({"seconds": True}, "seconds is True"),
        ({"stop": True}, "stop is True"),
        ({"stop": threading.Event()}, "stop is <threading.Event"),
    ],
)
def test_a_wrong_limit_is_named(options, message):
    with pytest.raises(OptionError, match=message), limited(**options):
        pytest.fail("it was accepted")


def test_the_error_is_one_of_attnflow_and_not_of_python():
    assert issubclass(StoppedError, attnflow.AttnflowError)
    assert not issubclass(StoppedError, ValueError | OSError)


def test_a_check_and_a_model_that_writes_are_stopped(one_thread):
    chat = chatter()
    with limited(stop=lambda: True):
        # The passes of a short text are not interrupted.
        assert chat.explain("the keys to").check is None
        with pytest.raises(StoppedError, match="stop"):
            chat.explain("the keys to", check=True)
        with pytest.raises(StoppedError, match="stop"):
            chat.generate("the keys to", max_new_tokens=3)
    assert chat.explain("the keys to", check=True).check is not None
    assert len(chat.generate("the keys to", max_new_tokens=3)) == 3
