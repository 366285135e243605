"""`attnflow.show`, and arrays of attention as other tools hand them out."""

import io
import re
import sys
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch
import transformers

import attnflow
from attnflow.attention import TextAttention
from attnflow.trace import MOST_HEAD_WEIGHTS
from tests.support.tiny import sharpen

TOKENS = ["<s>", "the", " keys", " to", " the", " cab", "inet"]
LAYERS, HEADS, COUNT = 3, 2, len(TOKENS)


@pytest.fixture(scope="module")
def attentions():
    """What a causal model returns with its answer, a tensor of (1, H, n, n) a layer."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=COUNT, n_positions=8, n_embd=16, n_layer=LAYERS, n_head=HEADS
    )
    config._attn_implementation = "eager"
    model = sharpen(transformers.GPT2Model(config).eval())
    return model(torch.arange(COUNT)[None], output_attentions=True).attentions


def printed(*arguments, **options):
    """What show prints."""
    with redirect_stdout(io.StringIO()) as out:
        assert attnflow.show(*arguments, **options) is None
    return out.getvalue()


# ---- What is shown -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "flow", "layer": 2, "position": 3},
        {"method": "raw", "heads": 1, "units": "words", "special_tokens": False},
    ],
)
def test_a_terminal_is_given_what_the_explanation_prints(attentions, options):
    explanation = TextAttention.of(attentions, TOKENS).explain(**options)
    out = io.StringIO()
    explanation.show(out)
    assert printed(attentions, TOKENS, **options) == out.getvalue()
    # A causal position has not read what follows it.
    whole = "position" not in options
    assert ("the keys to the cabinet" in out.getvalue()) == whole
    assert ("Not read: the cabinet" in out.getvalue()) != whole


@pytest.fixture
def displayed(monkeypatch):
    """What a notebook is asked to display."""
    import IPython
    import IPython.display

    class Shell:
        kernel = object()

    shown = []
    monkeypatch.setattr(IPython, "get_ipython", Shell)
    monkeypatch.setattr(IPython.display, "display", shown.append)
    return shown


def test_a_notebook_displays_the_page_once_with_every_head(attentions, displayed):
    assert printed(attentions, TOKENS) == ""
    [explanation] = displayed
    assert explanation.trace.heads.shape == (LAYERS, HEADS, COUNT, COUNT)
    assert explanation.position == COUNT - 1
    expected = attnflow.attention_rollout(attentions)[-1, -1]
    relative = expected / attnflow.attention_rollout(uniform())[-1, -1]
    np.testing.assert_allclose(explanation.scores, relative / relative.sum(), rtol=1e-6)


def uniform():
    """What attention would be if every position attended to all it sees alike."""
    weights = np.tril(np.ones((LAYERS, COUNT, COUNT)))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_heads_are_kept_where_there_are_any_and_it_is_not_refused(attentions, displayed):
    attnflow.show(attentions, keep_heads=False)
    attnflow.show(uniform())
    assert [one.trace.heads for one in displayed] == [None, None]
    with pytest.raises(attnflow.OptionError, match=r"keep_heads.*fused"):
        attnflow.show(uniform(), keep_heads=True)


def test_heads_that_a_page_cannot_hold_are_left_out_with_a_note(displayed):
    heads = np.broadcast_to(uniform()[:, None], (LAYERS, 30_000, COUNT, COUNT))
    assert heads.size > MOST_HEAD_WEIGHTS
    attnflow.show(heads.astype(np.float32))
    [explanation] = displayed
    assert explanation.trace.heads is None
    assert any(f"{heads.size:,}" in note for note in explanation.notes)


def test_what_is_explained_already_is_shown_as_it_is(attentions, displayed):
    text = TextAttention.of(attentions, TOKENS)
    explanation = text.explain(method="flow")
    attnflow.show(explanation)
    assert displayed.pop() is explanation
    attnflow.show(text, method="flow")
    assert displayed.pop() == explanation
    for given in (explanation, text):
        with pytest.raises(attnflow.OptionError, match=f"tokens.*{type(given).__name__}"):
            attnflow.show(given, TOKENS)
    with pytest.raises(attnflow.OptionError, match=r"layer is 2.*Explanation"):
        attnflow.show(explanation, layer=2)
    assert not displayed


def test_a_generation_is_shown_as_it_is(attentions):
    step = TextAttention.of(attentions, TOKENS).explain()
    written = [False] * (COUNT - 1) + [True]
    generation = attnflow.Generation(
        prompt="the keys to the cab", text="inet", explanations=[step], whole=step, written=written
    )
    out = io.StringIO()
    generation.show(out)
    assert printed(generation) == out.getvalue()
    with pytest.raises(attnflow.OptionError, match=r"units is 'words'.*Generation"):
        attnflow.show(generation, units="words")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": TOKENS[:-1]}, f"tokens has 6 items.*{COUNT} positions"),
        ({"tokens": "the keys"}, "tokens is 'the keys'.*list of strings"),
        ({"tokens": list(range(COUNT))}, r"tokens\[0\] is 0.*string"),
        ({"method": "contribution"}, "method is 'contribution'.*model"),
        ({"target": "are"}, "target is 'are'.*model"),
        ({"layer": 4}, "layer is 4.*3 layers"),
        ({"layr": 2}, "layr"),
    ],
)
def test_what_cannot_be_shown_is_refused(attentions, change, message):
    with pytest.raises((attnflow.OptionError, TypeError), match=message):
        attnflow.show(attentions, **{"tokens": TOKENS, **change})


def test_a_row_of_zeros_says_how_to_leave_it_out(attentions):
    padded = torch.stack(attentions)
    padded[:, :, :, -1] = 0
    with pytest.raises(attnflow.AttentionError, match=r"row of zeros.*row 6.*leave it out"):
        attnflow.show(padded, TOKENS)
    assert "the keys to the cab" in printed(padded[..., :-1, :-1], TOKENS[:-1])


# ---- Tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (TOKENS, ("<s>", "the", "keys", "to", "the", "cabinet")),
        (
            ["Ġcaf", "Ã", "©", "Ċ", "Ġopen", "<|endoftext|>"],
            ("café", "\n", "open", "<|endoftext|>"),
        ),
        (["ðŁ", "ĺĢ", "Ġkey", "s", "Ċ"], ("😀", "keys", "\n")),
        (["Ã", "Ġkey"], ("\ufffd", "key")),
        (["Ġ中", "Ã"], ("中", "\ufffd")),
    ],
    ids=["pieces of the text", "bytes", "emoji", "damaged", "other characters"],
)
def test_tokens_of_byte_level_vocabularies_are_text(tokens, words):
    count = len(tokens)
    explanation = TextAttention.of(np.full((1, count, count), 1 / count), tokens).explain()
    assert explanation.by_unit("words").tokens == words
    assert not set("ĠĊÃ") & set(explanation.text)


def test_byte_level_tokens_stand_where_their_tokenizer_says():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # Each byte is a token.
    tokenizer = Tokenizer(
        models.BPE({c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = "the café\n\topens «now» 😀, déjà-vu 中文"
    encoded = tokenizer.encode(text)
    count = len(encoded.tokens)
    found = TextAttention.of(np.full((1, count, count), 1 / count), encoded.tokens)
    assert found.text == text
    assert found.spans == tuple(encoded.offsets)


# ---- Arrays of other tools -----------------------------------------------------------------------


class Cache:
    """TransformerLens' ActivationCache: keys of hooks, and no dictionary."""

    def __init__(self, found):
        self.found = found

    def __getitem__(self, key):
        return self.found[key]

    def __iter__(self):
        return iter(self.found)

    def __len__(self):
        return len(self.found)

    def keys(self):
        return self.found.keys()

    def items(self):
        return self.found.items()


