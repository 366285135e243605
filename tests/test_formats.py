"""Tests of the table of output formats."""

import subprocess
import sys

import pytest

from attnflow import Explanation, formats
from attnflow.errors import OptionError
from attnflow.evaluate import Evaluation, Statistics


class Result:
    pass


class Special(Result):
    pass


formats.register(Result, ".txt", lambda result: "text")
formats.register(Result, "terminal", lambda result, word, *, times: word * times)
formats.register(Special, ".bin", lambda result: b"\x00")


def test_a_format_is_one_row_that_subclasses_share(tmp_path):
    assert formats.endings(Result) == (".txt",)
    assert formats.endings(Special) == (".txt", ".bin")
    formats.save(Special(), tmp_path / "x.TXT")
    assert (tmp_path / "x.TXT").read_text() == "text"
    formats.save(Special(), str(tmp_path / "x.bin"))
    assert (tmp_path / "x.bin").read_bytes() == b"\x00"
    assert formats.render(Special(), "terminal", "ab", times=2) == "abab"


def test_what_is_not_registered_is_refused_and_the_rest_is_listed(tmp_path):
    with pytest.raises(OptionError, match=r"\.txt, got .*x\.bin"):
        formats.save(Result(), tmp_path / "x.bin")
    with pytest.raises(OptionError, match=r"Result has no format 'plot'; expected \.txt, terminal"):
        formats.render(Result(), "plot")
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_checked_before_there_is_anything_to_write(tmp_path):
    formats.check_path(tmp_path / "x.png", [".png", ".svg"])
    with pytest.raises(OptionError, match=r"--output must end in \.png or \.svg, got 'x'"):
        formats.check_path("x", [".png", ".svg"], "--output")
    with pytest.raises(OptionError, match=r"there is no folder .*none"):
        formats.check_path(tmp_path / "none" / "x.png", [".png"])


def test_every_kind_of_result_has_its_formats():
    figures = {".png", ".svg", ".pdf"}
    assert set(formats.endings(Explanation)) == {".json", ".csv", ".html"} | figures
    for kind in (Evaluation, Statistics):
        assert set(formats.endings(kind)) == {".json", ".csv"} | figures


def test_a_module_alone_brings_the_formats_with_it():
    code = (
        "from attnflow.evaluate.statistics import Statistics\n"
        "from attnflow.formats import endings\n"
        "assert '.svg' in endings(Statistics)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
