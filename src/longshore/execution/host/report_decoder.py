"""Decodes and validates the messages that a child writes to its channel.

Any program may write there, even a shell script by hand. A message of the wrong type is ignored or
corrected here, once, before it travels further: a NaN or an unpaired surrogate in a heartbeat would
make the heartbeat fail, and the child would be killed for it. Secrets in texts that become part of
an event are masked here too.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Any, TypeGuard

from longshore.core.events.types import Activity, Usage
from longshore.core.tasks.failures import ErrorCategory, Failure, error_text
from longshore.core.text.sanitise import safe_excerpt
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
_MAX_NUMBER = 2**53  # JSON numbers beyond it are not exact everywhere
_MAX_WAIT_S = 10.0**9
_CATEGORIES = {category.value: category for category in ErrorCategory}


def parse_message(line: bytes) -> dict[str, Any] | None:
    """Returns the message on a line; None if the line is not a JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def decode_report(message: dict[str, Any], *, now: datetime) -> ChildReport | None:
    """Returns the report in the message; None for results, errors and unknown types."""
    match message.get("type"):
        case "activity":
            step = message.get("step")
            activity = Activity(
                type=_excerpt(message.get("activity", "waiting")),
                step_name=None if step is None else _excerpt(step),
                timestamp=now,
            )
            return ActivityReport(activity)
        case "progress":
            return _decode_progress(message)
        case "summary":
            line = _single_line(message.get("text"))
            return SummaryReport(line) if line else None
        case "step":
            return StepReport(str(message.get("name")), message.get("result"))
        case "conversation":
            return _decode_conversation(message)
        case "spend":
            return _decode_spend_request(message)
        case "usage":
            settled_request = message.get("settles")
            return UsageReport(
                _decode_usage(message), settled_request if type(settled_request) is int else None
            )
        case "log":
            return OutputReport(Stream.LOG, f"{message.get('text', '')}\n".encode(errors="replace"))
    return None


def _decode_spend_request(message: dict[str, Any]) -> SpendRequest | None:
    number, spent, estimate = message.get("number"), message.get("spent"), message.get("estimate")
    if type(number) is not int or not isinstance(spent, dict) or not isinstance(estimate, dict):
        return None
    return SpendRequest(
        number, _excerpt(message.get("step")), _decode_usage(spent), _decode_usage(estimate)
    )


def _decode_conversation(message: dict[str, Any]) -> ConversationReport | None:
    session, entries = message.get("conversation"), message.get("entries")
    if not isinstance(session, str) or not isinstance(entries, list):
        return None
    return ConversationReport(session, [entry for entry in entries if isinstance(entry, dict)])


def _decode_progress(message: dict[str, Any]) -> ProgressReport | None:
    done, total = message.get("done"), message.get("total")
    if not _is_amount(done):
        return None
    return ProgressReport(
        done, total if _is_amount(total) else None, _single_line(message.get("text"))
    )


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
