"""The widget: what a notebook shows of an explanation, and what Python and the reader share."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import anywidget
import numpy as np
import pytest
import traitlets

from attnflow import (
    AttentionGraph,
    Explanation,
    MissingExtraError,
    OptionError,
    attention_flow,
    attention_rollout,
)
from attnflow.flow import flow_bound
from attnflow.trace import Trace
from attnflow.view.notebook import inline_html
from attnflow.view.widget import CHOICES, GenerationWidget, Widget
from tests.support import pages
from tests.support.generations import written
from tests.support.pages import HOSTILE, contribute, translate

VIEW = "application/vnd.jupyter.widget-view+json"


def explain(tokens=("[CLS]", "the", "keys", "to", "it"), *, layers=3, **given):
    """Make an explanation of position 0 without a model."""
    return pages.explain(tokens, layers=layers, **given)


# ---- In Python -----------------------------------------------------------------------------------


def test_a_widget_begins_with_what_was_explained():
    widget = explain(method="rollout").widget()
    assert isinstance(widget, Widget)
    assert isinstance(widget, anywidget.AnyWidget)
    assert (widget.method, widget.layer, widget.position) == ("rollout", 3, 0)
    assert repr(widget) == "Widget(method='rollout', layer=3, position=0)"


def test_choices_are_seen_by_those_who_observe_them():
    widget = explain().widget()
    seen = []
    widget.observe(lambda change: seen.append((change["name"], change["new"])))
    widget.position = -1
    widget.layer = np.int64(-2)
    widget.method = "raw"
    assert seen == [("position", 4), ("layer", 2), ("method", "raw")]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("method", "gradient", "method(?=.*'gradient').*raw.*rollout.*flow"),
        ("method", None, "method(?=.*None).*raw.*rollout.*flow"),
        ("method", [], r"method(?=.*\[\]).*raw.*rollout.*flow"),
        ("layer", 0, "layer.*0.*1.*3"),
        ("layer", 4, "layer.*4"),
        ("layer", True, "layer.*True"),
        ("layer", 1.0, "layer.*1.0"),
        ("position", 5, "position.*5.*5 tokens.*0.*4"),
        ("position", -6, "position.*-6.*5 tokens"),
        ("position", "keys", "position.*'keys'"),
    ],
)
def test_what_cannot_be_shown_cannot_be_chosen(name, value, message):
    widget = explain().widget()
    before = getattr(widget, name)
    with pytest.raises(OptionError, match=message):
        setattr(widget, name, value)
    assert getattr(widget, name) == before
    # The front end's word is checked, too.
    with pytest.raises(traitlets.TraitError, match=message):
        widget.set_state({name: value})
    assert getattr(widget, name) == before


def test_what_is_chosen_has_an_explanation_of_its_own():
    explanation = explain()
    widget = explanation.widget()
    assert widget.chosen() is explanation
    graph = explanation.trace.graph()
    for method, function in (("rollout", attention_rollout), ("flow", attention_flow)):
        widget.method, widget.layer, widget.position = method, 2, 3
        chosen = widget.chosen()
        assert (chosen.method, chosen.layer, chosen.position) == (method, 2, 3)
        assert chosen.tokens == explanation.tokens
        np.testing.assert_allclose(chosen.layer_scores, function(graph)[:, 3], atol=1e-12)
        np.testing.assert_array_equal(chosen.scores, chosen.layer_scores[1])
    assert 0 <= chosen.saturation < 1
    widget.method = "raw"
    np.testing.assert_allclose(widget.chosen().scores, graph.attention[1, 3], rtol=1e-12)
    assert widget.chosen().saturation is None


@pytest.mark.parametrize("relative", [False, True])
def test_both_sides_of_an_encoder_decoder_can_be_chosen(relative):
    explanation = translate(relative=relative)
    widget = explanation.widget()
    graph = explanation.trace.graph()
    assert (widget.layer, widget.position) == (2, 6)
    # The encoder has a layer more than the decoder.
    widget.position = 1
    widget.layer = 3
    widget.method = "rollout"
    chosen = widget.chosen()
    assert chosen.tokens == explanation.tokens[:4]
    expected = attention_rollout(graph)[:3, 1, :4]
    if relative:
        expected = expected / attention_rollout(explanation.trace.uniform())[:3, 1, :4]
        expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(chosen.layer_scores, expected, rtol=1e-12)
    widget.position = 5
    assert widget.layer == 2
    with pytest.raises(OptionError, match=r"layer.*3"):
        widget.layer = 3
    widget.method = "raw"
    chosen = widget.chosen()
    assert chosen.tokens == explanation.tokens[:6]
    both = (graph.attention[[3, 5], 5] + graph.attention[[4, 6], 5]) / 2
    np.testing.assert_allclose(chosen.layer_scores, both[:, :6], rtol=1e-12)
    widget.method = "flow"
    flow = attention_flow(graph)[[4, 6], 5]
    saturated = (flow[1] == flow_bound(graph, [5])[6, 0]).mean()
    assert widget.chosen().saturation == saturated
    if not relative:
        np.testing.assert_allclose(widget.chosen().layer_scores, flow[:, :6], atol=1e-12)


def test_what_is_chosen_of_a_causal_model_is_related_to_uniform_attention():
    weights = np.tril(np.random.default_rng(2).random((2, 4, 4)) + 0.1)
    explanation = explain(("the", "keys", "to", "it"), layers=2)
    graph = AttentionGraph(weights / weights.sum(axis=-1, keepdims=True))
    trace = Trace.of(
        graph,
        tokens=explanation.tokens,
        spans=explanation.spans,
        special=explanation.special,
        mask=np.tile(np.arange(-3, 4) <= 0, (2, 1)),
    )
    given = dict(vars(explanation))
    widget = Explanation(**{**given, "trace": trace}).widget()
    widget.position, widget.method = 2, "rollout"
    even = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    ratio = attention_rollout(graph)[1, 2] / np.where(
        np.arange(4) < 3, attention_rollout([even, even])[1, 2], 1.0
    )
    chosen = widget.chosen()
    assert chosen.tokens == ("the", "keys", "to")
    np.testing.assert_allclose(chosen.scores, ratio[:3] / ratio.sum(), rtol=1e-6)
    assert chosen.options["receptive_field"] is True


def test_without_a_trace_what_is_chosen_is_another_layer():
    explanation = explain(trace=False)
    widget = explanation.widget()
    widget.layer = 1
    chosen = widget.chosen()
    assert (chosen.layer, chosen.position, chosen.method) == (1, 0, "flow")
    np.testing.assert_array_equal(chosen.scores, explanation.layer_scores[0])


def test_without_a_trace_only_the_layer_can_be_chosen():
    widget = explain(trace=False).widget()
    widget.layer = 1
    widget.position = 0
    widget.method = "flow"
    with pytest.raises(OptionError, match=r"method.*'raw'.*trace"):
        widget.method = "raw"
    with pytest.raises(OptionError, match=r"position.*2.*position 0"):
        widget.position = 2
    assert (widget.method, widget.layer, widget.position) == ("flow", 1, 0)


def test_only_an_explanation_is_shown():
    with pytest.raises(OptionError, match=r"explanation.*\bdict\b"):
        Widget({})


def test_the_widget_of_a_generation_begins_with_the_whole_answer():
    generation = written()
    widget = generation.widget()
    assert isinstance(widget, GenerationWidget)
    assert widget.generation is generation
    assert widget.selection is None
    widget.selection = (1, -1)
    assert repr(widget) == "GenerationWidget(selection=[1, 4])"
    widget.selection = np.int64(-2)
    assert widget.selection == [3, 3]
    widget.selection = None
    assert widget.selection is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "selection.*5.*5 new tokens"),
        ((0, 9), "selection.*9.*5 new tokens"),
        ((3, 1), r"selection.*\(3, 1\)"),
        ((1, 2, 3), r"selection.*\(1, 2, 3\)"),
        ("are", "selection.*'are'"),
        (True, "selection.*True"),
    ],
)
def test_tokens_that_were_not_written_cannot_be_chosen(value, message):
    widget = written().widget()
    widget.selection = [1, 2]
    with pytest.raises(OptionError, match=message):
        widget.selection = value
    assert widget.selection == [1, 2]
    with pytest.raises(traitlets.TraitError, match=message):
        widget.set_state({"selection": value})
    assert widget.selection == [1, 2]


def test_where_only_the_whole_was_explained_no_token_can_be_chosen():
    widget = written(each=False).widget()
    with pytest.raises(OptionError, match=r"selection.*0.*one by one"):
        widget.selection = 0
    with pytest.raises(OptionError, match=r"generation.*\bdict\b"):
        GenerationWidget({})


def test_without_anywidget_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "attnflow.view.widget")
    with pytest.raises(MissingExtraError, match=r'pip install "attnflow\[view\]"'):
        explain().widget()


# ---- What a notebook is given --------------------------------------------------------------------


class Shell:
    """IPython's shell as a notebook has it."""

    kernel = object()


