"""From a source, text or sound, to an explanation of what an encoder-decoder says next.

The graph has the source's tokens and the target's. A position of the target is explained by the
source's tokens and by the target's own up to there, together. For sound, the graph has a node for
each position of the encoder, and scores are added up to stretches (`attnflow.sound`).

Importing this module needs NumPy only; running a model needs torch and transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import ModelError, OptionError, TextError
from attnflow.explanation import Explanation
from attnflow.flow import attention_flow
from attnflow.graph import AttentionGraph, encoder_decoder_graph, resolve_index
from attnflow.scoring import (
    BATCH_POSITIONS,
    check_choices,
    check_edges,
    gradient_rows,
    notes_on,
    predict,
    relative_to,
    saturation_of,
    scores_of,
    shares,
)
from attnflow.sound import Listener, is_sound_model, listener
from attnflow.trace import Trace

if TYPE_CHECKING:
    from attnflow.capture import CapturedPair

__all__ = [
    "TASKS",
    "check_model",
    "explain_each",
    "generate",
    "list_pairs",
    "task_of",
    "task_to_load",
]

TEXT: Final = "seq2seq-lm"
SPEECH: Final = "speech-to-text"
TASKS: Final = (TEXT, SPEECH)

# What stands between the source and the target where both are shown as one text.
ARROW: Final = " → "

# Stands for the language of a sound until the model has heard it.
UNHEARD: Final = -1


class _Parts(NamedTuple):
    """A model, its tokenizer and, for sound, what it hears with."""

    model: Any
    tokenizer: Any
    ears: Listener | None
    name: str


class _Given(NamedTuple):
    """A source and the target so far, checked, with no more kept of them than needed.

    `source` is a text with its token ids, or a sound without; one in a file is read again when its
    turn comes. `positions` is how many positions the encoder has for it.
    """

    source: Any
    ids: list[int]
    positions: int
    target: list[int]
    truncate: bool


class _Pair(NamedTuple):
    """A source and the target so far, as the model reads them and as a reader is shown them.

    `source` is the ids of the source's tokens, or the features of a sound. `sizes` is how many of
    the encoder's positions each source token has. `tokens`, `spans` and `special` are those of the
    source and then of the target.
    """

    text: str
    source: Any
    sizes: tuple[int, ...]
    target: list[int]
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int] | None, ...]
    special: tuple[bool, ...]

    @property
    def positions(self) -> int:
        return sum(self.sizes)


class _Options(NamedTuple):
    """The options of a call, checked."""

    method: str
    layer: Any
    position: Any
    edges: str
    target: Any
    heads: str | int
    residual: float
    relative: bool
    words: bool
    special_tokens: bool
    drop_sink: bool
    truncate: bool


def task_of(model: Any) -> str:
    """Return what an encoder-decoder, or a class of them, is for: text to text, or speech to text.

    Args:
        model: A model of transformers, or its class.

    Returns:
        "seq2seq-lm", or "speech-to-text" if it is given sound.
    """
    return SPEECH if is_sound_model(model) else TEXT


def task_to_load(config: Any, task: str) -> str:
    """Return what to load an encoder-decoder for.

    Args:
        config: The checkpoint's configuration.
        task: What was asked for; "auto" is what the model can do.

    Raises:
        OptionError: If it cannot be loaded for that.
        ModelError: If it was saved for something other than to write text.
    """
    able = SPEECH if config.model_type == "whisper" else TEXT
    saved = (config.architectures or [""])[0]
    if task == "auto" and saved.endswith(("Classification", "QuestionAnswering")):
        raise ModelError(
            f"the checkpoint is a {saved}; of encoder-decoders, those that write text can be "
            f"explained: with task={able!r} it is loaded as one"
        )
    if task not in ("auto", able):
        raise OptionError(
            f"task is {task!r}, but {config.model_type} is an encoder-decoder; expected auto or "
            f"{able}"
        )
    return able


def check_model(model: Any, reader: Any) -> None:
    """See that an encoder-decoder can be explained.

    Args:
        model: The model.
        reader: Its tokenizer, or the processor of a speech model.

    Raises:
        ModelError: If it reads neither text nor sound, or writes no text.
    """
    name = type(model).__name__
    if getattr(model, "main_input_name", "input_ids") not in ("input_ids", "input_features"):
        raise ModelError(
            f"{name} reads {model.main_input_name}, neither text nor sound; its attention can be "
            "had with attnflow.capture.capture_pair, and its graph with "
            "attnflow.encoder_decoder_graph"
        )
    if not (hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is not None):
        raise ModelError(
            f"{name} is an encoder-decoder without a head that writes text; load it for "
            f"task={task_of(model)!r}"
        )
    if is_sound_model(model):
        listener(model, reader)


def list_pairs(inputs: Any, *, sound: bool = False) -> tuple[list[tuple[Any, str]], bool]:
    """Return sources, each with the target so far, and whether there are many.

    Args:
        inputs: A source; a tuple of a source and the target so far; or a list of either.
        sound: Whether sources are sounds, not texts. What a sound may be is checked later.

    Raises:
        TextError: If it is none of these.

    Example:
        >>> list_pairs("the house")
        ([('the house', '')], False)
        >>> list_pairs([("the house", "das"), "a cat"])
        ([('the house', 'das'), ('a cat', '')], True)
    """
    what = "sound" if sound else "text"
    many = isinstance(inputs, list)
    if many and not inputs:
        raise TextError(f"inputs is an empty list; expected a {what} or a list of them")
    pairs = []
    for item in inputs if many else [inputs]:
        pair = item if isinstance(item, tuple) else (item, "")
        source_fits = len(pair) == 2 and (sound or isinstance(pair[0], str))
        if not source_fits or not isinstance(pair[1], str):
            shown = type(item).__name__ if sound else repr(item)
            raise TextError(
                f"the input is {shown}; expected a source {what}, or a tuple of a source {what} "
                "and the target so far, a text"
            )
        pairs.append((pair[0], pair[1]))
    return pairs, many


def explain_each(
    model: Any, reader: Any, pairs: Sequence[tuple[Any, str]], *, name: str, **given: Any
) -> Iterator[tuple[int, Explanation]]:
    """Yield the explanation of what follows each target so far.

    Pairs of similar length go through the model together, the short ones first.

    Args:
        model: An encoder-decoder that writes text.
        reader: Its tokenizer, or the processor of a speech model.
        pairs: Sources, each with the target so far, which may be empty.
        name: The model's name.
        **given: The options of `Explainer.explain`. `position` counts the target's positions, from
            the start token; "auto" is the last. `layer` is a layer of the decoder.

    Yields:
        The index of a pair, and its explanation. Source tokens come first.

    Raises:
        AttnflowError: Whatever `Explainer.explain` raises.
    """
    parts = _open(model, reader, name)
    options = _checked(parts, **given)
    checked = [_check_pair(parts, *pair, options.truncate) for pair in pairs]
    for item in checked:
        _position(options.position, len(item.target))
    for batch in _batches(checked):
        group = [_prepare(parts, checked[index]) for index in batch]
        places = [[_position(options.position, len(pair.target))] for pair in group]
        for index, found in zip(batch, _explain(parts, group, places, options), strict=True):
            yield index, found[0]


def generate(
    model: Any, reader: Any, source: Any, max_new_tokens: int, *, name: str, **given: Any
) -> list[Explanation]:
    """Let the model write a target for a source, and explain every token of it from one pass.

    With edges="gradient" every token needs a pass of its own.

    Args:
        model: An encoder-decoder that writes text.
        reader: Its tokenizer, or the processor of a speech model.
        source: The source text, or sound, or a tuple of it and the target so far.
        max_new_tokens: How many tokens to write at most.
        name: The model's name.
        **given: The options of `Explainer.explain`.

    Returns:
        One explanation for each token written, special tokens left out.

    Raises:
        AttnflowError: Whatever `Explainer.explain` raises.
    """
    parts = _open(model, reader, name)
    options = _checked(parts, **given)
    [(source, said)], _ = list_pairs([source], sound=parts.ears is not None)
    checked = _check_pair(parts, source, said, options.truncate)
    most = _most_target(parts)
    if most is not None and len(checked.target) + max_new_tokens > most:
        raise TextError(
            f"the target starts with {len(checked.target)} tokens and {max_new_tokens} more are "
            f"asked for, but the model takes {most}"
        )
    if parts.ears is not None:
        checked = checked._replace(source=parts.ears.read(source, options.truncate))
    pair = _prepare(parts, checked)
    written = _write(parts, pair, max_new_tokens)
    special = _special_ids(parts.tokenizer)
    first = len(pair.target)
    positions = [k - 1 for k in range(first, len(written)) if written[k] not in special]
    if not positions:
        return []
    last = positions[-1] + 1
    whole = _join(parts, checked, pair.source, written[:last])
    targets = [written[k + 1] for k in positions]
    if options.edges == "gradient":
        return [
            _explain(parts, [whole], [[position]], options, [target])[0][0]
            for position, target in zip(positions, targets, strict=True)
        ]
    return _explain(parts, [whole], [positions], options, targets)[0]


# ---- Checking and reading ------------------------------------------------------------------------


def _open(model: Any, reader: Any, name: str) -> _Parts:
    if not is_sound_model(model):
        return _Parts(model, reader, None, name)
    return _Parts(model, reader.tokenizer, listener(model, reader), name)


def _checked(
    parts: _Parts,
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
    check_edges(edges, heads, residual)
    if isinstance(position, str) and position not in ("auto", "last"):
        raise OptionError(f"position is {position!r}; expected an index, auto or last")
    if words and not getattr(parts.tokenizer, "is_fast", False):
        raise OptionError(
            "words=True needs to know where each token stands in the text, which only a fast "
            f"tokenizer tells, and {type(parts.tokenizer).__name__} is not one"
        )
    config = parts.model.config
    depth = getattr(config, "decoder_layers", None) or getattr(config, "num_decoder_layers", None)
    if isinstance(depth, int):
        resolve_index(layer, depth, "layer", "layers", first=1)
    if target is not None:
        _target(parts.tokenizer, target, 0, config.get_text_config(decoder=True).vocab_size)
    return _Options(
        method,
        layer,
        position,
        edges,
        target,
        heads,
        residual,
        receptive_field is True and method != "raw",
        bool(words),
        bool(special_tokens),
        bool(drop_sink),
        bool(truncate),
    )


def _position(position: Any, count: int) -> int:
    if position in ("auto", "last"):
        return count - 1
    return resolve_index(position, count, "position", "target positions")


def _limit(*limits: Any) -> int | None:
    """Return the smallest of some limits; what is none, or huge, is not one."""
    return min((x for x in limits if isinstance(x, int) and 0 < x < 10**9), default=None)


def _most_target(parts: _Parts) -> int | None:
    """Return how many target tokens the model takes, None if any number."""
    config = parts.model.config
    return _limit(
        getattr(config, "max_target_positions", None),
        getattr(config, "max_position_embeddings", None),
    )


def _check_pair(parts: _Parts, source: Any, target: str, truncate: bool) -> _Given:
    """Read a source and the target so far, and check that the model takes them."""
    config = parts.model.config
    start = config.decoder_start_token_id
    if start is None:
        raise ModelError(
            f"{type(parts.model).__name__} does not say what its target starts with: "
            "config.decoder_start_token_id is None"
        )
    labels = list(parts.tokenizer(text_target=target)["input_ids"])
    # What ends a target has not been said yet.
    if labels and labels[-1] == getattr(parts.tokenizer, "eos_token_id", None):
        labels.pop()
    # The tokenizer of Whisper begins with what the target begins with, others do not.
    labels = labels if labels[:1] == [start] else [start, *labels]
    if parts.ears is not None:
        labels = _with_language(parts.model, labels)
        parts.ears.read(source, truncate)
        given = _Given(source, [], parts.ears.positions, labels, truncate)
    else:
        ids = _source_ids(parts, source, truncate)
        given = _Given(source, ids, len(ids), labels, truncate)
    most = _most_target(parts)
    if most is not None and len(labels) > most:
        raise TextError(
            f"the target so far has {len(labels)} tokens, with those it starts with, and the model "
            f"takes {most}; shorten it"
        )
    return given


def _encode(model: Any, tokenizer: Any, source: str, target: str, truncate: bool) -> _Pair:
    """Return a source text and the target so far as the model reads them."""
    parts = _Parts(model, tokenizer, None, "")
    return _prepare(parts, _check_pair(parts, source, target, truncate))


def _source_ids(parts: _Parts, source: str, truncate: bool) -> list[int]:
    if not source.strip():
        raise TextError("the source text is empty; there is nothing to explain")
    most = _limit(
        getattr(parts.tokenizer, "model_max_length", None),
        getattr(parts.model.config, "max_position_embeddings", None),
    )
    ids = list(
        parts.tokenizer(
            source,
            truncation=bool(truncate and most),
            max_length=most if truncate else None,
            verbose=False,
        )["input_ids"]
    )
    if most is not None and len(ids) > most:
        raise TextError(
            f"the source text has {len(ids)} tokens and the model takes {most}; shorten it, or "
            "pass truncate=True (--truncate) to cut it there"
        )
    return ids


def _with_language(model: Any, target: list[int]) -> list[int]:
    """Return a target with its language and task, as Whisper is told them.

    A tokenizer that was told them has them there. Otherwise they are those of the model's
    generation_config, or else the language that the model hears, and to transcribe.
    """
    config = model.generation_config
    languages: dict[str, int] = getattr(config, "lang_to_id", None) or {}
    tasks: dict[str, int] = getattr(config, "task_to_id", None) or {}
    if languages and not set(languages.values()) & set(target):
        target = [target[0], _language_id(config, languages), *target[1:]]
    if languages and tasks and not set(tasks.values()) & set(target):
        task = getattr(config, "task", None) or "transcribe"
        target = [*target[:2], tasks[task], *target[2:]]
    return target


def _language_id(config: Any, languages: dict[str, int]) -> int:
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    language = getattr(config, "language", None)
    if not isinstance(language, str):
        return UNHEARD
    code = TO_LANGUAGE_CODE.get(language.lower(), language.lower())
    found = languages.get(language, languages.get(f"<|{code}|>"))
    if found is None:
        raise ModelError(
            f"generation_config.language is {language!r}, which the model does not know"
        )
    return found


def _batches(items: Sequence[_Given]) -> Iterator[list[int]]:
    """Yield the indices of pairs that run together: of similar length, the short ones first."""

    def length(index: int) -> tuple[int, int]:
        return items[index].positions, len(items[index].target)

    batch: list[int] = []
    longest = 0
    for index in sorted(range(len(items)), key=length):
        source, target = length(index)
        longest = max(longest, target)
        if batch and (len(batch) + 1) * (source + longest) > BATCH_POSITIONS:
            yield batch
            batch, longest = [], target
        batch.append(index)
    if batch:
        yield batch


def _prepare(parts: _Parts, given: _Given) -> _Pair:
    """Return a pair as the model reads it."""
    if parts.ears is None:
        return _join(parts, given, given.ids, given.target)
    import torch

    from attnflow.capture.borrow import borrowed

    samples = parts.ears.read(given.source, given.truncate)
    features = parts.ears.features(samples)
    target = given.target
    if UNHEARD in target:
        with torch.no_grad(), borrowed(parts.model, None):
            heard = int(
                parts.model.detect_language(
                    input_features=features.to(parts.model.device, parts.model.dtype),
                    num_segment_frames=features.shape[-1],
                )[0]
            )
        target = [heard if token == UNHEARD else token for token in target]
    return _join(parts, given._replace(source=samples), features, target)


def _join(parts: _Parts, given: _Given, source: Any, target: list[int]) -> _Pair:
    """Return both sides as one text, each token with its place in it."""
    tokenizer = parts.tokenizer
    special_ids = _special_ids(tokenizer) | {target[0]}
    names: list[str] = []
    spans: list[tuple[int, int] | None] = []
    if parts.ears is None:
        text = given.source
        spans += _source_spans(tokenizer, text, given.ids, special_ids)
        names += map(str, tokenizer.convert_ids_to_tokens(given.ids))
        special = [token in special_ids for token in given.ids]
        sizes = (1,) * len(given.ids)
    else:
        text = ""
        heard = parts.ears.stretches(given.source)
        spans += [None] * len(heard.names)
        names += heard.names
        special = list(heard.special)
        sizes = heard.sizes
    if text and any(token not in special_ids for token in target):
        text += ARROW
    begin, before = len(text), ""
    shown: list[int] = []
    for place, token in enumerate(target):
        if token in special_ids:
            # The start of the target is where the arrow stands, if there is one.
            arrow = place == 0 and text.endswith(ARROW)
            spans.append((begin - len(ARROW), begin) if arrow else None)
            continue
        # A tokenizer tells where tokens stand only in texts that it reads, so that the target is
        # written token by token.
        shown.append(token)
        after = tokenizer.decode(shown, clean_up_tokenization_spaces=False)
        first = len(before) if after.startswith(before) else len(after)
        spans.append((begin + first, begin + len(after)))
        before = after
    text += before
    names += map(str, tokenizer.convert_ids_to_tokens(target))
    special += [token in special_ids for token in target]
    tokens = tuple(
        name if flag else (span and text[slice(*span)].strip()) or name
        for name, span, flag in zip(names, spans, special, strict=True)
    )
    return _Pair(text, source, sizes, target, tokens, tuple(spans), tuple(special))


def _special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of special tokens. What stands for an unknown word stands for a word."""
    special = set(getattr(tokenizer, "all_special_ids", []))
    unknown = getattr(tokenizer, "unk_token_id", None)
    # Some tokenizers have one token for this and for the end.
    others = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "sep")]
    return special if unknown in others else special - {unknown}


