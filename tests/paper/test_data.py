"""Tests of the readers of the paper's data, on files with the faults that real files have."""

import gzip
import json
import logging
import re
from itertools import islice

import pytest

from attnflow.errors import DataError, OptionError
from attnflow.paper import (
    Agreement,
    Fault,
    Labelled,
    read_agreement,
    read_json_lines,
    read_sst2,
)

# The columns of agr_50_mostcommon_10K.tsv, in its order.
COLUMNS = """
sentence orig_sentence pos_sentence subj verb subj_pos has_rel has_nsubj verb_pos subj_index
verb_index n_intervening last_intervening n_diff_intervening distance max_depth all_nouns
nouns_up_to_verb
"""
HEADER = COLUMNS.split()


def linzen(sentence, verb_index, verb_pos, attractors):
    row = dict.fromkeys(HEADER, "x")
    row |= {"sentence": sentence, "verb_index": str(verb_index), "verb_pos": verb_pos}
    row |= {"n_diff_intervening": str(attractors)}
    return "\t".join(row[name] for name in HEADER)


def write(path, lines, packed=False):
    content = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


KEYS = linzen("the keys to the cabinet are on the table .", 6, "VBP", 1)
DOG = linzen("the dog barks", 3, "VBZ", 0)


@pytest.mark.parametrize("packed", [False, True])
def test_a_sentence_of_linzen_et_al_is_cut_before_its_verb(tmp_path, packed):
    path = write(tmp_path / "agr_50_mostcommon_10K.tsv", ["\t".join(HEADER), KEYS, DOG], packed)
    assert list(read_agreement(path)) == [
        Agreement("the keys to the cabinet", "VBP", 1),
        Agreement("the dog", "VBZ", 0),
    ]


def test_the_columns_of_linzen_et_al_are_found_by_name(tmp_path):
    path = tmp_path / "agr.tsv"
    path.write_text(
        "verb_index\tn_diff_intervening\tsentence\tverb_pos\n3\t0\tthe dog barks\tVBZ\n"
    )
    assert list(read_agreement(path)) == [Agreement("the dog", "VBZ", 0)]


@pytest.mark.parametrize(
    ("name", "attractors"),
    [("numpred.val", None), ("numpred.test.3", 3), ("numpred.test.1.gz", 1), ("other.tsv", None)],
)
def test_the_name_of_a_numpred_file_says_how_many_attractors_there_are(tmp_path, name, attractors):
    path = write(tmp_path / name, ["VBP\tthe keys", "VBZ\tthe key"], name.endswith(".gz"))
    assert list(read_agreement(path)) == [
        Agreement("the keys", "VBP", attractors),
        Agreement("the key", "VBZ", attractors),
    ]


def test_agreement_is_read_from_json_lines(tmp_path):
    rows = [
        {"text": "the keys", "label": "VBP", "attractors": 2},
        {"sentence": "the key", "label": "VBZ"},
    ]
    path = write(tmp_path / "x.jsonl", map(json.dumps, rows))
    assert list(read_agreement(path)) == [
        Agreement("the keys", "VBP", 2),
        Agreement("the key", "VBZ", None),
    ]


def test_a_byte_order_mark_and_dos_line_ends_are_no_part_of_the_data(tmp_path):
    path = tmp_path / "numpred.val"
    path.write_bytes(b"\xef\xbb\xbfVBP\tthe keys\r\nVBZ\tthe key\r\n")
    assert [row.text for row in read_agreement(path)] == ["the keys", "the key"]


NUMPRED_FAULTS = {
    "line.*empty": b"\n",
    "tab": b"VBP the keys\n",
    "'NN'.*VBZ.*VBP": b"NN\tthe keys\n",
    "text.*empty": b"VBP\t  \n",
    "byte 8.*UTF-8": b"VBZ\tcaf\xe9\n",
}


