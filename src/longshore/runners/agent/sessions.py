"""A step's conversation, told to the worker while it goes on, and given back to the SDK later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from claude_agent_sdk import SessionKey, SessionStoreEntry

from longshore.core.agents.transcripts import Answer, answer_in

Say = Callable[..., None]


class StepSession:
    """A ``SessionStore`` of the SDK, as far as one is needed: what it mirrors, the worker keeps."""

    def __init__(self, session_id: str, kept: Mapping[str, Any] | None, say: Say) -> None:
        self.id = session_id
        self._before: list[Any] = list(kept["before"]) if kept else []
        self._entries: list[Any] = list(kept["entries"]) if kept else []
        self._say = say

    @property
    def begun(self) -> bool:
        """Whether there is anything to go on with."""
        return bool(self._before or self._entries)

    @property
    def asked(self) -> bool:
        """Whether what is wanted now has been asked for."""
        return any(entry.get("type") == "user" for entry in self._entries)

    @property
    def answer(self) -> Answer | None:
        """What an earlier attempt was answered, and could not bring home."""
        return answer_in(self._entries)

    def forget(self) -> None:
        """Nobody knows this conversation any more: begin anew."""
        self._before, self._entries = [], []

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """More was written; those of agents below this one are not needed to go on."""
        if "subpath" in key or key["session_id"] != self.id:
            return
        self._entries += entries
        await asyncio.to_thread(self._say, "session", session=self.id, entries=list(entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """All there is."""
        if "subpath" in key or key["session_id"] != self.id:
            return None
        together: Sequence[Any] = [*self._before, *self._entries]
        return list(together) or None
