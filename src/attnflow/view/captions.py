"""What is written beside the scores of an explanation, and how numbers are written."""

import math
from typing import Any

from attnflow.explanation import Explanation
from attnflow.options import OPTIONS, unit_name
from attnflow.view.pieces import has_sign, labels, unread
from attnflow.view.text import shorten, visible

METHOD_NAMES = {
    "raw": "Raw attention",
    "rollout": "Attention rollout",
    "flow": "Attention flow",
    "contribution": "Contributions",
    "alti_logit": "ALTI-Logit",
}
# What a score is, beside a scale of colours.
MEASURES = {
    "raw": "attention",
    "rollout": "share of attention",
    "flow": "possible flow",
}
# The classes of the model that comes with attnflow, in words.
VERB_NUMBERS = {"VBP": "VBP (plural)", "VBZ": "VBZ (singular)"}
VERB_NUMBER_TERM = (
    "VBP and VBZ are the names that the model was trained with: VBP is a verb in the plural, such "
    "as \u201care\u201d, and VBZ one in the singular, such as \u201cis\u201d."
)


# ---- Explanations --------------------------------------------------------------------------------


def title(explanation: Explanation) -> str:
    """Return the method and what was explained, in one line.

    Args:
        explanation: The explanation.

    Returns:
        The name of the method and the `headline`.
    """
    comma = "" if has_sign(explanation) else ","
    return f"{METHOD_NAMES[explanation.method]}{comma} {headline(explanation)}"


def headline(explanation: Explanation) -> str:
    """Return what was explained, in a few words.

    Args:
        explanation: The explanation.

    Returns:
        For contributions the answer and what it is compared with, for other methods the layer and
        the position with its token where that is known; and the model's name.
    """
    if has_sign(explanation):
        parts = [f"to {answer_name(explanation)}", *filter(None, [contrast_name(explanation)])]
    else:
        name = _position_name(explanation)
        position = _several(explanation)
        if not position:
            position = f"position {explanation.position}" + (f" {name}" if name else "")
        parts = [f"layer {explanation.layer} of {len(explanation.layer_scores)}", position]
    if explanation.model:
        parts.append(explanation.model)
    return ", ".join(parts)


def answer_name(explanation: Explanation) -> str:
    """Return the answer that is explained, of a token classifier with the tokens it is about."""
    name = target_name(explanation)
    last = max(read.position for read in explanation.reads)
    if (
        explanation.task != "token-classification"
        or not has_all_tokens(explanation)
        or last >= len(explanation.tokens)
    ):
        return name
    if len(explanation.reads) == 1:
        return f"{name} at {labels(explanation.pieces)[last]!r}"
    spans = [explanation.spans[read.position] for read in explanation.reads]
    ends = [place for span in spans if span is not None for place in span]
    return f"{name} at {explanation.text[min(ends) : max(ends)]!r}" if ends else name


def kicker(explanation: Explanation) -> str:
    """Return what stands above the answer of contributions."""
    prediction = explanation.prediction
    predicted = prediction is not None and prediction.label == explanation.target
    return "The model answers" if predicted else "Explained"


def answer(explanation: Explanation) -> str:
    """Return the answer of contributions and what it is compared with, as a headline."""
    name = answer_name(explanation)
    return ", ".join([name[:1].upper() + name[1:], *filter(None, [contrast_name(explanation)])])


def certainty(explanation: Explanation) -> str:
    """Return how sure the model is of its answer, and its name, in one line."""
    prediction, parts = explanation.prediction, []
    if prediction is not None:
        sure = f"{share(prediction.probability)} sure"
        predicted = prediction.label == explanation.target
        name = label_name(explanation, prediction.label)
        parts.append(f"It is {sure}" if predicted else f"The model predicts {name} and is {sure}")
    if explanation.model:
        parts.append(explanation.model)
    return " \u00b7 ".join(parts)


