"""Events on the wire: literal shapes, the way back for every type, and what is refused."""

import dataclasses
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.core import overflow
from longshore.core.events import codec
from longshore.core.events import types as e
from longshore.core.events.event import Context, Event
from longshore.core.events.shapes import Shape
from longshore.core.values import Document
from longshore.errors import UsageError

AT = datetime(2026, 1, 3, 15, 22, 19, 640_000, tzinfo=UTC)
AT_MS = 1767453739640
IDS = {"task_id": "req-123", "job_id": "job-456"}
WIRE_IDS = {"requestId": "req-123", "jobId": "job-456"}


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
        context=Context(origin="sqs-worker", worker_id="worker-abc123"),
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
    event = an_event(STARTED, context=Context(origin="producer", source="user"))

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


def test_a_moment_is_cut_to_the_millisecond_whatever_its_zone() -> None:
    pending = e.TaskPending(**IDS, name="x", due_at=AT + timedelta(microseconds=999))

    assert codec.properties_of(an_event(pending))["dueAt"] == AT_MS


# Strategies by type hint, so that an event type or a field that is added is covered by itself.

MARKED = st.sampled_from(["_ref", "_literal", "a", "é"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MARKED, inner, max_size=2),
    max_leaves=5,
)
references = st.builds(Document, key=st.text(min_size=1, max_size=9), size=st.integers(0, 2**40))
BY_HINT: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=9),
    int: st.integers(-(2**63), 2**63),
    float: st.floats(allow_nan=False, allow_infinity=False),
    datetime: st.integers(0, 2**42).map(lambda ms: datetime.fromtimestamp(0, UTC) + ms * TICK),
    timedelta: st.integers(-(2**40), 2**40).map(lambda ms: ms * TICK),
    Document: json_values.map(inline) | references,
    dict[str, str | None]: st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3)),
}
TICK = timedelta(milliseconds=1)
# No list of keys is None; the wire has one form for both.
DEPENDENCIES = st.none() | st.lists(st.text(max_size=3), min_size=1).map(inline) | references


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) is UnionType:
        return st.one_of(st.none(), *(values_of(each) for each in get_args(hint)[:-1]))
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=3).map(tuple)
    return BY_HINT[hint] if hint in BY_HINT else instances_of(hint)