def hooks(attentions):
    """The activations of a pass, in no order, by the names of their hooks."""
    found = {"hook_embed": torch.zeros(1, COUNT, 16)}
    for layer, weights in reversed(list(enumerate(attentions))):
        found[f"blocks.{layer}.attn.hook_pattern"] = weights
        found[f"blocks.{layer}.attn.hook_attn_scores"] = weights.log()
    return found


LAYOUTS = {
    # TransformerLens
    "ActivationCache": lambda given: Cache(hooks(given)),
    "without its batch": lambda given: Cache(hooks([layer[0] for layer in given])),
    "cache_dict": hooks,
    "stack_activation": torch.stack,
    "stack_activation without batch": lambda given: torch.stack(given)[:, 0],
    # nnsight: what save() leaves of each layer, with gradients
    "nnsight": lambda given: [layer.clone().requires_grad_() for layer in given],
    "nnsight in bfloat16": lambda given: [layer.bfloat16() for layer in given],
    # NumPy
    "numpy": lambda given: torch.stack(given).detach().numpy(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_of_other_tools_are_read(attentions, displayed, layout):
    given = LAYOUTS[layout](attentions)
    tolerance = 5e-3 if "bfloat16" in layout else 1e-7
    for method in (attnflow.attention_rollout, attnflow.attention_flow, attnflow.raw_attention):
        np.testing.assert_allclose(method(given), method(attentions), rtol=0, atol=tolerance)
    attnflow.show(given, TOKENS, method="flow")
    [explanation] = displayed
    expected = TextAttention.of(attentions, TOKENS).explain(method="flow")
    np.testing.assert_allclose(explanation.scores, expected.scores, rtol=0, atol=tolerance)
    assert explanation.trace.heads.shape == (LAYERS, HEADS, COUNT, COUNT)


def without(found, *layers):
    return {
        key: value
        for key, value in found.items()
        if not any(key.startswith(f"blocks.{layer}.attn") for layer in layers)
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: Cache(without(hooks(given), 0)), r"Cache.*'blocks\.0\.attn.*0 to 2"),
        (lambda given: without(hooks(given), 1), r"dict.*'blocks\.1\.attn.*0 to 2"),
        (lambda given: Cache(without(hooks(given), 0, 1, 2)), r"Cache.*blocks\.0\.attn.*array"),
        (lambda given: Cache(hooks([layer.repeat(2, 1, 1, 1) for layer in given])), r"Cache.*2 te"),
        (lambda given: [layer.repeat(2, 1, 1, 1) for layer in given], r"batch of 2 texts.*select"),
        (lambda given: torch.stack(given).repeat(1, 2, 1, 1, 1), r"batch of 2 texts.*\[:, k\]"),
        (lambda given: [None] * 3, r"None.*eager"),
        (lambda given: {"attentions": given}, r"dict.*blocks\.0"),
    ],
    ids=["first", "middle", "none", "batch", "batch of layers", "batch of all", "sdpa", "other"],
)
def test_what_a_cache_lacks_is_told(attentions, change, message):
    with pytest.raises(attnflow.AttentionError, match=message):
        attnflow.show(change(attentions), TOKENS)


def test_the_error_of_a_batch_says_how_to_select_a_text(attentions):
    attentions = [torch.cat([layer.flip(1), layer]) for layer in attentions]
    cache = Cache(hooks(attentions))
    with pytest.raises(attnflow.AttentionError) as caught:
        attnflow.attention_rollout(cache)
    [code] = re.findall(r"with (\[.*\])$", str(caught.value))
    selected = eval(code, {"attentions": cache, "k": 1, "range": range})
    np.testing.assert_array_equal(
        attnflow.attention_rollout(selected),
        attnflow.attention_rollout([layer[1] for layer in attentions]),
    )


def test_showing_arrays_imports_no_model():
    import subprocess

    code = (
        "import sys, numpy, attnflow; attnflow.show(numpy.full((1, 2, 2), 0.5), ['a', 'b']);"
        "assert not {'torch', 'transformers', 'pyarrow', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