def gist(explanation: Explanation) -> str:
    """Return which units speak most for an answer and against it, in one sentence.

    Args:
        explanation: The explanation, of contributions. Special tokens are not named.

    Example:
        >>> explanation = Explanation(
        ...     tokens=["keys", "cabinet"], scores=[3.2, -0.5], layer_scores=[[3.2, -0.5]],
        ...     method="contribution", layer=1, position=0, text="keys cabinet",
        ...     spans=[(0, 4), (5, 12)], special=[False, False], model="tiny",
        ...     task="classification", target="plural", value=2.5, bias=-0.2,
        ... )
        >>> gist(explanation)
        "'keys' speaks most for it (+3.20 of +2.50 in all), 'cabinet' most against it (-0.50)."
    """
    names, scores = labels(explanation.pieces), explanation.scores
    usual = [i for i, special in enumerate(explanation.special) if not special]
    if not usual:
        return ""
    largest = float(abs(scores[usual]).max())
    first, last = (pick(usual, key=scores.__getitem__) for pick in (max, min))

    def named(index: int) -> str:
        name = shorten(visible(names[index], line_breaks=False), 80)
        return f"patch {name}" if index in explanation.patches else f"'{name}'"

    def score(value: float) -> str:
        return format_score(value, largest, signed=True)

    value = explanation.value
    whole = "" if value is None else f" of {score(value)} in all"
    parts = []
    if scores[first] > 0:
        parts.append(f"{named(first)} speaks most for it ({score(scores[first])}{whole})")
    if scores[last] < 0:
        verb = "most against it" if parts else "speaks most against it"
        parts.append(f"{named(last)} {verb} ({score(scores[last])})")
    return f"{', '.join(parts)}." if parts else "Nothing speaks for it or against it."


def terms(explanation: Explanation) -> list[str]:
    """Return what has to be explained to a reader who does not know the model: tokens, classes."""
    found = []
    rest = unread(explanation)
    if rest:
        found.append(f"The end of the text was not read for this answer: {shorten(rest, 80)!r}.")
    if class_names(explanation):
        found.append(VERB_NUMBER_TERM)
    first = explanation.tokens[0] if explanation.tokens else ""
    if explanation.special[:1] == (True,) and has_all_tokens(explanation):
        read = {read.position for read in explanation.reads} == {0}
        where = "; the model reads its answer there" if read else ""
        found.append(f"{first} is not a word of the text: the tokenizer adds it{where}.")
    return found


def options(explanation: Explanation) -> list[tuple[str, str]]:
    """Return the options of an explanation with their values, in words."""
    shown = []
    for option in OPTIONS:
        # Contributions with a trace show attention, too.
        used = explanation.trace is not None or explanation.method in option.methods
        if option.title and used and option.name in explanation.options:
            shown.append((option.title, option.say(explanation.options[option.name])))
    return shown


def target_name(explanation: Explanation) -> str:
    """Return the answer that is explained, as a person says it."""
    return "the answer" if explanation.target is None else _answer(explanation, explanation.target)


def contrast_name(explanation: Explanation) -> str:
    """Return what the answer is compared with, as in "plural, not singular"."""
    contrast = _contrast(explanation)
    if contrast is not None:
        return f"not {contrast}"
    if not _compared(explanation):
        return ""
    if _compares(explanation):
        return "not the other texts"
    others = "not the other classes", "against the mean of all tokens"
    return others[not _chooses_class(explanation)]


def _part(explanation: Explanation) -> str:
    """Return what a score is of."""
    if not explanation.grid:
        return "token"
    return "token or patch" if explanation.text else "patch"


def _contrast(explanation: Explanation) -> str | None:
    """Return the name of the contrast; None if the answer is compared with several others."""
    others = [name for name in class_names(explanation) if name != explanation.target]
    if not _compared(explanation):
        others = []
    contrast = others[0] if explanation.contrast is None and others else explanation.contrast
    return None if contrast is None else _answer(explanation, contrast)


def class_names(explanation: Explanation) -> dict[str, str]:
    """Return what classes are shown as, where more is known than their labels."""
    return VERB_NUMBERS if explanation.model == "verb_number" else {}


def label_name(explanation: Explanation, label: str) -> str:
    """Return what a class or token is shown as: without the space that a word may begin with."""
    return class_names(explanation).get(label) or label.strip() or blank_name(label)


