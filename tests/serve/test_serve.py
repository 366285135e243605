"""attnflow serve: what it answers, and whom it answers."""

import asyncio
import json
import re
import threading
import time
from contextlib import contextmanager, suppress
from importlib.resources import files
from itertools import groupby, product
from types import SimpleNamespace

import jsonschema_rs
import numpy as np
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from prometheus_client.parser import text_string_to_metric_families
from schemathesis.checks import load_all_checks

from attnflow import Explanation, OptionError, attention_flow
from attnflow.cli import main
from attnflow.models.verb_number import checkpoint
from attnflow.options import OPTIONS, Number, Option
from attnflow.serve import Limits, listen
from attnflow.serve.answer import KINDS, Refused
from attnflow.serve.guard import HEADERS, Hosts
from attnflow.serve.metrics import Metrics
from attnflow.serve.question import Question, prompt_type, question_type, read_question
from attnflow.serve.queue import FairQueue, Job
from attnflow.serve.worker import Worker
from tests.support.pages import unpacked
from tests.support.serving import HOSTILE, LONGEST, TOKEN, serving


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A server with a gate that stands open, and time."""
    gate = tmp_path_factory.mktemp("patient") / "open"
    gate.touch()
    with serving("--timeout", "600", gate=gate) as started:
        yield started


@contextmanager
def asking(server, *questions):
    """Ask questions at once, each in a thread; the answers are there in the end."""
    answers = [None] * len(questions)

    def ask(index, text, client):
        answers[index] = server.ask(text, client)

    threads = [
        threading.Thread(target=ask, args=(index, *question))
        for index, question in enumerate(questions)
    ]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        for thread in threads:
            thread.join()


# ---- What may be asked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"\xff", 400, "UTF-8"),
        (b"[" * 100_000, 400, "nested"),
        (b'{"text": "a", "residual": NaN}', 400, "NaN"),
        (b'{"text": "a", "layer": %s}' % (b"1" * 5000), 400, "JSON"),
        (b'{"text": "a", "text": "b"}', 422, '"text".*once'),
        (b'{"text": {"a": 1, "a": 1}}', 422, '"a".*once'),
        (b"[]", 422, "object"),
        (b"{}", 422, "text.*missing"),
        (b'{"text": "a", "colour": 1}', 422, '"colour".*text.*compare.*method'),
        (b'{"text": "a", "\\udfff": 1}', 422, "udfff.*surrogate"),
        (b'{"text": ""}', 422, 'text.*"".*1'),
        (b'{"text": null}', 422, "text.*null"),
        (b'{"text": "\\ud800"}', 422, "text.*surrogate"),
        (b'{"text": "a", "target": "\\ud800"}', 422, "target.*surrogate"),
        (b'{"text": "%s"}' % (b"a" * 101), 413, "text.*101 characters"),
        (b'{"text": "a", "compare": "%s"}' % (b"a" * 101), 413, "compare.*101 characters"),
        (b'{"text": "a", "method": "sum"}', 422, "method.*raw.*rollout.*flow"),
        (b'{"text": "a", "layer": 0}', 422, "layer.*0"),
        (b'{"text": "a", "layer": true}', 422, "layer.*true"),
        (b'{"text": "a", "layer": 1.5}', 422, r"layer.*1\.5"),
        (b'{"text": "a", "residual": 1.01}', 422, r"residual.*1\.01"),
        (b'{"text": "a", "residual": 1e999}', 422, "residual.*Infinity"),
        (b'{"text": "a", "truncate": 1}', 422, "truncate.*1.*true.*false"),
        (b'{"text": "a", "trace": 1}', 422, "trace.*1"),
        (b'{"text": "a", "edges": "gradient", "heads": "max"}', 422, "heads.*'max'"),
        (b'{"text": "a", "receptive_field": 1}', 422, "receptive_field.*1.*auto.*true.*false"),
    ],
)
def test_a_body_that_is_not_a_question_is_refused_with_the_reason(body, status, message):
    with pytest.raises(Refused, match=message) as refused:
        read_question(body, question_type(Limits(characters=100)))
    assert refused.value.status == status


VALUES = {
    "text": ["a", "", 1, None, "a" * 20, ["a", "b"], ["a"], ["a", ""]],
    "compare": ["b", None, "", False, ["a", "b"], [], [{"role": "user", "content": "a"}]],
    "max_new_tokens": [1, 30, 31, 2.0, "1", None],
    "temperature": [1, None, 0, 1e-3, "warm"],
    "top_p": [1, 0.5, 1.1, None, False],
    "top_k": [1, 0, None, 2.5],
    "seed": [0, None, -1, 2**63],
    "do_sample": [True, 1, None],
    "each": ["auto", False, "yes", None],
    "method": ["raw", "flow", "mean", None],
    "layer": [1, 2.0, -1, 0, 10**7, "1", True],
    "position": ["cls", 0, -3, "first", 1.5],
    "target": ["plural", 0, None, "", [], "a" * 201, -(10**7)],
    "heads": ["mean", 0, "median", False],
    "residual": [0, 1, 0.25, -0.1, "0", True],
    "receptive_field": ["auto", True, 0, "on"],
    "units": ["words", "sentences", "letters", True],
    "keep_heads": [True, 0, None],
    "trace": [True, 1, "yes"],
}


CHATS = (
    [{"role": "user", "content": "a"}],
    [{"role": "user", "content": "a" * 11}],
    [{"role": "user"}],
    [{"role": "user", "content": "a", "name": "b"}],
    [{"role": "user", "content": "a"}, "b"],
)


@pytest.mark.parametrize("type_of", [question_type, prompt_type])
def test_questions_are_read_as_an_independent_validator_reads_the_schema(type_of):
    kind = type_of(Limits(characters=10, new_tokens=30))
    validator = jsonschema_rs.validator_for(kind.model_json_schema())
    met = set()
    for name, value, text in product(VALUES, range(7), ("a", None, *CHATS)):
        values = VALUES[name]
        body = {"text": text, name: values[value % len(values)]}
        valid = validator.is_valid(body)
        met.add(valid)
        try:
            read_question(json.dumps(body).encode(), kind)
        except Refused:
            assert not valid, body
        else:
            assert valid, body
    assert met == {True, False}


def test_a_whole_number_may_be_written_with_a_point():
    body = b'{"text": "a", "layer": 2.0, "residual": 1}'
    question = read_question(body, question_type(Limits()))
    assert question.options["layer"] == 2
    assert type(question.options["layer"]) is int


@pytest.fixture
def new_option():
    row = Option("sharpness", Number(0, 9), 3.0, "How sharp the scores are.")
    OPTIONS.append(row)
    yield row
    OPTIONS.remove(row)


def test_a_new_row_of_the_table_of_options_is_described_and_accepted(new_option):
    from attnflow.serve.openapi import docs_page, openapi

    described = openapi()
    found = described["components"]["schemas"]["Question"]["properties"][new_option.name]
    assert found.items() >= new_option.json_schema().items()
    assert new_option.help in docs_page(described)
    kind = question_type(Limits())
    assert read_question(b'{"text": "a"}', kind).options["sharpness"] == 3.0
    assert read_question(b'{"text": "a", "sharpness": 1}', kind).options["sharpness"] == 1.0
    with pytest.raises(Refused, match=r"sharpness.*10.*0 to 9"):
        read_question(b'{"text": "a", "sharpness": 10}', kind)


def test_limits_are_checked():
    with pytest.raises(OptionError, match=r"seconds.*0"):
        Limits(seconds=0)
    with pytest.raises(OptionError, match=r"tokens.*1\.5"):
        Limits(tokens=1.5)


# ---- Taking turns --------------------------------------------------------------------------------


def job(client, text="a", seconds=60):
    deadline = time.monotonic() + seconds
    return Job(Question((text,), {}, False, False), client, deadline, lambda _: None)


def test_a_client_with_many_requests_makes_others_wait_for_one():
    queue = FairQueue(Limits())
    for client in "aaaaabbc":
        queue.put(job(client))
    assert "".join(queue.get(0).client for _ in range(8)) == "abcabaaa"
    assert queue.get(0) is None


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=20), st.integers(0, 10), st.data())
def test_how_many_come_first_is_how_many_do(clients, taken, data):
    queue = FairQueue(Limits(waiting=100, waiting_each=100))
    jobs = [job(client) for client in clients]
    for one in jobs:
        queue.put(one)
    for _ in range(min(taken, len(jobs) - 1)):
        jobs.remove(queue.get(0))
    chosen = data.draw(st.sampled_from(jobs))
    ahead = queue.ahead(chosen)
    for _ in range(ahead):
        assert queue.get(0) is not chosen
    assert queue.get(0) is chosen
    assert queue.ahead(chosen) is None


def test_waiting_requests_are_limited_for_each_client_and_for_all():
    queue = FairQueue(Limits(waiting=3, waiting_each=2))
    first = job("a")
    for one in (first, job("a"), job("b")):
        queue.put(one)
    with pytest.raises(Refused, match=r"2 requests.*client") as refused:
        queue.put(job("a"))
    assert refused.value.status == 429
    with pytest.raises(Refused, match="3 requests") as refused:
        queue.put(job("c"))
    assert refused.value.status == 503
    assert int(refused.value.headers["Retry-After"]) > 0
    queue.remove(first)
    queue.remove(first)
    queue.put(job("c"))
    assert len(queue) == 3


class Slow:
    """Stands in for an explainer: `explain` does what it is given."""

    def __init__(self, explain):
        self.explain = lambda text, **options: explain()
        self.model = torch.nn.Identity()
        self.tokenizer = lambda text, verbose: {"input_ids": text.split()}
        self.adapter = SimpleNamespace(max_tokens=None)


def outcome_of(explain, seconds=60.0, given_up=False):
    """The answer to a question, and how the metrics count it."""
    told = []
    queue, limits = FairQueue(Limits()), Limits(seconds=max(1, seconds))
    question = Question(("a",), {"truncate": False}, False, False)
    asked = Job(question, "a", time.monotonic() + seconds, told.append)
    queue.put(asked)
    metrics = Metrics("slow", "encoder", lambda: 0)

    def begin():
        asked.given_up = given_up
        return explain()

    assert Worker(Slow(begin), queue, limits, metrics).work(0)
    counted = text_string_to_metric_families(metrics.text().decode())
    outcomes = next(family for family in counted if family.name == "attnflow_questions")
    (outcome,) = (one.labels["outcome"] for one in outcomes.samples if one.value == 1)
    return told[-1], outcome


def test_the_solver_is_stopped_when_time_is_up_and_works_afterwards():
    attention = np.random.default_rng(0).random((12, 300, 300)) ** 6
    attention /= attention.sum(axis=-1, keepdims=True)
    for options in ({"seconds": 0.2}, {"given_up": True}):
        answer, outcome = outcome_of(lambda: attention_flow(attention), **options)
        assert (answer.status, outcome) == (504, "stopped")
    assert attention_flow(attention[:1], positions=[0]).shape == (1, 1, 300)


def test_nothing_but_the_solver_is_stopped():
    done = []

    def explain():
        time.sleep(0.3)
        done.append(True)

    answer, outcome = outcome_of(explain, given_up=True)
    assert done
    assert (answer.status, outcome) == (504, "stopped")


# ---- Counting ------------------------------------------------------------------------------------


def test_prometheus_reads_the_metrics(server):
    metrics = Metrics('a "model"\\\n', "encoder", lambda: 2)
    metrics.requests.labels("/", 200).inc()
    metrics.questions.labels("done").inc()
    metrics.seconds.observe(0.03)
    metrics.seconds.observe(100.0)
    families = {
        family.name: family for family in text_string_to_metric_families(metrics.text().decode())
    }
    outcomes = {
        sample.labels["outcome"]: sample.value
        for sample in families["attnflow_questions"].samples
        if sample.name == "attnflow_questions_total"
    }
    assert outcomes == {"done": 1, "refused": 0, "stopped": 0, "failed": 0}
    assert families["attnflow_waiting"].samples[0].value == 2
    (info,) = families["attnflow_model_info"].samples
    assert info.labels == {"model": 'a "model"\\\n', "task": "encoder"}
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families["attnflow_question_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert (buckets["0.025"], buckets["0.05"], buckets["60.0"], buckets["+Inf"]) == (0, 1, 1, 2)
    status, headers, body = server.get("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    expected = {"requests", "questions", "question_seconds", "waiting", "running", "model_info"}
    assert {f"attnflow_{name}" for name in expected} <= names
    assert {"process_resident_memory_bytes", "process_start_time_seconds"} <= names
    server.ask("the keys")
    before = server.metric('attnflow_requests_total{path="/api/explain",status="200"}')
    server.ask("the keys")
    assert server.metric('attnflow_requests_total{path="/api/explain",status="200"}') == before + 1


# ---- What it answers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "rollout", "layer": 2, "edges": "value_norm"},
        {"method": "raw", "heads": 3, "position": 2, "special_tokens": False},
        {"edges": "gradient", "target": "VBZ", "units": "words"},
    ],
)
def test_an_explanation_is_that_of_python(server, explainer, options):
    text = "the keys to the cabinet"
    status, answer = server.post({"text": text, **options, "trace": True})
    assert status == 200
    assert answer["pages"] is None
    found = Explanation.from_dict(answer["explanations"][0])
    expected = explainer.explain(text, **options)
    assert found.tokens == expected.tokens
    assert found.prediction.label == expected.prediction.label
    np.testing.assert_allclose(found.layer_scores, expected.layer_scores, atol=1e-6)
    assert found.trace is not None


def test_where_the_model_lies_is_not_told(server):
    model = json.loads(server.get("/api/model")[2])["model"]
    assert model == "verb_number"
    _, answer = server.post({"text": "the keys", "page": True})
    assert answer["explanations"][0]["model"] == model
    assert str(checkpoint()) not in json.dumps(answer)


def test_two_texts_are_compared(server, explainer):
    texts = ["the key to the cabinet", "the keys to the cabinet"]
    status, answer = server.post({"text": texts[0], "compare": texts[1], "page": True})
    assert status == 200
    for found, page, text in zip(answer["explanations"], answer["pages"], texts, strict=True):
        assert found["text"] == text
        assert found["prediction"]["label"] == explainer.explain(text).prediction.label
        scores = unpacked(page["explanation"]["layer_scores"])
        assert {**page["explanation"], "layer_scores": scores} == found
        assert page["trace"]["layers"] == 6


def test_a_stream_says_how_far_it_is_and_ends_with_the_answer(server):
    body = json.dumps({"text": "the keys", "compare": "the key"})
    kinds = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
    status, headers, content = server.request("POST", "/api/explain", body, kinds)
    assert status == 200
    assert headers["Content-Type"] == "application/x-ndjson"
    events = [json.loads(line) for line in content.splitlines()]
    assert events[0]["event"] == "waiting"
    running = [(event["stage"], event["text"]) for event in events if event["event"] == "running"]
    # A stage that takes longer than a second is repeated.
    stages = [stage for stage, _ in groupby(running)]
    assert stages == [("model", 1), ("scores", 1), ("model", 2), ("scores", 2), ("answer", 2)]
    assert events[-1]["event"] == "answer"
    assert events[-1]["status"] == 200
    assert len(events[-1]["body"]["explanations"]) == 2
    body = json.dumps({"text": "the keys", "layer": 99})
    status, _, content = server.request("POST", "/api/explain", body, kinds)
    assert status == 200
    last = json.loads(content.splitlines()[-1])
    assert (last["status"], last["body"]["error"]["kind"]) == (422, "invalid")


@pytest.mark.parametrize(
    ("question", "status", "message"),
    [
        ({"text": "the keys", "layer": 7}, 422, "layer.*7"),
        ({"text": "the keys", "position": 9}, 422, "position.*9"),
        ({"text": "the keys", "target": "plural"}, 422, "target.*VBZ.*VBP"),
        ({"text": "   "}, 422, "text.*empty"),
        ({"text": "a " * 200}, 422, "201 tokens.*128"),
        ({"text": "a " * 2000}, 413, "2001 tokens.*512"),
        ({"text": "a " * 5001}, 413, "10002 characters.*10000"),
        ({"text": "the keys", "edges": "gradient", "heads": "max"}, 422, "heads.*'mean'"),
        ({"text": "the keys", "text2": "the key"}, 422, '"text2"'),
        (b"{", 400, "JSON"),
        (b" " * 300_000, 413, "262144 bytes"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(server, question, status, message):
    found, answer = server.post(question)
    assert (found, answer["error"]["status"]) == (status, status)
    assert re.search(message, answer["error"]["message"])


def test_a_body_that_says_it_is_huge_is_not_read(server):
    with server.connected() as connection:
        connection.putrequest("POST", "/api/explain")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(10**15))
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == 413
        assert response.headers["Connection"] == "close"
        assert "262144 bytes" in response.read().decode()


def test_a_body_without_a_length_is_limited_too(server):
    def parts():
        for _ in range(100):
            yield b" " * 4096

    kinds = {"Content-Type": "application/json"}
    status, _, _ = server.request("POST", "/api/explain", parts(), kinds)
    assert status == 413


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/nothing", {}, 404),
        ("GET", "/api/explain", {}, 405),
        ("OPTIONS", "/api/explain", {}, 405),
        ("GET", "/docs/", {}, 404),
        ("GET", "/../pyproject.toml", {}, 404),
        ("POST", "/api/explain", {"Content-Type": "text/plain"}, 415),
        ("POST", "/api/explain", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ("POST", "/api/explain", {}, 415),
        (
            "POST",
            "/api/explain",
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
            415,
        ),
        (
            "POST",
            "/api/explain",
            {"Content-Type": "application/json", "Attnflow-Client": "a b"},
            422,
        ),
    ],
)
def test_errors_are_json_and_have_the_right_status(server, method, path, headers, status):
    found, sent, body = server.request(method, path, b"{}" if method == "POST" else None, headers)
    assert found == status
    assert json.loads(body)["error"]["status"] == status
    assert sent["Content-Type"] == "application/json"
    assert (sent["Allow"] is not None) == (status == 405)


def small_service(limits):
    """A service without a worker."""
    from attnflow.serve.app import Service

    metrics = Metrics("m", "encoder", lambda: 0)
    return Service({"model": "m"}, FairQueue(limits), limits, metrics, Hosts("127.0.0.1"))


def test_a_body_that_does_not_arrive_is_not_waited_for():
    service = small_service(Limits(body_seconds=1))
    sent = []

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/explain",
        "raw_path": b"/api/explain",
        "query_string": b"",
        "client": ("127.0.0.1", 5),
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
    }
    asyncio.run(service(scope, receive, send))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert b"did not arrive within 1 seconds" in sent[1]["body"]


def test_a_connection_on_which_no_request_arrives_is_closed(monkeypatch):
    import uvicorn

    from attnflow.serve import app

    monkeypatch.setattr(app, "HEAD_SECONDS", 0.2)
    head = b"POST /api/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"

    async def drip(port, first, then=b"x"):
        """Send what there is, and then a byte now and then; return what is answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first)
        found = b""
        with suppress(ConnectionError):  # closed before all that was sent had been read
            while not reader.at_eof():
                try:
                    found += await asyncio.wait_for(reader.read(1000), 0.05)
                except TimeoutError:
                    writer.write(then)
        writer.close()
        return found

    async def all_of_them():
        # The body's time, which is longer, is not cut short.
        service = small_service(Limits(body_seconds=3))
        config = uvicorn.Config(
            service,
            port=0,
            http="h11",
            lifespan="off",
            log_config=None,
            callback_notify=service.close_silent,
            timeout_notify=0,
        )
        server = uvicorn.Server(config)
        service.connections = server.server_state.connections
        running = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with asyncio.timeout(30):
            found = await asyncio.gather(
                drip(port, b"", b""),
                drip(port, head[:20]),
                drip(port, head + b"\r\n"),
                drip(port, head + b"Content-Type: application/json\r\n\r\n", b""),
            )
        server.should_exit = True
        await running
        return found

    silent, partly, refused, slow = asyncio.run(all_of_them())
    assert silent == partly == b""
    assert refused.startswith(b"HTTP/1.1 415")
    assert slow.startswith(b"HTTP/1.1 408")