@pytest.fixture
def notebook(monkeypatch):
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", lambda: Shell())


def test_a_notebook_is_given_the_widget_and_the_same_without_script(notebook):
    explanation = explain()
    bundle, metadata = explanation._repr_mimebundle_()
    assert set(bundle) == {VIEW, "text/html", "text/plain"}
    (state,) = (
        model["state"]
        for name, model in Widget.get_manager_state()["state"].items()
        if name == bundle[VIEW]["model_id"]
    )
    # The scores of layers are packed.
    shown, given = state["_data"]["explanation"], explanation.to_dict()
    assert {**shown, "layer_scores": None} == {**given, "layer_scores": None}
    assert bundle["text/html"] == explanation._repr_html_()
    assert metadata == {}


def test_a_notebook_is_given_the_widget_of_a_generation(notebook, monkeypatch):
    generation = written()
    bundle, _ = generation._repr_mimebundle_()
    assert set(bundle) == {VIEW, "text/html", "text/plain"}
    assert bundle["text/html"] == generation._repr_html_()
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    generation.show()
    assert displayed == [generation]


def test_a_terminal_and_a_notebook_without_anywidget_are_given_no_widget(monkeypatch):
    import importlib.util

    explanation = explain()
    plain = {"text/plain": repr(explanation), "text/html": explanation._repr_html_()}
    assert explanation._repr_mimebundle_() == plain
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", lambda: Shell())
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "attnflow.view.notebook.find_spec",
        lambda name: None if name == "anywidget" else found(name),
    )
    assert explanation._repr_mimebundle_() == plain


