"""Figures and pages of explanations."""

import io
import itertools
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from attnflow.attention import TextAttention
from attnflow.errors import OptionError
from attnflow.explanation import Explanation, Prediction
from attnflow.generation import Generation
from attnflow.view import answer, figures, generation, page, theme
from tests.support.chat import MESSAGES, chatter
from tests.support.pages import contribute, explain

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


# ---- Every kind of figure ------------------------------------------------------------------------

WORDS = ("the", "key", "to", "the", "cabinets", "in", "an", "old", "house", "was", "lost", "by")
FIVE = ("[CLS]", "the", "keys", "to", "cabinets")
TWO_HUNDRED = ("[CLS]", *(WORDS[i % len(WORDS)] for i in range(198)), "[SEP]")


def graph(tokens, layers=6):
    return np.random.default_rng(1).dirichlet(np.full(len(tokens), 0.2), (layers, len(tokens)))


def draw(kind, tokens, ax=None):
    shown = explanation(tokens, special=[0])
    if kind == "heat map":
        return figures.heat_map(shown, ax)
    if kind == "bars":
        return figures.token_bars(shown, ax)
    if kind == "comparison":
        other = Explanation.from_dict({**shown.to_dict(), "method": "flow"})
        return figures.comparison({"rollout": shown, "flow": other, tokens[-1]: shown}, ax)
    return figures.attention_graph(graph(tokens), tokens, ax=ax, title=tokens[-1])


KINDS = ("heat map", "bars", "comparison", "graph")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [FIVE, TWO_HUNDRED], ids=["5 tokens", "200 tokens"])
def test_no_label_lies_over_another_or_outside_the_figure(kind, tokens):
    figure, axes = draw(kind, tokens)
    figure.draw_without_rendering()
    page = figure.bbox.padded(1.0)
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        texts = [tick.label1 for tick in ticks if tick.label1.get_text()]
        assert len(texts) >= 3
        boxes = [text.get_window_extent() for text in texts]
        # Slanted labels have boxes that overlap although the words do not.
        straight = [
            box for box, text in zip(boxes, texts, strict=True) if text.get_rotation() in (0, 90)
        ]
        for first, second in itertools.pairwise(straight):
            assert not first.padded(-0.5).overlaps(second.padded(-0.5))
        for box in boxes:
            assert page.x0 <= box.x0
            assert box.x1 <= page.x1
            assert page.y0 <= box.y0
            assert box.y1 <= page.y1


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("heat map", ".pdf"), ("bars", ".svg"), ("comparison", ".png"), ("graph", ".pdf")],
)
def test_hostile_tokens_are_drawn_as_text_in_every_figure(kind, ending):
    tokens = ("[CLS]", *HOSTILE, "鑰匙", "مفتاح", "$\\frac{", "", "  ", "\n", "\U0010fffd")
    figure, axes = draw(kind, tokens)
    names = [label.get_text() for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    assert "$x^2$" in names
    assert "\\x1b[31m\\x00" in names
    assert "\\U0010fffd" in names
    assert not any(label.get_parse_math() for label in axes.get_xticklabels() if kind != "bars")
    # Under our settings a glyph that is missing is a warning, and a warning is an error.
    assert len(theme.content(figure, ending)) > 1000


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_drawn_into_axes_that_are_given(kind):
    whole = Figure()
    given = whole.subplots(1, 2)[1]
    figure, axes = draw(kind, FIVE, given)
    assert axes is given
    assert figure is whole
    with pytest.raises(OptionError, match=r"ax.*\blist\b"):
        draw(kind, FIVE, [])


def test_figures_leave_pyplot_and_settings_alone():
    code = (
        "import sys, matplotlib\n"
        "before = matplotlib.rcParams.copy()\n"
        "from attnflow.view import figures, theme\n"
        "drawn = figures.layer_map([[0.5, 0.5]], ['the', 'keys'])[0]\n"
        "theme.content(drawn, '.pdf')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert dict.__eq__(matplotlib.rcParams, before)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_the_same_figure_is_the_same_file(ending):
    first, second = (theme.content(draw("graph", FIVE)[0], ending) for _ in range(2))
    assert first == second


def test_a_pdf_has_the_fonts_that_publishers_take():
    content = theme.content(draw("heat map", FIVE)[0], ".pdf")
    assert b"/Type3" not in content
    assert b"/CIDFontType2" in content or b"/TrueType" in content


# ---- Colours -------------------------------------------------------------------------------------


def to_lab(rgb):
    """CIELAB of sRGB, after CIE 15 and IEC 61966-2-1."""
    rgb = np.asarray(rgb, dtype=float)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    xyz = linear @ np.transpose(to_xyz) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def test_colours_of_scores_are_even_and_get_darker_all_the_way():
    lab = to_lab(theme.scale()(np.arange(256))[:, :3])
    steps = np.linalg.norm(np.diff(lab, axis=0), axis=-1)
    assert steps.max() < 1.05 * steps.min()
    assert (np.diff(lab[:, 0]) < 0).all()
    assert lab[0, 0] > 95
    assert lab[-1, 0] < 20


def test_methods_are_told_apart_without_colour():
    from matplotlib.colors import to_rgb

    lightness = sorted(to_lab(to_rgb(style.colour))[0] for style in theme.STYLES.values())
    assert min(np.diff(lightness)) > 15
    assert len({style.marker for style in (*theme.STYLES.values(), *theme.OTHERS)}) == 10


# ---- Each figure ---------------------------------------------------------------------------------


def test_a_graph_draws_the_heaviest_edges_and_nothing_that_weighs_nothing():
    weights = np.zeros((2, 3, 3))
    weights[0] = [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.25, 0.75]]
    weights[1] = [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.9, 0.1]]
    _, axes = figures.attention_graph(weights, ["a", "b", "c"])
    (lines, _nodes) = axes.collections
    drawn = {
        (int(y1), int(x1), int(x0)) for (x1, y1), (x0, _) in np.array(lines.get_segments()).tolist()
    }
    assert drawn == {(layer + 1, k, m) for layer, k, m in np.argwhere(weights > 0).tolist()}
    widths = {tuple(edge): width for edge, width in zip(drawn, lines.get_linewidths(), strict=True)}
    assert len(set(widths.values())) == 6
    _, axes = figures.attention_graph(weights, ["a", "b", "c"], edges=2)
    assert len(axes.collections[0].get_segments()) == 2


