"""Attention that is kept by a run, or comes from elsewhere, and is explained without the model."""

import json
import re
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import attnflow
from attnflow import AttentionGraph, attention_flow, attention_rollout
from attnflow.cli import main
from attnflow.dataset import TextAttention, load_attentions
from tests.support.dataset_signals import SIZES, VOCABULARY, content, explainer
from tests.support.tiny import sharpen, wordpiece_tokenizer

TEXTS = [
    "the keys to the cabinet are on the table",
    "a film that no one will forget",
    "",
    "the key",
    "keys are on a table",
]
DONE = [0, 1, 3, 4]


@pytest.fixture(scope="module")
def classifier():
    return explainer()


@pytest.fixture(scope="module")
def causal():
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 24}
    config = transformers.GPT2Config(vocab_size=SIZES["vocab_size"], **sizes)
    model = sharpen(transformers.GPT2LMHeadModel(config))
    return attnflow.Explainer(model, wordpiece_tokenizer(VOCABULARY))


def run(model, folder, source=TEXTS, **options):
    given = {"method": "rollout", "workers": 1, "shard_rows": 3, "keep": ["attentions"]}
    return attnflow.run(source, model, output=folder, **{**given, **options})


@pytest.fixture(scope="module")
def kept(classifier, tmp_path_factory):
    """The output of a run that kept attention in float32."""
    folder = tmp_path_factory.mktemp("kept") / "out"
    run(classifier, folder, keep_dtype="float32")
    return folder


def same(found, expected, **tolerance):
    """Check that two explanations agree in everything, and in numbers as far as told."""
    mine, other = found.to_dict(), expected.to_dict()
    for name in ("scores", "layer_scores"):
        np.testing.assert_allclose(mine.pop(name), other.pop(name), **tolerance)
    for record in (mine, other):
        if record["prediction"] is not None:
            record["prediction"]["probability"] = round(record["prediction"]["probability"], 4)
    assert mine == other


# ---- The same answers as with the model ----------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"method": "raw", "layer": 2, "position": 3},
        {"method": "rollout", "units": "words", "position": "last"},
        {"method": "rollout", "special_tokens": False, "residual": 0.3},
        {"method": "flow"},
        {"method": "flow", "layer": 1, "drop_sink": True, "position": "cls"},
        {"method": "flow", "receptive_field": True},
    ],
)
def test_kept_attention_gives_what_the_model_gives(classifier, kept, options):
    stored = load_attentions(kept)
    assert list(stored.rows) == DONE
    for text in stored:
        same(text.explain(**options), classifier.explain(text.text, **options), atol=2e-6)
        assert text.text == TEXTS[text.row]


def test_the_trace_is_that_of_the_model(classifier, kept):
    text = load_attentions(kept)[1]
    found, expected = text.explain().trace, classifier.explain(text.text).trace
    assert (found.tokens, found.spans, found.special) == (
        expected.tokens,
        expected.spans,
        expected.special,
    )
    np.testing.assert_allclose(found.attention(), expected.attention(), atol=1e-6)


@pytest.mark.parametrize("edges", ["gradient", "effective", "value_norm"])
def test_other_edges_are_kept_as_they_are(classifier, tmp_path, edges):
    run(classifier, tmp_path / "out", edges=edges, keep_dtype="float32")
    for text in load_attentions(tmp_path / "out"):
        assert (text.residual is not None) == (edges == "value_norm")
        for method in ("rollout", "flow"):
            expected = classifier.explain(text.text, method=method, edges=edges)
            same(text.explain(method=method), expected, atol=1e-5)


def test_a_causal_model_is_related_to_uniform_attention(causal, tmp_path):
    run(causal, tmp_path / "out", keep_dtype="float32")
    for text in load_attentions(tmp_path / "out"):
        for method in ("rollout", "flow"):
            same(text.explain(method=method), causal.explain(text.text, method=method), atol=1e-5)
        # What the model says at another position is not known without it.
        if len(text.tokens) > 2:
            found = text.explain(method="rollout", position=1)
            expected = causal.explain(text.text, method="rollout", position=1)
            np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
            assert (found.prediction, found.target) == (None, None)
            assert expected.prediction is not None


def test_a_mask_that_float16_would_lose_is_kept(tmp_path):
    """A weight that float16 rounds to nothing is still an edge of uniform attention."""
    weights = np.tril(np.full((1, 3, 3), 0.5))
    weights[0, 0, 0], weights[0, 2] = 1.0, (1e-9, 0.5, 0.5 - 1e-9)
    text = TextAttention.of(weights, ["a", "b", "c"])
    mask = np.array([[True, True, True, False, False]])
    lost = text._replace(attention=weights.astype(np.float16))
    expected = text.explain(method="rollout").scores
    np.testing.assert_allclose(
        lost._replace(mask=mask).explain(method="rollout").scores, expected, atol=1e-6
    )
    assert abs(lost.explain(method="rollout").scores - expected).max() > 0.05