def _source_spans(
    tokenizer: Any, source: str, ids: list[int], special_ids: set[int]
) -> list[tuple[int, int] | None]:
    if not getattr(tokenizer, "is_fast", False):
        return [None] * len(ids)
    offsets = tokenizer(source, truncation=True, max_length=len(ids), return_offsets_mapping=True)
    return [
        None if token in special_ids else (int(start), int(end))
        for token, (start, end) in zip(ids, offsets["offset_mapping"], strict=True)
    ]


# ---- Running it ----------------------------------------------------------------------------------


def _write(parts: _Parts, pair: _Pair, max_new_tokens: int) -> list[int]:
    """Return the target that the model writes, greedily, with what it starts with."""
    import torch

    from attnflow.capture.borrow import borrowed
    from attnflow.capture.quiet import quiet

    model = parts.model
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "do_sample": False,
        "num_beams": 1,
        "decoder_input_ids": torch.tensor([pair.target], device=model.device),
    }
    if parts.ears is None:
        source = torch.tensor([pair.source], device=model.device)
        options["attention_mask"] = torch.ones_like(source)
    else:
        source = pair.source.to(model.device, model.dtype)
        options["return_timestamps"] = False
    with torch.no_grad(), borrowed(model, None), quiet():
        written: list[int] = model.generate(source, **options)[0].tolist()
    # Whisper gives back what the target starts with, or does not, from version to version.
    return written if written[: len(pair.target)] == pair.target else [*pair.target, *written]


