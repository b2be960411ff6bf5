"""What is refused as an event, and that the answer names the place."""

from typing import Any

import pytest

from longshore.core.events import codec
from longshore.core.events import types as e
from longshore.errors import UsageError
from tests.unit.core.event_samples import COMPLETED, FAILURE, HEARTBEAT, JOB, STARTED, an_event

WRONG_ENVELOPES = [
    ("eventType", 5, "eventType: expected a string"),
    ("eventType", "Task Dreamt", "eventType: there is no event 'Task Dreamt'"),
    ("entityType", "STORE", "entityType: expected one of TASK, JOB, QUEUE, SYSTEM"),
    ("entityType", [], "entityType: expected one of TASK, JOB, QUEUE, SYSTEM"),
    ("entityId", None, "entityId: expected a string"),
    ("sequence", True, "sequence: expected an integer"),
    ("sequence", 1.0, "sequence: expected an integer"),
    ("timestamp", "now", "timestamp: expected an integer"),
    ("timestamp", 10**30, "timestamp: expected a time before the year 10000"),
    ("context", "prod", "context: expected an object"),
    ("context", {"source": "user"}, "context.origin is missing"),
    ("properties", [], "properties: expected an object"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG_ENVELOPES)
def test_a_wrong_envelope_is_refused_and_the_field_is_named(
    name: str, value: Any, message: str
) -> None:
    wire = codec.to_wire(an_event(STARTED), environment="prod") | {name: value}

    with pytest.raises(UsageError) as refused:
        codec.from_wire(wire)

    assert str(refused.value) == message


ENVELOPE = ["eventType", "entityType", "entityId", "tenantId", "timestamp"]


@pytest.mark.parametrize("name", [*ENVELOPE, "context", "properties"])
def test_a_missing_part_of_the_envelope_is_named(name: str) -> None:
    wire = codec.to_wire(an_event(STARTED), environment="prod")
    del wire[name]

    with pytest.raises(UsageError) as refused:
        codec.from_wire(wire)

    assert str(refused.value) == f"{name} is missing"


@pytest.mark.parametrize("wire", [None, 5, "event", []])
def test_what_is_no_object_is_no_event(wire: Any) -> None:
    with pytest.raises(UsageError) as refused:
        codec.from_wire(wire)

    assert str(refused.value) == "event: expected an object"


CYCLE: list[Any] = []
CYCLE.append(CYCLE)

WRONG_PROPERTIES = [
    (HEARTBEAT, "requestId", 5, "properties.requestId: expected a string"),
    (HEARTBEAT, "elapsedMs", 10**30, "properties.elapsedMs: expected a shorter duration"),
    (HEARTBEAT, "memoryUsage", 5, "properties.memoryUsage: expected an object"),
    (HEARTBEAT, "memoryUsage", {}, "properties.memoryUsage.rss is missing"),
    (HEARTBEAT, "lastActivity", {"type": 5}, "properties.lastActivity.type: expected a string"),
    (HEARTBEAT, "_s3Overflow", {}, "properties._s3Overflow.key: expected a string"),
    (COMPLETED, "usage", {"costUsd": "1"}, "properties.usage.costUsd: expected a number"),
    (COMPLETED, "usage", {"turns": None}, "properties.usage.turns: expected an integer"),
    (COMPLETED, "output", b"bytes", "properties.output: expected a JSON value"),
    (COMPLETED, "output", CYCLE, "properties.output: expected a JSON value"),
    (COMPLETED, "output", {"_ref": 5}, "properties.output: expected a reference with key and size"),
    (
        COMPLETED,
        "output",
        {"_ref": {"key": "k"}},
        "properties.output: expected a reference with key and size",
    ),
    (JOB, "tasks", {}, "properties.tasks: expected a list"),
    (JOB, "tasks", [{"name": "x"}], "properties.tasks[0].taskId is missing"),
    (FAILURE, "taskStatuses", [], "properties.taskStatuses: expected an object"),
    (
        FAILURE,
        "taskStatuses",
        {"task-A": 5},
        "properties.taskStatuses: expected a string or null for each name",
    ),
    (
        FAILURE,
        "taskStatuses",
        {5: "failed"},
        "properties.taskStatuses: expected a string or null for each name",
    ),
]


@pytest.mark.parametrize(("body", "name", "value", "message"), WRONG_PROPERTIES)
def test_a_wrong_property_is_refused_and_its_place_is_named(
    body: e.EventBody, name: str, value: Any, message: str
) -> None:
    properties = codec.properties_of(an_event(body)) | {name: value}

    with pytest.raises(UsageError) as refused:
        codec.body_from_properties(body.TYPE, properties)

    assert str(refused.value) == message


def test_a_missing_property_is_named() -> None:
    with pytest.raises(UsageError) as refused:
        codec.body_from_properties("Job Cancelled", {"jobId": "job-456"})

    assert str(refused.value) == "properties.by is missing"


def test_a_missing_large_field_is_refused_unless_it_was_moved_out() -> None:
    properties = codec.properties_of(an_event(JOB))
    del properties["tasks"]

    with pytest.raises(UsageError) as refused:
        codec.body_from_properties(JOB.TYPE, properties)

    assert str(refused.value) == "properties.tasks is missing"
