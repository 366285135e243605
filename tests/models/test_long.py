"""Long texts: what is not kept gives the same explanations, data sets, generations and scores."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers

import attnflow
from attnflow import GraphSizeError, StoppedError, checks, limited, trace
from attnflow.capture import rows
from attnflow.cli import main
from attnflow.errors import TextError
from attnflow.evaluate import evaluate
from attnflow.models import Explainer, memory
from attnflow.models.adapter import Question
from attnflow.view.generation import render_plain
from tests.support import ROOT
from tests.support.architectures import SMALL, build
from tests.support.text import VOCABULARY, decoder_tokenizer
from tests.support.tiny import wordpiece_tokenizer

TEXT = "the keys to the cabinet are on a table"
TEXTS = [TEXT, "a film that no one will forget", "keys are on a table"]
DECODERS = ("GPT-2", "Llama", "Mistral")
ENCODERS = ("BERT", "ELECTRA", "DeBERTa-v2")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


@pytest.fixture
def long(monkeypatch):
    """A function after which texts of a few tokens are treated as long ones."""

    def switch():
        monkeypatch.setattr(memory, "SMALL", 0)
        monkeypatch.setattr(trace, "MOST_WEIGHTS", 0)
        monkeypatch.setattr(rows, "BLOCK_BYTES", 4 * 4 * 9 * 2)

    return switch


def explainer_of(name):
    tokenizer = decoder_tokenizer() if name in DECODERS else wordpiece_tokenizer(VOCABULARY)
    return Explainer(build(name), tokenizer)


def same(found, expected):
    """Compare two explanations of one text, but for the trace and the layers that it shows."""
    assert found.tokens == expected.tokens
    assert (found.layer, found.position, found.reads) == (
        expected.layer,
        expected.position,
        expected.reads,
    )
    np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-5)
    assert found.notes == expected.notes
    assert found.prediction == pytest.approx(expected.prediction)
    assert found.trace is None


@pytest.mark.parametrize("method", ["raw", "rollout", "contribution"])
@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
def test_a_long_text_is_explained_as_a_short_one(name, method, long):
    explainer = explainer_of(name)
    expected = explainer.explain(TEXTS, method=method)
    long()
    for one, other in zip(explainer.explain(TEXTS, method=method), expected, strict=True):
        same(one, other)
        if method == "contribution":
            assert (one.value, one.bias) == pytest.approx((other.value, other.bias), abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"position": 3},
        {"layer": 1},
        {"receptive_field": False},
        {"residual": 0.2},
        {"heads": 1},
        {"heads": "max"},
        {"units": "words", "special_tokens": False},
        {"drop_sink": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_options_of_attention_mean_the_same(name, options, long):
    explainer = explainer_of(name)
    options = {"method": "rollout", **options}
    expected = explainer.explain(TEXT, **options)
    long()
    same(explainer.explain(TEXT, **options), expected)


def test_the_mean_of_an_encoder_is_one_row(long):
    config = transformers.BertConfig(**SMALL)
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    explainer = Explainer(model, wordpiece_tokenizer(VOCABULARY))
    for field in ("auto", True):
        options = {"method": "rollout", "position": "mean", "receptive_field": field}
        with pytest.MonkeyPatch.context() as patch:
            expected = explainer.explain(TEXT, **options)
            patch.setattr(memory, "SMALL", 0)
            patch.setattr(trace, "MOST_WEIGHTS", 0)
            same(explainer.explain(TEXT, **options), expected)


@pytest.mark.parametrize("options", [{"keep_heads": True}, {"edges": "value_norm"}], ids=str)
def test_what_needs_the_matrix_gets_it(options, long):
    explainer = explainer_of("Llama")
    expected = explainer.explain(TEXT, method="rollout", **options)
    long()
    same(explainer.explain(TEXT, method="rollout", **options), expected)
    flow = explainer.explain(TEXT, method="flow")
    np.testing.assert_array_equal(flow.scores, explainer.explain(TEXT, method="flow").scores)


@pytest.mark.parametrize("method", ["rollout", "contribution"])
@pytest.mark.parametrize("each", [True, False, "auto"])
def test_a_generation_after_a_long_prompt(method, each, long, monkeypatch):
    explainer = explainer_of("Llama")
    options = {"method": method, "max_new_tokens": 5}
    expected = explainer.generate(TEXT, **options)
    assert len(expected) == 5
    long()
    monkeypatch.setattr("attnflow.models.explainer.MOST_EXPLAINED", 0)
    found = explainer.generate(TEXT, each=each, **options)
    assert found.text == expected.text
    np.testing.assert_allclose(found.whole.scores, expected.whole.scores, rtol=0, atol=1e-5)
    every = each is True or (each == "auto" and method == "rollout")
    assert len(found) == 5 * every
    if every:
        np.testing.assert_allclose(found.matrix, expected.matrix, rtol=0, atol=1e-5)
    else:
        notes = " ".join(found.whole.notes)
        assert ("not explained one by one" in notes) == (method == "contribution")
        assert found.matrix.shape == (0, len(found.tokens))
        assert attnflow.Generation.from_dict(found.to_dict()) == found
        assert expected.text.strip() in render_plain(found)
        assert "Token by token" not in found.to_html().partition("<script")[0]


def test_the_whole_answer_takes_one_backward_pass(long, monkeypatch):
    explainer = explainer_of("Llama")
    long()
    calls = []
    attribute = explainer.adapter.attribute

    def counted(*args, **options):
        calls.append(options["again"])
        return attribute(*args, **options)

    monkeypatch.setattr(explainer.adapter, "attribute", counted)
    monkeypatch.setattr("attnflow.models.explainer.MOST_EXPLAINED", 0)
    explainer.generate(TEXT, max_new_tokens=5)
    assert calls == [True]


@pytest.mark.parametrize("method", ["rollout", "contribution"])
def test_a_data_set_of_long_texts(method, long, tmp_path):
    explainer = explainer_of("Llama")
    found = {}
    for name in ("short", "long"):
        attnflow.run(TEXTS, explainer, output=tmp_path / name, method=method, workers=1)
        found[name] = pq.read_table(tmp_path / name / "data").to_pylist()
        long()
    assert len(found["long"]) == len(TEXTS)
    for one, other in zip(found["long"], found["short"], strict=True):
        assert one["tokens"] == other["tokens"]
        np.testing.assert_allclose(one["scores"], other["scores"], rtol=0, atol=1e-5)


def test_scores_of_several_methods(long):
    explainer = explainer_of("Llama")
    questions = [Question(4, None), Question("last", None)]
    given = {"methods": ("raw", "rollout"), "receptive_fields": (True, False)}
    expected = explainer.layer_scores(TEXT, questions, **given)
    long()
    for one, other in zip(explainer.layer_scores(TEXT, questions, **given), expected, strict=True):
        assert one.sinks == other.sinks
        for key, scores in other.scores.items():
            np.testing.assert_allclose(one.scores[key], scores, rtol=0, atol=1e-5)


def test_an_evaluation_of_long_texts(long):
    explainer = explainer_of("BERT")
    given = {"methods": ["raw", "rollout"], "references": ["blank_out"]}
    expected = evaluate(explainer, TEXTS, workers=1, **given)
    long()
    found = evaluate(explainer, TEXTS, workers=1, **given)
    for one, other in zip(found.rows(), expected.rows(), strict=True):
        assert one == pytest.approx(other, abs=1e-5, nan_ok=True)


def test_a_text_that_is_longer_than_the_model_takes(long):
    explainer = explainer_of("BERT")
    long()
    with pytest.raises(TextError, match=r"has 92 tokens and the model takes 64.*truncate=True"):
        explainer.explain(" ".join(["keys"] * 90))


# ---- What needs the square of the text -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"method": "flow"}, "flow over 9 tokens and 2 layers needs about .* second"),
        ({"method": "rollout", "edges": "alti"}, "edges='alti' keeps the attention of 9 tokens"),
        ({"method": "raw", "keep_heads": True}, "keep_heads=True keeps the attention"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_the_model_runs(options, named, long, monkeypatch):
    explainer = explainer_of("Llama")
    calls = []
    explainer.model.register_forward_pre_hook(lambda *_: calls.append(1))
    long()
    for module in (checks, memory):
        monkeypatch.setattr(module, "available_memory", lambda: 1000)
    with pytest.raises(GraphSizeError, match=named) as refused:
        explainer.explain(TEXT, **options)
    assert "0.0 GB are available" in str(refused.value)
    assert "method='contribution'" in str(refused.value)
    assert not calls
    for method in ("contribution", "rollout"):
        explainer.explain(TEXT, method=method)


def test_the_command_line_says_what_a_large_flow_needs(monkeypatch, capsys):
    monkeypatch.setattr(memory, "LONG_SECONDS", 0.0)
    assert main(["explain", "--method", "flow", "the keys to the cabinet"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("attnflow: flow over 6 tokens and 6 layers needs about 0.0 GB of memory")


# ---- Stopping, and memory ------------------------------------------------------------------------

BUILD = """
import json, os, resource, sys, time
import torch, transformers
from attnflow import trace
from attnflow.models import Explainer, memory
from tests.support.text import decoder_tokenizer

