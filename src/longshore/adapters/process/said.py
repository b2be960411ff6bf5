"""What a child says on its channel, read with care.

Anybody may write there, a shell script by hand too: what has the wrong kind is passed over or put
right here, once, because it travels far. A number that is none or half a character in a heartbeat
would make the heartbeat fail, and the child would be killed for it. What ends up in an event is
masked here too.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Any, TypeGuard

from longshore.core.events.types import Activity, Usage
from longshore.core.failures import ErrorCategory, Failure, error_text
from longshore.core.sanitise import safe_excerpt
from longshore.ports.output import Stream
from longshore.ports.runner import (
    Active,
    Asked,
    Conversed,
    Printed,
    Progressed,
    Report,
    StepDone,
    Summarised,
    Used,
)

_NAME_CHARACTERS = 200
_LINE_CHARACTERS = 500
_LARGEST = 2**53  # JSON numbers beyond it are not exact everywhere
_LONGEST_WAIT_S = 10.0**9
_CATEGORIES = {category.value: category for category in ErrorCategory}


def message_in(line: bytes) -> dict[str, Any] | None:
    """The message on a line; None if it is none of ours."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def report_in(said: dict[str, Any], *, now: datetime) -> Report | None:
    """What the message reports; None for results, errors and what nobody knows."""
    match said.get("type"):
        case "activity":
            step = said.get("step")
            doing = Activity(
                type=_text(said.get("activity", "waiting")),
                step_name=None if step is None else _text(step),
                timestamp=now,
            )
            return Active(doing)
        case "progress":
            return _progress(said)
        case "summary":
            line = _line(said.get("text"))
            return Summarised(line) if line else None
        case "step":
            return StepDone(str(said.get("name")), said.get("result"))
        case "session":
            return _conversed(said)
        case "ask":
            return _asked(said)
        case "usage":
            settles = said.get("settles")
            return Used(_usage(said), settles if type(settles) is int else None)
        case "log":
            return Printed(Stream.LOG, f"{said.get('text', '')}\n".encode(errors="replace"))
    return None


def _asked(said: dict[str, Any]) -> Asked | None:
    number, spent, wanted = said.get("number"), said.get("spent"), said.get("wanted")
    if type(number) is not int or not isinstance(spent, dict) or not isinstance(wanted, dict):
        return None
    return Asked(number, _text(said.get("step")), _usage(spent), _usage(wanted))


def _conversed(said: dict[str, Any]) -> Conversed | None:
    session, entries = said.get("session"), said.get("entries")
    if not isinstance(session, str) or not isinstance(entries, list):
        return None
    return Conversed(session, [entry for entry in entries if isinstance(entry, dict)])


def _progress(said: dict[str, Any]) -> Progressed | None:
    done, total = said.get("done"), said.get("total")
    if not _is_amount(done):
        return None
    return Progressed(done, total if _is_amount(total) else None, _line(said.get("text")))


def failure_in(said: dict[str, Any]) -> Failure:
    """The failure that an ``error`` message tells of."""
    kind, retry, code = (said.get(name) for name in ("errorType", "retry", "exitCode"))
    return Failure(
        category=_CATEGORIES.get(str(said.get("category")), ErrorCategory.UNKNOWN),
        message=error_text(_whole_characters(str(said.get("message", "")))),
        error_type=None if kind is None else _text(kind),
        exit_code=code if type(code) is int and abs(code) < _LARGEST else None,
        retry=retry if isinstance(retry, bool) else None,
        retry_after=_wait(said.get("retryAfter")),
    )


def _usage(said: dict[str, Any]) -> Usage:
    return Usage(
        input_tokens=int(_amount(said.get("inputTokens"))),
        output_tokens=int(_amount(said.get("outputTokens"))),
        cache_read_tokens=int(_amount(said.get("cacheReadTokens"))),
        turns=int(_amount(said.get("turns"))),
        cost_usd=float(_amount(said.get("costUsd"))),
        seconds=float(_amount(said.get("seconds"))),
    )


def _amount(value: Any) -> int | float:
    """A number that something can cost; 0 for everything else."""
    return value if _is_amount(value) else 0


def _is_amount(value: Any) -> TypeGuard[int | float]:
    return type(value) in (int, float) and 0 <= value <= _LARGEST


def _wait(value: Any) -> timedelta | None:
    if type(value) not in (int, float) or not (value == 0 or abs(value) < math.inf):
        return None
    return timedelta(seconds=min(max(value, 0), _LONGEST_WAIT_S))


def _text(value: Any) -> str:
    return safe_excerpt(_whole_characters(str(value)), limit=_NAME_CHARACTERS)


def _line(value: Any) -> str:
    text = "" if value is None else " ".join(str(value).split())
    return safe_excerpt(_whole_characters(text), limit=_LINE_CHARACTERS)


def _whole_characters(text: str) -> str:
    # Half a surrogate pair cannot be stored or sent.
    return text.encode(errors="replace").decode()
