"""The task source in SQLite: the index of ready tasks is the queue, and a turn is one transaction.

A turn reads the rows of its commands, decides, and writes them; then it settles the jobs of ended
tasks; then it claims. Core decides, except for the usual case, whose rules are written here a
second time because they run for every task: a claim, and the completion, of a task whose row has
only usual values (no ``rest``), and the end of its job of one task. Tests compare both.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.configuration import active_pauses
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.history import (
    BY_DISPATCHER,
    COMPLETED,
    JOB_COMPLETED,
    STARTED,
    pack_record,
)
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.rows import (
    JOB_STATE_NUMBERS,
    NUMBER_BITS,
    SELECT_JOB,
    SELECT_TASK,
    TASK_COLUMNS,
    TASK_STATE_NUMBERS,
    StoreReader,
    from_ms,
    pack_change_id,
    pack_document,
    to_ms,
    unpack_document,
    unpack_job_id,
)
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.core.claims import (
    ClaimPosition,
    DefinitionVersion,
    Room,
    choose,
)
from longshore.core.documents import Document
from longshore.core.events.types import NO_USAGE
from longshore.core.ids import task_id_of
from longshore.core.jobs.settle import settle
from longshore.core.queues import QueueDepth
from longshore.core.tasks import commands as c
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal, RefusalReason, TaskChange
from longshore.core.tasks.lease import next_fence
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import JobState, Priority, TaskState
from longshore.errors import BackendRejected, OutcomeUnknown, WorkerGone
from longshore.ports.task_source import (
    Answer,
    Applied,
    ClaimedTask,
    LeaseCommand,
    Turn,
    WorkerInstance,
)

logger = logging.getLogger(__name__)

Values = Sequence[Any]
"""The columns of ``SELECT_TASK``."""

_NO_TURN = ""  # the id of work that is no turn of the worker
_MAX_CLAIMED_ROWS = 10_000  # rows of claimed tasks in memory; others are read again
_RETRY_PAUSE = timedelta(seconds=30)  # before a row that cannot be read is tried again
_MICROSECOND, _MILLISECOND = timedelta(microseconds=1), timedelta(milliseconds=1)
_PENDING, _PROCESSING, _COMPLETED = (
    TASK_STATE_NUMBERS[state]
    for state in (TaskState.PENDING, TaskState.PROCESSING, TaskState.COMPLETED)
)
_JOB_RUNNING, _JOB_COMPLETED = (
    JOB_STATE_NUMBERS[state] for state in (JobState.RUNNING, JobState.COMPLETED)
)


def _at(*names: str) -> tuple[int, ...]:
    return tuple(map(TASK_COLUMNS.index, names))


_NO, _KEY, _KIND, _TENANT, _CREATED, _INPUT = _at(
    "no", "key", "kind", "tenant", "created_us", "input"
)
_PARENTS, _DEPENDENTS, _STATE, _VERSION, _CHANGE = _at(
    "parents", "dependents", "state", "version", "change_id"
)
_UPDATED, _EVENT, _SEQUENCE, _ATTEMPT, _FENCE = _at(
    "updated_ms", "event_ms", "sequence", "attempt", "fence"
)
_WORKER, _LEASE, _DUE, _STARTED, _FINISHED = _at(
    "worker", "lease_ms", "due_us", "started_ms", "finished_ms"
)
_RAN, _LAST_OUTPUT, _RESULT = _at("ran_us", "last_output", "result")
_UNSETTLED, _HISTORY, _REST = _at("unsettled", "history", "rest")


def _update(*names: str) -> tuple[str, Callable[[Values], Values]]:
    """A statement that changes columns of a task, and what takes its bindings from a row."""
    sql = f"UPDATE tasks SET {', '.join(f'{name}=?' for name in names)} WHERE no=?"
    return sql, itemgetter(*_at(*names), _NO)


_TASK_BY_NO = f"{SELECT_TASK} WHERE t.no = ?"
_READY = (
    f"{SELECT_TASK.replace('tasks AS t', 'tasks AS t INDEXED BY tasks_ready', 1)}"
    f" WHERE t.state = {_PENDING} AND t.queue = ? AND t.lane = ? AND t.tenant = ?"
    " AND t.due_us < ? AND (t.due_us, t.no) > (?, ?) ORDER BY t.due_us, t.no LIMIT ?"
)
_FIRST_READY = (0, 0)
_LINE = (
    "SELECT * FROM (SELECT lane, tenant, due_us FROM tasks INDEXED BY tasks_ready"
    f" WHERE state = {_PENDING} AND queue = ?1 AND %s AND due_us NOTNULL"
    " ORDER BY lane, tenant, due_us LIMIT 1)"
)
# As two seeks: for `(lane, tenant) > (?, ?)` SQLite would pass over every task of the last line.
_NEXT_LINE = f"{_LINE % 'lane = ?2 AND tenant > ?3'} UNION ALL {_LINE % 'lane > ?2'} LIMIT 1"
_CHANGED = ("state", "version", "change_id", "updated_ms", "event_ms", "sequence", "history")
_CLAIM, _claim_values = _update(
    *(*_CHANGED, "attempt", "fence", "worker", "lease_ms", "due_us", "started_ms", "ran_us"),
    "last_output",
)
_COMPLETE, _complete_values = _update(
    *(*_CHANGED, "worker", "lease_ms", "finished_ms", "ran_us", "last_output", "result"),
    "unsettled",
)
_VERSIONS = "SELECT no, version, change_id FROM tasks WHERE no IN (SELECT value FROM json_each(?))"
_JOBS_OF_ONE_TASK = (
    "SELECT no, created_us, updated_ms, event_ms, sequence, history FROM jobs"
    f" WHERE no IN (SELECT value FROM json_each(?)) AND state = {_JOB_RUNNING} AND total = 1"
    " AND intents = 0 AND rest IS NULL"
)
_COMPLETE_JOB = (
    f"UPDATE jobs SET state={_JOB_COMPLETED}, version=version+1, change_id=?, updated_ms=?,"
    " event_ms=?, sequence=sequence+1, completed=NULL, finished_ms=?, history=? WHERE no=?"
)
_JOIN = (
    "INSERT INTO workers (name, instance) VALUES (?, 1) ON CONFLICT (name) DO UPDATE"
    " SET instance = instance + 1, turn = '', claim = '', ended = 0 RETURNING instance"
)
_LEASED_TO = f"{SELECT_TASK} WHERE t.lease_ms IS NOT NULL AND t.worker = ?"
_CLAIMED_IN = f"{_LEASED_TO} AND t.change_id = ? ORDER BY t.due_us, t.no"


class SqliteClaimedTask(ClaimedTask):
    """A claimed task whose row is decoded when it is needed."""

    def __init__(
        self, values: Values, due_us: int, definition: DefinitionVersion, database: Database
    ) -> None:
        self.values = values
        self.definition = definition
        self._due_us = due_us
        self._database = database
        self.job_id = unpack_job_id(values[-1])
        self.task_id = task_id_of(self.job_id, values[_KEY])
        self.fence: int = values[_FENCE]
        self.attempt: int = values[_ATTEMPT]

    @cached_property
    def row(self) -> TaskRow:
        return self._database.reader.task_row(self.values)

    @cached_property
    def due_at(self) -> datetime:
        return codec.from_us(self._due_us)

    @cached_property
    def leased_at(self) -> datetime:
        return from_ms(self.values[_STARTED])

    @cached_property
    def plain_input(self) -> str | None:
        text = self.values[_INPUT]
        if self.values[_REST] is not None or isinstance(text, bytes):
            return None
        return "null" if text is None else text

    @cached_property
    def parents(self) -> Document | None:
        return unpack_document(self.values[_PARENTS])

    @cached_property
    def has_dependents(self) -> bool:
        return self.values[_DEPENDENTS] is not None


class LazilyApplied(Applied):
    """The answer to a command whose row is decoded when it is needed."""

    _database: Database
    _values: Values

    def __init__(self, database: Database, values: Values) -> None:
        object.__setattr__(self, "_database", database)
        object.__setattr__(self, "_values", values)

    @property
    def row(self) -> TaskRow:
        """The row after the command."""
        return self._database.reader.task_row(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Applied) and self.row == other.row

    __hash__ = None  # type: ignore[assignment]


@dataclass(eq=False)
class SqliteTaskSource:
    """See ``ports.task_source.TaskSource``."""

    _database: Database
    _position: ClaimPosition = field(default_factory=ClaimPosition)
    _claimed_rows: dict[str, Values] = field(default_factory=dict)  # as they were then

    claims_with_commands = True

    async def join(self, worker: WorkerInstance) -> WorkerInstance:
        def work(transaction: StoreTransaction) -> int:
            number: int = transaction.value(_JOIN, (transaction.number_of(worker.worker_id),))
            return number

        return replace(worker, number=await self._database.write(work, durable=False))

    async def leave(self, worker: WorkerInstance) -> None:
        def work(transaction: StoreTransaction) -> None:
            name = transaction.number_of(worker.worker_id)
            sql = "UPDATE workers SET ended = 1 WHERE name = ? AND instance = ?"
            transaction.execute(sql, (name, worker.number))

        await self._database.write(work, durable=False)

    # Claims -------------------------------------------------------------------------------------

    async def claim(
        self, worker: WorkerInstance, room: Room, *, turn_id: str, wait: timedelta
    ) -> tuple[ClaimedTask, ...]:
        clock = self._database.clock
        deadline = clock.elapsed() + wait
        while True:
            ready = await self._database.waiters[Topic.QUEUE].wait_until(
                lambda: self._anything_ready(worker),
                wait=max(deadline - clock.elapsed(), timedelta(0)),
                next_change=lambda: self._next_change(worker),
                if_woken=True,  # the claim looks itself
            )
            if ready is None:
                return ()
            work = TurnWork(self._database, worker, (), turn_id, room, self._position, waits=True)
            claiming = self._database.write(work, durable=work.durable, urgent=True)
            try:
                turn = await asyncio.shield(claiming)
            except asyncio.CancelledError:
                claiming.add_done_callback(lambda done: self._give_back(worker, done))
                raise
            self._position = work.position
            if turn.claimed or work.repeated:
                self._remember(turn.claimed)
                return turn.claimed

    def _remember(self, claimed: Sequence[ClaimedTask]) -> None:
        """Keep the rows of claimed tasks: usually they are unchanged when a task ends."""
        if len(self._claimed_rows) > _MAX_CLAIMED_ROWS:
            self._claimed_rows.clear()
        for task in claimed:
            if isinstance(task, SqliteClaimedTask):
                self._claimed_rows[task.task_id] = task.values

    def _give_back(self, worker: WorkerInstance, claiming: asyncio.Future[Turn]) -> None:
        """Release the tasks of a claim that was cancelled."""
        if claiming.cancelled() or claiming.exception():
            return
        commands = [
            LeaseCommand(
                task.task_id,
                c.Release(fence=task.fence, reason="the claim was given up", due_at=task.due_at),
                f"given-up-{task.fence}",
            )
            for task in claiming.result().claimed
        ]
        if commands:
            work = TurnWork(self._database, worker, commands, _NO_TURN, None, self._position)
            self._database.write(work, durable=False, topics=(Topic.QUEUE,))

    def _anything_ready(self, worker: WorkerInstance) -> bool | None:
        reader, now = self._database.reader, self._database.clock.now()
        if _is_gone(reader, worker):
            return True  # the claim reports it
        limit = _due_limit_us(now)
        return True if any(line.due_us < limit for line in _lines(reader, worker, now)) else None

    def _next_change(self, worker: WorkerInstance) -> timedelta | None:
        """The time until a task is due or a hold ends."""
        reader, now = self._database.reader, self._database.clock.now()
        paused = active_pauses(reader, now)
        times = [pause.until for pause in paused if pause.until and pause.name in worker.queues]
        times += [codec.from_us(line.due_us) for line in _lines(reader, worker, now)]
        return max(min(times) - now, _MILLISECOND) if times else None

    # Turns --------------------------------------------------------------------------------------

    async def turn(
        self,
        worker: WorkerInstance,
        commands: Sequence[LeaseCommand],
        *,
        turn_id: str,
        room: Room | None = None,
    ) -> Turn:
        work = TurnWork(self._database, worker, commands, turn_id, room, self._position)
        for item in commands:
            if values := self._claimed_rows.pop(item.task_id, None):
                work.claimed_rows[item.task_id] = values
        turn = await self._database.write(work, durable=work.durable, topics=work.topics)
        self._position = work.position
        self._remember(turn.claimed)
        return turn

    async def wait_for_ends(self, seen: int, *, timeout: timedelta) -> int:
        def look() -> int | None:
            ((latest, count),) = self._database.point(
                "SELECT coalesce(max(finished_ms), 0), count(*) FROM tasks"
                " INDEXED BY tasks_unsettled WHERE unsettled > 0"
            )
            number: int = (latest << NUMBER_BITS) + count
            return number if number > seen else None

        waiters = self._database.waiters[Topic.ENDS]
        return await waiters.wait_until(look, wait=timeout) or seen

    async def end_worker(
        self, worker_id: str, *, unbegun: Collection[tuple[str, int]] = ()
    ) -> list[TaskRow]:
        now = self._database.clock.now()

        def work(transaction: StoreTransaction) -> list[TaskRow]:
            name = transaction.number_of(worker_id)
            transaction.execute("UPDATE workers SET ended = 1 WHERE name = ?", (name,))
            ended = []
            for values in transaction.select(_LEASED_TO, (name,)):
                row = transaction.task_row(values)
                command = c.LeaseEnded(
                    fence=row.fence,
                    margin=timedelta(0),
                    holder_dead=True,
                    begun=(row.id, row.fence) not in unbegun,
                )
                change_id = f"{worker_id}.{row.fence}.ended"
                change = tasks.apply(row, command, now=now, change_id=change_id)
                if not isinstance(change, Refusal):
                    transaction.write_task(change)
                    ended.append(change.row)
            return ended

        return await self._database.write(work, topics=(Topic.ENDS, Topic.QUEUE))

    async def depth(self, queue: str) -> QueueDepth:
        limit = _due_limit_us(self._database.clock.now())
        ((ready, later, leased),) = await self._database.scan(
            "SELECT count(*) FILTER (WHERE due_us < ?1), count(*) FILTER (WHERE due_us >= ?1),"
            " (SELECT count(*) FROM tasks WHERE lease_ms IS NOT NULL AND queue = ?2)"
            f" FROM tasks INDEXED BY tasks_ready WHERE state = {_PENDING} AND queue = ?2",
            (limit, self._database.find_name(queue)),
        )
        return QueueDepth(ready=ready, hidden=later + leased, dead_letters=0)


def _is_gone(reader: StoreReader, worker: WorkerInstance) -> bool:
    sql = "SELECT instance, ended FROM workers WHERE name = ?"
    return reader.select(sql, (reader.find_name(worker.worker_id),)) != [(worker.number, 0)]


def _due_limit_us(now: datetime) -> int:
    """Tasks that are due before this are due now, in whole milliseconds."""
    return (to_ms(now) + 1) * 1000


class _OpenLine(NamedTuple):
    """The pending tasks of a queue, lane and tenant."""

    queue: str
    lane: Priority
    tenant: str
    numbers: tuple[int, int, int]  # of queue, lane and tenant in the store
    due_us: int  # when the first of them is due


def _lines(reader: StoreReader, worker: WorkerInstance, now: datetime) -> Iterator[_OpenLine]:
    """The lines of the worker's queues that are not paused, each found by a jump in the index."""
    paused = {pause.name for pause in active_pauses(reader, now)}
    for name in worker.queues:
        if name in paused or (queue := reader.find_name(name)) is None:
            continue
        lane, tenant = -1, 0
        while matches := reader.select(_NEXT_LINE, (queue, lane, tenant)):
            ((lane, tenant, due_us),) = matches
            text, numbers = reader.name(tenant), (queue, lane, tenant)
            yield _OpenLine(name, Priority(lane), text, numbers, due_us)