@pytest.mark.parametrize("reason", NUMPRED_FAULTS)
def test_a_bad_line_is_told_with_its_number(tmp_path, reason):
    path = tmp_path / "numpred.val"
    path.write_bytes(b"VBZ\tthe key\n" + NUMPRED_FAULTS[reason] + b"VBP\tthe keys\n")
    with pytest.raises(DataError, match=f"numpred.val.*line 2.*{reason}"):
        list(read_agreement(path))
    faults = []
    rows = list(read_agreement(path, on_error=faults.append))
    assert [row.text for row in rows] == ["the key", "the keys"]
    assert [fault.line for fault in faults] == [2]
    assert re.search(reason, faults[0].reason)


def test_a_line_that_is_skipped_is_logged(tmp_path, caplog):
    path = write(tmp_path / "numpred.val", ["VBZ\tthe key", "bad", "VBP\tthe keys"])
    with caplog.at_level(logging.WARNING, "attnflow.paper"):
        assert len(list(read_agreement(path, on_error="skip"))) == 2
    assert re.search("line 2.*tab", caplog.text)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("the\tdog", "2 columns.*18"),
        (linzen("the dog barks", 4, "VBZ", 0), "verb_index.*'4'.*2.*3"),
        (linzen("the dog barks", 1, "VBZ", 0), "verb_index.*'1'"),
        (linzen("the dog barks", "x", "VBZ", 0), "verb_index.*'x'"),
        (linzen("the dog barks", 3, "VBD", 0), "'VBD'"),
        (linzen("the dog barks", 3, "VBZ", "?"), r"n_diff_intervening.*'\?'"),
    ],
)
def test_a_bad_row_of_linzen_et_al_is_told(tmp_path, row, reason):
    path = write(tmp_path / "agr.tsv", ["\t".join(HEADER), DOG, row])
    with pytest.raises(DataError, match=f"line 3.*{reason}"):
        list(read_agreement(path))


def test_a_gzip_that_is_cut_off_is_told_after_what_could_be_read(tmp_path):
    path = tmp_path / "numpred.val.gz"
    # Incompressible enough that part of it is read before the end.
    rows = [f"VBZ\tthe key {i * 7919 % 10007} {i * 104729 % 10007}" for i in range(5000)]
    content = gzip.compress("\n".join(rows).encode())
    path.write_bytes(content[: len(content) // 2])
    faults = []
    read = list(read_agreement(path, on_error=faults.append))
    assert 100 < len(read) < 5000
    assert [fault.line for fault in faults] == [len(read) + 1]
    assert "damaged" in faults[0].reason
    with pytest.raises(DataError, match=rf"line {len(read) + 1}\b"):
        list(read_agreement(path))


def test_a_large_file_is_not_read_further_than_asked(tmp_path):
    path = write(tmp_path / "numpred.val", ["VBZ\tthe key"] * 3 + ["bad"])
    assert len(list(read_agreement(path, limit=3))) == 3
    assert len(list(islice(read_agreement(path), 3))) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("\n\n", "no line"),
        ("the keys\n", "'the keys'.*VBZ.*VBP.*tab"),
        ("sentence\tlabel\nx\t1\n", "'verb_pos'"),
    ],
)
def test_a_file_of_another_kind_is_told(tmp_path, content, message):
    path = tmp_path / "sentences.tsv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        list(read_agreement(path, on_error=lambda fault: None))


HEAD = "\t".join(HEADER).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "content", "faulty"),
    [
        ("numpred.val", b"\n\nVBP\tthe keys\n", [1, 2]),
        ("numpred.val", b"caf\xe9\nVBP\tthe keys\n", [1]),
        ("numpred.val", b"the keys\nVBP\tthe keys\n", [1]),
        ("mine.tsv", b"VBP the keys\nVBP\tthe keys\n", [1]),
        ("agr.tsv", b"\n" + HEAD + linzen("the keys are", 3, "VBP", 0).encode() + b"\n", [1]),
        ("x.jsonl", b'\n{"text": "the keys", "label": "VBP"}\n', [1]),
    ],
)
def test_a_bad_first_line_is_a_bad_line_like_any_other(tmp_path, name, content, faulty):
    path = tmp_path / name
    path.write_bytes(content)
    faults = []
    rows = list(read_agreement(path, on_error=faults.append))
    assert [(row.text, row.label) for row in rows] == [("the keys", "VBP")]
    assert [fault.line for fault in faults] == faulty
    with pytest.raises(DataError, match="line 1"):
        list(read_agreement(path))


