"""Dead letters: found, shown, given another round, or forgotten by a person's word.

Nothing here keeps a list of its own. Failed tasks are read from their rows and dead messages from
the queue's store, so the list is true whoever else changes them. A message is removed only after
what it stood for is in a row or an event.

A message that names no task belongs to its queue and to no tenant: whoever looks after the queue
sees it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import nlargest

from longshore.core.blob_keys import safe_name
from longshore.core.changes import Change
from longshore.core.cursors import cursor_to, place_of
from longshore.core.dead_letters import (
    SOURCE,
    DeadFilter,
    DeadLetter,
    DeadMessage,
    Fate,
    Stays,
    fate_of,
    message_named,
    of_message,
    of_task,
)
from longshore.core.events.event import Context
from longshore.core.events.types import MessageRejected
from longshore.core.rows import TaskRow
from longshore.core.sanitise import safe_excerpt
from longshore.core.states import TaskState
from longshore.errors import CommandRefused, NotFound, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.edges import stepped_over
from longshore.services.resuming import Resuming
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

EVERYTHING = DeadFilter()

_AT_ONCE = 500
_LISTING = "dead letters"
_FOLDER = "dead/"  # of the blob store, for whole messages that lead nowhere
_EXCERPT_CHARACTERS = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A page of dead letters, and how many there are on all pages."""

    items: tuple[DeadLetter, ...]
    total: int
    cursor: str | None = None  # None: this was all


@dataclass(slots=True)
class Counts:
    """How many dead letters there are, and of what kind."""

    tasks: int = 0
    messages: int = 0
    by_kind: Counter[tuple[str, str]] = field(default_factory=Counter)  # queue and category

    @property
    def total(self) -> int:
        """All of them."""
        return self.tasks + self.messages

    def add(self, letter: DeadLetter) -> None:
        """Count one more."""
        self.tasks += letter.replayable
        self.messages += not letter.replayable
        self.by_kind[letter.queue, letter.kind] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a replay, by the ids of the tasks."""

    rounds: Mapping[str, int]  # of those that have another round, which it is
    moved_on: Mapping[str, str]  # of the others, why not


@dataclass(slots=True)
class Settled:
    """What became of the messages in the queues' own dead-letter stores."""

    failed: int = 0  # made their task fail
    dropped: int = 0  # their task is finished, or in good hands
    staying: int = 0  # lead to no task: a person must look at them

    def __bool__(self) -> bool:
        return bool(self.failed or self.dropped)


