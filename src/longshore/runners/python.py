"""The python runner: imports a function and calls it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from longshore.core.references import with_results


def load(path: str) -> Callable[..., Any]:
    """The function that ``package.module:name`` names."""
    module_name, _, name = path.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        message = f"{path} is not a function"
        raise TypeError(message)
    return found  # type: ignore[no-any-return]


def run(order: Mapping[str, Any]) -> Any:
    """Call the function and return its result."""
    options, given = order["options"], order["input"] or {}
    # What ``longshore.task`` made of a function stands in its definition; only arguments vary.
    typed = options.get("typed")
    settings = {**options, "kwargs": given.get("kwargs", {})} if typed else {**options, **given}
    sys.path[:0] = [folder for folder in settings.get("path", [""]) if folder not in sys.path]
    function: Any = load(settings["function"])
    kwargs = with_results(settings.get("kwargs", {}), order["dependency_outputs"])
    if typed:
        return function.run_with(kwargs)  # it knows its types, both ways
    result = function(*settings.get("args", ()), **kwargs)
    return _finished(result) if hasattr(result, "__await__") else result


def _finished(awaitable: Any) -> Any:
    # Only for those who need it: a child's start is paid by every attempt.
    import asyncio

    async def waited() -> Any:
        return await awaitable

    return asyncio.run(waited())
