"""The terminal view: on a terminal, in a pipe, narrow and wide, in any script."""

import dataclasses
import fcntl
import io
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from attnflow.explanation import Explanation, Prediction
from attnflow.view.captions import format_score
from attnflow.view.pieces import Piece, labels, pieces
from attnflow.view.terminal import colours, render, render_plain, show
from attnflow.view.text import cells, visible
from tests.support.pages import contribute

TEXT = "The keys to the cabinet are on the table."
NOTE = "Most flows no longer depend on the position."
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
BLOCKS = "█▉▊▋▌▍▎▏"


def explained(text, spans=None, **changed):
    """An explanation with one token for each word or punctuation mark, and two special ones."""
    if spans is None:
        found = [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]
        spans = [None, *found, None]
        changed.setdefault("tokens", ["[CLS]", *(text[a:b] for a, b in found), "[SEP]"])
        changed.setdefault("special", [True, *[False] * len(found), True])
    count = len(spans)
    scores = changed.pop("scores", np.arange(1, count + 1) / 100)
    given = {
        "tokens": [f"t{i}" for i in range(count)],
        "scores": scores,
        "layer_scores": [scores] * 6,
        "method": "flow",
        "layer": 6,
        "position": 0,
        "text": text,
        "spans": spans,
        "special": [False] * count,
        "model": "verb-number",
        "task": "classification",
    }
    return Explanation(**given | changed)


@pytest.fixture
def keys():
    return explained(
        TEXT,
        scores=np.array([42, 4, 60, 6, 5, 30, 24, 6, 4, 12, 2, 5]) / 200,
        prediction=Prediction("plural", 1, 0.982),
        target="plural",
        notes=[NOTE],
    )


def on_terminal(explanation, width=80, **options):
    """What rich writes to a terminal with all colours."""
    stream = io.StringIO()
    options = {"color_system": "truecolor", "no_color": False} | options
    console = Console(file=stream, force_terminal=True, width=width, force_jupyter=False, **options)
    colour = not options["no_color"]
    console.print(render(explanation, width=width, colour=colour))
    return stream.getvalue()


def plain(explanation, **options):
    return render_plain(explanation, **options)


def run_in_terminal(path, columns=70, **environment):
    """Show a stored explanation in a pseudo-terminal, as a user's shell would."""
    code = (
        "import sys; from attnflow.explanation import Explanation as E; E.load(sys.argv[1]).show()"
    )
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE")
    }
    settings = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONIOENCODING": "utf-8"}
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", code, path],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=inherited | settings | environment,
    )
    os.close(terminal)
    written = b""
    # Linux ends the reading with an error, other systems with nothing read.
    with os.fdopen(controller, "rb", buffering=0) as reader:
        while True:
            try:
                part = reader.read(4096)
            except OSError:
                break
            if not part:
                break
            written += part
    assert process.wait() == 0, written.decode()
    return written.decode().replace("\r\n", "\n")


# On a terminal


def test_a_terminal_gets_the_shaded_text_the_highest_tokens_and_the_prediction(keys, tmp_path):
    keys.save(tmp_path / "keys.json")
    written = run_in_terminal(tmp_path / "keys.json", columns=70)
    lines = ESCAPE.sub("", written).splitlines()
    assert any(f"[CLS] {TEXT} [SEP]" in line for line in lines)
    assert any(line.split()[:2] == ["keys", "0.300"] and "█" in line for line in lines)
    assert any("plural (98.2%)" in line for line in lines)
    assert any("[CLS] at layer 6" in line for line in lines)
    assert any(NOTE in line for line in lines)
    assert max(cell_len(line) for line in lines) <= 70
    # Each token has its colour, and the highest has the brightest.
    background, foreground = (channels(colour) for colour in colours(1.0))
    assert f"\x1b[1;38;2;{foreground};48;2;{background}mkeys\x1b[0m" in written


def channels(colour):
    return ";".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))


def test_no_color_leaves_bars_and_bold(keys, tmp_path):
    keys.save(tmp_path / "keys.json")
    written = run_in_terminal(tmp_path / "keys.json", NO_COLOR="1")
    codes = {code for found in ESCAPE.findall(written) for code in found[2:-1].split(";")}
    assert codes <= {"", "0", "1", "2"}
    assert "\x1b[1mkeys\x1b[0m" in written
    assert "█" in written
    assert re.search("Bold.*half", " ".join(ESCAPE.sub("", written).split()))


