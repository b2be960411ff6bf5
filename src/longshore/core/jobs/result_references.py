"""References: where the input of one task has the result of another.

Whoever builds a job puts an object with one known field where the result is to stand; before the
work begins, the result takes its place. A result that is put in is not looked into: what one task
returned cannot ask for what another did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshore.errors import UsageError

# An object with this one field in a task's arguments stands for the result of the task it names.
RESULT_REFERENCE = "$longshore.result"


def result_reference(key: str) -> dict[str, str]:
    """What stands for the result of the task called ``key``."""
    return {RESULT_REFERENCE: key}


def resolve_references(value: Any, results: Mapping[str, Any]) -> Any:
    """The value with every reference in it replaced by the result that it names.

    Raises:
        UsageError: a reference names a task whose result is not among these.
    """
    if isinstance(value, list):
        return [resolve_references(item, results) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {RESULT_REFERENCE}:
        return {name: resolve_references(item, results) for name, item in value.items()}
    key = value[RESULT_REFERENCE]
    if not isinstance(key, str) or key not in results:
        message = f"the input has the result of {key!r}, and the task does not depend on that"
        raise UsageError(message)
    return results[key]
