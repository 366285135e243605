"""The scores of one input in every layer, by several methods, for every kind of model.

A text model is asked about one position of a text, a vision model about one position of an image.
An encoder-decoder may be asked about many positions of a target, and one forward pass serves them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow import seq2seq, vision
from attnflow.errors import OptionError, TextError
from attnflow.explain import Explainer, _Options
from attnflow.explanation import Prediction
from attnflow.flow import attention_flow
from attnflow.graph import AttentionGraph
from attnflow.scoring import predict, relative_to, scores_of, sink_of

if TYPE_CHECKING:
    from attnflow.evaluate.measure import Plan

__all__ = ["Question", "Scored", "check_options", "depth_of", "layer_scores", "questions", "read"]

PAIRS = seq2seq.TEXT
IMAGES = "image-classification"


class Question(NamedTuple):
    """What is asked about an input.

    Attributes:
        position: As in `Explainer.explain`.
        target: The class or token; None is what the model predicts.
    """

    position: int | str
    target: int | str | None


class Scored(NamedTuple):
    """The scores of one position of an input in every layer, by several methods.

    Attributes:
        tokens: The T tokens that the position can see.
        special: For each token whether it is a special one.
        position: The position.
        scores: For each pair of a method and whether its scores are related to uniform attention,
            the scores, float64 of shape (L, T).
        related: Whether scores are related to uniform attention where nobody says.
        sinks: The tokens that ``drop_sink`` leaves out.
        target: The class or token that the model is asked about.
        prediction: What the model answered.
    """

    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    position: int
    scores: dict[tuple[str, bool], NDArray[np.float64]]
    related: bool
    sinks: tuple[int, ...]
    target: str | None
    prediction: Prediction | None


def check_options(explainer: Explainer, plan: Plan) -> None:
    """Check, before an input is read, what can be checked of the options of scores.

    Args:
        explainer: The model.
        plan: The options.

    Raises:
        OptionError: If one is not valid for this model.
    """
    for edges in plan.edges:
        if explainer.task == PAIRS:
            _pair_options(explainer, plan, edges)
        elif explainer.task == IMAGES:
            _image_options(explainer, plan, edges)
        else:
            explainer._check(_options(plan, edges))


def _options(plan: Plan, edges: str) -> _Options:
    names = ("position", "heads", "residual", "truncate")
    return _Options(edges=edges, **{name: getattr(plan, name) for name in names})


def depth_of(explainer: Explainer) -> int | None:
    """Return how many layers there are to explain, as far as the model says."""
    config = explainer.model.config
    names = ["num_hidden_layers"]
    if explainer.task == PAIRS:
        names = ["decoder_layers", "num_decoder_layers"]
    found = [getattr(config, name, None) for name in names]
    return next((depth for depth in found if isinstance(depth, int)), None)


def read(explainer: Explainer, item: Any, plan: Plan) -> tuple[str, ...]:
    """See that an input can be evaluated, as far as that is possible without running the model.

    Args:
        explainer: The model.
        item: A text; a source, or a tuple of it and its target; or an image.
        plan: What is to be measured.

    Returns:
        Its tokens, of which frequencies are counted. An image has none that could be counted.

    Raises:
        AttnflowError: If it cannot be evaluated; the message says why.
    """
    if explainer.task == IMAGES:
        vision._check_image(item, "the image")
        return ()
    if explainer.task == PAIRS:
        [pair], _ = seq2seq.list_pairs([item])
        encoded = seq2seq._encode(explainer.model, explainer.tokenizer, *pair, plan.truncate)
        if plan.position != "auto":
            seq2seq._position(plan.position, len(encoded.target))
        # Without a target given there is what the target starts with, whatever it will be.
        return encoded.tokens if pair[1].strip() else encoded.tokens[: len(encoded.sizes)]
    encoding = explainer._encode(item, plan.truncate)
    if len(encoding.tokens) < 2:
        raise TextError("the text has one token, and a rank correlation needs two")
    explainer._position(encoding, plan.position, causal=None)
    return encoding.tokens


def questions(
    explainer: Explainer, item: Any, plan: Plan, target: int | str | None
) -> tuple[Any, list[Question]]:
    """Return an input with what is asked about it.

    Of an encoder-decoder, every token of the target is asked about, at the position where the model
    writes it. If there is no target, the model writes one, greedily.

    Args:
        explainer: The model.
        item: The input.
        plan: What is measured.
        target: The class or token given for it, if any.

    Returns:
        The input, a source with its target; and the questions.

    Raises:
        TextError: If there is nothing to ask about.
    """
    if explainer.task != PAIRS or plan.position != "auto":
        return item, [Question(plan.position, target)]
    [(source, said)], _ = seq2seq.list_pairs([item])
    if not said.strip():
        said = _written(explainer, source, plan)
    encoded = seq2seq._encode(explainer.model, explainer.tokenizer, source, said, plan.truncate)
    special = encoded.special[len(encoded.sizes) :]
    asked = [
        Question(place, token)
        for place, token in enumerate(encoded.target[1:])
        if not special[place + 1]
    ]
    if not asked:
        raise TextError(f"the tokenizer finds no token in the target {said!r}")
    return (source, said), asked


def _written(explainer: Explainer, source: str, plan: Plan) -> str:
    """Return the target that the model writes for a source."""
    parts = seq2seq._open(explainer.model, explainer.tokenizer, explainer.name)
    pair = seq2seq._prepare(parts, seq2seq._check_pair(parts, source, "", plan.truncate))
    most = seq2seq._most_target(parts)
    count = plan.max_new_tokens
    if most is not None:
        count = min(count, most - len(pair.target))
    written = seq2seq._write(parts, pair, count)[len(pair.target) :]
    said = str(parts.tokenizer.decode(written, skip_special_tokens=True))
    if not said.strip():
        raise TextError("the model writes nothing for the source, so that nothing can be asked")
    return said


def layer_scores(
    explainer: Explainer,
    item: Any,
    asked: list[Question],
    plan: Plan,
    edges: str,
    num_threads: int | None = None,
) -> list[Scored]:
    """Score the tokens of an input for each question, after a single forward pass.

    With gradients as edges every question takes a pass of its own.

    Args:
        explainer: The model.
        item: The input.
        asked: The questions; only an encoder-decoder may be asked several.
        plan: The methods, and the options of `Explainer.explain`.
        edges: What an edge weighs.
        num_threads: How many threads compute flows. None is one for each CPU.

    Returns:
        The scores for each question: those of `Explainer.explain`, special tokens included.

    Raises:
        AttnflowError: Whatever `Explainer.explain` raises; a TextError if an image cannot be read.
    """
    if explainer.task == PAIRS:
        return _of_pair(explainer, item, asked, plan, edges, num_threads)
    (question,) = asked
    if explainer.task == IMAGES:
        return [_of_image(explainer, item, question, plan, edges, num_threads)]
    found = explainer.layer_scores(
        item,
        methods=plan.methods,
        edges=edges,
        position=question.position,
        target=question.target,
        heads=plan.heads,
        residual=plan.residual,
        receptive_field=plan.receptive_field,
        truncate=plan.truncate,
        num_threads=num_threads,
    )
    return [
        Scored(
            tokens=found.tokens,
            special=found.special,
            position=found.position,
            scores=found.scores,
            related=found.causal,
            sinks=(found.sink,),
            target=found.target,
            prediction=found.prediction,
        )
    ]


def _choices(plan: Plan) -> set[bool]:
    """Return which scores are wanted of a model that "auto" relates to nothing."""
    return {choice is True for choice in plan.receptive_field}


# ---- Encoder-decoders ----------------------------------------------------------------------------


def _pair_options(explainer: Explainer, plan: Plan, edges: str) -> Any:
    parts = seq2seq._open(explainer.model, explainer.tokenizer, explainer.name)
    return seq2seq._checked(parts, **_options(plan, edges).for_other(explainer.task))


def _of_pair(
    explainer: Explainer,
    pair: Any,
    asked: list[Question],
    plan: Plan,
    edges: str,
    num_threads: int | None,
) -> list[Scored]:
    [(source, said)], _ = seq2seq.list_pairs([pair])
    parts = seq2seq._open(explainer.model, explainer.tokenizer, explainer.name)
    options = _pair_options(explainer, plan, edges)
    prepared = seq2seq._prepare(parts, seq2seq._check_pair(parts, source, said, plan.truncate))
    groups = [[question] for question in asked] if edges == "gradient" else [asked]
    result = []
    for group in groups:
        places = [seq2seq._position(one.position, len(prepared.target)) for one in group]
        captured, [logits] = seq2seq._run(
            parts, [prepared], [places], options._replace(target=group[0].target), None
        )
        graph = seq2seq._graph(captured, 0, prepared, options)
        below, depth = len(captured.encoder), len(captured.decoder)
        rows = [prepared.positions + place for place in places]
        steps = [below + 2 * layer for layer in range(1, depth + 1)]
        even = None
        if True in _choices(plan):
            even = seq2seq._uniform(prepared, below, depth, graph.residual)
        scores = {}
        for method in plan.methods:
            plain = _pair_scores(graph, method, rows, steps, num_threads)
            for relative in _choices(plan):
                values = plain
                if relative and even is not None and method != "raw":
                    uniform = _pair_scores(even, method, rows, steps, num_threads)
                    values = relative_to(uniform, plain)
                scores[method, relative] = values
        for i, (question, place) in enumerate(zip(group, places, strict=True)):
            seen = len(prepared.sizes) + place + 1
            predicted = predict(logits[i], lambda token: _token(parts.tokenizer, token))
            target = seq2seq._target(
                parts.tokenizer, question.target, predicted.index, len(logits[i])
            )
            result.append(
                Scored(
                    tokens=prepared.tokens[:seen],
                    special=prepared.special[:seen],
                    position=seen - 1,
                    scores={key: values[:, i, :seen] for key, values in scores.items()},
                    related=False,
                    sinks=tuple(seq2seq._sinks(graph, prepared, place)),
                    target=_token(parts.tokenizer, target),
                    prediction=predicted,
                )
            )
    return result


def _pair_scores(
    graph: AttentionGraph, method: str, rows: list[int], steps: list[int], num_threads: int | None
) -> NDArray[np.float64]:
    if method == "flow":
        return attention_flow(graph, layers=steps, positions=rows, num_threads=num_threads)
    return seq2seq._layer_scores(graph, method, rows, steps)


def _token(tokenizer: Any, index: int) -> str:
    # What stands for no text, as the end does for some tokenizers, has a name at least.
    return str(tokenizer.decode([index]) or tokenizer.convert_ids_to_tokens(index))


# ---- Images --------------------------------------------------------------------------------------


def _image_options(explainer: Explainer, plan: Plan, edges: str) -> Any:
    return vision._checked(explainer.model, **_options(plan, edges).for_other(explainer.task))


def _of_image(
    explainer: Explainer,
    image: Any,
    question: Question,
    plan: Plan,
    edges: str,
    num_threads: int | None,
) -> Scored:
    from attnflow.capture import capture

    model = explainer.model
    layout = vision.token_layout(model)
    processor = getattr(explainer.tokenizer, "image_processor", None) or explainer.tokenizer
    try:
        picture = vision._prepare(image, processor, layout, {})
    except OptionError as error:
        # An image that cannot be read stops nothing.
        raise TextError(str(error)) from error
    tokens = layout.tokens(picture.grid)
    position = vision._position(question.position, tokens, layout, type(model).__name__)
    options = _image_options(explainer, plan, edges)
    inputs: dict[str, Any] = {
        "pixel_values": picture.pixels[None].to(model.device, model.dtype),
    }
    _, height, width = picture.pixels.shape
    if vision._interpolates(model, (int(height), int(width))):
        inputs["interpolate_pos_encoding"] = True

    def target_of(logits: Any) -> int:
        if question.target is None:
            return int(logits.argmax())
        return vision._target(question.target, model.config)

    captured = capture(
        model,
        inputs,
        heads=plan.heads,
        score=(lambda outputs: outputs.logits[:, target_of(outputs.logits[0])])
        if edges == "gradient"
        else None,
        edges="attention" if edges == "gradient" else edges,
    )
    vision._check_count(model, layout, picture.grid, captured.layers[0].shape[-1])
    residual: float | NDArray[np.float64] = plan.residual
    if captured.residuals is not None:
        residual = np.stack([measured[0].numpy() for measured in captured.residuals])
    layers = [layer[0].double().numpy() for layer in captured.layers]
    graph = vision._graph(layers, residual, options)
    scores = {}
    for method in plan.methods:
        plain = scores_of(graph, method, [position], num_threads)[:, 0]
        for relative in _choices(plan):
            values = plain
            # A row of raw attention over a uniform row is the same row once it is normalised.
            if relative and method != "raw":
                values = relative_to(vision._uniform_scores(graph, method, position), plain)
            scores[method, relative] = values
    logits = captured.outputs.logits[0].detach().double().cpu().numpy()
    labels = model.config.id2label
    target = target_of(logits)
    return Scored(
        tokens=tokens,
        special=tuple(index < len(layout.special) for index in range(len(tokens))),
        position=position,
        scores=scores,
        related=False,
        sinks=(sink_of(graph),),
        target=str(labels.get(target, target)),
        prediction=predict(logits, lambda index: str(labels.get(index, index))),
    )
