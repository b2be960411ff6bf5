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
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import TaskFailedError, UsageError
from longshore.interfaces.python.calls import Call, CallGraph
from longshore.interfaces.python.functions import TaskFunction
from longshore.testing.clock import FakeClock
from longshore.testing.inprocess import InProcessRunner
from longshore.testing.inprocess_services import InProcessServices


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What came of a job, by task key."""

    state: JobState
    result_keys: str | tuple[str, ...]  # the task whose result was asked for, or several
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
            TaskFailedError: there is none; its cause is what the task raised.
        """
        if isinstance(self.result_keys, str):
            return self._result_of(self.result_keys)
        return [self._result_of(key) for key in self.result_keys]

    def _result_of(self, key: str) -> Any:
        if key in self.results:
            return self.results[key]
        failed = (row for row in self.tasks.values() if row.state is TaskState.FAILED)
        row = next(failed, self.tasks[key])
        if row.failure is None:
            message = f"{key!r} has no result: it is {row.state.replace('_', ' ')}"
            raise UsageError(message)
        cause, see = self.errors.get(row.spec.key), f".output[{row.spec.key!r}]"
        raise TaskFailedError(
            row.id, row.failure.category.value, row.failure.message, see
        ) from cause


def run(
    work: Call[Any] | Sequence[Call[Any]] | Mapping[str, Any],
    *,
    replacements: Mapping[str, Callable[..., Any]] | None = None,
    failures: Mapping[str, Sequence[Exception]] | None = None,
) -> RunResult:
    """Run a job to its end, here and now.

    Args:
        work: A call, several calls, or a document as in a job file.
        instead: Functions to call in place of the real ones, by task key.
        fails: What the first attempts of a task raise, by task key; later attempts run normally.

    Raises:
        InvalidJob: the document is none.
        UsageError: ``instead`` or ``fails`` names a task that is not there.
    """
    job_run = _JobRun(work, replacements or {}, failures or {})
    if not _in_event_loop():
        return job_run.execute()
    # In a thread of its own: where one event loop runs, no async function can have another.
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(job_run.execute).result()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _JobRun:
    """One run: the services in a thread of their own, the functions in the one that asks."""

    def __init__(
        self,
        work: Call[Any] | Sequence[Call[Any]] | Mapping[str, Any],
        replacements: Mapping[str, Callable[..., Any]],
        failures: Mapping[str, Sequence[Exception]],
    ) -> None:
        self._document: Any = work
        self._graph: CallGraph | None = None
        self._single = isinstance(work, Call)
        if not isinstance(work, Mapping):
            self._graph = CallGraph.from_calls([work] if isinstance(work, Call) else work)
            self._document = self._graph.document()
        self._replacements = replacements
        self._failures = failures

    def execute(self) -> RunResult:
        """Carry out attempts until the services say that nothing follows."""
        services: Future[InProcessServices] = Future()
        ended: Future[RunResult] = Future()
        with tempfile.TemporaryDirectory(prefix="longshore-") as folder:
            serving = threading.Thread(
                target=self._run_services, args=(Path(folder), services, ended)
            )
            serving.start()
            try:
                line = services.result().runner.attempts
                while (attempt := line.get()) is not None:
                    attempt.execute()
            except BaseException:
                # No failure of the task: an interrupt, or the test's own way to end.
                services.result().abort()
                raise
            finally:
                serving.join()
        return ended.result()

    def _run_services(
        self, folder: Path, ready: Future[InProcessServices], ended: Future[RunResult]
    ) -> None:
        async def served() -> RunResult:
            services = InProcessServices(lambda clock: self._runner(folder, clock))
            ready.set_result(services)
            try:
                return await self._run_job(services)
            finally:
                services.runner.attempts.put(None)

        try:
            ended.set_result(asyncio.run(served()))
        except BaseException as error:  # noqa: BLE001 - passed to the waiting caller
            (ended if ready.done() else ready).set_exception(error)

    def _runner(self, folder: Path, clock: FakeClock) -> InProcessRunner:
        tasks = {task.name: task for task in self._tasks.values()}
        return InProcessRunner(
            folder, clock, tasks=tasks, replacements=self._replacements, failures=self._failures
        )

    @property
    def _tasks(self) -> dict[str, TaskFunction[..., Any, Any]]:
        return self._graph.tasks if self._graph else {}

    async def _run_job(self, services: InProcessServices) -> RunResult:
        functions = dict.fromkeys(self._tasks.values())
        definitions = [task.definition(in_process=True) for task in functions]
        job_id = await services.submit(self._document, definitions)
        self._refuse_unknown_keys({row.spec.key for row in await services.tasks(job_id)})
        await services.run_to_end(job_id)
        rows = {row.spec.key: row for row in await services.tasks(job_id)}
        return RunResult(
            state=(await services.job(job_id)).state,
            result_keys=await self._result_keys(services, job_id),
            results={
                key: await self._result(services, row)
                for key, row in rows.items()
                if row.state is TaskState.COMPLETED
            },
            attempts={key: row.attempt for key, row in rows.items()},
            output={key: await services.output(row) for key, row in rows.items()},
            errors=services.runner.errors,
            events=await services.events(job_id),
            elapsed=services.clock.elapsed(),
            tasks=rows,
        )

    def _refuse_unknown_keys(self, keys: set[str]) -> None:
        if unknown := {*self._replacements, *self._failures} - keys:
            message = f"the job has no task {min(unknown)!r}, but {', '.join(sorted(keys))}"
            raise UsageError(message)

    async def _result(self, services: InProcessServices, row: TaskRow) -> Any:
        value, task = await services.result_of(row), self._tasks.get(row.spec.key)
        return value if task is None else task.load_result(value)

    async def _result_keys(self, services: InProcessServices, job_id: str) -> str | tuple[str, ...]:
        if self._graph is not None:
            keys = tuple(self._graph.keys[call] for call in self._graph.requested)
            return keys[0] if self._single else keys
        graph = await services.graph(job_id)
        above = {number for parents in graph.parents for number in parents}
        last = tuple(key for number, key in enumerate(graph.keys) if number not in above)
        return last[0] if len(last) == 1 else last
