"""relay: what was committed gets to the bus, and nothing holds it up for ever."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from longshore.adapters.aws import bus
from longshore.adapters.aws.calls import Answer
from longshore.adapters.aws.records import events_of
from longshore.errors import BackendRejected, UsageError
from tests.aws.functions.house import House
from tests.aws.functions.mappings import as_json, failed_in, stream_event
from tests.aws.trouble import Call, Mishap, throttled
from tests.unit.services.stage import a_task

Record = dict[str, Any]


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "_FIRST_PAUSE", timedelta(0))


def batch_of(house: House, *keys: str, request_id: str) -> Record:
    """What the stream has of a job with these tasks."""
    house.submit(*(a_task(key) for key in keys), request_id=request_id)
    found = house.mappings.stream_event()
    assert found is not None
    return found[1]


def places(event: Record) -> list[str]:
    return [record["dynamodb"]["SequenceNumber"] for record in event["Records"]]


def place_of(event: Record, key: str) -> str:
    (found,) = [
        record["dynamodb"]["SequenceNumber"]
        for record in event["Records"]
        if record["dynamodb"]["Keys"]["id"]["S"].endswith(f"_{key}")
    ]
    return str(found)


def refusing(house: House, entity: str) -> Mishap:
    """The bus takes all events but those of one entity."""

    async def mishap(call: Call) -> Answer:
        entries = house.trouble.made[-1][1]["Entries"]
        others = [one for one in entries if entity not in one["Detail"]]
        taken = iter((await call(Entries=others))["Entries"] if others else ())
        refused = {"ErrorCode": "InternalFailure"}
        return {"Entries": [next(taken) if one in others else refused for one in entries]}

    return mishap


def heard(house: House, consumer: str = "history") -> list[tuple[str, str]]:
    """Entity and type of what is on a consumer's queue."""
    found = []
    while (event := house.mappings.queue_event(house.names.consumer(consumer))) is not None:
        for record in event["Records"]:
            detail = json.loads(record["body"])["detail"]
            found.append((detail["entityId"], detail["eventType"]))
    return found


def warm(house: House) -> None:
    """Open the relay's container, so that trouble can be made for it."""
    house.invoke("relay", {"Records": []})


def test_the_first_record_that_the_bus_refuses_is_answered_and_told_when_it_comes_again(
    house: House,
) -> None:
    event = batch_of(house, "a", "b", "c", request_id="refused")
    refused = place_of(event, "b")
    warm(house)
    house.trouble.meet("put_events", *[refusing(house, "_b")] * 5)

    done = house.mappings.feed_stream(house.handler("relay"))

    assert done == places(event).index(refused)
    assert tasks_in(heard(house)) == {"a", "c"}
    again = house.mappings.feed_stream(house.handler("relay"))
    assert again == len(places(event)) - done
    assert house.mappings.stream_event() is None
    assert "b" in tasks_in(heard(house))


def tasks_in(told: list[tuple[str, str]]) -> set[str]:
    return {name.rpartition("_")[2] for name, kind in told if kind == "Task Pending"}


def test_what_tells_of_nothing_is_passed_over(house: House) -> None:
    key = {"bucket": {"S": "aa"}, "id": {"S": "job-aa_x"}}
    place = {"Keys": key, "SequenceNumber": "1", "StreamViewType": "NEW_IMAGE"}
    dynamo_db = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    records = [
        {"eventName": "REMOVE", "dynamodb": place},
        {"eventName": "REMOVE", "dynamodb": place, "userIdentity": dynamo_db},
        {"eventName": "INSERT", "dynamodb": {**place, "NewImage": {**key, "n": {"N": "1"}}}},
    ]

    assert failed_in(house.invoke("relay", stream_event(records))) == []
    assert house.trouble.made == []


def test_a_record_that_cannot_be_read_is_put_aside_and_those_behind_it_are_told(
    house: House,
) -> None:
    event = batch_of(house, "a", request_id="unreadable")
    broken = event["Records"][0]
    row_id = broken["dynamodb"]["Keys"]["id"]["S"]
    broken["dynamodb"]["NewImage"]["row"] = {"B": "AQID"}

    assert failed_in(house.invoke("relay", event)) == []

    assert tasks_in(heard(house)) == {"a"}
    (letter,) = house.mappings.queue_event(house.names.consumer("undelivered"))["Records"]
    assert json.loads(letter["body"])["record"] == as_json(broken)
    assert json.loads(letter["body"])["detail"]["entityId"] == row_id


def test_a_record_that_cannot_be_put_aside_comes_again(house: House) -> None:
    event = batch_of(house, "a", request_id="not put aside")
    event["Records"][1]["dynamodb"]["NewImage"]["row"] = {"B": "AQID"}
    warm(house)
    house.trouble.meet("send_message_batch", *[throttled] * 3)

    assert failed_in(house.invoke("relay", event)) == [places(event)[1]]
    assert house.mappings.waiting(house.names.consumer("undelivered")) == 0


def test_of_a_record_too_large_for_a_message_its_place_is_put_aside(house: House) -> None:
    async def too_long(call: Call) -> Answer:
        raise BackendRejected("sqs.send_message_batch: BatchRequestTooLong")

    event = batch_of(house, "a", request_id="too large")
    place = event["Records"][0]["dynamodb"]
    place["NewImage"]["row"] = {"B": "AQID"}
    warm(house)
    house.trouble.meet("send_message_batch", too_long)

    assert failed_in(house.invoke("relay", event)) == []
    (letter,) = house.mappings.queue_event(house.names.consumer("undelivered"))["Records"]
    kept = {"Keys": place["Keys"], "SequenceNumber": place["SequenceNumber"]}
    assert json.loads(letter["body"])["record"] == {"dynamodb": kept}
    with pytest.raises(UsageError, match="too large"):
        events_of(letter["body"])


def test_a_bus_that_refuses_everything_lets_the_first_record_come_again(house: House) -> None:
    async def refused(call: Call) -> Answer:
        raise BackendRejected("events.put_events: AccessDeniedException")

    event = batch_of(house, "a", request_id="denied")
    warm(house)
    house.trouble.meet("put_events", refused)

    assert failed_in(house.invoke("relay", event)) == places(event)[:1]


def test_time_that_is_over_lets_all_come_again_and_the_next_invocation_goes_on(
    house: House,
) -> None:
    async def hangs(call: Call) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    event = batch_of(house, "a", request_id="late")
    warm(house)
    house.trouble.meet("put_events", hangs)

    assert failed_in(house.invoke("relay", event, seconds=1.7)) == places(event)[:1]
    assert failed_in(house.invoke("relay", event)) == []
    assert "Job Created" in {kind for _, kind in heard(house)}
    assert len(house.opened) == 2  # the desk's and the relay's: it was not built anew
