r"""Serve a page that explains the texts typed into it.

The page is served on this machine: type a text, a pair of texts or a chat, see which tokens the
model's answer came from, and compare it with another text; or let a language model write, and see
where what it wrote came from. Ctrl-C stops the server when all requests are answered.

Examples:
  attnflow serve
  attnflow serve --model ./my-classifier --port 9000
  ATTNFLOW_TOKEN=... attnflow serve --host 0.0.0.0 --allow-host workshop.example

To use it from a program:
  curl -s http://127.0.0.1:8000/api/explain -H 'Content-Type: application/json' \
      -d '{"text": "the keys to the cabinet", "method": "rollout"}'

The rest of the interface is described at http://127.0.0.1:8000/docs.
"""

import argparse
import os
import sys
from importlib.util import find_spec

from attnflow.cli import options
from attnflow.errors import MissingExtraError
from attnflow.serve import Limits, listen, serve

# The flag of each limit, the limit, the unit and the help.
LIMITS = (
    ("--max-characters", "characters", "N", "maximum number of characters of a text"),
    ("--max-tokens", "tokens", "N", "maximum number of tokens of a text, with what is written"),
    ("--max-new-tokens", "new_tokens", "N", "maximum number of tokens that the model writes"),
    ("--max-body", "body", "BYTES", "maximum size of a request's body"),
    ("--max-waiting", "waiting", "N", "maximum number of waiting requests"),
    ("--max-waiting-each", "waiting_each", "N", "maximum number of waiting requests per client"),
    ("--timeout", "seconds", "SECONDS", "maximum duration of a request, waiting included"),
)

PACKAGES = ("jinja2", "prometheus_client", "pydantic", "starlette", "uvicorn")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options.

    Args:
        subparsers: What ``ArgumentParser.add_subparsers`` returned.
    """
    parser = options.add_command(subparsers, "serve", __doc__)
    options.add_model(parser)
    options.add_loading(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (default: 127.0.0.1, this machine only); any other requires "
        "a token",
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="the port; 0 takes a free one (default: 8000)"
    )
    parser.add_argument(
        "--token",
        help="the token that clients need, 16 characters or more (default: the environment "
        "variable ATTNFLOW_TOKEN, which other users of the machine cannot see)",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name that the server accepts, besides its address; may be repeated",
    )
    for flag, name, unit, about in LIMITS:
        default = getattr(Limits, name)
        parser.add_argument(
            flag,
            dest=name,
            type=type(default),
            default=default,
            metavar=unit,
            help=f"{about} (default: {default:g})",
        )


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed options.

    Returns:
        The exit status, 0, once a signal has stopped the server.

    Raises:
        AttnflowError: If the model or an option is not valid, or the port is in use.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f'attnflow serve requires {", ".join(missing)}; run: pip install "attnflow[serve]"'
        )
    limits = Limits(**{name: getattr(args, name) for _, name, _, _ in LIMITS})
    token = args.token if args.token is not None else os.environ.get("ATTNFLOW_TOKEN") or None
    # Check that the port is free before the model is loaded, which takes time.
    with listen(args.host, args.port, token=token) as listening:
        explainer = options.load(args)

        def ready(address: str) -> None:
            print(address, flush=True)
            print(f"attnflow: serving {explainer.name}; Ctrl-C stops it", file=sys.stderr)
            if token is not None:
                print(
                    f"attnflow: the page asks for the token, or open {address}#token=TOKEN",
                    file=sys.stderr,
                )

        names = [args.host, *args.allow_host]
        serve(explainer, listening, token=token, limits=limits, names=names, ready=ready)
    return 0
