"""`evaluate`: how far methods agree with references, over many texts or images."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnflow.checks import integer, items, resolve_layer, switch
from attnflow.dataset.engine import check_explainer
from attnflow.dataset.store import digest, file_digest
from attnflow.errors import OptionError, TextError
from attnflow.evaluate.baselines import BASELINES, IMAGE_BASELINES
from attnflow.evaluate.evaluation import MEASURES, EvaluatedText, Evaluation, Skipped
from attnflow.evaluate.evidence import LEFT_OUT, SAME_TOKEN, first_token
from attnflow.evaluate.faithfulness import check_removal
from attnflow.evaluate.measure import Plan, measure
from attnflow.evaluate.options import (
    check_replacement,
    check_task,
    choose,
    choose_baselines,
    statistics_options,
    token_counts,
)
from attnflow.evaluate.resumable import Resumable
from attnflow.importance import REFERENCES
from attnflow.importance.gradient import gradient_norm, input_gradient
from attnflow.io.journal import digest_of
from attnflow.models import Explainer
from attnflow.options import ANSWER_METHODS, ATTENTION_METHODS, EDGES, MEASURED_EDGES, METHODS

DEFAULT_METHODS = (*ATTENTION_METHODS, "contribution")
"""The methods that are evaluated by default."""

ROUNDING_NOTE = (
    "input_gradient is rounding error on this model, and correlations with it mean nothing: layer "
    "normalisation makes the sum of a token's gradient 0. Use gradient_norm or gradient_x_input "
    "instead."
)

# If sums of gradients are below this share of their norm, they are rounding error.
ROUNDING = 1e-4


def evaluate(
    explainer: Explainer,
    texts: Sequence[Any],
    *,
    methods: str | Sequence[str] = DEFAULT_METHODS,
    edges: str | Sequence[str] = ("attention",),
    references: str | Sequence[str] | None = ("blank_out",),
    layers: Sequence[int] | None = None,
    targets: int | str | Sequence[int | str | None] | None = None,
    contrasts: int | str | Sequence[int | str | None] | None = None,
    evidence: Sequence[Any] | None = None,
    keep_wrong: bool = False,
    position: int | str = "auto",
    heads: str | int = "mean",
    residual: float = 0.5,
    receptive_field: str | bool | Sequence[bool] = "auto",
    drop_sink: bool | Sequence[bool] = False,
    baselines: bool | str | Sequence[str] = True,
    frequencies: Mapping[str, int] | None = None,
    faithfulness: bool = False,
    removal: str | int = "auto",
    replacement: str | int = "auto",
    batch_size: int = 64,
    truncate: bool = False,
    max_new_tokens: int = 20,
    samples: int = 2000,
    permutations: int = 9999,
    level: float = 0.95,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
    skipped: Sequence[Skipped] = (),
    store: str | os.PathLike[str] | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    progress: Callable[[int, int], object] | None = None,
) -> Evaluation:
    """Measure how far methods agree with what the model depends on.

    For every text and layer, this computes Spearman's rank correlation between the scores of each
    method and each reference, once for all tokens and once without special tokens. A text that
    cannot be evaluated (empty, too long, fewer than two tokens) is listed in `Evaluation.skipped`,
    and the others are evaluated.

    Where the evidence for an answer is known, this also measures whether the scores find it: the
    reciprocal rank of the best-ranked evidence token, whether it comes first, and its share of the
    positive scores (`attnflow.evaluate.evidence`). A text is left out, and counted, if the model
    prefers the bad answer, both answers begin with the same token, or the evidence is only at the
    first position of a causal language model, where its attention sink is.

    Each kind of edges takes one forward pass per text, for all methods and layers. References take
    further passes: blank-out takes one per token.

    For an encoder-decoder, every token of the target is explained, given the tokens before it. The
    correlation of a text is the mean over these tokens. For an image, tokens are patches.

    Args:
        explainer: The model: a classifier of texts or images, a masked or causal language model, or
            an encoder-decoder that reads text.
        texts: The texts, or tuples of two texts that the model reads as a pair. For an
            encoder-decoder, source texts, for which the model generates
            targets, or tuples of a source and its target. For a vision model, images, as in
            `Explainer.explain`.
        methods: Any of `attnflow.options.METHODS`. Contributions have no layers, and are reported
            once.
        edges: Any of "attention", "gradient", "effective", "value_norm" and "alti".
        references: Any of `attnflow.importance.REFERENCES`. None means none, if evidence or
            faithfulness is measured.
        layers: The layers, from 1; -1 is the last. None means all. They are sorted.
        targets: The class or token that contributions, references and gradient edges explain: one
            for all texts, or one for each. None means what the model predicts. For a language
            model, a string for all is one token, as in `Explainer.explain`; strings for each are
            words that follow their texts, of which the first tokens are meant: a space is put
            before a word, unless its text ends in white space.
        contrasts: The class or token that the target is compared with, likewise.
        evidence: For each text what its answer must come from: a word or phrase of it, of which all
            places count; or spans of characters, "2-7,10-14" or a list of pairs (start, end). In a
            pair of texts they are counted in both, with a line break between them. None means that
            it is not known.
        keep_wrong: Whether to keep texts with evidence of which the model prefers the contrast to
            the target, or without a contrast another class.
        position: The position explained, as in `Explainer.explain`. For an encoder-decoder, "auto"
            means every position at which a target token is predicted; with "last" or an index, only
            that position is explained.
        heads: As in `Explainer.explain`.
        residual: As in `Explainer.explain`.
        receptive_field: As in `Explainer.explain`; (False, True) evaluates both.
        drop_sink: Whether to leave out the attention sink, the token that receives most attention;
            (False, True) evaluates both. With several edges it is the sink of "attention", or else
            of the first, so that all edges are compared on the same tokens.
        baselines: Whether to compare with scores that do not depend on the model, or which ones:
            "random", "position" (later tokens score higher), "position_reversed" (earlier tokens
            do), "frequency" (rarer tokens do), "first_token" and "last_token" (one token scores
            high, all others are equal); for images, "centre" (central patches do) instead of the
            last three.
        frequencies: How often each token occurs, for the baseline. Tokens that are missing have
            frequency 0. None counts the tokens of the texts, and of the targets given.
        faithfulness: Whether to also remove tokens in the order of their scores, and measure how
            the prediction changes.
        removal: How tokens are removed, as in `attnflow.evaluate.faithfulness.faithfulness`.
        replacement: What blank-out replaces a token with, as in `attnflow.importance.importance`.
        batch_size: How many texts with a token blanked out run together.
        truncate: Truncate a text that is longer than the model accepts, instead of skipping it.
        max_new_tokens: The largest number of tokens that an encoder-decoder generates for a source
            without a target.
        samples: The number of bootstrap resamples for a confidence interval.
        permutations: The number of sign flips for a p-value.
        level: The confidence level.
        seed: The seed of the random numbers.
        numbers: The texts' numbers in reports, such as their lines in a file. None counts from 1.
        skipped: Lines of a file that contain no text, to be listed in `Evaluation.skipped`.
        store: A file, or a folder for one, that keeps the result of every text as soon as it is
            computed. The same call resumes an evaluation that was stopped, and gives the same
            result. A file of another model, other options or other texts is refused.
        engine: What runs the model: "local", this machine, or "ray", a Ray cluster. The results are
            the same.
        workers: How many processes run the model, each on one CPU. None means one for each CPU. A
            model that is not on the CPU runs in this process.
        address: The Ray cluster, as in `attnflow.run`.
        device: Where Ray's workers run the model, as in `attnflow.run`.
        progress: Called after every text with how many are done and how many there are.

    Returns:
        The evaluation.

    Raises:
        OptionError: If an option is not valid for this model, or the store belongs to another
            evaluation.
        TextError: If none of the texts can be evaluated.
        ModelError: If the model's attention cannot be captured.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast
        >>> vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "keys": 3, "open": 4, "doors": 5}
        >>> config = BertConfig(vocab_size=6, hidden_size=8, num_hidden_layers=2,
        ...                     num_attention_heads=2, intermediate_size=8)
        >>> model = BertForSequenceClassification(config)
        >>> explainer = Explainer(model, BertTokenizerFast(vocab=vocabulary))
        >>> evaluation = evaluate(explainer, ["keys open doors", "doors open", ""], samples=100)
        >>> [row["layer"] for row in evaluation.summary("rollout")]
        [1, 2]
        >>> evaluation.skipped
        (Skipped(number=3, reason='the text is empty; there is nothing to explain'),)
    """
    options = dict(locals())
    for name in ("explainer", "texts", "progress"):
        del options[name]
    with Run(explainer, texts, **options) as run:
        run.measure_all(progress)
        return run.result()


class Run(Resumable):
    """An evaluation in progress. Iterate over it to measure text by text, then call `result`.

    `result` may be called at any time. `evaluate` does all of this in one call.

    Args:
        explainer: As in `evaluate`.
        texts: As in `evaluate`.
        **options: All options of `evaluate` but `progress`.

    Attributes:
        total: How many texts can be evaluated.
        done: How many have been evaluated.
        skipped: The texts that cannot be evaluated.

    Raises:
        AttnflowError: Whatever `evaluate` raises.
    """

    def __init__(self, explainer: Explainer, texts: Sequence[Any], **options: Any) -> None:
        check_explainer(explainer)
        check_task(explainer.task, explainer.name)
        adapter = explainer.adapter
        self._explainer = explainer
        self._texts = (
            list(texts) if isinstance(texts, np.ndarray) else items(texts, "texts", "texts")
        )
        self._numbers = _numbers_of(options["numbers"], len(self._texts))
        self._statistics = statistics_options(options)
        plan = self._plan = _plan(explainer, options)
        targets, contrasts = (
            _answers(explainer, options[name], name, len(self._texts), plan)
            for name in ("targets", "contrasts")
        )
        self._evidence = _evidence(explainer, options["evidence"], len(self._texts))
        self._answers: dict[int, list[int | None]] = {}
        self.skipped: list[Skipped] = list(options["skipped"])
        self._todo: list[int] = []
        counted: Counter[str] = Counter()
        for index, text in enumerate(self._texts):
            try:
                tokens = adapter.counted(text, plan.truncate, plan.position)
                given = (targets[index], contrasts[index])
                answers = [_index(explainer, text, one) for one in given]
                if None not in answers and answers[0] == answers[1]:
                    raise TextError(SAME_TOKEN)
                counted.update(tokens)
                self._answers[index] = answers
                self._todo.append(index)
            except (TextError, OptionError) as error:
                self.skipped.append(Skipped(self._numbers[index], str(error)))
        if not self._todo:
            first = self.skipped[len(options["skipped"])]
            what = "texts" if adapter.can_delete else "images"
            raise TextError(
                f"none of the {len(self._texts)} {what} can be evaluated; the first, number "
                f"{first.number}: {first.reason}"
            )
        self.total = len(self._todo)
        self._fingerprint = explainer.fingerprint()
        work = partial(
            _measured,
            plan=plan,
            frequencies=token_counts(options["frequencies"], counted),
            # Several workers keep all CPUs busy with one thread each.
            num_threads=None if (options["engine"], options["workers"]) == ("local", 1) else 1,
        )
        super().__init__(explainer, work, options)

    def _missing(self) -> Iterator[tuple[int, Any]]:
        for index in self._todo:
            if index not in self._records:
                first = index == self._todo[0]
                target, contrast = self._answers[index]
                evidence = self._evidence[index]
                yield index, _Task(index, self._texts[index], target, contrast, evidence, first)

    def result(self) -> Evaluation:
        """Return the evaluation of the texts done so far.

        Returns:
            The evaluation. Its `pending` says how many texts are missing.

        Raises:
            TextError: If no text has been evaluated.
        """
        done = [self._records[index] for index in self._todo if index in self._records]
        failed = [
            Skipped(self._numbers[record["text"]], record["error"])
            for record in done
            if "error" in record
        ]
        records = [record for record in done if "error" not in record]
        if not records:
            raise TextError(_nothing(failed) if failed else "no text has been evaluated yet")
        plan, explainer, first = self._plan, self._explainer, records[0]
        arrays = {
            name: np.array([record[name] for record in records], dtype=np.float64)
            for name in ("correlations", "baselines", *MEASURES)
            if name in first
        }
        arrays["baseline_correlations"] = arrays.pop("baselines")
        relative = sum(record["related"] for record in records) * 2 > len(records)
        options = {
            name: getattr(plan, name)
            for name in ("position", "heads", "residual", "replacement", "truncate")
        }
        if set(plan.edges) <= set(MEASURED_EDGES):
            options["residual"] = "measured"
        if plan.faithfulness:
            options["removal"] = plan.removal
        if "evidence" in first:
            options["keep_wrong"] = plan.keep_wrong
        if explainer.adapter.asks_about_targets and plan.position == "auto":
            options["max_new_tokens"] = plan.max_new_tokens
        return Evaluation(
            model=explainer.name,
            task=explainer.task,
            fingerprint=self._fingerprint,
            layers=first["layers"],
            methods=plan.methods,
            edges=plan.edges,
            receptive_fields=[
                relative if choice == "auto" else bool(choice) for choice in plan.receptive_field
            ],
            drop_sinks=plan.drop_sink,
            references=plan.references,
            baselines=plan.baselines,
            options={**options, **self._statistics},
            texts=[
                EvaluatedText.of({**record, "number": self._numbers[record["text"]]})
                for record in records
            ],
            skipped=sorted([*self.skipped, *failed], key=lambda item: item.number),
            pending=self.total - self.done,
            notes=[ROUNDING_NOTE] if any(record.get("rounding") for record in records) else [],
            **arrays,
        )

    def _header(self) -> dict[str, Any]:
        texts = self._explainer.adapter.can_delete
        inputs = [repr(item) if texts else _image_digest(item) for item in self._texts]
        return {
            "model": self._explainer.name,
            "fingerprint": self._fingerprint,
            "options": self._plan._asdict(),
            "data": {
                "texts": len(inputs),
                "digest": digest_of([inputs, sorted(self._answers.items()), self._evidence]),
            },
        }


class _Task(NamedTuple):
    """An input to measure, and whether it is the first of all."""

    number: int
    item: Any
    target: int | None
    contrast: int | None
    evidence: Any
    first: bool


def _measured(explainer: Explainer, task: _Task, plan: Plan, **options: Any) -> dict[str, Any]:
    """Return the record of an input: what was measured, or why it could not be."""
    try:
        record = measure(
            explainer,
            task.item,
            plan,
            index=task.number,
            target=task.target,
            contrast=task.contrast,
            evidence=task.evidence,
            **options,
        )
        if task.first and "input_gradient" in plan.references:
            record["rounding"] = _is_rounding(explainer, task, plan)
    except TextError as error:
        return {"text": task.number, "error": str(error)}
    return record


def _is_rounding(explainer: Explainer, task: _Task, plan: Plan) -> bool:
    """Return whether the sums of gradients are rounding error on this model."""
    item, [question, *_] = plan.questions(explainer, task.item, task.target, None)
    sums, norms = (
        reference(
            explainer,
            item,
            truncate=plan.truncate,
            target=question.target,
            position=question.position,
        )
        for reference in (input_gradient, gradient_norm)
    )
    return bool(sums.max() < ROUNDING * norms.max())


def _image_digest(image: Any) -> str:
    """Return a digest of an image's file or of its pixels."""
    if isinstance(image, str | os.PathLike):
        try:
            return file_digest(image)
        except OSError as error:
            # The image is listed among those that cannot be read.
            return str(error)
    if not hasattr(image, "tobytes"):
        return str(image)
    # Arrays have a shape, and Pillow images have a size and a mode.
    described = [getattr(image, name, None) for name in ("shape", "size", "mode")]
    return digest(repr(described).encode() + image.tobytes())


