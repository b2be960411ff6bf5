"""The index keys of an event, as literal strings: other readers of the table rely on each."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from longshore.core.events.codec import index_keys
from longshore.core.events.event import Event
from longshore.core.events.types import (
    EntityType,
    EventBody,
    HealthSummary,
    JobCancelled,
    MessageRejected,
    TaskHealthCheck,
    TaskProcessingStarted,
)

AT = datetime(2026, 1, 3, 15, 22, 19, 640_000, tzinfo=UTC)
HEALTH = HealthSummary(total_processing=0, healthy=0, warning=0, critical=0, overtime=0)

STARTED = Event(
    entity_type=EntityType.TASK,
    entity_id="req-123",
    tenant="acme",
    app="task-workflow",
    sequence=2,
    at=AT,
    body=TaskProcessingStarted(
        task_id="req-123",
        job_id="job-456",
        started_at=AT,
        effective_until=AT + timedelta(seconds=45),
        worker_id="worker-i-001",
        process_id=12345,
        attempt_number=1,
        fence=1,
    ),
)


def test_a_task_event_has_every_key() -> None:
    keys = index_keys(STARTED)

    assert keys == {
        "PK": "TENANT#acme",
        "SK": f"TIMESTAMP#1767453739640#EVENT#{STARTED.id}",
        "GSI1PK": "TASK#req-123",
        "GSI1SK": "TASK#TIMESTAMP#1767453739640",
        "GSI2PK": "APP#task-workflow",
        "GSI2SK": "TIMESTAMP#1767453739640",
        "GSI3PK": "APP#task-workflow",
        "GSI3SK": "TASK#req-123#TIMESTAMP#1767453739640",
        "GSI4PK": "EVENT#Task Processing Started",
        "GSI4SK": "TENANT#acme#TIMESTAMP#1767453739640",
        "GSI5PK": "EVENT#Task Processing Started",
        "GSI5SK": "TENANT#acme#TASK#req-123#TIMESTAMP#1767453739640",
        "GSI6PK": "EVENT#Task Processing Started",
        "GSI6SK": "TENANT#acme#APP#task-workflow#TIMESTAMP#1767453739640",
        "GSI7PK": "EVENT#Task Processing Started",
        "GSI7SK": "TENANT#acme#APP#task-workflow#TASK#req-123#TIMESTAMP#1767453739640",
    }


@pytest.mark.parametrize(
    ("body", "entity_id", "entity"),
    [
        pytest.param(JobCancelled(job_id="job-456", by="ann"), "job-456", "JOB", id="job"),
        pytest.param(
            MessageRejected(queue="default", message_id="m", reason="no JSON"),
            "default",
            "QUEUE",
            id="queue",
        ),
        pytest.param(TaskHealthCheck(summary=HEALTH, tasks=()), "health-check", "SYSTEM", id="all"),
    ],
)
def test_the_prefix_is_the_type_of_the_entity(body: EventBody, entity_id: str, entity: str) -> None:
    event = replace(STARTED, entity_type=body.ENTITY, entity_id=entity_id, body=body)

    keys = index_keys(event)

    at = "TIMESTAMP#1767453739640"
    assert keys["GSI1PK"] == f"{entity}#{entity_id}"
    assert keys["GSI1SK"] == f"{entity}#{at}"
    assert keys["GSI3SK"] == f"{entity}#{entity_id}#{at}"
    assert keys["GSI5SK"] == f"TENANT#acme#{entity}#{entity_id}#{at}"
    assert keys["GSI7SK"] == f"TENANT#acme#APP#task-workflow#{entity}#{entity_id}#{at}"


def test_two_events_of_a_tenant_in_one_millisecond_have_different_primary_keys() -> None:
    other = replace(STARTED, entity_id="req-124")

    assert index_keys(other)["PK"] == index_keys(STARTED)["PK"]
    assert index_keys(other)["SK"] != index_keys(STARTED)["SK"]
