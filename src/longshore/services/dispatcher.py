"""The dispatcher: when a task has ended, its dependents may become ready and its job may end.

Events only say where to look. What is done is decided from rows, read in this order: the job, then
its tasks. Whoever resumes a task changes the job's row first, so a decision made from a stale task
meets a conflict on the job. Dependents are told before the job is: a job that is recorded as
complete has nothing left to dispatch. All of it can be done twice without harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from longshore.core import job as jobs
from longshore.core import task as tasks
from longshore.core.changes import Refusal
from longshore.core.commands import ParentsDone
from longshore.core.events.codec import EVENT_TYPES
from longshore.core.events.event import Event
from longshore.core.events.folding import EVENT_TO_STATE
from longshore.core.graph import Graph
from longshore.core.ids import split_task_id, task_id_of
from longshore.core.numbers import NO_NUMBERS, NumberSet
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import TaskState
from longshore.errors import BackendUnavailable, CommandRefused, NotFound, VersionConflict
from longshore.ports.backend import Backend
from longshore.ports.presence import Presence
from longshore.services.documents import Documents
from longshore.services.edges import stepped_over
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

CONSUMER = "dispatcher"
ENDING_EVENTS = tuple(
    name for name in EVENT_TYPES if name in EVENT_TO_STATE and EVENT_TO_STATE[name].terminal
)
_AT_ONCE = 256
_LOOKS = 20
_AS_IT_IS = -1  # no event was heard: the row need not be newer than it is
_GRAPHS_KEPT = 4
_Moved = tuple[JobRow, JobRow]


class Dispatcher:
    """Moves jobs forward."""

    def __init__(
        self,
        *,
        backend: Backend,
        transitions: Transitions,
        documents: Documents,
        presence: Presence,
        wait: timedelta,
        look_every: timedelta = timedelta(milliseconds=500),
    ) -> None:
        self._presence = presence
        self._backend = backend
        self._transitions = transitions
        self._documents = documents
        self._graphs = _Graphs(documents)
        self._wait = wait
        self._look_every = look_every

    async def run(self) -> None:
        """Follow the events until cancelled.

        One process of the machine does it; the others only look now and then whether it does, in
        case it is there and yet stands still.
        """
        while True:
            try:
                await self._turn()
            except BackendUnavailable as error:
                logger.warning("dispatch.unavailable", extra={"error": str(error)})
            except Exception:  # the edge: without this loop no job goes on
                logger.exception("dispatch.broken")
            else:
                continue
            await self._backend.clock.sleep(self._look_every)

    async def _turn(self) -> None:
        if self._presence.leads(CONSUMER):
            await self.step(self._wait)
            return
        for _ in range(_LOOKS):
            await self._backend.clock.sleep(self._look_every)
            if self._presence.leads(CONSUMER):
                return
        await self.step(timedelta(0))

    async def step(self, wait: timedelta) -> bool:
        """Deal with one delivery; whether there was one."""
        bus = self._backend.bus
        delivery = await bus.receive(CONSUMER, types=ENDING_EVENTS, limit=_AT_ONCE, wait=wait)
        if delivery is None:
            return False
        heard = _heard(delivery.events)
        with stepped_over(logger, "dispatch.left_to_sweeper", tasks=list(heard)):
            await self._settle(heard)
        await bus.acknowledge(CONSUMER, delivery.receipt)
        return True

    async def hear(self, events: Sequence[Event]) -> list[Event]:
        """Deal with events that somebody else has received; returns those to be brought again.

        What does not end a task is nothing to it.
        """
        ends = [event for event in events if event.type in ENDING_EVENTS]
        settled = await self._settled(_heard(ends))
        stuck = {job_id: error for job_id, (error, _) in settled.items() if error is not None}
        for job_id, error in stuck.items():
            foreseen = isinstance(error, BackendUnavailable)
            level = logging.WARNING if foreseen else logging.ERROR
            extra = {"job_id": job_id, "error": str(error)}
            logger.log(level, "dispatch.stuck", extra=extra, exc_info=None if foreseen else error)
        return [event for event in ends if split_task_id(event.entity_id)[0] in stuck]

    async def settle(self, task_ids: Sequence[str]) -> int:
        """Do what follows from the end of these tasks, in so far as they have ended.

        Returns how many of these ends were news to their jobs.
        """
        return await self._settle(dict.fromkeys(task_ids, _AS_IT_IS))

    async def send_on(self, task_ids: Sequence[str]) -> int:
        """Tell waiting tasks which of their parents their jobs know to have completed.

        Whoever completes is told of at once; this is for those who were not there to hear it.
        Returns how many had something to hear.
        """
        heard = 0
        for job_id in dict.fromkeys(split_task_id(task_id)[0] for task_id in task_ids):
            of_job = [task_id for task_id in task_ids if split_task_id(task_id)[0] == job_id]
            with stepped_over(logger, "dispatch.stuck", job_id=job_id):
                heard += await self._sent_on(job_id, of_job)
        return heard

    async def _sent_on(self, job_id: str, task_ids: Sequence[str]) -> int:
        job = await self._backend.ledger.job(job_id)
        # What has completed stays so, however much later this is.
        done = ParentsDone(numbers=job.completed if job is not None else NO_NUMBERS)
        rows = await self._backend.ledger.tasks(task_ids)
        return sum([await self._told(row.id, done) for row in rows])

    async def tell_end(self, job_id: str) -> bool:
        """Tell the end of a job that is over and has not told so; whether there was need to."""
        return await self._moved(job_id, {}) is not None

    async def _settle(self, heard: Mapping[str, int]) -> int:
        """The same for tasks whose rows must be as new as the events that were heard."""
        settled = (await self._settled(heard)).values()
        errors = [error for error, _ in settled if error is not None]
        if errors:
            raise _gravest(errors)
        return sum(news for _, news in settled)

    async def _settled(
        self, heard: Mapping[str, int]
    ) -> dict[str, tuple[BaseException | None, int]]:
        """By job, what went wrong with it, and how many ends were news to it."""
        by_job: dict[str, dict[str, int]] = {}
        for task_id, sequence in heard.items():
            by_job.setdefault(split_task_id(task_id)[0], {})[task_id] = sequence
        # Together, so that their commits share an fsync; and whichever breaks, the others go on.
        settling = {
            job_id: asyncio.ensure_future(self._moved(job_id, ended))
            for job_id, ended in by_job.items()
        }
        await asyncio.gather(*settling.values(), return_exceptions=True)
        return {job_id: _outcome(one) for job_id, one in settling.items()}

    async def _moved(self, job_id: str, heard: Mapping[str, int]) -> _Moved | None:
        """The job before and after it took note of these ends; None if it had nothing to learn."""
        before: list[JobRow] = []

        async def decide(job: JobRow, now: datetime, change_id: str) -> jobs.JobDecision:
            before.append(job)
            ended = [row for row in await self._rows(heard) if row.state.terminal]
            await self._tell_dependents(job, ended)
            return await self._record(job, ended, now, change_id)

        try:
            after = await self._transitions.job(job_id, decide)
        except CommandRefused:
            logger.debug("dispatch.nothing_new", extra={"job_id": job_id})
        except NotFound:
            logger.exception("dispatch.job_missing", extra={"job_id": job_id})
        else:
            return before[-1], after
        return None

    async def _rows(self, heard: Mapping[str, int]) -> list[TaskRow]:
        """The rows; an event that was faster than its row is waited for, not forgotten."""
        for _ in range(_LOOKS):
            rows = await self._backend.ledger.tasks(list(heard))
            known = {row.id: row.last_sequence for row in rows}
            if all(known.get(task_id, _AS_IT_IS) >= heard[task_id] for task_id in heard):
                return rows
            await self._backend.clock.sleep(self._look_every)
        logger.error("dispatch.row_missing", extra={"tasks": list(heard)})
        return rows

    async def _tell_dependents(self, job: JobRow, ended: list[TaskRow]) -> None:
        told: dict[str, list[int]] = {}
        for row in ended:
            if row.state is TaskState.COMPLETED:
                for key in await self._dependents(job, row):
                    dependent = task_id_of(row.spec.job_id, key)
                    told.setdefault(dependent, []).append(row.spec.number)
        ids = list(told)
        for start in range(0, len(ids), _AT_ONCE):
            await self._tell({task_id: told[task_id] for task_id in ids[start : start + _AT_ONCE]})

    async def _dependents(self, job: JobRow, row: TaskRow) -> Sequence[str]:
        """Keys of the tasks that wait for this one.

        Its spec names those that were submitted with it; only if some were added later is the
        whole graph read.
        """
        if row.spec.number in job.grown:
            return (await self._graphs.of(job)).keys_directly_behind(row.spec.number)
        return await self._documents.load(row.spec.dependents) or ()

    async def _tell(self, told: dict[str, list[int]]) -> None:
        """Tell some dependents: in one commit where that can be, else one by one."""
        if self._backend.ledger.atomic and await self._told_at_once(told):
            return
        for task_id, numbers in told.items():
            await self._told(task_id, ParentsDone(numbers=NumberSet(numbers)))

    async def _told(self, task_id: str, done: ParentsDone) -> bool:
        try:
            await self._transitions.task(task_id, done)
        except CommandRefused:
            logger.debug("dispatch.told_before", extra={"task_id": task_id})
            return False
        except NotFound:
            # It is being added; whoever does that looks who has completed when all are there.
            logger.debug("dispatch.not_there_yet", extra={"task_id": task_id})
            return False
        return True

    async def _told_at_once(self, told: dict[str, list[int]]) -> bool:
        now, change_id = self._backend.clock.now(), self._transitions.new_id()
        rows = await self._backend.ledger.tasks(list(told))
        if len(rows) < len(told):
            return False
        decisions = [
            tasks.apply(
                row, ParentsDone(numbers=NumberSet(told[row.id])), now=now, change_id=change_id
            )
            for row in rows
        ]
        changes = [decision for decision in decisions if not isinstance(decision, Refusal)]
        try:
            if changes:
                await self._transitions.commit(*changes)
        except VersionConflict:
            return False
        return True

    async def _record(
        self, job: JobRow, rows: list[TaskRow], now: datetime, change_id: str
    ) -> jobs.JobDecision:
        ended = [
            jobs.EndedTask(
                number=row.spec.number,
                key=row.spec.key,
                round=row.round,
                state=row.state,
                blocks=await self._behind(job, row),
                usage=row.usage,
            )
            for row in rows
        ]
        statuses: dict[str, str | None] = {}
        if jobs.tells(job, ended):
            states = await self._backend.ledger.task_states(job.id)
            statuses = {
                key: None if state is TaskState.WAITING else state.value
                for key, state in states.items()
            }
        command = jobs.TasksEnded(ended=tuple(ended), statuses=statuses)
        return jobs.apply(job, command, now=now, change_id=change_id)

    async def _behind(self, job: JobRow, row: TaskRow) -> NumberSet:
        """What can no longer run by itself, because this task did not complete."""
        alone = row.spec.dependents is None and row.spec.number not in job.grown
        if row.state is TaskState.COMPLETED or alone:
            return NO_NUMBERS
        return (await self._graphs.of(job)).behind(row.spec.number)


@dataclass(frozen=True, slots=True)
class _Behind:
    """A graph, read the other way: who stands behind whom."""

    keys: Sequence[str]
    directly: Mapping[int, Sequence[int]]

    @classmethod
    def in_graph(cls, graph: Graph) -> _Behind:
        directly: dict[int, list[int]] = {}
        for child, parents in enumerate(graph.parents):
            for parent in parents:
                directly.setdefault(parent, []).append(child)
        return cls(graph.keys, directly)

    def keys_directly_behind(self, number: int) -> list[str]:
        return [self.keys[child] for child in self.directly.get(number, ())]

    def behind(self, number: int) -> NumberSet:
        """Every task that directly or indirectly depends on this one."""
        found: set[int] = set()
        open_ = [number]
        while open_:
            fresh = [child for child in self.directly.get(open_.pop(), ()) if child not in found]
            found.update(fresh)
            open_ += fresh
        return NumberSet(found)


class _Graphs:
    """The graphs that were asked for last.

    Of ten thousand tasks that fail each one asks, and a graph grows with its job: reading it for
    each of them would be work for the square of their number. What is stored under a key stays as
    it is, and a job that gets more tasks gets a graph under another key, so none is ever stale.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._kept: dict[str, _Behind] = {}  # by blob key, the one asked for last at the end

    async def of(self, job: JobRow) -> _Behind:
        key = job.graph.key
        if key is None:  # a small one, which stands in the row
            return await self._read(job)
        found = self._kept.pop(key, None) or await self._read(job)
        self._kept[key] = found
        while len(self._kept) > _GRAPHS_KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    async def _read(self, job: JobRow) -> _Behind:
        return _Behind.in_graph(Graph.from_json(await self._documents.load(job.graph)))


def _heard(events: Sequence[Event]) -> dict[str, int]:
    """The tasks that events tell of, and how new their rows must be."""
    heard: dict[str, int] = {}
    for event in events:
        heard[event.entity_id] = max(event.sequence, heard.get(event.entity_id, 0))
    return heard


def _outcome(moved: asyncio.Future[_Moved | None]) -> tuple[BaseException | None, int]:
    if (error := moved.exception()) is not None:
        return error, 0
    before_and_after = moved.result()
    if before_and_after is None:
        return None, 0
    before, after = before_and_after
    return None, len(after.ended - before.ended)


def _gravest(errors: Sequence[BaseException]) -> BaseException:
    """The one to raise of several; the others are only told.

    That something is out of reach comes first: then all of it is to be done again.
    """
    first = next((error for error in errors if isinstance(error, BackendUnavailable)), errors[0])
    for error in errors:
        if error is not first:
            logger.error("dispatch.stuck", exc_info=error)
    return first