# ---- Options -------------------------------------------------------------------------------------


def _plan(explainer: Explainer, options: Mapping[str, Any]) -> Plan:
    images = not explainer.adapter.can_delete
    if images and options["frequencies"] is not None:
        raise OptionError("frequencies are counts of tokens, but this model takes images")
    given = {name: options[name] for name in Plan._fields}
    if given["references"] is None and (options["faithfulness"] or options["evidence"] is not None):
        given["references"] = ()
    for name, valid in (("methods", METHODS), ("edges", EDGES), ("references", REFERENCES)):
        if given[name] != ():
            given[name] = choose(given[name], name, valid)
    for name, least in (("batch_size", 1), ("max_new_tokens", 1), ("seed", 0)):
        given[name] = integer(given[name], name, least=least)
    for name in ("faithfulness", "truncate", "keep_wrong"):
        given[name] = switch(given[name], name)
    given["baselines"] = choose_baselines(
        given["baselines"], IMAGE_BASELINES if images else BASELINES
    )
    given["drop_sink"] = choose(given["drop_sink"], "drop_sink", (True, False))
    field = given["receptive_field"]
    given["receptive_field"] = (
        ("auto",)
        if isinstance(field, str) and field == "auto"
        else choose(field, "receptive_field", (True, False), otherwise="'auto'")
    )
    if set(given["methods"]) <= set(ANSWER_METHODS):
        for name, default in (("layers", None), ("edges", ("attention",))):
            if given[name] != default:
                raise OptionError(
                    f"{name} is {given[name]!r}, which makes no difference to the methods "
                    f"{', '.join(given['methods'])}; leave it out"
                )
    if given["layers"] is not None:
        given["layers"] = _layers(given["layers"], explainer.adapter.depth)
    plan = Plan(**given)
    check_replacement(plan.replacement, plan.references)
    for kind in plan.edges:
        explainer.adapter.check(plan.options(kind))
    if "blank_out" in plan.references:
        explainer.adapter.fill(plan.replacement)
    if plan.faithfulness:
        check_removal(explainer, plan.removal)
    elif plan.removal != "auto":
        raise OptionError(
            f"removal is {plan.removal!r}, but only faithfulness removes tokens; leave it out, or "
            "set faithfulness=True"
        )
    return plan


