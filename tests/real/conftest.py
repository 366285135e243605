"""The trained models as fixtures, each loaded once."""

from pathlib import Path

import pytest

from tests.support import trained


@pytest.fixture(scope="session")
def minilm():
    return trained.minilm()


@pytest.fixture(scope="session")
def smollm():
    return trained.smollm()


@pytest.fixture(scope="session")
def albert():
    return trained.albert()


@pytest.fixture(scope="session")
def nli():
    return trained.nli()


@pytest.fixture(scope="session")
def tagger():
    return trained.tagger()


@pytest.fixture(scope="session")
def gemma(tmp_path_factory):
    return trained.gemma(tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="session")
def whisper():
    return trained.whisper()


def pytest_collection_modifyitems(items):
    """Leave models that take long to load, or to install, to `make test-all`."""
    here = Path(__file__).parent
    for item in items:
        uses = getattr(item, "fixturenames", ())
        named = getattr(getattr(item, "callspec", None), "params", {}).values()
        loads = {"smollm", "nli", "tagger", "gemma", "whisper"} & set(uses) or {
            "smollm",
            "language_model",
        } & {str(name) for name in named}
        if loads and item.path.parent == here:
            item.add_marker(pytest.mark.exhaustive)
