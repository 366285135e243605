"""An answer as a figure: its headline, the shaded text, the verdict and the bars."""

import io
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from attnflow.errors import OptionError
from attnflow.explanation import Explanation
from attnflow.view import answer, captions, theme
from tests.support.pages import HOSTILE, contribute, explain
from tests.view.test_figures import to_lab


def words(figure):
    """What a figure says, in the order in which it was written."""
    return " ".join(text.get_text().strip("\u200e") for text in figure.findobj(Text))


def shaded(axes):
    """The shaded pieces of a text: for each its box, its text and the dashes of the line below."""
    found = []
    texts = [text for text in axes.texts if text.get_text().strip()]
    for box in axes.patches:
        if not isinstance(box, Rectangle):
            continue
        x0, x1 = box.get_x(), box.get_x() + box.get_width()
        low, high = sorted((box.get_y(), box.get_y() + box.get_height()))
        inside = [
            text
            for text in texts
            if x0 - 0.1 <= text.get_position()[0] < x1 and low <= text.get_position()[1] <= high
        ]
        under = [
            line
            for line in axes.lines
            if x0 <= line.get_xdata()[0] < x1 and low <= line.get_ydata()[0] <= high + 8
        ]
        assert len(inside) == 1
        found.append((box, inside[0], under))
    return found


def test_a_plot_of_contributions_has_the_answer_the_text_the_check_and_bars_that_add_up():
    shown = contribute()
    figure, axes = shown.plot()
    assert isinstance(figure, Figure)
    said = words(figure)
    assert captions.answer(shown) in said
    assert shown.check.summary in said.replace("\n", " ")
    assert captions.gist(shown) in said
    lengths = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(lengths, [*shown.scores, shown.bias, shown.value])


def test_signs_are_shown_by_hue_and_by_the_line_under_a_token():
    shown = contribute()
    _, axes = answer.shaded_text(shown)
    pieces = {text.get_text(): (box, under) for box, text, under in shaded(axes)}
    for name, score in zip(shown.tokens, shown.scores, strict=True):
        if name in ("[CLS]", "[SEP]"):
            assert name not in pieces
            continue
        box, under = pieces[name]
        blue = box.get_facecolor()[2] - box.get_facecolor()[0]
        assert np.sign(round(blue, 2)) == np.sign(score)
        if abs(score) < answer.FAINTEST * 2:
            assert under == []
            continue
        (line,) = under
        assert line.get_linestyle() == ("-" if score > 0 else "--")
    # The legend says what both mean, in the same way.
    (for_it, solid), (against, dashed) = (
        pieces["  speaks for it  "],
        pieces["  speaks against it  "],
    )
    assert for_it.get_facecolor()[2] > for_it.get_facecolor()[0]
    assert against.get_facecolor()[2] < against.get_facecolor()[0]
    assert [line.get_linestyle() for line in (*solid, *dashed)] == ["-", "--"]


def contrast(one, other):
    """The contrast of two colours, after WCAG 2.2."""
    levels = []
    for colour in (one, other):
        rgb = np.array(to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        levels.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(levels) + 0.05) / (min(levels) + 0.05)


@pytest.mark.parametrize("method", ["contribution", "rollout"])
def test_every_token_is_legible_on_its_shade_and_in_grey(method):
    scores = np.linspace(-1.0, 1.0, 41)
    tokens = [f"w{i}" for i in range(41)]
    special = [False] * 41
    if method == "contribution":
        shown = contribute(scores, tokens=tokens, special=special, check=None)
    else:
        shown = replace(explain(tokens, special=special, method=method), scores=abs(scores))
    _, axes = answer.shaded_text(shown)
    found = shaded(axes)
    assert len(found) == 43
    for box, text, _ in found:
        assert contrast(box.get_facecolor()[:3], text.get_color()) > 4.0
    # The order of sizes is an order of lightness.
    boxes = {text.get_text(): box for box, text, _ in found}
    dark = [to_lab(boxes[name].get_facecolor()[:3])[0] for name in tokens]
    assert np.corrcoef(dark, abs(scores))[0, 1] < -0.9


def test_a_text_is_broken_into_lines_that_stay_inside():
    tokens = [f"word{i}" for i in range(150)]
    shown = contribute(np.sin(np.arange(150)), tokens=tokens, special=[False] * 150)
    figure, axes = answer.shaded_text(shown)
    figure.draw_without_rendering()
    edge = figure.bbox
    for text in axes.texts:
        box = text.get_window_extent()
        assert edge.x0 <= box.x0
        assert box.x1 <= edge.x1
        assert edge.y0 <= box.y0
        assert box.y1 <= edge.y1
    rows = {round(text.get_position()[1], 1) for _, text, _ in shaded(axes)}
    assert len(rows) > 8
    # No two tokens of a line overlap.
    for row in rows:
        line = [
            (b.get_x(), b.get_width())
            for b, t, _ in shaded(axes)
            if abs(t.get_position()[1] - row) < 1
        ]
        for (start, width), (following, _) in zip(sorted(line), sorted(line)[1:], strict=False):
            assert start + width <= following + 0.01


