"""Claimed python tasks in child slots, without a coroutine for each of them.

``core.slot_plan`` decides which slot runs which task. What the children report arrives by callbacks
on the event loop. Only a task that needs more than its row has (results of parents, saved steps, a
large input), or leaves more than a short result (output, files, a large result), gets a coroutine.

The order at the end of a task is as for every attempt: its output and files are stored, then its
outcome is committed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from longshore.core.claims import DefinitionVersion
from longshore.core.definitions.definition import Definition, Isolation
from longshore.core.documents import INLINE_LIMIT_BYTES, Document
from longshore.core.events.types import NO_USAGE
from longshore.core.slot_plan import (
    GiveTask,
    GiveUp,
    OpenSlot,
    ReplaceChild,
    SlotPlanner,
    SlotTaskPlan,
    TakeBack,
)
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.failures import ErrorCategory, Failure, error_text
from longshore.errors import BackendRejected, BackendUnavailable, NotFound, UsageError
from longshore.ports.child_slots import ChildEnding, ChildSlots, SlotOutcome, SlotTask
from longshore.ports.output import Stream
from longshore.ports.runner import AttemptSpec, ChildReport, StepReport
from longshore.ports.task_source import Answer, Applied, ClaimedTask, LeaseCommand
from longshore.services.worker.attempt_specs import (
    build_attempt_spec,
    remember_result,
    results_at_hand,
)
from longshore.services.worker.context import MICROSECOND, AttemptStopReason, WorkerContext, to_ns
from longshore.services.worker.outcomes import (
    STOPPING,
    Outcome,
    Outcomes,
    failed_before_start,
    store_files,
    store_output,
    store_result,
    store_step,
    worker_failure,
)
from longshore.services.worker.output import AttemptReports, OutputPump
from longshore.services.worker.turns import answer_waiter

logger = logging.getLogger(__name__)

NOT_BEGUN = "the worker had no time for it"
_TOO_LATE = "the worker could not renew the lease in time"
# A slot is trusted a little shorter than its tasks, so that it is not set for each of them.
_TRUST_STEP_NS = 1_000_000_000
_TIMER_SLACK_NS = 1_000_000
_MAX_WAITING_REPORTS = 100

_STOPPED = Failure(category=ErrorCategory.CRASH, message="the attempt was stopped")

Post = Callable[[LeaseCommand, Callable[[Answer], None]], None]
"""Sends a command to the task source and calls back with its answer."""


@lru_cache(maxsize=4096)
def slot_task_number(task_id: str) -> int:
    """The number by which slots, and the record of what was begun, know a task."""
    digest = hashlib.blake2b(task_id.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 1) or 1


@dataclass(slots=True, eq=False)
class _HeldTask:
    """A claimed task until its outcome is committed."""

    claimed: ClaimedTask
    number: int
    definition: Definition
    trusted_until_ns: int
    spec: SlotTask
    slot: int | None = None  # None: it waits for one, or has ended
    claimed_at_ns: int = 0
    has_ended: bool = False  # what it has left is being stored
    stop_reason: AttemptStopReason | None = None
    timed_out: bool = False
    error: Exception | None = None  # of the worker, while it recorded reports
    start_next: Callable[[], None] | None = None  # starts the next attempt of the same task
    checkpoint: str | None = None  # of the last step of this attempt
    reports: AttemptReports | None = None  # None: it has reported nothing and printed nothing
    waiting_reports: list[ChildReport | tuple[Stream, bytes]] = field(default_factory=list)
    recording: asyncio.Task[None] | None = None  # records the reports that wait


class SlotTasks:
    """Runs tasks in the child slots of a worker. See ``ports.child_slots.SlotListener``.

    Args:
        units: How many tasks the worker runs at once.
        taken: Returns how many of these are in use elsewhere.
        post: Sends a command under a lease.
        on_change: Called when units or room may have become free.
    """

    def __init__(
        self,
        context: WorkerContext,
        make_slots: Callable[[SlotTasks], ChildSlots],
        *,
        units: int,
        taken: Callable[[], int],
        post: Post,
        on_change: Callable[[], None],
    ) -> None:
        self._context = context
        self._clock = context.backend.clock
        self._trusted_for_ns = to_ns(context.lease.trusted_for)
        self._slots = make_slots(self)
        self._planner = SlotPlanner(units)
        self._taken = taken
        self._post = post
        self._on_change = on_change
        self._tasks: dict[int, _HeldTask] = {}
        self._trusted: dict[int, int] = {}  # until when each slot may run what it has
        # Dicts for their order: a simulation must cancel them in the same order each time.
        self._ending: dict[asyncio.Task[None], None] = {}  # coroutines of tasks that need one
        self._calls: dict[asyncio.Task[None], None] = {}
        self._unanswered = 0  # outcomes that the source has not answered
        self._scheduled: asyncio.Handle | None = None
        self._outcomes_at_ns = 0
        self._timer: asyncio.Task[None] | None = None
        self._timer_ends_ns = 0
        self._stopping = False  # what has not begun is released
        self._closed = False
        self._emptied = asyncio.Event()
        self.reported = 0  # outcomes that were committed

    # For the worker -----------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """The units in use."""
        return self._planner.busy + len(self._ending)

    @property
    def busy_slots(self) -> int:
        """How many slots have a task."""
        return len(self._planner.busy_slots())

    @property
    def task_ids(self) -> list[str]:
        """Ids of the tasks that this worker has in slots."""
        return [task.claimed.task_id for task in self._tasks.values()]

    def ahead(self, free: int) -> Mapping[DefinitionVersion, int]:
        """How many tasks of short definitions may be claimed beyond the free units."""
        if self._scheduled is not None:
            # A task that waits only for this would keep others from being claimed.
            self._scheduled.cancel()
            self._act()
        return self._planner.ahead(self._now_ns(), free)

    def may_gather(self) -> bool:
        """Whether the children have enough to do for outcomes to wait for others."""
        return self._planner.has_enough()

    def add(self, claimed: ClaimedTask, definition: Definition, sent_at: timedelta) -> None:
        """Run a claimed task."""
        task_id, sent_at_ns = claimed.task_id, to_ns(sent_at)
        number, tenant = slot_task_number(task_id), claimed.definition[0]
        job_id, attempt = claimed.job_id, claimed.attempt
        spec = SlotTask(number, claimed.fence, tenant, task_id, job_id, attempt, definition)
        trusted_ns = sent_at_ns + self._trusted_for_ns
        task = _HeldTask(claimed, number, definition, trusted_ns, spec, claimed_at_ns=sent_at_ns)
        if (earlier := self._tasks.get(number)) is not None:
            # Its lease is lost, and it has not ended yet.
            self.stop(task_id, AttemptStopReason.FENCED)
            earlier.start_next = partial(self.add, claimed, definition, sent_at)
            return
        self._tasks[number] = task
        text = claimed.plain_input
        results = None if text is None else results_at_hand(self._context, claimed)
        if text is not None and results is not None:
            task.spec.input = text
            task.spec.dependency_outputs = results or None
            self._make_ready(task)
        else:
            if claimed.row.cancel is not None:
                task.stop_reason = AttemptStopReason.CANCELLED
            self._start(self._ending, self._fail_on_error(task, self._prepare(task)))

    def _make_ready(self, task: _HeldTask) -> None:
        if self._stopping:
            self._release(task, STOPPING)
            return
        version, isolation = task.claimed.definition, task.definition.isolation
        self._planner.claimed(SlotTaskPlan(task.number, version[0], version, isolation))
        self._schedule()

    async def _fail_on_error(self, task: _HeldTask, work: Coroutine[Any, Any, None]) -> None:
        """Prepare or finish a task; an unexpected error becomes a failed attempt."""
        try:
            await work
        except Exception as error:
            logger.exception("slot_task.failed", extra={"task_id": task.claimed.task_id})
            if self._tasks.get(task.number) is task:
                self._fail(task, worker_failure(error))
        finally:
            if (this := asyncio.current_task()) is not None:
                # Its unit is free, or the planner counts it. The loop calls ``_ended`` later.
                self._ending.pop(this, None)

    async def _prepare(self, task: _HeldTask) -> None:
        """Read everything that the row refers to."""
        context = self._context
        try:
            spec = await context.transitions.retry_unavailable(
                lambda: build_attempt_spec(context, task.claimed.row, task.claimed.fence)
            )
        except (UsageError, NotFound, BackendUnavailable) as error:
            self._fail(task, failed_before_start(error))
        else:
            _fill(task.spec, spec)
            if task.stop_reason is not None:  # it was stopped meanwhile
                self._end_unbegun(task)
            else:
                self._make_ready(task)

    def _fail(self, task: _HeldTask, failure: Failure) -> None:
        self._remove(task)
        self._report(task, self._outcome(task, failure, timedelta(0)))

    # Actions ------------------------------------------------------------------------------------

    def unit_freed(self) -> None:
        """A unit that was in use elsewhere is free."""
        self._schedule()

    def _schedule(self) -> None:
        if self._scheduled is None and not self._closed:
            self._scheduled = asyncio.get_running_loop().call_soon(self._act)

    def _act(self) -> None:
        self._scheduled = None
        now_ns = self._now_ns()
        for action in self._planner.decide(now_ns, taken=self._taken()):
            match action:
                case GiveTask(slot=slot, number=number):
                    self._give(slot, number, now_ns)
                case OpenSlot(isolation=isolation):
                    self._start(self._calls, self._open(isolation))
                case TakeBack(slot=slot):
                    # For another slot, or for another worker.
                    self._return(slot, self._slots.take_back(slot))
                    self._schedule()
                case GiveUp(number=number):
                    self._planner.forget(number)
                    self._release(self._tasks[number], NOT_BEGUN)
                case ReplaceChild(slot=slot):
                    self._planner.child_ending(slot)
                    self._slots.replace(slot)
        self._set_timer(now_ns)

    def _give(self, slot: int, number: int, now_ns: int) -> None:
        task = self._tasks[number]
        # Before the task is given: its child may read it at once, and begins nothing untrusted.
        trusted_ns = self._trusted.get(slot)
        if trusted_ns is None or not 0 <= task.trusted_until_ns - trusted_ns < _TRUST_STEP_NS:
            self._update_trust(slot, task)
        if not self._slots.give(slot, task.spec):
            self._planner.not_given(slot)
            return
        task.slot = slot
        self._planner.task_given(slot, number, now_ns)

    def _update_trust(self, slot: int, *more: _HeldTask) -> None:
        """Let the children of a slot run until the first of its leases is no longer trusted."""
        own = [self._tasks[number] for number in self._planner.numbers_in(slot)]
        trusted = min([task.trusted_until_ns for task in (*own, *more)])
        if trusted != self._trusted.get(slot):
            self._trusted[slot] = trusted
            self._slots.trust_until(slot, trusted)

    async def _open(self, isolation: Isolation) -> None:
        try:
            slot = await self._slots.open_slot(isolation)
        except (UsageError, BackendUnavailable) as error:
            logger.warning("slot.open_failed", extra={"error": str(error)})
            self._planner.slot_not_opened(isolation)
            await self._release_waiting(isolation, str(error))
        else:
            self._trusted.pop(slot, None)  # the number may have been used before
            self._planner.slot_opened(slot, isolation)
        self._schedule()
        self._on_change()

    async def _release_waiting(self, isolation: Isolation, reason: str) -> None:
        """Release the tasks for which no slot can be opened, after a pause."""
        await self._clock.sleep(timedelta(seconds=1))
        if not self._planner.has_slots(isolation):
            # Not those that are being prepared, or have ended: they are in no slot either.
            for task in [self._tasks[number] for number in self._planner.waiting]:
                if task.definition.isolation is isolation:
                    self._planner.forget(task.number)
                    self._release(task, reason)

    def _return(self, slot: int, numbers: Iterable[int]) -> None:
        """Tasks have not begun in a slot: they wait for another, or end if they were stopped."""
        for plan in self._planner.taken_back(slot, numbers):
            self._wait_again(plan)

    def _wait_again(self, plan: SlotTaskPlan) -> None:
        task = self._tasks[plan.number]
        task.slot = None
        if task.stop_reason is not None:
            self._end_unbegun(task)
        elif self._stopping:
            self._release(task, STOPPING)
        else:
            self._planner.claimed(plan)

    def _set_timer(self, now_ns: int) -> None:
        """Look again when a child may have stalled, or a task may have timed out."""
        waits = [
            since + to_ns(self._timeout_of(self._tasks[number])) - now_ns
            for number, since in self._planner.running()
            if not self._tasks[number].timed_out
        ]
        stalls_in_ns = self._planner.next_check_ns(now_ns)
        if stalls_in_ns is not None:
            waits.append(stalls_in_ns)
        if not waits:
            return
        ends_ns = now_ns + max(min(waits), 0) + _TIMER_SLACK_NS
        if self._timer is not None:
            if self._timer_ends_ns <= ends_ns:
                return
            self._timer.cancel()
        self._timer_ends_ns = ends_ns
        self._timer = self._start(self._calls, self._wait_for_timer(ends_ns - now_ns))

    async def _wait_for_timer(self, wait_ns: int) -> None:
        await self._clock.sleep(wait_ns // 1000 * MICROSECOND)
        self._timer = None
        now_ns = self._now_ns()
        for number, since in self._planner.running():
            task = self._tasks[number]
            if now_ns - since >= to_ns(self._timeout_of(task)) and not task.timed_out:
                task.timed_out = True
                self._kill(task)
        self._act()

    def _timeout_of(self, task: _HeldTask) -> timedelta:
        return task.definition.timeout or self._context.timeout

    # Stopping -----------------------------------------------------------------------------------

    def stop(self, task_id: str, reason: AttemptStopReason) -> None:
        """Stop a task for a reason; the first reason counts."""
        task = self._tasks.get(slot_task_number(task_id))
        if task is None or task.stop_reason is not None:
            return
        if task.has_ended and reason is not AttemptStopReason.FENCED:
            return  # its outcome is about to be reported
        task.stop_reason = reason
        if task.slot is None:
            if task.number in self._planner.waiting:
                self._planner.forget(task.number)
                self._end_unbegun(task)
            return
        if task.number == self._planner.first_in(task.slot):
            self._kill(task)
            return
        self._return(task.slot, self._slots.take_back(task.slot))
        self._schedule()

    def stop_all(self, reason: AttemptStopReason) -> None:
        """Stop all tasks for a reason."""
        for task_id in self.task_ids:
            self.stop(task_id, reason)

    def kill_children(self) -> None:
        """Kill what runs, without a grace period."""
        for slot in self._planner.busy_slots():
            self._planner.child_ending(slot)
            self._return(slot, self._slots.kill(slot, grace=timedelta(0)))

    def release_unbegun(self) -> None:
        """Release every task that has not begun, so that another worker can begin it."""
        self._stopping = True
        for slot in self._planner.busy_slots():
            self._return(slot, self._slots.take_back(slot))
        for number in self._planner.waiting:
            self._planner.forget(number)
            self._release(self._tasks[number], STOPPING)

    def _kill(self, task: _HeldTask) -> None:
        slot = task.slot
        if slot is None:
            return
        fenced = task.stop_reason is AttemptStopReason.FENCED
        grace = timedelta(0) if fenced else self._context.lease.kill_grace
        self._planner.child_ending(slot)
        self._return(slot, self._slots.kill(slot, grace=grace))
        self._schedule()

    def _end_unbegun(self, task: _HeldTask) -> None:
        match task.stop_reason:
            case AttemptStopReason.CANCELLED:
                self._remove(task)
                self._report(task, c.ConfirmCancel(fence=task.claimed.fence))
            case AttemptStopReason.DRAINED:
                self._release(task, STOPPING)
            case _:
                self._drop(task)

    def _drop(self, task: _HeldTask, folder: Path | None = None) -> None:
        """Report nothing: the lease is lost."""
        self._remove(task)
        if folder is not None:
            self._slots.release_folder(folder)
        self._note_change()

    def _release(self, task: _HeldTask, reason: str) -> None:
        """Release a task that has not begun."""
        self._remove(task)
        claimed = task.claimed
        command = c.Release(fence=claimed.fence, reason=error_text(reason), due_at=claimed.due_at)
        self._report(task, command)

    def _remove(self, task: _HeldTask) -> None:
        del self._tasks[task.number]
        if task.start_next is not None:
            task.start_next()

    async def wait_until_empty(self) -> None:
        """Return when no task is held, and every outcome is answered."""
        while not self._is_empty:
            self._emptied.clear()
            await self._emptied.wait()

    @property
    def _is_empty(self) -> bool:
        return not (self._tasks or self._ending or self._unanswered)

    def _note_change(self) -> None:
        if self._is_empty:
            self._emptied.set()
        self._on_change()

    async def close(self) -> None:
        """Kill all children."""
        self._closed = True
        for call in (*self._calls, *self._ending):
            call.cancel()
        await asyncio.gather(*self._calls, *self._ending, return_exceptions=True)
        await self._slots.close()

    # Leases -------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Renew the leases of tasks that have been held for a while."""
        now_ns, sent_at = self._now_ns(), self._clock.elapsed()
        old_ns = to_ns(self._context.lease.renew_every) // 2
        for task in list(self._tasks.values()):
            if now_ns - task.claimed_at_ns < old_ns:
                continue
            pid = 0 if task.slot is None else self._slots.process_id(task.slot)
            renewal = c.Renew(
                fence=task.claimed.fence,
                lease_duration=self._context.lease.duration,
                process_id=pid,
                activity=task.reports.activity if task.reports else None,
                usage=task.reports.usage if task.reports else NO_USAGE,
            )
            change_id = self._context.transitions.new_id()
            command = LeaseCommand(task.claimed.task_id, renewal, change_id)
            self._post(command, partial(self._renewed, task, sent_at))

    def _renewed(self, task: _HeldTask, sent_at: timedelta, answer: Answer) -> None:
        if self._tasks.get(task.number) is not task:
            return
        if isinstance(answer, Refusal):
            self.stop(task.claimed.task_id, AttemptStopReason.FENCED)
        elif isinstance(answer, Applied):
            trusted_ns = to_ns(sent_at + self._context.lease.trusted_for)
            task.trusted_until_ns = max(task.trusted_until_ns, trusted_ns)
            if task.slot is not None:
                self._update_trust(task.slot)
            if answer.row.cancel is not None:
                self.stop(task.claimed.task_id, AttemptStopReason.CANCELLED)

    # What the children say ----------------------------------------------------------------------

    def outcome(self, slot: int, outcome: SlotOutcome) -> None:
        if self._scheduled is None:
            self._outcomes_at_ns = self._now_ns()  # of all that are read together
        self._planner.finished(slot, outcome.number, outcome.duration_ns, self._outcomes_at_ns)
        task = self._take_out(outcome.number)
        duration = outcome.duration_ns // 1000 * MICROSECOND
        result, failure = outcome.result, outcome.failure
        is_short = result is not None and len(result) <= INLINE_LIMIT_BYTES // 4
        if task.stop_reason is AttemptStopReason.FENCED:
            self._drop(task, outcome.folder)
        elif is_short and task.reports is None and outcome.folder is None and not _is_stopped(task):
            self._remove(task)
            document = Document(text=result, size=len((result or "").encode()))
            fence = task.claimed.fence
            command = c.Complete(fence=fence, result=document, duration=duration, exit_code=0)
            self._report(task, command)
        else:
            if _is_stopped(task):
                failure = failure or _STOPPED
            if failure is not None and failure.peak_rss_bytes is None:
                failure = replace(failure, peak_rss_bytes=outcome.peak_rss_bytes)
            self._finish_later(task, outcome.folder, duration, failure or result or "null")
        self._schedule()

    def _take_out(self, number: int) -> _HeldTask:
        """A task that was begun has ended."""
        task = self._tasks[number]
        task.slot = None
        task.has_ended = True
        return task

    def _finish_later(
        self, task: _HeldTask, folder: Path | None, duration: timedelta, result: str | Failure
    ) -> None:
        finish = self._finish(task, folder, duration, result)
        self._start(self._ending, self._fail_on_error(task, finish))

    async def _finish(
        self, task: _HeldTask, folder: Path | None, duration: timedelta, result: str | Failure
    ) -> None:
        """Store what a task has left, then report its outcome."""
        await self._store_output(task, folder)
        if task.error is not None:
            result = worker_failure(task.error)
        stored: Document | Failure
        if isinstance(result, Failure):
            stored = result
        else:
            context = self._context
            store = context.documents.store_text
            stored = await store_result(context, task.claimed.row, store, result)
        if task.stop_reason is AttemptStopReason.FENCED:
            self._drop(task)
        else:
            self._remove(task)
            self._report(task, self._outcome(task, stored, duration))

    def _outcome(
        self, task: _HeldTask, result: Document | Failure, duration: timedelta
    ) -> c.FencedCommand:
        outcomes = Outcomes(
            fence=task.claimed.fence,
            clock=self._clock,
            started_at=timedelta(0),
            ended_at=duration,
            jitter=self._context.jitter,
            reports=task.reports,
        )
        command: Outcome | None = None
        if isinstance(result, Failure):
            if task.stop_reason is not None:
                command = outcomes.stopped(task.stop_reason)
            elif task.timed_out:
                signal = result.signal or "SIGTERM"
                command = outcomes.timed_out(signal, self._timeout_of(task))
        return command or outcomes.ended(result)

    def too_late(self, slot: int, number: int) -> None:
        self._planner.finished(slot, number, None, self._now_ns())
        # If the lease belongs to another worker by now, the release is refused.
        self._release(self._tasks[number], _TOO_LATE)

    def output(self, slot: int, number: int, stream: Stream, data: bytes) -> None:
        self._add_report(self._tasks[number], (stream, data))

    def report(self, slot: int, number: int, report: ChildReport) -> None:
        self._add_report(self._tasks[number], report)

    def _reports_of(self, task: _HeldTask) -> AttemptReports:
        if task.reports is None:
            log, policy, clock = self._context.backend.output, self._context.output, self._clock
            pump = OutputPump(log, clock, task.claimed.task_id, task.claimed.attempt, policy)
            task.reports = AttemptReports(pump, clock)
        return task.reports

    def _add_report(self, task: _HeldTask, report: ChildReport | tuple[Stream, bytes]) -> None:
        self._reports_of(task)
        task.waiting_reports.append(report)
        if len(task.waiting_reports) == _MAX_WAITING_REPORTS and task.slot is not None:
            self._slots.pause_output(task.slot)
        if task.recording is None:
            task.recording = self._start(self._calls, self._record_reports(task))

    async def _record_reports(self, task: _HeldTask) -> None:
        try:
            while task.waiting_reports:
                await self._record(task, task.waiting_reports.pop(0))
        except Exception as error:
            logger.exception("reports.lost", extra={"task_id": task.claimed.task_id})
            task.error = error
            task.waiting_reports.clear()
            self._kill(task)
        task.recording = None
        if task.slot is not None:
            self._slots.resume_output(task.slot)

    async def _record(self, task: _HeldTask, report: ChildReport | tuple[Stream, bytes]) -> None:
        reports = task.reports
        if task.error is not None or reports is None:
            return
        if isinstance(report, tuple):
            await reports.pump.add(*report)
        elif isinstance(report, StepReport):
            await self._store_checkpoint(task, report)
        else:
            await reports.record(report)  # type: ignore[arg-type]

    async def _store_checkpoint(self, task: _HeldTask, report: StepReport) -> None:
        claimed, context = task.claimed, self._context
        previous = task.checkpoint or claimed.row.checkpoint
        save = await store_step(context, claimed.row, claimed.fence, report, previous=previous)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        command = LeaseCommand(claimed.task_id, save, context.transitions.new_id())
        self._post(command, partial(answer_waiter, answered))
        if isinstance(await answered, Applied):
            task.checkpoint = save.key
            if task.slot is not None:
                self._slots.confirm_step(task.slot, task.number, report.name)
        else:
            self.stop(claimed.task_id, AttemptStopReason.FENCED)

    async def _store_output(self, task: _HeldTask, folder: Path | None) -> None:
        """Store output and files of a task that has ended."""
        context, claimed = self._context, task.claimed
        await _recorded(task)
        if folder is not None:
            reports = self._reports_of(task)
            await store_files(context, claimed.row, reports, folder, asyncio.Event())
            self._slots.release_folder(folder)
        if task.reports is not None:
            await task.reports.pump.finish()
            await store_output(context, claimed.row, task.reports.pump)

    def child_ended(self, slot: int, ending: ChildEnding) -> None:
        since_ns = dict(self._planner.running()).get(ending.begun or 0, self._now_ns())
        for plan in self._planner.child_ended(slot, closed=ending.slot_closed):
            if plan.number in ending.not_begun:
                self._wait_again(plan)
        if ending.begun is not None:
            task = self._take_out(ending.begun)
            if task.stop_reason is AttemptStopReason.FENCED:
                self._drop(task, ending.folder)
            else:
                elapsed = (self._now_ns() - since_ns) // 1000 * MICROSECOND
                self._finish_later(task, ending.folder, elapsed, _failure_of(ending))
        self._schedule()
        self._note_change()

    # The task source ----------------------------------------------------------------------------

    def _report(self, task: _HeldTask, command: c.FencedCommand) -> None:
        # One command at most ends an attempt, so its fence identifies the change.
        change_id = f"{task.claimed.fence}.end"
        item = LeaseCommand(task.claimed.task_id, command, change_id)
        self._unanswered += 1
        self._post(item, partial(self._reported, task, command))

    def _reported(self, task: _HeldTask, command: c.FencedCommand, answer: Answer) -> None:
        self._unanswered -= 1
        if isinstance(answer, Applied):
            self.reported += 1
            if task.claimed.has_dependents and isinstance(command, c.Complete):
                remember_result(self._context, task.claimed.task_id, command.result)
        else:
            extra = {"task_id": task.claimed.task_id, "why": str(answer)}
            logger.warning("outcome.refused", extra=extra)
        if isinstance(answer, BackendRejected) and isinstance(command, c.Complete):
            # The outcome cannot be stored: the attempt fails, and another worker may succeed.
            self._report(task, self._outcome(task, worker_failure(answer), command.duration))
        if self._is_empty:
            self._emptied.set()

    def _start(
        self, into: dict[asyncio.Task[None], None], work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        started = asyncio.ensure_future(work)
        into[started] = None
        started.add_done_callback(lambda done: self._ended(into, done))
        return started

    def _ended(self, into: dict[asyncio.Task[None], None], done: asyncio.Task[None]) -> None:
        into.pop(done, None)
        if not done.cancelled() and done.exception() is not None:
            logger.error("slot_task.failed", exc_info=done.exception())
        self._note_change()

    def _now_ns(self) -> int:
        return to_ns(self._clock.elapsed())


def _failure_of(ending: ChildEnding) -> Failure:
    failure = ending.failure or Failure(category=ErrorCategory.CRASH, message="the process ended")
    return replace(
        failure,
        signal=failure.signal or ending.signal,
        peak_rss_bytes=failure.peak_rss_bytes or ending.peak_rss_bytes,
    )


def _is_stopped(task: _HeldTask) -> bool:
    """Whether the task was asked to end: what it returns after that does not count."""
    return task.stop_reason is not None or task.timed_out


async def _recorded(task: _HeldTask) -> None:
    """Return when all reports of a task are recorded."""
    while task.recording is not None:
        await asyncio.wait((task.recording,))


def _fill(task: SlotTask, spec: AttemptSpec) -> None:
    task.input = json.dumps(spec.input)
    if spec.dependency_outputs:
        task.dependency_outputs = json.dumps(dict(spec.dependency_outputs))
    if spec.checkpoints:
        task.checkpoints = json.dumps(dict(spec.checkpoints))
    task.feedback = spec.feedback
    if spec.previous_output is not None:
        task.previous_output = json.dumps(spec.previous_output)
