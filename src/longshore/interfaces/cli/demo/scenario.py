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
from typing import TYPE_CHECKING

from longshore.core.tasks.rows import JobRow
from longshore.core.tasks.states import TaskState
from longshore.interfaces.cli.demo import worker_processes
from longshore.interfaces.cli.demo.frame import DemoNote, FrameReader
from longshore.interfaces.cli.demo.report import DemoReport, report_of
from longshore.interfaces.cli.demo.view import DemoView, view_for
from longshore.interfaces.cli.demo.worker_processes import DemoWorker
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.interruption import termination_signals
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import print_pairs
from longshore.interfaces.cli.services import open_command_services
from longshore.services.queries import FeedCursor
from longshore.settings import load_settings

if TYPE_CHECKING:
    from longshore.wiring.services import Services

TITLE = "nightly report"
_FUNCTIONS = "longshore.execution.runners.demo_tasks"
# Task, what it depends on, what its function is given.
_TASKS: tuple[tuple[str, str, tuple[str, ...], dict[str, object]], ...] = (
    ("fetch-a", "fetch", (), {"source": "a", "pages": 4}),
    ("fetch-b", "fetch", (), {"source": "b", "pages": 5}),
    ("merge", "merge", ("fetch-a", "fetch-b"), {}),
    ("analyse", "analyse", ("merge",), {}),
    ("publish", "publish", ("analyse",), {}),
)
_KILL_DURING = "analyse"
# Two of its four steps are done then, and kept.
_KILL_AT_LINE = "[3/4]"
_FRAME_INTERVAL = timedelta(milliseconds=120)
_TIME_LIMIT = timedelta(seconds=90)


async def run_demo(options: GlobalOptions) -> int:
    """Run the demo; 1 if anything was lost or done twice."""
    folder = (
        options.data_dir.absolute()
        if options.data_dir
        else Path(tempfile.mkdtemp(prefix="longshore-demo-"))
    )
    telling = asyncio.ensure_future(_run_demo(folder, kept=options.data_dir is not None))
    stopping = iter((telling.cancel,))

    def stop() -> None:
        # Once: a second signal must not keep the workers from being ended.
        for cancel in stopping:
            cancel()

    for number in termination_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        return await telling
    except asyncio.CancelledError:
        print_stderr("longshore: the demo was stopped; its workers have been ended")
        return ExitCode.INTERRUPTED
    finally:
        if options.data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


async def _run_demo(folder: Path, *, kept: bool) -> int:
    # Defaults alone: neither the environment nor a file may change the story.
    settings = load_settings({"data_dir": folder}, environ={}, cwd=folder)
    print(f"{TITLE}: five tasks, two workers, one of them doomed", flush=True)
    async with open_command_services(settings) as session, _running_workers(folder) as actors:
        job = await _submit(session)
        story = _Scenario(session, job, actors)
        with view_for(TITLE) as view:
            await story.run(view)
        verdict = await story.report()
        _print_report(verdict, story)
        _print_next_steps(job, folder if kept else None)
        return ExitCode.OK if verdict.good else ExitCode.FAILED


@contextlib.asynccontextmanager
async def _running_workers(folder: Path) -> AsyncIterator[list[DemoWorker]]:
    started = [
        asyncio.ensure_future(worker_processes.start_worker(number, folder)) for number in (1, 2)
    ]
    try:
        yield list(await asyncio.gather(*started))
    finally:
        for one in started:
            one.cancel()
        found = await asyncio.gather(*started, return_exceptions=True)
        living = [actor.process for actor in found if isinstance(actor, DemoWorker)]
        await asyncio.gather(*(worker_processes.end_worker(process) for process in living))


async def _submit(session: Services) -> JobRow:
    document = {
        "name": TITLE,
        "tasks": [
            {
                "taskId": key,
                "name": "python",
                "dependsOn": list(parents),
                "queue": worker_processes.QUEUE,
                "input": {"function": f"{_FUNCTIONS}:{function}", "kwargs": given},
            }
            for key, function, parents, given in _TASKS
        ],
    }
    request_id = session.transitions.new_id()
    accepted = await session.producer.submit(session.settings.tenant, request_id, document)
    return accepted.job


