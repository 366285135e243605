"""The documentation: it is built without a warning, and what it shows is what happens."""

import doctest
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from attnflow import Explainer, Explanation
from attnflow.cli import COMMANDS
from attnflow.models.verb_number import checkpoint
from tests.support import ROOT

DOCS = ROOT / "docs"


# ---- The site ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site, with every warning an error."""
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        # Its makers advertise their next program at every start.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder


class Links(HTMLParser):
    """Gathers what a page loads by itself, and what it links to."""

    def __init__(self):
        super().__init__()
        self.loaded = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio"):
            self.loaded.append(given.get("src"))
        if tag == "link":
            self.loaded.append(given.get("href"))


def test_no_page_of_the_site_loads_anything_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        links = Links()
        links.feed(page.read_text(encoding="utf-8"))
        for url in filter(None, links.loaded):
            assert not url.startswith(("http:", "https:", "//")), f"{page.name} loads {url}"


def test_the_site_opens_in_a_browser_without_complaint(site):
    path = (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )
    if path is None:
        pytest.fail(
            "the tests of the site need Chromium: run apt-get install chromium, or name one in the "
            "environment variable CHROMIUM"
        )
    from playwright.sync_api import sync_playwright

    complaints, requests = [], []
    with (
        sync_playwright() as playwright,
        # Containers run as root, where Chromium has no sandbox.
        playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        assert page.locator("h1").inner_text().startswith("attnflow")
        picture = page.locator("img[src='keys.svg']")
        assert picture.evaluate("image => image.complete && image.naturalWidth > 0")
        page.goto((site / "notebook.html").as_uri())
        assert page.locator("article span[title]", has_text="keys").count() > 0
        page.goto((site / "keys.html").as_uri())
        page.locator("main[data-flow=done]").wait_for()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_every_command_is_in_the_reference(site):
    text = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"usage: attnflow {command}" in text
    assert "usage: attnflow paper table1" in text


@pytest.mark.parametrize("name", ["Explainer", "Explanation", "attention_flow", "show", "Widget"])
def test_the_reference_has_what_users_call(site, name):
    pages = "".join(
        page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html")
    )
    assert f'.{name}"' in pages


# ---- What it says --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tutorial.md", "methods.md", "long.md"])
def test_the_examples_give_what_the_documentation_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    with np.printoptions():
        result = doctest.testfile(str(DOCS / name), module_relative=False, optionflags=options)
    assert result.attempted >= 4
    assert result.failed == 0


def test_the_explanation_in_the_documentation_is_what_the_shipped_model_gives():
    shown = Explanation.load(DOCS / "keys.json")
    made = Explainer.from_pretrained(checkpoint()).explain(shown.text, method=shown.method)
    assert shown.model == "verb_number/checkpoint"
    assert shown.tokens == made.tokens
    assert shown.prediction.label == made.prediction.label
    np.testing.assert_allclose(shown.layer_scores, made.layer_scores, atol=1e-4)


# ---- The notebook --------------------------------------------------------------------------------


def said(output):
    """Return what an output says in words, without the sizes of files, which machines change."""
    stream = output["output_type"] == "stream"
    return re.sub(
        r"\d+ kB", "kB", "".join(output["text"] if stream else output["data"]["text/plain"])
    )


def outputs(notebook):
    return [
        (cell["id"], "".join(said(output) for output in cell["outputs"]))
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.exhaustive
def test_the_notebook_runs_and_gives_what_it_shows(tmp_path):
    path = tmp_path / "notebook.ipynb"
    result = subprocess.run(
        [sys.executable, str(DOCS / "execute.py"), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    shown = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))
    made = json.loads(path.read_text(encoding="utf-8"))
    assert outputs(made) == outputs(shown)
    kinds = [
        kind
        for cell in made["cells"]
        for output in cell.get("outputs", [])
        for kind in output.get("data", {})
    ]
    assert kinds.count("image/png") == 1
    assert kinds.count("text/html") >= 3
