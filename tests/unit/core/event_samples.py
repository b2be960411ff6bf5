"""Events of some types, as the tests of their wire form need them."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.core.documents import Document
from longshore.core.events import types as e
from longshore.core.events.event import Event, EventContext

AT = datetime(2026, 1, 3, 15, 22, 19, 640_000, tzinfo=UTC)
IDS = {"task_id": "req-123", "job_id": "job-456"}


def inline(value: Any) -> Document:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Document(text=text, size=len(text.encode()))


def an_event(body: e.EventBody, **changes: Any) -> Event:
    event = Event(
        entity_type=body.ENTITY,
        entity_id="req-123",
        tenant="acme",
        app="task-workflow",
        sequence=2,
        at=AT,
        body=body,
        context=EventContext(origin="sqs-worker", worker_id="worker-abc123"),
    )
    return replace(event, **changes)


STARTED = e.TaskProcessingStarted(
    **IDS,
    started_at=AT,
    effective_until=AT + timedelta(seconds=45),
    worker_id="worker-i-001",
    process_id=12345,
    attempt_number=1,
    fence=7,
)
HEARTBEAT = e.TaskHeartbeat(
    **IDS,
    effective_until=AT,
    number=3,
    elapsed=timedelta(minutes=1),
    worker_id="worker-i-001",
    process_id=12345,
    attempt_number=1,
    rss_bytes=256_000_000,
    last_activity=e.Activity(type="step_running", step_name="color-tags", timestamp=AT),
)
COMPLETED = e.TaskCompleted(
    **IDS,
    attempt_number=1,
    output=inline({"pages": 3}),
    duration=timedelta(seconds=45),
    last_output=9,
    usage=e.Usage(input_tokens=12000, output_tokens=3500, cache_read_tokens=8000, cost_usd=0.25),
)
JOB = e.JobCreated(
    job_id="job-456",
    request_id="req-789",
    tasks=(
        e.TaskSummary(key="task-A", name="scrape-store", input=inline({"storeId": "store-123"})),
        e.TaskSummary(key="task-C", name="color-tags", depends_on=("task-A",)),
    ),
    total_tasks=2,
)
FAILURE = e.JobFailureDetected(
    job_id="job-456",
    failed_key="task-C",
    task_statuses={"task-A": "completed", "task-C": "failed", "task-E": None},
)
