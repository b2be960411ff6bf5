"""Validates an agent's result against its schema, as structured output or as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from longshore.core.agents.result_candidates import result_candidates
from longshore.core.tasks.failures import ErrorCategory, Failure, FailureRaised, error_text

_MAX_PROBLEMS = 5
_PROBLEM_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedResult:
    """A valid result, or its problems."""

    value: Any = None
    problems: tuple[str, ...] = ()


class ResultValidator:
    """Validates the results of one step."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self._validator = None if schema is None else _validator(schema)

    def validate(self, structured: Any, text: str | None) -> ValidatedResult:
        """Returns the first candidate that is valid, or the problems of the first candidate."""
        if self._validator is None:
            if text is None or not text.strip():
                return ValidatedResult(problems=("the answer is empty",))
            return ValidatedResult(value=text)
        first: Any = None
        for number, value in enumerate(result_candidates(structured, text)):
            if self._validator.is_valid(value):
                return ValidatedResult(value=value)
            first = value if number == 0 else first
        if first is None:
            return ValidatedResult(problems=("the answer contains no result",))
        return ValidatedResult(problems=tuple(_problems(self._validator, first)))


def _problems(validator: Draft202012Validator, value: Any) -> list[str]:
    errors = sorted(validator.iter_errors(value), key=lambda error: str(error.json_path))
    return [
        f"{error.json_path}: {error.message}"[:_PROBLEM_CHARACTERS]
        for error in errors[:_MAX_PROBLEMS]
    ]


def _validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        message = error_text(
            f"outputSchema is not a valid JSON Schema: {error.json_path}: {error.message}"
        )
        raise FailureRaised(Failure(category=ErrorCategory.VALIDATION, message=message)) from error
    return Draft202012Validator(dict(schema))
