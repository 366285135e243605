"""Tables in memory: data frames, Arrow tables and Hugging Face data sets, as a source of rows."""

import datetime
import json

import datasets
import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import attnflow
from tests.support.dataset_signals import content, explainer

TEXTS = [
    "the keys to the cabinet are on the table",
    "a film that no one will forget",
    "the key",
    "keys are on a table",
    "",
]
# What each library makes of the same table, and the types that Parquet keeps of it.
COLUMNS = {
    "stars": np.arange(5, dtype="int8"),
    "share": np.array([0.5, 0.25, 0.125, 1.0, 0.0], dtype="float32"),
    "name": ["a", "b", None, "d", "e"],
    "when": [datetime.datetime(2024, 1, day) for day in range(1, 6)],
    "tags": [["x", "y"], [], ["z"], [], ["x"]],
}
TABLE = pa.table({"text": TEXTS, **{name: pa.array(COLUMNS[name]) for name in COLUMNS}})
KINDS = {
    "pandas": lambda: pandas.DataFrame({"text": TEXTS, **COLUMNS}),
    "polars": lambda: polars.DataFrame({"text": TEXTS, **COLUMNS}),
    "pyarrow": lambda: TABLE,
    "reader": TABLE.to_reader,
    "duckdb": lambda: duckdb.from_arrow(TABLE).order("stars"),
    "datasets": lambda: datasets.Dataset(TABLE),
}


@pytest.fixture(scope="module")
def classifier():
    return explainer()


def run(source, model, folder, **options):
    options = {"method": "rollout", "workers": 1, "shard_rows": 2, **options}
    return attnflow.run(source, model, output=folder, **options)


def rows_of(folder):
    return pq.read_table(folder / "data").to_pylist()


@pytest.fixture(scope="module")
def parquet(classifier, tmp_path_factory):
    """The rows that come of the same table in a Parquet file."""
    folder = tmp_path_factory.mktemp("parquet")
    pq.write_table(TABLE, folder / "films.parquet")
    run(folder / "films.parquet", classifier, folder / "out", id_column="stars")
    return rows_of(folder / "out")


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_gives_the_rows_of_a_file_with_its_types(classifier, parquet, tmp_path, kind):
    seen = []
    options = {"id_column": "stars", "progress": seen.append}
    result = run(KINDS[kind](), classifier, tmp_path / "out", **options)
    assert (result.rows, result.failed) == (4, 1)
    assert seen[0].expected == (None if kind == "reader" else 5)
    assert rows_of(tmp_path / "out") == parquet
    schema = pq.read_schema(tmp_path / "out/data/part-00000.parquet")
    found = {name: str(schema.field(name).type) for name in ("id", *COLUMNS) if name != "stars"}
    assert found["id"] == "int8"
    assert found["share"] == "float"
    assert found["name"].removeprefix("large_") == "string"
    assert found["when"] == "timestamp[us]"
    assert found["tags"].removeprefix("large_").replace("large_", "") == "list<element: string>"
    assert "rest" not in schema.names
    [error] = pq.read_table(tmp_path / "out/errors").to_pylist()
    assert (error["place"], error["id"]) == ("row 4", 4)
    for read in (pandas.read_parquet, polars.read_parquet):
        assert list(read(tmp_path / "out/data")["text"]) == TEXTS[:4]


def test_a_streamed_data_set_is_read_row_by_row(classifier, tmp_path):
    data = datasets.Dataset.from_dict({"text": TEXTS, "stars": range(5)})
    read = []

    def seen(row):
        read.append(row["stars"])
        return row

    run(data.to_iterable_dataset().map(seen), classifier, tmp_path / "out", limit=3)
    assert [(row["text"], row["stars"]) for row in rows_of(tmp_path / "out")] == [
        *zip(TEXTS[:3], range(3), strict=True)
    ]
    assert set(read) == set(range(5))  # what decides the types


def test_a_data_set_is_read_as_it_was_selected_whatever_its_format(classifier, tmp_path):
    data = datasets.Dataset.from_dict({"text": TEXTS[:4], "kind": [0, 1, 0, 1]})
    data = data.cast_column("kind", datasets.ClassLabel(names=["bad", "good"]))
    run(data.select([3, 1]).with_format("torch"), classifier, tmp_path / "out")
    assert [(row["text"], row["kind"]) for row in rows_of(tmp_path / "out")] == [
        (TEXTS[3], 1),
        (TEXTS[1], 1),
    ]


