"""Commands run as a shell runs them: on terminals, with outputs that are closed, full or stuck.

Importing torch takes seconds. One process imports it, and forks another for each command.
"""

import fcntl
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
import time
from typing import NamedTuple

WIDTH = 80
PIPE = 4096  # the smallest that Linux makes


class Ran(NamedTuple):
    """What a command did: its exit status, its outputs, and what a terminal received."""

    status: int
    out: str
    err: str
    shown: str

    @property
    def screen(self):
        """The lines that are left on the terminal."""
        return screen(self.shown)


def run_commands(*jobs):
    """Run commands and return what each of them did.

    A job has "argv", or the "code" of a program; "stdin"; "stdout": "file" (the default),
    "terminal", "broken" (a pipe that nobody reads any more), "full" (a disk without room) or
    "stuck" (a pipe of 4,096 bytes that nobody empties; Ctrl-C comes twice once it is full); whether
    standard error is a "terminal"; and "interrupt": Ctrl-C comes once this was shown.
    """
    process = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return [Ran(**result) for result in json.loads(process.stdout)]


def environment(**more):
    """The environment of a user's shell."""
    left_out = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), **more}


def screen(shown):
    """Return the lines that output leaves on a terminal."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|.", shown, flags=re.DOTALL):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b"):
            number = int(re.sub(r"\D", "", part) or 1)
            if part.endswith("A"):
                row -= number
            elif part == "\x1b[2K":
                lines[row] = ""
            elif part == "\x1b[K":
                lines[row] = lines[row][:column]
            elif part[-1] not in "mhl":
                raise ValueError(f"what does {part!r} do?")
        else:
            lines[row] = f"{lines[row]:{column}}"[:column] + part + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


# ---- The process that forks ----------------------------------------------------------------------


def _run(job, main):
    """Run a command in a new process; return what it did."""
    kind, file = job.get("stdout", "file"), tempfile.TemporaryFile
    with file() as given, file() as out, file() as err:
        given.write(job.get("stdin", "").encode("utf-8", "surrogateescape"))
        given.seek(0)
        ours, theirs = os.openpty()
        fcntl.ioctl(
            theirs, termios.TIOCSWINSZ, (40).to_bytes(2, "little") + bytes([WIDTH] + [0] * 5)
        )
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE)
        full = os.open("/dev/full", os.O_WRONLY)
        outputs = {"file": out.fileno(), "terminal": theirs, "full": full}
        output = outputs.get(kind, writer)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.alarm(60)  # what hangs must not stop the tests
            os.close(reader)
            os.dup2(given.fileno(), 0)
            os.dup2(output, 1)
            os.dup2(theirs if job.get("terminal") or kind == "terminal" else err.fileno(), 2)
            for handle in (ours, theirs, writer, full):
                os.close(handle)
            if "code" in job:
                exec(job["code"], {})
                sys.exit(0)
            sys.exit(main(job["argv"]))
        for handle in (theirs, writer, full, *([reader] if kind == "broken" else [])):
            os.close(handle)
        if kind == "stuck":
            while int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), "little") < 1000:
                time.sleep(0.01)
            time.sleep(0.5)  # by then it waits
            os.kill(pid, signal.SIGINT)
            time.sleep(0.5)  # what is written already waits for its reader, until it comes again
            os.kill(pid, signal.SIGINT)
        shown, interrupt = b"", job.get("interrupt", "").encode()
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if interrupt and interrupt in shown:
                os.kill(pid, signal.SIGINT)
                interrupt = b""
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for one in (out, err):
            one.seek(0)
        parts = (out.read(), err.read(), shown)
        return dict(
            zip(("out", "err", "shown"), (part.decode() for part in parts), strict=True)
        ) | {"status": status}


if __name__ == "__main__":
    import torch  # noqa: F401
    import transformers  # noqa: F401

    from attnflow.cli import main

    jobs = json.load(sys.stdin)
    gc.freeze()  # a new process need not copy all this to look for garbage when it ends
    found = []
    for job in jobs:
        found.append(_run(job, main))
    print(json.dumps(found))
