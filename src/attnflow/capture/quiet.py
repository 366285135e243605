"""What transformers says while it loads or runs a model, kept to what concerns the caller."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import modeling_gguf_pytorch_utils as gguf
from transformers.utils import logging


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' advice, and show its loading bars on terminals only, until done."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    shown: list[Any] = []

    def transient(bar: Callable[..., Any], given: Any, named: dict[str, Any]) -> Any:
        try:
            shown.append(bar(*given, **{**named, "leave": False}))
        except KeyboardInterrupt:  # it is on the screen already
            print(end="\r\x1b[K", file=sys.stderr, flush=True)
            raise
        return shown[-1]

    hook = logging.set_tqdm_hook(transient)
    # What reads GGUF files has a bar of its own, which nothing turns off.
    bar, gguf.tqdm = gguf.tqdm, logging.tqdm
    try:
        yield
    finally:
        for each in shown:
            each.close()  # Ctrl-C leaves one open
        gguf.tqdm = bar
        logging.set_tqdm_hook(hook)
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