def test_a_text_in_any_script_comes_back_as_it_was(server):
    for text in (" ".join(HOSTILE), LONGEST, "مفاتيح الخزانة", "机の上の鍵", "\x00"):
        status, answer = server.post({"text": text, "method": "raw"})
        assert status == 200
        assert answer["explanations"][0]["text"] == text


# ---- Schemathesis --------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize("name", ["server", "writer"])
def test_every_answer_is_as_described(name, mode, request):
    server = request.getfixturevalue(name)
    described = schemathesis.openapi.from_url(f"{server.address}openapi.json")
    load_all_checks()
    # What a schema allows may still be wrong for this model: layer 7, or a text of nothing.
    unfit = schemathesis.checks.CHECKS.get_one("positive_data_acceptance")
    # A text that is too long is refused with 413, which this check does not know as a refusal.
    rejected = schemathesis.checks.CHECKS.get_one("negative_data_rejection")
    for found in described.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=25, suppress_health_check=list(HealthCheck))
        def answer(case):
            response = case.call(timeout=60)
            known = [unfit, rejected] if response.status_code == 413 else [unfit]
            case.validate_response(response, excluded_checks=known)

        with suppress(Unsatisfiable):  # nothing can be wrong with a request that takes nothing
            answer()


def test_the_description_is_valid_and_names_every_kind_of_error(server):
    status, _, body = server.get("/openapi.json")
    assert status == 200
    described = json.loads(body)
    assert described["openapi"].startswith("3.1")
    paths = {"/api/explain", "/api/generate", "/api/model", "/healthz", "/metrics"}
    assert set(described["paths"]) == paths
    source = "".join(
        files("attnflow.serve").joinpath(name).read_text("utf-8")
        for name in ("app.py", "guard.py", "queue.py", "question.py", "worker.py")
    )
    raised = set(re.findall(r'Refused\(\s*"(\w+)"', source))
    kinds = described["components"]["schemas"]["Problem"]["properties"]["kind"]["enum"]
    assert raised == set(kinds) == set(KINDS)
    unlisted = KINDS["not_found"].status, KINDS["wrong_method"].status
    statuses = {str(kind.status) for kind in KINDS.values() if kind.status not in unlisted}
    for path in ("/api/explain", "/api/generate"):
        assert set(described["paths"][path]["post"]["responses"]) == {"200", *statuses}
    assert statuses <= set(described["components"]["responses"])


