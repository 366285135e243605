"""Many texts or images: an evaluation from its options to its result, one by one."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnflow.checks import resolve_index
from attnflow.errors import OptionError, TextError
from attnflow.evaluate.baselines import BASELINES, IMAGE_BASELINES
from attnflow.evaluate.evaluation import EvaluatedText, Evaluation, Skipped
from attnflow.evaluate.measure import Plan, measure
from attnflow.evaluate.resumable import Resumable
from attnflow.explanation import Prediction
from attnflow.models import Explainer
from attnflow.options import EDGES, METHODS

__all__ = ["Run", "evaluate"]

ROUNDING_NOTE = (
    "input_gradient is rounding error on this model, and correlations with it mean nothing: layer "
    "normalisation makes the sum of a token's gradient 0. Use gradient_norm or gradient_x_input "
    "instead."
)

# A sum of gradients this far below their norm is what rounding leaves of 0.
ROUNDING = 1e-4

# Other models have no answer that tokens or patches could matter to, or read what has none.
TASKS = ("classification", "masked-lm", "causal-lm", "seq2seq-lm", "image-classification")

MAX_NEW_TOKENS = 20


def evaluate(
    explainer: Explainer,
    texts: Sequence[Any],
    *,
    methods: str | Sequence[str] = METHODS,
    edges: str | Sequence[str] = ("attention",),
    references: str | Sequence[str] = ("blank_out",),
    layers: Sequence[int] | None = None,
    targets: int | str | Sequence[int | str | None] | None = None,
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
    max_new_tokens: int = MAX_NEW_TOKENS,
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
    """Measure how far methods agree with what the model really depends on.

    For every text, the tokens' scores by each method are compared with their importance by each
    reference, by Spearman's rank correlation, in every layer; once for all tokens and once without
    special tokens. A text that cannot be evaluated (empty, too long, fewer than two tokens) is
    reported in `Evaluation.skipped`, and stops nothing.

    One forward pass a text, for each kind of edges, serves all methods and all layers. References
    take their own: blank-out as many as there are tokens.

    An encoder-decoder is asked about every token of the target, given what precedes it, and the
    correlation of a text is the mean over those. Of an image, tokens are patches.

    Args:
        explainer: The model: a classifier of texts or images, a masked or causal language model, or
            an encoder-decoder that reads text.
        texts: The texts. For an encoder-decoder sources, for which the model writes targets, or
            tuples of a source and its target. For a vision model images, as `Explainer.explain`
            takes them.
        methods: Of "raw", "rollout" and "flow".
        edges: Of "attention", "gradient", "effective" and "value_norm".
        references: Of `attnflow.importance.REFERENCES`: "blank_out", "input_gradient" and others.
        layers: The layers, from 1; -1 is the last. None means all. They are put in order.
        targets: The class or token that the references, and gradient edges, are for: one for all
            texts, or one for each. None is what the model predicts.
        position: The position explained, as in `Explainer.explain`. But for an encoder-decoder
            "auto" is every position at which a token of the target is written; with "last" or an
            index, what follows there is asked about, once a text.
        heads: As in `Explainer.explain`.
        residual: As in `Explainer.explain`.
        receptive_field: As in `Explainer.explain`; or (False, True), to have both side by side.
        drop_sink: Leave out the token that most positions attend to whatever it is; or
            (False, True), to have both. With several edges it is the sink of "attention", or else
            of the first of them, so that all are measured on the same tokens.
        baselines: Whether to compare with scores that know nothing of the model, or which ones:
            "random", "position" (later tokens score higher), "position_reversed" (earlier ones do)
            and "frequency" (rarer ones do); for images "centre" (nearer patches do) in the place of
            the last.
        frequencies: How often each token occurs, for the baseline; tokens that are not there are
            the rarest. None counts tokens in the texts evaluated, and in the targets given.
        faithfulness: Whether to remove tokens in the order of their scores, too, and to measure
            what that does to the answer.
        removal: What removes them, as in `attnflow.evaluate.faithfulness.faithfulness`.
        replacement: What blank-out puts in a token's place, as in `attnflow.importance.importance`.
        batch_size: How many texts with a token blanked out run together.
        truncate: Cut a text that is longer than the model takes, instead of skipping it.
        max_new_tokens: How many tokens an encoder-decoder writes at most, for a source without a
            target.
        samples: How often texts are drawn anew for a confidence interval.
        permutations: How often signs are flipped for a p-value.
        level: The level of confidence intervals.
        seed: Where random numbers start.
        numbers: The texts' numbers in reports, such as their lines in a file. None counts from 1.
        skipped: Lines of a file that held no text, to be reported with the texts that could not be
            evaluated.
        store: A file, or a folder for one, that keeps every text's result as soon as it is there.
            The same call goes on where it was stopped, and ends with the same result. It is
            refused if the file is of another model, other options or other texts.
        engine: What runs the model: "local", this machine, or "ray", a Ray cluster. The result is
            the same.
        workers: How many processes run the model, each on one CPU. None is one for each CPU; a
            model that is not on the CPU runs in this process.
        address: The Ray cluster, as `attnflow.run` takes it.
        device: Where Ray's workers run the model, as `attnflow.run` takes it.
        progress: Called after every text with how many are done and how many there are.

    Returns:
        The evaluation.

    Raises:
        OptionError: If an option is not valid for this model, or the store is of another
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
    """An evaluation under way: iterate over it to measure text by text, then ask for the result.

    The result may be asked for at any time, and is then of the texts done so far. `evaluate` is the
    short way.

    Args:
        explainer: As in `evaluate`.
        texts: As in `evaluate`.
        **options: The options of `evaluate`, all of them, but for `progress`.

    Attributes:
        total: How many texts can be evaluated.
        done: How many have been.
        skipped: The texts that cannot be evaluated.

    Raises:
        AttnflowError: Whatever `evaluate` raises.
    """

    def __init__(self, explainer: Explainer, texts: Sequence[Any], **options: Any) -> None:
        if not isinstance(explainer, Explainer):
            raise OptionError(f"explainer is {type(explainer).__name__}; expected an Explainer")
        if explainer.task not in TASKS:
            raise OptionError(
                f"{explainer.name} is a model for {explainer.task}, but references need an answer "
                f"to a text or an image: expected a model for {', '.join(TASKS)}"
            )
        self._explainer = explainer
        self._texts = _list_of(texts, "texts")
        self._numbers = _numbers_of(options["numbers"], len(self._texts))
        self._statistics = statistics_options(options)
        workers = workers_of(options)
        self._plan = _plan(explainer, options)
        self._targets = _targets(explainer, options["targets"], len(self._texts), self._plan)
        self.skipped: list[Skipped] = list(options["skipped"])
        self._todo: list[int] = []
        counted: Counter[str] = Counter()
        for index, text in enumerate(self._texts):
            try:
                counted.update(
                    explainer.adapter.counted(text, self._plan.truncate, self._plan.position)
                )
            except (TextError, OptionError) as error:
                self.skipped.append(Skipped(self._numbers[index], str(error)))
            else:
                self._todo.append(index)
        if not self._todo:
            first = self.skipped[len(options["skipped"])]
            what = "texts" if explainer.adapter.can_delete else "images"
            raise TextError(
                f"none of the {len(self._texts)} {what} can be evaluated; the first, number "
                f"{first.number}: {first.reason}"
            )
        given = options["frequencies"]
        self._frequencies: Mapping[str, int] = counted if given is None else _frequencies(given)
        self._fingerprint = explainer.fingerprint()
        work = partial(
            _measured,
            plan=self._plan,
            frequencies=self._frequencies,
            # Several workers keep all CPUs busy by themselves.
            num_threads=None if (options["engine"], workers) == ("local", 1) else 1,
        )
        header = None if options["store"] is None else self._header(given)
        super().__init__(explainer, work, header, options)
        self.total = len(self._todo)

    def _missing(self) -> Iterator[tuple[int, Any]]:
        for index in self._todo:
            if index not in self._records:
                first = index == self._todo[0]
                yield index, _Task(index, self._texts[index], self._targets[index], first)

    def result(self) -> Evaluation:
        """Return the evaluation of the texts done so far.

        Returns:
            The evaluation. Its `pending` says how many texts are missing.

        Raises:
            TextError: If no text has been evaluated.
        """
        records = [self._records[index] for index in self._todo if index in self._records]
        failed = [
            Skipped(self._numbers[record["text"]], record["error"])
            for record in records
            if "error" in record
        ]
        records = [record for record in records if "error" not in record]
        if not records:
            raise TextError(
                failed[0].reason if failed else "no text was evaluated, so that there is no result"
            )
        plan = self._plan
        related = sum(record["related"] for record in records) * 2 > len(records)
        first = records[0]
        arrays = {
            name: np.array([record[name] for record in records], dtype=np.float64)
            for name in ("correlations", "baselines")
        }
        columns = (len(plan.drop_sink), len(plan.references), 2)
        return Evaluation(
            model=self._explainer.name,
            task=self._explainer.task,
            fingerprint=self._fingerprint,
            layers=first["layers"],
            methods=plan.methods,
            edges=plan.edges,
            receptive_fields=[
                related if choice == "auto" else bool(choice) for choice in plan.receptive_field
            ],
            drop_sinks=plan.drop_sink,
            references=plan.references,
            baselines=plan.baselines,
            options={
                "position": plan.position,
                "heads": plan.heads,
                "residual": "measured" if plan.edges == ("value_norm",) else plan.residual,
                "replacement": plan.replacement,
                "truncate": plan.truncate,
                **self._own_options(),
                **self._statistics,
            },
            texts=[self._text(record) for record in records],
            skipped=sorted([*self.skipped, *failed], key=lambda item: item.number),
            pending=self.total - self.done,
            notes=[ROUNDING_NOTE] if any(record.get("rounding") for record in records) else [],
            correlations=arrays["correlations"],
            baseline_correlations=arrays["baselines"].reshape(
                len(records), len(plan.baselines), *columns
            ),
            faithfulness=_stacked(records, "faithfulness"),
            other_faithfulness=_stacked(records, "other_faithfulness"),
        )

    def _text(self, record: Mapping[str, Any]) -> EvaluatedText:
        prediction = record["prediction"]
        return EvaluatedText(
            number=self._numbers[record["text"]],
            tokens=record["tokens"],
            position=record["position"],
            target=record["target"],
            prediction=None if prediction is None else Prediction(**prediction),
        )

    def _own_options(self) -> dict[str, Any]:
        """Return the options that make a difference for some evaluations only."""
        own: dict[str, Any] = {}
        if self._plan.faithfulness:
            own["removal"] = self._plan.removal
        if self._explainer.adapter.asks_about_targets and self._plan.position == "auto":
            own["max_new_tokens"] = self._plan.max_new_tokens
        return own

    def _header(self, frequencies: Any) -> dict[str, Any]:
        """Say what is evaluated, so that a store of something else is not taken for it."""
        from attnflow.version import __version__

        texts = self._explainer.adapter.can_delete
        inputs = [item if texts else _identity(item) for item in self._texts]
        options = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self._plan._asdict().items()
        }
        options["frequencies"] = (
            "of the texts" if frequencies is None else f"of a table, {_digest(self._frequencies)}"
        )
        return {
            "attnflow": __version__,
            "model": self._explainer.name,
            "fingerprint": self._fingerprint,
            "options": options,
            "data": {
                "texts": len(self._texts),
                "digest": _digest([inputs, self._targets]),
            },
        }