def _depths() -> dict[str, int]:
    depths: dict[str, int] = {}
    for key, _, parents, _ in _TASKS:
        depths[key] = max((depths[parent] + 1 for parent in parents), default=0)
    return depths


class _Scenario:
    """Shows what happens, and makes one thing happen."""

    def __init__(self, session: Services, job: JobRow, workers: list[DemoWorker]) -> None:
        self._session = session
        self._job = job
        self._workers = workers
        self._reader = FrameReader(session, job, _depths())
        for actor in workers:
            self._reader.name_worker(actor.id, actor.name)
        self._notes: list[DemoNote] = []
        self.killed_worker: DemoWorker | None = None
        self._killed_at: datetime | None = None
        self._taken_over = False

    async def run(self, view: DemoView) -> None:
        """Until the job has ended, or it takes too long."""
        clock = self._session.backend.clock
        end = clock.elapsed() + _TIME_LIMIT
        while True:
            await self._kill_worker()
            await self._note_recovery()
            workers = [(one.name, one.process.pid, not one.killed) for one in self._workers]
            scene = await self._reader.read_frame(self._notes, workers)
            view.show(scene)
            if scene.state.terminal or clock.elapsed() > end:
                return
            await clock.sleep(_FRAME_INTERVAL)

    async def _kill_worker(self) -> None:
        """Kill whoever runs the victim's task, once it is in the middle of it."""
        if self.killed_worker is not None:
            return
        for row in await self._reader.rows():
            if row.spec.key != _KILL_DURING or row.lease is None:
                continue
            if not (await self._reader.read_last_line(row.id)).startswith(_KILL_AT_LINE):
                continue
            holder = row.lease.worker_id
            self.killed_worker = next(actor for actor in self._workers if actor.id == holder)
            self._killed_at = self._session.backend.clock.now()
            self.killed_worker.kill()
            text = f"killed {self.killed_worker.name} with SIGKILL in the middle of {_KILL_DURING}"
            self._notes.append(DemoNote(text=text, good=False))

    async def _note_recovery(self) -> None:
        if self.killed_worker is None or self._taken_over:
            return
        for row in await self._reader.rows():
            again = row.spec.key == _KILL_DURING and row.attempt > 1
            if again and row.state in (TaskState.PROCESSING, TaskState.COMPLETED):
                self._taken_over = True
                other = next(actor for actor in self._workers if actor is not self.killed_worker)
                after = formats.duration_text((await self.report()).recovery)
                text = f"{other.name} took over {after} later, after the last step that was kept"
                self._notes.append(DemoNote(text=text, good=True))

    async def report(self) -> DemoReport:
        """What the events say so far."""
        queries = self._session.queries
        items = queries.follow_job(
            self._job,
            queries.job_feed(self._job, tasks=True),
            FeedCursor(),
            follow=False,
            poll=timedelta(0),
        )
        return report_of(
            [item[1] async for item in items if isinstance(item, tuple)],
            total=self._job.total,
            killed_worker_id=self.killed_worker.id if self.killed_worker else "",
            killed_at=self._killed_at,
        )


def _print_report(report: DemoReport, scenario: _Scenario) -> None:
    recovery = f"{formats.duration_text(report.recovery)} from the kill to the next attempt"
    print("\nRead from the recorded events:")
    print_pairs(
        [
            ("tasks completed", f"{report.completed} of {report.total}"),
            ("lost", str(report.lost)),
            ("run to completion twice", str(report.completed_twice)),
            ("gaps in the history", str(report.gaps)),
            (
                "workers killed",
                "1 with SIGKILL" if scenario.killed_worker else "none: it was never reached",
            ),
            ("recovered", recovery if report.recovery is not None else "never"),
        ]
    )


def _print_next_steps(job: JobRow, folder: Path | None) -> None:
    print("\nNext:")
    print_pairs(
        [
            ("your own command", "longshore run -- sh -c 'echo hello; sleep 1; echo done'"),
            ("your own job", "longshore submit --help"),
            ("this job", f"longshore events {job.id} --all --data-dir {folder}" if folder else ""),
        ]
    )
