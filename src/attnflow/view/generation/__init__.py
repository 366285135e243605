"""A generation for people: the answer, its sources in the prompt, and the source of each token.

In a terminal and on a page, what the answer's own tokens added to it is one row, "the answer
itself": each of them was read to write the next.

The page's script is in modules beside this file. `sources.js` has the scores of what is chosen,
`words.js` describes it, and `saved.js` makes a file of the generation. `written.js` is the answer,
`prompt.js` the prompt, `added.js` the bars, and `matrixpart.js` the matrix that `matrix.js` draws.
`generation.js` puts these together, in the `Frame` of the explanation's page.
"""

import base64
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from attnflow.explanation import Explanation
from attnflow.generation import Generation
from attnflow.tokens import Span, Tokens
from attnflow.view import captions, notebook, terminal
from attnflow.view import page as explanation_page
from attnflow.view.document import asset, data_element, direction, document
from attnflow.view.pieces import Piece, has_sign, labels, pieces, shades
from attnflow.view.sentences import is_long, rows, sentences, units
from attnflow.view.stream import console_for, encoding_of, width_of
from attnflow.view.text import cells, escaped, shorten, visible, wrap

if TYPE_CHECKING:
    from rich.console import Group

    from attnflow.view.widget import GenerationWidget

ITSELF: Final = "the answer itself"
WROTE: Final = "The model wrote"
NOTHING: Final = "The model wrote nothing: it ended its answer at once."
# How many new tokens a terminal lists, with how many sources each.
MOST_STEPS: Final = 40
SOURCES: Final = 3
# How many rows the list of sources has on a page that runs no script.
MOST_ROWS: Final = 16
# A token there has one of so many shades for each sign.
SHADES: Final = 10
# How many bytes the scores of all layers of the new tokens may have in a page. Beyond, it has those
# of the layer explained; beyond as many of these, it has them with 7 digits.
MOST_BYTES: Final = 4_000_000
# The lists of an explanation with an item for each token.
LISTS: Final = ("tokens", "spans", "special")
LEFT_OUT: Final = (
    "Saved from a page, which has the scores of the layer explained alone: those of all would be "
    "too large for it."
)


# ---- What is shown -------------------------------------------------------------------------------


class Step(NamedTuple):
    """A new token, its value as text, and its highest sources with their scores."""

    token: str
    value: str
    sources: list[tuple[str, str]]


def sources(generation: Generation) -> Explanation:
    """Return the explanation of the whole answer, of the prompt's tokens alone."""
    whole = _whole(generation)
    kept = [i for i, own in enumerate(generation.written) if not own]
    end = max((span[1] for i in kept if (span := whole.spans[i]) is not None), default=0)
    return replace(
        whole,
        text=whole.text[:end],
        segments=tuple(one for one in whole.segments if one.end <= end),
        tokens=tuple(whole.tokens[i] for i in kept),
        spans=tuple(whole.spans[i] for i in kept),
        special=tuple(whole.special[i] for i in kept),
        scores=whole.scores[kept],
        layer_scores=whole.layer_scores[:, kept],
        trace=None,
    )


def folded(generation: Generation) -> Explanation:
    """Return the explanation of the whole answer, with one row for the answer's own tokens."""
    prompt, whole = sources(generation), _whole(generation)
    own = np.array(generation.written, dtype=np.bool_)
    if not own.any():
        return prompt
    # What has no place in the text is a patch, if there is an image.
    end = len(prompt.text)
    return replace(
        prompt,
        tokens=(*prompt.tokens, ITSELF),
        spans=(*prompt.spans, None if prompt.grid is None else (end, end)),
        special=(*prompt.special, False),
        scores=np.append(prompt.scores, whole.scores[own].sum()),
        layer_scores=np.column_stack(
            [prompt.layer_scores, whole.layer_scores[:, own].sum(axis=1)],
        ),
    )