def test_gradients_belong_to_one_position_of_a_language_model(causal, tmp_path):
    run(causal, tmp_path / "out", edges="gradient")
    text = load_attentions(tmp_path / "out")[0]
    assert text.explain().target == causal.explain(text.text, edges="gradient").target
    with pytest.raises(attnflow.OptionError, match=r"position.*model"):
        text.explain(position=1)


def test_a_masked_language_model_knows_its_masks(tmp_path):
    config = transformers.BertConfig(**SIZES)
    model = attnflow.Explainer(
        sharpen(transformers.BertForMaskedLM(config)), wordpiece_tokenizer(VOCABULARY)
    )
    texts = ["the [MASK] are on the table", "the [MASK] [MASK]", "no mask"]
    run(model, tmp_path / "out", texts, position=1)
    first, second, third = load_attentions(tmp_path / "out")
    assert first.explain().position == model.explain(texts[0]).position == 2
    with pytest.raises(attnflow.OptionError, match=r"position.*2 mask.*2.*3"):
        second.explain(position="mask")
    with pytest.raises(attnflow.OptionError, match=r"mask.*0.*3"):
        third.explain()


def test_float16_takes_half_the_space_and_is_off_by_little(classifier, kept, tmp_path):
    run(classifier, tmp_path / "out", keep_dtype="float16")
    halves, wholes = load_attentions(tmp_path / "out"), load_attentions(kept)
    for half, whole in zip(halves, wholes, strict=True):
        assert 2 * half.attention.nbytes == whole.attention.nbytes
        # A weight of 11 binary digits is off by 2**-11 of itself at most, and so is a row's sum.
        assert abs(half.attention.astype(float).sum(axis=-1) - 1).max() <= 2.0**-11 + 1e-6
        for method in ("raw", "rollout", "flow"):
            off = half.explain(method=method).scores - whole.explain(method=method).scores
            assert abs(off).max() < 5e-4


def test_a_row_is_found_by_its_number_and_by_its_id(classifier, tmp_path):
    rows = [{"text": text, "key": f"k{i}"} for i, text in enumerate(TEXTS)]
    run(classifier, tmp_path / "out", rows, id_column="key", shuffle=3)
    stored = load_attentions(tmp_path / "out")
    assert sorted(stored.rows) == DONE
    assert stored.row(4).text == stored.named("k4").text == TEXTS[4]
    assert [text.row for text in stored] == [stored[i].row for i in range(4)] == list(stored.rows)
    assert [text.id for text in stored[1:3]] == [stored[1].id, stored[2].id]
    for find, what in ((stored.row, 2), (stored.named, "k2")):
        with pytest.raises(attnflow.OptionError, match=f"{what}.*4 rows.*0.*4"):
            find(what)
    with pytest.raises(IndexError):
        stored[4]


def test_the_files_are_plain_numpy(kept):
    arrays = load_file(kept / "attentions/part-00000.safetensors")
    assert arrays["1"].dtype == np.float32
    assert arrays["1"].shape == (3, 9, 9)
    about = json.loads(arrays["1.about"].tobytes())
    assert about["text"] == TEXTS[1]
    assert len(about["tokens"]) == 9
    text = load_attentions(kept).row(1)
    np.testing.assert_allclose(
        attention_rollout(arrays["1"])[-1, 0], text.explain(method="rollout").scores, atol=1e-12
    )


# ---- Written as the rest of the data set is ------------------------------------------------------


def test_a_run_that_goes_on_ends_with_the_same_bytes(classifier, kept, tmp_path):
    out = tmp_path / "out"
    run(classifier, out, keep_dtype="float32")
    whole = content(out)
    assert whole == content(kept)
    assert run(classifier, out, keep_dtype="float32").new == 0
    (out / "attentions/part-00000.safetensors").write_bytes(b"damaged")
    (out / "attentions/part-00001.safetensors").unlink()
    (out / "attentions/.attnflow-0123.tmp").write_bytes(b"left behind")
    assert run(classifier, out, keep_dtype="float32").remade == (0, 1)
    assert content(out) == whole


