"""Rows, events and budgets with every field set, to check that a store keeps each field."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from longshore.core.budgets import (
    Allowance,
    Budget,
    BudgetScope,
    BudgetUnit,
    Reservation,
    SharedBudget,
)
from longshore.core.documents import Document
from longshore.core.events.codec import EVENT_TYPES
from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import EventBody, Usage
from longshore.core.jobs.numbers import NumberSet
from longshore.core.maximums import MAX_TASKS_PER_JOB
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import CancelRequest, Intent, IntentKind, JobRow, ParkRecord, TaskRow
from longshore.core.tasks.states import Priority, TaskState
from longshore.testing.contracts.samples import new_job, new_task
from longshore.testing.contracts.suite import START

_CANCEL = CancelRequest(by="ann", reason="no longer needed ⚓", at=START + timedelta(hours=3))
_ALLOWANCE = Allowance(
    added=Budget(usd=0.1 + 0.2, tokens=2**53 + 1, minutes=0.7 + 0.1), requests=("r-1", "ß ⚓")
)
_BEYOND_64_BITS = 2**64 + 1
# The wire has whole milliseconds, and so has what an event says.
MOMENT = START.replace(microsecond=123_000)
_VALUES: dict[Any, Any] = {
    str: "Füße 🚢\n\u0000",
    int: 2**40 + 1,
    float: 0.1 + 0.2,
    datetime: MOMENT + timedelta(days=1),
    timedelta: timedelta(days=2, milliseconds=1),
    Document: Document(text='{"a":[1,2.5,null,"ü"]}', size=23),
    dict[str, str | None]: {"b": "pending", "a": None},
}


def full_task_row() -> TaskRow:
    """A task with everything; no real one has all of it at the same time."""
    created = new_task(
        "full",
        number=9_999,
        queue="agents",
        priority=Priority.LOW,
        retry=RetryPolicy(max_attempts=7, base=timedelta(milliseconds=1500)),
        retry_on_timeout=True,
        requires_review=True,
        not_before=START + timedelta(microseconds=1),
        input=Document(text='{"name":"Füße \\u0000 🚢"}', size=29),
        parents=Document(text='["b","c"]', size=9),
        dependents=Document(key="jobs/job-one/dependents.json", size=123_456),
    )
    return replace(
        created.row,
        state=TaskState.PROCESSING,
        round=2,
        attempt=5,
        attempts_used=3,
        rate_limit_waits=timedelta(minutes=5, microseconds=3),
        fence=(8 << 32) + 5,
        lease=_lease(),
        awaits=NumberSet([0, 63, 64, 9_998]),
        due_at=START + timedelta(seconds=1, microseconds=1),
        enqueued_at=START + timedelta(seconds=2, microseconds=3),
        started_at=START + timedelta(seconds=4),
        finished_at=START + timedelta(days=400),
        ran_for=timedelta(days=1, microseconds=1),
        result=Document(text="null", size=4),
        exit_code=-9,
        failure=_failure(),
        last_output=2**40,
        checkpoint="jobs/job-one/checkpoint",
        revision=4,
        feedback="Bitte kürzer.\n\t— Zoë",
        previous_result=Document(key="jobs/job-one/previous.json", size=7),
        cancel=_CANCEL,
        usage=_usage(),
        parked=_parked(),
        allowance=_ALLOWANCE,
        last_sequence=12,
        last_event_at=START.replace(microsecond=123_000),
    )


def _lease() -> Lease:
    return Lease(
        worker_id="host:1234",
        fence=(8 << 32) + 5,
        claim_id="claim-1",
        acquired_at=START,
        expires_at=START + timedelta(seconds=45, microseconds=1),
        heartbeats=17,
        local=False,
        usage=_usage(),
    )


def _parked() -> ParkRecord:
    return ParkRecord(
        scope=BudgetScope.DAY,
        unit=BudgetUnit.TOKENS,
        reason="« $1.00 » of $1.00 is spent",
        at=START + timedelta(minutes=7),
    )


def _failure() -> Failure:
    return Failure(
        category=ErrorCategory.RATE_LIMIT,
        message="slow down: « 429 »",
        error_type="shop.errors.TooMany",
        exit_code=75,
        signal="SIGKILL",
        retry_after=timedelta(seconds=90, microseconds=7),
        retry=False,
        peak_rss_bytes=2**31 + 1,
    )


def _usage() -> Usage:
    # 0.1 + 0.2 has digits that a store which rounds would lose.
    return Usage(
        input_tokens=2**53 + 1,
        output_tokens=2,
        cache_read_tokens=3,
        turns=4,
        cost_usd=0.1 + 0.2,
        seconds=0.7 + 0.1,
    )


def full_job_row() -> JobRow:
    """A job of the most tasks there may be, with everything."""
    created = new_job("job-full").row
    return replace(
        created,
        spec=replace(
            created.spec,
            name="nightly «ünïcode»",
            budget=Budget(usd=0.1 + 0.2, tokens=7, minutes=1.5),
        ),
        graph=Document(key="jobs/job-full/graph.json", size=700_000),
        total=MAX_TASKS_PER_JOB,
        round=3,
        completed=NumberSet(range(0, MAX_TASKS_PER_JOB, 3)),
        failed=NumberSet([MAX_TASKS_PER_JOB - 2]),
        cancelled=NumberSet([1, 64, 127]),
        blocked=NumberSet(range(2, MAX_TASKS_PER_JOB, 3)),
        with_added_dependents=NumberSet([3, 4_711]),
        failure_emitted_round=2,
        end_emitted_round=1,
        intents=_intents(),
        cancel=_CANCEL,
        allowance=_ALLOWANCE,
        usage=_usage(),
        finished_at=START + timedelta(microseconds=9),
        last_sequence=31,
        last_event_at=START.replace(microsecond=123_000),
    )


def _intents() -> tuple[Intent, ...]:
    resume = Intent(
        id="i-1",
        kind=IntentKind.RESUME,
        numbers=NumberSet.below(MAX_TASKS_PER_JOB),
        round=3,
        by="bob",
        body=Document(text='{"a":[1,2.5,null]}', size=18),
    )
    return (resume, replace(resume, id="i-2", kind=IntentKind.CREATE, body=None))


def full_budget() -> SharedBudget:
    """An account with everything, as its first commit writes it."""
    return SharedBudget(
        tenant="acme «Füße»",
        name="job/job-full",
        version=1,
        change_id="change-⚓",
        allowance=_numbered_allowance(),
        closed_usage=_numbered_usage(1),
        reservations=(
            Reservation(
                task_id="job-full_a",
                attempt=7,
                spent=_numbered_usage(2),
                reserved=_numbered_usage(3),
            ),
            # One task may have two: the second has come before the first was closed.
            Reservation(
                task_id="job-full_a", attempt=8, spent=Usage(), reserved=_numbered_usage(4)
            ),
            Reservation(
                task_id="job-full_«ü»", attempt=1, spent=_numbered_usage(5), reserved=Usage()
            ),
        ),
    )


def _numbered_allowance() -> Allowance:
    added = Budget(usd=0.7 + 0.1, tokens=_BEYOND_64_BITS, minutes=1 / 3)
    return Allowance(added=added, requests=("request-2", "request-1", ""))


def _numbered_usage(number: int) -> Usage:
    # 0.1 + 0.2 has digits that a store which rounds would lose.
    return Usage(
        input_tokens=2**53 + number,
        output_tokens=10 + number,
        cache_read_tokens=_BEYOND_64_BITS + number,
        turns=20 + number,
        cost_usd=number * (0.1 + 0.2),
        seconds=number * (0.7 + 0.1),
    )


def full_events(tenant: str) -> list[Event]:
    """One event of each type, each of an entity of its own."""
    return [
        Event(
            entity_type=body.ENTITY,
            entity_id=f"entity-{number}",
            tenant=tenant,
            app="shop",
            sequence=1,
            at=MOMENT,
            body=filled(body),
            context=EventContext(origin="worker", source="user", worker_id="host:1"),
        )
        for number, body in enumerate(EVENT_TYPES.values())
    ]


def filled(body: type[EventBody]) -> Any:
    """An instance in which no field is left out."""
    hints = get_type_hints(body)
    return body(**{field.name: _value(hints[field.name]) for field in fields(body)})


def _value(hint: Any) -> Any:
    if get_origin(hint) is UnionType:
        hint = next(choice for choice in get_args(hint) if choice is not NoneType)
    if hint in _VALUES:
        return _VALUES[hint]
    if get_origin(hint) is tuple:
        return (_value(get_args(hint)[0]),) * 2
    assert is_dataclass(hint), hint
    return filled(hint)  # type: ignore[arg-type]