class Reader(HTMLParser):
    """Gathers the elements of a piece of HTML."""

    def __init__(self):
        super().__init__()
        self.elements = set()

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)


def test_hostile_tokens_are_text_in_all_that_a_notebook_is_given(notebook):
    bundle, _ = explain(("[CLS]", *HOSTILE))._repr_mimebundle_()
    reader = Reader()
    reader.feed(bundle["text/html"])
    assert reader.elements == {"div", "b", "span"}
    assert "&lt;script&gt;window.ran" in bundle["text/html"]


# Runs the cells given as JSON in a kernel, and prints the notebook that comes of it.
KERNEL = """
import json, sys
import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(source) for source in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
print(json.dumps(notebook))
"""


def test_a_real_kernel_shows_the_widget_and_the_same_without_script(tmp_path):
    explanation = explain(("[CLS]", *HOSTILE))
    explanation.save(tmp_path / "hostile.json")
    cells = [
        f"import attnflow\ne = attnflow.Explanation.load({str(tmp_path / 'hostile.json')!r})\ne",
        "widget = e.widget()\nwidget.position = 3\nwidget",
        "e.show()",
        "attnflow.show(e.trace.attention(), e.trace.tokens, method='flow', layer=3)",
    ]
    result = subprocess.run(
        [sys.executable, "-c", KERNEL],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    notebook = json.loads(result.stdout)
    states = notebook["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    for cell, position in zip(notebook["cells"], (0, 3, 0, 0), strict=True):
        (output,) = cell["outputs"]
        state = states[output["data"][VIEW]["model_id"]]["state"]
        assert (state["position"], state["layer"], state["method"]) == (position, 3, "flow")
        assert state["_data"]["explanation"]["tokens"] == list(explanation.tokens)
        reader = Reader()
        reader.feed(output["data"]["text/html"])
        assert reader.elements == {"div", "b", "span"}


# ---- In a front end ------------------------------------------------------------------------------

# What a notebook's front end does for a widget of anywidget: a model whose changes both sides see,
# and an element for the module to show it in. It has a style sheet of its own, as notebooks do.
FRONT_END = """async ({ state, dark, connected }) => {
  document.title = "notebook";
  const style = document.createElement("style");
  style.textContent = `
    body { margin: 8px; background: ${dark ? "#111" : "#fff"}; color: ${dark ? "#ddd" : "#222"}; }
    p, .token, .heat, .graph { display: none; }`;
  document.head.append(style);
  const listeners = {};
  let changed = {};
  window.model = {
    get: (name) => state[name],
    set(name, value) {
      if (state[name] === value) return;
      changed[name] = value;
      this.receive({ [name]: value });
    },
    save_changes() {
      const sent = changed;
      changed = {};
      window.sent = window.toPython(sent);
    },
    on: (name, listener) => (listeners[name] ??= new Set()).add(listener),
    off: (name, listener) => listeners[name]?.delete(listener),
    // All is set before anybody is told.
    receive(values) {
      const news = Object.keys(values).filter((name) => state[name] !== values[name]);
      Object.assign(state, values);
      for (const name of news) for (const tell of listeners[`change:${name}`] ?? []) tell();
    },
    count: () => Object.values(listeners).reduce((sum, set) => sum + set.size, 0),
  };
  const url = URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  URL.revokeObjectURL(url);
  window.output = document.createElement("div");
  window.output.id = "output";
  if (connected) document.body.append(window.output);
  window.close = await widget.render({ model: window.model, el: window.output });
}"""


class FrontEnd:
    """A widget in the browser, connected to the one in Python."""

    def __init__(self, page, widget):
        self.page = page
        self.widget = widget
        self.complaints = []
        self.requests = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))
        page.expose_function("toPython", widget.set_state)
        self.root = page.locator("div.attnflow")

    def open(self, *, dark=False, connected=True):
        state = {
            name: self.widget.get_state([name])[name]
            for name in ("_esm", "_data", "_style", "_kind", *CHOICES, "selection")
            if self.widget.has_trait(name)
        }
        self.page.evaluate(FRONT_END, {"state": state, "dark": dark, "connected": connected})
        return self

    def settle(self, **state):
        """Wait until the widget shows a state, and Python knows of it."""
        wanted = "".join(f"[data-{name}='{value}']" for name, value in state.items())
        self.page.locator(f"div.attnflow{wanted}[data-flow=done]").wait_for()
        self.page.evaluate("async () => { await window.sent; }")

    def choose(self, **choices):
        """Set choices in Python, and let the front end know, as Jupyter does."""
        for name, value in choices.items():
            setattr(self.widget, name, value)
        self.page.evaluate(
            "values => window.model.receive(values)", self.widget.get_state(list(choices))
        )


