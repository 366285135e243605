"""Views: results as text, tables, figures, pages and files.

Importing this package registers the writers of all formats in `attnflow.formats`. Every view shows
the text as it was written, with each token in its place. Tokens are shown as text and nothing
else: control characters are made visible and never sent on.
"""

from collections.abc import Callable
from typing import Any, TextIO

from attnflow.evaluate import Evaluation, Statistics
from attnflow.explanation import Explanation
from attnflow.formats import register
from attnflow.generation import Generation
from attnflow.view import answer, evaluation, export, generation, notebook, page, statistics, theme

__all__: list[str] = []


def _shown(report: Callable[[Any], Any]) -> Callable[..., None]:
    def show(result: Any, file: TextIO | None = None) -> None:
        report(result).show(file)

    return show


def _drawn(draw: Callable[[Any], Any], ending: str) -> Callable[[Any], bytes]:
    return lambda result: theme.content(draw(result), ending)


register(Explanation, "terminal", notebook.show)
register(Explanation, "plot", answer.plot)
register(Explanation, "dataframe", export.table_frame)
register(Explanation, "widget", notebook.widget)
register(Explanation, "notebook", notebook.inline_html)
register(Explanation, "mimebundle", notebook.mimebundle)
register(Explanation, ".json", export.explanation_json)
register(Explanation, ".csv", export.table_csv)
register(Explanation, ".html", page.page)
register(Generation, "terminal", generation.show)
register(Generation, "plot", answer.generated)
register(Generation, "dataframe", export.table_frame)
register(Generation, "widget", generation.widget)
register(Generation, "notebook", generation.inline_html)
register(Generation, "mimebundle", notebook.mimebundle)
register(Generation, ".json", export.generation_json)
register(Generation, ".csv", export.table_csv)
register(Generation, ".html", generation.page)
register(Evaluation, "terminal", _shown(evaluation.report))
register(Evaluation, "plot", evaluation.plot)
register(Evaluation, "dataframe", export.evaluation_frame)
register(Evaluation, ".json", export.json_text)
register(Evaluation, ".csv", export.evaluation_csv)
register(Statistics, "terminal", _shown(statistics.report))
register(Statistics, "plot", statistics.draw)
register(Statistics, ".json", export.json_text)
register(Statistics, ".csv", export.statistics_csv)
for _ending in theme.ENDINGS:
    register(Explanation, _ending, _drawn(lambda result: answer.plot(result)[0], _ending))
    register(Generation, _ending, _drawn(lambda result: answer.generated(result)[0], _ending))
    register(Evaluation, _ending, _drawn(evaluation.panels, _ending))
    register(Statistics, _ending, _drawn(statistics.draw, _ending))
