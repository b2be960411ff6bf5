"""Ports with a failpoint before and after each call that writes."""

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
"""The writing calls of each port, by the port's name in a backend."""
FAILPOINT_NAMES: Final = tuple(
    f"{port}.{call}:{when}"
    for port, calls in WRITE_CALLS.items()
    for call in calls
    for when in ("before", "after")
)

OnReached = Callable[[str], None]


def with_failpoints(backend: Backend, reached: OnReached) -> Backend:
    """A copy of the backend that calls ``reached`` before and after each writing call."""
    ports: dict[str, Any] = {
        name: _FailpointPort(getattr(backend, name), name, reached) for name in WRITE_CALLS
    }
    return replace(backend, **ports)


class _FailpointPort:
    """Forwards every call to a port."""

    def __init__(self, port: Any, name: str, reached: OnReached) -> None:
        self._port = port
        self._name = name
        self._reached = reached

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._port, name)
        return (
            self._with_failpoints(attribute, name) if name in WRITE_CALLS[self._name] else attribute
        )

    def _with_failpoints(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self._reached(f"{self._name}.{name}:before")
            answer = await method(*arguments, **named)
            self._reached(f"{self._name}.{name}:after")
            return answer

        return call
