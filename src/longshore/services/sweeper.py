"""The sweeper: finds what crashes left behind, from rows alone, and mends it.

Every worker has one, and one at a time sweeps: whichever of the machine fills the role. Two at once
would do no harm, because each repair is a commit that only one can win; it would be work for
nothing. Whatever is found is counted and told, because a repair that nobody sees hides a fault.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from longshore.core import task as tasks
from longshore.core.changes import Refusal
from longshore.core.commands import LeaseEnded, RingAgain
from longshore.core.rows import Intent, IntentKind, JobRow
from longshore.errors import (
    BackendUnavailable,
    CommandRefused,
    NotFound,
    VersionConflict,
)
from longshore.ports.backend import Backend
from longshore.ports.ledger import HeldTask
from longshore.ports.presence import Presence
from longshore.services.budgeting import Budgeting
from longshore.services.dead_letters import DeadLetters
from longshore.services.dispatcher import Dispatcher
from longshore.services.edges import stepped_over
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

ROLE = "sweeper"

Finisher = Callable[[JobRow, Intent], Awaitable[bool]]
"""Carries out what is left of an intent; False: somebody was faster."""

_AT_ONCE = 500
# Who does not fill the role sweeps so many times less often, in case the one who does stands still.
_STANDS_IN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SweeperPolicy:
    """How patient the sweeper is."""

    every: timedelta = timedelta(seconds=60)
    look_for_dead_every: timedelta = timedelta(milliseconds=500)
    skew_margin: timedelta = timedelta(seconds=2)
    ring_again_after: timedelta = timedelta(seconds=60)  # then twice that, and so on
    settle_after: timedelta = timedelta(seconds=30)  # the dispatcher's time to do it by itself
    sweeps: bool = True  # False: somebody else does, and this looks after its own machine's dead


@dataclass(slots=True)
class Repairs:
    """How much was mended, by kind."""

    leases_ended: int = 0  # of workers that died or fell silent
    intents_finished: int = 0  # submits, cancellations and resumes that were half done
    dead_letters: int = 0  # messages that were received too often, and had their effect
    ends_recorded: int = 0  # tasks of whose end their job had not heard
    sent_on: int = 0  # tasks that waited for parents which had completed
    jobs_ended: int = 0  # jobs that were over and had not told so
    rung_again: int = 0  # tasks that were due, and nobody came
    unparked: int = 0  # tasks whose budget began anew
    events_published: int = 0

    def by_kind(self) -> dict[str, int]:
        """What there was of each kind of which there was something."""
        counts = ((kind, getattr(self, kind)) for kind in self.__slots__)
        return {kind: count for kind, count in counts if count}

    def __bool__(self) -> bool:
        return bool(self.by_kind())

    def __add__(self, other: Repairs) -> Repairs:
        return Repairs(
            **{kind: getattr(self, kind) + getattr(other, kind) for kind in self.__slots__}
        )


class Sweeper:
    """Mends what crashes leave behind.

    ``publish`` brings out events that were committed and have not reached the bus, and says how
    many; None where the bus reads the log itself.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        dispatcher: Dispatcher,
        dead_letters: DeadLetters,
        budgeting: Budgeting,
        finishers: Mapping[IntentKind, Finisher],
        presence: Presence,
        policy: SweeperPolicy,
        publish: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self._backend = backend
        self._transitions = transitions
        self._dispatcher = dispatcher
        self._dead_letters = dead_letters
        self._budgeting = budgeting
        self._finishers = finishers
        self._presence = presence
        self._policy = policy
        self._publish = publish
        self._settles_from = timedelta(0)
        self._begins_with = 0
        self.repairs = Repairs()

    async def run(self) -> None:
        """Sweep at a steady pace, and at a quicker one for workers that died; until cancelled.

        One process of the machine does, and when it ends the next one at once. The others only
        sweep now and then, in case it is there and yet stands still.
        """
        clock, every = self._backend.clock, self._policy.every
        leads, next_sweep = False, clock.elapsed() + _STANDS_IN * every
        while True:
            try:
                if not leads and self._presence.leads(ROLE):
                    leads, next_sweep = True, clock.elapsed()
                    # Whoever dispatches has just begun as well, and has its own way of catching up.
                    self._settles_from = clock.elapsed() + self._policy.settle_after
                if self._policy.sweeps and clock.elapsed() >= next_sweep:
                    await self.sweep()
                    next_sweep = clock.elapsed() + (every if leads else _STANDS_IN * every)
                elif leads:
                    await self.bury_the_dead()
            except BackendUnavailable as error:
                logger.warning("sweep.unavailable", extra={"error": str(error)})
            except Exception:  # the edge: without this loop nothing is ever mended
                logger.exception("sweep.broken")
            await clock.sleep(min(self._policy.look_for_dead_every, every))

    async def sweep(self) -> Repairs:
        """Mend everything that can be found now; returns what this call mended."""
        before, self.repairs = self.repairs, Repairs()
        try:
            # In this order; one that breaks must not keep those after it from being made.
            for mend in self._in_turn():
                with stepped_over(logger, "sweep.broken", repair=mend.__name__):
                    await mend()
        finally:
            done, self.repairs = self.repairs, before + self.repairs
            if done:
                logger.warning("sweep.repaired", extra=done.by_kind())
        return done

    def _in_turn(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Every kind of repair, beginning behind the one that the last sweep was cut off in.

        Where a sweep has only so much time, one kind with very much to do would else be all that is
        ever done.
        """
        mends = (
            self.bury_the_dead,
            self._end_silent_leases,
            self._finish_intents,
            self._settle_and_ring,
            self._record_ends,
            self._send_on,
            self._tell_ends,
            self._unpark,
            self._publish_the_rest,
        )
        first = self._begins_with
        for number in (*range(first, len(mends)), *range(first)):
            self._begins_with = (number + 1) % len(mends)
            yield mends[number]
        self._begins_with = 0

    async def bury_the_dead(self) -> None:
        """End the leases of workers on this machine whose process is known to be gone."""
        absent = [worker_id for worker_id in self._presence.absent() if self._cleared(worker_id)]
        if not absent:
            return
        for task in await self._all_held():
            if task.worker_id in absent:
                await self._end(task, holder_gone=True)
        for worker_id in absent:
            with stepped_over(logger, "worker.not_buried", worker_id=worker_id):
                self._presence.leave(worker_id)

    def _cleared(self, worker_id: str) -> bool:
        """Whether what is left of its attempts is dead: before that nobody may start them."""
        with stepped_over(logger, "worker.not_cleared", worker_id=worker_id):
            self._presence.clear(worker_id)
            return True
        return False

    async def _all_held(self) -> list[HeldTask]:
        """All of them in one reading: between two, leases move on and might be passed over."""
        limit = _AT_ONCE
        while len(held := await self._backend.ledger.held(limit=limit)) >= limit:
            limit *= 2
        return held

    async def _end_silent_leases(self) -> None:
        mended = True
        while mended:
            over_by = self._backend.clock.now() - self._policy.skew_margin
            found = await self._backend.ledger.held(limit=_AT_ONCE, expired_by=over_by)
            mended = any([await self._end(task, holder_gone=False) for task in found])

    async def _end(self, task: HeldTask, *, holder_gone: bool) -> bool:
        command = LeaseEnded(
            fence=task.fence, margin=self._policy.skew_margin, holder_gone=holder_gone
        )
        ended = False
        with (
            stepped_over(logger, "lease.stuck", task_id=task.task_id),
            contextlib.suppress(CommandRefused, NotFound),  # it moved on by itself
        ):
            row = await self._transitions.task(task.task_id, command)
            ended = True
        if not ended:
            return False
        with stepped_over(logger, "reservation.left", task_id=task.task_id):
            await self._budgeting.attempt_lost(row, began=row.started_at or row.spec.created_at)
        self.repairs.leases_ended += 1
        extra = {"task_id": task.task_id, "worker_id": task.worker_id, "gone": holder_gone}
        logger.warning("lease.ended_for_silent_worker", extra=extra)
        return True

    async def _finish_intents(self) -> None:
        async for page in _pages(self._backend.ledger.open_intents):
            for job_id in page:
                # One job that cannot be mended must not keep all others from it.
                with stepped_over(logger, "intent.stuck", job_id=job_id):
                    job = await self._backend.ledger.job(job_id)
                    if job is not None:
                        await self._finish_intents_of(job)

    async def _finish_intents_of(self, job: JobRow) -> None:
        """In their order: tasks must be there before they can be cancelled."""
        for intent in job.intents:
            self.repairs.intents_finished += await self._finishers[intent.kind](job, intent)

    async def _settle_and_ring(self) -> None:
        """Never the other way round: a task whose message wore out workers is not rung again."""
        with stepped_over(logger, "sweep.broken", repair=self._settle_dead_letters.__name__):
            await self._settle_dead_letters()
        await self._ring_again()

    async def _settle_dead_letters(self) -> None:
        settled = await self._dead_letters.settle()
        self.repairs.dead_letters += settled.failed + settled.dropped

    async def _record_ends(self) -> None:
        ledger, clock = self._backend.ledger, self._backend.clock
        if clock.elapsed() < self._settles_from:
            return
        ended_by = clock.now() - self._policy.settle_after
        async for page in _pages(partial(ledger.unrecorded_ends, ended_by=ended_by)):
            with stepped_over(logger, "dispatch.stuck"):
                self.repairs.ends_recorded += await self._dispatcher.settle(page)

    async def _send_on(self) -> None:
        async for page in _pages(self._backend.ledger.untold_parents):
            self.repairs.sent_on += await self._dispatcher.send_on(page)

    async def _tell_ends(self) -> None:
        async for page in _pages(self._backend.ledger.untold_ends):
            for job_id in page:
                with stepped_over(logger, "dispatch.stuck", job_id=job_id):
                    self.repairs.jobs_ended += await self._dispatcher.tell_end(job_id)

    async def _ring_again(self) -> None:
        mended = True
        while mended:
            now = self._backend.clock.now()
            rung_before = now - self._policy.ring_again_after
            unrung = await self._backend.ledger.unrung(
                due_by=now, rung_before=rung_before, limit=_AT_ONCE
            )
            mended = any([await self._rung(task_id, rung_before) for task_id in unrung])

    async def _rung(self, task_id: str, rung_before: datetime) -> bool:
        with stepped_over(logger, "ring.stuck", task_id=task_id):
            return await self._ring(task_id, rung_before)
        return False

    async def _ring(self, task_id: str, rung_before: datetime) -> bool:
        row = await self._backend.ledger.task(task_id)
        if row is None or (row.rung_at is not None and row.rung_at >= rung_before):
            return False
        now, change_id = self._backend.clock.now(), self._transitions.new_id()
        change = tasks.apply(row, RingAgain(), now=now, change_id=change_id)
        if isinstance(change, Refusal):
            return False
        try:
            await self._transitions.commit(change)
        except VersionConflict:
            return False  # it was taken, or somebody else has rung
        self.repairs.rung_again += 1
        return True

    async def _unpark(self) -> None:
        self.repairs.unparked += await self._budgeting.unpark()

    async def _publish_the_rest(self) -> None:
        if self._publish is not None:
            self.repairs.events_published += await self._publish()


async def _pages(ask: Callable[..., Awaitable[list[str]]]) -> AsyncIterator[list[str]]:
    """All that there is, also behind what cannot be mended."""
    after = ""
    while page := await ask(limit=_AT_ONCE, after=after):
        yield page
        after = page[-1]
