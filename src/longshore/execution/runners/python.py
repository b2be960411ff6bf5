"""The python runner: imports a function and calls it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from longshore.core.documents import resolve_references

_NO_PATH = ("",)


def load_function(path: str) -> Callable[..., Any]:
    """Returns the function that ``package.module:name`` names."""
    module_name, _, name = path.partition(":")
    target: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
    for part in name.split("."):
        target = getattr(target, part)
    if not callable(target):
        raise TypeError(f"{path} is not a function")
    return target  # type: ignore[no-any-return]


def run(settings: Mapping[str, Any], dependency_outputs: Mapping[str, Any]) -> Any:
    """Call the function and return its result.

    Args:
        settings: See ``attempt_settings.python_settings``.
    """
    for folder in reversed(settings.get("path", _NO_PATH)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    function: Any = load_function(settings["function"])
    kwargs = settings.get("kwargs") or {}
    if kwargs:
        kwargs = resolve_references(kwargs, dependency_outputs)
    if settings["typed"]:
        return function.run_with(kwargs)  # converts arguments and result
    result = function(*settings.get("args", ()), **kwargs)
    return _run_awaitable(result) if hasattr(result, "__await__") else result


def _run_awaitable(awaitable: Any) -> Any:
    # Imported only when needed: every attempt pays for the start of its child.
    import asyncio

    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())
