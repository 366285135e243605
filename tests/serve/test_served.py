"""The page that attnflow serve gives, in a real browser."""

import http.server
import json
import re
import threading

import numpy as np
import pytest
import transformers

from tests.support.chat import chatter
from tests.support.serving import HOSTILE, LONGEST, TOKEN, serving
from tests.support.text import VOCABULARY, classifier

ROLLOUT = "Attention rollout"


class Shown:
    """A served page, and what it complained about and asked for."""

    def __init__(self, page, server):
        self.page = page
        self.complaints = []
        self.requests = []
        self.server = server
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path=""):
        self.page.goto(f"{self.server.address}{path}")
        return self

    def ready(self, results=1, **state):
        wanted = "".join(f"[data-{name}='{value}']" for name, value in state.items())
        self.page.locator(".ask:not([aria-busy]) form[aria-label]").wait_for()
        for result in range(results):
            self.page.locator(f"[data-result='{result}'][data-flow=done]{wanted}").wait_for()
        assert self.page.locator("[data-result]").count() == results
        return self

    def explain(self, text):
        self.page.locator("#text").fill(text)
        self.page.get_by_role("button", name="Explain").click()
        return self

    def compare(self, text):
        """Compare what is there with another text."""
        self.page.get_by_label("Compare with another").check()
        self.page.locator("#compare").fill(text)
        self.page.keyboard.press("Enter")
        return self.ready(2)

    def choose(self, **values):
        """Choose options by their values, one after the other."""
        for name, value in values.items():
            self.page.locator(f"#{name}").evaluate(
                "field => field.closest('details')?.setAttribute('open', '')"
            )
            self.page.locator(f"#{name}").select_option(label=value)
            self.ready(self.page.locator("[data-result]").count())
        return self


@pytest.fixture
def show(browser):
    contexts, every = [], []

    def open_page(server, **options):
        context = browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **options})
        contexts.append(context)
        shown = Shown(context.new_page(), server)
        every.append(shown)
        return shown

    yield open_page
    for shown in every:
        assert shown.complaints == []
        assert all(url.startswith((shown.server.address, "blob:")) for url in shown.requests)
        assert shown.page.context.cookies() == []
    for context in contexts:
        context.close()


# ---- One text ------------------------------------------------------------------------------------


def test_a_text_is_typed_and_its_answer_comes_first(show, server):
    shown = show(server).open().ready()
    page = shown.page
    assert page.locator(".contribution h1").inner_text() == "VBP (plural), not VBZ (singular)"
    page.locator("#text").fill("the key to the old cabinets")
    page.keyboard.press("Enter")
    page.locator(".text-part").get_by_text("[CLS] the key to the old cabinets").wait_for()
    shown.ready()
    assert page.locator(".contribution h1").inner_text() == "VBZ (singular), not VBP (plural)"
    assert "Explained in" in page.locator(".progress").inner_text()
    # Only what this model can do is offered.
    assert page.get_by_role("radio", name="A chat").count() == 0
    assert page.get_by_text("Let it write").count() == 0
    assert page.locator("#max_new_tokens").count() == 0


def test_classes_are_chosen_by_what_they_mean_and_units_and_the_check_are_there(
    show, server, explainer
):
    shown = show(server).open().ready()
    page = shown.page
    shown.choose(target="VBZ (singular)", contrast="VBP (plural)", units="words")
    title = page.locator(".contribution h1")
    title.get_by_text("VBZ (singular), not VBP (plural)").wait_for()
    assert page.locator(".verdict").count() == 0
    page.get_by_label("Check by blanking out each part").check()
    page.locator(".verdict").wait_for()
    expected = explainer.explain("The keys to the cabinet", target="VBZ", units="words", check=True)
    assert expected.check.summary in page.locator(".verdict").inner_text()


def test_a_text_that_is_too_long_is_cut_by_the_control_that_the_error_names(show, server):
    shown = show(server).open().ready()
    page = shown.page
    shown.explain("the keys " * 100)
    alert = page.locator(".problem[role=alert]")
    alert.get_by_text("The text has 201 tokens and the model takes 128").wait_for()
    said = alert.inner_text()
    (name,) = re.findall("tick \u201c(.*)\u201d", said)
    # What was there would be taken for the answer.
    assert page.locator("[data-result]").count() == 0
    page.get_by_label(name).check()
    shown.ready()
    assert alert.inner_text() == ""
    assert (
        "The text was cut: the model read 127 of its 200 tokens"
        in page.locator(".notes").inner_text()
    )


