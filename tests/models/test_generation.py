"""Generation with tiny models: what is written, chats, sampling, and the whole answer."""

import numpy as np
import pytest
import torch

import attnflow
from attnflow.models.chat import rendered
from tests.support.chat import MESSAGES, chat_tokenizer, chatter
from tests.support.text import classifier, decoder

PROMPT = "the keys to the"


@pytest.fixture(scope="module")
def writer():
    return decoder()


@pytest.fixture(scope="module")
def chat():
    return chatter()


# ---- What is written -----------------------------------------------------------------------------


def test_the_text_is_what_transformers_writes(writer):
    generation = writer.generate(PROMPT, max_new_tokens=5)
    ids = writer.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    written = writer.model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)[0]
    assert generation.text.split() == writer.tokenizer.decode(written[4:]).split()
    assert generation.prompt == PROMPT
    assert generation.whole.text == generation.prompt + generation.text
    assert [one.target for one in generation] == generation.text.split()
    assert not generation.ended
    assert generation.options["max_new_tokens"] == 5


def test_an_answer_that_the_model_ends_is_without_the_token_that_ends_it(writer):
    options = {"do_sample": True, "temperature": 3.0, "seed": 1, "method": "raw"}
    free = [one.target for one in writer.generate(PROMPT, max_new_tokens=8, **options)]
    place = max(map(free.index, free))
    model = writer.model
    model.generation_config.eos_token_id = writer.adapter.token_ids(free[place], "token")
    try:
        ended = writer.generate(PROMPT, max_new_tokens=20, **options)
    finally:
        model.generation_config.eos_token_id = None
    assert ended.ended
    assert place > 1
    assert [one.target for one in ended] == free[:place]


def test_a_model_that_ends_at_once_writes_nothing(writer):
    first = writer.explain(PROMPT).prediction.index
    writer.model.generation_config.eos_token_id = first
    try:
        empty = writer.generate(PROMPT, max_new_tokens=5)
    finally:
        writer.model.generation_config.eos_token_id = None
    assert (len(empty), empty.text, empty.whole, empty.ended) == (0, "", None, True)


def test_sampled_tokens_are_those_explained_and_a_seed_repeats_them(writer):
    options = {"max_new_tokens": 8, "do_sample": True, "temperature": 3.0}
    state = torch.get_rng_state()
    one = writer.generate(PROMPT, seed=3, **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert writer.generate(PROMPT, seed=3, **options) == one
    others = {writer.generate(PROMPT, seed=seed, method="raw", **options).text for seed in range(4)}
    assert len(others) > 1
    greedy = writer.generate(PROMPT, max_new_tokens=8, method="raw").text
    assert any(text != greedy for text in others)
    assert [step.target for step in one] == one.text.split()
    # What was drawn is explained, also where it is not what the model predicts.
    drawn = next(step for step in one if step.target != step.prediction.label)
    assert drawn.scores.sum() + drawn.bias == pytest.approx(drawn.value, abs=1e-4)
    assert one.options["seed"] == 3
    narrow = {"max_new_tokens": 8, "do_sample": True, "seed": 5, "method": "raw"}
    for only_best in ({"top_k": 1}, {"top_p": 0.001}):
        assert writer.generate(PROMPT, **narrow, **only_best).text == greedy


def test_progress_counts_the_tokens_written_and_explained(writer):
    told = []
    writer.generate(PROMPT, max_new_tokens=3, progress=lambda *news: told.append(news))
    assert told == [(stage, i, 3) for stage in ("writing", "explaining") for i in (1, 2, 3)]


def test_an_interrupt_leaves_the_model_as_it_was(writer):
    def stop(stage, done, total):
        if (stage, done) == ("writing", 2):
            raise KeyboardInterrupt

    writer.model.train()
    try:
        with pytest.raises(KeyboardInterrupt):
            writer.generate(PROMPT, max_new_tokens=5, progress=stop)
        assert writer.model.training
    finally:
        writer.model.eval()
    assert len(writer.generate(PROMPT, max_new_tokens=2)) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens.*0"),
        ({"max_new_tokens": 2.5}, r"max_new_tokens.*2\.5"),
        ({"temperature": 0.5}, r"temperature.*0\.5.*do_sample"),
        ({"top_p": 0.5}, r"top_p.*0\.5.*do_sample"),
        ({"do_sample": True, "temperature": 0}, "temperature.*0"),
        ({"do_sample": True, "top_p": 1.5}, r"top_p.*1\.5"),
        ({"do_sample": True, "top_k": 0}, "top_k.*0"),
        ({"do_sample": "yes"}, "do_sample.*yes"),
        ({"seed": -1}, "seed.*-1"),
        ({"num_beams": 4}, "num_beams.*4"),
        ({"target": "keys"}, "target"),
    ],
)
def test_an_option_that_is_not_valid_is_named(writer, options, named):
    with pytest.raises(attnflow.OptionError, match=named):
        writer.generate(PROMPT, **options)


