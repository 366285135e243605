"""Explainer: a model in hand, from an input to an explanation.

Data goes one way: an adapter reads the input, the model runs with its attention captured, the
attention becomes a graph, a method scores the tokens, and an `Explanation` carries the result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.cancel import check_limits
from attnflow.checks import choice
from attnflow.errors import AttentionError, OptionError
from attnflow.explain import Answer, Explained, explain_graph, explained, reads_of
from attnflow.explanation import Explanation, Prediction
from attnflow.generation import Generation
from attnflow.graph import AttentionGraph
from attnflow.models.adapter import BATCH_POSITIONS, SINK, Asked, Encoded, Question, Ran
from attnflow.models.check import checked
from attnflow.models.contribution import answer_of, by_token, contributions, seen
from attnflow.models.load import adapter_for, load, name_of
from attnflow.models.writing import Progress, Writing, Written
from attnflow.options import ANSWER_METHODS, ATTENTION_METHODS, Options, sign
from attnflow.scoring import Scorer, weights_at
from attnflow.tokens import Tokens
from attnflow.trace import Trace

# Every token of an answer is explained by itself if that takes passes over so many positions.
MOST_EXPLAINED: Final = 2**15
# The traces of a list of texts may take this much memory together, in bytes.
MOST_TRACES: Final = 2**28


class LayerScores(NamedTuple):
    """The scores of one position of an input in every layer, by several methods.

    Attributes:
        tokens: The T tokens that the position can see. A learned sink is not among them.
        position: The position, as an index among the tokens.
        scores: For each pair of a method and whether its scores are divided by those of uniform
            attention, the scores, float64 of shape (L, T).
        relative: Whether they are by default.
        sinks: The tokens that ``drop_sink`` leaves out.
        target: The class or token that gradients are of; None if the model has no head.
        prediction: What the model answered; None if it has no head.
        value: The answer that contributions add up to; None if they were not asked for.
    """

    tokens: Tokens
    position: int
    scores: dict[tuple[str, bool], NDArray[np.float64]]
    relative: bool
    sinks: tuple[int, ...]
    target: str | None
    prediction: Prediction | None
    value: float | None = None


class Explainer:
    """Explains what a Transformer's answer for an input came from.

    Works with encoders, classifiers, causal decoders, encoder-decoders, speech and vision models of
    Hugging Face's transformers. What the model is for is recognised from its class. The model is
    not changed.

    Args:
        model: A model of transformers, in memory.
        tokenizer: Its tokenizer, the image processor of a vision model, the feature extractor of an
            audio classifier, or the processor of Whisper (a feature extractor and a tokenizer) or
            of a model that reads an image with a text.

    Attributes:
        model: The model.
        tokenizer: The tokenizer, image processor or processor.
        task: What the model is for: "classification", "token-classification",
            "question-answering", "masked-lm", "causal-lm", "encoder", "seq2seq-lm",
            "speech-to-text", "audio-classification", "audio-encoder",
            "image-classification", "image-encoder", "image-text-to-text" or
            "image-text-similarity".
        name: The model's name, which every result and page has: that of its folder, of its GGUF
            file, or on the hub; for a model made in memory, that of its class.
        path: What `from_pretrained` loads it by; empty for a model made in memory.
        adapter: What reads inputs for the model and runs it.
        uniform: The scores of uniform attention, kept for the next input of the same size.

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
        self.adapter: Final = adapter_for(model, tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.path = str(getattr(model, "name_or_path", "") or "")
        self.name = name_of(self.path) if self.path else type(model).__name__
        self.uniform: Final[dict[Any, NDArray[np.float64]]] = {}

    @property
    def task(self) -> str:
        """What the model is for."""
        return self.adapter.task

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
            task: What to load it for: "classification", "token-classification",
                "question-answering", "masked-lm", "causal-lm", "encoder", "seq2seq-lm",
                "speech-to-text", "audio-classification", "audio-encoder",
                "image-classification", "image-encoder", "image-text-to-text" or
                "image-text-similarity". "auto" is what the checkpoint was saved as.
            device: A device of torch. "auto" is a GPU if there is one.
            dtype: A dtype of torch, such as "float32". "auto" is float32 on a CPU, and the dtype of
                the checkpoint elsewhere.
            allow_pickle: Load weights that are not safetensors. Such a file can run any code.
            trust_remote_code: Run code that comes with the checkpoint.

        Returns:
            The explainer.

        Raises:
            MissingExtraError: If torch or transformers is not installed.
            OptionError: If `task`, `device` or `dtype` is not valid.
            ModelError: If the model cannot be found or loaded; the message says why.
        """
        explainer = cls(*load(name_or_path, task, device, dtype, allow_pickle, trust_remote_code))
        explainer.path, explainer.name = str(name_or_path), name_of(name_or_path)
        return explainer

    @sign
    def explain(self, inputs: Any, **options: Any) -> Any:
        """Explain the model's answer for an input, or for each of many.

        Args:
            inputs: A text; or a tuple of two texts, which the model reads as a pair, such as a
                premise and a hypothesis, and which is one input. For an encoder-decoder a source
                text, or a tuple of a source text and the target so far. For a vision model an
                image: a Pillow image, a uint8 array of shape (height, width, 3), or a path. For a
                model that reads an image with a text, a tuple of an image and a text, or a chat: a
                list of messages with "role" and "content", of which one part may be an image
                ({"type": "image", "image": ...}). For CLIP and SigLIP a tuple of an image and a
                text, or of an image and a list of texts, named "text 0", "text 1" and so on. For an
                audio classifier a sound. For Whisper a sound, or a tuple of a sound and the text so
                far; a sound is a float array of one channel at the model's sampling rate (16,000 a
                second), a mapping with "array" and "sampling_rate", or the path of a .wav file. A
                list has many of these. A chat, for a causal language model, is one input too: a
                list of messages, each a dictionary with "role" and "content".
            **options: As listed in `attnflow.options.OPTIONS`.

        Returns:
            An `Explanation`, or a list of them, one for each input, in their order. For an image,
            `Explanation.grid` and `Explanation.map` place the scores.

        Raises:
            OptionError: If an option is not valid for this model; the message says what is.
            TextError: If an input is empty, malformed, or longer than the model takes.
            ModelError: If the model's attention cannot be captured.
        """
        items, many = self.adapter.items(inputs)
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
        """Yield the explanations of many inputs as they are done.

        Inputs of similar length go through the model together, the short ones first. Every input is
        checked before the first one runs.

        Args:
            inputs: The inputs.
            **options: The options of `explain`.

        Yields:
            The index of an input, and its explanation.

        Raises:
            AttnflowError: Whatever `explain` raises.
        """
        chosen = self.chosen(Options(**options))
        adapter = self.adapter
        for batch in adapter.batches(list(inputs), chosen):
            numbers, encoded = [index for index, _ in batch], [item for _, item in batch]
            if chosen.method in ANSWER_METHODS:
                found = self._contributions(encoded, chosen, adapter.located(encoded, chosen))
                yield from zip(numbers, (one.explanation for one in found), strict=True)
                continue
            ran = self.run(encoded, chosen)
            for row, (index, item) in enumerate(batch):
                yield index, self._explained(ran, row, item, None, chosen)[0].explanation

    def run(self, encoded: Sequence[Encoded], options: Options, *, keep: bool = False) -> Ran:
        """Run the model on inputs, with its attention captured.

        Args:
            encoded: The inputs, which run together.
            options: The options.
            keep: Whether the attention itself is needed, as in `Adapter.run`.
        """
        located = self.adapter.located(encoded, options)
        places, targets = [own for own, _ in located], [asked.targets for _, asked in located]
        return self.adapter.run(encoded, places, options, targets, keep=keep)

    def chosen(self, options: Options) -> Options:
        """Return options checked for this model, with the method that "auto" is.

        Raises:
            OptionError: If an option is not valid for this model.
        """
        self.adapter.check(options)
        if options.method != "auto":
            return options
        return options.replace(method="contribution" if self.adapter.answers else "rollout")

    def generate(
        self,
        prompt: Any,
        *,
        max_new_tokens: int = 40,
        do_sample: bool = False,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int | None = None,
        num_beams: int = 1,
        each: bool | str = "auto",
        progress: Progress | None = None,
        **options: Any,
    ) -> Generation:
        """Let a language model write on, and explain every token it adds, and all of them at once.

        By default the most likely token is written each time. What is explained is what was
        written, also if it was drawn at random. One backward pass explains the whole answer. Then
        passes over the whole text explain its tokens, several at a time; for attention methods it
        is one pass, but with gradient edges, each token takes a pass of its own. An encoder-decoder
        writes a target for the source.

        Args:
            prompt: The text to continue; a chat, which is a list of messages with "role" and
                "content" for the model's chat template; for an encoder-decoder the source, or a
                tuple of the source and the target so far; all as in `explain`.
            max_new_tokens: How many tokens to add at most; fewer if the model ends the text.
            do_sample: Draw each token at random by its probability.
            temperature: What logits are divided by before a token is drawn; less than 1 favours
                the likely ones. As with `top_p` and `top_k`, None is the model's own setting.
            top_p: Draw only from the most likely tokens that have this probability together.
            top_k: Draw only from so many of the most likely tokens.
            seed: Makes what is drawn repeatable. Without one it comes from torch's generator.
            num_beams: 1; beam search is not supported.
            each: Whether every new token is explained, too. "auto" leaves that out where it would
                take passes over more than 32,768 positions together, as 40 tokens after a prompt of
                1,000; for attention methods, which need one pass, it does not.
            progress: Called with "writing" or "explaining", how many tokens are done, and how many
                there are.
            **options: Options of `explain` other than `position` and `target`.

        Returns:
            A `Generation`: what was written, an explanation for each token added, and one of the
            whole answer. Only the first explanations have a trace, if all of them take too much
            memory.

        Raises:
            OptionError: If the model does not write text or an option is not valid.
            TextError: If the prompt is empty, or the text gets longer than the model takes.

        Example:
            >>> from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
            >>> from tokenizers import Tokenizer, models, pre_tokenizers
            >>> words = Tokenizer(models.WordLevel({"keys": 0, "open": 1, "doors": 2}, "keys"))
            >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
            >>> config = GPT2Config(vocab_size=3, n_embd=8, n_layer=2, n_head=2, n_positions=16,
            ...                     bos_token_id=None, eos_token_id=None)
            >>> explainer = Explainer(
            ...     GPT2LMHeadModel(config), PreTrainedTokenizerFast(tokenizer_object=words)
            ... )
            >>> generation = explainer.generate("keys open", max_new_tokens=3)
            >>> len(generation), generation.matrix.shape
            (3, (3, 4))
            >>> abs(generation.whole.value - sum(one.value for one in generation)) < 1e-4
            True
        """
        writing = Writing(max_new_tokens, do_sample, temperature, top_p, top_k, seed, num_beams)
        choice(each, "each", (True, False, "auto"))
        for name in ("position", "target"):
            if name in options:
                raise OptionError(f"{name} cannot be given: generate chooses it for each token")
        chosen = self.chosen(Options(**options))
        written = self.adapter.generate(prompt, writing, chosen.truncate, progress)
        traces, count = 0, len(written.tokens)
        if chosen.method != "contribution":
            # The whole answer is made of them.
            every = True
        elif each == "auto":
            every = count * len(written.encoded.tokens) <= MOST_EXPLAINED
        else:
            every = bool(each)
        steps: list[Explained] = []
        for step in self._steps(written, chosen) if every else ():
            check_limits()
            explanation = step.explanation
            traces += 0 if explanation.trace is None else explanation.trace.nbytes
            if traces > MOST_TRACES:
                step = step._replace(explanation=explanation.without_trace())
            steps.append(step)
            if progress is not None:
                progress("explaining", len(steps), count)
        if progress is not None and not every:
            progress("explaining", 0, 1)
        whole = self._whole(written, chosen, steps) if count else None
        if whole is not None and not every:
            note = f"The {count} tokens written were not explained one by one."
            if each == "auto":
                note = f"{note[:-1]}, which takes long for a text like this; each=True does."
            notes = (*whole.explanation.notes, note)
            whole = whole._replace(explanation=replace(whole.explanation, notes=notes))
        groups = [] if whole is None else whole.groups
        return Generation(
            prompt=written.prompt,
            text=written.text,
            explanations=tuple(step.explanation for step in steps) if each is not False else (),
            whole=None if whole is None else whole.explanation,
            written=tuple(min(group) >= written.first for group in groups),
            ended=written.ended,
            options=writing.recorded(),
        )

    def _whole(self, written: Written, options: Options, steps: Sequence[Explained]) -> Explained:
        """Explain all that was written: the sum over its tokens, or the mean of attention."""
        text = written.encoded
        if options.method == "contribution":
            contrast = self.adapter.target(options.contrast, "contrast")
            asked = Asked(tuple(written.tokens), contrast)
            [found] = self._contributions([text], options, [(written.positions, asked)])
            return found
        last = steps[-1]
        scores = np.zeros_like(last.scored.scores)
        read = np.zeros(len(text.tokens))
        for step in steps:
            read[step.explanation.position] = 1 / len(steps)
            scores[:, : step.scored.scores.shape[1]] += step.scored.scores
        answer = Answer(target=written.text or None, contrast=last.explanation.contrast)
        trace = None
        if options.method in ANSWER_METHODS:
            value, bias = (
                sum(getattr(step.explanation, name) for step in steps) for name in ("value", "bias")
            )
            answer = answer._replace(value=value, bias=bias)
        else:
            scores /= len(steps)
            trace = last.explanation.trace
        return explained(
            text.tokens,
            last.scored._replace(scores=scores, saturation=None),
            last.explanation.layer,
            options,
            answer,
            trace,
            {
                "model": self.name,
                "task": self.task,
                "reads": reads_of(read),
                **self.adapter.details(text, None),
            },
            until=self.adapter.asks_about_targets,
        )

    def _steps(self, written: Written, options: Options) -> Iterator[Explained]:
        """Yield the explanation of each token that a model wrote."""
        text, positions, tokens = written.encoded, written.positions, written.tokens
        if options.method in ANSWER_METHODS:
            contrast = self.adapter.target(options.contrast, "contrast")
            most = max(1, BATCH_POSITIONS // len(text.tokens))
            for start in range(0, len(positions), most):
                part = slice(start, start + most)
                located = [
                    ([place], Asked((target,), contrast))
                    for place, target in zip(positions[part], tokens[part], strict=True)
                ]
                yield from self._contributions([text] * len(located), options, located)
            return
        # Each token is a target of its own, so each needs the gradient of a pass of its own.
        size = 1 if options.edges == "gradient" else len(positions)
        for start in range(0, len(positions), size or 1):
            where, targets = positions[start : start + size], tokens[start : start + size]
            ran = self.adapter.run([text], [where], options, [targets])
            yield from self._explained(ran, 0, text, where, options)

    def layer_scores(
        self,
        item: Any,
        questions: Sequence[Question] | None = None,
        *,
        methods: Sequence[str] = ATTENTION_METHODS,
        receptive_fields: Sequence[str | bool] = ("auto",),
        num_threads: int | None = None,
        **options: Any,
    ) -> list[LayerScores]:
        """Score the tokens of an input by several methods, after a single forward pass.

        The scores are those of `explain`, in every layer, special tokens included. With gradients
        as edges every question takes a pass of its own.

        Args:
            item: The input.
            questions: The positions and targets asked about. None is those of the options.
            methods: Of "raw", "rollout", "flow" and "contribution". The scores of the last are the
                same in every layer, and there for all of `receptive_fields`.
            receptive_fields: Which of "auto", True and False to score with.
            num_threads: How many threads compute flows. None is one for each CPU.
            **options: The other options of `explain`.

        Returns:
            The scores for each question.

        Raises:
            AttnflowError: Whatever `explain` raises.
        """
        chosen = Options(**options)
        questions = questions or [Question(chosen.position, chosen.target, chosen.contrast)]
        self.adapter.check(chosen)
        encoded = self.adapter.read(item, chosen.truncate)
        wanted = [method for method in methods if method in ATTENTION_METHODS]
        results = []
        groups = [[one] for one in questions] if chosen.edges == "gradient" else [list(questions)]
        answering = [method for method in methods if method in ANSWER_METHODS]
        for group in groups if wanted or not answering else ():
            results += self._attention_scores(
                encoded, group, wanted, receptive_fields, num_threads, chosen
            )
        for method in answering:
            mine = chosen.replace(method=method)
            found = [self._answer_scores(encoded, one, mine) for one in questions]
            results = [
                _joined(scored, one, method)
                for scored, one in zip(found, results or found, strict=True)
            ]
        return results

    def _attention_scores(
        self,
        encoded: Encoded,
        group: Sequence[Question],
        methods: Sequence[str],
        receptive_fields: Sequence[str | bool],
        num_threads: int | None,
        chosen: Options,
    ) -> list[LayerScores]:
        adapter = self.adapter
        places = [adapter.position(encoded, one.position, None) for one in group]
        asked = _known([encoded] * len(places), places)
        targets = [adapter.target(one.target) if adapter.answers else None for one in group]
        if chosen.edges == "gradient":
            chosen = chosen.replace(contrast=group[0].contrast)
        # Flow needs the graph; the others read it off passes where it is too large.
        chosen = chosen.replace(method="flow" if "flow" in methods else "rollout")
        ran = adapter.run([encoded], [asked], chosen, [targets])
        scorer = self.scorer(ran, 0, encoded, chosen, num_threads)
        causal = scorer.graph.causal
        weights = [self.weights(ran, 0, encoded, one.position, causal) for one in group]
        # A learned sink is no token of the input, and has no score here.
        sink = int(scorer.graph.sink)
        default = scorer.has_receptive_field("auto")
        wanted = {default if choice == "auto" else bool(choice) for choice in receptive_fields}
        nodes = sorted({int(node) for each in weights for node in np.flatnonzero(each)})
        # The weighted mean of the positions that each question is about, (questions, positions).
        mean = np.stack(weights)[:, nodes]
        scores = {
            (method, relative): mean @ scorer.scores(method, nodes, relative=relative)
            for method in methods
            for relative in wanted
        }
        results = []
        for i, (each, answer) in enumerate(zip(weights, adapter.answer(ran, 0), strict=True)):
            node = int(each.argmax())
            seen = scorer.seen(int(np.flatnonzero(each)[-1]))
            results.append(
                LayerScores(
                    encoded.tokens.first(seen - sink),
                    scorer.token(node) - sink,
                    {key: values[:, i, sink:seen] for key, values in scores.items()},
                    default,
                    tuple(index - sink for index in scorer.sinks(node) if index >= sink),
                    answer.target,
                    answer.prediction,
                )
            )
        return results

    def _answer_scores(self, encoded: Encoded, question: Question, chosen: Options) -> LayerScores:
        """Score an input by a method that explains its answer, in one row."""
        adapter = self.adapter
        wanted = chosen.replace(
            position=question.position, target=question.target, contrast=question.contrast
        )
        [(places, asked)] = adapter.located([encoded], wanted)
        [found] = adapter.contribute([encoded], [places], chosen, [asked])
        place = places[0]
        count = seen(adapter, encoded, max(places), found)
        position = encoded.source + place if adapter.asks_about_targets else place
        scores = by_token(found.scores[None], encoded)[:, :count]
        answer = answer_of(adapter, found, encoded)
        return LayerScores(
            encoded.tokens.first(count),
            position,
            {(chosen.method, False): scores},
            False,
            (),
            answer.target,
            answer.prediction,
            found.value,
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
        # What else the configuration says is how the weights were stored, or by which release.
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

    def scorer(
        self,
        ran: Ran,
        row: int,
        encoded: Encoded,
        options: Options,
        num_threads: int | None = None,
    ) -> Scorer:
        """Return what scores the graph of one input of a batch.

        Args:
            ran: What the forward pass of the batch gave.
            row: Which input of the batch it is.
            encoded: The input.
            options: The options.
            num_threads: How many threads compute flows. None is one for each CPU.
        """
        graph = self.adapter.attention(ran.captured, row, encoded, options)
        return Scorer(
            graph,
            mask=self.adapter.mask(graph) if isinstance(graph, AttentionGraph) else None,
            sizes=encoded.sizes,
            uniform=self.uniform,
            num_threads=num_threads,
        )

    def weights(
        self, ran: Ran, row: int, encoded: Encoded, position: int | str, causal: bool
    ) -> NDArray[np.float64]:
        """Return how much each position of an input's graph counts in what is explained.

        Args:
            ran: What the forward pass of the batch gave.
            row: Which input of the batch it is.
            encoded: The input.
            position: As in `explain`.
            causal: Whether its graph is causal.
        """
        found = self.adapter.weights(encoded, position, ran.reads(row), causal)
        # A learned sink comes before the tokens.
        sink = int(self.adapter.shown(ran.captured, encoded) is not encoded)
        return np.pad(found, (sink, 0))

    def contributions(self, encoded: Sequence[Encoded], options: Options) -> list[Explanation]:
        """Explain what the answers for some inputs came from, without traces.

        Args:
            encoded: The inputs, which run together.
            options: The options.
        """
        located = self.adapter.located(encoded, options)
        found = self._contributions(encoded, options, located, steps=False)
        return [one.explanation for one in found]

    def _contributions(
        self,
        encoded: Sequence[Encoded],
        options: Options,
        located: Sequence[tuple[Sequence[int], Asked]],
        steps: bool | None = None,
    ) -> list[Explained]:
        """Explain what the answers for a batch came from; with traces, unless it is too large."""
        adapter = self.adapter
        places, asked = [own for own, _ in located], [one for _, one in located]
        if any(one.before for one in asked):
            encoded = [
                adapter.extended(item, one.before) for item, one in zip(encoded, asked, strict=True)
            ]
            # The words are compared after what they have in common.
            places = [
                [place + len(one.before) for place in own]
                for own, one in zip(places, asked, strict=True)
            ]
        if steps is None:
            # Stretches of sound, which have several positions each, have no trace.
            whole = all(item.sizes is None for item in encoded)
            size = max(len(item.tokens) for item in encoded)
            steps = whole and Trace.holds(adapter.depth or 1, size)
        found = adapter.contribute(encoded, places, options, asked, steps=steps)
        captured, note = None, None
        if steps and not found[0].found.steps:
            captured, note = self._attention(encoded, places, options)
        results = []
        for row, (item, own, one) in enumerate(zip(encoded, places, found, strict=True)):
            mine = contributions(
                adapter,
                item,
                own,
                one,
                options,
                self.name,
                captured and (captured, row),
                [] if note is None else [note],
            )
            results.append(self._checked(mine, item, own, one.asked, options))
        return results

    def _attention(
        self, encoded: Sequence[Encoded], places: Sequence[Sequence[int]], options: Options
    ) -> tuple[Any, str | None]:
        """Return the attention to be shown beside contributions, or why there is none."""
        plain = options.replace(edges="attention")
        try:
            return self.adapter.run(encoded, places, plain, keep=True).captured, None
        except AttentionError as error:
            # What follows says what to do for a method that needs attention.
            return None, f"No attention is shown: {str(error).partition(';')[0]}."

    def _explained(
        self,
        ran: Ran,
        row: int,
        encoded: Encoded,
        places: list[int] | None,
        options: Options,
    ) -> list[Explained]:
        """Explain positions of one input of a batch; None is those of the options.

        The graph, which is large, is gone then.
        """
        scorer = self.scorer(ran, row, encoded, options)
        count, heads = scorer.graph.tokens, None
        targets: list[int | None] = [*ran.targets[row]]
        shown = self.adapter.shown(ran.captured, encoded)
        if places is None:
            # One answer, which may be read at several positions.
            weights = [self.weights(ran, row, encoded, options.position, scorer.graph.causal)]
            read = [(ran.positions[row], Asked(tuple(targets) or (None,), ran.contrast))]
        else:
            weights = [weights_at(shown.node(place), count) for place in places]
            read = [
                ([place], Asked((target,), ran.contrast))
                for place, target in zip(places, targets or [None] * len(places), strict=True)
            ]
        if options.keep_heads:
            heads = [layer[row, :, :count, :count].numpy() for layer in ran.captured.layers]
        details = self.adapter.details(encoded, ran.captured.outputs)
        if scorer.graph.sink:
            details["notes"] = (*details.get("notes", ()), SINK)
        found = explain_graph(
            scorer,
            shown.tokens,
            weights,
            options,
            self.adapter.answer(ran, row),
            details={"model": self.name, "task": self.task, **details},
            heads=heads,
        )
        if scorer.graph.sink:
            # From here on tokens are those of the input.
            found = [one._replace(groups=_shifted(one.groups, -1)) for one in found]
        return [
            self._checked(one, encoded, own, asked, options)
            for one, (own, asked) in zip(found, read, strict=True)
        ]

    def _checked(
        self,
        found: Explained,
        encoded: Encoded,
        places: Sequence[int],
        asked: Asked,
        options: Options,
    ) -> Explained:
        """Return an explanation, with its check if that was asked for."""
        if not options.check:
            return found
        return found._replace(explanation=checked(self, found, encoded, places, asked, options))


def _shifted(groups: Sequence[Sequence[int]], by: int) -> list[list[int]]:
    """Return groups of tokens whose numbering begins elsewhere; what is not a token is gone."""
    return [[index + by for index in group if index + by >= 0] for group in groups]


def _known(encoded: Sequence[Encoded], places: Sequence[int | None]) -> list[int]:
    """Return positions; one that depends on the graph is the last, until the graph is there."""
    return [
        len(item.tokens) - 1 if place is None else place
        for item, place in zip(encoded, places, strict=True)
    ]


def _joined(mine: LayerScores, other: LayerScores, method: str) -> LayerScores:
    """Add the scores of an answer, which have no layers, to those of other methods."""
    [(_, row)] = mine.scores.items()
    depth = max((len(values) for values in other.scores.values()), default=1)
    count = min(len(mine.tokens), len(other.tokens))
    rows = np.repeat(row[:, :count], depth, axis=0)
    scores = {key: values[:, :count] for key, values in other.scores.items() if other is not mine}
    scores |= {(method, relative): rows for relative in (False, True)}
    return other._replace(tokens=other.tokens.first(count), scores=scores, value=mine.value)
