"""The options of an explanation, in one table.

`OPTIONS` is the only list of them. The checks of `Explainer.explain`, its signature and its
documentation, the flags of the command line, the JSON schema of the server, the header of a data
set and what a saved explanation records are all made from it. A new option is one new row.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from attnflow.checks import HEAD_FUSIONS, choice, either, integer, invalid, number
from attnflow.errors import OptionError
from attnflow.fields import segments_in

ATTENTION_METHODS: Final = ("raw", "rollout", "flow")
"""The methods that read the attention weights alone: what could have reached a position."""
ANSWER_METHODS: Final = ("contribution", "alti_logit")
"""The methods that explain an answer, in scores with a sign: what the answer came from."""
METHODS: Final = (*ATTENTION_METHODS, *ANSWER_METHODS)
EDGES: Final = ("attention", "gradient", "effective", "value_norm", "alti")
MEASURED_EDGES: Final = ("value_norm", "alti")
"""The edges that measure the share of the residual."""
POSITIONS: Final = ("auto", "mean", "cls", "mask", "last")
UNITS: Final = ("tokens", "words", "sentences", "segments")
"""What the scores of tokens may be added up over."""

Function = TypeVar("Function", bound=Callable[..., Any])

# An index beyond this is not that of any token, layer or class.
_LARGEST: Final = 1_000_000
# The most characters of the name of a class, a token or a position.
_LONGEST: Final = 200


class Kind(ABC):
    """What values an option takes."""

    @property
    @abstractmethod
    def accepted(self) -> str:
        """The accepted values, in words."""

    @abstractmethod
    def read(self, value: Any) -> Any:
        """Return the value in plain Python types, or raise a `ValueError`."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the values."""

    def check(self, value: Any, name: str) -> Any:
        """Return the value in plain Python types, or raise an `OptionError` that names it."""
        try:
            return self.read(value)
        except ValueError:
            raise invalid(name, value, self.accepted) from None

    def parse(self, text: str) -> Any:
        """Return the value that a text of the command line stands for. `check` comes later."""
        return text


@dataclass(frozen=True)
class Choice(Kind):
    """One of some names, or an integer.

    Attributes:
        names: The names.
        index: What an integer stands for, such as "the index of a head". Empty: no integers.
        other: What any other string stands for, such as "a class". Empty: no other strings.
        none: Whether None is accepted.
    """

    names: tuple[str, ...] = ()
    index: str = ""
    other: str = ""
    none: bool = False

    @property
    def accepted(self) -> str:
        return either([*self.names, *filter(None, (self.other, self.index))])

    def read(self, value: Any) -> Any:
        if value is None and self.none:
            return None
        if isinstance(value, str):
            if value in self.names or (self.other and 1 <= len(value) <= _LONGEST):
                return value
        elif self.index:
            return integer(value, "index", least=-_LARGEST, most=_LARGEST)
        raise ValueError

    def parse(self, text: str) -> Any:
        return _parsed(text, int) if self.index else text

    def schema(self) -> dict[str, Any]:
        parts: list[dict[str, Any]] = []
        if self.other:
            parts.append({"type": "string", "minLength": 1, "maxLength": _LONGEST})
        elif self.names:
            parts.append({"enum": list(self.names)})
        if self.index:
            parts.append({"type": "integer", "minimum": -_LARGEST, "maximum": _LARGEST})
        if self.none:
            parts.append({"type": "null"})
        return parts[0] if len(parts) == 1 else {"anyOf": parts}


@dataclass(frozen=True)
class Switch(Kind):
    """True or False, or "auto" where `auto` is set."""

    auto: bool = False

    @property
    def accepted(self) -> str:
        return "'auto', True or False" if self.auto else "True or False"

    def read(self, value: Any) -> bool | str:
        return choice(value, "switch", ("auto", True, False) if self.auto else (True, False))

    def parse(self, text: str) -> bool | str:
        return {"on": True, "off": False}.get(text, text)

    def schema(self) -> dict[str, Any]:
        return {"enum": ["auto", True, False]} if self.auto else {"type": "boolean"}


@dataclass(frozen=True)
class Number(Kind):
    """A number from `low` to `high`, or None where `none` is set."""

    low: float
    high: float
    none: bool = False

    @property
    def accepted(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}{', or None' if self.none else ''}"

    def read(self, value: Any) -> float | None:
        if value is None and self.none:
            return None
        return number(value, "number", least=self.low, most=self.high)

    def parse(self, text: str) -> Any:
        return _parsed(text, float)

    def schema(self) -> dict[str, Any]:
        return _or_null({"type": "number", "minimum": self.low, "maximum": self.high}, self.none)


