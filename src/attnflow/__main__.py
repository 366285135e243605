"""Lets ``python -m attnflow`` do what ``attnflow`` does."""

import sys

from attnflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
