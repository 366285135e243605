"""The JSON that the server sends, as types. Its description for clients is made from them.

Only `openapi` imports this module when the server runs, because it needs pydantic. A message is a
plain dict.
"""

from typing import Annotated, Any, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from attnflow.explanation import FORMAT
from attnflow.options import METHODS
from attnflow.serve.answer import KINDS

__all__ = ["Answer", "Error", "Event", "Explanation", "Health", "Model"]


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


class Event(TypedDict, total=False):
    """One line of a stream.

    waiting and running are sent at least once a second. answer is the last line, with the status
    and the body of the answer without a stream.
    """

    event: Required[Literal["waiting", "running", "answer"]]
    ahead: Annotated[int, Field(description="How many requests come first.")]
    stage: Literal["model", "scores", "answer"]
    text: Annotated[int, Field(description="The text that is being explained, from 1.")]
    texts: Annotated[int, Field(description="How many texts there are.")]
    seconds: Annotated[float, Field(description="Time since the request, in seconds.")]
    status: int
    body: dict[str, Any]


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
    edges: Annotated[list[str], Field(description="What an edge may weigh.")]
    mask: Annotated[str | None, Field(description="The mask token of a masked language model.")]
    pairs: Annotated[bool, Field(description="Whether two texts can be read as a pair.")]
    example: Annotated[str, Field(description="A text to begin with.")]


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
