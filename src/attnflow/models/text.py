"""Models that read one text, or two as a pair: encoders, classifiers and language models."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.checks import choice, resolve_index
from attnflow.errors import AttentionError, AttnflowError, ModelError, OptionError, TextError
from attnflow.fields import Segment
from attnflow.graph import AttentionGraph
from attnflow.models.adapter import (
    Adapter,
    Encoded,
    Loader,
    Question,
    Reading,
    about_item,
    grouped,
)
from attnflow.models.chat import is_chat, rendered
from attnflow.models.writing import Progress, Writing, Written, end_ids, write
from attnflow.options import POSITIONS, Options
from attnflow.scoring import Batch, gradient_rows
from attnflow.tokens import PAIR, Span, Tokens, in_text, joined

# The tasks, the endings of the model classes made for them, and the classes that load them.
TASKS: Final = {
    "classification": (("ForSequenceClassification",), "AutoModelForSequenceClassification"),
    "masked-lm": (("ForMaskedLM", "ForPreTraining"), "AutoModelForMaskedLM"),
    "causal-lm": (("ForCausalLM", "LMHeadModel", "ModelWithLMHead"), "AutoModelForCausalLM"),
    "encoder": ((), "AutoModel"),
}


class TextAdapter(Adapter):
    """Reads one text, or two as a pair, with a tokenizer."""

    tasks: ClassVar = tuple(TASKS)
    keeps_heads: ClassVar = True
    in_data_sets: ClassVar = True
    streams: ClassVar = True

    def __init__(self, model: Any, reader: Any) -> None:
        super().__init__(model, reader)
        self.task = _task_of(type(model).__name__)
        takes = inspect.signature(model.forward).parameters
        # What takes anything may pass it on to a model that reads text, unless it needs something.
        passed = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        passes_on = any(item.kind is item.VAR_KEYWORD for item in takes.values()) and all(
            item.kind in passed or item.default is not item.empty for item in takes.values()
        )
        if not {"input_ids", "inputs_embeds"} & set(takes) and not passes_on:
            raise ModelError(
                f"{self.name} reads {next(iter(takes), 'nothing')}, and not text; expected a model "
                f"that reads one of: texts, images, sounds"
            )
        if not hasattr(reader, "convert_ids_to_tokens"):
            raise ModelError(
                f"tokenizer is {type(reader).__name__}, which does not read text, and {self.name} "
                "is explained by the text it reads; give its tokenizer. For images, load the part "
                "that reads images alone, such as ...VisionModel or ...ForImageClassification"
            )

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whatever reads nothing else reads text."""
        return True

    @classmethod
    def loader(cls, config: Any, task: str, gguf: bool) -> Loader | None:
        """Return how to load a checkpoint."""
        if task == "auto":
            # A GGUF file names no class; such files are made from causal models.
            unnamed = "ForCausalLM" if gguf else ""
            task = _task_of((config.architectures or [unnamed])[0])
        if task not in TASKS:
            raise OptionError(
                f"task is {task!r}, but {config.model_type} is a model that reads text; expected "
                f"auto, {', '.join(TASKS)}"
            )
        return TASKS[task][1], "AutoTokenizer"

    @property
    def answers(self) -> bool:
        """Whether the model has a head."""
        return self.task != "encoder"

    # ---- Reading ---------------------------------------------------------------------------------

    @property
    def reads_pairs(self) -> bool:
        """Whether two texts can be one input.

        A causal language model reads one. So does a model whose tokenizer has no form for two: it
        would leave out the special tokens that it adds to one, such as [CLS].
        """
        added = getattr(self.tokenizer, "num_special_tokens_to_add", None)
        has_form = added is None or added(pair=True) >= added(pair=False)
        return not self.writes and has_form

    @property
    def reads_chats(self) -> bool:
        """Whether it is a causal language model with a chat template."""
        return self.writes and bool(getattr(self.tokenizer, "chat_template", None))

    def items(self, inputs: Any) -> tuple[list[Any], bool]:
        """Return the texts, pairs of texts or chats that were given."""
        if isinstance(inputs, str | tuple) or is_chat(inputs):
            return [inputs], False
        if isinstance(inputs, Mapping | bytes) or not hasattr(inputs, "__iter__"):
            raise TextError(
                f"inputs is {type(inputs).__name__}; expected a string, a tuple of two strings, a "
                "chat (a list of messages with 'role' and 'content'), or a list of these"
            )
        texts = list(inputs)
        if not texts:
            raise TextError("inputs is an empty list; expected a text or a list of texts")
        return texts, True

    def read(self, item: Any, truncate: bool = False) -> Encoded:
        """Read one text, or two as a pair."""
        [found] = self.read_many([item], truncate)
        if isinstance(found, AttnflowError):
            raise found
        return found

    def read_many(
        self, items: Sequence[Any], truncate: bool = False
    ) -> list[Encoded | AttnflowError]:
        """Read texts and pairs, with one call of the tokenizer for each of the two kinds."""
        results: dict[int, Encoded | AttnflowError] = {}
        for index, item in enumerate(items):
            if is_chat(item):
                results[index] = self._read_chat(item)
            elif (fault := self._fault(item)) is not None:
                results[index] = TextError(fault)
        for kind in (str, tuple):
            left = [
                index
                for index, item in enumerate(items)
                if index not in results and isinstance(item, kind)
            ]
            found = self._read_alike([items[index] for index in left], truncate)
            results.update(zip(left, found, strict=True))
        return [results[index] for index in range(len(items))]

    def _fault(self, item: Any) -> str | None:
        """Say why an item is not a text or a pair of texts."""
        if isinstance(item, str):
            return None if item.strip() else "the text is empty; there is nothing to explain"
        parts = item if isinstance(item, tuple) else (item,)
        if "pixel_values" in self._takes and not all(isinstance(part, str) for part in parts):
            return (
                f"{self.name} does not read an image as tokens among those of a text, so there is "
                "no graph over both; images with texts are explained for models such as LLaVA, "
                "PaliGemma and Qwen2.5-VL, and for CLIP and SigLIP"
            )
        if not isinstance(item, tuple):
            return f"the text is {type(item).__name__}; expected a string, or a tuple of two"
        if len(item) != 2:
            return (
                f"a tuple is one input of two texts, and this one has {len(item)} items; expected "
                "(first, second), or a list for many inputs"
            )
        if not self.reads_pairs:
            why = "is a causal language model, which reads one"
            if not self.writes:
                why = "has a tokenizer for one: it adds special tokens to one text, not to two"
            return (
                f"the input is a tuple of two texts, but {self.name} {why}; join them to one text, "
                "or pass a list to explain each"
            )
        for name, text in zip(PAIR, item, strict=True):
            if not isinstance(text, str):
                return f"the {name} text of the pair is {type(text).__name__}; expected a string"
            if not text.strip():
                return f"the {name} text of the pair is empty; expected two texts"
        return None

    def _read_alike(
        self, items: Sequence[Any], truncate: bool
    ) -> Iterator[Encoded | AttnflowError]:
        """Read texts, or pairs."""
        if not items:
            return
        most = self.max_tokens
        whole = self._tokenized(items)
        long = [row for row, one in enumerate(whole) if most and len(one["input_ids"]) > most]
        cut: dict[int, dict[str, Any]] = {}
        if long and truncate:
            # Of a pair, the longer text is cut first.
            short = self._tokenized([items[row] for row in long], truncation=True, max_length=most)
            cut = dict(zip(long, short, strict=True))
        for row, (item, encoding) in enumerate(zip(items, whole, strict=True)):
            if row in long and not truncate:
                yield TextError(_too_long(item, encoding, most))
            else:
                yield self._encoded(item, cut.get(row, encoding), encoding)

    def _tokenized(self, items: Sequence[Any], **options: Any) -> list[dict[str, Any]]:
        """Return what the tokenizer makes of texts, or of pairs."""
        pairs = isinstance(items[0], tuple)
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        encodings = self.tokenizer(
            *(map(list, zip(*items, strict=True)) if pairs else [list(items)]),
            return_offsets_mapping=fast,
            return_special_tokens_mask=True,
            return_attention_mask=True,
            verbose=False,
            **options,
        )
        found = []
        for row in range(len(items)):
            one = {name: values[row] for name, values in encodings.items()}
            # Which text each token is of; a slow tokenizer does not say.
            one["texts"] = encodings.sequence_ids(row) if fast and pairs else None
            found.append(one)
        return found

    def _read_chat(self, messages: Sequence[Mapping[str, Any]]) -> Encoded | TextError:
        """Read messages as the chat template writes them, whose own tokens are special."""
        if self.task != "causal-lm":
            return TextError(
                f"the input is a chat, which is for causal language models; {self.name} is for "
                f"{self.task}"
            )
        try:
            chat = rendered(messages, self.tokenizer)
        except TextError as error:
            return error
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        # The template has written the special tokens that a text begins with.
        encoding = self.tokenizer(
            chat.text, add_special_tokens=False, return_offsets_mapping=fast, verbose=False
        )
        ids, most = list(encoding["input_ids"]), self.max_tokens
        if most is not None and len(ids) > most:
            return TextError(
                f"the chat has {len(ids)} tokens and the model takes {most}; leave out messages or "
                "shorten them. A chat is not truncated, because its end is the question"
            )
        ends = set(getattr(self.tokenizer, "all_special_ids", []))
        spans: list[Span | None] = [None] * len(ids)
        if fast:
            spans = [(int(start), int(end)) for start, end in encoding["offset_mapping"]]
        special = [
            token in ends or (span is not None and chat.is_markup(*span))
            for token, span in zip(ids, spans, strict=True)
        ]
        tokens = self._tokens(chat.text, ids, spans, special)
        inputs = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        return Encoded(replace(tokens, segments=chat.segments), inputs)

    def _encoded(
        self, item: Any, encoding: dict[str, Any], whole: dict[str, Any]
    ) -> Encoded | TextError:
        """Return a text or a pair as the model reads it.

        `encoding` is what is left of `whole` after it was cut; if it was not, they are the same.
        """
        text, segments = joined(item) if isinstance(item, tuple) else (item, ())
        special = [bool(flag) for flag in encoding["special_tokens_mask"]]
        ids, texts = encoding["input_ids"], encoding["texts"]
        if not ids or all(special):
            return TextError(f"the tokenizer finds no token in the text {text!r}")
        for number, name in enumerate(PAIR if texts else ()):
            if number not in texts:
                return TextError(
                    f"the tokenizer finds no token in the {name} text of the pair, {item[number]!r}"
                )
        types = encoding.get("token_type_ids")
        takes = "token_type_ids" in self._takes
        known = getattr(self.model.config, "type_vocab_size", None) if takes else None
        if types and known and max(types) >= known:
            return TextError(
                f"the tokenizer gives the two texts token types up to {max(types)}, and "
                f"{self.name} knows {known}: it was not made for pairs; join them to one text"
            )
        # A mask written into the text is a special token, but a place in the text all the same.
        mask = getattr(self.tokenizer, "mask_token_id", None)
        spans: list[Span | None] = []
        for i, (start, end) in enumerate(encoding.get("offset_mapping") or [(0, 0)] * len(ids)):
            if "offset_mapping" not in encoding or (special[i] and ids[i] != mask):
                spans.append(None)
            else:
                shift = segments[texts[i]].start if texts and texts[i] is not None else 0
                spans.append((int(start) + shift, int(end) + shift))
        inputs = {name: list(encoding[name]) for name in encoding if name in self._takes}
        tokens, notes = self._tokens(text, ids, spans, special, segments), _notes(encoding, whole)
        if segments and types is None and (known or 0) > 1:
            notes += (
                f"The tokenizer gives no token types, and {self.name} knows {known}: it read both "
                "texts as of the first.",
            )
        return Encoded(tokens, inputs, extra=notes)

    def _tokens(
        self,
        text: str,
        ids: Sequence[int],
        spans: Sequence[Span | None],
        special: Sequence[bool],
        segments: Sequence[Segment] = (),
    ) -> Tokens:
        """Name each token by its part of the text, or by its own name where it has none."""
        own = [str(name) for name in self.tokenizer.convert_ids_to_tokens(list(ids))]
        names = in_text(text, own, spans)
        return Tokens(text, names, tuple(spans), tuple(special), tuple(segments))

    def batches(
        self, items: Sequence[Any], options: Options
    ) -> Iterator[list[tuple[int, Encoded]]]:
        """Yield texts of similar length together."""
        encoded: list[Encoded] = []
        for index, text in enumerate(self.read_many(items, options.truncate)):
            with about_item(index, len(items)):
                if isinstance(text, AttnflowError):
                    raise text
                self.position(text, options.position, None)
                encoded.append(text)
        for batch in grouped([(len(text.tokens),) for text in encoded]):
            yield [(index, encoded[index]) for index in batch]

    def check_position(self, position: int | str) -> None:
        """Refuse a position that has no meaning for texts."""
        if isinstance(position, str):
            choice(position, "position", POSITIONS, otherwise="an index")

    def position(self, encoded: Encoded, position: int | str, causal: bool | None) -> int | None:
        """Return the position to explain."""
        self.check_position(position)
        ids = encoded.inputs["input_ids"]
        automatic = position == "auto"
        if automatic:
            position = self._auto
        if position == "mean":
            return None
        marked = getattr(self.tokenizer, "cls_token_id", None) in ids
        if position == "cls" and automatic and not marked:
            return None if causal is None else len(ids) - 1 if causal else 0
        if position == "last":
            return len(ids) - 1
        if not isinstance(position, str):
            return resolve_index(position, len(ids), "position", "tokens")
        wanted = getattr(self.tokenizer, f"{position}_token_id", None)
        if wanted is None:
            raise OptionError(
                f"position is {position!r}, but the tokenizer has no {position} token; "
                f"give an index from 0 to {len(ids) - 1}"
            )
        places = self.places(encoded, position)
        name = getattr(self.tokenizer, f"{position}_token", None)
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

    @cached_property
    def _auto(self) -> str:
        """What the position "auto" is, unless the model's head chooses."""
        if self.task == "encoder":
            return pooling_of(getattr(self.model, "name_or_path", "")) or "cls"
        return {"masked-lm": "mask", "causal-lm": "last"}.get(self.task, "cls")

    def weights(
        self,
        encoded: Encoded,
        position: int | str,
        reads: NDArray[np.float64] | None,
        causal: bool,
    ) -> NDArray[np.float64]:
        """Return how much each token counts: the mean of all if that is how a model pools."""
        if position == "auto" and self._auto == "mean":
            position = "mean"
        return super().weights(encoded, position, reads, causal)

    def places(self, encoded: Encoded, name: str) -> list[int]:
        """Return where a text has the "cls" or "mask" token."""
        wanted = getattr(self.tokenizer, f"{name}_token_id", None)
        return [i for i, token in enumerate(encoded.inputs["input_ids"]) if token == wanted]

    # ---- Running ---------------------------------------------------------------------------------

    def stacked(
        self, batch: Sequence[Encoded], positions: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Any], Any]:
        """Return the batch as padded tensors, and where each position's logits will be."""
        import torch

        device = self.model.device
        inputs = {
            name: padded(
                [text.inputs[name] for text in batch],
                self._pad_id() if name == "input_ids" else 0,
                device,
            )
            for name in batch[0].inputs
        }
        lengths = {len(text.tokens) for text in batch}
        if len(lengths) == 1:
            inputs.pop("attention_mask", None)
        if not self._writes_tokens or "logits_to_keep" not in self._takes:
            return inputs, None
        # Logits of every position over a whole vocabulary are the largest thing in memory.
        kept = sorted({place for row in positions for place in row})
        inputs["logits_to_keep"] = torch.tensor(kept, device=device)
        return inputs, {place: index for index, place in enumerate(kept)}

    @cached_property
    def _takes(self) -> set[str]:
        """The names of what the model takes."""
        return {*inspect.signature(self.model.forward).parameters, "input_ids"}

    @property
    def _writes_tokens(self) -> bool:
        return self.task in ("masked-lm", "causal-lm")

    @property
    def writes(self) -> bool:
        """Whether it is a causal language model."""
        return self.task == "causal-lm"

    def extended(self, encoded: Encoded, tokens: Sequence[int]) -> Encoded:
        """Return a text with tokens written after it."""
        return self._continued(encoded, [*encoded.inputs["input_ids"], *tokens])

    def _pad_id(self) -> int:
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return int(pad) if isinstance(pad, int) else 0

    def logits(self, outputs: Any, row: int, positions: Sequence[int], where: Any) -> Any:
        """Return the logits of a text."""
        if self.task == "classification":
            return outputs.logits[row][None]
        places = [place if where is None else where[place] for place in positions]
        return outputs.logits[row][places]

    def graph(self, captured: Any, row: int, encoded: Encoded, options: Options) -> AttentionGraph:
        """Return the graph of one text."""
        return fused_graph(captured, row, len(encoded.tokens), options)

    def batch(self, captured: Any, encoded: Sequence[Encoded], options: Options) -> Batch | None:
        """Return what scores a whole batch of texts at once."""
        if captured.rows is not None:
            return None
        shares = captured.residuals
        return Batch(
            [layer.numpy() for layer in captured.layers],
            [len(text.tokens) + captured.sink for text in encoded],
            residual=options.residual if shares is None else [share.numpy() for share in shares],
            gradient=options.edges == "gradient",
            sink=captured.sink,
        )

    def details(self, encoded: Encoded, outputs: Any) -> dict[str, Any]:
        """Return notes: on what was cut, and on words that the tokenizer does not know."""
        unknown, name = (getattr(self.tokenizer, f"unk_token{end}", None) for end in ("_id", ""))
        ids, tokens = encoded.inputs["input_ids"], encoded.tokens
        words = [
            repr(word)
            for number, word, span in zip(ids, tokens.names, tokens.spans, strict=True)
            if number == unknown and span is not None and word != name
        ]
        notes = encoded.extra or ()
        if words:
            listed = ", ".join(dict.fromkeys(words))
            notes += (f"The tokenizer does not know {listed}: the model read {name} instead.",)
        if self._lacks_bos(ids):
            notes += (
                f"Texts of this model begin with {self.tokenizer.bos_token}, as its tokenizer's "
                "file says (add_bos_token), and this one was read without it. The answer may be "
                "another one.",
            )
        return {"notes": notes} if notes else {}

    def _lacks_bos(self, ids: Sequence[int]) -> bool:
        """Whether a text has no BOS token where the tokenizer was saved to add one.

        That a model has such a token says nothing: GPT-2 and Qwen read texts without it.
        """
        bos = getattr(self.tokenizer, "bos_token_id", None)
        saved = getattr(self.tokenizer, "init_kwargs", None) or {}
        return self.writes and saved.get("add_bos_token") is True and bos not in (None, ids[0])

    # ---- Writing ---------------------------------------------------------------------------------

    def generate(
        self, item: Any, writing: Writing, truncate: bool, progress: Progress | None = None
    ) -> Written:
        """Let a causal language model continue a prompt, or answer a chat."""
        if not self.writes:
            return super().generate(item, writing, truncate, progress)
        import torch

        prompt = self.read(item, truncate)
        count = len(prompt.tokens)
        writing.check_room(count, self.max_tokens, "the prompt")
        ids = torch.tensor([prompt.inputs["input_ids"]], device=self.model.device)
        whole = write(
            self.model,
            ids,
            count,
            writing,
            progress,
            attention_mask=torch.ones_like(ids),
            pad_token_id=self._pad_id(),
            **self._beside(prompt),
        )
        ends = end_ids(self.model)
        ended = len(whole) > count and whole[-1] in ends
        if ended:
            whole.pop()
        positions = list(range(count - 1, len(whole) - 1))
        text = self._continued(prompt, whole)
        return Written(
            text,
            prompt.tokens.text,
            text.tokens.text[len(prompt.tokens.text) :],
            count,
            positions,
            whole[count:],
            ended,
        )

    def _beside(self, prompt: Encoded) -> dict[str, Any]:
        """Return what the model is given beside the ids of a prompt: nothing, for a text."""
        return {}

    def _continued(self, prompt: Encoded, ids: list[int]) -> Encoded:
        """Return a generated text, its tokens placed by decoding more and more of them."""
        count = len(prompt.tokens)
        text, spans, special = (
            prompt.tokens.text,
            list(prompt.tokens.spans),
            list(prompt.tokens.special),
        )
        endings = set(getattr(self.tokenizer, "all_special_ids", []))
        before = self.tokenizer.decode(ids[:count], clean_up_tokenization_spaces=False)
        for end in range(count + 1, len(ids) + 1):
            after = self.tokenizer.decode(ids[:end], clean_up_tokenization_spaces=False)
            # Part of a character shows only once the rest of it is there.
            added = after[len(before) :] if after.startswith(before) else ""
            ending = ids[end - 1] in endings
            if ending:
                added = ""
            spans.append(None if ending else (len(text), len(text) + len(added)))
            special.append(ending)
            text += added
            before = after
        inputs = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        tokens = self._tokens(text, ids, spans, special)
        segments = prompt.tokens.segments
        begin = len(prompt.tokens.text)
        if segments and len(text) > begin:
            segments = (*segments, Segment("answer", begin, len(text)))
        return Encoded(replace(tokens, segments=segments), inputs, extra=prompt.extra)

    # ---- References ------------------------------------------------------------------------------

    def counted(self, item: Any, truncate: bool, position: int | str) -> tuple[str, ...]:
        """See that a text can be evaluated."""
        names = super().counted(item, truncate, position)
        if len(names) < 2:
            raise TextError("the text has one token, and a rank correlation needs two")
        return names

    def readings(
        self, items: Sequence[Any], questions: Sequence[Question], truncate: bool
    ) -> list[Reading]:
        """Read texts for a reference."""
        encoded = [self.encoded(item, truncate) for item in items]
        found = [
            self.position(text, question.position, None)
            for text, question in zip(encoded, questions, strict=True)
        ]
        readings = []
        causal: bool | None = None
        for text, question, place in zip(encoded, questions, found, strict=True):
            inputs, tokens = text.inputs, text.tokens
            target: Any = question.target
            contrast: Any = question.contrast
            if self.task == "classification":
                # One answer for the whole text, wherever it is read.
                places = placed(len(tokens))
                readings.append(Reading(inputs, tokens, places, None, target, contrast=contrast))
                continue
            last = len(tokens) - 1 if place is None else place
            if self.task == "causal-lm" and last < len(tokens) - 1:
                if causal is None:
                    causal = self._is_causal(text)
                if causal:
                    inputs = {name: values[: last + 1] for name, values in inputs.items()}
            places = placed(len(inputs["input_ids"]), len(tokens))
            readings.append(Reading(inputs, tokens, places, last, target, contrast=contrast))
        return readings

    def _is_causal(self, text: Encoded) -> bool:
        """Whether the model's positions see only what precedes them, as its attention shows.

        The name of a class does not tell: a BERT with a head that writes may see the whole text.
        """
        import torch

        inputs, _ = self.stacked([text], [[0]])
        try:
            captured = self.capture(inputs, keep=False)
        except AttentionError:
            return False  # not known, so every token is tried
        if captured.rows is not None:
            return bool(captured.rows.text(0, len(text.tokens), 0.5).causal)
        return not any(bool(torch.triu(layer[0], 1).any()) for layer in captured.layers)