def test_a_text_that_gets_too_long_is_refused_with_both_lengths(writer):
    with pytest.raises(attnflow.TextError, match=r"4 tokens.*30.*24.*max_new_tokens=20"):
        writer.generate(PROMPT, max_new_tokens=30)


# ---- The whole answer ----------------------------------------------------------------------------


def padded_sum(generation):
    width = len(generation.whole.tokens)
    return np.sum([np.pad(one.scores, (0, width - len(one.scores))) for one in generation], axis=0)


@pytest.mark.parametrize("options", [{}, {"contrast": "is"}, {"units": "words"}])
def test_the_whole_answer_is_the_sum_over_its_tokens(writer, options):
    # One backward pass from the sum, against a pass for each token.
    generation = writer.generate(PROMPT, max_new_tokens=6, **options)
    whole = generation.whole
    assert whole.value == pytest.approx(sum(one.value for one in generation), abs=1e-4)
    assert whole.bias == pytest.approx(sum(one.bias for one in generation), abs=1e-4)
    np.testing.assert_allclose(whole.scores, padded_sum(generation), atol=1e-4)
    np.testing.assert_allclose(whole.scores, np.nansum(generation.matrix, axis=0), atol=1e-4)
    assert whole.scores.sum() + whole.bias == pytest.approx(whole.value, abs=1e-4)
    assert whole.target.split() == generation.text.split()
    assert generation.written == (False,) * 4 + (True,) * 5


