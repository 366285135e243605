"""What several test files share: tiny models, made-up explanations, servers and runs."""

import os
from pathlib import Path

# The folder of the repository. A child process that imports `tests` runs there.
ROOT = Path(__file__).parents[2]

# Whether this is the exhaustive part of the tests, `make test-all`.
EXHAUSTIVE = bool(os.environ.get("ATTNFLOW_EXHAUSTIVE"))


def scaled(few: int, many: int) -> int:
    """How often a test repeats what it does: `few` times, or `many` in the exhaustive part."""
    return many if EXHAUSTIVE else few
