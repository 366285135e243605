"""Long texts: sentences first, on the page, in the terminal and in figures; tokens on demand."""

import dataclasses
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnflow import Explanation
from attnflow.generation import Generation
from attnflow.view import figures, generation
from attnflow.view.page import page
from attnflow.view.sentences import is_long, rows, sentences
from attnflow.view.terminal import render_plain
from tests.support.long_texts import QUESTION, long_chat
from tests.support.pages import HOSTILE, contribute, explain
from tests.view.test_terminal import BLOCKS, ESCAPE, on_terminal, run_in_terminal


@pytest.fixture(scope="module")
def longest():
    """8,192 tokens and 30 layers."""
    return long_chat()


@pytest.fixture(scope="module")
def chat():
    return long_chat(900, layers=4)


def plain_text(text, **given):
    """An explanation of a text, a token for each word or mark, whose scores add up."""
    spans = [match.span() for match in re.finditer(r"\w+|[^\w\s]|\n", text)]
    scores = np.random.default_rng(0).normal(size=(2, len(spans)))
    named = {
        "tokens": [text[start:end] for start, end in spans],
        "scores": scores[0],
        "layer_scores": scores,
        "method": "contribution",
        "layer": 1,
        "position": 0,
        "text": text,
        "spans": spans,
        "special": [False] * len(spans),
        "model": "tiny",
        "task": "causal-lm",
        "value": float(scores[0].sum()),
        "bias": 0.0,
    }
    return Explanation(**{**named, **given})


# ---- What belongs together -----------------------------------------------------------------------


def test_a_text_is_long_by_its_tokens_or_by_the_characters_of_larger_units(chat):
    assert is_long(chat)
    assert is_long(chat.by_unit("words"))
    assert is_long(chat.by_unit("sentences"))
    assert not is_long(contribute())
    assert not is_long(contribute(tokens=("x" * 10_000,) * 7))
    assert not is_long(plain_text("One. Two. Three.").by_unit("sentences"))


@pytest.mark.parametrize("units", ["tokens", "words"])
def test_sentences_have_the_scores_that_grouping_gives(chat, units):
    made = chat.by_unit(units)
    found, groups = sentences(made)
    expected = made.by_unit("sentences")
    assert found.tokens == expected.tokens
    assert found.spans == expected.spans
    np.testing.assert_allclose(found.layer_scores, expected.layer_scores)
    assert sorted(token for group in groups for token in group) == list(range(len(made.tokens)))


@pytest.mark.parametrize(
    "text",
    ["word " * 1000, "a,b\n" * 400, "\u8a9e" * 900, "".join(f"line {i}\n" for i in range(400))],
)
def test_what_has_no_end_is_divided_into_parts_that_can_be_read(text):
    spans = [(i, i + 1) for i in range(len(text))] if text.isalpha() else None
    made = plain_text(text)
    if spans:
        scores = np.ones((1, len(spans)))
        given = {"tokens": list(text), "spans": spans, "special": [False] * len(spans)}
        made = plain_text(text, **given, scores=scores[0], layer_scores=scores)
    found, groups = sentences(made)
    assert len(groups) >= 3
    assert max(map(len, groups)) <= 300
    assert [token for group in groups for token in group] == list(range(len(made.tokens)))
    assert found.scores.sum() == pytest.approx(made.scores.sum())
    for name, span in zip(found.tokens, found.spans, strict=True):
        assert name == text[slice(*span)] == name.strip()


def test_rows_hold_every_token_once_in_the_order_of_the_text(chat):
    _, groups = sentences(chat)
    found = rows(chat.pieces, groups)
    listed = [token for row in found for _, own in row.get("pieces", []) for token in own]
    assert listed == list(range(len(chat.tokens)))
    assert [row["heading"] for row in found if "heading" in row] == ["system", "user"]
    for row in found:
        own = [token for _, tokens in row.get("pieces", []) for token in tokens]
        if "unit" in row:
            assert own == groups[row["unit"]]
        else:
            assert all(chat.special[token] for token in own)
    assert found[-2]["apart"]  # the question comes after an empty line


