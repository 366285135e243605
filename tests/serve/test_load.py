"""attnflow serve with many clients at once, some of them wrong, and then a shutdown."""

import http.client
import json
import os
import signal
import threading
from contextlib import suppress

import numpy as np
import pytest

from attnflow import Explainer, Generation
from attnflow.models.verb_number import checkpoint
from attnflow.serve.server import _signals
from tests.support.chat import chatter
from tests.support.serving import serving

CLIENTS = 20
EACH = 10

TEXTS = (
    "the keys to the cabinet",
    "the key to the cabinets",
    "the authors of the book",
    "the picture of the children in the garden",
    "the roads near the village",
)
METHODS = ("raw", "rollout", "flow")

# What is wrong, and what it is answered.
BAD = (
    (b"{", {}, 400, "not_json"),
    (b'{"text": ""}', {}, 422, "invalid"),
    (b'{"text": "the keys", "layer": 70}', {}, 422, "invalid"),
    (b'{"text": "the keys", "edges": "none"}', {}, 422, "invalid"),
    (json.dumps({"text": "a" * 10_001}).encode(), {}, 413, "too_long"),
    (b" " * 300_000, {}, 413, "too_large"),
    (b'{"text": "the keys"}', {"Content-Type": "text/plain"}, 415, "wrong_type"),
    (b'{"text": "the keys"}', {"Origin": "http://evil.example"}, 403, "wrong_origin"),
    (b'{"text": "the keys"}', {"Host": "evil.example"}, 421, "wrong_host"),
)


PROMPTS = ("the keys to", "the film", "no one will", [{"role": "user", "content": "the keys"}])
# What is wrong with a prompt, and what it is answered.
BAD_PROMPTS = (
    ({"text": "the keys", "max_new_tokens": 13}, 422, "invalid"),
    ({"text": "the keys", "top_k": 3}, 422, "invalid"),
    ({"text": [{"role": "user"}]}, 422, "invalid"),
    ({"text": "the " * 35, "max_new_tokens": 12}, 413, "too_long"),
)


@pytest.fixture(scope="module")
def expected():
    """The scores of every text and method, from Python."""
    explainer = Explainer.from_pretrained(checkpoint())
    return {
        (text, method): explainer.explain(text, method=method).scores
        for text in TEXTS
        for method in METHODS
    }


def check(answer, text, method, expected):
    (explanation,) = answer["explanations"]
    assert explanation["text"] == text
    assert explanation["method"] == method
    np.testing.assert_allclose(explanation["scores"], expected[text, method], atol=1e-6)


class Client:
    """Asks one question after the other over one connection, as browsers do."""

    def __init__(self, server, number, expected):
        self.server = server
        self.name = f"client-{number}"
        self.random = np.random.default_rng(number)
        self.expected = expected
        self.connection = http.client.HTTPConnection(server.host, server.port, timeout=120)

    def send(self, body, headers, path="/api/explain"):
        sent = {
            "Content-Type": "application/json",
            "Attnflow-Client": self.name,
            **headers,
        }
        self.connection.request("POST", path, body, sent)
        response = self.connection.getresponse()
        return response.status, response.read()

    def good(self, *, stream):
        """Ask what can be answered; return False if the server is stopping."""
        text = TEXTS[self.random.integers(len(TEXTS))]
        method = METHODS[self.random.integers(len(METHODS))]
        headers = {"Accept": "application/x-ndjson"} if stream else {}
        page = bool(self.random.random() < 0.5)
        status, body = self.send(
            json.dumps({"text": text, "method": method, "page": page}).encode(), headers
        )
        if status == 503:
            assert json.loads(body)["error"]["kind"] == "stopping"
            return False
        assert status == 200
        if stream:
            last = json.loads(body.splitlines()[-1])
            assert (last["event"], last["status"]) == ("answer", 200)
            check(last["body"], text, method, self.expected)
        else:
            check(json.loads(body), text, method, self.expected)
        return True

    def bad(self):
        """Ask what cannot be answered; return False if the server is stopping."""
        body, headers, status, kind = BAD[self.random.integers(len(BAD))]
        found, answer = self.send(body, headers)
        said = json.loads(answer)["error"]
        if said["kind"] == "stopping":
            return False
        assert (found, said["kind"]) == (status, kind)
        return True

    def one(self):
        chance = self.random.random()
        return self.bad() if chance < 0.4 else self.good(stream=chance < 0.6)


def together(work, count=CLIENTS):
    """Run something in many threads at once; raise what went wrong in any of them."""
    problems = []

    def run(number):
        try:
            work(number)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads, problems


def finish(threads, problems):
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