@dataclass(frozen=True)
class Count(Kind):
    """An integer from `least` to `most`, or None where `none` is set."""

    least: int
    most: int = _LARGEST
    none: bool = False

    @property
    def accepted(self) -> str:
        return f"an integer from {self.least} to {self.most}{', or None' if self.none else ''}"

    def read(self, value: Any) -> int | None:
        if value is None and self.none:
            return None
        return integer(value, "integer", least=self.least, most=self.most)

    def parse(self, text: str) -> Any:
        return _parsed(text, int)

    def schema(self) -> dict[str, Any]:
        return _or_null({"type": "integer", "minimum": self.least, "maximum": self.most}, self.none)


@dataclass(frozen=True)
class Units(Kind):
    """One of `UNITS`, or stretches of the text, which become tuples (name, start, end)."""

    @property
    def accepted(self) -> str:
        return either([*UNITS, "a list of (start, end) or (name, start, end)"])

    def read(self, value: Any) -> Any:
        return self.check(value, "units")

    def check(self, value: Any, name: str) -> Any:
        if isinstance(value, str):
            return choice(value, name, UNITS, otherwise="a list of (start, end)")
        if not isinstance(value, list | tuple) or not value:
            raise invalid(name, value, self.accepted)
        return tuple(map(tuple, segments_in(value, name)))

    def parse(self, text: str) -> Any:
        # Stretches are written as 0-120,121-300.
        spans = [re.fullmatch(r"(\d+)-(\d+)", part) for part in text.split(",")]
        return [(int(span[1]), int(span[2])) for span in spans if span] if all(spans) else text

    def schema(self) -> dict[str, Any]:
        place = {"type": "integer", "minimum": 0, "maximum": _LARGEST}
        name = {"type": "string", "maxLength": _LONGEST}
        stretches = [
            {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
            for parts in ([place, place], [name, place, place])
        ]
        several = {"type": "array", "items": {"anyOf": stretches}, "minItems": 1, "maxItems": 1000}
        return {"anyOf": [{"enum": list(UNITS)}, several]}


@dataclass(frozen=True)
class Integer(Kind):
    """An integer other than 0 that counts layers from 1, or from the end if it is negative."""

    @property
    def accepted(self) -> str:
        return "an integer from 1, or a negative one, which counts from the end"

    def read(self, value: Any) -> int:
        found = integer(value, "integer", least=-_LARGEST, most=_LARGEST)
        if found == 0:
            raise ValueError
        return found

    def parse(self, text: str) -> Any:
        return _parsed(text, int)

    def schema(self) -> dict[str, Any]:
        ranges = ((1, _LARGEST), (-_LARGEST, -1))
        return {"anyOf": [{"type": "integer", "minimum": a, "maximum": b} for a, b in ranges]}


def _or_null(schema: dict[str, Any], none: bool) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]} if none else schema