# ---- The page ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["contribution", "rollout"])
def test_8192_tokens_and_30_layers_fit_into_a_page_and_come_back_exactly(show, tmp_path, method):
    explanation = long_chat(method=method)
    shown = show(explanation)
    assert shown.path.stat().st_size < 4_000_000
    with shown.page.expect_download() as download:
        shown.page.locator("[data-save=json]").click()
    download.value.save_as(tmp_path / "again.json")
    assert Explanation.load(tmp_path / "again.json") == explanation


def test_the_page_begins_with_the_largest_sentences(show, longest):
    shown = show(longest)
    expected = longest.by_unit("sentences")
    usual = ~np.array(expected.special)
    order = np.argsort(-abs(expected.scores) * usual, kind="stable")[:12]
    listed = shown.page.locator(".top").evaluate_all(
        "all => all.map(one => [one.querySelector('.sentence').textContent,"
        " one.querySelector('.number').textContent])"
    )
    assert [text for text, _ in listed] == [expected.tokens[i] for i in order]
    assert [float(number) for _, number in listed] == pytest.approx(
        expected.scores[order], abs=0.005
    )
    rest = shown.page.locator(".by-sentence .caption").inner_text()
    assert str(int(usual.sum()) - 12) in rest
    assert shown.page.locator("h3").all_inner_texts() == ["system", "user"]
    # Special tokens stand where they are, and no other token is there yet.
    assert shown.page.locator(".chips .token:not(.special)").count() == 0
    shown.page.locator(".row.aside .special").first.wait_for()
    markup = shown.page.locator(".row.aside").first.locator(".special")
    assert markup.all_text_contents() == ["<|im_start|>", "system", "\u21b5"]
    said = shown.page.locator(".row:not(.aside) .said").all_text_contents()
    assert said == [expected.tokens[i] for i in np.flatnonzero(usual)]
    assert said[-1] == QUESTION


def numbers_of(shown):
    """Return the number beside each row that is a sentence."""
    found = shown.page.locator(".row:not(.aside) .number").all_text_contents()
    return np.array([float(text) for text in found])


def test_a_sentence_opens_by_mouse_and_its_tokens_add_up_to_its_score(show, chat):
    shown = show(chat)
    row = shown.page.locator(".row:not(.aside)").nth(3)
    button = row.locator("button")
    assert button.get_attribute("aria-expanded") == "false"
    row.locator("p").click()
    assert button.get_attribute("aria-expanded") == "true"
    assert not row.locator(".said").is_visible()
    groups = [g for g in sentences(chat)[1] if not chat.special[g[0]]]
    tokens = row.locator(".token")
    scores = chat.scores[groups[3]]
    assert tokens.all_inner_texts() == [chat.tokens[i].strip("\u0120") for i in groups[3]]
    titles = [float(token.get_attribute("title")) for token in tokens.all()]
    np.testing.assert_allclose(titles, scores, atol=0.006)
    assert numbers_of(shown)[3] == pytest.approx(scores.sum(), abs=0.006)
    against = [
        i for i, token in enumerate(tokens.all()) if "against" in token.get_attribute("class")
    ]
    assert against == np.flatnonzero(scores < 0).tolist()
    button.click()
    assert button.get_attribute("aria-expanded") == "false"
    assert row.locator(".said").is_visible()
    assert not row.locator(".chips").is_visible()


