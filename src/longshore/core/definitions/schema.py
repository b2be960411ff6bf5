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

from longshore.core.definitions.definition import Isolation, ResourceLimits, RunnerKind
from longshore.core.health import HealthThresholds
from longshore.core.ids import NAME_PATTERN, is_name
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.states import Priority
from longshore.core.text.durations import parse_duration

DEFINITIONS: Final = "definitions"
SCHEMA: Final = "$schema"
"""Where editors look for the schema of a JSON file; it says nothing to us."""
REQUIRED: Final = ("name", "runner")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_MAX_DEPTH = 100
# Counted with what the aliases of a YAML file stand for: a few lines of them can mean billions.
_MAX_VALUES = 100_000
_short_repr = reprlib.Repr()
_short_repr.maxstring = _short_repr.maxother = 80


@dataclass(frozen=True, slots=True)
class FieldType:
    """How a value is read, and the JSON Schema of what can be read."""

    read: Callable[[Any], Any]  # raises TypeError or ValueError
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DefinitionField:
    """One field of a document, and the attribute that it becomes."""

    attribute: str
    type: FieldType
    description: str


def definition_schema() -> dict[str, Any]:
    """The JSON Schema of a file with definitions: one of them, or several."""
    return {
        "$schema": _DIALECT,
        "title": "Longshore definitions",
        "description": "One definition, or several under 'definitions'.",
        "type": "object",
        "if": {"required": [DEFINITIONS]},
        "then": {"$ref": "#/$defs/definitions"},
        "else": {"$ref": "#/$defs/definition"},
        "$defs": _schema_defs(),
    }


def longshore_yaml_schema() -> dict[str, Any]:
    """The JSON Schema of ``longshore.yaml``, which may also be empty."""
    return {
        "$schema": _DIALECT,
        "title": "longshore.yaml",
        "description": "What `longshore up` brings into its store when it starts, and watches.",
        "anyOf": [{"$ref": "#/$defs/definitions"}, {"type": "null"}],
        "$defs": {name: part for name, part in _schema_defs().items() if name != "definition"},
    }


def _schema_defs() -> dict[str, Any]:
    fields = {name: _field_schema(name, field) for name, field in FIELDS.items()}
    all_of_them = {name: {"$ref": f"#/$defs/{name}"} for name in FIELDS}
    unnamed = {name: one for name, one in all_of_them.items() if name != "name"}
    listed = _object_schema(
        all_of_them, required=REQUIRED, description="A recipe for a kind of task."
    )
    by_name = {
        "description": "Definitions by their names.",
        "type": "object",
        "propertyNames": _NAME_TYPE.schema,
        "additionalProperties": {"$ref": "#/$defs/definitionByName"},
    }
    several = {
        "anyOf": [
            by_name,
            {"type": "array", "items": {"$ref": "#/$defs/definitionWithName"}},
            {"type": "null"},
        ]
    }
    of_editors = {SCHEMA: {"type": "string", "description": "For editors; not read."}}
    return {
        "definition": {**listed, "properties": {**of_editors, **all_of_them}},
        "definitions": _object_schema(
            {**of_editors, DEFINITIONS: several}, description="Definitions."
        ),
        "definitionWithName": listed,
        "definitionByName": _object_schema(
            unnamed,
            required=[name for name in REQUIRED if name != "name"],
            description="A recipe for a kind of task; its name stands before it.",
        ),
        **fields,
    }


def _field_schema(name: str, field: DefinitionField) -> dict[str, Any]:
    made = _described_schema(field)
    if name in REQUIRED:
        return made
    # What is null counts as left out.
    if "enum" in made:
        return {**made, "enum": [*made["enum"], None]}
    if "anyOf" in made:
        return {**made, "anyOf": [*made["anyOf"], {"type": "null"}]}
    return {**made, "type": [made["type"], "null"]}


def _described_schema(field: DefinitionField) -> dict[str, Any]:
    return {"description": field.description, **field.type.schema}


def _object_schema(
    properties: Mapping[str, Any], *, description: str, required: Any = ()
) -> dict[str, Any]:
    return {
        "description": description,
        "type": "object",
        "properties": dict(properties),
        **({"required": list(required)} if required else {}),
        "additionalProperties": False,
    }


def invalid_name_message(value: Any) -> str:
    """What is said of something that is not a name."""
    return f"expected a name of 1 to 64 letters, digits, '-' and '_', not {_short_repr.repr(value)}"


