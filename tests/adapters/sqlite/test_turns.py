"""A turn decides as core does, also in the usual case, whose rules it has a second time."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import apsw
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.adapters.shared import codec
from longshore.adapters.sqlite import store_file, task_source
from longshore.adapters.sqlite.history import EVENT_NUMBERS, HistoryReader
from longshore.adapters.sqlite.rows import (
    SELECT_JOB,
    SELECT_TASK,
    Names,
    StoreReader,
    pack_job_id,
)
from longshore.adapters.sqlite.task_source import TurnWork
from longshore.adapters.sqlite.transaction import StoreTransaction, feed_entries
from longshore.core.budgets import Budget, BudgetScope, BudgetUnit
from longshore.core.claims import ClaimPosition, Room, choose
from longshore.core.documents import Document
from longshore.core.events.event import Event
from longshore.core.events.types import TaskSummary, Usage
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.jobs import job as jobs
from longshore.core.jobs.graph import Graph
from longshore.core.jobs.numbers import NumberSet
from longshore.core.jobs.settle import settle
from longshore.core.tasks import commands as c
from longshore.core.tasks import task as tasks
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.changes import Change, Refusal, RefusalReason
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import JobRow, JobSpec, TaskRow, TaskSpec
from longshore.core.tasks.states import Priority, TaskState
from longshore.ports.task_source import Applied, ClaimedTask, LeaseCommand, WorkerInstance
from longshore.testing.contracts.samples import events_to_wire
from longshore.testing.memory.task_source import definition_of, lines_of
from tests.factories import NOON

EPOCH = 3
LEASE = timedelta(seconds=45, microseconds=700)
MICROSECOND = timedelta(microseconds=1)
NO_USAGE = Usage()
TURN, CLAIMS = "0000000007", "1.0000000007.turn"
QUEUES = ("default", "slow")

DOCUMENTS = (None, Document(text='"ä"', size=4), Document(key="blob-1", size=9))
PAUSES = (
    *(timedelta(), MICROSECOND, timedelta(microseconds=999), timedelta(milliseconds=1)),
    *(timedelta(seconds=1), timedelta(minutes=1), -timedelta(seconds=3)),
)


def an_ending(fence: int, draw: Random) -> dict[str, Any]:
    usage = draw.choice([NO_USAGE, NO_USAGE, Usage(turns=2, seconds=2.5)])
    return {"fence": fence, "usage": usage, "last_output": draw.choice([None, 0, 5])}


def a_duration(draw: Random) -> timedelta:
    return draw.randrange(10**8) * MICROSECOND


def a_completion(fence: int, draw: Random) -> c.Complete:
    return c.Complete(
        **an_ending(fence, draw),
        result=draw.choice(DOCUMENTS),
        duration=a_duration(draw),
        exit_code=draw.choice([0, 0, 0, 3]),
    )


def a_failed_attempt(fence: int, draw: Random) -> c.AttemptFailed:
    failure = Failure(
        category=draw.choice(list(ErrorCategory)),
        message="broke",
        retry_after=draw.choice([None, timedelta(seconds=4)]),
    )
    ending = an_ending(fence, draw)
    return c.AttemptFailed(**ending, failure=failure, jitter=0.5, duration=a_duration(draw))


def another_command(fence: int, draw: Random) -> c.FencedCommand:
    """A command of the lease holder that is no completion."""
    ending = an_ending(fence, draw)
    return draw.choice(
        [
            c.Renew(fence=fence, lease_duration=LEASE, usage=ending["usage"]),
            c.SaveCheckpoint(fence=fence, key="step-1"),
            c.Release(**ending, reason="stops", due_at=draw.choice([None, NOON])),
            a_failed_attempt(fence, draw),
            c.TimeOut(
                **ending,
                timeout=a_duration(draw),
                elapsed=a_duration(draw),
                signal="SIGTERM",
                jitter=0.5,
            ),
            c.Park(
                **ending,
                scope=BudgetScope.TASK,
                unit=BudgetUnit.USD,
                reason="spent",
                duration=a_duration(draw),
            ),
            c.ConfirmCancel(**ending),
        ]
    )


def a_past_command(row: TaskRow, draw: Random) -> c.Command:
    """What another process, or an earlier turn, may have done to a task."""
    if row.state is TaskState.PENDING and draw.random() < 0.7:
        return c.Claim(
            worker_id=draw.choice(["w1", "w2"]),
            process_id=7,
            lease_duration=LEASE,
            epoch=draw.choice([0, EPOCH]),
            local=draw.choice([True, True, False]),
        )
    return draw.choice(
        [
            c.RequestCancel(by="ann", reason="late"),
            c.LeaseEnded(fence=row.fence, margin=timedelta(), begun=False),
            c.LeaseEnded(fence=row.fence, margin=-timedelta(days=1), begun=True),
            c.Unpark(scope=BudgetScope.TASK, by="ann"),
            c.AddBudget(amount=Budget(usd=2.0), by="ann", request_id="r1"),
            c.Approve(by="ann"),
            c.RequestRevision(feedback="shorter", by="ann"),
            c.EnqueueAgain(),
            a_completion(row.fence, draw),
            *(another_command(row.fence, draw) for _ in range(3)),
        ]
    )


class Store:
    """A store whose turns run without a writer, beside the rows and events that core decides."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        for _, sql in store_file.migrations():
            self.connection.execute(sql)
        self.names = Names()
        self.now = NOON
        self.database: Any = SimpleNamespace(
            names=self.names,
            clock=SimpleNamespace(now=lambda: self.now),
            epoch=EPOCH,
            reader=StoreReader(self.connection, Names()),
        )
        self.worker = WorkerInstance(
            worker_id="w1", number=1, queues=QUEUES, process_id=7, lease_duration=LEASE
        )
        self.rows: dict[str, TaskRow] = {}
        self.jobs: dict[str, JobRow] = {}
        self.events: list[Event] = []
        self._changes = 0

    # What core decides ---------------------------------------------------------------------------

    def new_change_id(self) -> str:
        self._changes += 1
        return f"{self._changes:016x}"

    def note(self, change: Change[Any]) -> None:
        rows: dict[str, Any] = self.rows if isinstance(change.row, TaskRow) else self.jobs
        rows[change.row.id] = change.row
        self.events += change.events

    def task(self, task_id: str) -> TaskRow | None:
        return self.rows.get(task_id)

    def task_states(self, job_id: str) -> Mapping[str, TaskState]:
        own = [row for row in self.rows.values() if row.spec.job_id == job_id]
        return {row.spec.key: row.state for row in own}

    def settle(self, job_id: str, ended: Sequence[TaskRow], change_id: str) -> list[Change[Any]]:
        job = self.jobs[job_id]
        changes = settle(job, ended, self, now=self.now, change_id=change_id)
        assert changes is not None
        for change in changes:
            self.note(change)
        return list(changes)

    # What the store has --------------------------------------------------------------------------

    def write(self, *changes: Change[Any]) -> None:
        transaction = StoreTransaction(self.connection, self.names)
        for change in changes:
            if isinstance(change.row, JobRow):
                transaction.write_job(change)
        for change in changes:
            if isinstance(change.row, TaskRow):
                transaction.write_task(change)
        transaction.close()

    def join(self) -> None:
        number = StoreTransaction(self.connection, self.names).number_of("w1")
        self.connection.execute("INSERT INTO workers (name, instance) VALUES (?, 1)", (number,))

    def run(
        self, commands: Sequence[LeaseCommand], room: Room | None, claimed_rows: Mapping[str, Any]
    ) -> Any:
        work = TurnWork(self.database, self.worker, commands, TURN, room, ClaimPosition())
        work.claimed_rows.update(claimed_rows)
        transaction = StoreTransaction(self.connection, self.names)
        answer = work(transaction)
        transaction.close()
        return answer

    def values(self) -> dict[str, Any]:
        """The columns of each task, by its id."""
        reader = StoreReader(self.connection, Names())
        return {reader.task_row(values).id: values for values in self.select(SELECT_TASK)}

    def select(self, sql: str) -> list[Any]:
        return self.connection.execute(sql).fetchall()

    def stored_rows(self) -> dict[str, TaskRow]:
        reader = StoreReader(self.connection, Names())
        stored = [reader.task_row(values) for values in self.select(SELECT_TASK)]
        return {row.id: row for row in stored}

    def stored_jobs(self) -> dict[str, JobRow]:
        reader = StoreReader(self.connection, Names())
        stored = [reader.job_row(values) for values in self.select(SELECT_JOB)]
        return {row.id: row for row in stored}

    def stored_events(self) -> dict[str, list[Event]]:
        reader = HistoryReader(StoreReader(self.connection, Names()), lambda _: b"[]")
        entities = "SELECT no FROM tasks UNION ALL SELECT -no FROM jobs"
        histories = [reader.of_number(entity) for (entity,) in self.select(entities)]
        return {
            history[0][1].entity: [event for _, event in history]
            for history in histories
            if history
        }

    def check(self) -> None:
        """The store has what core has decided."""
        assert self.stored_rows() == self.rows
        settled = {job_id: row.change_id for job_id, row in self.jobs.items()}
        for job_id, row in self.stored_jobs().items():
            if row.change_id == f"{TURN}.settle":  # shorter for the usual job
                settled[job_id] = row.change_id
        assert self.stored_jobs() == {
            job_id: dataclasses.replace(row, change_id=settled[job_id])
            for job_id, row in self.jobs.items()
        }
        expected: dict[str, list[Event]] = {}
        for event in self.events:
            expected.setdefault(event.entity, []).append(event)
        stored = self.stored_events()
        assert stored.keys() == expected.keys()
        for entity, events in expected.items():
            assert events_to_wire(stored[entity]) == events_to_wire(events)
        self._check_feed()
        self._check_unsettled()

    def _check_feed(self) -> None:
        numbers = {f"TASK#{row.id}": row.spec.number for row in self.rows.values()}
        job_numbers = {row[1]: row[0] for row in self.select("SELECT no, id FROM jobs")}
        packed = {job_id: job_numbers[pack_job_id(job_id)] for job_id in self.jobs}
        entities = {f"JOB#{job_id}": -no for job_id, no in packed.items()}
        for row in self.rows.values():
            entities[f"TASK#{row.id}"] = packed[row.spec.job_id] << 20 | numbers[f"TASK#{row.id}"]
        expected: dict[int, list[tuple[int, int, int]]] = {}
        types = set()
        number_of = {text: no for no, text in self.select("SELECT no, text FROM names")}
        for event in self.events:
            type_, tenant = EVENT_NUMBERS[event.type], number_of[event.tenant]
            entry = (type_, tenant, event.sequence)
            expected.setdefault(entities[event.entity], []).append(entry)
            types.add((tenant, type_, number_of[event.app]))
        recorded: dict[int, list[tuple[int, int, int]]] = {}
        for (entries,) in self.select("SELECT entries FROM feed ORDER BY position"):
            for entry in feed_entries(entries):
                assert entry.entity is not None
                recorded.setdefault(entry.entity, []).append(
                    (entry.type, entry.tenant, entry.sequence)
                )
        assert recorded == expected
        assert set(self.select("SELECT DISTINCT tenant, type, app FROM feed_types")) == types

    def _check_unsettled(self) -> None:
        sql = "SELECT t.key, j.id, t.unsettled FROM tasks AS t JOIN jobs AS j ON j.no = t.no >> 20"
        for key, job, unsettled in self.select(sql):
            job_id = task_source.unpack_job_id(job)
            row = self.rows[task_id_of(job_id, key)]
            recorded = row.spec.number in self.jobs[job_id].ended
            assert unsettled == int(row.state.terminal and not recorded)


