"""One measurement of one peer: an empty store, its workers, and calls of its client."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from benchmarks.peers import bodies
from benchmarks.peers.catalogue import Peer
from benchmarks.peers.launcher import (
    Launcher,
    MeasurementFailed,
    Process,
    traced_times_s,
    wait_until,
)
from benchmarks.peers.servers import SYNC_CALLS, Server

ROOT = Path(__file__).parents[2]
# Numbers from here on are not part of the tasks that a measurement counts.
EXTRA = 1_000_000
_WARM_UP = 8
_WARM_UP_S = 60.0
_CLIENT_S = 900.0
# Settings of the developer's own shell that would change what is measured.
_REMOVED_PREFIXES = ("LONGSHORE_", "BENCH_", "PYTHON", "COVERAGE_", "VIRTUAL_ENV")
_REMOVED_NAMES = {"http_proxy", "https_proxy", "all_proxy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCalls:
    """When the calls of a client began and ended, and what they cost it."""

    before: Sequence[float]
    after: Sequence[float]
    cpu_s: float
    wall_offset_s: float
    value: Any

    @property
    def seconds(self) -> float:
        return self.after[-1] - self.before[0]

    def counts_inside(self, times_of_day_s: Sequence[float]) -> list[int]:
        """For each call, how many of these moments lie between its begin and its end."""
        moments = [time_s - self.wall_offset_s for time_s in times_of_day_s]
        return [
            sum(begin <= moment <= end for moment in moments)
            for begin, end in zip(self.before, self.after, strict=True)
        ]


class Session:
    """A folder with the peer's data, and everything that runs in it."""

    def __init__(
        self, peer: Peer, *, launcher: Launcher, folder: Path, programs: Path, server: Server | None
    ) -> None:
        self.peer = peer
        self.server = server
        self.folder = folder
        self._launcher = launcher
        self._programs = programs
        self._log = folder / "worker.log"
        self._data = folder / "data"
        self._data.mkdir(parents=True)
        (folder / "failed").mkdir()
        bodies.records_file(folder).touch()

    def environment(self, **variables: str) -> dict[str, str]:
        """The variables of the peer's clients and workers."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_REMOVED_PREFIXES) and name.lower() not in _REMOVED_NAMES
        }
        server = self.server.variables() if self.server else {}
        return {
            **inherited,
            "PATH": f"{self._programs}:{inherited['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            bodies.FOLDER_VARIABLE: str(self.folder),
            "BENCH_DATABASE": str(self._data / "queue.db"),
            "LONGSHORE_DATA_DIR": str(self._data),
            **server,
            **self.peer.variables,
            **variables,
        }

    def call(
        self,
        action: str,
        *,
        variables: Mapping[str, str] | None = None,
        trace: Path | None = None,
        **arguments: Any,
    ) -> ClientCalls:
        """Run one action of the driver in the peer's environment.

        Raises:
            MeasurementFailed: the client failed; the end of its output is the message.
        """
        answer = self.folder / "client.json"
        answer.unlink(missing_ok=True)
        module = ("-m", "benchmarks.peers.driver", self.peer.adapter, action, json.dumps(arguments))
        process = self._launcher.start(
            [str(self._programs / "python"), *module],
            environment=self.environment(**(variables or {})),
            folder=self.folder,
            log=self.folder / "client.log",
            trace=trace,
            calls=SYNC_CALLS,
        )
        process.wait(_CLIENT_S)
        process.stop()
        if not answer.exists():
            message = f"{action} failed: {process.log_tail().strip()}"
            raise MeasurementFailed(message)
        defaults = {"before": (), "after": (), "cpu_s": 0.0, "wall_offset_s": 0.0, "value": None}
        return ClientCalls(**{**defaults, **json.loads(answer.read_text())})

    def submit(self, count: int, body: str = "noop", **options: Any) -> ClientCalls:
        """Submit tasks one by one."""
        return self.call("submit_each", bodies=[body], count=count, **options)

    def submit_fast(self, count: int, body: str = "noop") -> ClientCalls:
        """Submit tasks with the peer's bulk call, if it has one."""
        if "bulk" in self.peer.measurements:
            return self.call("submit_bulk", count=count, body=body)
        return self.submit(count, body)

    @contextlib.contextmanager
    def workers(
        self,
        *,
        processes: int | None = None,
        slots: int | None = None,
        trace: str | None = None,
        calls: str = "all",
    ) -> Iterator[list[Process]]:
        """The peer's workers; by default as many as usual.

        Args:
            trace: The prefix of files with their system calls, of which ``calls`` are recorded.
        """
        variables = {} if slots is None else {"BENCH_SLOTS": str(slots)}
        commands = self.peer.workers(str(self._programs), processes=processes, slots=slots)
        started: list[Process] = []
        try:
            for number, command in enumerate(commands):
                file = self.folder / f"{trace}-{number}" if trace else None
                started.append(self._start_worker(command, variables, file, calls))
            yield started
        finally:
            for process in started:
                process.ask_to_stop()
            for process in started:
                process.stop()

    def replace_worker(self, workers: list[Process], index: int, *, slots: int) -> None:
        """Kill a worker with all its processes, and start another."""
        commands = self.peer.workers(str(self._programs), processes=2, slots=slots)
        workers[index].kill()
        variables = {"BENCH_SLOTS": str(slots)}
        workers[index] = self._start_worker(commands[index], variables)

    def _start_worker(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        trace: Path | None = None,
        calls: str = "all",
    ) -> Process:
        return self._launcher.start(
            command,
            environment=self.environment(**variables),
            folder=self.folder,
            log=self._log,
            trace=trace,
            calls=calls,
        )

    def warm_up(self) -> None:
        """Have a few tasks run, so that everything is loaded.

        Raises:
            MeasurementFailed: they did not run.
        """
        before = self.recorded()
        self.submit(_WARM_UP, first=EXTRA)
        self.wait_for(before + _WARM_UP, _WARM_UP_S)
        if self.recorded() < before + _WARM_UP:
            raise self.failure("the first tasks did not run")

    def recorded(self) -> int:
        return bodies.records_file(self.folder).stat().st_size // bodies.RECORD_BYTES

    def records(self) -> list[bodies.Record]:
        return bodies.read_records(self.folder)

    def forget_records(self) -> None:
        """Begin a new count; no worker may run."""
        os.truncate(bodies.records_file(self.folder), 0)

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Whether so many records were written in time."""
        return wait_until(lambda: self.recorded() >= count, timeout_s)

    def trace_times_s(self, name: str) -> list[float]:
        """The time of day of every traced call of the workers."""
        return [t for file in self.folder.glob(f"{name}-*") for t in traced_times_s(file)]

    def disk_bytes(self) -> int | None:
        """Size of the peer's data when its workers have stopped; None if it is not on disk."""
        if self.server is not None:
            return self.server.disk_bytes()
        for log in self._data.rglob("*-wal"):
            # A worker that was stopped may leave its log behind, whose size says nothing.
            connection = apsw.Connection(str(log).removesuffix("-wal"))
            # A connection that has read nothing does not use the log yet.
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            connection.close()
        return sum(path.stat().st_size for path in self._data.rglob("*") if path.is_file())

    def failure(self, text: str) -> MeasurementFailed:
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        return MeasurementFailed(f"{text}: {log.strip()[-800:]}")
