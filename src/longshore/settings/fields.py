"""How a setting is declared, read from text and shown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import time, timedelta
from typing import Annotated, Any, Final, TypeVar, cast, dataclass_transform

from pydantic import AfterValidator, BeforeValidator, ByteSize, ConfigDict, Field, SecretStr
from pydantic.dataclasses import dataclass

from longshore.core.text.durations import format_duration, parse_duration

NONE: Final = "none"
"""How a setting without a value is written: an empty variable counts as not set."""
KIB, MIB, GIB = ByteSize(2**10), ByteSize(2**20), ByteSize(2**30)
T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def section(kind: type[T]) -> type[T]:
    """A frozen dataclass whose fields are settings; a core policy is a base class of its section.

    Inputs are left out of pydantic's own errors, because some of them are secrets.
    """
    config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    return cast("type[T]", dataclass(frozen=True, kw_only=True, config=config)(kind))


def setting(description: str, default: Any = None, least: Any = None, most: Any = None) -> Any:
    """A setting with its default and its inclusive bounds."""
    return Field(default=default, ge=least, le=most, description=description)


def plain_problem(text: str) -> str:
    """Returns a message of pydantic in the words of other messages."""
    text = text.replace("Value error, ", "").replace("Input should be", "must be")
    return text.replace("valid integer, unable to parse string as an integer", "whole number")


def checked(is_valid: Callable[[str], object], problem: str) -> AfterValidator:
    """Refuses a text or secret that is not valid; ``problem`` may contain ``{value!r}``."""

    def check(value: Any) -> Any:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if text is not None and not is_valid(text):
            raise ValueError(problem.format(value=value))
        return value

    return AfterValidator(check)


def _lower(value: object) -> object:
    return str(value).lower() if isinstance(value, str | bool) else value


def _split_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [item.strip() for item in value.split(",") if item.strip() and value != NONE]


Choice = BeforeValidator(_lower)
"""Accepts a choice in any case, and a truth value for ``true`` and ``false``."""
Listed = BeforeValidator(_split_list)
"""Accepts a list that is written as one text, as in the environment: ``a,b``, or ``none``."""
Optionally = BeforeValidator(lambda value: None if value == NONE else value)
"""Accepts ``none`` for a value that may be missing."""
Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
OptionalText = Annotated[str | None, Optionally]
OptionalSecret = Annotated[SecretStr | None, Optionally]


def format_value(value: object) -> str:
    """A setting's value as it is written in a file, with its unit. Secrets are masked."""
    match value:
        case timedelta():
            return format_duration(value)
        case ByteSize():
            for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
                if value and value % size == 0:
                    return f"{value // size}{unit}"
            return f"{int(value)}B"
        case tuple():
            return ",".join(str(item) for item in value) or NONE
        case time():
            return value.isoformat("seconds" if value.second else "minutes")
        case None:
            return NONE
        case bool():
            return str(value).lower()
    return str(value)
