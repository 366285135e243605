"""A generation in the terminal, in a notebook and as a page."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from attnflow.explanation import Explanation
from attnflow.generation import Generation
from attnflow.view.generation import (
    addition,
    by_message,
    data,
    folded,
    render,
    render_plain,
    sources,
)
from attnflow.view.text import cells
from tests.support.chat import MESSAGES, chatter
from tests.support.pages import unpacked


@pytest.fixture(scope="module")
def answer():
    return chatter().generate(MESSAGES, max_new_tokens=4)


@pytest.fixture(scope="module")
def plain():
    return chatter().generate("the keys to", max_new_tokens=4, method="rollout")


def named(names, target="are"):
    """A generation of one token after tokens of any names, each scored by its place."""
    text = " ".join(names)
    starts = np.cumsum([0, *(len(name) + 1 for name in names)])[:-1].tolist()
    scores = np.arange(1.0, len(names) + 1)
    step = Explanation(
        tokens=names,
        scores=scores,
        layer_scores=[scores],
        spans=[(start, start + len(name)) for start, name in zip(starts, names, strict=True)],
        special=[False] * len(names),
        method="contribution",
        layer=1,
        position=len(names) - 1,
        target=target,
        value=float(scores.sum()),
        bias=0.0,
        text=text,
        model="tiny",
        task="causal-lm",
    )
    return Generation(
        prompt=text, text=target, explanations=[step], whole=step, written=[False] * len(names)
    )


def test_the_answer_itself_is_one_row_and_everything_adds_up(answer):
    rows = folded(answer)
    assert rows.tokens[-1] == "the answer itself"
    assert rows.scores[-1] == pytest.approx(answer.itself)
    assert rows.scores.sum() == pytest.approx(answer.whole.scores.sum())
    assert sources(answer).tokens == answer.tokens[: len(answer.tokens) - 3]
    numbers = [float(number) for number in re.findall(r"[+-]?\d+\.\d+", addition(answer))]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.03)
    assert "chat template" in addition(answer)
    assert "not accounted for" not in addition(answer)


def test_what_each_message_adds_is_listed_by_role(answer):
    units = answer.by_unit("segments").whole
    usual = dict(zip(units.tokens, units.scores, strict=True))
    for role in ("system", "user"):
        [found] = re.findall(rf"{role} ([+-]?[\d.]+)", by_message(answer))
        segment = [
            score
            for name, score, special in zip(units.tokens, units.scores, units.special, strict=True)
            if name == role and not special
        ]
        assert float(found) == pytest.approx(segment[0], abs=0.01)
    assert "answer" in usual


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_plain_lines_fit_the_width(answer, plain, width):
    for generation in (answer, plain):
        text = render_plain(generation, width=width)
        assert max(map(cells, text.split("\n"))) <= width
        for word in generation.text.split():
            assert word in text


def test_a_terminal_shows_what_plain_text_does(answer):
    for colour in (True, False):
        stream = io.StringIO()
        looks = {"color_system": "truecolor", "no_color": not colour}
        console = Console(file=stream, force_terminal=True, width=90, **looks)
        console.print(render(answer, width=90, colour=colour))
        shown = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
        for part in ("the answer itself", "Messages", "came most from", "max_new_tokens is 4"):
            assert part in shown
        assert ("38;2" in stream.getvalue()) is colour


def test_a_pipe_gets_no_escape_codes(answer, capsys):
    answer.show()
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown == render_plain(answer)


def test_each_token_is_listed_with_its_highest_source():
    shown = render_plain(named(["one", "two", "three"]))
    assert re.search(r"^  are +\+6.00  three \+3.00, two \+2.00, one \+1.00$", shown, re.M)


def test_nothing_written_is_said(capsys):
    empty = Generation(prompt="the", text="", explanations=(), whole=None, written=(), ended=True)
    empty.show()
    assert "wrote nothing" in capsys.readouterr().out
    assert "wrote nothing" in empty.to_html()
    assert "wrote nothing" in empty._repr_html_()


class Elements(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def test_tokens_that_look_like_script_stay_text_on_the_page():
    evil = ["<script>alert(1)</script>", "<img src=x onerror=alert(2)>", '"><b>']
    shown = (named(evil, "</main><script>x").to_html(), 2), (named(evil)._repr_html_(), 0)
    # The page's own are its data and its script.
    for page, scripts in shown:
        elements = Elements(page)
        assert not [tag for tag, _ in elements.tags if tag in ("img", "b") and "src" in tag]
        assert not [tag for tag, attrs in elements.tags if tag == "img" or "onerror" in attrs]
        assert sum(tag == "script" for tag, _ in elements.tags) == scripts
        assert any("<script>alert(1)</script>" in text for text in elements.text)
    policy = next(a["content"] for t, a in Elements(named(evil).to_html()).tags if "content" in a)
    assert "default-src 'none'" in policy


def test_the_page_has_every_score_of_the_matrix_and_no_style_that_its_policy_forbids(answer):
    np.testing.assert_array_equal(unpacked(data(answer)["matrix"]), answer.matrix)
    page = answer.to_html()
    tags = Elements(page).tags
    assert not [tag for tag, attrs in tags if "style" in attrs]
    assert not [tag for tag, attrs in tags if "src" in attrs or "href" in attrs]
    shown = page[: page.index('id="attnflow-data"')]
    for part in ("The prompt", "Sources", "the answer itself", "What each token", "By message"):
        assert part in shown


def test_what_was_left_out_is_a_part_of_the_sum(answer):
    plain = chatter().generate(MESSAGES, max_new_tokens=3, special_tokens=False)
    assert "tokens left out" in addition(plain)
    assert replace(plain, ended=True) != plain
