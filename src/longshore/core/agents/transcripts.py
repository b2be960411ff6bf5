"""Reads stored conversations: their entries, and the final answer if there is one.

Transcripts are JSON lines that the agent's CLI writes in its own format. Only the necessary fields
are read, and an entry that is not understood is treated as unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from longshore.core.agents.prices import as_mapping

RESULT_TOOL: Final = "StructuredOutput"

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """The final answer of a conversation that was interrupted after it."""

    structured: Any = None
    text: str | None = None


def session_id(task_id: str, step: str) -> str:
    """Returns the id of a step's conversation: a UUID, the same in every attempt."""
    name = f"longshore session {len(task_id)}:{task_id}{step}"
    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-a{digest[17:20]}-{digest[20:]}"


def new_entries(data: bytes, seen_ids: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields the entries of a transcript file that are not in ``seen_ids``; skips partial lines."""
    for line in data.split(b"\n"):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and entry_id(entry) not in seen_ids:
            yield entry


def entry_id(entry: Entry) -> str:
    """Returns the entry's id; for an entry without one, a hash of its content."""
    uuid = entry.get("uuid")
    if isinstance(uuid, str):
        return uuid
    content = json.dumps(entry, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def merge_entries(chunks: Iterable[Sequence[Entry]]) -> list[Entry]:
    """Returns all entries in order, without duplicates."""
    return list({entry_id(entry): entry for chunk in chunks for entry in chunk}.values())


def tool_request_ids(entries: Iterable[Entry]) -> set[str]:
    """Returns the ids of the tool calls that the entries request."""
    return {str(block.get("id")) for block in _blocks_of(entries, "assistant", "tool_use")}


def final_answer(entries: Sequence[Entry]) -> StoredAnswer | None:
    """Returns the answer that ends this part of a conversation; None if it has none."""
    messages = [entry for entry in entries if entry.get("type") in ("user", "assistant")]
    results = _blocks_of(messages, "user", "tool_result")
    accepted = {block.get("tool_use_id") for block in results if not block.get("is_error")}
    for entry in reversed(messages):
        if entry.get("isSidechain"):
            continue
        blocks = _blocks(entry)
        if entry["type"] == "user":
            if any(block.get("type") != "tool_result" for block in blocks):
                return None  # a prompt without an answer
            continue
        for block in blocks:
            if block.get("type") == "tool_use":
                if block.get("name") == RESULT_TOOL and block.get("id") in accepted:
                    return StoredAnswer(structured=block.get("input"))
                return None
        if _message(entry).get("stop_reason") != "end_turn":
            return None
        return StoredAnswer(text="".join(str(block.get("text", "")) for block in blocks))
    return None


def _blocks_of(entries: Iterable[Entry], entry_type: str, block_type: str) -> Iterator[Entry]:
    for entry in entries:
        if entry.get("type") == entry_type:
            yield from (block for block in _blocks(entry) if block.get("type") == block_type)


def _message(entry: Entry) -> Mapping[str, Any]:
    return as_mapping(entry.get("message"))


def _blocks(entry: Entry) -> list[Mapping[str, Any]]:
    content = _message(entry).get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, Mapping)]
