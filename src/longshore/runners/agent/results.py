"""Taking an agent's result: only what fits its schema, however it was handed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from longshore.core.agents.shapes import readings
from longshore.core.failures import ErrorCategory, Failed, Failure, error_text

_MOST_PROBLEMS = 5
_PROBLEM_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A result that fits; or what is wrong with it."""

    value: Any = None
    problems: tuple[str, ...] = ()


class Shape:
    """What the result of a step must look like."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self._validator = None if schema is None else _validator(schema)

    def take(self, structured: Any, text: str | None) -> Taken:
        """The result in what was handed in."""
        if self._validator is None:
            if text is None or not text.strip():
                return Taken(problems=("the answer is empty",))
            return Taken(value=text)
        first: Any = None
        for number, value in enumerate(readings(structured, text)):
            if self._validator.is_valid(value):
                return Taken(value=value)
            first = value if number == 0 else first
        if first is None:
            return Taken(problems=("nothing was handed in",))
        return Taken(problems=tuple(_problems(self._validator, first)))


def _problems(validator: Draft202012Validator, value: Any) -> list[str]:
    found = sorted(validator.iter_errors(value), key=lambda error: str(error.json_path))
    return [
        f"{error.json_path}: {error.message}"[:_PROBLEM_CHARACTERS]
        for error in found[:_MOST_PROBLEMS]
    ]


def _validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        message = error_text(f"outputSchema is no JSON Schema: {error.json_path}: {error.message}")
        raise Failed(Failure(category=ErrorCategory.VALIDATION, message=message)) from error
    return Draft202012Validator(dict(schema))
