"""From a source text to an explanation of what an encoder-decoder says next.

The graph has the source's tokens and the target's. A position of the target is explained by the
source's tokens and by the target's own up to there, together.

Importing this module needs NumPy only; running a model needs torch and transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import ModelError, OptionError, TextError
from attnflow.explanation import Explanation
from attnflow.graph import AttentionGraph, encoder_decoder_graph, resolve_index
from attnflow.scoring import (
    check_choices,
    check_edges,
    notes_on,
    predict,
    relative_to,
    saturation_of,
    scores_of,
)

__all__ = ["TASK", "check_model", "explain_each", "generate", "list_pairs"]

TASK: Final = "seq2seq-lm"

# What stands between the source and the target where both are shown as one text.
ARROW: Final = " → "


class _Pair(NamedTuple):
    """A source and the target so far, as the model reads them."""

    text: str
    source: list[int]
    target: list[int]
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int] | None, ...]
    special: tuple[bool, ...]


class _Options(NamedTuple):
    """The options of a call, checked."""

    method: str
    layer: Any
    position: Any
    target: Any
    heads: str | int
    residual: float
    relative: bool
    words: bool
    special_tokens: bool
    truncate: bool


def check_model(model: Any) -> None:
    """See that an encoder-decoder can be explained.

    Raises:
        ModelError: If it reads something other than text, or writes none.
    """
    name = type(model).__name__
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise ModelError(
            f"{name} reads {model.main_input_name}, not text; its attention can be had with "
            "attnflow.capture.capture_pair, and its graph with attnflow.encoder_decoder_graph"
        )
    if not (hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is not None):
        raise ModelError(
            f"{name} is an encoder-decoder without a head that writes text; load it for "
            f"task={TASK!r}"
        )


def list_pairs(inputs: Any) -> tuple[list[tuple[str, str]], bool]:
    """Return sources, each with the target so far, and whether there are many.

    Args:
        inputs: A source text; a tuple of a source and the target so far; or a list of either.

    Raises:
        TextError: If it is none of these.

    Example:
        >>> list_pairs("the house")
        ([('the house', '')], False)
        >>> list_pairs([("the house", "das"), "a cat"])
        ([('the house', 'das'), ('a cat', '')], True)
    """
    many = isinstance(inputs, list)
    if many and not inputs:
        raise TextError("inputs is an empty list; expected a text or a list of texts")
    pairs = []
    for item in inputs if many else [inputs]:
        pair = (item, "") if isinstance(item, str) else item
        if not (
            isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(x, str) for x in pair)
        ):
            raise TextError(
                f"the input is {item!r}; expected a source text, or a tuple of a source text and "
                "the target so far"
            )
        pairs.append((pair[0], pair[1]))
    return pairs, many


def explain_each(
    model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]], *, name: str, **given: Any
) -> Iterator[tuple[int, Explanation]]:
    """Yield the explanation of what follows each target so far.

    Args:
        model: An encoder-decoder that writes text.
        tokenizer: Its tokenizer.
        pairs: Sources, each with the target so far, which may be empty.
        name: The model's name.
        **given: The options of `Explainer.explain`. `position` counts the target's positions, from
            the start token; "auto" is the last. `layer` is a layer of the decoder.

    Yields:
        The index of a pair, and its explanation. Source tokens come first.

    Raises:
        AttnflowError: Whatever `Explainer.explain` raises.
    """
    options = _checked(model, tokenizer, **given)
    encoded = [_encode(model, tokenizer, *pair, options.truncate) for pair in pairs]
    for pair in encoded:
        _position(options.position, len(pair.target))
    for index, pair in enumerate(encoded):
        position = _position(options.position, len(pair.target))
        yield index, _explain(model, tokenizer, pair, [position], [None], name, options)[0]


def generate(
    model: Any, tokenizer: Any, source: str, max_new_tokens: int, *, name: str, **given: Any
) -> list[Explanation]:
    """Let the model write a target for a source, and explain every token of it from one pass.

    Args:
        model: An encoder-decoder that writes text.
        tokenizer: Its tokenizer.
        source: The source text.
        max_new_tokens: How many tokens to write at most.
        name: The model's name.
        **given: The options of `Explainer.explain`.

    Returns:
        One explanation for each token written, special tokens left out.

    Raises:
        AttnflowError: Whatever `Explainer.explain` raises.
    """
    import torch

    options = _checked(model, tokenizer, **given)
    pair = _encode(model, tokenizer, source, "", options.truncate)
    with torch.no_grad():
        written = model.generate(
            torch.tensor([pair.source], device=model.device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
        )[0].tolist()
    special = set(getattr(tokenizer, "all_special_ids", []))
    positions = [k - 1 for k in range(1, len(written)) if written[k] not in special]
    if not positions:
        return []
    last = positions[-1] + 1
    whole = _join(tokenizer, source, pair.source, written[:last])
    targets = [written[k + 1] for k in positions]
    return _explain(model, tokenizer, whole, positions, targets, name, options)


# ---- Checking and reading ------------------------------------------------------------------------


def _checked(
    model: Any,
    tokenizer: Any,
    *,
    method: Any,
    layer: Any,
    position: Any,
    edges: Any,
    target: Any,
    heads: Any,
    residual: Any,
    receptive_field: Any,
    words: Any,
    special_tokens: Any,
    drop_sink: Any,
    truncate: Any,
) -> _Options:
    switches = {
        "words": words,
        "special_tokens": special_tokens,
        "drop_sink": drop_sink,
        "truncate": truncate,
    }
    check_choices(method, edges, receptive_field, switches)
    if edges != "attention":
        raise OptionError(f"edges is {edges!r}; for an encoder-decoder, expected attention")
    check_edges(edges, heads, residual)
    if drop_sink:
        raise OptionError("drop_sink=True is for models with one stack of layers")
    if isinstance(position, str) and position not in ("auto", "last"):
        raise OptionError(f"position is {position!r}; expected an index, auto or last")
    if words and not getattr(tokenizer, "is_fast", False):
        raise OptionError(
            "words=True needs to know where each token stands in the text, which only a fast "
            f"tokenizer tells, and {type(tokenizer).__name__} is not one"
        )
    config = model.config
    depth = getattr(config, "decoder_layers", None) or getattr(config, "num_decoder_layers", None)
    if isinstance(depth, int):
        resolve_index(layer, depth, "layer", "layers", first=1)
    return _Options(
        method,
        layer,
        position,
        target,
        heads,
        residual,
        receptive_field is True and method != "raw",
        bool(words),
        bool(special_tokens),
        bool(truncate),
    )


def _position(position: Any, count: int) -> int:
    if position in ("auto", "last"):
        return count - 1
    return resolve_index(position, count, "position", "target positions")


def _encode(model: Any, tokenizer: Any, source: str, target: str, truncate: bool) -> _Pair:
    if not source.strip():
        raise TextError("the source text is empty; there is nothing to explain")
    most = getattr(tokenizer, "model_max_length", None)
    most = most if isinstance(most, int) and 0 < most < 10**9 else None
    ids = tokenizer(
        source, truncation=bool(truncate and most), max_length=most if truncate else None
    )["input_ids"]
    if most is not None and len(ids) > most:
        raise TextError(
            f"the source text has {len(ids)} tokens and the model takes {most}; shorten it, or "
            "pass truncate=True to cut it there"
        )
    start = model.config.decoder_start_token_id
    if start is None:
        raise ModelError(
            f"{type(model).__name__} does not say what its target starts with: "
            "config.decoder_start_token_id is None"
        )
    labels = list(tokenizer(text_target=target)["input_ids"])
    # What ends a target has not been said yet.
    if labels and labels[-1] == getattr(tokenizer, "eos_token_id", None):
        labels.pop()
    return _join(tokenizer, source, list(ids), [start, *labels])


def _join(tokenizer: Any, source: str, ids: list[int], target: list[int]) -> _Pair:
    """Return both sides as one text, each token with its place in it."""
    special_ids = set(getattr(tokenizer, "all_special_ids", [])) | {target[0]}
    if getattr(tokenizer, "is_fast", False):
        offsets = tokenizer(
            source, truncation=True, max_length=len(ids), return_offsets_mapping=True
        )["offset_mapping"]
    else:
        offsets = [None] * len(ids)
    text = source
    spans: list[tuple[int, int] | None] = [
        None if offset is None or token in special_ids else (int(offset[0]), int(offset[1]))
        for token, offset in zip(ids, offsets, strict=True)
    ]
    said = [token for token in target if token not in special_ids]
    if said:
        text += ARROW
    begin, before = len(text), ""
    shown: list[int] = []
    for token in target:
        if token in special_ids:
            spans.append(None)
            continue
        # A tokenizer tells where tokens stand only in texts that it reads, so that the target is
        # written token by token.
        shown.append(token)
        after = tokenizer.decode(shown, clean_up_tokenization_spaces=False)
        first = len(before) if after.startswith(before) else len(after)
        spans.append((begin + first, begin + len(after)))
        before = after
    text += before
    names = tokenizer.convert_ids_to_tokens([*ids, *target])
    tokens = tuple(
        (span and text[slice(*span)].strip()) or str(name)
        for name, span in zip(names, spans, strict=True)
    )
    special = tuple(token in special_ids for token in [*ids, *target])
    return _Pair(text, ids, target, tokens, tuple(spans), special)


# ---- Running it ----------------------------------------------------------------------------------


def _explain(
    model: Any,
    tokenizer: Any,
    pair: _Pair,
    positions: list[int],
    targets: list[int | None],
    name: str,
    options: _Options,
) -> list[Explanation]:
    """Return the explanation of each position of a target."""
    import torch

    from attnflow.capture import capture_pair

    device = model.device
    captured = capture_pair(
        model,
        {
            "input_ids": torch.tensor([pair.source], device=device),
            "decoder_input_ids": torch.tensor([pair.target], device=device),
        },
        heads=options.heads,
    )
    graph = encoder_decoder_graph(
        [layer[0] for layer in captured.encoder],
        [layer[0] for layer in captured.decoder],
        [layer[0] for layer in captured.cross],
        residual=options.residual,
    )
    count, below, depth = len(pair.source), len(captured.encoder), len(captured.decoder)
    layer = resolve_index(options.layer, depth, "layer", "layers", first=1)
    rows = [count + position for position in positions]
    steps = [below + 2 * i for i in range(1, depth + 1)]
    scores = _layer_scores(graph, options.method, rows, steps)
    saturation: list[float | None] = [None] * len(rows)
    if options.method == "flow":
        every = np.zeros((graph.layers, *scores.shape[1:]))
        every[[step - 1 for step in steps]] = scores
        saturation = [*saturation_of(graph, every, steps[layer - 1], rows)]
    if options.relative:
        even = _uniform(count, len(pair.target), below, depth, options.residual)
        scores = relative_to(_layer_scores(even, options.method, rows, steps), scores)
    logits = captured.outputs.logits[0, positions].detach().double().cpu().numpy()
    made = []
    for i, row in enumerate(rows):
        made.append(
            _explanation(
                tokenizer,
                pair,
                scores[:, i, : row + 1],
                layer,
                row,
                logits[i],
                targets[i],
                saturation[i],
                name,
                options,
            )
        )
    return made


def _layer_scores(
    graph: AttentionGraph, method: str, rows: list[int], steps: list[int]
) -> NDArray[np.float64]:
    """Return the scores of every decoder layer, of shape (D, P, n + m).

    A decoder layer attends twice, to the target and to the source. Its raw attention is half of
    each, so that it sums to 1.
    """
    if method == "raw":
        both = [
            (graph.attention[step - 2, rows] + graph.attention[step - 1, rows]) / 2
            for step in steps
        ]
        return np.array(both)
    return scores_of(graph, method, rows)[[step - 1 for step in steps]]


def _uniform(source: int, target: int, below: int, depth: int, residual: float) -> AttentionGraph:
    """Return the graph of attention that prefers nothing, the target seeing what precedes."""
    causal = np.tri(target) / np.arange(1, target + 1)[:, None]
    return encoder_decoder_graph(
        [np.full((source, source), 1 / source)] * below,
        [causal] * depth,
        [np.full((target, source), 1 / source)] * depth,
        residual=residual,
    )


def _explanation(
    tokenizer: Any,
    pair: _Pair,
    scores: NDArray[np.float64],
    layer: int,
    position: int,
    logits: NDArray[np.float64],
    target: int | None,
    saturation: float | None,
    name: str,
    options: _Options,
) -> Explanation:
    def label(index: int) -> str:
        return str(tokenizer.decode([index]))

    prediction = predict(logits, label)
    if target is None:
        target = _target(tokenizer, options.target, prediction.index, len(logits))
    seen = scores.shape[1]
    # The text ends with the last token that is scored.
    ends = [span[1] for span in pair.spans[:seen] if span is not None]
    explanation = Explanation(
        tokens=pair.tokens[:seen],
        scores=scores[layer - 1],
        layer_scores=scores,
        method=options.method,
        layer=layer,
        position=position,
        target=label(target),
        prediction=prediction,
        text=pair.text[: max(ends, default=0)],
        spans=pair.spans[:seen],
        special=pair.special[:seen],
        model=name,
        task=TASK,
        options={
            "edges": "attention",
            "heads": options.heads,
            "residual": float(options.residual),
            "receptive_field": options.relative,
            "words": options.words,
            "special_tokens": options.special_tokens,
            "source_tokens": len(pair.source),
        },
        saturation=saturation,
        notes=notes_on(pair.tokens, scores[layer - 1], position, layer, saturation, None),
    )
    if not options.special_tokens:
        explanation = explanation.without_special_tokens()
    return explanation.words() if options.words else explanation


def _target(tokenizer: Any, target: Any, predicted: int, count: int) -> int:
    """Return the token that an explanation is for."""
    if target is None:
        return predicted
    if not isinstance(target, str):
        return resolve_index(target, count, "target", "tokens of the vocabulary")
    ids = tokenizer(text_target=target, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise OptionError(
            f"target is {target!r}, which is {len(ids)} tokens; expected one token, or its index"
        )
    return int(ids[0])
