"""What several test files share: tiny models, made-up explanations, servers and runs."""

from pathlib import Path

# The folder of the repository. A child process that imports `tests` runs there.
ROOT = Path(__file__).parents[2]