def test_a_dumb_terminal_gets_no_escape_code(keys, tmp_path):
    keys.save(tmp_path / "keys.json")
    written = run_in_terminal(tmp_path / "keys.json", columns=50, TERM="dumb")
    assert "\x1b" not in written
    assert f"[CLS] {TEXT}" in " ".join(written.split())
    assert max(len(line) for line in written.splitlines()) <= 50


def test_a_terminal_without_unicode_gets_no_character_it_lacks(keys, tmp_path):
    explained(f"{TEXT} 鑰匙 שלום 😀").save(tmp_path / "any.json")
    written = run_in_terminal(tmp_path / "any.json", PYTHONIOENCODING="ascii")
    assert written.isascii()
    assert r"\u9470\u5319" in written
    assert "####" in written


def test_columns_decides_about_the_width(keys, tmp_path):
    keys.save(tmp_path / "keys.json")
    for environment in ({"TERM": "xterm"}, {"TERM": "dumb"}):
        written = run_in_terminal(tmp_path / "keys.json", 70, COLUMNS="30", **environment)
        widths = [cell_len(line) for line in ESCAPE.sub("", written).splitlines()]
        assert 20 < max(widths) <= 30


def test_a_brighter_background_means_a_higher_score(keys):
    written = on_terminal(keys)
    brightness = {}
    for red, green, blue, token in re.findall(r"48;2;(\d+);(\d+);(\d+)m(\w+)\x1b", written):
        brightness[token] = int(red) + int(green) + int(blue)
    order = ["keys", "cabinet", "are", "table", "to", "The"]
    assert sorted(order, key=lambda token: -brightness[token]) == order


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("sign", [1, -1])
def test_the_scale_grows_brighter_and_stays_readable(sign):
    scale = [colours(sign * step / 200) for step in range(201)]
    bright = [luminance(background) for background, _ in scale]
    assert all(low <= high for low, high in itertools.pairwise(bright))
    for background, foreground in scale:
        low, high = sorted([luminance(background), luminance(foreground)])
        assert (high + 0.05) / (low + 0.05) >= 4.5
    assert colours(7.0 * sign) == colours(1.0 * sign)
    assert colours(1.0) != colours(-1.0)


@pytest.mark.parametrize("system", ["standard", "256", "truecolor"])
def test_terminals_with_few_colours_are_served(keys, system):
    written = on_terminal(keys, color_system=system)
    assert f"[CLS] {TEXT} [SEP]" in ESCAPE.sub("", written)


def test_a_wide_terminal_does_not_stretch_the_lines(keys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "300")
    stream = Terminal()
    show(keys, stream)
    assert "\x1b[" in stream.getvalue()
    assert max(len(line) for line in ESCAPE.sub("", stream.getvalue()).splitlines()) <= 100


# In a pipe or a file


def test_a_pipe_gets_plain_text_with_numbers(keys, tmp_path):
    keys.save(tmp_path / "keys.json")
    code = (
        "import sys; from attnflow.explanation import Explanation as E; E.load(sys.argv[1]).show()"
    )
    environment = {name: v for name, v in os.environ.items() if name not in ("FORCE_COLOR",)}
    for encoding in ("utf-8", "ascii", "cp1252"):
        result = subprocess.run(
            [sys.executable, "-c", code, tmp_path / "keys.json"],
            capture_output=True,
            check=True,
            env=environment | {"PYTHONIOENCODING": encoding},
        )
        written = result.stdout.decode(encoding)
        assert "\x1b" not in written
        bar = "█" * 32 if encoding == "utf-8" else "#" * 32
        assert ["keys", "0.300", bar] in [line.split() for line in written.splitlines()]


def test_plain_text_reads_like_this(keys):
    assert plain(keys, width=64) == (
        "  Attention flow, layer 6 of 6, position 0 [CLS], verb-number\n"
        "\n"
        "  [CLS] The keys to the cabinet are on the table. [SEP]\n"
        "\n"
        "  keys       0.300  ████████████████████████████████\n"
        "  cabinet    0.150  ████████████████\n"
        "  are        0.120  ████████████▊\n"
        "  table      0.060  ██████▍\n"
        "  to         0.030  ███▎\n"
        "  on         0.030  ███▎\n"
        "  the (1st)  0.025  ██▋\n"
        "  The        0.020  ██▏\n"
        "  2 more tokens, 0.020 or less each\n"
        "  special tokens: [CLS] 0.210, [SEP] 0.025\n"
        "\n"
        "  Prediction: plural (98.2%)\n"
        "\n"
        "  The higher a token's score, the more attention can flow from\n"
        "  [CLS] at layer 6 down to it, over all paths at once.\n"
        "\n"
        "  Note: Most flows no longer depend on the position.\n"
    )


