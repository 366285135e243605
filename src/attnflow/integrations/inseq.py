"""attnflow's methods for inseq: `attention_rollout`, `attention_flow` and `contribution`.

Importing this module adds them to the attribution methods of inseq:

    import attnflow.integrations.inseq
    import inseq

    model = inseq.load_model("gpt2", "contribution")
    model.attribute("The keys to the cabinet", "The keys to the cabinet are").show()

Each explains a generated token from those before it, one step after another, with the options and
defaults of `Explainer.explain`.
"""

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.checks import resolve_layer
from attnflow.errors import MissingExtraError, OptionError
from attnflow.models import Explainer
from attnflow.models.adapter import Asked, Encoded
from attnflow.options import Options
from attnflow.tokens import Tokens

try:
    from inseq.attr.feat import FeatureAttribution
    from inseq.attr.step_functions import get_step_function
    from inseq.data import CoarseFeatureAttributionStepOutput
    from inseq.utils import Registry
except ImportError as error:
    raise MissingExtraError(
        'attnflow.integrations.inseq needs inseq; run: pip install "attnflow[inseq]"'
    ) from error


class Step(NamedTuple):
    """One sequence of a batch at the step that writes its next token.

    Attributes:
        encoded: Its tokens so far, without padding; of an encoder-decoder also those of the source.
        place: The position that writes the next token.
        target: The token that is written.
        kept: Which positions of the batch the tokens are.
        source_kept: Which positions of the batch those of the source are; empty without an encoder.
        function: What inseq attributes.
    """

    encoded: Encoded
    place: int
    target: int
    kept: NDArray[np.bool_]
    source_kept: NDArray[np.bool_]
    function: Any


