"""Longshore: a durable task runner.

The public names. Each is imported when it is first used, so that a child process that needs one of
them does not import the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longshore.errors import Fail, Retry
    from longshore.execution.runners.context import Context, current
    from longshore.interfaces.python.blocking import Client, run
    from longshore.interfaces.python.client import AsyncClient
    from longshore.interfaces.python.functions import task

__all__ = ["AsyncClient", "Client", "Context", "Fail", "Retry", "current", "run", "task"]

_EXPORTS = {
    "AsyncClient": "longshore.interfaces.python.client",
    "Client": "longshore.interfaces.python.blocking",
    "Context": "longshore.execution.runners.context",
    "Fail": "longshore.errors",
    "Retry": "longshore.errors",
    "current": "longshore.execution.runners.context",
    "run": "longshore.interfaces.python.blocking",
    "task": "longshore.interfaces.python.functions",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'longshore' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
