"""What is chosen on the page: routes of the graph, heads, the scale; the address that keeps it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from attnflow import AttentionGraph, Explanation, attention_rollout, head_rollout
from attnflow.trace import Trace
from tests.support.pages import attention_of, contribute, explain

TOKENS = 7
LAYERS = 4


def carried_of(seed=0):
    """What the edges of four layers carried: each layer's columns are the rows of the one below."""
    numbers = np.random.default_rng(seed)
    carried = np.zeros((LAYERS, TOKENS, TOKENS))
    entering = np.zeros(TOKENS)
    entering[0] = 2.0  # position 0 is read
    for layer in reversed(range(LAYERS)):
        shares = numbers.normal(size=(TOKENS, TOKENS))
        carried[layer] = entering[:, None] * shares / shares.sum(axis=1, keepdims=True)
        entering = carried[layer].sum(axis=0)
    return carried


def flowed(seed=0):
    """An explanation of contributions whose trace has `carried_of`."""
    carried = carried_of(seed)
    made = contribute(carried[0].sum(axis=0))
    return replace(made, trace=replace(made.trace, carried=carried)), carried


def with_heads(values=True):
    """An explanation of contributions with the heads of its attention, and what they added."""
    attention = attention_of(LAYERS, TOKENS, 5, heads=2)
    made = contribute()
    added = np.array([[0.5, -2.0], [0.25, 0.13], [1.5, -0.75], [0.0, 1.0]])
    trace = Trace.of(
        AttentionGraph(attention),
        tokens=made.trace.tokens,
        spans=made.trace.spans,
        special=made.trace.special,
        heads=list(attention),
        carried=made.trace.carried,
        head_values=added if values else None,
    )
    return replace(made, trace=trace), attention, added


def edges_above(carried, threshold):
    """Return the edges of the routes whose edges are all above a share, and what they carry."""
    edges, reached, kept = set(), {0}, 1.0
    for layer in reversed(range(LAYERS)):
        total = abs(carried[layer]).sum()
        found = {
            (layer + 1, i, j)
            for i in reached
            for j in range(TOKENS)
            if abs(carried[layer, i, j]) >= threshold * total and carried[layer, i, j] != 0
        }
        kept = min(kept, sum(abs(carried[layer, i, j]) for _, i, j in found) / total)
        reached = {j for _, _, j in found}
        edges |= found
    return edges, kept


# ---- What flowed ---------------------------------------------------------------------------------


def test_the_graph_draws_what_flowed_and_on_request_what_could_flow(show):
    shown = show(flowed()[0])
    layers = shown.page.locator(".layers")
    assert layers.locator("[data-graph=answer]").get_attribute("aria-checked") == "true"
    assert "to the answer" not in layers.locator(".cut").text_content()
    layers.locator("[data-graph=attention]").click()
    shown.page.locator("[data-method-choice=flow]").click()
    shown.settle(method="flow")
    shown.page.locator("main:not([data-cut=''])").wait_for()
    assert "limits" in layers.locator(".cut").inner_text()
    layers.locator("[data-graph=answer]").click()
    shown.page.locator("main[data-cut='']").wait_for()
    assert layers.locator(".cut").is_hidden()


@pytest.mark.parametrize("step", [20, 35, 50])
def test_a_threshold_keeps_routes_and_says_how_much_of_the_answer_they_carry(show, step):
    explanation, carried = flowed()
    shown = show(explanation)
    shown.page.locator(".graph svg").wait_for()
    shown.page.locator("input.threshold").fill(str(step))
    kept = shown.page.locator(".kept")
    kept.wait_for()
    threshold = 1e-3 * 500 ** ((step - 1) / 59)
    edges, share = edges_above(carried.astype(np.float32), threshold)
    shown.page.wait_for_function(
        "count => document.querySelectorAll('.graph svg path').length === count", arg=len(edges)
    )
    said = kept.inner_text()
    if share == 0:
        assert said.startswith("No route")
    else:
        assert f"at least {100 * share:.0f} %" in said or f"{100 * share:.2g} %" in said


def test_a_node_says_what_passes_through_it(show):
    explanation, carried = flowed()
    shown = show(explanation)
    shown.page.locator(".graph .node[data-layer='2'][data-position='3']").click()
    said = shown.page.locator(".through")
    said.wait_for()
    mass = carried[2].sum(axis=0)[3]
    text = said.inner_text()
    assert text.startswith(f"Through \u201c\u2068to\u2069\u201d after layer 2 passes {mass:+.2f}")
    below = carried[1][3]
    strongest = int(abs(below).argmax())
    assert f"({below[strongest]:+.2f})" in text
    shown.page.locator(".graph .node[data-layer='2'][data-position='3']").click()
    said.wait_for(state="hidden")


