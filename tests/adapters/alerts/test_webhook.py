"""A webhook gets signed JSON, a few times at most, and its URL stays secret."""

import asyncio
import hashlib
import hmac
import json
import logging
import socket
from dataclasses import replace
from datetime import timedelta

import pytest

from longshore.adapters.alerts.delivery import HttpAlerts
from longshore.adapters.alerts.webhook import LISTED_LIMIT, body_of, webhook_alerts
from longshore.core.alerts import BacklogChange, RecoveredTask
from longshore.core.health import Health
from longshore.errors import AlertFailed
from tests.adapters.alerts.conftest import (
    NOON,
    HastyClock,
    a_checked_task,
    a_notice,
    dead_letters,
    parked_tasks,
    rejected_messages,
)
from tests.adapters.alerts.server import Answer, Server

PATH = "/hooks/not-for-anybody"
OLD, NEW = "old-" + "x" * 32, "new-" + "y" * 32
NOTICE = a_notice(
    a_checked_task(),
    a_checked_task("job-1_b", Health.WARNING),
    recovered=(
        RecoveredTask(task_id="job-1_c", attempt=2, previous=Health.OVERTIME, current=None),
    ),
)


@pytest.fixture
def alerts(server: Server, clock: HastyClock) -> HttpAlerts:
    return webhook_alerts(server.url + PATH, [OLD], clock)


def failure_of(alerts: HttpAlerts) -> AlertFailed:
    with pytest.raises(AlertFailed) as caught:
        asyncio.run(alerts.send(NOTICE))
    assert caught.value.channel == "webhook"
    return caught.value


def test_a_notice_is_one_document(alerts: HttpAlerts, server: Server) -> None:
    asyncio.run(alerts.send(NOTICE))

    (received,) = server.received
    assert received.path == PATH
    assert received.headers["content-type"] == "application/json"
    document = received.json
    assert len(document.pop("id")) == 32
    assert document == {
        "type": "task.health",
        "tenantId": "acme",
        "timestamp": int(NOON.timestamp() * 1000),
        "summary": {
            "totalProcessing": 2,
            "healthy": 0,
            "warning": 1,
            "critical": 1,
            "overtime": 0,
        },
        "urgent": [
            {
                "requestId": "job-1_a",
                "attemptNumber": 1,
                "health": "critical",
                "elapsed": 63 * 60_000,
                "timeSinceLastEvent": 12 * 60_000,
                "lastEventType": "Task Heartbeat",
                "workerId": "host-1",
            }
        ],
        "warnings": [
            {
                "requestId": "job-1_b",
                "attemptNumber": 1,
                "health": "warning",
                "elapsed": 63 * 60_000,
                "timeSinceLastEvent": 12 * 60_000,
                "lastEventType": "Task Heartbeat",
                "workerId": "host-1",
            }
        ],
        "recovered": [
            {
                "requestId": "job-1_c",
                "attemptNumber": 2,
                "was": "overtime",
                "stillProcessing": False,
            }
        ],
        "notListed": {"urgent": 0, "warnings": 0, "recovered": 0},
        "deadLetters": None,
        "parkedTasks": None,
        "rejectedMessages": None,
    }


def test_dead_letters_are_an_object_in_the_document() -> None:
    notice = a_notice(dead=dead_letters(BacklogChange.MORE, more=True, mail=1, default=1))

    document = json.loads(body_of(notice))

    noon = int(NOON.timestamp() * 1000)
    assert document["deadLetters"] == {
        "change": "more",
        "total": 2,
        "moreThanTotal": True,
        "kinds": [
            {"queue": "mail", "category": "crash", "count": 1},
            {"queue": "default", "category": "crash", "count": 1},
        ],
        "kindsNotListed": 0,
        "newest": [
            {"id": "job-1_d0", "queue": "mail", "timestamp": noon},
            {"id": "job-1_d1", "queue": "mail", "timestamp": noon - 2 * 60_000},
        ],
        "command": "longshore dead list",
    }
    assert document["summary"]["totalProcessing"] == 0