def test_a_traced_position_gives_all_of_it_to_each_layer():
    weights = graph(FIVE, layers=3)
    traced = figures.traced(weights, 2)
    np.testing.assert_allclose(traced.sum(axis=(1, 2)), 1.0)
    # What arrives at the input is attention rollout, without a residual.
    expected = (weights[2] @ weights[1] @ weights[0])[2]
    np.testing.assert_allclose(traced[0].sum(axis=0), expected)


@pytest.mark.parametrize(
    ("weights", "tokens", "options", "message"),
    [
        (np.ones((2, 2)), ["a", "b"], {}, r"weights.*\(2, 2\)"),
        (np.ones((1, 2, 2)), ["a"], {}, "1 token"),
        (np.ones((1, 2, 2)), ["a", "b"], {"edges": 0}, "edges.*0"),
        (np.ones((1, 2, 2)), ["a", "b"], {"position": 2}, "position.*2"),
    ],
)
def test_a_graph_says_what_is_wrong(weights, tokens, options, message):
    with pytest.raises(OptionError, match=message):
        figures.attention_graph(weights, tokens, **options)


def test_bars_are_as_long_as_scores_and_special_tokens_do_not_dwarf_them():
    shown = explanation(FIVE, special=[0])
    _, axes = figures.token_bars(shown)
    lengths = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(lengths[1:], shown.scores[1:])
    assert lengths[0] < shown.scores[0]
    numbers = [text.get_text() for text in axes.texts]
    assert numbers[0] == f"{shown.scores[0]:.3f} →"
    assert numbers[1:] == [f"{score:.3f}" for score in shown.scores[1:]]


def test_a_comparison_has_a_row_for_each_and_its_numbers():
    first = explanation(FIVE, special=[0])
    second = Explanation.from_dict({**first.to_dict(), "scores": (first.scores**2).tolist()})
    _, axes = figures.comparison([first, second])
    (image,) = axes.get_images()
    expected = [item.scores / item.scores[1:].max() for item in (first, second)]
    np.testing.assert_allclose(image.get_array(), expected)
    assert len(axes.texts) == 10
    with pytest.raises(OptionError, match="'b'"):
        figures.comparison({"a": first, "b": explanation(("the", "keys"))})
    with pytest.raises(OptionError, match=r"explanations.*empty"):
        figures.comparison([])


