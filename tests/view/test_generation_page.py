"""The page of a generation, in a real browser: what is chosen, and what it came from."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from attnflow import Explainer, Generation
from attnflow.view.generation import data, page
from tests.models.test_sound import noise, processor, whisper
from tests.support import ROOT
from tests.support.generations import PROMPT, ROLES, spanned, written
from tests.support.image_text import build, photo
from tests.support.long_texts import sentences_of
from tests.support.pages import HOSTILE

QUESTION = "what is in the image"


def computed(generation):
    """Return what the page computes of every selection, and what it would save."""
    node = shutil.which("node")
    if node is None:
        pytest.fail("the tests of the page need node, 20 or later: run apt-get install nodejs")
    result = subprocess.run(
        [node, str(ROOT / "tests" / "js" / "selections.mjs")],
        input=json.dumps(data(generation), allow_nan=False),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout)


def numbers(text):
    """Return the numbers with a sign in a text."""
    return [float(one) for one in re.findall(r"[+-]\d+\.\d+", text)]


def settle(shown, selection):
    shown.page.locator(f"main[data-selection='{selection}']").wait_for()


def token(shown, number):
    return shown.page.locator(f".written [data-new='{number}']")


def shades(shown):
    """Return the scores of the prompt's tokens, as they are told of each."""
    chips = shown.page.locator(".prompt .token:not(.special)")
    return [float(one) for one in chips.evaluate_all("all => all.map(one => one.title)")]


def long_prompt(count=900, *, answer=12, **given):
    """A generation after a prompt of about so many words."""
    story = sentences_of(7 * count).split()[:count]
    return written(
        roles=[("system", ("Be", "brief.")), ("user", story)], answer=[" word"] * answer, **given
    )


# ---- What it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("units", ["tokens", "words"])
@pytest.mark.parametrize("method", ["contribution", "rollout"])
@pytest.mark.parametrize("roles", [None, ROLES])
def test_a_span_has_the_sum_of_its_rows_or_their_mean(units, method, roles):
    generation = written(roles=roles, method=method).by_unit(units)
    found = computed(generation)
    assert len(found["selections"]) == 1 + 5 * 6 // 2
    for selection, told in found["selections"]:
        np.testing.assert_allclose(told["scores"], spanned(generation, selection), atol=1e-12)
        if method == "rollout":
            assert told["value"] is None
            continue
        first, last = selection or (0, 4)
        for name in ("value", "bias"):
            expected = sum(getattr(one, name) for one in generation[first : last + 1])
            assert told[name] == pytest.approx(expected)


def test_the_whole_of_a_page_is_the_span_of_all_tokens():
    generation = written()
    told = {str(selection): found for selection, found in computed(generation)["selections"]}
    np.testing.assert_allclose(told["None"]["scores"], told["[0, 4]"]["scores"], atol=1e-12)
    assert told["None"]["value"] == pytest.approx(told["[0, 4]"]["value"])


@pytest.mark.parametrize("long", [False, True])
def test_the_cells_of_the_matrix_are_sums_of_scores(long):
    generation = long_prompt(answer=3) if long else written(roles=ROLES)
    found = computed(generation)
    matrix = generation.matrix
    assert sorted(i for tokens in found["columns"] for i in tokens) == list(range(matrix.shape[1]))
    if long:
        assert len(found["columns"]) < 120
    for row, cells in zip(matrix, found["rows"], strict=True):
        for tokens, cell in zip(found["columns"], cells, strict=True):
            if np.isnan(row[tokens]).all():
                assert cell is None
            else:
                assert cell == pytest.approx(np.nansum(row[tokens]))


@pytest.mark.parametrize("units", ["tokens", "words"])
@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("method", ["contribution", "rollout"])
def test_what_it_saves_is_the_generation(units, each, method):
    generation = written(roles=ROLES, method=method, each=each).by_unit(units)
    assert Generation.from_dict(computed(generation)["saved"]) == generation


