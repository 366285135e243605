"""What importing the package brings with it."""

import importlib.metadata
import json
import subprocess
import sys

import attnflow


def test_importing_attnflow_imports_numpy_and_no_extra():
    code = "import sys, json, attnflow; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    modules = {name.partition(".")[0] for name in json.loads(result.stdout)}
    assert "numpy" in modules
    heavy = {
        "anywidget",
        "igraph",
        "matplotlib",
        "maxflow",
        "networkx",
        "ortools",
        "pyarrow",
        "ray",
        "rich",
        "scipy",
        "starlette",
        "torch",
        "transformers",
        "uvicorn",
    }
    assert not modules & heavy


def test_every_public_name_is_there():
    for name in attnflow.__all__:
        assert hasattr(attnflow, name), name


def test_the_version_is_the_one_installed():
    assert attnflow.__version__ == importlib.metadata.version("attnflow")


def test_every_error_can_be_caught_as_attnflow_error_and_as_the_builtin_it_is():
    assert issubclass(attnflow.AttentionError, ValueError)
    assert issubclass(attnflow.OptionError, ValueError)
    assert issubclass(attnflow.GraphSizeError, MemoryError)
    assert issubclass(attnflow.MissingExtraError, ImportError)
    for error in (
        attnflow.AttentionError,
        attnflow.OptionError,
        attnflow.DataError,
        attnflow.GraphSizeError,
        attnflow.MissingExtraError,
    ):
        assert issubclass(error, attnflow.AttnflowError)