# ---- Whom it answers -----------------------------------------------------------------------------


def test_every_answer_has_a_strict_policy_and_no_cookie(server):
    for path in ("/", "/page.js", "/docs", "/openapi.json", "/api/model", "/healthz", "/nothing"):
        _, headers, _ = server.get(path)
        for name, value in HEADERS.items():
            assert headers[name] == value
        assert headers["Set-Cookie"] is None
        assert headers["Access-Control-Allow-Origin"] is None
        assert headers["Server"] is None
    assert "unsafe" not in HEADERS["content-security-policy"]


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8000", True),
        ("LOCALHOST", True),
        ("localhost.:80", True),
        ("[::1]:8000", True),
        ("named.example", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8000", False),
        ("localhost@evil.example", False),
        ("evil.example:80:localhost", False),
        ("192.0.2.1", False),
        ("", False),
        ("127.0.0.1:999999", False),
        ("2130706433", False),
    ],
)
def test_a_server_knows_its_own_names(host, known):
    assert Hosts("127.0.0.1", ["Named.example"]).knows(host) is known


def test_a_server_on_all_addresses_is_asked_by_address_or_by_a_name_it_was_given():
    hosts = Hosts("0.0.0.0", ["named.example"])
    assert hosts.knows("192.0.2.1:8000")
    assert hosts.knows("[2001:db8::1]:8000")
    assert not hosts.knows("evil.example:8000")
    assert Hosts("192.0.2.1").knows("192.0.2.1")
    assert not Hosts("192.0.2.1").knows("192.0.2.2")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:{port}"}, 421),
        ({"Host": "localhost:{port}"}, 200),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://localhost:{port}"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
    ],
)
def test_no_page_of_another_site_is_answered(server, headers, status):
    sent = {name: value.replace("{port}", str(server.port)) for name, value in headers.items()}
    assert server.post({"text": "the keys"}, sent)[0] == status
    assert server.request("GET", "/metrics", headers=sent)[0] == status


