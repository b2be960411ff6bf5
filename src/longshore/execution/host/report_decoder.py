"""Decodes and validates the messages that a child writes to its channel.

Any program may write there, even a shell script by hand. A message of the wrong type is ignored or
corrected here, once, before it travels further: a NaN or an unpaired surrogate in a heartbeat would
make the heartbeat fail, and the child would be killed for it. Secrets in texts that become part of
an event are masked here too.
"""

from __future__ import annotations

import json
import math
import re
from datetime import datetime, timedelta
from typing import Any, TypeGuard

from longshore.core.events.types import Activity, Usage
from longshore.core.tasks.failures import ErrorCategory, Failure, error_text
from longshore.core.text.sanitise import safe_excerpt
from longshore.execution.protocol import LARGE_MESSAGES, SMALL_LINE_BYTES
from longshore.ports.output import Stream
from longshore.ports.runner import (
    ActivityReport,
    ChildReport,
    ConversationReport,
    OutputReport,
    ProgressReport,
    SpendRequest,
    StepReport,
    SummaryReport,
    UsageReport,
)

_NAME_CHARACTERS = 200
_LINE_CHARACTERS = 500
PARSED_ON_LOOP_BYTES = 256 * 1024
"""A longer message is parsed in a thread."""
_MAX_NUMBER = 2**53  # JSON numbers beyond it are not exact everywhere
_MAX_WAIT_S = 10.0**9
_LARGE = re.compile(
    rb'\s{0,9}\{\s{0,9}"type"\s{0,9}:\s{0,9}"(?:%b)"' % "|".join(LARGE_MESSAGES).encode()
)
_ACTIVITIES = ("step_running", "sdk_query", "waiting")
_CATEGORIES = {category.value: category for category in ErrorCategory}


def is_too_long(line: bytes) -> bool:
    """Whether a message exceeds the limit of its type, with which a large one begins."""
    return len(line) > SMALL_LINE_BYTES and not _LARGE.match(line)


def parse_message(line: bytes) -> dict[str, Any] | None:
    """Returns the message on a line; None if the line is not a JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def decode_report(message: dict[str, Any], *, now: datetime) -> ChildReport | None:
    """Returns the report in the message; None for results, errors and unknown types."""
    match message:
        case {"type": "activity"}:
            step = message.get("step")
            kind = message.get("activity")
            activity = Activity(
                type=kind if kind in _ACTIVITIES else "waiting",
                step_name=None if step is None else _excerpt(step),
                timestamp=now,
            )
            return ActivityReport(activity)
        case {"type": "progress", "done": done} if _is_amount(done):
            total = message.get("total")
            text = _single_line(message.get("text"))
            return ProgressReport(done, total if _is_amount(total) else None, text)
        case {"type": "summary"}:
            line = _single_line(message.get("text"))
            return SummaryReport(line) if line else None
        case {"type": "step"}:
            return StepReport(str(message.get("name")), message.get("result"))
        case {"type": "conversation", "conversation": str(name), "entries": list(entries)}:
            return ConversationReport(name, [item for item in entries if isinstance(item, dict)])
        case {"type": "spend", "number": number, "spent": dict(spent), "estimate": dict(estimate)}:
            if type(number) is int:
                step = _excerpt(message.get("step"))
                return SpendRequest(number, step, _decode_usage(spent), _decode_usage(estimate))
        case {"type": "usage"}:
            settled = message.get("settles")
            return UsageReport(_decode_usage(message), settled if type(settled) is int else None)
        case {"type": "log"}:
            return OutputReport(Stream.LOG, f"{message.get('text', '')}\n".encode(errors="replace"))
    return None


def decode_failure(message: dict[str, Any]) -> Failure:
    """Returns the failure that an ``error`` message describes."""
    kind, retry, code = (message.get(name) for name in ("errorType", "retry", "exitCode"))
    return Failure(
        category=_CATEGORIES.get(str(message.get("category")), ErrorCategory.UNKNOWN),
        message=error_text(_replace_surrogates(str(message.get("message", "")))),
        error_type=None if kind is None else _excerpt(kind),
        exit_code=code if type(code) is int and abs(code) < _MAX_NUMBER else None,
        retry=retry if isinstance(retry, bool) else None,
        retry_after=_retry_after(message.get("retryAfter")),
    )


def _decode_usage(message: dict[str, Any]) -> Usage:
    return Usage(
        input_tokens=int(_amount(message.get("inputTokens"))),
        output_tokens=int(_amount(message.get("outputTokens"))),
        cache_read_tokens=int(_amount(message.get("cacheReadTokens"))),
        turns=int(_amount(message.get("turns"))),
        cost_usd=float(_amount(message.get("costUsd"))),
        seconds=float(_amount(message.get("seconds"))),
    )


def _amount(value: Any) -> int | float:
    """Returns the value if it is a valid amount, else 0."""
    return value if _is_amount(value) else 0


def _is_amount(value: Any) -> TypeGuard[int | float]:
    return type(value) in (int, float) and 0 <= value <= _MAX_NUMBER


def _retry_after(value: Any) -> timedelta | None:
    if type(value) not in (int, float) or not (value == 0 or abs(value) < math.inf):
        return None
    return timedelta(seconds=min(max(value, 0), _MAX_WAIT_S))


def _excerpt(value: Any) -> str:
    return safe_excerpt(_replace_surrogates(str(value)), limit=_NAME_CHARACTERS)


def _single_line(value: Any) -> str:
    text = "" if value is None else " ".join(str(value).split())
    return safe_excerpt(_replace_surrogates(text), limit=_LINE_CHARACTERS)


def _replace_surrogates(text: str) -> str:
    # An unpaired surrogate cannot be stored or sent.
    return text.encode(errors="replace").decode()
