"""What a definition may say: every field, how it is read, and the JSON Schema for editors.

One table has it all, so that what an editor draws red and what is refused cannot drift apart. The
schema refuses nothing that can be read. It allows a little more, because some rules are beyond it:
those between two fields, the longest and shortest times, and that options are plain JSON.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from longshore.core.backoff import RetryPolicy
from longshore.core.child_limits import Isolation, Limits
from longshore.core.definition import RunnerKind
from longshore.core.health import HealthLimits
from longshore.core.ids import NAME_PATTERN, is_name
from longshore.core.states import Priority
from longshore.durations import parse_duration

DEFINITIONS: Final = "definitions"
SCHEMA: Final = "$schema"
"""Where editors look for the schema of a JSON file; it says nothing to us."""
REQUIRED: Final = ("name", "runner")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_MOST_NESTED = 100
# Counted with what the aliases of a YAML file stand for: a few lines of them can mean billions.
_MOST_VALUES = 100_000
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 80


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read, and the JSON Schema of what can be read."""

    read: Callable[[Any], Any]  # raises TypeError or ValueError
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a document, and the attribute that it becomes."""

    attribute: str
    kind: Kind
    description: str


def schema() -> dict[str, Any]:
    """The JSON Schema of a file with definitions: one of them, or several."""
    return {
        "$schema": _DIALECT,
        "title": "Longshore definitions",
        "description": "One definition, or several under 'definitions'.",
        "type": "object",
        "if": {"required": [DEFINITIONS]},
        "then": {"$ref": "#/$defs/several"},
        "else": {"$ref": "#/$defs/one"},
        "$defs": _parts(),
    }


def longshore_yaml_schema() -> dict[str, Any]:
    """The JSON Schema of ``longshore.yaml``, which may also be empty."""
    return {
        "$schema": _DIALECT,
        "title": "longshore.yaml",
        "description": "What `longshore up` brings into its store when it starts, and watches.",
        "anyOf": [{"$ref": "#/$defs/several"}, {"type": "null"}],
        "$defs": {name: part for name, part in _parts().items() if name != "one"},
    }


def _parts() -> dict[str, Any]:
    fields = {name: _of_field(name, field) for name, field in FIELDS.items()}
    all_of_them = {name: {"$ref": f"#/$defs/{name}"} for name in FIELDS}
    unnamed = {name: one for name, one in all_of_them.items() if name != "name"}
    listed = _object(all_of_them, required=REQUIRED, description="A recipe for a kind of task.")
    by_name = {
        "description": "Definitions by their names.",
        "type": "object",
        "propertyNames": _NAME.schema,
        "additionalProperties": {"$ref": "#/$defs/named"},
    }
    several = {
        "anyOf": [
            by_name,
            {"type": "array", "items": {"$ref": "#/$defs/listed"}},
            {"type": "null"},
        ]
    }
    of_editors = {SCHEMA: {"type": "string", "description": "For editors; not read."}}
    return {
        "one": {**listed, "properties": {**of_editors, **all_of_them}},
        "several": _object({**of_editors, DEFINITIONS: several}, description="Definitions."),
        "listed": listed,
        "named": _object(
            unnamed,
            required=[name for name in REQUIRED if name != "name"],
            description="A recipe for a kind of task; its name stands before it.",
        ),
        **fields,
    }


def _of_field(name: str, field: Field) -> dict[str, Any]:
    made = _described(field)
    if name in REQUIRED:
        return made
    # What is null counts as left out.
    if "enum" in made:
        return {**made, "enum": [*made["enum"], None]}
    if "anyOf" in made:
        return {**made, "anyOf": [*made["anyOf"], {"type": "null"}]}
    return {**made, "type": [made["type"], "null"]}


def _described(field: Field) -> dict[str, Any]:
    return {"description": field.description, **field.kind.schema}


def _object(
    properties: Mapping[str, Any], *, description: str, required: Any = ()
) -> dict[str, Any]:
    return {
        "description": description,
        "type": "object",
        "properties": dict(properties),
        **({"required": list(required)} if required else {}),
        "additionalProperties": False,
    }


def no_name(value: Any) -> str:
    """What is said of something that is not a name."""
    return f"expected a name of 1 to 64 letters, digits, '-' and '_', not {_shown.repr(value)}"


def _read_name(value: Any) -> str:
    if not is_name(value):
        raise ValueError(no_name(value))
    return str(value)


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        message = f"expected text, not {_shown.repr(value)}"
        raise TypeError(message)
    _check_characters(value)
    return value


def _one_of(names: Mapping[str, Any]) -> Kind:
    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in names:
            message = f"expected one of {', '.join(names)}, not {_shown.repr(value)}"
            raise ValueError(message)
        return names[value]

    return Kind(read, {"enum": list(names)})


def _read_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        message = f"expected an object, not {_shown.repr(value)}"
        raise TypeError(message)
    _check_json(value)
    return dict(value)


def _check_json(value: Any) -> None:
    """That it is plain JSON of a bounded size: anything else would come back from the store
    changed, and look like a new version for ever."""
    waiting, count = [(value, 0)], 0
    while waiting:
        one, depth = waiting.pop()
        count += 1
        if count > _MOST_VALUES or depth > _MOST_NESTED:
            message = f"expected no more than {_MOST_VALUES:,} values in {_MOST_NESTED} levels"
            raise ValueError(message)
        match one:
            case str():
                _check_characters(one)
            case float() if not math.isfinite(one):
                message = f"expected a number that JSON knows, not {one!r}"
                raise ValueError(message)
            case None | bool() | int() | float():
                pass
            case Mapping() | list():
                waiting += ((inner, depth + 1) for inner in _inside(one))
            case _:
                message = f"expected JSON, not {_shown.repr(one)}"
                raise TypeError(message)


def _inside(value: Mapping[Any, Any] | list[Any]) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
        return
    for name, inner in value.items():
        if not isinstance(name, str):
            message = f"expected text before a colon, not {_shown.repr(name)}: put it in quotes"
            raise TypeError(message)
        yield name
        yield inner


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"expected text of whole characters, not {_shown.repr(text)}"
        raise ValueError(message) from error


def _read_time(value: Any) -> timedelta:
    parsed = parse_duration(value)
    if parsed <= timedelta(0):
        message = "expected a time longer than nothing"
        raise ValueError(message)
    return parsed


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        message = f"expected true or false, not {_shown.repr(value)}"
        raise TypeError(message)
    return value


_CODES = (1, 255)


def _read_codes(value: Any) -> tuple[int, ...]:
    least, most = _CODES
    if not isinstance(value, list) or not all(
        type(code) is int and least <= code <= most for code in value
    ):
        message = f"expected a list of exit codes from {least} to {most}"
        raise ValueError(message)
    return tuple(value)


def _whole(least: int) -> Kind:
    def read(value: Any) -> int:
        if type(value) is not int or value < least:
            message = f"expected a whole number from {least} on, not {_shown.repr(value)}"
            raise ValueError(message)
        return value

    return Kind(read, {"type": "integer", "minimum": least})


def _object_of(make: Callable[..., Any], known: Mapping[str, Field]) -> Kind:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping) or not set(value) <= set(known):
            message = f"expected an object with some of {', '.join(known)}"
            raise ValueError(message)
        fields, problems = {}, []
        for name, given in value.items():
            try:
                fields[known[name].attribute] = known[name].kind.read(given)
            except (TypeError, ValueError) as error:
                problems.append(f"{name}: {error}")
        if problems:
            raise ValueError("; ".join(problems))
        return make(**fields)

    properties = {name: _described(field) for name, field in known.items()}
    return Kind(read, {"type": "object", "properties": properties, "additionalProperties": False})


_NUMBER = r"[0-9]+(\.[0-9]+)?"
_SHORT = rf"({_NUMBER}d)?({_NUMBER}h)?({_NUMBER}m)?({_NUMBER}s)?({_NUMBER}ms)?"
_ISO = (
    rf"[Pp]({_NUMBER}[Ww])?({_NUMBER}[Dd])?"
    rf"([Tt]({_NUMBER}[Hh])?({_NUMBER}[Mm])?({_NUMBER}[Ss])?)?"
)
# The first condition: somewhere in it there is more than nothing.
_DURATION = rf"^(?=[^1-9]*[1-9])\s*({_NUMBER}|{_SHORT}|{_ISO})\s*$"

_NAME = Kind(_read_name, {"type": "string", "pattern": f"^{NAME_PATTERN.pattern}$"})
_TEXT = Kind(_read_text, {"type": "string"})
_FLAG = Kind(_read_flag, {"type": "boolean"})
_TIME = Kind(
    _read_time,
    {
        "anyOf": [
            {"type": "string", "pattern": _DURATION},
            {"type": "number", "exclusiveMinimum": 0},
        ],
        "examples": ["90s", "15m", "1h30m"],
    },
)
_CODE_LIST = {
    "type": "array",
    "items": {"type": "integer", "minimum": _CODES[0], "maximum": _CODES[1]},
}
_RETRY = _object_of(
    RetryPolicy,
    {
        "maxAttempts": Field("max_attempts", _whole(1), "Attempts in all, the first included."),
        "base": Field("base", _TIME, "Longest time before the second attempt; then it doubles."),
        "cap": Field("cap", _TIME, "Longest time between two attempts."),
    },
)
_LIMITS = _object_of(
    Limits,
    {
        "cpu": Field("cpu", _TIME, "CPU time of each process, in whole seconds."),
        "memoryBytes": Field(
            "memory_bytes", _whole(16 * 2**20), "Bytes of memory, of all processes together."
        ),
        "openFiles": Field("open_files", _whole(16), "Open files of each process."),
        "fileBytes": Field("file_bytes", _whole(1), "Bytes of each file that is written."),
    },
)
_HEALTH = _object_of(
    HealthLimits,
    {
        "longestRun": Field("longest_run", _TIME, "Beyond it an attempt counts as overtime."),
        "healthyWithin": Field("healthy_within", _TIME, "Silence up to which it is healthy."),
        "warningWithin": Field("warning_within", _TIME, "Silence up to which it is a warning."),
    },
)
FIELDS: Final[Mapping[str, Field]] = {
    "name": Field("name", _NAME, "What tasks call it."),
    "runner": Field(
        "runner",
        _one_of({kind.value: kind for kind in RunnerKind}),
        "What executes it: a program, a Python function, or an agent.",
    ),
    "options": Field(
        "options",
        Kind(_read_options, {"type": "object", "examples": [{"argv": ["./import.sh"]}]}),
        "What the runner needs, like argv, function or prompt; a task's input is laid over"
        " those of programs and functions.",
    ),
    "description": Field("description", _TEXT, "For people."),
    "queue": Field("queue", _NAME, "Where its tasks go. Default: default."),
    "priority": Field(
        "priority",
        _one_of({priority.name.lower(): priority for priority in Priority}),
        "Which of a queue's tasks come first. Default: normal.",
    ),
    "timeout": Field(
        "timeout", _TIME, "Time for each attempt. Default: the setting worker.task_timeout."
    ),
    "retry": Field(
        "retry", _RETRY, "How often, and how soon, it is tried again. Default: the settings retry."
    ),
    "retryOnTimeout": Field(
        "retry_on_timeout", _FLAG, "Whether it is tried again when its time was up."
    ),
    "retryableExitCodes": Field(
        "retryable_exit_codes",
        Kind(_read_codes, _CODE_LIST),
        "Exit codes that are worth another try.",
    ),
    "requiresReview": Field(
        "requires_review", _FLAG, "Whether somebody must approve a result before it counts."
    ),
    "isolation": Field(
        "isolation",
        _one_of({kind.value: kind for kind in Isolation}),
        "How an attempt gets its process. Default: fork.",
    ),
    "limits": Field("limits", _LIMITS, "What an attempt may use up."),
    "pty": Field("pty", _FLAG, "Whether output goes through a terminal."),
    "health": Field(
        "health", _HEALTH, "When it counts as unhealthy while it runs. Default: the settings."
    ),
}
"""What a field is called in a document -> all that is known of it."""