memory.SMALL = 0
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, intermediate_size=64, max_position_embeddings=100_000,
    bos_token_id=None, eos_token_id=None, pad_token_id=0,
)).eval()
explainer = Explainer(model, decoder_tokenizer())
text = lambda count: " ".join(["keys"] * count)
"""

MEASURE = """
def peak():
    if not os.path.exists("/proc/self/status"):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # On Linux the number above begins at that of the parent.
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmHWM"].split()[0])

explainer.explain(text(64), method=sys.argv[1])
before = peak()
found = []
for count in (2048, 4096):
    explainer.explain(text(count), method=sys.argv[1])
    found.append(peak() - before)
print(json.dumps(found))
"""

RUN = """
print("begun", flush=True)
explainer.explain(text(30_000), method=sys.argv[1])
print("done", flush=True)
"""


def child(code, method):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", BUILD + code, method],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("method", ["rollout", "contribution"])
def test_memory_grows_with_the_text_and_not_with_its_square(method):
    process = child(MEASURE, method)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    short, long = json.loads(output)
    # Twice as much, and what blocks of rows take in any case; a square would be four times.
    assert long < 3 * max(short, 4096)


@pytest.mark.parametrize("method", ["rollout", "contribution"])
def test_a_long_explanation_can_be_interrupted(method):
    process = child(RUN, method)
    assert process.stdout.readline() == "begun\n"
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    # By itself it would take minutes.
    output, errors = process.communicate(timeout=30)
    assert output == ""
    assert "KeyboardInterrupt" in errors


@pytest.mark.parametrize("method", ["rollout", "contribution"])
def test_a_limit_stops_a_long_explanation(method, long):
    explainer = explainer_of("Llama")
    long()
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 3

    with pytest.raises(StoppedError), limited(stop=stop):
        explainer.explain(TEXT, method=method)
