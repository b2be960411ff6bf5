"""Classification: from an exception that a task raised to its category.

The evidence is weighed from strongest to weakest: the built-in types that mean one thing, codes,
status numbers, the class names of well-known libraries, the built-in types that libraries build
on, and what the error was raised from. Words in free text come last and only as whole words:
"took 500 ms" is no server error, and "separate" speaks of no rate. What no row fits is unknown, and
unknown is final: another run of what nobody understands may do harm twice.

The error is somebody else's object. Looking at it must not fail, whatever its attributes do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from longshore.core.tasks.error_categories import (
    BROAD_TYPES,
    CLASS_NAMES,
    CODES,
    ERRNO_NUMBERS,
    NAME_IN_TEXT,
    SPECIFIC_TYPES,
    STATUS_IN_TEXT,
    STATUS_NUMBERS,
    TEXT_PATTERNS,
    ErrorCategory,
    TypeRows,
)

# Causes are followed this far: a chain may be a ring.
_MAX_CAUSE_DEPTH = 8
_TEXT_LIMIT_CHARACTERS = 4_000
# Of a group with thousands of members, enough to know.
_MAX_MEMBERS = 50


def category_of(error: BaseException) -> ErrorCategory:
    """The category of an error raised by a task."""
    return _category(error, 0) or ErrorCategory.UNKNOWN


def message_of(error: BaseException) -> str:
    """What the error says, or its class's name if it says nothing."""
    try:
        text = str(error)
    # A user's own class may have a broken `__str__`; its failure must still be told.
    except Exception:  # noqa: BLE001
        text = ""
    return text or type(error).__name__


def safe_getattr(thing: object, name: str) -> Any:
    """An attribute of somebody else's object; None if it has none or cannot give it."""
    try:
        return getattr(thing, name, None)
    # A property may raise anything (httpx has one that does until it is set).
    except Exception:  # noqa: BLE001
        return None


def _category(error: BaseException, depth: int) -> ErrorCategory | None:
    if depth > _MAX_CAUSE_DEPTH:
        return None
    if isinstance(error, BaseExceptionGroup):
        return _group_category(error, depth)
    if found := _by_evidence(error):
        return found
    cause = _cause_of(error)
    from_cause = _category(cause, depth + 1) if cause is not None else None
    return from_cause or _by_text(error)


def _group_category(group: BaseExceptionGroup[BaseException], depth: int) -> ErrorCategory | None:
    """A final member decides: another attempt would only meet it again."""
    members = group.exceptions[:_MAX_MEMBERS]
    found = [_category(member, depth + 1) or ErrorCategory.UNKNOWN for member in members]
    return next((category for category in found if not category.retryable), found[0])


def _by_evidence(error: BaseException) -> ErrorCategory | None:
    return (
        _declared(error)
        or _by_type(error, SPECIFIC_TYPES)
        or _by_code(error)
        or _by_status(error)
        or _by_name(error)
        or _by_type(error, BROAD_TYPES)
    )


def _cause_of(error: BaseException) -> BaseException | None:
    # What was merely being handled at the time (`__context__`) need not be the reason.
    for candidate in (error.__cause__, safe_getattr(error, "reason")):
        if isinstance(candidate, BaseException):
            return candidate
    return None


def _declared(error: BaseException) -> ErrorCategory | None:
    if safe_getattr(error, "longshore_decision") is None:
        return None
    try:
        return ErrorCategory(safe_getattr(error, "category"))
    except ValueError:
        return None


def _by_type(error: BaseException, rows: TypeRows) -> ErrorCategory | None:
    return next((category for kind, category in rows if isinstance(error, kind)), None)


def _by_code(error: BaseException) -> ErrorCategory | None:
    for code in _codes(error):
        if isinstance(code, int):
            found = ERRNO_NUMBERS.get(code)
        else:
            name = code.name if isinstance(code, Enum) else code
            found = _by_code_name(name) if isinstance(name, str) else None
        if found:
            return found
    return None


def _by_code_name(name: str) -> ErrorCategory | None:
    # Connect writes in lower case what gRPC writes in upper.
    return CODES.get(name) or CODES.get(name.upper())


def _codes(error: BaseException) -> Iterator[Any]:
    yield safe_getattr(error, "errno")
    yield safe_getattr(error, "code")
    response = safe_getattr(error, "response")
    if isinstance(response, Mapping):
        yield _entry(response, "Error", "Code")


def _by_status(error: BaseException) -> ErrorCategory | None:
    found = (STATUS_NUMBERS.get(_whole_number(status)) for status in _statuses(error))
    return next(filter(None, found), None)


def _statuses(error: BaseException) -> Iterator[Any]:
    for name in ("status", "status_code", "code"):
        yield safe_getattr(error, name)
    response = safe_getattr(error, "response")
    if isinstance(response, Mapping):
        yield _entry(response, "ResponseMetadata", "HTTPStatusCode")
    else:
        yield safe_getattr(response, "status_code")
        yield safe_getattr(response, "status")


def _entry(mapping: Mapping[Any, Any], outer: str, inner: str) -> Any:
    within = mapping.get(outer)
    return within.get(inner) if isinstance(within, Mapping) else None


def _whole_number(value: Any) -> int:
    """The value as a status number; 0, which is none, if it is something else."""
    if isinstance(value, str) and len(value) == 3 and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) else 0


def _by_name(error: BaseException) -> ErrorCategory | None:
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((CLASS_NAMES[name] for name in names if name in CLASS_NAMES), None)


def _by_text(error: BaseException) -> ErrorCategory | None:
    # What is not an Exception (an interrupt, a cancellation) is no failure to be explained.
    if not isinstance(error, Exception):
        return None
    text = message_of(error)[:_TEXT_LIMIT_CHARACTERS]
    for match in STATUS_IN_TEXT.finditer(text):
        if found := STATUS_NUMBERS.get(int(match["status"])):
            return found
    for match in NAME_IN_TEXT.finditer(text):
        if found := CODES.get(match["name"]) or CLASS_NAMES.get(match["name"]):
            return found
    return next((category for pattern, category in TEXT_PATTERNS if pattern.search(text)), None)
