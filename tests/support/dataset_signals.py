"""Runs over a data set that are killed, interrupted or out of space, and what is left of them.

Started by test_dataset.py with a folder as its argument. The model is made once; every run is a
process forked from this one, so that a run takes a fraction of a second. Prints one JSON object.
"""

import ctypes
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import transformers

import attnflow
from attnflow.dataset.local import local_map
from attnflow.dataset.store import FOLDERS
from tests.support import scaled
from tests.support.tiny import wordpiece_tokenizer

WORDS = "the keys key to cabinet are is on table a film that no one will forget"
VOCABULARY = {
    word: i
    for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), "##s"])
}
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
}

KILLS = scaled(4, 20)
TEXTS = [" ".join(["the keys to the cabinet", "are on", "a table"][: 1 + i % 3]) for i in range(60)]
TEXTS[7] = ""


def explainer(seed=0):
    """A classifier of random weights, large enough to make choices."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(**SIZES, id2label={0: "bad", 1: "good"})
    model = transformers.BertForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.4)
    return attnflow.Explainer(model.eval(), wordpiece_tokenizer(VOCABULARY))


def forked(task):
    """Run a function in a process of its own; return its id."""
    child = os.fork()
    if child:
        return child
    # Continuous integration may run with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 1
    try:
        status = task() or 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def content(folder):
    """All files of a data set and their bytes, without the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def finished(folder):
    """The files of finished shards, and when they were written."""
    try:
        shards = json.loads((folder / "manifest.json").read_bytes())["shards"]
    except OSError:
        return {}
    names = [
        folder / kind / f"part-{int(n):05d}.{FOLDERS[kind]}"
        for n, s in shards.items()
        for kind in s["files"]
    ]
    return {name: name.stat().st_mtime_ns for name in names}


def run(model, folder, workers, **options):
    attnflow.run(
        TEXTS,
        model,
        output=folder,
        method="rollout",
        keep=("attentions",),
        shard_rows=4,
        workers=workers,
        **options,
    )


class Strange(Exception):
    """An error that cannot be sent from one process to another."""

    def __init__(self):
        super().__init__("not to be had")
        self.held = lambda: None


def ten_times(model, task):
    if task == "return":
        return KeyError()
    if task == "strange":
        raise Strange
    if task < 0:
        raise attnflow.OptionError(f"task {-task}")
    return task * 10


def mapped(model, workers):
    """What the local engine makes of a few tasks."""
    taken = ahead = 0

    def tasks():
        nonlocal taken
        for number in range(6):
            taken += 1
            yield number, number

    def work(*tasks):
        yield from local_map(model, ten_times, enumerate(tasks), workers, lambda: None)

    def error_of(*tasks):
        try:
            list(work(*tasks))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    results = []
    for found in local_map(model, ten_times, tasks(), workers, lambda: None):
        ahead = max(ahead, taken - len(results))
        results.append(found)
    return {
        "results": results,
        "ahead": ahead,
        "raised": error_of(1, -3),
        "strange": error_of("strange"),
        "returned": [type(found).__name__ for _, found in work("return")],
    }


def kills(model, folder, reference):
    chance = random.Random(0)
    killed = rewritten = different = refused = 0
    states = set()
    while killed < KILLS:
        workers = 1 + killed % 2
        before = finished(folder)
        told, said = os.pipe()

        def task(workers=workers, said=said):
            run(model, folder, workers, progress=lambda now: os.write(said, b"."))

        child = forked(task)
        os.close(said)
        # Some shards later, and then at any moment; how fast the machine is makes no difference.
        for _ in range(chance.randrange(5)):
            os.read(told, 1)
        time.sleep(chance.uniform(0, 0.05))
        os.close(told)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        after = finished(folder)
        rewritten += any(after.get(name) != written for name, written in before.items())
        if os.WIFSIGNALED(status):
            killed += 1
            states.add(len(after))
        else:
            refused += os.waitstatus_to_exitcode(status) != 0
        if os.WIFEXITED(status) or killed == KILLS:
            _, status = os.waitpid(forked(lambda: run(model, folder, 2)), 0)
            refused += os.waitstatus_to_exitcode(status) != 0
            different += content(folder) != reference
            shutil.rmtree(folder)
    return {
        "killed": killed,
        "rewritten": rewritten,
        "different": different,
        "refused": refused,
        "states": len(states),
    }