def test_sentences_are_reached_and_opened_by_the_keyboard(show, chat):
    shown = show(chat)
    keyboard = shown.page.keyboard
    shown.page.locator("[data-show-units=sentences]").focus()
    keyboard.press("Tab")
    focused = "document.activeElement.closest('.row').querySelector('.said').textContent"
    names = shown.page.locator(".row:not(.aside) .said").all_text_contents()
    assert shown.page.evaluate(focused) == names[0]
    keyboard.press("ArrowDown")
    keyboard.press("Enter")
    keyboard.press("ArrowDown")
    keyboard.press("Space")
    opened = shown.page.locator("button[aria-expanded=true]")
    assert opened.count() == 2
    assert shown.page.locator(".row:has(> [aria-expanded=true]) .chips").count() == 2
    assert shown.page.evaluate(focused) == names[2]
    keyboard.press("End")
    assert shown.page.evaluate(focused) == names[-1]
    keyboard.press("Home")
    keyboard.press("ArrowUp")
    assert shown.page.evaluate(focused) == names[0]
    # One stop in the order of tabs, and then on.
    assert shown.page.locator(".sentences [tabindex='0']").count() == 1


def test_all_sentences_open_and_close_but_only_tokens_that_are_seen_are_made(show, longest):
    shown = show(longest)
    shown.page.locator("[data-show-units=tokens]").click()
    count = shown.page.locator(".opener[aria-expanded]").count()
    assert shown.page.locator("button[aria-expanded=true]").count() == count > 300
    shown.page.locator(".row:not(.aside) .chips").first.wait_for()
    assert shown.page.locator(".chips .token").count() < 3000
    shown.page.locator(".sentences").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    shown.page.locator(".row:not(.aside) .chips").last.filter(has_text="logbook").wait_for()
    assert shown.page.locator(".chips .token").count() < 5000
    assert shown.page.locator("[data-show-units=tokens]").get_attribute("aria-checked") == "true"
    shown.page.keyboard.press("ArrowLeft")
    assert shown.page.locator("button[aria-expanded=true]").count() == 0


def test_a_bar_leads_to_its_sentence(show, longest):
    shown = show(longest)
    top = shown.page.locator(".top").nth(2)
    text = top.locator(".sentence").text_content()
    top.click()
    here = shown.page.locator(".row.here")
    assert here.locator(".said").text_content() == text
    assert here.locator(".chips").is_visible()
    shown.page.wait_for_function(
        "() => { const box = document.querySelector('.row.here').getBoundingClientRect();"
        " return box.top >= 0 && box.bottom <= innerHeight; }"
    )
    assert shown.page.evaluate("document.activeElement.closest('.row.here') !== null")


def test_text_that_is_selected_to_be_copied_opens_nothing(show, chat):
    shown = show(chat)
    said = shown.page.locator(".row:not(.aside) .said").nth(2)
    said.hover()
    box = said.bounding_box()
    shown.page.mouse.move(box["x"] + 5, box["y"] + 8)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 60, box["y"] + 8)
    shown.page.mouse.up()
    assert shown.page.evaluate("getSelection().toString()") in said.text_content()
    assert shown.page.evaluate("getSelection().isCollapsed") is False
    assert shown.page.locator("button[aria-expanded=true]").count() == 0


def test_the_page_of_an_attention_method_has_sentences_in_every_part(show):
    explanation = long_chat(900, layers=4, method="rollout")
    expected = explanation.by_unit("sentences")
    shown = show(explanation)
    np.testing.assert_allclose(shown.table()[:, 0], expected.scores, rtol=6e-3)
    shown.page.locator("input[type=range]").fill("2")
    shown.settle(layer=2)
    np.testing.assert_allclose(shown.table()[:, 0], expected.layer_scores[1], rtol=6e-3)
    usual = ~np.array(expected.special)
    np.testing.assert_allclose(numbers_of(shown), expected.layer_scores[1][usual], rtol=6e-3)
    best = shown.page.locator(".top .sentence").first.text_content()
    assert best == expected.tokens[int(np.argmax(expected.layer_scores[1] * usual))]
    assert best[:30] in shown.page.locator(".finding").inner_text()
    row = shown.page.locator(".row:has(> button)").first
    row.locator("button").click()
    titles = [float(token.get_attribute("title")) for token in row.locator(".token").all()]
    assert sum(titles) == pytest.approx(numbers_of(shown)[0], rel=0.02)
    assert "900" in shown.page.locator(".about").inner_text()