def label_names(explanation: Explanation) -> dict[str, str]:
    """Return what labels are shown as: the known classes, and the target, contrast, prediction."""
    prediction = explanation.prediction
    labels = [explanation.target, explanation.contrast, prediction and prediction.label]
    shown = {label: label_name(explanation, label) for label in labels if label is not None}
    return class_names(explanation) | shown


def blank_name(label: str) -> str:
    r"""Return the name of a token that is white space, or empty.

    Example:
        >>> blank_name("\n"), blank_name("\n\n"), blank_name("  "), blank_name("")
        ('a line break', '2 line breaks', '2 spaces', 'nothing')
    """
    if not label:
        return "nothing"
    kinds = {"\n": "line break", " ": "space", "\t": "tab"}
    noun = kinds.get(label[0]) if len(set(label)) == 1 else None
    if noun is None:
        return "white space"
    return f"a {noun}" if len(label) == 1 else counted(len(label), noun)


def _compared(explanation: Explanation) -> bool:
    """Whether the answer is compared with others; not a number, a label among many, a stretch."""
    return bool(explanation.options.get("compared", True))


def _chooses_class(explanation: Explanation) -> bool:
    return explanation.task.endswith("classification") or _compares(explanation)


def _compares(explanation: Explanation) -> bool:
    """Whether an image was compared with texts."""
    return explanation.task == "image-text-similarity"


def _answer(explanation: Explanation, label: str) -> str:
    """Return a class as it is called, or a token in quotes, without the space it begins with."""
    name = label_name(explanation, label)
    # A whole answer of a language model may be long.
    return name if _chooses_class(explanation) or not label.strip() else repr(shorten(name, 60))


def reading(explanation: Explanation) -> str:
    """Return how to read the scores, in one line.

    Args:
        explanation: The explanation.

    Returns:
        What a high score means for the explanation's method.
    """
    if has_sign(explanation):
        return _reading_of_answer(explanation)
    position = _several(explanation) or _position_name(explanation)
    position = position or f"position {explanation.position}"
    meaning = {
        "raw": f"the more {position} attends to it in layer {explanation.layer}",
        "rollout": f"the larger its share in {position} at layer {explanation.layer}, "
        "by attention multiplied along every path",
        "flow": f"the more attention can flow from {position} at layer {explanation.layer} "
        "down to it, over all paths at once",
    }[explanation.method]
    relative = ""
    if explanation.options.get("receptive_field") is True:
        relative = " Scores are relative to uniform attention."
    return f"The higher a token's score, {meaning}.{relative}"


def _reading_of_answer(explanation: Explanation) -> str:
    """Return how to read scores that add up to an answer."""
    target, contrast = target_name(explanation), _contrast(explanation)
    several = _several(explanation)
    # The answer of a class is one logit, whatever the head reads. Others are sums over positions.
    one = explanation.task != "token-classification" and _chooses_class(explanation)
    logit = "the logit" if one or not several else "the sum of the logits"
    if contrast is not None:
        minus, against = f" minus that of {contrast}", f"for {contrast}"
    elif not _compared(explanation):
        minus, against = "", "against it"
    else:
        others = "the others" if _chooses_class(explanation) else "all tokens"
        minus, against = f" minus the mean of {others}", "against it"
    read = f" The head reads {several}." if one and several else ""
    return (
        f"A score is what the {_part(explanation)} adds to {logit} of {target}{minus}. Positive "
        f"scores speak for {target}, negative ones {against}.{read}"
    )


def scale_name(explanation: Explanation) -> str:
    """Return what a scale of colours shows, as a few words from its lower end to its upper one."""
    if has_sign(explanation):
        return "against \u2190 \u2192 for"
    relative = explanation.options.get("receptive_field") is True
    return MEASURES[explanation.method] + (", relative to uniform" if relative else "")


def answers(explanation: Explanation) -> list[tuple[str, str]]:
    """Return what the model answered and what the explanation is for.

    Args:
        explanation: The explanation.

    Returns:
        Names and values to print; empty if the model gives no answer.
    """
    found = []
    prediction = explanation.prediction
    if prediction is not None:
        label = label_name(explanation, prediction.label)
        share = f"{prediction.probability:.1%}"
        told = f"{label}, {share}" if label.endswith(")") else f"{label} ({share})"
        found.append(("Prediction", told))
    # The headline of contributions says what they are for.
    if (
        explanation.target is not None
        and not has_sign(explanation)
        and (prediction is None or prediction.label != explanation.target)
    ):
        found.append(("Explained for", label_name(explanation, explanation.target)))
    return found


