"""Sends bodies of hostile shapes to a real server, and lines from a child to its worker.

A server in a process of its own measures what they cost: the CPU time for which a single callback
holds the event loop, by the clock of its thread, and the peak of resident memory. A test sends each
shape once; ``python -m tests.interfaces.rest.body_fuzz 300`` also sends random mixtures.
"""

import asyncio
import gc
import gzip
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from longshore.execution.linux import return_large_memory
from longshore.execution.process_table import rss_bytes_of
from tests.interfaces.rest.server import a_task, run_server

MEGABYTE = 2**20
LIMIT_S = 0.1
LIMIT_BYTES = 150 * MEGABYTE
TIMEOUT_S = 120
BODY_BYTES = 16 * MEGABYTE  # api.body_bytes
LINE_BYTES = 60 * MEGABYTE
MANY = 1_000_000
KINDS = ("result", "step", "conversation", "activity")
SEVERAL = {
    ("step step step", "a long string"): "completed",
    ("conversation conversation conversation", "a long entry"): "completed",
    ("result result", "a long string"): "failed",
    ("result step", "a long string"): "failed",
}
"""Lines that follow each other, and how their job ends."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# The process of the server -----------------------------------------------------------------------


class LoopMeter:
    """The callback of this thread's event loop that has used the most CPU time.

    Args:
        with_collections: Whether garbage collections count; not if the client is in this process.
    """

    def __init__(self, *, with_collections: bool = True) -> None:
        self.longest_s, self.what = 0.0, ""
        self._collecting_s = 0.0
        run_callback = asyncio.Handle._run
        thread = threading.get_ident()

        def measure(handle: asyncio.Handle) -> None:
            if threading.get_ident() != thread:
                run_callback(handle)
                return
            started, self._collecting_s = time.thread_time(), 0.0
            run_callback(handle)
            used = time.thread_time() - started - self._collecting_s
            if used > self.longest_s:
                self.longest_s, self.what = used, repr(handle)

        def collected(phase: str, _: object) -> None:
            if threading.get_ident() == thread:
                self._collecting_s += time.thread_time() * (1 if phase == "stop" else -1)

        asyncio.Handle._run = measure  # type: ignore[method-assign]
        if not with_collections:
            gc.callbacks.append(collected)


async def serve_metered(folder: Path) -> None:
    """Serve until stdin ends; each line there asks for what was measured since the last one."""
    return_large_memory()  # as ``longshore up``
    meter, lines = LoopMeter(), asyncio.Queue[str]()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in iter(sys.stdin.readline, ""):
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    rate = {"requests_per_second": MANY, "burst": MANY}
    async with run_server(folder, with_worker=True, **rate) as server:
        gc.freeze()  # as ``longshore up``
        say(json.dumps([server.address, server.keys["all"]]))
        while await lines.get():
            status = Path("/proc/self/status").read_text(encoding="ascii")
            peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
            say(json.dumps([meter.longest_s, meter.what, peak]))
            meter.longest_s, meter.what = 0.0, ""
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak


# Its client --------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """What was measured since the last time."""

    held_s: float
    by: str
    above_idle_bytes: int

    def __str__(self) -> str:
        milliseconds, above = 1000 * self.held_s, self.above_idle_bytes / MEGABYTE
        return f"loop held for {milliseconds:.0f} ms, {above:+.0f} MB"


class MeteredServer:
    """A server with a worker in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> "MeteredServer":
        command = [sys.executable, "-m", __spec__.name, "serve", str(self._folder)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        address, key = self._read()
        headers = {"x-api-key": key, "content-type": "application/json"}
        self.client = httpx2.Client(base_url=address, headers=headers, timeout=TIMEOUT_S)
        self.run_task(["true"])  # its fork servers are loaded now
        for _ in range(2):
            self._ask()
        self._idle = rss_bytes_of(self._process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT_S)
        finally:
            self._process.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], TIMEOUT_S)[0], "it does not answer"
        return json.loads(self._process.stdout.readline())

    def _ask(self) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return self._read()

    def above_idle_bytes(self) -> int:
        """How much more memory it has now than when it was idle."""
        return rss_bytes_of(self._process.pid) - self._idle

    def cost(self) -> Cost:
        """What was measured since the last call."""
        held_s, by, peak = self._ask()
        return Cost(held_s, by, peak - self._idle)

    def run_task(self, argv: list[str], **options: Any) -> str:
        """How the job of a task has ended."""
        task = {**a_task("a"), "input": {"argv": argv, **options}, "maxAttempts": 1}
        job = self.client.post("/v1/jobs", json={"tasks": [task]})
        path = f"/v1/jobs/{job.json()['jobId']}"
        self.client.get(f"{path}/output/stream")  # ends with the job
        return str(self.client.get(path).json()["status"])


# Shapes ------------------------------------------------------------------------------------------


