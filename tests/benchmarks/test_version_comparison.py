"""The comparison of two versions of attnflow, here of one with itself."""

import json
import sys

import pytest

from benchmarks.compare import compare, main


@pytest.mark.exhaustive
def test_two_environments_are_measured_in_turns(tmp_path, capsys):
    output = tmp_path / "times.json"
    chosen = ["--rounds", "2", "--only", "verb-number model, rollout", "--output", str(output)]
    assert main([sys.executable, sys.executable, *chosen]) == 0
    (pairs,) = json.loads(output.read_text()).values()
    assert len(pairs) == 2
    assert all(seconds > 0 for pair in pairs for times in pair for seconds in times)
    shown = capsys.readouterr()
    assert "explain, verb-number model, rollout" in shown.out
    assert "new over old" in shown.out
    assert shown.err.splitlines() == ["warm-up", "round 1 of 2", "round 2 of 2"]


def test_a_measurement_that_fails_is_named(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"flow of all pairs, 64 tokens.*ended"):
        compare(sys.executable, str(broken), 1, "all pairs, 64")