def _read_name(value: Any) -> str:
    if not is_name(value):
        raise ValueError(invalid_name_message(value))
    return str(value)


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        message = f"expected text, not {_short_repr.repr(value)}"
        raise TypeError(message)
    _check_characters(value)
    return value


def _enum_type(names: Mapping[str, Any]) -> FieldType:
    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in names:
            message = f"expected one of {', '.join(names)}, not {_short_repr.repr(value)}"
            raise ValueError(message)
        return names[value]

    return FieldType(read, {"enum": list(names)})


def _read_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        message = f"expected an object, not {_short_repr.repr(value)}"
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
        if count > _MAX_VALUES or depth > _MAX_DEPTH:
            message = f"expected no more than {_MAX_VALUES:,} values in {_MAX_DEPTH} levels"
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
                waiting += ((inner, depth + 1) for inner in _children_of(one))
            case _:
                message = f"expected JSON, not {_short_repr.repr(one)}"
                raise TypeError(message)


def _children_of(value: Mapping[Any, Any] | list[Any]) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
        return
    for name, inner in value.items():
        if not isinstance(name, str):
            message = (
                f"expected text before a colon, not {_short_repr.repr(name)}: put it in quotes"
            )
            raise TypeError(message)
        yield name
        yield inner


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"expected text of whole characters, not {_short_repr.repr(text)}"
        raise ValueError(message) from error


def _read_duration(value: Any) -> timedelta:
    parsed = parse_duration(value)
    if parsed <= timedelta(0):
        message = "must be greater than zero"
        raise ValueError(message)
    return parsed


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        message = f"expected true or false, not {_short_repr.repr(value)}"
        raise TypeError(message)
    return value


_EXIT_CODE_RANGE = (1, 255)


def _read_exit_codes(value: Any) -> tuple[int, ...]:
    least, most = _EXIT_CODE_RANGE
    if not isinstance(value, list) or not all(
        type(code) is int and least <= code <= most for code in value
    ):
        message = f"expected a list of exit codes from {least} to {most}"
        raise ValueError(message)
    return tuple(value)


def _integer_type(minimum: int) -> FieldType:
    def read(value: Any) -> int:
        if type(value) is not int or value < minimum:
            message = f"expected a whole number from {minimum} on, not {_short_repr.repr(value)}"
            raise ValueError(message)
        return value

    return FieldType(read, {"type": "integer", "minimum": minimum})


def _object_type(
    factory: Callable[..., Any], field_types: Mapping[str, DefinitionField]
) -> FieldType:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping) or not set(value) <= set(field_types):
            message = f"expected an object with some of {', '.join(field_types)}"
            raise ValueError(message)
        fields, problems = {}, []
        for name, given in value.items():
            try:
                fields[field_types[name].attribute] = field_types[name].type.read(given)
            except (TypeError, ValueError) as error:
                problems.append(f"{name}: {error}")
        if problems:
            raise ValueError("; ".join(problems))
        return factory(**fields)

    properties = {name: _described_schema(field) for name, field in field_types.items()}
    return FieldType(
        read, {"type": "object", "properties": properties, "additionalProperties": False}
    )


_NUMBER = r"[0-9]+(\.[0-9]+)?"
_SHORT_DURATION = rf"({_NUMBER}d)?({_NUMBER}h)?({_NUMBER}m)?({_NUMBER}s)?({_NUMBER}ms)?"
_ISO_DURATION = (
    rf"[Pp]({_NUMBER}[Ww])?({_NUMBER}[Dd])?"
    rf"([Tt]({_NUMBER}[Hh])?({_NUMBER}[Mm])?({_NUMBER}[Ss])?)?"
)
# The first condition: somewhere in it there is more than nothing.
_DURATION_PATTERN = rf"^(?=[^1-9]*[1-9])\s*({_NUMBER}|{_SHORT_DURATION}|{_ISO_DURATION})\s*$"