@pytest.mark.parametrize("method", ["contribution", "rollout"])
def test_the_scores_of_other_layers_are_left_out_of_a_large_page(monkeypatch, method):
    generation = written(method=method)
    monkeypatch.setattr("attnflow.view.generation.MOST_BYTES", 200)
    saved = Generation.from_dict(computed(generation)["saved"])
    np.testing.assert_allclose(saved.matrix, generation.matrix, rtol=1e-6)
    np.testing.assert_array_equal(saved.whole.layer_scores, generation.whole.layer_scores)
    for one, given in zip(saved, generation, strict=True):
        assert one.layer_scores.shape == (1, len(given.tokens))
        assert "layer" in one.notes[-1]
        assert (one.target, one.value, one.text) == (given.target, given.value, given.text)


# ---- The answer first ----------------------------------------------------------------------------


def test_it_opens_on_the_whole_answer_and_says_which_words_it_came_from(show):
    generation = written()
    shown = show(generation)
    assert shown.data("selection") == ""
    assert shown.page.locator(".written").inner_text() == "are on that table."
    scores = generation.whole.scores[: len(PROMPT)]
    sentence = shown.page.locator(".origin").inner_text()
    best = PROMPT[int(scores.argmax())]
    assert (
        f"the answer came most from \u201c\u2068{best}\u2069\u201d ({scores.max():+.2f})"
        in sentence
    )
    assert ("speaks most against it" in sentence) is bool(scores.min() < 0)
    np.testing.assert_allclose(shades(shown), scores, atol=0.006)
    assert shown.page.locator(".prompt .token.against").all_inner_texts() == [
        name for name, score in zip(PROMPT, scores, strict=True) if score < 0
    ]
    bars = numbers(shown.page.locator(".chart.sources svg").get_attribute("aria-label"))
    np.testing.assert_allclose(sorted(bars), sorted(scores), atol=0.006)
    *parts, together = numbers(shown.page.locator(".chart.parts svg").get_attribute("aria-label"))
    assert sum(parts) == pytest.approx(together, abs=0.03)
    assert together == pytest.approx(generation.whole.value, abs=0.006)
    own = f"the answer itself {generation.itself:+.2f}"
    assert own in shown.page.locator(".chart.parts svg").get_attribute("aria-label")


def test_it_says_what_speaks_most_against_the_answer(show):
    generation = written(seed=2)
    scores = generation.whole.scores[: len(PROMPT)]
    assert scores.min() < 0
    worst = PROMPT[int(scores.argmin())]
    sentence = show(generation).page.locator(".origin").inner_text()
    assert f"\u2068{worst}\u2069\u201d speaks most against it ({scores.min():+.2f})" in sentence


def test_the_messages_of_a_chat_go_by_their_roles(show):
    generation = written(roles=ROLES)
    shown = show(generation)
    assert shown.page.locator(".message .role").all_inner_texts() == ["system", "user"]
    assert shown.page.locator(".message .text").all_inner_texts() == [
        "Be brief .",
        "Where are the keys ?",
    ]
    said = shown.page.locator(".chart.parts svg").get_attribute("aria-label")
    sums = generation.by_unit("segments").whole
    for role in ("system", "user"):
        expected = next(
            score
            for name, score, special in zip(sums.tokens, sums.scores, sums.special, strict=True)
            if name == role and not special
        )
        assert f"{role} {expected:+.2f}" in said
    assert "chat template" in said


def test_the_words_before_what_was_left_out_add_up(show):
    generation = written(roles=ROLES)
    special = [i for i, mark in enumerate(generation.whole.special) if mark]
    rest = float(generation.whole.scores[special].sum())
    shown = show(
        replace(
            generation,
            explanations=[one.without_special_tokens() for one in generation],
            whole=generation.whole.without_special_tokens(),
            written=[
                own
                for own, mark in zip(generation.written, generation.whole.special, strict=True)
                if not mark
            ],
        )
    )
    said = shown.page.locator(".chart.parts svg").get_attribute("aria-label")
    assert f"tokens left out {rest:+.2f}" in said


def test_attention_has_no_sum_and_no_sign(show):
    generation = written(method="rollout")
    shown = show(generation)
    expected = generation.whole.scores[: len(PROMPT)]
    np.testing.assert_allclose(shades(shown), expected, rtol=6e-3)
    assert "together" not in shown.page.locator(".chart.parts svg").get_attribute("aria-label")
    assert shown.page.locator(".against").count() == 0


