"""Every event comes back from the history beside its row as it was written."""

from dataclasses import fields, replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.history import (
    EVENT_NAMES,
    SEGMENT_BYTES,
    Record,
    pack_event,
    pack_record,
    unpack_records,
)
from longshore.core.documents import Document
from longshore.core.events import types as e
from longshore.core.events.codec import EVENT_TYPES
from longshore.core.events.event import Event, EventContext
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Change
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import apply_command, claim, commit, new_job, new_task
from longshore.testing.contracts.suite import START
from longshore.testing.full_samples import MOMENT, filled
from tests.execution.conftest import scenario

SECOND = timedelta(seconds=1)
OF_ROWS = [
    body for body in EVENT_TYPES.values() if body.ENTITY in (e.EntityType.TASK, e.EntityType.JOB)
]
CONTEXTS = [
    EventContext(origin="producer", source="user"),
    EventContext(origin="worker", worker_id="host:1"),
    EventContext(origin="worker", source="user", worker_id="host:1"),
    EventContext(origin="elsewhere", source="other"),
    EventContext(origin="sweeper", worker_id="host:1"),
]
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 25),
        st.integers(-(2**40), 2**40),
        st.integers(1, 2**50),
        st.integers(-7, 2**40),
        st.text(max_size=400) | st.lists(st.integers(0, 2**63 - 1), max_size=6),
    ),
    max_size=12,
)


def an_event(row: TaskRow | JobRow, body: e.EventBody, context: EventContext, **more: Any) -> Event:
    return Event(
        entity_type=e.EntityType.TASK if isinstance(row, TaskRow) else e.EntityType.JOB,
        entity_id=row.id,
        tenant=row.spec.tenant,
        app=row.spec.app,
        sequence=row.last_sequence + 1,
        at=MOMENT + 7 * SECOND,
        body=body,
        context=context,
        **more,
    )


async def committed(backend: Backend, row: Any, event: Event) -> Any:
    """The row after a commit with one more event."""
    later = replace(
        row,
        version=row.version + 1,
        change_id=f"step-{event.sequence}",
        last_sequence=event.sequence,
        last_event_at=event.at,
    )
    await backend.ledger.commit(Change(row=later, events=(event,), expected_version=row.version))
    return later


def test_every_event_has_a_number() -> None:
    assert sorted(EVENT_NAMES) == sorted(EVENT_TYPES)


