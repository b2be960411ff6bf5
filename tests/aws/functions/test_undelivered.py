"""eventbridge-dlq-alert: undelivered events are stored, reported once, and can be replayed."""

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
    """An installation whose secrets are stored in SSM."""
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


def submit_undelivered(installation: FunctionInstallation, request_id: str) -> str:
    """Submit a job whose first events are received too often, and return its id."""
    job_id = installation.submit(make_task("a"), request_id=request_id).job.id
    while installation.mappings.feed_stream(installation.handler("relay"), limit=1):
        pass
    queue = installation.names.consumer("history")
    seen = 1
    while seen:
        event = installation.mappings.queue_event(queue, hidden_s=0)
        seen = 0 if event is None else len(event["Records"])
    return job_id


def test_an_undelivered_event_is_stored_and_reported_and_can_be_replayed(
    alerting_installation: FunctionInstallation,
    alert_server: Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    installation = alerting_installation
    queue = installation.names.consumer("undelivered")
    job_id = submit_undelivered(installation, "undelivered")
    number = installation.mappings.message_count(queue)
    assert number >= 2  # of the job and of its task
    event = installation.mappings.queue_event(queue)
    assert event is not None
    handles = [record["receiptHandle"] for record in event["Records"]]

    assert failed_ids(installation.invoke("eventbridge-dlq-alert", event)) == []

    assert len(installation.blobs("undelivered/")) == number
    reported = {item["messageId"]: item for item in alert_server.received[0].json["events"]}
    created = next(item for item in reported.values() if item["eventType"] == "Job Created")
    assert created["entity"] == f"JOB#{job_id}"
    assert created["detailType"] == "log-event"
    assert created["source"] == installation.names.consumer("history")
    assert set(reported) == {record["messageId"] for record in event["Records"]}
    # The same messages again are not reported again.
    assert failed_ids(installation.invoke("eventbridge-dlq-alert", event)) == []
    assert len(alert_server.received) == 1
    logged = capsys.readouterr().err
    assert "event.undelivered" in logged
    assert not [word for word in (SECRET, alert_server.url, *handles) if word in logged]

    assert main(["aws", "undelivered", "list", "-o", "json", "--limit", "1"]) == 0
    (first,), cursor = json.loads(capsys.readouterr().out).values()
    assert main(["aws", "undelivered", "list", "-o", "json", "--cursor", cursor]) == 0
    others = json.loads(capsys.readouterr().out)["undelivered"]
    assert [item["id"] for item in (first, *others)] == sorted(
        item["id"] for item in reported.values()
    )
    assert main(["aws", "undelivered", "replay", first["id"]]) == 0
    assert len(installation.blobs("undelivered/")) == number - 1
    assert main(["aws", "undelivered", "replay", "--all"]) == 0
    assert installation.blobs("undelivered/") == {}
    assert main(["aws", "undelivered", "list"]) == 0
    assert "no undelivered events\n" in capsys.readouterr().err
    installation.mappings.feed_queue(
        installation.names.consumer("history"), installation.handler("save-event")
    )
    assert [event.type for event in installation.history(f"JOB#{job_id}")][:1] == ["Job Created"]
    assert main(["aws", "undelivered", "replay", first["id"]]) == 3
    assert main(["aws", "undelivered", "replay"]) == 2


def test_an_alert_that_fails_is_sent_again_and_the_events_are_stored_meanwhile(
    alerting_installation: FunctionInstallation, alert_server: Server
) -> None:
    installation = alerting_installation
    submit_undelivered(installation, "alert fails")
    event = installation.mappings.queue_event(installation.names.consumer("undelivered"))
    assert event is not None
    alert_server.answers_with(Answer(status=410), Answer())

    ids = [record["messageId"] for record in event["Records"]]
    assert failed_ids(installation.invoke("eventbridge-dlq-alert", event)) == ids
    assert len(installation.blobs("undelivered/")) == len(ids)
    assert failed_ids(installation.invoke("eventbridge-dlq-alert", event)) == []
    assert len(alert_server.received) == 2


def test_an_event_that_could_not_be_stored_is_not_reported(
    alerting_installation: FunctionInstallation, alert_server: Server
) -> None:
    installation = alerting_installation
    submit_undelivered(installation, "store fails")
    event = installation.mappings.queue_event(installation.names.consumer("undelivered"))
    installation.invoke("eventbridge-dlq-alert", {"Records": []})
    installation.newest_client.inject("put_object", *[request_lost] * 5)

    with pytest.raises(BackendUnavailable):
        installation.invoke("eventbridge-dlq-alert", event)

    assert alert_server.received == []


def test_every_message_is_stored_and_one_without_an_event_cannot_be_replayed(
    alerting_installation: FunctionInstallation, alert_server: Server
) -> None:
    installation = alerting_installation
    url = installation.mappings.url(installation.names.consumer("undelivered"))
    attributes = {
        "ERROR_CODE": {"DataType": "String", "StringValue": "NO_PERMISSIONS"},
        "TARGET_ARN": {"DataType": "String", "StringValue": "arn:aws:sqs:x:1:history"},
    }
    installation.mappings.call(
        "sqs",
        "send_message",
        QueueUrl=url,
        MessageBody="<!channel> odd",
        MessageAttributes=attributes,
    )

    assert installation.mappings.feed_queue(
        installation.names.consumer("undelivered"), installation.handler("eventbridge-dlq-alert")
    )

    ((key, stored),) = installation.blobs("undelivered/").items()
    assert json.loads(stored)["body"] == "<!channel> odd"
    (reported,) = alert_server.received[0].json["events"]
    assert (reported["reason"], reported["source"], reported["entity"]) == (
        "NO_PERMISSIONS",
        "history",
        "unknown",
    )
    with pytest.raises(UsageError):
        installation.run(lambda all_: undelivered_events(all_).replay(reported["id"]))
    assert list(installation.blobs("undelivered/")) == [key]
    # It can be discarded, once; an unknown id discards nothing.
    assert main(["aws", "undelivered", "discard", reported["id"], "000000000000000000-none"]) == 3
    assert installation.blobs("undelivered/") == {}
    assert main(["aws", "undelivered", "discard", reported["id"]]) == 3


def test_slack_accepts_the_message_for_any_text_in_an_event() -> None:
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
