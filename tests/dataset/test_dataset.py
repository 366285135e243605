"""Whole data sets: what is read, what is written, and what is left after anything that happens."""

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers

import attnflow
from attnflow.cli import main
from attnflow.dataset.store import Store
from attnflow.models.adapter import Adapter
from attnflow.models.text import TextAdapter
from tests.support import ROOT
from tests.support.dataset_signals import KILLS, SIZES, VOCABULARY, content, explainer
from tests.support.tiny import sharpen, wordpiece_tokenizer

TEXTS = [
    "the keys to the cabinet are on the table",
    "a film that no one will forget",
    "the key",
    "keys are on a table",
    "no one will forget the film that is on the table",
]


@pytest.fixture(scope="module")
def classifier():
    return explainer()


def rows_of(folder):
    return pq.read_table(folder / "data").to_pylist()


def errors_of(folder):
    return pq.read_table(folder / "errors").to_pylist()


def run(source, model, folder, **options):
    options = {"method": "rollout", "workers": 1, "shard_rows": 2, **options}
    return attnflow.run(source, model, output=folder, **options)


# ---- What is computed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"method": "raw", "layer": 2},
        {"method": "rollout", "special_tokens": False},
        {"method": "flow", "units": "words"},
        {"method": "flow", "drop_sink": True, "target": "bad", "edges": "gradient"},
        {"method": "flow", "layer": 2, "position": "last", "receptive_field": True},
        {"method": "flow", "residual": 0.25, "edges": "effective"},
        {"method": "rollout", "edges": "value_norm", "receptive_field": True, "units": "words"},
        {"method": "rollout", "layer": 1, "heads": "max", "drop_sink": True},
        {"method": "raw", "heads": 1, "position": 2, "edges": "attention"},
        {"method": "auto"},
        {"method": "contribution", "target": "bad", "contrast": "good", "units": "words"},
    ],
)
def test_results_are_those_of_explaining_one_by_one(classifier, tmp_path, options):
    result = run(TEXTS, classifier, tmp_path / "out", shard_rows=3, **options)
    assert (result.rows, result.failed, result.new) == (5, 0, 5)
    found = rows_of(tmp_path / "out")
    assert [row["row"] for row in found] == list(range(5))
    for row, text in zip(found, TEXTS, strict=True):
        alone = classifier.explain(text, **options)
        assert row["text"] == text
        assert tuple(row["tokens"]) == alone.tokens
        np.testing.assert_allclose(row["scores"], alone.scores, rtol=1e-4, atol=1e-6)
        assert row["special"] == list(alone.special)
        assert [
            None if start is None else (start, end)
            for start, end in zip(row["starts"], row["ends"], strict=True)
        ] == list(alone.spans)
        assert (row["layer"], row["position"]) == (alone.layer, alone.position)
        assert (row["target"], row["predicted"]) == (alone.target, alone.prediction.label)
        assert row["probability"] == pytest.approx(alone.prediction.probability, rel=1e-4)
        assert row["saturation"] == alone.saturation
        assert row["contrast"] == alone.contrast
        for name in ("value", "bias"):
            expected = getattr(alone, name)
            assert row[name] == (None if expected is None else pytest.approx(expected, abs=1e-5))
        assert row["notes"] == list(alone.notes)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "flow"},
        {"method": "rollout", "layer": 1, "position": 2},
        {"method": "rollout", "edges": "value_norm"},
        {"method": "flow", "receptive_field": False, "drop_sink": True},
        {"method": "raw", "edges": "gradient"},
    ],
)
def test_a_causal_model_is_related_to_uniform_attention_as_one_by_one(tmp_path, options):
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24}
    config = transformers.GPT2Config(
        vocab_size=SIZES["vocab_size"], bos_token_id=2, eos_token_id=3, **sizes
    )
    model = attnflow.Explainer(
        sharpen(transformers.GPT2LMHeadModel(config)), wordpiece_tokenizer(VOCABULARY)
    )
    run(TEXTS, model, tmp_path / "out", shard_rows=5, **options)
    for row, text in zip(rows_of(tmp_path / "out"), TEXTS, strict=True):
        alone = model.explain(text, **options)
        assert (row["position"], tuple(row["tokens"])) == (alone.position, alone.tokens)
        assert (row["target"], row["notes"]) == (alone.target, list(alone.notes))
        np.testing.assert_allclose(row["scores"], alone.scores, rtol=1e-3, atol=1e-6)