def test_an_option_without_effect_is_disabled_and_says_why(show, server):
    shown = show(server).open().ready()
    page = shown.page
    page.get_by_text("Advanced").click()

    def state(name):
        field = page.locator(f"#{name}")
        said = [
            page.locator(f"#{one}").inner_text()
            for one in field.get_attribute("aria-describedby").split()
        ]
        return field.is_disabled(), " ".join(said)

    for name in ("layer", "edges", "heads"):
        assert state(name) == (True, "No effect on Contributions.")
    assert state("target") == (False, "")
    shown.choose(method=ROLLOUT)
    for name in ("layer", "edges", "heads"):
        assert state(name) == (False, "")
    for name in ("target", "contrast"):
        assert state(name) == (True, "No effect on Attention rollout.")
    # The target is the class whose gradient weighs the edges.
    shown.choose(edges="attention times its gradient")
    assert state("target") == (False, "")
    assert page.locator("#heads option:not([disabled])").count() == 1


def test_method_layer_head_and_edges_are_switched(show, server, explainer):
    shown = show(server).open().ready()
    page = shown.page
    shown.choose(method="Attention flow", layer="3").ready(method="flow", layer=3)
    # And back: what is chosen in the page is shown in the form.
    page.locator("[data-method-choice=raw]").click()
    page.get_by_role("slider", name="Layer").fill("2")
    shown.ready(method="raw", layer=2)
    chosen = "field => field.selectedOptions[0].textContent"
    assert page.locator("#method").evaluate(chosen) == "Raw attention"
    assert page.locator("#layer").evaluate(chosen) == "2"
    page.locator("[data-result] .slider select").select_option("5")
    shown.ready(method="raw", layer=2, head=5)
    for choice, options in (
        ({"heads": "head 4 alone"}, {"heads": 4}),
        ({"heads": "mean of all"}, {}),
        ({"edges": "the norm of what attention moves"}, {"edges": "value_norm"}),
        ({"edges": "attention times its gradient"}, {"edges": "gradient"}),
    ):
        shown.choose(**choice).ready(method="raw", layer=2)
        table = page.locator("details.numbers")
        table.locator("summary").click()
        table.locator("tbody tr").first.wait_for()
        found = [
            float(row.locator("td").first.inner_text()) for row in table.locator("tbody tr").all()
        ]
        expected = explainer.explain(
            "The keys to the cabinet", method="raw", layer=2, **options
        ).scores
        np.testing.assert_allclose(found, expected, rtol=6e-3, atol=1e-4)


# ---- Two texts -----------------------------------------------------------------------------------


def bars(page):
    """Return the numbers and the signed lengths of all bars, a row a pair of tokens."""
    return np.array(
        page.locator(".pairs tbody").evaluate(
            """body => Array.from(body.rows, row =>
              Array.from(row.querySelectorAll(".bar-line"), line => {
                const fill = line.querySelector(".fill");
                const zero = line.querySelector(".zero").getBoundingClientRect().left;
                const { left, width } = fill.getBoundingClientRect();
                const side = fill.classList.contains("against") ? -1 : 1;
                const value = Number(line.querySelector(".value").textContent);
                return [value, side * width, (side < 0 ? left + width : left) - zero];
              }))"""
        )
    )


