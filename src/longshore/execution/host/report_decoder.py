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

import msgspec

from longshore.core.agents.transcripts import entry_id
from longshore.core.documents import EncodedJson
from longshore.core.events.types import Activity, Usage
from longshore.core.tasks.failures import ErrorCategory, Failure, error_text
from longshore.core.text.json_bounds import (
    JsonBytes,
    has_more_values,
    has_unusable_number,
    is_utf8,
)
from longshore.core.text.sanitise import safe_excerpt
from longshore.execution.protocol import LARGE_MESSAGES, LINE_LIMIT_BYTES, SMALL_LINE_BYTES
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
"""A longer message is checked in a thread, and its values stay encoded."""
MAX_LONG_MESSAGE_VALUES = 1_000_000
_MAX_ENTRIES = 10_000  # of a conversation in one message
_MAX_ID_BYTES = 1024
_MAX_NUMBER = 2**53  # JSON numbers beyond it are not exact everywhere
_MAX_WAIT_S = 10.0**9
_LARGE = re.compile(
    rb'\s{0,9}\{\s{0,9}"type"\s{0,9}:\s{0,9}"(%b)"' % "|".join(LARGE_MESSAGES).encode()
)


class _Result(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw(b"null")


class _Step(msgspec.Struct):
    name: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Conversation(msgspec.Struct):
    conversation: msgspec.Raw
    entries: msgspec.Raw


class _Entry(msgspec.Struct):
    uuid: msgspec.Raw = msgspec.Raw(b"null")


_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_result = msgspec.json.Decoder(_Result).decode
_decode_step = msgspec.json.Decoder(_Step).decode
_decode_conversation = msgspec.json.Decoder(_Conversation).decode
_decode_entries = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_entry = msgspec.json.Decoder(_Entry).decode
_ACTIVITIES = ("step_running", "sdk_query", "waiting")
_CATEGORIES = {category.value: category for category in ErrorCategory}


def is_too_long(line: JsonBytes) -> bool:
    """Whether a message exceeds the limit of its type, with which a large one begins."""
    is_large = _LARGE.match(line) if len(line) > SMALL_LINE_BYTES else None
    return len(line) > (LINE_LIMIT_BYTES if is_large else SMALL_LINE_BYTES)


def parse_message(line: JsonBytes) -> dict[str, Any] | None:
    """Returns the message on a line; None if the line is not a JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def parse_long_message(line: JsonBytes) -> dict[str, Any] | None:
    """Returns a long message, whose result or entries stay encoded; takes long.

    A message of another type is not long. ``ids`` are those of the entries of a conversation.

    Raises:
        ValueError: it has too many values, or cannot be stored.
    """
    kind = _LARGE.match(line)
    if kind is None:
        return parse_message(line)
    check_json(line)
    try:
        return _decode_long(kind[1], line)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a message cannot be read: {error}") from error


def _decode_long(kind: bytes, line: JsonBytes) -> dict[str, Any]:
    match kind:
        case b"result":
            return {"type": "result", "value": _encoded(_decode_result(line).value)}
        case b"step":
            step = _decode_step(line)
            return {"type": "step", "name": _short(step.name), "result": _encoded(step.result)}
        case _:
            conversation = _decode_conversation(line)
            name, raw = _short(conversation.conversation), conversation.entries
            # A string would be decoded only to say that it is no list.
            if not isinstance(name, str) or not _begins(raw, b"["):
                raise ValueError("a message of a conversation has no name or no list of entries")
            entries = _decode_entries(raw)
            if len(entries) > _MAX_ENTRIES:
                raise ValueError(f"a message has more than {_MAX_ENTRIES:,} entries; divide it")
            if not all(_begins(entry, b"{") for entry in entries):
                raise ValueError("an entry of the conversation is not an object")
            ids = [id_ for entry in entries if (id_ := _id_of(entry)) is not None]
            return {
                "type": "conversation",
                "conversation": name,
                "entries": _encoded(raw),
                "ids": ids,
            }


def check_json(text: JsonBytes | memoryview) -> None:
    """Check that a long text is JSON, can be stored, and needs a bounded amount of memory.

    Raises:
        ValueError: it is not, or does not.
    """
    data = bytes(text) if isinstance(text, memoryview) else text
    if not is_utf8(data):
        raise ValueError("a message is not UTF-8")
    try:
        _decode_raw(data)  # checks the syntax, and makes no values
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"a message is not JSON: {error}") from error
    if has_more_values(data, MAX_LONG_MESSAGE_VALUES):
        limit = f"{MAX_LONG_MESSAGE_VALUES:,}"
        raise ValueError(f"a message has more than {limit} values; store a file instead")
    if has_unusable_number(data):
        raise ValueError("a message has a number that is too large")


def _encoded(raw: msgspec.Raw) -> EncodedJson:
    return EncodedJson(memoryview(raw))


def _begins(raw: msgspec.Raw, start: bytes) -> bool:
    return bytes(memoryview(raw)[:1]) == start


def _short(raw: msgspec.Raw) -> Any:
    """Returns the value of a name; a long one could need four times the size of its text."""
    if len(memoryview(raw)) > SMALL_LINE_BYTES:
        raise ValueError(f"a message has a name of more than {SMALL_LINE_BYTES} bytes")
    return json.loads(bytes(raw))


def _id_of(entry: msgspec.Raw) -> str | None:
    """Returns the id of an entry; None for a long entry without an id, and for a long id.

    If the child ends, that entry may be reported again. Readers take equal entries once.
    """
    uuid = _decode_entry(entry).uuid
    if len(memoryview(uuid)) > _MAX_ID_BYTES:
        return None
    if _begins(uuid, b'"'):
        return str(json.loads(bytes(uuid)))
    is_short = len(memoryview(entry)) <= PARSED_ON_LOOP_BYTES
    return entry_id(json.loads(bytes(entry))) if is_short else None


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
        case {"type": "conversation", "conversation": str(name), "entries": EncodedJson() as text}:
            return ConversationReport(name, text)
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
