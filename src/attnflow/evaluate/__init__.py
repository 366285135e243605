"""How far methods agree with what a model really depends on, over many texts.

`evaluate` correlates the scores of methods with references, `Evaluation` is what it finds, and
`attnflow.evaluate.significance` says how sure that is. `evaluate_stored` does so for scores that
`attnflow.run` has stored, and `Statistics` is what it finds.
"""

from attnflow.evaluate.evaluation import EvaluatedText, Evaluation, Skipped
from attnflow.evaluate.run import Run, evaluate
from attnflow.evaluate.statistics import Statistics
from attnflow.evaluate.stored import StoredRun, evaluate_stored

__all__ = [
    "EvaluatedText",
    "Evaluation",
    "Run",
    "Skipped",
    "Statistics",
    "StoredRun",
    "evaluate",
    "evaluate_stored",
]