def add_job(store: Store, draw: Random, number: int) -> None:
    """Create a job whose tasks depend on some of those before them."""
    tenant = draw.choice(["acme", "bee"])
    request_id = f"request-{number}"
    total = draw.choice([1, 1, 2, 3])
    parents = [[p for p in range(n) if draw.random() < 0.5] for n in range(total)]
    keys = [f"t{n}" for n in range(total)]
    spec = JobSpec(
        id=job_id_of(tenant, request_id),
        tenant=tenant,
        app="shop",
        request_id=request_id,
        body_hash="c0ffee",
        created_at=store.now,
        name=draw.choice([None, "nightly"]),
        budget=draw.choice([*[Budget()] * 3, Budget(usd=1.0)]),
    )
    changes: list[Change[Any]] = []
    names = [draw.choice(["resize", "crop"]) for _ in keys]
    inputs = [draw.choice(DOCUMENTS) for _ in keys]
    summaries = tuple(
        TaskSummary(key=key, name=name, depends_on=tuple(keys[n] for n in before), input=document)
        for key, name, before, document in zip(keys, names, parents, inputs, strict=True)
    )
    text = codec.to_json(Graph(tuple(keys), tuple(names), tuple(map(tuple, parents))).to_json())
    graph = Document(text=text, size=len(text))
    changes.append(
        jobs.create(spec, summaries, graph, now=store.now, change_id=store.new_change_id())
    )
    for n, key in enumerate(keys):
        dependents = [keys[later] for later in range(total) if n in parents[later]]
        not_before = draw.choice([*[None] * 6, store.now + timedelta(seconds=1)])
        task_spec = TaskSpec(
            id=task_id_of(spec.id, key),
            tenant=tenant,
            app="shop",
            job_id=spec.id,
            key=key,
            number=n,
            definition=names[n],
            definition_version=1,
            created_at=store.now,
            queue=draw.choice(["default", "default", "slow", "unserved"]),
            priority=draw.choice([Priority.NORMAL, Priority.NORMAL, Priority.HIGH]),
            retry=RetryPolicy(max_attempts=draw.randint(1, 3)),
            retry_on_timeout=draw.random() < 0.5,
            requires_review=draw.choice([False, False, False, True]),
            not_before=not_before,
            input=inputs[n],
            parents=list_of([keys[p] for p in parents[n]]),
            dependents=list_of(dependents),
        )
        awaits = NumberSet(parents[n])
        change_id = store.new_change_id()
        changes.append(tasks.create(task_spec, awaits, now=store.now, change_id=change_id))
    for change in changes:
        store.note(change)
    store.write(*changes)