class _Method(FeatureAttribution, Registry):  # type: ignore[misc] # Any to mypy
    """What the methods have in common: each sequence of a batch is scored by itself."""

    accepted: ClassVar[tuple[str, ...]]
    """The options of attnflow that `attribute` takes."""

    def __init__(self, attribution_model: Any, **options: Any) -> None:
        super().__init__(attribution_model, **options)
        self.explainer = Explainer(attribution_model.model, attribution_model.tokenizer)

    def get_attribution_args(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options that this method has, and the other arguments."""
        own = {name: value for name, value in kwargs.items() if name in self.accepted}
        return own, {name: value for name, value in kwargs.items() if name not in own}

    def attribute_step(
        self, attribute_fn_main_args: dict[str, Any], attribution_args: Mapping[str, Any]
    ) -> Any:
        """Return the scores of one step.

        Args:
            attribute_fn_main_args: What inseq gives every method: the batch and the targets.
            attribution_args: The options.
        """
        method = self.method_name.removeprefix("attention_")
        options = self.explainer.chosen(Options(method=method, **attribution_args))
        steps = list(self._steps(attribute_fn_main_args))
        targets = torch.zeros(len(steps), len(steps[0].kept))
        sources = torch.zeros(len(steps), len(steps[0].source_kept))
        further: list[dict[str, float]] = []
        for row, step in enumerate(steps):
            found, numbers = self.scores(step, options)
            scores, first = torch.from_numpy(found).float(), step.encoded.source
            sources[row, step.source_kept] = scores[:first]
            targets[row, step.kept] = scores[first:]
            further.append(numbers)
        encoder = self.attribution_model.is_encoder_decoder
        # Of an encoder-decoder, the target so far is only shown if that is asked for.
        shown = not encoder or len(attribute_fn_main_args["inputs"]) > 1
        return CoarseFeatureAttributionStepOutput(
            source_attributions=sources if encoder else None,
            target_attributions=targets if shown else None,
            step_scores={name: torch.tensor([one[name] for one in further]) for name in further[0]},
        )

    @abstractmethod
    def scores(self, step: Step, options: Options) -> tuple[NDArray[np.float64], dict[str, float]]:
        """Return the scores of the source, if there is one, and of the target; and other numbers.

        Args:
            step: The step.
            options: The options.
        """

    def _steps(self, given: Mapping[str, Any]) -> Iterator[Step]:
        arguments = list(given["additional_forward_args"])
        sources: Any = None
        source_masks: Any = None
        if self.attribution_model.is_encoder_decoder:
            # Without the target among its inputs, its embeddings come first.
            del arguments[: 2 - len(given["inputs"])]
            sources, ids, targets, function, source_masks, masks = arguments[:6]
        else:
            ids, targets, function, masks = arguments[:4]
        for row, target in enumerate(targets.reshape(-1).tolist()):
            kept, source_kept = masks[row].bool(), torch.zeros(0, dtype=torch.bool)
            own, source = ids[row][kept].tolist(), []
            inputs = {"input_ids": own, "attention_mask": [1] * len(own)}
            if sources is not None:
                source_kept = source_masks[row].bool()
                source = sources[row][source_kept].tolist()
                inputs = {"input_ids": source, "decoder_input_ids": own}
            count = len(source) + len(own)
            names = tuple(map(str, (*source, *own)))
            yield Step(
                Encoded(Tokens("", names, (None,) * count, (False,) * count), inputs, len(source)),
                len(own) - 1,
                target,
                kept.cpu().numpy(),
                source_kept.cpu().numpy(),
                function,
            )


class AttentionRollout(_Method):
    """Attention rollout: the share of each token in the position that writes the next one.

    `attribute` takes the options `layer`, `heads`, `residual`, `edges` and `receptive_field`.
    """

    method_name = "attention_rollout"
    accepted = ("layer", "heads", "residual", "edges", "receptive_field")

    def __init__(self, attribution_model: Any, **options: Any) -> None:
        super().__init__(attribution_model, **options)
        # The scores do not depend on the function that is attributed.
        self.use_predicted_target = False

    def scores(self, step: Step, options: Options) -> tuple[NDArray[np.float64], dict[str, float]]:
        """Return the scores of every token so far."""
        encoded = step.encoded
        ran = self.explainer.adapter.run([encoded], [[step.place]], options, [[step.target]])
        scorer = self.explainer.scorer(ran, 0, encoded, options)
        layer = resolve_layer(options.layer, scorer.depth)
        # A learned sink comes before the tokens.
        shown = encoded.with_sink() if scorer.graph.sink else encoded
        [scored] = scorer.score(options, layer, [shown.node(step.place)])
        return scored.scores[layer - 1, shown.source - encoded.source :], {}


class AttentionFlow(AttentionRollout):
    """Attention flow: how much of each token can reach the position that writes the next one.

    `attribute` takes the options `layer`, `heads`, `residual`, `edges` and `receptive_field`.
    """

    method_name = "attention_flow"


class Contribution(_Method):
    """Contributions: what each token adds to the logit of the next one, with its sign.

    The answer is the logit of the token that is written minus the mean logit, or minus that of
    `contrast`, the one option that `attribute` takes. The step scores `contribution_value` and
    `contribution_bias` are the answer and what biases add to it: with the bias, the scores of all
    tokens add up to the value. Of an encoder-decoder, that is with `attribute_target=True`.
    """

    method_name = "contribution"
    accepted = ("contrast",)

    def scores(self, step: Step, options: Options) -> tuple[NDArray[np.float64], dict[str, float]]:
        """Return the contribution of every token so far, the answer and what biases add."""
        names = (self.attribution_model.default_attributed_fn_id, "logit")
        if step.function not in map(get_step_function, names):
            raise OptionError(
                f"attributed_fn is {step.function.__name__!r}, but contributions add up to a "
                "logit; leave it out, and give contrast to compare the logit with another one"
            )
        adapter = self.explainer.adapter
        asked = Asked((step.target,), adapter.target(options.contrast, "contrast"))
        [found] = adapter.contribute([step.encoded], [[step.place]], options, [asked])
        if found.note is not None:
            warnings.warn(found.note, stacklevel=2)
        return found.scores, {"contribution_value": found.value, "contribution_bias": found.bias}
