"""attnflow serve for a model that writes: generations, chats, and what /api/model tells."""

import json
import re
import time
from itertools import groupby

import numpy as np
import pytest
import transformers

from attnflow import Explainer, Explanation, Generation
from attnflow.options import OPTIONS, Options
from attnflow.serve import Limits
from attnflow.serve.metrics import Metrics
from attnflow.serve.question import prompt_type, question_type, read_question
from attnflow.serve.queue import FairQueue, Job
from attnflow.serve.worker import Worker, read_model
from tests.support.chat import MESSAGES, chatter
from tests.support.pair import build_pair
from tests.support.serving import HOSTILE
from tests.support.text import SIZES, VOCABULARY, classifier, encoder
from tests.support.tiny import sharpen, wordpiece_tokenizer

USER = [{"role": "user", "content": "the keys"}]


@pytest.fixture(scope="module")
def chat():
    return chatter()


def same(found, expected):
    """Whether two explanations are the same, but for rounding in another process."""
    assert found.tokens == expected.tokens
    assert found.target == expected.target
    assert found.segments == expected.segments
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)


# ---- What may be asked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{}", 422, "text is missing.*role.*content"),
        (b'{"text": 3}', 422, "text is 3.*a text.*two texts.*role"),
        (b'{"text": []}', 422, r"text is \[\].*2 items"),
        (b'{"text": ["a", ""]}', 422, r'text\[1\] is "".*1 character'),
        (b'{"text": [{"role": "user"}]}', 422, r"text\[0\]\.content is missing"),
        (b'{"text": [{"role": "", "content": "a"}]}', 422, r'text\[0\]\.role is ""'),
        (b'{"text": [{"role": "user", "content": 1}]}', 422, r"text\[0\]\.content is 1"),
        (b'{"text": [{"role": "u", "content": "a"}, "b"]}', 422, r'text\[1\] is "b"'),
        (b'{"text": [{"role": "u", "content": "a", "b": 1}]}', 422, r'"text\[0\]\.b".*role'),
        (b'{"text": [{"role": "u", "content": "%s"}]}' % (b"a" * 101), 413, r"text\[0\].*101"),
        (b'{"text": [{"role": "u", "content": "\\ud800"}]}', 422, "content.*surrogate"),
        (b'{"text": "a", "compare": "b"}', 422, '"compare".*max_new_tokens'),
        (b'{"text": "a", "position": 1}', 422, '"position"'),
        (b'{"text": "a", "target": "b"}', 422, '"target"'),
        (b'{"text": "a", "max_new_tokens": 0}', 422, "max_new_tokens is 0.*1 to 30"),
        (b'{"text": "a", "max_new_tokens": 31}', 422, "max_new_tokens is 31.*1 to 30"),
        (b'{"text": "a", "max_new_tokens": true}', 422, "max_new_tokens is true"),
        (b'{"text": "a", "temperature": 0}', 422, "temperature is 0.*0.001.*null"),
        (b'{"text": "a", "top_p": 1.5}', 422, r"top_p is 1\.5"),
        (b'{"text": "a", "top_k": 0}', 422, "top_k is 0"),
        (b'{"text": "a", "seed": -1}', 422, "seed is -1"),
        (b'{"text": "a", "do_sample": 1}', 422, "do_sample is 1.*true or false"),
        (b'{"text": "a", "each": "no"}', 422, 'each is "no".*auto'),
    ],
)
def test_a_body_that_is_not_a_prompt_is_refused_with_the_reason(body, status, message):
    from attnflow.serve.answer import Refused

    with pytest.raises(Refused, match=message) as refused:
        read_question(body, prompt_type(Limits(characters=100, new_tokens=30)))
    assert refused.value.status == status


def test_a_pair_is_a_tuple_and_a_chat_is_a_list():
    body = json.dumps({"text": ["a", "b"], "compare": USER}).encode()
    question = read_question(body, question_type(Limits()))
    assert question.texts == (("a", "b"), USER)
    assert question.writing is None
    question = read_question(json.dumps({"text": USER}).encode(), prompt_type(Limits(new_tokens=9)))
    assert question.writing["max_new_tokens"] == 9
    assert question.writing["each"] == "auto"