def _explain(
    parts: _Parts,
    pairs: list[_Pair],
    positions: list[list[int]],
    options: _Options,
    targets: list[int] | None = None,
) -> list[list[Explanation]]:
    """Return the explanation of each position of each target, from one pass.

    `targets` is the token that each position of a single pair is explained for.
    """
    captured, logits = _run(parts, pairs, positions, options, targets)
    return [
        _measure(parts, captured, row, pair, places, found, options, targets)
        for row, (pair, places, found) in enumerate(zip(pairs, positions, logits, strict=True))
    ]


def _run(
    parts: _Parts,
    pairs: list[_Pair],
    positions: list[list[int]],
    options: _Options,
    targets: list[int] | None,
) -> tuple[CapturedPair, list[NDArray[np.float64]]]:
    """Run the model; return the attention, and logits (positions, vocabulary) of each pair."""
    import torch

    from attnflow.capture import capture_pair

    model = parts.model
    pad = _limit(getattr(parts.tokenizer, "pad_token_id", None)) or 0

    def padded(rows: list[list[int]], fill: int) -> Any:
        longest = max(map(len, rows))
        filled = [row + [fill] * (longest - len(row)) for row in rows]
        return torch.tensor(filled, device=model.device)

    # What follows a position has no effect on it, so that a padded target needs no mask.
    inputs = {"decoder_input_ids": padded([pair.target for pair in pairs], pad)}
    if parts.ears is not None:
        features = torch.cat([pair.source for pair in pairs])
        inputs["input_features"] = features.to(model.device, model.dtype)
    else:
        inputs["input_ids"] = padded([pair.source for pair in pairs], pad)
        if len({len(pair.source) for pair in pairs}) > 1:
            inputs["attention_mask"] = padded([[1] * len(pair.source) for pair in pairs], 0)

    def score(outputs: Any) -> Any:
        values = []
        for row, (place, *_) in enumerate(positions):
            logits = outputs.logits[row, place]
            wanted = targets[0] if targets else options.target
            values.append(
                logits[_target(parts.tokenizer, wanted, int(logits.argmax()), len(logits))]
            )
        return torch.stack(values)

    captured = capture_pair(
        model,
        inputs,
        heads=options.heads,
        score=score if options.edges == "gradient" else None,
        edges="attention" if options.edges == "gradient" else options.edges,
    )
    found = captured.outputs.logits
    logits = [
        found[row, places].detach().double().cpu().numpy() for row, places in enumerate(positions)
    ]
    return captured, logits


