"""eventbridge-dlq-alert: what nobody got is kept, told once, and can be brought out again."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from longshore.adapters.alerts.slack import BLOCKS_LIMIT, message_of
from longshore.core.undelivered import UndeliveredEvent, UndeliveredNotice
from longshore.errors import BackendUnavailable, UsageError
from longshore.interfaces.cli.main import main
from longshore.wiring.lambdas import undelivered_events
from tests.adapters.alerts.server import Answer, Server
from tests.aws.call_faults import request_lost
from tests.aws.functions.installation import TENANT, FunctionInstallation
from tests.aws.functions.mappings import failed_ids
from tests.unit.services.harness import make_task

SECRET = "the-secret-that-signs-what-is-sent-0123456789"


@pytest.fixture
def alert_server() -> Iterator[Server]:
    with Server().running() as server:
        yield server


@pytest.fixture
def alerting_installation(
    installation: FunctionInstallation, alert_server: Server
) -> FunctionInstallation:
    """An installation whose secrets are kept by SSM."""
    values = {"alerts.webhook_url": alert_server.url, "alerts/webhook_secrets": SECRET}
    for name, value in values.items():
        installation.mappings.call(
            "ssm",
            "put_parameter",
            Name=f"/longshore/{installation.names.stage}/{name}",
            Value=value,
            Type="SecureString",
            Overwrite=True,
        )
    return installation


def undelivered(installation: FunctionInstallation, request_id: str) -> str:
    """The id of a job whose first event gets to nobody, because its reader always breaks."""
    job_id = installation.submit(make_task("a"), request_id=request_id).job.id
    while installation.mappings.feed_stream(installation.handler("relay"), limit=1):
        pass
    queue = installation.names.consumer("history")
    seen = 1
    while seen:
        event = installation.mappings.queue_event(queue, hidden_s=0)
        seen = 0 if event is None else len(event["Records"])
    return job_id


def test_an_event_that_nobody_got_is_kept_and_told_and_can_be_told_again(
    alerting_installation: FunctionInstallation,
    alert_server: Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    house = alerting_installation
    queue = house.names.consumer("undelivered")
    job_id = undelivered(house, "undelivered")
    number = house.mappings.message_count(queue)
    assert number >= 2  # of the job and of its task
    event = house.mappings.queue_event(queue)
    assert event is not None
    handles = [record["receiptHandle"] for record in event["Records"]]

    assert failed_ids(house.invoke("eventbridge-dlq-alert", event)) == []

    kept = house.blobs("undelivered/")
    assert len(kept) == number
    told = {item["messageId"]: item for item in alert_server.received[0].json["events"]}
    created = next(item for item in told.values() if item["eventType"] == "Job Created")
    assert created["entity"] == f"JOB#{job_id}"
    assert created["detailType"] == "log-event"
    assert created["source"] == house.names.consumer("history")
    assert set(told) == {record["messageId"] for record in event["Records"]}
    # Brought once more, it is known.
    assert failed_ids(house.invoke("eventbridge-dlq-alert", event)) == []
    assert len(alert_server.received) == 1
    logged = capsys.readouterr().err
    assert "event.undelivered" in logged
    assert not [word for word in (SECRET, alert_server.url, *handles) if word in logged]

    assert main(["aws", "undelivered", "list", "-o", "json", "--limit", "1"]) == 0
    (first,), cursor = json.loads(capsys.readouterr().out).values()
    assert main(["aws", "undelivered", "list", "-o", "json", "--cursor", cursor]) == 0
    others = json.loads(capsys.readouterr().out)["undelivered"]
    assert [item["id"] for item in (first, *others)] == sorted(item["id"] for item in told.values())
    assert main(["aws", "undelivered", "replay", first["id"]]) == 0
    assert len(house.blobs("undelivered/")) == number - 1
    assert main(["aws", "undelivered", "replay", "--all"]) == 0
    assert house.blobs("undelivered/") == {}
    assert main(["aws", "undelivered", "list"]) == 0
    assert "no undelivered events\n" in capsys.readouterr().err
    house.mappings.feed_queue(house.names.consumer("history"), house.handler("save-event"))
    assert [event.type for event in house.history(f"JOB#{job_id}")][:1] == ["Job Created"]
    assert main(["aws", "undelivered", "replay", first["id"]]) == 3
    assert main(["aws", "undelivered", "replay"]) == 2


def test_people_who_are_out_of_reach_are_told_later_and_nothing_is_lost_meanwhile(
    alerting_installation: FunctionInstallation, alert_server: Server
) -> None:
    house = alerting_installation
    undelivered(house, "people away")
    event = house.mappings.queue_event(house.names.consumer("undelivered"))
    assert event is not None
    alert_server.answers_with(Answer(status=410), Answer())

    ids = [record["messageId"] for record in event["Records"]]
    assert failed_ids(house.invoke("eventbridge-dlq-alert", event)) == ids
    assert len(house.blobs("undelivered/")) == len(ids)
    assert failed_ids(house.invoke("eventbridge-dlq-alert", event)) == []
    assert len(alert_server.received) == 2


def test_nobody_is_told_of_what_could_not_be_kept(
    alerting_installation: FunctionInstallation, alert_server: Server
) -> None:
    house = alerting_installation
    undelivered(house, "store away")
    event = house.mappings.queue_event(house.names.consumer("undelivered"))
    house.invoke("eventbridge-dlq-alert", {"Records": []})
    house.newest_client.inject("put_object", *[request_lost] * 5)

    with pytest.raises(BackendUnavailable):
        house.invoke("eventbridge-dlq-alert", event)

    assert alert_server.received == []


def test_whatever_is_on_the_queue_is_kept_and_what_holds_no_event_cannot_be_told_again(
    alerting_installation: FunctionInstallation, alert_server: Server
) -> None:
    house = alerting_installation
    url = house.mappings.url(house.names.consumer("undelivered"))
    said = {
        "ERROR_CODE": {"DataType": "String", "StringValue": "NO_PERMISSIONS"},
        "TARGET_ARN": {"DataType": "String", "StringValue": "arn:aws:sqs:x:1:history"},
    }
    house.mappings.call(
        "sqs", "send_message", QueueUrl=url, MessageBody="<!channel> odd", MessageAttributes=said
    )

    assert house.mappings.feed_queue(
        house.names.consumer("undelivered"), house.handler("eventbridge-dlq-alert")
    )

    ((key, kept),) = house.blobs("undelivered/").items()
    assert json.loads(kept)["body"] == "<!channel> odd"
    (told,) = alert_server.received[0].json["events"]
    assert (told["reason"], told["source"], told["entity"]) == (
        "NO_PERMISSIONS",
        "history",
        "unknown",
    )
    with pytest.raises(UsageError):
        house.run(lambda all_: undelivered_events(all_).replay(told["id"]))
    assert list(house.blobs("undelivered/")) == [key]


def test_whatever_an_event_says_of_itself_slack_takes_the_message() -> None:
    nasty = "<!channel>`" + "&" * 1_000
    detail = {"eventType": nasty, "entityType": "TASK", "entityId": nasty}
    letter = UndeliveredEvent(
        message_id=nasty,
        sent_at=datetime(2030, 1, 7, 12, tzinfo=UTC),
        body=json.dumps({"detail-type": nasty, "detail": detail}),
        source=nasty,
        reason=nasty,
    )
    notice = UndeliveredNotice(tenant=TENANT, at=letter.sent_at, events=(letter,) * 100)

    message = message_of(notice)

    texts = [item["text"]["text"] for item in message.blocks if item["type"] == "section"]
    assert len(message.blocks) <= BLOCKS_LIMIT
    assert max(map(len, texts)) <= 3000
    assert "<!channel>" not in json.dumps(message.blocks)
    assert "100 not delivered" in message.text
