"""Parts for AWS that work without the rest of Longshore.

``SQSHeartbeat`` keeps an SQS message hidden while its receiver works. It is for use on its own, in
a Lambda function or any other blocking program: a daemon thread and a client, and nothing else of
Longshore. ::

    with SQSHeartbeat(queue_url, receipt_handle, interval_sec=300) as heartbeat:
        work()

A call that fails ends the heartbeat: another receiver may get the message. Errors of AWS may quote
the receipt handle, so only their codes are used.

SQS hides a message for at most 12 hours after it was received. ``on_ceiling`` is called while there
is time to finish, and the heartbeat ends a little before the limit.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from longshore.errors import LongshoreError

__all__ = ["HeartbeatLost", "SQSHeartbeat", "heartbeat_interval_sec"]

DEFAULT_VISIBILITY_TIMEOUT_SEC = 600
CEILING_SEC = 12 * 60 * 60
"""How long SQS hides a message at most, from its receive on."""

_CEILING_MARGIN_SEC = 30  # the message was received before the heartbeat was created
_STOP_TIMEOUT_SEC = 5  # added to the interval
_RECEIPT_SUFFIX_LENGTH = 6  # characters of a receipt handle
_ERROR_CODE = re.compile(r"[A-Za-z0-9.]{1,80}")
_CEILING_REACHED = "SQS hides no message for more than 12 hours"
_CALL_STUCK = "a call did not return"
_TOO_LATE = "it was not extended in time"
# Linux has a monotonic clock that counts the time in which the machine was asleep.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

logger = logging.getLogger(__name__)
_client_lock = threading.Lock()


def heartbeat_interval_sec() -> float:
    """Returns the interval of heartbeats: the setting ``aws.heartbeat_every``.

    With the setting ``compat_env`` it is also read from ``SQS_HEARTBEAT_INTERVAL_MS``.

    For ``SQSHeartbeat(queue_url, receipt_handle, heartbeat_interval_sec())``.
    """
    from longshore.settings import load_settings

    return load_settings().aws.heartbeat_every.total_seconds()


class HeartbeatLost(LongshoreError):
    """The message is no longer kept hidden; ``reason`` is an error code or a name."""

    def __init__(self, queue: str, reason: str) -> None:
        self.queue = queue
        self.reason = reason
        super().__init__(queue, reason)

    def __str__(self) -> str:
        return f"a message of {self.queue!r} is no longer kept hidden: {self.reason}"


class _Run:
    """The time from one start to its stop."""

    def __init__(self, beat: Callable[[_Run], None]) -> None:
        self.stopped = threading.Event()
        self.abandoned = False  # ``stop`` gave up waiting, so its error is ignored
        self.hidden_until: float | None = None  # None: the queue's timeout
        self.thread = threading.Thread(target=beat, args=(self,), name="sqs-heartbeat", daemon=True)

    def is_live(self) -> bool:
        return not self.stopped.is_set() and self.thread.is_alive()


class SQSHeartbeat:
    """Extends the visibility timeout of one message at intervals, until it is stopped."""

    def __init__(
        self,
        queue_url: str,
        receipt_handle: str,
        interval_sec: float,
        visibility_timeout_sec: int = DEFAULT_VISIBILITY_TIMEOUT_SEC,
        *,
        client: Any = None,
        on_lost: Callable[[HeartbeatLost], object] | None = None,
        on_ceiling: Callable[[float], object] | None = None,
        age_sec: float = 0,
    ) -> None:
        """Create a heartbeat; ``start`` starts it.

        Args:
            interval_sec: Time between two extensions; well below the timeout.
            visibility_timeout_sec: How long each extension hides the message.
            client: An SQS client of boto3 or botocore; None: one that all heartbeats share.
            on_lost: Called once, in the heartbeat's thread, if the heartbeat fails.
            on_ceiling: Called once, in the heartbeat's thread, when the 12 hours end soon, with the
                seconds left: more than a timeout, if there were as many at the start.
            age_sec: How long ago the message was received.

        Raises:
            ValueError: a parameter is invalid.
        """
        _validate(queue_url, receipt_handle, interval_sec, visibility_timeout_sec, age_sec)
        self._queue_url = queue_url
        self._queue = queue_url.rsplit("/", 1)[-1]
        self._receipt_handle = receipt_handle
        self._interval_sec = interval_sec
        self._timeout_sec = visibility_timeout_sec
        self._on_lost = on_lost
        self._on_ceiling = on_ceiling
        self._ends_at = _now() - age_sec + CEILING_SEC - _CEILING_MARGIN_SEC
        with _client_lock:
            self._client = _shared_client() if client is None else client
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._error: HeartbeatLost | None = None

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        # At most a quarter of the receipt handle.
        suffix = self._receipt_handle[3 * _RECEIPT_SUFFIX_LENGTH :][-_RECEIPT_SUFFIX_LENGTH:]
        return f"<SQSHeartbeat of {self._queue!r}, receipt …{suffix}, {state}>"

    @property
    def running(self) -> bool:
        """Whether the message is being kept hidden."""
        with self._lock:
            return self._run is not None and self._run.is_live()

    @property
    def seconds_left(self) -> float:
        """How long SQS can keep the message hidden at most."""
        return max(0.0, self._ends_at - _now())

    def start(self) -> None:
        """Start, unless it runs already. A restart clears the error."""
        with self._lock:
            if self._run is not None and self._run.is_live():
                return
            self._error = None
            run = _Run(self._beat)
            run.thread.start()
            self._run = run

    def stop(self) -> None:
        """Stop: no call is made after this returns. Idempotent, also before ``start``.

        Waits for a call in progress, because it would undo what is done to the message next, but
        not forever. Inside a callback it only prevents further calls.
        """
        with self._lock:
            run = self._run
        if run is None:
            return
        run.stopped.set()
        if run.thread is threading.current_thread():
            return
        run.thread.join(self._interval_sec + _STOP_TIMEOUT_SEC)
        if not run.thread.is_alive():
            return
        with self._lock:
            run.abandoned = True
            if self._error is None and (run.hidden_until is None or _now() >= run.hidden_until):
                self._error = HeartbeatLost(self._queue, _CALL_STUCK)
        logger.warning("heartbeat.call_stuck", extra={"queue": self._queue})

    def check_for_errors(self) -> HeartbeatLost | None:
        """The first error since the start, or None."""
        with self._lock:
            return self._error

    def __enter__(self) -> SQSHeartbeat:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Stop.

        Raises:
            HeartbeatLost: the heartbeat failed, and the block raised no error.
        """
        self.stop()
        lost = self.check_for_errors()
        if lost is None:
            return
        if error is None:
            raise lost
        error.add_note(str(lost))

    # In the thread ------------------------------------------------------------------------------

    def _beat(self, run: _Run) -> None:
        announced = False
        while True:
            left = self.seconds_left
            if not announced and left < self._interval_sec + self._timeout_sec:
                announced = True
                fields = {"queue": self._queue, "seconds_left": round(left)}
                logger.warning("heartbeat.ceiling", extra=fields)
                self._run_callback(self._on_ceiling, left)
            if run.stopped.wait(min(self._interval_sec, left)):
                return
            reason = self._extend(run)
            if reason is not None:
                self._end_with_error(run, reason)
                return

    def _extend(self, run: _Run) -> str | None:
        """Extend the visibility timeout. Returns None, or the reason of a failure."""
        now = _now()
        hidden_for = min(self._timeout_sec, math.floor(self._ends_at - now))
        if hidden_for < 1:
            return _CEILING_REACHED
        if run.hidden_until is not None and now >= run.hidden_until:
            # Another receiver may have the message, and a call could hide it from them.
            return _TOO_LATE
        try:
            self._client.change_message_visibility(
                QueueUrl=self._queue_url,
                ReceiptHandle=self._receipt_handle,
                VisibilityTimeout=hidden_for,
            )
        except BaseException as error:  # noqa: BLE001 - any error that ends the thread is reported
            return _reason_of(error)
        run.hidden_until = now + hidden_for
        return None

    def _end_with_error(self, run: _Run, reason: str) -> None:
        error = HeartbeatLost(self._queue, reason)
        with self._lock:
            # In one step: a caller that sees the end also sees the error.
            run.stopped.set()
            if run.abandoned or run is not self._run:
                return
            self._error = error
        logger.warning("heartbeat.lost", extra={"queue": self._queue, "reason": reason})
        self._run_callback(self._on_lost, error)

    def _run_callback(self, callback: Callable[[Any], object] | None, argument: object) -> None:
        if callback is None:
            return
        try:
            callback(argument)
        except Exception:  # the edge of a thread
            logger.exception("heartbeat.callback_failed", extra={"queue": self._queue})


