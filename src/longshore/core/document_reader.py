"""Reads documents that users write: jobs, definitions and agent plans.

A document is a value from JSON or YAML. Every problem is reported at once, with its path, such as
``tasks[3].dependsOn[1]``. The readers of single values raise ``ValueError`` with a message that
says what is expected; ``DocumentReader`` collects these messages.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from longshore.core.ids import is_name
from longshore.errors import Problem

MAX_DEPTH = 100
"""Levels of a JSON value: code that reads or writes it is recursive."""

MAX_PROBLEMS = 1_000
_MAX_INTEGER_BITS = 8192  # larger integers cannot be written in decimal
_SMALL = 1 << 62  # below it, an integer is usual
_NAME_CHARACTERS = 64
_NO_VALUE = object()
_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = 80


@dataclass(slots=True)
class DocumentReader:
    """Reads the fields of objects and collects the problems."""

    problems: list[Problem] = field(default_factory=list)

    def add(self, path: str, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(path=path, message=message))
        elif len(self.problems) == MAX_PROBLEMS:
            self.problems.append(Problem(path="", message="more problems are not shown"))

    def reject_unknown(
        self, document: Mapping[Any, Any], allowed: Collection[str], path: str
    ) -> None:
        """Add a problem for each field that is not allowed."""
        unknown = (name for name in document if name not in allowed)
        for name in islice(unknown, MAX_PROBLEMS + 1):
            names = ", ".join(allowed)
            choice = f"one of {names}" if len(allowed) > 1 else f"only {names}"
            self.add(join_path(path, short_name(name)), f"unknown field; expected {choice}")

    def field(
        self,
        document: Mapping[str, Any],
        name: str,
        path: str,
        read: Callable[[Any], Any],
        default: Any = None,
    ) -> Any:
        """Returns a field; the default if it is missing, null or wrong."""
        value = document.get(name)
        return default if value is None else self.read(value, join_path(path, name), read, default)

    def read(self, value: Any, path: str, read: Callable[[Any], Any], default: Any = None) -> Any:
        """Returns ``read(value)``; the default, and a problem, if it raises."""
        try:
            return read(value)
        except (TypeError, ValueError) as error:
            self.add(path, str(error))
            return default


def join_path(path: str, name: str) -> str:
    """Returns the path of a field."""
    return f"{path}.{name}" if path else name


def short_name(name: object) -> str:
    """Returns a name from a document, truncated."""
    return str(name)[:_NAME_CHARACTERS]


def expected(what: str, value: Any = _NO_VALUE) -> ValueError:
    """Returns the error of a value that is not what is expected; the value is shown shortened."""
    instead = "" if value is _NO_VALUE else f", not {_shortened.repr(value)}"
    return ValueError(f"expected {what}{instead}")


def read_name(value: Any) -> str:
    if not is_name(value):
        raise expected("a name of 1 to 64 letters, digits, '-' and '_'", value)
    return str(value)


def read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise expected("true or false", value)
    return value


def integer_reader(minimum: int, maximum: int | None = None) -> Callable[[Any], int]:
    """Returns a reader of whole numbers in a range."""
    limit = "on" if maximum is None else f"to {maximum}"

    def read(value: Any) -> int:
        if type(value) is not int or not minimum <= value <= (maximum or value):
            raise expected(f"a whole number from {minimum} {limit}", value)
        return value

    return read


def choice_reader(choices: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Returns a reader of the names of these values."""

    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise expected(f"one of {', '.join(choices)}", value)
        return choices[value]

    return read


def _is_usual(value: Any, depth: int) -> bool:
    """Whether a value is JSON of the most frequent kinds, which takes a fraction of the time."""
    kind = type(value)
    if kind is not dict or depth > MAX_DEPTH:
        return value is None or kind is bool or (kind is str and value.isascii())
    for name, item in value.items():
        if type(name) is not str or not name.isascii():
            return False
        if type(item) is int:
            if not -_SMALL < item < _SMALL:
                return False
        elif not _is_usual(item, depth + 1):
            return False
    return True


def check_json(value: Any, *, max_values: int | None = None) -> None:
    """Check that a value can be written as JSON and read back.

    Raises:
        ValueError: it is not JSON, has too many levels, or more than ``max_values`` values.
    """
    if max_values is None and _is_usual(value, 1):
        return
    # Iterators: a list of what is left to check would need as much memory as the value.
    levels: list[Iterator[Any]] = [iter((value,))]
    count = 0
    while levels:
        item = next(levels[-1], _NO_VALUE)
        if item is _NO_VALUE:
            levels.pop()
            continue
        count += 1
        if max_values is not None and count > max_values:
            raise expected(f"at most {max_values:,} values")
        match item:
            case dict() | list() | tuple() if len(levels) > MAX_DEPTH:
                raise expected(f"at most {MAX_DEPTH} levels of lists and objects")
            case dict():
                for name in item:
                    if not isinstance(name, str):
                        raise expected("text as a key (put it in quotes)", name)
                levels.append(chain(item.keys(), item.values()))
            case list() | tuple():
                levels.append(iter(item))
            case str():
                try:
                    item.encode()
                except UnicodeEncodeError:
                    raise expected("valid Unicode without lone surrogates", item) from None
            case float() if not math.isfinite(item):
                raise expected("a finite number", item)
            case int() if item.bit_length() > _MAX_INTEGER_BITS:
                raise expected(f"a number of at most {_MAX_INTEGER_BITS} bits")
            case None | int() | float():
                pass
            case _:
                raise expected("a JSON value", item)