# ---- What it answers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("the keys to", {"max_new_tokens": 4}),
        (MESSAGES, {"max_new_tokens": 3, "units": "words"}),
        (USER, {"max_new_tokens": 3, "method": "rollout", "layer": 2}),
        ("the film", {"max_new_tokens": 3, "do_sample": True, "temperature": 2.0, "seed": 3}),
        ("the film", {"max_new_tokens": 3, "each": False, "contrast": "table"}),
    ],
)
def test_a_generation_is_that_of_python(writer, chat, prompt, options):
    status, answer = writer.generate(prompt, **options)
    assert status == 200
    assert answer["page"] is None
    found, expected = Generation.from_dict(answer["generation"]), chat.generate(prompt, **options)
    assert (found.prompt, found.text, found.ended) == (
        expected.prompt,
        expected.text,
        expected.ended,
    )
    assert found.written == expected.written
    assert found.options == expected.options
    assert len(found) == len(expected)
    for one, other in zip([found.whole, *found], [expected.whole, *expected], strict=True):
        same(one, other)


def test_the_page_of_a_generation_comes_with_it_and_the_trace_only_if_it_is_asked_for(writer):
    _, answer = writer.generate("the keys", max_new_tokens=2, page=True, trace=True)
    assert answer["page"]["generation"]
    assert answer["generation"]["whole"]["trace"] is not None
    _, answer = writer.generate("the keys", max_new_tokens=2)
    assert "trace" not in answer["generation"]["whole"]


def test_a_stream_says_how_far_the_writing_is(writer):
    events = writer.events("/api/generate", {"text": "the keys", "max_new_tokens": 3})
    assert events[0]["event"] == "waiting"
    running = [event for event in events if event["event"] == "running"]
    stages = [stage for stage, _ in groupby(event["stage"] for event in running)]
    assert stages == ["writing", "explaining", "answer"]
    counted = [(one["token"], one["tokens"]) for one in running if one["stage"] == "writing"]
    assert counted == sorted(counted)
    assert counted[-1] == (3, 3)
    assert (events[-1]["event"], events[-1]["status"]) == ("answer", 200)
    assert len(events[-1]["body"]["generation"]["explanations"]) == 3