def test_without_rich_a_terminal_gets_plain_text(keys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "64")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = Terminal()
    show(keys, stream)
    assert stream.getvalue() == plain(keys, width=64)


def test_any_text_stream_will_do(keys, monkeypatch, capsys):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "64")

    class Collector:
        def __init__(self):
            self.parts = []

        def write(self, text):
            self.parts.append(text)

    collector = Collector()
    show(keys, collector)
    assert "".join(collector.parts) == plain(keys, width=64)
    assert keys.show() is None
    assert capsys.readouterr().out == plain(keys, width=64)


def test_a_target_other_than_the_prediction_is_named(keys):
    changed = keys.to_dict() | {"target": "singular"}
    shown = plain(Explanation.from_dict(changed))
    assert "Prediction: plural (98.2%)" in shown
    assert "Explained for: singular" in shown
    assert "Explained for" not in plain(keys)
    nothing = plain(Explanation.from_dict(changed | {"target": None, "prediction": None}))
    assert "Prediction" not in nothing
    assert "Explained" not in nothing


@pytest.mark.parametrize("method", ["raw", "rollout", "flow"])
def test_every_method_says_how_to_read_it(method):
    shown = plain(explained(TEXT, method=method))
    assert "higher" in shown
    relative = plain(explained(TEXT, method=method, options={"receptive_field": True}))
    assert "relative to" in " ".join(relative.split())


def test_the_position_is_named_only_while_all_tokens_are_there(keys):
    assert "position 0 [CLS]" in plain(keys)
    for changed in (keys.by_unit("words"), keys.without_special_tokens()):
        assert "position 0, verb-number" in plain(changed)


# The text


def joined(shown):
    return "".join(piece.text for piece in shown)


def test_the_text_is_shown_with_its_own_spacing():
    text = "  two  spaces,\n\ttab \u00a0 end "
    spans = [(2, 5), (6, 13), (13, 14), (16, 19), (20, 26)]
    shown = pieces(explained(text, spans).pieces)
    assert joined(shown) == text
    assert [piece.text for piece in shown if piece.tokens] == ["two", "spaces", ",", "tab", "end"]


def test_special_tokens_stand_around_the_text_and_in_it():
    explanation = explained(
        "ab cd", [None, None, (0, 2), None, (3, 5), None], tokens=list("<[a|c>")
    )
    assert joined(pieces(explanation.pieces)) == "< [ ab | cd >"


def test_tokens_that_share_a_character_are_shown_once():
    # The parts of an emoji, then a letter and its accent apart
    explanation = explained("😀e\u0301!", [(0, 1), (0, 1), (0, 1), (1, 2), (2, 3), (3, 4)])
    assert pieces(explanation.pieces) == [
        Piece("😀", (0, 1, 2)),
        Piece("e\u0301", (3, 4)),
        Piece("!", (5,)),
    ]


def test_text_that_no_token_covers_is_shown_before_the_last_special_token():
    explanation = explained("cut short here", [(0, 3), None], tokens=["cut", "</s>"])
    assert joined(pieces(explanation.pieces)) == "cut short here </s>"


@st.composite
def any_explanation(draw):
    text = draw(st.text(max_size=40))
    place = st.integers(0, len(text))
    pair = st.tuples(place, place).map(lambda pair: (min(pair), max(pair)))
    spans = draw(st.lists(st.none() | pair, max_size=12))
    floats = st.floats(-1e300, 1e300)
    count = len(spans)
    return explained(
        text,
        spans,
        tokens=draw(st.lists(st.text(), min_size=count, max_size=count)),
        special=draw(st.lists(st.booleans(), min_size=count, max_size=count)),
        scores=np.array(draw(st.lists(floats, min_size=count, max_size=count))),
        prediction=draw(st.none() | st.builds(Prediction, st.text(), st.just(0), st.floats(0, 1))),
        target=draw(st.none() | st.text()),
        model=draw(st.text()),
        notes=draw(st.lists(st.text(), max_size=2)),
    )