def test_rejected_messages_are_an_object_with_their_reasons_in_the_document() -> None:
    notice = a_notice(rejected=rejected_messages("not JSON"))

    document = json.loads(body_of(notice))

    assert document["rejectedMessages"] == {
        "change": "first",
        "total": 1,
        "moreThanTotal": False,
        "kinds": [{"queue": "mail", "reason": "not JSON", "count": 1}],
        "kindsNotListed": 0,
        "newest": [{"id": "m-0", "queue": "mail", "timestamp": int(NOON.timestamp() * 1000)}],
    }


def test_parked_tasks_are_an_object_of_the_same_form_in_the_document() -> None:
    document = json.loads(body_of(a_notice(parked=parked_tasks(own=1, day=1))))

    noon = int(NOON.timestamp() * 1000)
    assert document["parkedTasks"] == {
        "change": "first",
        "total": 2,
        "moreThanTotal": False,
        "kinds": [
            {"queue": "default", "budget": "own", "count": 1},
            {"queue": "default", "budget": "day", "count": 1},
        ],
        "kindsNotListed": 0,
        "newest": [
            {"id": "job-1_p0", "queue": "default", "timestamp": noon},
            {"id": "job-1_p1", "queue": "default", "timestamp": noon - 3 * 60_000},
        ],
        "command": "longshore tasks --state parked",
        "topUp": "longshore budget add ID --usd N",
    }
    assert document["deadLetters"] is None


@pytest.mark.parametrize("sort", ["deadLetters", "parkedTasks"])
def test_that_none_is_left_has_the_same_form(sort: str) -> None:
    notice = a_notice(
        dead=dead_letters(BacklogChange.NONE_LEFT), parked=parked_tasks(BacklogChange.NONE_LEFT)
    )

    content = json.loads(body_of(notice))[sort]
    assert (content["change"], content["total"], content["moreThanTotal"]) == (
        "none_left",
        0,
        False,
    )
    assert (content["kinds"], content["newest"]) == ([], [])


def test_of_very_many_kinds_of_dead_letters_the_rest_is_only_counted() -> None:
    kinds = {f"q{n}": 1 for n in range(LISTED_LIMIT + 7)}

    content = json.loads(body_of(a_notice(dead=dead_letters(**kinds))))["deadLetters"]

    assert (len(content["kinds"]), content["kindsNotListed"]) == (LISTED_LIMIT, 7)


def test_a_summary_that_is_not_known_is_null() -> None:
    notice = replace(a_notice(dead=dead_letters(mail=1)), summary=None)

    assert json.loads(body_of(notice))["summary"] is None


def test_each_secret_signs_the_time_and_the_body(server: Server, clock: HastyClock) -> None:
    asyncio.run(webhook_alerts(server.url + PATH, [NEW, OLD], clock).send(NOTICE))

    (received,) = server.received
    at, *marks = received.headers["longshore-signature"].split(",")
    signed = f"{int(NOON.timestamp())}.".encode() + received.body
    assert at == f"t={int(NOON.timestamp())}"
    assert marks == [
        f"v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"
        for secret in (NEW, OLD)
    ]


def test_each_try_is_signed_anew_and_has_the_same_id(
    alerts: HttpAlerts, server: Server, clock: HastyClock
) -> None:
    server.answers_with(Answer(status=429, headers={"Retry_After": "2"}), Answer(status=204))

    asyncio.run(alerts.send(NOTICE))

    first, second = server.received
    assert clock.slept == [2.0]
    assert first.body == second.body
    assert first.headers["longshore-signature"] != second.headers["longshore-signature"]


def test_two_notices_have_two_ids() -> None:
    assert body_of(NOTICE) != body_of(a_notice(a_checked_task("job-1_z")))


@pytest.mark.parametrize("secrets", [[], [""], ["x" * 31], [OLD, "short"]])
def test_a_secret_that_is_too_short_is_refused_and_not_quoted(
    secrets: list[str], clock: HastyClock
) -> None:
    with pytest.raises(ValueError, match="each with at least 32 bytes") as caught:
        webhook_alerts("http://127.0.0.1", secrets, clock)

    assert "short" not in str(caught.value)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 425, 429])
def test_what_may_pass_is_tried_again_a_few_times(
    alerts: HttpAlerts, server: Server, clock: HastyClock, status: int
) -> None:
    server.answers_with(Answer(status=status))

    assert failure_of(alerts).reason == f"it answered {status}"
    assert len(server.received) == 4
    assert clock.slept == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 413])