@pytest.mark.parametrize(
    ("question", "status", "message"),
    [
        ({"text": "the keys", "max_new_tokens": 13}, 422, "max_new_tokens is 13.*12"),
        ({"text": "the " * 30, "max_new_tokens": 12}, 413, "30 tokens.*12, together 42.*40"),
        ({"text": "the keys", "temperature": 2.0}, 422, "temperature.*do_sample"),
        ({"text": ["the keys", "to"]}, 422, "two texts"),
        ({"text": [{"role": "user", "content": " "}]}, 422, "message 0.*content"),
        ({"text": "the keys", "units": "letters"}, 422, 'units is "letters"'),
        ({"text": "the keys", "layer": 4, "method": "raw"}, 422, "layer.*4"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_reason(writer, question, status, message):
    found, answer = writer.generate(**question)
    assert (found, answer["error"]["status"]) == (status, status)
    assert re.search(message, answer["error"]["message"])


def test_a_model_that_does_not_write_says_so(server):
    status, answer = server.generate("the keys")
    assert (status, answer["error"]["kind"]) == (422, "invalid")
    assert "classification" in answer["error"]["message"]
    status, answer = server.post({"text": USER})
    assert (status, answer["error"]["kind"]) == (422, "invalid")
    assert "chat" in answer["error"]["message"]


def test_chats_are_explained_and_compared(writer, chat):
    other = [{"role": "user", "content": "the film"}]
    status, answer = writer.post({"text": USER, "compare": other, "page": True})
    assert status == 200
    first, second = map(Explanation.from_dict, answer["explanations"])
    same(first, chat.explain(USER))
    # Both are explained for the answer to the first, so that scores can be compared.
    same(second, chat.explain(other, target=first.prediction.index))
    assert second.target == first.target == first.prediction.label
    assert [segment.name for segment in second.segments] == ["user"]
    assert answer["pages"][0]["names"][0] == "<s> (1st)"


@pytest.mark.parametrize("options", [{"target": "VBZ"}, {}, {"method": "rollout"}])
def test_texts_are_compared_for_the_same_answer(server, explainer, options):
    texts = ["the keys to the cabinet", "the key to the cabinet"]
    status, answer = server.post({"text": texts[0], "compare": texts[1], **options})
    assert status == 200
    first, second = map(Explanation.from_dict, answer["explanations"])
    if "method" not in options:
        assert first.target == second.target == options.get("target", "VBP")
        options = {"target": first.target}
    same(second, explainer.explain(texts[1], **options))


def test_roles_and_messages_in_any_script_come_back_as_they_were(writer):
    text = " ".join(HOSTILE)
    messages = [{"role": HOSTILE[0], "content": text}, {"role": "user", "content": text}]
    status, answer = writer.post({"text": messages, "page": True})
    assert status == 200
    assert text in answer["explanations"][0]["text"]
    assert answer["explanations"][0]["segments"][0][0] == HOSTILE[0]


# ---- Time and turns ------------------------------------------------------------------------------


def stopped_at(explainer, stage, *, late=False, **writing):
    """Give up, or let the time be up, when a stage begins; return what was told."""
    told = []
    queue, metrics = FairQueue(Limits()), Metrics("m", "causal-lm", lambda: 0)
    body = {"text": "the keys", **writing}
    question = read_question(json.dumps(body).encode(), prompt_type(Limits()))

    def tell(item):
        told.append(item)
        if getattr(item, "stage", "") == stage:
            job.given_up = not late
            job.deadline = 0.0 if late else job.deadline

    job = Job(question, "a", time.monotonic() + 60, tell)
    queue.put(job)
    assert Worker(explainer, queue, Limits(), metrics).work(0)
    return told


@pytest.mark.parametrize("late", [False, True])
def test_a_model_that_writes_is_stopped_between_two_tokens(chat, late):
    told = stopped_at(chat, "writing", late=late, max_new_tokens=30)
    assert [item.done for item in told[:-1]] == [1]
    assert told[-1].status == 504
    told = stopped_at(chat, "explaining", late=late, max_new_tokens=30)
    assert {item.stage for item in told[:-1]} == {"writing", "explaining"}
    assert [item.done for item in told if getattr(item, "stage", "") == "explaining"] == [1]
    assert told[-1].status == 504
    # The model is as it was.
    assert len(chat.generate("the keys", max_new_tokens=2)) == 2


def test_a_client_that_goes_away_stops_the_writing(writer):
    writer.gate.unlink()
    stopped = 'attnflow_questions_total{outcome="stopped"}'
    before = writer.metric(stopped)
    with writer.connected() as connection:
        body = json.dumps({"text": "please wait", "max_new_tokens": 12})
        connection.request("POST", "/api/generate", body, {"Content-Type": "application/json"})
        writer.until("attnflow_running", 1)
    writer.gate.touch()
    writer.until(stopped, before + 1)
    assert writer.generate("the keys", max_new_tokens=2)[0] == 200


# ---- What there is to know about the model -------------------------------------------------------


def bert(head):
    """A tiny BERT of random weights."""
    model = getattr(transformers, f"BertFor{head}")(transformers.BertConfig(**SIZES))
    return Explainer(sharpen(model), wordpiece_tokenizer(VOCABULARY))


@pytest.mark.parametrize(
    ("make", "inputs", "writes", "method", "classes"),
    [
        (chatter, ["text", "chat"], True, "contribution", []),
        (classifier, ["text", "pair"], False, "contribution", ["bad", "good"]),
        (encoder, ["text", "pair"], False, "rollout", []),
        (lambda: build_pair("T5"), ["text", "pair"], True, "contribution", []),
        (lambda: bert("MaskedLM"), ["text", "pair"], False, "contribution", []),
        (lambda: bert("QuestionAnswering"), ["pair"], False, "contribution", []),
    ],
    ids=["chat", "classifier", "encoder", "pair", "mask", "question"],
)
def test_a_model_says_what_it_can_do(make, inputs, writes, method, classes):
    explainer = make()
    told = read_model(explainer, Limits())
    assert (told["inputs"], told["writes"]) == (inputs, writes)
    assert [one["name"] for one in told["classes"]] == classes
    options = {option["name"]: option for option in told["options"]}
    assert options["method"]["default"] == method == options["method"]["values"][0][0]
    assert ("max_new_tokens" in options) == writes
    for row in OPTIONS:
        described = options[row.name]
        assert (described["help"], described["methods"]) == (row.help, list(row.methods))
        # Whatever is offered is accepted.
        for value, words in described["values"] or ():
            assert Options(**{row.name: value})[row.name] == value
            assert words
        if described["values"]:
            assert described["default"] in [value for value, _ in described["values"]]
    # A target so far may be empty, the second text of a pair may not.
    for kind in inputs:
        item = told["examples"][kind]
        explainer.explain(item[0] if kind == "pair" and not item[1] else item, method=method)


def test_the_classes_of_the_model_that_is_shipped_say_what_they_mean(server):
    told = json.loads(server.get("/api/model")[2])
    assert told["classes"] == [
        {"index": 0, "name": "VBZ (singular)"},
        {"index": 1, "name": "VBP (plural)"},
    ]
