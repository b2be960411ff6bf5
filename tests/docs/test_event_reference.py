"""The reference of events: their properties, the kinds of these, and the terminal events."""

from docs.generate import event_docs
from longshore.core.events import types as e
from longshore.core.events.codec import EVENT_TYPES


def test_no_two_properties_of_an_event_share_a_name() -> None:
    for doc in event_docs():
        names = [part.name for part in doc.properties]

        assert len(set(names)) == len(names), doc.name


def test_the_reference_lists_every_event_once_with_its_description() -> None:
    docs = {doc.name: doc for doc in event_docs()}

    assert list(docs) == list(EVENT_TYPES)
    heartbeat = docs["Task Heartbeat"]
    assert (heartbeat.entity, heartbeat.when) == (
        e.EntityType.TASK,
        "The worker renewed its lease of the task.",
    )


def test_the_reference_names_each_property_with_its_kind() -> None:
    docs = {doc.name: doc for doc in event_docs()}

    shown = [(part.name, part.kind, part.optional) for part in docs["Task Heartbeat"].properties]

    assert shown == [
        ("requestId", "string", False),
        ("jobId", "string", False),
        ("effectiveUntil", "milliseconds since epoch", False),
        ("heartbeatNumber", "integer", False),
        ("elapsedMs", "milliseconds", False),
        ("workerId", "string", False),
        ("processId", "integer", False),
        ("attemptNumber", "integer", False),
        ("memoryUsage", "object", False),
        ("memoryUsage.rss", "integer", False),
        ("lastActivity", "object", True),
        ("lastActivity.type", "string", False),
        ("lastActivity.stepName", "string", True),
        ("lastActivity.timestamp", "milliseconds since epoch", True),
        ("usage", "object", True),
        ("usage.inputTokens", "integer", False),
        ("usage.outputTokens", "integer", False),
        ("usage.cacheReadTokens", "integer", False),
        ("usage.turns", "integer", False),
        ("usage.costUsd", "number", False),
        ("usage.seconds", "number", False),
    ]


def test_the_reference_shows_properties_of_list_items() -> None:
    docs = {doc.name: doc for doc in event_docs()}

    shown = {part.name: part.kind for part in docs["Job Created"].properties}

    assert shown == {
        "jobId": "string",
        "requestId": "string",
        "tasks": "list of objects",
        "tasks[].taskId": "string",
        "tasks[].name": "string",
        "tasks[].dependsOn": "list of strings",
        "tasks[].input": "JSON",
        "totalTasks": "integer",
    }


def test_the_reference_marks_events_that_end_a_task_or_a_job() -> None:
    terminal = {doc.name for doc in event_docs() if doc.terminal}

    assert terminal == {
        "Task Completed",
        "Task Failed",
        "Task Timeout",
        "Task Cancelled",
        "Job Completed",
        "Job Cancelled",
    }