# ---- Heads ---------------------------------------------------------------------------------------


def names_of(shown):
    return shown.page.locator(".head").evaluate_all("all => all.map(one => one.dataset.head)")


def test_heads_stand_in_the_order_of_what_they_add_or_of_their_layers(show):
    explanation, _, added = with_heads()
    shown = show(explanation)
    order = np.argsort(-abs(added), axis=None, kind="stable")
    assert names_of(shown) == [f"{i // 2 + 1}.{i % 2}" for i in order]
    first = shown.page.locator(".head").first
    assert first.get_attribute("aria-label") == "Layer 1, head 1: -2.00"
    shown.page.locator("[data-heads-order=layer]").click()
    assert names_of(shown) == [f"{layer}.{head}" for layer in range(1, 5) for head in range(2)]


def test_heads_without_values_stand_in_the_order_of_their_layers(show):
    shown = show(with_heads(values=False)[0])
    assert names_of(shown)[:3] == ["1.0", "1.1", "2.0"]
    assert shown.page.locator("[data-heads-order]").count() == 0


def test_heads_are_opened_laid_over_each_other_and_explained_alone(show):
    explanation, attention, _ = with_heads()
    shown = show(explanation)
    page = shown.page
    page.locator(".head[data-head='2.1']").click()
    assert page.locator(".opened li").all_inner_texts()[0].startswith("Layer 2, head 1: +0.13")
    assert page.locator(".overlay svg").count() == 1
    page.locator(".head[data-head='3.0']").click()
    assert page.locator(".opened li").count() == 1
    page.get_by_label("Lay several over each other").check()
    page.locator(".head[data-head='1.1']").click()
    assert page.locator(".opened li").count() == 2
    pressed = page.locator(".head[aria-pressed=true]")
    assert {one.get_attribute("data-head") for one in pressed.all()} == {"3.0", "1.1"}
    page.locator(".opened li", has_text="Layer 3").get_by_text("Explain by this head alone").click()
    shown.settle(head=0, layer=3)
    expected = head_rollout(attention, 3, 0, positions=[0])[0]
    np.testing.assert_allclose(shown.table()[:, 1], expected, rtol=6e-3, atol=2e-4)
    assert "head 0 alone in layer 3" in page.locator(".about").inner_text()


def test_heads_are_reached_by_the_keyboard(show):
    shown = show(with_heads()[0])
    names = names_of(shown)
    shown.page.locator(".head").first.focus()
    focused = "document.activeElement.dataset.head"
    for key, index in (("ArrowRight", 1), ("End", 7), ("Home", 0), ("ArrowRight", 1)):
        shown.page.keyboard.press(key)
        assert shown.page.evaluate(focused) == names[index]
    shown.page.keyboard.press("Enter")
    assert shown.page.locator(".opened li").count() == 1
    assert shown.page.evaluate(focused) == names[1]


def test_of_a_long_text_the_heads_that_add_most_come_first_and_the_others_on_request(show):
    tokens = tuple(f"word{i}" for i in range(70))
    attention = attention_of(3, 70, 1, heads=12)
    made = explain(tokens, attention=attention, keep_heads=True, method="rollout")
    values = np.arange(36.0).reshape(3, 12)
    shown = show(replace(made, trace=replace(made.trace, head_values=values)))
    assert shown.page.locator(".head").count() == 24
    assert names_of(shown)[0] == "3.11"
    shown.page.get_by_text("All 36 heads").click()
    assert shown.page.locator(".head").count() == 36


# ---- The scale -----------------------------------------------------------------------------------


def test_the_colours_of_many_tokens_are_relative_to_their_median_and_say_so(show):
    tokens = tuple(f"word{i}" for i in range(400))
    shown = show(explain(tokens, layers=2, method="rollout", special=[False] * 400))
    scores = explain(tokens, layers=2, method="rollout", special=[False] * 400).scores
    legend = shown.page.locator(".legend").first
    assert "median" in legend.inner_text()

    def colours():
        found = shown.page.locator(".text .token").evaluate_all(
            "all => all.map(one => getComputedStyle(one).backgroundColor)"
        )
        assert len(found) == 400
        return found

    def of_lower_half():
        at_most = scores <= np.median(scores)
        return {colour for colour, low in zip(colours(), at_most, strict=True) if low}

    # Half of the tokens are at the median or below, and look the same.
    assert len(of_lower_half()) == 1
    assert len(set(colours())) > 20
    shown.page.get_by_label("Colours from the median up").uncheck()
    assert "median" not in legend.inner_text()
    assert len(of_lower_half()) > 1
    assert len(set(colours())) < 20  # one token has nearly all