def _layers(layers: Any, depth: int | None) -> tuple[int, ...]:
    wanted = items([layers] if isinstance(layers, int) else layers, "layers")
    if depth is not None:
        wanted = [resolve_layer(layer, depth) for layer in wanted]
    if len(set(wanted)) < len(wanted):
        raise OptionError(f"layers is {layers!r}; a layer is given twice")
    return tuple(sorted(wanted))


def _answers(explainer: Explainer, given: Any, name: str, count: int, plan: Plan) -> list[Any]:
    """Return the target or contrast of each text: an index, a word that follows, or None."""
    adapter = explainer.adapter
    each = not (given is None or isinstance(given, str | int | np.integer))
    wanted = items(given, name, "classes or tokens") if each else [given] * count
    if len(wanted) != count:
        raise OptionError(f"{name} has {len(wanted)} items, but there are {count} texts")
    if adapter.asks_about_targets and plan.position == "auto" and set(wanted) != {None}:
        raise OptionError(
            f"{name} cannot be given if every target token of an encoder-decoder is explained; "
            "give tuples (source, target) as texts, or one position, such as position='last'"
        )
    # An unknown class is an error before the first text runs.
    checked = {
        one: one
        if each and isinstance(one, str) and not adapter.has_classes
        else adapter.target(one, name.removesuffix("s"))
        for one in wanted
    }
    return [checked[one] for one in wanted]