def test_texts_without_spaces_and_from_the_right_are_placed_as_they_are_read():
    chinese = Explanation.from_dict(
        {
            **contribute(np.ones(200), tokens=["\u8a9e"] * 200, special=[False] * 200).to_dict(),
            "text": "\u8a9e" * 200,
            "spans": [(i, i + 1) for i in range(200)],
        }
    )
    _, axes = answer.shaded_text(chinese)
    assert len({round(text.get_position()[1]) for _, text, _ in shaded(axes)}) > 2
    arabic = ["مفاتيح", "الخزانة"]
    _, axes = answer.shaded_text(
        contribute((1.0, -2.0, 0.5), tokens=[*arabic, "it"], special=[False] * 3)
    )
    placed = {text.get_text(): text.get_position()[0] for _, text, _ in shaded(axes)}
    assert placed[arabic[0]] > placed[arabic[1]]


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_hostile_tokens_are_text(ending, tmp_path):
    tokens = ("[CLS]", *HOSTILE, "$\\frac{", "", "  ", "\n", "\U0010fffd")
    scores = np.linspace(-1.0, 2.0, len(tokens))
    special = [True] + [False] * (len(tokens) - 1)
    shown = contribute(scores, tokens=tokens, special=special, target="$x_{", contrast="<script>")
    path = tmp_path / f"hostile{ending}"
    shown.save(path)
    content = path.read_bytes()
    assert len(content) > 1000
    if ending == ".svg":
        assert b"<script" not in content
        assert b"<img" not in content


def test_more_tokens_than_bars_are_one_bar_and_the_sum_stays():
    random = np.random.default_rng(0)
    special = [True] + [False] * 99
    shown = contribute(
        random.normal(size=100), tokens=[f"w{i}" for i in range(100)], special=special
    )
    _, axes = shown.plot()
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert len(names) == answer.MOST_BARS + 3
    assert names[-3:] == ["all others", "biases", "together"]
    largest = sorted(np.argsort(-abs(shown.scores[1:]), kind="stable")[: answer.MOST_BARS] + 1)
    assert names[:-3] == [f"w{i}" for i in largest]
    numbers = [float(text.get_text().strip("\u2190\u2192 ")) for text in axes.texts]
    assert sum(numbers[:-1]) == pytest.approx(shown.value, abs=0.1)
    assert numbers[-1] == pytest.approx(shown.value, abs=0.006)


def picture(width=48, height=32):
    file = io.BytesIO()
    stripes = np.where(np.arange(width) // 2 % 2, 230, 20) * np.ones((height, 1))
    Image.fromarray(stripes.astype(np.uint8)).convert("RGB").save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("method", ["contribution", "raw"])
def test_an_image_is_drawn_over_its_picture_with_the_answer(method):
    tokens = ("[CLS]", *(f"{row},{column}" for row in range(2) for column in range(3)))
    scores = (0.5, 1.0, -2.0, 0.25, 0.0, 0.1, 0.3)
    given = {"special": [True, *[False] * 6], "grid": (2, 3), "picture": picture()}
    shown = contribute(scores, tokens=tokens, **given, trace=None)
    # Parts that the model did not see are not on the picture.
    shown = replace(shown, options={**shown.options, "area": (0.25, 0.25, 0.75, 0.75)})
    if method == "raw":
        shown = replace(shown, method="raw", layer=4, value=None, bias=None, contrast=None)
    figure, axes = shown.plot()
    under, over = axes.get_images()
    assert under.get_array().shape == (32, 48)
    assert not np.ma.getmaskarray(over.get_array()).any()
    said = words(figure)
    assert ("plural, not singular" in said.lower()) == (method == "contribution")
    assert captions.scale_name(shown) in [ax.get_ylabel() for ax in figure.axes]


def test_axes_that_are_given_get_the_bars_or_the_text():
    given = Figure().add_subplot()
    figure, axes = contribute().plot(given)
    assert axes is given
    assert figure is given.figure
    assert len(axes.patches) == 9
    small = Figure(figsize=(3, 2)).add_subplot()
    _, axes = answer.shaded_text(contribute(), small)
    assert axes is small
    assert "keys" in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize(
    ("draw", "shown", "message"),
    [
        (answer.answer, explain(), "method.*'flow'"),
        (
            answer.shaded_text,
            contribute(
                (1.0, 2.0, 0.5), grid=(1, 3), tokens=("0,0", "0,1", "0,2"), special=[False] * 3
            ),
            "no text",
        ),
        (
            answer.shaded_text,
            contribute(np.ones(500), tokens=["a"] * 500, special=[False] * 500),
            "500 tokens",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, shown, message):
    with pytest.raises(OptionError, match=message):
        draw(shown)


def test_a_method_without_sign_is_shaded_with_its_prediction_and_how_to_read_it():
    shown = explain(method="rollout")
    figure, axes = answer.shaded_text(shown)
    said = words(figure).replace("\n", " ")
    assert "Prediction: plural (93.0%)" in said
    assert captions.reading(shown)[:40] in said
    boxes = {text.get_text(): box for box, text, _ in shaded(axes)}
    usual = [i for i, special in enumerate(shown.special) if not special]
    best = max(usual, key=shown.scores.__getitem__)
    assert boxes[shown.tokens[best]].get_facecolor() == theme.scale()(1.0)
