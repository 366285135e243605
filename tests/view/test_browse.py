"""A data set in a real browser: what is listed, found and opened, and what is not let happen."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import attnflow
from attnflow import attention_rollout
from attnflow.cli import main
from attnflow.dataset import TextAttention
from attnflow.dataset.attentions import Kept, attentions_file
from attnflow.dataset.shard import Shard
from attnflow.dataset.store import Store
from attnflow.view.browse import browse, explain_row

HOSTILE = (
    "<script>window.ran = 1</script>",
    '"><img src=x onerror="window.ran = 1">',
    "</script>",
    "<!--",
    "&lt;",
    "\x00\x07\x1b[31m",
    "\u202eevil",
    "\u2028",
    "👩\u200d👩\u200d👧",
    "مرحبا",
    "${this}",
    "x" * 10_000,
)
WORDS = ("The", "keys", "to", "the", "old", "cabinet")
OPTIONS = {
    "method": "rollout", "layer": -1, "position": "auto", "edges": "attention", "target": None,
    "heads": "mean", "residual": 0.5, "receptive_field": "auto", "units": "tokens",
    "special_tokens": True, "drop_sink": False, "truncate": False, "keep_heads": False,
}  # fmt: skip


def attention_of(seed, count, layers=3):
    weights = np.random.default_rng(seed).random((layers, count, count)) ** 4 + 1e-3
    return weights / weights.sum(axis=-1, keepdims=True)


def words_of(number):
    """The words of a row, each other than those of the row before."""
    return [WORDS[(number + i) % len(WORDS)] for i in range(3 + number % 3)]


def write(folder, rows, *, keep=(), errors=(), shard_rows=40, name="reviews.jsonl", **changes):
    """Write the output of a run of given words: a list of lists; no model is needed for that."""
    header = {
        "attnflow": attnflow.__version__,
        "model": "models/tiny <b>",
        "fingerprint": "f" * 32,
        "task": "classification",
        "options": {**OPTIONS, "id_column": None, "shard_rows": shard_rows, **changes},
        "source": {"name": f"/data/{name}", "files": []},
    }
    named = header["options"]["id_column"] is not None
    signed = header["options"]["method"] == "contribution"
    with Store(folder, header) as store:
        for shard, start in enumerate(range(0, len(rows), shard_rows)):
            lines, kept = [], []
            for number in range(start, min(start + shard_rows, len(rows))):
                text = TextAttention.of(attention_of(number, len(rows[number]) + 1), None)
                tokens = ["[CLS]", *rows[number]]
                text = TextAttention.of(text.attention, tokens, name=header["model"])
                found = text.explain(method="rollout")
                scores = found.scores - (0.15 if signed else 0.0)
                answer = attnflow.explanation.Prediction(
                    "plural" if number % 3 else "<i>singular</i>", number % 3, 1 / (1 + number / 9)
                )
                lines.append(
                    {
                        "row": number,
                        "id": f"key-{number}" if named else number,
                        "text": text.text,
                        "tokens": tokens,
                        "scores": scores.tolist(),
                        "special": list(text.special),
                        "starts": [span and span[0] for span in text.spans],
                        "ends": [span and span[1] for span in text.spans],
                        "layer": 3,
                        "position": 0,
                        "target": answer.label,
                        **({"contrast": "other", "value": 0.5, "bias": -0.25} if signed else {}),
                        "predicted": answer.label,
                        "probability": answer.probability,
                        "saturation": None,
                        "notes": ["A <b>note</b>."] if number == 1 else [],
                        "stars": number % 5,
                    }
                )
                if number in keep:
                    about = {
                        "text": text.text,
                        "tokens": tokens,
                        "spans": text.spans,
                        "special": text.special,
                        "places": text.places,
                        "position": 0,
                        "prediction": answer,
                        "target": answer.label,
                    }
                    mask = np.ones((3, 2 * len(tokens) - 1), dtype=bool)
                    arrays = {"": text.attention.astype(np.float32), ".mask": mask}
                    kept.append((number, number, Kept(arrays, about)))
            failed = [
                {"row": 900 + i, "id": None, "place": f"line {i}", "reason": reason, "text": "x"}
                for i, reason in enumerate(errors if shard == 0 else ())
            ]
            store.add(
                shard,
                Shard(
                    parquet(lines),
                    parquet(failed) if failed else None,
                    len(lines),
                    len(failed),
                    None,
                    attentions_file(kept, "float32", header),
                ),
                "",
            )
        if not changes.get("unfinished"):
            store.finish()
    return folder


def parquet(records):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records), sink)
    return sink.getvalue().to_pybytes()


# ---- The browser ---------------------------------------------------------------------------------


@pytest.fixture
def show(browser, tmp_path):
    contexts, every = [], []

    def open_page(folder, *, width=1100, height=900, at="", scripts=True, limits=None, **options):
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(browse(folder, **(limits or {})), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": height}, java_script_enabled=scripts, **options
        )
        contexts.append(context)
        page = context.new_page()
        complaints, requests = [], []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        every.append((path, complaints, requests))
        page.goto(path.as_uri() + at)
        if scripts:
            page.locator(".browse[data-view]").wait_for()
        return page

    yield open_page
    for path, complaints, requests in every:
        assert complaints == []
        assert {url.partition("#")[0] for url in requests} == {path.as_uri()}
    for context in contexts:
        context.close()


def shown_rows(page):
    """The numbers of the rows that are listed."""
    links = page.locator("table.rows tbody a").all()
    return [int(link.get_attribute("href").removeprefix("#row=")) for link in links]


def settle(page, /, **state):
    wanted = "".join(f"[data-{name}='{value}']" for name, value in state.items())
    page.locator(f".browse{wanted}").wait_for()


def violations(page):
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        pytest.fail("this test needs axe: run pip install axe-playwright-python")
    return [
        (violation["id"], [node["html"][:200] for node in violation["nodes"]])
        for violation in Axe().run(page).response["violations"]
    ]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A data set of 60 rows without attention, of which two failed."""
    folder = tmp_path_factory.mktemp("plain") / "out"
    rows = [words_of(number) for number in range(60)]
    return write(folder, rows, errors=["the text is empty", "<u>too long</u>"])


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "out"
    return write(folder, [words_of(number) for number in range(6)], keep=(0, 1, 2, 3, 4, 5))