# ---- The address, and files ----------------------------------------------------------------------


def test_the_address_keeps_what_is_chosen(show):
    shown = show(with_heads()[0])
    page = shown.page
    assert "#" not in page.url
    page.locator("[data-method-choice=flow]").click()
    page.locator(".token[data-token='4'][role=radio]").click()
    page.locator("[data-graph=attention]").click()
    page.locator(".head[data-head='2.0']").click()
    page.get_by_label("Colours from the median up").check()
    shown.settle(method="flow", position=4)
    page.wait_for_function("() => location.hash.includes('opened=2.0')")
    page.wait_for_function("() => location.hash.includes('relative=1')")
    state = dict(part.split("=") for part in page.evaluate("location.hash.slice(1)").split("&"))
    assert state["method"] == "flow"
    assert state["position"] == "4"
    page.reload()
    shown.settle(method="flow", position=4)
    assert page.locator("[data-graph=attention]").get_attribute("aria-checked") == "true"
    assert page.locator(".head[aria-pressed=true]").get_attribute("data-head") == "2.0"
    assert page.get_by_label("Colours from the median up").is_checked()
    # Going back to a link that somebody sent is a change of the address, too.
    page.evaluate("location.hash = 'method=raw&layer=2'")
    shown.settle(method="raw", layer=2, position=0)


@pytest.mark.parametrize(
    "hash",
    ["method=none&layer=99&position=-4", "node=9.9&opened=7.7,x", "%%%&&&==", "threshold=NaN"],
)
def test_an_address_that_is_not_valid_shows_the_first_state(show, hash):
    shown = show(with_heads()[0])
    shown.page.goto(f"{shown.path.as_uri()}#{hash}")
    shown.page.reload()
    shown.settle(method="rollout", layer=4, position=0)
    assert shown.page.locator(".opened li").count() == 0


def test_json_has_what_is_shown(show, tmp_path):
    explanation, attention, _ = with_heads()
    shown = show(explanation)
    graph = AttentionGraph(attention)

    def saved():
        with shown.page.expect_download() as download:
            shown.page.locator("[data-save=json]").click()
        download.value.save_as(tmp_path / "saved.json")
        return Explanation.load(tmp_path / "saved.json")

    assert saved() == explanation
    shown.page.locator(".token[data-token='4'][role=radio]").click()
    shown.page.locator(".controls input[type=range]").fill("2")
    shown.settle(position=4, layer=2)
    found = saved()
    assert (found.method, found.layer, found.position) == ("rollout", 2, 4)
    np.testing.assert_allclose(found.scores, attention_rollout(graph)[1, 4], atol=1e-6)
    np.testing.assert_allclose(found.layer_scores, attention_rollout(graph)[:, 4], atol=1e-6)
    shown.page.locator("select").select_option("1")
    shown.settle(head=1)
    found = saved()
    assert found.options["heads"] == 1
    expected = head_rollout(attention, 2, 1, positions=[4])[0]
    np.testing.assert_allclose(found.scores, expected, atol=2e-4)


def test_what_a_head_added_is_kept_by_a_file(tmp_path):
    explanation, _, added = with_heads()
    explanation.save(tmp_path / "heads.json")
    again = Explanation.load(tmp_path / "heads.json")
    np.testing.assert_array_equal(again.trace.head_values, added)
    data = json.loads((tmp_path / "heads.json").read_text())
    data["trace"]["heads"]["values"][0] = [math.pi]
    (tmp_path / "heads.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="values"):
        Explanation.load(tmp_path / "heads.json")


# ---- Screen readers ------------------------------------------------------------------------------


def test_a_screen_reader_hears_a_flow_once_it_is_computed(show):
    # Large enough for its flows to be computed after the page has answered.
    names = tuple(f"word{i}" for i in range(200))
    shown = show(explain(names, attention=attention_of(6, 200, 3)))
    shown.page.locator(".graph .node[data-layer='3']").nth(5).click()
    shown.settle(layer=3)
    spoken = shown.page.locator("[aria-live]").first
    spoken.filter(has_text="could flow").wait_for(state="attached")
    assert spoken.text_content() == shown.page.locator(".answer .finding").first.text_content()
