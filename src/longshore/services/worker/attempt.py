"""One attempt, from the claimed row to the committed outcome.

Order at the end, always: the child is dead and its output stored, then the outcome is committed,
then the message is deleted. A crash between any two of these loses nothing and repeats nothing that
anybody sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, TypeVar

from longshore.core import commands as c
from longshore.core.blob_keys import task_document
from longshore.core.definition import BUILTIN, Definition
from longshore.core.events.types import Activity, Usage
from longshore.core.failures import ErrorCategory, Failure, error_text
from longshore.core.ids import task_id_of
from longshore.core.lease import LeasePolicy
from longshore.core.rows import TaskRow
from longshore.errors import BackendUnavailable, CommandRefused, LeaseLost, NotFound, UsageError
from longshore.ports.backend import Backend
from longshore.ports.presence import Presence
from longshore.ports.runner import (
    Active,
    Ending,
    Printed,
    Report,
    Runner,
    RunningAttempt,
    StepDone,
    Used,
    WorkOrder,
)
from longshore.services.documents import Documents
from longshore.services.transitions import Transitions
from longshore.services.worker.output import OutputPolicy, OutputPump

logger = logging.getLogger(__name__)

_AFTER_TROUBLE = timedelta(seconds=1)

ResultT = TypeVar("ResultT")


class Stop(Enum):
    """Why an attempt is ended from outside."""

    CANCELLED = "a user cancelled it"
    FENCED = "the lease is lost or can no longer be trusted"
    DRAINED = "the worker stops"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every attempt of a worker uses."""

    worker_id: str
    backend: Backend
    transitions: Transitions
    documents: Documents
    runner: Runner
    presence: Presence
    lease: LeasePolicy
    output: OutputPolicy
    timeout: timedelta
    result_limit_bytes: int
    process_id: int
    roll: Callable[[], float]


