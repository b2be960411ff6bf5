"""What tests of the heartbeat share: clients and callbacks that can be waited for."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from longshore.aws import SQSHeartbeat

QUEUE_URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/work"
RECEIPT = "AQEB" + "wJnKyrHigUMZj6rYigCgxlaS3SLy0a" * 8 + "xYz+/=="
SOON = 0.005
IN_TIME_S = 20


class Client:
    """Notes every call; ``then`` says what becomes of each."""

    def __init__(self, then: Callable[[int], None] = lambda number: None) -> None:
        self.calls: queue.Queue[dict[str, Any]] = queue.Queue()
        self.count = 0
        self._then = then

    def change_message_visibility(self, **parameters: Any) -> None:
        self.count += 1
        self.calls.put(parameters)
        self._then(self.count)

    def wait(self) -> dict[str, Any]:
        return self.calls.get(timeout=IN_TIME_S)


class Door:
    """Holds calls up, from a number on, until it is opened."""

    def __init__(self, held_from: int = 1) -> None:
        self._from = held_from
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, number: int) -> None:
        if number >= self._from:
            self.reached.set()
            assert self.opened.wait(IN_TIME_S)


class Told:
    """A callback that notes what it was told, and by whom."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._then = then
        self.by: list[threading.Thread] = []
        self._told: queue.Queue[Any] = queue.Queue()

    def __call__(self, what: Any) -> None:
        self.by.append(threading.current_thread())
        try:
            self._then()
        finally:
            self._told.put(what)

    def wait(self) -> Any:
        return self._told.get(timeout=IN_TIME_S)


def beating(client: Any, interval_sec: float = SOON, **more: Any) -> SQSHeartbeat:
    return SQSHeartbeat(QUEUE_URL, RECEIPT, interval_sec, client=client, **more)


def refusal(code: str = "ReceiptHandleIsInvalid") -> ClientError:
    message = f'The input receipt handle "{RECEIPT}" is not a valid receipt handle.'
    return ClientError({"Error": {"Code": code, "Message": message}}, "ChangeMessageVisibility")


def failing(*errors: BaseException) -> Callable[[int], None]:
    def then(number: int) -> None:
        raise errors[min(number, len(errors)) - 1]

    return then


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sqs-heartbeat"]
