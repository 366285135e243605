"""Figures and pages of explanations."""

import html.parser

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from attnflow.explanation import Explanation, Prediction

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script>",
    "&lt;",
    "$x^2$",
    "\x1b[31m\x00",
    "👩‍👩‍👧",
    "x" * 10_000,
)


def explanation(tokens, layers=6, layer=4, special=(), **more):
    """An explanation with the scores of a random model, and CLS above all others."""
    scores = np.random.default_rng(0).dirichlet(np.ones(len(tokens)), layers)
    scores[:, 0] += 1
    spans, text = [], ""
    for token in tokens:
        spans.append((len(text), len(text) + len(token)))
        text += token + " "
    return Explanation(
        tokens=tokens,
        scores=scores[layer - 1],
        layer_scores=scores,
        method="rollout",
        layer=layer,
        position=0,
        target="plural",
        prediction=Prediction("plural", 1, 0.9),
        text=text,
        spans=[None if i in special else span for i, span in enumerate(spans)],
        special=[i in special for i in range(len(tokens))],
        model="a model",
        task="classification",
        options={"edges": "attention"},
        saturation=None,
        notes=(),
        **more,
    )


def test_a_figure_shows_layers_over_tokens_and_scales_to_ordinary_tokens():
    shown = explanation(("[CLS]", "the", "keys", "to", "it"), special=[0])
    figure, axes = shown.plot()
    assert isinstance(figure, Figure)
    assert [label.get_text() for label in axes.get_xticklabels()] == list(shown.tokens)
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"L{i}" for i in range(1, 7)]
    bold = [label.get_text() for label in axes.get_yticklabels() if label.get_weight() == "bold"]
    assert bold == ["L4"]
    (image,) = axes.get_images()
    np.testing.assert_array_equal(image.get_array(), shown.layer_scores)
    assert image.get_clim() == (0.0, shown.layer_scores[:, 1:].max())


def test_a_figure_is_drawn_into_axes_that_are_given():
    given = Figure().add_subplot()
    figure, axes = explanation(("the", "keys")).plot(ax=given)
    assert axes is given
    assert figure is given.figure


def test_200_tokens_have_labels_that_can_be_told_apart(tmp_path):
    long = explanation(tuple(f"word{i}" for i in range(200)), layers=30)
    _, axes = long.plot()
    assert 20 <= len(axes.get_xticklabels()) <= 80
    long.save(tmp_path / "long.png")
    with Image.open(tmp_path / "long.png") as picture:
        assert picture.width > picture.height > 300


def test_an_images_patches_are_drawn_where_they_are():
    tokens = ("[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2")
    patches = explanation(tokens, special=[0], grid=(2, 3))
    patches = Explanation.from_dict({**patches.to_dict(), "spans": [None] * 7, "text": ""})
    _, axes = patches.plot()
    (image,) = axes.get_images()
    np.testing.assert_array_equal(image.get_array(), patches.scores[1:].reshape(2, 3))


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf", ".html"])
def test_hostile_tokens_are_text_in_every_file(tmp_path, ending):
    path = tmp_path / f"hostile{ending}"
    explanation(("[CLS]", *HOSTILE), special=[0]).save(path)
    content = path.read_bytes()
    assert len(content) > 1000
    if ending == ".svg":
        assert b"<script" not in content
        assert b"<img" not in content


class Elements(html.parser.HTMLParser):
    """The elements and the text of a page."""

    def __init__(self):
        super().__init__()
        self.elements, self.attributes, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_data(self, data):
        self.text.append(data)


def test_a_page_holds_every_score_and_runs_nothing():
    shown = explanation(("[CLS]", *HOSTILE), special=[0])
    page = Elements()
    page.feed(shown.to_html())
    assert not {"script", "img", "link", "iframe"} & set(page.elements)
    assert not {"src", "href", "onerror", "onclick"} & set(page.attributes)
    text = "".join(page.text)
    for token in HOSTILE[:5]:
        assert token in text
    assert page.elements.count("td") == shown.layer_scores.size
    assert "\x1b" not in text
    assert "http://" not in shown.to_html()
    assert "https://" not in shown.to_html()