def instances_of(of: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(of)
    fields = {field.name: values_of(hints[field.name]) for field in dataclasses.fields(of)}
    if of is e.TaskPending:
        fields["depends_on"] = DEPENDENCIES
    return st.builds(of, **fields)


def events_of(body: type[e.EventBody]) -> st.SearchStrategy[Event]:
    return st.builds(
        Event,
        entity_type=st.sampled_from(e.EntityType),
        entity_id=st.text(max_size=9),
        tenant=st.text(max_size=9),
        app=st.text(max_size=9),
        sequence=st.integers(1, 2**53),
        at=BY_HINT[datetime],
        body=instances_of(body),
        context=instances_of(Context),
    )


every_type = pytest.mark.parametrize("body", codec.EVENT_TYPES.values(), ids=codec.EVENT_TYPES)


@every_type
@settings(max_examples=40)
@given(st.data())
def test_an_event_comes_back_from_json_as_it_was(
    body: type[e.EventBody], data: st.DataObject
) -> None:
    event = data.draw(events_of(body))

    text = json.dumps(codec.to_wire(event, environment="prod", ttl_at=AT))

    assert codec.from_wire(json.loads(text)) == event


def emptied(body: e.EventBody) -> e.EventBody:
    """The body without its large fields, told from the type hints."""
    blank = {tuple: (), dict: {}, UnionType: None}
    large = {"output", "tasks", "new_tasks", "task_statuses"}
    hints = get_type_hints(type(body))
    return replace(
        body,
        **{name: blank[get_origin(hint)] for name, hint in hints.items() if name in large},
    )


@every_type
@settings(max_examples=15)
@given(st.data())
def test_large_fields_that_were_moved_out_are_empty_until_they_are_joined_again(
    body: type[e.EventBody], data: st.DataObject
) -> None:
    event = data.draw(events_of(body))
    whole = codec.properties_of(event)
    kept, moved = overflow.split(whole, entity_id="t", event_id="x", size=1, limit=0)
    key = moved.key if moved else "some/other"

    wire = codec.to_wire(replace(event, overflow=key), environment="prod")
    back = codec.from_wire(json.loads(json.dumps(wire)))

    assert wire["properties"] == kept | {"_s3Overflow": {"key": key}}
    assert back == replace(event, body=emptied(event.body), overflow=key)
    payload = moved.fields if moved else {}
    joined = overflow.join(wire["properties"], payload)
    assert codec.body_from_properties(event.type, joined) == (event.body, None)


def test_large_fields_that_are_there_are_read_although_the_reference_is_there_too() -> None:
    properties = codec.properties_of(an_event(JOB)) | {"_s3Overflow": {"bucket": "b", "key": "k"}}

    assert codec.body_from_properties(JOB.TYPE, properties) == (JOB, "k")


def test_a_document_kept_elsewhere_travels_as_a_reference() -> None:
    completed = replace(COMPLETED, output=Document(key="jobs/job-456/result.json", size=2048))

    properties = codec.properties_of(an_event(completed))

    assert properties["output"] == {"_ref": {"key": "jobs/job-456/result.json", "size": 2048}}


def test_a_result_that_looks_like_a_reference_does_not_become_one() -> None:
    forged = inline({"_ref": {"key": "jobs/of-somebody-else/result.json", "size": 5}})
    event = an_event(replace(COMPLETED, output=forged))

    back = codec.from_wire(codec.to_wire(event, environment="prod"))

    assert isinstance(back.body, e.TaskCompleted)
    assert back.body.output == forged


def test_a_result_with_such_a_name_among_others_travels_as_it_is() -> None:
    result = {"_ref": {"key": "k", "size": 5}, "_literal": 1}

    properties = codec.properties_of(an_event(replace(COMPLETED, output=inline(result))))

    assert properties["output"] == result
    assert codec.body_from_properties(COMPLETED.TYPE, properties) == (
        replace(COMPLETED, output=inline(result)),
        None,
    )


def test_no_result_and_a_result_of_null_are_different() -> None:
    none = an_event(replace(COMPLETED, output=None))
    null = an_event(replace(COMPLETED, output=Document(text="null", size=4)))

    assert "output" not in codec.properties_of(none)
    assert codec.properties_of(null)["output"] is None


def test_json_with_spaces_around_it_is_read() -> None:
    spaced = replace(COMPLETED, output=Document(text=' {"a": 1} ', size=10))

    assert codec.properties_of(an_event(spaced))["output"] == {"a": 1}


def test_text_that_has_no_bytes_stays_escaped() -> None:
    properties = codec.properties_of(an_event(COMPLETED)) | {"output": "\ud800"}

    body, _ = codec.body_from_properties(COMPLETED.TYPE, properties)

    assert isinstance(body, e.TaskCompleted)
    assert body.output == Document(text='"\\ud800"', size=8)


def test_what_is_not_known_or_derived_is_ignored() -> None:
    wire = codec.to_wire(an_event(STARTED), environment="prod", ttl_at=AT)
    for name in [name for name in wire if name.startswith(("GSI", "PK", "SK", "eventId", "ttl"))]:
        del wire[name]
    wire["receivedAt"] = 5
    wire["properties"]["colour"] = "red"

    assert codec.from_wire(wire) == an_event(STARTED)


@pytest.mark.parametrize(
    ("body", "name", "absent"),
    [
        pytest.param(e.TaskPending(**IDS, name="x"), "dependsOn", "depends_on", id="none"),
        pytest.param(e.TaskPending(**IDS, name="x"), "round", "round", id="default"),
        pytest.param(replace(COMPLETED, usage=e.Usage()), "usage", "usage", id="factory"),
    ],
)
def test_what_older_writers_leave_out_is_the_default(
    body: e.EventBody, name: str, absent: str
) -> None:
    properties = codec.properties_of(an_event(body))
    del properties[name]

    back, _ = codec.body_from_properties(body.TYPE, properties)

    assert getattr(back, absent) == getattr(body, absent)


@pytest.mark.parametrize("name", ["dueAt", "dependsOn"])
def test_a_null_in_place_of_an_optional_value_is_none(name: str) -> None:
    properties = codec.properties_of(an_event(e.TaskPending(**IDS, name="x"))) | {name: None}

    back, _ = codec.body_from_properties("Task Pending", properties)

    assert back == e.TaskPending(**IDS, name="x")


WRONG_ENVELOPES = [
    ("eventType", 5, "eventType: expected a string"),
    ("eventType", "Task Dreamt", "eventType: no event is called 'Task Dreamt'"),
    ("entityType", "STORE", "entityType: expected one of TASK, JOB, QUEUE, SYSTEM"),
    ("entityType", [], "entityType: expected one of TASK, JOB, QUEUE, SYSTEM"),
    ("entityId", None, "entityId: expected a string"),
    ("sequence", True, "sequence: expected an integer"),
    ("sequence", 1.0, "sequence: expected an integer"),
    ("timestamp", "now", "timestamp: expected an integer"),
    ("timestamp", 10**30, "timestamp: expected a moment that a calendar has"),
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


ENVELOPE = ["eventType", "entityType", "entityId", "tenantId", "app", "sequence", "timestamp"]


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
    (HEARTBEAT, "memoryUsage", 5, "properties.memoryUsage.rss: expected an object"),
    (HEARTBEAT, "memoryUsage", {}, "properties.memoryUsage.rss: expected an integer"),
    (HEARTBEAT, "lastActivity", {"type": 5}, "properties.lastActivity.type: expected a string"),
    (HEARTBEAT, "_s3Overflow", {}, "properties._s3Overflow.key: expected a string"),
    (COMPLETED, "usage", {"costUsd": "1"}, "properties.usage.costUsd: expected a number"),
    (COMPLETED, "usage", {"turns": None}, "properties.usage.turns: expected an integer"),
    (COMPLETED, "output", b"bytes", "properties.output: expected a JSON value"),
    (COMPLETED, "output", CYCLE, "properties.output: expected a JSON value"),
    (COMPLETED, "output", {"_ref": 5}, "properties.output: expected a reference with key and size"),
    (COMPLETED, "output", {"_ref": {"key": "k"}}, "properties.output: expected an integer"),
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


def test_a_whole_number_is_a_cost_too() -> None:
    properties = codec.properties_of(an_event(COMPLETED)) | {"usage": {"costUsd": 2}}

    body, _ = codec.body_from_properties(COMPLETED.TYPE, properties)

    assert isinstance(body, e.TaskCompleted)
    assert body.usage == e.Usage(cost_usd=2.0)


def test_a_type_hint_that_has_no_form_on_the_wire_is_found_at_once() -> None:
    odd = dataclasses.make_dataclass("Odd", [("names", set[str])])

    with pytest.raises(TypeError):
        Shape(odd)


def test_every_event_type_is_known_by_its_name() -> None:
    assert list(codec.EVENT_TYPES.values()) == list(get_args(e.EventBody))
    assert all(name == body.TYPE for name, body in codec.EVENT_TYPES.items())


def test_no_two_properties_of_an_event_share_a_name() -> None:
    for doc in codec.describe():
        names = [part.name for part in doc.properties]

        assert len(set(names)) == len(names), doc.name


def test_the_reference_lists_every_event_once_with_what_it_tells() -> None:
    docs = {doc.name: doc for doc in codec.describe()}

    assert list(docs) == list(codec.EVENT_TYPES)
    heartbeat = docs["Task Heartbeat"]
    assert (heartbeat.entity, heartbeat.when) == (
        e.EntityType.TASK,
        "The worker is alive and still has the task.",
    )


def test_the_reference_names_each_property_with_its_kind() -> None:
    docs = {doc.name: doc for doc in codec.describe()}

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
    ]


def test_the_reference_shows_what_is_inside_lists() -> None:
    docs = {doc.name: doc for doc in codec.describe()}

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


def test_the_reference_marks_what_ends_a_task_or_a_job() -> None:
    terminal = {doc.name for doc in codec.describe() if doc.terminal}

    assert terminal == {
        "Task Completed",
        "Task Failed",
        "Task Timeout",
        "Task Cancelled",
        "Job Completed",
        "Job Cancelled",
    }
