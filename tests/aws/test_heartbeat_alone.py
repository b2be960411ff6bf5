"""The heartbeat on the stand-in, by itself in a program, and what it must not reveal."""

import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from botocore.config import Config
from botocore.session import get_session

import longshore.aws
from longshore import aws as module
from longshore.aws import HeartbeatLost, SQSHeartbeat
from longshore.testing.clock import FakeClock
from tests.aws.heartbeat_doubles import (
    RECEIPT,
    WAIT_TIMEOUT_S,
    RecordingCallback,
    RecordingClient,
    client_error,
    heartbeat_threads,
    make_heartbeat,
    raise_in_turn,
)
from tests.aws.stand_in import REGION, stand_in

MANY = 200
PROGRAM = """
import sys
from longshore import aws
assert not [name for name in sys.modules if name.startswith("longshore.adapters")]
heartbeat = aws.SQSHeartbeat("https://sqs/work", "handle", 300, client=object())
heartbeat.start()
heartbeat.stop()
assert not {"boto3", "botocore", "aiobotocore", "msgspec", "pydantic"} & set(sys.modules)
"""


@dataclass
class Queue:
    """A queue on the stand-in, whose time is the clock's."""

    client: Any
    url: str
    clock: FakeClock

    def receive(self) -> list[str]:
        result = self.client.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10)
        return [message["ReceiptHandle"] for message in result.get("Messages", [])]

    def send(self, count: int) -> None:
        for number in range(count):
            self.client.send_message(QueueUrl=self.url, MessageBody=str(number))


@contextmanager
def _client() -> Iterator[Any]:
    client = get_session().create_client(
        "sqs",
        region_name=REGION,
        endpoint_url=stand_in().endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(max_pool_connections=MANY),
    )
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def work_queue() -> Iterator[Queue]:
    clock = FakeClock()
    with stand_in().follow_clock(clock), _client() as client:
        name = f"heartbeat-{stand_in().new_stage()}"
        url = client.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "30"})
        yield Queue(client, url["QueueUrl"], clock)


class CountingClient:
    """A client that lets a test wait for a number of successful calls."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._changed = threading.Condition()
        self._done: dict[str, int] = {}

    def change_message_visibility(self, **parameters: Any) -> None:
        self._client.change_message_visibility(**parameters)
        with self._changed:
            handle = parameters["ReceiptHandle"]
            self._done[handle] = self._done.get(handle, 0) + 1
            self._changed.notify_all()

    def wait(self, handles: list[str], times: int) -> None:
        def enough() -> bool:
            return all(self._done.get(handle, 0) >= times for handle in handles)

        with self._changed:
            assert self._changed.wait_for(enough, 3 * WAIT_TIMEOUT_S)


# On the stand-in --------------------------------------------------------------------------------


def test_two_hundred_at_once_keep_their_messages_hidden(work_queue: Queue) -> None:
    work_queue.send(MANY)
    handles = [handle for _ in range(MANY // 10) for handle in work_queue.receive()]
    client = CountingClient(work_queue.client)
    heartbeats = [SQSHeartbeat(work_queue.url, handle, 1, client=client) for handle in handles]

    with ExitStack() as stack:
        for heartbeat in heartbeats:
            stack.enter_context(heartbeat)
        assert len(heartbeat_threads()) == MANY
        client.wait(handles, 2)
        # The queue alone would have shown them again.
        work_queue.clock.advance(timedelta(seconds=100))
        assert work_queue.receive() == []

    assert len(set(handles)) == MANY
    assert heartbeat_threads() == []
    work_queue.clock.advance(timedelta(seconds=700))
    assert len(work_queue.receive()) == 10


def test_a_receipt_that_has_expired_ends_the_heartbeat(work_queue: Queue) -> None:
    work_queue.send(1)
    (handle,) = work_queue.receive()
    work_queue.clock.advance(timedelta(seconds=31))
    (newer,) = work_queue.receive()
    callback = RecordingCallback()

    heartbeat = SQSHeartbeat(
        work_queue.url, handle, 0.01, client=work_queue.client, on_lost=callback
    )
    heartbeat.start()
    lost = callback.wait()
    heartbeat.stop()

    assert lost is heartbeat.check_for_errors()
    assert lost.reason == "ReceiptHandleIsInvalid"
    assert len(callback.threads) == 1
    work_queue.client.delete_message(QueueUrl=work_queue.url, ReceiptHandle=newer)


# By itself --------------------------------------------------------------------------------------


@pytest.fixture
def new_client() -> Iterator[None]:
    module._shared_client.cache_clear()
    yield
    module._shared_client.cache_clear()


@pytest.mark.usefixtures("new_client")
def test_without_a_client_one_is_made_and_shared(
    work_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    for name, value in {
        "AWS_ENDPOINT_URL": stand_in().endpoint,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }.items():
        monkeypatch.setenv(name, value)
    work_queue.send(1)
    (handle,) = work_queue.receive()

    heartbeat, other = (SQSHeartbeat(work_queue.url, handle, 0.01) for _ in range(2))

    assert heartbeat._client is other._client
    counting = CountingClient(heartbeat._client)
    heartbeat._client = counting
    with heartbeat:
        counting.wait([handle], 1)
    other._client.close()


@pytest.mark.usefixtures("new_client")
def test_boto3_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[tuple[str, Config]] = []
    boto3 = ModuleType("boto3")
    boto3.client = lambda name, config: clients.append((name, config)) or RecordingClient()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "boto3", boto3)

    heartbeat = SQSHeartbeat("https://sqs/work", RECEIPT, 300)

    assert isinstance(heartbeat._client, RecordingClient)
    ((name, config),) = clients
    assert name == "sqs"
    assert config.read_timeout + config.connect_timeout <= 15


def test_a_heartbeat_loads_no_library_before_it_needs_one() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


def test_the_facade_knows_its_names_and_no_others() -> None:
    assert {"HeartbeatLost", "SQSHeartbeat"} <= set(dir(longshore.aws))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = longshore.aws.Nothing


# What it keeps to itself ------------------------------------------------------------------------


@pytest.mark.parametrize("receipt", [RECEIPT, "short"])
def test_a_receipt_is_never_shown_whole(receipt: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    callback = RecordingCallback()
    error = client_error()
    error.response["Error"]["Message"] = f"no {receipt}"
    error.args = (f"no {receipt}",)
    client = RecordingClient(raise_in_turn(error))
    heartbeat = SQSHeartbeat("https://sqs/work", receipt, 0.005, client=client, on_lost=callback)
    texts = [repr(heartbeat)]

    heartbeat.start()
    texts.append(repr(heartbeat))
    lost = callback.wait()
    heartbeat.stop()
    try:
        raise lost
    except HeartbeatLost as caught:
        texts += traceback.format_exception(caught)
    texts += [str(lost), repr(lost), repr(lost.args), repr(vars(lost)), repr(heartbeat)]
    texts += [repr(vars(record)) for record in caplog.records]

    assert caplog.records
    assert [text for text in texts if receipt in text] == []
    assert "work" in repr(heartbeat)


def test_the_representation_shows_the_end_of_the_receipt() -> None:
    assert f"…{RECEIPT[-6:]}" in repr(make_heartbeat(RecordingClient()))