def test_a_link_may_lead_to_the_page(server):
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert server.request("GET", "/", headers=headers)[0] == 200
    assert server.request("GET", "/page.js", headers=headers)[0] == 403


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Host", ["localhost", "evil.example"]),
        ("Origin", ["http://localhost", "http://evil.example"]),
        ("Content-Type", ["application/json", "text/plain"]),
        ("Attnflow-Client", ["a", "b"]),
    ],
)
def test_a_header_that_is_there_twice_is_refused(server, name, values):
    with server.connected() as connection:
        connection.putrequest("POST", "/api/explain", skip_host=name == "Host")
        for value in values:
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 400


def test_a_token_is_asked_for_and_compared(gated):
    assert gated.get("/api/model")[0] == 200
    for credentials in (
        None,
        "Bearer",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        "é",
    ):
        headers = {} if credentials is None else {"Authorization": credentials}
        for method, path in (("GET", "/api/model"), ("GET", "/metrics"), ("POST", "/api/explain")):
            status, sent, _ = gated.request(method, path, headers=headers, token=False)
            assert status == 401
            assert sent["WWW-Authenticate"].startswith("Bearer")
    # Only what says nothing about the model is to be had without it.
    for path in ("/", "/page.js", "/page.css", "/docs", "/openapi.json", "/healthz"):
        status, _, body = gated.request("GET", path, token=False)
        assert status == 200
        assert b"verb-number" not in body
        assert TOKEN.encode() not in body


