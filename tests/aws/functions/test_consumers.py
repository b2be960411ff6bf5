"""save-event, dispatcher and dlq-processor: each message of a queue is processed by itself."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsResponse
from longshore.adapters.aws.events.event_bus import event_in_message
from longshore.core.events.codec import to_wire
from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import EntityType, MessageRejected
from longshore.core.tasks.states import JobState, Priority, TaskState
from tests.aws.call_faults import Call, CallFault, request_lost, response_lost, throttled
from tests.aws.functions.installation import QUEUE, TENANT, FunctionInstallation
from tests.aws.functions.mappings import failed_ids
from tests.unit.services.harness import make_task

MALFORMED = (
    "not JSON",
    "{}",
    '{"detail": {"eventType": "Task Completed"}}',
    "[1]",
    '{"detail": 7}',
)


def throttle_job(installation: FunctionInstallation, job_id: str) -> CallFault:
    """A fault that throttles every call for the rows of one job."""

    async def throttle(call: Call) -> AwsResponse:
        parameters = installation.newest_client.calls[-1][1]
        return await (throttled(call) if job_id in repr(parameters) else call())

    return throttle


def batch(*bodies: str, queue: str = "longshore-x-history-events") -> dict[str, Any]:
    """A batch of invented messages."""
    return {
        "Records": [
            {
                "messageId": f"message-{number}",
                "receiptHandle": f"handle-{number}-{'x' * 100}",
                "body": body,
                "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1700000000000"},
                "messageAttributes": {},
                "eventSourceARN": f"arn:aws:sqs:eu-central-1:000000000000:{queue}",
            }
            for number, body in enumerate(bodies)
        ]
    }


def envelope(event: Event) -> str:
    """The message body that the bus puts on a queue."""
    detail = to_wire(event, environment="any")
    return json.dumps({"detail-type": "log-event", "source": "longshore.x", "detail": detail})


def events_of(installation: FunctionInstallation, request_id: str) -> list[Event]:
    """The first events of a job with one task, which no consumer has processed."""
    installation.submit(make_task("a"), request_id=request_id)
    installation.mappings.feed_stream(installation.handler("relay"))
    events: list[Event] = []
    while (
        event := installation.mappings.queue_event(installation.names.consumer("history"))
    ) is not None:
        events += [event_in_message(record["body"]) for record in event["Records"]]
    return events


def test_each_event_is_stored_by_itself_with_its_arrival_and_not_published(
    installation: FunctionInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_RETENTION_OTHER_EVENTS", "1d")
    events = events_of(installation, "saved")
    assert len(events) >= 2
    of_queue = Event(
        entity_type=EntityType.QUEUE,
        entity_id="saved",
        tenant=TENANT,
        app=events[0].app,
        sequence=1,
        at=events[0].at,
        body=MessageRejected(queue="saved", message_id="m1", reason="not JSON"),
    )
    events.append(of_queue)
    bodies = [envelope(event) for event in events]
    installation.invoke("save-event", {"Records": []})
    installation.newest_client.inject("put_item", throttled)

    answer = installation.invoke("save-event", batch(*bodies, *MALFORMED, bodies[0]))

    odd = [f"message-{len(bodies) + number}" for number in range(len(MALFORMED))]
    (unstored,) = set(failed_ids(answer)) - set(odd)
    assert set(odd) < set(failed_ids(answer))
    assert failed_ids(installation.invoke("save-event", batch(*bodies))) == []
    assert unstored == "message-0"
    assert installation.newest_client.count("put_events") == 0
    for event in events:
        assert installation.history(event.entity)[event.sequence - 1] == event
    stored = stored_of(installation, events)
    assert len(stored) == len(events)
    for item in stored:
        assert int(item["receivedAt"]["N"]) >= int(item["timestamp"]["N"])
        if item["eventId"]["S"] == of_queue.id:
            assert int(item["ttl"]["N"]) == int(item["timestamp"]["N"]) // 1000 + 86_400
        else:  # removed with its job
            assert "ttl" not in item
    # An event that is delivered again does not change its item.
    assert failed_ids(installation.invoke("save-event", batch(*bodies))) == []
    assert stored_of(installation, events) == stored


def stored_of(installation: FunctionInstallation, events: Sequence[Event]) -> list[dict[str, Any]]:
    page = installation.mappings.call("dynamodb", "scan", TableName=installation.names.events)
    ids = {event.id for event in events}
    return [item for item in page["Items"] if item["eventId"]["S"] in ids]


def test_the_overflow_of_a_stored_event_can_be_restored_from_its_history(
    installation: FunctionInstallation,
) -> None:
    key = "events/somewhere/some-payload.json"
    tasks = [{"taskId": "a", "name": "command", "dependsOn": []}]
    created = next(
        event for event in events_of(installation, "large") if event.type == "Job Created"
    )
    installation.run(lambda all_: all_.documents.store_key(key, {"tasks": tasks}))

    installation.invoke("save-event", batch(envelope(replace(created, overflow=key))))

    (result,) = installation.history(created.entity)
    properties = to_wire(result, environment="")["properties"]
    assert (result.overflow, properties.get("tasks")) == (key, None)
    whole = installation.run(lambda all_: all_.documents.restore(properties))
    assert whole["tasks"] == tasks


def test_a_job_that_is_stuck_does_not_delay_other_jobs(
    installation: FunctionInstallation,
) -> None:
    jobs = [
        installation.submit(make_task("a"), request_id=name).job.id for name in ("stuck", "free")
    ]
    installation.run_worker(*(f"{job_id}_a" for job_id in jobs))
    while installation.mappings.feed_stream(installation.handler("relay")):
        pass
    queue = installation.names.consumer("dispatcher")
    installation.invoke("dispatcher", {"Records": []})
    installation.newest_client.inject("update_item", *[throttle_job(installation, jobs[0])] * 50)
    installation.newest_client.inject("get_item", *[throttle_job(installation, jobs[0])] * 50)

    while installation.mappings.feed_queue(queue, installation.handler("dispatcher")):
        pass

    assert [installation.job(job_id).state for job_id in jobs] == [
        JobState.RUNNING,
        JobState.COMPLETED,
    ]
    # The end of the task whose job was stuck is left.
    assert installation.mappings.message_count(queue) == 1
    installation.newest_client._faults.clear()
    assert installation.mappings.feed_queue(queue, installation.handler("dispatcher")) == 1
    assert installation.job(jobs[0]).state is JobState.COMPLETED


def test_malformed_messages_are_returned_and_an_event_that_ends_nothing_is_processed(
    installation: FunctionInstallation,
) -> None:
    event, *_ = events_of(installation, "nothing ends")

    answer = installation.invoke("dispatcher", batch(*MALFORMED, envelope(event)))

    assert failed_ids(answer) == [f"message-{number}" for number in range(len(MALFORMED))]


def dead_letter_event(
    installation: FunctionInstallation, *bodies: str, sent_ms: int = 9_999_999_999_999
) -> dict[str, Any]:
    """A batch of the dead-letter queue."""
    event = batch(*bodies, queue=installation.names.dead_letter_queue(QUEUE, Priority.NORMAL))
    for record in event["Records"]:
        record["attributes"]["SentTimestamp"] = str(sent_ms)
    return event


def test_a_dead_message_is_deleted_only_after_its_task_has_failed(
    installation: FunctionInstallation,
) -> None:
    task_id = f"{installation.submit(make_task('a'), request_id='dead').job.id}_a"
    event = dead_letter_event(installation, json.dumps({"requestId": task_id}))
    installation.invoke("dlq-processor", {"Records": []})
    installation.newest_client.inject("update_item", *[throttled] * 20)

    assert failed_ids(installation.invoke("dlq-processor", event)) == ["message-0"]
    row = installation.run(lambda all_: all_.backend.ledger.get_task(task_id))
    assert row is not None
    assert row.state is TaskState.PENDING

    installation.newest_client._faults.clear()
    installation.newest_client.inject("update_item", response_lost)
    assert failed_ids(installation.invoke("dlq-processor", event)) == []
    row = installation.run(lambda all_: all_.backend.ledger.get_task(task_id))
    assert row is not None
    assert row.state is TaskState.FAILED
    # The same message again changes nothing.
    assert failed_ids(installation.invoke("dlq-processor", event)) == []
    assert installation.run(lambda all_: all_.backend.ledger.get_task(task_id)) == row
    assert installation.newest_client.count("receive_message") == 0


def test_a_dead_message_without_a_task_is_deleted_only_after_it_was_stored(
    installation: FunctionInstallation,
) -> None:
    odd = "what is this? " + "y" * 400
    event = dead_letter_event(installation, odd, json.dumps({"requestId": "job-aaaa_none"}))
    installation.invoke("dlq-processor", {"Records": []})
    installation.newest_client.inject("put_object", request_lost, request_lost, request_lost)

    failed = failed_ids(installation.invoke("dlq-processor", event))
    assert failed
    assert failed_ids(installation.invoke("dlq-processor", event)) == []

    assert installation.blobs("dead/")[f"dead/{QUEUE}/message-0"] == odd.encode()
    (stored, *_) = [
        event for event in installation.history(f"QUEUE#{QUEUE}") if "message-0" in str(event)
    ]
    assert stored.context == EventContext(origin="dlq")
    assert f"dead/{QUEUE}/message-0" in stored.body.reason


def test_a_message_of_another_queue_is_not_processed_as_a_dead_letter(
    installation: FunctionInstallation,
) -> None:
    event = batch("{}", queue=installation.names.queue(QUEUE, Priority.NORMAL))

    assert failed_ids(installation.invoke("dlq-processor", event)) == ["message-0"]