def list_of(keys: list[str]) -> Document | None:
    text = json.dumps(keys)
    return Document(text=text, size=len(text)) if keys else None


def add_past(store: Store, draw: Random) -> None:
    """Change a task, or its job, as other processes and earlier turns may have."""
    row = store.rows[draw.choice(sorted(store.rows))]
    if draw.random() < 0.1:
        job = store.jobs[row.spec.job_id]
        command = jobs.CancelJob(by="ann", later=draw.choice([False, True]))
        cancelled = jobs.apply(job, command, now=store.now, change_id=store.new_change_id())
        if not isinstance(cancelled, Refusal):
            store.note(cancelled)
            store.write(cancelled)
        return
    after = apply_to_task(store, draw, row, a_past_command(row, draw))
    if after is not None and after.state.terminal and draw.random() < 0.5:
        store.write(*store.settle(row.spec.job_id, [after], store.new_change_id()))


def apply_to_task(store: Store, draw: Random, row: TaskRow, command: c.Command) -> TaskRow | None:
    """Write what core decides. Returns None if core refuses the command."""
    change_id = draw.choice([store.new_change_id(), f"text-{store.new_change_id()}"])
    decision = tasks.apply(row, command, now=store.now, change_id=change_id)
    if isinstance(decision, Refusal):
        return None
    store.note(decision)
    store.write(decision)
    return decision.row


