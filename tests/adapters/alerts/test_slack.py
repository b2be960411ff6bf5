"""Slack, as it answers on good days and on bad ones; secrets are nowhere."""

import asyncio
import logging
import socket
from collections.abc import Callable
from datetime import timedelta

import pytest

from longshore.adapters.alerts.delivery import HttpAlerts
from longshore.adapters.alerts.slack import slack_bot, slack_webhook
from longshore.core.health import Health
from longshore.errors import AlertFailed
from tests.adapters.alerts.conftest import HastyClock, a_checked_task, a_notice
from tests.adapters.alerts.server import Answer, Server, slack_error, slack_ok

TOKEN = "xoxb-1234-not-for-anybody"
HOOK = "/services/T000/B000/not-for-anybody"
NOTICE = a_notice(a_checked_task(), a_checked_task("job-1_b", Health.OVERTIME))
ACCEPTED = {"bot": slack_ok(), "webhook": Answer(body=b"ok")}

Make = Callable[..., HttpAlerts]


@pytest.fixture(params=["bot", "webhook"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(way: str, server: Server, clock: HastyClock) -> Make:
    def build(url: str = server.url, **options: timedelta) -> HttpAlerts:
        if way == "bot":
            base = f"{url}/api/"
            return slack_bot(token=TOKEN, channel="C1", clock=clock, base_url=base, **options)
        return slack_webhook(url=url + HOOK, clock=clock, **options)

    return build


def send(alerts: HttpAlerts) -> None:
    asyncio.run(alerts.send(NOTICE))


def failure_of(alerts: HttpAlerts) -> AlertFailed:
    with pytest.raises(AlertFailed) as caught:
        send(alerts)
    assert caught.value.channel == "slack"
    return caught.value


def test_a_notice_is_one_message(make: Make, way: str, server: Server) -> None:
    server.answers_with(ACCEPTED[way])

    send(make())

    (received,) = server.received
    assert received.json["text"] == ":red_circle: Task Health: 1 stuck tasks, 1 overtime tasks"
    assert len(received.json["blocks"]) == 4
    if way == "bot":
        assert received.path == "/api/chat.postMessage"
        assert received.headers["authorization"] == f"Bearer {TOKEN}"
        assert received.json["channel"] == "C1"
        assert received.json["unfurl_links"] is False
    else:
        assert received.path == HOOK


def test_a_short_rate_limit_is_waited_for(
    make: Make, way: str, server: Server, clock: HastyClock
) -> None:
    server.answers_with(slack_error("ratelimited", 429, Retry_After="3"), ACCEPTED[way])

    send(make())

    assert clock.slept == [3.0]
    assert len(server.received) == 2


@pytest.mark.parametrize(
    ("requested", "reported_s"), [("60", 60), ("86400", 3600), ("9" * 5000, 3600)]
)
def test_a_rate_limit_that_takes_too_long_is_reported_and_not_waited_for(
    make: Make, server: Server, clock: HastyClock, requested: str, reported_s: int
) -> None:
    server.answers_with(slack_error("ratelimited", 429, Retry_After=requested))

    failure = failure_of(make())

    assert clock.slept == []
    assert failure.retry_after == timedelta(seconds=reported_s)
    assert "429" in failure.reason


@pytest.mark.parametrize("requested", ["", "-1", "soon", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_rate_limit_without_a_number_is_retried_like_other_errors(
    make: Make, server: Server, clock: HastyClock, requested: str
) -> None:
    server.answers_with(slack_error("ratelimited", 429, Retry_After=requested))

    assert failure_of(make()).retry_after is None
    assert clock.slept == [0.5, 1.0, 2.0]


def test_waits_for_rate_limits_stay_within_the_timeout(
    make: Make, server: Server, clock: HastyClock
) -> None:
    server.answers_with(slack_error("ratelimited", 429, Retry_After="9"))

    failure = failure_of(make())

    assert clock.slept == [9.0, 9.0]
    assert failure.retry_after == timedelta(seconds=9)


def test_an_error_of_the_server_is_tried_again_a_few_times(
    make: Make, way: str, server: Server, clock: HastyClock
) -> None:
    broken = Answer(status=500, body=b"<html>oops</html>")
    server.answers_with(broken, broken, ACCEPTED[way])

    send(make())

    assert clock.slept == [0.5, 1.0]
    server.answers_with(broken)
    assert failure_of(make()).reason == "it answered 500"
    assert len(server.received) == 3 + 4


def test_a_connection_that_is_hung_up_is_tried_again(make: Make, way: str, server: Server) -> None:
    server.answers_with(Answer(hangs_up=True), ACCEPTED[way])

    send(make())

    assert len(server.received) == 2


def test_a_server_that_does_not_answer_is_given_up_in_time(make: Make, server: Server) -> None:
    server.answers_with(Answer(hangs=True))

    failure = failure_of(make(timeout=timedelta(milliseconds=200)))

    assert failure.reason == "it did not answer in time"


def test_a_closed_port_is_unreachable(make: Make, clock: HastyClock) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        failure = failure_of(make(f"http://127.0.0.1:{unused.getsockname()[1]}"))

    assert failure.reason == "it is unreachable (ConnectError)"
    assert clock.slept == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("code", ["invalid_auth", "channel_not_found", "not_in_channel"])
def test_a_permanent_error_of_slack_is_not_retried(
    way: str, make: Make, server: Server, clock: HastyClock, code: str
) -> None:
    hooked = Answer(status=403, body=code.encode())
    server.answers_with(slack_error(code) if way == "bot" else hooked)

    assert code in failure_of(make()).reason
    assert len(server.received) == 1
    assert clock.slept == []


def test_a_transient_error_of_slack_is_retried(server: Server, clock: HastyClock) -> None:
    server.answers_with(slack_error("internal_error"), slack_ok())
    base = f"{server.url}/api/"

    send(slack_bot(token=TOKEN, channel="C1", clock=clock, base_url=base))

    assert len(server.received) == 2


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_refused_and_nothing_is_sent_there(
    make: Make, server: Server, status: int
) -> None:
    there = {"Location": f"{server.url}/elsewhere"}
    server.answers_with(Answer(status=status, headers=there))

    failure = failure_of(make())

    assert failure.reason == f"it redirects ({status}), which is not followed"
    assert len(server.received) == 1


def test_a_proxy_in_the_environment_is_not_used(
    make: Make, way: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers_with(ACCEPTED[way])
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")

    send(make())

    assert len(server.received) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"[1]", b"7", b"[" * 70_000, b"<html>", b"\xff\xfe", b"{}", b"OK?"],
)
def test_an_answer_that_slack_never_gives_is_a_failure(
    make: Make, server: Server, body: bytes
) -> None:
    server.answers_with(Answer(body=body, headers={"Content_Type": "text/html; charset=nope"}))

    assert failure_of(make()).reason == "it answered an unknown error"


def test_an_endless_answer_is_not_read_to_its_end(make: Make, server: Server) -> None:
    server.answers_with(Answer(body=b"x" * 5_000_000))

    failure_of(make())


@pytest.mark.parametrize(
    "answer",
    [
        slack_error("invalid_auth"),
        slack_error(f"token {TOKEN} at {HOOK} is bad"),
        slack_error("ratelimited", 429, Retry_After="60"),
        Answer(status=400, body=f"{TOKEN} {HOOK}".encode()),
        Answer(status=302, headers={"Location": f"http://x{HOOK}?{TOKEN}"}),
        Answer(status=500, body=TOKEN.encode()),
        Answer(hangs_up=True),
    ],
)
def test_no_secret_is_logged_or_reported_with_any_answer(
    make: Make, server: Server, caplog: pytest.LogCaptureFixture, answer: Answer
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx2", "httpcore2", "longshore"):
        caplog.set_level(logging.DEBUG, name)
    server.answers_with(answer)
    alerts = make()

    failure = failure_of(alerts)

    texts = [str(failure), repr(failure), repr(alerts), caplog.text, repr(failure.__cause__)]
    for secret in (TOKEN, HOOK, "not-for-anybody"):
        assert secret not in "\n".join(texts)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "nonsense", "http://"])
def test_a_url_without_http_is_not_opened(clock: HastyClock, url: str) -> None:
    failure = failure_of(slack_webhook(url=url, clock=clock))

    assert "passwd" not in str(failure)


def test_a_token_that_is_not_valid_in_a_header_is_not_quoted(
    server: Server, clock: HastyClock
) -> None:
    broken = slack_bot(
        token=f"{TOKEN}\nX", channel="C1", clock=clock, base_url=f"{server.url}/api/"
    )

    failure = failure_of(broken)

    assert TOKEN not in str(failure)
    assert server.received == []
    assert clock.slept == []