def test_a_disk_that_is_full_leaves_what_was_finished(classifier, kept, tmp_path, monkeypatch):
    out = tmp_path / "out"
    usual = attnflow.dataset.store.write_whole

    def full(path, data):
        if path.name == "part-00001.safetensors":
            raise OSError(28, "No space left on device")
        usual(path, data)

    monkeypatch.setattr("attnflow.dataset.store.write_whole", full)
    with pytest.raises(attnflow.AttnflowError, match="No space left on device"):
        run(classifier, out, keep_dtype="float32")
    assert list(load_attentions(out).rows) == [0, 1]
    monkeypatch.undo()
    assert run(classifier, out, keep_dtype="float32").new == 2
    assert content(out) == content(kept)


def test_keeping_changes_nothing_in_the_rest(classifier, kept, tmp_path):
    run(classifier, tmp_path / "out", keep=())
    parts = sorted(path.relative_to(kept) for path in kept.glob("[de]*/part-*"))
    assert parts
    assert sorted(path.relative_to(tmp_path / "out") for path in tmp_path.rglob("part-*")) == parts
    for part in parts:
        # But for the metadata, which say that it was kept.
        assert pq.read_table(tmp_path / "out" / part) == pq.read_table(kept / part)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"keep": ()}, r"keep.*\['attentions'\].*\[\]"),
        ({"keep_dtype": "float16"}, "keep_dtype.*'float32'.*'float16'"),
    ],
)
def test_another_way_of_keeping_is_another_run(classifier, kept, changed, message):
    with pytest.raises(attnflow.OptionError, match=message):
        run(classifier, kept, **{"keep_dtype": "float32", **changed})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["heads"]}, "keep.*'heads'.*'attentions'"),
        ({"keep_dtype": "bfloat16"}, "keep_dtype.*'bfloat16'.*float16.*float32"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_done(
    classifier, tmp_path, options, message
):
    with pytest.raises(attnflow.OptionError, match=message):
        run(classifier, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_an_encoder_decoder_is_refused(tmp_path):
    config = transformers.T5Config(
        vocab_size=SIZES["vocab_size"], d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    pair = attnflow.Explainer(model, wordpiece_tokenizer(VOCABULARY))
    with pytest.raises(attnflow.OptionError, match="one text"):
        run(pair, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_shard_that_does_not_fit_says_how_much_memory_it_takes(classifier, tmp_path):
    # 400 rows of 3 layers and 20 tokens in float32 are 2 MiB.
    texts = [" ".join(["the keys to the cabinet are on the table"] * 2)] * 400
    given = {"shard_rows": 400, "keep_dtype": "float32"}
    with pytest.raises(attnflow.AttnflowError, match=r"400 rows.*2 MiB.*1"):
        run(classifier, tmp_path / "out", texts, memory=1, **given)
    assert run(classifier, tmp_path / "out", texts, memory=8, **given).rows == 400


def test_nothing_is_written_where_every_row_fails(classifier, tmp_path):
    result = run(classifier, tmp_path / "out", ["", " "])
    assert (result.rows, result.failed) == (0, 2)
    assert not (tmp_path / "out/attentions").exists()
    assert run(classifier, tmp_path / "out", ["", " "]).new == 0
    with pytest.raises(attnflow.OptionError, match="attentions"):
        load_attentions(tmp_path / "out")


# ---- Arrays from elsewhere -----------------------------------------------------------------------

TOKENS = ["[CLS]", "key", "##s", "open", "doors", "[SEP]"]


@pytest.mark.parametrize("kind", ["npy", "npz", "layers.npz", "safetensors", "layers.safetensors"])
def test_weights_from_elsewhere_are_read_in_every_format(attention, tmp_path, kind):
    path = tmp_path / f"weights.{kind}"
    layers = {f"layer_{i}": layer for i, layer in enumerate([*attention] * 3)}
    if kind == "npy":
        np.save(path, attention)
    elif kind == "npz":
        np.savez(path, attentions=attention, tokens=np.array(TOKENS), other=np.ones(3))
    elif kind == "layers.npz":
        np.savez(path, **layers)
    else:
        save_file(layers if kind.startswith("layers") else {"weights": attention}, path)
    tokens = None if kind == "npz" else TOKENS
    [text] = load_attentions(path, tokens)
    assert (text.text, text.tokens) == ("keys open doors", tuple(TOKENS))
    assert text.special == (True, False, False, False, False, True)
    # Twelve layers, of which the tenth comes after the second.
    weights = np.concatenate([attention] * 3) if kind.startswith("layers") else attention
    found = text.explain(method="flow", layer=len(weights))
    flow = attention_flow(weights, positions=[0])[-1, 0]
    np.testing.assert_allclose(found.scores, flow, rtol=0, atol=1e-12)
    assert found.trace is not None
    assert found.by_unit("words").tokens == ("[CLS]", "keys", "open", "doors", "[SEP]")


def test_weights_may_have_heads_or_none_and_be_causal(attention):
    text = TextAttention.of(attention)
    assert text.tokens == ("0", "1", "2", "3", "4", "5")
    found = text.explain(method="rollout", heads=1, residual=0.25, keep_heads=True)
    expected = attention_rollout(attention, heads=1, residual=0.25)[-1, 0]
    np.testing.assert_allclose(found.scores, expected, atol=1e-15)
    assert found.trace.heads.shape == attention.shape
    fused = TextAttention.of(list(torch.tensor(attention.mean(axis=1))))
    np.testing.assert_allclose(
        fused.explain(method="raw").layer_scores, text.explain(method="raw").layer_scores
    )
    for change in ({"heads": 1}, {"heads": "max"}, {"keep_heads": True}):
        with pytest.raises(attnflow.OptionError, match="fused"):
            fused.explain(**change)
    causal = np.tril(attention)
    causal /= causal.sum(axis=-1, keepdims=True)
    found = TextAttention.of(causal, ["The", "keys", "to", "the", "old", "doors"]).explain()
    assert (found.position, found.options["receptive_field"]) == (5, True)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["\u2581The", "\u2581key", "s"], "The keys"),
        (["\u0120The", "\u0120key", "s"], "The keys"),
        (["<s>", "key", "</s>"], "key"),
        (["##", "a", "##b"], "## ab"),
        (["", "a", ""], "a "),
    ],
)
def test_words_are_put_together_where_tokens_say_how(tokens, text):
    found = TextAttention.of(np.full((1, 3, 3), 1 / 3), tokens)
    assert found.text == text
    assert found.explain(method="raw").by_unit("words").text == text


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("a.npy", lambda p: p.write_bytes(b"no array"), r"a\.npy.*NumPy"),
        ("a.npy", lambda p: np.save(p, np.array([{}], dtype=object)), "cannot be read"),
        ("a.npy", lambda p: np.save(p, np.full((2, 3, 3), 0.5)), "sum to 1"),
        ("a.npy", lambda p: np.save(p, np.ones((3, 3))), r"\(3, 3\)"),
        ("a.npz", lambda p: np.savez(p, a=np.ones(3), b=np.ones(4)), r"a\.npz.*a, b"),
        ("a.safetensors", lambda p: p.write_bytes(b"\xff" * 100), "cannot be read"),
        ("a.txt", lambda p: p.write_text("0.5"), ".npy.*.npz.*.safetensors"),
        ("b.npy", lambda p: None, "does not exist"),
    ],
)
def test_what_is_no_attention_is_refused(tmp_path, name, write, message):
    write(tmp_path / name)
    with pytest.raises(attnflow.AttnflowError, match=message):
        load_attentions(tmp_path / name)