@pytest.mark.parametrize("units", ["sentences", "segments"])
def test_units_that_are_whole_sentences_do_not_open(show, longest, units):
    explanation = longest.by_unit(units)
    shown = show(explanation)
    assert shown.page.locator(".by-sentence h2").first.inner_text().startswith(f"The {units}")
    assert shown.page.locator("[data-show-units], .sentences button").count() == 0
    count = len(explanation.tokens) - sum(explanation.special)
    assert shown.page.locator(".top").count() == min(12, count)
    assert shown.page.locator(".row:not(.aside)").count() == count


def test_sentences_open_to_words_where_words_were_explained(show, chat):
    shown = show(chat.by_unit("words"))
    assert shown.page.locator("[data-show-units]").all_inner_texts() == ["Sentences", "Words"]
    shown.page.locator(".row button").nth(1).click()
    words = shown.page.locator(".row:not(.aside) .token").all_inner_texts()
    assert words == ["Keep", "to", "what", "it", "says", "."]


def hostile():
    """A text of 500 words among tokens that would like to be more than text."""
    tokens = (
        "[CLS]",
        *(name for one in HOSTILE for name in (one, *["word"] * 45, "end.")),
        "[SEP]",
    )
    made = explain(tokens, method="raw", layers=1, trace=False)
    scores = np.linspace(-1, 2, len(tokens))
    given = {"scores": scores, "layer_scores": [scores], "value": scores.sum(), "bias": 0.0}
    return dataclasses.replace(made, method="contribution", **given)


def test_hostile_tokens_of_a_long_text_are_text_everywhere(show):
    explanation = hostile()
    shown = show(explanation)
    shown.page.locator("[data-show-units=tokens]").click()
    shown.page.locator(".sentences").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    shown.page.locator(".chips").last.wait_for()
    shown.page.locator(".top").first.click()
    assert shown.page.evaluate("window.ran") is None
    assert shown.page.locator("main script, main img, main iframe, main b").count() == 0
    assert shown.page.locator("script").count() == 2
    html = page(explanation)
    assert "http://" not in html
    assert html.count("</script>") == 2
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 1100


@pytest.mark.parametrize("width", [320, 1600])
def test_a_long_text_fits_into_every_window(show, width):
    shown = show(hostile(), width=width)
    shown.page.locator(".row button").first.click()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_printed_page_has_every_sentence_and_no_token(show, chat):
    shown = show(chat, color_scheme="dark")
    shown.page.locator("[data-show-units=tokens]").click()
    shown.page.emulate_media(media="print")
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    said = shown.page.locator(".row:not(.aside) .said")
    assert all(one.is_visible() for one in said.all())
    assert shown.page.locator(".row:not(.aside) .chips").count() == 0
    colours = said.evaluate_all("all => all.map(one => one.style.backgroundColor)")
    assert "" not in colours
    box = shown.page.locator(".sentences").evaluate("list => list.scrollHeight - list.clientHeight")
    assert box == 0
    shown.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    shown.page.locator(".row:not(.aside) .chips").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("method", ["contribution", "rollout"])
