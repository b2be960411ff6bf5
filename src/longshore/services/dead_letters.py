"""Dead letters: listed, replayed in another round, or discarded by an operator.

No list is stored. Failed tasks are read from their rows and dead messages from the queue, so the
list is correct even if others change them. A message is removed only after its effect is in a row
or an event.

A message that names no task belongs to its queue and to no tenant. The tenant that looks after the
queues sees it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from functools import partial
from heapq import nlargest

from longshore.core.dead_letters import (
    DLQ_SOURCE,
    DeadLetter,
    DeadLetterFilter,
    Disposition,
    KeepMessage,
    dead_letter_of_message,
    dead_letter_of_task,
    disposition_of,
    message_id_of,
)
from longshore.core.documents import safe_name
from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import MessageRejected, TaskFailed, TaskTimeout
from longshore.core.pages import decode_cursor, encode_cursor
from longshore.core.queues import QueueMessage
from longshore.core.tasks.attempt_history import attempts_from_events
from longshore.core.tasks.changes import Change
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.core.text.sanitise import safe_excerpt
from longshore.errors import CommandRefused, NotFound, VersionConflict
from longshore.ports.backend import Backend
from longshore.ports.output import OutputPosition, Stream
from longshore.services import documents as d
from longshore.services.operator_commands import OperatorCommands
from longshore.services.reads import AT_ONCE, iter_history, iter_tasks, list_all, was_removed
from longshore.services.resilience import log_and_continue
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

NO_FILTER = DeadLetterFilter()

_LISTING = "dead letters"
FOLDER = "dead/"  # of the blob store, for messages without a task
_EXCERPT_CHARACTERS = 200
_LAST_LINES = 10
_LINE_CHARACTERS = 500
# More than enough for that many lines, and far less than an attempt may print.
_LAST_CHUNKS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterListing:
    """A page of dead letters, and the total of all pages."""

    items: tuple[DeadLetter, ...]
    total: int
    cursor: str | None = None  # None: the last page


SettleCounts = Counter[str]
"""What was done with the messages in the queues' dead-letter stores.