def test_one_source_far_above_the_others_leaves_them_their_colours(show):
    scale = [80, *[1] * (len(PROMPT) + 3)]
    shown = show(written(scale=scale))
    colours = shown.page.locator(".prompt .token").evaluate_all(
        "all => all.map(one => one.style.backgroundColor)"
    )
    # It looks as the one after it does; all others differ.
    assert len(set(colours)) == len(PROMPT) - 1
    assert "or more" in shown.page.locator(".prompt .legend").inner_text()
    assert "first token" in shown.page.locator(".origin").inner_text()


# ---- Choosing tokens -----------------------------------------------------------------------------


def test_pointing_at_a_token_previews_its_sources_until_the_pointer_leaves(show):
    generation = written()
    shown = show(generation)
    token(shown, 2).hover()
    settle(shown, "2-2")
    np.testing.assert_allclose(shades(shown), spanned(generation, (2, 2))[:6], atol=0.006)
    assert (
        "\u201c\u2068that\u2069\u201d came most from" in shown.page.locator(".origin").inner_text()
    )
    # What was already written is among its sources, and is shaded, too.
    assert token(shown, 1).evaluate("one => one.style.backgroundColor")
    assert not token(shown, 3).evaluate("one => one.style.backgroundColor")
    shown.page.mouse.move(2, 2)
    settle(shown, "")
    np.testing.assert_allclose(shades(shown), generation.whole.scores[:6], atol=0.006)


def test_a_token_is_chosen_by_a_click_and_more_with_shift_or_by_dragging(show):
    generation = written()
    shown = show(generation)
    token(shown, 1).click()
    shown.page.mouse.move(2, 2)
    settle(shown, "1-1")
    token(shown, 3).click(modifiers=["Shift"])
    shown.page.mouse.move(2, 2)
    settle(shown, "1-3")
    np.testing.assert_allclose(shades(shown), spanned(generation, (1, 3))[:6], atol=0.006)
    assert "on that table" in shown.page.locator(".origin").inner_text()
    selected = shown.page.locator(".written [aria-selected=true]").all_inner_texts()
    assert selected == ["on", "that", "table"]
    own = numbers(shown.page.locator(".chart.parts svg").get_attribute("aria-label"))
    assert own[-1] == pytest.approx(sum(one.value for one in generation[1:4]), abs=0.006)
    # From right to left.
    token(shown, 4).hover()
    shown.page.mouse.down()
    token(shown, 3).hover()
    token(shown, 2).hover()
    shown.page.mouse.up()
    shown.page.mouse.move(2, 2)
    settle(shown, "2-4")
    shown.page.get_by_role("button", name="Whole answer").click()
    settle(shown, "")
    assert shown.page.get_by_role("button", name="Whole answer").is_hidden()


def test_a_token_that_is_clicked_again_is_let_go(show):
    shown = show(written())
    token(shown, 1).click()
    shown.page.mouse.move(2, 2)
    settle(shown, "1-1")
    token(shown, 1).click()
    shown.page.mouse.move(2, 2)
    settle(shown, "")


def test_tokens_are_chosen_by_the_keyboard(show):
    shown = show(written())
    press = shown.page.keyboard.press
    shown.page.locator(".written [tabindex='0']").focus()
    press("ArrowRight")
    settle(shown, "1-1")  # as if pointed at
    press("Enter")
    press("ArrowRight")
    settle(shown, "2-2")
    shown.page.locator("[data-save=png]").focus()
    settle(shown, "1-1")  # which was chosen
    token(shown, 1).focus()
    press("Shift+ArrowRight")
    press("Shift+ArrowRight")
    settle(shown, "1-3")
    said = shown.page.locator("[role=status]").inner_text()
    assert said == shown.page.locator(".origin").inner_text()
    press("Shift+ArrowLeft")
    settle(shown, "1-2")
    press("Escape")
    settle(shown, "")
    press("End")
    settle(shown, "4-4")
    press("Control+a")
    press("Escape")
    settle(shown, "")


def test_a_chosen_span_is_copied_as_it_was_written(show):
    shown = show(written(), permissions=["clipboard-read", "clipboard-write"])
    token(shown, 1).click()
    token(shown, 3).click(modifiers=["Shift"])
    text = shown.page.evaluate(
        """() => {
          const data = new DataTransfer();
          const event = new ClipboardEvent("copy", { clipboardData: data, cancelable: true });
          document.querySelector(".written").dispatchEvent(event);
          return data.getData("text/plain");
        }"""
    )
    assert text == "on that table"


