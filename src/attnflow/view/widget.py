"""The page in a notebook: a widget whose choices Python can read and set.

It is the page of `attnflow.view.page`, or of `attnflow.view.generation`, in an output of Jupyter,
VS Code or Colab. The chosen method, layer and position, or the chosen tokens of an answer, are
synchronised: Python sees a click, and the page shows what Python sets.
"""

from typing import Any

from attnflow.checks import choice, resolve_index, resolve_layer
from attnflow.errors import MissingExtraError, OptionError
from attnflow.explain import Answer, explain_graph
from attnflow.explanation import Explanation
from attnflow.generation import Generation
from attnflow.options import ATTENTION_METHODS, Options
from attnflow.scoring import Scorer, weights_at
from attnflow.tokens import Tokens
from attnflow.view import generation as generation_page
from attnflow.view.document import asset
from attnflow.view.notebook import inline_html
from attnflow.view.page import data, first_choices, style
from attnflow.view.pieces import has_sign

try:
    import anywidget
    import traitlets
except ImportError as error:
    raise MissingExtraError(
        'a widget needs anywidget; run: pip install "attnflow[view]"'
    ) from error


# A notebook has less room than a window.
COMPACT = """
.attnflow { margin: 0; padding: 14px 22px 24px; border-radius: 10px; }
.attnflow h1 { margin-top: 14px; font-size: 1.4rem; }
.attnflow .subtitle { margin-bottom: 12px; }
.attnflow .controls { margin: 0 -22px; padding: 8px 22px; }
.attnflow section { margin-top: 28px; }
"""
CHOICES = ("method", "layer", "position")


class ChoiceError(OptionError, traitlets.TraitError):  # type: ignore[misc] # Any to mypy
    """A choice that a widget cannot show. The choice before it stays."""


class Widget(anywidget.AnyWidget):  # type: ignore[misc] # Any to mypy
    """An explanation in a notebook, whose choices Python can read and set.

    Args:
        explanation: The explanation. With a trace, every method, layer and position can be chosen;
            without one, only the layer. Contributions are always shown, and what is chosen is shown
            below them; without a trace nothing is.

    Attributes:
        explanation: As given.
        method: The chosen method: "raw", "rollout" or "flow". For contributions with a trace it is
            "rollout" of the last layer at first.
        layer: The chosen layer, from 1 to the model's last. A negative value counts from the end.
            For an encoder-decoder it is a layer of the decoder for a position of the target, and a
            layer of the encoder for a position of the source.
        position: The index of the chosen position, among the tokens that the model was given. A
            negative value counts from the end.

    Raises:
        OptionError: If it is given something else, or a choice cannot be shown. The choice before
            it stays.

    Example:
        >>> explanation = Explanation(
        ...     tokens=["the", "keys"],
        ...     scores=[0.25, 0.75],
        ...     layer_scores=[[0.5, 0.5], [0.25, 0.75]],
        ...     method="rollout",
        ...     layer=2,
        ...     position=0,
        ...     text="the keys",
        ...     spans=[(0, 3), (4, 8)],
        ...     special=[False, False],
        ...     model="tiny",
        ...     task="encoder",
        ... )
        >>> widget = Widget(explanation)
        >>> widget.layer = -2
        >>> widget.layer
        1
        >>> widget.layer = 3  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        attnflow.view.widget.ChoiceError: layer is 3, but there are 2 layers: expected 1 to 2, ...
    """

    _esm = asset("bundles/widget.js")

    method = traitlets.TraitType().tag(sync=True)
    layer = traitlets.TraitType().tag(sync=True)
    position = traitlets.TraitType().tag(sync=True)
    _kind = traitlets.Unicode("explanation").tag(sync=True)
    _data = traitlets.Dict().tag(sync=True)
    _style = traitlets.Unicode().tag(sync=True)

    def __init__(self, explanation: Explanation) -> None:
        if not isinstance(explanation, Explanation):
            raise OptionError(
                f"explanation must be an Explanation, got {type(explanation).__name__}"
            )
        self.explanation = explanation
        self._first = first_choices(explanation)
        super().__init__(**self._first, _data=data(explanation), _style=style() + COMPACT)

    def __repr__(self) -> str:
        return f"Widget(method={self.method!r}, layer={self.layer}, position={self.position})"

    def chosen(self) -> Explanation:
        """Return the explanation of what is chosen now.

        Returns:
            The explanation given, if nothing else was chosen. Otherwise one whose scores are those
            of the method, layer and position chosen, for every token that the position can see,
            as exact as the trace is. It has no trace of its own.
        """
        given, trace = self.explanation, self.explanation.trace
        if all(getattr(self, name) == self._first[name] for name in CHOICES):
            return given
        if trace is None:
            made = dict(vars(given))
            made |= {"layer": self.layer, "saturation": None, "notes": ()}
            return Explanation(**made | {"scores": given.layer_scores[self.layer - 1]})
        if trace.encoder is not None and self.position < trace.encoder[1]:
            trace = trace.source()
        options = Options(
            method=self.method, layer=self.layer, receptive_field=trace.mask is not None
        )
        # Edges, heads and residual are those of the trace.
        kept = {
            name: value
            for name, value in given.options.items()
            if name not in options or name in ("edges", "heads", "residual")
        }
        [made_anew] = explain_graph(
            Scorer(trace.graph(), mask=trace.mask),
            Tokens(given.text, trace.tokens, trace.spans, trace.special),
            [weights_at(self.position, len(trace.tokens))],
            options,
            [Answer(given.prediction, given.target)],
            details={
                "model": given.model,
                "task": given.task,
                "options": kept,
                "grid": given.grid,
                "picture": given.picture,
            },
        )
        return made_anew.explanation.without_trace()

    @traitlets.validate(*CHOICES)  # type: ignore[untyped-decorator]
    def _check(self, proposal: Any) -> str | int:
        name, value = proposal["trait"].name, proposal["value"]
        trace, shown = self.explanation.trace, getattr(self.explanation, name)
        try:
            if name == "layer" and (trace is not None or not has_sign(self.explanation)):
                return resolve_layer(value, self._layers(self.position))
            if trace is None and value != shown:
                raise OptionError(
                    f"{name} is {value!r}, but this explanation has no trace and shows only the "
                    f"{name} {shown!r}"
                )
            if trace is None:
                return value  # type: ignore[no-any-return] # what is shown
            if name == "method":
                return str(choice(value, name, ATTENTION_METHODS))
            return resolve_index(value, len(trace.tokens), name, "tokens")
        except OptionError as error:
            raise ChoiceError(str(error)) from error

    @traitlets.observe("position")  # type: ignore[untyped-decorator]
    def _keep_layer(self, change: Any) -> None:
        # The two sides of an encoder-decoder may have different numbers of layers.
        self.layer = min(self.layer, self._layers(change["new"]))

    def _layers(self, position: int) -> int:
        """Return how many layers a position has."""
        trace = self.explanation.trace
        if trace is None:
            return len(self.explanation.layer_scores)
        if trace.encoder is not None and position < trace.encoder[1]:
            return trace.encoder[0]
        return trace.depth

    def _repr_mimebundle_(self, **options: Any) -> Any:
        made = super()._repr_mimebundle_(**options)
        if made is None:
            return None
        # A front end that runs no script shows the HTML.
        bundle, metadata = made
        return {**bundle, "text/html": inline_html(self.chosen())}, metadata