# ---- Waiting, limits and time --------------------------------------------------------------------


def test_requests_wait_within_limits_and_none_waits_for_ever(gated):
    gated.gate.unlink(missing_ok=True)
    with asking(gated, ("please wait", "a")) as first:
        gated.until("attnflow_running", 1)
        with asking(gated, *[("the keys", "a")] * 3) as waiting:
            gated.until("attnflow_waiting", 3)
            status, answer = gated.ask("the keys", "a")
            assert (status, answer["error"]["kind"]) == (429, "too_many")
            with asking(gated, ("the key", "b")) as other:
                gated.until("attnflow_waiting", 4)
                kinds = {"Content-Type": "application/json"}
                status, headers, body = gated.request(
                    "POST", "/api/explain", b'{"text": "the keys"}', kinds
                )
                assert (status, json.loads(body)["error"]["kind"]) == (503, "busy")
                assert int(headers["Retry-After"]) > 0
                assert gated.get("/healthz")[0] == 200
    # The model was held up all the time: each was told so, and nothing is left behind.
    for status, answer in (*first, *waiting, *other):
        assert (status, answer["error"]["kind"]) == (504, "too_late")
    assert gated.metric("attnflow_waiting") == 0
    gated.gate.touch()
    gated.until("attnflow_running", 0)
    assert gated.ask("the keys", "a")[0] == 200