def test_correlation_over_layers_draws_means_intervals_and_gaps():
    curve = [
        {"layer": 1, "mean": 0.1, "ci": [0.0, 0.2]},
        {"layer": 3, "mean": None, "ci": [None, None]},
        {"layer": 6, "mean": 0.5, "ci": [0.4, 0.6]},
    ]
    _, axes = figures.correlation_over_layers(
        {"flow": curve, "mine": [0.3, 0.2]}, baselines={"position": 0.25}
    )
    flow, mine, *_ = axes.lines
    assert flow.get_xdata().tolist() == [1, 3, 6]
    np.testing.assert_array_equal(flow.get_ydata(), [0.1, np.nan, 0.5])
    assert mine.get_ydata().tolist() == [0.3, 0.2]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["flow", "mine", "position"]
    assert len(axes.collections) == 1


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ({}, "curves"),
        ({"flow": []}, "'flow'.*layers"),
        ({"flow": [{"std": 1.0}]}, "layer 1.*'flow'.*'mean'"),
    ],
)
def test_correlation_over_layers_says_what_is_wrong(curves, message):
    with pytest.raises(OptionError, match=message):
        figures.correlation_over_layers(curves)


def test_an_overlay_colours_only_what_the_model_saw():
    patches = Explanation.from_dict(
        {
            **explanation(("[CLS]", "0,0", "0,1"), special=[0], grid=(1, 2)).to_dict(),
            "text": "",
            "spans": [None] * 3,
            "options": {"area": [0.0, 0.25, 1.0, 0.75]},
        }
    )
    photo = np.arange(4 * 8 * 3, dtype=np.uint8).reshape(4, 8, 3)
    _, axes = figures.image_overlay(patches, photo)
    grey, drawn = axes.get_images()
    expected = np.asarray(Image.fromarray(photo).convert("L")) / 255
    np.testing.assert_allclose(grey.get_array(), expected, atol=1 / 255)
    seen = ~np.ma.getmaskarray(drawn.get_array())
    assert seen.tolist() == [[False, False, True, True, True, True, False, False]] * 4
    with pytest.raises(OptionError, match="image"):
        figures.image_overlay(explanation(FIVE), photo)
    with pytest.raises(OptionError, match=r"alpha.*2"):
        figures.image_overlay(patches, photo, alpha=2)
    with pytest.raises(OptionError, match=r"image.*\(3,\)"):
        figures.image_overlay(patches, np.zeros(3))


def test_scores_of_another_shape_than_the_tokens_are_refused():
    with pytest.raises(OptionError, match=r"values.*\(2, 3\)"):
        figures.layer_map(np.ones((2, 3)), ["a", "b"])
    with pytest.raises(OptionError, match=r"special.*1"):
        figures.layer_map(np.ones((2, 2)), ["a", "b"], special=[True])
    with pytest.raises(OptionError, match="draw"):
        figures.layer_map(np.ones((0, 2)), ["a", "b"])


# ---- Contributions -------------------------------------------------------------------------------


def test_the_scale_of_signs_is_even_on_both_sides_of_white():
    lab = to_lab(theme.signed_scale()(np.arange(255))[:, :3])
    assert lab[127, 0] > 95
    below, above = lab[126::-1], lab[128:]
    np.testing.assert_allclose(below[:, 0], above[:, 0], atol=2.0)
    assert (np.diff(above[:, 0]) < 0).all()
    # Yellow-blue is the difference that nearly everybody sees.
    assert (below[20:, 2] > 10).all()
    assert (above[20:, 2] < -10).all()


def test_contributions_are_coloured_around_zero_with_dashes_below_it():
    shown = contribute()
    figure, axes = figures.heat_map(shown)
    image = axes.get_images()[0]
    # Scaled to the tokens that are not special, where they enter the first layer.
    assert image.get_clim() == (-2.0, 2.0)
    assert image.get_cmap() is theme.signed_scale()
    rows = np.argwhere(shown.layer_scores < -figures.FAINTEST_DASH * 2)
    dashes = axes.collections[0].get_segments()
    assert sorted(segment.mean(axis=0).tolist() for segment in dashes) == sorted(
        [column, row] for row, column in rows.tolist()
    )
    bar = figure.axes[1]
    assert bar.get_ylabel() == "against \u2190 \u2192 for"
    below = axes.get_xlabel()
    assert "biases -0.12, together +1.75" in " ".join(below.split())
    assert shown.check.sentences()[0] in " ".join(below.split())


