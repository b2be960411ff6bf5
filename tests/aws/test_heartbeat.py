"""The heartbeat for a message of SQS: how it beats, how it ends, and what it reports."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from longshore import aws as module
from longshore.aws import HeartbeatLost, SQSHeartbeat
from tests.aws.heartbeat_doubles import (
    QUEUE_URL,
    RECEIPT,
    WAIT_TIMEOUT_S,
    CallBarrier,
    RecordingCallback,
    RecordingClient,
    client_error,
    heartbeat_threads,
    make_heartbeat,
    raise_in_turn,
)


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    yield
    for thread in heartbeat_threads():
        thread.join(WAIT_TIMEOUT_S)
    assert heartbeat_threads() == []


# Parameters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue_url": ""},
        {"queue_url": "  "},
        {"queue_url": None},
        {"receipt_handle": ""},
        {"receipt_handle": RECEIPT.encode()},
        {"interval_sec": 0},
        {"interval_sec": -1},
        {"interval_sec": "300"},
        {"interval_sec": float("nan")},
        {"interval_sec": float("inf")},
        {"interval_sec": True},
        {"interval_sec": 600},
        {"interval_sec": 30, "visibility_timeout_sec": 30},
        {"visibility_timeout_sec": 12 * 3600 + 1},
        {"visibility_timeout_sec": 600.5},
        {"visibility_timeout_sec": None},
        {"age_sec": -1},
        {"age_sec": float("nan")},
    ],
    ids=str,
)
def test_bad_parameters_are_refused_without_quoting_the_receipt(wrong: dict[str, Any]) -> None:
    valid: dict[str, Any] = {"queue_url": QUEUE_URL, "receipt_handle": RECEIPT, "interval_sec": 300}

    with pytest.raises(ValueError, match=f"^{next(iter(wrong))}|^visibility_timeout") as caught:
        SQSHeartbeat(**valid | wrong, client=RecordingClient())

    assert RECEIPT not in str(caught.value)


def test_the_parameters_are_those_that_were_always_there() -> None:
    heartbeat = SQSHeartbeat(QUEUE_URL, RECEIPT, 300, 905, client=RecordingClient())

    assert heartbeat.running is False
    assert heartbeat.check_for_errors() is None


# Beating ----------------------------------------------------------------------------------------


def test_a_heartbeat_extends_repeatedly_until_it_is_stopped() -> None:
    client = RecordingClient()
    heartbeat = make_heartbeat(client)

    heartbeat.start()

    (thread,) = heartbeat_threads()
    assert thread.daemon
    for _ in range(3):
        assert client.wait() == {
            "QueueUrl": QUEUE_URL,
            "ReceiptHandle": RECEIPT,
            "VisibilityTimeout": 600,
        }
    assert heartbeat.running is True
    heartbeat.stop()
    assert heartbeat.running is False
    assert not thread.is_alive()
    assert heartbeat.check_for_errors() is None


def test_nothing_is_extended_before_the_first_interval_is_over() -> None:
    client = RecordingClient()

    with make_heartbeat(client, 300):
        assert len(heartbeat_threads()) == 1

    assert client.count == 0


def test_starting_twice_starts_one() -> None:
    heartbeat = make_heartbeat(RecordingClient(), 300)

    heartbeat.start()
    heartbeat.start()

    assert len(heartbeat_threads()) == 1
    heartbeat.stop()


def test_a_heartbeat_can_be_stopped_before_its_start_and_more_than_once() -> None:
    heartbeat = make_heartbeat(RecordingClient(), 300)

    heartbeat.stop()
    heartbeat.start()
    heartbeat.stop()
    heartbeat.stop()

    assert heartbeat.check_for_errors() is None


def test_a_call_that_is_under_way_is_waited_for_and_none_follows() -> None:
    door = CallBarrier()
    client = RecordingClient(door)
    heartbeat = make_heartbeat(client)
    heartbeat.start()
    (thread,) = heartbeat_threads()
    assert door.reached.wait(WAIT_TIMEOUT_S)

    stopping = threading.Thread(target=heartbeat.stop)
    stopping.start()
    while heartbeat.running:
        pass
    assert stopping.is_alive()
    door.opened.set()
    stopping.join(WAIT_TIMEOUT_S)

    # A thread that has ended makes no call.
    assert not thread.is_alive()
    assert client.count == 1


@pytest.mark.parametrize(("blocked", "reason"), [(1, "a call did not return"), (2, None)])
def test_a_call_that_never_returns_does_not_block_a_stop_for_ever(
    monkeypatch: pytest.MonkeyPatch, blocked: int, reason: str | None
) -> None:
    monkeypatch.setattr(module, "_STOP_TIMEOUT_SEC", 0)
    door, callback = CallBarrier(blocked), RecordingCallback()

    def hang(number: int) -> None:
        door(number)
        if number == blocked:
            raise client_error()

    client = RecordingClient(hang)
    heartbeat = make_heartbeat(client, on_lost=callback)
    heartbeat.start()
    (thread,) = heartbeat_threads()
    assert door.reached.wait(WAIT_TIMEOUT_S)

    heartbeat.stop()

    def now() -> str | None:
        error = heartbeat.check_for_errors()
        return error and error.reason

    # If it was extended before, the message is still hidden for a long time.
    assert now() == reason
    door.opened.set()
    thread.join(WAIT_TIMEOUT_S)
    assert now() == reason
    assert callback.threads == []
    assert client.count == blocked


# Losing it --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (client_error(), "ReceiptHandleIsInvalid"),
        (client_error("AWS.SimpleQueueService.MessageNotInflight"), None),
        (client_error(RECEIPT), "ClientError"),
        (EndpointConnectionError(endpoint_url="https://sqs"), "EndpointConnectionError"),
        (RuntimeError(RECEIPT), "RuntimeError"),
        (SystemExit(1), "SystemExit"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_call_that_fails_ends_the_heartbeat_and_the_first_error_is_kept(
    error: BaseException, reason: str | None
) -> None:
    client, callback = (
        RecordingClient(raise_in_turn(error, ValueError("later"))),
        RecordingCallback(),
    )
    heartbeat = make_heartbeat(client, on_lost=callback)
    heartbeat.start()
    (thread,) = heartbeat_threads()

    lost = callback.wait()
    thread.join(WAIT_TIMEOUT_S)

    assert heartbeat.running is False
    assert heartbeat.check_for_errors() is lost
    heartbeat.stop()
    assert heartbeat.check_for_errors() is lost
    assert isinstance(lost, HeartbeatLost)
    assert (lost.queue, lost.reason) == (
        "work",
        reason or "AWS.SimpleQueueService.MessageNotInflight",
    )
    assert client.count == 1
    assert callback.threads == [thread]


def test_a_heartbeat_that_no_longer_runs_has_an_error() -> None:
    heartbeat = make_heartbeat(RecordingClient(raise_in_turn(client_error())))
    heartbeat.start()

    while heartbeat.running:
        pass

    assert heartbeat.check_for_errors() is not None


def test_a_heartbeat_that_is_started_again_has_no_error() -> None:
    def fail_once(number: int) -> None:
        if number == 1:
            raise client_error()

    client, callback = RecordingClient(fail_once), RecordingCallback()
    heartbeat = make_heartbeat(client, on_lost=callback)
    heartbeat.start()
    callback.wait()

    heartbeat.start()
    for _ in range(3):
        client.wait()
    heartbeat.stop()

    assert heartbeat.check_for_errors() is None


@pytest.mark.parametrize("which", ["on_lost", "on_ceiling"])
def test_a_heartbeat_can_be_stopped_by_its_callback(
    which: str, caplog: pytest.LogCaptureFixture
) -> None:
    callback = RecordingCallback(lambda: heartbeat.stop())
    old = module.CEILING_SEC - 40 if which == "on_ceiling" else 0
    heartbeat = make_heartbeat(
        RecordingClient(raise_in_turn(client_error())), age_sec=old, **{which: callback}
    )

    heartbeat.start()
    callback.wait()
    heartbeat.stop()

    assert (heartbeat.check_for_errors() is None) == (which == "on_ceiling")
    assert "heartbeat.callback_failed" not in caplog.text


def test_a_callback_that_fails_is_logged_and_hides_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    callback = RecordingCallback(lambda: 1 / 0)
    heartbeat = make_heartbeat(RecordingClient(raise_in_turn(client_error())), on_lost=callback)
    heartbeat.start()

    lost = callback.wait()
    heartbeat.stop()

    assert heartbeat.check_for_errors() is lost
    assert [record.message for record in caplog.records][-1] == "heartbeat.callback_failed"


def test_a_message_that_was_not_extended_in_time_is_not_extended_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "_now", lambda: now[0])

    def asleep(number: int) -> None:
        if number == 2:
            now[0] += 601  # the machine slept, and this was noticed only at the response

    client, callback = RecordingClient(asleep), RecordingCallback()
    heartbeat = make_heartbeat(client, on_lost=callback)
    heartbeat.start()

    assert callback.wait().reason == "it was not extended in time"
    heartbeat.stop()
    assert client.count == 2


# Twelve hours -----------------------------------------------------------------------------------


def test_the_limit_of_twelve_hours_is_announced_and_the_message_lost_before_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "_now", lambda: now[0])
    ceiling = 3000.0

    def work(_: int) -> None:
        now[0] += 10

    client, ending, lost = RecordingClient(work), RecordingCallback(), RecordingCallback()
    heartbeat = make_heartbeat(client, age_sec=12 * 3600 - ceiling, on_ceiling=ending, on_lost=lost)
    heartbeat.start()

    assert 590 <= ending.wait() <= 600
    assert "12 hours" in lost.wait().reason
    heartbeat.stop()

    assert now[0] < ceiling
    assert len(ending.threads) == len(lost.threads) == 1
    timeouts = [client.wait()["VisibilityTimeout"] for _ in range(client.count)]
    ends = [10 * number + hidden for number, hidden in enumerate(timeouts)]
    # It was kept hidden nearly to the end, and nothing was asked for that SQS would refuse.
    assert ceiling - 60 <= max(ends) < ceiling
    assert [record.message for record in caplog.records] == ["heartbeat.ceiling", "heartbeat.lost"]


def test_a_message_that_is_already_too_old_is_reported_at_once() -> None:
    client, ending, lost = RecordingClient(), RecordingCallback(), RecordingCallback()
    heartbeat = make_heartbeat(client, 300, age_sec=12 * 3600, on_ceiling=ending, on_lost=lost)
    heartbeat.start()

    assert ending.wait() == 0
    assert "12 hours" in lost.wait().reason
    assert heartbeat.seconds_left == 0
    assert client.count == 0


# As a context -----------------------------------------------------------------------------------


def test_a_block_that_ends_well_is_as_if_there_were_no_heartbeat() -> None:
    client = RecordingClient()
    with make_heartbeat(client) as heartbeat:
        client.wait()

    assert heartbeat.running is False


def test_a_block_whose_message_was_lost_raises_at_its_end() -> None:
    callback = RecordingCallback()
    with (
        pytest.raises(HeartbeatLost, match="ReceiptHandleIsInvalid"),
        make_heartbeat(RecordingClient(raise_in_turn(client_error())), on_lost=callback),
    ):
        callback.wait()

    assert heartbeat_threads() == []


def test_the_error_of_a_block_is_not_hidden_by_that_of_the_heartbeat() -> None:
    callback = RecordingCallback()

    def work() -> None:
        callback.wait()
        raise KeyError

    with (
        pytest.raises(KeyError) as caught,
        make_heartbeat(RecordingClient(raise_in_turn(client_error())), on_lost=callback),
    ):
        work()

    assert "ReceiptHandleIsInvalid" in caught.value.__notes__[0]