def pooling_of(name_or_path: str) -> str | None:
    """Return how an encoder's tokens become the embedding of a text.

    Args:
        name_or_path: A folder. That of sentence-transformers says how in its own configuration.

    Returns:
        "cls", "mean" or "last"; None if the folder does not say, or says something else.
    """
    config = Path(name_or_path) / "1_Pooling" / "config.json"
    if not config.is_file():
        return None
    found = json.loads(config.read_text(encoding="utf-8"))
    kinds = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "last"}
    chosen = [kind for name, kind in kinds.items() if found.get(f"pooling_mode_{name}")]
    return chosen[0] if len(chosen) == 1 else None


def _task_of(class_name: str) -> str:
    for task, (endings, _) in TASKS.items():
        if endings and class_name.endswith(endings):
            return task
    return "encoder"


def _counts(encoding: Mapping[str, Any]) -> list[int]:
    """Return how many tokens a text has, special ones left out, or each of a pair."""
    texts = encoding["texts"]
    if texts is None:
        return [len(encoding["input_ids"]) - sum(map(bool, encoding["special_tokens_mask"]))]
    return [texts.count(number) for number in range(len(PAIR))]


def _too_long(item: Any, encoding: Mapping[str, Any], most: int | None) -> str:
    """Say how long a text or a pair is, and what to do."""
    count = len(encoding["input_ids"])
    if isinstance(item, str):
        return (
            f"the text has {count} tokens and the model takes {most}; shorten it, or pass "
            "truncate=True to cut it there"
        )
    each = " and ".join(map(str, _counts(encoding)))
    return (
        f"the two texts have {each} tokens, {count} with special tokens, and the model takes "
        f"{most}; shorten them, or pass truncate=True to cut the longer one first"
    )