def test_an_encoder_decoder_explains_its_source(tmp_path):
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=SIZES["vocab_size"], d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2,
        decoder_start_token_id=0, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    pair = attnflow.Explainer(model, wordpiece_tokenizer(VOCABULARY))
    run([*TEXTS[:2], ""], pair, tmp_path / "out")
    for row, text in zip(rows_of(tmp_path / "out"), TEXTS[:2], strict=True):
        alone = pair.explain(text, method="rollout").scores
        np.testing.assert_allclose(row["scores"], alone, rtol=1e-5)
    assert [row["row"] for row in errors_of(tmp_path / "out")] == [2]


def test_a_model_that_reads_no_text_is_refused(tmp_path):
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        image_size=8, patch_size=4,
    )  # fmt: skip
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    sees = attnflow.Explainer(transformers.ViTModel(config).eval(), processor)
    with pytest.raises(attnflow.OptionError, match="text"):
        run(TEXTS, sees, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- What is read --------------------------------------------------------------------------------


def write_source(folder, kind):
    """Write the texts with stars and a key in a format; return the path."""
    stars = [1, 2, 3, 4, 5]
    keys = [f"k{i}" for i in range(5)]
    if kind == "parquet":
        table = pa.table({"text": TEXTS, "stars": pa.array(stars, pa.int16()), "key": keys})
        pq.write_table(table, folder / "films.parquet", row_group_size=2)
        return folder / "films.parquet"
    rows = [{"text": t, "stars": s, "key": k} for t, s, k in zip(TEXTS, stars, keys, strict=True)]
    lines = [json.dumps(row) for row in rows]
    if kind in ("csv", "tsv"):
        mark = {"csv": ",", "tsv": "\t"}[kind]
        lines = [mark.join(["text", "stars", "key"])]
        lines += [mark.join(map(str, row.values())) for row in rows]
    content = "".join(f"{line}\n" for line in lines).encode()
    if kind == "jsonl.gz":
        content = gzip.compress(content)
    path = folder / f"films.{kind}"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "tsv", "parquet"])
def test_every_format_gives_the_same_rows_with_its_columns(classifier, tmp_path, kind):
    source = write_source(tmp_path, kind)
    result = run(source, classifier, tmp_path / "out", id_column="key")
    assert result.rows == 5
    run(TEXTS, classifier, tmp_path / "plain")
    for row, plain in zip(rows_of(tmp_path / "out"), rows_of(tmp_path / "plain"), strict=True):
        assert (row["text"], row["scores"]) == (plain["text"], plain["scores"])
        assert row["id"] == f"k{row['row']}"
        assert int(row["stars"]) == row["row"] + 1
        assert "key" not in row
    kept = pq.read_schema(tmp_path / "out/data/part-00000.parquet").field("stars").type
    assert str(kept) == {"parquet": "int16", "csv": "string", "tsv": "string"}.get(kind, "int64")


def test_plain_text_standard_input_a_folder_and_a_generator_give_the_same(
    classifier, tmp_path, monkeypatch
):
    texts = "".join(f"{text}\n" for text in TEXTS)
    (tmp_path / "texts.txt").write_text(texts)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS[:3]))
    (folder / "b.jsonl").write_text("".join(f"{json.dumps(text)}\n" for text in TEXTS[3:]))
    (folder / "_SUCCESS").write_text("no text")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(texts.encode())))
    sources = [tmp_path / "texts.txt", folder, "-", (text for text in TEXTS)]
    found = []
    for i, source in enumerate(sources):
        run(source, classifier, tmp_path / f"out{i}")
        found.append([(row["text"], row["scores"]) for row in rows_of(tmp_path / f"out{i}")])
    assert found[0] == found[1] == found[2] == found[3]
    assert [text for text, _ in found[0]] == TEXTS


def test_values_that_no_column_takes_are_kept_as_json(classifier, tmp_path):
    rows = [{"text": "", "stars": i, "list": [i], "tokens": 9} for i in range(999)]
    rows = [{**rows[0], "text": "the key"}, *rows]
    rows += [{"text": "keys", "stars": "five", "late": True, "list": None, "tokens": None}]
    run(iter(rows), classifier, tmp_path / "out", shard_rows=500)
    table = pq.read_table(tmp_path / "out/data")
    assert table["rest"].null_count == 1
    last = table.slice(1).to_pylist()[0]
    assert json.loads(last["rest"]) == {"stars": "five", "late": True}
    assert last["stars"] is None
    assert last["list"] is None
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["stars"], first["list"], first["source_tokens"]) == (0, "[0]", 9)


def test_whole_numbers_that_a_float_cannot_hold_are_kept(classifier, tmp_path):
    rows = [{"text": "keys", "n": 1.5}, {"text": "key", "n": 2**53 + 1}, {"text": "a key", "n": 7}]
    run(rows, classifier, tmp_path / "out")
    found = rows_of(tmp_path / "out")
    assert [row["n"] for row in found] == ["1.5", "9007199254740993", "7"]


