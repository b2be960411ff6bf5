"""The fields of a definition: how definitions are read, and the JSON Schema for editors.

Both come from one table, so that the schema and the reader agree. The schema accepts every document
that can be read, and a few more: it cannot express rules between two fields, the longest and
shortest durations, and that options are plain JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, Final

from longshore.core.agents.plan import read_plan, timeout_problems
from longshore.core.definitions.definition import (
    Definition,
    Isolation,
    ResourceLimits,
    RunnerKind,
    read_overridable,
)
from longshore.core.document_reader import (
    DocumentReader,
    check_json,
    choice_reader,
    expected,
    integer_reader,
    join_path,
    read_flag,
    read_name,
    short_name,
)
from longshore.core.health import HealthThresholds
from longshore.core.ids import NAME_PATTERN, is_name
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.states import Priority
from longshore.core.text.durations import parse_duration
from longshore.errors import InvalidJob, Problem

DEFINITIONS: Final = "definitions"
SCHEMA: Final = "$schema"
"""The field in which editors look for the schema of a JSON file; it is ignored here."""
REQUIRED: Final = ("name", "runner")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_MAX_VALUES = 100_000  # of the options
_CAPITAL = re.compile("[A-Z]")
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def split_job_file(document: Any) -> tuple[list[Definition], Any, list[Problem]]:
    """Returns the definitions of a job file, its job, and the problems of the definitions.

    A job file is ``{"definitions": …, "tasks": […], "name"?}``: a job with the definitions that it
    needs, in a list or by name.
    """
    if not isinstance(document, Mapping) or DEFINITIONS not in document:
        return [], document, []
    job = {name: value for name, value in document.items() if name != DEFINITIONS}
    reader = _DefinitionReader()
    return reader.definitions(document[DEFINITIONS], DEFINITIONS), job, reader.problems


def read_file_document(value: Any, *, allow_single: bool) -> tuple[list[Definition], list[Problem]]:
    """Returns the definitions of a file that contains only definitions, and its problems.

    Args:
        allow_single: The file may also be a single definition, without ``definitions``.
    """
    reader = _DefinitionReader()
    return reader.file(value, allow_single=allow_single), reader.problems


def read_definition(value: Any) -> Definition:
    """Returns one definition.

    Raises:
        InvalidJob: with every problem.
    """
    reader = _DefinitionReader()
    definition = reader.definition(value, "")
    if definition is None:
        raise InvalidJob(reader.problems)
    return definition


class _DefinitionReader(DocumentReader):
    def file(self, value: Any, *, allow_single: bool) -> list[Definition]:
        if not isinstance(value, Mapping):
            single = "one definition, or " if allow_single else ""
            self.add("", f"expected {single}an object with '{DEFINITIONS}'")
            return []
        value = {name: inner for name, inner in value.items() if name != SCHEMA}
        if allow_single and DEFINITIONS not in value:
            definition = self.definition(value, "")
            return [] if definition is None else [definition]
        self.reject_unknown(value, (DEFINITIONS,), "")
        definitions = value.get(DEFINITIONS)
        return [] if definitions is None else self.definitions(definitions, DEFINITIONS)

    def definitions(self, value: Any, path: str) -> list[Definition]:
        if isinstance(value, Mapping):
            read = [self._definition_by_name(name, item, path) for name, item in value.items()]
        elif isinstance(value, list):
            read = [self.definition(item, f"{path}[{i}]") for i, item in enumerate(value)]
            seen: set[str] = set()
            for i, name in enumerate(item.name if item else "" for item in read):
                if name and name in seen:
                    self.add(f"{path}[{i}].name", f"{name!r} is defined twice")
                seen.add(name)
        else:
            self.add(path, "expected definitions by name, or a list of definitions")
            read = []
        return [definition for definition in read if definition is not None]

    def _definition_by_name(self, name: Any, value: Any, path: str) -> Definition | None:
        path = join_path(path, short_name(name))
        if not isinstance(value, Mapping):
            self.add(path, "expected an object with 'runner'")
        elif not is_name(name):
            self.read(name, path, read_name)
        elif "name" in value:
            self.add(join_path(path, "name"), f"unknown here: its name is {name!r}")
        else:
            return self.definition({"name": name, **value}, path)
        return None

    def definition(self, value: Any, path: str) -> Definition | None:
        if not isinstance(value, Mapping):
            self.add(path, "expected an object with 'name' and 'runner'")
            return None
        before = len(self.problems)
        self.reject_unknown(value, FIELDS, path)
        for name in REQUIRED:
            if value.get(name) is None:
                self.add(join_path(path, name), "missing")
        fields = {
            attribute_of(name): self.field(value, name, path, field.read)
            for name, field in FIELDS.items()
            if value.get(name) is not None
        }
        if len(self.problems) > before:
            return None
        definition: Definition | None = self.read(fields, path, lambda values: Definition(**values))
        if definition is not None:
            runner, names = definition.runner, definition.overridable
            check = partial(read_overridable, runner)
            self.read(names, join_path(path, "overridable"), check)
            if runner is RunnerKind.AGENT:
                self._check_agent(definition, path)
            else:
                self._check_references(definition, path)
        return definition if len(self.problems) == before else None

    def _check_references(self, definition: Definition, path: str) -> None:
        variables = definition.options.get("env")
        for variable, value in variables.items() if isinstance(variables, dict) else ():
            name = value.get("from") if isinstance(value, dict) and len(value) == 1 else value
            if not isinstance(name, str) or (name is not value and not _VARIABLE.fullmatch(name)):
                position = join_path(path, f"options.env.{short_name(variable)}")
                self.add(position, "expected text, or {from: NAME} with the name of a secret")

    def _check_agent(self, definition: Definition, path: str) -> None:
        plan, problems = read_plan(definition.options)
        for problem in problems:
            self.add(join_path(path, f"options.{problem.path}"), problem.message)
        for problem in [] if plan is None else timeout_problems(plan, definition.timeout):
            self.add(join_path(path, problem.path), problem.message)


@dataclass(frozen=True, slots=True)
class DefinitionField:
    """How the value of a field is read, and its JSON Schema."""

    read: Callable[[Any], Any]  # raises TypeError or ValueError
    schema: Mapping[str, Any]

    def described(self, description: str) -> DefinitionField:
        """The field with its description."""
        return DefinitionField(self.read, {"description": description, **self.schema})


def definition_schema() -> dict[str, Any]:
    """Returns the JSON Schema of a file with one or more definitions."""
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
    """Returns the JSON Schema of ``longshore.yaml``, which may be empty."""
    return {
        "$schema": _DIALECT,
        "title": "longshore.yaml",
        "description": "Definitions that `longshore up` stores when it starts, and watches.",
        "anyOf": [{"$ref": "#/$defs/definitions"}, {"type": "null"}],
        "$defs": {name: part for name, part in _schema_defs().items() if name != "definition"},
    }


def _schema_defs() -> dict[str, Any]:
    references = {name: {"$ref": f"#/$defs/{name}"} for name in FIELDS}
    unnamed = {name: reference for name, reference in references.items() if name != "name"}
    listed = _object_schema(
        references, required=REQUIRED, description="A definition of a kind of task."
    )
    by_name = {
        "description": "Definitions by name.",
        "type": "object",
        "propertyNames": _NAME.schema,
        "additionalProperties": {"$ref": "#/$defs/definitionByName"},
    }
    several = {
        "anyOf": [
            by_name,
            {"type": "array", "items": {"$ref": "#/$defs/definitionWithName"}},
            {"type": "null"},
        ]
    }
    schema_field = {SCHEMA: {"type": "string", "description": "For editors; ignored."}}
    return {
        "definition": {**listed, "properties": {**schema_field, **references}},
        "definitions": _object_schema(
            {**schema_field, DEFINITIONS: several}, description="Definitions."
        ),
        "definitionWithName": listed,
        "definitionByName": _object_schema(
            unnamed,
            required=[name for name in REQUIRED if name != "name"],
            description="A definition of a kind of task, by its name.",
        ),
        **field_schemas(),
    }


def field_schemas() -> dict[str, Any]:
    """Returns the JSON Schema of each field of a definition."""
    return {name: _field_schema(name, field) for name, field in FIELDS.items()}


def _field_schema(name: str, field: DefinitionField) -> dict[str, Any]:
    schema = dict(field.schema)
    if name in REQUIRED:
        return schema
    # null means that the field is omitted.
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


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


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise expected("text", value)
    check_json(value)
    return value


def _read_options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise expected("an object", value)
    options = dict(value)
    check_json(options, max_values=_MAX_VALUES)
    # As the store returns them: a tuple would differ from the stored list at each comparison.
    copy: dict[str, Any] = json.loads(json.dumps(options))
    return copy


def _read_duration(value: Any) -> timedelta:
    duration = parse_duration(value)
    if duration <= timedelta(0):
        raise ValueError("must be greater than zero")
    return duration


def _read_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise expected("a list of texts")
    return tuple(value)


def _read_exit_codes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and 1 <= n <= 255 for n in value):
        raise expected("a list of exit codes from 1 to 255")
    return tuple(value)


def attribute_of(name: str) -> str:
    """Returns the attribute of a field that has this name in a document."""
    return _CAPITAL.sub(lambda match: f"_{match[0].lower()}", name)


def _choice(kind: type[Enum]) -> DefinitionField:
    choices = {member.name.lower(): member for member in kind}
    return DefinitionField(choice_reader(choices), {"enum": list(choices)})


def _integer(minimum: int) -> DefinitionField:
    return DefinitionField(integer_reader(minimum), {"type": "integer", "minimum": minimum})


def _object(factory: Callable[..., Any], **members: DefinitionField) -> DefinitionField:
    """Returns the field of an object with these members, all of them optional."""

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping) or not set(value) <= set(members):
            raise expected(f"an object with some of {', '.join(members)}")
        reader = DocumentReader()
        values = {
            attribute_of(name): reader.read(inner, name, members[name].read)
            for name, inner in value.items()
        }
        if reader.problems:
            raise ValueError("; ".join(f"{item.path}: {item.message}" for item in reader.problems))
        return factory(**values)

    properties = {name: dict(member.schema) for name, member in members.items()}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return DefinitionField(read, schema)


_NUMBER = r"[0-9]+(\.[0-9]+)?"
_SHORT_DURATION = rf"({_NUMBER}d)?({_NUMBER}h)?({_NUMBER}m)?({_NUMBER}s)?({_NUMBER}ms)?"
_ISO_DURATION = (
    rf"[Pp]({_NUMBER}[Ww])?({_NUMBER}[Dd])?"
    rf"([Tt]({_NUMBER}[Hh])?({_NUMBER}[Mm])?({_NUMBER}[Ss])?)?"
)
# The lookahead requires a digit other than 0.
_DURATION_PATTERN = rf"^(?=[^1-9]*[1-9])\s*({_NUMBER}|{_SHORT_DURATION}|{_ISO_DURATION})\s*$"

_NAME = DefinitionField(read_name, {"type": "string", "pattern": f"^{NAME_PATTERN.pattern}$"})
_TEXT = DefinitionField(_read_text, {"type": "string"})
_FLAG = DefinitionField(read_flag, {"type": "boolean"})
_DURATION = DefinitionField(
    _read_duration,
    {
        "anyOf": [
            {"type": "string", "pattern": _DURATION_PATTERN},
            {"type": "number", "exclusiveMinimum": 0},
        ],
        "examples": ["90s", "15m", "1h30m"],
    },
)
_TEXTS = DefinitionField(
    _read_texts,
    {"type": "array", "items": {"type": "string"}, "examples": [["env.REGION"]]},
)
_EXIT_CODES = DefinitionField(
    _read_exit_codes, {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 255}}
)
_OPTIONS = DefinitionField(
    _read_options, {"type": "object", "examples": [{"argv": ["./import.sh"]}]}
)
_RETRY = _object(
    RetryPolicy,
    maxAttempts=_integer(1).described("Maximum number of attempts, including the first."),
    base=_DURATION.described("Longest delay before the second attempt; then it doubles."),
    cap=_DURATION.described("Longest delay between two attempts."),
    rateLimitWait=_DURATION.described(
        "Longest total wait for rate limits that name a wait; these use no attempt."
    ),
)
_RESOURCES = _object(
    ResourceLimits,
    cpu=_DURATION.described("CPU time of each process, in whole seconds."),
    memoryBytes=_integer(16 * 2**20).described("Memory of all processes together, in bytes."),
    openFiles=_integer(16).described("Open files of each process."),
    fileBytes=_integer(1).described("Size of each written file, in bytes."),
    processes=_integer(1).described(
        "Processes of an attempt at a time. Default: the setting worker.max_processes."
    ),
)
_HEALTH = _object(
    HealthThresholds,
    longestRun=_DURATION.described("An attempt that runs longer is overtime."),
    healthyWithin=_DURATION.described("An attempt is healthy up to this time of silence."),
    warningWithin=_DURATION.described("A longer silence is critical instead of a warning."),
)
FIELDS: Final[Mapping[str, DefinitionField]] = {
    "name": _NAME.described("The name by which tasks refer to the definition."),
    "runner": _choice(RunnerKind).described(
        "What executes a task: a program, a Python function, or an agent."
    ),
    "options": _OPTIONS.described(
        "Options of the runner, such as argv, function or prompt. A task's input may set those"
        " that overridable names."
    ),
    "overridable": _TEXTS.described(
        "Options that a task's input may set: argv, env, cwd of a program; function, args, kwargs,"
        " path, env of a function; env.NAME and kwargs.NAME for one of them. Default: only"
        " arguments of a function that options do not set."
    ),
    "description": _TEXT.described("A description for people."),
    "queue": _NAME.described("The queue of its tasks. Default: default."),
    "priority": _choice(Priority).described(
        "The priority of its tasks in their queue. Default: normal."
    ),
    "timeout": _DURATION.described(
        "Longest time of an attempt. Default: the setting worker.task_timeout."
    ),
    "retry": _RETRY.described("How often and how soon to retry. Default: the settings retry."),
    "retryOnTimeout": _FLAG.described("Whether to retry an attempt that timed out."),
    "retryableExitCodes": _EXIT_CODES.described("Exit codes after which to retry."),
    "requiresReview": _FLAG.described("Whether a reviewer must approve each result."),
    "isolation": _choice(Isolation).described("How an attempt gets its process. Default: fork."),
    "resources": _RESOURCES.described("Resource limits of an attempt."),
    "pty": _FLAG.described("Whether output goes through a terminal."),
    "health": _HEALTH.described("When a running attempt is unhealthy. Default: the settings."),
}
"""The fields of a definition by their names in a document."""