def _validate(
    queue_url: str, receipt_handle: str, interval_sec: float, timeout_sec: int, age_sec: float
) -> None:
    whole = isinstance(timeout_sec, int) and not isinstance(timeout_sec, bool)
    interval_is_valid = _is_number(interval_sec) and interval_sec > 0
    valid_by_rule = {  # the receipt handle is never quoted
        "queue_url must be a non-empty string": _is_text(queue_url),
        "receipt_handle must be a non-empty string": _is_text(receipt_handle),
        f"interval_sec must be a number of seconds above 0, not {interval_sec!r}": (
            interval_is_valid
        ),
        f"age_sec must be a number of seconds, 0 or more, not {age_sec!r}": (
            _is_number(age_sec) and age_sec >= 0
        ),
        f"visibility_timeout_sec must be whole seconds, more than interval_sec ({interval_sec!r})"
        f" and at most {CEILING_SEC}, not {timeout_sec!r}": (
            whole and interval_is_valid and interval_sec < timeout_sec <= CEILING_SEC
        ),
    }
    for rule, valid in valid_by_rule.items():
        if not valid:
            raise ValueError(rule)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _reason_of(error: BaseException) -> str:
    # Not the message: it may quote the request.
    answer = getattr(error, "response", None)
    code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    return code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else type(error).__name__


@cache
def _shared_client() -> Any:
    # Few retries and short timeouts: a call ends long before the next is due.
    config = import_module("botocore.config").Config(
        connect_timeout=5,
        read_timeout=10,
        retries={"mode": "standard", "total_max_attempts": 3},
        max_pool_connections=50,
    )
    try:
        boto3 = import_module("boto3")
    except ImportError:
        return import_module("botocore.session").get_session().create_client("sqs", config=config)
    return boto3.client("sqs", config=config)


def _now() -> float:
    return time.clock_gettime(_CLOCK)