def fill(size: int, unit: bytes, first: bytes = b"[", last: bytes = b"0]") -> bytes:
    """A text of about this size: a unit, many times."""
    return first + unit * ((size - len(first) - len(last)) // len(unit)) + last


def keys(size: int, *, different: bool = True) -> bytes:
    """An object with many fields."""
    unit = 12
    names = (f'"{i if different else i // 2:08x}":0' for i in range(size // unit))
    return b"{" + ",".join(names).encode() + b"}"


SHAPES: dict[str, Callable[[int], bytes]] = {
    "deep lists": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "deep lists, not closed": lambda size: b"[" * size,
    "deep objects": lambda size: b'{"a":' * (size // 6) + b"0" + b"}" * (size // 6),
    "nested 400 times": lambda size: fill(size, b"[" * 400 + b"]" * 400 + b","),
    "many lists": lambda size: fill(size, b"[],"),
    "many objects": lambda size: fill(size, b"{},"),
    "many fields of one object": keys,
    "many duplicate fields": lambda size: keys(size, different=False),
    "many objects of a field": lambda size: fill(size, b'{"a":0},'),
    "many zeros": lambda size: fill(size, b"0,"),
    "many floats": lambda size: fill(size, b"1.5e-7,"),
    "many strings": lambda size: fill(size, b'"","a","\xc3\xa9",'),
    "half a million objects": lambda size: fill(min(size, 4 * 240_000), b"{}, "),
    "objects of a field": lambda size: fill(min(size, 8 * 240_000), b'{"a":0},'),
    "half a million fields": lambda size: keys(min(size, 12 * 490_000)),
    "half a million zeros": lambda size: fill(min(size, 2 * 490_000), b"0,"),
    "half a million strings": lambda size: fill(min(size, 30 * 490_000), b'"' + b"a" * 27 + b'",'),
    "a long string": lambda size: b'"' + b"x" * size + b'"',
    "a long string of commas": lambda size: b'"' + b"[," * (size // 2) + b'"',
    "a long string of escapes": lambda size: b'"' + b"\\u00e9" * (size // 6) + b'"',
    "a long string of newlines": lambda size: b'"' + b"\\n" * (size // 2) + b'"',
    "a long string of accents": lambda size: b'"' + "é".encode() * (size // 2) + b'"',
    "a long string with one emoji": lambda size: b'"' + b"x" * size + "🙂".encode() + b'"',
    "a long string with an escaped emoji": lambda size: (
        b'"%b\\ud83d\\ude42"' % (b"x" * (size - 10))
    ),
    "a long entry": lambda size: b'[{"text":"%b\\ud83d\\ude42"}]' % (b"x" * (size - 30)),
    "lone surrogates": lambda size: b'"' + b"\\ud800" * (size // 6) + b'"',
    "a string, not closed": lambda size: b'"' + b"x" * size,
    "strings without commas": lambda size: fill(size, b'""'),
    "a huge number": lambda size: b"9" * size,
    "a huge float": lambda size: b"9" * size + b".0",
    "a huge exponent": lambda _: b"1e" + b"9" * 20,
    "many huge numbers": lambda size: fill(size, b"9" * 4000 + b","),
    "many huge exponents": lambda size: fill(size, b"1e999,"),
    "many long digits": lambda size: fill(size, b"9" * 299 + b","),
    "not a number": lambda size: fill(size, b"NaN,"),
    "not UTF-8": lambda size: b'"' + b"\xff" * size + b'"',
    "not UTF-8 at its end": lambda size: b'"' + b"x" * size + b'\xff"',
    "UTF-16": lambda size: ("[" + "0," * (size // 4) + "0]").encode("utf-16"),
    "spaces": lambda size: b" " * size,
    "zero bytes": lambda size: b"\0" * size,
    "nothing": lambda _: b"",
}


def job_with(value: bytes) -> bytes:
    """A job whose input contains the value."""
    return b'{"tasks":[{"taskId":"a","name":"command","input":{"argv":["true"],"x":%b}}]}' % value


def wide_jobs() -> Iterator[tuple[str, str, bytes]]:
    """Jobs that are large, not strange: name, path and body."""
    for name, path, job in _wide_jobs():
        yield name, path, json.dumps(job).encode()


def _wide_jobs() -> Iterator[tuple[str, str, Any]]:
    tasks = [a_task(f"t{number}") for number in range(9_999)]
    yield "9,999 tasks", "/v1/jobs", {"tasks": tasks}
    parents = [[f"t{i}" for i in range(max(0, number - 40), number)] for number in range(9_999)]
    chain = [{**task, "dependsOn": above} for task, above in zip(tasks, parents, strict=True)]
    yield "400,000 dependencies", "/v1/jobs", {"tasks": chain}
    yield "many tasks", "/v1/jobs", {"tasks": [{"taskId": "a", "name": "b"}] * 120_000}
    yield "unknown fields", "/v1/jobs", {f"f{number}": 0 for number in range(400_000)}
    wrong = {"taskId": 1, "name": 2, "input": 3, "dependsOn": 4, "x": 5}
    yield "problems", "/v1/jobs", {"tasks": [wrong] * 40_000}
    same = {"taskId": "a", "name": "command", "dependsOn": ["b"]}
    yield "equal ids", "/v1/jobs", {"tasks": [same] * 9_000}
    cyclic = [{**a_task(f"t{i}"), "dependsOn": [f"t{(i + 1) % 9_000}"]} for i in range(9_000)]
    yield "a long cycle", "/v1/jobs", {"tasks": cyclic}
    yield "1,000 jobs", "/v1/jobs/batch", {"jobs": [{"job": {"tasks": [a_task("a")]}}] * 1_000}
    long = {"tasks": [a_task("a")], "name": "n" * 9_000}
    yield "1,000 wrong jobs", "/v1/jobs/batch", {"jobs": [{"job": long}] * 1_000}


@dataclass
class Request:
    """A hostile request."""

    name: str
    path: str
    body: bytes
    method: str = "POST"
    encoding: str | None = None

    def send(self, client: httpx2.Client) -> int:
        headers = {} if self.encoding is None else {"content-encoding": self.encoding}
        try:
            answer = client.request(self.method, self.path, content=self.body, headers=headers)
        except httpx2.TransportError:
            return 0  # refused while the body was still being sent
        return answer.status_code


def requests() -> Iterator[Request]:
    """Every shape, as a body and inside of one."""
    for name, make in SHAPES.items():
        yield Request(name, "/v1/jobs", make(BODY_BYTES - 200))
        yield Request(f"{name}, as an input", "/v1/jobs", job_with(make(BODY_BYTES - 200)))
    for name in ("many lists", "many fields of one object", "a long string"):
        body = SHAPES[name](BODY_BYTES - 200)
        yield Request(f"{name}, compressed", "/v1/jobs", gzip.compress(body, 1), encoding="gzip")
        yield Request(f"{name}, too large", "/v1/jobs", body * 2)
        options = b'{"runner":"command","options":{"argv":["true"],"x":%b}}' % body
        yield Request(f"{name}, as options", "/v1/task-definitions/x", options, method="PUT")
    yield from (Request(*wide) for wide in wide_jobs())


# A child writes one of these shapes, which it imports from here.
_WRITE = """
import os, sys
from tests.interfaces.rest.body_fuzz import SHAPES
kinds, shape, size = sys.argv[1:]
fields = {"step": 'name":"s","result', "conversation": 'conversation":"c","entries'}
value = SHAPES[shape](int(size))
for kind in kinds.split():
    start = '{"type":"%s","%s":' % (kind, fields.get(kind, "value"))
    for data in (start.encode(), value, b"}\\n"):
        while data:
            data = data[os.write(3, data[:1_000_000]):]
"""


def write_lines(server: MeteredServer, kinds: str, shape: str, size: int = LINE_BYTES) -> str:
    """Have a child write a hostile line of each kind. Returns how its job ended."""
    argv = [sys.executable, "-c", _WRITE, kinds, shape, str(size)]
    return server.run_task(argv, env={"PYTHONPATH": os.getcwd()})


def excess(name: str, cost: Cost) -> str | None:
    """What is wrong with a cost."""
    if cost.held_s <= LIMIT_S and cost.above_idle_bytes <= LIMIT_BYTES:
        return None
    return f"{name}: {cost}, {cost.by}"


def mixture(chance: random.Random) -> bytes:
    """A job with several shapes in its input, sometimes with one wrong byte."""
    sizes = [chance.randrange(BODY_BYTES // 4) for _ in range(3)]
    parts = tuple(SHAPES[chance.choice([*SHAPES])](size) for size in sizes)
    mixed = b'[%b,{"a":%b},%b]' % parts
    if chance.random() < 0.2:
        position = chance.randrange(len(mixed))
        mixed = mixed[:position] + bytes([chance.randrange(256)]) + mixed[position + 1 :]
    return job_with(mixed)


def main() -> int:
    if sys.argv[1] == "serve":
        asyncio.run(serve_metered(Path(sys.argv[2])))
        return 0
    chance, problems, only = random.Random(), [], sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory() as folder, MeteredServer(Path(folder)) as server:

        def report(name: str, answer: object) -> None:
            cost = server.cost()
            say(f"{name}: {answer}, {cost}")
            problem = f"{name}: {answer}" if answer == 500 else excess(name, cost)
            problems.extend([problem] if problem else [])

        for request in requests():
            if only in request.name:
                report(request.name, request.send(server.client))
        for kind, shape in (*product(KINDS, SHAPES), *SEVERAL):
            if only in (name := f"{kind} of {shape}"):
                report(name, write_lines(server, kind, shape))
        for number in range(int(sys.argv[1])):
            request = Request("", "/v1/jobs", mixture(chance))
            report(f"mixture {number}", request.send(server.client))
    say("\n".join(["", *problems]) if problems else "nothing held the loop or memory for too long")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