def test_a_client_that_goes_away_is_not_worked_for(gated):
    gated.gate.unlink(missing_ok=True)
    with asking(gated, ("please wait", "a")) as first:
        gated.until("attnflow_running", 1)
        for kind in ("application/json", "application/x-ndjson"):
            with gated.connected() as connection:
                headers = {
                    "Authorization": f"Bearer {TOKEN}",
                    "Content-Type": "application/json",
                    "Accept": kind,
                }
                connection.request("POST", "/api/explain", b'{"text": "the keys"}', headers)
                gated.until("attnflow_waiting", 1)
            gated.until("attnflow_waiting", 0)
        done = gated.metric('attnflow_questions_total{outcome="done"}')
        gated.gate.touch()
    assert first[0][0] == 200
    assert gated.metric('attnflow_questions_total{outcome="done"}') == done + 1


def test_a_solve_is_stopped_when_its_time_is_up(gated):
    gated.gate.touch()
    stopped = 'attnflow_questions_total{outcome="stopped"}'
    before = gated.metric(stopped)
    status, answer = gated.ask("please solve", "a", method="flow")
    assert (status, answer["error"]["kind"]) == (504, "too_late")
    gated.until(stopped, before + 1)
    gated.until("attnflow_running", 0)
    assert gated.ask("the keys", "a", method="flow")[0] == 200


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_a_solve_is_stopped_when_its_client_has_gone(patient, kind):
    stopped = 'attnflow_questions_total{outcome="stopped"}'
    before = patient.metric(stopped)
    with patient.connected() as connection:
        headers = {"Content-Type": "application/json", "Accept": kind}
        body = b'{"text": "please solve", "method": "flow"}'
        connection.request("POST", "/api/explain", body, headers)
        patient.until("attnflow_running", 1)
    patient.until(stopped, before + 1)
    assert patient.metric("attnflow_running") == 0
    assert patient.ask("the keys", method="flow")[0] == 200


