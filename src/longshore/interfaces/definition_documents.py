"""Definitions as documents: what people write in files and send to the API, and what they get back.

What a field is called and how it is read stands in one table, in ``definition_schema``. Texts are
read with limits for what can be counted, and so for what YAML's aliases stand for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import yaml

from longshore.core.agents.plan import problems_of_time, read_plan
from longshore.core.backoff import RetryPolicy
from longshore.core.child_limits import NO_LIMITS, Limits
from longshore.core.dag import Problem
from longshore.core.definition import Definition, RunnerKind
from longshore.core.health import HealthLimits
from longshore.core.ids import is_name
from longshore.durations import format_duration
from longshore.errors import InvalidJob
from longshore.interfaces.definition_schema import (
    DEFINITIONS,
    FIELDS,
    REQUIRED,
    SCHEMA,
    no_name,
)

VALUE_LIMIT: Final = 50_000
DEPTH_LIMIT: Final = 100

_PLACED_DEPTH = 3  # definitions, one of them, its field: no problem is further inside
_TAG = "tag:yaml.org,2002:"


class Unreadable(Exception):
    """A text, or its file, says nothing that could be understood; why, and in which line."""

    def __init__(self, message: str, line: int | None = None) -> None:
        self.line = line
        super().__init__(message)


def read_definitions(value: Any, path: str) -> tuple[list[Definition], list[Problem]]:
    """The definitions in a list, or by their names, and everything that is wrong with them."""
    reader = _Reader()
    return reader.definitions(value, path), reader.problems


def read_file_document(value: Any, *, alone: bool) -> tuple[list[Definition], list[Problem]]:
    """The definitions of a file that has nothing else, and everything that is wrong with it.

    They stand under ``definitions``; ``alone``: or the file is itself a single one.
    """
    reader = _Reader()
    return reader.file(value, alone=alone), reader.problems


def read_definition(value: Any) -> Definition:
    """One definition.

    Raises:
        InvalidJob: with everything that is wrong with it.
    """
    reader = _Reader()
    read = reader.definition(value, "")
    if read is None:
        raise InvalidJob(reader.problems)
    return read


def definition_document(definition: Definition) -> dict[str, Any]:
    """A definition as it could be sent again, with its version; what it leaves open is null."""
    return {
        "name": definition.name,
        "version": definition.version,
        "runner": definition.runner.value,
        "options": definition.options,
        "description": definition.description,
        "queue": definition.queue,
        "priority": definition.priority.name.lower(),
        "timeout": _written(definition.timeout),
        "retry": _retry_document(definition.retry),
        "retryOnTimeout": definition.retry_on_timeout,
        "retryableExitCodes": list(definition.retryable_exit_codes),
        "requiresReview": definition.requires_review,
        "isolation": definition.isolation.value,
        "limits": _limits_document(definition.limits),
        "pty": definition.pty,
        "health": _health_document(definition.health),
    }


def request_document(definition: Definition) -> dict[str, Any]:
    """A definition as it can be written into a file: no version, nothing that it leaves open."""
    document = definition_document(definition)
    del document["version"]
    return {name: value for name, value in document.items() if value is not None}


def _written(duration: timedelta | None) -> str | None:
    return None if duration is None else format_duration(duration)


def _retry_document(retry: RetryPolicy | None) -> dict[str, Any] | None:
    if retry is None:
        return None
    return {
        "maxAttempts": retry.max_attempts,
        "base": _written(retry.base),
        "cap": _written(retry.cap),
    }


def _limits_document(limits: Limits) -> dict[str, Any] | None:
    if limits == NO_LIMITS:
        return None
    known = {
        "cpu": _written(limits.cpu),
        "memoryBytes": limits.memory_bytes,
        "openFiles": limits.open_files,
        "fileBytes": limits.file_bytes,
    }
    return {name: value for name, value in known.items() if value is not None}


def _health_document(health: HealthLimits | None) -> dict[str, Any] | None:
    if health is None:
        return None
    known = {
        "longestRun": _written(health.longest_run),
        "healthyWithin": _written(health.healthy_within),
        "warningWithin": _written(health.warning_within),
    }
    return {name: value for name, value in known.items() if value is not None}


def _at(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


class _Reader:
    """Reads definitions and remembers what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def file(self, value: Any, *, alone: bool) -> list[Definition]:
        if not isinstance(value, Mapping):
            one = "one definition, or " if alone else ""
            self._add("", f"expected {one}an object with '{DEFINITIONS}'")
            return []
        value = {name: inner for name, inner in value.items() if name != SCHEMA}
        if alone and DEFINITIONS not in value:
            read = self.definition(value, "")
            return [] if read is None else [read]
        for name in value:
            if name != DEFINITIONS:
                self._add(str(name)[:64], f"unknown here; expected '{DEFINITIONS}' alone")
        given = value.get(DEFINITIONS)
        return [] if given is None else self.definitions(given, DEFINITIONS)

    def definitions(self, value: Any, path: str) -> list[Definition]:
        if isinstance(value, Mapping):
            named = [self._named(name, one, path) for name, one in value.items()]
            return [one for one in named if one is not None]
        if not isinstance(value, list):
            self._add(path, "expected definitions by their names, or a list of them")
            return []
        read = [self.definition(one, f"{path}[{i}]") for i, one in enumerate(value)]
        seen: set[str] = set()
        for index, one in enumerate(read):
            if one is not None and one.name in seen:
                self._add(f"{path}[{index}].name", f"{one.name!r} is defined twice")
            seen |= {one.name} if one is not None else set()
        return [one for one in read if one is not None]

    def _named(self, name: Any, value: Any, path: str) -> Definition | None:
        path = _at(path, str(name)[:64])
        if not isinstance(value, Mapping):
            self._add(path, "expected an object with 'runner'")
            return None
        if not is_name(name):
            self._add(path, no_name(name))
            return None
        if "name" in value:
            self._add(_at(path, "name"), f"unknown here: {name!r} before it is its name")
            return None
        return self.definition({"name": name, **value}, path)

    def definition(self, value: Any, path: str) -> Definition | None:
        if not isinstance(value, Mapping):
            self._add(path, "expected an object with 'name' and 'runner'")
            return None
        before = len(self.problems)
        for field in value:
            if field not in FIELDS:
                known = ", ".join(FIELDS)
                self._add(_at(path, str(field)[:64]), f"unknown field; expected one of {known}")
        for needed in REQUIRED:
            if value.get(needed) is None:
                self._add(_at(path, needed), "missing")
        fields = {
            field.attribute: self._read(value[name], _at(path, name), field.kind.read)
            for name, field in FIELDS.items()
            if value.get(name) is not None
        }
        if len(self.problems) > before:
            return None
        made: Definition | None = self._read(fields, path, lambda given: Definition(**given))
        if made is None or made.runner is not RunnerKind.AGENT:
            return made
        return made if self._agent(made, path) else None

    def _agent(self, definition: Definition, path: str) -> bool:
        """Whether what an agent is told can be carried out."""
        plan, problems = read_plan(definition.options)
        for problem in problems:
            self._add(_at(path, f"options.{problem.path}"), problem.message)
        late = [] if plan is None else problems_of_time(plan, definition.timeout)
        for problem in late:
            self._add(_at(path, problem.path), problem.message)
        return plan is not None and not late

    def _read(self, value: Any, path: str, read: Callable[[Any], Any]) -> Any:
        try:
            return read(value)
        except (TypeError, ValueError) as error:
            self._add(path, str(error))
        return None

    def _add(self, path: str, message: str) -> None:
        self.problems.append(Problem(path=path, message=message))