def test_what_will_not_pass_is_tried_once(alerts: HttpAlerts, server: Server, status: int) -> None:
    server.answers_with(Answer(status=status, headers={"Retry_After": "3"}))

    failure = failure_of(alerts)

    assert failure.reason == f"it answered {status}"
    assert failure.retry_after is None
    assert len(server.received) == 1


def test_a_wait_that_is_too_long_is_reported_and_not_waited_for(
    alerts: HttpAlerts, server: Server, clock: HastyClock
) -> None:
    server.answers_with(Answer(status=503, headers={"Retry_After": "120"}))

    assert failure_of(alerts).retry_after == timedelta(minutes=2)
    assert clock.slept == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_nothing_is_sent_there(
    alerts: HttpAlerts, server: Server, status: int
) -> None:
    there = {"Location": f"{server.url}/elsewhere"}
    server.answers_with(Answer(status=status, headers=there))

    assert failure_of(alerts).reason == f"it redirects ({status}), which is not followed"
    assert len(server.received) == 1


def test_a_connection_that_is_hung_up_is_tried_again(alerts: HttpAlerts, server: Server) -> None:
    server.answers_with(Answer(hangs_up=True), Answer())

    asyncio.run(alerts.send(NOTICE))

    assert len(server.received) == 2


def test_a_server_that_does_not_answer_is_given_up_in_time(
    server: Server, clock: HastyClock
) -> None:
    server.answers_with(Answer(hangs=True))
    hasty = webhook_alerts(server.url + PATH, [OLD], clock, timeout=timedelta(milliseconds=200))

    assert failure_of(hasty).reason == "it did not answer in time"


def test_a_closed_port_is_unreachable(clock: HastyClock) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        failure = failure_of(webhook_alerts(f"http://127.0.0.1:{port}{PATH}", [OLD], clock))

    assert failure.reason == "it is unreachable (ConnectError)"
    assert clock.slept == [0.5, 1.0, 2.0]


def test_a_proxy_in_the_environment_is_not_used(
    alerts: HttpAlerts, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")

    asyncio.run(alerts.send(NOTICE))

    assert len(server.received) == 1


def test_an_answer_without_end_is_not_read(alerts: HttpAlerts, server: Server) -> None:
    server.answers_with(Answer(body=b"x" * 5_000_000))

    asyncio.run(alerts.send(NOTICE))


@pytest.mark.parametrize("url", ["", "nonsense", "file:///etc/passwd", "http://", "http://[x"])
def test_an_invalid_url_is_reported_without_quoting_it(url: str, clock: HastyClock) -> None:
    failure = failure_of(webhook_alerts(url, [OLD], clock))

    assert "passwd" not in str(failure)


def test_of_very_many_tasks_the_rest_is_only_counted() -> None:
    tasks = [a_checked_task(f"job-1_t{n}") for n in range(LISTED_LIMIT + 7)]

    body = body_of(a_notice(*tasks))

    assert body.count(b'"requestId"') == LISTED_LIMIT
    assert b'"notListed":{"urgent":7,' in body


@pytest.mark.parametrize(
    "answer",
    [
        Answer(),
        Answer(status=400, body=f"{OLD} {PATH}".encode()),
        Answer(status=500),
        Answer(status=302, headers={"Location": f"http://x{PATH}?{OLD}"}),
        Answer(hangs_up=True),
    ],
)
def test_no_secret_is_logged_or_reported_with_any_answer(
    alerts: HttpAlerts, server: Server, caplog: pytest.LogCaptureFixture, answer: Answer
) -> None:
    for name in (None, "httpx2", "httpcore2", "longshore"):
        caplog.set_level(logging.DEBUG, name)
    server.answers_with(answer)
    texts = [repr(alerts)]

    try:
        asyncio.run(alerts.send(NOTICE))
    except AlertFailed as failure:
        texts += [str(failure), repr(failure), repr(failure.__cause__)]

    texts += [caplog.text]
    for secret in (OLD, PATH, "not-for-anybody"):
        assert secret not in "\n".join(texts)