class _Task(NamedTuple):
    """An input that is to be measured, and whether it is the first of all."""

    number: int
    item: Any
    target: int | str | None
    first: bool


def _measured(
    explainer: Explainer,
    task: _Task,
    plan: Plan,
    frequencies: Mapping[str, int],
    num_threads: int | None,
) -> dict[str, Any]:
    """Return the record of an input: what was measured, or why nothing could be."""
    try:
        record = measure(
            explainer,
            task.item,
            plan,
            index=task.number,
            target=task.target,
            frequencies=frequencies,
            num_threads=num_threads,
        )
        if task.first and "input_gradient" in plan.references:
            record["rounding"] = _is_rounding(explainer, task, plan)
    except TextError as error:
        return {"text": task.number, "error": str(error)}
    return record


def _is_rounding(explainer: Explainer, task: _Task, plan: Plan) -> bool:
    """Whether the sum of gradients is nothing but rounding error on this model."""
    from attnflow.importance.gradient import gradient_norm, input_gradient

    item, [question, *_] = plan.questions(explainer, task.item, task.target)
    sums, norms = (
        reference(
            explainer,
            item,
            target=question.target,
            position=question.position,
            truncate=plan.truncate,
        )
        for reference in (input_gradient, gradient_norm)
    )
    return bool(sums.max() < ROUNDING * norms.max())


