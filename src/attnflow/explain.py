"""A model and its tokenizer in hand: from a text to an explanation.

Data goes one way: the tokenizer encodes the text, the model runs with its attention captured, the
attention becomes a graph, a method scores the tokens, and an `Explanation` carries the result.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow import seq2seq, vision
from attnflow.errors import AttnflowError, MissingExtraError, ModelError, OptionError, TextError
from attnflow.explanation import Explanation, Prediction
from attnflow.graph import AttentionGraph, resolve_index
from attnflow.scoring import (
    BATCH_POSITIONS,
    METHODS,
    check_choices,
    check_edges,
    gradient_rows,
    notes_on,
    predict,
    relative_to,
    saturation_of,
    scores_of,
    shares,
    sink_of,
)
from attnflow.trace import Trace

if TYPE_CHECKING:
    from attnflow.capture import Captured

__all__ = ["POSITIONS", "TASKS", "Explainer", "LayerScores"]

POSITIONS: Final = ("auto", "cls", "mask", "last")

# The tasks, and how the names of model classes end that are made for them.
TASKS: Final = {
    "classification": ("ForSequenceClassification",),
    "masked-lm": ("ForMaskedLM", "ForPreTraining"),
    "causal-lm": ("ForCausalLM", "LMHeadModel"),
    "encoder": (),
}


# The traces of a list of texts may take this much memory together, in bytes.
MOST_TRACES: Final = 2**28


class _Options(NamedTuple):
    """The options of `Explainer.explain`."""

    method: str = "flow"
    layer: Any = -1
    position: Any = "auto"
    edges: str = "attention"
    target: Any = None
    heads: str | int = "mean"
    residual: float = 0.5
    receptive_field: str | bool = "auto"
    words: bool = False
    special_tokens: bool = True
    drop_sink: bool = False
    truncate: bool = False
    keep_heads: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> _Options:
        unknown = sorted(set(given) - set(cls._fields))
        if unknown:
            raise OptionError(
                f"there is no option {unknown[0]!r}; expected {', '.join(cls._fields)}"
            )
        return cls(**given)

    def for_other(self, task: str) -> dict[str, Any]:
        """Return what models are given that do not read one text."""
        given = self._asdict()
        if given.pop("keep_heads"):
            raise OptionError(f"keep_heads=True is for models that read one text, not for {task}")
        return given


class _Encoded(NamedTuple):
    """A text as the model reads it."""

    text: str
    inputs: dict[str, list[int]]
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int] | None, ...]
    special: tuple[bool, ...]

    @property
    def ids(self) -> list[int]:
        return self.inputs["input_ids"]


class _Measured(NamedTuple):
    """The scores of some positions of a text, and what else is read off its graph.

    `scores` is (L, P, n). For each position, `seen` is how many tokens it can see, and `sinks` the
    token most attended to among them. `mask` says which offsets, from -(n - 1) to n - 1, each layer
    attends over, (L, 2 n - 1); it is None where scores are not related to uniform attention.
    `residual` is that of the graph, and `trace` what is kept of it.
    """

    layer: int
    positions: list[int]
    scores: NDArray[np.float64]
    saturation: list[float | None]
    seen: list[int]
    sinks: list[int]
    mask: NDArray[np.bool_] | None
    residual: float | NDArray[np.float64]
    trace: Trace | None = None


class LayerScores(NamedTuple):
    """The scores of one position of a text in every layer, by several methods.

    Attributes:
        tokens: The T tokens that the position can see: of a causal model those up to it.
        special: For each token whether the tokenizer added it, or it has a special meaning.
        position: The position.
        scores: For each pair of a method and whether its scores are related to uniform attention
            over the same mask, the scores, float64 of shape (L, T).
        causal: Whether positions see only what precedes them.
        sink: The token that gets most attention from the others, over all layers.
        target: The class or token that gradients are of; None if the model has no head.
        prediction: What the model answered; None if it has no head.
    """

    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    position: int
    scores: dict[tuple[str, bool], NDArray[np.float64]]
    causal: bool
    sink: int
    target: str | None
    prediction: Prediction | None


class Explainer:
    """Explains what a Transformer's answer for a text, or for an image, came from.

    Works with encoders, causal decoders, encoder-decoders and vision models of Hugging Face's
    transformers: what the model is for is recognised from its class. The model is left as it was
    found.

    Args:
        model: A model of transformers, in memory.
        tokenizer: Its tokenizer, the image processor of a vision model, or the processor of Whisper
            (a feature extractor and a tokenizer).

    Attributes:
        model: The model.
        tokenizer: The tokenizer, image processor or processor.
        task: What the model is for: "classification", "masked-lm", "causal-lm", "encoder",
            "seq2seq-lm", "speech-to-text", "image-classification" or "image-encoder".
        name: The model's name or path.

    Raises:
        MissingExtraError: If torch or transformers is not installed.
        ModelError: If it is not a model that can be explained.

    Example:
        >>> from transformers import BertConfig, BertModel, BertTokenizerFast
        >>> vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "keys": 3, "open": 4, "doors": 5}
        >>> tokenizer = BertTokenizerFast(vocab=vocabulary)
        >>> config = BertConfig(vocab_size=6, hidden_size=8, num_hidden_layers=2,
        ...                     num_attention_heads=2, intermediate_size=8)
        >>> explainer = Explainer(BertModel(config), tokenizer)
        >>> explainer.task
        'encoder'
        >>> explainer.explain("keys open doors", method="rollout").tokens
        ('[CLS]', 'keys', 'open', 'doors', '[SEP]')
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        _require_hf()
        if not hasattr(model, "config") or not callable(getattr(model, "forward", None)):
            raise ModelError(
                f"model is {type(model).__name__}; expected a model of transformers. "
                "Explainer.from_pretrained(name_or_path) loads one"
            )
        if not callable(tokenizer):
            raise ModelError(
                f"tokenizer is {type(tokenizer).__name__}; expected the model's tokenizer"
            )
        self.model = model
        self.tokenizer = tokenizer
        self._sees = vision.is_vision_model(model)
        # The encoder of an encoder-decoder may be called one too, but takes nothing for a decoder.
        both = "decoder_input_ids" in inspect.signature(model.forward).parameters
        if both and getattr(model.config, "is_encoder_decoder", False):
            seq2seq.check_model(model, tokenizer)
            self.task = seq2seq.task_of(model)
        elif self._sees:
            vision.token_layout(model)  # refuses models that attend within windows
            self.task = vision.task_of(type(model).__name__)
        else:
            self.task = _task_of(type(model).__name__)
        self.name = str(getattr(model, "name_or_path", "") or type(model).__name__)
        self._uniform: dict[Any, NDArray[np.float64]] = {}

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | os.PathLike[str],
        task: str = "auto",
        device: str = "auto",
        dtype: str = "auto",
        *,
        allow_pickle: bool = False,
        trust_remote_code: bool = False,
    ) -> Explainer:
        """Load a model and its tokenizer.

        Args:
            name_or_path: A folder, a GGUF file, or the name of a model on the Hugging Face hub.
            task: What to load it for: "classification", "masked-lm", "causal-lm", "encoder",
                "seq2seq-lm", "speech-to-text", "image-classification" or "image-encoder". "auto"
                is what the checkpoint was saved as.
            device: A device of torch. "auto" is a GPU if there is one.
            dtype: A dtype of torch, such as "float32". "auto" is float32 on a CPU, and what the
                checkpoint was saved in elsewhere.
            allow_pickle: Load weights that are not safetensors. Such a file can run any code.
            trust_remote_code: Run code that comes with the checkpoint.

        Returns:
            The explainer.

        Raises:
            MissingExtraError: If torch or transformers is not installed.
            OptionError: If `task`, `device` or `dtype` is not valid.
            ModelError: If the model cannot be found or loaded; the message says why.
        """
        _require_hf()
        import transformers

        from attnflow.capture.quiet import quiet

        valid = ("auto", *TASKS, *seq2seq.TASKS, *vision.TASKS)
        if task not in valid:
            raise OptionError(f"task is {task!r}; expected {', '.join(valid)}")
        place = _device(device)
        number = _dtype(dtype, place)
        path = Path(name_or_path)
        source: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        name = str(name_or_path)
        if path.suffix == ".gguf" and path.is_file():
            name, source["gguf_file"] = str(path.parent), path.name
        try:
            with quiet():
                _register_own(path)
                config = transformers.AutoConfig.from_pretrained(name, **source)
                kind: Any = vision.model_class(config, task)
                if kind is not None:
                    reader = vision.load_image_processor(name, **source)
                else:
                    if getattr(config, "is_encoder_decoder", False):
                        task = seq2seq.task_to_load(config, task)
                    elif task == "auto":
                        # A GGUF file names no class; such files are made of causal models.
                        unnamed = "ForCausalLM" if "gguf_file" in source else ""
                        task = _task_of((config.architectures or [unnamed])[0])
                    kind = {
                        "seq2seq-lm": transformers.AutoModelForSeq2SeqLM,
                        "speech-to-text": transformers.AutoModelForSpeechSeq2Seq,
                        "classification": transformers.AutoModelForSequenceClassification,
                        "masked-lm": transformers.AutoModelForMaskedLM,
                        "causal-lm": transformers.AutoModelForCausalLM,
                        "encoder": transformers.AutoModel,
                    }[task]
                    reads: Any = transformers.AutoTokenizer
                    if task == "speech-to-text":
                        reads = transformers.AutoProcessor
                    reader = reads.from_pretrained(name, **source)
                if "gguf_file" not in source:
                    source["use_safetensors"] = None if allow_pickle else True
                model = kind.from_pretrained(name, dtype=number, **source)
        except AttnflowError:
            raise
        except ImportError as error:
            raise MissingExtraError(f"loading {name} needs another package: {error}") from error
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(_loading_failed(name, path, error, allow_pickle)) from error
        return cls(model.to(place).eval(), reader)

    def explain(
        self,
        inputs: Any,
        *,
        method: str = "flow",
        layer: int = -1,
        position: int | str = "auto",
        edges: str = "attention",
        target: int | str | None = None,
        heads: str | int = "mean",
        residual: float = 0.5,
        receptive_field: str | bool = "auto",
        words: bool = False,
        special_tokens: bool = True,
        drop_sink: bool = False,
        truncate: bool = False,
        keep_heads: bool = False,
    ) -> Any:
        """Explain the model's answer for a text or an image, or for each of many.

        Args:
            inputs: A text, or a list of texts. For an encoder-decoder a source text, or a tuple of
                a source text and the target so far. For a vision model an image, or a list of
                images: a Pillow image, a uint8 array of shape (height, width, 3), or a path. For
                Whisper a sound, a tuple of a sound and the text so far, or a list of either; a
                sound is a float array of one channel at the sampling rate that the model takes
                (16,000 a second), a mapping with "array" and "sampling_rate", or the path of a
                .wav file.
            method: "raw" attention, "rollout" or "flow".
            layer: The layer whose embedding is explained, from 1; -1 is the last.
            position: The position whose embedding is explained: an index, "cls", "mask", "last",
                or "auto": the mask of a masked language model, the last token of a causal model,
                the last of the target of an encoder-decoder, and CLS otherwise (the first token
                where there is no CLS). An index of an encoder-decoder counts target positions.
            edges: What an edge weighs: "attention"; "gradient", the mean over heads of
                relu(dy/dA * A) where y is the target's logit; "effective", the part of each head's
                attention that its values let through (Brunner et al. 2020); or "value_norm", the
                norm of the vector that attention brings from one position to the other
                (Kobayashi et al. 2020).
            target: The class, by name or index, or the token that the explanation is for. None is
                what the model predicts.
            heads: How heads become one: "mean", "max", "min", "sum", or the index of a head. Value
                norms take all heads together, or the one given; gradients their mean.
            residual: The share of the residual connection, from 0 to 1. With "value_norm" it is
                measured for each layer and position, and not to be given.
            receptive_field: Divide rollout and flow by what uniform attention over the same mask
                gives, with the same shares of the residual, so that a token does not score for
                being early. "auto" does so for causal models.
            words: Sum the scores of sub-word tokens to words.
            special_tokens: Keep special tokens among those scored.
            drop_sink: Leave out the token that most positions attend to whatever it is. Of an
                encoder-decoder, one of the source and one of the target; a note says which.
            truncate: Cut a text that is longer than the model takes, instead of an error.
            keep_heads: Keep the attention of each head in `Explanation.trace`, so that a page can
                show heads one by one. Only for edges="attention".

        Returns:
            An `Explanation`, or a list of them, one for each text or image, in their order. For an
            image, `Explanation.grid` and `Explanation.map` place the scores.

        Raises:
            OptionError: If an option is not valid for this model; the message says what is.
            TextError: If a text is empty, not text, or longer than the model takes.
            ModelError: If the model's attention is not to be had.
        """
        options = {
            "method": method,
            "layer": layer,
            "position": position,
            "edges": edges,
            "target": target,
            "heads": heads,
            "residual": residual,
            "receptive_field": receptive_field,
            "words": words,
            "special_tokens": special_tokens,
            "drop_sink": drop_sink,
            "truncate": truncate,
            "keep_heads": keep_heads,
        }
        items: list[Any]
        if self._sees:
            items, many = vision.list_images(inputs)
        elif self.task in seq2seq.TASKS:
            items, many = seq2seq.list_pairs(inputs, sound=self.task == "speech-to-text")
        else:
            many = not isinstance(inputs, str)
            items = _texts(inputs) if many else [inputs]
        results: list[Explanation | None] = [None] * len(items)
        traces = 0
        for index, explanation in self.explain_each(items, **options):
            if explanation.trace is not None:
                traces += explanation.trace.nbytes
            results[index] = explanation if traces <= MOST_TRACES else explanation.without_trace()
        return results if many else results[0]

    def explain_each(
        self, inputs: Sequence[Any], **options: Any
    ) -> Iterator[tuple[int, Explanation]]:
        """Yield the explanations of many texts or images as they are done.

        Texts of similar length go through the model together, the short ones first. Every text is
        checked before the first one runs.

        Args:
            inputs: The texts, or images.
            **options: The options of `explain`.

        Yields:
            The index of a text or image, and its explanation.

        Raises:
            AttnflowError: Whatever `explain` raises.
        """
        chosen = _Options.of(options)
        if self._sees:
            yield from vision.explain_each(
                self.model,
                self.tokenizer,
                list(inputs),
                name=self.name,
                **chosen.for_other(self.task),
            )
            return
        if self.task in seq2seq.TASKS:
            sound = self.task == "speech-to-text"
            pairs, _ = seq2seq.list_pairs(list(inputs), sound=sound)
            yield from seq2seq.explain_each(
                self.model, self.tokenizer, pairs, name=self.name, **chosen.for_other(self.task)
            )
            return
        self._check(chosen)
        encoded: list[_Encoded] = []
        for text in self._encode_all(inputs, chosen.truncate):
            if isinstance(text, TextError):
                raise text
            self._position(text, chosen.position, causal=None)
            encoded.append(text)
        for batch in _batches([len(text.ids) for text in encoded]):
            group = [encoded[index] for index in batch]
            yield from zip(batch, self._explain_batch(group, chosen), strict=True)

    def generate(self, prompt: Any, max_new_tokens: int = 20, **options: Any) -> list[Explanation]:
        """Let a language model write on, and explain every token it adds.

        The tokens are generated greedily. Then one pass over the whole text captures the attention
        for all of them. An encoder-decoder writes a target for the text.

        Args:
            prompt: The text to go on with; for an encoder-decoder the source, or a tuple of the
                source and the target so far, as in `explain`.
            max_new_tokens: How many tokens to add at most; fewer if the model ends the text.
            **options: Options of `explain` other than `position` and `target`.

        Returns:
            One explanation for each token added: its target is the token, its position the one
            before, and it scores all tokens up to there.

        Raises:
            OptionError: If the model does not write text or an option is not valid.
            TextError: If the prompt is empty, or the text gets longer than the model takes.
        """
        import torch

        from attnflow.capture.borrow import borrowed

        if self.task not in ("causal-lm", *seq2seq.TASKS):
            raise OptionError(
                f"generate needs a language model that writes, not one for {self.task}"
            )
        if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
            raise OptionError(f"max_new_tokens is {max_new_tokens!r}; expected a whole number")
        if max_new_tokens < 1:
            raise OptionError(f"max_new_tokens is {max_new_tokens}; expected 1 or more")
        for name in ("position", "target"):
            if name in options:
                raise OptionError(f"generate chooses {name} itself, token by token")
        checked = _Options.of(options)
        if self.task in seq2seq.TASKS:
            return seq2seq.generate(
                self.model,
                self.tokenizer,
                prompt,
                max_new_tokens,
                name=self.name,
                **checked.for_other(self.task),
            )
        self._check(checked)
        text = self._encode(prompt, checked.truncate)
        ids = torch.tensor([text.ids], device=self.model.device)
        most = self._most_tokens()
        if most is not None and len(text.ids) + max_new_tokens > most:
            raise TextError(
                f"the prompt has {len(text.ids)} tokens and {max_new_tokens} more are asked for, "
                f"but the model takes {most}"
            )
        with torch.no_grad(), borrowed(self.model, None):
            whole = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                num_beams=1,
                pad_token_id=self._pad_id(),
            )[0].tolist()
        grown = self._from_ids(whole, prompt)
        positions = list(range(len(text.ids) - 1, len(whole) - 1))
        return self._explain_positions(grown, positions, checked)

    def layer_scores(
        self,
        text: str,
        *,
        methods: Sequence[str] = METHODS,
        edges: str = "attention",
        position: int | str = "auto",
        target: int | str | None = None,
        heads: str | int = "mean",
        residual: float = 0.5,
        receptive_field: Sequence[str | bool] = ("auto",),
        truncate: bool = False,
        num_threads: int | None = None,
    ) -> LayerScores:
        """Score the tokens of a text by several methods, after a single forward pass.

        The scores are those of `explain`, in every layer, special tokens included. The attention
        graph is built once.

        Args:
            text: The text.
            methods: Of "raw", "rollout" and "flow".
            edges: As in `explain`.
            position: As in `explain`.
            target: As in `explain`.
            heads: As in `explain`.
            residual: As in `explain`.
            receptive_field: Which of "auto", True and False to score with. It makes no difference
                to raw attention.
            truncate: As in `explain`.
            num_threads: How many threads compute flows. None is one for each CPU.

        Returns:
            The scores, and what they belong to.

        Raises:
            AttnflowError: Whatever `explain` raises; an OptionError if the model does not read one
                text.
        """
        if self._sees or self.task in seq2seq.TASKS:
            raise OptionError(f"layer_scores needs a model that reads one text, not {self.task}")
        options = _Options(
            position=position,
            edges=edges,
            target=target,
            heads=heads,
            residual=residual,
            truncate=truncate,
        )
        for method in methods:
            for choice in receptive_field:
                self._check(options._replace(method=method, receptive_field=choice))
        encoded = self._encode(text, truncate)
        place = self._position(encoded, position, causal=None)
        places = [[-1 if place is None else place]]
        captured, logits, targets = self._run([encoded], places, options)
        graph = _graph(captured, 0, len(encoded.ids), options)
        index = self._position(encoded, position, graph.causal) or 0
        seen = index + 1 if graph.causal else graph.tokens
        relative = {graph.causal if x == "auto" else bool(x) for x in receptive_field}
        scores = {}
        mask = _mask(graph) if True in relative else None
        for method in methods:
            plain = scores_of(graph, method, [index], num_threads)
            for choice in relative:
                values = plain
                # A row of raw attention over a uniform row is the same row once it is normalised.
                if choice and method != "raw":
                    measured = _Measured(-1, [index], plain, [], [seen], [], mask, graph.residual)
                    uniform = _uniform_scores(
                        measured, options._replace(method=method), self._uniform
                    )
                    values = relative_to(uniform, plain)
                scores[method, choice] = values[:, 0, :seen]
        found, wanted = logits[0], targets[0]
        return LayerScores(
            tokens=encoded.tokens[:seen],
            special=encoded.special[:seen],
            position=index,
            scores=scores,
            causal=graph.causal,
            sink=sink_of(graph, seen),
            target=None if found is None or wanted is None else self._label(wanted[0]),
            prediction=None if found is None else predict(found[0], self._label),
        )

    def fingerprint(self) -> str:
        """Return a short text that stands for the model's weights, its set-up and its vocabulary.

        Two models with the same fingerprint give the same scores. Where the model is stored, and in
        which format, makes no difference.

        Returns:
            32 hexadecimal digits.
        """
        import torch

        digest = hashlib.blake2b(digest_size=16)
        # What else the set-up says is how the weights were stored, or by which release.
        ignored = ("_", "transformers_version", "architectures", "dtype")
        settings = self.model.config.to_dict().items()
        config = {name: value for name, value in settings if not name.startswith(ignored)}
        vocabulary: dict[str, int] = getattr(self.tokenizer, "get_vocab", dict)()
        described = [type(self.model).__name__, config, vocabulary]
        digest.update(json.dumps(described, sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(memoryview(values.numpy()))
        return digest.hexdigest()

    # ---- Reading the model -----------------------------------------------------------------------

    def _check(self, options: _Options) -> None:
        """Check what can be checked before a text is read."""
        names = ("words", "special_tokens", "drop_sink", "truncate", "keep_heads")
        switches = {name: getattr(options, name) for name in names}
        check_choices(options.method, options.edges, options.receptive_field, switches)
        check_edges(options.edges, options.heads, options.residual)
        if options.keep_heads and options.edges != "attention":
            raise OptionError(
                f"keep_heads=True is for edges='attention', and edges is {options.edges!r}"
            )
        if isinstance(options.position, str) and options.position not in POSITIONS:
            raise OptionError(
                f"position is {options.position!r}; expected an index, {', '.join(POSITIONS)}"
            )
        layers = getattr(self.model.config, "num_hidden_layers", None)
        if isinstance(layers, int):
            resolve_index(options.layer, layers, "layer", "layers", first=1)
        if self.task == "encoder":
            if options.target is not None:
                raise OptionError(
                    f"target is {options.target!r}, but {type(self.model).__name__} has no head "
                    "and predicts nothing; leave it out"
                )
            if options.edges == "gradient":
                raise OptionError(
                    "edges='gradient' needs a prediction to differentiate, and "
                    f"{type(self.model).__name__} has no head; use edges='attention'"
                )
        if options.words and not getattr(self.tokenizer, "is_fast", False):
            raise OptionError(
                "words=True needs to know where each token stands in the text, which only a fast "
                f"tokenizer tells, and {type(self.tokenizer).__name__} is not one"
            )

    def _most_tokens(self) -> int | None:
        """How many tokens the model takes, None if it does not say."""
        limits = [
            getattr(self.tokenizer, "model_max_length", None),
            getattr(self.model.config, "max_position_embeddings", None),
        ]
        # Tokenizers without a limit say a huge number.
        known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**9]
        return min(known, default=None)

    def _pad_id(self) -> int:
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return int(pad) if isinstance(pad, int) else 0

    def _encode(self, text: Any, truncate: bool) -> _Encoded:
        [found] = self._encode_all([text], truncate)
        if isinstance(found, TextError):
            raise found
        return found

    def _encode_all(self, texts: Sequence[Any], truncate: bool) -> list[_Encoded | TextError]:
        """Return each text as the model reads it, or why it cannot."""
        results: dict[int, _Encoded | TextError] = {}
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                results[index] = TextError(f"the text is {type(text).__name__}; expected a string")
            elif not text.strip():
                results[index] = TextError("the text is empty; there is nothing to explain")
        left = [index for index in range(len(texts)) if index not in results]
        if left:
            most = self._most_tokens()
            encodings = self.tokenizer(
                [texts[index] for index in left],
                truncation=bool(truncate and most),
                max_length=most if truncate else None,
                return_offsets_mapping=bool(getattr(self.tokenizer, "is_fast", False)),
                return_special_tokens_mask=True,
                return_attention_mask=True,
                verbose=False,
            )
            taken = {*inspect.signature(self.model.forward).parameters, "input_ids"}
            for row, index in enumerate(left):
                encoding = {name: values[row] for name, values in encodings.items()}
                results[index] = self._encoded(texts[index], encoding, taken, most)
        return [results[index] for index in range(len(texts))]

    def _encoded(
        self, text: str, encoding: dict[str, list[Any]], taken: set[str], most: int | None
    ) -> _Encoded | TextError:
        """Return a text from its encoding; `taken` are the names that the model takes."""
        special = [bool(flag) for flag in encoding.pop("special_tokens_mask")]
        offsets = encoding.pop("offset_mapping", None)
        ids = encoding["input_ids"]
        count = len(ids)
        if count == 0 or all(special):
            return TextError(f"the tokenizer finds no token in the text {text!r}")
        if most is not None and count > most:
            return TextError(
                f"the text has {count} tokens and the model takes {most}; shorten it, or pass "
                "truncate=True (--truncate) to cut it there"
            )
        # A mask written into the text is a special token, but a place in the text all the same.
        mask = getattr(self.tokenizer, "mask_token_id", None)
        spans = tuple(
            None
            if offsets is None or (special[i] and ids[i] != mask)
            else (int(offsets[i][0]), int(offsets[i][1]))
            for i in range(count)
        )
        inputs = {name: list(values) for name, values in encoding.items() if name in taken}
        return _Encoded(
            text, inputs, self._token_texts(text, inputs["input_ids"], spans), spans, tuple(special)
        )

    def _from_ids(self, ids: list[int], prompt: str) -> _Encoded:
        """Return a generated text, its tokens placed by decoding more and more of them."""
        known = self._encode(prompt, truncate=False)
        count = len(known.ids)
        text = known.text
        spans = list(known.spans)
        special = list(known.special)
        endings = set(getattr(self.tokenizer, "all_special_ids", []))
        before = self.tokenizer.decode(ids[:count], clean_up_tokenization_spaces=False)
        for end in range(count + 1, len(ids) + 1):
            after = self.tokenizer.decode(ids[:end], clean_up_tokenization_spaces=False)
            # A token that is half a character shows only once the other half is there.
            added = after[len(before) :] if after.startswith(before) else ""
            if ids[end - 1] in endings:
                spans.append(None)
                special.append(True)
                added = ""
            else:
                spans.append((len(text), len(text) + len(added)))
                special.append(False)
            text += added
            before = after
        inputs = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        return _Encoded(
            text, inputs, self._token_texts(text, ids, tuple(spans)), tuple(spans), tuple(special)
        )

    def _token_texts(
        self, text: str, ids: list[int], spans: tuple[tuple[int, int] | None, ...]
    ) -> tuple[str, ...]:
        """What a reader is shown: the token's part of the text, or the token's own name."""
        shown = ["" if span is None else text[slice(*span)].strip() for span in spans]
        unnamed = [i for i, name in enumerate(shown) if not name]
        names = self.tokenizer.convert_ids_to_tokens([ids[i] for i in unnamed])
        for i, name in zip(unnamed, names, strict=True):
            shown[i] = str(name)
        return tuple(shown)

    def _position(self, text: _Encoded, position: Any, causal: bool | None) -> int | None:
        """Return the position to explain; None while it depends on whether the graph is causal."""
        count = len(text.ids)
        if position == "auto":
            position = {"masked-lm": "mask", "causal-lm": "last"}.get(self.task, "cls")
            cls_id = getattr(self.tokenizer, "cls_token_id", None)
            if position == "cls" and cls_id not in text.ids:
                return None if causal is None else count - 1 if causal else 0
        if position == "last":
            return count - 1
        if position in ("cls", "mask"):
            wanted = getattr(self.tokenizer, f"{position}_token_id", None)
            name = getattr(self.tokenizer, f"{position}_token", None)
            places = [i for i, token in enumerate(text.ids) if token == wanted]
            if wanted is None:
                raise OptionError(
                    f"position is {position!r}, but the tokenizer has no {position} token; "
                    f"give an index from 0 to {count - 1}"
                )
            if not places:
                raise TextError(
                    f"the text has no {name}; put one where a token is to be predicted, or give "
                    "position as an index"
                )
            if len(places) > 1 and position == "mask":
                raise OptionError(
                    f"the text has {len(places)} {name}; give position as one of "
                    f"{', '.join(map(str, places))}"
                )
            return places[0]
        return resolve_index(position, count, "position", "tokens")

    # ---- Running it ------------------------------------------------------------------------------

    def _explain_batch(self, texts: list[_Encoded], options: _Options) -> Iterator[Explanation]:
        places = [self._position(text, options.position, causal=None) for text in texts]
        captured, logits, targets = self._run(
            texts, [[-1 if place is None else place] for place in places], options
        )
        for row, text in enumerate(texts):
            measured = self._measure(captured, row, text, None, options)
            yield self._make(text, measured, logits[row], targets[row], options)[0]

    def _explain_positions(
        self, text: _Encoded, positions: list[int], options: _Options
    ) -> list[Explanation]:
        """Explain every token that follows one of the positions."""
        following = [text.ids[position + 1] for position in positions]
        if options.edges == "gradient":
            # Each token is a target of its own, so each needs the gradient of a pass of its own.
            return [
                self._explain_following(text, [position], [target], options)[0]
                for position, target in zip(positions, following, strict=True)
            ]
        return self._explain_following(text, positions, following, options)

    def _explain_following(
        self, text: _Encoded, positions: list[int], targets: list[int], options: _Options
    ) -> list[Explanation]:
        captured, logits, _ = self._run([text], [positions], options, targets)
        measured = self._measure(captured, 0, text, positions, options)
        return self._make(text, measured, logits[0], targets, options)

    def _run(
        self,
        texts: list[_Encoded],
        positions: list[list[int]],
        options: _Options,
        targets: list[int] | None = None,
    ) -> tuple[Captured, list[NDArray[np.float64] | None], list[list[int] | None]]:
        """Run the model; return the attention, logits (positions, classes) and target of each."""
        import torch

        from attnflow.capture import capture

        longest = max(len(text.ids) for text in texts)
        device = self.model.device
        inputs: dict[str, Any] = {}
        for name in texts[0].inputs:
            pad = self._pad_id() if name == "input_ids" else 0
            rows = [text.inputs[name] + [pad] * (longest - len(text.ids)) for text in texts]
            inputs[name] = torch.tensor(rows, device=device)
        if longest == min(len(text.ids) for text in texts):
            inputs.pop("attention_mask", None)
        # The last token of each text; -1 stands for it until lengths are known.
        places = [
            [len(text.ids) - 1 if place == -1 else place for place in row]
            for text, row in zip(texts, positions, strict=True)
        ]
        kept = sorted({place for row in places for place in row})
        language_model = self.task in ("masked-lm", "causal-lm")
        keeps = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        if language_model and keeps:
            # Logits of every position over a whole vocabulary are the largest thing in memory.
            inputs["logits_to_keep"] = torch.tensor(kept, device=device)
            where = {place: index for index, place in enumerate(kept)}
        else:
            where = {place: place for place in range(longest)}

        def read(outputs: Any, row: int) -> Any:
            if self.task == "encoder":
                return None
            if self.task == "classification":
                return outputs.logits[row][None]
            return outputs.logits[row][[where[place] for place in places[row]]]

        def score(outputs: Any) -> Any:
            values = []
            for row in range(len(texts)):
                logits = read(outputs, row)
                wanted = targets or [self._target(options.target, logits[0])]
                values.append(logits[0][wanted[0]])
            return torch.stack(values)

        captured = capture(
            self.model,
            inputs,
            heads=None if options.keep_heads else options.heads,
            score=score if options.edges == "gradient" else None,
            edges="attention" if options.edges == "gradient" else options.edges,
        )
        logits: list[NDArray[np.float64] | None] = []
        chosen: list[list[int] | None] = []
        for row in range(len(texts)):
            found = read(captured.outputs, row)
            logits.append(None if found is None else found.detach().double().cpu().numpy())
            chosen.append(
                targets if found is None or targets else [self._target(options.target, found[0])]
            )
        return captured, logits, chosen

    def _target(self, target: Any, logits: Any) -> int:
        """Return the class or token that an explanation is for."""
        count = len(logits)
        if target is None:
            return int(logits.argmax())
        if isinstance(target, str):
            if self.task == "classification":
                labels = {str(name): int(i) for i, name in self._labels().items()}
                if target not in labels:
                    raise OptionError(
                        f"target is {target!r}; expected one of {', '.join(labels)}, or an index"
                    )
                return labels[target]
            ids = self.tokenizer(target, add_special_tokens=False)["input_ids"]
            if len(ids) != 1:
                pieces = self.tokenizer.convert_ids_to_tokens(ids)
                raise OptionError(
                    f"target is {target!r}, which is {len(ids)} tokens ({', '.join(pieces)}); "
                    "expected one token (a leading space may matter), or its index"
                )
            return int(ids[0])
        return resolve_index(target, count, "target", "classes")

    def _labels(self) -> Mapping[int, str]:
        labels: Mapping[int, str] = self.model.config.id2label
        return labels

    def _label(self, index: int) -> str:
        if self.task == "classification":
            return str(self._labels().get(index, index))
        return str(self.tokenizer.decode([index]))

    def _measure(
        self,
        captured: Captured,
        row: int,
        text: _Encoded,
        positions: list[int] | None,
        options: _Options,
        *,
        keep_trace: bool = True,
        num_threads: int | None = None,
    ) -> _Measured:
        """Score one text of a batch. The graph, which is large, is gone afterwards."""
        count = len(text.ids)
        graph = _graph(captured, row, count, options)
        if positions is None:
            place = self._position(text, options.position, graph.causal)
            positions = [0 if place is None else place]
        heads = None
        if keep_trace and options.keep_heads:
            heads = [layer[row, :, :count, :count].numpy() for layer in captured.layers]
        return _measure(
            graph,
            text,
            positions,
            options,
            heads=heads,
            keep_trace=keep_trace,
            num_threads=num_threads,
        )

    def _make(
        self,
        text: _Encoded,
        measured: _Measured,
        logits: NDArray[np.float64] | None,
        targets: list[int] | None,
        options: _Options,
    ) -> list[Explanation]:
        """Return the explanation of each position of one text."""
        predictions: list[Prediction | None] = [None] * len(measured.positions)
        names: list[str | None] = [None] * len(measured.positions)
        if logits is not None:
            # Of a classifier there is one answer, whatever the position.
            rows = logits if len(logits) > 1 else [logits[0]] * len(predictions)
            predictions = [predict(row, self._label) for row in rows]
            if targets is not None:
                wanted = targets if len(targets) > 1 else targets * len(names)
                names = [self._label(target) for target in wanted]
        return _explanations(
            text,
            measured,
            predictions,
            names,
            options,
            model=self.name,
            task=self.task,
            uniform=self._uniform,
        )


# ---- From a graph to explanations, without the model ---------------------------------------------


def _measure(
    graph: AttentionGraph,
    text: _Encoded,
    positions: list[int],
    options: _Options,
    *,
    mask: NDArray[np.bool_] | None = None,
    heads: Sequence[Any] | None = None,
    keep_trace: bool = True,
    num_threads: int | None = None,
) -> _Measured:
    """Score some positions of a text; `mask` is that of the graph, if it is known."""
    layer = resolve_index(options.layer, graph.layers, "layer", "layers", first=1)
    scores = scores_of(graph, options.method, positions, num_threads)
    saturation: list[float | None] = [None] * len(positions)
    if options.method == "flow":
        saturation = [*saturation_of(graph, scores, layer, positions)]
    seen = [place + 1 if graph.causal else graph.tokens for place in positions]
    relative = options.receptive_field is True or (
        options.receptive_field == "auto" and graph.causal
    )
    if not relative:
        mask = None
    elif mask is None:
        mask = _mask(graph)
    trace = None
    if keep_trace:
        trace = Trace.of(
            graph,
            tokens=text.tokens,
            spans=text.spans,
            special=text.special,
            mask=mask,
            heads=heads,
        )
    return _Measured(
        layer,
        positions,
        scores,
        saturation,
        seen,
        [sink_of(graph, n) for n in seen],
        # A row of raw attention over a uniform row is the same row once it is normalised.
        None if options.method == "raw" else mask,
        graph.residual,
        trace,
    )


def _explanations(
    text: _Encoded,
    measured: _Measured,
    predictions: Sequence[Prediction | None],
    targets: Sequence[str | None],
    options: _Options,
    *,
    model: str,
    task: str,
    uniform: dict[Any, NDArray[np.float64]],
) -> list[Explanation]:
    """Return the explanation of each position of a text.

    `uniform` keeps what uniform attention gives, for the next text of the same length.
    """
    scores = measured.scores
    if measured.mask is not None:
        scores = relative_to(_uniform_scores(measured, options, uniform), scores)
    return [
        _explanation(
            text,
            scores[:, i, : measured.seen[i]],
            measured.layer,
            position,
            predictions[i],
            targets[i],
            measured.saturation[i],
            measured.sinks[i],
            measured.mask is not None,
            measured.trace,
            options,
            model,
            task,
        )
        for i, position in enumerate(measured.positions)
    ]


def _uniform_scores(
    measured: _Measured,
    options: _Options,
    known: dict[Any, NDArray[np.float64]],
    num_threads: int | None = None,
) -> NDArray[np.float64]:
    """Return the scores of attention that prefers nothing, over the same mask.

    The residual connection keeps its share, also where that was measured.
    """
    masks = measured.mask
    if masks is None:
        raise ValueError("there is no mask to be uniform over")
    count = measured.scores.shape[-1]
    residual = measured.residual
    key = (
        count,
        residual if isinstance(residual, float) else residual.tobytes(),
        options.method,
        tuple(measured.positions),
        np.packbits(masks).tobytes(),
    )
    # Read once, and not read back: another thread may empty the table in between.
    found = known.get(key)
    if found is None:
        place = np.arange(count)
        apart = place - place[:, None] + count - 1
        rows: dict[bytes, NDArray[np.float64]] = {}
        for mask in masks:
            if mask.tobytes() not in rows:
                allowed = mask[apart].astype(np.float64)
                rows[mask.tobytes()] = allowed / allowed.sum(axis=-1, keepdims=True)
        graph = AttentionGraph([rows[mask.tobytes()] for mask in masks], residual=residual)
        if len(known) >= 64:
            known.clear()
        found = scores_of(graph, options.method, measured.positions, num_threads)
        known[key] = found
    return found


def _explanation(
    text: _Encoded,
    scores: NDArray[np.float64],
    layer: int,
    position: int,
    prediction: Prediction | None,
    target: str | None,
    saturation: float | None,
    sink: int,
    relative: bool,
    trace: Trace | None,
    options: _Options,
    model: str,
    task: str,
) -> Explanation:
    kept = [i for i in range(scores.shape[1]) if not (options.drop_sink and i == sink)]
    notes = notes_on(
        text.tokens,
        scores[layer - 1],
        position,
        layer,
        saturation,
        None if options.drop_sink else sink,
    )
    scores = scores[:, kept]
    if relative and options.drop_sink:
        scores = shares(scores)
    explanation = Explanation(
        tokens=tuple(text.tokens[i] for i in kept),
        scores=scores[layer - 1],
        layer_scores=scores,
        method=options.method,
        layer=layer,
        position=position,
        target=target,
        prediction=prediction,
        text=text.text,
        spans=tuple(text.spans[i] for i in kept),
        special=tuple(text.special[i] for i in kept),
        model=model,
        task=task,
        options={
            "edges": options.edges,
            "heads": options.heads,
            "residual": "measured" if options.edges == "value_norm" else float(options.residual),
            "receptive_field": relative,
            "words": bool(options.words),
            "special_tokens": bool(options.special_tokens),
            "drop_sink": bool(options.drop_sink),
        },
        saturation=saturation,
        notes=tuple(notes),
        trace=trace,
    )
    if not options.special_tokens:
        explanation = explanation.without_special_tokens()
    return explanation.words() if options.words else explanation


def _graph(captured: Captured, row: int, count: int, options: _Options) -> AttentionGraph:
    """Return the graph of one text of a batch, its padding cut away."""
    # With heads kept apart there is an axis more.
    layers: list[Any] = [layer[row, ..., :count, :count] for layer in captured.layers]
    if options.edges == "gradient":
        layers = [gradient_rows(layer.double().numpy()) for layer in layers]
    residual: float | NDArray[np.float64] = options.residual
    if captured.residuals is not None:
        residual = np.stack([shares[row, :count].numpy() for shares in captured.residuals])
    return AttentionGraph(
        layers, heads=options.heads if options.keep_heads else "mean", residual=residual
    )


def _mask(graph: AttentionGraph) -> NDArray[np.bool_]:
    """Return the offsets that any position of a layer attends over, of shape (L, 2 n - 1).

    A weight may be 0 because softmax has run out of digits. An offset at which no position attends
    to anything is masked: a later token, or one outside a sliding window.
    """
    offsets = range(1 - graph.tokens, graph.tokens)
    return np.array(
        [[np.diagonal(layer, offset).any() for offset in offsets] for layer in graph.attention]
    )


def _texts(inputs: Any) -> list[str]:
    """Return the texts of a list of them."""
    if isinstance(inputs, Mapping | bytes) or not hasattr(inputs, "__iter__"):
        raise TextError(
            f"inputs is {type(inputs).__name__}; expected a string or a list of strings"
        )
    texts = list(inputs)
    if not texts:
        raise TextError("inputs is an empty list; expected a text or a list of texts")
    return texts


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Yield the indices of texts that run together: of similar length, the short ones first."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > BATCH_POSITIONS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _task_of(class_name: str) -> str:
    for task, endings in TASKS.items():
        if class_name.endswith(endings or "\0"):
            return task
    return "encoder"


def _register_own(path: Path) -> None:
    """Make the verb-number model known to transformers, if that is what is loaded.

    The one import against the stream: a checkpoint that attnflow trained has to load as any other.
    """
    config = path / "config.json"
    if config.is_file() and b'"attnflow-verb-number"' in config.read_bytes():
        import attnflow.paper.model  # noqa: F401


def _require_hf() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f'explaining a model needs {" and ".join(missing)}; run: pip install "attnflow[hf]"'
        )