# ---- The matrix ----------------------------------------------------------------------------------


def test_a_row_of_the_matrix_is_chosen_by_a_click(show):
    shown = show(written())
    heat = shown.page.locator(".matrix-part [role=application]")
    heat.click(position={"x": 100, "y": 50})
    settle(shown, "2-2")
    heat.click(position={"x": 100, "y": 90}, modifiers=["Shift"])
    settle(shown, "2-4")
    heat.hover(position={"x": 100, "y": 30})
    tip = shown.page.locator(".tip")
    assert tip.inner_text().startswith("on from ")


def test_the_matrix_is_used_by_the_keyboard(show):
    generation = written()
    shown = show(generation)
    heat = shown.page.locator(".matrix-part [role=application]")
    heat.focus()
    said = shown.page.locator("[role=status]")
    press = shown.page.keyboard.press
    press("ArrowDown")
    settle(shown, "0-0")
    assert said.inner_text() == f"are from The: {generation.matrix[0, 0]:+.2f}"
    press("ArrowDown")
    press("ArrowRight")
    settle(shown, "1-1")
    assert said.inner_text() == f"on from keys: {generation.matrix[1, 1]:+.2f}"
    press("End")
    assert said.inner_text().endswith("not written yet")
    press("Shift+ArrowDown")
    settle(shown, "1-2")
    press("Shift+ArrowDown")
    settle(shown, "1-3")
    press("Shift+ArrowUp")
    settle(shown, "1-2")
    press("Escape")
    settle(shown, "")


# ---- Long prompts and answers --------------------------------------------------------------------


def test_a_long_prompt_is_shown_by_sentences_first(show):
    generation = long_prompt()
    shown = show(generation)
    by_sentence = generation.by_unit("sentences")
    usual = [
        i
        for i, (own, special) in enumerate(
            zip(by_sentence.written, by_sentence.whole.special, strict=True)
        )
        if not own and not special
    ]

    def told():
        found = shown.page.locator(".row:not(.aside) .number").all_text_contents()
        return [float(one) for one in found]

    np.testing.assert_allclose(told(), by_sentence.whole.scores[usual], atol=0.006)
    token(shown, 3).click()
    token(shown, 7).click(modifiers=["Shift"])
    shown.page.mouse.move(2, 2)
    settle(shown, "3-7")
    scores = spanned(by_sentence, (3, 7))[usual]
    np.testing.assert_allclose(told(), scores, atol=0.006)
    assert f"({scores.max():+.2f})" in shown.page.locator(".origin").inner_text()
    assert shown.page.locator(".top .number").first.inner_text() == (
        f"{scores[abs(scores).argmax()]:+.2f}"
    )
    # A sentence opens to show its tokens.
    row = shown.page.locator(".row:has(> button)").nth(1)
    row.locator("button").click()
    assert row.locator(".token").count() > 1


def test_200_tokens_after_8192_fit_into_10_megabytes_and_can_be_used(show):
    generation = long_prompt(8192, answer=200, layers=2)
    assert generation.matrix.shape[1] > 8192
    shown = show(generation)
    assert shown.path.stat().st_size < 10e6
    token(shown, 50).hover()
    settle(shown, "50-50")
    token(shown, 50).click()
    token(shown, 150).scroll_into_view_if_needed()
    token(shown, 150).click(modifiers=["Shift"])
    settle(shown, "50-150")
    heat = shown.page.locator(".matrix-part [role=application]")
    heat.focus()
    shown.page.keyboard.press("PageDown")
    shown.page.keyboard.press("End")
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 1100


def test_where_only_the_whole_was_explained_the_page_says_so(show):
    generation = written(roles=ROLES, each=False)
    shown = show(generation)
    assert "as a whole" in shown.page.locator(".hint").inner_text()
    assert shown.page.locator(".written").inner_text() == "are on that table."
    assert shown.page.locator(".matrix-part, [role=option]").count() == 0
    assert "came most from" in shown.page.locator(".origin").inner_text()


