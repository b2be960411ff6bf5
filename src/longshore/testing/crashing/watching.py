"""Ports that reach a failpoint before and after each of their calls that changes something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from longshore.ports.backend import Backend

CALLS: Final[dict[str, tuple[str, ...]]] = {
    "ledger": ("commit",),
    "queue": ("send", "receive", "extend", "delete", "put_off", "drop_dead_letter"),
    "queues": ("pause", "hold", "resume"),
    "events": ("record", "append"),
    "bus": ("publish", "receive", "acknowledge"),
    "output": ("append",),
    "blobs": ("put", "delete"),
    "definitions": ("put", "delete"),
    "keys": ("add", "revoke"),
    "accounts": ("commit",),
}
"""By the names that the ports have in a backend."""
NAMES: Final = tuple(
    f"{port}.{call}:{when}"
    for port, calls in CALLS.items()
    for call in calls
    for when in ("before", "after")
)

Reached = Callable[[str], None]


def watched(backend: Backend, reached: Reached) -> Backend:
    """The same backend; ``reached`` is told of each call before it begins and after it ended."""
    ports: dict[str, Any] = {
        name: _Watched(getattr(backend, name), name, reached) for name in CALLS
    }
    return replace(backend, **ports)


class _Watched:
    """Stands before one port and hands on everything."""

    def __init__(self, port: Any, name: str, reached: Reached) -> None:
        self._port = port
        self._name = name
        self._reached = reached

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        return self._told_of(found, name) if name in CALLS[self._name] else found

    def _told_of(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self._reached(f"{self._name}.{name}:before")
            answer = await method(*arguments, **named)
            self._reached(f"{self._name}.{name}:after")
            return answer

        return call
