"""The JSON that the server sends, as types. Its description for clients is made from them.

Only `openapi` imports this module when the server runs, because it needs pydantic. A message is a
plain dict.
"""

from typing import Annotated, Any, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from attnflow.explanation import FORMAT
from attnflow.generation import FORMAT as GENERATION_FORMAT
from attnflow.options import METHODS
from attnflow.serve.answer import KINDS

__all__ = ["Answer", "Error", "Event", "Explanation", "Generation", "Health", "Model", "Written"]


class Prediction(TypedDict):
    """What the model predicts."""

    label: str
    index: int
    probability: float


class Explanation(TypedDict, total=False):
    """What Explanation.to_dict returns and Explanation.from_dict reads."""

    format: Required[Literal[FORMAT]]  # type: ignore[valid-type]
    version: Required[int]
    model: str | None
    task: str | None
    method: Required[Literal[METHODS]]  # type: ignore[valid-type]
    layer: Required[Annotated[int, Field(ge=1)]]
    position: Required[Annotated[int, Field(ge=0)]]
    target: str | None
    contrast: str | None
    value: Annotated[float | None, Field(description="What contributions and the bias add up to.")]
    bias: Annotated[float | None, Field(description="What biases add to the answer.")]
    check: Annotated[
        dict[str, Any] | None, Field(description="What blanking out each unit does to the answer.")
    ]
    prediction: Prediction | None
    text: str
    segments: Annotated[
        list[tuple[str, int, int]],
        Field(description="The named parts of the text, such as the two texts of a pair."),
    ]
    tokens: Required[list[str]]
    scores: Required[list[float]]
    layer_scores: list[list[float]]
    saturation: float | None
    notes: list[str]


class Answer(TypedDict):
    """One explanation, or two if the question has a second text."""

    explanations: Annotated[list[Explanation], Field(min_length=1, max_length=2)]
    pages: Annotated[
        list[dict[str, Any]] | None, Field(description="What the page shows, if page was true.")
    ]
    seconds: Annotated[float, Field(description="How long it took, without the time waited.")]


class Generation(TypedDict):
    """What Generation.to_dict returns and Generation.from_dict reads."""

    format: Literal[GENERATION_FORMAT]  # type: ignore[valid-type]
    version: int
    prompt: Annotated[str, Field(description="The text that was continued.")]
    text: Annotated[str, Field(description="What the model wrote.")]
    explanations: Annotated[list[Explanation], Field(description="One for each new token.")]
    whole: Annotated[Explanation | None, Field(description="That of the whole answer.")]
    written: Annotated[
        list[bool], Field(description="Of each token of whole, whether the model wrote it.")
    ]
    ended: Annotated[bool, Field(description="Whether the model ended its answer by itself.")]
    options: Annotated[dict[str, Any], Field(description="How the text was written.")]


class Written(TypedDict):
    """What the model wrote, and what it came from."""

    generation: Generation
    page: Annotated[
        dict[str, Any] | None, Field(description="What the page shows, if page was true.")
    ]
    seconds: Annotated[float, Field(description="How long it took, without the time waited.")]


class Event(TypedDict, total=False):
    """One line of a stream.

    waiting and running are sent at least once a second. answer is the last line, with the status
    and the body of the answer without a stream.
    """

    event: Required[Literal["waiting", "running", "answer"]]
    ahead: Annotated[int, Field(description="How many requests come first.")]
    stage: Literal["model", "scores", "writing", "explaining", "answer"]
    text: Annotated[int, Field(description="The text that is being explained, from 1.")]
    texts: Annotated[int, Field(description="How many texts there are.")]
    token: Annotated[int, Field(description="How many tokens are written, or explained.")]
    tokens: Annotated[int, Field(description="How many tokens there are at most.")]
    seconds: Annotated[float, Field(description="Time since the request, in seconds.")]
    status: int
    body: dict[str, Any]


Kind = Literal["text", "pair", "chat"]
"""What a model reads as one input."""


class Class(TypedDict):
    """A class that a classifier chooses from."""

    index: int
    name: Annotated[str, Field(description="What it is called, with its meaning where known.")]


class Option(TypedDict):
    """An option of a question, as this model takes it."""

    name: str
    help: str
    default: Any
    values: Annotated[
        list[tuple[str | int, str]] | None,
        Field(description="The values to choose from, each with its name in words."),
    ]
    methods: Annotated[list[str], Field(description="The methods that it has an effect on.")]


class Model(TypedDict):
    """What a client needs to know about the model."""

    model: Annotated[str, Field(description="Its name.")]
    task: str
    layers: int
    heads: Annotated[
        int | None, Field(description="Heads of each layer; null if they cannot be kept apart.")
    ]
    tokens: Annotated[int, Field(description="How many tokens a text may have.")]
    characters: Annotated[int, Field(description="How many characters a text may have.")]
    mask: Annotated[str | None, Field(description="The mask token of a masked language model.")]
    answers: Annotated[bool, Field(description="Whether it predicts a class or a token.")]
    inputs: Annotated[list[Kind], Field(description="What it reads as one input.")]
    writes: Annotated[bool, Field(description="Whether it writes text.")]
    classes: Annotated[list[Class], Field(description="The classes; none for other models.")]
    options: Annotated[list[Option], Field(description="The options of a question.")]
    examples: Annotated[dict[str, Any], Field(description="An input of each kind to begin with.")]


class Health(TypedDict):
    """Whether the server accepts requests."""

    status: Literal["ok", "stopping"]


class Problem(TypedDict):
    """What is wrong with a request."""

    status: int
    kind: Literal[tuple(KINDS)]  # type: ignore[valid-type]
    message: Annotated[str, Field(description="What is wrong, given and accepted.")]


class Error(TypedDict):
    """The body of every answer with a status of 400 or more."""

    error: Problem
