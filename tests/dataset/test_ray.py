"""The Ray engine: the same bytes as on this machine, whatever the cluster loses on the way."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import attnflow
import attnflow.dataset.ray as engine
from attnflow.cli import main
from attnflow.errors import DataError
from tests.support import ROOT
from tests.support.dataset_signals import explainer


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What became of runs on clusters that lost workers, a machine and the one who asked."""
    if sys.platform != "linux":
        pytest.skip("finds the processes of a cluster in /proc, which is Linux's")
    folder = tmp_path_factory.mktemp("ray")
    mark = uuid.uuid4().hex
    # To files: what a process left behind would hold a pipe open. Ray's own files are apart from
    # those of other clusters on this machine; names of sockets must be short.
    with (
        open(folder / "printed", "wb") as printed,
        open(folder / "complaints", "wb") as complaints,
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as own,
    ):
        environment = {"OMP_NUM_THREADS": "1", "ATTNFLOW_TEST_RAY": mark, "RAY_TMPDIR": own}
        try:
            result = subprocess.run(
                [sys.executable, "-m", "tests.support.ray_runs", str(folder)],
                cwd=ROOT,
                stdout=printed,
                stderr=complaints,
                env={**os.environ, **environment},
                timeout=600,
            )
        finally:
            left = end_processes(mark)
    assert result.returncode == 0, (folder / "complaints").read_text()
    printed = (folder / "printed").read_text()
    found = json.loads(printed)  # nothing of Ray between it
    said = {"complaints": (folder / "complaints").read_text(), "printed": printed}
    return {**found, "left": left, **said}


def end_processes(mark):
    """End what a script has left behind, also when it failed; return the commands."""
    left = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"ATTNFLOW_TEST_RAY={mark}".encode() in (entry / "environ").read_bytes():
                left.append((entry / "cmdline").read_text().replace("\0", " "))
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue
    return [command for command in left if command]


@pytest.mark.exhaustive
def test_a_cluster_of_its_own_gives_the_bytes_of_the_local_engine_and_ends(facts):
    assert facts["own cluster"] == 0
    assert facts["own cluster's bytes"]
    assert facts["own cluster ends"]


@pytest.mark.exhaustive
def test_a_run_goes_on_across_engines_and_survives_the_loss_of_a_worker_and_of_a_machine(facts):
    assert facts["lost"] == ["machine", "worker"]
    assert facts["workers on the lost machine"] == 1
    assert facts["here"] > 0
    assert 0 < facts["new"] < 60
    assert facts["same"]


@pytest.mark.exhaustive
def test_a_table_in_memory_gives_the_bytes_of_the_local_engine(facts):
    assert facts["table"]


def test_the_workers_end_with_the_process_that_asked_for_them(facts):
    assert facts["workers at kill"] == 1
    assert facts["workers end"]
    assert facts["after kill"] > facts["here"]


@pytest.mark.exhaustive
def test_ctrl_c_finishes_what_is_handed_out(facts):
    assert facts["interrupt status"] == 130
    assert facts["after kill"] < facts["after interrupt"] < facts["shards"]


@pytest.mark.exhaustive
def test_nothing_is_left_behind(facts):
    assert facts["left"] == []


@pytest.mark.exhaustive
def test_ray_says_nothing_of_its_own(facts):
    assert "ray" not in facts["complaints"].lower()
    assert len(facts["printed"].splitlines()) == 1


@pytest.mark.exhaustive
def test_a_cluster_without_room_is_refused_before_anything_is_done(facts):
    assert re.search("worker.*CPU", facts["no CPU"])
    assert re.search("workers.*2.*1", facts["one CPU for two"])
    assert re.search("GPU.*CPU", facts["no GPU"])
    assert "other jobs" in facts["taken"]


@pytest.mark.exhaustive
def test_a_cluster_that_was_joined_before_stays_joined(facts):
    assert facts["still joined"]


@pytest.mark.exhaustive
def test_the_numbers_of_tasks_are_kept_and_an_error_of_the_work_is_raised(facts):
    assert facts["numbers"] == [[7, 0], [5, 2]]
    assert facts["work's error"] == "3 is odd"


@pytest.mark.exhaustive
def test_an_address_without_a_cluster_is_told_at_once(facts):
    told = facts["addresses"]
    assert all(re.match("OptionError: .*address", message) for message in told.values())
    assert "127.0.0.1:1" in told["127.0.0.1:1"]
    assert "ray start --head" in told["127.0.0.1:1"]
    assert re.search(r"address.*'auto'.*'127\.0\.0\.1:1'", told["auto"])
    assert "ray job submit" in told["ray://127.0.0.1:10001"]
    assert re.search("'auto'.*'host:port'", told["somewhere"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"versions": {"torch": "1.0"}}, r"torch.*1\.0"),
        ({"fingerprint": "0"}, "fingerprint|not the one"),
        ({"on_gpu": True}, "GPU.*torch"),
    ],
)
def test_a_worker_that_would_compute_something_else_says_so(change, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    recipe = engine._recipe(explainer(), len, on_gpu=False)
    if "versions" in change:
        change = {"versions": {**recipe.versions, **change["versions"]}}
    before = torch.get_num_threads()
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    try:
        with pytest.raises(DataError, match=message):
            engine._prepared(recipe._replace(**change), "there")
    finally:
        torch.set_num_threads(before)


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    def missing(name, package=None):
        return None if name.split(".")[0] == "ray" else find_spec(name, package)

    monkeypatch.setattr("importlib.util.find_spec", missing)
    with pytest.raises(attnflow.MissingExtraError, match=r'pip install "attnflow\[ray\]"'):
        attnflow.run(["keys"], explainer(), output=tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "engine.*'spark'.*local.*ray"),
        ({"address": "auto"}, "address.*'auto'.*engine.*'ray'"),
        ({"device": "cuda"}, "device.*'cuda'.*engine.*'ray'"),
        ({"engine": "ray", "device": "tpu"}, "device.*'tpu'.*auto.*cpu.*cuda"),
    ],
)
def test_options_that_an_engine_does_not_have_are_refused(tmp_path, options, message):
    with pytest.raises(attnflow.OptionError, match=message):
        attnflow.run(["keys"], explainer(), output=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_the_command_hands_over_where_the_cluster_is(tmp_path, monkeypatch):
    model = explainer()
    model.model.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "x.txt").write_text("keys\n")
    given = {}

    def run(source, explainer, **options):
        given.update(options, runs_on=explainer.model.device.type)
        raise attnflow.OptionError("enough")

    monkeypatch.setattr("attnflow.dataset.run", run)
    command = ["run", str(tmp_path / "x.txt"), "--model", str(tmp_path / "model")]
    command += ["--output", str(tmp_path / "out"), "--engine", "ray", "--address", "auto"]
    assert main([*command, "--device", "cuda", "--workers", "3"]) == 1
    assert (given["engine"], given["address"], given["device"]) == ("ray", "auto", "cuda")
    assert (given["workers"], given["runs_on"]) == (3, "cpu")