@pytest.mark.parametrize("signed", [True, False])
def test_two_texts_are_compared_on_one_scale(show, server, explainer, signed):
    shown = show(server).open().ready()
    page = shown.page
    texts = ("The keys to the cabinet", "The key to the cabinet")
    if not signed:
        shown.choose(method=ROLLOUT)
    page.get_by_label("Compare with another text").check()
    assert page.locator("#compare").input_value() == texts[0]
    shown.compare(texts[1])
    expected = np.array(
        [
            explainer.explain(
                text, **({"target": "VBP"} if signed else {"method": "rollout"})
            ).scores
            for text in texts
        ]
    ).T
    found = bars(page)
    np.testing.assert_allclose(found[:, :, 0], expected, atol=6e-3 if signed else 6e-4)
    long = abs(found[:, :, 1]) > 12
    assert long.sum() > 4
    scale = found[:, :, 1][long] / expected[long]
    np.testing.assert_allclose(scale, scale.mean(), rtol=0.05)
    assert (abs(found[:, :, 2]) < 1.5).all()
    words = page.locator(".comparison").inner_text()
    assert "The answer goes from \u201c\u2068VBP (plural)\u2069\u201d to" in words
    cards = page.locator(".answers .card").all_inner_texts()
    assert all(text in card for text, card in zip(texts, cards, strict=True))
    assert "VBP (plural)" in cards[0]
    assert "VBZ (singular)" in cards[1]
    assert page.locator(".pairs tr.differs").count() == 1
    assert "keys" in page.locator(".comparison .finding").inner_text()
    # The headline and the help are there once.
    assert page.locator("h1:visible").count() == 1
    assert page.get_by_text("is not a word of the text").locator("visible=true").count() == signed
    boxes = [page.locator(f"[data-result='{i}']").bounding_box() for i in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"]


def test_both_pages_show_the_same_and_one_stays_when_the_other_goes(show, server, explainer):
    shown = show(server).open().ready().choose(method=ROLLOUT).compare("The key to the cabinet")
    page = shown.page
    texts = ("The keys to the cabinet", "The key to the cabinet")
    for layer, method, name in (
        (2, "rollout", ROLLOUT),
        (2, "raw", "Raw attention"),
        (3, "flow", "Attention flow"),
    ):
        shown.choose(method=name, layer=str(layer)).ready(2, method=method, layer=layer)
        expected = [explainer.explain(text, method=method, layer=layer).scores for text in texts]
        np.testing.assert_allclose(bars(page)[:, :, 0], np.array(expected).T, atol=6e-4)
    # What is looked at stays what it is when edges are switched.
    page.locator("[data-result='0'] .token[data-token='2']").click()
    shown.ready(2, position=2)
    shown.choose(edges="the norm of what attention moves").ready(2, position=2)
    page.get_by_label("Compare with another text").uncheck()
    shown.ready(1)
    assert page.locator(".comparison").count() == 0


def test_texts_of_different_length_are_paired_where_they_agree(show, server):
    shown = show(server).open().ready()
    page = shown.page
    shown.compare("The rusty keys to cabinet doors")
    rows = [
        (row.locator("th").inner_text(), row.locator(".name").inner_text())
        for row in page.locator(".pairs tbody tr").all()
    ]
    assert rows == [
        ("[CLS]", "[CLS]"),
        ("The", "The"),
        ("\u2013", "rusty"),
        ("keys", "keys"),
        ("to", "to"),
        ("the", "\u2013"),
        ("cabinet", "cabinet"),
        ("\u2013", "doors"),
    ]


# ---- Pairs, chats and generations ----------------------------------------------------------------


def test_a_model_of_pairs_is_given_two_texts(show, tmp_path):
    pairs = classifier()
    pairs.model.save_pretrained(tmp_path)
    transformers.BertTokenizerFast(vocab=VOCABULARY).save_pretrained(tmp_path)
    with serving("--model", str(tmp_path)) as other:
        shown = show(other).open().ready()
        page = shown.page
        page.get_by_label("Two texts, as a pair").check()
        page.locator("#text-first").fill("the keys")
        page.locator("#text-second").fill("a film")
        page.keyboard.press("Enter")
        page.locator(".text-part").get_by_text("second: ").wait_for()
        shown.ready()
        assert page.locator(".text-part .text").inner_text() == (
            "first: [CLS] the keys [SEP]\nsecond: a film [SEP]"
        )
        page.get_by_label("Compare with another pair").check()
        page.locator("#compare-second").fill("a table")
        page.keyboard.press("Enter")
        shown.ready(2)
        second = page.locator("[data-result='1'] .text-part .text").inner_text()
        assert "first: [CLS] the keys [SEP]\nsecond: a table [SEP]" in second


def chatting(shown, *messages):
    """Write a chat."""
    page = shown.page
    page.get_by_label("A chat").check()
    while page.get_by_role("button", name="Remove").count() > 1:
        page.get_by_role("button", name="Remove message 2").click()
    for number, (role, content) in enumerate(messages, start=1):
        if number > 1:
            page.get_by_role("button", name="Add a message").click()
        page.get_by_role("combobox", name=f"Role of message {number}").select_option(role)
        page.get_by_role("textbox", name=f"Message {number}", exact=True).fill(content)
    return shown


def test_a_chat_is_written_message_by_message_and_explained(show, writer):
    shown = show(writer).open().ready()
    page = shown.page
    chatting(shown, ("system", "a film"), ("user", "the keys"), ("assistant", "no"))
    page.get_by_role("button", name="Remove message 3").click()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Message 2"
    page.keyboard.press("Enter")
    shown.ready()
    page.locator(".contribution .text").get_by_text("system:").wait_for()
    expected = chatter().explain(
        [{"role": "system", "content": "a film"}, {"role": "user", "content": "the keys"}]
    )
    title = page.locator(".contribution h1").inner_text()
    assert repr(expected.target.strip())[1:-1] in title
    # What it might have answered, and instead of what.
    page.get_by_label("Answer", exact=True).fill("table")
    page.get_by_label("Rather than").fill("film")
    page.keyboard.press("Enter")
    page.locator(".contribution h1").get_by_text("'table', not 'film'").wait_for()
    # By message.
    shown.choose(units="segments")
    page.locator(".contribution .bars svg[aria-label*=system]").wait_for()


def test_a_model_writes_and_what_it_wrote_is_explained(show, writer):
    shown = show(writer).open().ready()
    page = shown.page
    chatting(shown, ("user", "the keys"))
    page.get_by_label("Let it write").check()
    for name in ("target", "comparing"):
        assert page.locator(f"#{name}").is_hidden() or name == "comparing"
    assert page.get_by_label("Compare with").is_hidden()
    assert page.get_by_label("Check by blanking out").is_disabled()
    page.get_by_label("Write at most").fill("4")
    page.get_by_role("button", name="Let it write").click()
    page.locator("[data-result].generation[data-flow=done]").wait_for()
    shown.ready()
    expected = chatter().generate([{"role": "user", "content": "the keys"}], max_new_tokens=4)
    written = page.locator("[data-result] .answer-bar").inner_text()
    assert expected.text.strip().split()[0] in written
    assert "Written and explained in" in page.locator(".progress").inner_text()
    # Sampling has its own options, which have no effect without it.
    page.get_by_text("Advanced").click()
    assert page.get_by_label("Temperature").is_disabled()
    page.get_by_label("Draw words at random").check()
    page.get_by_label("Temperature").fill("3")
    page.get_by_label("Seed").fill("5")
    page.get_by_role("button", name="Let it write").click()
    page.locator(".ask[aria-busy]").wait_for(state="detached")
    shown.ready()
    again = chatter().generate(
        [{"role": "user", "content": "the keys"}],
        max_new_tokens=4,
        do_sample=True,
        temperature=3.0,
        seed=5,
    )
    assert again.text.strip().split()[0] in page.locator("[data-result] .answer-bar").inner_text()
    page.get_by_label("Write at most").fill("13")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("max_new_tokens is 13; expected an integer").wait_for()
    assert page.locator("[data-result]").count() == 0
    # The browser says that the request was refused.
    assert len(shown.complaints) == 1
    shown.complaints.clear()


def test_writing_can_be_watched_and_stopped(show, writer):
    shown = show(writer).open().ready()
    page = shown.page
    writer.gate.unlink()
    page.get_by_label("Let it write").check()
    page.locator("#text").fill("please wait")
    page.keyboard.press("Enter")
    page.get_by_text("The model writes: 2 of at most 12 tokens").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    writer.gate.touch()
    writer.until("attnflow_running", 0)


# ---- What stays ----------------------------------------------------------------------------------


def test_a_reload_keeps_what_was_chosen_and_typed_and_a_link_only_what_was_chosen(show, server):
    shown = show(server).open().ready()
    page = shown.page
    shown.explain("the key to the cabinets").ready()
    shown.choose(method=ROLLOUT, layer="4", units="words").compare("the keys to the cabinets")
    page.locator("[data-result='0'] .token[data-token='2']").click()
    shown.ready(2, method="rollout", layer=4, position=2)
    page.wait_for_url("**position**")
    address = page.url
    for word in ("key", "cabinets"):
        assert word not in address
    page.reload()
    shown.ready(2, method="rollout", layer=4, position=2)
    assert page.locator("#text").input_value() == "the key to the cabinets"
    assert page.locator("#compare").input_value() == "the keys to the cabinets"
    chosen = "field => field.selectedOptions[0].textContent"
    assert page.locator("#units").evaluate(chosen) == "words"
    linked = (
        show(server)
        .open(address.removeprefix(server.address))
        .ready(2, method="rollout", layer=4, position=2)
    )
    assert linked.page.locator("#text").input_value() == "The keys to the cabinet"


def test_a_link_with_anything_in_it_opens_the_page(show, writer):
    words = "do=fly&input=pair&method=sum&layer=99&view=layer%3Dx&units=&check=maybe&__proto__=1"
    shown = show(writer).open(f"#{words}").ready()
    assert shown.page.get_by_role("radio", name="A text").is_checked()
    shown = show(writer).open("#do=write&max_new_tokens=3&view=tokens%3D1&target=secret").ready()
    shown.page.locator("[data-result].generation[data-selection='1-1']").wait_for()


def test_what_is_typed_for_a_language_model_is_not_in_the_address(show, writer):
    shown = show(writer).open().ready()
    page = shown.page
    page.get_by_label("Answer", exact=True).fill("table")
    page.get_by_label("Answer", exact=True).press("Tab")
    page.locator(".contribution h1").get_by_text("'table'").wait_for()
    shown.ready()
    page.wait_for_timeout(300)
    assert page.evaluate("history.state.typed.options") == {"target": "table"}
    assert "table" not in page.url
    page.reload()
    shown.ready()
    assert page.get_by_label("Answer", exact=True).input_value() == "table"
    page.locator(".contribution h1").get_by_text("'table'").wait_for()


def test_the_page_asks_for_the_token_and_keeps_it_to_itself(show, gated):
    gated.gate.touch()
    shown = show(gated).open()
    page = shown.page
    page.get_by_label("Token").fill("not the token of it")
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("This is not the token of the server.").wait_for()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Go on").click()
    shown.ready()
    # The browser says that the first two requests were refused.
    assert len(shown.complaints) == 2
    assert all("401" in text for text in shown.complaints)
    shown.complaints.clear()
    other = show(gated).open(f"#token={TOKEN}").ready()
    assert TOKEN not in other.page.url
    assert other.page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]
    assert TOKEN not in json.dumps(other.page.evaluate("history.state"))
    assert not any(TOKEN in url for url in other.requests)