def test_tokens_have_to_fit(attention, kept, tmp_path):
    np.save(tmp_path / "a.npy", attention)
    with pytest.raises(attnflow.OptionError, match=r"2.*6 positions"):
        load_attentions(tmp_path / "a.npy", ["a", "b"])
    with pytest.raises(attnflow.OptionError, match="tokens"):
        load_attentions(kept, ["a", "b"])


def damaged(arrays, metadata, change):
    if change == "about":
        arrays["0.about"] = np.frombuffer(b"{", dtype=np.uint8)
    elif change in ("tokens", "spans", "places", "prediction"):
        about = json.loads(arrays["0.about"].tobytes())
        about[change] = about[change][:-1] if isinstance(about[change], list) else {}
        content = json.dumps(about).encode()
        arrays["0.about"] = np.frombuffer(content, dtype=np.uint8)
    elif change == "mask":
        del arrays["0.mask"]
    else:
        metadata["attnflow"] = change
    return arrays, metadata


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("about", "damaged.*row 0"),
        ("mask", "damaged.*row 0"),
        ("tokens", "damaged.*row 0.*10 tokens.*shape"),
        ("spans", "damaged.*row 0.*11 tokens.*spans"),
        ("places", "damaged.*row 0.*positions"),
        ("prediction", "damaged.*row 0"),
        ("{", r"x\.safetensors"),
        ('{"format": "attnflow.attentions", "version": 2}', r"x\.safetensors"),
    ],
)
def test_a_damaged_file_is_said_to_be_so(kept, tmp_path, change, message):
    path = kept / "attentions/part-00000.safetensors"
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    arrays, metadata = damaged(load_file(path), metadata, change)
    save_file(arrays, tmp_path / "x.safetensors", metadata=metadata)
    with pytest.raises(attnflow.AttnflowError, match=message):
        list(load_attentions(tmp_path / "x.safetensors"))
    (tmp_path / "y.safetensors").write_bytes(path.read_bytes()[:-40])
    with pytest.raises(attnflow.AttnflowError, match="cannot be read"):
        list(load_attentions(tmp_path / "y.safetensors"))


