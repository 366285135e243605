"""What several test files share."""

import os
import shutil

import numpy as np
import pytest
from hypothesis import settings

# Runs repeat themselves, and how long an example takes is not what the tests are about.
# `pytest --hypothesis-profile=explore` looks for new examples.
settings.register_profile("default", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=2000)
settings.load_profile("default")


@pytest.fixture
def worked_example():
    """Attention of three layers among three tokens, shape (3, 3, 3), exact in binary.

    With a residual share of one half the edges weigh

        A1 = 1/2   3/8   1/8      A2 = 5/8   1/8   1/4      A3 = 3/4    0    1/4
             1/4   3/4    0            0    7/8   1/8           1/8   5/8   1/4
              0    1/4   3/4           0    3/8   5/8           1/4    0    3/4
    """
    return np.array(
        [
            [[0.00, 0.75, 0.25], [0.50, 0.50, 0.00], [0.00, 0.50, 0.50]],
            [[0.25, 0.25, 0.50], [0.00, 0.75, 0.25], [0.00, 0.75, 0.25]],
            [[0.50, 0.00, 0.50], [0.25, 0.25, 0.50], [0.50, 0.00, 0.50]],
        ]
    )


@pytest.fixture
def attention():
    """Random attention of 4 layers, 3 heads and 6 tokens, float64 of shape (4, 3, 6, 6)."""
    weights = np.random.default_rng(0).random((4, 3, 6, 6))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def one_thread():
    """Tensors this small are not worth a second thread, which may have to wait for a core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def browser():
    """Chromium, as Playwright drives it."""
    path = (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )
    if path is None:
        pytest.fail(
            "the tests in a browser need Chromium: run apt-get install chromium, or name one in "
            "the environment variable CHROMIUM"
        )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("the tests in a browser need Playwright: run pip install playwright")
    with sync_playwright() as playwright:
        # Containers run as root, where Chromium has no sandbox.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()
