"""Reads definitions from JSON values: what people write in files and send to the API.

``core.definitions.schema`` has the table of fields and how each is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from longshore.core.agents.plan import read_plan, timeout_problems
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.definitions.schema import (
    DEFINITIONS,
    FIELDS,
    REQUIRED,
    SCHEMA,
    invalid_name_message,
)
from longshore.core.ids import is_name
from longshore.core.jobs.dag import Problem
from longshore.errors import InvalidJob


def split_job_file(document: Any) -> tuple[list[Definition], Any, list[Problem]]:
    """The definitions of a job file, its job, and everything that is wrong with the definitions.

    A job file is ``{"definitions": …, "tasks": […], "name"?}``: a job with the definitions that it
    needs, in a list or by their names.
    """
    if not isinstance(document, Mapping) or DEFINITIONS not in document:
        return [], document, []
    job = {name: value for name, value in document.items() if name != DEFINITIONS}
    read, problems = read_definitions(document[DEFINITIONS], DEFINITIONS)
    return read, job, problems


def read_definitions(value: Any, path: str) -> tuple[list[Definition], list[Problem]]:
    """The definitions in a list, or by their names, and everything that is wrong with them."""
    reader = _DefinitionReader()
    return reader.read_definitions(value, path), reader.problems


def read_file_document(value: Any, *, allow_single: bool) -> tuple[list[Definition], list[Problem]]:
    """The definitions of a file that has only definitions, and everything that is wrong with it.

    Args:
        allow_single: The file may also be a single definition, without ``definitions``.
    """
    reader = _DefinitionReader()
    return reader.read_file(value, allow_single=allow_single), reader.problems


def read_definition(value: Any) -> Definition:
    """One definition.

    Raises:
        InvalidJob: with everything that is wrong with it.
    """
    reader = _DefinitionReader()
    read = reader.read_definition(value, "")
    if read is None:
        raise InvalidJob(reader.problems)
    return read


def _join_path(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


class _DefinitionReader:
    """Reads definitions and remembers what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def read_file(self, value: Any, *, allow_single: bool) -> list[Definition]:
        if not isinstance(value, Mapping):
            one = "one definition, or " if allow_single else ""
            self._add_problem("", f"expected {one}an object with '{DEFINITIONS}'")
            return []
        value = {name: inner for name, inner in value.items() if name != SCHEMA}
        if allow_single and DEFINITIONS not in value:
            read = self.read_definition(value, "")
            return [] if read is None else [read]
        for name in value:
            if name != DEFINITIONS:
                self._add_problem(str(name)[:64], f"unknown here; expected '{DEFINITIONS}' alone")
        given = value.get(DEFINITIONS)
        return [] if given is None else self.read_definitions(given, DEFINITIONS)

    def read_definitions(self, value: Any, path: str) -> list[Definition]:
        if isinstance(value, Mapping):
            named = [self._read_by_name(name, one, path) for name, one in value.items()]
            return [one for one in named if one is not None]
        if not isinstance(value, list):
            self._add_problem(path, "expected definitions by their names, or a list of them")
            return []
        read = [self.read_definition(one, f"{path}[{i}]") for i, one in enumerate(value)]
        seen: set[str] = set()
        for index, one in enumerate(read):
            if one is not None and one.name in seen:
                self._add_problem(f"{path}[{index}].name", f"{one.name!r} is defined twice")
            seen |= {one.name} if one is not None else set()
        return [one for one in read if one is not None]

    def _read_by_name(self, name: Any, value: Any, path: str) -> Definition | None:
        path = _join_path(path, str(name)[:64])
        if not isinstance(value, Mapping):
            self._add_problem(path, "expected an object with 'runner'")
            return None
        if not is_name(name):
            self._add_problem(path, invalid_name_message(name))
            return None
        if "name" in value:
            self._add_problem(
                _join_path(path, "name"), f"unknown here: {name!r} before it is its name"
            )
            return None
        return self.read_definition({"name": name, **value}, path)

    def read_definition(self, value: Any, path: str) -> Definition | None:
        if not isinstance(value, Mapping):
            self._add_problem(path, "expected an object with 'name' and 'runner'")
            return None
        before = len(self.problems)
        for field in value:
            if field not in FIELDS:
                known = ", ".join(FIELDS)
                self._add_problem(
                    _join_path(path, str(field)[:64]), f"unknown field; expected one of {known}"
                )
        for needed in REQUIRED:
            if value.get(needed) is None:
                self._add_problem(_join_path(path, needed), "missing")
        fields = {
            field.attribute: self._read_value(value[name], _join_path(path, name), field.type.read)
            for name, field in FIELDS.items()
            if value.get(name) is not None
        }
        if len(self.problems) > before:
            return None
        definition: Definition | None = self._read_value(
            fields, path, lambda given: Definition(**given)
        )
        if definition is None or definition.runner is not RunnerKind.AGENT:
            return definition
        return definition if self._check_agent(definition, path) else None

    def _check_agent(self, definition: Definition, path: str) -> bool:
        """Whether what an agent is told can be carried out."""
        plan, problems = read_plan(definition.options)
        for problem in problems:
            self._add_problem(_join_path(path, f"options.{problem.path}"), problem.message)
        late = [] if plan is None else timeout_problems(plan, definition.timeout)
        for problem in late:
            self._add_problem(_join_path(path, problem.path), problem.message)
        return plan is not None and not late

    def _read_value(self, value: Any, path: str, read: Callable[[Any], Any]) -> Any:
        try:
            return read(value)
        except (TypeError, ValueError) as error:
            self._add_problem(path, str(error))
        return None

    def _add_problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(path=path, message=message))
