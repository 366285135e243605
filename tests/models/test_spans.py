"""Token classifiers and question answerers: which stretch is explained, and what it came from."""

import numpy as np
import pytest
import torch
import transformers

from attnflow import Explainer, Explanation
from attnflow.errors import OptionError, TextError
from attnflow.options import ATTENTION_METHODS
from attnflow.view.captions import headline
from tests.support.text import SIZES, VOCABULARY
from tests.support.tiny import sharpen, wordpiece_tokenizer

TEXT = "the keys to the cabinet are on a table"
PAIR = ("is the film on a table", TEXT)
NAMES = {0: "O", 1: "B-THING", 2: "I-THING", 3: "B-PLACE", 4: "I-PLACE"}


def tagger(labels=NAMES):
    config = transformers.BertConfig(**SIZES, id2label=labels)
    model = sharpen(transformers.BertForTokenClassification(config))
    return Explainer(model, wordpiece_tokenizer(VOCABULARY))


def answerer(kind="Bert"):
    config = getattr(transformers, f"{kind}Config")(**SIZES)
    model = sharpen(getattr(transformers, f"{kind}ForQuestionAnswering")(config))
    return Explainer(model, wordpiece_tokenizer(VOCABULARY))


def logits_of(explainer, *texts):
    inputs = explainer.tokenizer(*texts, return_tensors="pt")
    with torch.no_grad():
        return explainer.model(**inputs)


def predicting(explainer, labels):
    """Make a tagger predict given labels, by a bias that its last layer's input is replaced by."""
    wanted = torch.nn.functional.one_hot(torch.tensor(labels), len(NAMES)).float() * 5

    class Head(torch.nn.Module):
        def forward(self, hidden):
            return hidden[..., : len(NAMES)] * 0.01 + wanted[: hidden.shape[1]]

    explainer.model.classifier = Head()
    return explainer


def test_one_token_is_explained_if_it_is_asked_for():
    explainer = tagger()
    assert explainer.task == "token-classification"
    found = explainer.explain(TEXT, position=3)
    logits = logits_of(explainer, TEXT).logits[0, 3].double()
    best = int(logits.argmax())
    rest = (logits.sum() - logits[best]) / (len(logits) - 1)
    assert found.value == pytest.approx(float(logits[best] - rest), abs=1e-5)
    assert found.scores.sum() + found.bias == pytest.approx(found.value, abs=1e-5)
    assert [read.position for read in found.reads] == [3]
    assert (found.target, found.prediction.label) == (NAMES[best], NAMES[best])
    other = explainer.explain(TEXT, position=3, target="B-PLACE", contrast="O")
    assert other.value == pytest.approx(float(logits[3] - logits[0]), abs=1e-5)
    assert (other.target, other.contrast) == ("B-PLACE", "O")


@pytest.mark.parametrize(
    ("labels", "places", "name"),
    [
        # CLS, the, keys, to, the, cabinet, are, on, a, table, SEP
        ([0, 0, 1, 2, 2, 2, 0, 0, 0, 0, 0], [2, 3, 4, 5], "THING"),
        ([0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], [2], "B-THING"),
        ([3, 0, 0, 0, 0, 0, 0, 0, 3, 4, 4], [8, 9], "PLACE"),
        ([0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0], [2], "B-THING"),
    ],
)
def test_the_entity_that_is_predicted_is_explained_as_a_whole(labels, places, name):
    explainer = predicting(tagger(), labels)
    # Of two entities, the surer one.
    explainer.model.classifier(torch.zeros(1, len(labels), 16))
    found = explainer.explain(TEXT)
    assert found.target == name
    words = " ".join(found.tokens[read.position] for read in found.reads)
    assert f"to {name} at {words!r}" in headline(found)
    if labels.count(1) < 2:
        assert [read.position for read in found.reads] == places
    parts = [explainer.explain(TEXT, position=read.position) for read in found.reads]
    np.testing.assert_allclose(found.scores, sum(part.scores for part in parts), atol=1e-6)
    assert found.value == pytest.approx(sum(part.value for part in parts))
    assert Explanation.from_dict(found.to_dict(trace=True)) == found


def test_without_an_entity_the_token_that_comes_nearest_is_explained():
    explainer = predicting(tagger(), [0] * 11)
    logits = logits_of(explainer, TEXT).logits[0].double().softmax(-1)
    nearest = int(logits[1:-1, 1:].sum(-1).argmax()) + 1
    found = explainer.explain(TEXT)
    assert [read.position for read in found.reads] == [nearest]
    assert found.target == "O"


def test_a_tagger_without_an_outside_label_explains_the_uncommon_one():
    labels = [0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0]
    explainer = predicting(tagger({i: f"tag{i}" for i in range(5)}), labels)
    assert [read.position for read in explainer.explain(TEXT).reads] == [4]


@pytest.mark.parametrize("method", ATTENTION_METHODS)
def test_attention_methods_explain_the_mean_of_the_stretch(method):
    explainer = predicting(tagger(), [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0])
    found = explainer.explain(TEXT, method=method)
    assert [read.position for read in found.reads] == [2, 3]
    parts = [
        read.weight * explainer.explain(TEXT, method=method, position=read.position).scores
        for read in found.reads
    ]
    np.testing.assert_allclose(found.scores, sum(parts), atol=1e-12)
    assert (found.target, found.prediction.label) == ("THING", "THING")


