"""save-event, dispatcher and dlq-processor: what a queue brings is dealt with, one by one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from longshore.adapters.aws.calls import Answer
from longshore.adapters.aws.records import event_in
from longshore.core.events.codec import to_wire
from longshore.core.events.event import Context, Event
from longshore.core.states import JobState, Priority, TaskState
from tests.aws.functions.house import QUEUE, House
from tests.aws.functions.mappings import failed_in
from tests.aws.trouble import Call, Mishap, lost, never_arrived, throttled
from tests.unit.services.stage import a_task

ODD = ("not JSON", "{}", '{"detail": {"eventType": "Task Completed"}}', "[1]", '{"detail": 7}')


def of_job(house: House, wanted: str) -> Mishap:
    """Whatever is asked of one job's rows does not get through."""

    async def mishap(call: Call) -> Answer:
        given = house.trouble.made[-1][1]
        return await (throttled(call) if wanted in repr(given) else call())

    return mishap


def batch(*bodies: str, queue: str = "longshore-x-history-events") -> dict[str, Any]:
    """A batch of messages that were made up."""
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
    """As the bus puts it on a queue."""
    detail = to_wire(event, environment="any")
    return json.dumps({"detail-type": "log-event", "source": "longshore.x", "detail": detail})


def events_of(house: House, request_id: str) -> list[Event]:
    """The first events of a job with one task, which nobody has been told of."""
    house.submit(a_task("a"), request_id=request_id)
    house.mappings.feed_stream(house.handler("relay"))
    told: list[Event] = []
    while (event := house.mappings.queue_event(house.names.consumer("history"))) is not None:
        told += [event_in(record) for record in event["Records"]]
    return told


def test_each_event_is_stored_by_itself_with_its_arrival_and_told_to_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSHORE_AWS_KEEP_EVENTS", "1d")
    events = events_of(house, "saved")
    assert len(events) >= 2
    bodies = [envelope(event) for event in events]
    house.invoke("save_event", {"Records": []})
    house.trouble.meet("put_item", throttled)

    answer = house.invoke("save_event", batch(*bodies, *ODD, bodies[0]))

    odd = [f"message-{len(bodies) + number}" for number in range(len(ODD))]
    (unstored,) = set(failed_in(answer)) - set(odd)
    assert set(odd) < set(failed_in(answer))
    assert failed_in(house.invoke("save_event", batch(*bodies))) == []
    assert unstored == "message-0"
    assert house.trouble.count("put_events") == 0
    for event in events:
        assert house.history(event.entity)[event.sequence - 1] == event
    stored = stored_of(house, events)
    assert len(stored) == len(events)
    for item in stored:
        assert int(item["receivedAt"]["N"]) >= int(item["timestamp"]["N"])
        assert int(item["ttl"]["N"]) == int(item["timestamp"]["N"]) // 1000 + 86_400
    # One that is told again stays as it first came.
    assert failed_in(house.invoke("save_event", batch(*bodies))) == []
    assert stored_of(house, events) == stored


def stored_of(house: House, events: Sequence[Event]) -> list[dict[str, Any]]:
    found = house.mappings.call("dynamodb", "scan", TableName=house.names.events)["Items"]
    return [item for item in found if item["eventId"]["S"] in {one.id for one in events}]


def test_what_was_moved_out_of_an_event_is_there_for_who_reads_its_history(house: House) -> None:
    key = "events/somewhere/some-payload.json"
    tasks = [{"taskId": "a", "name": "command", "dependsOn": []}]
    created = next(event for event in events_of(house, "large") if event.type == "Job Created")
    house.do(lambda all_: all_.documents.keep_key(key, {"tasks": tasks}))

    house.invoke("save_event", batch(envelope(replace(created, overflow=key))))

    (found,) = house.history(created.entity)
    properties = to_wire(found, environment="")["properties"]
    assert (found.overflow, properties.get("tasks")) == (key, None)
    whole = house.do(lambda all_: all_.documents.whole(properties))
    assert whole["tasks"] == tasks