def claim_some(store: Store, draw: Random) -> None:
    """The worker of the turn holds some tasks."""
    claim = c.Claim(worker_id="w1", process_id=7, lease_duration=LEASE, epoch=EPOCH)
    for row in list(store.rows.values()):
        if draw.random() < 0.6:
            apply_to_task(store, draw, row, claim)


def draw_commands(store: Store, draw: Random) -> list[LeaseCommand]:
    """Commands about leased tasks, and some about others."""
    drawn = []
    for row in store.rows.values():
        for _ in range(draw.choice([1, 1, 1, 2] if row.lease else [0, 0, 0, 1])):
            fence = draw.choice([*[row.fence] * 6, row.fence + 1, 0])
            make = draw.choice([a_completion, a_completion, another_command])
            command = make(fence, draw)
            change_id = store.new_change_id()
            repeated = draw.random() < 0.1
            drawn.append(LeaseCommand(row.id, command, row.change_id if repeated else change_id))
    if draw.random() < 0.1:
        missing = c.Complete(fence=1, result=None, duration=timedelta())
        drawn.append(LeaseCommand("job-none_a", missing, store.new_change_id()))
    return drawn


def draw_room(draw: Random) -> Room:
    """Room for some tasks of known definitions beside the slots."""
    definitions = [(tenant, name, 1) for tenant in ("acme", "bee") for name in ("resize", "crop")]
    ahead = {definition: draw.randrange(3) for definition in definitions if draw.random() < 0.5}
    return Room(slots=draw.randrange(3), ahead=ahead)


