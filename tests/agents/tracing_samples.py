"""Recorded reports, a clock, and messages of the SDK, for tests of the tracer."""

from datetime import UTC, datetime, timedelta
from typing import Any

from claude_agent_sdk import AssistantMessage, ResultMessage, SystemMessage

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
USAGE = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 90}


class RecordingReports:
    """A clock that advances by one second per call, and recorded reports."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._now = NOON

    def now(self) -> datetime:
        self._now += timedelta(seconds=1)
        return self._now

    def send(self, kind: str, /, **content: Any) -> None:
        self.sent.append((kind, content))

    @property
    def lines(self) -> list[str]:
        return [content["text"] for kind, content in self.sent if kind == "log"]

    @property
    def activities(self) -> list[str]:
        return [content["activity"] for kind, content in self.sent if kind == "activity"]


def assistant_message(*blocks: Any, **more_: Any) -> AssistantMessage:
    defaults = {"model": "opus", "message_id": "m1", "usage": USAGE}
    return AssistantMessage(content=list(blocks), **{**defaults, **more_})


def result_message(**more_: Any) -> ResultMessage:
    defaults: dict[str, Any] = {"subtype": "success", "is_error": False, "num_turns": 1}
    times = {"duration_ms": 1, "duration_api_ms": 1, "session_id": "s1"}
    return ResultMessage(**{**defaults, **times, **more_})


def system_message(subtype: str, **data: Any) -> SystemMessage:
    return SystemMessage(subtype=subtype, data=data)