``failed``: their task was failed. ``dropped``: their task has ended, or another worker runs it.
``unresolved``: without a task; an operator must look at them.
"""


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """Lists, replays, discards and settles dead letters."""

    backend: Backend
    transitions: Transitions
    operator_commands: OperatorCommands
    app: str
    skew_margin: timedelta
    # Ids of messages without a task that were logged.
    _logged: set[str] = field(default_factory=set, init=False)

    async def list_page(
        self,
        tenant: str,
        filter_: DeadLetterFilter = NO_FILTER,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> DeadLetterListing:
        """Returns a page of dead letters, the newest first.

        Raises:
            UsageError: the cursor is not from this listing.
        """
        before = tuple(decode_cursor(_LISTING, cursor, (str, str))) if cursor else None
        total = 0
        newest: list[DeadLetter] = []
        async for letter in self.iter_matching(tenant, filter_):
            total += 1
            if before is None or _sort_key(letter) < before:
                newest.append(letter)
            if len(newest) > limit + AT_ONCE:
                newest = nlargest(limit + 1, newest, key=_sort_key)
        newest = nlargest(limit + 1, newest, key=_sort_key)
        items = tuple(newest[:limit])
        more = encode_cursor(_LISTING, *_sort_key(items[-1])) if len(newest) > limit else None
        return DeadLetterListing(items=items, total=total, cursor=more)

    async def count(
        self, tenant: str, filter_: DeadLetterFilter = NO_FILTER
    ) -> d.DeadLetterCountsDocument:
        """Returns how many there are."""
        tasks, kinds = 0, Counter[tuple[str, str]]()
        async for letter in self.iter_matching(tenant, filter_):
            tasks += letter.replayable
            kinds[letter.queue, letter.kind] += 1
        return d.DeadLetterCountsDocument(
            count=kinds.total(),
            tasks=tasks,
            messages=kinds.total() - tasks,
            kinds=[
                d.DeadLetterKindDocument(queue=queue, category=category, count=count)
                for (queue, category), count in kinds.most_common()
            ],
        )

    async def iter_matching(
        self, tenant: str, filter_: DeadLetterFilter = NO_FILTER
    ) -> AsyncIterator[DeadLetter]:
        """Yields every dead letter that matches, unsorted."""
        failed = iter_tasks(self.backend.ledger, tenant, TaskState.FAILED, job_id=filter_.job_id)
        async for row in failed:
            letter = dead_letter_of_task(row)
            if letter is not None and filter_.matches(letter):
                yield letter
        for message in await self._messages(filter_.queue):
            letter = await self._letter_of(tenant, message)
            if letter is not None and filter_.matches(letter):
                yield letter

    async def _messages(self, queue: str | None) -> Sequence[QueueMessage]:
        """Returns the messages in the dead-letter stores; none where there are no messages."""
        if self.backend.queue is None:
            return []
        return await list_all(partial(self.backend.queue.dead_letters, queue))

    async def _letter_of(self, tenant: str, message: QueueMessage) -> DeadLetter | None:
        row = await self._row_of(message)
        if row is not None and row.spec.tenant != tenant:
            return None
        return dead_letter_of_message(
            message, row, now=self.backend.clock.now(), margin=self.skew_margin
        )

    async def _row_of(self, message: QueueMessage) -> TaskRow | None:
        task_id = message.task_id
        return await self.backend.ledger.get_task(task_id) if isinstance(task_id, str) else None

    async def get(self, tenant: str, letter_id: str) -> DeadLetter:
        """Returns a dead letter by its id.

        Raises:
            NotFound: there is none, or it was replayed, discarded or settled meanwhile.
        """
        letter = None
        if (message_id := message_id_of(letter_id)) is None:
            row = await self.backend.ledger.get_task(letter_id)
            if row is not None and row.spec.tenant == tenant:
                letter = dead_letter_of_task(row)
        else:
            for message in await self._messages(None):
                if message.id == message_id:
                    letter = await self._letter_of(tenant, message)
        if letter is None:
            raise NotFound("dead letter", letter_id)
        return letter

    async def replay(
        self, tenant: str, selected: Sequence[str] | DeadLetterFilter, *, by: str
    ) -> d.ReplayResultDocument:
        """Resume failed tasks in another round; tasks that are no longer failed stay as they are.

        Args:
            selected: The ids of the tasks, or a filter for every failed task that matches; messages
                stay where they are.

        Raises:
            NotFound: there is no such task; nothing was changed.
        """
        if isinstance(selected, DeadLetterFilter):
            letters = self.iter_matching(tenant, selected)
            task_ids = [letter.id async for letter in letters if letter.replayable]
        else:
            task_ids = list(selected)
        rows = {row.id: row for row in await self.backend.ledger.get_tasks(task_ids)}
        by_job: dict[str, list[str]] = {}
        moved_on: dict[str, str] = {}
        for task_id in dict.fromkeys(task_ids):
            row = rows.get(task_id)
            if row is None or row.spec.tenant != tenant:
                raise NotFound("task", task_id)
            if row.state is TaskState.FAILED:
                by_job.setdefault(row.spec.job_id, []).append(task_id)
            else:
                moved_on[task_id] = _describe_state(row)
        rounds: dict[str, int] = {}
        for job_id, task_ids in by_job.items():
            resumed = await self.operator_commands.resume(job_id, task_ids, by=by)
            rounds |= dict.fromkeys(resumed.tasks, resumed.round)
            moved_on |= resumed.refused
        return d.ReplayResultDocument(
            replayed=[
                d.ReplayedTaskDocument(request_id=task_id, round=round_)
                for task_id, round_ in rounds.items()
            ],
            skipped=[
                d.SkippedTaskDocument(request_id=task_id, reason=reason)
                for task_id, reason in moved_on.items()
            ],
        )

    async def discard(self, tenant: str, letter: DeadLetter, *, by: str) -> DeadLetter:
        """Discard a message without a task; an event records the reason and its first characters.

        Raises:
            CommandRefused: it is a task, or belongs to one.
        """
        if letter.message is None:
            reason = "a task that failed is history and stays; only messages can be discarded"
            raise CommandRefused(letter.id, reason)
        if letter.row is not None:
            task_id = letter.row.id
            reason = f"it belongs to task {task_id!r}; the sweeper will fail that task shortly"
            raise CommandRefused(letter.id, reason)
        reason = f"discarded by {by}: {letter.reason}"
        await self._reject(
            tenant, letter.message, reason, EventContext(origin="operator", source="user")
        )
        await self.backend.require_queue().delete_dead_letter(letter.message.id)
        return letter

    async def _reject(
        self, tenant: str, message: QueueMessage, reason: str, context: EventContext
    ) -> None:
        await self.backend.events.append(
            tenant=tenant,
            app=self.app,
            entity_id=message.queue,
            body=MessageRejected(
                queue=message.queue,
                message_id=message.id,
                reason=reason,
                excerpt=safe_excerpt(message.body, limit=_EXCERPT_CHARACTERS),
            ),
            context=context,
            now=self.backend.clock.now(),
        )

    async def settle_messages(self) -> SettleCounts:
        """Fail the tasks of dead messages, and remove the messages.

        Part of every sweep, after expired leases were ended and before tasks are enqueued again.
        """
        settled = SettleCounts()
        staying: set[str] = set()
        for message in await self._messages(None):
            with log_and_continue(logger, "dead_letter.settle_failed", message_id=message.id):
                disposition = await self._decide(message)
                if isinstance(disposition, KeepMessage):
                    staying.add(message.id)
                    self._log_unresolved(message, disposition)
                else:
                    await self.backend.require_queue().delete_dead_letter(message.id)
                    settled["failed" if isinstance(disposition, Change) else "dropped"] += 1
        self._logged.intersection_update(staying)
        settled["unresolved"] = len(staying)
        return settled

    async def settle_received(self, message: QueueMessage, *, tenant: str) -> Disposition:
        """Settle a dead message that the caller has received and will remove.

        When this returns, its effect is durable: in the task's row or, for a message without a
        task, in the blob store and in the history of its queue, which belongs to ``tenant``.
        """
        disposition = await self._decide(message)
        if isinstance(disposition, KeepMessage):
            key = f"{FOLDER}{message.queue}/{safe_name(message.id)}"
            await self.backend.blobs.put(key, message.body.encode(errors="surrogatepass"))
            reason = f"{disposition.reason}; its text is stored as {key}"
            await self._reject(tenant, message, reason, EventContext(origin=DLQ_SOURCE))
            self._log_unresolved(message, disposition)
        return disposition

    async def _decide(self, message: QueueMessage) -> Disposition:
        """Returns the disposition of the message, after the change of its task was committed."""
        while True:
            row, name = await self._row_of(message), message.task_id
            if row is None and isinstance(name, str) and await was_removed(self.backend, name):
                return None
            disposition = disposition_of(
                message,
                row,
                now=self.backend.clock.now(),
                margin=self.skew_margin,
                change_id=self.transitions.new_id(),
            )
            if isinstance(disposition, Change):
                try:
                    await self.transitions.commit(disposition)
                except VersionConflict:
                    continue  # the row has changed: decide again
                extra = {"task_id": disposition.row.id, "message_id": message.id}
                logger.warning("dead_letter.task_failed", extra=extra)
            return disposition

    def _log_unresolved(self, message: QueueMessage, disposition: KeepMessage) -> None:
        if message.id not in self._logged:
            self._logged.add(message.id)
            extra = {"queue": message.queue, "message_id": message.id, "reason": disposition.reason}
            logger.error("dead_letter.orphaned", extra=extra)


def _sort_key(letter: DeadLetter) -> tuple[str, str]:
    return letter.at.astimezone(UTC).isoformat(timespec="microseconds"), letter.id


def _describe_state(row: TaskRow) -> str:
    in_round = f" in round {row.round}" if row.round > 1 else ""
    return f"the task is {row.state.replace('_', ' ')}{in_round}"


async def read_post_mortem(
    backend: Backend, letter: DeadLetter, task: d.TaskDocument | None = None
) -> d.PostMortemDocument:
    """Read what is stored of a dead letter, which may be a task; changes nothing."""
    history: list[Event] = []
    last_lines: list[d.OutputLineDocument] = []
    if (row := letter.row) is not None:
        events = iter_history(backend.events, row.spec.tenant, f"TASK#{row.id}")
        history = [event async for event in events]
        last_lines = await _last_lines(backend, row)
    return d.post_mortem_document(
        letter,
        task,
        ended_by=_ended_by(history),
        attempts=attempts_from_events(history),
        last_lines=last_lines,
    )


def _ended_by(history: Sequence[Event]) -> str | None:
    for event in reversed(history):
        if isinstance(event.body, TaskFailed):
            return event.body.source
        if isinstance(event.body, TaskTimeout):
            return event.context.origin
    return None


async def _last_lines(backend: Backend, row: TaskRow) -> list[d.OutputLineDocument]:
    lines: deque[tuple[Stream, bytes]] = deque(maxlen=_LAST_LINES)
    open_lines: dict[Stream, bytes] = {}
    # If the worker died, the last sequence is unknown: then all output is read.
    position = OutputPosition(row.attempt, max((row.last_output or 0) - _LAST_CHUNKS, 0))
    while batch := await backend.output.read(row.id, after=position, limit=AT_ONCE):
        for entry in batch:
            if entry.stream is not Stream.LOST:
                *whole, rest = (open_lines.pop(entry.stream, b"") + entry.data).split(b"\n")
                lines.extend((entry.stream, line) for line in whole)
                if rest:
                    open_lines[entry.stream] = rest
        position = OutputPosition(batch[-1].attempt, batch[-1].end)
    lines.extend(open_lines.items())
    return [
        d.OutputLineDocument(
            stream=stream.value,  # type: ignore[arg-type]
            text=safe_excerpt(line.decode(errors="replace").rstrip("\r"), limit=_LINE_CHARACTERS),
        )
        for stream, line in lines
    ]