def is_usual(row: TaskRow) -> bool:
    """Whether core would only change what every claim or completion changes."""
    usual = dataclasses.replace(
        TaskRow(
            spec=dataclasses.replace(row.spec, not_before=None),
            state=row.state,
            version=row.version,
            change_id=row.change_id,
            updated_at=row.updated_at,
        ),
        **{
            name: getattr(row, name)
            for name in (
                *("attempt", "fence", "due_at", "started_at", "ran_for", "result", "last_output"),
                *("last_sequence", "last_event_at"),
            )
        },
    )
    lease = row.lease
    if lease is not None:
        own = {"heartbeats": 0, "local": True, "usage": NO_USAGE, "claim_id": row.change_id}
        usual = dataclasses.replace(usual, lease=dataclasses.replace(lease, **own))
    enqueued = row.updated_at if row.state is TaskState.PENDING else None
    return row == dataclasses.replace(usual, enqueued_at=enqueued)


def is_usual_completion(row: TaskRow, command: c.FencedCommand) -> bool:
    return (
        isinstance(command, c.Complete)
        and is_usual(row)
        and row.lease is not None
        and row.fence == command.fence
        and command.usage == NO_USAGE
        and command.exit_code == 0
        and not row.spec.requires_review
    )


def is_usual_job(job: JobRow) -> bool:
    """Whether a job of one task ends with only what every completed job has."""
    return (
        job.total == 1
        and not (job.cancel or job.intents or job.spec.budget or job.allowance)
        and (job.round, job.usage) == (1, NO_USAGE)
        and not job.with_added_dependents
    )


class CoreCalls:
    """What core decided."""

    def __init__(self) -> None:
        self.commands: set[tuple[str, str]] = set()  # of a task, by change id
        self.claims: set[str] = set()
        self.jobs: set[str] = set()

    def apply(self, row: TaskRow, command: c.Command, *, now: datetime, change_id: str) -> Any:
        if isinstance(command, c.Claim):
            self.claims.add(row.id)
        else:
            self.commands.add((row.id, change_id))
        return tasks.apply(row, command, now=now, change_id=change_id)

    def settle(self, job: JobRow, *arguments: Any, **options: Any) -> Any:
        self.jobs.add(job.id)
        return settle(job, *arguments, **options)


