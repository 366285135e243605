"""What the tests of views share."""

import pytest

from tests.support.browser import Shown


@pytest.fixture
def show(browser, tmp_path):
    contexts, every = [], []

    def open_page(explanation, *, width=1100, height=900, scripts=True, **options):
        path = tmp_path / f"page{len(contexts)}.html"
        explanation.save(path)
        context = browser.new_context(
            viewport={"width": width, "height": height}, java_script_enabled=scripts, **options
        )
        contexts.append(context)
        shown = Shown(context.new_page(), path)
        every.append(shown)
        shown.page.goto(path.as_uri())
        return shown.ready() if scripts else shown

    yield open_page
    for shown in every:
        assert shown.complaints == []
        assert set(shown.requests) <= {shown.path.as_uri()} | {
            url for url in shown.requests if url.startswith("blob:")
        }
    for context in contexts:
        context.close()
