"""Stores a step's conversation with the worker, and restores it to the SDK on a resume."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from claude_agent_sdk import SessionKey, SessionStoreEntry

from longshore.core.agents.transcripts import StoredAnswer, final_answer

Send = Callable[..., None]


class ConversationStore:
    """A minimal ``SessionStore`` for the SDK, whose entries the worker stores."""

    def __init__(self, session_id: str, stored: Mapping[str, Any] | None, send: Send) -> None:
        self.id = session_id
        self._earlier_entries: list[Any] = list(stored["earlier_entries"]) if stored else []
        self._entries: list[Any] = list(stored["entries"]) if stored else []
        self._send = send

    @property
    def has_entries(self) -> bool:
        """Whether there is a conversation to resume."""
        return bool(self._earlier_entries or self._entries)

    @property
    def has_prompt(self) -> bool:
        """Whether the prompt of this revision has been sent."""
        return any(entry.get("type") == "user" for entry in self._entries)

    @property
    def stored_answer(self) -> StoredAnswer | None:
        """The final answer that an earlier attempt received but did not report; or None."""
        return final_answer(self._entries)

    def reset(self) -> None:
        """Forget all entries, to start the conversation again."""
        self._earlier_entries, self._entries = [], []

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Store new entries; those of subagents are ignored, as a resume does not need them."""
        if "subpath" in key or key["session_id"] != self.id:
            return
        self._entries += entries
        await asyncio.to_thread(
            self._send, "conversation", conversation=self.id, entries=list(entries)
        )

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Returns all entries; None if there are none."""
        if "subpath" in key or key["session_id"] != self.id:
            return None
        entries: Sequence[Any] = [*self._earlier_entries, *self._entries]
        return list(entries) or None
