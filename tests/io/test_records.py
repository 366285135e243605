"""Rows of files in every format, with the faults that real files have."""

import gzip
import io
import re
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnflow.errors import DataError, OptionError
from attnflow.io.records import Record, read_annotated, read_records, read_texts
from attnflow.paper.data import verb_number


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, **options):
    faults = []
    texts = list(
        read_texts(
            path,
            on_fault=lambda *fault: faults.append(fault),
            dialect=verb_number,
            **options,
        )
    )
    return [tuple(text) for text in texts], faults


def test_plain_text_is_one_text_a_line(tmp_path):
    path = write(tmp_path / "a.txt", '\ufeffthe keys\r\n\n  \nare on, "the\ttable\nno end')
    texts, faults = read(path)
    assert texts == [
        (1, "the keys", None),
        (4, 'are on, "the\ttable', None),
        (5, "no end", None),
    ]
    assert faults == [(2, "the text is empty"), (3, "the text is empty")]
    assert read(path, limit=1) == ([(1, "the keys", None)], [])


def test_csv_may_have_line_breaks_in_quotes(tmp_path):
    path = write(tmp_path / "a.csv", 'id,text,label\n1,"the ""keys"",\nto",x\n2,a\n3,b,y\n')
    texts, faults = read(path, label_column="label")
    assert texts == [(3, 'the "keys",\nto', "x"), (5, "b", "y")]
    assert [line for line, _ in faults] == [4]
    assert re.search("2 columns.*3", faults[0][1])


def test_tsv_has_no_quotes(tmp_path):
    path = write(tmp_path / "a.tsv", 'words\tlabel\na "joy\t1\n\t0\n\nb\t1\t2\nc\t1\n')
    texts, faults = read(path, text_column="words")
    assert texts == [(2, 'a "joy', None), (6, "c", None)]
    assert [number for number, _ in faults] == [3, 4, 5]


def test_json_lines_are_objects_or_strings(tmp_path):
    lines = ['{"text": "a b", "y": 1}', '"c d"', "{", "3", '{"y": 2}', "", '{"text": 7}']
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    texts, faults = read(path)
    assert texts == [(1, "a b", None), (2, "c d", None)]
    assert [number for number, _ in faults] == [3, 4, 5, 6, 7]
    texts, faults = read(path, label_column="y")
    assert texts == [(1, "a b", "1")]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl"])
def test_bytes_that_are_not_utf_8_cost_their_line_only(tmp_path, name):
    nul = b"n\\u0000l" if name.endswith("jsonl") else b"n\0l"
    lines = [b"text", b"good", b"b\xffd", nul, b"fine"]
    if name.endswith("jsonl"):
        lines = [b'{"text": "%s"}' % line for line in lines]
    texts, faults = read(write(tmp_path / name, b"\n".join(lines)))
    assert [text for _, text, _ in texts][-2:] == ["good", "fine"]
    assert [number for number, _ in faults] == [3, 4]
    assert "UTF-8" in faults[0][1]
    assert "NUL" in faults[1][1]


def test_files_may_be_gzipped(tmp_path):
    content = "sentence\n" + "\n".join(f"text {i * i}" for i in range(5000))
    path = write(tmp_path / "a.tsv.gz", gzip.compress(content.encode(), mtime=0))
    texts, faults = read(path)
    assert len(texts) == 5000
    assert not faults
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(DataError, match=r"a\.tsv\.gz.*line \d+"):
        read(path)
    assert len(read(path, limit=10)[0]) == 10


def test_verb_number_data_are_known_by_their_first_line(tmp_path):
    path = write(tmp_path / "numpred.val", "VBZ\tthe key\nVBX\tthe\n\nVBP\tthe keys\n")
    texts, faults = read(path)
    assert texts == [(1, "the key", None), (4, "the keys", None)]
    assert [number for number, _ in faults] == [2, 3]
    assert read(path, label_column="label")[0] == [(1, "the key", "VBZ"), (4, "the keys", "VBP")]
    header = "sentence\tverb_pos\tverb_index\tn_diff_intervening\n"
    rows = "the keys are here\tVBP\t3\t0\nbad\na key is here\tVBZ\t3\t0\n"
    path = write(tmp_path / "agr.tsv", header + rows)
    texts, faults = read(path, label_column="label")
    assert texts == [(2, "the keys", "VBP"), (4, "a key", "VBZ")]
    assert [number for number, _ in faults] == [3]


