"""``longshore.testing.run``: a job from its first task to its last, inside a test.

The real services on the memory backend, with a clock that leaps over every wait: backoff and delays
of hours take no time. Functions are called in the test's own thread; no process is started and
nothing is left on disk. What needs a process (limits of time and memory, kills, commands) does not
happen here.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.core.events.event import Event
from longshore.core.rows import TaskRow
from longshore.core.states import JobState, TaskState
from longshore.errors import TaskFailed, UsageError
from longshore.interfaces.python.calls import Call, CallGraph
from longshore.interfaces.python.functions import TaskFunction
from longshore.testing.clock import FakeClock
from longshore.testing.inprocess import InProcessRunner
from longshore.testing.inprocess_stage import InProcessStage


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a job, by task key."""

    state: JobState
    wanted: str | tuple[str, ...]  # the task whose result was asked for, or several
    results: dict[str, Any]  # of the tasks that completed
    attempts: dict[str, int]
    output: dict[str, str]  # all that a task printed, in all its attempts
    errors: dict[str, BaseException]  # what a task raised last, if it raised anything
    events: list[Event] = field(repr=False)
    elapsed: timedelta  # how long it would have waited
    tasks: dict[str, TaskRow] = field(repr=False)

    @property
    def result(self) -> Any:
        """The result of the call, or a list for several; of a document, of what it ends in.

        Raises:
            TaskFailed: there is none; its cause is what the task raised.
        """
        if isinstance(self.wanted, str):
            return self._result_of(self.wanted)
        return [self._result_of(key) for key in self.wanted]

    def _result_of(self, key: str) -> Any:
        if key in self.results:
            return self.results[key]
        failed = (row for row in self.tasks.values() if row.state is TaskState.FAILED)
        row = next(failed, self.tasks[key])
        if row.failure is None:
            message = f"{key!r} has no result: it is {row.state.replace('_', ' ')}"
            raise UsageError(message)
        cause, see = self.errors.get(row.spec.key), f".output[{row.spec.key!r}]"
        raise TaskFailed(row.id, row.failure.category.value, row.failure.message, see) from cause


def run(
    work: Call[Any] | Sequence[Call[Any]] | Mapping[str, Any],
    *,
    instead: Mapping[str, Callable[..., Any]] | None = None,
    fails: Mapping[str, Sequence[Exception]] | None = None,
) -> Ran:
    """Run a job to its end, here and now.

    Args:
        work: A call, several calls, or a document as in a job file.
        instead: Functions to call in place of the real ones, by task key.
        fails: What the first attempts of a task raise, by task key; then it goes on as it is.

    Raises:
        InvalidJob: the document is none.
        UsageError: ``instead`` or ``fails`` names a task that is not there.
    """
    play = _Play(work, instead or {}, fails or {})
    if not _loop_runs_here():
        return play.ran()
    # In a thread of its own: where one event loop runs, no async function can have another.
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(play.ran).result()


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Play:
    """One run: the services in a thread of their own, the functions in the one that asks."""

    def __init__(
        self,
        work: Call[Any] | Sequence[Call[Any]] | Mapping[str, Any],
        instead: Mapping[str, Callable[..., Any]],
        fails: Mapping[str, Sequence[Exception]],
    ) -> None:
        self._document: Any = work
        self._graph: CallGraph | None = None
        self._single = isinstance(work, Call)
        if not isinstance(work, Mapping):
            self._graph = CallGraph.of([work] if isinstance(work, Call) else work)
            self._document = self._graph.document()
        self._instead = instead
        self._fails = fails

    def ran(self) -> Ran:
        """Carry out attempts until the services say that nothing follows."""
        stage: Future[InProcessStage] = Future()
        ended: Future[Ran] = Future()
        with tempfile.TemporaryDirectory(prefix="longshore-") as folder:
            serving = threading.Thread(target=self._serve, args=(Path(folder), stage, ended))
            serving.start()
            try:
                line = stage.result().runner.line
                while (attempt := line.get()) is not None:
                    attempt.carry_out()
            except BaseException:
                # No failure of the task: an interrupt, or the test's own way to end.
                stage.result().give_up()
                raise
            finally:
                serving.join()
        return ended.result()

    def _serve(self, folder: Path, ready: Future[InProcessStage], ended: Future[Ran]) -> None:
        async def served() -> Ran:
            stage = InProcessStage(lambda clock: self._runner(folder, clock))
            ready.set_result(stage)
            try:
                return await self._served(stage)
            finally:
                stage.runner.line.put(None)

        try:
            ended.set_result(asyncio.run(served()))
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            (ended if ready.done() else ready).set_exception(error)

    def _runner(self, folder: Path, clock: FakeClock) -> InProcessRunner:
        tasks = {task.name: task for task in self._tasks.values()}
        return InProcessRunner(folder, clock, tasks=tasks, instead=self._instead, fails=self._fails)

    @property
    def _tasks(self) -> dict[str, TaskFunction[..., Any, Any]]:
        return self._graph.tasks if self._graph else {}

    async def _served(self, stage: InProcessStage) -> Ran:
        functions = dict.fromkeys(self._tasks.values())
        definitions = [task.definition(run_here=True) for task in functions]
        job_id = await stage.submit(self._document, definitions)
        self._refuse_strangers({row.spec.key for row in await stage.tasks(job_id)})
        await stage.to_the_end(job_id)
        rows = {row.spec.key: row for row in await stage.tasks(job_id)}
        return Ran(
            state=(await stage.job(job_id)).state,
            wanted=await self._wanted(stage, job_id),
            results={
                key: await self._result(stage, row)
                for key, row in rows.items()
                if row.state is TaskState.COMPLETED
            },
            attempts={key: row.attempt for key, row in rows.items()},
            output={key: await stage.output(row) for key, row in rows.items()},
            errors=stage.runner.errors,
            events=await stage.events(job_id),
            elapsed=stage.clock.elapsed(),
            tasks=rows,
        )

    def _refuse_strangers(self, keys: set[str]) -> None:
        if strangers := {*self._instead, *self._fails} - keys:
            message = f"the job has no task {min(strangers)!r}, but {', '.join(sorted(keys))}"
            raise UsageError(message)

    async def _result(self, stage: InProcessStage, row: TaskRow) -> Any:
        value, task = await stage.value(row), self._tasks.get(row.spec.key)
        return value if task is None else task.result_from(value)

    async def _wanted(self, stage: InProcessStage, job_id: str) -> str | tuple[str, ...]:
        if self._graph is not None:
            keys = tuple(self._graph.keys[call] for call in self._graph.wanted)
            return keys[0] if self._single else keys
        graph = await stage.graph(job_id)
        above = {number for parents in graph.parents for number in parents}
        last = tuple(key for number, key in enumerate(graph.keys) if number not in above)
        return last[0] if len(last) == 1 else last