# ---- The list ------------------------------------------------------------------------------------


def test_rows_are_listed_with_their_tokens_shaded(show, plain):
    page = show(plain)
    assert page.locator("h1").inner_text() == "reviews.jsonl"
    subtitle = page.locator(".subtitle").inner_text()
    assert re.search("60 rows.*rollout.*last layer.*models/tiny <b>", subtitle)
    assert shown_rows(page) == list(range(25))
    line = page.locator("tbody tr").nth(4)
    assert line.locator(".line").inner_text() == " ".join(["[CLS]", *words_of(4)])
    assert line.locator("td").nth(1).inner_text() == "plural"
    assert line.locator("td").nth(2).inner_text().strip() == "69.2 %"
    colours = [
        token.evaluate("element => getComputedStyle(element).backgroundColor")
        for token in line.locator(".token:not(.special)").all()
    ]
    # Lighter colours for lower scores.
    light = [sum(int(part) for part in re.findall(r"\d+", colour)) for colour in colours]
    scores = attention_rollout(attention_of(4, 1 + len(words_of(4))))[-1, 0, 1:]
    assert np.argsort(light).tolist() == np.argsort(-scores).tolist()
    about = page.locator(".about").inner_text()
    for part in ("models/tiny <b>", "classification", "rollout", "f" * 32):
        assert part in about


