"""How each kind of value looks on the wire, both ways.

Moments and durations are whole milliseconds, a document is the JSON that it holds. A value that is
not of its kind is refused with the end of a sentence (``: expected …``); whoever knows where the
value stood puts the place before it, so the finished message names the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.core.values import Document
from longshore.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

# A result may itself look like a reference, and must not become one: that would let a task read
# whatever the key names. So JSON that looks like either of these marks is wrapped once more.
_REFERENCE = "_ref"
_LITERAL = "_literal"

# Unlike ``decode`` it does not look for what comes after, which takes as long as parsing: an
# inline document is JSON by the time it is in an event.
_parse = json.JSONDecoder().raw_decode
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_compact_ascii = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A property as the reference lists it; what is inside others is listed with its path."""

    name: str  # such as "requestId", "usage.turns" or "tasks[].taskId"
    kind: str
    optional: bool  # may be left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of value: what the reference calls it, and how it is written and read."""

    name: str
    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any] | None = None  # None: the value travels as it is
    takes_null: bool = False  # a null on the wire is a value, not the lack of one
    writes_none: bool = False  # None has a form of its own and is not left out
    blank: Any = None  # stands on the wire for a value that is kept elsewhere
    parts: tuple[Part, ...] = ()  # what is inside


def ms_of(moment: datetime) -> int:
    """Whole milliseconds since 1970."""
    return (moment - _EPOCH) // _MILLISECOND


def moment_of(value: Any) -> datetime:
    """The inverse of ``ms_of``, in UTC."""
    try:
        return _EPOCH + timedelta(milliseconds=whole(value))
    except OverflowError:
        raise expected("a moment that a calendar has") from None


def text(value: Any) -> str:
    """A string and nothing else."""
    if isinstance(value, str):
        return value
    raise expected("a string")


def whole(value: Any) -> int:
    """An integer; a boolean is none."""
    if type(value) is int:
        return value
    raise expected("an integer")


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object."""
    if isinstance(value, Mapping):
        return value
    raise expected("an object")


def expected(what: str) -> UsageError:
    """The end of the sentence that says which field is wrong."""
    return UsageError(f": expected {what}")


def inside(place: str, wrong: UsageError) -> UsageError:
    """The same sentence, told from one level further out."""
    return UsageError(f"{place}{wrong}")


def _number(value: Any) -> float:
    # A store may hand back 0 for 0.0.
    if type(value) in (int, float):
        return float(value)
    raise expected("a number")


def _duration_ms(value: timedelta) -> int:
    return value // _MILLISECOND


def _duration(value: Any) -> timedelta:
    try:
        return timedelta(milliseconds=whole(value))
    except OverflowError:
        raise expected("a shorter duration") from None


def _statuses(value: Any) -> dict[str, str | None]:
    for key, status in mapping(value).items():
        if not isinstance(key, str) or not isinstance(status, str | None):
            raise expected("a string or null for each name")
    return dict(value)


def document_to_wire(kept: Document) -> Any:
    """The JSON itself, or a reference to where it is kept."""
    if kept.text is None:
        return {_REFERENCE: {"key": kept.key, "size": kept.size}}
    value, _ = _parse(kept.text.lstrip())
    return {_LITERAL: value} if _marked(value) else value


def document(value: Any) -> Document:
    """The inverse of ``document_to_wire``; JSON that stands here comes back in compact form."""
    if not _marked(value):
        return _inline(value)
    if _LITERAL in value:
        return _inline(value[_LITERAL])
    reference = value[_REFERENCE]
    if not isinstance(reference, Mapping):
        raise expected("a reference with key and size")
    return Document(key=text(reference.get("key")), size=whole(reference.get("size")))


def _marked(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and not _MARKS.isdisjoint(value)


_MARKS = frozenset({_REFERENCE, _LITERAL})


def _inline(value: Any) -> Document:
    try:
        written = _compact(value)
        size = len(written.encode())
    except UnicodeEncodeError:
        # Half a surrogate pair has no bytes of its own; its escape has.
        written = _compact_ascii(value)
        size = len(written)
    except (TypeError, ValueError, RecursionError):
        raise expected("a JSON value") from None
    return Document(text=written, size=size)


STRING = Kind(name="string", decode=text)
INTEGER = Kind(name="integer", decode=whole)
NUMBER = Kind(name="number", decode=_number)
MOMENT = Kind(name="milliseconds since epoch", decode=moment_of, encode=ms_of)
DURATION = Kind(name="milliseconds", decode=_duration, encode=_duration_ms)
STATUSES = Kind(name="object", decode=_statuses, encode=dict, blank={})
DOCUMENT = Kind(name="JSON", decode=document, encode=document_to_wire, takes_null=True)


def or_null(kind: Kind) -> Callable[[Any], Any]:
    """The kind's reader, for a place where a null says that there is no value."""
    if kind.takes_null:
        return kind.decode
    decode = kind.decode
    return lambda value: None if value is None else decode(value)


def list_of(item: Kind) -> Kind:
    """A list of one kind, a tuple in Python."""
    encode, decode_item = item.encode, item.decode

    def decode(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise expected("a list")
        items = []
        for index, each in enumerate(value):
            try:
                items.append(decode_item(each))
            except UsageError as wrong:
                raise inside(f"[{index}]", wrong) from None
        return tuple(items)

    return Kind(
        name=f"list of {item.name}s",
        decode=decode,
        encode=list if encode is None else lambda items: [encode(each) for each in items],
        blank=(),
        parts=tuple(replace(part, name=f"[]{part.name}") for part in item.parts),
    )