def addition(explanation: Explanation) -> str:
    """Return what contributions add up to, in one line.

    Args:
        explanation: The explanation.

    Returns:
        The sums over tokens and special tokens, what biases add, and the answer's value. What was
        left out of the explanation, or does not add up, is a part of its own. Empty for other
        methods.

    Example:
        >>> explanation = Explanation(
        ...     tokens=["[CLS]", "keys"], scores=[0.4, 3.21], layer_scores=[[0.4, 3.21]],
        ...     method="contribution", layer=1, position=0, text="keys", spans=[None, (0, 4)],
        ...     special=[True, False], model="tiny", task="classification", target="plural",
        ...     value=3.5, bias=-0.11,
        ... )
        >>> addition(explanation)
        'tokens +3.21, special tokens +0.40, biases -0.11, together +3.50'
    """
    value, bias = explanation.value, explanation.bias
    if not has_sign(explanation) or value is None or bias is None:
        return ""
    scores = explanation.scores
    special = scores[list(map(bool, explanation.special))]
    usual = float(scores.sum() - special.sum())
    image = float(scores[list(explanation.patches)].sum())
    parts = [("patches", image)] if explanation.grid else []
    if explanation.text or not explanation.grid:
        parts.append((unit_name(explanation.options.get("units", "tokens")), usual - image))
    if special.size:
        parts.append(("special tokens", float(special.sum())))
    return added_up(explanation, parts)


def added_up(explanation: Explanation, parts: list[tuple[str, float]]) -> str:
    """Return parts of an answer's value with what biases add, and what they are together.

    Args:
        explanation: The explanation of the answer, with its value and bias.
        parts: The names of the other parts, and what each adds.

    Returns:
        The parts in one line. What they leave out is a part of its own.
    """
    parts = [*parts, *completed(explanation, sum(number for _, number in parts))]
    largest = max(abs(number) for _, number in parts)
    return ", ".join(
        f"{name} {format_score(number, largest, signed=True)}" for name, number in parts
    )


def completed(explanation: Explanation, scores: float) -> list[tuple[str, float]]:
    """Return what an answer's value has besides scores: biases, what is left out, and the value.

    Args:
        explanation: The explanation of the answer, with its value and bias.
        scores: What the scores shown add up to.
    """
    value, bias = explanation.value or 0.0, explanation.bias or 0.0
    parts = [("biases" if explanation.method == "contribution" else "everything else", bias)]
    rest = value - bias - scores
    # What rounding to two digits hides is not worth a word.
    if abs(rest) > 0.005 * max(1.0, float(abs(explanation.scores).sum())):
        left_out = not explanation.options.get("special_tokens", True)
        left_out = left_out or bool(explanation.options.get("drop_sink"))
        parts.append(("tokens left out" if left_out else "not accounted for", rest))
    return [*parts, ("together", value)]


def verdict(explanation: Explanation) -> str:
    """Return what the check found, in one paragraph; empty if there was no check."""
    return "" if explanation.check is None else " ".join(explanation.check.sentences())


def has_all_tokens(explanation: Explanation) -> bool:
    """Return whether the tokens of an explanation are exactly those the model was given.

    Args:
        explanation: The explanation.

    Returns:
        False if tokens were grouped or left out.
    """
    made = explanation.options
    return bool(
        made.get("units", "tokens") == "tokens"
        and made.get("special_tokens", True)
        and not made.get("drop_sink")
    )