@pytest.fixture
def show(browser):
    contexts, every = [], []

    def open_widget(result, *, width=900, **options):
        context = browser.new_context(viewport={"width": width, "height": 800})
        contexts.append(context)
        shown = FrontEnd(context.new_page(), result.widget())
        every.append(shown)
        return shown.open(**options)

    yield open_widget
    for shown in every:
        assert shown.complaints == []
        assert [url for url in shown.requests if not url.startswith("blob:")] == []
    for context in contexts:
        context.close()


def test_what_the_reader_chooses_is_known_to_python(show):
    shown = show(explain())
    shown.settle(method="flow", layer=3, position=0)
    assert shown.root.locator(".text").inner_text() == "[CLS] the keys to it"
    shown.root.locator(".token[data-token='2']").click()
    shown.settle(position=2)
    assert shown.widget.position == 2
    shown.root.locator(".controls input[type=range]").fill("1")
    shown.settle(layer=1)
    assert shown.widget.layer == 1
    shown.root.locator("[data-method-choice=rollout]").click()
    shown.settle(method="rollout")
    assert shown.widget.method == "rollout"


def test_what_python_chooses_is_shown(show):
    shown = show(explain())
    shown.settle(method="flow")
    shown.choose(position=-1, layer=2, method="raw")
    shown.settle(position=4, layer=2, method="raw")
    state = (shown.widget.position, shown.widget.layer, shown.widget.method)
    assert state == (4, 2, "raw")
    assert "\u2068it\u2069" in shown.root.locator("h1").inner_text()


