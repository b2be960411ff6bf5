"""Runs one query of the SDK, stores its conversation, and always ends its CLI process.

Observed behaviour of the SDK: a query that is cancelled twice leaves its CLI alive; leaving its
loop early keeps the CLI alive for seconds; a failed query yields a result and then raises. So a
query is read to its end, and ended early by terminating its CLI.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    HookContext,
    ResultMessage,
    SessionKey,
    SessionStoreEntry,
    query,
)
from claude_agent_sdk.types import HookInput, HookJSONOutput

from longshore.core.agents.failures import QueryEnding
from longshore.core.agents.transcripts import StoredAnswer, final_answer, tool_request_ids
from longshore.execution.runners.channel import Send

_STDERR_LINES = 50
_EXIT_TIMEOUT_S = 4.0
# Far more than the delay with which the CLI writes entries: about 0.1 s.
_STORE_TIMEOUT_S = 10.0


class ConversationStore:
    """A minimal ``SessionStore`` for the SDK: the worker stores its entries, and a resume restores
    them to the SDK."""

    def __init__(self, session_id: str, stored: Mapping[str, Any] | None, send: Send) -> None:
        self.id = session_id
        self._earlier_entries: list[Any] = list(stored["earlier_entries"]) if stored else []
        self._entries: list[Any] = list(stored["entries"]) if stored else []
        self._send = send
        self._tool_request_stored: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

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
        for tool_id in tool_request_ids(entries):
            self._tool_request_stored[tool_id].set()

    async def before_tool(
        self, payload: HookInput, tool_id: str | None, _context: HookContext
    ) -> HookJSONOutput:
        """Let a tool wait until its request is stored.

        The CLI writes entries with a delay. A tool that ran before its request was stored would
        leave changes of which a resumed conversation knows nothing. Requests of subagents are not
        stored.
        """
        if tool_id is not None and not cast("Mapping[str, Any]", payload).get("agent_id"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STORE_TIMEOUT_S):
                    await self._tool_request_stored[tool_id].wait()
        return {}

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Returns all entries; None if there are none."""
        if "subpath" in key or key["session_id"] != self.id:
            return None
        return [*self._earlier_entries, *self._entries] or None


async def run_query(
    prompt: str,
    options: ClaudeAgentOptions,
    *,
    timeout: timedelta,
    on_message: Callable[[object], None],
) -> QueryEnding:
    """Run a query to its end. Returns how it ended, also if it raised an exception."""
    result: ResultMessage | None = None
    assistant_error: str | None = None
    stderr: deque[str] = deque(maxlen=_STDERR_LINES)
    options.stderr = stderr.append

    async def read_messages() -> None:
        nonlocal result, assistant_error
        async for message in query(prompt=prompt, options=options):
            if isinstance(message, AssistantMessage):
                assistant_error = message.error  # None again after a good answer
            elif isinstance(message, ResultMessage):
                result = message  # several may arrive: the last one counts
            on_message(message)

    reader = asyncio.ensure_future(read_messages())
    timed_out = False
    try:
        await asyncio.wait((reader,), timeout=timeout.total_seconds())
        timed_out = not reader.done()
    finally:
        if not reader.done():
            await _terminate(reader)
    error = None if reader.cancelled() else reader.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return QueryEnding.from_query(
        error,
        result,
        assistant_error=assistant_error,
        stderr="\n".join(stderr),
        late=timeout if timed_out else None,
    )


async def _terminate(reader: asyncio.Future[None]) -> None:
    """Terminate the CLI and thereby the query; the query itself is cancelled at most once."""
    for process_id in _child_pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGTERM)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait((reader,), timeout=_EXIT_TIMEOUT_S)
    reader.cancel()
    while not reader.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((reader,))


def _child_pids() -> list[int]:
    """Returns the children of this process; empty where ``/proc`` does not list them."""
    process_ids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            process_ids += map(int, (thread / "children").read_text().split())
    return process_ids