def test_bars_of_contributions_reach_to_both_sides_and_are_hatched_below_zero():
    shown = contribute()
    _, axes = figures.token_bars(shown)
    bars = axes.patches
    lengths = [bar.get_width() for bar in bars]
    np.testing.assert_allclose(lengths[:7], shown.scores)
    # Biases and the answer follow: the bars add up.
    assert [label.get_text() for label in axes.get_yticklabels()][7:] == ["biases", "together"]
    np.testing.assert_allclose(lengths[7:], [shown.bias, shown.value])
    assert sum(lengths[:-1]) == pytest.approx(lengths[-1])
    assert [bool(bar.get_hatch()) for bar in bars] == [length < 0 for length in lengths]
    texts = [text.get_text() for text in axes.texts]
    assert texts[2] == "+2.00"
    assert texts[5] == "-1.00"
    assert axes.get_xlim()[0] < -1.0


def test_special_tokens_do_not_stretch_the_scale_of_contributions():
    shown = contribute((-9.0, 0.5, 2.0, -0.125, 0.0, -1.0, 9.0))
    _, axes = figures.token_bars(shown)
    texts = [text.get_text() for text in axes.texts]
    assert texts[0] == "\u2190 -9.00"
    assert texts[6] == "+9.00 \u2192"
    assert axes.get_xlim()[0] > -4
    many = contribute(
        np.sin(np.arange(60)), tokens=[f"w{i}" for i in range(60)], special=[False] * 60
    )
    _, axes = figures.token_bars(many)
    named = {text.get_text() for text in axes.texts}
    assert {f"w{np.argmax(many.scores)}", f"w{np.argmin(many.scores)}"} <= named


def test_methods_with_and_without_signs_are_compared():
    shown = contribute()
    rollout = explain(shown.tokens, method="rollout")
    figure, axes = figures.comparison([shown, rollout])
    assert axes.get_images()[0].get_clim() == (-1.0, 1.0)
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["Contributions", "Attention rollout, L4"]
    texts = [text.get_text() for text in axes.texts]
    assert texts[2] == "+2.00"
    assert texts[5] == "-1.00"
    assert not texts[9].startswith("+")
    assert figure.axes[1].get_ylabel() == "share of the row's largest"
    _, alone = figures.comparison([rollout])
    assert alone.get_images()[0].get_cmap() is theme.scale()


def patches():
    tokens = ("[CLS]", "0,0", "0,1", "1,0", "1,1")
    scores = (0.5, 1.0, -2.0, 0.25, -0.01)
    special = [True, *[False] * 4]
    return contribute(scores, tokens=tokens, special=special, grid=(2, 2))


def test_contributions_of_patches_are_drawn_with_their_signs():
    figure, axes = figures.heat_map(patches())
    assert axes.get_images()[0].get_clim() == (-2.0, 2.0)
    assert len(axes.collections[0].get_segments()) == 1
    assert figure.axes[1].get_ylabel() == "against \u2190 \u2192 for"
    _, axes = figures.image_overlay(patches(), np.zeros((8, 8)))
    drawn = axes.get_images()[1]
    assert drawn.get_clim() == pytest.approx((-2.0, 2.0))
    assert np.asarray(drawn.get_alpha()).shape == (8, 8)
    assert axes.collections


def test_the_graph_of_contributions_has_width_by_size_and_dashes_below_zero():
    shown = contribute()
    _, axes = figures.contribution_graph(shown)
    edges = axes.collections[0]
    segments = edges.get_segments()
    carried = shown.trace.carried
    faintest = figures.FAINTEST**2 * abs(carried).max()
    assert len(segments) == (abs(carried) > faintest).sum()
    for segment, width, (_, dashes) in zip(
        segments, edges.get_linewidths(), edges.get_linestyles(), strict=True
    ):
        (start, above), (end, below) = segment.astype(int).tolist()
        assert above == below + 1
        weight = carried[below, start, end]
        assert (dashes is not None) == (weight < 0)
        assert width == pytest.approx(
            0.15 + 3.6 * np.sqrt(abs(weight) / abs(carried).max()), rel=1e-6
        )
    assert "Contributions to plural" in axes.get_title(loc="left")
    _, few = figures.contribution_graph(shown, edges=3)
    assert len(few.collections[0].get_segments()) == 3