def test_a_slow_answer_can_be_watched_and_stopped(show, gated):
    gated.gate.touch()
    shown = show(gated).open(f"#token={TOKEN}").ready()
    gated.gate.unlink()
    page = shown.page
    page.locator("#text").fill("please wait")
    page.keyboard.press("Enter")
    page.get_by_text("The model reads the text").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    gated.gate.touch()
    gated.until("attnflow_running", 0)


# ---- For everybody -------------------------------------------------------------------------------


def test_hostile_texts_are_text(show, server):
    shown = show(server).open().ready()
    page = shown.page
    page.get_by_label("Compare with another text").check()
    page.locator("#compare").fill(" ".join(HOSTILE))
    page.locator("#text").fill(LONGEST)
    page.get_by_role("button", name="Explain").click()
    page.locator(".comparison").get_by_text("onerror").first.wait_for()
    shown.ready(2)
    first, second = (
        page.locator(f"[data-result='{i}'] .text-part .text").inner_text() for i in (0, 1)
    )
    assert LONGEST in first
    for part in ("<script>window.ran = 1</script>", "</script>", "&lt;", "\u241b[31m"):
        assert part in second
    for method in ("Raw attention", ROLLOUT, "Attention flow"):
        shown.choose(method=method)
    assert page.evaluate("window.ran") is None
    assert page.locator("main script, main img, main iframe").count() == 0
    assert page.locator("script").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 1300


