"""The base class of a settings section, and how values are read and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import time, timedelta
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    model_validator,
)

from longshore.core.text.durations import format_duration, parse_duration

PREFIX: Final = "LONGSHORE_"
NONE: Final = "none"
"""How a setting without a value is written: an empty variable counts as not set."""
Optionally = BeforeValidator(lambda value: None if value == NONE else value)
"""Accepts ``none`` for a value that may be missing."""
KIB, MIB, GIB = ByteSize(2**10), ByteSize(2**20), ByteSize(2**30)

Duration = Annotated[timedelta, BeforeValidator(parse_duration)]


def bounded(description: str, default: Any, least: Any, most: Any) -> Any:
    """A setting with inclusive bounds."""
    return Field(default=default, ge=least, le=most, description=description)


def optional(description: str, **bounds: Any) -> Any:
    """A setting without a default value."""
    return Field(default=None, description=description, **bounds)


def switch(description: str, *, default: bool = False) -> Any:
    """A setting that is true or false."""
    return Field(default=default, description=description)


def checked(is_valid: Callable[[str], object], problem: str) -> AfterValidator:
    """Refuses a text that is not valid; ``problem`` may contain ``{value!r}``."""

    def check(value: str | None) -> str | None:
        if value is not None and not is_valid(value):
            raise ValueError(problem.format(value=value))
        return value

    return AfterValidator(check)


def lower(value: object) -> object:
    """A choice in any case."""
    return value.lower() if isinstance(value, str) else value


def split_list(value: object) -> object:
    """A list that is written as one text, as in the environment: ``a,b``."""
    if not isinstance(value, str):
        return value
    return [item.strip() for item in value.split(",") if item.strip()]


def split_optional_list(value: object) -> object:
    """A list that may be empty, which is written ``none``."""
    return () if value == NONE else split_list(value)


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


class Contradictions(ValueError):
    """Settings that are valid alone but not together."""

    def __init__(self, messages: Sequence[str]) -> None:
        self.messages = tuple(messages)
        super().__init__("; ".join(messages))


class Section(BaseModel):
    """A frozen group of settings that checks which of them must agree."""

    # Inputs are left out of pydantic's own errors, because some of them are secrets.
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True
    )

    def contradictions(self) -> Iterator[str]:
        """A message for each pair of settings that contradict each other."""
        return iter(())

    @model_validator(mode="after")
    def _check_contradictions(self) -> Self:
        if messages := list(self.contradictions()):
            raise Contradictions(messages)
        return self


def policy_problems(section: str, build: Callable[[], object]) -> Iterator[str]:
    """The rule of a core policy that a section's values break, if there is one."""
    try:
        build()
    except ValueError as error:
        yield f"{section}: {error}"
