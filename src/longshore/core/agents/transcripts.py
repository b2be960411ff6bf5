"""What a stored conversation tells: whether it was begun, and whether its answer is there already.

Transcripts are lines of JSON that the agent's command line writes; their form is its own, so only
what has to be known is looked at, and what is not understood means "not known".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

RESULT_TOOL: Final = "StructuredOutput"

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result that a conversation had come to when it broke off."""

    structured: Any = None
    text: str | None = None


def session_id(task_id: str, step: str) -> str:
    """The conversation of a step, the same in every attempt: an UUID made from their names."""
    named = f"longshore session {len(task_id)}:{task_id}{step}"
    drawn = hashlib.blake2b(named.encode(), digest_size=16).hexdigest()
    return f"{drawn[:8]}-{drawn[8:12]}-8{drawn[13:16]}-a{drawn[17:20]}-{drawn[20:]}"


def new_lines(data: bytes, known: Collection[str]) -> Iterator[dict[str, Any]]:
    """The entries of a transcript's file that are not known yet; half a line is none."""
    for line in data.split(b"\n"):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and mark_of(entry) not in known:
            yield entry


def mark_of(entry: Entry) -> str:
    """What tells an entry from all others; lines without an id of their own are what they say."""
    own = entry.get("uuid")
    return own if isinstance(own, str) else json.dumps(entry, sort_keys=True)


def merged(chunks: Iterable[Sequence[Entry]]) -> list[Entry]:
    """All entries in order, each once."""
    return list({mark_of(entry): entry for chunk in chunks for entry in chunk}.values())


def answer_in(entries: Sequence[Entry]) -> Answer | None:
    """The answer that ends this part of a conversation; None if it does not end with one."""
    messages = [entry for entry in entries if entry.get("type") in ("user", "assistant")]
    taken = _taken_results(messages)
    for entry in reversed(messages):
        if entry.get("isSidechain"):
            continue
        blocks = _blocks(entry)
        if entry["type"] == "user":
            if any(block.get("type") != "tool_result" for block in blocks):
                return None  # asked, and not answered
            continue
        for block in blocks:
            if block.get("type") == "tool_use":
                if block.get("name") == RESULT_TOOL and block.get("id") in taken:
                    return Answer(structured=block.get("input"))
                return None
        if _message(entry).get("stop_reason") != "end_turn":
            return None
        return Answer(text="".join(str(block.get("text", "")) for block in blocks))
    return None


def _taken_results(messages: Sequence[Entry]) -> set[Any]:
    """Calls that came back without an error."""
    return {
        block.get("tool_use_id")
        for entry in messages
        if entry["type"] == "user"
        for block in _blocks(entry)
        if block.get("type") == "tool_result" and not block.get("is_error")
    }


def _message(entry: Entry) -> Mapping[str, Any]:
    message = entry.get("message")
    return message if isinstance(message, Mapping) else {}


def _blocks(entry: Entry) -> list[Mapping[str, Any]]:
    content = _message(entry).get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, Mapping)]