class Attempt:
    """A claimed task at work."""

    def __init__(self, tools: Tools, row: TaskRow, claimed_at: timedelta) -> None:
        if row.lease is None:
            message = f"{row.id!r} is not claimed"
            raise UsageError(message)
        self._tools = tools
        self.row = row
        self.fence = row.lease.fence
        self.activity = Activity()
        self._usage = Usage()
        self._trusted_until = claimed_at + tools.lease.trusted_for
        self._began = claimed_at
        self._stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self._child: RunningAttempt | None = None
        self._pump = OutputPump(
            tools.backend.output,
            tools.transitions,
            tools.backend.clock,
            row.id,
            row.attempt,
            tools.output,
        )

    @property
    def task_id(self) -> str:
        """The task's global id."""
        return self.row.id

    def end(self, why: Stop) -> None:
        """Ask for the attempt's end; the first reason counts."""
        if not self._stop.done():
            self._stop.set_result(why)

    def renewal(self) -> c.Renew:
        """What to say to keep the lease."""
        child = self._child
        return c.Renew(
            fence=self.fence,
            lasts=self._tools.lease.lasts,
            process_id=child.process_id if child else 0,
            rss_bytes=child.rss_bytes() if child else 0,
            activity=self.activity,
        )

    def renewed(self, row: TaskRow, sent_at: timedelta) -> None:
        """The lease was renewed by what was sent at this time."""
        self._know(row)
        self._trusted_until = sent_at + self._tools.lease.trusted_for
        if row.cancel is not None:
            self.end(Stop.CANCELLED)

    def _know(self, row: TaskRow) -> None:
        # Answers may overtake each other: what is known of the row never goes back.
        if row.version > self.row.version:
            self.row = row

    async def run(self) -> None:
        """Carry out the attempt and commit what came of it."""
        if self.row.cancel is not None:
            self.end(Stop.CANCELLED)
        about = {"task_id": self.task_id, "attempt": self.row.attempt}
        logger.info("attempt.started", extra=about)
        command = await self._outcome()
        if command is None:
            logger.warning("attempt.fenced", extra={"task_id": self.task_id, "fence": self.fence})
            return
        try:
            await self._insistently(lambda: self._tell(command))
            logger.info("attempt.ended", extra={**about, "state": self.row.state.value})
        except (LeaseLost, NotFound) as error:
            logger.warning("outcome.refused", extra={"task_id": self.task_id, "why": str(error)})
        except CommandRefused:
            # Cancelled in the same moment and confirmed by somebody else.
            logger.exception("outcome.refused", extra={"task_id": self.task_id})

    async def _tell(self, command: c.Command) -> None:
        self._know(await self._tools.transitions.task(self.task_id, command, row=self.row))

    async def _insistently(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Repeat a call through an outage as long as a lease lasts.

        The work is done: throwing it away for a moment's trouble would mean paying for it twice.
        """
        clock = self._tools.backend.clock
        patient_until = clock.elapsed() + self._tools.lease.lasts
        while clock.elapsed() < patient_until:
            try:
                return await call()
            except BackendUnavailable as error:
                extra = {"task_id": self.task_id, "error": str(error)}
                logger.warning("outcome.waiting", extra=extra)
                await clock.sleep(_AFTER_TROUBLE)
        return await call()

    async def _outcome(self) -> c.Command | None:
        """The command that reports the end; None if nothing may be reported."""
        try:
            order = await self._tools.transitions.persistently(self._order)
            self._child = await self._tools.runner.start(order)
        except (UsageError, NotFound) as error:
            return self._failed(ErrorCategory.VALIDATION, error)
        except BackendUnavailable as error:
            return self._failed(ErrorCategory.NETWORK, error)
        child = self._child
        try:
            self._tools.presence.note_child(self._tools.worker_id, child.process_id)
            return await self._supervise(child, order.timeout)
        except BackendUnavailable as error:
            # Not the task's fault: it costs none of its attempts.
            reason = error_text(f"the worker could not reach its store: {error}")
            return c.Release(fence=self.fence, reason=reason)
        finally:
            await child.stop(grace=timedelta(0))
            self._tools.presence.forget_child(self._tools.worker_id, child.process_id)

    async def _supervise(self, child: RunningAttempt, timeout: timedelta) -> c.Command | None:
        reading = asyncio.ensure_future(self._read(child))
        late = asyncio.ensure_future(self._tools.backend.clock.sleep(timeout))
        fenced = asyncio.ensure_future(self._trust_ends())
        try:
            await asyncio.wait(
                (reading, late, fenced, self._stop), return_when=asyncio.FIRST_COMPLETED
            )
            if reading.done():
                # If reading broke off, the child may be alive, and nobody listens to it any more.
                await reading
                return await self._ended(await child.ending())
            if fenced.done():
                self.end(Stop.FENCED)
            signal = await child.stop(grace=self._tools.lease.kill_grace)
            with contextlib.suppress(BackendUnavailable):
                await reading
            return await self._stopped(signal, timeout)
        finally:
            for waiting in (late, fenced):
                waiting.cancel()
            # Also when this is cancelled: the reading ends only when the child has.
            await child.stop(grace=timedelta(0))
            await asyncio.gather(reading, return_exceptions=True)

    async def _trust_ends(self) -> None:
        clock = self._tools.backend.clock
        while (left := self._trusted_until - clock.elapsed()) > timedelta(0):
            await clock.sleep(left)

    async def _read(self, child: RunningAttempt) -> None:
        try:
            async for report in child.reports():
                await self._take(child, report)
        finally:
            await self._pump.finish()

    async def _take(self, child: RunningAttempt, report: Report) -> None:
        match report:
            case Printed(stream, data):
                await self._pump.add(stream, data)
            case Active(activity):
                self.activity = activity
            case Used(usage):
                self._usage = usage
            case StepDone(name, result):
                await self._keep_step(child, name, result)

    async def _keep_step(self, child: RunningAttempt, name: str, result: Any) -> None:
        spec = self.row.spec
        number = self._tools.transitions.new_id()
        key = task_document(spec.job_id, spec.key, f"steps/{self.fence}-{number}")
        document = {"step": name, "result": result, "previous": self.row.checkpoint}
        await self._tools.transitions.persistently(
            lambda: self._tools.documents.keep_key(key, document)
        )
        try:
            await self._tell(c.SaveCheckpoint(fence=self.fence, key=key))
        except CommandRefused:
            self.end(Stop.FENCED)
            return
        await child.step_kept(name)

    async def _ended(self, ending: Ending) -> c.Command:
        if ending.failure is not None:
            return self._failure(ending.failure)
        spec = self.row.spec
        key = task_document(spec.job_id, spec.key, f"result-{self.row.attempt}")
        try:
            limit = self._tools.result_limit_bytes
            result = await self._insistently(
                lambda: self._tools.documents.keep(ending.result, key, limit_bytes=limit)
            )
        except (ValueError, UsageError) as error:
            return self._failed(ErrorCategory.PARSE, error)
        return c.Complete(
            fence=self.fence,
            result=result,
            duration=self._duration(),
            exit_code=ending.exit_code or 0,
            usage=self._usage,
            last_output=self._pump.last_sequence,
        )

    async def _stopped(self, signal: str, timeout: timedelta) -> c.Command | None:
        last = self._pump.last_sequence
        if not self._stop.done():
            return c.TimeOut(
                fence=self.fence,
                timeout=timeout,
                elapsed=self._duration(),
                signal=signal,
                roll=self._tools.roll(),
                usage=self._usage,
                last_output=last,
            )
        match self._stop.result():
            case Stop.CANCELLED:
                return c.ConfirmCancel(fence=self.fence, usage=self._usage, last_output=last)
            case Stop.DRAINED:
                return c.Release(fence=self.fence, reason="the worker stops", last_output=last)
            case Stop.FENCED:
                return None

    def _failed(self, category: ErrorCategory, error: Exception) -> c.AttemptFailed:
        return self._failure(Failure(category=category, message=error_text(str(error))))

    def _failure(self, failure: Failure) -> c.AttemptFailed:
        return c.AttemptFailed(
            fence=self.fence,
            failure=failure,
            roll=self._tools.roll(),
            duration=self._duration(),
            usage=self._usage,
            last_output=self._pump.last_sequence,
        )

    def _duration(self) -> timedelta:
        return self._tools.backend.clock.elapsed() - self._began

    async def _order(self) -> WorkOrder:
        spec, documents = self.row.spec, self._tools.documents
        definition = await self._definition()
        return WorkOrder(
            task_id=spec.id,
            job_id=spec.job_id,
            key=spec.key,
            tenant=spec.tenant,
            attempt=self.row.attempt,
            fence=self.fence,
            definition=definition,
            timeout=definition.timeout or self._tools.timeout,
            input=await documents.load(spec.input),
            dependency_outputs=await self._dependency_outputs(),
            checkpoints=await self._checkpoints(),
            feedback=self.row.feedback,
            previous_output=await documents.load(self.row.previous_result),
        )

    async def _definition(self) -> Definition:
        spec = self.row.spec
        if spec.definition_version == 0:
            found = BUILTIN.get(spec.definition)
        else:
            found = await self._tools.backend.definitions.get(
                spec.tenant, spec.definition, version=spec.definition_version
            )
        if found is None:
            raise NotFound("definition", spec.definition)
        return found

    async def _dependency_outputs(self) -> dict[str, Any]:
        spec = self.row.spec
        keys = await self._tools.documents.load(spec.parents) or []
        ids = [task_id_of(spec.job_id, key) for key in keys]
        parents = await self._tools.backend.ledger.tasks(ids)
        return {
            parent.spec.key: await self._tools.documents.load(parent.result) for parent in parents
        }

    async def _checkpoints(self) -> dict[str, Any]:
        steps: dict[str, Any] = {}
        key = self.row.checkpoint
        while key is not None:
            kept = await self._tools.documents.load_key(key)
            steps.setdefault(kept["step"], kept["result"])
            key = kept["previous"]
        return steps
