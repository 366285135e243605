"""The servers that several test files ask."""

import pytest

from attnflow import Explainer
from attnflow.models.verb_number import checkpoint
from tests.support.chat import chatter
from tests.support.serving import TOKEN, serving


@pytest.fixture(scope="package")
def server():
    with serving() as started:
        yield started


@pytest.fixture(scope="package")
def gated(tmp_path_factory):
    """A server with a token, a gate, and room for few."""
    gate = tmp_path_factory.mktemp("gate") / "open"
    options = ("--max-waiting", "4", "--max-waiting-each", "3", "--timeout", "4")
    with serving(*options, gate=gate, token=TOKEN) as started:
        started.gate = gate
        yield started


@pytest.fixture(scope="package")
def chat_folder(tmp_path_factory):
    """A tiny model that writes, with a chat template."""
    folder = tmp_path_factory.mktemp("chat")
    made = chatter()
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="package")
def writer(chat_folder, tmp_path_factory):
    """A server of it, with a gate."""
    gate = tmp_path_factory.mktemp("writer") / "open"
    gate.touch()
    limits = ("--max-tokens", "40", "--max-new-tokens", "12", "--max-waiting", "100")
    options = ("--model", chat_folder, *limits)
    with serving(*options, gate=gate) as started:
        started.gate = gate
        yield started


@pytest.fixture(scope="package")
def explainer():
    return Explainer.from_pretrained(checkpoint())
