"""How far methods agree with what a model depends on, over many texts.

`evaluate` correlates the scores of methods with references and returns an `Evaluation`.
`evaluate_stored` does so for scores that `attnflow.run` stored, and returns `Statistics`.
`attnflow.evaluate.significance` has the confidence intervals and tests.
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