@given(any_explanation())
def test_every_token_and_every_character_is_shown_once(explanation):
    shown = pieces(explanation.pieces)
    tokens = [token for piece in shown for token in piece.tokens]
    nameless = [i for i, token in enumerate(explanation.tokens) if not token]
    assert len(tokens) == len(set(tokens))
    assert set(range(len(explanation.tokens))) - set(tokens) <= set(nameless)
    by_name = {i for i, span in enumerate(explanation.spans) if span is None or span[0] == span[1]}
    if not by_name:
        assert joined(shown) == explanation.text


@given(any_explanation(), st.integers(1, 120), st.sampled_from(["utf-8", "ascii", "cp1252"]))
def test_any_explanation_fits_any_width_and_encoding(explanation, width, encoding):
    shown = plain(explanation, width=width, encoding=encoding)
    shown.encode(encoding)
    assert not any(unicodedata.category(c) == "Cc" for c in shown.replace("\n", ""))
    if width >= 24:
        assert max(cells(line) for line in shown.split("\n")) <= width
    written = ESCAPE.sub("", on_terminal(explanation, width))
    assert not any(unicodedata.category(c) == "Cc" for c in written.replace("\n", ""))
    assert max(cell_len(line) for line in written.split("\n")) <= max(width, 2)


@pytest.mark.parametrize("count", [0, 1, 5, 500])
@pytest.mark.parametrize("width", [24, 80])
def test_few_and_many_tokens_fit(count, width):
    text = " ".join(["word"] * count)
    explanation = explained(text)
    written = ESCAPE.sub("", on_terminal(explanation, width))
    for shown in (written, plain(explanation, width=width)):
        assert max(len(line) for line in shown.splitlines()) <= width
        # A long text is not printed as a whole.
        assert shown.count("word") >= (4 if count == 500 else count)
        rows = [line for line in shown.splitlines() if set(line) & set(BLOCKS)]
        # Without text, the bars are those of the special tokens.
        assert len(rows) == (4 if count == 500 else min(count, 8) or 2)
        assert len(shown.splitlines()) < 40


def test_no_tokens_at_all_are_said_to_be_none():
    empty = explained("", [])
    assert "no tokens" in plain(empty)
    assert "no tokens" in on_terminal(empty)


def test_bars_are_aligned_by_what_a_terminal_makes_of_the_labels():
    words = ["key", "鑰匙", "cafe\u0301", "열쇠", "👩‍👩‍👧", "❤️", "ключ"]
    text = " ".join(words)
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    explanation = explained(
        text, [(int(a), int(a) + len(w)) for a, w in zip(starts, words, strict=False)]
    )
    written = ESCAPE.sub("", on_terminal(explanation))
    for shown, measure in ((written, cell_len), (plain(explanation), cells)):
        rows = [line for line in shown.splitlines() if "█" in line]
        assert len(rows) == len(words)
        assert len({measure(re.split(f"[{BLOCKS}]", row)[0]) for row in rows}) == 1


def test_right_to_left_text_keeps_its_order_and_leaves_the_numbers_alone():
    text = "שלום עולם مرحبا"
    explanation = explained(text)
    for shown in (ESCAPE.sub("", on_terminal(explanation)), plain(explanation)):
        assert f"[CLS] {text} [SEP]" in shown
        rows = [line for line in shown.splitlines() if "█" in line]
        # A mark of direction ends the label before the number begins.
        assert all(re.match(r" *\w+\u200e +0\.0\d00  ", row) for row in rows)
        assert len(rows) == 3
    assert "\u200e" not in plain(explained(TEXT))


def test_nothing_in_a_token_reaches_the_terminal_as_a_command():
    text = "\x1b[31mred\x1b[0m \x07 \x9b5A \u202eflip [bold]b[/bold] :smile: a\rb \x7f"
    explanation = explained(text, prediction=Prediction(text, 0, 0.5), notes=[text], model=text)
    written = on_terminal(explanation, width=100, no_color=True)
    shown = ESCAPE.sub("", written)
    codes = set(ESCAPE.findall(written))
    assert codes <= {f"\x1b[{code}m" for code in ("0", "1", "2", "1;2")}
    for output in (shown, plain(explanation, width=100)):
        assert not set("\x1b\x07\x9b\u202e\r\x7f") & set(output)
        flat = " ".join(output.split())
        assert r"␛[31mred␛[0m ␇ \x9b5A \u202eflip [bold]b[/bold] :smile: a␍b ␡" in flat