def _graph(captured: CapturedPair, row: int, pair: _Pair, options: _Options) -> AttentionGraph:
    """Return the graph of one pair of a batch, its padding cut away."""
    count, said = pair.positions, len(pair.target)
    encoder: list[Any] = [layer[row, :count, :count] for layer in captured.encoder]
    decoder: list[Any] = [layer[row, :said, :said] for layer in captured.decoder]
    cross: list[Any] = [layer[row, :said, :count] for layer in captured.cross]
    if options.edges == "gradient":
        encoder, decoder = (
            [gradient_rows(layer.double().numpy()) for layer in part] for part in (encoder, decoder)
        )
        # Where nothing in the source helps the target, a position keeps to itself.
        cross = [shares(layer.double().numpy()) for layer in cross]
    residual: float | NDArray[np.float64] = options.residual
    if captured.residuals is not None:
        own, before, across = captured.residuals
        below = len(encoder)
        residual = np.ones((below + 2 * len(decoder), count + said))
        for layer, share in enumerate(own):
            residual[layer, :count] = share[row, :count].numpy()
        for layer, (share, other) in enumerate(zip(before, across, strict=True)):
            residual[below + 2 * layer, count:] = share[row, :said].numpy()
            residual[below + 2 * layer + 1, count:] = other[row, :said].numpy()
    return encoder_decoder_graph(
        encoder, decoder, cross, residual=residual, allow_empty=options.edges != "attention"
    )