def test_rows_are_searched_filtered_ordered_and_paged(show, plain):
    page = show(plain)
    page.locator("[data-turn=next]").click()
    settle(page, page=2)
    assert shown_rows(page) == list(range(25, 50))
    page.locator("#browse-size").select_option("100")
    settle(page, page=1)
    assert shown_rows(page) == list(range(60))
    page.locator("#browse-search").fill("CABINET")
    having = [n for n in range(60) if "cabinet" in words_of(n)]
    settle(page, shown=len(having))
    assert shown_rows(page) == having
    assert page.locator("tbody .hit").count() == len(having)
    page.locator("#browse-order").select_option("found")
    scores = {n: row_scores(n)["cabinet"] for n in having}
    assert shown_rows(page) == sorted(having, key=lambda n: -scores[n])
    said = page.locator("tbody .found").first.inner_text()
    assert float(said.rpartition(":")[2]) == pytest.approx(max(scores.values()), rel=6e-3)
    page.locator("#browse-search").fill("")
    settle(page, shown=60)
    page.locator("#browse-order").select_option("unsure")
    assert shown_rows(page) == list(range(59, -1, -1))
    page.locator("#browse-answer").select_option(label="<i>singular</i> (20)")
    settle(page, shown=20)
    assert shown_rows(page) == list(range(57, -1, -3))
    page.locator("#browse-search").fill("nowhere")
    settle(page, shown=0)
    assert "no row" in page.locator(".empty").inner_text()


def row_scores(number):
    words = words_of(number)
    scores = attention_rollout(attention_of(number, 1 + len(words)))[-1, 0, 1:]
    return {word.lower(): score for word, score in zip(words, scores, strict=True)}


def test_rows_that_failed_are_listed_with_their_reasons(show, plain):
    page = show(plain)
    page.locator("[data-errors=true]").click()
    settle(page, view="errors")
    text = page.locator("table.errors").inner_text()
    assert re.search("text.*empty", text)
    assert "<u>too long</u>" in text
    page.locator("#browse-search").fill("long")
    settle(page, shown=1)


def test_the_keyboard_does_it_all(show, plain):
    page = show(plain)
    page.keyboard.press("/")
    page.keyboard.type("keys")
    assert page.locator("#browse-search").input_value() == "keys"
    page.locator("#browse-search").fill("")
    focused = "document.activeElement.getAttribute('href')"
    page.locator("tbody a").first.focus()
    for key, expected in (
        ("ArrowDown", "#row=1"),
        ("End", "#row=24"),
        ("ArrowDown", "#row=25"),
        ("ArrowUp", "#row=24"),
        ("Home", "#row=0"),
        ("ArrowUp", "#row=0"),
    ):
        page.keyboard.press(key)
        assert page.evaluate(focused) == expected
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    settle(page, view="row", row=1)
    assert page.evaluate("document.activeElement.dataset.go") == "list"
    page.keyboard.press("Escape")
    settle(page, view="rows")
    assert page.evaluate(focused) == "#row=1"
    page.locator("[data-theme-choice][aria-checked=true]").first.focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".browse").get_attribute("data-theme") == "dark"


# ---- One row -------------------------------------------------------------------------------------


def test_a_row_opens_with_its_scores_and_what_else_it_has(show, plain):
    page = show(plain)
    page.locator("tbody tr").nth(1).locator("td").first.click()
    settle(page, view="row", row=1)
    assert page.locator("h1").inner_text() == "Row 1"
    assert page.locator(".text").inner_text() == " ".join(["[CLS]", *words_of(1)])
    scores = {
        line.locator("th").inner_text(): float(line.locator("td").first.inner_text())
        for line in page.locator("table.tokens tbody tr").all()
    }
    for word in words_of(1):
        assert scores[word] == pytest.approx(row_scores(1)[word.lower()], rel=6e-3)
    assert page.locator(".notes").inner_text().strip() == "A <b>note</b>."
    assert "stars" in page.locator("dl").inner_text().lower()
    assert "attnflow run --keep attentions" in page.locator(".hint").inner_text()
    page.locator("[data-go=after]").click()
    settle(page, row=2)
    page.go_back()
    settle(page, row=1)
    page.locator("[data-go=list]").click()
    settle(page, view="rows")