def test_a_graph_of_contributions_needs_them():
    for lacking in (contribute(trace=None), explain()):
        with pytest.raises(OptionError, match=f"carried.*{lacking.method}"):
            figures.contribution_graph(lacking)
    with pytest.raises(OptionError, match="edges"):
        figures.contribution_graph(contribute(), edges=0)


def test_a_check_is_below_the_figure_of_attention_too():
    check = contribute().check
    _, axes = explain(check=check).plot()
    assert "Blank-out" in axes.get_xlabel()
    _, axes = explain().plot()
    assert "Blank-out" not in axes.get_xlabel()


# ---- What colour means, and labels ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "scale", "meaning"),
    [
        ("raw", "attention", "attends to it in layer 4"),
        ("rollout", "share of attention", "multiplied along every path"),
        ("flow", "possible flow", "over all paths at once"),
    ],
)
def test_every_plot_shows_the_prediction_and_says_what_colour_means(method, scale, meaning):
    figure, axes = explain(method=method).plot()
    assert figure.axes[1].get_ylabel() == scale
    below = " ".join(axes.get_xlabel().split())
    assert "Prediction: plural (93.0%)" in below
    assert meaning in below


BYTES = ("<s>", "\u0120the", "\u010a", "keys", "\u0120", "\u00e2\u0122", "\u013b", "\u010a\u010a")
PIECES = ("<s>", "\u2581the", "<0x0A>", "keys", "\u2581", "\u2581\u2581", "s", "<0x0A>")


@pytest.mark.parametrize("tokens", [BYTES, PIECES], ids=["bytes", "sentence pieces"])
def test_marks_of_a_vocabulary_are_no_labels(tokens, tmp_path):
    weights = np.random.default_rng(1).dirichlet(np.full(8, 0.5), (2, 8))
    given = TextAttention.of(weights, tokens).explain(method="rollout")
    raw = replace(given, tokens=tokens)  # as older files have them
    drawn = [
        *(one.plot() for one in (given, raw)),
        *(figures.token_bars(one) for one in (given, raw)),
        *(answer.shaded_text(one) for one in (given, raw)),
        figures.comparison([given]),
        figures.attention_graph(weights, tokens),
        figures.layer_map(weights[:, 0], tokens),
    ]
    for figure, _ in drawn:
        theme.content(figure, ".svg")
        said = [text.get_text() for text in figure.findobj(Text)]
        assert not [text for text in said if set(text) & set("\u0120\u010a\u2581")]
        assert any("\u21b5" in text for text in said)
    # Beside a bar, a token of spaces would have no name.
    names = [label.get_text() for label in figures.token_bars(raw)[1].get_yticklabels()]
    assert "\u2423" in " ".join(names)
    for one in (given, raw):
        printed = io.StringIO()
        one.show(printed)
        data = page.data(one)
        shown = json.dumps([data["labels"], data["pieces"]], ensure_ascii=False)
        for text in (printed.getvalue(), shown, one._repr_html_()):
            assert not set(text) & set("\u0120\u010a\u2581")
    given.save(tmp_path / "scores.csv")
    assert not set((tmp_path / "scores.csv").read_text("utf-8")) & set("\u0120\u010a\u2581")


def test_letters_that_a_vocabulary_writes_spaces_with_stay_letters():
    tokens = ("\u0120or\u0121", "jaf", "\u0127afna")  # Maltese
    weights = np.full((1, 3, 3), 1 / 3)
    for _, axes in (
        TextAttention.of(weights, tokens).explain().plot(),
        figures.layer_map(weights[0], tokens),
    ):
        assert [label.get_text() for label in axes.get_xticklabels()] == list(tokens)


# ---- Many tokens ---------------------------------------------------------------------------------


def of_many(scores):
    tokens = [f"w{i}" for i in range(scores.shape[1])]
    made = explain(tokens, layers=len(scores), trace=False, special=[False] * len(tokens))
    return replace(made, scores=scores[-1], layer_scores=scores)


