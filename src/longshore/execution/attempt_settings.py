"""The settings of a command or function: its definition's options, overridden by its input.

The child checks them: the worker does not decode the input of the tasks that it gives to a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore.errors import UsageError


def command_settings(options: Mapping[str, Any], task_input: Any) -> dict[str, Any]:
    """Returns the settings of a command.

    Raises:
        UsageError: they can never be executed.
    """
    settings = _merge(options, task_input)
    argv = settings.get("argv")
    is_list = isinstance(argv, list) and argv and all(isinstance(item, str) for item in argv)
    _require(is_list, "a command needs 'argv': a list of strings, the program first")
    is_valid = all(map(_is_valid_argument, settings["argv"]))
    _require(is_valid, "'argv' must not contain NUL or unpaired surrogates")
    return _with_valid_environment(settings)


def python_settings(options: Mapping[str, Any], task_input: Any) -> dict[str, Any]:
    """Returns the settings of a python function.

    Raises:
        UsageError: they can never be executed.
    """
    settings = _merge(options, task_input)
    settings["typed"] = options.get("typed")
    if settings["typed"]:
        # The definition of a ``longshore.task`` function fixes everything but its arguments.
        settings = {**options, "kwargs": (task_input or {}).get("kwargs", {})}
    function = settings.get("function")
    is_path = isinstance(function, str) and ":" in function
    _require(is_path, "a python task needs 'function': 'package.module:name'")
    return _with_valid_environment(settings)


def _merge(options: Mapping[str, Any], task_input: Any) -> dict[str, Any]:
    _require(task_input is None or isinstance(task_input, dict), "the input must be an object")
    return {**options, **(task_input or {})}


def _with_valid_environment(settings: dict[str, Any]) -> dict[str, Any]:
    if "env" in settings:
        environment = settings["env"]
        is_valid = isinstance(environment, dict) and all(
            isinstance(text, str) and _is_valid_argument(name + text) and "=" not in name
            for name, text in environment.items()
        )
        _require(is_valid, "'env' must be an object whose values are strings")
    return settings


def _require(condition: object, message: str) -> None:
    if not condition:
        raise UsageError(message)


def _is_valid_argument(text: str) -> bool:
    """Whether the kernel accepts it as an argument or an environment variable."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
