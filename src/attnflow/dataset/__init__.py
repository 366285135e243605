"""Many texts: from a file of them to a Parquet data set of explanations.

`run` reads texts, explains each, and writes shards that are whole or not there. A run that was
stopped, in whatever way, goes on where it was.
"""

from attnflow.dataset.runner import Progress, Result, run

__all__ = ["Progress", "Result", "run"]