class Expected:
    """The turn as core decides all of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.core_calls = CoreCalls()
        self.ended: dict[str, list[TaskRow]] = {}
        self.usually_completed: set[str] = set()  # jobs with such a task

    def answer(self, item: LeaseCommand) -> Any:
        row = self.store.rows.get(item.task_id)
        if row is None:
            return Refusal(RefusalReason.UNKNOWN, "there is no such task")
        if row.change_id == item.change_id:
            return Applied(row)
        if is_usual_completion(row, item.command):
            self.usually_completed.add(row.spec.job_id)
        else:
            self.core_calls.commands.add((row.id, item.change_id))
        now = self.store.now
        change = tasks.apply(row, item.command, now=now, change_id=item.change_id)
        if isinstance(change, Refusal):
            return change
        self.store.note(change)
        if change.row.state.terminal:
            self.ended.setdefault(row.spec.job_id, []).append(change.row)
        return Applied(change.row)

    def settle(self) -> None:
        for job_id, ended in self.ended.items():
            usual = job_id in self.usually_completed and is_usual_job(self.store.jobs[job_id])
            if not usual:
                self.core_calls.jobs.add(job_id)
            self.store.settle(job_id, ended, f"w1.{TURN}.settle")

    def claim(self, room: Room) -> list[ClaimedTask]:
        store = self.store
        now = store.now
        limit = task_source._due_limit_us(now)
        ready = [
            row
            for row in store.rows.values()
            if row.state is TaskState.PENDING
            and row.spec.queue in QUEUES
            and (row.due_at is None or codec.to_us(row.due_at) < limit)
        ]
        ready.sort(key=lambda row: (row.due_at, [*store.jobs].index(row.spec.job_id), row.spec.key))
        chosen, _ = choose(lines_of(ready), room, ClaimPosition(), definition_of)
        claimed = []
        for row in chosen:
            command = c.Claim(
                worker_id="w1",
                process_id=7,
                lease_duration=LEASE,
                epoch=EPOCH,
                local=store.worker.local,
            )
            if not is_usual(row) or not store.worker.local:
                self.core_calls.claims.add(row.id)
            change = tasks.apply(row, command, now=now, change_id=CLAIMS)
            assert isinstance(change, Change)
            store.note(change)
            claimed.append(ClaimedTask(change.row, row.due_at or row.updated_at))
        return claimed


def check_claimed(task: Any, expected: ClaimedTask) -> None:
    names = ("row", "due_at", "task_id", "job_id", "definition", "fence", "attempt", "leased_at")
    for name in (*names, "parents", "has_dependents"):
        assert getattr(task, name) == getattr(expected, name), name
    if task.plain_input is not None or is_usual(expected.row):
        assert task.plain_input == expected.plain_input


@settings(max_examples=400)
@given(job_count=st.integers(1, 3), past=st.integers(0, 8), seed=st.integers(0, 2**40))
def test_a_turn_decides_as_core_does(job_count: int, past: int, seed: int) -> None:
    store, draw = Store(), Random(seed)
    for number in range(job_count):
        add_job(store, draw, number)
    for _ in range(past):
        store.now += draw.choice(PAUSES)
        add_past(store, draw)
    store.now += draw.choice(PAUSES)
    before = store.values()
    claim_some(store, draw)
    store.now += draw.choice(PAUSES)
    store.join()
    local = draw.choice([True, True, True, False])
    store.worker = dataclasses.replace(store.worker, local=local)
    commands = draw_commands(store, draw)
    room = draw.choice([None, Room(slots=1), Room(slots=3), draw_room(draw), draw_room(draw)])
    task_ids = [item.task_id for item in commands]
    existing, share = (
        draw.choice([before, store.values(), store.values()]),
        draw.choice([0.5, 1, 1]),
    )
    claimed_rows = {
        task_id: values
        for task_id, values in existing.items()
        if task_id in task_ids and draw.random() < share
    }
    current = store.values()
    all_current = len(set(task_ids)) == len(task_ids) and all(
        task_id in claimed_rows and claimed_rows[task_id] == current[task_id]
        for task_id in task_ids
    )

    core_calls = CoreCalls()
    with (
        patch.object(task_source, "tasks", SimpleNamespace(apply=core_calls.apply)),
        patch.object(task_source, "settle", core_calls.settle),
    ):
        turn = store.run(commands, room, claimed_rows)

    expected = Expected(store)
    answers = tuple(expected.answer(item) for item in commands)
    assert turn.answers == answers
    expected.settle()
    claimed = [] if room is None else expected.claim(room)
    assert len(turn.claimed) == len(claimed)
    for task, claimed_row in zip(turn.claimed, claimed, strict=True):
        check_claimed(task, claimed_row)
    store.check()
    assert core_calls.commands == expected.core_calls.commands
    assert core_calls.claims == expected.core_calls.claims
    assert core_calls.jobs >= expected.core_calls.jobs
    if all_current:
        # An end that was written before the others of its turn is settled by core.
        assert core_calls.jobs == expected.core_calls.jobs