def test_the_tokens_of_an_answer_are_chosen_by_the_reader_and_by_python(show):
    shown = show(written())
    shown.settle(selection="")
    shown.root.locator(".written [data-new='1']").click()
    shown.root.locator(".written [data-new='3']").click(modifiers=["Shift"])
    shown.page.mouse.move(2, 2)
    shown.settle(selection="1-3")
    assert shown.widget.selection == [1, 3]
    shown.choose(selection=-1)
    shown.settle(selection="4-4")
    shown.choose(selection=None)
    shown.settle(selection="")
    shown.root.locator(".written [data-new='2']").focus()
    shown.page.keyboard.press("Enter")
    shown.settle(selection="2-2")
    assert shown.widget.selection == [2, 2]


def test_the_keyboard_works_as_on_the_page(show):
    shown = show(explain())
    shown.settle(position=0)
    shown.root.locator(".token[data-token='0']").focus()
    for _ in range(2):
        shown.page.keyboard.press("ArrowRight")
    shown.page.keyboard.press("Enter")
    shown.settle(position=2)
    assert shown.widget.position == 2
    shown.root.locator("[data-method-choice=flow]").focus()
    shown.page.keyboard.press("ArrowLeft")
    shown.settle(method="rollout")
    assert shown.widget.method == "rollout"


def test_an_output_that_has_no_place_yet_is_shown_when_it_has_one(show):
    shown = show(explain(), connected=False)
    assert shown.root.count() == 0
    shown.choose(position=3)
    shown.page.evaluate("() => document.body.append(window.output)")
    shown.settle(position=3)


def test_the_widget_follows_the_width_of_its_output(show):
    shown = show(explain())
    shown.settle(position=0)
    wide = shown.root.locator(".heat canvas").first.bounding_box()["width"]
    shown.page.evaluate("() => { window.output.style.width = '420px'; }")
    shown.page.wait_for_function(
        """wide => {
          const root = window.output.firstChild.shadowRoot;
          return root.querySelector(".heat canvas").getBoundingClientRect().width < wide - 200;
        }""",
        arg=wide,
    )


@pytest.mark.parametrize("dark", [True, False])
def test_the_widget_takes_on_the_notebooks_theme_and_leaves_the_notebook_its_own(show, dark):
    shown = show(explain(), dark=dark)
    shown.settle(position=0)
    assert shown.root.get_attribute("data-theme") == ("dark" if dark else "light")
    colour, margin = shown.page.evaluate(
        "() => [getComputedStyle(document.body).backgroundColor, "
        "getComputedStyle(document.body).margin]"
    )
    assert (colour, margin) == ("rgb(17, 17, 17)" if dark else "rgb(255, 255, 255)", "8px")