def test_a_row_whose_attention_was_kept_opens_in_the_full_page(show, kept):
    page = show(kept, limits={"pages": 5}, at="#row=3")
    settle(page, view="full", row=3)
    page.locator(".attnflow[data-flow=done]").wait_for()
    assert "information" in page.locator("h1").inner_text()
    page.locator("[data-method-choice=flow]").click()
    page.locator(".token[data-token='2']").click()
    page.locator(".attnflow[data-method=flow][data-position='2'][data-flow=done]").wait_for()
    page.locator("details.numbers summary").click()
    page.locator("details.numbers tbody tr").first.wait_for()
    cells = page.locator("details.numbers tbody tr td:last-child").all()
    expected = attnflow.attention_flow(
        attention_of(3, 1 + len(words_of(3))).astype(np.float32), positions=[2]
    )[-1, 0]
    found = [float(cell.inner_text()) for cell in cells]
    np.testing.assert_allclose(found, expected, rtol=6e-3)
    # A theme that is chosen there stays.
    page.locator("[data-theme-choice=dark]").click()
    page.locator("[data-go=after]").click()
    settle(page, row=4, theme="dark")
    page.locator("[data-go=after]").click()
    settle(page, view="row", row=5, theme="dark")
    assert "--row 5" in page.locator(".hint code").inner_text()
    assert page.locator(".attnflow").count() == 1
    page.keyboard.press("Escape")
    settle(page, view="rows", theme="dark")


def test_the_page_of_one_row_is_that_of_its_explanation(kept, tmp_path, capsys):
    explanation = explain_row(kept, 2)
    assert explanation.trace is not None
    assert explanation.method == "rollout"
    np.testing.assert_allclose(
        explanation.scores,
        attention_rollout(attention_of(2, 1 + len(words_of(2))))[-1, 0],
        atol=1e-6,
    )
    page = tmp_path / "row.html"
    assert main(["view", str(kept), "--row", "2", "--output", str(page), "--no-open"]) == 0
    assert page.read_text() == explanation.to_html()
    assert main(["view", str(kept), "--row", "99", "--no-open"]) == 1
    assert "row 99" in capsys.readouterr().err


# ---- What it lets nobody do ----------------------------------------------------------------------


def test_hostile_tokens_appear_as_text_everywhere(show, tmp_path):
    rows = [[token, "keys"] for token in HOSTILE]
    folder = write(
        tmp_path / "out",
        rows,
        keep=range(0, len(rows), 2),
        errors=HOSTILE,
        name="</script><script>window.ran=1</script>.txt",
        id_column=HOSTILE[0],
    )
    page = show(folder)
    for number, token in enumerate(HOSTILE):
        line = page.locator("tbody tr").nth(number).locator(".line").text_content()
        if token.isprintable() and len(token) < 1000 and "\u200d" not in token:
            assert token in line
        page.evaluate(f"location.hash = '#row={number}'")
        settle(page, row=number)
        page.locator(".text").wait_for()
        page.evaluate("location.hash = ''")
        settle(page, view="rows")
    assert "👩\u200d👩\u200d👧" in page.locator("table.rows").text_content()
    assert "\u202e" not in page.locator("table.rows").text_content()
    page.locator("[data-errors=true]").click()
    settle(page, view="errors")
    assert HOSTILE[1] in page.locator("table.errors").text_content()
    assert page.evaluate("window.ran === undefined")
    assert page.locator("img").count() == 0
    assert page.locator(".line[dir=rtl]").count() == 0
    page.locator("[data-errors=false]").click()
    assert page.locator(".line[dir=rtl]").count() == 1


def test_without_scripts_the_beginning_is_there(show, plain):
    page = show(plain, scripts=False)
    assert "60 rows" in page.locator("main").inner_text()
    assert page.locator("li").count() == 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_complain_about(show, plain, kept, scheme):
    page = show(plain, color_scheme=scheme)
    assert violations(page) == []
    page.locator("[data-errors=true]").click()
    assert violations(page) == []
    page = show(plain, color_scheme=scheme, at="#row=1")
    assert violations(page) == []


def test_axe_finds_nothing_to_complain_about_in_a_row_of_kept_attention(show, kept):
    page = show(kept, at="#row=1")
    settle(page, view="full")
    page.locator(".attnflow[data-flow=done]").wait_for()
    assert violations(page) == []


def test_a_narrow_screen_has_no_row_to_scroll_sideways(show, plain):
    for at in ("", "#row=1"):
        page = show(plain, width=360, at=at)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


# ---- Large, unfinished and wrong -----------------------------------------------------------------


