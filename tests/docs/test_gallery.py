"""The gallery: its lines run, and its pictures are what they save."""

import importlib.util
import re

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.support import ROOT

DOCS = ROOT / "docs"


def script():
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


GALLERY = script()
PAGES = [
    pytest.param(name, marks=[pytest.mark.exhaustive] if page.exhaustive else [])
    for name, page in GALLERY.GALLERY.items()
]


def text(name):
    return (GALLERY.PAGES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_the_lines_of_a_page_give_what_it_shows_and_save_its_picture(name, tmp_path):
    result, pictures = GALLERY.draw(name, tmp_path)
    assert result.attempted >= 4
    assert result.failed == 0
    assert [picture.name for picture in pictures] == [f"{name}.png"]
    shown = Image.open(GALLERY.PAGES / f"{name}.png").convert("RGB")
    made = GALLERY.compact(pictures[0]).convert("RGB")
    assert made.size == shown.size, f"run: python docs/gallery.py {name}"
    # Processors differ in the last digits of scores, and so in the shade of a colour.
    apart = np.abs(np.asarray(made, dtype=float) - np.asarray(shown, dtype=float))
    assert apart.mean() < 1.0, f"run: python docs/gallery.py {name}"
    assert (apart.max(axis=-1) > 48).mean() < 0.002, f"run: python docs/gallery.py {name}"


@pytest.mark.parametrize("name", GALLERY.GALLERY)
def test_a_page_has_few_lines_and_its_picture_and_says_which_models_know_nothing(name):
    page = text(name)
    assert f"]({name}.png)" in page
    assert ("random weights" in page) != GALLERY.GALLERY[name].trained
    picture = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    assert f'save("{name}.png")' in picture
    assert picture.count(">>>") <= (6 if name != "arrays" else 10)
    assert (GALLERY.PAGES / f"{name}.png").stat().st_size < 150_000


def test_every_page_is_listed():
    files = {path.stem for path in GALLERY.PAGES.glob("*.md")} - {"index"}
    assert files == set(GALLERY.GALLERY)
    assert {path.stem for path in GALLERY.PAGES.glob("*.png")} == files
    assert set(re.findall(r"^\| \[[^]]+\]\((.+?)\.md\)", text("index"), re.MULTILINE)) == files
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(config.partition("\nexclude_docs")[0])["nav"]
    [listed] = [entry["Gallery"] for entry in nav if isinstance(entry, dict) and "Gallery" in entry]
    assert set(listed) == {f"gallery/{name}.md" for name in (*files, "index")}