class DeadLetters:
    """What nobody will look at again by itself."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        resuming: Resuming,
        app: str,
        skew_margin: timedelta,
    ) -> None:
        self._backend = backend
        self._transitions = transitions
        self._resuming = resuming
        self._app = app
        self._margin = skew_margin
        self._told: set[str] = set()  # ids of the messages that stay, of which we have told

    async def page(
        self,
        tenant: str,
        wanted: DeadFilter = EVERYTHING,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Found:
        """Dead letters, those that died last first.

        Raises:
            UsageError: the cursor was not made by this listing.
        """
        before = tuple(place_of(_LISTING, cursor, (int, str))) if cursor else None
        total = 0
        newest: list[DeadLetter] = []
        async for letter in self.matching(tenant, wanted):
            total += 1
            if before is None or _place(letter) < before:
                newest.append(letter)
            if len(newest) > limit + _AT_ONCE:
                newest = nlargest(limit + 1, newest, key=_place)
        newest = nlargest(limit + 1, newest, key=_place)
        items = tuple(newest[:limit])
        more = cursor_to(_LISTING, *_place(items[-1])) if len(newest) > limit else None
        return Found(items=items, total=total, cursor=more)

    async def count(self, tenant: str, wanted: DeadFilter = EVERYTHING) -> Counts:
        """How many there are."""
        counts = Counts()
        async for letter in self.matching(tenant, wanted):
            counts.add(letter)
        return counts

    async def matching(
        self, tenant: str, wanted: DeadFilter = EVERYTHING
    ) -> AsyncIterator[DeadLetter]:
        """Every dead letter that is meant, in no order."""
        async for row in self._failed(tenant, wanted.job_id):
            letter = of_task(row)
            if letter is not None and wanted.fits(letter):
                yield letter
        async for message in self._messages(wanted.queue):
            letter = await self._of_message(tenant, message)
            if letter is not None and wanted.fits(letter):
                yield letter

    async def _failed(self, tenant: str, job_id: str | None) -> AsyncIterator[TaskRow]:
        cursor: str | None = None
        while True:
            page = await self._backend.ledger.list_tasks(
                tenant, job_id=job_id, state=TaskState.FAILED, limit=_AT_ONCE, cursor=cursor
            )
            for row in page.items:
                yield row
            cursor = page.cursor
            if cursor is None:
                return

    async def _messages(self, queue: str | None) -> AsyncIterator[DeadMessage]:
        """What the queues' dead-letter stores hold; the caller may remove it meanwhile."""
        seen: set[str] = set()
        limit = _AT_ONCE
        while True:
            found = await self._backend.queue.dead_letters(queue, limit=limit)
            for message in found:
                if message.id not in seen:
                    seen.add(message.id)
                    yield DeadMessage(
                        id=message.id,
                        queue=message.queue,
                        body=message.body,
                        receives=message.receives,
                        sent_at=message.sent_at,
                    )
            if len(found) < limit:
                return
            limit *= 2

    async def _of_message(self, tenant: str, message: DeadMessage) -> DeadLetter | None:
        row = await self._row_of(message)
        if row is not None and row.spec.tenant != tenant:
            return None
        return of_message(message, row, now=self._backend.clock.now(), margin=self._margin)

    async def _row_of(self, message: DeadMessage) -> TaskRow | None:
        task_id = message.task_id
        return await self._backend.ledger.task(task_id) if isinstance(task_id, str) else None

    async def find(self, tenant: str, letter_id: str) -> DeadLetter:
        """One dead letter by its whole id.

        Raises:
            NotFound: there is none: there never was, or it has moved on.
        """
        letter = None
        if (message_id := message_named(letter_id)) is None:
            row = await self._backend.ledger.task(letter_id)
            if row is not None and row.spec.tenant == tenant:
                letter = of_task(row)
        else:
            async for message in self._messages(None):
                if message.id == message_id:
                    letter = await self._of_message(tenant, message)
        if letter is None:
            raise NotFound("dead letter", letter_id)
        return letter

    async def replay(self, tenant: str, task_ids: Sequence[str], *, by: str) -> Replayed:
        """Give failed tasks another round; those that have moved on are left as they are.

        Raises:
            NotFound: there is no such task; nothing was changed.
        """
        rows = {row.id: row for row in await self._backend.ledger.tasks(task_ids)}
        by_job: dict[str, list[str]] = {}
        moved_on: dict[str, str] = {}
        for task_id in dict.fromkeys(task_ids):
            row = rows.get(task_id)
            if row is None or row.spec.tenant != tenant:
                raise NotFound("task", task_id)
            if row.state is TaskState.FAILED:
                by_job.setdefault(row.spec.job_id, []).append(task_id)
            else:
                moved_on[task_id] = _whereabouts(row)
        rounds: dict[str, int] = {}
        for job_id, wanted in by_job.items():
            resumed = await self._resuming.resume(job_id, wanted, by=by)
            rounds |= dict.fromkeys(resumed.tasks, resumed.round)
            moved_on |= resumed.refused
        return Replayed(rounds=rounds, moved_on=moved_on)

    async def replay_matching(
        self, tenant: str, wanted: DeadFilter = EVERYTHING, *, by: str
    ) -> Replayed:
        """Give every failed task that is meant another round; messages stay where they are."""
        letters = [letter async for letter in self.matching(tenant, wanted)]
        task_ids = [letter.id for letter in letters if letter.replayable]
        return await self.replay(tenant, task_ids, by=by)

    async def discard(self, tenant: str, letter_id: str, *, by: str) -> DeadLetter:
        """Forget a message that leads to no task; an event keeps why, and how it began.

        Raises:
            NotFound: there is no such dead letter.
            CommandRefused: it is a task, or speaks for one.
        """
        letter = await self.find(tenant, letter_id)
        if letter.message is None:
            reason = "a task that failed is history and stays; only messages can be discarded"
            raise CommandRefused(letter_id, reason)
        if letter.row is not None:
            reason = f"it speaks for task {letter.row.id!r}, which the next sweep of a worker ends"
            raise CommandRefused(letter_id, reason)
        reason = f"discarded by {by}: {letter.reason}"
        await self._reject(
            tenant, letter.message, reason, Context(origin="operator", source="user")
        )
        await self._backend.queue.drop_dead_letter(letter.message.id)
        return letter

    async def _reject(
        self, tenant: str, message: DeadMessage, reason: str, context: Context
    ) -> None:
        await self._backend.events.append(
            tenant=tenant,
            app=self._app,
            entity_id=message.queue,
            body=MessageRejected(
                queue=message.queue,
                message_id=message.id,
                reason=reason,
                excerpt=safe_excerpt(message.body, limit=_EXCERPT_CHARACTERS),
            ),
            context=context,
            now=self._backend.clock.now(),
        )

    async def settle(self) -> Settled:
        """Let dead messages have their effect: their tasks fail, and they go.

        Part of every sweep, after silent leases were ended and before anything is rung again.
        """
        settled = Settled()
        staying: set[str] = set()
        async for message in self._messages(None):
            with stepped_over(logger, "dead_letter.stuck", message_id=message.id):
                fate = await self._settle(message)
                if isinstance(fate, Stays):
                    staying.add(message.id)
                    self._tell(message, fate)
                else:
                    settled.failed += isinstance(fate, Change)
                    settled.dropped += not isinstance(fate, Change)
        self._told &= staying
        settled.staying = len(staying)
        return settled

    async def take(self, message: DeadMessage, *, tenant: str) -> Fate:
        """Let one dead message have its effect that somebody else has received, and will remove.

        When this returns, nothing is lost with it: what it stood for is in a row, or, of one that
        leads to no task, in the blob store and in the history of its queue, which is ``tenant``'s.
        """
        fate = await self._decided(message)
        if isinstance(fate, Stays):
            await self._keep(message, fate, tenant)
            self._tell(message, fate)
        return fate

    async def _keep(self, message: DeadMessage, fate: Stays, tenant: str) -> None:
        key = f"{_FOLDER}{message.queue}/{safe_name(message.id)}"
        await self._backend.blobs.put(key, message.body.encode(errors="surrogatepass"))
        reason = f"{fate.reason}; its whole text is kept as {key}"
        await self._reject(tenant, message, reason, Context(origin=SOURCE))

    async def _settle(self, message: DeadMessage) -> Fate:
        fate = await self._decided(message)
        if not isinstance(fate, Stays):
            await self._backend.queue.drop_dead_letter(message.id)
        return fate

    async def _decided(self, message: DeadMessage) -> Fate:
        """What becomes of the message; what becomes of its task has been committed."""
        while True:
            row = await self._row_of(message)
            fate = fate_of(
                message,
                row,
                now=self._backend.clock.now(),
                margin=self._margin,
                change_id=self._transitions.new_id(),
            )
            if isinstance(fate, Change):
                try:
                    await self._transitions.commit(fate)
                except VersionConflict:
                    continue  # it has changed: what was true of it may not be any more
                extra = {"task_id": fate.row.id, "message_id": message.id}
                logger.warning("dead_letter.ended_its_task", extra=extra)
            return fate

    def _tell(self, message: DeadMessage, fate: Stays) -> None:
        if message.id not in self._told:
            self._told.add(message.id)
            extra = {"queue": message.queue, "message_id": message.id, "reason": fate.reason}
            logger.error("dead_letter.leads_nowhere", extra=extra)


def _place(letter: DeadLetter) -> tuple[int, str]:
    return (letter.at - _EPOCH) // _MICROSECOND, letter.id


def _whereabouts(row: TaskRow) -> str:
    in_round = f" in round {row.round}" if row.round > 1 else ""
    return f"the task is {row.state.replace('_', ' ')}{in_round}"
