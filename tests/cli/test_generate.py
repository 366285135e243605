"""attnflow generate: prompts, chats, files, and errors on one line."""

import io
import json

import pytest

import attnflow
from attnflow.cli import main
from tests.support.chat import chatter


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    made = chatter()
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return str(folder)


def printed(capsys, *argv):
    status = main(["generate", *argv])
    return status, capsys.readouterr()


def test_it_prints_the_answer_and_its_sources(folder, capsys):
    status, out = printed(capsys, "--model", folder, "the keys to", "--max-new-tokens", "3")
    assert status == 0
    expected = chatter().generate("the keys to", max_new_tokens=3)
    assert out.out.split("\n")[:2] == ["  The model wrote", f"  {expected.text.strip()}"]
    assert "the answer itself" in out.out


def test_json_is_the_generation_with_the_options_given(folder, capsys):
    argv = [
        "--do-sample",
        "--temperature",
        "2.5",
        "--top-k",
        "9",
        "--seed",
        "4",
        "--units",
        "words",
    ]
    status, out = printed(
        capsys, "--model", folder, "the keys to", "--json", "--max-new-tokens", "3", *argv
    )
    assert status == 0
    found = attnflow.Generation.from_dict(json.loads(out.out))
    assert found.options["seed"] == 4
    assert found.whole.options["units"] == "words"
    options = {"do_sample": True, "temperature": 2.5, "top_k": 9, "seed": 4}
    assert found.text == chatter().generate("the keys to", max_new_tokens=3, **options).text


def test_a_chat_is_a_message_or_a_file_of_messages(folder, capsys, tmp_path):
    chat = ["--model", folder, "--chat", "--max-new-tokens", "2", "--json"]
    _, out = printed(capsys, *chat, "--system", "a film", "the keys")
    found = attnflow.Generation.from_dict(json.loads(out.out))
    assert [one.name for one in found.whole.segments] == ["system", "user", "answer"]
    messages = [{"role": "system", "content": "a film"}, {"role": "user", "content": "the keys"}]
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(messages))
    _, out = printed(capsys, *chat, str(file))
    assert attnflow.Generation.from_dict(json.loads(out.out)).prompt == found.prompt


def test_files_are_written_and_the_prompt_may_be_piped(folder, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("the keys to\n"))
    files = [tmp_path / "x.json", tmp_path / "x.html"]
    argv = ["--output", str(files[0]), "--html", str(files[1])]
    status, out = printed(capsys, "--model", folder, "--max-new-tokens", "2", *argv)
    assert (status, out.out) == (0, "")
    loaded = attnflow.Generation.load(files[0])
    assert loaded.prompt == "the keys to"
    monkeypatch.setattr("sys.stdin", io.StringIO("the keys to\n"))
    figure = tmp_path / "x.png"
    argv = ["--max-new-tokens", "2", "--output", str(figure)]
    assert printed(capsys, "--model", folder, *argv)[0] == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "Token by token" in files[1].read_text()
    shown = tmp_path / "view.html"
    assert main(["view", str(files[0]), "--output", str(shown), "--no-open"]) == 0
    assert shown.read_text() == files[1].read_text()


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["the keys"], "--model"),
        (["--model", "FOLDER", "--system", "x", "the keys"], "--system goes with --chat"),
        (["--model", "FOLDER", "--html", "x.pdf", "the keys"], ".html"),
        (["--model", "FOLDER", "--chat", "missing.json"], "missing.json"),
        (["--model", "FOLDER", "--temperature", "2", "the keys"], "only with --do-sample"),
        (["--model", "FOLDER", "the keys", "--max-new-tokens", "90"], "--max-new-tokens 46"),
        (["--model", "FOLDER", "--max-new-tokens", "0", "the keys"], "max_new_tokens is 0"),
    ],
)
def test_an_error_is_one_line(folder, capsys, argv, named):
    status, out = printed(capsys, *(folder if arg == "FOLDER" else arg for arg in argv))
    assert status == 1
    lines = [line for line in out.err.splitlines() if line.startswith("attnflow: error: ")]
    assert len(lines) == 1
    assert named in lines[0]
    assert "Traceback" not in out.err


def test_ctrl_c_ends_it_without_a_traceback(folder, capsys, monkeypatch):
    def interrupt(self, *args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("transformers.LlamaForCausalLM.forward", interrupt)
    status, out = printed(capsys, "--model", folder, "the keys to", "--max-new-tokens", "2")
    assert status == 130
    assert "attnflow: interrupted" in out.err