def test_hostile_messages_are_text(show, writer):
    shown = show(writer).open().ready()
    page = shown.page
    chatting(shown, ("system", " ".join(HOSTILE)), ("user", HOSTILE[1]))
    page.keyboard.press("Enter")
    page.locator("[data-result]").get_by_text("onerror").first.wait_for()
    shown.ready()
    page.get_by_label("Let it write").check()
    page.get_by_label("Write at most").fill("2")
    page.keyboard.press("Enter")
    page.locator("[data-result].generation[data-flow=done]").wait_for()
    assert "<script>window.ran" in page.locator("[data-result]").inner_text()
    assert page.evaluate("window.ran") is None
    assert page.locator("main script, main img, main iframe").count() == 0


def test_every_field_is_reached_by_the_keyboard(show, writer):
    shown = show(writer).open().ready()
    page = shown.page
    page.locator("#doing-explain").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_label("Let it write").is_checked()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert page.get_by_label("A chat").is_checked()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.advanced > summary')"):
            page.keyboard.press("Enter")
        inside, name = page.evaluate(
            """(() => { const one = document.activeElement;
              return [Boolean(one.closest(".ask")),
                one.getAttribute("aria-label") || one.labels?.[0]?.textContent || one.textContent];
            })()"""
        )
        if not inside:
            break
        reached.append(name)
    assert reached == [
        "Role of message 1",
        "Message 1",
        "Add a message",
        "Method",
        "Scores of",
        "Rather than",
        "Write at most (tokens)",
        "Draw words at random",
        "Advanced",
        "What these do",
        "Let it write",
        "The interface for programs",
    ]