def _notes(encoding: Mapping[str, Any], whole: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a reader has to know of how a text or a pair was read."""
    notes = []
    read, given, texts = _counts(encoding), _counts(whole), encoding["texts"]
    for number, (count, total) in enumerate(zip(read, given, strict=True)):
        if count < total:
            what = "The text" if texts is None else f"The {PAIR[number]} text"
            notes.append(f"{what} was cut: the model read {count} of its {total} tokens.")
    if texts and 0 in texts and texts[texts.index(1) - 1] == 0:
        notes.append("The tokenizer puts nothing between the two texts: the model read one text.")
    return tuple(notes)


def padded(rows: Sequence[list[int]], fill: int, device: Any) -> Any:
    """Return lists of numbers as a tensor, filled up to the longest."""
    import torch

    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows], device=device)


def placed(
    held: int, count: int | None = None, name: str = "input_ids"
) -> tuple[tuple[str, int] | None, ...]:
    """Return the places of `count` tokens, of which the first ones are held by an input."""
    later = 0 if count is None else count - held
    return (*((name, index) for index in range(held)), *[None] * later)


def fused_graph(captured: Any, row: int, count: int, options: Options) -> AttentionGraph:
    """Return the graph of the first positions of one input of a batch."""
    sink = bool(getattr(captured, "sink", False))
    count += sink
    # With heads kept apart there is one more axis.
    layers: list[Any] = [layer[row, ..., :count, :count] for layer in captured.layers]
    if options.edges == "gradient":
        layers = [gradient_rows(layer.double().numpy()) for layer in layers]
    residual: float | NDArray[np.float64] = options.residual
    if captured.residuals is not None:
        residual = np.stack([shares[row, :count].numpy() for shares in captured.residuals])
    return AttentionGraph(
        layers,
        heads=options.heads if options.keep_heads else "mean",
        residual=residual,
        sink=sink,
    )
