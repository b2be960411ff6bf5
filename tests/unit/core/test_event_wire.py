"""Events on the wire: the literal shapes that readers elsewhere rely on."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.core.events import codec
from longshore.core.events import types as e
from longshore.core.events.event import EventContext
from longshore.errors import UsageError
from tests.unit.core.event_samples import (
    AT,
    COMPLETED,
    FAILURE,
    HEARTBEAT,
    IDS,
    JOB,
    STARTED,
    an_event,
    inline,
)

AT_MS = 1767453739640
WIRE_IDS = {"requestId": "req-123", "jobId": "job-456"}


def test_an_event_on_the_wire_has_all_keys_and_nothing_else() -> None:
    event = an_event(STARTED)

    wire = codec.to_wire(event, environment="prod")

    assert wire == {
        "PK": "TENANT#acme",
        "SK": f"TIMESTAMP#1767453739640#EVENT#{event.id}",
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
        "eventId": event.id,
        "sequence": 2,
        "app": "task-workflow",
        "entityId": "req-123",
        "entityType": "TASK",
        "tenantId": "acme",
        "eventType": "Task Processing Started",
        "timestamp": 1767453739640,
        "context": {
            "source": "system",
            "environment": "prod",
            "origin": "sqs-worker",
            "workerId": "worker-abc123",
        },
        "properties": {
            "requestId": "req-123",
            "jobId": "job-456",
            "startedAt": 1767453739640,
            "effectiveUntil": 1767453784640,
            "workerId": "worker-i-001",
            "processId": 12345,
            "attemptNumber": 1,
            "fence": 7,
        },
    }


def test_a_context_without_a_worker_does_not_name_one() -> None:
    event = an_event(STARTED, context=EventContext(origin="producer", source="user"))

    wire = codec.to_wire(event, environment="dev")

    assert wire["context"] == {"source": "user", "environment": "dev", "origin": "producer"}


def test_the_time_to_live_is_in_whole_seconds() -> None:
    wire = codec.to_wire(an_event(STARTED), environment="prod", ttl_at=AT)

    assert wire["ttl"] == 1767453739


LITERALS = [
    (
        e.TaskPending(**IDS, name="scrape-store"),
        WIRE_IDS | {"name": "scrape-store", "dependsOn": [], "round": 1},
    ),
    (
        e.TaskPending(**IDS, name="color-tags", depends_on=inline(["task-A"]), round=2, due_at=AT),
        WIRE_IDS | {"name": "color-tags", "dependsOn": ["task-A"], "round": 2, "dueAt": AT_MS},
    ),
    (e.TaskWaiting(**IDS, round=2), WIRE_IDS | {"round": 2}),
    (
        HEARTBEAT,
        WIRE_IDS
        | {
            "effectiveUntil": AT_MS,
            "heartbeatNumber": 3,
            "elapsedMs": 60000,
            "workerId": "worker-i-001",
            "processId": 12345,
            "attemptNumber": 1,
            "memoryUsage": {"rss": 256000000},
            "lastActivity": {
                "type": "step_running",
                "stepName": "color-tags",
                "timestamp": AT_MS,
            },
        },
    ),
    (
        e.TaskProcessingFailed(
            **IDS, attempt_number=2, error="ETIMEDOUT", error_category="network", due_at=AT
        ),
        WIRE_IDS
        | {
            "attemptNumber": 2,
            "error": "ETIMEDOUT",
            "errorCategory": "network",
            "dueAt": AT_MS,
        },
    ),
    (
        e.TaskReleased(
            **IDS, reason="drain", attempt_number=2, last_output=4, usage=e.Usage(turns=3)
        ),
        WIRE_IDS
        | {
            "reason": "drain",
            "attemptNumber": 2,
            "lastOutput": 4,
            "usage": {
                "inputTokens": 0,
                "outputTokens": 0,
                "cacheReadTokens": 0,
                "turns": 3,
                "costUsd": 0.0,
                "seconds": 0.0,
            },
        },
    ),
    (
        e.TaskParked(
            **IDS,
            attempt_number=2,
            scope="day",
            reason="all is spent",
            due_at=AT,
            duration=timedelta(seconds=2),
            last_output=4,
        ),
        WIRE_IDS
        | {
            "attemptNumber": 2,
            "scope": "day",
            "reason": "all is spent",
            "dueAt": AT_MS,
            "durationMs": 2000,
            "lastOutput": 4,
        },
    ),
    (e.TaskUnparked(**IDS, by="ann"), WIRE_IDS | {"by": "ann"}),
    (
        e.TaskBudgetAdded(**IDS, by="ann", usd=1.5, tokens=7, minutes=2.0),
        WIRE_IDS | {"by": "ann", "usd": 1.5, "tokens": 7, "minutes": 2.0},
    ),
    (
        COMPLETED,
        WIRE_IDS
        | {
            "attemptNumber": 1,
            "output": {"pages": 3},
            "durationMs": 45000,
            "exitCode": 0,
            "lastOutput": 9,
            "usage": {
                "inputTokens": 12000,
                "outputTokens": 3500,
                "cacheReadTokens": 8000,
                "turns": 0,
                "costUsd": 0.25,
                "seconds": 0.0,
            },
        },
    ),
    (
        e.TaskFailed(
            **IDS, error="Invalid API key", error_category="auth", retry_count=3, source="worker"
        ),
        WIRE_IDS
        | {
            "error": "Invalid API key",
            "errorCategory": "auth",
            "retryCount": 3,
            "source": "worker",
        },
    ),
    (
        e.TaskFailed(
            **IDS,
            error="killed",
            error_category="crash",
            retry_count=3,
            source="worker",
            peak_rss_bytes=2**31,
        ),
        WIRE_IDS
        | {
            "error": "killed",
            "errorCategory": "crash",
            "retryCount": 3,
            "source": "worker",
            "memoryPeak": 2147483648,
        },
    ),
    (
        e.TaskTimeout(
            **IDS,
            attempt_number=1,
            timeout=timedelta(seconds=200),
            elapsed=timedelta(milliseconds=200050),
            signal="SIGKILL",
        ),
        WIRE_IDS
        | {"attemptNumber": 1, "timeoutMs": 200000, "elapsedMs": 200050, "signal": "SIGKILL"},
    ),
    (
        JOB,
        {
            "jobId": "job-456",
            "requestId": "req-789",
            "tasks": [
                {
                    "taskId": "task-A",
                    "name": "scrape-store",
                    "dependsOn": [],
                    "input": {"storeId": "store-123"},
                },
                {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"]},
            ],
            "totalTasks": 2,
        },
    ),
    (
        e.JobTasksAdded(
            job_id="job-456",
            new_tasks=(e.TaskSummary(key="task-F", name="market-analysis"),),
            previous_total_tasks=5,
            total_tasks_now=6,
        ),
        {
            "jobId": "job-456",
            "newTasks": [{"taskId": "task-F", "name": "market-analysis", "dependsOn": []}],
            "previousTotalTasks": 5,
            "totalTasksNow": 6,
        },
    ),
    (
        e.JobCompleted(job_id="job-456", total_tasks=1, task_statuses={"task-A": "completed"}),
        {
            "jobId": "job-456",
            "totalTasks": 1,
            "taskStatuses": {"task-A": "completed"},
            "round": 1,
        },
    ),
    (
        FAILURE,
        {
            "jobId": "job-456",
            "failedTaskId": "task-C",
            "taskStatuses": {"task-A": "completed", "task-C": "failed", "task-E": None},
            "round": 1,
        },
    ),
    (
        e.JobResumed(job_id="job-456", round=2, tasks=("task-C",), by="ann"),
        {"jobId": "job-456", "round": 2, "tasks": ["task-C"], "by": "ann"},
    ),
    (
        e.JobBudgetAdded(job_id="job-456", by="ann", tokens=7),
        {"jobId": "job-456", "by": "ann", "tokens": 7},
    ),
    (
        e.TaskHealthCheck(
            summary=e.HealthSummary(
                total_processing=4, healthy=2, warning=1, critical=0, overtime=1
            ),
            tasks=(
                e.TaskHealth(
                    task_id="req-123",
                    health="healthy",
                    elapsed=timedelta(minutes=2),
                    time_since_last_event=timedelta(seconds=15),
                    last_event_type="Task Heartbeat",
                    worker_id="worker-i-001",
                ),
            ),
        ),
        {
            "summary": {
                "totalProcessing": 4,
                "healthy": 2,
                "warning": 1,
                "critical": 0,
                "overtime": 1,
            },
            "tasks": [
                {
                    "requestId": "req-123",
                    "health": "healthy",
                    "elapsed": 120000,
                    "timeSinceLastEvent": 15000,
                    "lastEventType": "Task Heartbeat",
                    "workerId": "worker-i-001",
                }
            ],
        },
    ),
]


@pytest.mark.parametrize(("body", "properties"), LITERALS, ids=[body.TYPE for body, _ in LITERALS])
def test_the_properties_of_an_event_are_these(
    body: e.EventBody, properties: dict[str, Any]
) -> None:
    assert codec.properties_of(an_event(body)) == properties
    assert codec.body_from_properties(body.TYPE, properties) == (body, None)


def test_a_moment_in_any_time_zone_is_truncated_to_milliseconds() -> None:
    pending = e.TaskPending(**IDS, name="x", due_at=AT + timedelta(microseconds=999))

    assert codec.properties_of(an_event(pending))["dueAt"] == AT_MS


_SEED_TASKS = [{"taskId": "task-A", "name": "scrape", "dependsOn": [], "input": {"storeId": "s"}}]
_SEED_HEALTH = {
    "requestId": "req-123",
    "health": "overtime",
    "elapsed": 3_800_000,
    "timeSinceLastEvent": 15_000,
    "lastEventType": "Task Heartbeat",
    "workerId": "worker-i-001",
}
_WORKER = {"effectiveUntil": 1707300645, "workerId": "worker-i-001", "processId": 12345}
# The examples of the interface that this one replaces, which knew neither attempts nor fences.
SEED_EXAMPLES: list[tuple[str, dict[str, Any]]] = [
    ("Task Pending", {"name": "scrape-store", "dependsOn": []}),
    ("Task Processing Started", _WORKER),
    ("Task Processing Started", {**_WORKER, "startedAt": AT_MS}),
    (
        "Task Processing Failed",
        {"attemptNumber": 2, "error": "ETIMEDOUT", "errorCategory": "network"},
    ),
    (
        "Task Completed",
        {
            "output": {"a": 1},
            "durationMs": 45000,
            "exitCode": 0,
            "usage": {"inputTokens": 12000, "outputTokens": 3500, "cacheReadTokens": 8000},
        },
    ),
    (
        "Task Failed",
        {"error": "Invalid API key", "errorCategory": "auth", "retryCount": 3, "source": "worker"},
    ),
    ("Task Timeout", {"timeoutMs": 200000, "elapsedMs": 200050, "signal": "SIGKILL"}),
    (
        "Task Heartbeat",
        {
            **_WORKER,
            "heartbeatNumber": 3,
            "elapsedMs": 60000,
            "memoryUsage": {"rss": 256000000},
            "lastActivity": {"type": "step_running", "stepName": "x", "timestamp": 1707300540},
        },
    ),
    ("Job Created", {"jobId": "job-456", "tasks": _SEED_TASKS, "totalTasks": 1}),
    (
        "Job Tasks Added",
        {
            "jobId": "job-456",
            "newTasks": _SEED_TASKS,
            "previousTotalTasks": 5,
            "totalTasksNow": 6,
        },
    ),
    ("Job Completed", {"jobId": "job-456", "totalTasks": 1, "taskStatuses": {"a": "completed"}}),
    (
        "Job Failure Detected",
        {"jobId": "job-456", "failedTaskId": "a", "taskStatuses": {"a": "failed", "b": None}},
    ),
    (
        "Task Health Check",
        {
            "summary": dict.fromkeys(
                ("totalProcessing", "healthy", "warning", "critical", "overtime"), 1
            ),
            "tasks": [_SEED_HEALTH],
        },
    ),
]


def _seed_event(event_type: str, properties: dict[str, Any]) -> dict[str, Any]:
    entity = codec.EVENT_TYPES[event_type].ENTITY.value
    return {
        "entityId": "req-123",
        "entityType": entity,
        "tenantId": "gbinnovations",
        "eventType": event_type,
        "timestamp": AT_MS,
        "context": {"source": "system", "environment": "prod", "origin": "sqs-worker"},
        "properties": {"requestId": "req-123", **properties},
    }


@pytest.mark.parametrize("job", [{}, {"jobId": "job-456"}], ids=["alone", "of-a-job"])
@pytest.mark.parametrize(("event_type", "properties"), SEED_EXAMPLES)
def test_every_example_of_the_earlier_interface_is_read(
    event_type: str, properties: dict[str, Any], job: dict[str, str]
) -> None:
    event = codec.from_wire(_seed_event(event_type, {**job, **properties}))

    assert (event.type, event.sequence, event.app) == (event_type, 0, "")
    if isinstance(event.body, e.TaskEvent):
        assert event.body.job_id == job.get("jobId", "")
    if isinstance(event.body, e.TaskProcessingStarted):
        assert (event.body.started_at, event.body.attempt_number, event.body.fence) == (AT, 0, 0)
    if isinstance(event.body, e.TaskProcessingFailed):
        assert (event.body.due_at, event.body.attempt_number) == (AT, 2)


def test_other_missing_properties_are_refused() -> None:
    for event_type, missing in (("Task Failed", "error"), ("Job Cancelled", "jobId")):
        with pytest.raises(UsageError, match=rf"^properties\.{missing} is missing"):
            codec.from_wire(_seed_event(event_type, {}))
