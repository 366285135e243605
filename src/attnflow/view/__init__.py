"""Views: results as text, tables, figures, pages and files.

Importing this package registers the writers of all formats in `attnflow.formats`. Every view shows
the text as it was written, with each token in its place. Tokens are shown as text and nothing
else: control characters are made visible and never sent on.
"""

from functools import partial

from attnflow.explanation import Explanation
from attnflow.formats import register
from attnflow.view import export, figures, notebook, page, theme

__all__: list[str] = []

register(Explanation, "terminal", notebook.show)
register(Explanation, "plot", figures.heat_map)
register(Explanation, "widget", notebook.widget)
register(Explanation, "notebook", notebook.inline_html)
register(Explanation, "mimebundle", notebook.mimebundle)
register(Explanation, ".json", export.explanation_json)
register(Explanation, ".csv", export.explanation_csv)
register(Explanation, ".html", page.page)
for _ending in theme.ENDINGS:
    register(Explanation, _ending, partial(figures.render, ending=_ending))
