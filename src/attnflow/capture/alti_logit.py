"""ALTI-Logit: what attention to each position adds to an answer's logit, layer by layer.

Ferrando, Gállego, Tsiamas and Costa-jussà, "Explaining How Transformers Use Context to Build
Predictions", ACL 2023. A decoder that normalises before each block only ever adds to the residual
stream, and the logit is linear in what is added, with the final norm's denominator held at its
value. What a layer's attention adds at the position of the answer is a sum of one vector for each
position. Its part of the logit is carried down to the input by the ALTI rollout of the layers
below.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch

from attnflow.capture.forward import check_depth, input_size, ordinary, run_recorded
from attnflow.capture.watch import EdgeRecording, is_sum, watched
from attnflow.checks import resolve_index
from attnflow.edges.alti import Block, Norm, linearised
from attnflow.errors import AttentionError, OptionError

# So many modules are remembered, of which one is the norm before the head.
RECENT_MODULES: Final = 4


class AltiLogit(NamedTuple):
    """What attention added to the answers of a batch of B items of n positions.

    All tensors are on the CPU and detached, and float64 but for `logits`. Scores, embedding, feed
    forward and bias of an item add up to its value.

    Attributes:
        scores: What attention to each position added, of shape (B, n), with a sign.
        values: The answers: the target's logit minus that of the contrast, of shape (B,).
        targets: The target of each item.
        embeddings: What the embedding of the position itself adds, of shape (B,).
        feed_forward: What the feed-forward layers add at the position, of shape (B,).
        biases: What the biases of attention, the final norm and the head add, of shape (B,).
        errors: By how much the parts miss the value, over the sum of their sizes, of shape (B,).
        limit: The largest error that rounding explains in the model's data type.
        logits: The logits at the position, of shape (B, vocabulary).
    """

    scores: torch.Tensor
    values: torch.Tensor
    targets: list[int]
    embeddings: torch.Tensor
    feed_forward: torch.Tensor
    biases: torch.Tensor
    errors: torch.Tensor
    limit: float
    logits: torch.Tensor


def alti_logit(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    positions: Sequence[int],
    targets: Sequence[int | None],
    contrasts: Sequence[int | None],
) -> AltiLogit:
    """Run a decoder once, and return what attention to each position added to its answers.

    With T_j(l) the vector that attention of layer l moves from position j to the position of the
    answer, the residual left out, and ALTI(l) the rollout of ALTI's rows from layer l down to the
    input, the scores are ``sum over l and j of gain(T_j(l)) ALTI(l - 1)[j]``. The gain is what a
    vector adds to the difference of logits, through the final norm.

    Feed-forward layers, the embedding of the position and biases are not attributed to any
    position, as in the paper: what they add is returned beside the scores. The part of the
    feed-forward layers includes their biases.

    The model runs in eval mode and without a cache, and is restored, also after an exception.

    Args:
        model: A causal language model of transformers that normalises before each block, such as
            GPT-2, Llama, Gemma or Qwen.
        inputs: What the model takes, on its device, such as ``input_ids`` of shape (B, n) and
            ``attention_mask``.
        positions: Where the answer of each item is read.
        targets: The token of each item whose logit is explained; None is the one predicted.
        contrasts: The token that it is compared with; None is the mean over the vocabulary.

    Raises:
        AttentionError: If the layers of the model, its final norm or its head cannot be followed,
            or what a layer's attention adds is not the sum of its parts.
        OptionError: If there is no such position or token, or the number of positions, targets or
            contrasts is not that of the items.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        ...     intermediate_size=16,
        ... ))
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> found = alti_logit(model, {"input_ids": ids}, [2], [5], [7])
        >>> found.scores.shape
        torch.Size([1, 3])
        >>> rest = found.embeddings + found.feed_forward + found.biases
        >>> bool((found.scores.sum(1) + rest - found.values).abs() < 1e-6)
        True
    """
    name = type(model).__name__
    size = input_size(inputs)
    for option, asked in (("positions", positions), ("targets", targets), ("contrasts", contrasts)):
        if len(asked) != size.items:
            raise OptionError(
                f"{option} has {len(asked)} entries for {size.items} items; expected one for each"
            )
    read: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = read()
    if not isinstance(head, torch.nn.Linear) or size.tokens is None:
        raise _refused(name, "it is not a language model with a linear head")
    places = [resolve_index(place, size.tokens, "position", "positions") for place in positions]
    # Logits of every position over a whole vocabulary are the largest thing in memory.
    kept = sorted(set(places))
    given = ordinary(inputs)
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        given["logits_to_keep"] = torch.tensor(kept, device=head.weight.device)
    else:
        kept = list(range(size.tokens))
    recording = _LogitRecording(
        name, size.batch, size.tokens, "mean", edges="alti", places=places, head=head, kept=kept
    )
    with torch.inference_mode(False), torch.no_grad():
        outputs = run_recorded(model, given, recording, watched(model, recording))
        recording.check_done()
        if not recording.layers:
            raise _refused(name, "the values of its attention cannot be captured")
        check_depth(model, len(recording.layers))
        rows = torch.arange(len(places)), torch.tensor([kept.index(place) for place in places])
        logits = outputs.logits[rows].cpu()
        return _gains(recording, logits, targets, contrasts)


def _gains(
    recording: "_LogitRecording",
    logits: torch.Tensor,
    targets: Sequence[int | None],
    contrasts: Sequence[int | None],
) -> AltiLogit:
    """Return what each part of the residual stream adds to the logits at a position."""
    norm, final = recording.final(logits)
    count = logits.shape[-1]
    chosen = [
        int(row.argmax()) if target is None else resolve_index(target, count, "target", "tokens")
        for row, target in zip(logits, targets, strict=True)
    ]
    others = [
        None if other is None else resolve_index(other, count, "contrast", "tokens")
        for other in contrasts
    ]
    exact = logits.double()
    values = _differences(exact.T, chosen, others).diagonal()
    weight, bias = recording.head.weight, recording.head.bias
    towards = _differences(weight, chosen, others)
    # What is added at the position is multiplied by this: the head's row through the final norm.
    pulled = towards * norm.gain.cpu() * norm.factor.cpu()
    if norm.centred:
        pulled = pulled - pulled.mean(dim=-1, keepdim=True)

    def gain(vectors: torch.Tensor) -> torch.Tensor:
        return (vectors.double().cpu() * pulled).sum(dim=-1)

    parts = recording.parts
    embeddings = gain(parts[0].entering)
    entering = [*(part.entering for part in parts[1:]), final]
    feed_forward, biases = torch.zeros_like(embeddings), towards @ norm.bias.cpu()
    if bias is not None:
        biases = biases + _differences(bias[:, None], chosen, others)[:, 0]
    for part, following in zip(parts, entering, strict=True):
        feed_forward = feed_forward + gain(following - part.leaving)
        biases = biases + gain(part.bias)
    scores = torch.zeros(recording.layers[0].shape[:2], dtype=torch.float64)
    for part, mixed in zip(reversed(parts), reversed(recording.layers), strict=True):
        carried = (scores[:, None] @ mixed.double())[:, 0]
        scores = carried + (part.moved.double().cpu() @ pulled[:, :, None])[..., 0]
    rest = (embeddings, feed_forward, biases)
    sizes = scores.abs().sum(dim=-1) + sum(part.abs() for part in rest)
    missed = (scores.sum(dim=-1) + sum(rest) - values).abs()
    limit = max(1e-4, 8 * torch.finfo(logits.dtype).eps)
    errors = missed / torch.where(sizes > 0, sizes, 1.0)
    return AltiLogit(scores, values, chosen, *rest, errors, limit, logits)


def _differences(
    rows: torch.Tensor, targets: Sequence[int], contrasts: Sequence[int | None]
) -> torch.Tensor:
    """Return for each item the row of its target minus that of its contrast, or minus the mean."""
    found = rows[torch.tensor(targets, device=rows.device)].double().cpu()
    mean = rows.mean(dim=0, dtype=torch.promote_types(rows.dtype, torch.float32)).double().cpu()
    others = [mean if other is None else rows[other].double().cpu() for other in contrasts]
    return found - torch.stack(others)


class _Part(NamedTuple):
    """What one layer's attention did at the position of the answer, in each of B items.

    `moved` are the vectors from each position, of shape (B, n, D). The others are of shape (B, D):
    `bias` is what biases added to them, `entering` the residual stream before and `leaving` after.
    """

    moved: torch.Tensor
    bias: torch.Tensor
    entering: torch.Tensor
    leaving: torch.Tensor


class _Ran(NamedTuple):
    """A module without modules inside it that has run."""

    module: torch.nn.Module
    given: torch.Tensor
    returned: torch.Tensor


@dataclass(eq=False)
class _LogitRecording(EdgeRecording):
    """Takes ALTI's rows, and what attention added at one position of each item.

    Args:
        places: The position of each item.
        head: The model's head.
        kept: The positions that the head is given.

    Attributes:
        parts: What each layer's attention did so far.
    """

    places: Sequence[int] = ()
    head: torch.nn.Linear = field(default_factory=lambda: torch.nn.Linear(1, 1))
    kept: Sequence[int] = ()
    parts: list[_Part] = field(default_factory=list)
    # What modules returned at the positions, before the last layer was taken and since.
    _older: list[torch.Tensor] = field(default_factory=list)
    _newer: list[torch.Tensor] = field(default_factory=list)
    _recent: list[_Ran] = field(default_factory=list)
    _read: _Ran | None = None

    def leave(self, module: torch.nn.Module, returned: torch.Tensor | None) -> None:
        """Note that a module has run and what it returned."""
        given = self._running[-1].given
        if returned is not None and returned.shape[:2] == (self.batch, self.tokens):
            self._newer.append(self._at(returned.detach()))
        super().leave(module, returned)
        if given is None or returned is None or any(True for _ in module.children()):
            return
        ran = _Ran(module, given, returned.detach())
        if module is self.head:
            self._read = ran
        elif self._read is None:
            self._recent = [*self._recent[1 - RECENT_MODULES :], ran]

    def _add(self, block: Block, limit: float) -> None:
        """Take a layer whose vectors are known."""
        if block.outer:
            raise _refused(
                self.model, f"layer {len(self.layers) + 1} normalises the residual stream itself"
            )
        super()._add(block, limit)
        moved = [
            block.attended(item, slice(place, place + 1), block.projected(item))[:, 0]
            for item, place in enumerate(self.places)
        ]
        found = [self._at(whole) for whole in (block.biases(), block.residual, block.output)]
        if self.parts:
            self._check_added(found[1])
        self.parts.append(_Part(torch.stack(moved), *found))
        self._older, self._newer = self._newer, []

    def _at(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the position of each item."""
        return whole[torch.arange(len(self.places)), torch.tensor(self.places)]

    def _check_added(self, following: torch.Tensor) -> None:
        """See that one module's output is all that was added after the last attention.

        Raises:
            AttentionError: If something else became of the residual stream.
        """
        leaving = self.parts[-1].leaving
        for added in (*self._older, *self._newer):
            kind = added.dtype
            if is_sum(following.to(kind), leaving.to(kind), added):
                return
        raise _refused(
            self.model,
            f"what follows the attention of layer {len(self.parts)} is not the output of a "
            "feed-forward layer added to the residual stream",
        )

    def final(self, logits: torch.Tensor) -> tuple[Norm, torch.Tensor]:
        """Return the norm before the head, and its input, at the position of each item.

        Raises:
            AttentionError: If the logits are not the head's output, or its input not a norm's.
        """
        read = self._read
        items = torch.arange(len(self.places))
        kept = torch.tensor([self.kept.index(place) for place in self.places])
        if read is None or not torch.equal(read.returned[items, kept].cpu(), logits):
            raise _refused(self.model, "its logits are not its head's output, but scaled or capped")
        for module, given, returned in reversed(self._recent):
            if returned.shape[-1] == read.given.shape[-1] and torch.equal(
                returned[:, list(self.kept)], read.given
            ):
                norm = linearised(module, given, returned)
                if norm is not None:
                    self._check_added(self._at(given))
                    return norm._replace(factor=self._at(norm.factor)), self._at(given)
        raise _refused(self.model, "no norm gives its head what it reads")


def _refused(model: str, reason: str) -> AttentionError:
    return AttentionError(
        f"ALTI-Logit is not available for {model}: {reason}; expected a decoder that normalises "
        "before each block and before its head, such as GPT-2, Llama or Qwen"
    )
