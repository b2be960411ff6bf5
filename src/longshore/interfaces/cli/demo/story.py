"""``longshore demo``: a job of five tasks, two workers, and the death of one of them.

The story is directed, the rest is real: real processes, a real SIGKILL, the same code as always.
Whether it went well is not for the director to say: the verdict is read from the recorded events.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

from longshore.core.rows import JobRow
from longshore.core.states import TaskState
from longshore.interfaces.cli import words
from longshore.interfaces.cli.demo import cast
from longshore.interfaces.cli.demo.cast import Actor
from longshore.interfaces.cli.demo.scene import Note, Stage
from longshore.interfaces.cli.demo.verdict import Verdict, verdict_of
from longshore.interfaces.cli.demo.view import View, view_for
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.interruption import end_signals
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import print_pairs
from longshore.interfaces.cli.session import Session, opened
from longshore.services.histories import JobHistory
from longshore.settings import load_settings

TITLE = "nightly report"
_FUNCTIONS = "longshore.runners.demo"
# Task, what it depends on, what its function is given.
_PLOT: tuple[tuple[str, str, tuple[str, ...], dict[str, object]], ...] = (
    ("fetch-a", "fetch", (), {"source": "a", "pages": 4}),
    ("fetch-b", "fetch", (), {"source": "b", "pages": 5}),
    ("merge", "merge", ("fetch-a", "fetch-b"), {}),
    ("analyse", "analyse", ("merge",), {}),
    ("publish", "publish", ("analyse",), {}),
)
_VICTIM_RUNS = "analyse"
# Two of its four steps are done then, and kept.
_FATAL_WORDS = "[3/4]"
_FRAME = timedelta(milliseconds=120)
_LONGEST = timedelta(seconds=90)


async def tell(here: Here) -> int:
    """Run the demo; 1 if anything was lost or done twice."""
    folder = (
        here.data_dir.absolute()
        if here.data_dir
        else Path(tempfile.mkdtemp(prefix="longshore-demo-"))
    )
    telling = asyncio.ensure_future(_tell(folder, kept=here.data_dir is not None))
    stopping = iter((telling.cancel,))

    def stop() -> None:
        # Once: a second signal must not keep the workers from being ended.
        for cancel in stopping:
            cancel()

    for number in end_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        return await telling
    except asyncio.CancelledError:
        say("longshore: the demo was stopped; its workers have been ended")
        return ExitCode.INTERRUPTED
    finally:
        if here.data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


async def _tell(folder: Path, *, kept: bool) -> int:
    # Defaults alone: neither the environment nor a file may change the story.
    settings = load_settings({"data_dir": folder}, environ={}, cwd=folder)
    print(f"{TITLE}: five tasks, two workers, one of them doomed", flush=True)
    async with opened(settings) as session, _actors(folder) as actors:
        job = await _submit(session)
        story = _Story(session, job, actors)
        with view_for(TITLE) as view:
            await story.play(view)
        verdict = await story.verdict()
        _tell_verdict(verdict, story)
        _tell_what_next(job, folder if kept else None)
        return ExitCode.OK if verdict.good else ExitCode.FAILED


@contextlib.asynccontextmanager
async def _actors(folder: Path) -> AsyncIterator[list[Actor]]:
    started = [asyncio.ensure_future(cast.start(number, folder)) for number in (1, 2)]
    try:
        yield list(await asyncio.gather(*started))
    finally:
        for one in started:
            one.cancel()
        found = await asyncio.gather(*started, return_exceptions=True)
        living = [actor.process for actor in found if isinstance(actor, Actor)]
        await asyncio.gather(*(cast.end(process) for process in living))


async def _submit(session: Session) -> JobRow:
    document = {
        "name": TITLE,
        "tasks": [
            {
                "taskId": key,
                "name": "python",
                "dependsOn": list(parents),
                "queue": cast.QUEUE,
                "input": {"function": f"{_FUNCTIONS}:{function}", "kwargs": given},
            }
            for key, function, parents, given in _PLOT
        ],
    }
    request_id = session.transitions.new_id()
    accepted = await session.producer.submit(session.settings.tenant, request_id, document)
    return accepted.job


def _depths() -> dict[str, int]:
    depths: dict[str, int] = {}
    for key, _, parents, _ in _PLOT:
        depths[key] = max((depths[parent] + 1 for parent in parents), default=0)
    return depths


class _Story:
    """Shows what happens, and makes one thing happen."""

    def __init__(self, session: Session, job: JobRow, actors: list[Actor]) -> None:
        self._session = session
        self._job = job
        self._actors = actors
        self._stage = Stage(session.backend, job, _depths())
        for actor in actors:
            self._stage.introduce(actor.id, actor.name)
        self._notes: list[Note] = []
        self.victim: Actor | None = None
        self._killed_at: datetime | None = None
        self._taken_over = False

    async def play(self, view: View) -> None:
        """Until the job has ended, or it takes too long."""
        clock = self._session.backend.clock
        end = clock.elapsed() + _LONGEST
        while True:
            await self._strike()
            await self._notice_recovery()
            workers = [(one.name, one.process.pid, not one.killed) for one in self._actors]
            scene = await self._stage.look(self._notes, workers)
            view.show(scene)
            if scene.state.terminal or clock.elapsed() > end:
                return
            await clock.sleep(_FRAME)

    async def _strike(self) -> None:
        """Kill whoever runs the victim's task, once it is in the middle of it."""
        if self.victim is not None:
            return
        for row in await self._stage.rows():
            if row.spec.key != _VICTIM_RUNS or row.lease is None:
                continue
            if not (await self._stage.last_words(row.id)).startswith(_FATAL_WORDS):
                continue
            holder = row.lease.worker_id
            self.victim = next(actor for actor in self._actors if actor.id == holder)
            self._killed_at = self._session.backend.clock.now()
            self.victim.kill()
            text = f"killed {self.victim.name} with SIGKILL in the middle of {_VICTIM_RUNS}"
            self._notes.append(Note(text=text, good=False))

    async def _notice_recovery(self) -> None:
        if self.victim is None or self._taken_over:
            return
        for row in await self._stage.rows():
            again = row.spec.key == _VICTIM_RUNS and row.attempt > 1
            if again and row.state in (TaskState.PROCESSING, TaskState.COMPLETED):
                self._taken_over = True
                other = next(actor for actor in self._actors if actor is not self.victim)
                after = words.took((await self.verdict()).recovery)
                text = f"{other.name} took over {after} later, after the last step that was kept"
                self._notes.append(Note(text=text, good=True))

    async def verdict(self) -> Verdict:
        """What the events say so far."""
        history = JobHistory(self._session.backend, self._session.settings.tenant, self._job.id)
        return verdict_of(
            [event async for event in history.more()],
            total=self._job.total,
            victim=self.victim.id if self.victim else "",
            killed_at=self._killed_at,
        )


def _tell_verdict(verdict: Verdict, story: _Story) -> None:
    recovery = f"{words.took(verdict.recovery)} from the kill to the next attempt"
    print("\nRead from the recorded events:")
    print_pairs(
        [
            ("tasks completed", f"{verdict.completed} of {verdict.total}"),
            ("lost", str(verdict.lost)),
            ("run to completion twice", str(verdict.doubled)),
            ("gaps in the history", str(verdict.gaps)),
            ("workers killed", "1 with SIGKILL" if story.victim else "none: it was never reached"),
            ("recovered", recovery if verdict.recovery is not None else "never"),
        ]
    )


def _tell_what_next(job: JobRow, folder: Path | None) -> None:
    print("\nNext:")
    print_pairs(
        [
            ("your own command", "longshore run -- sh -c 'echo hello; sleep 1; echo done'"),
            ("your own job", "longshore submit --help"),
            ("this job", f"longshore events {job.id} --all --data-dir {folder}" if folder else ""),
        ]
    )