def from_json(text: str) -> tuple[Any, dict[str, int]]:
    """What a JSON text says; its lines are known only where it is no JSON.

    Raises:
        Unreadable: it cannot be understood, or says a thing twice.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in pairs:
            if name in made:
                message = f"{name[:64]!r} is there twice in one object; keep one"
                raise Unreadable(message)
            made[name] = value
        return made

    try:
        return json.loads(text, object_pairs_hook=once), {}
    except json.JSONDecodeError as error:
        message = f"it is not JSON: {error.msg} in column {error.colno}"
        raise Unreadable(message, error.lineno) from error
    except (ValueError, RecursionError) as error:
        message = f"it cannot be understood: {error}"
        raise Unreadable(message) from error


class _Loader(yaml.SafeLoader):
    """YAML without its dates: in JSON, which is what a definition is made of, a time is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the library declares it so
        letter: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def from_yaml(text: str) -> tuple[Any, dict[str, int]]:
    """What a YAML text says as plain JSON values, and by their paths the lines of what is outside.

    Raises:
        Unreadable: it cannot be understood, says a thing twice, or is more than its size.
    """
    try:
        # Written in Python: the one in C ends the process when a file is nested deeply enough.
        loader = _Loader(text)
        node = loader.get_single_node()
        values = _Values(loader)
        return (None if node is None else values.of(node, "", 0)), values.lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        column = f" in column {mark.column + 1}" if mark else ""
        line = mark.line + 1 if mark else None
        raise Unreadable(f"it is not YAML: {said}{column}", line) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(f"it is not YAML: {error.reason}", line) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(f"it cannot be understood: {error}") from error


