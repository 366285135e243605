"""Evaluation on both engines: the same result, wherever it was stopped and went on."""

import inspect
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import attnflow
from attnflow.cli import main
from attnflow.errors import OptionError
from attnflow.evaluate import Run, StoredRun, evaluate, evaluate_stored
from tests.support import ROOT
from tests.support.dataset_signals import explainer as tiny

TEXTS = [
    "the keys to the cabinet are on a table",
    "no one will forget a film",
    "",
    "keys",
    "the film that no one will forget is on",
    "a key is on the table",
]
OPTIONS = {"references": ("blank_out", "input_gradient"), "samples": 50, "permutations": 49}


def defaults(function):
    """The options of a function, but for how it tells of its progress."""
    parameters = inspect.signature(function).parameters.values()
    return {item.name: item.default for item in parameters if item.kind is item.KEYWORD_ONLY}


ALL, STORED = defaults(evaluate), defaults(evaluate_stored)


@pytest.fixture(scope="module")
def classifier():
    return tiny()


def stopping(count):
    def progress(done, total):
        if done >= count:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("edges", ["attention", "gradient"])
def test_the_number_of_workers_makes_no_difference(classifier, tmp_path, edges):
    options = {**OPTIONS, "edges": edges}
    one = evaluate(classifier, TEXTS, workers=1, **options)
    assert one.notes  # gradients were looked at, in whatever process
    assert evaluate(classifier, TEXTS, workers=3, **options) == one
    store = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluate(classifier, TEXTS, workers=2, store=store, progress=stopping(2), **options)
    assert 1 + 2 <= len(store.read_bytes().splitlines()) < 1 + 5
    assert evaluate(classifier, TEXTS, workers=1, store=store, **options) == one


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc, which is Linux's")
def test_workers_end_with_the_evaluation(classifier):
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text()
    with pytest.raises(KeyboardInterrupt) as caught:
        evaluate(classifier, TEXTS, workers=2, progress=stopping(1), **OPTIONS)
    # Even though somebody still holds the error.
    assert children.read_text() == before
    assert caught.value is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "engine.*'spark'.*local.*ray"),
        ({"workers": 0}, "workers.*0"),
        ({"address": "auto"}, "address.*'auto'.*engine.*'ray'"),
        ({"engine": "ray", "address": "127.0.0.1:1"}, r"address.*127\.0\.0\.1:1"),
    ],
)
def test_options_that_an_engine_does_not_have_are_refused(classifier, tmp_path, options, message):
    store = tmp_path / "run.jsonl"
    with pytest.raises(OptionError, match=message):
        evaluate(classifier, TEXTS, store=store, **options)
    assert not store.exists()


# Ray leaves threads and open files in a process, so that it gets one of its own.
CHILD = """
import json, os, sys
# Workers are not to wait for whatever else runs on this machine.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
from attnflow.evaluate import evaluate
from tests.support.dataset_signals import explainer

given = json.loads(sys.argv[1])
found = evaluate(explainer(), engine="ray", workers=1, progress=lambda *at: print(*at), **given)
print(json.dumps(found.to_dict()))
"""


@pytest.mark.exhaustive
def test_ray_goes_on_where_this_machine_stopped_and_ends_with_the_same_result(classifier, tmp_path):
    store = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluate(classifier, TEXTS, workers=1, store=store, progress=stopping(2), **OPTIONS)
    given = json.dumps({"texts": TEXTS, "store": str(store), **OPTIONS})
    with open(tmp_path / "out.txt", "w") as out, open(tmp_path / "err.txt", "w") as err:
        result = subprocess.run(
            [sys.executable, "-c", CHILD, given],
            cwd=ROOT,
            stdout=out,
            stderr=err,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=600,
        )
    assert result.returncode == 0, (tmp_path / "err.txt").read_text()
    *steps, last = (tmp_path / "out.txt").read_text().splitlines()
    assert steps == ["2 5", "3 5", "4 5", "5 5"]
    assert json.loads(last) == evaluate(classifier, TEXTS, workers=1, **OPTIONS).to_dict()


def test_what_is_sent_to_a_cluster_can_be_sent(classifier, tmp_path):
    output = tmp_path / "out"
    attnflow.run(TEXTS, classifier, output=output, method="rollout", workers=1)
    with (
        Run(classifier, TEXTS, **{**ALL, **OPTIONS}) as texts,
        StoredRun(output, classifier, **{**STORED, **OPTIONS}) as stored,
    ):
        for running in (texts, stored):
            work, pieces = running._work, list(running._missing())
            sent, tasks = pickle.loads(pickle.dumps((work, pieces)))
            assert [sent(classifier, task) for _, task in tasks] == [
                work(classifier, piece) for _, piece in pieces
            ]


def test_the_command_hands_over_what_runs_the_model(tmp_path, monkeypatch, classifier, capsys):
    classifier.model.save_pretrained(tmp_path / "model")
    classifier.tokenizer.save_pretrained(tmp_path / "model")
    data = tmp_path / "x.txt"
    data.write_text("the keys\n")
    given = {}

    def run(explainer, texts, **options):
        given.update(options, runs_on=explainer.model.device.type)
        raise OptionError("enough")

    monkeypatch.setattr("attnflow.evaluate.run.Run", run)
    command = ["evaluate", "--model", str(tmp_path / "model"), "--data", str(data)]
    command += ["--engine", "ray", "--address", "auto", "--device", "cuda", "--workers", "3"]
    assert main(command) == 1
    assert (given["engine"], given["address"], given["device"]) == ("ray", "auto", "cuda")
    assert (given["workers"], given["runs_on"]) == (3, "cpu")