def test_empty_lines_before_the_first_do_not_hide_what_a_file_is(tmp_path):
    path = write(tmp_path / "numpred.val", "\n\nVBZ\tthe key\n")
    assert read(path) == (
        [(3, "the key", None)],
        [(1, "the line is empty"), (2, "the line is empty")],
    )
    path = write(tmp_path / "numpred.test.1", "the key\nVBZ\tthe key\n")
    texts, faults = read(path)
    assert texts == [(2, "the key", None)]
    assert [number for number, _ in faults] == [1]
    path = write(tmp_path / "a.csv", "\ntext,label\na joy,1\n")
    assert read(path) == ([(3, "a joy", None)], [(1, "the line is empty")])


def test_standard_input_is_read(monkeypatch):
    class Input:
        buffer = io.BytesIO(b'{"text": "the keys"}\n')

    monkeypatch.setattr(sys, "stdin", Input)
    assert read("-")[0] == [(1, "the keys", None)]


@pytest.mark.parametrize(
    ("name", "content", "options", "error", "message"),
    [
        ("a.txt", "", {}, DataError, "empty"),
        ("a.csv", "a,b\n1,2\n", {}, DataError, "'a'.*'b'"),
        ("a.csv", "a,b\n1,2\n", {"text_column": "c"}, OptionError, "'a'.*'b'"),
        ("a.csv", "text\n1\n", {"label_column": "y"}, OptionError, "label_column.*'y'"),
        ("a.json", "[1]", {}, DataError, "JSON list"),
        ("a.txt", "a", {"format": "xml"}, OptionError, "format.*'xml'.*auto.*text"),
        ("a.txt", "a", {"limit": -1}, OptionError, "limit.*-1"),
        ("a.txt", "a", {"label_column": "y"}, OptionError, "plain text"),
        ("n", "VBZ\ta b\n", {"label_column": "y"}, OptionError, "'label'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, options, error, message):
    with pytest.raises(error, match=message):
        read(write(tmp_path / name, content), **options)


def test_a_fault_is_an_error_where_nobody_takes_it(tmp_path):
    path = write(tmp_path / "a.tsv", "text\tlabel\nx\n")
    with pytest.raises(DataError, match=r"a\.tsv.*line 2.*1 columns.*2"):
        list(read_texts(path))


# ---- All formats alike ---------------------------------------------------------------------------

JSON = b'{"text": "a joy", "n": "1"}\n{"text": "a bore", "n": "2"}\n'
FILES = {
    "a.csv": b"text,n\na joy,1\na bore,2\n",
    "a.tsv": b"text\tn\r\na joy\t1\r\na bore\t2\r\n",
    "a.jsonl": JSON,
    "a.ndjson.gz": gzip.compress(JSON, mtime=0),
    "a.json": JSON,
    "a": b"\n" + JSON,
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_values(tmp_path, name):
    path = write(tmp_path / name, FILES[name])
    rows = [record.values for record in read_records(str(path)) if record.fault is None]
    assert rows == [{"text": "a joy", "n": "1"}, {"text": "a bore", "n": "2"}]


@pytest.mark.parametrize("name", ["a.parquet", "a.data"])
def test_parquet_is_known_by_its_ending_and_by_its_first_bytes(tmp_path, name):
    pq.write_table(pa.table({"text": ["a joy", None], "n": [1, 2]}), tmp_path / name)
    assert list(read_records(str(tmp_path / name))) == [
        Record(1, {"text": "a joy", "n": 1}),
        Record(2, {"text": None, "n": 2}),
    ]
    texts, faults = read(tmp_path / name, label_column="n")
    assert texts == [(1, "a joy", "1")]
    assert [number for number, _ in faults] == [2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "a joy\n".encode("utf-16"), "a.txt is UTF-16; expected UTF-8"),
        ("a.csv", b"text;n\na joy;1\n", "line 1: .*'text;n', a single column; .* by commas"),
        ("a.tsv", b"text,n\na joy,1\n", "line 1: .*'text,n', a single column; .* by tabs"),
        ("a.csv", b"text,n,n\na,1,2\n", "line 1: .*'n' twice"),
        ("a.csv", b"\n\ntext,\xff\na,1\n", "line 3: the header is not UTF-8"),
        ("a.csv", b'"text\n', "line 1: .*a quote in it is not closed"),
        ("a.parquet", b"PAR1 and no more", "a.parquet is not a Parquet file, or is damaged"),
        ("a.jsonl", gzip.compress(JSON, mtime=0)[:-9], r"line \d: the compressed data is cut off"),
    ],
)
def test_a_file_that_would_be_misread_is_refused(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message):
        list(read_records(str(path)))


def test_parquet_is_not_read_from_a_pipe(monkeypatch):
    class Input:
        buffer = io.BytesIO(b"PAR1\x15\x04")

    monkeypatch.setattr(sys, "stdin", Input)
    with pytest.raises(DataError, match=r"standard input is Parquet, .*not from a pipe"):
        list(read_records("-"))


def test_a_row_that_cannot_be_read_has_a_fault_and_reading_goes_on(tmp_path):
    content = b'text,n\na,1\nb\n"c"d,2\n\xff,3\n\n"e,4\nf",5\n'
    records = list(read_records(str(write(tmp_path / "a.csv", content))))
    assert [record.number for record in records] == [2, 3, 4, 5, 6, 8]
    assert [record.fault is None for record in records] == [True, False, False, False, False, True]
    assert records[-1].values == {"text": "e,4\nf", "n": "5"}


def test_lone_surrogates_and_deep_nesting_in_json_are_told(tmp_path):
    lines = [b'{"\\ud800": 1}', b"[" * 10**5, b'{"text": "\\ud800"}', b"1" * 5000, b'{"n": 1}']
    path = write(tmp_path / "a.jsonl", b"\n".join(lines))
    reasons = dict(read(path)[1])
    assert "lone surrogate" in reasons[1]
    assert "nested too deeply" in reasons[2]
    assert "lone surrogate" in reasons[3]
    assert "not JSON" in reasons[4]
    assert "no string 'text' or 'sentence'" in reasons[5]


def test_the_format_shows_after_lines_that_are_no_text(tmp_path):
    path = write(tmp_path / "a", b"\n\xff\n" + JSON)
    assert [text for _, text, _ in read(path)[0]] == ["a joy", "a bore"]


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.txt cannot be read: No such file"):
        read(tmp_path / "nothing.txt")


def test_further_columns_are_read_by_the_options_that_name_them(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"text": "a key", "at": [[2, 5]]}\n{"text": "a joy"}\n')
    faults = []
    found = list(
        read_annotated(
            path, {"evidence_column": "at"}, on_fault=lambda *fault: faults.append(fault)
        )
    )
    assert found == [((1, "a key", None), {"evidence_column": [[2, 5]]})]
    assert faults == [(2, "there is no 'at'")]
    path = tmp_path / "pairs.csv"
    path.write_text("text,at\na key,2-5\n")
    [(_, more)] = read_annotated(path, {"evidence_column": "at"})
    assert more == {"evidence_column": "2-5"}
    with pytest.raises(OptionError, match=r"evidence_column is 'word'.*'text', 'at'"):
        list(read_annotated(path, {"evidence_column": "word"}))
    path = tmp_path / "pairs.txt"
    path.write_text("a key\n")
    with pytest.raises(OptionError, match=r"evidence_column is 'at'.*plain text"):
        list(read_annotated(path, {"evidence_column": "at"}))
