"""What attention says, beside any explanation."""

import numpy as np

from attnflow.cli import main
from attnflow.models import Explainer
from attnflow.models.verb_number import checkpoint
from attnflow.view.attention import attention_report

TEXT = "the keys to the cabinet"


def test_the_table_has_the_scores_of_every_method():
    explainer = Explainer.from_pretrained(checkpoint())
    report = attention_report(explainer.explain(TEXT))
    [table] = report.tables
    assert table.columns == ["token", "Raw attention", "Attention rollout", "Attention flow"]
    for column, method in enumerate(("raw", "rollout", "flow"), 1):
        expected = explainer.explain(TEXT, method=method).scores
        shown = [float(row[column]) for row in table.rows]
        np.testing.assert_allclose(shown, expected, atol=1e-3)


def test_the_command_prints_it_after_the_answer(capsys):
    assert main(["explain", TEXT, "--attention"]) == 0
    printed = capsys.readouterr().out
    assert printed.index("VBP (plural), not VBZ (singular)") < printed.index("What attention says")


def test_without_a_trace_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr("attnflow.models.explainer.Trace.holds", lambda layers, tokens: False)
    assert main(["explain", TEXT, "--attention"]) == 0
    assert "no trace" in capsys.readouterr().err
