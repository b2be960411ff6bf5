"""One attempt, from the claimed row to the committed outcome.

Order at the end, always: the child is dead, the files it left and its output are stored, then the
outcome is committed, then the message is deleted. A crash between any two of these loses nothing
and repeats nothing that anybody sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from longshore.core import commands as c
from longshore.core.blob_keys import task_document
from longshore.core.definition import RunnerKind
from longshore.core.failures import ErrorCategory
from longshore.core.rows import TaskRow
from longshore.errors import (
    BackendUnavailable,
    CommandRefused,
    LeaseLost,
    NotFound,
    UsageError,
)
from longshore.ports.output import Stream
from longshore.ports.runner import (
    Asked,
    Conversed,
    Ending,
    RunningAttempt,
    StepDone,
    Used,
    WorkOrder,
)
from longshore.services.edges import stepped_over
from longshore.services.worker.files import Files
from longshore.services.worker.holding import hold_queue
from longshore.services.worker.orders import order_for
from longshore.services.worker.outcomes import Outcome, Outcomes
from longshore.services.worker.output import OutputPump
from longshore.services.worker.patience import insistently
from longshore.services.worker.purse import Purse, Verdict, purse_for
from longshore.services.worker.room import pause_before_release
from longshore.services.worker.sessions import Sessions
from longshore.services.worker.telling import Telling
from longshore.services.worker.tools import Stop, Tools

logger = logging.getLogger(__name__)


ResultT = TypeVar("ResultT")


class Attempt:
    """A claimed task at work."""

    def __init__(self, tools: Tools, row: TaskRow, claimed_at: timedelta) -> None:
        if row.lease is None:
            message = f"{row.id!r} is not claimed"
            raise UsageError(message)
        self._tools = tools
        self.row = row
        self.fence = row.lease.fence
        self._trusted_until = claimed_at + tools.lease.trusted_for
        self._stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self._hurry = asyncio.Event()  # there is no time for anything but the outcome
        self._runner: RunnerKind | None = None  # once it is known
        self._child: RunningAttempt | None = None
        self._may_live = False  # a child was started and not seen dead
        self._purse: Purse | None = None  # None: nothing limits what it spends
        self._pump = OutputPump(
            tools.backend.output,
            tools.transitions,
            tools.backend.clock,
            row.id,
            row.attempt,
            tools.output,
        )
        self._told = Telling(self._pump, tools.backend.clock)
        self._sessions = Sessions(tools.documents, tools.transitions, row)
        self._outcomes = Outcomes(
            self.fence,
            claimed_at,
            told=self._told,
            pump=self._pump,
            clock=tools.backend.clock,
            roll=tools.roll,
        )

    @property
    def task_id(self) -> str:
        """The task's global id."""
        return self.row.id

    @property
    def ends(self) -> bool:
        """Whether somebody wants it to end."""
        return self._stop.done()

    def end(self, why: Stop) -> None:
        """Ask for the attempt's end; the first reason counts."""
        if why is not Stop.CANCELLED:
            self._hurry.set()
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
            activity=self._told.activity,
            usage=self._told.usage,
        )

    async def renew(self) -> bool:
        """Keep the lease, and tell what the attempt does and has consumed; whether it was heard."""
        sent_at, extra = self._tools.backend.clock.elapsed(), {"task_id": self.task_id}
        try:
            row = await self._tools.transitions.task(self.task_id, self.renewal(), row=self.row)
        except LeaseLost:
            self.end(Stop.FENCED)
        except (BackendUnavailable, CommandRefused, NotFound) as error:
            logger.warning("renewal.failed", extra={**extra, "error": str(error)})
            return False
        except Exception:  # the edge: one task must not cost all others their leases
            logger.exception("renewal.broken", extra=extra)
            return False
        else:
            self.renewed(row, sent_at)
        return True

    def renewed(self, row: TaskRow, sent_at: timedelta) -> None:
        """The lease was renewed by what was sent at this time."""
        self._know(row)
        # Answers may overtake each other: trust never gets shorter by good news.
        self._trusted_until = max(self._trusted_until, sent_at + self._tools.lease.trusted_for)
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
        if (command := await self._outcome_whatever_breaks()) is None:
            logger.warning("attempt.fenced", extra={"task_id": self.task_id, "fence": self.fence})
            return
        try:
            await self._store_output()
            await self._insistently(lambda: self._tell_outcome(command))
            logger.info("attempt.ended", extra={**about, "state": self.row.state.value})
            await hold_queue(self._tools, self.row, self._runner, command)
            if self._purse is not None:
                # What is left open is closed by whoever needs it.
                with stepped_over(logger, "purse.left_open", task_id=self.task_id):
                    await self._purse.close()
        except (LeaseLost, NotFound) as error:
            logger.warning("outcome.refused", extra={"task_id": self.task_id, "why": str(error)})
        except CommandRefused:  # cancelled in the same moment, and confirmed by somebody else
            logger.exception("outcome.refused", extra={"task_id": self.task_id})

    async def _store_output(self) -> None:
        try:
            await self._insistently(self._pump.settle)
        except Exception:  # whatever it is, it is the log's; what is missing is tried again
            logger.exception("output.out_of_reach", extra={"task_id": self.task_id})

    async def _tell_outcome(self, command: Outcome) -> None:
        """Tell it; a log that stays out of reach does not cost the work: then less is named."""
        if not self._pump.settled:
            # Only if the ledger is in reach and the log is not: both may come back at once.
            await self._tools.transitions.read(self.task_id)
            try:
                await self._tools.transitions.persistently(self._pump.settle)
            except Exception:  # whatever it is, it is the log's
                logger.exception("output.lost_for_good", extra={"task_id": self.task_id})
                command = replace(command, last_output=self._pump.last_stored)
        await self._tell(command)

    async def _tell(self, command: c.Command) -> None:
        self._know(await self._tools.transitions.task(self.task_id, command, row=self.row))

    async def _insistently(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Repeat a call through an outage, as long as a lease lasts."""
        return await insistently(self._tools, self.task_id, call, patience=self._tools.lease.lasts)

    async def _outcome_whatever_breaks(self) -> Outcome | None:
        """The same; a fault of ours costs the task this attempt, and says so."""
        try:
            command = await self._outcome()
        except Exception as error:
            logger.exception("attempt.broken", extra={"task_id": self.task_id})
            command = self._outcomes.broken(error)
        # Whoever is told of an end may start the next: not while something may be left of this.
        return None if self._may_live else command

    async def _outcome(self) -> Outcome | None:
        """The command that reports the end; None if nothing may be reported."""
        tools = self._tools
        try:
            order = await tools.transitions.persistently(
                lambda: order_for(
                    self.row,
                    self.fence,
                    backend=tools.backend,
                    documents=tools.documents,
                    timeout=tools.timeout,
                )
            )
        except (UsageError, NotFound) as error:
            return self._outcomes.failed_by(ErrorCategory.VALIDATION, error)
        except BackendUnavailable as error:
            return self._outcomes.failed_by(ErrorCategory.NETWORK, error)
        self._runner = order.definition.runner
        if not await tools.room.enter(order, self._stop):
            return self._outcomes.given_up(self._stop.result())
        try:
            self._purse = await purse_for(order, tools, self)
            return await self._outcome_of(replace(order, budgeted=self._purse is not None))
        except LeaseLost:
            return None
        except BackendUnavailable as error:
            # Not the task's fault: it costs none of its attempts.
            return self._outcomes.released(f"the worker could not reach its store: {error}")
        finally:
            tools.room.leave(order)

    async def _outcome_of(self, order: WorkOrder) -> Outcome | None:
        tools = self._tools
        if self._purse is not None and (left := self._purse.exhausted) is not None:
            return self._outcomes.parked(left)
        if not self._trusted:
            # It took too long to get here: somebody else may have begun.
            return None
        try:
            child = self._child = await tools.runner.start(order)
            self._may_live = True
        except UsageError as error:
            return self._outcomes.failed_by(ErrorCategory.VALIDATION, error)
        except BackendUnavailable as error:
            return await self._not_started(error)
        try:
            tools.presence.note_child(tools.worker_id, child.process_id)
            return await self._supervise(child, order.timeout)
        finally:
            await self._let_go(child)

    async def _let_go(self, child: RunningAttempt) -> None:
        """End what is left of a child; what cannot be tidied up does not cost the work."""
        with stepped_over(logger, "child.left", task_id=self.task_id):
            try:
                await child.stop(grace=timedelta(0))
                self._may_live = False
                self._tools.presence.forget_child(self._tools.worker_id, child.process_id)
            finally:
                await child.close()

    async def _not_started(self, error: BackendUnavailable) -> Outcome | None:
        """Give the task back, but not at once: it would come round again and again."""
        logger.warning("child.unavailable", extra={"task_id": self.task_id, "error": str(error)})
        pause = pause_before_release(self.row)
        waiting = asyncio.ensure_future(self._tools.backend.clock.sleep(pause))
        fenced = asyncio.ensure_future(self._trust_ends())
        try:
            await asyncio.wait((waiting, fenced, self._stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            fenced.cancel()
        if self._stop.done() and self._stop.result() is not Stop.DRAINED:
            return self._outcomes.given_up(self._stop.result())
        return self._outcomes.released(str(error))

    async def _supervise(self, child: RunningAttempt, timeout: timedelta) -> Outcome | None:
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
                ending = await child.ending()
                await self._keep_files(child)
                return await self._ended(ending)
            if fenced.done():
                self.end(Stop.FENCED)
            signal = await child.stop(grace=self._tools.lease.kill_grace)
            with (
                contextlib.suppress(BackendUnavailable),
                stepped_over(logger, "child.unheard", task_id=self.task_id),
            ):
                await reading
            why = self._stop.result() if self._stop.done() else None
            await self._keep_files(child)
            return (
                self._outcomes.timed_out(signal, timeout)
                if why is None
                else self._outcomes.given_up(why)
            )
        finally:
            for waiting in (late, fenced):
                waiting.cancel()
            # Also when this is cancelled: the reading ends only when the child has.
            await child.stop(grace=timedelta(0))
            await asyncio.gather(reading, return_exceptions=True)
            await self._pump.finish()

    @property
    def _trusted(self) -> bool:
        """Whether nobody else can have taken the task over."""
        return self._tools.backend.clock.elapsed() < self._trusted_until

    async def _trust_ends(self) -> None:
        clock = self._tools.backend.clock
        while (left := self._trusted_until - clock.elapsed()) > timedelta(0):
            await clock.sleep(left)

    async def _read(self, child: RunningAttempt) -> None:
        async for report in child.reports():
            if isinstance(report, StepDone):
                await self._keep_step(child, report.name, report.result)
            elif isinstance(report, Conversed):
                await self._sessions.add(report)
            elif isinstance(report, Asked):
                await self._let_spend(child, report)
            else:
                paid = self._told.usage.cost_usd
                await self._told.take(report)
                # Known before the next is paid for: nobody can say it after a crash.
                known = await self.renew() if self._told.usage.cost_usd > paid else None
                if isinstance(report, Used) and self._purse and report.settles is not None:
                    await self._purse.settle(report.settles, report.usage, known=known)
                    if self._purse.waiting is not None:
                        await self._let_spend(child, self._purse.waiting)

    async def _let_spend(self, child: RunningAttempt, asked: Asked) -> None:
        try:
            verdict = Verdict() if self._purse is None else await self._purse.admits(asked)
            if not verdict.wait:
                await child.answer(asked.number, stop=verdict.stop)
        except LeaseLost:
            self.end(Stop.FENCED)

    async def _keep_files(self, child: RunningAttempt) -> None:
        """Store what the child left, unless there is no time for it; tell what is missing."""
        self._child = None  # its number may go to somebody else, while heartbeats go on
        self._outcomes.child_ended()
        files = Files(self._tools, self.row, self._told.summaries)
        if (note := await files.keep(child.folder, self._hurry)) is not None:
            await self._pump.add(Stream.LOG, f"longshore: {note}\n".encode())

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

    async def _ended(self, ending: Ending) -> Outcome:
        if ending.failure is not None:
            if self._purse is not None and (left := self._purse.exhausted) is not None:
                await self._pump.add(Stream.LOG, f"longshore: parked, {left.reason}\n".encode())
                return self._outcomes.parked(left)
            return self._outcomes.failed_so(ending.failure, ending)
        spec = self.row.spec
        key = task_document(spec.job_id, spec.key, f"result-{self.row.attempt}")
        try:
            limit = self._tools.result_limit_bytes
            result = await self._insistently(
                lambda: self._tools.documents.keep(ending.result, key, limit_bytes=limit)
            )
        except (ValueError, UsageError) as error:
            return self._outcomes.failed_by(ErrorCategory.PARSE, error)
        return self._outcomes.completed(result, ending.exit_code)
