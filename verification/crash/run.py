"""One run: the workload with kills, the successors of the killed processes, and the checks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from longshore.execution.linux import become_subreaper
from longshore.execution.process_table import descendants
from verification.crash.checks import check_run
from verification.crash.killer import KILLED, REACHED, KillPoint
from verification.crash.processes import Role, start
from verification.crash.tasks import GO
from verification.crash.workload import data_folder, notes_folder

RUN_TIMEOUT_S = 60.0
"""For a whole run, which takes one or two seconds."""
_EXIT_TIMEOUT_S = 5.0
_TICK_S = 0.005

Kills = Mapping[Role, KillPoint]
"""Where to kill each role; a kill point that is never reached has no effect."""


@dataclass(slots=True, kw_only=True)
class CrashReport:
    """The result of a run."""

    killed: dict[str, tuple[int, str]] = field(default_factory=dict)  # role: number and failpoint
    reached: dict[str, dict[str, int]] = field(
        default_factory=dict
    )  # by processes that exited normally
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CrashReport:
        """The inverse of ``to_json``."""
        return cls(**json.loads(text))


class _RunTimeout(Exception):
    """The run takes too long: something was lost."""


class _UnexpectedExit(Exception):
    """A process exited although it was not killed."""


class CrashRun:
    """A run. Its processes, also orphans, are descendants of the process that carries it out."""

    def __init__(self, folder: Path, kills: Kills) -> None:
        self._folder = folder
        self._kills = kills

    def execute(self) -> CrashReport:
        """Run the workload in an empty folder and check the result; leaves no process behind."""
        started_at, report = time.monotonic(), CrashReport()
        become_subreaper()
        notes_folder(self._folder).mkdir(parents=True)
        signal.signal(signal.SIGALRM, _on_alarm)
        signal.setitimer(signal.ITIMER_REAL, RUN_TIMEOUT_S)
        try:
            self._run_processes()
            report.problems += _remaining_processes()
            report.problems += asyncio.run(check_run(self._folder))
        except _RunTimeout:
            report.problems.append(f"not finished after {RUN_TIMEOUT_S:g} s")
        except _UnexpectedExit as error:
            report.problems.append(str(error))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            _kill_descendants()
        for role in Role:
            self._read_results(role, report)
        report.seconds = time.monotonic() - started_at
        return report

    def _run_processes(self) -> None:
        first, second = Role.WORKER, Role.CLIENT
        if Role.CLIENT in self._kills and Role.WORKER not in self._kills:
            first, second = second, first
        started = {first: self._start(first)}
        self._wait_for_store(first)
        started[second] = self._start(second)
        worker = self._wait_for_client(Role.WORKER, started[Role.WORKER], started[Role.CLIENT])
        # The successor has to clean up after a worker that was killed while its children ran.
        self._stop(
            Role.WORKER, worker, signal.SIGKILL if Role.SUCCESSOR in self._kills else signal.SIGTERM
        )
        (notes_folder(self._folder) / GO).touch()
        successor = self._start(Role.SUCCESSOR)
        client = start(Role.CLIENT, self._folder, until_done=True)
        successor = self._wait_for_client(Role.SUCCESSOR, successor, client, until_done=True)
        self._stop(Role.SUCCESSOR, successor, signal.SIGTERM)

    def _start(self, role: Role) -> int:
        return start(role, self._folder, kill_point=self._kills.get(role))

    def _wait_for_store(self, role: Role) -> None:
        """Wait until the first process has created the store, or was killed while it did."""
        wakeups = data_folder(self._folder) / "wakeups"
        while not self._was_killed(role) and not (wakeups.is_dir() and any(wakeups.iterdir())):
            time.sleep(_TICK_S)

    def _was_killed(self, role: Role) -> bool:
        return (self._folder / f"{KILLED}-{role}.json").exists()

    def _wait_for_client(
        self, role: Role, worker: int, client: int, *, until_done: bool = False
    ) -> int:
        """Wait until the client is done; restart the client or the worker when it is killed."""
        while True:
            process_id, status = os.wait()
            code = os.waitstatus_to_exitcode(status)
            if process_id == client:
                if code == 0:
                    return worker
                self._require_killed(Role.CLIENT, code)
                client = start(Role.CLIENT, self._folder, until_done=until_done)
            elif process_id == worker:
                self._require_killed(role, code)
                worker = start(role, self._folder)

    def _stop(self, role: Role, process_id: int, number: signal.Signals) -> None:
        os.kill(process_id, number)
        _, status = os.waitpid(process_id, 0)
        code = os.waitstatus_to_exitcode(status)
        # A process that was just started may not handle signals yet.
        if code not in (0, -number):
            self._require_killed(role, code)

    def _require_killed(self, role: Role, code: int) -> None:
        if code != -signal.SIGKILL or not self._was_killed(role):
            message = f"the {role} ended with {code}; see its log"
            raise _UnexpectedExit(message)

    def _read_results(self, role: Role, report: CrashReport) -> None:
        with contextlib.suppress(FileNotFoundError):
            kill = json.loads((self._folder / f"{KILLED}-{role}.json").read_text())
            report.killed[role] = (kill["number"], kill["name"])
        counts: Counter[str] = Counter()
        for path in self._folder.glob(f"{REACHED}-{role}-*.json"):
            counts.update(json.loads(path.read_text()))
        report.reached[role] = dict(counts)


def _on_alarm(_number: int, _frame: FrameType | None) -> None:
    raise _RunTimeout


def _remaining_processes() -> Iterator[str]:
    """Every process that was started must exit by itself, and soon."""
    until = time.monotonic() + _EXIT_TIMEOUT_S
    while left := _live_descendants():
        if time.monotonic() > until:
            yield f"processes are left: {left}"
            return
        time.sleep(_TICK_S)


def _live_descendants() -> list[int]:
    """The living descendants of this process; reaps the others."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return sorted(descendants(os.getpid()))


def _kill_descendants() -> None:
    while left := _live_descendants():
        for process_id in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        time.sleep(_TICK_S)
