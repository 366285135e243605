"""What attention says about the same tokens: raw attention, rollout and flow side by side."""

from attnflow.explanation import Explanation
from attnflow.options import ATTENTION_METHODS
from attnflow.scoring import Scorer
from attnflow.tokens import Tokens
from attnflow.view.captions import METHOD_NAMES, format_score
from attnflow.view.pieces import labels
from attnflow.view.tables import Report, Table


def attention_report(explanation: Explanation) -> Report | None:
    """Return the scores of every token by the attention weights alone, in the last layer.

    Args:
        explanation: An explanation by any method, with a trace.

    Returns:
        A row for each token and a column for each method; None without a trace.
    """
    trace = explanation.trace
    if trace is None:
        return None
    scorer = Scorer(trace.graph(), mask=trace.mask)
    place = explanation.trace_position
    columns = [
        scorer.scores(method, [place], relative=trace.mask is not None)[-1, 0]
        for method in ATTENTION_METHODS
    ]
    names = labels(
        Tokens(explanation.text, trace.tokens, trace.spans, trace.special, explanation.segments)
    )
    seen = scorer.sees(place)
    table = Table(
        f"What could have reached {names[place]} in layer {trace.depth}:",
        ["token", *(METHOD_NAMES[method] for method in ATTENTION_METHODS)],
        [
            [name, *(format_score(float(column[i]), float(column.max())) for column in columns)]
            for i, name in enumerate(names[:seen])
        ],
    )
    return Report("What attention says", [table], [])
