"""Models that read an image with a text and write on: LLaVA, PaliGemma, Qwen2.5-VL, Gemma 3.

A vision tower turns the image into tokens, which the decoder reads among those of the text. Each
image token stands for a patch of the image, or for a square of several, and is named by its row and
column, "0,0". There is one graph, that of the decoder, over the tokens of both.

Contributions are followed through the tower: the score of an image token is what the patches that
it stands for add where they enter the tower. What the tower's own tokens add, such as CLS, comes
from no patch and is counted with the biases.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Final, NamedTuple

from attnflow.errors import AttentionError, ImageError, ModelError, OptionError, TextError
from attnflow.fields import Segment
from attnflow.models.adapter import (
    Adapter,
    Encoded,
    Loader,
    Question,
    Reading,
    about_item,
    smallest,
)
from attnflow.models.chat import Chat, is_chat
from attnflow.models.image import (
    MEAN_COLOUR,
    area_of,
    check_image,
    is_image,
    read_image,
    small_copy,
    token_layout,
)
from attnflow.models.text import TextAdapter
from attnflow.options import Options
from attnflow.resample import Area
from attnflow.tokens import Tokens

TASK: Final = "image-text-to-text"

# What an error says that an input is.
_ITEM: Final = (
    "a tuple of an image and a text, a chat (a list of messages with 'role' and 'content'), or a "
    "list of these"
)
# What marks outputs of a pass that was not followed through the vision tower.
_BY_TOKEN: Final = "image_by_token"
# The keys of a part of a message that may hold an image.
_KEYS: Final = ("image", "path", "url")


class Picture(NamedTuple):
    """The image of an input.

    Attributes:
        size: The height and width of the image as the user gave it.
        grid: The rows and columns of image tokens.
        area: What they cover of the user's image, as shares of its height and width.
        small: A small copy of that, a JPEG file; None where Pillow is not installed.
        cells: For each number of ``pixel_values`` the image token that it belongs to, -1 for none;
            a shape that broadcasts.
    """

    size: tuple[int, int]
    grid: tuple[int, int]
    area: Area
    small: bytes | None
    cells: Any


class ImageTextAdapter(TextAdapter):
    """Reads an image with a text."""

    tasks: ClassVar = (TASK,)
    in_data_sets: ClassVar = False

    def __init__(self, model: Any, reader: Any) -> None:
        Adapter.__init__(self, model, reader)
        self.task = TASK
        config = model.config
        token = getattr(config, "image_token_id", None)
        token = getattr(config, "image_token_index", None) if token is None else token
        if not isinstance(token, int):
            raise ModelError(
                f"{self.name} does not read an image as tokens among those of the text, so there "
                "is no graph over both; expected a model such as LLaVA, PaliGemma, Qwen2.5-VL or "
                "Gemma 3"
            )
        self.image_token: Final = token
        self.tower: Final = model.get_encoder(modality="image")
        # Which part of the image the positions of the tower are made of, by the image's shape.
        self._located: dict[Any, Any] = {}

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whether transformers loads a model to read an image with a text and write on."""
        return type(model).__name__ in _classes()

    @classmethod
    def loader(cls, config: Any, task: str, gguf: bool) -> Loader | None:
        """Return how to load a checkpoint; None if it is of another kind."""
        saved = (getattr(config, "architectures", None) or [""])[0]
        if saved not in _classes() or task not in ("auto", TASK):
            return None
        return "AutoModelForImageTextToText", "AutoProcessor"

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the processor."""
        return getattr(self.reader, "tokenizer", None) or self.reader

    @property
    def answers(self) -> bool:
        """True: it writes text."""
        return True

    @property
    def depth(self) -> int | None:
        """How many layers the decoder has, as far as the model says."""
        layers = getattr(self._text_config, "num_hidden_layers", None)
        return layers if isinstance(layers, int) else None

    @property
    def max_tokens(self) -> int | None:
        """How many tokens the decoder takes; None if it does not say."""
        return smallest(
            getattr(self.tokenizer, "model_max_length", None),
            getattr(self._text_config, "max_position_embeddings", None),
        )

    @property
    def _text_config(self) -> Any:
        return self.model.config.get_text_config(decoder=True)

    @property
    def writes(self) -> bool:
        """True: the decoder writes on."""
        return True

    @property
    def _writes_tokens(self) -> bool:
        return True

    def check(self, options: Options) -> None:
        """Refuse to cut a text: it would cut the image."""
        if options.truncate:
            raise OptionError(
                "truncate is True, which would cut an image apart from its text; shorten the text"
            )
        super().check(options)

    # ---- Reading ---------------------------------------------------------------------------------

    def items(self, inputs: Any) -> tuple[list[Any], bool]:
        """Return the inputs that were given, not read yet."""
        if isinstance(inputs, str | tuple) or is_chat(inputs):
            return [inputs], False
        if is_image(inputs):
            raise ImageError(f"inputs is an image without a text; expected {_ITEM}")
        if isinstance(inputs, Mapping | bytes) or not hasattr(inputs, "__iter__"):
            raise TextError(f"inputs is {type(inputs).__name__}; expected {_ITEM}")
        items = list(inputs)
        if not items:
            raise TextError(f"inputs is an empty list; expected {_ITEM}")
        return items, True

    def read(self, item: Any, truncate: bool = False) -> Encoded:
        """Read one image with its text."""
        if isinstance(item, str):
            return super().read(item)
        image, prompt, messages = self._prompt(item)
        if image is None:
            return super().read(prompt)
        check_image(image, "the image")
        colours = read_image(image)
        ids, text, offsets, inputs = self._processed(colours, prompt)
        most = self.max_tokens
        if most is not None and len(ids) > most:
            raise TextError(
                f"the image and the text have {len(ids)} tokens and the model takes {most}; "
                "shorten the text"
            )
        found = [index for index, token in enumerate(ids) if token == self.image_token]
        picture = self._picture(colours, inputs, len(found))
        tokens = self._named(text, ids, offsets, picture.grid)
        encoded = Encoded(_in_messages(tokens, messages), inputs, extra=picture)
        self._locate(encoded)
        return encoded

    def read_many(self, items: Sequence[Any], truncate: bool = False) -> list[Any]:
        """Read inputs; texts alone as `TextAdapter` does."""
        if all(isinstance(item, str) for item in items):
            return super().read_many(items, truncate)
        return Adapter.read_many(self, items, truncate)

    def _prompt(self, item: Any) -> tuple[Any, str, list[dict[str, Any]]]:
        """Return the image of an input, its prompt, and the messages that it was made from."""
        reader = self.reader
        placeholder = getattr(reader, "image_token", None)
        if getattr(reader, "image_processor", None) is None or placeholder is None:
            raise ModelError(
                f"tokenizer is {type(reader).__name__}, which prepares no images; expected the "
                "model's processor, as AutoProcessor loads it"
            )
        template = getattr(reader, "chat_template", None)
        if isinstance(item, tuple):
            if len(item) != 2 or not isinstance(item[1], str):
                kinds = ", ".join(type(part).__name__ for part in item)
                raise TextError(f"the input is a tuple of {kinds}; expected an image and a text")
            image, text = item
            if not text.strip():
                raise TextError("the text is empty; there is nothing to explain")
            if placeholder in text:
                return image, text, []
            if template is None:
                return image, f"{placeholder} {text}", []
            item = [{"role": "user", "content": [{"type": "image", "image": image}, text]}]
        elif not is_chat(item):
            raise TextError(f"the input is {type(item).__name__}; expected {_ITEM}")
        if template is None:
            raise ModelError(
                f"{type(reader).__name__} has no chat template, so a chat cannot be written out; "
                f"give a tuple of an image and a text, with {placeholder} for the image"
            )
        messages, images = _parts(item)
        if len(images) > 1:
            raise ImageError(f"the chat has {len(images)} images; expected one at most")
        ending = messages[-1]["role"] == "assistant"
        prompt = reader.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=not ending,
            continue_final_message=ending,
        )
        return images[0] if images else None, self._begun_once(str(prompt)), messages

    def _begun_once(self, prompt: str) -> str:
        """Return a prompt without the BOS that the template wrote, if the tokenizer adds one."""
        name = getattr(self.tokenizer, "bos_token", None)
        if not name or self.tokenizer("a")["input_ids"][:1] != [self.tokenizer.bos_token_id]:
            return prompt
        return prompt.removeprefix(name)

    def _processed(
        self, colours: Any, prompt: str
    ) -> tuple[list[int], str, list[tuple[int, int]], dict[str, Any]]:
        """Return the ids, the text that they are of, their places in it, and the inputs."""
        listening = copy.copy(self.reader)
        listening.tokenizer = heard = _Heard(self.tokenizer)
        image = colours
        if find_spec("PIL") is not None:
            from PIL import Image

            image = Image.fromarray(colours)
        try:
            found = listening(
                images=[image], text=[prompt], return_tensors="pt", return_offsets_mapping=True
            )
        except ImportError as error:
            raise ModelError(
                f"{type(self.reader).__name__} needs another package: {error}"
            ) from error
        except (ValueError, TypeError) as error:
            raise TextError(
                f"{type(self.reader).__name__} cannot read the image and the text: "
                f"{' '.join(str(error).split())}"
            ) from error
        ids = found["input_ids"][0].tolist()
        offsets = [(int(start), int(end)) for start, end in found["offset_mapping"][0].tolist()]
        taken = self._takes | {"mm_token_type_ids", "token_type_ids"}
        inputs: dict[str, Any] = {}
        for name, value in found.items():
            if name in taken and name not in ("labels", "attention_mask"):
                # One number a token, or what belongs to the image.
                of_text = tuple(value.shape) == (1, len(ids))
                inputs[name] = value[0].tolist() if of_text else value
        return ids, heard.text, offsets, inputs

    def _picture(self, colours: Any, inputs: Mapping[str, Any], count: int) -> Picture:
        """Return where the image tokens are in the image."""
        import torch

        size = (int(colours.shape[0]), int(colours.shape[1]))
        pixels = inputs["pixel_values"]
        if "image_grid_thw" in inputs:
            # Patches one after the other; those that become one token are neighbours.
            _, height, width = (int(number) for number in inputs["image_grid_thw"][0])
            merged = math.isqrt(max(1, height * width // max(1, count)))
            grid = height // merged, width // merged
            cells = (torch.arange(height * width) // merged**2)[:, None]
            area: Area = (0.0, 0.0, 1.0, 1.0)
            if len(pixels) != height * width or grid[0] * grid[1] != count:
                raise self._unplaced(count, (height, width))
            return Picture(size, grid, area, small_copy(colours, area), cells)
        pieces = math.prod(pixels.shape[:-3])
        if pieces != 1:
            raise ModelError(
                f"{type(self.processor).__name__} cuts the image into {pieces} images of their "
                "own, whose tokens overlap; turn that off in its settings, if it can be "
                "(do_image_splitting=False, do_pan_and_scan=False)"
            )
        layout = token_layout(self.tower)
        height, width = (int(number) for number in pixels.shape[-2:])
        patches = layout.grid(height, width)
        merged = math.isqrt(max(1, patches[0] * patches[1] // max(1, count)))
        grid = patches[0] // merged, patches[1] // merged
        whole = (grid[0] * merged, grid[1] * merged) == patches and grid[0] * grid[1] == count
        if not whole or layout.kernel != layout.stride or layout.padding != (0, 0):
            raise self._unplaced(count, patches)
        rows = torch.arange(height) // (layout.kernel[0] * merged)
        columns = torch.arange(width) // (layout.kernel[1] * merged)
        cells = rows[:, None] * grid[1] + columns[None]
        # A rest that makes no whole patch is read by no token.
        cells = cells.masked_fill((rows[:, None] >= grid[0]) | (columns[None] >= grid[1]), -1)
        area = area_of(self.processor, size, (height, width), layout.covered(patches))
        return Picture(size, grid, area, small_copy(colours, area), cells)

    def _unplaced(self, count: int, patches: tuple[int, int]) -> ModelError:
        return ModelError(
            f"{self.name} reads an image of {patches[0]} x {patches[1]} patches as {count} tokens, "
            "which are not one for each patch or square of patches, so the place of a token in the "
            "image is not known"
        )

    @property
    def processor(self) -> Any:
        """The image processor."""
        return self.reader.image_processor

    def _named(
        self, text: str, ids: list[int], offsets: list[tuple[int, int]], grid: tuple[int, int]
    ) -> Tokens:
        """Return the tokens, and the text without what special tokens are written as."""
        marked = {self.image_token, *getattr(self.tokenizer, "all_special_ids", [])}
        marked -= {getattr(self.tokenizer, "unk_token_id", None)}
        kept, removed = "", 0
        spans: list[tuple[int, int] | None] = []
        end = 0
        for token, (start, stop) in zip(ids, offsets, strict=True):
            if token in marked:
                kept += text[end:start]
                end = max(end, stop)
                removed = end - len(kept)
                spans.append(None)
            else:
                kept += text[end:stop]
                end = max(end, stop)
                spans.append((start - removed, stop - removed))
        kept += text[end:]
        special = [token in marked and token != self.image_token for token in ids]
        tokens = self._tokens(kept, ids, spans, special)
        patches = iter(f"{row},{column}" for row in range(grid[0]) for column in range(grid[1]))
        names = (
            next(patches) if token == self.image_token else name
            for token, name in zip(ids, tokens.names, strict=True)
        )
        return Tokens(kept, tuple(names), tokens.spans, tokens.special)

    def batches(
        self, items: Sequence[Any], options: Options
    ) -> Iterator[list[tuple[int, Encoded]]]:
        """Yield the inputs one by one; texts alone run together."""
        if all(isinstance(item, str) for item in items):
            yield from super().batches(items, options)
            return
        for index, item in enumerate(items):
            with about_item(index, len(items)):
                encoded = self.read(item)
                self.position(encoded, options.position, None)
            yield [(index, encoded)]

    def position(self, encoded: Encoded, position: int | str, causal: bool | None) -> int | None:
        """Return the position to explain: the last, if none is given."""
        return super().position(encoded, "last" if position == "auto" else position, causal)

    # ---- Running ---------------------------------------------------------------------------------

    def stacked(
        self, batch: Sequence[Encoded], positions: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Any], Any]:
        """Return inputs of one length as tensors, and where each position's logits will be."""
        import torch

        if not any(isinstance(one.extra, Picture) for one in batch):
            return super().stacked(batch, positions)
        inputs = self._joined([one.inputs for one in batch])
        if "logits_to_keep" not in self._takes:
            return inputs, None
        kept = sorted({place for row in positions for place in row})
        inputs["logits_to_keep"] = torch.tensor(kept, device=self.model.device)
        return inputs, {place: index for index, place in enumerate(kept)}

    def _joined(self, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the inputs of several items as those of a batch."""
        import torch

        model, joined = self.model, {}
        for name, first in inputs[0].items():
            values = [one[name] for one in inputs]
            if isinstance(first, list):
                joined[name] = torch.tensor(values, device=model.device)
                continue
            value = torch.cat(values).to(model.device)
            joined[name] = value.to(model.dtype) if value.is_floating_point() else value
        return joined

    def capture(self, inputs: dict[str, Any], **options: Any) -> Any:
        """Run the model with the attention of its decoder captured."""
        from attnflow.capture import capture

        return capture(self.model, inputs, apart=self.tower, **options)

    def attribute(self, inputs: dict[str, Any], score: Any, **options: Any) -> Any:
        """Return what the answers came from, followed through the tower where that adds up."""
        import torch

        from attnflow.capture import contribute

        image = inputs["input_ids"] == self.image_token
        if "pixel_values" in inputs:
            found = contribute(
                self.model, inputs, score, apart=self.tower, through=image, **options
            )
            places = self._located[self._shape(inputs, len(image))]
            if len(image) > 1 or not found.wrong:
                tower, decoder = found.scores
                scores = decoder.clone()
                made = places >= 0
                for row in range(len(image)):
                    cells = torch.zeros(int(image[row].sum()), dtype=scores.dtype)
                    cells.index_add_(0, places[made], tower[row][made])
                    scores[row, image[row].cpu()] += cells
                biases = found.biases + tower[:, ~made].sum(1)
                return found._replace(scores=(scores,), biases=biases)
        found = contribute(self.model, inputs, score, apart=self.tower, **options)
        if "pixel_values" in inputs:
            found.outputs[_BY_TOKEN] = True
        return found._replace(scores=found.scores[-1:])

    def _locate(self, encoded: Encoded) -> None:
        """See that the image tokens of an input are where its picture says."""
        from attnflow.capture import locate

        inputs = self._joined([encoded.inputs])
        shape = self._shape(inputs)
        if shape in self._located:
            return
        image = inputs["input_ids"][0] == self.image_token
        try:
            self._located[shape] = locate(
                self.model, inputs, self.tower, encoded.extra.cells, image
            )
        except AttentionError as error:
            raise ModelError(str(error)) from error
        except (ValueError, RuntimeError, TypeError) as error:
            raise ModelError(
                f"{self.name} cannot run on the image: {' '.join(str(error).split())}"
            ) from error

    def _shape(self, inputs: Mapping[str, Any], items: int = 1) -> Any:
        """Return what images have in common whose tokens are at the same places."""
        pixels = inputs["pixel_values"]
        thw = inputs.get("image_grid_thw")
        first = None if thw is None else tuple(thw[0].tolist())
        return len(pixels) // items, tuple(pixels.shape[1:]), first

    def details(self, encoded: Encoded, outputs: Any) -> dict[str, Any]:
        """Return where the image tokens are, and a small copy of the image."""
        picture = encoded.extra
        if not isinstance(picture, Picture):
            return super().details(encoded, outputs)
        found = super().details(encoded._replace(extra=None), outputs)
        notes = [*found.get("notes", ())]
        if _BY_TOKEN in outputs:
            notes.append(
                "The parts do not add up through the vision tower, so the score of a patch is what "
                "its image token adds where it enters the decoder."
            )
        return {
            **found,
            "grid": picture.grid,
            "picture": picture.small,
            "options": {"image_size": picture.size, "area": picture.area},
            "notes": notes,
        }

    # ---- Writing ---------------------------------------------------------------------------------

    def _beside(self, prompt: Encoded) -> dict[str, Any]:
        """Return the image of a prompt, and what else belongs to it."""
        if not isinstance(prompt.extra, Picture):
            return {}
        inputs = self._joined([prompt.inputs])
        del inputs["input_ids"]
        return inputs

    def _continued(self, prompt: Encoded, ids: list[int]) -> Encoded:
        """Return an input with tokens written after it: text, as far as the model is told."""
        found = super()._continued(prompt, ids)
        count = len(prompt.tokens)
        added = len(ids) - count
        inputs = {
            name: [*values, *[0] * added] if isinstance(values, list) else values
            for name, values in prompt.inputs.items()
        }
        names = (*prompt.tokens.names, *found.tokens.names[count:])
        tokens = Tokens(
            found.tokens.text,
            names,
            found.tokens.spans,
            found.tokens.special,
            prompt.tokens.segments,
        )
        return Encoded(tokens, {**inputs, "input_ids": ids}, extra=prompt.extra)

    # ---- References ------------------------------------------------------------------------------

    def fill(self, replacement: int | str, name: str = "replacement") -> int:
        """Return what replaces a token of the text; "auto" is a space, if that is a token."""
        if replacement == "auto":
            try:
                return super().fill(" ", name)
            except OptionError:
                pass
        return super().fill(replacement, name)

    def fill_name(self, fill: int) -> str:
        """Return what tokens are replaced by and patches are painted in."""
        return f"{super().fill_name(fill)}, a patch by the mean colour"

    def readings(
        self, items: Sequence[Any], questions: Sequence[Question], truncate: bool
    ) -> list[Reading]:
        """Read inputs for a reference."""
        readings = []
        for item, question in zip(items, questions, strict=True):
            encoded = self.encoded(item, truncate)
            place = self.position(encoded, question.position, None)
            ids = encoded.inputs["input_ids"]
            cells = iter(range(len(ids)))
            places = tuple(
                ("pixel_values", next(cells)) if token == self.image_token else ("input_ids", index)
                for index, token in enumerate(ids)
            )
            target: Any = question.target
            contrast: Any = question.contrast
            readings.append(
                Reading(
                    encoded.inputs, encoded.tokens, places, place, target, encoded.extra, contrast
                )
            )
        return readings

    def changes(self, reading: Reading, token: int, fill: int) -> bool:
        """Whether replacing a token gives the model anything else to read."""
        place = reading.places[token]
        if place is not None and place[0] == "pixel_values":
            return True
        return super().changes(reading, token, fill)

    def replaced(self, reading: Reading, tokens: Collection[int], fill: int) -> Reading:
        """Return a reading with some tokens replaced and some patches painted over."""
        import torch

        places = {token: reading.places[token] for token in tokens}
        patches = [place[1] for place in places.values() if place and place[0] == "pixel_values"]
        words = [token for token, place in places.items() if place and place[0] == "input_ids"]
        changed = super().replaced(reading, words, fill)
        if not patches:
            return changed
        pixels = reading.inputs["pixel_values"].clone()
        painted = torch.isin(reading.extra.cells, torch.tensor(patches))
        pixels[painted.expand(pixels.shape)] = MEAN_COLOUR
        return changed._replace(inputs={**changed.inputs, "pixel_values": pixels})

    @property
    def can_delete(self) -> bool:
        """No: a patch cannot be cut out."""
        return False

    def together(self, readings: Sequence[Reading]) -> dict[str, Any]:
        """Return what the model is given for readings of one shape."""
        return self._joined([reading.inputs for reading in readings])

    def embedding_modules(self) -> list[Any]:
        """Refuse: what enters the decoder for an image is not the output of a module."""
        raise ModelError(
            f"{self.name} puts an image among the embeddings of its text, so no module gives the "
            "embeddings of both; use blank_out, or method='contribution'"
        )


class _Heard:
    """A tokenizer that remembers the text it was given: the prompt as the processor wrote it out.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.text = ""
        self._tokenizer = tokenizer

    def __call__(self, text: Any = None, *arguments: Any, **options: Any) -> Any:
        self.text = text if isinstance(text, str) else str(text[0])
        return self._tokenizer(text, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _classes() -> set[str]:
    """Return the names of the classes that read an image with a text and write on."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as NAMES,
    )

    # A causal language model may also be given a text alone.
    return {name for name in NAMES.values() if not name.endswith("ForCausalLM")}


def _parts(chat: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return a chat with its images taken out, and the images."""
    messages: list[dict[str, Any]] = []
    images: list[Any] = []
    for index, message in enumerate(chat):
        content, role = message.get("content"), message.get("role")
        if not isinstance(role, str):
            raise TextError(
                f"message {index} has the role {role!r}; expected a text, such as 'user'"
            )
        parts: list[dict[str, Any]] = []
        for part in [content] if isinstance(content, str) else content or ():
            if isinstance(part, str):
                parts.append({"type": "text", "text": part})
            elif is_image(part):
                images.append(part)
                parts.append({"type": "image"})
            elif isinstance(part, Mapping) and part.get("type") == "image":
                images += [part[key] for key in _KEYS if key in part][:1]
                parts.append({"type": "image"})
            elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
                parts.append({"type": "text", "text": part["text"]})
            else:
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise TextError(
                    f"message {index} has a part of type {kind!r}; expected texts and images: "
                    "{'type': 'text', 'text': ...} or {'type': 'image', 'image': ...}"
                )
        messages.append({"role": role, "content": parts})
    placed = sum(part["type"] == "image" for one in messages for part in one["content"])
    if placed != len(images):
        raise ImageError(
            f"the chat has a place for {placed} images and holds {len(images)}; expected "
            "{'type': 'image', 'image': ...}, with an image or its path"
        )
    return messages, images


def _in_messages(tokens: Tokens, messages: Sequence[Mapping[str, Any]]) -> Tokens:
    """Return tokens with the texts of the messages as segments, where they can be found.

    What the chat template wrote around them is special.
    """
    segments, start = [], 0
    for message in messages:
        written = [part["text"].strip() for part in message["content"] if part["type"] == "text"]
        for text in filter(None, written):
            place = tokens.text.find(text, start)
            if place < 0:
                return tokens
            start = place + len(text)
            segments.append(Segment(message["role"], place, start))
    if not segments:
        return tokens
    chat = Chat(tokens.text, tuple(segments))
    special = tuple(
        mark or (span is not None and chat.is_markup(*span))
        for mark, span in zip(tokens.special, tokens.spans, strict=True)
    )
    return Tokens(tokens.text, tokens.names, tokens.spans, special, chat.segments)
