"""One attempt, from the claimed row to the committed outcome.

An attempt is prepared, run, classified and reported. At the end the order is always: the child is
dead, its files and its output are stored, the outcome is committed. A crash between any two of
these loses nothing and repeats nothing that a caller can observe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

from longshore.core.definitions.definition import RunnerKind
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.rows import TaskRow
from longshore.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    CommandRefused,
    LeaseLost,
    NotFound,
    UsageError,
)
from longshore.ports.output import Stream
from longshore.ports.runner import (
    AttemptEnding,
    AttemptSpec,
    ConversationReport,
    RunningAttempt,
    SpendRequest,
    StepReport,
    UsageReport,
)
from longshore.ports.task_source import Answer, Applied, LeaseCommand
from longshore.services.resilience import (
    SHORT_PAUSES,
    log_and_continue,
    pauses_within,
    race,
    retry_unavailable,
)
from longshore.services.transitions import refusal_error
from longshore.services.worker.attempt_specs import ConversationLog, build_attempt_spec
from longshore.services.worker.budget_check import (
    BudgetCheck,
    BudgetStop,
    Waiting,
    open_budget_check,
)
from longshore.services.worker.context import (
    AttemptStopReason,
    WorkerContext,
    pause_before_release,
    to_ns,
)
from longshore.services.worker.outcomes import (
    Outcome,
    Outcomes,
    failed_before_start,
    hold_queue,
    store_files,
    store_output,
    store_result,
    store_step,
    worker_failure,
)
from longshore.services.worker.output import AttemptReports, OutputPump

logger = logging.getLogger(__name__)


class Attempt:
    """One run of a claimed task.

    Args:
        claimed_at: A moment of the clock that is not later than the start of the lease.
        send: Sends a command under the lease to the task source.
        due_at: The task's place in the queue before it was claimed.
    """

    def __init__(
        self,
        context: WorkerContext,
        row: TaskRow,
        claimed_at: timedelta,
        send: Callable[[LeaseCommand], Awaitable[Answer]],
        *,
        due_at: datetime | None = None,
    ) -> None:
        if row.lease is None:
            message = f"{row.id!r} is not claimed"
            raise UsageError(message)
        self._context = context
        self._send = send
        self._due_at = due_at
        self.row = row
        self.fence = row.lease.fence
        self.has_ended = False  # the child is dead; the outcome is being reported
        self._trusted_until = claimed_at + context.lease.trusted_for
        self._stop_reason: asyncio.Future[AttemptStopReason] = (
            asyncio.get_running_loop().create_future()
        )
        self._deadline_near = asyncio.Event()  # only the outcome may still be stored
        self._runner: RunnerKind | None = None  # None: not read yet
        self._child: RunningAttempt | None = None
        self._child_may_live = False  # a child was started and its death not confirmed
        self._budget_check: BudgetCheck | None = None  # None: no budget limits the attempt
        self._pump = OutputPump(
            context.backend.output, context.backend.clock, row.id, row.attempt, context.output
        )
        self._reports = AttemptReports(self._pump, context.backend.clock)
        self._conversations = ConversationLog(context, row)
        self._outcomes = Outcomes(
            fence=self.fence,
            clock=context.backend.clock,
            started_at=claimed_at,
            reports=self._reports,
            jitter=context.jitter,
        )

    @property
    def task_id(self) -> str:
        """The task's global id."""
        return self.row.id

    @property
    def stopping(self) -> bool:
        """Whether the attempt was asked to stop."""
        return self._stop_reason.done()

    def stop(self, reason: AttemptStopReason) -> None:
        """Ask the attempt to stop; the first reason counts."""
        if reason is not AttemptStopReason.CANCELLED:
            self._deadline_near.set()
        if not self._stop_reason.done():
            self._stop_reason.set_result(reason)

    def renewal(self) -> c.Renew:
        """Returns the command that renews the lease."""
        child = self._child
        return c.Renew(
            fence=self.fence,
            lease_duration=self._context.lease.duration,
            process_id=child.process_id if child else 0,
            rss_bytes=child.rss_bytes() if child else 0,
            activity=self._reports.activity,
            usage=self._reports.usage,
        )

    async def renew(self) -> bool:
        """Renew the lease and record activity and usage. Returns whether that succeeded."""
        sent_at, extra = self._context.backend.clock.elapsed(), {"task_id": self.task_id}
        try:
            row = await self._apply(self.renewal())
        except LeaseLost:
            self.stop(AttemptStopReason.FENCED)
            return False
        except (BackendError, CommandRefused, NotFound) as error:
            logger.warning("renewal.failed", extra={**extra, "error": str(error)})
            return False
        except Exception:  # one task must not cost all others their leases
            logger.exception("renewal.crashed", extra=extra)
            return False
        else:
            self.apply_renewal(row, sent_at)
        return True

    def apply_renewal(self, row: TaskRow, sent_at: timedelta) -> None:
        """Take over a renewed row; ``sent_at`` is when the renewal was sent."""
        self._update_row(row)
        # Answers may arrive out of order: an older one must not shorten the trust.
        self._trusted_until = max(self._trusted_until, sent_at + self._context.lease.trusted_for)
        if self._child is not None:
            self._child.trust_until(self._deadline_ns)
        if row.cancel is not None:
            self.stop(AttemptStopReason.CANCELLED)

    def _update_row(self, row: TaskRow) -> None:
        # Answers may arrive out of order: an older row must not replace a newer one.
        if row.version > self.row.version:
            self.row = row

    async def run(self) -> None:
        """Carry out the attempt and commit its outcome."""
        if self.row.cancel is not None:
            self.stop(AttemptStopReason.CANCELLED)
        logger.debug(
            "attempt.started", extra={"task_id": self.task_id, "attempt": self.row.attempt}
        )
        outcome = await self._execute()
        self.has_ended = not self._child_may_live
        if outcome is None:
            logger.warning("attempt.fenced", extra={"task_id": self.task_id, "fence": self.fence})
        else:
            await self._report(outcome)

    async def _report(self, outcome: Outcome) -> None:
        """Store the output, commit the outcome, then release what the attempt held."""
        try:
            await store_output(self._context, self.row, self._pump)
            # First: the turn that commits the outcome may claim the next task of the queue.
            await hold_queue(self._context, self.row, self._runner, outcome)
            await self._commit_final(outcome)
            logger.debug(
                "attempt.ended",
                extra={
                    "task_id": self.task_id,
                    "attempt": self.row.attempt,
                    "state": self.row.state.value,
                },
            )
            if self._budget_check is not None:
                # A reservation that stays open is closed by the next attempt that needs it.
                with log_and_continue(logger, "budget.close_failed", task_id=self.task_id):
                    await self._budget_check.close()
        except (LeaseLost, NotFound) as error:
            logger.warning("outcome.refused", extra={"task_id": self.task_id, "why": str(error)})
        except CommandRefused:  # cancelled at the same moment, and confirmed by another process
            logger.exception("outcome.refused", extra={"task_id": self.task_id})

    async def _commit_final(self, outcome: Outcome) -> None:
        """Commit the outcome; one that the source cannot store becomes a failed attempt."""
        try:
            await self._commit_outcome(outcome)
        except BackendRejected as error:
            logger.exception("outcome.rejected", extra={"task_id": self.task_id})
            await self._commit_outcome(self._outcomes.failed(worker_failure(error)))

    async def _commit_outcome(self, command: Outcome) -> None:
        """Commit a command that ends the attempt, through an outage."""
        change_id = self._context.transitions.new_id()
        clock = self._context.backend.clock
        pauses = pauses_within(clock, self._context.lease.duration)
        await retry_unavailable(
            clock, lambda: self._try_outcome(command, change_id), pauses, task_id=self.task_id
        )

    async def _try_outcome(self, command: Outcome, change_id: str) -> None:
        """Commit the outcome. If the output log stays unavailable, name only what is stored."""
        pump = self._pump
        if pump.last_stored != pump.last_sequence:
            # Go on only if the ledger is available and the log is not: both may recover together.
            await self._context.transitions.read(self.task_id)
            await store_output(self._context, self.row, pump, SHORT_PAUSES)
        command = replace(command, last_output=pump.last_stored)
        self._update_row(await self._apply(command, change_id))

    async def _apply(self, command: c.FencedCommand, change_id: str | None = None) -> TaskRow:
        """Returns the row after a command under the lease.

        Raises:
            NotFound, CommandRefused: nothing was changed.
            BackendUnavailable, BackendRejected: the command was not carried out.
        """
        change_id = change_id or self._context.transitions.new_id()
        answer = await self._send(LeaseCommand(self.task_id, command, change_id))
        if isinstance(answer, Applied):
            return answer.row
        raise refusal_error(self.task_id, answer) if isinstance(answer, Refusal) else answer

    async def _execute(self) -> Outcome | None:
        """Prepare and run the child. Returns the outcome; None if nothing may be reported.

        An unexpected exception becomes a failed attempt.
        """
        try:
            spec = await self._prepare()
            outcome = await self._run(spec) if isinstance(spec, AttemptSpec) else spec
        except Exception as error:
            logger.exception("attempt.failed", extra={"task_id": self.task_id})
            outcome = self._outcomes.failed(worker_failure(error))
        # While the child may be alive, another worker must not start the next attempt.
        return None if self._child_may_live else outcome

    async def _prepare(self) -> AttemptSpec | Outcome:
        """Read everything that the row refers to. Returns an outcome if that is impossible."""
        context = self._context
        try:
            return await context.transitions.retry_unavailable(
                lambda: build_attempt_spec(context, self.row, self.fence)
            )
        except (UsageError, NotFound, BackendUnavailable) as error:
            return self._outcomes.failed(failed_before_start(error))

    async def _run(self, spec: AttemptSpec) -> Outcome | None:
        context = self._context
        self._runner = spec.definition.runner
        if not await context.agent_slots.acquire(spec, self._stop_reason):
            return self._outcomes.stopped(self._stop_reason.result(), due_at=self._due_at)
        try:
            self._budget_check = await open_budget_check(spec, context, self)
            return await self._run_child(replace(spec, has_budget=self._budget_check is not None))
        except LeaseLost:
            return None
        except BackendUnavailable as error:
            # Not the task's fault: the attempt does not count.
            return self._outcomes.released(f"the worker could not reach its store: {error}")
        finally:
            context.agent_slots.release(spec)

    async def _run_child(self, spec: AttemptSpec) -> Outcome | None:
        context = self._context
        if self._budget_check is not None and (stop := self._budget_check.stop) is not None:
            return self._outcomes.parked(stop)
        if not self._lease_trusted:
            # Preparing took too long: another worker may have claimed the task.
            return None
        if self._stop_reason.done():
            return self._outcomes.stopped(self._stop_reason.result(), due_at=self._due_at)
        try:
            child = self._child = await context.runner.start(spec, deadline_ns=self._deadline_ns)
            self._child_may_live = True
        except UsageError as error:
            return self._outcomes.failed(failed_before_start(error))
        except BackendUnavailable as error:
            return await self._release_unstarted(error)
        try:
            context.worker_registry.record_child(context.worker_id, child.process_id)
            return await self._supervise(child, spec.timeout)
        finally:
            await self._close_child(child)

    async def _close_child(self, child: RunningAttempt) -> None:
        """Stop and close a child; a failed cleanup does not cost the outcome."""
        with log_and_continue(logger, "child.close_failed", task_id=self.task_id):
            try:
                await child.stop(grace=timedelta(0))
                self._child_may_live = False
                self._context.worker_registry.forget_child(
                    self._context.worker_id, child.process_id
                )
            finally:
                await child.close()

    async def _release_unstarted(self, error: BackendUnavailable) -> Outcome | None:
        """Release a task that no process could be started for, after a backoff."""
        logger.warning("child.start_failed", extra={"task_id": self.task_id, "error": str(error)})
        pause = self._context.backend.clock.sleep(pause_before_release(self.row))
        async with race(pause, self._wait_for_lease_end(), self._stop_reason):
            pass
        if self._stop_reason.done() and self._stop_reason.result() is not AttemptStopReason.DRAINED:
            return self._outcomes.stopped(self._stop_reason.result())
        return self._outcomes.released(str(error))

    async def _supervise(self, child: RunningAttempt, timeout: timedelta) -> Outcome | None:
        """Run the child to its end or stop it, and classify how it ended.

        On exit the child is dead and its reports are read, also if the caller is cancelled.
        """
        reading = asyncio.ensure_future(self._read_reports(child))
        try:
            if await self._child_ends(reading, timeout):
                # If reading failed, the child may be alive, and nothing reads its reports.
                await reading
                ending = await child.ending()
                await self._store_files(child)
                return await self._child_outcome(ending)
            signal = await child.stop(grace=self._context.lease.kill_grace)
            with (
                contextlib.suppress(BackendUnavailable),
                log_and_continue(logger, "child.reports_lost", task_id=self.task_id),
            ):
                await reading
            reason = self._stop_reason.result() if self._stop_reason.done() else None
            await self._store_files(child)
            if reason is None:
                return self._outcomes.timed_out(signal, timeout)
            return self._outcomes.stopped(reason)
        finally:
            try:
                await child.stop(grace=timedelta(0))
                await asyncio.gather(reading, return_exceptions=True)
            finally:
                await self._pump.finish()

    async def _child_ends(self, reading: asyncio.Future[None], timeout: timedelta) -> bool:
        """Wait for the end of the child's reports, or for a reason to stop it.

        Returns whether the child ends by itself; if several apply, that counts, then the lease.
        """
        slept = self._context.backend.clock.sleep(timeout)
        lease_end = self._wait_for_lease_end()
        async with race(reading, slept, lease_end, self._stop_reason) as (_, _, lease_ended, _):
            if reading.done():
                return True
            if lease_ended.done():
                self.stop(AttemptStopReason.FENCED)
            return False

    @property
    def _lease_trusted(self) -> bool:
        """Whether no other worker can have taken over the task."""
        return self._context.backend.clock.elapsed() < self._trusted_until

    @property
    def _deadline_ns(self) -> int:
        """When the reaper kills the child, should this worker not end it before."""
        return to_ns(self._trusted_until + self._context.lease.kill_grace)

    async def _wait_for_lease_end(self) -> None:
        clock = self._context.backend.clock
        while (left := self._trusted_until - clock.elapsed()) > timedelta(0):
            await clock.sleep(left)

    async def _read_reports(self, child: RunningAttempt) -> None:
        async for report in child.reports():
            if isinstance(report, StepReport):
                await self._store_checkpoint(child, report)
            elif isinstance(report, ConversationReport):
                await self._conversations.add(report)
            elif isinstance(report, SpendRequest):
                await self._answer_spend_request(child, report)
            else:
                paid = self._reports.usage.cost_usd
                await self._reports.record(report)
                # Recorded before the next call is paid for, so that a crash cannot lose it.
                recorded = await self.renew() if self._reports.usage.cost_usd > paid else None
                if (
                    isinstance(report, UsageReport)
                    and self._budget_check
                    and report.settled_request is not None
                ):
                    await self._budget_check.settle(
                        report.settled_request, report.usage, recorded=recorded
                    )
                    if self._budget_check.waiting is not None:
                        await self._answer_spend_request(child, self._budget_check.waiting)

    async def _answer_spend_request(self, child: RunningAttempt, request: SpendRequest) -> None:
        try:
            check = self._budget_check
            state = await check.decide(request) if check is not None else None
            if not isinstance(state, Waiting):
                refusal = state.reason if isinstance(state, BudgetStop) else None
                await child.answer_spend_request(request.number, refusal=refusal)
        except LeaseLost:
            self.stop(AttemptStopReason.FENCED)

    async def _store_files(self, child: RunningAttempt) -> None:
        self._child = None  # its process id may be reused while renewals continue
        self._outcomes.ended_at = self._context.backend.clock.elapsed()
        await store_files(self._context, self.row, self._reports, child.folder, self._deadline_near)

    async def _store_checkpoint(self, child: RunningAttempt, step: StepReport) -> None:
        save = await store_step(
            self._context, self.row, self.fence, step, previous=self.row.checkpoint
        )
        try:
            self._update_row(await self._apply(save))
        except CommandRefused:
            self.stop(AttemptStopReason.FENCED)
            return
        await child.confirm_step(step.name)

    async def _child_outcome(self, ending: AttemptEnding) -> Outcome:
        if ending.failure is not None:
            if self._budget_check is not None and (stop := self._budget_check.stop) is not None:
                await self._pump.add(Stream.LOG, f"longshore: parked, {stop.reason}\n".encode())
                return self._outcomes.parked(stop)
            return self._outcomes.child_failed(ending.failure, ending.peak_rss_bytes)
        context = self._context
        result = await store_result(context, self.row, context.documents.store, ending.result)
        return self._outcomes.ended(result, ending.exit_code)