def interrupt(model, folder, reference):
    slow = folder.parent / "slow.txt"
    told, said = os.pipe()

    def task():
        run(
            model,
            folder,
            2,
            progress=lambda now: (os.write(said, b"."), time.sleep(0.05)),
            on_interrupt=lambda: slow.write_text("told"),
        )

    child = forked(task)
    for _ in range(3):
        os.read(told, 1)
    os.kill(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    some = len(finished(folder))
    known = set(map(str, finished(folder)))
    present = {str(path) for path in folder.rglob("part-*")}
    temporary = [path.name for path in folder.rglob(".attnflow-*")]
    _, again = os.waitpid(forked(lambda: run(model, folder, 1)), 0)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "told": slow.exists(),
        "some": some,
        "unknown": sorted(present - known) + temporary,
        "again": os.waitstatus_to_exitcode(again),
        "same": content(folder) == reference,
    }


def lost_worker(model, folder, reference):
    message = folder.parent / "message.txt"

    def task():
        def kill_one(now):
            mine = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            if now.new and mine:
                os.kill(int(mine[0]), signal.SIGKILL)

        try:
            run(model, folder, 2, progress=kill_one)
        except attnflow.AttnflowError as error:
            message.write_text(str(error))

    os.waitpid(forked(task), 0)
    _, again = os.waitpid(forked(lambda: run(model, folder, 2)), 0)
    return {
        "message": message.read_text(),
        "again": os.waitstatus_to_exitcode(again),
        "same": content(folder) == reference,
    }


def full_disk(model, folder, reference):
    """Run on a file system of 48 KiB, which is made larger after it was full."""
    message = folder.parent / "full.json"
    folder.mkdir()

    def mount(flags, size):
        libc = ctypes.CDLL(None, use_errno=True)
        data = f"size={size}".encode()
        if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, data):
            raise OSError(ctypes.get_errno(), "a tmpfs cannot be mounted")

    def task():
        libc = ctypes.CDLL(None, use_errno=True)
        own_mounts, own_users, remount = 0x20000, 0x10000000, 32
        if libc.unshare(own_mounts) and libc.unshare(own_users | own_mounts):
            raise OSError(ctypes.get_errno(), "no namespace of its own for a tmpfs")
        mount(0, "48k")
        facts = {}
        try:
            run(model, folder / "out", 1)
        except attnflow.AttnflowError as error:
            facts["error"] = str(error)
        facts["some"] = len(finished(folder / "out"))
        mount(remount, "4m")
        run(model, folder / "out", 1)
        facts["same"] = content(folder / "out") == reference
        message.write_text(json.dumps(facts))

    _, status = os.waitpid(forked(task), 0)
    if status:
        sys.exit("the run on a small tmpfs failed; it needs to be allowed to mount one")
    return json.loads(message.read_text())


def main():
    folder = Path(sys.argv[1])
    model = explainer()
    # The first run imports what it needs, which those that are forked then have.
    run(model, folder / "whole", 1)
    reference = content(folder / "whole")
    os.waitpid(forked(lambda: run(model, folder / "two", 2)), 0)
    facts = {
        "files": len(finished(folder / "whole")),
        "two workers": content(folder / "two") == reference,
        "mapped": {workers: mapped(model, workers) for workers in (1, 2)},
        "kills": kills(model, folder / "killed", reference),
        "interrupt": interrupt(model, folder / "interrupted", reference),
        "lost worker": lost_worker(model, folder / "lost", reference),
        "full disk": full_disk(model, folder / "small", reference),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
