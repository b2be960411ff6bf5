"""One run: the workload with processes that are killed, those that go on, and the verdict."""

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

from longshore.runners.keeper.kernel import adopt_orphans, descendants
from longshore.testing.crashing.executioner import KILLED, REACHED, Place
from longshore.testing.crashing.processes import Role, start
from longshore.testing.crashing.tasks import GO
from longshore.testing.crashing.verdict import problems_in
from longshore.testing.crashing.workload import data_in, notes_in

PATIENCE_S = 60.0
"""For a whole run, which takes one or two seconds."""
_LEFT_FOR_S = 5.0
_TICK_S = 0.005

Kills = Mapping[Role, Place]
"""Whom to kill where; a place that is never reached kills nobody."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What came of a run."""

    killed: dict[str, tuple[int, str]] = field(default_factory=dict)  # role: number and failpoint
    reached: dict[str, dict[str, int]] = field(default_factory=dict)  # by those who ended well
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of ``to_json``."""
        return cls(**json.loads(text))


class _OutOfPatience(Exception):
    """The run takes too long: something was lost."""


class _WentWrong(Exception):
    """A process ended in a way that nobody had planned."""


class Run:
    """All processes of a run are below the one that carries it out, also those without a parent."""

    def __init__(self, folder: Path, kills: Kills) -> None:
        self._folder = folder
        self._kills = kills

    def carry_out(self) -> Report:
        """Everything, from an empty folder to the verdict; leaves no process behind."""
        begun, report = time.monotonic(), Report()
        adopt_orphans()
        notes_in(self._folder).mkdir(parents=True)
        signal.signal(signal.SIGALRM, _out_of_patience)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
        try:
            self._play()
            report.problems += _processes_left()
            report.problems += asyncio.run(problems_in(self._folder))
        except _OutOfPatience:
            report.problems.append(f"not at its end after {PATIENCE_S:g} s")
        except _WentWrong as error:
            report.problems.append(str(error))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            _kill_all_below()
        for role in Role:
            self._read_what_became_of(role, report)
        report.seconds = time.monotonic() - begun
        return report

    def _play(self) -> None:
        first, second = Role.WORKER, Role.CLIENT
        if Role.CLIENT in self._kills and Role.WORKER not in self._kills:
            first, second = second, first
        started = {first: self._start(first)}
        self._wait_for_the_store(first)
        started[second] = self._start(second)
        worker = self._see_through(Role.WORKER, started[Role.WORKER], started[Role.CLIENT])
        # An heir has to clear away after a worker that was killed while its children ran.
        self._end(
            Role.WORKER, worker, signal.SIGKILL if Role.HEIR in self._kills else signal.SIGTERM
        )
        (notes_in(self._folder) / GO).touch()
        heir = self._start(Role.HEIR)
        client = start(Role.CLIENT, self._folder, to_the_end=True)
        heir = self._see_through(Role.HEIR, heir, client, to_the_end=True)
        self._end(Role.HEIR, heir, signal.SIGTERM)

    def _start(self, role: Role) -> int:
        return start(role, self._folder, at=self._kills.get(role))

    def _wait_for_the_store(self, role: Role) -> None:
        """Whoever is to be killed makes it, so that it can be killed while it does."""
        bells = data_in(self._folder) / "bells"
        while not self._was_killed(role) and not (bells.is_dir() and any(bells.iterdir())):
            time.sleep(_TICK_S)  # noqa: TID251 - a file of another process: nothing wakes us

    def _was_killed(self, role: Role) -> bool:
        return (self._folder / f"{KILLED}-{role}.json").exists()

    def _see_through(
        self, role: Role, worker: int, client: int, *, to_the_end: bool = False
    ) -> int:
        """Until the client has all it wants; whoever is killed is followed by another."""
        while True:
            process_id, status = os.wait()
            code = os.waitstatus_to_exitcode(status)
            if process_id == client:
                if code == 0:
                    return worker
                self._refuse_unless_killed(Role.CLIENT, code)
                client = start(Role.CLIENT, self._folder, to_the_end=to_the_end)
            elif process_id == worker:
                self._refuse_unless_killed(role, code)
                worker = start(role, self._folder)

    def _end(self, role: Role, process_id: int, number: signal.Signals) -> None:
        os.kill(process_id, number)
        _, status = os.waitpid(process_id, 0)
        code = os.waitstatus_to_exitcode(status)
        # One that has just taken another's place may not have come to listen for signals.
        if code not in (0, -number):
            self._refuse_unless_killed(role, code)

    def _refuse_unless_killed(self, role: Role, code: int) -> None:
        if code != -signal.SIGKILL or not self._was_killed(role):
            message = f"the {role} ended with {code}; see its log"
            raise _WentWrong(message)

    def _read_what_became_of(self, role: Role, report: Report) -> None:
        with contextlib.suppress(FileNotFoundError):
            told = json.loads((self._folder / f"{KILLED}-{role}.json").read_text())
            report.killed[role] = (told["number"], told["name"])
        counts: Counter[str] = Counter()
        for place in self._folder.glob(f"{REACHED}-{role}-*.json"):
            counts.update(json.loads(place.read_text()))
        report.reached[role] = dict(counts)


def _out_of_patience(_number: int, _frame: FrameType | None) -> None:
    raise _OutOfPatience


def _processes_left() -> Iterator[str]:
    """All that was started must end by itself, and soon."""
    until = time.monotonic() + _LEFT_FOR_S
    while left := _below():
        if time.monotonic() > until:
            yield f"processes are left: {left}"
            return
        time.sleep(_TICK_S)  # noqa: TID251 - a look at the process table: nothing wakes us


def _below() -> list[int]:
    """Everybody who lives below this process; those who have ended are waited for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return sorted(descendants(os.getpid()))


def _kill_all_below() -> None:
    while left := _below():
        for process_id in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        time.sleep(_TICK_S)  # noqa: TID251 - until the kernel has ended them