def test_nothing_written_is_said_on_the_page(show):
    empty = Generation(prompt="the", text="", explanations=(), whole=None, written=(), ended=True)
    shown = show(empty)
    assert "wrote nothing" in shown.page.locator("main").inner_text()


# ---- The address, and files ----------------------------------------------------------------------


def test_the_address_keeps_what_is_chosen(show):
    shown = show(written())
    assert "#" not in shown.page.url
    token(shown, 1).click()
    token(shown, 2).click(modifiers=["Shift"])
    shown.page.wait_for_function("() => location.hash === '#tokens=1-2'")
    shown.page.reload()
    settle(shown, "1-2")
    shown.page.evaluate("location.hash = 'tokens=4'")
    settle(shown, "4-4")
    shown.page.evaluate("location.hash = ''")
    settle(shown, "")


@pytest.mark.parametrize("hash", ["tokens=5", "tokens=3-1", "tokens=-1", "tokens=x", "%%&&=="])
def test_an_address_that_is_not_valid_shows_the_whole_answer(show, hash):
    shown = show(written())
    shown.page.goto(f"{shown.path.as_uri()}#{hash}")
    shown.page.reload()
    settle(shown, "")


def test_files_have_what_is_shown(show, tmp_path):
    generation = written(roles=ROLES)
    shown = show(generation)
    token(shown, 1).click()
    token(shown, 3).click(modifiers=["Shift"])
    shown.page.mouse.move(2, 2)
    settle(shown, "1-3")

    def saved(kind):
        with shown.page.expect_download() as download:
            shown.page.locator(f"[data-save={kind}]").click()
        path = tmp_path / f"saved.{kind}"
        download.value.save_as(path)
        return path

    assert Generation.load(saved("json")) == generation
    texts = [
        element.text
        for element in ET.parse(saved("svg")).getroot().iter()
        if element.tag.endswith("text")
    ]
    whole = " ".join(filter(None, texts))
    assert "on that table" in whole
    value = sum(one.value for one in generation[1:4])
    assert f"{value:+.2f}" in texts
    assert "user" in texts
    assert saved("png").read_bytes().startswith(b"\x89PNG")


# ---- What tokens may be --------------------------------------------------------------------------


def test_hostile_tokens_are_text_everywhere(show):
    generation = written(prompt=HOSTILE, answer=HOSTILE)
    shown = show(generation)
    for number in range(len(HOSTILE)):
        token(shown, number).focus()
        shown.page.keyboard.press("Enter")
        settle(shown, f"{number}-{number}")
    assert shown.page.evaluate("window.ran") is None
    assert shown.page.locator("main script, main img, main iframe").count() == 0
    assert "<script>window.ran" in shown.page.locator(".prompt").inner_text()
    html = page(generation)
    assert "http://" not in html
    assert html.count("</script>") == 2
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 1100


def test_tokens_of_parts_of_characters_are_one_to_choose(show):
    answer = (" one", "\ufffd", "\ufffd", "!")
    made = written(answer=answer)
    text = made.whole.text[: len(made.prompt)] + " one\U0001f600!"
    shown = show(replace(made, text=text[len(made.prompt) :]))
    assert shown.page.locator(".written").inner_text() == "one\U0001f600!"
    token(shown, 1).click()
    shown.page.mouse.move(2, 2)
    settle(shown, "1-2")


def test_a_line_break_can_be_chosen_and_has_a_name(show):
    shown = show(written(answer=(" are", "\n", " on")))
    token(shown, 1).click()
    shown.page.mouse.move(2, 2)
    settle(shown, "1-1")
    assert "Of the prompt, a line break came" in shown.page.locator(".origin").inner_text()
    assert shown.page.locator(".written").inner_text() == "are\u21b5\n on"


def test_right_to_left_text_is_shown_from_right_to_left(show):
    words = ("مفاتيح", "الخزانة", "القديمة")
    shown = show(written(prompt=words, answer=(" على", " الطاولة")))
    for part in (".written", ".prompt .text"):
        assert shown.page.locator(part).evaluate("one => getComputedStyle(one).direction") == "rtl"
    shown.page.locator(".written [tabindex='0']").focus()
    shown.page.keyboard.press("ArrowLeft")
    settle(shown, "1-1")


# ---- Images and sounds ---------------------------------------------------------------------------