class _Values:
    """Makes plain values from the nodes of a YAML document, counting what aliases repeat."""

    def __init__(self, loader: _Loader) -> None:
        self.lines: dict[str, int] = {}
        self._loader = loader
        self._left = VALUE_LIMIT

    def of(self, node: yaml.Node, path: str, depth: int) -> Any:
        line = node.start_mark.line + 1
        self._left -= 1
        if self._left < 0:
            message = (
                f"it has more than {VALUE_LIMIT:,} values, counted with what its aliases (*)"
                " stand for; divide it, or write less of it"
            )
            raise Unreadable(message, line)
        if depth > DEPTH_LIMIT:
            message = (
                f"it is nested in more than {DEPTH_LIMIT} levels; an alias (*) may be in itself"
            )
            raise Unreadable(message, line)
        if depth <= _PLACED_DEPTH:
            self.lines.setdefault(path, line)
        match node:
            case yaml.MappingNode(tag=tag) if tag == f"{_TAG}map":
                return self._mapping(node, path, depth)
            case yaml.SequenceNode(tag=tag) if tag == f"{_TAG}seq":
                return [
                    self.of(one, f"{path}[{index}]", depth + 1)
                    for index, one in enumerate(node.value)
                ]
            case yaml.ScalarNode():
                value = self._loader.construct_object(node)
                if value is None or isinstance(value, str | int | float):
                    return value
        shown = node.tag.removeprefix(_TAG)[:64]
        raise Unreadable(f"it has a value of the kind {shown!r}, which JSON does not know", line)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            plain = isinstance(key, yaml.ScalarNode)
            name = self._loader.construct_object(key) if plain else None
            line = key.start_mark.line + 1
            if not isinstance(name, str):
                shown = f"{key.value[:64]!r}; put it in quotes" if plain else "a list or an object"
                message = f"expected text before a colon, not {shown}"
                raise Unreadable(message, line)
            if name in made:
                raise Unreadable(f"{name[:64]!r} is there twice; keep one", line)
            made[name] = self.of(value, f"{path}.{name[:64]}" if path else name[:64], depth + 1)
        for source in merged:
            found = self.of(source, path, depth + 1)
            if not isinstance(found, dict):
                message = "expected fields, or a list of such, after '<<'"
                raise Unreadable(message, source.start_mark.line + 1)
            made = {**found, **made}
        return made
