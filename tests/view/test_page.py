"""The page, in a real browser: what it shows, how it is used, and what it does not let happen."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from attnflow import (
    AttentionGraph,
    Explanation,
    attention_flow,
    attention_rollout,
    head_flow,
    head_rollout,
    min_cut,
    raw_attention,
    saturation,
)
from attnflow.cli import main
from attnflow.flow import flow_bound
from attnflow.trace import Trace
from attnflow.view.page import page, script
from tests.support import ROOT
from tests.support.browser import Shown
from tests.support.pages import HOSTILE, attention_of, contribute, explain, translate

JS = ROOT / "tests" / "js"


# ---- What it shows -------------------------------------------------------------------------------


def test_the_text_is_shaded_and_the_answer_is_there(show):
    shown = show(explain())
    text = shown.page.locator(".text")
    assert text.inner_text() == "[CLS] The keys to the cabinet [SEP]"
    assert "information" in shown.page.locator("h1").inner_text()
    assert "plural" in shown.page.locator(".subtitle").inner_text()
    assert "93 %" in shown.page.locator(".subtitle").inner_text()
    about = shown.page.locator(".about").inner_text()
    for part in ("models/tiny", "classification", "attention", "A note <b>in</b> words."):
        assert part in about
    how = shown.page.locator(".how p")
    assert how.count() == 1
    assert "Rollout and flow" in how.inner_text()
    scores = explain().scores
    colours = [
        token.evaluate("element => getComputedStyle(element).backgroundColor")
        for token in text.locator(".token:not(.special)").all()
    ]
    # Lighter colours for lower scores.
    light = [sum(int(part) for part in re.findall(r"\d+", colour)) for colour in colours]
    assert np.argsort(light).tolist() == np.argsort(-scores[1:-1]).tolist()


def test_the_numbers_are_those_of_python_for_every_method_layer_and_position(show):
    explanation = explain()
    graph = explanation.trace.graph()
    expected = np.stack([raw_attention(graph), attention_rollout(graph), attention_flow(graph)])
    shown = show(explanation)
    for position, layer in ((0, 4), (5, 4), (5, 3), (2, 1)):
        shown.page.locator(f".token[data-token='{position}']").click()
        shown.page.locator(".controls input[type=range]").fill(str(layer))
        shown.settle(position=position, layer=layer)
        found = shown.table()
        np.testing.assert_allclose(found.T, expected[:, layer - 1, position], rtol=6e-3, atol=1e-5)


def run_node(*arguments, given=None):
    """Run JavaScript, and return what it prints."""
    node = shutil.which("node")
    if node is None:
        pytest.fail("the tests of the page need node, 20 or later: run apt-get install nodejs")
    result = subprocess.run(
        [node, *map(str, arguments)], input=given, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def computed(explanation):
    """Return what the page computes of an explanation, for each position and each of its layers."""
    given = json.dumps(explanation.to_dict(trace=True))
    return json.loads(run_node(JS / "scores.mjs", given=given))


# More than 32 tokens, or 64, take more than one word of bits in the page's solver.
@pytest.mark.parametrize(("layers", "tokens"), [(5, 9), (4, 33), (3, 70)])
def test_javascript_and_python_agree_on_every_number(layers, tokens):
    attention = attention_of(layers, tokens, 3)
    explanation = explain([f"t{i}" for i in range(tokens)], attention=attention)
    found = {
        name: np.array(values).swapaxes(0, 1) for name, values in computed(explanation).items()
    }
    graph = explanation.trace.graph()
    np.testing.assert_allclose(found["raw"], raw_attention(graph), atol=1e-6)
    np.testing.assert_allclose(found["rollout"], attention_rollout(graph), atol=1e-6)
    flow = attention_flow(graph)
    np.testing.assert_allclose(found["flow"], flow, atol=1e-6)
    np.testing.assert_allclose(found["cuts"], np.stack([flow, flow], axis=-1), atol=1e-6)
    np.testing.assert_allclose(found["saturation"].mean(axis=1), saturation(graph), atol=1e-6)


@pytest.mark.parametrize("relative", [False, True])
def test_javascript_and_python_agree_on_an_encoder_decoder(relative):
    explanation = translate(relative=relative)
    found = computed(explanation)
    graph = explanation.trace.graph()
    levels = {"source": [1, 2, 3], "target": [5, 7]}
    expected = {"rollout": attention_rollout(graph), "flow": attention_flow(graph)}
    bound = flow_bound(graph, range(7))
    attention = graph.attention
    if relative:
        even = explanation.trace.uniform()
        divided = {"rollout": attention_rollout(even), "flow": attention_flow(even)}
    for position in range(7):
        seen = np.arange(7) < 4 if position < 4 else np.arange(7) <= position
        for i, level in enumerate(levels["source" if position < 4 else "target"]):
            raw = attention[level - 1, position]
            if position >= 4:
                raw = (raw + attention[level - 2, position]) / 2
            np.testing.assert_allclose(found["raw"][position][i], raw, atol=1e-6)
            flow = expected["flow"][level - 1, position]
            for method, scores in expected.items():
                row = np.where(seen, scores[level - 1, position], 0.0)
                if relative:
                    row[seen] /= divided[method][level - 1, position][seen]
                    row /= row.sum()
                np.testing.assert_allclose(found[method][position][i], row, atol=1e-6)
            full = (flow == bound[level - 1, position]).mean()
            assert found["saturation"][position][i] == pytest.approx(full)
            for token in range(7):
                cut = found["cuts"][position][i][token]
                if not seen[token]:
                    assert cut is None
                    continue
                assert cut[0] == cut[1] == pytest.approx(flow[token], abs=1e-6)
                assert min_cut(graph, level, position, token).value == pytest.approx(
                    cut[0], abs=1e-6
                )


def test_the_javascript_modules_pass_their_own_tests():
    run_node("--test", *sorted(JS.glob("*.test.mjs")))


def test_what_limits_a_flow_is_said_with_the_number_of_the_minimum_cut(show):
    explanation = explain()
    shown = show(explanation)
    for token in (2, 5):
        shown.page.locator(f".graph .node[data-layer='0'][data-position='{token}']").click()
        shown.settle(token=token, sink=token)
        cut = min_cut(explanation.trace.graph(), 4, 0, token)
        sentence = shown.page.locator(".cut").inner_text()
        (said,) = re.findall(r"At most ([\d.]*\d)", sentence)
        assert float(said) == pytest.approx(cut.value, rel=5e-3)
        assert explanation.tokens[token] in sentence
        assert "limits" in sentence
        dashed = shown.page.locator(".graph path[stroke-dasharray='5 3']").count()
        assert dashed > 0


def test_saturation_is_said_in_words(show):
    even = np.full((6, 5, 5), 0.2)
    shown = show(explain(("a", "b", "c", "d", "e"), attention=even, special=[False] * 5))
    assert "no longer" in shown.page.locator(".saturation").inner_text()
    shown.page.locator(".controls input[type=range]").fill("1")
    shown.settle(layer=1)
    assert "still" in shown.page.locator(".saturation").inner_text()


def test_heads_are_shown_one_by_one_where_they_were_kept(show):
    attention = attention_of(3, 7, 5, heads=2)
    shown = show(explain(attention=attention, keep_heads=True))
    shown.page.locator("select").select_option("1")
    shown.settle(head=1)
    found = shown.table()
    expected = [
        attention[2, 1, 0],
        head_rollout(attention, 3, 1, positions=[0])[0],
        head_flow(attention, 3, 1, positions=[0])[0],
    ]
    np.testing.assert_allclose(found.T, expected, rtol=6e-3, atol=2e-4)
    assert "head 1" in shown.page.locator(".subtitle").inner_text()


def test_a_causal_model_is_measured_against_uniform_attention(show):
    tokens = ("The", "keys", "to", "the", "cabinet")
    attention = attention_of(3, 5, 2, causal=True)
    graph = AttentionGraph(attention)
    even = np.tril(np.ones((5, 5)))
    even = AttentionGraph(np.stack([even / even.sum(axis=1, keepdims=True)] * 3))
    mask = np.tile(np.arange(-4, 5) <= 0, (3, 1))
    position = 3
    ratios = []
    for method in (attention_rollout, attention_flow):
        ratio = method(graph)[2, position, :4] / method(even)[2, position, :4]
        ratios.append(ratio / ratio.sum())
    explanation = explain(tokens, attention=attention, mask=mask, special=[False] * 5)
    shown = show(explanation)
    shown.page.locator(f".token[data-token='{position}']").click()
    shown.settle(position=position)
    found = shown.table()
    np.testing.assert_allclose(found[:4, 1:].T, ratios, rtol=6e-3)
    assert (found[4] == 0).all()
    assert shown.page.locator(".unseen-token").inner_text() == "cabinet"
    assert "uniform attention" in shown.page.locator(".finding").inner_text()


def test_without_a_trace_the_page_shows_what_there_is(show):
    explanation = explain(method="rollout", trace=False)
    shown = show(explanation)
    assert "not saved" in shown.page.locator(".layers").inner_text()
    assert shown.page.locator("[data-method-choice]:not([disabled])").count() == 1
    np.testing.assert_allclose(shown.table()[:, 0], explanation.scores, rtol=6e-3, atol=1e-5)
    shown.page.locator(".controls input[type=range]").fill("2")
    shown.settle(layer=2)
    np.testing.assert_allclose(shown.table()[:, 0], explanation.layer_scores[1], rtol=6e-3)
    shown.page.locator(".token").nth(2).click()
    assert shown.data("position") == "0"


def test_the_scores_of_an_image_lie_over_its_picture(show, tmp_path):
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (60, 30), (200, 40, 40)).save(file, "PNG")
    tokens = ("[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2")
    explanation = explain(tokens, grid=(2, 3), method="rollout", picture=file.getvalue())
    shown = show(explanation)
    cells = shown.page.locator(".patches.on-picture").bounding_box()
    assert cells["width"] / cells["height"] == pytest.approx(2, rel=0.05)
    assert shown.page.locator(".picture").bounding_box()["width"] == pytest.approx(
        cells["width"], abs=2
    )
    colour = shown.page.locator(".plain-picture").evaluate(
        "canvas => Array.from(canvas.getContext('2d').getImageData(5, 5, 1, 1).data)"
    )
    assert colour == [200, 40, 40, 255]
    # The higher the score, the less is seen of the picture.
    covers = [
        float(re.findall(r"[\d.]+", patch)[3])
        for patch in shown.page.locator(".patch").evaluate_all(
            "all => all.map(element => getComputedStyle(element).backgroundColor)"
        )
    ]
    assert np.argsort(covers).tolist() == np.argsort(explanation.scores[1:]).tolist()
    assert "patches" in shown.page.locator(".finding").inner_text()
    with shown.page.expect_download() as download:
        shown.page.locator("[data-save=json]").click()
    download.value.save_as(tmp_path / "again.json")
    assert Explanation.load(tmp_path / "again.json").picture == explanation.picture


def test_a_picture_that_cannot_be_read_is_left_out(show):
    tokens = ("[CLS]", "0,0", "0,1")
    shown = show(explain(tokens, grid=(1, 2), picture=b"\xff\xd8\xff"))
    assert shown.page.locator(".patch").count() == 2
    assert shown.page.locator(".on-picture").count() == 0


@pytest.mark.parametrize("trace", [True, False])
def test_an_image_is_shown_as_the_grid_of_its_patches(show, trace):
    tokens = ("[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2")
    shown = show(explain(tokens, grid=(2, 3), trace=trace))
    patches = shown.page.locator(".patch")
    assert patches.count() == 6
    boxes = [patch.bounding_box() for patch in patches.all()]
    assert boxes[0]["y"] == boxes[2]["y"] < boxes[3]["y"]
    assert boxes[0]["x"] == boxes[3]["x"] < boxes[1]["x"]
    if trace:
        patches.nth(4).click()
        shown.settle(position=5)
        assert "1,1" in shown.page.locator("h1").inner_text()


def test_an_encoder_decoder_has_its_layered_graph(show):
    explanation = translate()
    shown = show(explanation)
    assert shown.page.locator(".text").inner_text() == "the old house </s> → das haus"
    assert "decoder layer 2 of 2" in shown.page.locator(".subtitle").inner_text()
    columns = shown.page.locator(".graph text").all_text_contents()
    assert columns[:6] == ["input", "E1", "E2", "E3", "D1", "D2"]
    np.testing.assert_allclose(shown.table()[:, 2], explanation.scores, rtol=6e-3, atol=1e-5)
    # A source position has the encoder's layers, of which there is one more.
    shown.page.locator(".token[data-token='1']").click()
    shown.settle(position=1, layer=2)
    assert "encoder layer 2 of 3" in shown.page.locator(".subtitle").inner_text()
    columns = shown.page.locator(".graph text").all_text_contents()
    assert columns[:4] == ["input", "E1", "E2", "E3"]
    shown.page.locator(".controls input[type=range]").fill("3")
    shown.settle(layer=3)
    graph = explanation.trace.graph()
    np.testing.assert_allclose(
        shown.table()[:, 1], attention_rollout(graph)[2, 1], rtol=6e-3, atol=1e-5
    )
    # What a target token sees of the source, through its own node after self-attention.
    shown.page.locator(".token[data-token='6']").click()
    shown.settle(position=6, layer=2)
    shown.page.locator(".graph .node[data-layer='0'][data-position='2']").click()
    shown.settle(token=2, sink=2)
    sentence = shown.page.locator(".cut").inner_text()
    (said,) = re.findall(r"At most ([\d.]*\d)", sentence)
    assert float(said) == pytest.approx(min_cut(graph, 7, 6, 2).value, rel=5e-3)
    shown.page.locator(".graph .node[data-layer='4'][data-position='5']").click()
    shown.settle(layer=1, position=5)
    # From the position after layer 1, to the left: self-attention, then nothing but the input.
    shown.page.locator(".graph .node[data-layer='5'][data-position='5']").focus()
    for level in ("4", "0"):
        shown.page.keyboard.press("ArrowLeft")
        assert shown.page.evaluate("document.activeElement.dataset.layer") == level


# ---- How it is used ------------------------------------------------------------------------------


def test_everything_can_be_done_with_the_keyboard(show):
    shown = show(explain())
    keyboard = shown.page.keyboard
    shown.page.locator(".token[aria-checked=true]").focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        keyboard.press(key)
    shown.settle(position=2)
    keyboard.press("End")
    keyboard.press(" ")
    shown.settle(position=6)
    shown.page.locator("[data-method-choice=flow]").focus()
    keyboard.press("ArrowLeft")
    shown.settle(method="rollout")
    shown.page.locator(".controls input[type=range]").focus()
    keyboard.press("ArrowLeft")
    shown.settle(layer=3)
    shown.page.locator(".heat").focus()
    for key in ("Home", "ArrowDown", "ArrowRight"):
        keyboard.press(key)
    shown.settle(layer=4, token=1)
    assert re.fullmatch(
        r"The, Rollout, layer 4: [\d.e-]+", shown.page.locator("p.unseen[role=status]").inner_text()
    )
    for _ in range(4):
        keyboard.press("ArrowLeft")
    shown.settle(method="raw", layer=4)
    # The graph is drawn a frame later than the rest.
    shown.page.locator(".graph .node[tabindex='0'][data-layer='4'][data-position='6']").focus()
    for key in ("ArrowLeft", "ArrowUp", "Enter"):
        keyboard.press(key)
    shown.settle(layer=3, position=5)
    focused = shown.page.evaluate("document.activeElement.getAttribute('data-position')")
    assert focused == "5"


def test_tab_reaches_every_part_in_order(show):
    shown = show(explain())
    met = []
    for _ in range(30):
        shown.page.keyboard.press("Tab")
        met.append(
            shown.page.evaluate(
                "document.activeElement.className.baseVal || document.activeElement.className || "
                "document.activeElement.tagName"
            )
        )
        if met[-1] == "SUMMARY":
            break
    parts = ["BUTTON", "INPUT", "token", "heat", "node", "SUMMARY"]
    first = [next(i for i, name in enumerate(met) if name.split(" ")[0] == part) for part in parts]
    assert first == sorted(first)


def test_pointing_at_a_cell_and_at_an_edge_gives_the_number(show):
    explanation = explain(method="rollout")
    shown = show(explanation)
    heat = shown.page.locator(".heat")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    expected = attention_rollout(explanation.trace.graph())[:, 0]
    tip = shown.page.locator(".tip")
    seen = set()
    for x in range(int(box["x"]) + 60, int(box["x"] + box["width"]), 30):
        shown.page.mouse.move(x, box["y"] + 2.5 * 22)
        if tip.is_visible() and "Rollout" in tip.inner_text():
            token, layer, score = re.fullmatch(
                r"(.*)\nRollout, layer (\d+): (.*)", tip.inner_text()
            ).groups()
            assert token == "keys"
            assert float(score) == pytest.approx(expected[int(layer) - 1, 2], rel=6e-3)
            seen.add(int(layer))
    assert seen == {1, 2, 3, 4}
    shown.page.locator(".graph").scroll_into_view_if_needed()
    node = shown.page.locator(".graph .node[data-layer='4'][data-position='0']").bounding_box()
    below = shown.page.locator(".graph .node[data-layer='3'][data-position='0']").bounding_box()
    middle = node["y"] + node["height"] / 2
    shown.page.mouse.move((node["x"] + below["x"]) / 2 + 6, middle)
    weight = explanation.trace.graph().capacities[3, 0, 0]
    lines = tip.inner_text().split("\n")
    assert lines[0] == "[CLS] (layer 3) → [CLS] (layer 4)"
    assert lines[1] == f"share {weight:.3f}, edge weight {weight:.3f}"
    shown.page.mouse.move(2, 2)
    assert not tip.is_visible()


def test_a_click_in_the_heat_map_chooses_method_layer_and_token(show):
    shown = show(explain())
    shown.page.locator(".heat").scroll_into_view_if_needed()
    box = shown.page.locator(".heat").bounding_box()
    for x in range(int(box["x"]) + 60, int(box["x"] + box["width"]), 12):
        shown.page.mouse.click(x, box["y"] + 5.5 * 22)
        if shown.data("method") == "raw":
            break
    assert (shown.data("method"), shown.data("token")) == ("raw", "5")
    assert shown.page.locator("[data-method-choice=raw]").get_attribute("aria-checked") == "true"


def test_a_click_on_a_node_traces_what_reaches_it(show):
    shown = show(explain())
    shown.page.locator(".graph .node[data-layer='2'][data-position='3']").click()
    shown.settle(layer=2, position=3)
    assert "“\u2068to\u2069”" in shown.page.locator("h1").inner_text()


def test_each_method_can_be_switched_off_and_on(show):
    shown = show(explain())
    assert shown.page.locator(".card").count() == 3
    shown.page.locator("[data-show=raw]").uncheck()
    assert shown.page.locator(".card h3").all_inner_texts() == [
        "Attention rollout",
        "Attention flow",
    ]
    shown.page.locator("[data-show=raw]").check()
    assert shown.page.locator(".card").count() == 3


def test_special_tokens_join_the_scale_when_asked_to(show):
    shown = show(explain())
    assert "special tokens" in shown.page.locator(".legend").inner_text()
    shown.page.get_by_label("Special tokens in the scale").check()
    assert "special tokens" not in shown.page.locator(".legend").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_one_is_chosen(show, scheme):
    shown = show(explain(), color_scheme=scheme)
    background = "element => getComputedStyle(element).backgroundColor"
    paper = {"light": "rgb(251, 250, 248)", "dark": "rgb(23, 24, 27)"}
    main_part = shown.page.locator("main")
    assert main_part.evaluate(background) == paper[scheme]
    other = {"light": "dark", "dark": "light"}[scheme]
    shown.page.locator(f"[data-theme-choice={other}]").click()
    assert main_part.evaluate(background) == paper[other]
    shown.page.locator("[data-theme-choice=auto]").click()
    assert main_part.evaluate(background) == paper[scheme]


def test_png_svg_and_json_can_be_saved(show, tmp_path):
    explanation = explain(("[CLS]", *HOSTILE, "[SEP]"))
    shown = show(explanation)
    shown.page.locator("main:not([data-cut=''])").wait_for()
    saved = {}
    for ending in ("png", "svg", "json"):
        with shown.page.expect_download() as download:
            shown.page.locator(f"[data-save={ending}]").click()
        saved[ending] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[ending])
        assert saved[ending].name == f"attnflow.{ending}"
    assert saved["png"].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert saved["png"].stat().st_size > 20_000
    drawing = ET.parse(saved["svg"]).getroot()
    names = {element.tag.rpartition("}")[2] for element in drawing.iter()}
    assert names == {"svg", "rect", "path", "circle", "text"}
    text = "\n".join(element.text or "" for element in drawing.iter())
    assert "&lt;" in text
    assert "</script>" in text
    again = Explanation.load(saved["json"])
    assert again == explanation
    np.testing.assert_array_equal(again.trace.weights, explanation.trace.weights)


def test_a_page_is_printed_whole_and_in_light_colours(show):
    tokens = [f"word{i}" for i in range(60)]
    shown = show(explain(tokens, layers=3), color_scheme="dark")
    assert shown.page.locator(".heat-space canvas").bounding_box()["height"] < 60 * 22
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert shown.page.locator(".heat-space canvas").bounding_box()["height"] == 60 * 22
    paper = shown.page.locator("main").evaluate(
        "element => getComputedStyle(element).backgroundColor"
    )
    assert paper == "rgb(251, 250, 248)"
    shown.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert shown.page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("width", [320, 600])
def test_nothing_sticks_out_of_a_narrow_screen(show, width):
    shown = show(explain(("[CLS]", "x" * 10_000, *["word"] * 30, "[SEP]"), layers=12), width=width)
    for method in ("raw", "rollout", "flow"):
        shown.page.locator(f"[data-method-choice={method}]").click()
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= width


def test_arabic_runs_from_right_to_left_and_arrow_keys_with_it(show):
    shown = show(explain(("[CLS]", "مفاتيح", "الخزانة", "هنا", "[SEP]")))
    text = shown.page.locator(".text")
    assert text.evaluate("element => getComputedStyle(element).direction") == "rtl"
    first, second = (text.locator(f"[data-token='{i}']").bounding_box() for i in (1, 2))
    assert first["x"] > second["x"]
    text.locator("[aria-checked=true]").focus()
    shown.page.keyboard.press("ArrowLeft")
    shown.page.keyboard.press("Enter")
    shown.settle(position=1)


def test_chinese_is_shown_character_by_character(show):
    shown = show(explain(("机", "の", "上", "鍵"), special=[False] * 4))
    assert shown.page.locator(".token").all_inner_texts() == ["机", "の", "上", "鍵"]


# ---- What it does not let happen -----------------------------------------------------------------


def test_hostile_tokens_are_text_everywhere(show):
    shown = show(explain(("[CLS]", *HOSTILE, "[SEP]")))
    texts = [token.text_content() for token in shown.page.locator(".token").all()]
    assert texts[1:7] == list(HOSTILE[:6])
    assert texts[7] == "␀␇␛[31m"
    assert "\u202e" not in texts[8]
    assert texts[-3] == HOSTILE[-2]
    assert texts[-2] == "x" * 10_000
    shown.page.locator("summary").click()
    for method in ("raw", "rollout", "flow"):
        shown.page.locator(f"[data-method-choice={method}]").click()
    for token in (1, 2, len(HOSTILE)):
        shown.page.locator(f".token[data-token='{token}']").click()
        shown.page.locator(f".graph .node[data-layer='0'][data-position='{token}']").hover()
    shown.settle(position=len(HOSTILE))
    assert shown.page.evaluate("window.ran") is None
    assert shown.page.locator("main script, main img, main iframe, main b").count() == 0
    assert shown.page.locator("script").count() == 2


def test_the_pages_policy_allows_no_script_but_its_own(show):
    html = page(explain())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    shown = show(explain())
    shown.page.evaluate(
        "() => { const script = document.createElement('script');"
        "script.textContent = 'window.ran = 1'; document.body.append(script); }"
    )
    assert shown.page.evaluate("window.ran") is None
    # The browser says that it refused.
    assert any("Content Security Policy" in text for text in shown.complaints)
    shown.complaints.clear()


def test_a_page_has_no_address_and_no_handler_in_it():
    html = page(explain(("[CLS]", *HOSTILE, "[SEP]")))
    assert "http://" not in html
    assert "https://" not in html
    assert not re.search(r"<[^>]*\son\w+=", html.partition('<script type="application/json"')[0])
    assert html.count("</script>") == 2


def test_what_it_says_can_be_read_without_scripts(show):
    shown = show(explain(("[CLS]", *HOSTILE[:5], "[SEP]")), scripts=False)
    text = shown.page.locator("main").inner_text()
    assert "Attention flow" in text
    assert "</script>" in text
    assert re.search("page.*scripts", text)


@pytest.mark.parametrize(("scheme", "method"), [("light", "flow"), ("dark", "raw")])
def test_axe_finds_nothing_to_complain_about(show, scheme, method):
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        pytest.fail("this test needs axe: run pip install axe-playwright-python")
    shown = show(
        explain(attention=attention_of(3, 7, 1, heads=2), keep_heads=True), color_scheme=scheme
    )
    shown.page.locator(f"[data-method-choice={method}]").click()
    shown.page.locator("summary").click()
    result = Axe().run(shown.page)
    found = [
        (violation["id"], [node["html"][:200] for node in violation["nodes"]])
        for violation in result.response["violations"]
    ]
    assert found == []


def test_512_tokens_and_12_layers_fit_into_8_megabytes_and_can_be_used(show):
    tokens = [f"word{i}" for i in range(512)]
    attention = attention_of(12, 512).astype(np.float32)
    scores = np.zeros((12, 512))
    explanation = explain(
        tokens,
        attention=attention[:1],
        special=[False] * 512,
        method="raw",
        layer=12,
        layer_scores=scores,
        scores=scores[-1],
        trace=False,
    )
    kept = Trace.of(
        AttentionGraph(attention),
        tokens=tokens,
        spans=explanation.spans,
        special=explanation.special,
    )
    given = dict(vars(explanation))
    explanation = Explanation(**{**given, "trace": kept})
    shown = show_without_waiting(show, explanation)
    assert shown.path.stat().st_size < 8_000_000
    shown.page.locator("[data-method-choice=rollout]").click()
    shown.page.locator(".token[data-token='300']").click()
    shown.page.locator("main[data-position='300'][data-method=rollout]").wait_for()
    shown.page.locator(".heat").focus()
    shown.page.keyboard.press("End")
    assert shown.data("token") == "511"
    assert shown.page.locator(".heat").evaluate("element => element.scrollTop") > 9000
    words = shown.page.locator(".layers").inner_text()
    assert "482" in words
    expected = attention_rollout(kept.graph(), positions=[300])[-1, 0]
    found = shown.page.locator(".token[data-token='42']").get_attribute("aria-label")
    assert float(found.rpartition(": ")[2]) == pytest.approx(expected[42], rel=0.06)


def show_without_waiting(show, explanation):
    """Open a page whose flows take a while."""
    ready = Shown.ready
    Shown.ready = lambda self: self
    try:
        shown = show(explanation)
    finally:
        Shown.ready = ready
    shown.page.locator(".graph svg").wait_for()
    return shown


# ---- One script for other places -----------------------------------------------------------------


def test_two_pages_in_one_document_do_not_know_of_each_other(browser):
    from attnflow.view.page import data, style

    with browser.new_context() as context:
        page = context.new_page()
        page.set_content("<div id=a></div><div id=b></div>")
        page.add_style_tag(content=style())
        page.evaluate(
            "async (script) => { const file = new Blob([script], { type: 'text/javascript' });"
            "window.mount = (await import(URL.createObjectURL(file))).mount; }",
            script(),
        )
        page.evaluate(
            """async (data) => {
                const states = (window.states = []);
                const options = { state: { method: "raw", layer: 2 }, theme: "dark",
                                  onChange: (state) => states.push(state) };
                window.a = await mount(document.getElementById("a"), data, options);
                window.b = await mount(document.getElementById("b"), data);
            }""",
            data(explain()),
        )
        assert page.evaluate("[a.state.method, a.state.layer, b.state.method]") == [
            "raw",
            2,
            "flow",
        ]
        page.locator("#b [data-method-choice=rollout]").click()
        page.evaluate("a.set({ layer: 3, position: 99, method: 'none' })")
        assert page.evaluate("[a.state.method, a.state.layer, a.state.position]") == ["raw", 3, 0]
        assert page.evaluate("b.state.method") == "rollout"
        assert page.evaluate("states.at(-1).layer") == 3
        page.evaluate("a.destroy()")
        assert page.locator("#a").inner_html() == ""
        assert page.locator("#b .graph svg").count() == 1


# ---- attnflow view -------------------------------------------------------------------------------


def test_view_makes_the_page_of_a_saved_explanation(tmp_path, capsys):
    explanation = explain()
    explanation.save(tmp_path / "keys.json")
    output = tmp_path / "keys.html"
    assert main(["view", str(tmp_path / "keys.json"), "--output", str(output), "--no-open"]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert output.read_text(encoding="utf-8") == explanation.to_html()


def test_view_opens_a_page_in_the_browser_if_there_is_one(tmp_path, capsys, monkeypatch):
    explain().save(tmp_path / "keys.json")
    opened = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    assert main(["view", str(tmp_path / "keys.json")]) == 0
    written = Path(capsys.readouterr().out.strip())
    assert opened == [written.as_uri()]
    assert written.read_text(encoding="utf-8").startswith("<!doctype html>")
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    assert main(["view", str(tmp_path / "keys.json")]) == 0
    assert "browser" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.json"], "No such file"),
        (["keys.csv"], r"\.json"),
        (["broken.json"], "explanation"),
        (["keys.json", "--output", "keys.pdf"], r"--output.*\.html"),
        (["keys.json", "--output", "no/keys.html"], "folder"),
    ],
)
def test_view_says_what_is_wrong(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    explain().save(tmp_path / "keys.json")
    (tmp_path / "broken.json").write_text("{}")
    assert main(["view", *arguments, "--no-open"]) == 1
    assert re.search(message, capsys.readouterr().err)


# ---- Contributions -------------------------------------------------------------------------------


def contributions(shown):
    """Return the words, signs and colours of the text that contributions shade."""
    return shown.page.locator(".contributed .token").evaluate_all(
        "tokens => tokens.map(token => [token.textContent, token.title, "
        "getComputedStyle(token).textDecorationLine, getComputedStyle(token).backgroundColor])"
    )


def test_contributions_come_first_with_the_answer_their_signs_and_the_check(show):
    explanation = contribute()
    shown = show(explanation)
    page = shown.page
    assert page.locator("h1").all_inner_texts() == ["Plural, not singular"]
    assert page.locator(".kicker").inner_text() == "The model answers"
    gist = page.locator(".gist").inner_text()
    assert gist.startswith("'keys' speaks most for it (+2.00 of +1.75 in all)")
    assert page.locator(".verdict").inner_text() == f"Check: {explanation.check.summary}"
    assert "93 %" in page.locator(".contribution .subtitle").inner_text()
    seen = {word: rest for word, *rest in contributions(shown)}
    assert {word: title for word, (title, *_) in seen.items()} == {
        "[CLS]": "+0.25", "The": "+0.50", "keys": "+2.00", "to": "-0.12", "the": "0.00",
        "cabinet": "-1.00", "[SEP]": "+0.25",
    }  # fmt: skip
    assert {word for word, (_, line, _) in seen.items() if line == "underline"} == {"to", "cabinet"}
    red, _, blue = map(int, re.findall(r"\d+", seen["keys"][2]))
    assert blue > red
    red, _, blue = map(int, re.findall(r"\d+", seen["cabinet"][2]))
    assert red > blue
    part = page.locator(".contribution").inner_text()
    assert "biases -0.12, together +1.75" in part
    assert " ".join(explanation.check.sentences()) in part
    bars = page.locator(".bars svg text").all_text_contents()
    assert bars[:4] == ["keys", "+2.00", "cabinet", "-1.00"]
    assert bars[-4:] == ["biases of the model", "-0.12", "together", "+1.75"]
    about = page.locator(".about").inner_text()
    assert "Compared with" in about


def test_below_contributions_the_page_is_that_of_attention(show):
    shown = show(contribute())
    assert shown.data("method") == "rollout"
    assert shown.data("layer") == "4"
    assert "information" in shown.page.locator(".question h2").inner_text()
    graph = AttentionGraph(attention_of(4, 7))
    for layer, position in ((4, 0), (2, 3)):
        shown.page.locator(".controls input[type=range]").fill(str(layer))
        shown.page.locator(f".text .token[data-token='{position}']").click()
        shown.settle(layer=layer, position=position)
        table = shown.table()
        expected = attention_rollout(graph)[layer - 1, position]
        np.testing.assert_allclose(table[:, 1], expected, rtol=6e-3, atol=1e-6)
    # What was chosen has no part in the contributions.
    assert shown.page.locator(".bars svg text").first.text_content() == "keys"


def test_contributions_without_a_trace_are_all_that_there_is(show):
    shown = show(contribute(trace=None))
    assert shown.data("method") == "contribution"
    assert len(contributions(shown)) == 7
    for gone in (".controls", ".compare", ".layers", "details.numbers"):
        assert shown.page.locator(gone).count() == 0
    shown.page.locator("[data-theme-choice=dark]").click()
    assert shown.page.locator("[data-theme-choice=dark]").get_attribute("aria-checked") == "true"
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    shown.page.evaluate("window.dispatchEvent(new Event('afterprint'))")


@pytest.mark.parametrize("trace", [True, False])
def test_contributions_can_be_saved_from_the_page(show, tmp_path, trace):
    explanation = contribute() if trace else contribute(trace=None)
    shown = show(explanation)
    saved = {}
    for ending in ("png", "svg", "json"):
        with shown.page.expect_download() as download:
            shown.page.locator(f"[data-save={ending}]").click()
        saved[ending] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[ending])
    assert saved["png"].stat().st_size > 10_000
    text = [element.text or "" for element in ET.parse(saved["svg"]).getroot().iter()]
    assert {"Plural, not singular", "keys", "+2.00", "-1.00"} <= set(text)
    again = Explanation.load(saved["json"])
    assert again == explanation
    assert again.check == explanation.check
    if trace:
        np.testing.assert_allclose(again.trace.carried, explanation.trace.carried, atol=1e-6)


@pytest.mark.parametrize("width", [320, 700, 1600])
def test_contributions_fit_into_every_window(show, width):
    tokens = ("[CLS]", *HOSTILE, "[SEP]")
    shown = show(contribute(np.linspace(-1, 2, len(tokens)), tokens=tokens), width=width)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.page.evaluate("window.ran") is None


def test_contributions_of_patches_have_a_dash_below_zero(show):
    tokens = ("[CLS]", "0,0", "0,1", "1,0", "1,1")
    special = [True, *[False] * 4]
    scores = (0.5, 1.0, -2.0, 0.25, -0.01)
    shown = show(contribute(scores, tokens=tokens, special=special, grid=(2, 2)))
    patches = {title: text for text, title, *_ in contributions(shown)}
    assert patches == {"0,0: +1.00": "", "0,1: -2.00": "\u2212", "1,0: +0.25": "", "1,1: -0.01": ""}


def test_contributions_can_be_read_without_scripts(show):
    shown = show(contribute(), scripts=False)
    text = shown.page.locator("main").inner_text()
    assert "Contributions" in text
    assert "to plural, not singular" in text
    assert "keys (+2)" in text
    assert "together +1.75" in text
    assert "Blank-out" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_complain_about_contributions(show, scheme):
    from axe_playwright_python.sync_playwright import Axe

    shown = show(contribute(), color_scheme=scheme)
    assert Axe().run(shown.page).response["violations"] == []


def test_a_check_of_attention_is_on_its_page(show):
    shown = show(explain(check=contribute().check))
    assert "Blank-out" in shown.page.locator(".about").inner_text()
