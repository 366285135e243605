"""A generation for people: the answer, its sources in the prompt, and the source of each token.

In a terminal and on a page, what the answer's own tokens added to it is one row, "the answer
itself": each of them was read to write the next.
"""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import numpy as np

from attnflow.explanation import Explanation
from attnflow.generation import Generation
from attnflow.view import captions, notebook, terminal
from attnflow.view import page as explanation_page
from attnflow.view.document import asset, document
from attnflow.view.pieces import has_sign, labels, pieces, shades
from attnflow.view.sentences import is_long, sentences, units
from attnflow.view.stream import console_for, encoding_of, width_of
from attnflow.view.text import cells, escaped, shorten, visible, wrap

if TYPE_CHECKING:
    from rich.console import Group

ITSELF: Final = "the answer itself"
NOTHING: Final = "The model wrote nothing: it ended its answer at once."
# How many new tokens a terminal lists, with how many sources each.
MOST_STEPS: Final = 40
SOURCES: Final = 3
# How many cells the matrix of a page has at most, and how many rows its list of sources.
MOST_CELLS: Final = 40_000
MOST_ROWS: Final = 16
# A cell has one of so many shades for each sign.
SHADES: Final = 10


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
    return replace(
        prompt,
        tokens=(*prompt.tokens, ITSELF),
        spans=(*prompt.spans, None),
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
    for name, start, end in prompt.segments:
        inside = [
            span is not None and not special and start < span[1] <= end
            for span, special in zip(prompt.spans, prompt.special, strict=True)
        ]
        score = float(prompt.scores[inside].sum())
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
        shown = visible(text, encoding, line_breaks=line_breaks)
        return [f"{margin}{line}".rstrip() for line in wrap(shown, room)]

    if generation.whole is None:
        return "\n".join(paragraph(NOTHING)) + "\n"
    rows, remarks = terminal.chart(folded(generation), room, encoding, cells)
    total, messages = addition(generation), by_message(generation)
    blocks = [
        paragraph(title(generation)),
        paragraph(f"Prompt: {generation.prompt.rstrip()}", line_breaks=True)
        if generation.prompt and not is_long(sources(generation))
        else [],
        paragraph(f"Answer: {generation.text.strip()}", line_breaks=True),
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

    def shown(text: str, *, line_breaks: bool = False) -> str:
        return visible(text, encoding, line_breaks=line_breaks)

    prompt = sources(generation)
    lines: list[Any] = [
        indented((shown(title(generation)), "bold")),
        Text(),
        *(
            []
            if is_long(prompt)
            else [terminal.shaded(prompt, margin, encoding, colour=colour), Text()]
        ),
        indented((shown(generation.text.strip(), line_breaks=True), "bold")),
        Text(),
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


def inline_html(generation: Generation) -> str:
    """Return a generation as an HTML fragment: the answer, and the explanation of the whole."""
    if generation.whole is None:
        return f"<div>{escaped(NOTHING)}</div>"
    text = escaped(generation.text.strip(), line_breaks=True)
    answer = f'<div style="white-space:pre-wrap;margin-bottom:0.5em"><b>{text}</b></div>'
    return answer + notebook.inline_html(generation.whole)


# ---- Page ----------------------------------------------------------------------------------------


def page(generation: Generation) -> str:
    """Return the page of a generation: the answer, its sources, and the matrix as a heat map.

    Args:
        generation: The generation.

    Returns:
        An HTML document that makes no network request and runs no script.
    """
    if generation.whole is None:
        body = f"<p>{escaped(NOTHING)}</p>"
    else:
        body = "\n".join(_sections(generation, generation.whole))
    name = visible(generation.text.strip(), line_breaks=False)
    return document(
        title=f"Where it came from: {name}"[:100],
        style=explanation_page.style() + asset("generation/generation.css") + _shade_rules(),
        main=f'<main class="attnflow" data-theme="auto">\n{body}\n</main>',
        data="",
        script="",
    )


def _sections(generation: Generation, whole: Explanation) -> Iterator[str]:
    total = addition(generation)
    yield "<h1>Where did this answer come from?</h1>"
    yield f'<p class="subtitle">{escaped(title(generation))}</p>'
    answer = escaped(generation.text.strip(), line_breaks=True)
    yield f'<blockquote class="written" dir="auto">{answer}</blockquote>'
    if generation.prompt:
        yield f'<section><h2>The prompt</h2><p class="text" dir="auto">{_shaded(generation)}</p>'
        yield "</section>"
    yield f"<section><h2>Sources</h2>{_source_table(folded(generation))}"
    yield f'<p class="finding">{escaped(total)}</p>' if total else ""
    messages = by_message(generation)
    yield f'<p class="finding">By message: {escaped(messages)}</p>' if messages else ""
    yield f'<p class="caption">{escaped(reading(generation))}</p></section>'
    if len(generation):
        yield f"<section><h2>Token by token</h2>{_heat_map(generation, whole)}</section>"
    notes = _notes(generation)
    if notes:
        yield f'<ul class="notes">{"".join(f"<li>{escaped(note)}</li>" for note in notes)}</ul>'


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


def _heat_map(generation: Generation, whole: Explanation) -> str:
    """Return the matrix as a table: a row for each new token, a column for each one before."""
    matrix = generation.matrix
    columns = list(range(matrix.shape[1]))
    most = max(1, MOST_CELLS // max(1, len(matrix)))
    left_out = ""
    if len(columns) > most:
        weight = np.nansum(abs(matrix), axis=0)
        columns = sorted((-weight).argsort(kind="stable")[:most].tolist())
        left_out = (
            f" Of {matrix.shape[1]} columns the {most} with the largest scores are shown; save the "
            "generation as .csv to have all."
        )
    # Special tokens often exceed all others.
    usual = matrix[:, [not special for special in whole.special]]
    largest = float(np.nanmax(abs(usual), initial=0.0)) or 1.0
    names = labels(whole.pieces)
    heads = "".join(
        f'<th scope="col"{_own(generation, j)}><span>{escaped(names[j])}</span></th>'
        for j in columns
    )
    rows = []
    for row, one in zip(matrix, generation, strict=True):
        found = "".join(_cell(float(row[j]), largest, signed=has_sign(whole)) for j in columns)
        name = escaped((one.target or "").strip() or one.target or "")
        rows.append(f'<tr><th scope="row">{name}</th>{found}</tr>')
    return (
        '<p class="caption">A row is a token of the answer, a column a token that was there before '
        "it: of the prompt, then of the answer, in italics. A cell is empty where its token was "
        f"not written yet. Scores below 0 are underlined.{left_out}</p>"
        '<div class="scroll matrix" tabindex="0" role="region" aria-label="Token by token">'
        f'<table><thead><tr><th scope="col">token</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _own(generation: Generation, column: int) -> str:
    return ' class="own"' if generation.written[column] else ""


def _cell(score: float, largest: float, *, signed: bool) -> str:
    if score != score:
        return "<td></td>"
    number = captions.format_score(score, largest, signed=signed)
    return f'<td class="{_shade(score / largest)}">{number}</td>'


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
