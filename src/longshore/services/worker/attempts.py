"""The attempts of a worker: every claimed task, from its row to its committed outcome.

Python tasks that need no process of their own run in child slots, without a coroutine for each of
them. ``core.slot_plan`` decides which slot runs which task, and what the children report arrives by
callbacks on the event loop. Only a task that needs more than its row has (results of parents, saved
steps, a large input), or leaves more than a short result (output, files, a large result), gets a
coroutine. So does every task with a process of its own.

The order at the end is always: nothing of the child is alive, its files and its output are stored,
the outcome is committed. A crash between any two of these loses nothing and repeats nothing that a
caller can observe.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from longshore.core.claims import DefinitionVersion
from longshore.core.definitions.definition import Definition, Isolation, RunnerKind
from longshore.core.documents import INLINE_LIMIT_BYTES, Document, EncodedJson
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
from longshore.errors import (
    BackendRejected,
    BackendUnavailable,
    LeaseLost,
    NotFound,
    UsageError,
)
from longshore.ports.child_slots import (
    ChildEnding,
    ChildSlots,
    SlotOutcome,
    SlotTask,
    runs_in_slot,
)
from longshore.ports.output import Stream
from longshore.ports.runner import (
    AttemptSpec,
    ChildReport,
    ConversationReport,
    RunnerBroken,
    RunningAttempt,
    SpendRequest,
    StepReport,
    UsageReport,
)
from longshore.ports.task_source import Answer, Applied, ClaimedTask, LeaseCommand
from longshore.services.resilience import log_and_continue, pauses_within, race
from longshore.services.worker.attempt_specs import (
    build_attempt_spec,
    remember_result,
    results_at_hand,
    timeout_of,
)
from longshore.services.worker.budget_check import BudgetCheck, open_budget_check
from longshore.services.worker.context import (
    MICROSECOND,
    AttemptStopReason,
    WorkerContext,
    pause_before_release,
    to_ns,
)
from longshore.services.worker.output import (
    STOPPING,
    AttemptReports,
    Outcome,
    OutputPump,
    failed_before_start,
    hold_queue,
    store_conversation,
    store_files,
    store_output,
    store_result,
    store_step,
    worker_failure,
)

logger = logging.getLogger(__name__)

NOT_BEGUN = "the worker had no time for it"
_UNREACHABLE = "the worker could not reach its store"
_TOO_LATE = "the worker could not renew the lease in time"
# A slot is trusted a little shorter than its tasks, so that it is not set for each of them.
_TRUST_STEP_NS = 1_000_000_000
_TIMER_SLACK_NS = 1_000_000
_OPEN_PAUSE = timedelta(seconds=1)
_MAX_WAITING_REPORTS = 100

_DEATH_CATEGORIES = frozenset({ErrorCategory.CRASH, ErrorCategory.OUT_OF_MEMORY})
_STOPPED = Failure(category=ErrorCategory.CRASH, message="the attempt was stopped")

Post = Callable[[LeaseCommand, Callable[[Answer], None]], None]
"""Sends a command to the task source and calls back with its answer."""


@lru_cache(maxsize=4096)
def slot_task_number(task_id: str) -> int:
    """The number by which slots, and the record of what was begun, know a task."""
    digest = hashlib.blake2b(task_id.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 1) or 1


@dataclass(slots=True, eq=False)
class _Attempt:
    """One run of a claimed task, until its outcome is committed."""

    claimed: ClaimedTask
    number: int
    claimed_at_ns: int
    trusted_until_ns: int
    task: SlotTask = field(init=False)  # not there before its definition is read
    slot: int | None = None  # None: it waits for one, has its own process, or has ended
    has_ended: bool = False  # what it has left is being stored
    stop_reason: AttemptStopReason | None = None
    timed_out: bool = False
    start_next: Callable[[], None] | None = None  # starts the next attempt of the same task
    reports: AttemptReports | None = None  # None: it has reported nothing and printed nothing
    child: RunningAttempt | None = None  # a process of its own, which may be alive
    own_process: bool = False  # or it is about to have one
    stopped: asyncio.Future[None] = field(init=False)  # with its own process: done to stop it
    budget_check: BudgetCheck | None = None  # None: no budget limits it


class Attempts:
    """Runs the tasks of a worker. See ``ports.child_slots.SlotListener``.

    Args:
        units: How many tasks the worker runs at once.
        post: Sends a command under a lease.
        on_change: Called when units or room may have become free.
        on_broken: Called when no attempt can be started any more.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        units: int,
        post: Post,
        on_change: Callable[[], None],
        on_broken: Callable[[RunnerBroken], None],
    ) -> None:
        self._context = context
        self._clock = context.backend.clock
        self._trusted_for_ns = to_ns(context.lease.trusted_for)
        self._slots: ChildSlots  # not there without ``make_slots``: then nothing is planned
        self._has_slots = context.make_slots is not None
        if context.make_slots is not None:
            self._slots = context.make_slots(self)
        self._units = units
        self._planner = SlotPlanner(units)
        self._outside = 0  # units that are in use outside of slots
        self._post = post
        self._on_change = on_change
        self._on_broken = on_broken
        self._current: dict[int, _Attempt] = {}
        self._trusted: dict[int, int] = {}  # until when each slot may run what it has
        # Dicts for their order: a simulation must cancel them in the same order each time.
        self._working: dict[asyncio.Task[None], None] = {}  # coroutines of attempts that need one
        self._calls: dict[asyncio.Task[None], None] = {}
        self._unanswered = 0  # outcomes that the source has not answered
        self._scheduled: asyncio.Handle | None = None
        self._outcomes_at_ns = 0
        self._timer: asyncio.Task[None] | None = None
        self._timer_ends_ns = 0
        self._stopping = False  # what has not begun is released
        self._closed = False
        self._emptied = asyncio.Event()
        self.ended: Counter[type[c.FencedCommand]] = Counter()  # by the command that ended them

    # For the worker -----------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """The units in use."""
        return self._planner.busy + len(self._working)

    @property
    def task_ids(self) -> list[str]:
        """Ids of the tasks that this worker has."""
        return [attempt.claimed.task_id for attempt in self._current.values()]

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

    def add(self, claimed: ClaimedTask, sent_at: timedelta) -> None:
        """Run a claimed task.

        Args:
            sent_at: A moment of the clock that is not later than the start of the lease.
        """
        number, sent_at_ns = slot_task_number(claimed.task_id), to_ns(sent_at)
        if (earlier := self._current.get(number)) is not None:
            # Its lease is lost, and it has not ended yet.
            self._stop(earlier, AttemptStopReason.FENCED)
            earlier.stop_reason = AttemptStopReason.FENCED
            earlier.start_next = partial(self.add, claimed, sent_at)
            return
        attempt = _Attempt(claimed, number, sent_at_ns, sent_at_ns + self._trusted_for_ns)
        self._current[number] = attempt
        definition: Definition | None = self._context.definition_cache.get(claimed.definition)
        if definition is None:
            self._outside += 1
            self._work(attempt, self._read_definition(attempt))
        else:
            self._begin(attempt, definition)

    async def _read_definition(self, attempt: _Attempt) -> None:
        """Begin the first task of a version of a definition, which is read and kept."""
        try:
            spec = await self._read_spec(attempt)
        finally:
            self._outside -= 1
        if spec is not None:
            self._begin(attempt, spec.definition)

    def _begin(self, attempt: _Attempt, definition: Definition) -> None:
        claimed, context = attempt.claimed, self._context
        tenant, task_id, job_id = claimed.definition[0], claimed.task_id, claimed.job_id
        number, fence, ordinal = attempt.number, claimed.fence, claimed.attempt
        attempt.task = SlotTask(number, fence, tenant, task_id, job_id, ordinal, definition)
        in_slot = self._has_slots and runs_in_slot(definition)
        text = claimed.plain_input if in_slot else None
        results = None if text is None else results_at_hand(context, claimed)
        if text is not None and results is not None:
            attempt.task.input = text
            attempt.task.dependency_outputs = results or None
            self._make_ready(attempt)
            return
        if attempt.stop_reason is None and claimed.row.cancel is not None:
            attempt.stop_reason = AttemptStopReason.CANCELLED
        if attempt.stop_reason is not None or self._stopping:
            self._end_unbegun(attempt)
        elif in_slot:
            self._work(attempt, self._prepare(attempt))
        elif self._outside + len(self._planner.busy_slots()) >= self._units:
            # Tasks claimed ahead for a busy slot may have begun in an idle one, whose unit the
            # source gave away again meanwhile.
            self._release(attempt, NOT_BEGUN)
        else:
            self._outside += 1
            attempt.own_process = True
            attempt.stopped = asyncio.get_running_loop().create_future()
            self._reports_of(attempt)  # renewals keep the row in it, also before there is a child
            self._work(attempt, self._run_child(attempt))

    def _make_ready(self, attempt: _Attempt) -> None:
        if attempt.stop_reason is not None or self._stopping:
            self._end_unbegun(attempt)
            return
        version, isolation = attempt.claimed.definition, attempt.task.definition.isolation
        self._planner.claimed(SlotTaskPlan(attempt.number, version[0], version, isolation))
        self._schedule()

    def _work(self, attempt: _Attempt, work: Coroutine[Any, Any, None]) -> None:
        self._start(self._working, self._fail_on_error(attempt, work))

    async def _fail_on_error(self, attempt: _Attempt, work: Coroutine[Any, Any, None]) -> None:
        """Prepare, run or finish an attempt; an unexpected error becomes a failed attempt."""
        try:
            await work
        except Exception as error:
            logger.exception("attempt.failed", extra={"task_id": attempt.claimed.task_id})
            if self._current.get(attempt.number) is attempt:
                self._fail(attempt, worker_failure(error))
        except BaseException:  # this process ends, or the worker is closed
            self._current.pop(attempt.number, None)
            raise
        finally:
            self._leave_work()

    def _leave_work(self) -> None:
        """The unit of this coroutine is free, or counted elsewhere. ``_ended`` is called later."""
        if (this := asyncio.current_task()) is not None:
            self._working.pop(this, None)

    async def _prepare(self, attempt: _Attempt) -> None:
        if (spec := await self._read_spec(attempt)) is not None:
            if spec.is_long:
                await asyncio.to_thread(_write_documents, attempt.task, spec)
            else:
                _write_documents(attempt.task, spec)
            self._make_ready(attempt)

    async def _read_spec(self, attempt: _Attempt) -> AttemptSpec | None:
        """Read everything that the row refers to. Returns None if the attempt has ended."""
        claimed, context = attempt.claimed, self._context
        try:
            spec = await context.transitions.retry_unavailable(
                lambda: build_attempt_spec(context, claimed.row, claimed.fence)
            )
        except (UsageError, NotFound, BackendUnavailable) as error:
            # Not a release: what can run in a slot and is not in the record of the slots counts as
            # not begun.
            self._fail(attempt, failed_before_start(error))
        else:
            if attempt.stop_reason is None:
                return spec
            self._end_unbegun(attempt)  # it was stopped meanwhile
        return None

    def _fail(self, attempt: _Attempt, failure: Failure) -> None:
        if attempt.child is not None:
            # While the child may be alive, another worker must not start the next attempt.
            self._drop(attempt)
        else:
            self._end(attempt, self._outcome(attempt, failure, timedelta(0)))

    # Processes of their own ---------------------------------------------------------------------

    async def _run_child(self, attempt: _Attempt) -> None:
        """Run an attempt in a process of its own.

        An attempt that has ended has freed its unit: the turn that commits its outcome claims the
        next task.
        """
        try:
            ended = await self._execute(attempt)
        finally:
            self._outside -= 1
            self._schedule()
        if ended is not None:
            await self._finish(attempt, *ended)

    async def _execute(self, attempt: _Attempt) -> tuple[timedelta, Any] | None:
        """Returns the duration and the result or failure; None if the attempt has not begun."""
        spec, agent_slots = await self._read_spec(attempt), self._context.agent_slots
        if spec is None:
            return None
        if not await agent_slots.acquire(spec, attempt.stopped):
            self._end_unbegun(attempt)
            return None
        try:
            return await self._start_child(attempt, spec)
        except (LeaseLost, BackendUnavailable) as error:
            if isinstance(error, LeaseLost) or attempt.child is not None:
                self._drop(attempt)
            else:
                self._release(attempt, f"{_UNREACHABLE}: {error}", begun=True)
        finally:
            agent_slots.release(spec)
        return None

    async def _start_child(
        self, attempt: _Attempt, spec: AttemptSpec
    ) -> tuple[timedelta, Any] | None:
        context, reports = self._context, self._reports_of(attempt)
        renew = partial(self.renew_one, attempt)
        check = await open_budget_check(context, spec, reports, attempt.stopped, renew)
        attempt.budget_check = check
        if check is not None and check.stop is not None:
            return timedelta(0), _STOPPED
        if self._now_ns() >= attempt.trusted_until_ns:
            # Preparing took too long: another worker may have claimed the task.
            self._drop(attempt)
            return None
        if attempt.stop_reason is not None:
            self._end_unbegun(attempt)
            return None
        spec = replace(spec, has_budget=check is not None)
        try:
            child = await context.runner.start(spec, deadline_ns=self._deadline_ns(attempt))
        except RunnerBroken as error:
            self._release(attempt, str(error), begun=True)
            self._on_broken(error)
            return None
        except UsageError as error:
            self._fail(attempt, failed_before_start(error))
            return None
        except BackendUnavailable as error:
            await self._release_unstarted(attempt, error)
            return None
        attempt.child = child
        try:
            context.worker_registry.record_child(context.worker_id, child.process_id)
            return await self._follow(attempt, child, spec.timeout, reports)
        finally:
            await self._close_child(attempt, child)

    async def _release_unstarted(self, attempt: _Attempt, error: Exception) -> None:
        """Release a task that no process could be started for, after a backoff."""
        extra = {"task_id": attempt.claimed.task_id, "error": str(error)}
        logger.warning("child.start_failed", extra=extra)
        pause = self._clock.sleep(pause_before_release(attempt.claimed.row))
        async with race(pause, self._wait_for_lease_end(attempt), attempt.stopped):
            pass
        if attempt.stop_reason in (None, AttemptStopReason.DRAINED):
            self._release(attempt, str(error), begun=True)
        else:
            self._end_unbegun(attempt)

    async def _follow(
        self, attempt: _Attempt, child: RunningAttempt, timeout: timedelta, reports: AttemptReports
    ) -> tuple[timedelta, Any]:
        """Run the child to its end or stop it.

        On exit the child is dead and its reports are read, also if the caller is cancelled.
        """
        # Not since the claim: it may have waited for a task.
        began_at = self._clock.elapsed()
        reading = asyncio.ensure_future(self._read_reports(attempt, child))
        try:
            result: Any
            if await self._child_ends(attempt, reading, timeout) and reports.error is None:
                ending = await child.ending()
                result = ending.result
                if ending.failure is not None:
                    result = _with_peak(ending.failure, ending.peak_rss_bytes)
            else:
                lost = reports.error is not None
                grace = timedelta(0) if lost else self._context.lease.kill_grace
                result = replace(_STOPPED, signal=await child.stop(grace=grace))
                await reading
            attempt.has_ended = True
            duration = self._clock.elapsed() - began_at
            await store_files(self._context, attempt.claimed.row, reports, child.folder)
            check = attempt.budget_check
            if isinstance(result, Failure) and check is not None and check.stop is not None:
                note = f"longshore: parked, {check.stop.reason}\n"
                await reports.pump.add(Stream.LOG, note.encode())
            return duration, result
        finally:
            try:
                await child.stop(grace=timedelta(0))
                await asyncio.gather(reading, return_exceptions=True)
            finally:
                await reports.pump.finish()

    async def _child_ends(
        self, attempt: _Attempt, reading: asyncio.Future[None], timeout: timedelta
    ) -> bool:
        """Wait for the end of the child's reports, or for a reason to stop it.

        Returns whether the child ends by itself; if several apply, that counts, then the lease.
        """
        slept, lease_end = self._clock.sleep(timeout), self._wait_for_lease_end(attempt)
        async with race(reading, slept, lease_end, attempt.stopped) as (_, _, lease_ended, _):
            if reading.done():
                return True
            if lease_ended.done():
                self._stop(attempt, AttemptStopReason.FENCED)
            attempt.timed_out = attempt.stop_reason is None
            return False

    async def _close_child(self, attempt: _Attempt, child: RunningAttempt) -> None:
        """Stop and close a child; a failed cleanup does not cost the outcome."""
        extra = {"task_id": attempt.claimed.task_id}
        with log_and_continue(logger, "child.close_failed", **extra):
            try:
                await child.stop(grace=timedelta(0))
                attempt.child = None
                context = self._context
                context.worker_registry.forget_child(context.worker_id, child.process_id)
            finally:
                await child.close()

    def _deadline_ns(self, attempt: _Attempt) -> int:
        """When the reaper kills the child, should this worker not end it before."""
        return attempt.trusted_until_ns + to_ns(self._context.lease.kill_grace)

    async def _wait_for_lease_end(self, attempt: _Attempt) -> None:
        while (left_ns := attempt.trusted_until_ns - self._now_ns()) > 0:
            await self._clock.sleep(left_ns // 1000 * MICROSECOND)

    async def _read_reports(self, attempt: _Attempt, child: RunningAttempt) -> None:
        try:
            async for report in child.reports():
                await self._record(attempt, report)
                del report  # it may be long
        except Exception as error:  # noqa: BLE001 - it is logged
            self._lose_reports(attempt, error)

    # Actions ------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self._scheduled is None and not self._closed:
            self._scheduled = asyncio.get_running_loop().call_soon(self._act)

    def _act(self) -> None:
        self._scheduled = None
        now_ns = self._now_ns()
        for action in self._planner.decide(now_ns, taken=self._outside):
            match action:
                case GiveTask(slot=slot, number=number):
                    self._give(slot, number)
                case OpenSlot(isolation=isolation):
                    self._start(self._calls, self._open(isolation))
                case TakeBack(slot=slot):
                    # For another slot, or for another worker.
                    self._return(slot, self._slots.take_back(slot))
                    self._schedule()
                case GiveUp(number=number):
                    self._release(self._current[number], NOT_BEGUN)
                case ReplaceChild(slot=slot):
                    self._slots.replace(slot)
        self._set_timer(now_ns)

    def _give(self, slot: int, number: int) -> None:
        attempt = self._current[number]
        # Before the task is given: its child may read it at once, and begins nothing untrusted.
        trusted_ns = self._trusted.get(slot)
        if trusted_ns is None or not 0 <= attempt.trusted_until_ns - trusted_ns < _TRUST_STEP_NS:
            self._update_trust(slot)
        try:
            accepted = self._slots.give(slot, attempt.task)
        except OSError as error:  # its record cannot be written: for example, the disk is full
            self._planner.taken_back(slot, [number])
            attempt.own_process = True  # its slot has nothing of it
            attempt.stopped = asyncio.get_running_loop().create_future()
            releasing = self._release_unstarted(attempt, error)
            self._start(self._working, self._fail_on_error(attempt, releasing))
        else:
            if accepted:
                attempt.slot = slot
            else:
                self._planner.not_given(slot, number)

    def _update_trust(self, slot: int) -> None:
        """Let the children of a slot run until the first of its leases is no longer trusted."""
        numbers = self._planner.numbers_in(slot)
        trusted = min([self._current[number].trusted_until_ns for number in numbers])
        if trusted != self._trusted.get(slot):
            self._trusted[slot] = trusted
            self._slots.trust_until(slot, trusted)

    async def _open(self, isolation: Isolation) -> None:
        try:
            slot = await self._slots.open_slot(isolation)
        except (UsageError, BackendUnavailable) as error:
            logger.warning("slot.open_failed", extra={"error": str(error)})
            self._planner.slot_not_opened(isolation)
            await self._clock.sleep(_OPEN_PAUSE)
            if not self._planner.has_slots(isolation):
                self._release_waiting(isolation, str(error))
            if isinstance(error, RunnerBroken):
                self._on_broken(error)
        else:
            self._trusted.pop(slot, None)  # the number may have been used before
            self._planner.slot_opened(slot, isolation)
        self._schedule()
        self._on_change()

    def _release_waiting(self, isolation: Isolation | None, reason: str) -> None:
        """Release the tasks that wait for a slot of this kind, or of any kind."""
        # Not those that are being prepared, or have ended: they are in no slot either.
        for attempt in [self._current[number] for number in self._planner.waiting]:
            if isolation in (None, attempt.task.definition.isolation):
                self._planner.forget(attempt.number)
                self._release(attempt, reason)

    def _return(self, slot: int, numbers: Iterable[int]) -> None:
        """Tasks have not begun in a slot: they wait for another, or end if they were stopped."""
        for plan in self._planner.taken_back(slot, numbers):
            self._wait_again(plan)

    def _wait_again(self, plan: SlotTaskPlan) -> None:
        attempt = self._current[plan.number]
        attempt.slot = None
        if attempt.stop_reason is not None or self._stopping:
            self._end_unbegun(attempt)
        else:
            self._planner.claimed(plan)

    def _set_timer(self, now_ns: int) -> None:
        """End tasks that have timed out, and look again when others may, or a child may stall."""
        waits: list[int] = []
        for number, since_ns in self._planner.running():
            attempt = self._current[number]
            left_ns = since_ns + to_ns(self._timeout_of(attempt)) - now_ns
            if not attempt.timed_out and left_ns <= 0:
                attempt.timed_out = True
                self._kill(attempt)
            elif not attempt.timed_out:
                waits.append(left_ns)
        stalls_in_ns = self._planner.next_check_ns(now_ns)
        if stalls_in_ns is not None:
            waits.append(stalls_in_ns)
        if not waits:
            return
        ends_ns = now_ns + min(waits) + _TIMER_SLACK_NS
        if self._timer is not None:
            if self._timer_ends_ns <= ends_ns:
                return
            self._timer.cancel()
        self._timer_ends_ns = ends_ns
        self._timer = self._start(self._calls, self._wait_for_timer(ends_ns - now_ns))

    async def _wait_for_timer(self, wait_ns: int) -> None:
        await self._clock.sleep(wait_ns // 1000 * MICROSECOND)
        self._timer = None
        self._act()

    def _timeout_of(self, attempt: _Attempt) -> timedelta:
        return timeout_of(attempt.task.definition) or self._context.timeout

    # Stopping -----------------------------------------------------------------------------------

    def stop(self, task_id: str, reason: AttemptStopReason) -> None:
        """Stop a task for a reason; the first reason counts."""
        if (attempt := self._current.get(slot_task_number(task_id))) is not None:
            self._stop(attempt, reason)

    def _stop(self, attempt: _Attempt, reason: AttemptStopReason) -> None:
        if attempt.reports is not None and reason is not AttemptStopReason.CANCELLED:
            attempt.reports.deadline_near.set()
        if attempt.stop_reason is not None or attempt.has_ended:
            return  # its outcome is about to be reported
        attempt.stop_reason = reason
        if attempt.own_process:
            attempt.stopped.set_result(None)
        elif attempt.slot is None:
            if attempt.number in self._planner.waiting:
                self._planner.forget(attempt.number)
                self._end_unbegun(attempt)
        elif attempt.number == self._planner.first_in(attempt.slot):
            self._kill(attempt)
        else:
            self._return(attempt.slot, self._slots.take_back(attempt.slot))
            self._schedule()

    def stop_all(self, reason: AttemptStopReason) -> None:
        """Stop all tasks for a reason."""
        for task_id in self.task_ids:
            self.stop(task_id, reason)

    def kill_children(self) -> None:
        """Kill what runs, without a grace period."""
        self._context.worker_registry.reap(self._context.worker_id)
        for slot in self._planner.busy_slots():
            self._kill_child(slot, timedelta(0))

    def release_unbegun(self) -> None:
        """Release every task that has not begun, so that another worker can begin it."""
        self._stopping = True
        for slot in self._planner.busy_slots():
            self._return(slot, self._slots.take_back(slot))
        self._release_waiting(None, STOPPING)

    def _kill(self, attempt: _Attempt) -> None:
        if attempt.slot is not None:
            fenced = attempt.stop_reason is AttemptStopReason.FENCED
            grace = timedelta(0) if fenced else self._context.lease.kill_grace
            self._kill_child(attempt.slot, grace)
            self._schedule()

    def _kill_child(self, slot: int, grace: timedelta) -> None:
        self._planner.child_ending(slot)
        self._return(slot, self._slots.kill(slot, grace=grace))

    def _end_unbegun(self, attempt: _Attempt) -> None:
        """End an attempt that was stopped before it has begun."""
        if attempt.stop_reason is AttemptStopReason.CANCELLED:
            self._end(attempt, c.ConfirmCancel(fence=attempt.claimed.fence))
        elif attempt.stop_reason is AttemptStopReason.FENCED:
            self._drop(attempt)
        else:
            self._release(attempt, STOPPING)

    def _drop(self, attempt: _Attempt) -> None:
        """Report nothing: the lease is lost."""
        extra = {"task_id": attempt.claimed.task_id, "fence": attempt.claimed.fence}
        logger.warning("attempt.fenced", extra=extra)
        self._remove(attempt)
        self._note_change()

    def _release(self, attempt: _Attempt, reason: str, *, begun: bool = False) -> None:
        """Release an attempt. One that has not begun keeps its place in the queue."""
        claimed = attempt.claimed
        due_at = None if begun else claimed.due_at
        release = c.Release(fence=claimed.fence, reason=error_text(reason), due_at=due_at)
        self._end(attempt, release)

    def _end(self, attempt: _Attempt, command: Outcome) -> None:
        self._remove(attempt)
        self._unanswered += 1
        self._report(attempt, command)

    def _remove(self, attempt: _Attempt) -> None:
        del self._current[attempt.number]
        if attempt.start_next is not None:
            attempt.start_next()

    async def wait_until_empty(self) -> None:
        """Return when no task is held, and every outcome is answered."""
        while not self._is_empty:
            self._emptied.clear()
            await self._emptied.wait()

    @property
    def _is_empty(self) -> bool:
        return not (self._current or self._working or self._unanswered)

    def _note_change(self) -> None:
        if self._is_empty:
            self._emptied.set()
        self._on_change()

    async def close(self) -> None:
        """Kill all children; nothing more is reported."""
        self._closed = True
        for call in (*self._calls, *self._working):
            call.cancel()
        await asyncio.gather(*self._calls, *self._working, return_exceptions=True)
        if self._has_slots:
            await self._slots.close()

    # Leases -------------------------------------------------------------------------------------

    async def renew(self) -> bool:
        """Renew the leases of tasks that have been held for a while. Returns whether all are."""
        old_ns = self._now_ns() - to_ns(self._context.lease.renew_every) // 2
        due = [attempt for attempt in self._current.values() if attempt.claimed_at_ns <= old_ns]
        return all(await asyncio.gather(*(self.renew_one(attempt) for attempt in due)))

    async def renew_one(self, attempt: _Attempt) -> bool:
        """Renew a lease, and record activity and usage. Returns whether that succeeded."""
        sent_at = self._clock.elapsed()
        try:
            answer = await self._send(attempt.claimed, self._renewal(attempt))
            if self._current.get(attempt.number) is attempt:
                self._renewed(attempt, sent_at, answer)
        except Exception as error:  # no error may end the loop that renews all leases
            answer = BackendUnavailable(str(error))
            logger.exception("renewal.crashed", extra={"task_id": attempt.claimed.task_id})
        return isinstance(answer, Applied)

    def _renewal(self, attempt: _Attempt) -> c.Renew:
        # The process id of a child that has ended may be reused.
        child, pid = None if attempt.has_ended else attempt.child, 0
        if attempt.slot is not None:
            pid = self._slots.process_id(attempt.slot)
        return c.Renew(
            fence=attempt.claimed.fence,
            lease_duration=self._context.lease.duration,
            process_id=child.process_id if child else pid,
            rss_bytes=child.rss_bytes() if child else 0,
            activity=attempt.reports.activity if attempt.reports else None,
            usage=attempt.reports.usage if attempt.reports else NO_USAGE,
        )

    def _renewed(self, attempt: _Attempt, sent_at: timedelta, answer: Answer) -> None:
        if isinstance(answer, Refusal):
            self._stop(attempt, AttemptStopReason.FENCED)
        elif isinstance(answer, Applied):
            # Answers may arrive out of order: an older one must not shorten the trust.
            trusted_ns = to_ns(sent_at + self._context.lease.trusted_for)
            attempt.trusted_until_ns = max(attempt.trusted_until_ns, trusted_ns)
            if attempt.slot is not None:
                self._update_trust(attempt.slot)
            if attempt.child is not None:
                attempt.child.trust_until(self._deadline_ns(attempt))
            if attempt.reports is not None:
                attempt.reports.update_row(answer.row)
            if answer.row.cancel is not None:
                self._stop(attempt, AttemptStopReason.CANCELLED)
        else:
            extra = {"task_id": attempt.claimed.task_id, "error": str(answer)}
            logger.warning("renewal.failed", extra=extra)

    # What the children say ----------------------------------------------------------------------

    def outcome(self, slot: int, outcome: SlotOutcome) -> None:
        if self._scheduled is None:
            self._outcomes_at_ns = self._now_ns()  # of all that are read together
        self._planner.finished(slot, outcome.number, outcome.duration_ns, self._outcomes_at_ns)
        attempt = self._take_out(outcome.number)
        duration = outcome.duration_ns // 1000 * MICROSECOND
        result, failure = outcome.result, outcome.failure
        has_left_more = attempt.reports is not None or outcome.folder is not None
        if (
            isinstance(result, str)
            and len(result) <= INLINE_LIMIT_BYTES // 4
            and not has_left_more
            and not _is_stopped(attempt)
        ):
            document = Document(text=result, size=len(result.encode()))
            fence = attempt.claimed.fence
            command = c.Complete(fence=fence, result=document, duration=duration, exit_code=0)
            self._end(attempt, command)
        else:
            if _is_stopped(attempt):
                failure = failure or _STOPPED
            if failure is not None:
                failure = _with_peak(failure, outcome.peak_rss_bytes)
            self._finish_later(attempt, outcome.folder, duration, failure or result or "null")
        self._schedule()

    def _take_out(self, number: int) -> _Attempt:
        """A task that was begun has ended."""
        attempt = self._current[number]
        attempt.slot = None
        attempt.has_ended = True
        return attempt

    def _finish_later(
        self,
        attempt: _Attempt,
        folder: Path | None,
        duration: timedelta,
        result: str | EncodedJson | Failure,
    ) -> None:
        if attempt.stop_reason is AttemptStopReason.FENCED:
            self._drop(attempt)
            if folder is not None:
                self._slots.release_folder(folder)
            return
        self._work(attempt, self._finish(attempt, duration, result, folder))

    async def _finish(
        self, attempt: _Attempt, duration: timedelta, result: Any, folder: Path | None = None
    ) -> None:
        """Store what an attempt has left, then report its outcome.

        Args:
            result: Or a failure. A child slot reports a result as JSON text.
        """
        context, row, documents = self._context, attempt.claimed.row, self._context.documents
        await self._store_output(attempt, folder)
        if attempt.reports is not None and attempt.reports.error is not None:
            result = worker_failure(attempt.reports.error)
        elif not isinstance(result, Failure):
            in_slot = isinstance(result, str) and not attempt.own_process
            store = documents.store_text if in_slot else documents.store
            result = await store_result(context, row, store, result)
        command = self._outcome(attempt, result, duration)
        if attempt.task.definition.runner is RunnerKind.AGENT:
            # First: the turn that commits the outcome may claim the next task of the queue.
            await hold_queue(context, row, command)
        if attempt.stop_reason is AttemptStopReason.FENCED:
            self._drop(attempt)
        else:
            self._end(attempt, command)

    def _outcome(
        self, attempt: _Attempt, result: Document | Failure, duration: timedelta
    ) -> Outcome:
        """Returns the command for the way in which an attempt has ended."""
        reports, check = attempt.reports, attempt.budget_check
        facts: dict[str, Any] = {"fence": attempt.claimed.fence}
        if reports is not None:
            facts.update(usage=reports.usage, last_output=reports.pump.last_stored)
        if not isinstance(result, Failure):
            return c.Complete(result=result, duration=duration, exit_code=0, **facts)
        if attempt.stop_reason is AttemptStopReason.CANCELLED:
            return c.ConfirmCancel(**facts)
        if attempt.stop_reason is AttemptStopReason.DRAINED:
            return c.Release(reason=STOPPING, **facts)
        if attempt.timed_out:
            return c.TimeOut(
                timeout=self._timeout_of(attempt),
                elapsed=duration,
                signal=result.signal or "SIGTERM",
                jitter=self._context.jitter(),
                **facts,
            )
        if reports is not None and isinstance(reports.error, BackendUnavailable):
            # Not the task's fault: the attempt does not count.
            return c.Release(reason=error_text(f"{_UNREACHABLE}: {reports.error}"), **facts)
        if check is not None and check.stop is not None:
            return c.Park(
                scope=check.stop.scope,
                unit=check.stop.exhausted.unit,
                reason=check.stop.reason,
                until=check.stop.until,
                allowance=check.stop.allowance,
                duration=duration,
                **facts,
            )
        jitter = self._context.jitter()
        return c.AttemptFailed(failure=result, jitter=jitter, duration=duration, **facts)

    def too_late(self, slot: int, number: int) -> None:
        self._planner.finished(slot, number, None, self._now_ns())
        # If the lease belongs to another worker by now, the release is refused.
        self._release(self._current[number], _TOO_LATE)

    def report(self, slot: int, number: int, report: ChildReport) -> None:
        self._add_report(self._current[number], report)

    def _reports_of(self, attempt: _Attempt) -> AttemptReports:
        if attempt.reports is None:
            claimed = attempt.claimed
            pump = OutputPump(self._context, claimed.task_id, claimed.attempt)
            attempt.reports = AttemptReports(pump, claimed.row)
        return attempt.reports

    def _add_report(self, attempt: _Attempt, report: ChildReport) -> None:
        reports = self._reports_of(attempt)
        reports.waiting.append(report)
        if len(reports.waiting) == _MAX_WAITING_REPORTS and attempt.slot is not None:
            self._slots.pause_output(attempt.slot)
        if reports.recording is None:
            recording = self._record_reports(attempt, reports)
            reports.recording = self._start(self._calls, recording)

    async def _record_reports(self, attempt: _Attempt, reports: AttemptReports) -> None:
        try:
            while reports.waiting:
                await self._record(attempt, reports.waiting.pop(0))
        except Exception as error:  # noqa: BLE001 - it is logged
            self._lose_reports(attempt, error)
            reports.waiting.clear()
            self._kill(attempt)
        reports.recording = None
        if attempt.slot is not None:
            self._slots.resume_output(attempt.slot)

    def _lose_reports(self, attempt: _Attempt, error: Exception) -> None:
        """The worker has failed to record a report: the attempt has to end."""
        self._reports_of(attempt).error = error
        if isinstance(error, LeaseLost):
            self._stop(attempt, AttemptStopReason.FENCED)
        else:
            extra = {"task_id": attempt.claimed.task_id}
            logger.error("reports.lost", extra=extra, exc_info=error)

    async def _record(self, attempt: _Attempt, report: ChildReport) -> None:
        reports = self._reports_of(attempt)
        if reports.error is not None:
            return
        match report:
            case StepReport():
                await self._store_checkpoint(attempt, report, reports)
            case ConversationReport():
                reports.conversation_parts += 1
                row, number = attempt.claimed.row, reports.conversation_parts
                await store_conversation(self._context, row, report, number)
            case SpendRequest():
                await self._answer_spend_request(attempt, report)
            case UsageReport():
                await self._record_usage(attempt, report, reports)
            case _:
                await reports.record(report)

    async def _record_usage(
        self, attempt: _Attempt, report: UsageReport, reports: AttemptReports
    ) -> None:
        paid, check = reports.usage.cost_usd, attempt.budget_check
        reports.usage = report.usage
        # Recorded before the next call is paid for, so that a crash cannot lose it.
        recorded = await self.renew_one(attempt) if report.usage.cost_usd > paid else None
        if check is not None and report.settled_request is not None:
            await check.settle(report.settled_request, report.usage, recorded=recorded)
            if check.waiting is not None:
                await self._answer_spend_request(attempt, check.waiting)

    async def _answer_spend_request(self, attempt: _Attempt, request: SpendRequest) -> None:
        refusal, check = None, attempt.budget_check
        if check is not None:
            await check.decide(request)
            if check.waiting is not None:
                return
            refusal = check.stop.reason if check.stop is not None else None
        if attempt.child is not None:
            await attempt.child.answer_spend_request(request.number, refusal=refusal)

    async def _store_checkpoint(
        self, attempt: _Attempt, step: StepReport, reports: AttemptReports
    ) -> None:
        claimed = attempt.claimed
        previous = reports.checkpoint or claimed.row.checkpoint
        save = await store_step(self._context, claimed.row, claimed.fence, step, previous=previous)
        answer = await self._send(claimed, save)
        if isinstance(answer, BackendUnavailable | BackendRejected):
            raise answer
        if isinstance(answer, Refusal):
            self._stop(attempt, AttemptStopReason.FENCED)
            return
        reports.checkpoint = save.key
        reports.update_row(answer.row)
        if attempt.child is not None:
            await attempt.child.confirm_step(step.name)
        if attempt.slot is not None:
            self._slots.confirm_step(attempt.slot, attempt.number, step.name)

    async def _store_output(self, attempt: _Attempt, folder: Path | None) -> None:
        """Store output and files of an attempt that has ended."""
        while attempt.reports is not None and attempt.reports.recording is not None:
            await asyncio.wait((attempt.reports.recording,))
        if folder is not None:
            reports = self._reports_of(attempt)
            await store_files(self._context, attempt.claimed.row, reports, folder)
            self._slots.release_folder(folder)
        if attempt.reports is not None:
            if not attempt.own_process:  # otherwise it is finished
                await attempt.reports.pump.finish()
            if attempt.stop_reason is not AttemptStopReason.FENCED:
                pump = attempt.reports.pump
                if not await store_output(self._context, attempt.claimed.task_id, pump):
                    attempt.stop_reason = AttemptStopReason.FENCED

    def child_ended(self, slot: int, ending: ChildEnding) -> None:
        since_ns = dict(self._planner.running()).get(ending.begun or 0, self._now_ns())
        for plan in self._planner.child_ended(slot, closed=ending.slot_closed):
            if plan.number in ending.not_begun:
                self._wait_again(plan)
        if ending.begun is not None:
            elapsed = (self._now_ns() - since_ns) // 1000 * MICROSECOND
            attempt = self._take_out(ending.begun)
            self._finish_later(attempt, ending.folder, elapsed, _failure_of(ending))
        self._schedule()
        self._note_change()

    # The task source ----------------------------------------------------------------------------

    async def _send(self, claimed: ClaimedTask, command: c.FencedCommand) -> Answer:
        """Returns the source's answer to a command that does not end the attempt."""
        change_id = self._context.transitions.new_id()
        return await self._ask(LeaseCommand(claimed.task_id, command, change_id))

    async def _ask(self, item: LeaseCommand) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._post(item, partial(_set_result, answered))
        return await answered

    def _report(self, attempt: _Attempt, command: Outcome) -> None:
        self._post(_last_command(attempt, command), partial(self._reported, attempt, command))

    def _reported(
        self, attempt: _Attempt, command: Outcome, answer: Answer, *, is_last: bool = False
    ) -> None:
        claimed = attempt.claimed
        if isinstance(answer, Applied):
            self.ended[type(command)] += 1
            if logger.isEnabledFor(logging.DEBUG):
                outcome, number = type(command).__name__, claimed.attempt
                ended = {"task_id": claimed.task_id, "attempt": number, "outcome": outcome}
                logger.debug("attempt.ended", extra=ended)
            if claimed.has_dependents and isinstance(command, c.Complete):
                remember_result(self._context, claimed.task_id, command.result)
            if attempt.budget_check is not None:
                self._start(self._working, self._close_budgets(attempt.budget_check))
        elif isinstance(answer, BackendUnavailable) and not (is_last or self._closed):
            self._start(self._calls, self._report_again(attempt, command))
            return
        else:
            extra = {"task_id": claimed.task_id, "why": str(answer)}
            logger.warning("outcome.refused", extra=extra)
        if isinstance(answer, BackendRejected) and isinstance(command, c.Complete):
            # The outcome cannot be stored: the attempt fails, and another worker may succeed.
            failure = worker_failure(answer)
            self._report(attempt, self._outcome(attempt, failure, command.duration))
            return
        self._unanswered -= 1
        if self._is_empty:
            self._emptied.set()

    async def _report_again(self, attempt: _Attempt, command: Outcome) -> None:
        """Report an outcome through an outage, for as long as a lease lasts."""
        answer: Answer = BackendUnavailable()
        for pause in pauses_within(self._clock, self._context.lease.duration):
            await self._clock.sleep(pause)
            answer = await self._ask(_last_command(attempt, command))
            if not isinstance(answer, BackendUnavailable):
                break
        self._reported(attempt, command, answer, is_last=True)

    async def _close_budgets(self, check: BudgetCheck) -> None:
        await check.close()
        self._leave_work()

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


def _write_documents(task: SlotTask, spec: AttemptSpec) -> None:
    task.input = json.dumps(spec.input)
    task.dependency_outputs = json.dumps(dict(spec.dependency_outputs))
    task.checkpoints = json.dumps(dict(spec.checkpoints))
    task.feedback = spec.feedback
    task.previous_output = json.dumps(spec.previous_output)


def _last_command(attempt: _Attempt, command: Outcome) -> LeaseCommand:
    # One command at most ends an attempt, so its fence identifies the change.
    claimed = attempt.claimed
    return LeaseCommand(claimed.task_id, command, f"{claimed.fence}.end")


def _failure_of(ending: ChildEnding) -> Failure:
    failure = ending.failure or Failure(category=ErrorCategory.CRASH, message="the process ended")
    return replace(
        failure,
        signal=failure.signal or ending.signal,
        peak_rss_bytes=failure.peak_rss_bytes or ending.peak_rss_bytes,
    )


def _is_stopped(attempt: _Attempt) -> bool:
    """Whether the task was asked to end: what it returns after that does not count."""
    return attempt.stop_reason is not None or attempt.timed_out


def _set_result(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _with_peak(failure: Failure, peak_rss_bytes: int | None) -> Failure:
    """The peak memory may explain a death."""
    if failure.category in _DEATH_CATEGORIES and failure.peak_rss_bytes is None:
        failure = replace(failure, peak_rss_bytes=peak_rss_bytes)
    return failure
