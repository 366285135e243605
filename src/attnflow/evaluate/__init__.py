"""How far methods agree with what a model really depends on, over many texts.

`evaluate` correlates the scores of methods with references, `Evaluation` is what it finds, and
`attnflow.evaluate.significance` says how sure that is.
"""

from attnflow.evaluate.evaluation import EvaluatedText, Evaluation, Skipped
from attnflow.evaluate.run import Run, evaluate

__all__ = ["EvaluatedText", "Evaluation", "Run", "Skipped", "evaluate"]