def _measure(
    parts: _Parts,
    captured: CapturedPair,
    row: int,
    pair: _Pair,
    positions: list[int],
    logits: NDArray[np.float64],
    options: _Options,
    targets: list[int] | None,
) -> list[Explanation]:
    """Return the explanation of each position of one pair of a batch."""
    graph = _graph(captured, row, pair, options)
    below, depth = len(captured.encoder), len(captured.decoder)
    layer = resolve_index(options.layer, depth, "layer", "layers", first=1)
    rows = [pair.positions + position for position in positions]
    steps = [below + 2 * i for i in range(1, depth + 1)]
    scores = _layer_scores(graph, options.method, rows, steps)
    saturation: list[float | None] = [None] * len(rows)
    if options.method == "flow":
        every = np.zeros((graph.layers, *scores.shape[1:]))
        every[[step - 1 for step in steps]] = scores
        saturation = [*saturation_of(graph, every, steps[layer - 1], rows)]
    scores = _added_up(scores, pair)
    if options.relative:
        even = _uniform(pair, below, depth, graph.residual)
        uniform = _added_up(_layer_scores(even, options.method, rows, steps), pair)
        scores = relative_to(uniform, scores)
    trace = _trace(graph, pair, below, options.relative)
    return [
        _explanation(
            parts,
            pair,
            trace,
            scores[:, i, : len(pair.sizes) + position + 1],
            layer,
            len(pair.sizes) + position,
            logits[i],
            targets[i] if targets else None,
            saturation[i],
            _sinks(graph, pair, position),
            options,
        )
        for i, position in enumerate(positions)
    ]