def steps(generation: Generation) -> Iterator[Step]:
    """Yield each new token with its highest sources, special tokens left out."""
    for one in generation:
        names, scores = labels(one.pieces), one.scores
        order = [i for i in np.argsort(-scores, kind="stable").tolist() if not one.special[i]]
        largest = float(abs(scores).max(initial=0.0))
        signed = has_sign(one)
        found = [
            (names[i], captions.format_score(float(scores[i]), largest, signed=signed))
            for i in order[:SOURCES]
            if scores[i] > 0
        ]
        value = "" if one.value is None else f"{one.value:+.2f}"
        yield Step(one.target or "", value, found)


def title(generation: Generation) -> str:
    """Return what is shown, in one line."""
    whole = _whole(generation)
    method, model = captions.METHOD_NAMES[whole.method], whole.model
    contrast = f"{captions.contrast_name(whole)}, " if has_sign(whole) else ""
    of = "to" if has_sign(whole) else "of"
    return f"{method} {of} what was written, {contrast}{model}"


def addition(generation: Generation) -> str:
    """Return what the whole answer adds up to, in one line; empty for attention."""
    whole = _whole(generation)
    if not has_sign(whole) or whole.value is None:
        return ""
    own, special = np.array(generation.written), np.array(whole.special)
    prompt = whole.scores[~own & ~special]
    parts = [("prompt", float(prompt.sum()))]
    if (special & ~own).any():
        name = "chat template" if whole.segments else "special tokens"
        parts.append((name, float(whole.scores[special & ~own].sum())))
    if own.any():
        parts.append((ITSELF, generation.itself))
    return captions.added_up(whole, parts)


def by_message(generation: Generation) -> str:
    """Return what each message of a chat adds to the answer, in one line; empty for a text.

    Messages are named by their roles; special tokens in them are not counted.
    """
    prompt = sources(generation)
    largest = float(abs(prompt.scores).sum())
    parts = []
    for name, tokens in _messages(prompt):
        score = float(prompt.scores[tokens].sum())
        parts.append(f"{name} {captions.format_score(score, largest, signed=has_sign(prompt))}")
    return ", ".join(parts)


def reading(generation: Generation) -> str:
    """Return how to read the scores."""
    whole = _whole(generation)
    if not has_sign(whole):
        return captions.reading(whole)
    contrast = "the mean of all tokens"
    if whole.contrast is not None:
        contrast = f"that of {whole.contrast.strip() or whole.contrast!r}"
    own = ""
    if any(generation.written):
        own = f" What the answer's own tokens add, read to write the next, is {ITSELF!r}."
    return (
        "A score is what a token adds to the answer: the sum, over the tokens written, of the "
        f"token's logit minus {contrast}. Positive scores speak for the answer.{own}"
    )


def ending(generation: Generation) -> str:
    """Return how the answer ended, where max_new_tokens ended it."""
    most = generation.options.get("max_new_tokens")
    if generation.ended or most is None:
        return ""
    return f"The model did not end its answer: max_new_tokens is {most}."


def _gist(generation: Generation) -> str:
    return captions.gist(_by_sentence(sources(generation)))


def _notes(generation: Generation) -> list[str]:
    return [note for note in (ending(generation), *_whole(generation).notes) if note]


def _whole(generation: Generation) -> Explanation:
    if generation.whole is None:
        raise ValueError("nothing was written")
    return generation.whole


# ---- Terminal and notebook -----------------------------------------------------------------------


def show(generation: Generation, file: TextIO | None = None) -> None:
    """Print a generation; a notebook displays it instead if no stream is given.

    Args:
        generation: The generation.
        file: The text stream to print to. None means standard output.
    """
    if file is None and notebook.in_notebook():
        importlib.import_module("IPython.display").display(generation)
        return
    stream = sys.stdout if file is None else file
    encoding, console = encoding_of(stream), console_for(stream)
    if console is None or generation.whole is None:
        stream.write(render_plain(generation, width=width_of(stream), encoding=encoding))
        return
    colour = not console.no_color
    content = render(generation, width=console.width, encoding=encoding, colour=colour)
    console.print(content, width=min(console.width, terminal.WIDEST))