class GenerationWidget(anywidget.AnyWidget):  # type: ignore[misc] # Any to mypy
    """A generation in a notebook, whose chosen tokens Python can read and set.

    Args:
        generation: The generation.

    Attributes:
        generation: As given.
        selection: The first and the last of the new tokens that are chosen, counted from 0; None
            for the whole answer, as at first. `generation[first : last + 1]` are their
            explanations. It can be set to one number, too; a negative one counts from the end.

    Raises:
        OptionError: If it is given something else, or a token that was not explained is chosen.
            The choice before it stays.

    Example:
        >>> step = Explanation(
        ...     tokens=["keys"], scores=[2.0], layer_scores=[[2.0]], spans=[(0, 4)],
        ...     special=[False], method="contribution", layer=1, position=0, target=" are",
        ...     value=2.0, bias=0.0, text="keys are", model="tiny", task="causal-lm",
        ... )
        >>> widget = GenerationWidget(
        ...     Generation(
        ...         prompt="keys", text=" are", explanations=[step], whole=step, written=[False]
        ...     )
        ... )
        >>> widget.selection = 0
        >>> widget.selection
        [0, 0]
    """

    _esm = asset("bundles/widget.js")

    selection = traitlets.TraitType(None, allow_none=True).tag(sync=True)
    _kind = traitlets.Unicode("generation").tag(sync=True)
    _data = traitlets.Dict().tag(sync=True)
    _style = traitlets.Unicode().tag(sync=True)

    def __init__(self, generation: Generation) -> None:
        if not isinstance(generation, Generation):
            raise OptionError(f"generation must be a Generation, got {type(generation).__name__}")
        self.generation = generation
        super().__init__(
            _data=generation_page.data(generation), _style=generation_page.style() + COMPACT
        )

    def __repr__(self) -> str:
        return f"GenerationWidget(selection={self.selection!r})"

    @traitlets.validate("selection")  # type: ignore[untyped-decorator]
    def _check(self, proposal: Any) -> list[int] | None:
        value, count = proposal["value"], len(self.generation)
        if value is None:
            return None
        ends = list(value) if isinstance(value, list | tuple) else [value, value]
        try:
            if len(ends) != 2:
                raise OptionError(
                    f"selection is {value!r}; expected the first and the last token, a token, or "
                    "None for the whole answer"
                )
            if not count:
                raise OptionError(
                    f"selection is {value!r}, but the tokens of this answer were not explained one "
                    "by one; expected None"
                )
            first, last = (resolve_index(end, count, "selection", "new tokens") for end in ends)
            if first > last:
                raise OptionError(
                    f"selection is {value!r}, whose first token comes after its last one"
                )
        except OptionError as error:
            raise ChoiceError(str(error)) from error
        return [first, last]

    def _repr_mimebundle_(self, **options: Any) -> Any:
        made = super()._repr_mimebundle_(**options)
        if made is None:
            return None
        # A front end that runs no script shows the HTML.
        bundle, metadata = made
        return {**bundle, "text/html": generation_page.inline_html(self.generation)}, metadata
