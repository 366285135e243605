"""Let a language model write, and say what every token that it wrote came from.

Examples:
  attnflow generate --model ./my-llm "The keys to the cabinet"
  attnflow generate --model ./my-chat-model --chat "What is the capital of France?"
  attnflow generate --model ./my-chat-model --chat --system "Answer in one word." "Which city?"
  attnflow generate --model ./my-chat-model --chat messages.json --html answer.html
  attnflow generate --model ./my-llm --do-sample --seed 1 --json "Once upon a time"
  attnflow generate --model ./my-translator "The house is old." --units words
  attnflow generate --model ./whisper-tiny.en speech.wav
"""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attnflow.cli import options
from attnflow.errors import OptionError, TextError
from attnflow.formats import check_path, endings
from attnflow.generation import Generation
from attnflow.io.progress import Progress
from attnflow.models.writing import WRITING

# Which position and target are explained follows from what is written.
LEFT_OUT = ("position", "target")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = options.add_command(subparsers, "generate", __doc__)
    parser.add_argument(
        "prompt",
        nargs="?",
        help="the text to continue, the source to translate, the path of a .wav file for Whisper, "
        "or with --chat a message or a .json file of messages; without one, standard input",
    )
    options.add_model(parser)
    chat = parser.add_argument_group("chats")
    chat.add_argument(
        "--chat",
        action="store_true",
        help="the prompt is a user's message for the chat template, or a .json file with a "
        "list of messages, each with role and content",
    )
    chat.add_argument("--system", metavar="TEXT", help="with --chat: a system message before it")
    writing = parser.add_argument_group("writing")
    for option in WRITING:
        options.add_option(writing, option)
    parser.add_argument(
        "--each",
        action=argparse.BooleanOptionalAction,
        default="auto",
        help="also explain every new token by itself (default: unless the text is long)",
    )
    options.add_options(parser, leave_out=LEFT_OUT)
    options.add_loading(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="save the generation: .json, .csv, .html, or a figure (.png, .svg, .pdf)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also save it as a page")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status, 0.

    Raises:
        AttnflowError: If the model, the prompt or an option is not valid.
    """
    accepted = {"output": endings(Generation), "html": [".html"]}
    for name in accepted:
        if getattr(args, name) is not None:
            check_path(getattr(args, name), accepted[name], f"--{name}")
    if args.model is None:
        raise OptionError(
            "--model is not given; expected a folder, a GGUF file or a hub name of a language "
            "model. The model that comes with attnflow does not write"
        )
    prompt = _prompt(args)
    given = options.given_options(args)
    names = [*(option.name for option in WRITING), "each"]
    given |= {name: vars(args)[name] for name in names if name in args}
    # Loading torch takes seconds, so everything above comes first.
    explainer = options.load(args)
    with _Bars() as bars:
        generation = explainer.generate(prompt, progress=bars.update, **given)
    saved = [path for path in (args.output, args.html) if path is not None]
    for path in saved:
        options.save(generation, path)
    if args.json:
        print(json.dumps(generation.to_dict(), ensure_ascii=False), flush=True)
        return 0
    if args.output is None:
        generation.show()
    for path in saved:
        print(f"saved {path}", file=sys.stderr)
    return 0


def _prompt(args: argparse.Namespace) -> Any:
    """Return the prompt, or the messages of a chat."""
    text = args.prompt
    if args.system is not None and not args.chat:
        raise OptionError("--system goes with --chat, which was not given")
    if text is None:
        if sys.stdin.isatty():
            raise TextError("no prompt was given; write one after the options, or pipe one in")
        try:
            text = sys.stdin.read().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise TextError(f"standard input is not UTF-8: {error.reason}") from error
    if not args.chat:
        return text
    messages = [{"role": "user", "content": text}]
    if text.endswith(".json"):
        messages = _messages(Path(text))
    if args.system is not None:
        messages = [{"role": "system", "content": args.system}, *messages]
    return messages


def _messages(path: Path) -> Any:
    try:
        messages = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TextError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise TextError(
            f"{path} is not a chat; expected a list of messages such as "
            '{"role": "user", "content": "Hello"}'
        )
    if not messages:
        raise TextError(f"{path} has no messages")
    return messages


class _Bars:
    """A progress bar for the writing, and then one for the explaining."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._bar: Progress | None = None

    def __enter__(self) -> "_Bars":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def update(self, stage: str, done: int, total: int) -> None:
        """Show how far a stage is."""
        if self._bar is None or self._bar.title != stage:
            self._stack.close()
            self._bar = self._stack.enter_context(Progress(stage, "tokens"))
        self._bar.update(done, total)
