"""A submitted job, as its client sees it: wait, results, output, events, cancel, resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar, overload

from longshore.core.events.event import Event
from longshore.core.states import JobState, TaskState
from longshore.durations import parse_duration
from longshore.errors import TaskCancelled, TaskFailed, UsageError
from longshore.interfaces.python.calls import Call, CallGraph
from longshore.interfaces.python.embedded import Embedded, Submitted
from longshore.interfaces.python.status import JobStatus, Outcome, Output

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")
AnyT = TypeVar("AnyT")

Patience = str | float | timedelta | None
"""How long to wait, like ``5m``, a timedelta, or seconds; None: for ever."""

_FIRST_LOOK = timedelta(milliseconds=5)
_LOOK_EVERY = timedelta(milliseconds=100)
_SHOWN = 5
_USER = "user"


class AsyncJob(Generic[ResultT]):
    """A job of a client; usable while the client is open."""

    def __init__(
        self,
        door: Callable[[], Embedded],
        submitted: Submitted,
        graph: CallGraph | None = None,
        *,
        single: bool = False,
    ) -> None:
        self.id = submitted.job_id
        self.request_id = submitted.request_id
        self.created = submitted.created  # False: the same request had been accepted before
        self._door = door
        self._graph = graph
        self._single = single

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def key_of(self, task: str | Call[Any]) -> str:
        """What a task is called inside this job.

        Raises:
            UsageError: the call is not one of this job.
        """
        if isinstance(task, str):
            return task
        if self._graph is None or task not in self._graph.keys:
            message = f"{task!r} is no task of {self.id}"
            raise UsageError(message)
        return self._graph.keys[task]

    async def status(self) -> JobStatus:
        """The job and each of its tasks as they are now."""
        return await self._door().status(self.id)

    async def wait(self, timeout: Patience = None) -> JobState:
        """Return when the job has ended, whichever way.

        Raises:
            TimeoutError: it has not within ``timeout``.
        """
        return await self._within(timeout, self._until_the_end)

    async def _until_the_end(self) -> JobState:
        pause = _FIRST_LOOK
        while not (state := await self._door().state(self.id)).terminal:
            await self._door().pause(pause)
            pause = min(pause * 2, _LOOK_EVERY)
        return state

    async def _within(self, timeout: Patience, work: Callable[[], Awaitable[AnyT]]) -> AnyT:
        if timeout is None:
            return await self._door().attended(work())
        patience = parse_duration(timeout)
        try:
            async with asyncio.timeout(patience.total_seconds()):
                return await self._door().attended(work())
        except TimeoutError:
            message = f"{self.id} has not ended within {timeout}"
            raise TimeoutError(message) from None

    @overload
    async def result(self, *, timeout: Patience = ...) -> ResultT: ...
    @overload
    async def result(self, of: Call[OtherT], *, timeout: Patience = ...) -> OtherT: ...
    @overload
    async def result(self, of: str, *, timeout: Patience = ...) -> Any: ...
    async def result(self, of: str | Call[Any] | None = None, *, timeout: Patience = None) -> Any:
        """The job's result, as soon as it is there: that of the call, or a list for several calls.

        Args:
            of: One task of the job, by its call or key, instead; it need not be the last.

        Raises:
            TaskFailed: there will be none; it names the task that failed.
            TimeoutError: it is not there within ``timeout``.
        """
        return await self._within(timeout, lambda: self._result(of))

    async def _result(self, of: str | Call[Any] | None) -> Any:
        if of is not None:
            return await self._result_of(self.key_of(of))
        if self._graph is None:
            return await self._result_of(await self._last_key())
        values = [await self._result_of(self._graph.keys[call]) for call in self._graph.wanted]
        return values[0] if self._single else values

    async def _last_key(self) -> str:
        keys = await self._door().keys(self.id)
        last = [key for key, has_dependents in keys.items() if not has_dependents]
        if len(last) > 1:
            named = ", ".join(last[:_SHOWN]) + (" …" if len(last) > _SHOWN else "")
            message = f"{self.id} ends in {len(last)} tasks ({named}): name one, or use results()"
            raise UsageError(message)
        return last[0]

    async def _result_of(self, key: str) -> Any:
        pause = _FIRST_LOOK
        while True:
            # The job is looked at first: a task that has not ended when its job has never will.
            over = (await self._door().state(self.id)).terminal
            outcome = await self._door().outcome(self.id, key)
            if outcome.status.state.terminal or over:
                return await self._value(key, outcome)
            await self._door().pause(pause)
            pause = min(pause * 2, _LOOK_EVERY)

    async def _value(self, key: str, outcome: Outcome) -> Any:
        if outcome.status.state is TaskState.COMPLETED:
            task = self._graph.tasks.get(key) if self._graph else None
            return outcome.value if task is None else task.result_from(outcome.value)
        if not outcome.status.state.terminal:
            # It stands behind another, which is the one to be told of.
            broken = await self._door().broken(self.id)
            outcome = await self._door().outcome(self.id, broken or key)
        raise self._error(outcome)

    def _error(self, outcome: Outcome) -> TaskFailed:
        status = outcome.status
        see = self._door().command("logs", status.id)
        if status.state is TaskState.CANCELLED:
            words = f"cancelled by {outcome.cancelled_by or _USER}"
            return TaskCancelled(status.id, "cancelled", words, see)
        return TaskFailed(status.id, status.category or "unknown", status.error or "failed", see)

    async def results(self, timeout: Patience = None) -> dict[str, Any]:
        """The results of all tasks by their keys, when the job has ended.

        Raises:
            TaskFailed: the job has not completed; it names the first task that failed.
            TimeoutError: the job has not ended within ``timeout``.
        """
        if await self.wait(timeout) is not JobState.COMPLETED:
            broken = await self._door().broken(self.id)
            if broken is not None:
                raise self._error(await self._door().outcome(self.id, broken))
        return {key: await self._result_of(key) for key in await self._door().keys(self.id)}

    def output(
        self, of: str | Call[Any] | None = None, *, follow: bool = True
    ) -> AsyncIterator[Output]:
        """What the tasks, or one of them, printed so far, and then what they print, to the end.

        Args:
            follow: False: only what is there now.
        """
        key = None if of is None else self.key_of(of)
        return self._door().output(self.id, key=key, follow=follow)

    def events(self, *, follow: bool = False) -> AsyncIterator[Event]:
        """What happened to the job and its tasks, in the order in which it was recorded.

        Args:
            follow: Go on with what happens, until the job has ended.
        """
        return self._door().events(self.id, follow=follow)

    async def cancel(self, reason: str | None = None) -> None:
        """End the job: what waits is cancelled at once, what runs as soon as it is killed.

        Raises:
            CommandRefused: it has ended.
        """
        await self._door().cancel(self.id, by=_USER, reason=reason)

    async def resume(self, *tasks: str | Call[Any]) -> list[str]:
        """Give tasks that failed or were cancelled another round, all of them if none is named.

        What completed is not run again. Returns the keys of those that go on.

        Raises:
            CommandRefused: none of them can be resumed.
        """
        keys = [self.key_of(task) for task in tasks]
        return await self._door().resume(self.id, keys, by=_USER)