@pytest.mark.parametrize("dark", [True, False])
def test_axe_finds_nothing_to_complain_about(show, dark):
    from axe_playwright_python.sync_playwright import Axe

    shown = show(explain(), dark=dark)
    shown.settle(position=0)
    result = Axe().run(shown.page, context="#output")
    assert len(result.response["passes"]) > 10
    found = [
        (violation["id"], [node["html"][:200] for node in violation["nodes"]])
        for violation in result.response["violations"]
    ]
    assert found == []


def test_a_closed_output_leaves_nothing_behind(show):
    shown = show(explain())
    shown.settle(position=0)
    shown.page.evaluate("() => window.close()")
    assert shown.page.evaluate("() => window.output.childElementCount") == 0
    assert shown.page.evaluate("() => window.model.count()") == 0
    shown.choose(position=1)


def test_a_widget_without_a_trace_shows_its_layers(show):
    shown = show(explain(method="rollout", trace=False))
    shown.settle(layer=3)
    shown.choose(layer=1)
    shown.settle(layer=1)
    shown.root.locator(".token").nth(2).click()
    assert (shown.widget.position, shown.widget.method) == (0, "rollout")


def test_hostile_tokens_are_text_in_the_widget(show):
    shown = show(explain(("[CLS]", *HOSTILE)))
    shown.settle(position=0)
    text = shown.root.locator(".text").inner_text()
    for part in ("<script>window.ran = 1</script>", "onerror=", "&lt;", "\u241b[31m", "x" * 10_000):
        assert part in text
    for position in (1, 2, len(HOSTILE)):
        shown.choose(position=position)
        shown.settle(position=position)
    elements = shown.page.evaluate(
        "() => window.output.firstChild.shadowRoot.querySelectorAll('script, img').length"
    )
    assert elements == 0
    assert shown.page.evaluate("() => window.ran") is None


# ---- Contributions -------------------------------------------------------------------------------


def test_contributions_without_script_have_signs_the_sum_and_the_check():
    shown = contribute(notes=[])
    html = inline_html(shown)
    assert "<b>Contributions</b> to plural, not singular" in html
    assert 'title="+2.00">keys' in html
    [cabinet] = re.findall(r'<span style="([^"]*)" title="-1.00">cabinet', html)
    assert "underline" in cabinet
    assert "rgba(222,128,38" in cabinet
    assert "biases -0.12, together +1.75" in html
    assert "<b>Check:</b> Blank-out" in html


def test_below_contributions_attention_can_be_chosen():
    given = contribute()
    widget = given.widget()
    assert (widget.method, widget.layer, widget.position) == ("rollout", 4, 0)
    assert widget.chosen() is given
    widget.layer = 2
    chosen = widget.chosen()
    assert (chosen.method, chosen.layer) == ("rollout", 2)
    assert chosen.value is None
    with pytest.raises(OptionError, match="method is 'contribution'"):
        widget.method = "contribution"


def test_contributions_without_a_trace_leave_nothing_to_choose():
    given = contribute(trace=None)
    widget = given.widget()
    assert (widget.method, widget.layer, widget.position) == ("contribution", 1, 0)
    with pytest.raises(OptionError, match="layer is 2"):
        widget.layer = 2
    assert widget.chosen() is given


def test_the_widget_shows_contributions_and_what_is_chosen_below_them(show):
    shown = show(contribute())
    shown.settle(method="rollout", layer=4, position=0)
    assert "Plural, not singular" in shown.root.locator("h1").inner_text()
    shown.root.locator("[data-method-choice=raw]").click()
    shown.settle(method="raw")
    assert shown.widget.method == "raw"