def test_axe_finds_nothing_to_complain_about_in_a_long_text(show, scheme, method):
    from axe_playwright_python.sync_playwright import Axe

    shown = show(long_chat(900, layers=4, method=method), color_scheme=scheme)
    shown.page.locator(".row button").nth(1).click()
    result = Axe().run(shown.page).response["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in result] == []


def test_a_long_text_can_be_read_without_scripts(show, longest):
    shown = show(longest, scripts=False)
    best = shown.page.locator("main ol li")
    assert best.count() == 10
    expected = longest.by_unit("sentences")
    top = expected.tokens[int(np.argmax(expected.scores))]
    assert top in best.first.inner_text()
    assert QUESTION in shown.page.locator("main").inner_text()


def test_the_attention_of_a_text_with_a_trace_is_chosen_by_token(show):
    words = tuple(f"word{i}" for i in range(450))
    made = explain(words, method="raw", layers=1)
    given = {"method": "contribution", "value": float(made.scores.sum()), "bias": 0.0}
    shown = show(dataclasses.replace(made, **given))
    assert shown.page.locator(".by-sentence .row").count() == 3
    shown.page.locator(".text .token[data-token='40']").click()
    shown.settle(position=40)


# ---- The terminal --------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("units", ["tokens", "words", "sentences"])
def test_a_terminal_lists_the_largest_sentences_a_line_each(longest, width, units):
    explanation = longest.by_unit(units)
    expected = longest.by_unit("sentences")
    usual = ~np.array(expected.special)
    order = np.argsort(-abs(expected.scores) * usual, kind="stable")[:12]
    written = ESCAPE.sub("", on_terminal(explanation, width))
    for shown in (written, render_plain(explanation, width=width)):
        lines = shown.splitlines()
        assert len(lines) < 40
        assert max(map(len, lines)) <= width
        bars = [line for line in lines if set(line) & set(BLOCKS)]
        assert len(bars) == 12
        for line, i in zip(bars, order, strict=True):
            assert line.strip().startswith(expected.tokens[i][:25])
            (number,) = re.findall(r"[+-]\d+\.\d\d", line)
            assert float(number) == pytest.approx(expected.scores[i], abs=0.006)
        told = " ".join(shown.split())
        assert f"{int(usual.sum()) - 12} more sentences, " in told
        assert "It is 41 % sure" in told
        assert "page" in told
        longer = 110 if width == 200 else 45
        assert max(len(line.partition("  +")[0].strip()) for line in bars) >= longer


def test_a_terminal_without_colours_says_as_much(longest, tmp_path):
    longest.save(tmp_path / "long.json")
    coloured = run_in_terminal(tmp_path / "long.json", columns=100)
    without = run_in_terminal(tmp_path / "long.json", columns=100, NO_COLOR="1")
    assert "\x1b[38" not in without
    assert ESCAPE.sub("", without).split() == ESCAPE.sub("", coloured).split()


def test_units_longer_than_words_get_more_room_than_their_bars():
    made = plain_text("A first sentence that is rather long, as they go. Two. And three of them.")
    (line, *_) = [
        line
        for line in render_plain(made.by_unit("sentences"), width=80).splitlines()
        if "rather long" in line and set(line) & set(BLOCKS)
    ]
    assert "as they go." in line


# ---- Figures and notebooks -----------------------------------------------------------------------


@pytest.mark.parametrize("draw", [Explanation.plot, figures.token_bars])
def test_a_figure_has_the_largest_sentences_with_their_names(longest, draw):
    figure, axes = draw(longest)
    assert isinstance(figure, Figure)
    assert max(figure.get_size_inches()) <= 13.0
    expected = longest.by_unit("sentences")
    usual = ~np.array(expected.special)
    order = sorted(np.argsort(-abs(expected.scores) * usual, kind="stable")[:24])
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert [name[:40].rstrip("\u2026") for name in names[:24]] == [
        expected.tokens[i][:40] for i in order
    ]
    # What follows makes the bars add up.
    assert names[24:] == ["all others", "biases", "together"]
    told = " ".join(text.get_text() for text in figure.findobj(Text))
    assert f"24 of {int(usual.sum())} sentences" in " ".join(told.split())
    (image,) = figures.heat_map(longest)[1].get_images()
    np.testing.assert_allclose(image.get_array(), expected.layer_scores[:, order].T)


def test_a_notebook_shades_sentences(longest):
    html = longest._repr_html_()
    assert len(html) < 150_000
    assert html.count("<span") == len(longest.by_unit("sentences").tokens)


def test_a_long_prompt_is_not_printed_as_a_whole(longest):
    made = Generation(
        prompt=longest.text,
        text="The answer",
        explanations=[longest],
        whole=longest,
        written=[False] * len(longest.tokens),
    )
    shown = generation.render_plain(made)
    assert len(shown.splitlines()) < 60
    assert "more sentences" in shown
    html = generation.page(made)
    assert html.count('class="token') < 1000
