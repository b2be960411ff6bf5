"""Scripts as JSON, for examples that bring one in a file and for tests in another process.

A step is ``{"kind": "tool_use", "name": "Bash", "input": {...}}``: its kind is the name of the
function in ``script`` that makes it, and the other fields are that function's arguments in camel
case. A document is a list of steps, or ``{"scripts": [{"when": "word", "steps": [...]}, ...]}``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from verification.messages_api import script as steps
from verification.messages_api.script import Answer, ReadyStep, Script, Usage

_STEP_FUNCTIONS: Mapping[str, Callable[..., ReadyStep]] = {
    maker.__name__: maker
    for maker in (
        steps.text,
        steps.tool_use,
        steps.tool_uses,
        steps.structured,
        steps.error,
        steps.raw,
        steps.hang,
        steps.stall,
        steps.reset,
        steps.truncate,
        steps.sse_error,
    )
}
_SCRIPT_FIELDS = {"steps", "when", "prompt", "session", "agents", "per_session"}
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class BadScript(ValueError):
    """A script that cannot be read; the text says where, and what it should be."""


def read_scripts(document: object, where: str = "script") -> tuple[Script, ...]:
    """The scripts in a document.

    Raises:
        BadScript: it is not one.
    """
    if isinstance(document, Mapping):
        entries = _list(document.get("scripts"), f"{where}.scripts")
        _refuse_unknown(document, {"scripts"}, where)
        return tuple(
            _script(entry, f"{where}.scripts[{index}]") for index, entry in enumerate(entries)
        )
    return steps.as_scripts(_steps(document, where))


def _script(document: object, where: str) -> Script:
    options = _arguments(document, where)
    _refuse_unknown(options, _SCRIPT_FIELDS, where)
    each_session = options.get("per_session", False)
    if not isinstance(each_session, bool):
        message = f"{where}.perSession: true or false, and not {each_session!r}"
        raise BadScript(message)
    return Script.of(
        *_steps(options.get("steps"), f"{where}.steps"),
        agents=read_scripts(options.get("agents", []), f"{where}.agents"),
        per_session=each_session,
        **{
            name: _text(options[name], f"{where}.{name}")
            for name in ("when", "prompt", "session")
            if name in options
        },
    )


def _steps(document: object, where: str) -> list[ReadyStep]:
    entries = _list(document, where)
    return [_step(entry, f"{where}[{index}]") for index, entry in enumerate(entries)]


def _step(document: object, where: str) -> ReadyStep:
    options = _arguments(document, where)
    kind = options.pop("kind", None)
    maker = _STEP_FUNCTIONS.get(kind) if isinstance(kind, str) else None
    if maker is None:
        message = f"{where}.kind: one of {', '.join(sorted(_STEP_FUNCTIONS))}, and not {kind!r}"
        raise BadScript(message)
    _refuse_unknown(options, _arguments_of(maker), where)
    read = {name: _value(name, value, f"{where}.{name}") for name, value in options.items()}
    calls = read.pop("calls", ())
    try:
        return maker(*calls, **read)
    except TypeError as error:
        message = f"{where}: {error}"
        raise BadScript(message) from error


def _arguments_of(maker: Callable[..., ReadyStep]) -> set[str]:
    names: set[str] = set()
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            names.add(parameter.name)
        elif "AnswerOptions" in str(parameter.annotation):
            names |= set(steps.AnswerOptions.__annotations__)
        else:
            names |= set(steps.DeliveryOptions.__annotations__)
    return names


def _value(name: str, value: object, where: str) -> Any:
    match name:
        case "status" | "after":
            return _number(value, where, int)
        case "delay_s" | "event_delay_s":
            return _number(value, where, (int, float))
        case "input" | "value" | "headers":
            return _mapping(value, where)
        case "usage":
            return _usage(value, where)
        case "of":
            return _answer(value, where)
        case "calls":
            return [_call(call, f"{where}[{n}]") for n, call in enumerate(_list(value, where))]
        case _:
            return _text(value, where)


def _usage(document: object, where: str) -> Usage:
    options = _arguments(document, where)
    _refuse_unknown(options, {field.name for field in fields(Usage)}, where)
    return Usage(
        **{name: _number(count, f"{where}.{name}", int) for name, count in options.items()}
    )


def _answer(document: object, where: str) -> Answer:
    step = _step(document, where)
    if not isinstance(step, Answer):
        message = f"{where}: an answer, whole by itself"
        raise BadScript(message)
    return step


def _call(document: object, where: str) -> tuple[str, Mapping[str, Any]]:
    options = _arguments(document, where)
    _refuse_unknown(options, {"name", "input"}, where)
    name = _text(options.get("name"), f"{where}.name")
    return name, _mapping(options.get("input", {}), f"{where}.input")


def _arguments(document: object, where: str) -> dict[str, Any]:
    """The fields of an object, by the names that Python has for them."""
    return {
        _CAPITAL.sub("_", str(name)).lower(): value
        for name, value in _mapping(document, where).items()
    }


def _refuse_unknown(fields: Mapping[str, Any], allowed: set[str], where: str) -> None:
    strange = sorted(set(fields) - allowed)
    if strange:
        message = (
            f"{where}: does not have {', '.join(strange)}; it has {', '.join(sorted(allowed))}"
        )
        raise BadScript(message)


def _list(value: object, where: str) -> list[Any]:
    return list(_of_kind(value, list, where, "a list"))


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    result: Mapping[str, Any] = _of_kind(value, Mapping, where, "an object")
    return result


def _text(value: object, where: str) -> str:
    return str(_of_kind(value, str, where, "a text"))


def _number(value: object, where: str, kind: Any) -> Any:
    return _of_kind(None if isinstance(value, bool) else value, kind, where, "a number")


def _of_kind(value: object, kind: Any, where: str, called: str) -> Any:
    if not isinstance(value, kind):
        message = f"{where}: {called}, and not {value!r}"
        raise BadScript(message)
    return value