def test_an_ascii_stream_gets_escapes_for_what_it_lacks():
    assert visible("\x1b[1m é 鑰 \U0001f600 \x85", "ascii") == (
        r"\x1b[1m \xe9 \u9470 \U0001f600 \x85"
    )
    assert visible("a\nb", "ascii", line_breaks=False) == r"a\nb"
    assert visible("a\r\nb", line_breaks=False) == "a↵b"


def test_a_token_of_whitespace_can_be_seen():
    explanation = explained("a\n b  ", [(0, 1), (1, 2), (3, 4), (4, 6)])
    assert "a↵" in ESCAPE.sub("", on_terminal(explanation))
    shown = [line.split()[:2] for line in plain(explanation).splitlines()]
    assert ["↵", "0.0200"] in shown
    assert ["␣␣", "0.0400"] in shown


# Labels and numbers


def test_tokens_of_the_same_name_are_told_apart():
    names = labels(explained(" ".join([*"aaba", *"c" * 12])).pieces)
    assert names[:5] == ["[CLS]", "a (1st)", "a (2nd)", "b", "a (3rd)"]
    assert names[-3:-1] == ["c (11th)", "c (12th)"]


def test_labels_are_what_stands_in_the_text():
    explanation = explained(
        "The keys", [None, (0, 3), (3, 8), (8, 8)], tokens=["<s>", "ĠThe", "Ġkeys", "▁"]
    )
    assert labels(explanation.pieces) == ["<s>", "The", "keys", "␣"]


def test_scores_have_as_many_digits_as_they_need():
    assert format_score(0.3, 0.5) == "0.300"
    assert format_score(12.0, 30.0) == "12.000"
    assert format_score(0.00021, 0.0042) == "0.00021"
    assert format_score(3e-9, 4e-9) == "3.00e-09"
    assert format_score(2.5e7, 2.5e7) == "2.50e+07"
    assert format_score(-0.0, 0.5) == "0.000"
    assert format_score(-0.5, 0.5) == "-0.500"


# ---- Contributions -------------------------------------------------------------------------------


def test_contributions_begin_with_the_answer_and_end_with_what_they_add_up_to():
    lines = plain(contribute(notes=[])).splitlines()
    shown = ["The model answers", "Plural, not singular", "It is 93 % sure \u00b7 models/tiny"]
    assert [line.strip() for line in lines[:3]] == shown
    assert " ".join(" ".join(lines[4:6]).split()) == (
        "'keys' speaks most for it (+2.00 of +1.75 in all), 'cabinet' most against it (-1.00)."
    )
    assert lines[7].strip() == "[CLS] The keys to the cabinet [SEP]"
    rows = [line.split() for line in lines[9:14]]
    assert [row[0] for row in rows] == ["keys", "cabinet", "The", "to", "the"]
    assert [row[1] for row in rows] == ["+2.00", "-1.00", "+0.50", "-0.12", "0.00"]
    assert lines[14].strip() == "special tokens: [CLS] +0.25, [SEP] +0.25"
    total = "tokens +1.38, special tokens +0.50, biases -0.12, together +1.75"
    assert lines[16].strip() == f"Sum: {total}"
    text = " ".join(" ".join(lines[17:]).split())
    assert text.startswith("Check: Blank-out agrees")
    assert "logit of plural minus that of singular" in text
    assert " ".join(contribute().check.sentences()) in text


def test_bars_of_contributions_reach_to_both_sides_of_one_line():
    for encoding, block in (("utf-8", "█"), ("ascii", "#")):
        lines = plain(contribute(), encoding=encoding).splitlines()
        keys, cabinet = (
            next(line for line in lines if line.split()[:1] == [name])
            for name in ("keys", "cabinet")
        )
        zero = keys.index(block)
        assert len(cabinet.rstrip()) == zero
        assert "-1.00" in cabinet
        assert len(keys) - zero == pytest.approx(2 * (zero - cabinet.index("0  ") - 3), abs=2)