def test_a_job_that_is_stuck_keeps_no_other_from_going_on(house: House) -> None:
    jobs = [house.submit(a_task("a"), request_id=name).job.id for name in ("stuck", "free")]
    house.work(*(f"{job_id}_a" for job_id in jobs))
    while house.mappings.feed_stream(house.handler("relay")):
        pass
    queue = house.names.consumer("dispatcher")
    house.invoke("dispatcher", {"Records": []})
    house.trouble.meet("update_item", *[of_job(house, jobs[0])] * 50)
    house.trouble.meet("get_item", *[of_job(house, jobs[0])] * 50)

    while house.mappings.feed_queue(queue, house.handler("dispatcher")):
        pass

    assert [house.job(job_id).state for job_id in jobs] == [JobState.RUNNING, JobState.COMPLETED]
    assert house.mappings.waiting(queue) == 1  # the end of the task whose job was stuck
    house.trouble._mishaps.clear()
    assert house.mappings.feed_queue(queue, house.handler("dispatcher")) == 1
    assert house.job(jobs[0]).state is JobState.COMPLETED


def test_what_is_no_event_comes_again_and_an_event_that_ends_nothing_is_done(house: House) -> None:
    event, *_ = events_of(house, "nothing ends")

    answer = house.invoke("dispatcher", batch(*ODD, envelope(event)))

    assert failed_in(answer) == [f"message-{number}" for number in range(len(ODD))]


def dead(house: House, *bodies: str, sent_ms: int = 9_999_999_999_999) -> dict[str, Any]:
    """A batch of the dead-letter queue."""
    event = batch(*bodies, queue=house.names.dead(QUEUE, Priority.NORMAL))
    for record in event["Records"]:
        record["attributes"]["SentTimestamp"] = str(sent_ms)
    return event


def test_a_dead_message_makes_its_task_fail_before_it_may_go(house: House) -> None:
    task_id = f"{house.submit(a_task('a'), request_id='dead').job.id}_a"
    event = dead(house, json.dumps({"requestId": task_id}))
    house.invoke("dead_letters", {"Records": []})
    house.trouble.meet("update_item", *[throttled] * 20)

    assert failed_in(house.invoke("dead_letters", event)) == ["message-0"]
    row = house.do(lambda all_: all_.backend.ledger.task(task_id))
    assert row is not None
    assert row.state is TaskState.PENDING

    house.trouble._mishaps.clear()
    house.trouble.meet("update_item", lost)
    assert failed_in(house.invoke("dead_letters", event)) == []
    row = house.do(lambda all_: all_.backend.ledger.task(task_id))
    assert row is not None
    assert row.state is TaskState.FAILED
    assert failed_in(house.invoke("dead_letters", event)) == []  # once more, and nothing changes
    assert house.do(lambda all_: all_.backend.ledger.task(task_id)) == row
    assert house.trouble.count("receive_message") == 0


def test_a_dead_message_that_leads_nowhere_is_kept_before_it_may_go(house: House) -> None:
    odd = "what is this? " + "y" * 400
    event = dead(house, odd, json.dumps({"requestId": "job-aaaa_none"}))
    house.invoke("dead_letters", {"Records": []})
    house.trouble.meet("put_object", never_arrived, never_arrived, never_arrived)

    failed = failed_in(house.invoke("dead_letters", event))
    assert failed
    assert failed_in(house.invoke("dead_letters", event)) == []

    assert house.blobs("dead/")[f"dead/{QUEUE}/message-0"] == odd.encode()
    (one, *_) = [event for event in house.history(f"QUEUE#{QUEUE}") if "message-0" in str(event)]
    assert one.context == Context(origin="dlq")
    assert f"dead/{QUEUE}/message-0" in one.body.reason


def test_a_message_of_another_queue_is_not_taken_for_a_dead_letter(house: House) -> None:
    event = batch("{}", queue=house.names.queue(QUEUE, Priority.NORMAL))

    assert failed_in(house.invoke("dead_letters", event)) == ["message-0"]