class _Facts(NamedTuple):
    """What tasks of the same kind and tenant have in common."""

    definition: DefinitionVersion
    app: int
    requires_review: bool


class TurnWork:
    """A turn, as work for the writer."""

    def __init__(
        self,
        database: Database,
        worker: WorkerInstance,
        commands: Sequence[LeaseCommand],
        turn_id: str,
        room: Room | None,
        position: ClaimPosition,
        *,
        waits: bool = False,
    ) -> None:
        self._database = database
        self._worker = worker
        self._commands = commands
        self._turn_id = turn_id
        self._room = room
        self._column = "claim" if waits else "turn"
        self._start = position
        self.position = position
        self.claimed_rows: dict[str, Values] = {}  # of commands; they may have changed
        self.repeated = False  # whether this turn, or a later one, had been committed before
        self.durable = not worker.local or any(
            not isinstance(item.command, c.Renew) or item.command.usage != NO_USAGE
            for item in commands
        )
        self.topics: set[Topic] = set()  # of what the turn has changed

    def __call__(self, transaction: StoreTransaction) -> Turn:
        self.position = self._start
        self._transaction = transaction
        self._now = self._database.clock.now()
        self._now_ms = to_ms(self._now)
        self._name = transaction.number_of(self._worker.worker_id)
        self._facts: dict[tuple[int, int], _Facts] = {}  # by kind and tenant
        self._completions: dict[int, list[Any]] = {}  # rows, not yet written, by task
        self._ended: dict[int, list[Values]] = {}  # tasks that ended now, by job
        # Entities with an event, by its type, the kind and tenant of its task, and its sequence.
        self._events: dict[tuple[int, int, int, int], list[int]] = {}
        self.topics.clear()
        last = self._last_turn()
        if not self._turn_id:
            last = None
        self.repeated = last == self._turn_id
        if last is not None and self._turn_id < last:
            if self._column == "claim":
                self.repeated = True
                return Turn(())
            # A late copy. A checkpoint of it would replace a later one, and what it claims would
            # not be run.
            raise OutcomeUnknown(f"turn {self._turn_id} arrived after turn {last}")
        self._drop_changed_rows()
        answers = tuple([self._answer(item) for item in self._commands])
        self._complete_jobs_of_one_task()
        self._write_completions()
        for job_no, ended in self._ended.items():
            self._settle(job_no, ended)
        claimed: tuple[ClaimedTask, ...] = ()
        if self._room is not None and self.repeated:
            claimed = self._claimed_before()
        elif self._room is not None:
            claimed = self._claim(self._room)
        if last is not None and not self.repeated and (claimed or self._column == "turn"):
            sql = f"UPDATE workers SET {self._column} = ? WHERE name = ?"
            transaction.execute(sql, (self._turn_id, self._name))
        reach("turn.rows_written")
        return Turn(answers, claimed)

    def _last_turn(self) -> str | None:
        """The id of the instance's last turn; None if the instance has ended.

        Raises:
            WorkerGone: it has ended, and the turn does not only end attempts.
        """
        sql = f"SELECT instance, ended, {self._column} FROM workers WHERE name = ?"
        matches = self._transaction.select(sql, (self._name,))
        if matches and matches[0][:2] == (self._worker.number, 0):
            return str(matches[0][2])
        ends = [isinstance(item.command, c.AttemptCommand) for item in self._commands]
        if self._room is not None or not all(ends):
            raise WorkerGone(self._worker.worker_id)
        return None

    # Commands -----------------------------------------------------------------------------------

    def _answer(self, item: LeaseCommand) -> Answer:
        """Carry out a command; if it fails, the others are not affected."""
        try:
            return self._carry_out(item)
        except apsw.Error:
            raise
        except Exception as error:
            logger.exception("command.failed", extra={"task_id": item.task_id})
            return BackendRejected(f"{type(error).__name__}: {error}")

    def _drop_changed_rows(self) -> None:
        """Forget the rows in memory that are not the stored ones."""
        numbers = [values[_NO] for values in self.claimed_rows.values()]
        stored = self._transaction.select(_VERSIONS, (json.dumps(numbers),)) if numbers else ()
        versions = {no: (version, change_id) for no, version, change_id in stored}
        for task_id, values in list(self.claimed_rows.items()):
            if versions.get(values[_NO]) != (values[_VERSION], values[_CHANGE]):
                del self.claimed_rows[task_id]

    def _carry_out(self, item: LeaseCommand) -> Answer:
        # Only for the first command about a task: it changes the row.
        values = self.claimed_rows.pop(item.task_id, None)
        if values is None:
            self._write_completions()  # one of them may be of this task
            values = self._transaction.task_values(item.task_id)
            if values is None:
                return Refusal(RefusalReason.UNKNOWN, "there is no such task")
        if values[_CHANGE] == pack_change_id(item.change_id):
            return Applied(self._transaction.task_row(values))
        if self._is_usual_completion(values, item.command):
            return self._complete(values, item)
        row = self._transaction.task_row(values)
        change = tasks.apply(row, item.command, now=self._now, change_id=item.change_id)
        if isinstance(change, Refusal):
            return change
        with self._transaction.undoable():
            self._write_task(change)
        if change.row.state.terminal:
            ended = self._transaction.select(_TASK_BY_NO, (values[_NO],))
            self._ended.setdefault(values[_NO] >> NUMBER_BITS, []).append(ended[0])
        return Applied(change.row)

    def _write_task(self, change: TaskChange) -> None:
        self._transaction.write_task(change)
        if change.row.state is TaskState.PENDING:
            self.topics.add(Topic.QUEUE)

    def _is_usual_completion(self, values: Values, command: c.FencedCommand) -> bool:
        return (
            type(command) is c.Complete
            and values[_REST] is None
            and values[_STATE] == _PROCESSING
            and values[_FENCE] == command.fence
            and (command.usage is NO_USAGE or command.usage == NO_USAGE)
            and command.exit_code == 0
            and not self._facts_of(values).requires_review
        )

    def _facts_of(self, values: Values) -> _Facts:
        key = (values[_KIND], values[_TENANT])
        facts = self._facts.get(key)
        if facts is None:
            kind, tenant = self._transaction.kind(key[0]), self._transaction.name(key[1])
            version = tenant, kind.definition, kind.definition_version
            app = self._transaction.number_of(kind.app)
            facts = self._facts[key] = _Facts(version, app, kind.requires_review)
        return facts

    def _complete(self, values: Values, item: LeaseCommand) -> Applied:
        """Complete a task with usual values; see ``core.tasks.task.complete``."""
        command, row = item.command, list(values)
        assert isinstance(command, c.Complete)  # noqa: S101 - for the type checker
        duration, last_output = command.duration, command.last_output
        properties = row[_ATTEMPT], duration // _MILLISECOND, 0, last_output, None
        self._change(row, COMPLETED, pack_change_id(item.change_id), row[_WORKER], properties)
        row[_STATE] = _COMPLETED
        row[_WORKER] = row[_LEASE] = None
        row[_FINISHED] = self._now_ms
        row[_RAN] = duration // _MICROSECOND
        row[_LAST_OUTPUT] = last_output
        row[_RESULT] = pack_document(command.result)
        row[_UNSETTLED] = 1
        self._completions[row[_NO]] = row
        self._ended.setdefault(row[_NO] >> NUMBER_BITS, []).append(row)
        return LazilyApplied(self._database, row)

    def _change(
        self, row: list[Any], type_: int, change_id: str | bytes, worker: int, properties: Values
    ) -> None:
        """Change what every change of a task with one event changes."""
        now_ms, no, sequence = self._now_ms, row[_NO], row[_SEQUENCE]
        at_ms = self._event_ms(sequence, row[_UPDATED], row[_EVENT])
        ms = at_ms - row[_CREATED] // 1000
        record = pack_record(type_, ms, self._transaction.position, worker, properties)
        row[_HISTORY] = self._transaction.grown_history(no, row[_HISTORY], sequence, (record,))
        row[_VERSION] += 1
        row[_CHANGE] = change_id
        row[_UPDATED] = now_ms
        row[_EVENT] = None if at_ms == now_ms else at_ms
        row[_SEQUENCE] = sequence = sequence + 1
        self._record(type_, row, no, sequence)

    def _record(self, type_: int, task: Values, entity: int, sequence: int) -> None:
        key = (type_, task[_KIND], task[_TENANT], sequence)
        self._events.setdefault(key, []).append(entity)

    def _record_events(self) -> None:
        for (type_, kind, tenant, sequence), entities in self._events.items():
            app = self._facts[kind, tenant].app
            self._transaction.record_events(type_, tenant, app, sequence, entities)
        self._events.clear()

    def _write_completions(self) -> None:
        connection = self._transaction.connection
        connection.executemany(_COMPLETE, map(_complete_values, self._completions.values()))
        self._completions.clear()
        self._record_events()

    def _event_ms(self, sequence: int, updated_ms: int, event_ms: int | None) -> int:
        """The time of a row's next event; see ``core.events.event.next_moment``."""
        last_ms = updated_ms if event_ms is None else event_ms
        return self._now_ms if last_ms < self._now_ms or not sequence else last_ms + 1

    # Jobs ---------------------------------------------------------------------------------------

    def _complete_jobs_of_one_task(self) -> None:
        """End the jobs whose row has usual values and whose only task completed in this turn.

        See ``core.jobs.job``. Other ends are settled by core.
        """
        transaction, now_ms = self._transaction, self._now_ms
        numbers = [
            no >> NUMBER_BITS
            for no in self._completions
            if self._ended[no >> NUMBER_BITS][0][_DEPENDENTS] is None
        ]
        if not numbers:
            return
        completed = []
        jobs = transaction.select(_JOBS_OF_ONE_TASK, (json.dumps(numbers),))
        for job_no, created_us, updated_ms, event_ms, sequence, history in jobs:
            (task,) = self._ended.pop(job_no)
            self._completions[task[_NO]][_UNSETTLED] = 0
            at_ms = self._event_ms(sequence, updated_ms, event_ms)
            ms = at_ms - created_us // 1000
            record = pack_record(JOB_COMPLETED, ms, transaction.position, BY_DISPATCHER, (1, 1))
            history = transaction.grown_history(-job_no, history, sequence, (record,))
            times = now_ms, None if at_ms == now_ms else at_ms, now_ms
            completed.append((f"{self._turn_id}.settle", *times, history, job_no))
            self._record(JOB_COMPLETED, task, -job_no, sequence + 1)
        transaction.connection.executemany(_COMPLETE_JOB, completed)

    def _settle(self, job_no: int, ended: Sequence[Values]) -> None:
        transaction = self._transaction
        jobs = transaction.select(f"{SELECT_JOB} WHERE no = ? AND version > 0", (job_no,))
        if not jobs:
            return
        try:
            with transaction.undoable():
                changes = settle(
                    transaction.job_row(jobs[0]),
                    [transaction.task_row(values) for values in ended],
                    transaction,
                    now=self._now,
                    change_id=f"{self._worker.worker_id}.{self._turn_id}.settle",
                )
                if changes is None:
                    self.topics.add(Topic.ENDS)  # the dispatcher settles them
                for change in changes or ():
                    if isinstance(change.row, TaskRow):
                        self._write_task(change)
                    else:
                        transaction.write_job(change)
        except apsw.Error:
            raise
        except Exception:  # the outcomes stay, and the dispatcher tries again
            job_id = unpack_job_id(jobs[0][1])
            logger.exception("job.settle_failed", extra={"job_id": job_id})
            self.topics.add(Topic.ENDS)

    # Claims -------------------------------------------------------------------------------------

    def _claim(self, room: Room) -> tuple[ClaimedTask, ...]:
        due_us = _due_limit_us(self._now)
        pending = _lines(self._transaction, self._worker, self._now)
        lines = [line for line in pending if line.due_us < due_us]
        if len(lines) == 1:
            ready = self._read_ready(lines[0], due_us, _FIRST_READY, room.total)
            chosen = self._choose_from_line(ready, room)
        else:
            chosen = self._choose(lines, due_us, room)
        self._leased: list[Values] = []
        self._packed_claim_id = pack_change_id(self._claim_id)
        claimed = tuple([task for values in chosen if (task := self._try_lease(values))])
        self._transaction.connection.executemany(_CLAIM, map(_claim_values, self._leased))
        self._record_events()
        return claimed

    def _choose_from_line(self, line: Sequence[Values], room: Room) -> list[Values]:
        """Choose from tasks of which none has to take turns; see ``core.claims.choose``."""
        slots, ahead = room.slots, dict(room.ahead)
        chosen = []
        for values in line:
            definition = self._facts_of(values).definition
            if slots:
                slots -= 1
            elif ahead.get(definition, 0):
                ahead[definition] -= 1
            else:
                continue
            chosen.append(values)
        return chosen

    def _choose(self, lines: Sequence[_OpenLine], due_us: int, room: Room) -> list[Values]:
        equal_part = -(-room.total // max(len(lines), 1))
        ready = {
            (line.lane, line.queue, line.tenant): self._read_line(
                line, due_us, room.total, equal_part
            )
            for line in lines
        }
        chosen, self.position = choose(
            ready, room, self.position, lambda values: self._facts_of(values).definition
        )
        return chosen

    def _read_line(self, line: _OpenLine, due_us: int, limit: int, count: int) -> Iterator[Values]:
        """Up to ``limit`` tasks of a line: first ``count`` of them, more only if asked for."""
        after = _FIRST_READY
        while limit > 0:
            ready = self._read_ready(line, due_us, after, min(count, limit))
            yield from ready
            if len(ready) < count:
                return
            after = (ready[-1][_DUE], ready[-1][_NO])
            limit -= count
            count *= 4

    def _read_ready(
        self, line: _OpenLine, due_us: int, after: tuple[int, int], limit: int
    ) -> Sequence[Values]:
        return self._transaction.select(_READY, (*line.numbers, due_us, *after, limit))

    def _try_lease(self, values: Values) -> ClaimedTask | None:
        """Claim a pending task. One whose row cannot be read is tried again later."""
        try:
            return self._lease(values)
        except apsw.Error:
            raise
        except Exception:
            task_id = task_id_of(unpack_job_id(values[-1]), values[_KEY])
            logger.exception("task.claim_failed", extra={"task_id": task_id})
            due_us = codec.to_us(self._now + _RETRY_PAUSE)
            sql = "UPDATE tasks SET due_us = ? WHERE no = ?"
            self._transaction.execute(sql, (due_us, values[_NO]))
            return None

    def _lease(self, values: Values) -> ClaimedTask:
        """Claim a pending task; see ``core.tasks.task.claim``."""
        worker, due_us = self._worker, values[_DUE]
        definition = self._facts_of(values).definition
        if values[_REST] is not None or not worker.local:
            self._lease_by_core(values)
            ((*leased,),) = self._transaction.select(_TASK_BY_NO, (values[_NO],))
            return SqliteClaimedTask(leased, due_us, definition, self._database)
        row, now_ms = list(values), self._now_ms
        row[_STATE] = _PROCESSING
        row[_ATTEMPT] += 1
        row[_FENCE] = next_fence(row[_FENCE], self._database.epoch)
        row[_WORKER] = self._name
        row[_LEASE] = now_ms + worker.lease_duration // _MILLISECOND
        row[_STARTED] = now_ms
        row[_DUE] = row[_RAN] = row[_LAST_OUTPUT] = None
        late = self._event_ms(row[_SEQUENCE], row[_UPDATED], row[_EVENT]) - now_ms
        numbers = worker.process_id, row[_ATTEMPT], row[_FENCE]
        started = self._name, late, row[_LEASE] - now_ms, *numbers
        self._change(row, STARTED, self._packed_claim_id, self._name, started)
        self._leased.append(row)
        return SqliteClaimedTask(row, due_us, definition, self._database)

    def _lease_by_core(self, values: Values) -> None:
        worker = self._worker
        command = c.Claim(
            worker_id=worker.worker_id,
            process_id=worker.process_id,
            lease_duration=worker.lease_duration,
            epoch=self._database.epoch,
            local=worker.local,
        )
        row = self._transaction.task_row(values)
        change = tasks.apply(row, command, now=self._now, change_id=self._claim_id)
        if not isinstance(change, Refusal):  # it is pending and due
            with self._transaction.undoable():
                self._transaction.write_task(change)

    @property
    def _claim_id(self) -> str:
        """The change id of this turn's claims."""
        return f"{self._worker.number}.{self._turn_id}.{self._column}"

    def _claimed_before(self) -> tuple[ClaimedTask, ...]:
        """The tasks that this turn claimed when it was committed before."""
        values = (self._name, pack_change_id(self._claim_id))
        return tuple(
            SqliteClaimedTask(
                matches,
                matches[_UPDATED] * 1000,
                self._facts_of(matches).definition,
                self._database,
            )
            for matches in self._transaction.select(_CLAIMED_IN, values)
        )
