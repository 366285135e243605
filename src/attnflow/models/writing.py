"""How a language model writes: how many tokens, and how each is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from attnflow.cancel import check_limits
from attnflow.checks import integer
from attnflow.errors import OptionError, TextError
from attnflow.models.adapter import Encoded
from attnflow.options import Count, Number, Option, Switch
from attnflow.tokens import Tokens

Progress = Callable[[str, int, int], object]
"""Called with what is being done, how many tokens are done and how many there are."""

WRITING: Final = (
    Option("max_new_tokens", Count(1), 40, "How many tokens are written at most."),
    Option(
        "do_sample",
        Switch(),
        False,
        "Draw each token at random by its probability, instead of the most likely one.",
    ),
    Option(
        "temperature",
        Number(1e-3, 1e3, none=True),
        None,
        "What logits are divided by before a token is drawn; less than 1 favours the likely ones. "
        "By default the model's own setting.",
    ),
    Option(
        "top_p",
        Number(1e-3, 1, none=True),
        None,
        "Draw only from the most likely tokens that have this probability together.",
    ),
    Option(
        "top_k",
        Count(1, none=True),
        None,
        "Draw only from so many of the most likely tokens.",
    ),
    Option("seed", Count(0, 2**63 - 1, none=True), None, "Makes what is drawn repeatable."),
)
"""How a text is written: the options of `Explainer.generate` that `explain` does not take."""


@dataclass(frozen=True)
class Writing:
    """How a text is written. The arguments are those of transformers' ``generate``.

    Attributes:
        max_new_tokens: How many tokens are written at most.
        do_sample: Whether each is drawn at random by its probability. Otherwise the most likely
            one is written.
        temperature: What logits are divided by, above 0; less than 1 favours the likely tokens.
        top_p: Only the most likely tokens are drawn from, as many as have this probability
            together.
        top_k: Only so many of the most likely tokens are drawn from.
        seed: Makes what is drawn repeatable.
        num_beams: 1: the tokens are written one after the other.

    Raises:
        OptionError: If a value is not valid, or has no effect without sampling.

    Example:
        >>> Writing(max_new_tokens=3).arguments()
        {'max_new_tokens': 3, 'do_sample': False, 'num_beams': 1}
        >>> Writing(top_k=5)
        Traceback (most recent call last):
        attnflow.errors.OptionError: top_k is 5, which has an effect only with do_sample=True
    """

    max_new_tokens: int = 40
    do_sample: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    num_beams: int = 1

    def __post_init__(self) -> None:
        for option in WRITING:
            option.kind.check(getattr(self, option.name), option.name)
        if integer(self.num_beams, "num_beams") != 1:
            raise OptionError(
                f"num_beams is {self.num_beams}; expected 1: beam search is not supported"
            )
        for name in ("temperature", "top_p", "top_k"):
            if getattr(self, name) is not None and not self.do_sample:
                raise OptionError(
                    f"{name} is {getattr(self, name)!r}, which has an effect only with "
                    "do_sample=True"
                )

    def arguments(self) -> dict[str, Any]:
        """Return what ``generate`` of transformers is given. What is None is the model's own."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None and name != "seed"
        }

    def recorded(self) -> dict[str, Any]:
        """Return what a generation records."""
        return {name: value for name, value in asdict(self).items() if name != "num_beams"}

    def check_room(self, count: int, most: int | None, what: str) -> None:
        """Check that the model takes what will be written.

        Args:
            count: How many tokens there are already.
            most: How many the model takes; None if it does not say.
            what: What has them: "the prompt".

        Raises:
            TextError: If it does not.
        """
        if most is not None and count + self.max_new_tokens > most:
            room = max(0, most - count)
            fits = f"pass max_new_tokens={room} or less" if room else f"shorten {what}"
            raise TextError(
                f"{what} has {count} tokens and max_new_tokens is {self.max_new_tokens}, together "
                f"{count + self.max_new_tokens}, but the model takes {most}; {fits}"
            )


class Written(NamedTuple):
    """What a model wrote.

    Attributes:
        encoded: The input with what was written, as far as a token was written from it.
        prompt: The text of the input without it.
        text: What was written.
        first: The index of the first new token among the tokens of `encoded`.
        positions: The position from which each new token was written.
        tokens: The new tokens, without those that end a text.
        ended: Whether the model ended the text by itself.
    """

    encoded: Encoded
    prompt: str
    text: str
    first: int
    positions: list[int]
    tokens: list[int]
    ended: bool


def text_from(tokens: Tokens, first: int) -> str:
    """Return the text of the tokens from one on."""
    starts = [span[0] for span in tokens.spans[first:] if span is not None]
    return tokens.text[min(starts) :] if starts else ""


def end_ids(model: Any) -> set[int]:
    """Return the tokens that end what a model writes."""
    config = getattr(model, "generation_config", None)
    found = getattr(config, "eos_token_id", None)
    if found is None:
        found = getattr(model.config, "eos_token_id", None)
    return set() if found is None else set(found) if isinstance(found, list) else {int(found)}


def write(
    model: Any, source: Any, first: int, writing: Writing, progress: Progress | None, **inputs: Any
) -> list[int]:
    """Let a model write, in eval mode, with no trace of it left on the model.

    Args:
        model: The model.
        source: What ``generate`` is given first, a tensor for a batch of one.
        first: How many tokens the target has already.
        writing: How to write.
        progress: Told how many tokens are written.
        **inputs: What else ``generate`` is given.

    Returns:
        The tokens that ``generate`` returned.
    """
    import torch
    from transformers import StoppingCriteriaList

    from attnflow.capture.borrow import borrowed
    from attnflow.capture.quiet import quiet

    def told(ids: Any, scores: Any, **_: Any) -> Any:
        check_limits()
        if progress is not None:
            progress("writing", max(0, ids.shape[1] - first), writing.max_new_tokens)
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    with torch.no_grad(), borrowed(model, None), quiet(), _seeded(writing.seed, model.device):
        found: list[int] = model.generate(
            source, stopping_criteria=StoppingCriteriaList([told]), **writing.arguments(), **inputs
        )[0].tolist()
    return found


@contextmanager
def _seeded(seed: int | None, device: Any) -> Iterator[None]:
    """Run a block with torch's random numbers from a seed, and restore what they were."""
    import torch

    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