# ---- The command ---------------------------------------------------------------------------------


def test_the_command_prints_what_it_prints_with_the_model(classifier, kept, capsys):
    assert main(["explain", "--attentions", str(kept), "--row", "1", "--json"]) == 0
    found = attnflow.Explanation.from_dict(json.loads(capsys.readouterr().out))
    same(found, classifier.explain(TEXTS[1], method="rollout"), atol=2e-6)
    options = ["--method", "rollout", "--layer", "2", "--units", "words", "--json"]
    assert main(["explain", "--attentions", str(kept), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == [TEXTS[i] for i in DONE]


def test_the_command_saves_a_page_and_a_figure(kept, tmp_path, capsys):
    page, figure = tmp_path / "x.html", tmp_path / "x.png"
    given = ["explain", "--attentions", str(kept), "--html", str(page), "--png", str(figure)]
    assert main(given) == 1
    assert "4 texts" in capsys.readouterr().err
    assert main([*given, "--id", "3"]) == 0
    assert '"trace":{"layers":3' in page.read_text()
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_the_command_explains_weights_from_elsewhere(attention, tmp_path, capsys):
    np.save(tmp_path / "weights.npy", attention)
    given = ["explain", "--attentions", str(tmp_path / "weights.npy"), "--json", "--heads", "max"]
    given += ["--method", "flow"]
    (tmp_path / "lines.txt").write_text("\n".join(TOKENS) + "\n")
    (tmp_path / "list.json").write_text(json.dumps(TOKENS))
    for tokens in ("lines.txt", "list.json"):
        assert main([*given, "--tokens", str(tmp_path / tokens)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["tokens"], found["model"]) == (TOKENS, "weights.npy")
        graph = AttentionGraph(attention, heads="max")
        flow = attention_flow(graph, positions=[0])[-1, 0]
        np.testing.assert_allclose(found["scores"], flow, rtol=0, atol=1e-12)
    assert main([*given[:3], "--position", "last"]) == 0
    assert "position 5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["a text"], "'a text'.*model"),
        (["--model", "x"], "--model"),
        (["--target", "1"], "target.*model"),
        (["--truncate"], "--truncate"),
        (["--allow-pickle"], "--allow-pickle"),
        (["--edges", "gradient"], "'attention'.*model"),
        (["--heads", "1"], "fused.*'mean'"),
        (["--keep-heads"], "keep_heads.*fused"),
        (["--row", "1", "--id", "1"], "row.*id|id.*row"),
        (["--row", "2"], "row 2"),
        (["--tokens", "nothing.txt"], r"nothing\.txt"),
        (["--layer", "9"], "layer.*9"),
        (["--method", "guess"], "method.*'guess'"),
        (["--residual", "2"], "residual.*0.*1"),
    ],
)
def test_what_cannot_be_had_without_the_model_is_refused(kept, capsys, options, message):
    assert main(["explain", "--attentions", str(kept), *options]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_the_options_of_stored_attention_need_it(capsys):
    for name in ("row", "id", "tokens"):
        assert main(["explain", f"--{name}", "1", "text"]) == 1
        assert re.search(f"--{name}.*--attentions", capsys.readouterr().err)


def test_explaining_stored_attention_loads_no_torch(kept):
    code = (
        "import sys\n"
        "from attnflow.cli import main\n"
        f"assert main(['explain', '--attentions', {str(kept)!r}, '--row', '0']) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_run_command_keeps_attentions(tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("the keys to the cabinet\n")
    options = ["--keep", "attentions", "--keep-dtype", "float32", "--workers", "1"]
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "texts.txt"), "--output", str(out), *options]) == 0
    assert str(out / "attentions") in capsys.readouterr().out
    assert load_attentions(out)[0].explain().prediction.label == "VBP"


def test_safetensors_is_asked_for_by_name(monkeypatch, classifier, tmp_path):
    monkeypatch.setattr("attnflow.dataset.attentions.find_spec", lambda name: None)
    with pytest.raises(attnflow.MissingExtraError, match=r"safetensors.*pip install"):
        run(classifier, tmp_path / "out")
    assert not (tmp_path / "out").exists()