def test_columns_are_chosen_as_with_files(classifier, tmp_path):
    frame = polars.DataFrame({"key": ["a", "b"], "review": TEXTS[:2], "n": [1, 2], "m": [3, 4]})
    options = {"text_column": "review", "id_column": "key", "columns": ["m"]}
    run(frame, classifier, tmp_path / "out", **options)
    [first, _] = rows_of(tmp_path / "out")
    assert (first["id"], first["text"], first["m"]) == ("a", TEXTS[0], 3)
    assert not {"n", "review", "key", "rest"} & set(first)
    for name in ("text_column", "pair_column", "id_column"):
        with pytest.raises(attnflow.OptionError, match=f"{name}.*'x'.*DataFrame.*'key', 'review'"):
            run(frame, classifier, tmp_path / "other", **{"text_column": "review", name: "x"})
    with pytest.raises(attnflow.AttnflowError, match=r"'key', 'review', 'n', 'm'.*text_column"):
        run(frame, classifier, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_pairs_are_in_two_columns(classifier, tmp_path):
    frame = pandas.DataFrame({"premise": TEXTS[:2], "hypothesis": TEXTS[2:4]})
    run(frame, classifier, tmp_path / "out", text_column="premise", pair_column="hypothesis")
    pairs = zip(TEXTS[:2], TEXTS[2:4], strict=True)
    run(list(pairs), classifier, tmp_path / "tuples")
    for row, expected in zip(rows_of(tmp_path / "out"), rows_of(tmp_path / "tuples"), strict=True):
        assert (row["text"], row["pair"]) == (expected["text"], expected["pair"])
        assert row["scores"] == expected["scores"]


def test_an_index_is_a_column_if_it_has_a_name(classifier, tmp_path):
    frame = pandas.DataFrame({"review": TEXTS[:4], "n": [4, 3, 2, 1]}).sort_values("n")
    run(frame[["review"]], classifier, tmp_path / "unnamed")
    assert not [name for name in rows_of(tmp_path / "unnamed")[0] if "index" in name]
    named = frame.set_index(pandas.Index(["k1", "k2", "k3", "k4"], name="key"))
    run(named, classifier, tmp_path / "named", text_column="review", id_column="key")
    assert [row["id"] for row in rows_of(tmp_path / "named")] == ["k1", "k2", "k3", "k4"]


def test_categories_are_kept_as_their_names(classifier, tmp_path):
    kinds = ["good", "bad", "good"]
    frames = [
        pandas.DataFrame({"text": TEXTS[:3], "kind": pandas.Categorical(kinds)}),
        polars.DataFrame({"text": TEXTS[:3], "kind": kinds}).cast({"kind": polars.Categorical}),
        polars.DataFrame({"text": TEXTS[:3], "kind": kinds}).cast(
            {"kind": polars.Enum(["good", "bad"])}
        ),
    ]
    for i, frame in enumerate(frames):
        run(frame, classifier, tmp_path / str(i))
        assert [row["kind"] for row in rows_of(tmp_path / str(i))] == kinds


# ---- Resuming ------------------------------------------------------------------------------------


class Enough(Exception):
    pass


def stop(now):
    if now.new:
        raise Enough


@pytest.mark.parametrize("kind", ["pandas", "polars", "datasets"])
def test_a_run_over_a_table_is_resumed(classifier, tmp_path, kind):
    run(KINDS[kind](), classifier, tmp_path / "whole")
    with pytest.raises(Enough):
        run(KINDS[kind](), classifier, tmp_path / "out", progress=stop)
    result = run(KINDS[kind](), classifier, tmp_path / "out")
    assert (result.rows, result.failed, result.new) == (4, 1, 3)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert run(KINDS[kind](), classifier, tmp_path / "out").new == 0


def test_how_a_table_is_laid_out_does_not_change_what_it_is(classifier, tmp_path):
    run(TABLE, classifier, tmp_path / "out")
    chunks = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 3), TABLE.slice(4)])
    assert chunks["text"].num_chunks == 3
    assert run(chunks, classifier, tmp_path / "out").new == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.assign(stars=[0, 1, 2, 3, 5]),
        lambda frame: frame.assign(stars=frame["stars"].astype("int16")),
        lambda frame: frame.rename(columns={"stars": "points"}),
        lambda frame: frame.iloc[::-1],
        lambda frame: frame.iloc[:4],
        lambda frame: pandas.concat([frame, frame]),
        lambda frame: frame["text"],
    ],
    ids=["value", "type", "name", "order", "fewer", "more", "column"],
)
def test_a_table_that_changed_is_refused_and_what_was_done_stays(classifier, tmp_path, change):
    frame = KINDS["pandas"]()
    with pytest.raises(Enough):
        run(frame, classifier, tmp_path / "out", progress=stop)
    before = content(tmp_path / "out")
    with pytest.raises(attnflow.OptionError, match=r"DataFrame.*changed"):
        run(change(frame), classifier, tmp_path / "out")
    assert content(tmp_path / "out") == before


def test_the_manifest_names_the_table_and_its_digest(classifier, tmp_path):
    run(KINDS["polars"](), classifier, tmp_path / "polars")
    manifest = json.loads((tmp_path / "polars/manifest.json").read_text())
    [found] = manifest["header"]["source"]["files"]
    assert (found["name"], found["rows"]) == ("the DataFrame given", 5)
    assert len(found["digest"]) == 32


# ---- What cannot be read -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (pandas.DataFrame({"text": pandas.Series(["keys", 1], dtype=object)}), r"column text\b"),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), "DataFrame.*'text'"),
        (pa.table([["a"], ["b"]], names=["text", "text"]), "Table.*'text'"),
        (pandas.DataFrame({"text": []}), "DataFrame.*empty"),
        (polars.DataFrame({"text": ["keys"]}).lazy(), r"source\.collect\(\)"),
        (
            polars.DataFrame({"text": ["keys"], "n": [1]}).cast({"n": polars.Int128}),
            "DataFrame.*i128",
        ),
        (datasets.DatasetDict({"test": datasets.Dataset(TABLE)}), r"source\['test'\]"),
    ],
    ids=["types", "names", "arrow names", "empty", "lazy", "type", "splits"],
)
def test_a_table_that_cannot_be_read_is_refused(classifier, tmp_path, source, message):
    with pytest.raises(attnflow.AttnflowError, match=message):
        run(source, classifier, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_format_is_that_of_a_file(classifier, tmp_path):
    with pytest.raises(attnflow.OptionError, match=r"format.*'csv'.*DataFrame"):
        run(KINDS["polars"](), classifier, tmp_path / "out", format="csv")
