"""A submitted job: wait, results, output, events, cancel, resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar, overload

from longshore.core.events.event import Event
from longshore.core.tasks.states import JobState, TaskState
from longshore.core.text.durations import parse_duration
from longshore.errors import TaskCancelledError, TaskFailedError, UsageError
from longshore.interfaces.python.calls import Call, CallGraph
from longshore.interfaces.python.connection import (
    Connection,
    JobOutputChunk,
    JobStatus,
    TaskOutcome,
)

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")
AnyT = TypeVar("AnyT")

Timeout = str | float | timedelta | None
"""How long to wait, like ``5m``, a timedelta, or seconds; None: for ever."""

_FIRST_POLL = timedelta(milliseconds=5)
_MAX_POLL = timedelta(milliseconds=100)
_SHOWN_KEYS = 5


class AsyncJob(Generic[ResultT]):
    """A job of a client; usable while the client is open."""

    def __init__(
        self,
        connection: Callable[[], Connection],
        job_id: str,
        request_id: str,
        *,
        created: bool = False,
        graph: CallGraph | None = None,
        single: bool = False,
    ) -> None:
        self.id = job_id
        self.request_id = request_id
        self.created = created  # False: the request id was submitted before
        self._connection = connection
        self._graph = graph
        self._single = single

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def key_of(self, task: str | Call[Any]) -> str:
        """The key of a task in this job.

        Raises:
            UsageError: the call is not one of this job.
        """
        if isinstance(task, str):
            return task
        if self._graph is None or task not in self._graph.keys:
            message = f"{task!r} is not a task of {self.id}"
            raise UsageError(message)
        return self._graph.keys[task]

    async def status(self) -> JobStatus:
        """The job and each of its tasks as they are now."""
        return await self._connection().status(self.id)

    async def wait(self, timeout: Timeout = None) -> JobState:
        """Wait until the job has ended, in any state.

        Raises:
            TimeoutError: it has not ended within ``timeout``.
        """
        return await self._with_timeout(timeout, self._poll_until_ended)

    async def _poll_until_ended(self) -> JobState:
        async def look() -> JobState | None:
            state = (await self._connection().job(self.id)).state
            return state if state.terminal else None

        return await self._poll(look)

    async def _poll(self, look: Callable[[], Awaitable[AnyT | None]]) -> AnyT:
        """The first result of ``look`` that is not None."""
        pause = _FIRST_POLL
        while (result := await look()) is None:
            await self._connection().services.backend.clock.sleep(pause)
            pause = min(pause * 2, _MAX_POLL)
        return result

    async def _with_timeout(self, timeout: Timeout, work: Callable[[], Awaitable[AnyT]]) -> AnyT:
        if timeout is None:
            return await self._connection().while_worker_runs(work())
        limit = parse_duration(timeout)
        try:
            async with asyncio.timeout(limit.total_seconds()):
                return await self._connection().while_worker_runs(work())
        except TimeoutError:
            message = f"{self.id} has not ended within {timeout}"
            raise TimeoutError(message) from None

    @overload
    async def result(self, *, timeout: Timeout = ...) -> ResultT: ...
    @overload
    async def result(self, task: Call[OtherT], *, timeout: Timeout = ...) -> OtherT: ...
    @overload
    async def result(self, task: str, *, timeout: Timeout = ...) -> Any: ...
    async def result(self, task: str | Call[Any] | None = None, *, timeout: Timeout = None) -> Any:
        """Wait for the job's result: that of the call, or a list for several calls.

        Args:
            task: Any task of the job, by its call or key, instead of the last one.

        Raises:
            TaskFailedError: a task failed, so there will be no result.
            TimeoutError: there is no result within ``timeout``.
        """
        return await self._with_timeout(timeout, lambda: self._result(task))

    async def _result(self, task: str | Call[Any] | None) -> Any:
        if task is not None:
            return await self._result_of(self.key_of(task))
        if self._graph is None:
            return await self._result_of(await self._final_key())
        values = [await self._result_of(self._graph.keys[call]) for call in self._graph.requested]
        return values[0] if self._single else values

    async def _final_key(self) -> str:
        keys = await self._connection().task_keys(self.id)
        last = [key for key, has_dependents in keys.items() if not has_dependents]
        if len(last) > 1:
            named = ", ".join(last[:_SHOWN_KEYS]) + (" …" if len(last) > _SHOWN_KEYS else "")
            message = f"{self.id} ends in {len(last)} tasks ({named}): name one, or use results()"
            raise UsageError(message)
        return last[0]

    async def _result_of(self, key: str) -> Any:
        async def look() -> TaskOutcome | None:
            # The job is read first: if it has ended, a task that has not ended never will.
            over = (await self._connection().job(self.id)).state.terminal
            outcome = await self._connection().outcome(self.id, key)
            return outcome if over or outcome.status.state.terminal else None

        return await self._value_or_raise(key, await self._poll(look))

    async def _value_or_raise(self, key: str, outcome: TaskOutcome) -> Any:
        if outcome.status.state is TaskState.COMPLETED:
            task = self._graph.tasks.get(key) if self._graph else None
            return outcome.value if task is None else task.load_result(outcome.value)
        if not outcome.status.state.terminal:
            # The task waits behind another one that failed: report that one.
            failed = await self._connection().first_failed_key(self.id)
            outcome = await self._connection().outcome(self.id, failed or key)
        raise self._error(outcome)

    def _error(self, outcome: TaskOutcome) -> TaskFailedError:
        status = outcome.status
        see = self._connection().command_hint("logs", status.id)
        if status.state is TaskState.CANCELLED:
            message = f"cancelled by {outcome.cancelled_by or 'user'}"
            return TaskCancelledError(status.id, "cancelled", message, see)
        return TaskFailedError(
            status.id, status.category or "unknown", status.error or "failed", see
        )

    async def results(self, timeout: Timeout = None) -> dict[str, Any]:
        """The results of all tasks by their keys, when the job has ended.

        Raises:
            TaskFailedError: the job has not completed; it names the first task that failed.
            TimeoutError: the job has not ended within ``timeout``.
        """
        if await self.wait(timeout) is not JobState.COMPLETED:
            failed = await self._connection().first_failed_key(self.id)
            if failed is not None:
                raise self._error(await self._connection().outcome(self.id, failed))
        return {
            key: await self._result_of(key) for key in await self._connection().task_keys(self.id)
        }

    def output(
        self, task: str | Call[Any] | None = None, *, follow: bool = True
    ) -> AsyncIterator[JobOutputChunk]:
        """The output of the tasks, or of one, so far, and then new output until the job ends.

        Args:
            follow: False: only the output so far.
        """
        key = None if task is None else self.key_of(task)
        return self._connection().output(self.id, key=key, follow=follow)

    def events(self, *, follow: bool = False) -> AsyncIterator[Event]:
        """The events of the job and its tasks, in the order of recording.

        Args:
            follow: Continue with new events until the job has ended.
        """
        return self._connection().events(self.id, follow=follow)

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel the job: waiting tasks at once, running tasks as soon as they are stopped.

        Raises:
            CommandRefused: the job has ended.
        """
        await self._connection().operations.cancel_job(self.id, reason=reason)

    async def resume(self, *tasks: str | Call[Any]) -> list[str]:
        """Run tasks that failed or were cancelled again, all of them if none is named.

        Completed tasks do not run again. Returns the keys of those that run again.

        Raises:
            CommandRefused: none of them can be resumed.
        """
        keys = [self.key_of(task) for task in tasks]
        return await self._connection().resume(self.id, keys)