@scenario
async def test_an_event_of_every_type_comes_back(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        for number, body in enumerate(OF_ROWS):
            job_id = f"job-{number}"
            row: Any = new_task(number=0, job_id=job_id).row
            own = {"job_id": job_id, "task_id": row.id}
            if body.ENTITY is e.EntityType.JOB:
                row, own = new_job(job_id).row, {"job_id": job_id}
            row = replace(row, last_sequence=0, last_event_at=None)
            await backend.ledger.commit(Change(row=row, expected_version=0))
            expected = []
            # Of the row's own ids, and of others.
            for context, ids in product(CONTEXTS, (own, {})):
                event = an_event(row, replace(filled(body), **ids), context)
                row = await committed(backend, row, event)
                expected.append(event)
            assert await backend.events.history("acme", event.entity) == expected


@scenario
async def test_a_result_of_null_that_waits_for_review_comes_back(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        row = replace(new_task(number=0).row, last_sequence=0, last_event_at=None)
        await backend.ledger.commit(Change(row=row, expected_version=0))
        body = e.TaskSubmittedForReview(
            job_id=row.spec.job_id,
            task_id=row.id,
            attempt_number=1,
            output=Document(text="null", size=4),
            duration=SECOND,
        )
        event = an_event(row, body, EventContext(origin="worker", worker_id="host:1"))

        await committed(backend, row, event)

        assert await backend.events.history("acme", event.entity) == [event]


@scenario
async def test_the_whole_life_of_a_job_comes_back(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        task = new_task(number=0, input=Document(text='{"a":"ü"}', size=10))
        summary = e.TaskSummary(key="a", name="resize", input=task.row.spec.input)
        job = new_job()
        created = replace(job.events[0], body=replace(job.events[0].body, tasks=(summary,)))
        job = replace(job, events=(created,))
        await backend.ledger.commit(job, task)
        claimed = claim(task.row)
        await backend.ledger.commit(claimed)
        result = Document(text='"done"', size=6)
        outcome = c.Complete(fence=claimed.row.fence, result=result, duration=SECOND, last_output=4)
        done = apply_command(claimed.row, outcome, now=START + SECOND)
        await backend.ledger.commit(done)

        events = [*task.events, *claimed.events, *done.events]
        assert await backend.events.history("acme", f"TASK#{task.row.id}") == events
        assert await backend.events.history("acme", f"JOB#{job.row.id}") == [created]
        end = e.JobCompleted(
            job_id=job.row.id, total_tasks=1, task_statuses={"a": "completed"}, round=1
        )
        event = an_event(job.row, end, EventContext(origin="dispatcher"))
        await committed(backend, job.row, event)
        assert await backend.events.history("acme", f"JOB#{job.row.id}") == [created, event]


def compact(event: Event, row: TaskRow | JobRow, **more: Any) -> bool:
    """Whether the properties of an event are stored as an array."""
    data = pack_event(
        event, row, position=1, number_of=lambda _: 9, tasks_stored=more.get("stored", True)
    )
    return not isinstance(unpack_records(data)[0].properties, str)


def test_only_what_the_row_says_too_is_left_out() -> None:
    context = EventContext(origin="worker", worker_id="w")
    pending = new_task(number=0)
    claimed = claim(pending.row)
    outcome = c.Complete(fence=claimed.row.fence, result=None, duration=SECOND)
    done = apply_command(claimed.row, outcome)
    job = new_job()
    assert compact(pending.events[0], pending.row)
    assert compact(claimed.events[0], claimed.row)
    assert compact(done.events[-1], done.row)
    assert not compact(job.events[0], job.row)

    def changed(event: Event, **fields_: Any) -> Event:
        return replace(event, body=replace(event.body, **fields_))

    other = Document(text="7", size=1)
    assert not compact(changed(pending.events[0], name="other"), pending.row)
    assert not compact(changed(pending.events[0], depends_on=other), pending.row)
    assert not compact(changed(pending.events[0], job_id="job-x"), pending.row)
    assert not compact(changed(done.events[-1], output=other), done.row)
    assert not compact(done.events[-1], replace(done.row, state=TaskState.IN_REVIEW))
    end = e.JobCompleted(job_id=job.row.id, total_tasks=1, task_statuses={"a": "completed"})
    assert compact(an_event(job.row, end, context), job.row)
    assert not compact(an_event(job.row, end, context), job.row, stored=False)
    for more in ({"task_statuses": {"a": "failed"}}, {"task_statuses": {}}, {"total_tasks": 2}):
        assert not compact(an_event(job.row, replace(end, **more), context), job.row)


@scenario
async def test_a_first_event_that_differs_from_the_rows_is_stored_as_it_is(tmp_path: Path) -> None:
    job = new_job()
    tasks = [new_task("other", number=0), new_task("a", number=0, definition="other")]
    tasks += [new_task("a", number=0, parents=Document(text='["b"]', size=5))]
    tasks += [new_task("a", number=0, input=Document(text="1", size=1)), new_task("a", number=1)]
    for number, task in enumerate(tasks):
        async with sqlite_backend(tmp_path / str(number), FakeClock(START)) as backend:
            await backend.ledger.commit(job, task)

            assert await backend.events.history("acme", f"JOB#{job.row.id}") == list(job.events)


@settings(deadline=None, max_examples=25)
@given(RECORDS)
def test_records_come_back_however_a_history_is_split(records: list[Any]) -> None:
    packed = [pack_record(*record) for record in records]
    expected = [Record(*record) for record in records]

    for cut in range(len(packed) + 1):
        parts = b"".join(packed[:cut]), b"".join(packed[cut:])
        assert [record for part in parts for record in unpack_records(part)] == expected


@pytest.mark.parametrize("length", [0, 240, 241, 242, 243, 244, 245, 254, 255, 256, 70_000])
def test_a_record_of_any_length_comes_back(length: int) -> None:
    record = (1, 2, 3, 4, "x" * length)

    assert unpack_records(pack_record(*record) * 2) == [Record(*record)] * 2


@scenario
async def test_a_long_history_continues_in_segments_and_is_whole(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        row = await commit(backend, claim(await commit(backend, new_task(number=0))))
        events = []
        for number in range(60):
            renew = c.Renew(fence=row.fence, lease_duration=45 * SECOND)
            change = apply_command(row, renew, now=START + (number + 1) * SECOND)
            row = await commit(backend, change)
            events += change.events
        database = backend.ledger._database
        history = await backend.events.history("acme", f"TASK#{row.id}")
        sizes = database.point("SELECT length(body) FROM history_segments")
        first = database.point("SELECT first_sequence FROM history_segments ORDER BY 1")
        ((last,),) = database.point("SELECT length(history) FROM tasks")

        assert history[-60:] == events
        assert [event.sequence for event in history] == list(range(1, 63))
        assert len(sizes) > 3
        assert all(SEGMENT_BYTES < size < 2 * SEGMENT_BYTES for (size,) in sizes)
        assert last < 2 * SEGMENT_BYTES
        assert first[0] == (1,)
        assert await backend.events.latest("acme", f"TASK#{row.id}") == events[-1]


def test_the_usage_of_a_completed_task_has_every_field() -> None:
    pending = new_task(number=0)
    row = replace(pending.row, state=TaskState.COMPLETED)
    usage = e.Usage(**{item.name: number for number, item in enumerate(fields(e.Usage), 1)})
    body = e.TaskCompleted(
        task_id=row.id,
        job_id=row.spec.job_id,
        attempt_number=1,
        output=None,
        duration=SECOND,
        exit_code=0,
        usage=usage,
    )
    event = an_event(row, body, EventContext(origin="worker", worker_id="w"))
    data = pack_event(event, row, position=1, number_of=lambda _: 9, tasks_stored=False)

    assert unpack_records(data)[0].properties[-1] == [1, 2, 3, 4, 5, 6]