def render_plain(generation: Generation, *, width: int = 80, encoding: str = "utf-8") -> str:
    """Return a generation as plain text.

    Args:
        generation: The generation.
        width: How many cells a line may take.
        encoding: The encoding that the text will be written in. The text has only its characters.
    """
    width = min(width, terminal.WIDEST)
    margin = "  " if width >= 20 else ""
    room = max(1, width - len(margin))

    def paragraph(text: str, *, line_breaks: bool = False) -> list[str]:
        shown = visible(text, encoding) if line_breaks else terminal.own(text, encoding)
        return [f"{margin}{line}".rstrip() for line in wrap(shown, room)]

    if generation.whole is None:
        return "\n".join(paragraph(NOTHING)) + "\n"
    rows, remarks = terminal.chart(folded(generation), room, encoding, cells)
    total, messages = addition(generation), by_message(generation)
    blocks = [
        paragraph(WROTE)
        + paragraph(generation.text.strip(), line_breaks=True)
        + paragraph(title(generation)),
        *([paragraph(_gist(generation))] if has_sign(generation.whole) else []),
        paragraph(f"Prompt: {generation.prompt.rstrip()}", line_breaks=True)
        if generation.prompt and not is_long(sources(generation))
        else [],
        [f"{margin}{label}{number}  {bar}".rstrip() for label, number, bar in rows]
        + [line for remark in remarks for line in paragraph(remark)],
        paragraph(f"Sum: {total}") if total else [],
        paragraph(f"Messages: {messages}") if messages else [],
        [f"{margin}{line}".rstrip() for line in _lines(generation, room, encoding)],
        paragraph(reading(generation)),
        *(paragraph(f"Note: {note}") for note in _notes(generation)),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def render(
    generation: Generation, *, width: int = 80, encoding: str = "utf-8", colour: bool = True
) -> "Group":
    """Return a generation as rich shows it on a terminal.

    Args:
        generation: The generation, of at least one token.
        width: The terminal's width in cells.
        encoding: The terminal's encoding.
        colour: Whether the terminal shows colours.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    width = min(width, terminal.WIDEST)
    margin = 2 if width >= 20 else 0
    room = max(1, width - 2 * margin)

    def indented(*parts: Any) -> Padding:
        return Padding(Text.assemble(*parts, overflow="fold"), (0, 0, 0, margin))

    def shown(text: str) -> str:
        return terminal.own(text, encoding)

    prompt = sources(generation)
    lines: list[Any] = [
        indented((WROTE, "dim")),
        indented((visible(generation.text.strip(), encoding), "bold")),
        indented((shown(title(generation)), "dim")),
        Text(),
        *([indented(shown(_gist(generation))), Text()] if has_sign(prompt) else []),
        *(
            []
            if is_long(prompt)
            else [terminal.shaded(prompt, margin, encoding, colour=colour), Text()]
        ),
        *terminal.bars(folded(generation), room, margin, encoding),
        Text(),
    ]
    total = addition(generation)
    if total:
        lines += [indented(("Sum  ", "dim"), (shown(total), "bold")), Text()]
    messages = by_message(generation)
    if messages:
        lines += [indented(("Messages  ", "dim"), (shown(messages), "bold")), Text()]
    listed = _lines(generation, room, encoding)
    if listed:
        lines += [indented((listed[0], "dim")), *map(indented, listed[1:]), Text()]
    lines.append(indented((shown(reading(generation)), "dim")))
    for note in _notes(generation):
        lines += [Text(), indented(("Note  ", "bold #d97706"), shown(note))]
    return Group(*lines)


def _lines(generation: Generation, width: int, encoding: str) -> list[str]:
    """Return a heading, and a line for each new token: the token, its value, and its sources."""
    found = list(steps(generation))
    if not found:
        return []
    listed = found[:MOST_STEPS]
    names = [
        visible(step.token.strip() or step.token, encoding, line_breaks=False) for step in listed
    ]
    size = max(5, min(max(map(cells, names)), 24, max(8, width // 3)))
    digits = max(len(step.value) for step in listed)

    def line(name: str, value: str, origin: str) -> str:
        name = shorten(name, size, cells, encoding)
        begin = f"{name}{' ' * (size - cells(name))}  " + (f"{value:>{digits}}  " if digits else "")
        room = width - cells(begin)
        return begin + shorten(origin, room, cells, encoding) if room > 0 else begin.rstrip()

    lines = [line("token", "", "came most from")]
    for name, step in zip(names, listed, strict=True):
        parts = [
            f"{visible(one, encoding, line_breaks=False)} {score}" for one, score in step.sources
        ]
        lines.append(line(name, step.value, ", ".join(parts)))
    if len(found) > len(listed):
        lines.append(f"{len(found) - len(listed)} more tokens; save as .csv or .html to see them")
    return lines


def widget(generation: Generation) -> "GenerationWidget":
    """Return the widget of a generation.

    Args:
        generation: The generation.

    Returns:
        The widget.

    Raises:
        MissingExtraError: If anywidget is not installed.
    """
    from attnflow.view.widget import GenerationWidget

    return GenerationWidget(generation)


def inline_html(generation: Generation) -> str:
    """Return a generation as an HTML fragment: the answer, and the explanation of the whole."""
    if generation.whole is None:
        return f"<div>{escaped(NOTHING)}</div>"
    text = escaped(generation.text.strip(), line_breaks=True)
    answer = f'<div style="white-space:pre-wrap;margin-bottom:0.5em"><b>{text}</b></div>'
    return answer + notebook.inline_html(generation.whole)


# ---- Page ----------------------------------------------------------------------------------------


def page(generation: Generation) -> str:
    """Return the page of a generation.

    Args:
        generation: The generation.

    Returns:
        An HTML document that makes no network request. It shows the answer and what it came from
        where scripts do not run, too.
    """
    name = visible(generation.text.strip(), line_breaks=False)
    return document(
        title=f"Where it came from: {name}"[:100],
        style=style(),
        main=f'<main class="attnflow" data-theme="auto">\n{_static(generation)}\n</main>',
        data=data_element(data(generation)),
        script=asset("bundles/generation.js"),
    )


def style() -> str:
    """Return the page's style sheet, which is that of the page of an explanation, and more."""
    return explanation_page.style() + asset("generation/generation.css") + _shade_rules()


def data(generation: Generation) -> dict[str, Any]:
    """Return the data for the page's script.

    Args:
        generation: The generation.

    Returns:
        What JSON can hold: the generation, with what its explanations share kept once, and numbers
        packed; its matrix; the labels of its columns and rows; the answer and the prompt, divided
        into tokens, or into the sentences of a long prompt; and what is said of them.
    """
    whole = generation.whole
    if whole is None:
        return {"generation": generation.to_dict(), "nothing": NOTHING}
    prompt, shown = sources(generation), whole.pieces
    # The tokens of the prompt, as columns of the matrix.
    columns = [i for i, own in enumerate(generation.written) if not own]
    stretches = prompt.pieces.patches if prompt.grid is None else ()
    long = is_long(prompt)
    names = [one.target or "" for one in generation]
    picture = whole.picture
    return {
        "generation": _stored(generation, whole),
        "matrix": explanation_page.packed(_rounded(generation.matrix)),
        "labels": [visible(name, line_breaks=False) for name in labels(shown)],
        "names": [
            visible(name.strip(), line_breaks=False) or captions.blank_name(name) for name in names
        ],
        "answer": _shown(pieces(_answer(generation.text, names)), range(len(names))),
        "prompt": []
        if long
        else _shown(
            [
                piece
                for piece in explanation_page.parts(prompt.pieces, {*prompt.patches, *stretches})
                if not set(piece.tokens) & set(stretches)
            ],
            columns,
        ),
        "sentences": _sentences(prompt, columns) if long else None,
        "messages": [[name, [columns[i] for i in group]] for name, group in _messages(prompt)],
        "patches": [] if prompt.grid is None else [columns[i] for i in prompt.patches],
        "stretches": [columns[i] for i in stretches],
        "picture": None if picture is None else base64.b64encode(picture).decode("ascii"),
        "direction": direction(_said(prompt)),
        "answerDirection": direction(generation.text),
        "signed": has_sign(whole),
        "unit": units(prompt).removesuffix("s"),
        "special": "chat template" if whole.segments else "special tokens",
        "contrast": captions.contrast_name(whole) if has_sign(whole) else "",
        "method": captions.METHOD_NAMES[whole.method],
        "reading": reading(generation),
        "notes": _notes(generation),
        "facts": _facts(generation, whole),
    }


def _stored(generation: Generation, whole: Explanation) -> dict[str, Any]:
    """Return a generation for the page, which makes of it the file that is saved.

    An explanation of a token has what differs from that of the whole; of its lists how many of
    their first items are the same, and the others; and its scores if they are no row of the matrix.
    "layers" has the scores of all layers of all tokens, one after the other, or None for too many.
    """
    known = whole.to_dict()
    made = replace(generation, explanations=(), whole=None, written=()).to_dict()
    size = sum(one.layer_scores.nbytes for one in generation)
    steps = []
    for one, row in zip(generation, generation.matrix, strict=True):
        bare = replace(
            one,
            tokens=(),
            spans=(),
            special=(),
            scores=np.zeros(0),
            layer_scores=np.zeros((len(one.layer_scores), 0)),
            grid=None,
            trace=None,
            picture=None,
        )
        step: dict[str, Any] = {
            name: value
            for name, value in bare.to_dict().items()
            if value != known[name] and name not in (*LISTS, "scores", "layer_scores", "grid")
        }
        for name in LISTS:
            own, other = getattr(one, name), getattr(whole, name)
            same = _same(own, other)
            step[name] = [same, [list(i) if isinstance(i, tuple) else i for i in own[same:]]]
        if not np.array_equal(one.scores, row[: len(one.scores)]):
            step["scores"] = one.scores.tolist()
        step["depth"] = len(one.layer_scores)
        steps.append(step)
    every = np.concatenate([one.layer_scores.ravel() for one in generation] or [np.zeros(0)])
    return {
        **made,
        "written": list(generation.written),
        "whole": {**known, "layer_scores": explanation_page.packed(whole.layer_scores)},
        "explanations": steps,
        "layers": explanation_page.packed(every[None]) if size <= MOST_BYTES else None,
        "leftOut": LEFT_OUT,
    }


def _same(own: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many of their first items two sequences share."""
    count = min(len(own), len(other))
    if own[:count] == other[:count]:
        return count
    return next(i for i in range(count) if own[i] != other[i])


def _rounded(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a matrix; a large one with 7 digits, which take half of the room."""
    return matrix if matrix.nbytes <= MOST_BYTES else matrix.astype(np.float32).astype(np.float64)


def _shown(found: Sequence[Piece], numbers: Sequence[int]) -> list[Any]:
    """Return pieces for the page, with the numbers of their tokens."""
    return [
        [
            visible(piece.text),
            [numbers[i] for i in piece.tokens],
            *([True] if piece.label else []),
        ]
        for piece in found
    ]


def _answer(text: str, names: Sequence[str]) -> Tokens:
    r"""Return the tokens of an answer, placed in its text.

    A token whose name is not found, such as a part of a character, is placed with what lies between
    its neighbours.

    Example:
        >>> _answer(" A 😀!", [" A", "�", "�", "!"]).spans
        ((0, 2), (2, 4), (2, 4), (4, 5))
    """
    spans: list[Span] = []
    cursor, waiting = 0, 0
    for name in [*names, None]:
        at, size = (len(text), 0) if name is None else _found(text, name, cursor, waiting)
        if at < 0:
            waiting += 1
            continue
        spans += [(cursor, at)] * waiting
        if name is not None:
            spans.append((at, at + size))
        cursor, waiting = at + size, 0
    return Tokens(text, tuple(names), tuple(spans), (False,) * len(names))


def _found(text: str, name: str, start: int, waiting: int) -> tuple[int, int]:
    """Return where a token is in a text, and its length; -1 and 0 if it is not found."""
    for one in (name, name.strip()):
        at = text.find(one, start) if one else -1
        # What is passed over is whitespace, or belongs to tokens that were not found.
        if at >= 0 and (not text[start:at].strip() or 0 < at - start <= 8 * waiting):
            return at, len(one)
    return -1, 0


def _sentences(prompt: Explanation, columns: Sequence[int]) -> dict[str, Any]:
    """Return the rows of a long prompt, and for each of its units the columns of its tokens."""
    by_unit, groups = sentences(prompt)
    found = rows(prompt.pieces, groups)
    for row in found:
        for piece in row.get("pieces", []):
            piece[1] = [columns[i] for i in piece[1]]
    return {
        "name": units(by_unit),
        "parts": units(prompt),
        "groups": [[columns[i] for i in group] for group in groups],
        "rows": found,
    }


def _messages(prompt: Explanation) -> list[tuple[str, list[int]]]:
    """Return the name of each segment, such as the role of a message, with its tokens."""
    return [
        (
            name,
            [
                i
                for i, (span, special) in enumerate(zip(prompt.spans, prompt.special, strict=True))
                if span is not None and not special and start < span[1] <= end
            ],
        )
        for name, start, end in prompt.segments
    ]


def _said(prompt: Explanation) -> str:
    """Return what a prompt says, without the words of a chat template."""
    if not prompt.segments:
        return prompt.text
    return " ".join(prompt.text[start:end] for _, start, end in prompt.segments)


def _facts(generation: Generation, whole: Explanation) -> list[list[str]]:
    """Return how the answer was written and explained: names and values."""
    # Only the answer's tokens that were explained are known one by one.
    most, count = generation.options.get("max_new_tokens"), len(generation)
    written = f"{count} of at most {most}" if most else str(count)
    prompt = f"{units(whole).capitalize()} of the prompt"
    facts = [
        ("Model", whole.model),
        ("Task", whole.task),
        ("Method", captions.METHOD_NAMES[whole.method]),
        ("Tokens written", written if count else ""),
        (prompt, str(len(whole.tokens) - sum(generation.written))),
        *captions.options(whole),
    ]
    return [[name, value] for name, value in facts if value]


def _static(generation: Generation) -> str:
    """Return what is shown where scripts do not run."""
    if generation.whole is None:
        return f"<p>{escaped(NOTHING)}</p>"
    return "\n".join(part for part in _sections(generation) if part)


def _sections(generation: Generation) -> Iterator[str]:
    total, messages = addition(generation), by_message(generation)
    yield "<h1>Where did this answer come from?</h1>"
    yield f'<p class="subtitle">{escaped(title(generation))}</p>'
    answer = escaped(generation.text.strip(), line_breaks=True)
    yield f'<blockquote class="written" dir="auto">{answer}</blockquote>'
    if generation.prompt:
        yield f'<h2>The prompt</h2><p class="text" dir="auto">{_shaded(generation)}</p>'
    yield f"<h2>Sources</h2>{_source_table(folded(generation))}"
    yield f"<p>Sum: {escaped(total)}</p>" if total else ""
    yield f"<p>By message: {escaped(messages)}</p>" if messages else ""
    yield f'<p class="caption">{escaped(reading(generation))}</p>'
    found = [
        f"<li><b>{escaped(step.token)}</b> {escaped(', '.join(map(' '.join, step.sources)))}</li>"
        for step in steps(generation)
    ]
    yield f"<h2>What each token came most from</h2><ol>{''.join(found)}</ol>" if found else ""
    yield from (f"<p>{escaped(note)}</p>" for note in _notes(generation))
    yield "<p>This page shows more where scripts may run.</p>"


def _shaded(generation: Generation) -> str:
    """Return the prompt with its tokens shaded, or the sentences of a long one."""
    prompt = _by_sentence(sources(generation))
    shown = pieces(prompt.pieces)
    largest = float(abs(prompt.scores).max(initial=0.0))
    found = []
    for piece, shade in zip(shown, shades(prompt, shown), strict=True):
        text = escaped(piece.text, line_breaks=True)
        if not piece.tokens:
            found.append(f"<b>{text}</b>" if piece.label else text)
            continue
        total = float(prompt.scores[list(piece.tokens)].sum())
        score = captions.format_score(total, largest, signed=has_sign(prompt))
        kind = "special" if shade is None else _shade(shade)
        found.append(f'<span class="token {kind}" title="{score}">{text}</span>')
    return "".join(found)


def _by_sentence(explanation: Explanation) -> Explanation:
    return sentences(explanation)[0] if is_long(explanation) else explanation


def _source_table(explanation: Explanation) -> str:
    """Return the largest sources of the whole answer as a table."""
    explanation = _by_sentence(explanation)
    scores, names = explanation.scores, labels(explanation.pieces)
    largest = float(abs(scores).max(initial=0.0))
    signed = has_sign(explanation)
    ranked = (-abs(scores)).argsort(kind="stable").tolist()
    # Special tokens, which say little to a reader, are in the sum below.
    order = [i for i in ranked if not explanation.special[i]] or ranked
    roles = [_role(explanation, i) for i in range(len(names))]
    heads = (
        f"<th>{units(explanation).removesuffix('s')}</th>"
        + ("<th>part</th>" if any(roles) else "")
        + "<th>score</th>"
    )
    rows = [
        f'<tr><th scope="row">{escaped(names[i])}</th>'
        + (f"<td>{escaped(roles[i])}</td>" if any(roles) else "")
        + f'<td class="{_shade(float(scores[i]) / (largest or 1.0))}">'
        f"{captions.format_score(float(scores[i]), largest, signed=signed)}</td></tr>"
        for i in order[:MOST_ROWS]
    ]
    rest = len(order) - MOST_ROWS
    more = f'<p class="caption">{rest} more, each smaller in size.</p>' if rest > 0 else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"


def _role(explanation: Explanation, index: int) -> str:
    """Return the name of the segment that a token is in, such as the role of a message."""
    span = explanation.spans[index]
    if span is None or explanation.special[index]:
        return ""
    inside = (one.name for one in explanation.segments if one.start < span[1] <= one.end)
    return next(inside, "")


def _shade(share: float) -> str:
    """Return the class of a share of the largest score, from -1 to 1.

    Example:
        >>> _shade(0.5), _shade(-1.0), _shade(0.0)
        ('for-5', 'against against-10', 'for-0')
    """
    step = min(SHADES, round(abs(share) * SHADES))
    return f"against against-{step}" if share < 0 else f"for-{step}"


def _shade_rules() -> str:
    """Return the colours of the shades. The page's policy allows no style but its sheet's."""
    colours = {"for": "56 139 220", "against": "222 128 38"}
    return "".join(
        f".attnflow .{name}-{step} {{ background: rgb({colour} / {62 * step // SHADES}%); }}\n"
        for name, colour in colours.items()
        for step in range(SHADES + 1)
    )
