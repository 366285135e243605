"""A server in a process of its own, and a client of it.

Run as a program, this is `attnflow serve` with a gate: the model begins to read a text with the
word "wait", or to write the third word after it, only when the file named first exists. A text with
the word "solve" keeps the solver of attention flow busy for minutes.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

WAIT, SOLVE = "wait", "solve"
TOKEN = "a-token-of-24-characters"
HOSTILE = (
    "<script>window.ran = 1</script>",
    '"><img src=x onerror="window.ran = 1">',
    "</script>",
    "&lt;",
    "\x07\x1b[31m",
    "\u202eevil",
    "👩\u200d👩\u200d👧",
)
LONGEST = "x" * 10_000


@contextmanager
def serving(*options, gate=None, token=None):
    """Start a server on a free port, and stop it in the end if it still runs."""
    program = (
        [sys.executable, "-m", "attnflow"] if gate is None else [sys.executable, __file__, gate]
    )
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        **({"ATTNFLOW_TOKEN": token} if token else {}),
    }
    command = [*map(str, program), "serve", "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError(process.stderr.read())
            yield Server(process, address, token)
        finally:
            if process.poll() is None:
                process.kill()


class Server:
    def __init__(self, process, address, token):
        self.process = process
        self.address = address
        self.token = token
        self.host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
        self.port = int(port)

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self):
        """Wait for the end; return the exit status and what was written to standard error."""
        _, written = self.process.communicate(timeout=60)
        return self.process.returncode, written

    @contextmanager
    def connected(self):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            yield connection
        finally:
            connection.close()

    def request(self, method, path, body=None, headers=None, *, token=True):
        """Return the status, the headers and the body of an answer."""
        sent = dict(headers or {})
        if self.token and token:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        with self.connected() as connection:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def get(self, path, **headers):
        return self.request(
            "GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    def post(self, question, headers=None, path="/api/explain", **options):
        """Ask a question; return the status and the answer."""
        body = question if isinstance(question, bytes) else json.dumps(question).encode()
        status, _, answer = self.request(
            "POST",
            path,
            body,
            {"Content-Type": "application/json", **(headers or {})},
            **options,
        )
        return status, json.loads(answer)

    def generate(self, text, **options):
        """Let the model write; return the status and the answer."""
        return self.post({"text": text, **options}, path="/api/generate")

    def events(self, path, question):
        """Ask for a stream; return its events."""
        kinds = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
        status, _, content = self.request("POST", path, json.dumps(question), kinds)
        assert status == 200
        return [json.loads(line) for line in content.splitlines()]

    def ask(self, text, client=None, **options):
        """Ask as a client of some name."""
        headers = {} if client is None else {"Attnflow-Client": client}
        return self.post({"text": text, "method": "rollout", **options}, headers)

    def metric(self, name):
        """Return the value of a metric, by its name and labels."""
        lines = self.get("/metrics")[2].decode().splitlines()
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        return float(line.rpartition(" ")[2])

    def until(self, name, value):
        """Wait until a metric has a value."""
        for _ in range(3000):
            found = self.metric(name)
            if found == value:
                return
            time.sleep(0.01)
        raise AssertionError(f"{name} is {found} and does not become {value}")


def main():
    """Serve with a gate."""
    import numpy as np

    from attnflow import scoring
    from attnflow.cli import main as command
    from attnflow.models import Explainer
    from attnflow.models.verb_number import checkpoint

    gate, *arguments = sys.argv[1:]
    model = arguments[arguments.index("--model") + 1] if "--model" in arguments else checkpoint()
    explainer = Explainer.from_pretrained(model)
    texts, passes = [], []

    def noted(work, free):
        def run(text, **options):
            texts.append(str(text))
            passes[:] = [None] * free
            return work(text, **options)

        return run

    def hold(*_):
        if passes:
            passes.pop()
            return
        while WAIT in texts[-1].split() and not Path(gate).exists():
            time.sleep(0.01)

    flow = scoring.attention_flow

    def flow_after_more(graph, **options):
        if SOLVE in texts[-1].split():
            attention = np.random.default_rng(0).random((12, 400, 400)) ** 6
            flow(attention / attention.sum(axis=-1, keepdims=True), num_threads=1)
        return flow(graph, **options)

    scoring.attention_flow = flow_after_more
    explainer.explain = noted(explainer.explain, 0)
    explainer.generate = noted(explainer.generate, 2)
    explainer.model.register_forward_pre_hook(hold)
    Explainer.from_pretrained = lambda *_, **__: explainer
    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