def test_the_value_of_the_whole_is_read_off_plain_logits(writer):
    generation = writer.generate(PROMPT, max_new_tokens=4)
    ids = writer.tokenizer(PROMPT + generation.text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = writer.model(ids).logits[0].double()
    own = [logits[k - 1, ids[0, k]] - logits[k - 1].mean() for k in range(4, 8)]
    assert generation.whole.value == pytest.approx(float(sum(own)), abs=1e-4)
    np.testing.assert_allclose([one.value for one in generation], own, atol=1e-4)


def test_alti_logit_of_the_whole_is_the_sum_too(writer):
    generation = writer.generate(PROMPT, max_new_tokens=3, method="alti_logit")
    np.testing.assert_allclose(generation.whole.scores, padded_sum(generation), atol=1e-6)
    total = generation.whole.scores.sum() + generation.whole.bias
    assert total == pytest.approx(generation.whole.value, abs=1e-4)


@pytest.mark.parametrize("options", [{"method": "rollout"}, {"method": "raw", "edges": "gradient"}])
def test_attention_of_the_whole_is_the_mean_over_its_tokens(writer, options):
    generation = writer.generate(PROMPT, max_new_tokens=3, **options)
    np.testing.assert_allclose(generation.whole.scores, padded_sum(generation) / 3, atol=1e-12)
    assert generation.whole.value is None


def test_a_check_of_the_whole_blanks_out_what_it_came_from(writer):
    generation = writer.generate("the keys", max_new_tokens=2, check=True)
    check = generation.whole.check
    assert check.value == pytest.approx(generation.whole.value, abs=1e-4)
    assert all(one.check is not None for one in generation)


# ---- Chats ---------------------------------------------------------------------------------------


def test_a_chat_is_what_the_template_writes_with_its_roles(chat):
    explanation = chat.explain(MESSAGES)
    text = chat.tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert explanation.text == text
    assert [(one.name, text[one.start : one.end]) for one in explanation.segments] == [
        ("system", "a film"),
        ("user", "the keys to the user"),
    ]
    usual = [
        t for t, special in zip(explanation.tokens, explanation.special, strict=True) if not special
    ]
    assert usual == ["a", "film", "the", "keys", "to", "the", "user"]
    ids = chat.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = chat.model(ids).logits[0, -1]
    assert explanation.prediction.index == int(expected.argmax())
    assert explanation.scores.sum() + explanation.bias == pytest.approx(explanation.value, abs=1e-4)


def test_messages_are_units(chat):
    tokens = chat.explain(MESSAGES)
    units = chat.explain(MESSAGES, units="segments", special_tokens=False)
    assert units.tokens == ("system", "user")
    usual = np.array(tokens.special) == 0
    np.testing.assert_allclose(
        units.scores, [tokens.scores[usual][:2].sum(), tokens.scores[usual][2:].sum()], atol=1e-6
    )


def test_a_list_of_chats_and_texts_is_many_inputs(chat):
    other = [{"role": "user", "content": "the table"}]
    found = chat.explain([MESSAGES, "the keys", other])
    assert [len(one.segments) for one in found] == [2, 0, 1]
    np.testing.assert_allclose(found[0].scores, chat.explain(MESSAGES).scores, atol=1e-4)


def test_an_answer_to_a_chat_is_a_segment_of_its_own(chat):
    generation = chat.generate(MESSAGES, max_new_tokens=4)
    assert [one.name for one in generation.whole.segments] == ["system", "user", "answer"]
    by_message = generation.by_unit("segments")
    assert by_message.tokens[-1] == "answer"
    assert by_message.written[-1] is True
    assert by_message.itself == pytest.approx(generation.itself)
    np.testing.assert_allclose(generation.whole.scores, padded_sum(generation), atol=1e-4)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # Merged into the first message, as Llama 2 does it.
        (
            "{{ messages[0]['content'] ~ ' : ' ~ messages[1]['content'] }}",
            [("system", "  a film "), ("user", "the keys to the user")],
        ),
        # In another order, and one of them twice.
        (
            "{{ messages[1].content }} user {{ messages[0].content | trim }} "
            "{{ messages[1].content }}",
            [
                ("user", "the keys to the user"),
                ("system", "a film"),
                ("user", "the keys to the user"),
            ],
        ),
        # One is dropped.
        ("user {{ messages[-1]['content'] }}", [("user", "the keys to the user")]),
        # A part of one is left out, as reasoning is.
        (
            "a {{ messages[0].content | trim }} : {{ messages[1].content.split(' to ')[-1] }} </s>",
            [("system", "a film"), ("user", "the user")],
        ),
    ],
)
def test_messages_are_found_in_whatever_a_template_makes_of_them(template, expected):
    text, segments = rendered(MESSAGES, chat_tokenizer(template))
    assert [(name, text[start:end]) for name, start, end in segments] == expected


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([{"role": "user"}], "message 0.*'content'.*missing"),
        ([{"role": "user", "content": ""}], "message 0.*'content'"),
        ([*MESSAGES, {"role": 3, "content": "x"}], "message 2.*'role'.*3"),
        ([{"role": "user", "content": "the " * 60}], "the chat has.*48"),
    ],
)
def test_a_chat_that_is_malformed_or_too_long_is_refused(chat, messages, named):
    with pytest.raises(attnflow.TextError, match=named):
        chat.explain(messages, truncate=True)


def test_a_template_that_refuses_or_is_not_there_is_named():
    refusing = chatter("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(attnflow.TextError, match=r"system, user.*roles must alternate"):
        refusing.generate(MESSAGES)
    with pytest.raises(attnflow.TextError, match="no chat template"):
        chatter(None).explain(MESSAGES)
    with pytest.raises(attnflow.TextError, match=r"item 1.*'content'"):
        chatter().explain(["the keys", [{"role": "user"}]])


def test_a_chat_is_for_causal_language_models():
    with pytest.raises(attnflow.TextError, match=r"chat.*causal.*classification"):
        classifier().explain(MESSAGES)
    with pytest.raises(attnflow.TextError, match="dict"):
        classifier().explain({"role": "user", "content": "x"})