_NAME_TYPE = FieldType(_read_name, {"type": "string", "pattern": f"^{NAME_PATTERN.pattern}$"})
_TEXT_TYPE = FieldType(_read_text, {"type": "string"})
_FLAG_TYPE = FieldType(_read_flag, {"type": "boolean"})
_DURATION_TYPE = FieldType(
    _read_duration,
    {
        "anyOf": [
            {"type": "string", "pattern": _DURATION_PATTERN},
            {"type": "number", "exclusiveMinimum": 0},
        ],
        "examples": ["90s", "15m", "1h30m"],
    },
)
_EXIT_CODES_SCHEMA = {
    "type": "array",
    "items": {"type": "integer", "minimum": _EXIT_CODE_RANGE[0], "maximum": _EXIT_CODE_RANGE[1]},
}
_RETRY_TYPE = _object_type(
    RetryPolicy,
    {
        "maxAttempts": DefinitionField(
            "max_attempts", _integer_type(1), "Attempts in all, the first included."
        ),
        "base": DefinitionField(
            "base", _DURATION_TYPE, "Longest time before the second attempt; then it doubles."
        ),
        "cap": DefinitionField("cap", _DURATION_TYPE, "Longest time between two attempts."),
    },
)
_RESOURCES_TYPE = _object_type(
    ResourceLimits,
    {
        "cpu": DefinitionField(
            "cpu", _DURATION_TYPE, "CPU time of each process, in whole seconds."
        ),
        "memoryBytes": DefinitionField(
            "memory_bytes", _integer_type(16 * 2**20), "Bytes of memory, of all processes together."
        ),
        "openFiles": DefinitionField(
            "open_files", _integer_type(16), "Open files of each process."
        ),
        "fileBytes": DefinitionField(
            "file_bytes", _integer_type(1), "Bytes of each file that is written."
        ),
    },
)
_HEALTH_TYPE = _object_type(
    HealthThresholds,
    {
        "longestRun": DefinitionField(
            "longest_run", _DURATION_TYPE, "Beyond it an attempt counts as overtime."
        ),
        "healthyWithin": DefinitionField(
            "healthy_within", _DURATION_TYPE, "Silence up to which it is healthy."
        ),
        "warningWithin": DefinitionField(
            "warning_within", _DURATION_TYPE, "Silence up to which it is a warning."
        ),
    },
)
FIELDS: Final[Mapping[str, DefinitionField]] = {
    "name": DefinitionField("name", _NAME_TYPE, "What tasks call it."),
    "runner": DefinitionField(
        "runner",
        _enum_type({kind.value: kind for kind in RunnerKind}),
        "What executes it: a program, a Python function, or an agent.",
    ),
    "options": DefinitionField(
        "options",
        FieldType(_read_options, {"type": "object", "examples": [{"argv": ["./import.sh"]}]}),
        "What the runner needs, like argv, function or prompt; a task's input is laid over"
        " those of programs and functions.",
    ),
    "description": DefinitionField("description", _TEXT_TYPE, "For people."),
    "queue": DefinitionField("queue", _NAME_TYPE, "Where its tasks go. Default: default."),
    "priority": DefinitionField(
        "priority",
        _enum_type({priority.name.lower(): priority for priority in Priority}),
        "Which of a queue's tasks come first. Default: normal.",
    ),
    "timeout": DefinitionField(
        "timeout",
        _DURATION_TYPE,
        "Time for each attempt. Default: the setting worker.task_timeout.",
    ),
    "retry": DefinitionField(
        "retry",
        _RETRY_TYPE,
        "How often, and how soon, it is tried again. Default: the settings retry.",
    ),
    "retryOnTimeout": DefinitionField(
        "retry_on_timeout", _FLAG_TYPE, "Whether it is tried again when its time was up."
    ),
    "retryableExitCodes": DefinitionField(
        "retryable_exit_codes",
        FieldType(_read_exit_codes, _EXIT_CODES_SCHEMA),
        "Exit codes that are worth another try.",
    ),
    "requiresReview": DefinitionField(
        "requires_review", _FLAG_TYPE, "Whether somebody must approve a result before it counts."
    ),
    "isolation": DefinitionField(
        "isolation",
        _enum_type({kind.value: kind for kind in Isolation}),
        "How an attempt gets its process. Default: fork.",
    ),
    "resources": DefinitionField("resources", _RESOURCES_TYPE, "What an attempt may use up."),
    "pty": DefinitionField("pty", _FLAG_TYPE, "Whether output goes through a terminal."),
    "health": DefinitionField(
        "health", _HEALTH_TYPE, "When it counts as unhealthy while it runs. Default: the settings."
    ),
}
"""What a field is called in a document -> all that is known of it."""