def test_an_image_has_its_map_beside_the_text(show):
    generation = Explainer(*build("LLaVA")).generate((photo(), QUESTION), max_new_tokens=3)
    whole = generation.whole
    shown = show(generation)
    patches = shown.page.locator(".prompt .patch")
    assert patches.count() == len(whole.patches) == 16
    assert shown.page.locator(".prompt canvas.picture").count() == 1
    assert "what is in the image" in shown.page.locator(".prompt .text").inner_text()
    said = patches.evaluate_all("all => all.map(one => one.title)")
    names = [whole.tokens[i] for i in whole.patches]
    token(shown, 1).click()
    shown.page.mouse.move(2, 2)
    settle(shown, "1-1")
    chosen = patches.evaluate_all("all => all.map(one => one.title)")
    for titles, scores in ((said, whole.scores), (chosen, generation[1].scores)):
        assert [title.partition(": ")[0] for title in titles] == names
        found = [float(title.partition(": ")[2]) for title in titles]
        np.testing.assert_allclose(found, scores[list(whole.patches)], atol=0.006)
    parts = shown.page.locator(".chart.parts svg").get_attribute("aria-label")
    assert f"the image {generation[1].scores[list(whole.patches)].sum():+.2f}" in parts
    assert Generation.from_dict(computed(generation)["saved"]) == generation


@pytest.mark.parametrize("method", ["contribution", "rollout"])
def test_a_sound_is_shown_by_its_stretches(show, method):
    explainer = Explainer(whisper(), processor())
    generation = explainer.generate(noise(0.57), max_new_tokens=4, method=method)
    whole = generation.whole
    heard = [i for i, name in enumerate(whole.tokens) if re.match(r"\d.* s$", name)]
    shown = show(generation)
    stretches = shown.page.locator(".sound .stretch")
    assert stretches.count() == len(heard) == 6
    token(shown, 2).click()
    shown.page.mouse.move(2, 2)
    settle(shown, "2-2")
    titles = stretches.evaluate_all("all => all.map(one => one.title)")
    for title, column in zip(titles, heard, strict=True):
        name, _, score = title.rpartition(": ")
        assert name == whole.tokens[column]
        assert float(score) == pytest.approx(generation[2].scores[column], abs=0.006)
    assert shown.page.locator(".prompt .text .token:not(.special)").count() == 0
    parts = shown.page.locator(".chart.parts svg").get_attribute("aria-label")
    assert "the sound" in parts


# ---- For everybody -------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["chat", "long", "attention"])
def test_axe_finds_nothing_to_complain_about(show, scheme, kind):
    from axe_playwright_python.sync_playwright import Axe

    made = {
        "chat": lambda: written(roles=ROLES),
        "long": long_prompt,
        "attention": lambda: written(method="rollout"),
    }[kind]()
    shown = show(made, color_scheme=scheme)
    token(shown, 1).click()
    token(shown, 2).click(modifiers=["Shift"])
    found = Axe().run(shown.page).response["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []


@pytest.mark.parametrize("width", [320, 1600])
def test_it_fits_into_every_window(show, width):
    shown = show(written(roles=ROLES), width=width)
    token(shown, 2).click()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_printed_page_is_light_and_whole(show):
    shown = show(long_prompt(answer=60), color_scheme="dark")
    shown.page.emulate_media(media="print")
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert shown.page.locator("main").get_attribute("data-theme") == "light"
    heat = shown.page.locator(".matrix-part .heat")
    assert heat.evaluate("one => one.scrollHeight - one.clientHeight") == 0
    assert heat.locator("canvas").evaluate("one => one.clientHeight") == 60 * 20


def test_it_can_be_read_without_scripts(show):
    generation = written(roles=ROLES)
    shown = show(generation, scripts=False)
    text = shown.page.locator("main").inner_text()
    assert "are on that table." in text
    assert "the answer itself" in text
    assert f"together {generation.whole.value:+.2f}" in text
    best, score = generation.top(1)[0]
    assert re.search(rf"{re.escape(best)}.*\s(system|user)\s+{re.escape(f'{score:+.2f}')}", text)
    assert shown.page.locator("main ol li").count() == 5
    assert shown.page.locator("[style]").count() == 0