def _several(explanation: Explanation) -> str:
    """Return what several positions that are explained together are called; empty for one.

    Example:
        >>> explanation = Explanation(
        ...     tokens=["a", "b"], scores=[0.5, 0.5], layer_scores=[[0.5, 0.5]], method="raw",
        ...     layer=1, position=0, reads=[(0, 0.75), (1, 0.25)], text="ab",
        ...     spans=[(0, 1), (1, 2)], special=[False, False], model="tiny", task="encoder",
        ... )
        >>> _several(explanation)
        'the weighted mean of 2 positions (0: 75%, 1: 25%)'
    """
    reads = explanation.reads
    if len(reads) == 1:
        return ""
    weights = [read.weight for read in reads]
    if max(weights) - min(weights) < 0.01 * max(weights):
        return f"the mean of {len(reads)} positions"
    shown = sorted(reads, key=lambda read: -read.weight)[:3]
    listed = ", ".join(f"{read.position}: {read.weight:.0%}" for read in shown)
    rest = ", ..." if len(reads) > len(shown) else ""
    return f"the weighted mean of {len(reads)} positions ({listed}{rest})"


def _position_name(explanation: Explanation) -> str:
    """Return the label of the token at the explained position, empty if it is not known."""
    if not has_all_tokens(explanation) or explanation.position >= len(explanation.tokens):
        return ""
    return labels(explanation.pieces)[explanation.position]


# ---- Numbers -------------------------------------------------------------------------------------


def format_score(score: float, largest: float, *, signed: bool = False) -> str:
    """Return a score with as many digits as the largest beside it needs.

    Args:
        score: The score.
        largest: The largest magnitude of the scores shown with it.
        signed: Whether a positive number has a sign as well. Such scores may be large, and need two
            decimals.

    Returns:
        The number, with three decimals or more, or with a power of ten where that would be long.
        Zero has no sign.

    Example:
        >>> format_score(0.25, 0.5), format_score(0.00125, 0.004), format_score(1e-9, 1e-8)
        ('0.250', '0.00125', '1.00e-09')
        >>> format_score(1.5, 3.2, signed=True), format_score(-0.25, 0.5, signed=True)
        ('+1.50', '-0.250')
    """
    sign, decimals = ("+", 2) if signed else ("-", 3)
    if largest >= 1e6 or 0 < largest < 1e-5:
        return f"{score:{sign}.2e}"
    while 0 < largest * 10**decimals < 100 and decimals < 7:
        decimals += 1
    shown = f"{score:{sign}.{decimals}f}"
    return shown if float(shown) else shown.lstrip("+-")


def share(value: float) -> str:
    """Return a share in per cent; one that is close to 0 or 1 is not rounded to it.

    Example:
        >>> share(0.934), share(0.9993), share(0.0)
        ('93 %', 'over 99 %', '0 %')
    """
    if 0 < value < 0.01:
        return "under 1 %"
    return "over 99 %" if 0.99 < value < 1 else f"{100 * value:.0f} %"


def mean_and_interval(values: dict[str, Any]) -> tuple[str, str]:
    """Return a mean with its standard deviation, and its confidence interval.

    Args:
        values: A row of `Evaluation.summary`.

    Returns:
        Two strings. A number that is not defined is left out.

    Example:
        >>> mean_and_interval({"mean": 0.5, "std": 0.25, "ci": [0.125, 1.0], "count": 9})
        ('0.50 ±.25', '.12,1.00')
    """
    if not values["count"]:
        return "undefined", ""
    std = "" if math.isnan(values["std"]) else f" \u00b1{_short(values['std'])}"
    low, high = values["ci"]
    interval = "" if math.isnan(low) else f"{_short(low)},{_short(high)}"
    return f"{values['mean']:.2f}{std}", interval


def _short(number: float) -> str:
    """Return a number without the 0 before its point, so that six layers fit into a terminal."""
    digits = f"{number:.2f}"
    if abs(number) >= 0.995:
        return digits
    return digits.replace("-0.00", "0.00").replace("0.", ".", 1)


def signed(difference: float) -> str:
    """Return a difference with its sign, "undefined" if it is NaN."""
    return "undefined" if math.isnan(difference) else f"{difference:+.2f}"


def p_value(p: float) -> str:
    """Return a p-value with its name; empty if it is not defined."""
    if math.isnan(p):
        return ""
    return "p<.001" if p < 0.001 else f"p={p:.3f}"


def counted(count: int, noun: str = "text") -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1), counted(3, "sentence")
        ('1 text', '3 sentences')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def spaced(name: str) -> str:
    """Return the name of an option's value as words."""
    return name.replace("_", " ")
