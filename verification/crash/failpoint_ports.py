"""Ports that reach a failpoint before and after each of their calls that changes something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from longshore.ports.backend import Backend

WRITE_CALLS: Final[dict[str, tuple[str, ...]]] = {
    "ledger": ("commit",),
    "queue": ("send", "receive", "extend", "delete", "delay", "delete_dead_letter"),
    "queue_controls": ("pause", "hold", "resume"),
    "events": ("record", "append"),
    "bus": ("publish", "receive", "acknowledge"),
    "output": ("append",),
    "blobs": ("put", "delete"),
    "definitions": ("put", "delete"),
    "keys": ("add", "revoke"),
    "budgets": ("commit",),
}
"""By the names that the ports have in a backend."""
FAILPOINT_NAMES: Final = tuple(
    f"{port}.{call}:{when}"
    for port, calls in WRITE_CALLS.items()
    for call in calls
    for when in ("before", "after")
)

OnReached = Callable[[str], None]


def with_failpoints(backend: Backend, reached: OnReached) -> Backend:
    """The same backend; ``reached`` is told of each call before it begins and after it ended."""
    ports: dict[str, Any] = {
        name: _FailpointPort(getattr(backend, name), name, reached) for name in WRITE_CALLS
    }
    return replace(backend, **ports)


class _FailpointPort:
    """Stands before one port and hands on everything."""

    def __init__(self, port: Any, name: str, reached: OnReached) -> None:
        self._port = port
        self._name = name
        self._reached = reached

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        return self._with_failpoints(found, name) if name in WRITE_CALLS[self._name] else found

    def _with_failpoints(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self._reached(f"{self._name}.{name}:before")
            answer = await method(*arguments, **named)
            self._reached(f"{self._name}.{name}:after")
            return answer

        return call
