"""Models that compare an image with texts: CLIP and SigLIP, by contributions of words and patches.

Two towers read the image and a text, and the answer is the product of what they return, both of
length 1. The lengths are held at their values, and half of the product goes to each tower. The
towers do not attend to each other, so there is no graph over both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from attnflow.errors import ImageError, ModelError, OptionError, TextError
from attnflow.fields import Segment
from attnflow.models.adapter import (
    Adapter,
    Encoded,
    Loader,
    Question,
    Reading,
    about_item,
)
from attnflow.models.image import ImageAdapter, check_image, is_image
from attnflow.options import ATTENTION_METHODS, Options
from attnflow.tokens import Tokens, in_text

TASK: Final = "image-text-similarity"

# How many texts an image can be compared with.
MOST_TEXTS: Final = 100

# What an error says that an input is.
_ITEM: Final = (
    "a tuple of an image and a text, a tuple of an image and a list of texts to choose from, or a "
    "list of such tuples"
)


class SimilarityAdapter(ImageAdapter):
    """Reads an image, and one text or several to choose from."""

    tasks: ClassVar[tuple[str, ...]] = (TASK,)

    def __init__(self, model: Any, reader: Any) -> None:
        super().__init__(model, reader)
        self.task = TASK
        if not callable(getattr(reader, "tokenizer", None)) or self.processor is reader:
            raise ModelError(
                f"tokenizer is {type(reader).__name__}; {self.name} reads an image and a text: "
                "expected its processor, which has an image processor and a tokenizer"
            )

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whether a model, or a class of models, compares images with texts."""
        named = getattr(model, "__name__", type(model).__name__)
        return str(named) in ("CLIPModel", "SiglipModel", "MetaClip2Model", "ChineseCLIPModel")

    @classmethod
    def loader(cls, config: Any, task: str, gguf: bool) -> Loader | None:
        """Return how to load a checkpoint; None if it is of another kind."""
        import transformers

        saved = (getattr(config, "architectures", None) or [""])[0]
        if task not in ("auto", TASK) or not cls.fits(getattr(transformers, saved, None)):
            return None
        return "AutoModel", "AutoProcessor"

    @property
    def text_model(self) -> Any:
        """The tower that reads texts."""
        return self.model.text_model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the processor."""
        return self.reader.tokenizer

    @property
    def answers(self) -> bool:
        """True: it says how well a text fits."""
        return True

    @property
    def has_classes(self) -> bool:
        """True: each text is a class."""
        return True

    @property
    def multi_label(self) -> bool:
        """Whether each text has a probability of its own, as for SigLIP."""
        return str(self.model.config.model_type).startswith("siglip")

    @property
    def outputs(self) -> int:
        """How many texts there may be."""
        return MOST_TEXTS

    @property
    def labels(self) -> dict[int, str]:
        """The names of the texts."""
        return {index: f"text {index}" for index in range(MOST_TEXTS)}

    @property
    def max_tokens(self) -> int | None:
        """How many tokens a text may have."""
        most = self.model.config.text_config.max_position_embeddings
        return most if isinstance(most, int) else None

    @property
    def depth(self) -> int | None:
        """One: contributions are of what enters the first layer of each tower."""
        return 1

    def check(self, options: Options) -> None:
        """Refuse what needs one graph over the image and the text."""
        if options.method in ATTENTION_METHODS:
            raise OptionError(
                f"method is {options.method!r}, but the two towers of {self.name} do not attend to "
                "each other, so no attention leads from the answer to both; use "
                "method='contribution', or explain a tower alone, such as CLIPVisionModel"
            )
        if options.truncate:
            raise OptionError("truncate is True, which is for models that read one text")
        Adapter.check(self, options)

    def check_position(self, position: int | str) -> None:
        """Refuse a position: the answer is one for the image and the text."""
        if position != "auto":
            raise OptionError(
                f"position is {position!r}, but {self.name} has one answer for the image and the "
                "text; leave it out"
            )

    def position(self, encoded: Encoded, position: int | str, causal: bool | None) -> int | None:
        """Return 0: there is one answer."""
        return 0

    def value(self, logits: Any, target: int, contrast: int | None) -> Any:
        """Return the similarity to the target's text, minus that to others."""
        count = logits.shape[-1]
        for name, index in (("target", target), ("contrast", contrast)):
            if index is not None and index >= count:
                raise OptionError(
                    f"{name} is text {index}, but there are {count} texts, from text 0 to text "
                    f"{count - 1}; give more texts, as a list"
                )
        own = logits[..., target]
        if contrast is not None:
            return own - logits[..., contrast]
        return own if count == 1 else own - (logits.sum(-1) - own) / (count - 1)

    # ---- Reading ---------------------------------------------------------------------------------

    def items(self, inputs: Any) -> tuple[list[Any], bool]:
        """Return the pairs that were given, not read yet."""
        if isinstance(inputs, tuple):
            return [inputs], False
        if is_image(inputs) or isinstance(inputs, Mapping | bytes):
            raise ImageError(f"inputs is {type(inputs).__name__}; expected {_ITEM}")
        items = list(inputs) if hasattr(inputs, "__iter__") else []
        if not items:
            raise ImageError(f"inputs is {inputs!r}; expected {_ITEM}")
        return items, True

    def read(self, item: Any, truncate: bool = False) -> Encoded:
        """Read an image and its texts."""
        import torch

        if not isinstance(item, tuple) or len(item) != 2:
            raise ImageError(f"the input is {type(item).__name__}; expected {_ITEM}")
        image, texts = item[0], [item[1]] if isinstance(item[1], str) else item[1]
        check_image(image, "the image")
        if not isinstance(texts, list) or not 1 <= len(texts) <= MOST_TEXTS:
            raise TextError(
                f"the second of the tuple is {type(item[1]).__name__}; expected {_ITEM}"
            )
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise TextError("a text is empty or not a string; expected one or more texts")
        most = self.max_tokens
        found = self.tokenizer(
            texts,
            # SigLIP was trained on texts that are filled up, and reads what fills them.
            padding="max_length" if self.multi_label else True,
            max_length=most if self.multi_label else None,
            return_offsets_mapping=bool(getattr(self.tokenizer, "is_fast", False)),
            return_special_tokens_mask=True,
            return_attention_mask=True,
        )
        ids = torch.tensor(found["input_ids"])
        if most is not None and ids.shape[1] > most:
            raise TextError(f"a text has {ids.shape[1]} tokens and the model takes {most}")
        inputs = {"input_ids": ids}
        if not self.multi_label:
            inputs["attention_mask"] = torch.tensor(found["attention_mask"])
        picture = self._prepare(image)
        inputs["pixel_values"] = picture.pixels
        words = self._words(texts, found, _read(inputs))
        patches = self.layout.tokens(picture.grid)
        mine = tuple(index < len(self.layout.special) for index in range(len(patches)))
        tokens = Tokens(
            words.text,
            (*words.names, *patches),
            (*words.spans, *(None for _ in patches)),
            (*words.special, *mine),
            words.segments,
        )
        # Each token has one position. The sizes say that there is no graph to show.
        return Encoded(tokens, inputs, sizes=(1,) * len(tokens), extra=picture)

    def _words(self, texts: Sequence[str], found: Mapping[str, Any], read: Any) -> Tokens:
        """Return the tokens of the texts, one text after the other, without what is not read."""
        names: list[str] = []
        spans: list[tuple[int, int] | None] = []
        special: list[bool] = []
        segments = []
        start = 0
        for row, text in enumerate(texts):
            ids = found["input_ids"][row]
            for place in read[row].nonzero()[:, 0].tolist():
                mark = bool(found["special_tokens_mask"][row][place])
                span = found["offset_mapping"][row][place] if "offset_mapping" in found else None
                own = str(self.tokenizer.convert_ids_to_tokens(ids[place]))
                names += in_text(text, [own], [None if mark or span is None else tuple(span)])
                # Without a place in the text a word would pass for a patch.
                placed = (0, 0) if span is None else (int(span[0]), int(span[1]))
                spans.append(None if mark else (start + placed[0], start + placed[1]))
                special.append(mark)
            segments.append(Segment(self.labels[row], start, start + len(text)))
            start += len(text) + 1
        parts = tuple(segments) if len(texts) > 1 else ()
        return Tokens("\n".join(texts), tuple(names), tuple(spans), tuple(special), parts)

    def batches(
        self, items: Sequence[Any], options: Options
    ) -> Iterator[list[tuple[int, Encoded]]]:
        """Yield the pairs one by one."""
        for index, item in enumerate(items):
            with about_item(index, len(items)):
                encoded = self.read(item)
            yield [(index, encoded)]

    # ---- Running ---------------------------------------------------------------------------------

    def stacked(
        self, batch: Sequence[Encoded], positions: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Any], Any]:
        """Return the texts of one pair, each with a copy of the image."""
        [encoded] = batch
        count = len(encoded.inputs["input_ids"])
        return self._given([encoded.inputs], [encoded.inputs["pixel_values"]] * count), None

    def _given(self, inputs: Sequence[Mapping[str, Any]], images: Sequence[Any]) -> dict[str, Any]:
        import torch

        device = self.model.device
        texts = {
            name: torch.cat([one[name] for one in inputs]).to(device)
            for name in inputs[0]
            if name != "pixel_values"
        }
        return {**texts, **self._pixels(images)}

    def logits(self, outputs: Any, row: int, positions: Sequence[int], where: Any) -> Any:
        """Return how well each text fits the image, of shape (1, texts)."""
        return outputs.logits_per_image.diagonal()[None]

    def attribute(self, inputs: dict[str, Any], score: Any, **options: Any) -> Any:
        """Return what the answer came from, in both towers."""
        import torch

        from attnflow.capture import contribute

        count = len(inputs["input_ids"])

        def padded(outputs: Any) -> Any:
            # One answer for all copies of the image; the others' numbers are part of it.
            answer = score(outputs)
            return torch.cat([answer, torch.zeros_like(answer).expand(count - 1)])

        found = contribute(self.model, inputs, padded)
        if len(found.scores) != 2:
            raise ModelError(f"{self.name} has {len(found.scores)} towers; expected two")
        image, texts = found.scores
        scores = torch.cat([texts[_read(inputs).cpu()], image.sum(0)])[None]
        biases = found.biases.sum()[None]
        values = found.values[:1]
        errors = (scores.sum(1) + biases - values).abs() / scores.abs().sum(1)
        return found._replace(values=values, scores=(scores,), biases=biases, errors=errors)

    @property
    def compares(self) -> bool:
        """True: with others, if there are any."""
        return True

    def details(self, encoded: Encoded, outputs: Any) -> dict[str, Any]:
        """Return where the patches are, and whether there are texts to compare with."""
        found = super().details(encoded, outputs)
        if len(encoded.inputs["input_ids"]) == 1:
            found["options"]["compared"] = False
        return found

    # ---- References ------------------------------------------------------------------------------

    def fill(self, replacement: int | str, name: str = "replacement") -> int:
        """Return what replaces a token of a text; a patch is painted in the mean colour."""
        tokenizer = self.tokenizer
        unknown = getattr(tokenizer, "unk_token_id", None)
        if replacement == "auto" and unknown in (None, tokenizer.eos_token_id):
            # CLIP's token for unknown words ends a text, which is where it is read.
            replacement = "."
        return Adapter.fill(self, replacement, name)

    def fill_name(self, fill: int) -> str:
        """Return what tokens are replaced by and patches are painted in."""
        return f"{Adapter.fill_name(self, fill)}, a patch by the mean colour"

    def readings(
        self, items: Sequence[Any], questions: Sequence[Question], truncate: bool
    ) -> list[Reading]:
        """Read pairs for a reference."""
        readings = []
        for item, question in zip(items, questions, strict=True):
            encoded = self.encoded(item)
            words = _read(encoded.inputs).flatten().nonzero()[:, 0].tolist()
            own = len(self.layout.special)
            patches = range(len(encoded.tokens) - len(words) - own)
            places = (
                *(("input_ids", index) for index in words),
                *[None] * own,
                *(("pixel_values", index) for index in patches),
            )
            target: Any = question.target
            contrast: Any = question.contrast
            inputs, tokens, extra = encoded.inputs, encoded.tokens, encoded.extra
            readings.append(Reading(inputs, tokens, places, None, target, extra, contrast))
        return readings

    def changes(self, reading: Reading, token: int, fill: int) -> bool:
        """Whether replacing a token gives the model anything else to read."""
        place = reading.places[token]
        if place is None or place[0] == "pixel_values":
            return place is not None
        return int(reading.inputs["input_ids"].flatten()[place[1]]) != fill

    def replaced(self, reading: Reading, tokens: Collection[int], fill: int) -> Reading:
        """Return a reading with some tokens replaced and some patches painted over."""
        places = {token: reading.places[token] for token in tokens}
        ids = reading.inputs["input_ids"].clone()
        for place in places.values():
            if place is not None and place[0] == "input_ids":
                ids.view(-1)[place[1]] = fill
        patches = [token for token, place in places.items() if place and place[0] != "input_ids"]
        painted = super().replaced(reading, patches, 0)
        inputs = {**reading.inputs, **painted.inputs, "input_ids": ids}
        return reading._replace(inputs=inputs)

    def together(self, readings: Sequence[Reading]) -> dict[str, Any]:
        """Return what the model is given for readings of one shape."""
        inputs = [reading.inputs for reading in readings]
        return self._given(inputs, [one["pixel_values"] for one in inputs])

    def answer_logits(self, outputs: Any, position: int | None) -> Any:
        """Return how well the texts of each reading fit its image, of shape (B, texts)."""
        logits = outputs.logits_per_image
        return logits.reshape(len(logits), len(logits), -1).diagonal().mT

    def embedding_modules(self) -> list[Any]:
        """Refuse: the embeddings are those of two towers."""
        raise ModelError(
            f"{self.name} has the embeddings of two towers; use blank_out, or method='contribution'"
        )


def _read(inputs: Mapping[str, Any]) -> Any:
    """Return which positions of the texts are read, of shape (texts, n)."""
    import torch

    ids = inputs["input_ids"]
    return (
        inputs["attention_mask"].bool() if "attention_mask" in inputs else torch.ones_like(ids) > 0
    )