@pytest.mark.parametrize("width", [12, 24, 40, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp437"])
def test_contributions_fit_into_every_width_and_encoding(width, encoding):
    written = plain(contribute(), width=width, encoding=encoding)
    written.encode(encoding)
    assert all(cells(line) <= width for line in written.splitlines())


def test_signs_are_seen_by_hue_and_without_it():
    keys, cabinet = (
        re.search(rf"\x1b\[([0-9;]*)m{word}", on_terminal(contribute()))[1].split(";")
        for word in ("keys", "cabinet")
    )
    assert "4" in cabinet[:3]
    assert "4" not in keys[:3]

    def background(codes):
        return [int(code) for code in codes[codes.index("48") + 2 :]][:3]

    assert background(keys)[2] > background(keys)[0]
    assert background(cabinet)[0] > background(cabinet)[2]
    grey = on_terminal(contribute(), no_color=True)
    assert re.search(r"\x1b\[(?:\d;)*4mcabinet", grey)
    assert "underlined" in ESCAPE.sub("", grey)


@pytest.mark.parametrize(
    ("task", "contrast", "expected"),
    [
        ("classification", None, "Plural, not the other classes"),
        ("image-classification", "dog", "Plural, not dog"),
        ("causal-lm", None, "'plural', against the mean of all tokens"),
        ("causal-lm", " is", "'plural', not 'is'"),
    ],
)
def test_the_headline_says_what_the_answer_is_compared_with(task, contrast, expected):
    shown = contribute(task=task, contrast=contrast, model="")
    assert plain(shown).splitlines()[1].strip() == expected


def test_the_classes_of_the_verb_number_model_are_in_words():
    shown = contribute(model="verb_number", target="VBP", contrast=None)
    assert plain(shown).splitlines()[1].strip() == "VBP (plural), not VBZ (singular)"


def test_an_answer_that_the_model_does_not_give_is_not_called_its_answer():
    lines = plain(contribute(target="singular", contrast="plural")).splitlines()
    assert [line.strip() for line in lines[:2]] == ["Explained", "Singular, not plural"]
    assert "The model predicts plural and is 93 % sure" in lines[2]


def test_a_terminal_says_the_same_about_an_answer_as_plain_text():
    def words(shown):
        return " ".join(shown.replace(": ", " ").split())  # a label has a colon only in plain text

    written = words(ESCAPE.sub("", on_terminal(contribute())))
    for block in plain(contribute()).split("\n\n"):
        assert words(block) in written


def test_an_ascii_terminal_gets_the_signs_of_the_answer_in_ascii():
    shown = plain(contribute(), encoding="ascii")
    assert shown.isascii()
    assert "93 % sure - models/tiny" in shown
    assert "\\x" not in shown


@pytest.mark.parametrize("made", [contribute(), explained(TEXT[:23])])
def test_what_was_not_read_is_marked_and_not_part_of_the_text(made):
    for options, marked in (({}, False), ({"read": 23}, True), ({"read": 0}, True)):
        one = dataclasses.replace(made, text=TEXT[:-1], options=options, trace=None)
        for shown in (plain(one), ESCAPE.sub("", on_terminal(one))):
            flat = " ".join(shown.replace("Not read:", "Not read").split())
            assert ("Not read are on the table" in flat) is marked
            assert ("cabinet are on the table" in flat) is not marked


def test_text_that_is_long_and_was_not_read_is_cut():
    text = "keys " + "x" * 10_000
    one = dataclasses.replace(explained("keys"), text=text, options={"read": 4})
    assert len(plain(one)) < 1500


def test_what_was_left_out_or_is_wrong_is_a_part_of_the_sum():
    without = contribute().without_special_tokens()
    assert "tokens +1.38, biases -0.12, tokens left out +0.50, together +1.75" in plain(without)
    wrong = " ".join(plain(contribute(value=2.75)).split())
    assert "not accounted for +1.00, together +2.75" in wrong
    words = contribute().by_unit("words")
    assert "words +1.38, special tokens +0.50" in plain(words)


def test_a_check_of_attention_is_shown_too(keys):
    check = contribute().check
    assert "Check: Blank-out" in plain(dataclasses.replace(keys, check=check))
    assert "Check" not in plain(keys)
    assert "Blank-out" in ESCAPE.sub("", on_terminal(dataclasses.replace(keys, check=check)))