def test_a_folder_of_parquet_files_has_the_columns_of_all_of_them(classifier, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    time = pa.array([1], pa.timestamp("us"))
    tables = [
        {"text": ["a key"], "n": pa.nulls(1), "x": pa.array([1], pa.int8()), "both": ["a"]},
        {"text": pa.array(["keys"], pa.large_string()), "n": [2**53 + 1], "x": [2], "time": time},
        {"n": [2.5], "text": ["the key"], "both": [5]},
    ]
    for number, table in enumerate(tables):
        pq.write_table(pa.table(table), folder / f"{number}.parquet")
    run(folder, classifier, tmp_path / "out")
    table = pq.read_table(tmp_path / "out/data")
    types = {name: str(table.schema.field(name).type) for name in ("n", "x", "both", "time")}
    assert types == {"n": "double", "x": "int64", "both": "string", "time": "timestamp[us]"}
    assert table["n"].to_pylist() == [None, None, 2.5]
    assert json.loads(table["rest"][1].as_py()) == {"n": 2**53 + 1}
    assert table["both"].to_pylist() == ['"a"', None, "5"]


@pytest.mark.parametrize("first", ["csv", "parquet"])
def test_a_folder_may_mix_formats_in_any_order(classifier, tmp_path, first):
    folder = tmp_path / "folder"
    folder.mkdir()
    parquet, text = ("1", "2") if first == "parquet" else ("2", "1")
    pq.write_table(pa.table({"text": ["a key"], "n": [5]}), folder / f"{parquet}.parquet")
    (folder / f"{text}.csv").write_text("text,n,z\nkeys,five,y\n")
    run(folder, classifier, tmp_path / "out")
    found = {row["text"]: row for row in rows_of(tmp_path / "out")}
    assert json.loads(found["a key"]["n"]) == 5
    assert json.loads(found["keys"]["n"]) == "five"
    assert found["keys"]["z"] == "y"


def test_a_pipe_is_read_once(classifier, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("the key\nkeys\n"), daemon=True)
    writer.start()
    assert run(pipe, classifier, tmp_path / "out").rows == 2
    writer.join()


def test_parquet_is_known_without_its_ending_and_gzip_on_standard_input(
    classifier, tmp_path, monkeypatch
):
    pq.write_table(pa.table({"text": TEXTS, "n": range(5)}), tmp_path / "films")
    run(tmp_path / "films", classifier, tmp_path / "parquet")
    assert [row["n"] for row in rows_of(tmp_path / "parquet")] == list(range(5))
    packed = io.BufferedReader(io.BytesIO(gzip.compress(b"the key\nkeys\n")))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(packed))
    assert run("-", classifier, tmp_path / "packed").rows == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", b'[{"text": "keys"}]', r"x\.json.*list.*lines"),
        ("x.csv", b"text;n\nkeys;1\n", "'text;n'.*comma"),
        ("x.tsv", b"text,n\nkeys,1\n", "'text,n'.*tab"),
        ("x.txt", "keys\n".encode("utf-16"), "x.txt.*UTF-16.*UTF-8"),
        ("x.csv", b"text,n\rkeys,1\r", "line 1.*carriage return"),
        (
            "x.jsonl",
            b'{"text": "keys", "tokens": 1, "source_tokens": 2}',
            "'tokens'.*'source_tokens'",
        ),
    ],
)
def test_a_file_that_would_be_misread_is_refused(classifier, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(attnflow.AttnflowError, match=message):
        run(tmp_path / name, classifier, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_only_the_columns_asked_for_are_carried(classifier, tmp_path):
    run([{"text": "keys", "a": 1, "b": 2}], classifier, tmp_path / "out", columns=["b"])
    row = rows_of(tmp_path / "out")[0]
    assert row["b"] == 2
    assert not {"a", "rest"} & set(row)


def test_limit_and_shuffle_choose_rows(classifier, tmp_path):
    rows = [{"text": "the key", "n": i} for i in range(40)]

    def numbers(folder, **options):
        run(iter(rows), classifier, tmp_path / folder, shard_rows=7, **options)
        return [row["n"] for row in rows_of(tmp_path / folder)]

    assert numbers("limit", limit=10) == list(range(10))
    mixed = numbers("mixed", shuffle=3)
    assert sorted(mixed) == list(range(40))
    assert mixed != list(range(40))
    assert numbers("some", shuffle=3, limit=10) == mixed[:10]
    assert numbers("other", shuffle=4, limit=10) != mixed[:10]
    assert not list((tmp_path / "mixed").glob(".attnflow*"))


# ---- What fails ----------------------------------------------------------------------------------


def test_rows_that_fail_are_listed_with_their_reasons_and_stop_nothing(classifier, tmp_path):
    rows = ["the key", "", 7, None, {"txt": "x"}, {"text": None}, "key " * 30, "a \ud800", "keys"]
    result = run(rows, classifier, tmp_path / "out", shard_rows=4)
    assert (result.rows, result.failed) == (2, 7)
    assert [row["text"] for row in rows_of(tmp_path / "out")] == ["the key", "keys"]
    errors = {row["row"]: row for row in errors_of(tmp_path / "out")}
    reasons = {
        1: "empty",
        2: r"\bint\b",
        3: "NoneType",
        4: "'text'",
        5: "text.*NoneType",
        6: "32 tokens.*24",
        7: "characters|surrogate",
    }
    assert list(errors) == list(reasons)
    for number, reason in reasons.items():
        assert re.search(reason, errors[number]["reason"])
        assert errors[number]["place"] == f"item {number}"


def test_lines_that_cannot_be_read_are_rows_that_fail(classifier, tmp_path):
    (tmp_path / "x.jsonl").write_bytes(
        b'{"text": "keys"}\n{"text": \n\n[1]\n{"text": "\xff"}\n'
        + b"[" * 9**5
        + b'\n{"text": "keys", "\\ud800": 1}\n'
    )
    (tmp_path / "x.csv").write_bytes(b'text,n\nkeys,1\nkeys\n"a"b,2\n\xff,3\n"a,4\nb",5\n')
    assert run(tmp_path / "x.jsonl", classifier, tmp_path / "json").failed == 6
    places = [row["place"].rpartition(", ")[2] for row in errors_of(tmp_path / "json")]
    assert places == [f"line {n}" for n in (2, 3, 4, 5, 6, 7)]
    assert run(tmp_path / "x.csv", classifier, tmp_path / "csv").failed == 3
    assert [row["text"] for row in rows_of(tmp_path / "csv")] == ["keys", "a,4\nb"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (b'"a,4\nkey,5\n', "line 3.*quote"),
        (b"key," + b"5" * 2**17 + b"5\n", "line 3.*131,072"),
        (b"a\rkey,4\n", "carriage return"),
    ],
)
def test_a_row_of_a_table_that_is_not_right_says_why(classifier, tmp_path, rows, reason):
    (tmp_path / "x.csv").write_bytes(b"text,n\nkeys,1\n" + rows)
    run(tmp_path / "x.csv", classifier, tmp_path / "out")
    [error] = errors_of(tmp_path / "out")
    assert re.search(reason, error["reason"])


def test_strict_stops_at_a_row_that_fails_and_what_is_finished_stays(classifier, tmp_path):
    texts = ["keys", "key", "the key", "", "a film"]
    with pytest.raises(attnflow.AttnflowError, match=r"item 3.*empty.*strict"):
        run(texts, classifier, tmp_path / "out", strict=True)
    assert [row["text"] for row in rows_of(tmp_path / "out")] == ["keys", "key"]
    assert run(texts, classifier, tmp_path / "out").new == 3


def test_a_text_that_would_take_more_memory_than_granted_fails(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "attnflow.dataset.shard._bytes_of", lambda model, options, tokens: tokens * 2**17
    )
    run(TEXTS, classifier, tmp_path / "out", memory=1)
    assert [row["row"] for row in rows_of(tmp_path / "out")] == [2, 3]
    assert re.search("11 tokens.*1 MiB", errors_of(tmp_path / "out")[0]["reason"])


def test_batches_stay_within_the_memory_granted(classifier, tmp_path, monkeypatch):
    sizes = []
    usual = Adapter.run

    def counted(self, texts, *others, **named):
        sizes.append(len(texts))
        return usual(self, texts, *others, **named)

    monkeypatch.setattr(Adapter, "run", counted)
    monkeypatch.setattr("attnflow.dataset.shard._bytes_of", lambda model, options, tokens: 2**18)
    run(["the key"] * 10, classifier, tmp_path / "out", memory=3, shard_rows=10)
    assert sizes == [4, 4, 2]


def test_a_text_whose_attention_is_wrong_fails_and_those_that_ran_with_it_do_not(tmp_path):
    broken = explainer()
    word = VOCABULARY["film"]
    with torch.no_grad():
        broken.model.get_input_embeddings().weight[word] = float("nan")
    run(TEXTS, broken, tmp_path / "out", shard_rows=5)
    assert [row["row"] for row in errors_of(tmp_path / "out")] == [1, 4]
    assert all(re.search("attentions.*nan", x["reason"]) for x in errors_of(tmp_path / "out"))
    for row in rows_of(tmp_path / "out"):
        alone = broken.explain(row["text"], method="rollout")
        np.testing.assert_allclose(row["scores"], alone.scores, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("error", [attnflow.AttentionError("a row sums to nan"), IndexError("2")])
def test_a_batch_that_fails_is_run_text_by_text(classifier, tmp_path, monkeypatch, error):
    usual = Adapter.run

    def fails(self, texts, *others, **named):
        if any("film" in text.tokens.text for text in texts):
            raise error
        return usual(self, texts, *others, **named)

    monkeypatch.setattr(Adapter, "run", fails)
    run(TEXTS, classifier, tmp_path / "out", shard_rows=5)
    assert [row["row"] for row in rows_of(tmp_path / "out")] == [0, 2, 3]
    assert [row["row"] for row in errors_of(tmp_path / "out")] == [1, 4]
    assert all(row["reason"].endswith(str(error)) for row in errors_of(tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "flux"}, "method.*'flux'.*raw.*rollout.*flow"),
        ({"layer": 9}, "layer"),
        ({"target": "ugly"}, "target.*'ugly'.*bad.*good"),
        ({"colour": 1}, "option.*'colour'"),
        ({"engine": "steam"}, "engine.*'steam'.*local"),
        ({"limit": 0}, "limit.*0"),
        ({"shuffle": -1}, "shuffle.*-1"),
        ({"workers": 0}, "workers.*0"),
        ({"shard_rows": True}, "shard_rows.*True"),
        ({"memory": 0.5}, "memory.*0.5"),
        ({"format": "xls"}, "format.*'xls'"),
        ({"text_column": "review"}, "text_column.*'review'.*'text'"),
        ({"id_column": "key"}, "id_column.*'key'"),
        ({"columns": ["a"]}, "columns.*'a'"),
        ({"columns": "text"}, "columns.*list"),
        ({"strict": 1}, "strict.*1"),
        ({"keep_heads": True}, "keep_heads"),
    ],
)
def test_an_option_that_is_not_valid_is_told_before_anything_is_done(
    classifier, tmp_path, options, message
):
    with pytest.raises(attnflow.OptionError, match=message):
        run(TEXTS, classifier, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output", [None, 5, "a\0b"])
def test_an_output_that_is_no_path_and_a_model_that_is_none_are_told(classifier, output):
    with pytest.raises(attnflow.OptionError, match=r"output.*folder"):
        run(TEXTS, classifier, output)
    with pytest.raises(attnflow.OptionError, match=r"explainer.*\bstr\b"):
        run(TEXTS, "./my-model", output)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "empty"),
        (7, r"source.*\bint\b"),
        (b"text", r"source.*\bbytes\b"),
        ({"text": "keys"}, r"source.*\bdict\b"),
        (polars.LazyFrame({"text": TEXTS}), r"LazyFrame.*source\.collect\(\)"),
        ([{"a": "x", "b": "y"}], "'a'.*'b'"),
        ("missing.txt", "missing.txt"),
    ],
)
def test_a_source_that_is_none_is_told(classifier, tmp_path, source, message):
    with pytest.raises(attnflow.AttnflowError, match=message):
        run(source, classifier, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet"])
def test_a_truncated_file_is_told_and_what_came_before_stays(classifier, tmp_path, kind):
    path = write_source(tmp_path, kind)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(attnflow.AttnflowError, match="damaged"):
        run(path, classifier, tmp_path / "out")


def test_parquet_that_is_corrupted_in_the_middle_is_told(classifier, tmp_path):
    path = tmp_path / "films.parquet"
    table = pa.table({"text": [f"the key {i}" for i in range(3000)]})
    pq.write_table(table, path, row_group_size=1500, compression="gzip", use_dictionary=False)
    second = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[second : second + 400] = b"\xff" * 400
    path.write_bytes(content)
    with pytest.raises(attnflow.AttnflowError, match=r"films\.parquet.*row \d+"):
        run(path, classifier, tmp_path / "out", shard_rows=500)
    assert len(rows_of(tmp_path / "out")) == 1000


def test_a_header_that_is_cut_off_or_twice_the_same_is_told(classifier, tmp_path):
    (tmp_path / "a.csv").write_text('"text')
    (tmp_path / "b.csv").write_text("text,n,n\nkeys,1,2\n")
    for name, message in (("a.csv", "line 1"), ("b.csv", "'n'.*twice")):
        with pytest.raises(attnflow.AttnflowError, match=message):
            run(tmp_path / name, classifier, tmp_path / "out")


# ---- What is written -----------------------------------------------------------------------------


def test_pandas_polars_and_duckdb_open_the_data_as_it_is(classifier, tmp_path):
    run(TEXTS, classifier, tmp_path / "out")
    folder = tmp_path / "out/data"
    expected = [(row["text"], row["tokens"], row["scores"]) for row in rows_of(tmp_path / "out")]
    frame = pandas.read_parquet(folder)
    assert [
        (row.text, list(row.tokens), list(row.scores)) for row in frame.itertuples()
    ] == expected
    table = polars.read_parquet(folder)
    assert table.select("text", "tokens", "scores").rows() == expected
    found = duckdb.sql(f"select text, tokens, scores from '{folder}/*.parquet' order by row")
    assert found.fetchall() == expected


def test_every_file_says_how_it_was_made(classifier, tmp_path):
    rows = [{"x": text, "n": 1} for text in [*TEXTS, ""]]
    run(rows, classifier, tmp_path / "out", layer=2, text_column="x", id_column="n", shuffle=3)
    for path in (tmp_path / "out").rglob("*.parquet"):
        said = json.loads(pq.read_schema(path).metadata[b"attnflow"])
        assert said["fingerprint"] == classifier.fingerprint()
        assert (said["attnflow"], said["task"]) == (attnflow.__version__, "classification")
        options = said["options"]
        assert (options["method"], options["layer"], options["units"]) == ("rollout", 2, "tokens")
        assert (options["text_column"], options["id_column"]) == ("x", "n")
        assert options["columns"] is None
        assert (options["limit"], options["shuffle"], options["shard_rows"]) == (None, 3, 2)
        assert options["keep"] == []


def test_a_second_run_does_only_what_is_missing(classifier, tmp_path, monkeypatch):
    source = tmp_path / "x.txt"
    source.write_text("\n".join([*TEXTS, ""]))
    out = tmp_path / "out"
    run(source, classifier, out)
    whole = content(out)
    assert run(source, classifier, out).new == 0
    (out / "data/part-00000.parquet").write_bytes(b"damaged")
    (out / "data/part-00002.parquet").unlink()
    (out / "data/.attnflow-0123.tmp").write_bytes(b"left behind")
    texts = []
    usual = TextAdapter.read_many

    def noted(self, given, truncate):
        texts.extend(given)
        return usual(self, given, truncate)

    monkeypatch.setattr(TextAdapter, "read_many", noted)
    result = run(source, classifier, out)
    assert (result.remade, result.new) == ((0, 2), 3)
    assert texts == [*TEXTS[:2], TEXTS[4]]
    assert content(out) == whole


def test_a_file_that_is_none_of_the_shards_does_not_stay_beside_it(classifier, tmp_path):
    run(TEXTS, classifier, tmp_path / "out")
    whole = content(tmp_path / "out")
    (tmp_path / "out/errors").mkdir()
    (tmp_path / "out/errors/part-00001.parquet").write_bytes(b"of another run")
    assert run(TEXTS, classifier, tmp_path / "out").remade == (1,)
    assert content(tmp_path / "out") == whole
    assert run(TEXTS, classifier, tmp_path / "out").remade == ()


def test_a_source_that_moved_is_the_same_source(classifier, tmp_path):
    source = write_source(tmp_path, "jsonl")
    run(source, classifier, tmp_path / "out")
    moved = source.rename(tmp_path / "moved.jsonl")
    assert run(moved, classifier, tmp_path / "out").new == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "flow"}, "method.*'rollout'.*'flow'"),
        ({"layer": 1}, "layer.*-1.*1"),
        ({"shard_rows": 3}, "shard_rows.*2.*3"),
        ({"limit": 3}, "limit.*None.*3"),
    ],
)
def test_other_options_on_the_same_output_are_refused(classifier, tmp_path, change, message):
    run(TEXTS, classifier, tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(attnflow.OptionError, match=message):
        run(TEXTS, classifier, tmp_path / "out", **change)
    assert content(tmp_path / "out") == before


def test_another_model_on_the_same_output_is_refused(classifier, tmp_path):
    run(TEXTS, classifier, tmp_path / "out")
    with pytest.raises(attnflow.OptionError, match=r"weights.*vocabulary"):
        run(TEXTS, explainer(seed=1), tmp_path / "out")


def test_a_source_that_changed_is_refused_and_what_was_done_stays(classifier, tmp_path):
    source = write_source(tmp_path, "jsonl")
    run(source, classifier, tmp_path / "file")
    with source.open("a") as file:
        file.write('{"text": "keys"}\n')
    with pytest.raises(attnflow.OptionError, match=r"films\.jsonl.*changed"):
        run(source, classifier, tmp_path / "file")
    run(TEXTS, classifier, tmp_path / "items")
    before = content(tmp_path / "items")
    with pytest.raises(attnflow.AttnflowError, match=r"rows.*2"):
        run([*TEXTS[:3], "x", TEXTS[4]], classifier, tmp_path / "items")
    with pytest.raises(attnflow.AttnflowError, match="fewer rows"):
        run(TEXTS[:4], classifier, tmp_path / "items")
    assert content(tmp_path / "items") == before


def test_a_file_that_is_written_to_during_the_run_is_told(classifier, tmp_path):
    source = write_source(tmp_path, "jsonl")

    def write(now):
        with source.open("a") as file:
            file.write("\n")

    with pytest.raises(attnflow.AttnflowError, match="while"):
        run(source, classifier, tmp_path / "out", progress=write)
    assert not json.loads((tmp_path / "out/manifest.json").read_text())["complete"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"complete": true', '"complete": false', "edited"),
        ('"rows": 2', '"rows": 3', "edited"),
        ("{", "[", "JSON"),
        ("attnflow.dataset", "attnflow.something", "manifest"),
    ],
)
def test_a_manifest_that_was_edited_is_refused(classifier, tmp_path, old, new, message):
    run(TEXTS, classifier, tmp_path / "out")
    path = tmp_path / "out/manifest.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(attnflow.AttnflowError, match=message):
        run(TEXTS, classifier, tmp_path / "out")