def test_many_tokens_that_are_almost_alike_are_told_apart_by_colour():
    random = np.random.default_rng(3)
    # Flow of deep layers is the same almost everywhere; one token of rollout exceeds all others.
    rollout = 1.0 + 0.01 * random.random(400)
    rollout[7] = 50.0
    flow = np.where(np.arange(400) < 120, 0.9 + 0.1 * random.random(400), 1.0)
    made = of_many(np.stack([rollout, flow]))
    figure, axes = made.plot()
    shares = np.asarray(axes.get_images()[0].get_array())
    lightness = to_lab(theme.scale()(shares[0])[:, :3])[:, 0]
    assert np.ptp(lightness[np.argsort(rollout)[10:390]]) > 60
    lightness = to_lab(theme.scale()(shares[1])[:, :3])[:, 0]
    assert np.ptp(lightness[:120]) > 15
    # The order within a layer stays, and the median has its own place.
    assert (np.diff(shares[0][np.argsort(rollout)]) >= 0).all()
    assert np.median(shares, axis=1) == pytest.approx(figures.MEDIAN_SHARE, abs=0.01)
    names = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert names == ["lowest", "median", "highest"]
    assert "Colours are relative" in axes.get_xlabel()
    figure, axes = figures.heat_map(made, relative=False)
    np.testing.assert_array_equal(axes.get_images()[0].get_array(), made.layer_scores)
    assert "relative" not in axes.get_xlabel()


def test_few_tokens_and_contributions_keep_their_numbers():
    assert "relative" not in explain().plot()[1].get_xlabel()
    many = contribute(
        np.sin(np.arange(120)), tokens=[f"w{i}" for i in range(120)], special=[False] * 120
    )
    _, axes = figures.heat_map(many)
    np.testing.assert_array_equal(axes.get_images()[0].get_array(), many.layer_scores)


# ---- Images under their map ----------------------------------------------------------------------


@pytest.mark.parametrize("signed", [False, True])
def test_an_image_can_be_seen_under_the_highest_score(signed):
    tokens = ("[CLS]", *(f"{row},{column}" for row in range(4) for column in range(4)))
    scores = np.full(17, 0.05)
    scores[1 + 4 + 1] = 1.0
    given = {"tokens": tokens, "special": [True, *[False] * 16], "grid": (4, 4)}
    shown = contribute(scores, **given, trace=None)
    if not signed:
        shown = replace(shown, method="raw", layer=4, value=None, bias=None, contrast=None)
    # Stripes of two pixels, in the middle of which the highest score lies.
    stripes = np.where(np.arange(64)[:, None] // 2 % 2, 0.9, 0.1) * np.ones((64, 64))
    _, axes = figures.image_overlay(shown, stripes)
    under, over = axes.get_images()
    grey, colours = np.asarray(under.get_array()), over.to_rgba(over.get_array())
    alpha = np.broadcast_to(over.get_alpha(), grey.shape)
    seen = alpha[..., None] * colours[..., :3] + (1 - alpha[..., None]) * grey[..., None]
    lightness = to_lab(seen[20:28, 20:28])[..., 0]
    assert np.ptp(lightness) > 0.4 * np.ptp(to_lab(np.repeat(stripes[..., None], 3, -1))[..., 0])


# ---- Generations ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written():
    return chatter().generate(MESSAGES, max_new_tokens=4)


def test_the_figure_of_a_generation_is_its_matrix(written, tmp_path):
    given = written
    figure, axes = given.plot()
    image = axes.get_images()[0]
    columns = [i for i, special in enumerate(given.whole.special) if not special]
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), given.matrix[:, columns])
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == [theme.label(one.target.strip() or one.target) for one in given]
    said = " ".join(text.get_text() for text in figure.findobj(Text))
    assert theme.label(given.text.strip()) in said
    assert generation.addition(given) in said.replace("\u200e", "")
    assert len(axes.collections[0].get_segments()) == int(
        (given.matrix[:, columns] < -figures.FAINTEST_DASH * image.get_clim()[1]).sum()
    )
    for ending in (".png", ".svg", ".pdf"):
        given.save(tmp_path / f"answer{ending}")
        assert (tmp_path / f"answer{ending}").stat().st_size > 1000


def test_a_generation_without_steps_or_words_has_a_figure_too(written):
    alone = replace(written, explanations=())
    figure, axes = alone.plot()
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[-2:] == ["biases", "together"]
    assert generation.ITSELF in names
    with pytest.raises(OptionError, match="generation"):
        figures.generation_map(alone)
    nothing = Generation(prompt="the", text="", explanations=[], whole=None, written=[])
    figure, _ = nothing.plot()
    assert generation.NOTHING in " ".join(text.get_text() for text in figure.findobj(Text))
