"""relay: committed events get to the bus, and no record blocks the stream for ever."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsResponse
from longshore.adapters.aws.events import event_bus
from longshore.adapters.aws.lambda_records import events_in_undelivered
from longshore.errors import BackendRejected, UsageError
from tests.aws.call_faults import Call, CallFault, throttled
from tests.aws.functions.installation import FunctionInstallation
from tests.aws.functions.mappings import as_json, failed_ids, stream_event
from tests.unit.services.harness import make_task

Record = dict[str, Any]


@pytest.fixture(autouse=True)
def _without_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_bus, "_FIRST_BACKOFF", timedelta(0))


def batch_of(installation: FunctionInstallation, *keys: str, request_id: str) -> Record:
    """The stream's records of a new job with these tasks."""
    installation.submit(*(make_task(key) for key in keys), request_id=request_id)
    result = installation.mappings.stream_event()
    assert result is not None
    return result[1]


def sequence_numbers(event: Record) -> list[str]:
    return [record["dynamodb"]["SequenceNumber"] for record in event["Records"]]


def sequence_number_of(event: Record, key: str) -> str:
    (result,) = [
        record["dynamodb"]["SequenceNumber"]
        for record in event["Records"]
        if record["dynamodb"]["Keys"]["id"]["S"].endswith(f"_{key}")
    ]
    return str(result)


def reject_entity(installation: FunctionInstallation, entity: str) -> CallFault:
    """A fault by which the bus refuses the events of one entity."""

    async def reject(call: Call) -> AwsResponse:
        entries = installation.newest_client.calls[-1][1]["Entries"]
        others = [item for item in entries if entity not in item["Detail"]]
        taken = iter((await call(Entries=others))["Entries"] if others else ())
        refused = {"ErrorCode": "InternalFailure"}
        return {"Entries": [next(taken) if item in others else refused for item in entries]}

    return reject


def received_events(
    installation: FunctionInstallation, consumer: str = "history"
) -> list[tuple[str, str]]:
    """Entity and type of what is on a consumer's queue."""
    result = []
    while (
        event := installation.mappings.queue_event(installation.names.consumer(consumer))
    ) is not None:
        for record in event["Records"]:
            detail = json.loads(record["body"])["detail"]
            result.append((detail["entityId"], detail["eventType"]))
    return result


def warm_up(installation: FunctionInstallation) -> None:
    """Open the relay's container, so that a test can inject faults into its client."""
    installation.invoke("relay", {"Records": []})


def test_the_first_record_that_the_bus_refuses_is_answered_and_published_by_the_retry(
    installation: FunctionInstallation,
) -> None:
    event = batch_of(installation, "a", "b", "c", request_id="refused")
    refused = sequence_number_of(event, "b")
    warm_up(installation)
    installation.newest_client.inject("put_events", *[reject_entity(installation, "_b")] * 5)

    done = installation.mappings.feed_stream(installation.handler("relay"))

    assert done == sequence_numbers(event).index(refused)
    assert task_ids_of(received_events(installation)) == {"a", "c"}
    again = installation.mappings.feed_stream(installation.handler("relay"))
    assert again == len(sequence_numbers(event)) - done
    assert installation.mappings.stream_event() is None
    assert "b" in task_ids_of(received_events(installation))


def task_ids_of(events: list[tuple[str, str]]) -> set[str]:
    return {name.rpartition("_")[2] for name, kind in events if kind == "Task Pending"}


def test_a_record_without_events_is_skipped(installation: FunctionInstallation) -> None:
    key = {"bucket": {"S": "aa"}, "id": {"S": "job-aa_x"}}
    change = {"Keys": key, "SequenceNumber": "1", "StreamViewType": "NEW_IMAGE"}
    dynamo_db = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    records = [
        {"eventName": "REMOVE", "dynamodb": change},
        {"eventName": "REMOVE", "dynamodb": change, "userIdentity": dynamo_db},
        {"eventName": "INSERT", "dynamodb": {**change, "NewImage": {**key, "n": {"N": "1"}}}},
    ]

    assert failed_ids(installation.invoke("relay", stream_event(records))) == []
    assert installation.newest_client.calls == []


def test_an_unreadable_record_is_put_aside_and_the_records_after_it_are_published(
    installation: FunctionInstallation,
) -> None:
    event = batch_of(installation, "a", request_id="unreadable")
    broken = event["Records"][0]
    row_id = broken["dynamodb"]["Keys"]["id"]["S"]
    broken["dynamodb"]["NewImage"]["row"] = {"B": "AQID"}

    assert failed_ids(installation.invoke("relay", event)) == []

    assert task_ids_of(received_events(installation)) == {"a"}
    (letter,) = installation.mappings.queue_event(installation.names.consumer("undelivered"))[
        "Records"
    ]
    assert json.loads(letter["body"])["record"] == as_json(broken)
    assert json.loads(letter["body"])["detail"]["entityId"] == row_id


def test_a_record_that_cannot_be_put_aside_is_answered_as_failed(
    installation: FunctionInstallation,
) -> None:
    event = batch_of(installation, "a", request_id="not put aside")
    event["Records"][1]["dynamodb"]["NewImage"]["row"] = {"B": "AQID"}
    warm_up(installation)
    installation.newest_client.inject("send_message_batch", *[throttled] * 3)

    assert failed_ids(installation.invoke("relay", event)) == [sequence_numbers(event)[1]]
    assert installation.mappings.message_count(installation.names.consumer("undelivered")) == 0


def test_a_record_too_large_for_a_message_is_put_aside_as_its_key_and_sequence_number(
    installation: FunctionInstallation,
) -> None:
    async def too_long(call: Call) -> AwsResponse:
        raise BackendRejected("sqs.send_message_batch: BatchRequestTooLong")

    event = batch_of(installation, "a", request_id="too large")
    change = event["Records"][0]["dynamodb"]
    change["NewImage"]["row"] = {"B": "AQID"}
    warm_up(installation)
    installation.newest_client.inject("send_message_batch", too_long)

    assert failed_ids(installation.invoke("relay", event)) == []
    (letter,) = installation.mappings.queue_event(installation.names.consumer("undelivered"))[
        "Records"
    ]
    position = {"Keys": change["Keys"], "SequenceNumber": change["SequenceNumber"]}
    assert json.loads(letter["body"])["record"] == {"dynamodb": position}
    with pytest.raises(UsageError, match="too large"):
        events_in_undelivered(letter["body"])


def test_the_first_record_is_answered_as_failed_if_the_bus_refuses_everything(
    installation: FunctionInstallation,
) -> None:
    async def refused(call: Call) -> AwsResponse:
        raise BackendRejected("events.put_events: AccessDeniedException")

    event = batch_of(installation, "a", request_id="denied")
    warm_up(installation)
    installation.newest_client.inject("put_events", refused)

    assert failed_ids(installation.invoke("relay", event)) == sequence_numbers(event)[:1]


def test_a_timeout_returns_the_whole_batch_and_the_next_invocation_publishes_it(
    installation: FunctionInstallation,
) -> None:
    async def hangs(call: Call) -> AwsResponse:
        await asyncio.Event().wait()
        raise AssertionError

    event = batch_of(installation, "a", request_id="late")
    warm_up(installation)
    installation.newest_client.inject("put_events", hangs)

    assert (
        failed_ids(installation.invoke("relay", event, seconds=1.7)) == sequence_numbers(event)[:1]
    )
    assert failed_ids(installation.invoke("relay", event)) == []
    assert "Job Created" in {kind for _, kind in received_events(installation)}
    assert len(installation.clients) == 2  # the test's and the relay's, which was not opened again