def _parsed(text: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class Option:
    """One option of an explanation.

    Attributes:
        name: Its name in Python, in JSON and, with dashes, on the command line.
        kind: The values it takes.
        default: Its default value.
        help: What it does, in one sentence or two, in plain text.
        negated: What turning it off does, for a switch that is on by default.
        recorded: Whether a saved explanation records it under `Explanation.options`.
        needs_model: Why stored attention cannot answer it without the model; empty if it can.
        in_data_sets: Whether a run over a data set takes it.
        methods: The methods that it has an effect on.
        title: What a page calls it; empty for an option that no page tells.
        say: Returns a value in words, as a page tells it.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    negated: str = ""
    recorded: bool = False
    needs_model: str = ""
    in_data_sets: bool = True
    methods: tuple[str, ...] = METHODS
    title: str = ""
    say: Callable[[Any], str] = str

    def json_schema(self) -> dict[str, Any]:
        """Return the option's JSON schema, with its default and description."""
        return {**self.kind.schema(), "default": self.default, "description": self.help}


def _heads_in_words(value: Any) -> str:
    names = {"max": "maximum", "min": "minimum"}
    return f"head {value} alone" if isinstance(value, int) else f"{names.get(value, value)} of all"


_EDGES_IN_WORDS: Final = {
    "gradient": "attention times its gradient",
    "effective": "effective attention",
    "value_norm": "the norm of what attention moves",
    "alti": "how much of the output attention moves (ALTI)",
}

OPTIONS: Final[list[Option]] = [
    Option(
        "method",
        Choice(("auto", *METHODS)),
        "auto",
        "How tokens are scored. contribution: what each adds to the answer, in scores that add up "
        "to it. alti_logit: what attention to each adds to a causal language model's next token "
        "(Ferrando et al. 2023). raw attention, attention rollout and attention flow: how much of "
        "each could have reached a position, by the attention weights alone. auto is contribution "
        "where the model gives an answer, and rollout where it does not.",
    ),
    Option(
        "layer",
        Integer(),
        -1,
        "The layer whose embedding is explained, from 1; -1 is the last.",
        methods=ATTENTION_METHODS,
    ),
    Option(
        "position",
        Choice(POSITIONS, index="an index", other="the name of an image's token"),
        "auto",
        "The position whose embedding is explained: an index, cls, mask, last, or mean for the "
        "mean of all. auto is what a classifier's head reads, which may be several positions; the "
        "mask of a masked language model, the last token of a causal model, the last target token "
        "of an "
        "encoder-decoder; and for a model without a head what its pooling says, or CLS (the first "
        "token if there is no CLS). For an "
        "encoder-decoder, an index counts target positions. For an image, a patch may be named by "
        "row and column, such as 3,4.",
    ),
    Option(
        "edges",
        Choice(EDGES),
        "attention",
        "What an edge weighs: attention; gradient, the mean over heads of relu(dy/dA * A) where y "
        "is the target's logit; effective, the part of each head's attention that its values let "
        "through (Brunner et al. 2020); value_norm, the norm of the vector that attention moves "
        "from one position to another (Kobayashi et al. 2020); or alti, how near that vector, the "
        "residual included, comes to the layer's output (Ferrando et al. 2022).",
        recorded=True,
        methods=ATTENTION_METHODS,
        title="An edge weighs",
        say=lambda value: _EDGES_IN_WORDS.get(value, value),
    ),
    Option(
        "target",
        Choice(index="its index", other="a class or token", none=True),
        None,
        "The class or token that is explained. By default, what the model predicts.",
        needs_model="the target is stored, and another one needs the model",
        methods=ANSWER_METHODS,
    ),
    Option(
        "contrast",
        Choice(index="its index", other="a class or token", none=True),
        None,
        "The class or token that the target is compared with: why one and not the other. By "
        "default, contributions are to the difference of the target's logit and the mean of the "
        "other classes', or of all tokens'.",
        needs_model="a contrast changes what the model is asked",
        methods=ANSWER_METHODS,
    ),
    Option(
        "heads",
        Choice(HEAD_FUSIONS, index="the index of a head"),
        "mean",
        "How heads are fused: mean, max, min, sum, or the index of one head. Gradient edges are "
        "the mean over heads. Value norms combine all heads, or take the one given; alti combines "
        "all.",
        recorded=True,
        methods=ATTENTION_METHODS,
        title="Heads",
        say=_heads_in_words,
    ),
    Option(
        "residual",
        Number(0.0, 1.0),
        0.5,
        "The share of the residual connection, from 0 to 1. value_norm and alti edges measure it "
        "for each layer and position.",
        recorded=True,
        methods=ATTENTION_METHODS,
        title="Residual connection",
        say=lambda value: value if isinstance(value, str) else f"{value:.0%} of each layer",
    ),
    Option(
        "receptive_field",
        Switch(auto=True),
        "auto",
        "Divide rollout and flow by what uniform attention over the same mask gives. Otherwise "
        "early tokens score high in causal models. auto does so for causal models.",
        recorded=True,
        methods=ATTENTION_METHODS,
        title="Rollout and flow",
        say=lambda value: "relative to uniform attention" if value else "as they are",
    ),
    Option(
        "units",
        Units(),
        "tokens",
        "What is scored: tokens, or the sums of their scores over words, sentences or segments "
        "(the texts of a pair, the messages of a chat). A list of (start, end) or (name, start, "
        "end), in characters, sums over these stretches of the text and what is between them; on "
        "the command line they are written as 0-120,121-300.",
        recorded=True,
        title="Scores of",
        say=lambda value: value if isinstance(value, str) else "chosen stretches of the text",
    ),
    Option(
        "special_tokens",
        Switch(),
        True,
        "Keep special tokens among those scored.",
        negated="Leave special tokens out.",
        recorded=True,
        title="Special tokens",
        say=lambda value: "scored" if value else "left out",
    ),
    Option(
        "drop_sink",
        Switch(),
        False,
        "Leave out the attention sink: the token that most positions attend to regardless of "
        "content. For an encoder-decoder, one of the source and one of the target; a note names "
        "them.",
        recorded=True,
        methods=ATTENTION_METHODS,
        title="Attention sink",
        say=lambda value: "left out" if value else "kept",
    ),
    Option(
        "truncate",
        Switch(),
        False,
        "Cut a text that is longer than the model takes, instead of raising an error.",
        needs_model="the texts are stored as they were read",
    ),
    Option(
        "keep_heads",
        Switch(),
        False,
        "Keep the attention of each head in the trace, for pages that show single heads. Only "
        "for attention edges of models that read one text.",
        in_data_sets=False,
    ),
    Option(
        "check",
        Switch(),
        False,
        "Test the explanation on this very input: replace each unit by a blank, measure how the "
        "answer changes, and report whether the scores agree. A text of n units takes n more "
        "forward passes.",
        needs_model="the check runs the model",
        in_data_sets=False,
    ),
]


class Options(Mapping[str, Any]):
    """The options of one explanation, checked and complete.

    A read-only mapping whose values are also attributes.

    Args:
        **given: The options that differ from their defaults.

    Raises:
        OptionError: If there is no such option, a value is not valid, or two of them exclude each
            other. The message names the option, the value and what is accepted.

    Example:
        >>> options = Options(method="rollout", units="words")
        >>> options.method, options.layer
        ('rollout', -1)
        >>> options.replace(layer=2).layer
        2
    """

    __slots__ = ("_values",)

    def __init__(self, **given: Any) -> None:
        names = [option.name for option in OPTIONS]
        for name in given:
            if name not in names:
                raise OptionError(f"unknown option {name!r}; expected {', '.join(names)}")
        self._values = {
            option.name: option.kind.check(given[option.name], option.name)
            if option.name in given
            else option.default
            for option in OPTIONS
        }
        _check_together(self)

    def __getattr__(self, name: str) -> Any:
        # Only called for names that are not attributes already. Unpickling asks before there are
        # values.
        if name != "_values" and name in self._values:
            return self._values[name]
        raise AttributeError(f"Options has no attribute {name!r}")

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        defaults = {option.name: option.default for option in OPTIONS}
        given = (f"{name}={self[name]!r}" for name in self if self[name] != defaults[name])
        return f"Options({', '.join(given)})"

    def replace(self, **changed: Any) -> Options:
        """Return these options with some changed."""
        return Options(**{**self._values, **changed})

    def without_effect(self) -> list[str]:
        """Return the options that were given, and have no effect on the method.

        Example:
            >>> Options(method="rollout", target="VBP").without_effect()
            ['target']
            >>> Options(method="rollout", target="VBP", edges="gradient").without_effect()
            []
        """
        asked = ("target", "contrast") if self.edges == "gradient" else ()
        return [
            option.name
            for option in OPTIONS
            if self.method not in ("auto", *option.methods)
            and self[option.name] != option.default
            and (self.method in ANSWER_METHODS or option.name not in asked)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return every option and its value, as JSON can hold them."""
        return dict(self._values)

    def recorded(self, *, receptive_field: bool) -> dict[str, Any]:
        """Return what a saved explanation records.

        Args:
            receptive_field: What "auto" turned out to be.
        """
        values = {option.name: self[option.name] for option in OPTIONS if option.recorded}
        values["receptive_field"] = receptive_field
        if self.edges in MEASURED_EDGES:
            values["residual"] = "measured"
        return values


def _check_together(options: Options) -> None:
    """Refuse options that edges determine by themselves."""
    edges, heads = options.edges, options.heads
    if options.keep_heads and edges != "attention":
        raise OptionError(f"keep_heads=True requires edges='attention'; edges is {edges!r}")
    if edges == "gradient" and heads != "mean":
        raise OptionError(
            f"heads is {heads!r}, but edges='gradient' is a mean over heads; expected 'mean'"
        )
    if edges == "value_norm" and isinstance(heads, str) and heads != "mean":
        raise OptionError(
            f"heads is {heads!r}, but edges='value_norm' combines the vectors of all heads; "
            "expected 'mean', or the index of one head"
        )
    if edges == "alti" and heads != "mean":
        raise OptionError(
            f"heads is {heads!r}, but edges='alti' adds up the vectors of all heads; expected "
            "'mean'"
        )
    if edges in MEASURED_EDGES and options.residual != 0.5:
        raise OptionError(
            f"residual is {options.residual!r}, but edges={edges!r} measures it; leave it out"
        )


def unit_name(units: Any) -> str:
    """Return what units are called: their name, or "segments" for stretches of the caller's.

    Example:
        >>> unit_name("words"), unit_name((("", 0, 4),))
        ('words', 'segments')
    """
    return units if isinstance(units, str) else "segments"


# ---- What is made from the table -----------------------------------------------------------------


def sign(function: Function) -> Function:
    """Give a function that takes ``**options`` the signature and documentation of the table.

    Args:
        function: A function, or method, whose last parameter is ``**options``. Its docstring may
            have a line ``**options:`` among its arguments.

    Returns:
        The same function.
    """
    signature = inspect.signature(function)
    first = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
    named = [
        inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default)
        for option in OPTIONS
        if option.name not in signature.parameters
    ]
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*first, *named]
    )

    def entries(match: re.Match[str]) -> str:
        return "".join(f"{match[1]}{option.name}: {option.help}\n" for option in OPTIONS)

    # Every option takes the place of the line ``**options: ...``.
    documented = re.sub(r"^( *)\*\*options:.*\n", entries, function.__doc__ or "", flags=re.M)
    function.__doc__ = documented
    return function