@pytest.mark.parametrize("written", ["{}", "[]", "5", '{"header": 5}', '{"header": {}}'])
def test_a_manifest_of_something_else_is_refused(classifier, tmp_path, written):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/manifest.json").write_text(written)
    with pytest.raises(attnflow.AttnflowError, match="manifest"):
        run(TEXTS, classifier, tmp_path / "out")


def test_a_folder_with_other_files_and_a_file_are_no_output(classifier, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(attnflow.OptionError, match=r"notes\.txt"):
        run(TEXTS, classifier, tmp_path)
    with pytest.raises(attnflow.OptionError, match="folder"):
        run(TEXTS, classifier, tmp_path / "notes.txt")
    with pytest.raises(attnflow.AttnflowError, match="cannot be written"):
        run(TEXTS, classifier, "/proc/attnflow-out")


def test_a_second_run_on_one_output_at_the_same_time_is_told(classifier, tmp_path):
    run(TEXTS, classifier, tmp_path / "out")
    header = json.loads((tmp_path / "out/manifest.json").read_text())["header"]
    told = pytest.raises(attnflow.OptionError, match="another run")
    with Store(tmp_path / "out", header), told:
        run(TEXTS, classifier, tmp_path / "out")
    assert run(TEXTS, classifier, tmp_path / "out").new == 0


def test_progress_is_told_after_every_shard(classifier, tmp_path):
    told = []
    source = write_source(tmp_path, "csv")
    run(source, classifier, tmp_path / "out", progress=told.append)
    assert [now.done for now in told] == [0, 2, 4, 5]
    assert {now.expected for now in told} == {5}
    assert told[-1].new == 5


# ---- The engine ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_work_is_done_on_numbered_tasks_and_no_more_are_taken_than_are_worked_on(facts, workers):
    found = facts["mapped"][str(workers)]
    assert sorted(found["results"]) == [[number, number * 10] for number in range(6)]
    assert found["ahead"] == workers
    # What a worker raises is raised, and what it returns is returned, be it an error.
    assert found["raised"] == "OptionError: task 3"
    assert found["strange"].endswith("Strange: not to be had")
    assert found["returned"] == ["KeyError"]


# ---- Signals, and a full disk --------------------------------------------------------------------


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What became of runs that were killed, interrupted or out of space."""
    if sys.platform != "linux":
        pytest.skip("finds the workers of a run in /proc, which is Linux's")
    folder = tmp_path_factory.mktemp("signals")
    # To files: what a process left behind would hold a pipe open.
    with open(folder / "printed", "wb") as printed, open(folder / "complaints", "wb") as complaints:
        result = subprocess.run(
            [sys.executable, "-m", "tests.support.dataset_signals", str(folder)],
            cwd=ROOT,
            stdout=printed,
            stderr=complaints,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=600,
        )
    assert result.returncode == 0, (folder / "complaints").read_text()
    return json.loads((folder / "printed").read_text())


def test_the_bytes_do_not_depend_on_the_number_of_workers(facts):
    assert facts["two workers"]
    # Of 15 shards, one of which has a row that failed: data, attention and errors.
    assert facts["files"] == 15 + 15 + 1


@pytest.mark.scaled
def test_a_run_killed_at_any_moment_ends_with_the_bytes_of_one_that_was_not(facts):
    found = facts["kills"]
    assert found["killed"] == KILLS
    # Not always at the same moment; which ones depends on the machine.
    assert found["states"] > 1 + KILLS // 10
    assert (found["different"], found["rewritten"], found["refused"]) == (0, 0, 0)


def test_ctrl_c_finishes_the_shards_in_hand(facts):
    found = facts["interrupt"]
    assert found["status"] == 130
    assert found["told"]
    assert 2 <= found["some"] < facts["files"]
    assert found["unknown"] == []
    assert found["again"] == 0
    assert found["same"]


def test_a_worker_that_is_killed_ends_the_run_with_an_error(facts):
    found = facts["lost worker"]
    assert "SIGKILL" in found["message"]
    assert found["again"] == 0
    assert found["same"]


def test_a_full_disk_is_told_and_what_was_done_stays(facts):
    found = facts["full disk"]
    assert "No space left on device" in found["error"]
    assert 0 < found["some"] < facts["files"]
    assert found["same"]


# ---- The command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    classifier.model.save_pretrained(folder)
    classifier.tokenizer.save_pretrained(folder)
    return str(folder)


def test_the_command_does_what_the_function_does(classifier, saved, tmp_path, capsys):
    source = write_source(tmp_path, "tsv")
    arguments = ["run", str(source), "--model", saved, "--output", str(tmp_path / "out")]
    arguments += ["--method", "rollout", "--units", "words", "--shard-rows", "2", "--workers", "1"]
    assert main(arguments) == 0
    assert "5 rows" in capsys.readouterr().out
    run(source, classifier, tmp_path / "same", units="words")
    assert [row["scores"] for row in rows_of(tmp_path / "out")] == [
        row["scores"] for row in rows_of(tmp_path / "same")
    ]
    assert main([*arguments, "--layer", "1"]) == 1
    assert re.search("layer.*-1.*1", capsys.readouterr().err)


# Continuous integration may run with Ctrl-C ignored.
TERMINAL = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from attnflow.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_command_says_how_to_go_on_after_ctrl_c(saved, tmp_path, capsys, monkeypatch):
    def interrupted(*arguments, progress, **options):
        progress(attnflow.dataset.Progress(512, 0, 512, 1000))
        raise KeyboardInterrupt

    (tmp_path / "x.txt").write_text("keys\n")
    monkeypatch.setattr("attnflow.dataset.run", interrupted)
    status = main(["run", str(tmp_path / "x.txt"), "--model", saved, "--output", "out"])
    assert status == 130
    assert "512 rows" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_in_a_terminal_there_is_a_bar_and_ctrl_c_says_how_to_go_on(saved, tmp_path):
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    command = ["run", str(pipe), "--model", saved, "--output", str(tmp_path / "out")]
    command += ["--method", "rollout", "--shard-rows", "100", "--workers", "1"]
    terminal, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, *command],
        stdin=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"},
    )
    os.close(theirs)
    shown = b""

    def read_until(wanted):
        nonlocal shown
        while wanted not in shown:
            try:
                shown += os.read(terminal, 4096)
            except OSError as error:  # the other side is closed
                raise AssertionError(shown.decode()) from error

    try:
        # For both, which waits for nobody.
        with open(os.open(pipe, os.O_RDWR), "wb", buffering=0) as rows:
            # A run takes 1,000 rows to see what they are, and then a shard at a time.
            rows.write(b"the keys to the cabinet\n" * 1150)
            read_until(b"1100/?")
            assert b"a second" in shown
            process.send_signal(signal.SIGINT)
            read_until(b"Ctrl-C again stops at once")
            rows.write(b"the keys to the cabinet\n" * 100)
            read_until(b"attnflow: interrupted after 1,200 rows")
        assert process.wait() == 130
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    with open(tmp_path / "out/manifest.json") as manifest:
        assert len(json.load(manifest)["shards"]) == 12


def test_the_command_prints_json(saved, tmp_path, capsys):
    (tmp_path / "x.txt").write_text("the key\n\n")
    arguments = ["run", str(tmp_path / "x.txt"), "--model", saved, "--workers", "1", "--json"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "output": str(tmp_path / "out"),
        "rows": 1,
        "failed": 1,
        "new": 2,
        "remade": [],
    }


def test_the_command_tells_a_missing_source_before_it_loads_the_model(tmp_path, capsys):
    missing = str(tmp_path / "missing.csv")
    assert main(["run", missing, "--model", "nowhere", "--output", str(tmp_path / "out")]) == 1
    assert "missing.csv" in capsys.readouterr().err


def test_the_command_fails_if_no_row_could_be_explained(saved, tmp_path, capsys):
    (tmp_path / "x.txt").write_text("\n" * 3)
    arguments = ["run", str(tmp_path / "x.txt"), "--model", saved, "--workers", "1"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 1
    assert re.search("3 rows.*failed", capsys.readouterr().out)
    assert pq.read_table(tmp_path / "out/data").num_rows == 0


def test_importing_attnflow_does_not_import_pyarrow():
    code = "import sys, attnflow; sys.exit('pyarrow' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