def _index(explainer: Explainer, item: Any, answer: int | str | None) -> int | None:
    """Return the index of a class or token; of a word that follows a text, its first token."""
    return first_token(explainer, item, answer) if isinstance(answer, str) else answer


def _evidence(explainer: Explainer, given: Any, count: int) -> list[Any]:
    if given is None:
        return [None] * count
    wanted = items(given, "evidence", "words or spans")
    if len(wanted) != count:
        raise OptionError(f"evidence has {len(wanted)} items, but there are {count} texts")
    if not getattr(explainer.tokenizer, "is_fast", False):
        raise OptionError(
            f"evidence needs the place of each token in a text, which {explainer.name} does not "
            "give; expected a model of texts with a fast tokenizer"
        )
    # A text without evidence is left out.
    return ["" if one is None else one for one in wanted]


def _nothing(failed: Sequence[Skipped]) -> str:
    """Say why none of the texts was measured."""
    reasons = [item.reason for item in failed]
    if not set(reasons) & set(LEFT_OUT):
        return reasons[0]
    why = "; ".join(f"{count}: {reason}" for reason, count in Counter(reasons).most_common())
    return f"none of the {len(failed)} texts can be measured ({why})"


def _numbers_of(numbers: Any, count: int) -> list[int]:
    if numbers is None:
        return list(range(1, count + 1))
    wanted = [integer(number, "numbers", least=0) for number in items(numbers, "numbers")]
    if len(wanted) != count:
        raise OptionError(f"numbers has {len(wanted)} items, but there are {count} texts")
    return wanted
