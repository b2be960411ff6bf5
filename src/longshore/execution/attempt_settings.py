"""The settings of a command or function: its definition's options, with those of its input.

The child checks them: the worker does not decode the input of the tasks that it gives to a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore.core.definitions.definition import merge_input
from longshore.errors import UsageError

_SHOWN_NAMES = 10


def command_settings(definition: Mapping[str, Any], task_input: Any) -> dict[str, Any]:
    """Returns the settings of a command.

    Args:
        definition: Has ``options`` and ``overridable``.

    Raises:
        UsageError: they can never be executed.
    """
    settings = _merge("command", definition, task_input)
    argv = settings.get("argv")
    is_list = isinstance(argv, list) and argv and all(isinstance(item, str) for item in argv)
    _require(is_list, "a command needs 'argv': a list of strings, the program first")
    is_valid = all(map(_is_valid_argument, settings["argv"]))
    _require(is_valid, "'argv' must not contain NUL or unpaired surrogates")
    return _with_valid_environment(settings)


def python_settings(definition: Mapping[str, Any], task_input: Any) -> dict[str, Any]:
    """Returns the settings of a python function.

    Args:
        definition: Has ``options`` and ``overridable``.

    Raises:
        UsageError: they can never be executed.
    """
    settings = _merge("python", definition, task_input)
    # Of a ``longshore.task`` function, which checks its arguments by itself.
    settings.setdefault("typed", None)
    function = settings.get("function")
    is_path = isinstance(function, str) and ":" in function
    _require(is_path, "a python task needs 'function': 'package.module:name'")
    return _with_valid_environment(settings)


def _merge(runner: str, definition: Mapping[str, Any], task_input: Any) -> dict[str, Any]:
    _require(task_input is None or isinstance(task_input, dict), "the input must be an object")
    options, overridable = definition["options"], definition["overridable"]
    settings, refused = merge_input(runner, options, overridable, task_input or {})
    if refused:
        # A submit refuses it too, but perhaps not that of an earlier version.
        names = ", ".join(map(repr, refused[:_SHOWN_NAMES]))
        raise UsageError(
            f"the input sets {names}, which the definition does not allow: submit it without, or"
            " with a definition that names them in `overridable`"
        )
    return settings


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
