"""Finds the result in an agent's answer, and validates it against its schema.

Models and their tools return a result in forms that were not requested: wrapped in another object,
or as text. All readings are tried, the plainest first; the first valid one is the result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from longshore.core.tasks.failures import ErrorCategory, Failure, FailureRaised, error_text

_MAX_PROBLEMS = 5
_PROBLEM_CHARACTERS = 300
_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)
_MAX_DEPTH = 3
_MAX_TEXT_CHARACTERS = 16 * 1024 * 1024


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
        candidates = list(result_candidates(structured, text))
        for value in candidates:
            if self._validator.is_valid(value):
                return ValidatedResult(value=value)
        if not candidates:
            return ValidatedResult(problems=("the answer contains no result",))
        errors = self._validator.iter_errors(candidates[0])
        texts = sorted(f"{error.json_path}: {error.message}" for error in errors)
        problems = tuple(text[:_PROBLEM_CHARACTERS] for text in texts[:_MAX_PROBLEMS])
        return ValidatedResult(problems=problems)


def _validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        message = error_text(
            f"outputSchema is not a valid JSON Schema: {error.json_path}: {error.message}"
        )
        raise FailureRaised(Failure(category=ErrorCategory.VALIDATION, message=message)) from error
    return Draft202012Validator(dict(schema))


def result_candidates(structured: Any, text: str | None) -> Iterator[Any]:
    """Yields the possible results of an agent, the most likely first."""
    if structured is not None:
        yield from _unwrap(structured, 0)
    if text is not None and len(text) <= _MAX_TEXT_CHARACTERS:
        for candidate in (text, *_FENCED.findall(text)):
            value = _parse_json(candidate)
            if value is not None:
                yield from _unwrap(value, 0)


def _unwrap(value: Any, depth: int) -> Iterator[Any]:
    yield value
    if depth >= _MAX_DEPTH:
        return
    if isinstance(value, str):
        inner = _parse_json(value)
        if isinstance(inner, dict | list):
            yield from _unwrap(inner, depth + 1)
    elif isinstance(value, dict):
        parsed = {name: _parse_if_json(inner) for name, inner in value.items()}
        if parsed != value:
            yield parsed
        if len(value) == 1:
            (inner,) = value.values()
            yield from _unwrap(inner, depth + 1)


def _parse_if_json(value: Any) -> Any:
    """Returns the object or list that a text encodes; any other value unchanged."""
    inner = _parse_json(value) if isinstance(value, str) else None
    return inner if isinstance(inner, dict | list) else value


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text.strip())
    except (ValueError, RecursionError):
        return None
