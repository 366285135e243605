"""Tests of files that are written whole or not at all."""

import os

import pytest

from attnflow.io.files import replacing, write_whole


def test_a_write_that_fails_leaves_the_old_file_and_no_other(monkeypatch, tmp_path):
    path = tmp_path / "x.json"
    path.write_text("old")

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path):
    path, link = tmp_path / "x.json", tmp_path / "link.json"
    path.write_text("old")
    link.symlink_to(path)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert path.read_text() == "new"


def interrupted(path):
    with replacing(path) as name:
        with open(name, "w") as file:
            file.write("half")
        raise KeyboardInterrupt


def test_an_interrupted_write_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path):
    write_whole(tmp_path / "x.json", "x")
    (tmp_path / "y.json").write_text("y")
    assert os.stat(tmp_path / "x.json").st_mode == os.stat(tmp_path / "y.json").st_mode