def best_span(explainer):
    outputs = logits_of(explainer, *PAIR)
    ids = explainer.tokenizer(*PAIR).sequence_ids(0)
    start, end = outputs.start_logits[0].double(), outputs.end_logits[0].double()
    context = [i for i, text in enumerate(ids) if text == 1]
    best = max(
        ((s, e) for s in context for e in context if s <= e),
        key=lambda pair: float(start[pair[0]] + end[pair[1]]),
    )
    return start, end, best


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Electra"])
def test_the_answer_to_a_question_is_a_stretch_of_the_text(kind):
    explainer = answerer(kind)
    assert explainer.task == "question-answering"
    start, end, (first, last) = best_span(explainer)
    found = explainer.explain(PAIR)
    assert found.value == pytest.approx(float(start[first] + end[last]), abs=1e-5)
    assert found.scores.sum() + found.bias == pytest.approx(found.value, abs=1e-5)
    assert {read.position for read in found.reads} == {first, last}
    words = explainer.adapter.read(PAIR).tokens
    assert found.target == words.text[words.spans[first][0] : words.spans[last][1]]
    assert [segment.name for segment in found.segments] == ["first", "second"]
    for method in ("contribution", "raw"):
        # Whatever is asked about, the prediction is the best stretch.
        other = explainer.explain(PAIR, target="cabinet", method=method).prediction
        shares = start.softmax(-1)[first] * end.softmax(-1)[last]
        assert (other.label, other.index) == (found.target, first)
        assert other.probability == pytest.approx(float(shares), abs=1e-6)


def test_other_words_can_be_asked_about_and_compared_with():
    explainer = answerer()
    start, end, _ = best_span(explainer)
    names = explainer.adapter.read(PAIR).tokens.names
    cabinet, table = names.index("cabinet"), len(names) - 2
    found = explainer.explain(PAIR, target="cabinet", contrast="table")
    expected = start[cabinet] + end[cabinet] - start[table] - end[table]
    assert found.value == pytest.approx(float(expected), abs=1e-5)
    assert (found.target, found.contrast) == ("cabinet", "table")
    assert found.scores.sum() + found.bias == pytest.approx(found.value, abs=1e-5)
    span = explainer.explain(PAIR, target="the cabinet are")
    assert span.value == pytest.approx(float(start[cabinet - 1] + end[cabinet + 1]), abs=1e-5)


def test_a_check_blanks_out_words_and_reads_the_same_stretch():
    explainer = answerer()
    found = explainer.explain(PAIR, target="cabinet", check=True)
    place = explainer.adapter.read(PAIR).tokens.names.index("cabinet")
    ids = explainer.tokenizer(*PAIR, return_tensors="pt")

    def value(**changed):
        with torch.no_grad():
            outputs = explainer.model(**{**ids, **changed})
        return float(outputs.start_logits[0, place] + outputs.end_logits[0, place])

    words = [
        i for i, special in enumerate(explainer.adapter.read(PAIR).tokens.special) if not special
    ]
    top = max(words, key=lambda i: found.scores[i])
    blank = ids["input_ids"].clone()
    blank[0, top] = VOCABULARY["[UNK]"]
    assert found.check.value == pytest.approx(value(), abs=1e-5)
    assert found.check.removed_value == pytest.approx(value(input_ids=blank), abs=1e-5)


@pytest.mark.parametrize(
    ("item", "options", "error", "named"),
    [
        (PAIR, {"target": "elephant"}, OptionError, "target is 'elephant'"),
        (PAIR, {"contrast": "elephant"}, OptionError, "contrast is 'elephant'"),
        (PAIR, {"target": "table", "contrast": "table"}, OptionError, "contrast is 'table'"),
        (PAIR, {"target": 3}, OptionError, "target is 3"),
        (PAIR, {"position": 2}, OptionError, "position is 2"),
        (TEXT, {}, TextError, "question"),
    ],
)
def test_wrong_questions_are_refused(item, options, error, named):
    with pytest.raises(error, match=named):
        answerer().explain(item, **options)


def test_many_texts_give_what_each_gives_alone():
    texts = [TEXT, "the key", "a film that no one will forget"]
    explainer = tagger()
    for text, together in zip(texts, explainer.explain(texts), strict=True):
        alone = explainer.explain(text)
        assert together.reads[0].position == alone.reads[0].position
        np.testing.assert_allclose(together.scores, alone.scores, atol=1e-5)
    pairs = [PAIR, ("the film", "the key to a table")]
    reader = answerer()
    for pair, together in zip(pairs, reader.explain(pairs), strict=True):
        alone = reader.explain(pair)
        assert together.target == alone.target
        np.testing.assert_allclose(together.scores, alone.scores, atol=1e-5)


def test_any_label_of_many_can_be_explained_and_a_number_has_no_prediction():
    config = transformers.BertConfig(
        **SIZES, num_labels=3, problem_type="multi_label_classification"
    )
    many = Explainer(
        sharpen(transformers.BertForSequenceClassification(config)), wordpiece_tokenizer(VOCABULARY)
    )
    logits = logits_of(many, TEXT).logits[0].double()
    for target in range(3):
        found = many.explain(TEXT, target=target)
        assert found.value == pytest.approx(float(logits[target]), abs=1e-5)
    best = float(logits.max())
    assert found.prediction.probability == pytest.approx(1 / (1 + np.exp(-best)))
    config = transformers.BertConfig(**SIZES, num_labels=1)
    number = Explainer(
        sharpen(transformers.BertForSequenceClassification(config)), wordpiece_tokenizer(VOCABULARY)
    )
    found = number.explain(TEXT, check=True)
    assert found.prediction is None
    assert found.value == pytest.approx(float(logits_of(number, TEXT).logits[0, 0]), abs=1e-5)
    assert found.check.value == pytest.approx(found.value, abs=1e-5)