def _trace(graph: AttentionGraph, pair: _Pair, below: int, relative: bool) -> Trace | None:
    """Return what is kept of the graph of a text; that of a sound is too large for a page."""
    if len(pair.sizes) < pair.positions:
        return None
    mask = None
    if relative:
        mask = np.ones((graph.layers, 2 * graph.tokens - 1), dtype=np.bool_)
        # In the self-attention of the decoder, the target does not see what follows.
        mask[below::2, graph.tokens :] = False
    return Trace.of(graph, tokens=pair.tokens, spans=pair.spans, special=pair.special, mask=mask)


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
    if method == "flow":
        return attention_flow(graph, layers=steps, positions=rows)
    return scores_of(graph, method, rows)[[step - 1 for step in steps]]


def _added_up(scores: NDArray[np.float64], pair: _Pair) -> NDArray[np.float64]:
    """Add up the scores of the positions of each source token."""
    sizes = [*pair.sizes, *[1] * len(pair.target)]
    result: NDArray[np.float64] = np.add.reduceat(
        scores, np.concatenate([[0], np.cumsum(sizes)[:-1]]), axis=-1
    )
    return result


def _uniform(
    pair: _Pair, below: int, depth: int, residual: float | NDArray[np.float64]
) -> AttentionGraph:
    """Return the graph of attention that prefers nothing, the target seeing what precedes."""
    source, target = pair.positions, len(pair.target)
    causal = np.tri(target) / np.arange(1, target + 1)[:, None]
    return encoder_decoder_graph(
        [np.full((source, source), 1 / source)] * below,
        [causal] * depth,
        [np.full((target, source), 1 / source)] * depth,
        residual=residual,
    )