def _identity(image: Any) -> str:
    """Return what tells an image from others: a digest of its file or its pixels."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(image, str | os.PathLike):
        try:
            with open(image, "rb") as file:
                while block := file.read(2**20):
                    digest.update(block)
        except OSError as error:
            # It is reported as one that cannot be read.
            return str(error)
    elif hasattr(image, "tobytes"):
        # Arrays have a shape, and images of Pillow a size and a mode.
        described = [getattr(image, name, None) for name in ("shape", "size", "mode")]
        digest.update(repr(described).encode())
        digest.update(image.tobytes())
    else:
        return str(image)
    return digest.hexdigest()


def _digest(value: Any) -> str:
    if isinstance(value, Mapping):
        value = sorted(value.items())
    content = json.dumps(value, default=str).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _stacked(records: list[dict[str, Any]], name: str) -> Any:
    if name not in records[0]:
        return None
    return np.array([record[name] for record in records], dtype=np.float64)


# ---- Options -------------------------------------------------------------------------------------


def _plan(explainer: Explainer, options: Mapping[str, Any]) -> Plan:
    from attnflow.evaluate.faithfulness import check_removal
    from attnflow.importance import REFERENCES

    images = not explainer.adapter.can_delete
    known = IMAGE_BASELINES if images else BASELINES
    if images and options["frequencies"] is not None:
        raise OptionError("frequencies are of tokens, and this model takes images; leave them out")
    fields = options["receptive_field"]
    plan = Plan(
        methods=_choices(options["methods"], "methods", METHODS),
        edges=_choices(options["edges"], "edges", EDGES),
        references=_choices(options["references"], "references", REFERENCES),
        layers=None,
        position=options["position"],
        heads=options["heads"],
        residual=options["residual"],
        receptive_field=("auto",) if fields == "auto" else _switches(fields, "receptive_field"),
        drop_sink=_switches(options["drop_sink"], "drop_sink"),
        baselines=baselines_of(options["baselines"], known),
        faithfulness=_switch(options["faithfulness"], "faithfulness"),
        removal=options["removal"],
        replacement=options["replacement"],
        batch_size=_count(options["batch_size"], "batch_size", 1),
        truncate=_switch(options["truncate"], "truncate"),
        max_new_tokens=_count(options["max_new_tokens"], "max_new_tokens", 1),
        seed=_count(options["seed"], "seed", 0),
    )
    if plan.replacement != "auto" and "blank_out" not in plan.references:
        raise OptionError(
            f"replacement is {plan.replacement!r}, but only blank_out replaces tokens, and it is "
            "not among the references; leave it out"
        )
    for kind in plan.edges:
        explainer.adapter.check(plan.options(kind))
    if "blank_out" in plan.references:
        explainer.adapter.fill(plan.replacement)
    if plan.removal != "auto" and not plan.faithfulness:
        raise OptionError(
            f"removal is {plan.removal!r}, but only faithfulness removes tokens, and it is not "
            "asked for; leave it out"
        )
    if plan.faithfulness:
        check_removal(explainer, plan.removal)
    if options["layers"] is not None:
        plan = plan._replace(layers=_layers(explainer, options["layers"]))
    return plan


def _layers(explainer: Explainer, layers: Any) -> tuple[int, ...]:
    wanted = _list_of([layers] if isinstance(layers, int) else layers, "layers")
    depth = explainer.adapter.depth
    if depth is not None:
        wanted = [resolve_index(layer, depth, "layer", "layers", first=1) for layer in wanted]
    if len(set(wanted)) < len(wanted):
        raise OptionError(f"layers is {list(wanted)}; a layer is there twice")
    return tuple(sorted(wanted))


def _targets(explainer: Explainer, targets: Any, count: int, plan: Plan) -> list[Any]:
    if targets is None or isinstance(targets, str | int | np.integer):
        wanted = [targets] * count
    else:
        wanted = _list_of(targets, "targets")
        if len(wanted) != count:
            raise OptionError(f"targets has {len(wanted)} items, but there are {count} texts")
    if explainer.adapter.asks_about_targets and plan.position == "auto" and set(wanted) != {None}:
        raise OptionError(
            "targets are tokens that are asked about, and an encoder-decoder is asked about every "
            "token of its target; give the target beside its source, as a tuple (source, target), "
            "or ask about one position, such as position='last'"
        )
    # An unknown class is an error before the first text runs.
    checked = {target: explainer.adapter.target(target) for target in wanted}
    return [checked[target] for target in wanted]


def workers_of(options: Mapping[str, Any]) -> int | None:
    """Return how many workers are asked for, checked."""
    workers = options["workers"]
    return None if workers is None else _count(workers, "workers", 1)


def baselines_of(given: Any, valid: Sequence[str]) -> tuple[str, ...]:
    """Return the baselines asked for: True for all, False for none, or their names."""
    if isinstance(given, bool):
        return tuple(valid) if given else ()
    return _choices(given, "baselines", valid)


def statistics_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the statistics, checked."""
    level = options["level"]
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise OptionError(f"level is {level!r}; expected a number between 0 and 1")
    return {
        "samples": _count(options["samples"], "samples", 1),
        "permutations": _count(options["permutations"], "permutations", 1),
        "level": float(level),
        "seed": _count(options["seed"], "seed", 0),
    }


