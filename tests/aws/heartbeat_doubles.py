"""What tests of the heartbeat share: clients and callbacks that can be waited for."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from longshore.aws import SQSHeartbeat

QUEUE_URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/work"
RECEIPT = "AQEB" + "wJnKyrHigUMZj6rYigCgxlaS3SLy0a" * 8 + "xYz+/=="
SHORT_INTERVAL_SEC = 0.005
WAIT_TIMEOUT_S = 20


class RecordingClient:
    """A client that records every call; ``on_call`` decides the outcome of each."""

    def __init__(self, on_call: Callable[[int], None] = lambda number: None) -> None:
        self.calls: queue.Queue[dict[str, Any]] = queue.Queue()
        self.count = 0
        self._on_call = on_call

    def change_message_visibility(self, **parameters: Any) -> None:
        self.count += 1
        self.calls.put(parameters)
        self._on_call(self.count)

    def wait(self) -> dict[str, Any]:
        return self.calls.get(timeout=WAIT_TIMEOUT_S)


class CallBarrier:
    """Holds calls up, from a number on, until it is opened."""

    def __init__(self, first_blocked: int = 1) -> None:
        self._first_blocked = first_blocked
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, number: int) -> None:
        if number >= self._first_blocked:
            self.reached.set()
            assert self.opened.wait(WAIT_TIMEOUT_S)


class RecordingCallback:
    """A callback that records its arguments and the threads that called it."""

    def __init__(self, on_call: Callable[[], object] = lambda: None) -> None:
        self._on_call = on_call
        self.threads: list[threading.Thread] = []
        self._arguments: queue.Queue[Any] = queue.Queue()

    def __call__(self, argument: Any) -> None:
        self.threads.append(threading.current_thread())
        try:
            self._on_call()
        finally:
            self._arguments.put(argument)

    def wait(self) -> Any:
        return self._arguments.get(timeout=WAIT_TIMEOUT_S)


def make_heartbeat(
    client: Any, interval_sec: float = SHORT_INTERVAL_SEC, **more: Any
) -> SQSHeartbeat:
    return SQSHeartbeat(QUEUE_URL, RECEIPT, interval_sec, client=client, **more)


def client_error(code: str = "ReceiptHandleIsInvalid") -> ClientError:
    message = f'The input receipt handle "{RECEIPT}" is not a valid receipt handle.'
    return ClientError({"Error": {"Code": code, "Message": message}}, "ChangeMessageVisibility")


def raise_in_turn(*errors: BaseException) -> Callable[[int], None]:
    def then(number: int) -> None:
        raise errors[min(number, len(errors)) - 1]

    return then


def heartbeat_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sqs-heartbeat"]