@pytest.mark.exhaustive
def test_many_clients_and_a_shutdown_lose_nothing_and_get_no_wrong_answer(expected, tmp_path):
    gate = tmp_path / "open"
    with serving("--max-waiting", "100", gate=gate) as server:
        # Every kind of question once, so that what is loaded when first used is there.
        for text in TEXTS:
            for method in METHODS:
                status, answer = server.post({"text": text, "method": method, "page": True})
                assert status == 200
                check(answer, text, method, expected)
        memory = server.metric("process_resident_memory_bytes")

        # 200 requests of 20 clients, good ones and bad ones.
        counted = []

        def ask(number):
            client = Client(server, number, expected)
            for _ in range(EACH):
                assert client.one()
                counted.append(number)
            client.connection.close()

        finish(*together(ask))
        assert len(counted) == CLIENTS * EACH
        assert server.metric("attnflow_waiting") == 0
        assert server.metric('attnflow_questions_total{outcome="failed"}') == 0
        grown = server.metric("process_resident_memory_bytes") - memory
        assert grown < 32 * 2**20

        # A shutdown in the middle: one question is held at the gate, others wait behind it.
        held = []
        holder = threading.Thread(target=lambda: held.append(server.ask("please wait", "holder")))
        holder.start()
        server.until("attnflow_running", 1)
        answered, refused = [], []

        def ask_on(number):
            client = Client(server, number, expected)
            # The first one of each is taken before the server is told to stop.
            assert client.good(stream=number % 2 == 0)
            answered.append(number)
            # A server that stops ends the connection with the last answer; then it is refused,
            # or nobody listens any more.
            try:
                while client.one():
                    answered.append(number)
            except (ConnectionRefusedError, ConnectionResetError):
                pass
            refused.append(number)
            client.connection.close()

        threads, problems = together(ask_on)
        server.until("attnflow_waiting", CLIENTS)
        server.stop()
        while server.get("/healthz")[0] != 503:
            pass
        status, answer = server.ask("the keys", "late")
        assert (status, answer["error"]["kind"]) == (503, "stopping")
        assert server.process.poll() is None
        gate.touch()
        finish(threads, problems)
        holder.join()
        assert held[0][0] == 200
        assert sorted(set(answered)) == sorted(refused) == list(range(CLIENTS))
        status, written = server.wait()
        assert status == 0
        assert "stopping" in written
        assert "Traceback" not in written
        assert "error" not in written.lower()
        with pytest.raises(ConnectionRefusedError):
            server.get("/healthz")


@pytest.mark.exhaustive
def test_many_clients_that_let_a_model_write_get_what_python_gets(writer):
    chat = chatter()
    count = 4
    expected = [
        (chat.generate(prompt, max_new_tokens=count), chat.explain(prompt)) for prompt in PROMPTS
    ]
    for prompt in PROMPTS:
        assert writer.generate(prompt, max_new_tokens=count, page=True)[0] == 200
        assert writer.post({"text": prompt, "page": True})[0] == 200
    memory = writer.metric("process_resident_memory_bytes")
    counted = []

    def ask(number):
        client = Client(writer, number, None)
        for _ in range(EACH):
            place = client.random.integers(len(PROMPTS))
            generation, explanation = expected[place]
            chance = client.random.random()
            if chance < 0.2:
                question, status, kind = BAD_PROMPTS[place]
                found, body = client.send(json.dumps(question).encode(), {}, "/api/generate")
                assert (found, json.loads(body)["error"]["kind"]) == (status, kind)
            elif chance < 0.7:
                question = {"text": PROMPTS[place], "max_new_tokens": count, "page": chance < 0.4}
                headers = {"Accept": "application/x-ndjson"} if chance < 0.5 else {}
                found, body = client.send(json.dumps(question).encode(), headers, "/api/generate")
                assert found == 200
                last = json.loads(body.splitlines()[-1])
                written = Generation.from_dict(last.get("body", last)["generation"])
                assert written.text == generation.text
                np.testing.assert_allclose(written.whole.scores, generation.whole.scores, atol=1e-3)
                np.testing.assert_allclose(written.matrix, generation.matrix, atol=1e-3)
            else:
                found, body = client.send(json.dumps({"text": PROMPTS[place]}).encode(), {})
                assert found == 200
                (answer,) = json.loads(body)["explanations"]
                np.testing.assert_allclose(answer["scores"], explanation.scores, atol=1e-3)
            counted.append(number)
        client.connection.close()

    finish(*together(ask))
    assert len(counted) == CLIENTS * EACH
    assert writer.metric("attnflow_waiting") == 0
    assert writer.metric('attnflow_questions_total{outcome="failed"}') == 0
    assert writer.metric("process_resident_memory_bytes") - memory < 32 * 2**20


@pytest.mark.exhaustive
def test_a_client_that_asks_again_and_again_does_not_keep_a_server_from_stopping():
    with serving("--timeout", "600") as server:
        server.stop()
        while server.get("/healthz")[0] != 503:
            pass
        answers = []
        with suppress(ConnectionRefusedError, ConnectionResetError):
            while server.process.poll() is None:
                answers.append(server.ask("the keys"))
        assert answers
        assert all(answer["error"]["kind"] == "stopping" for _, answer in answers)
        assert server.wait()[0] == 0


@pytest.mark.exhaustive
def test_a_second_signal_ends_a_server_in_the_middle_of_a_solve(tmp_path):
    gate = tmp_path / "open"
    gate.touch()
    with serving("--timeout", "600", gate=gate) as server:

        def ask():
            with suppress(ConnectionResetError, ValueError):  # cut off, or an answer without JSON
                server.ask("please solve", method="flow")

        asking = threading.Thread(target=ask)
        asking.start()
        server.until("attnflow_running", 1)
        server.stop()
        while server.get("/healthz")[0] != 503:
            pass
        assert server.process.poll() is None
        server.stop(signal.SIGINT)
        status, written = server.wait()
        assert status == 130
        assert "Traceback" not in written
        asking.join()


def test_the_first_signal_asks_to_stop_and_the_second_ends_it():
    class Service:
        stopping = False

    service = Service()
    before = signal.getsignal(signal.SIGTERM)
    with _signals(service):
        os.kill(os.getpid(), signal.SIGTERM)
        assert service.stopping
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
