"""One conversation with the model: a query of the SDK, ended safely, however it ends.

What was learnt of the SDK by trying: a query that is cancelled twice leaves its command line alive;
one that is broken out of lets it live for seconds; a failed one yields a result and then raises.
So a query is read to its end, and ended early by ending its command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ResultMessage,
    query,
)

_STDERR_LINES = 50
_PATIENCE_S = 4.0


@dataclass(slots=True)
class Conversation:
    """What a query told, and how it ended."""

    result: ResultMessage | None = None
    error: Exception | None = None
    late: bool = False
    assistant_error: str | None = None
    stderr: deque[str] = field(default_factory=lambda: deque(maxlen=_STDERR_LINES))

    def take(self, message: object) -> None:
        """One message of the query."""
        if isinstance(message, AssistantMessage):
            self.assistant_error = message.error  # None again after a good answer
        elif isinstance(message, ResultMessage):
            self.result = message  # several may come: the last counts


async def converse(
    prompt: str,
    options: ClaudeAgentOptions,
    *,
    within: timedelta,
    heard: Callable[[object], None],
) -> Conversation:
    """Ask, and hear everything to the end; whatever goes wrong is told, not raised."""
    talk = Conversation()
    options.stderr = talk.stderr.append

    async def listen() -> None:
        async for message in query(prompt=prompt, options=options):
            talk.take(message)
            heard(message)

    listening = asyncio.ensure_future(listen())
    try:
        await asyncio.wait((listening,), timeout=within.total_seconds())
        talk.late = not listening.done()
    finally:
        if not listening.done():
            await _end(listening)
    if not listening.cancelled():
        error = listening.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        talk.error = error
    return talk


async def _end(listening: asyncio.Future[None]) -> None:
    """End the command line, and thereby the query; the query itself is cancelled once at most."""
    for process_id in _children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGTERM)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait((listening,), timeout=_PATIENCE_S)
    listening.cancel()
    while not listening.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((listening,))


def _children() -> list[int]:
    """The processes that this one started, where the kernel tells; else cancelling must do."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found