# ---- Starting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], r"host is '0\.0\.0\.0'.*token"),
        (["--host", "::"], "token"),
        (["--host", "0.0.0.0", "--token", "short"], "5 characters.*16"),
        (["--token", "a token with spaces in it"], "spaces"),
        (["--host", "not an address"], "host is 'not an address'"),
        (["--host", "192.0.2.1", "--token", TOKEN], "listen"),
        (["--port", "70000"], "port.*70000"),
        (["--max-waiting", "0"], "waiting.*0"),
        (["--timeout", "nan"], "seconds.*nan"),
        (["--model", "./nothing-here"], "does not exist"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_loaded(
    options, message, capsys, monkeypatch
):
    monkeypatch.delenv("ATTNFLOW_TOKEN", raising=False)
    assert main(["serve", "--port", "0", *options]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_a_port_that_is_taken_is_said(server, capsys):
    assert main(["serve", "--port", str(server.port)]) == 1
    assert "Address already in use" in capsys.readouterr().err


def test_this_machine_alone_is_served_without_a_token():
    for host in ("127.0.0.1", "localhost", "127.0.0.2"):
        with listen(host, 0, token=None) as listening:
            assert listening.getsockname()[0].startswith(("127.", "::1"))
    with listen("0.0.0.0", 0, token=TOKEN) as listening:
        assert listening.getsockname()[0] == "0.0.0.0"


def test_a_missing_extra_is_named(capsys, monkeypatch):
    from attnflow.cli import serve

    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert main(["serve"]) == 1
    assert 'pip install "attnflow[serve]"' in capsys.readouterr().err


def test_a_model_that_reads_images_is_not_served():
    from types import SimpleNamespace

    from attnflow import ModelError
    from attnflow.serve.worker import read_model

    model = SimpleNamespace(task="image-classification", name="vit")
    with pytest.raises(ModelError, match="image-classification"):
        read_model(model, Limits())