def _choices(value: Any, name: str, valid: Sequence[str]) -> tuple[str, ...]:
    chosen = [value] if isinstance(value, str) else _list_of(value, name)
    for item in chosen:
        if not isinstance(item, str) or item not in valid:
            raise OptionError(f"{name} has {item!r}; expected {', '.join(valid)}")
    if len(set(chosen)) < len(chosen):
        raise OptionError(f"{name} is {', '.join(chosen)}; one of them is there twice")
    return tuple(chosen)


def _switches(value: Any, name: str) -> tuple[bool, ...]:
    chosen = [value] if isinstance(value, bool | np.bool_ | str) else _list_of(value, name)
    for item in chosen:
        if not isinstance(item, bool | np.bool_):
            auto = "'auto', " if name == "receptive_field" else ""
            raise OptionError(f"{name} is {value!r}; expected {auto}True, False or (False, True)")
    if len(set(chosen)) < len(chosen):
        raise OptionError(f"{name} is {value!r}; one of them is there twice")
    return tuple(bool(item) for item in chosen)


def _switch(value: Any, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} is {value!r}; expected True or False")
    return bool(value)


def _count(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise OptionError(f"{name} is {value!r}; expected a whole number of {least} or more")
    return int(value)


def _numbers_of(numbers: Any, count: int) -> list[int]:
    if numbers is None:
        return list(range(1, count + 1))
    wanted = [_count(number, "numbers", 0) for number in _list_of(numbers, "numbers")]
    if len(wanted) != count:
        raise OptionError(f"numbers has {len(wanted)} items, but there are {count} texts")
    return wanted


def _frequencies(table: Any) -> Mapping[str, int]:
    if not isinstance(table, Mapping) or not all(isinstance(token, str) for token in table):
        raise OptionError("frequencies must be a dictionary from tokens to how often they occur")
    return dict(table)


def _list_of(values: Any, name: str) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise OptionError(f"{name} is {values!r}; expected a list")
    items = list(values)
    if not items:
        raise OptionError(f"{name} is an empty list")
    return items