def test_a_field_that_csv_has_quoted_is_read_without_its_quotes(tmp_path):
    row = linzen('"the "" key "" to the cabinets is here"', 8, "VBZ", 1)
    path = write(tmp_path / "agr.tsv", ["\t".join(HEADER), row])
    assert list(read_agreement(path)) == [Agreement('the " key " to the cabinets', "VBZ", 1)]


def test_wrong_options_are_told_before_the_file_is_read(tmp_path):
    path = write(tmp_path / "numpred.val", ["VBZ\tthe key"])
    with pytest.raises(OptionError, match=r"limit.*0"):
        read_agreement(path, limit=0)
    with pytest.raises(OptionError, match=r"on_error.*'ignore'.*'raise'.*'skip'"):
        read_agreement(path, on_error="ignore")
    with pytest.raises(FileNotFoundError):
        read_agreement(tmp_path / "nothing")


def test_sst2_is_read_with_or_without_an_index_column(tmp_path):
    path = write(tmp_path / "dev.tsv", ["sentence\tlabel", "a joy\t1", "a bore\t0"])
    assert list(read_sst2(path)) == [Labelled("a joy", "1"), Labelled("a bore", "0")]
    path = write(tmp_path / "indexed.tsv", ["index\tsentence\tlabel", "0\ta joy\t1"])
    assert list(read_sst2(path)) == [Labelled("a joy", "1")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["index\tsentence", "0\ta joy"], "labels"),
        (["sentence\tlabel", "a joy"], "line 2.*1 columns.*2"),
        (["sentence\tlabel", "a joy\tgood"], "line 2.*'good'.*0.*1"),
    ],
)
def test_a_bad_file_of_sst2_is_told(tmp_path, lines, message):
    with pytest.raises(DataError, match=message):
        list(read_sst2(write(tmp_path / "dev.tsv", lines)))


def test_a_label_of_sst2_is_0_or_1_in_json_too(tmp_path):
    path = write(
        tmp_path / "x.jsonl", ['{"text": "a joy", "label": 1}', '{"text": "x", "label": 2}']
    )
    with pytest.raises(DataError, match=r"line 2.*'2'.*0.*1"):
        list(read_sst2(path))


@pytest.mark.parametrize("attractors", ["-1", "100000", "true", '"1"'])
def test_a_number_of_attractors_that_cannot_be_is_told(tmp_path, attractors):
    line = '{"text": "the keys", "label": "VBP", "attractors": ' + attractors + "}"
    with pytest.raises(DataError, match=r"line 1.*attractors"):
        list(read_agreement(write(tmp_path / "x.jsonl", [line])))


def test_fields_of_json_lines_are_named(tmp_path):
    path = write(tmp_path / "x.jsonl", ['{"review": "a joy", "stars": 5}'])
    assert list(read_json_lines(path, text="review", label="stars")) == [Labelled("a joy", "5")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "JSON"),
        ("[]", r"JSON.*\bobject\b"),
        ('{"label": 1}', "'text'"),
        ('{"text": "x"}', "'label'"),
        ('{"text": "x", "label": true}', "'label'"),
        ('{"text": " ", "label": 1}', "text.*empty"),
        ('{"text": "\\ud800", "label": 1}', "character|surrogate"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_a_bad_json_line_is_told(tmp_path, line, reason):
    path = write(tmp_path / "x.jsonl", ['{"text": "x", "label": 1}', line])
    with pytest.raises(DataError, match=f"line 2.*{reason}"):
        list(read_json_lines(path))


def test_a_fault_reads_as_a_sentence():
    assert str(Fault("x.tsv", 3, "the line is empty")) == "x.tsv, line 3: the line is empty"