def test_a_part_of_a_large_data_set_is_said_to_be_one(show, plain):
    page = show(plain, limits={"limit": 30})
    said = page.locator(".part").inner_text()
    assert "first 30 of 60 rows" in said
    page.locator("#browse-size").select_option("50")
    assert shown_rows(page) == list(range(30))
    page = show(plain, limits={"limit": 20, "shuffle": 5})
    assert "20 of 60 rows" in page.locator(".part").inner_text()
    rows = shown_rows(page)
    assert len(set(rows)) == 20
    assert rows == sorted(rows)
    assert max(rows) >= 40


def test_a_file_stays_one_that_opens(plain, kept, monkeypatch):
    monkeypatch.setattr("attnflow.view.browse.MOST_BYTES", 20_000)
    monkeypatch.setattr("attnflow.view.browse.MOST_PAGE_BYTES", 4_000)
    text = browse(plain)
    (count,) = re.findall(r"first (\d+) of 60 rows", text)
    assert 5 < int(count) < 60
    assert 1 <= browse(kept).count('id="attnflow-row-') < 6


def test_an_unfinished_run_is_said_to_be_one(show, tmp_path):
    folder = write(tmp_path / "out", [words_of(0)], unfinished=True)
    assert "not finished" in show(folder).locator(".part").inner_text()


def test_what_is_no_data_set_is_refused(plain, kept, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["view", str(tmp_path / "empty"), "--no-open"]) == 1
    assert re.search(r"manifest\.json.*attnflow run", capsys.readouterr().err)
    for options, message in (
        (["--limit", "0"], "limit.*0"),
        (["--pages", "-1"], "pages.*-1"),
        (["--row", "1"], "scores"),
        (["--output", "x.pdf"], r"\.html"),
    ):
        assert main(["view", str(plain), "--no-open", *options]) == 1
        assert re.search(message, capsys.readouterr().err)
    assert main(["view", str(kept), "--row", "1", "--limit", "3", "--no-open"]) == 1
    assert re.search("--row.*--limit", capsys.readouterr().err)
    (tmp_path / "x.json").write_text("{}")
    assert main(["view", str(tmp_path / "x.json"), "--limit", "3", "--no-open"]) == 1
    assert "--limit" in capsys.readouterr().err


def test_a_damaged_shard_is_named(tmp_path, capsys):
    folder = write(tmp_path / "out", [words_of(0)])
    (folder / "data/part-00000.parquet").write_bytes(b"nothing")
    assert main(["view", str(folder), "--no-open"]) == 1
    assert "part-00000.parquet" in capsys.readouterr().err
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["complete"] = False
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert main(["view", str(folder), "--no-open"]) == 1
    assert "was edited" in capsys.readouterr().err


def test_a_folder_opens_as_a_page_of_its_name(plain, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.chdir(plain)
    assert main(["view", "."]) == 0
    assert capsys.readouterr().out.endswith("out.html\n")
    assert opened[0].endswith("/out.html")


def test_contributions_are_shown_with_their_signs(show, tmp_path):
    rows = [words_of(number) for number in range(3)]
    folder = write(tmp_path / "out", rows, method="contribution")
    page = show(folder)
    assert "Contributions" in page.locator(".subtitle").inner_text()
    read = (
        "tokens => tokens.map(token => "
        "[Number(token.title), getComputedStyle(token).textDecorationLine, "
        "getComputedStyle(token).backgroundColor.match(/\\d+/g).map(Number)])"
    )
    tokens = page.locator("table.rows .token:not(.special)").evaluate_all(read)
    assert {score < 0 for score, *_ in tokens} == {True, False}
    for score, line, (red, _, blue) in tokens:
        assert (line == "underline") == (score < 0)
        assert score == 0 or (red > blue) == (score < 0)
    page.locator("table.rows tbody a").first.click()
    settle(page, view="row")
    subtitle = page.locator(".subtitle").inner_text()
    assert "together +0.500, of that biases -0.250" in subtitle
    assert "\u2068other\u2069" in subtitle
    numbers = page.locator("table.tokens tbody td:nth-child(2)").all_inner_texts()
    assert all(number[0] in "+-" for number in numbers)
    assert violations(page) == []