def _device(device: Any) -> Any:
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(
            f"device is {device!r}; expected 'auto' or a device such as 'cpu' or 'cuda:0'"
        ) from error


def _dtype(dtype: Any, device: Any) -> Any:
    import torch

    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    found = getattr(torch, str(dtype), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise OptionError(
            f"dtype is {dtype!r}; expected 'auto' or a dtype such as 'float32' or 'bfloat16'"
        )
    return found


def _loading_failed(name: str, path: Path, error: Exception, allow_pickle: bool) -> str:
    """Say in one sentence why a model could not be loaded."""
    reason = " ".join(str(error).split())
    if path.is_dir():
        if not allow_pickle and not list(path.glob("*.safetensors")) and list(path.glob("*.bin")):
            return (
                f"{name} has no safetensors weights, only pickled ones, which can run any code "
                "when they are loaded; pass allow_pickle=True if you trust them"
            )
        if not (path / "config.json").is_file():
            return f"{name} holds no config.json; expected a folder that save_pretrained wrote"
        return f"{name} could not be loaded: {reason}"
    if path.is_absolute() or name.startswith((".", "~")):
        return f"{name} does not exist; expected a folder, a GGUF file, or a name on the hub"
    if "trust_remote_code" in reason:
        return f"{name} comes with code of its own; pass trust_remote_code=True if you have read it"
    return (
        f"{name} is not a local folder, and the Hugging Face hub did not give it either: {reason}"
    )
