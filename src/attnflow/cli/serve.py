"""``attnflow serve``: the page with a model behind it."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from attnflow.cli import options
from attnflow.errors import MissingExtraError

__all__ = ["add_parser", "run"]

EPILOG = """\
examples:
  attnflow serve
  attnflow serve --model ./my-classifier --port 9000
  ATTNFLOW_TOKEN=... attnflow serve --host 0.0.0.0 --allow-host workshop.example

To ask it from a program:
  curl -s http://127.0.0.1:8000/api/explain -H 'Content-Type: application/json' \\
      -d '{"text": "the keys to the cabinet", "method": "rollout"}'
The rest of the interface is described at http://127.0.0.1:8000/docs.
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = subparsers.add_parser(
        "serve",
        help="type texts into a page and see them explained",
        description=(
            "Serve a page on this machine: type a text, see where the model's answer came from, "
            "and compare it with another text. Ctrl-C stops it when what was asked is answered."
        ),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_model(parser)
    options.add_loading(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (default: 127.0.0.1, this machine alone); any other needs "
        "a token",
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="the port; 0 takes a free one (default: 8000)"
    )
    parser.add_argument(
        "--token",
        help="what clients have to know, 16 characters or more (default: the environment variable "
        "ATTNFLOW_TOKEN, which other users of the machine cannot see)",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which the server may be asked, besides its address; may be repeated",
    )
    parser.add_argument(
        "--max-characters",
        type=int,
        default=10_000,
        metavar="N",
        help="the most characters of a text (default: 10000)",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=512,
        metavar="N",
        help="the most tokens of a text (default: 512)",
    )
    parser.add_argument(
        "--max-body",
        type=int,
        default=262_144,
        metavar="BYTES",
        help="the most bytes of a request (default: 262144)",
    )
    parser.add_argument(
        "--max-waiting",
        type=int,
        default=64,
        metavar="N",
        help="the most requests that wait (default: 64)",
    )
    parser.add_argument(
        "--max-waiting-each",
        type=int,
        default=16,
        metavar="N",
        help="the most requests of one client that wait (default: 16)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long a request may take, waiting included (default: 60)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status, 0, once a signal has stopped the server.

    Raises:
        AttnflowError: If the model or an option is not valid, or the port is taken.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f'attnflow serve needs {" and ".join(missing)}; run: pip install "attnflow[serve]"'
        )
    from attnflow.serve import Limits, listen, serve

    limits = Limits(
        characters=args.max_characters,
        tokens=args.max_tokens,
        body=args.max_body,
        waiting=args.max_waiting,
        waiting_each=args.max_waiting_each,
        seconds=args.timeout,
    )
    token = args.token if args.token is not None else os.environ.get("ATTNFLOW_TOKEN") or None
    # A port that is taken should not cost the time to load a model.
    with listen(args.host, args.port, token=token) as listening:
        explainer = options.load(args)
        # Where the model lies is nothing that whoever asks has to know.
        if args.model is None:
            explainer.name = str(explainer.model.config.model_type)
        elif Path(args.model).exists():
            explainer.name = Path(args.model).resolve().name
        serve(
            explainer,
            listening,
            token=token,
            limits=limits,
            names=[args.host, *args.allow_host],
            ready=lambda address: _say(address, explainer.name, token is not None),
        )
    return 0


def _say(address: str, model: str, token: bool) -> None:
    print(address, flush=True)
    print(f"attnflow: serving {model}; Ctrl-C stops it", file=sys.stderr)
    if token:
        print(
            f"attnflow: the page asks for the token, or open {address}#token=TOKEN", file=sys.stderr
        )