def _sinks(graph: AttentionGraph, pair: _Pair, position: int) -> list[int]:
    """Return the tokens that get most attention from the others, over all layers.

    One is of the source, and one of the target where an earlier token is attended to. They are
    counted among the tokens shown.
    """
    count = pair.positions + position + 1
    attention = graph.attention[:, :count, :count]
    received = attention.sum(axis=(0, 1)) - np.einsum("lkk->k", attention)
    source = np.add.reduceat(
        received[: pair.positions], np.concatenate([[0], np.cumsum(pair.sizes)[:-1]])
    )
    target = received[pair.positions :]
    found = [int(np.argmax(source))]
    if target.max() > 0:
        found.append(len(pair.sizes) + int(np.argmax(target)))
    return found


def _explanation(
    parts: _Parts,
    pair: _Pair,
    trace: Trace | None,
    scores: NDArray[np.float64],
    layer: int,
    position: int,
    logits: NDArray[np.float64],
    target: int | None,
    saturation: float | None,
    sinks: list[int],
    options: _Options,
) -> Explanation:
    def label(index: int) -> str:
        # What stands for no text, as the end does for some tokenizers, has a name at least.
        name = parts.tokenizer.decode([index]) or parts.tokenizer.convert_ids_to_tokens(index)
        return str(name)

    prediction = predict(logits, label)
    if target is None:
        target = _target(parts.tokenizer, options.target, prediction.index, len(logits))
    seen = scores.shape[1]
    # The text ends with the last token that is scored.
    ends = [span[1] for span in pair.spans[:seen] if span is not None]
    final = scores[layer - 1]
    largest = max(sinks, key=lambda index: final[index])
    notes = notes_on(
        pair.tokens, final, position, layer, saturation, None if options.drop_sink else largest
    )
    if options.drop_sink:
        left_out = " and ".join(f"token {sink}, {pair.tokens[sink]!r}" for sink in sinks)
        notes.append(f"Left out as attention sinks, of the source and of the target: {left_out}.")
    kept = [i for i in range(seen) if not (options.drop_sink and i in sinks)]
    scores = scores[:, kept]
    if options.relative and options.drop_sink:
        scores = shares(scores)
    explanation = Explanation(
        tokens=tuple(pair.tokens[i] for i in kept),
        scores=scores[layer - 1],
        layer_scores=scores,
        method=options.method,
        layer=layer,
        position=position,
        target=label(target),
        prediction=prediction,
        text=pair.text[: max(ends, default=0)],
        spans=tuple(pair.spans[i] for i in kept),
        special=tuple(pair.special[i] for i in kept),
        model=parts.name,
        task=task_of(parts.model),
        options={
            "edges": options.edges,
            "heads": options.heads,
            "residual": "measured" if options.edges == "value_norm" else float(options.residual),
            "receptive_field": options.relative,
            "words": options.words,
            "special_tokens": options.special_tokens,
            "drop_sink": options.drop_sink,
            "source_tokens": len(pair.sizes),
        },
        saturation=saturation,
        notes=tuple(notes),
        # What follows the position has no part in it.
        trace=None if trace is None else trace.first(seen),
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
