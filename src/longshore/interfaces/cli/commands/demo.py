"""``longshore demo``: a job of five tasks, two workers, and the crash of one worker.

Only the crash is arranged. The workers are real processes, the signal is a real SIGKILL, and the
result is counted from the recorded events.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.events.types import EVENT_TO_STATE
from longshore.core.ids import split_task_id
from longshore.core.tasks.states import TaskState
from longshore.core.text.sanitise import safe_excerpt
from longshore.errors import BackendUnavailable
from longshore.interfaces.cli.client import ApiClient, EntityRef, open_command_services
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.options import GlobalOptions, command
from longshore.interfaces.cli.render import formats, screen
from longshore.interfaces.cli.render.event_text import parse_event
from longshore.interfaces.cli.signals import handle_signals
from longshore.interfaces.cli.supervisor import LocalWorkerProcess
from longshore.services.resilience import race
from longshore.settings import Settings, child_environment, load_settings

_NAME = "nightly report"
_QUEUE = "demo"
_FUNCTIONS = "longshore.execution.runners.demo_tasks"
_TASKS: list[dict[str, Any]] = [
    {
        "taskId": key,
        "name": "python",
        "dependsOn": dependencies,
        "queue": _QUEUE,
        "input": {"function": f"{_FUNCTIONS}:{function}", "kwargs": arguments},
    }
    for key, function, dependencies, arguments in (
        ("fetch-a", "fetch", [], {"source": "a", "pages": 4}),
        ("fetch-b", "fetch", [], {"source": "b", "pages": 5}),
        ("merge", "merge", ["fetch-a", "fetch-b"], {}),
        ("analyse", "analyse", ["merge"], {}),
        ("publish", "publish", ["analyse"], {}),
    )
]
# The worker of this task is killed when two of its four steps are stored.
_KILLED_TASK, _KILL_AT_LINE = "analyse", "[3/4]"
_START_TIMEOUT_S = 30
_TIME_LIMIT_S = 90
_GRACE_S = 1.0
_FRAMES_PER_SECOND = 8


@command(("longshore demo", "takes about 15 seconds"), output=False)
async def demo(options: GlobalOptions) -> int:
    """Watch a job of five tasks survive the crash of a worker.

    Starts two workers in a temporary folder and kills one of them in the middle of a task. The
    recorded events then show whether anything was lost or done twice. Needs no account and no
    configuration, and leaves nothing behind. Exits with 1 if anything was lost or done twice.
    """
    folder = options.data_dir or Path(tempfile.mkdtemp(prefix="longshore-demo-"))
    running = asyncio.create_task(_run(options, folder.absolute()))
    # Once: a second signal must not interrupt the end of the workers.
    handle_signals(lambda _: None if running.cancelling() else running.cancel())
    try:
        return await running
    except asyncio.CancelledError:
        print_stderr("longshore: demo stopped; its workers have been ended")
        return ExitCode.INTERRUPTED
    finally:
        if options.data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


async def _run(options: GlobalOptions, folder: Path) -> int:
    # The defaults alone: environment and files do not change the demo.
    settings = load_settings({"data_dir": folder}, environ={}, cwd=folder)
    print(f"{_NAME}: five tasks, two workers, one of them about to be killed", flush=True)
    async with open_command_services(settings) as services, _running_workers(folder) as workers:
        client = ApiClient(options, services.application(), "of the demo", services.now)
        job_id = (await client.app.submit({"name": _NAME, "tasks": _TASKS})).job_id
        scenario = _Scenario(client, EntityRef(job_id), workers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIME_LIMIT_S):
                await scenario.run()
    report = report_of(scenario.events, total=len(_TASKS), killed=scenario.killed)
    recovery = f"{formats.duration_text(report.recovery)} from the kill to the next attempt"
    print("\nCounted from the recorded events:")
    screen.print_pairs(
        tasks_completed=f"{report.completed} of {report.total}",
        lost=str(report.lost),
        completed_twice=str(report.completed_twice),
        gaps_in_the_history=str(report.gaps),
        workers_killed="1 with SIGKILL" if scenario.killed else "none",
        recovered=recovery if report.recovery is not None else "never",
    )
    print("\nNext:")
    screen.print_pairs(
        your_own_command="longshore run -- sh -c 'echo hello; sleep 1; echo done'",
        your_own_job="longshore submit --help",
        this_job=""
        if options.data_dir is None
        else f"longshore events {job_id} --all --data-dir {folder}",
    )
    return ExitCode.OK if report.good else ExitCode.FAILED


class _DemoWorker:
    """A process of ``longshore worker``."""

    def __init__(self, number: int, folder: Path) -> None:
        self.name = f"worker {number}"
        self.alive = True
        self._serving = asyncio.Event()
        self._last_line = ""
        self.process = LocalWorkerProcess(
            [f"--data-dir={folder}", f"--queue={_QUEUE}", "--concurrency=1"],
            on_message=lambda _: self._serving.set(),
            on_line=self._on_line,
            environment=child_environment(Settings()),
            folder=folder,
        )

    def _on_line(self, line: str) -> None:
        self._last_line = line

    async def started(self) -> None:
        """Wait until the worker runs.

        Raises:
            BackendUnavailable: it did not start.
        """
        async with asyncio.timeout(_START_TIMEOUT_S):
            async with race(self._serving.wait(), self.process.ended):
                if not self._serving.is_set():
                    raise BackendUnavailable(f"a worker did not start: {self._last_line}")

    async def end(self) -> None:
        """Let the worker release its tasks; kill it if that takes too long."""
        for stop in (self.process.request_stop, self.process.request_stop, self.process.kill):
            stop()
            await asyncio.wait([self.process.ended], timeout=_GRACE_S)
            if self.process.ended.done():
                return


@contextlib.asynccontextmanager
async def _running_workers(folder: Path) -> AsyncIterator[dict[int, _DemoWorker]]:
    """Two workers by the ids of their processes."""
    workers: list[_DemoWorker] = []
    try:
        workers += [_DemoWorker(number, folder) for number in (1, 2)]
        await asyncio.gather(*(worker.started() for worker in workers))
        yield {worker.process.process_id: worker for worker in workers}
    finally:
        await asyncio.gather(*(worker.end() for worker in workers))


@dataclass(slots=True)
class _TaskLine:
    """What is shown of a task."""

    state: TaskState = TaskState.WAITING
    attempt: int = 0
    worker: str = ""
    duration: str = ""
    output: str = ""


class _Scenario:
    """Follows the events and the output of the job, kills a worker, and shows both."""

    def __init__(self, client: ApiClient, job: EntityRef, workers: dict[int, _DemoWorker]) -> None:
        self._client = client
        self._job = job
        self._workers = workers
        self._started = client.now()
        self._screen = screen.console(moves_cursor=True)
        self._lines = {task["taskId"]: _TaskLine() for task in _TASKS}
        self._notes: list[Text] = []
        # The last start of the task whose worker is killed.
        self._target: e.TaskProcessingStarted | None = None
        self.events: list[Event] = []
        self.killed: tuple[str, datetime] | None = None  # id of the worker, time

    async def run(self) -> None:
        """Show the job until it has ended."""
        live: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if self._screen.is_terminal:
            live = Live(
                get_renderable=self._picture,
                console=self._screen,
                refresh_per_second=_FRAMES_PER_SECOND,
            )
        with live:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_events())
                group.create_task(self._follow_output())

    async def _follow_events(self) -> None:
        async for document in self._client.events(self._job, include_tasks=True, follow=True):
            event = parse_event(document)
            self.events.append(event)
            if key := split_task_id(event.entity_id)[1]:
                self._on_event(key, event)

    async def _follow_output(self) -> None:
        async for chunk in self._client.output(self._job, follow=True, attempt=None):
            for line in chunk.text.strip().splitlines()[-1:]:
                self._lines[chunk.task_id].output = safe_excerpt(line, limit=60)
                if chunk.task_id == _KILLED_TASK and line.startswith(_KILL_AT_LINE):
                    self._kill_worker()

    def _on_event(self, key: str, event: Event) -> None:
        line = self._lines[key]
        line.state = EVENT_TO_STATE.get(event.type, line.state)
        match event.body:
            case e.TaskProcessingStarted(process_id=process_id, attempt_number=attempt) as start:
                line.worker, line.attempt = self._workers[process_id].name, attempt
                self._print(f"{key:9}  runs on {line.worker}, attempt {attempt}")
                if key == _KILLED_TASK:
                    self._target = start
                    if self.killed is not None:
                        after = formats.duration_text(event.at - self.killed[1])
                        text = f"{line.worker} took over {after} later, after the last stored step"
                        self._note(text, "green")
            case e.TaskCompleted(duration=duration):
                line.duration = formats.duration_text(duration)
                self._print(f"{key:9}  completed by {line.worker} in {line.duration}")

    def _kill_worker(self) -> None:
        if self.killed is None and self._target is not None:
            worker = self._workers[self._target.process_id]
            self.killed = self._target.worker_id, self._client.now()
            worker.process.kill()
            worker.alive = False
            self._note(f"killed {worker.name} with SIGKILL in the middle of {_KILLED_TASK}", "red")

    def _note(self, text: str, colour: str) -> None:
        self._notes.append(Text(text, style=f"bold {colour}"))
        self._print(text)

    def _print(self, text: str) -> None:
        if not self._screen.is_terminal:
            elapsed = (self._client.now() - self._started).total_seconds()
            print(f"{elapsed:5.1f} s  {text}", flush=True)

    def _picture(self) -> Group:
        table = Table.grid(padding=(0, 2, 0, 0))
        for width in (9, 12, 8, 9):
            table.add_column(width=width, no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for key, line in self._lines.items():
            again = f" (attempt {line.attempt})" if line.attempt > 1 else ""
            output = Text(line.output + again, style="dim")
            table.add_row(key, screen.state_text(line.state), line.duration, line.worker, output)
        workers = Text()
        for worker in self._workers.values():
            state = "running" if worker.alive else "killed"
            text = f"{worker.name}: process {worker.process.process_id} {state}   "
            workers.append(text, "" if worker.alive else "red")
        completed = sum(line.state is TaskState.COMPLETED for line in self._lines.values())
        elapsed = formats.duration_text(self._client.now() - self._started)
        title = Text(f"{_NAME}  {completed} of {len(self._lines)}  {elapsed}", style="bold")
        return Group(title, Text(), table, Text(), workers, *self._notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The result of the job, counted from its events."""

    total: int
    completed: int
    completed_twice: int
    gaps: int  # missing or repeated sequence numbers of any entity
    recovery: timedelta | None  # from the kill to the next attempt; None: there was none

    @property
    def lost(self) -> int:
        return self.total - self.completed

    @property
    def good(self) -> bool:
        return not (self.lost or self.completed_twice or self.gaps) and self.recovery is not None


def report_of(
    events: Sequence[Event], *, total: int, killed: tuple[str, datetime] | None
) -> DemoReport:
    """Count the completed tasks, and find the attempt that took over after the kill.

    Args:
        killed: Id of the worker that was killed, and when.
    """
    ends = Counter(event.entity_id for event in events if isinstance(event.body, e.TaskCompleted))
    seen: Counter[str] = Counter()
    gaps = 0
    for event in events:
        seen[event.entity] += 1
        gaps += event.sequence != seen[event.entity]
    killed_worker, killed_at = killed or (None, datetime.max.replace(tzinfo=UTC))
    starts = [
        (event.entity_id, event.at, event.body.worker_id)
        for event in events
        if isinstance(event.body, e.TaskProcessingStarted)
    ]
    affected = {task_id for task_id, _, worker_id in starts if worker_id == killed_worker}
    takeovers = [
        at - killed_at
        for task_id, at, worker_id in starts
        if task_id in affected and worker_id != killed_worker and at >= killed_at
    ]
    return DemoReport(
        total=total,
        completed=len(ends),
        completed_twice=sum(count > 1 for count in ends.values()),
        gaps=gaps,
        recovery=min(takeovers, default=None),
    )