def test_a_page_of_another_site_cannot_drive_the_server(browser, server):
    asked = f"{server.address}api/explain"
    tried = f"""
    <!doctype html><title>evil</title><img src="{server.address}metrics">
    <form method="post" enctype="text/plain" action="{asked}" target="frame">
    <input name='{{"text": "the keys", "target": "' value='"}}'></form>
    <iframe name="frame"></iframe>
    <script>
    const send = (kind) => fetch("{asked}", {{
      method: "POST", mode: kind ? "cors" : "no-cors", body: '{{"text": "the keys"}}',
      headers: kind ? {{ "Content-Type": kind }} : {{}} }}).then(() => "answered", () => "refused");
    document.forms[0].submit();
    Promise.all([send(""), send("text/plain"), send("application/json")])
      .then((all) => {{ document.title = all.join(); }});
    </script>
    """

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(tried.encode())

        def log_message(self, *_):
            pass

    before = server.metric('attnflow_questions_total{outcome="done"}')
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as evil:
        threading.Thread(target=evil.serve_forever, daemon=True).start()
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(f"http://localhost:{evil.server_address[1]}/")
            page.wait_for_function("document.title !== 'evil'")
            # An answer of no-cors cannot be read; that nothing was done is counted below.
            assert page.title().split(",")[1:] == ["refused", "refused"]
        evil.shutdown()
    assert server.metric('attnflow_questions_total{outcome="done"}') == before
    assert server.metric('attnflow_requests_total{path="/api/explain",status="403"}') > 0


def test_the_description_is_a_page_without_scripts(show, server):
    shown = show(server, java_script_enabled=False).open("docs")
    words = shown.page.locator("main").inner_text()
    for part in ("POST /api/explain", "receptive_field", "Attnflow-Client", "application/x-ndjson"):
        assert part in words
    assert shown.page.locator("script").count() == 0


def violations(page):
    from axe_playwright_python.sync_playwright import Axe

    return [
        (violation["id"], [node["html"][:200] for node in violation["nodes"]])
        for violation in Axe().run(page).response["violations"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_complain_about(show, server, gated, scheme):
    shown = show(server, color_scheme=scheme).open().ready().compare("The key to the cabinet")
    shown.page.get_by_text("Advanced").click()
    shown.page.get_by_text("What these do").click()
    assert violations(shown.page) == []
    shown.choose(method=ROLLOUT)
    shown.page.get_by_text("How to read this").first.click()
    assert violations(shown.page) == []
    assert violations(shown.open("docs").page) == []
    asking_for_token = show(gated, color_scheme=scheme).open()
    asking_for_token.page.get_by_label("Token").wait_for()
    assert violations(asking_for_token.page) == []
    asking_for_token.complaints.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_complain_about_where_a_model_writes(show, writer, scheme):
    shown = show(writer, color_scheme=scheme).open().ready()
    chatting(shown, ("system", "a film"), ("user", "the keys"))
    shown.page.get_by_label("Let it write").check()
    shown.page.get_by_text("Advanced").click()
    shown.page.get_by_label("Write at most").fill("3")
    shown.page.keyboard.press("Enter")
    shown.page.locator("[data-result].generation[data-flow=done]").wait_for()
    shown.ready()
    assert violations(shown.page) == []


@pytest.mark.parametrize("width", [320, 390, 1600])
def test_nothing_sticks_out_of_a_screen(show, server, writer, width):
    size = {"width": width, "height": 800}
    shown = show(server, viewport=size).open().ready().compare(f"The {'x' * 2000} key")
    shown.page.get_by_text("Advanced").click()
    shown.page.get_by_text("What these do").click()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    region = shown.page.get_by_role("region", name="Scores of both texts")
    assert region.evaluate("element => element.scrollWidth <= element.clientWidth")
    shown = show(writer, viewport=size).open().ready()
    chatting(shown, ("system", "a film"), ("user", "the " + "x" * 200))
    shown.page.get_by_label("Let it write").check()
    shown.page.get_by_text("Advanced").click()
    shown.page.get_by_label("Draw words at random").check()
    shown.page.get_by_role("button", name="Let it write").click()
    shown.page.locator("[data-result].generation[data-flow=done]").wait_for()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
