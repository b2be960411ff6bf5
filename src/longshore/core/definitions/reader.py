"""Reads definitions from files and from the API.

``core.definitions.schema`` has the table of fields and how each is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore.core.agents.plan import read_plan, timeout_problems
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.definitions.schema import DEFINITIONS, FIELDS, REQUIRED, SCHEMA
from longshore.core.document_reader import DocumentReader, join_path, read_name, short_name
from longshore.core.ids import is_name
from longshore.errors import InvalidJob, Problem


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
            self._reject_duplicates(read, path)
        else:
            self.add(path, "expected definitions by name, or a list of definitions")
            read = []
        return [definition for definition in read if definition is not None]

    def _reject_duplicates(self, definitions: list[Definition | None], path: str) -> None:
        seen: set[str] = set()
        for index, definition in enumerate(definitions):
            if definition is None:
                continue
            if definition.name in seen:
                self.add(f"{path}[{index}].name", f"{definition.name!r} is defined twice")
            seen.add(definition.name)

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
            field.attribute: self.field(value, name, path, field.type.read)
            for name, field in FIELDS.items()
            if value.get(name) is not None
        }
        if len(self.problems) > before:
            return None
        definition: Definition | None = self.read(fields, path, lambda values: Definition(**values))
        if definition is not None and definition.runner is RunnerKind.AGENT:
            self._check_agent(definition, path)
        return definition if len(self.problems) == before else None

    def _check_agent(self, definition: Definition, path: str) -> None:
        plan, problems = read_plan(definition.options)
        for problem in problems:
            self.add(join_path(path, f"options.{problem.path}"), problem.message)
        for problem in [] if plan is None else timeout_problems(plan, definition.timeout):
            self.add(join_path(path, problem.path), problem.message)
