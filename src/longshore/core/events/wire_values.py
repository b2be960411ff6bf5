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

from longshore.core.documents import Document
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
class PropertyDoc:
    """A property as the reference lists it; what is inside others is listed with its path."""

    name: str  # such as "requestId", "usage.turns" or "tasks[].taskId"
    kind: str
    optional: bool  # may be left out


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueKind:
    """A kind of value: what the reference calls it, and how it is written and read."""

    name: str
    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any] | None = None  # None: the value travels as it is
    accepts_null: bool = False  # a null on the wire is a value, not the lack of one
    writes_none: bool = False  # None has a form of its own and is not left out
    placeholder: Any = None  # stands on the wire for a value that is kept elsewhere
    inner_docs: tuple[PropertyDoc, ...] = ()  # what is inside


def to_ms(moment: datetime) -> int:
    """Whole milliseconds since 1970."""
    return (moment - _EPOCH) // _MILLISECOND


def from_ms(value: Any) -> datetime:
    """The inverse of ``to_ms``, in UTC."""
    try:
        return _EPOCH + timedelta(milliseconds=read_integer(value))
    except OverflowError:
        raise expected_error("a moment that a calendar has") from None


def read_text(value: Any) -> str:
    """A string and nothing else."""
    if isinstance(value, str):
        return value
    raise expected_error("a string")


def read_integer(value: Any) -> int:
    """An integer; a boolean is none."""
    if type(value) is int:
        return value
    raise expected_error("an integer")


def read_object(value: Any) -> Mapping[str, Any]:
    """A JSON object."""
    if isinstance(value, Mapping):
        return value
    raise expected_error("an object")


def expected_error(what: str) -> UsageError:
    """The end of the sentence that says which field is wrong."""
    return UsageError(f": expected {what}")


def nested_error(path: str, error: UsageError) -> UsageError:
    """The same sentence, told from one level further out."""
    return UsageError(f"{path}{error}")


def _read_number(value: Any) -> float:
    # A store may hand back 0 for 0.0.
    if type(value) in (int, float):
        return float(value)
    raise expected_error("a number")


def _duration_ms(value: timedelta) -> int:
    return value // _MILLISECOND


def _read_duration(value: Any) -> timedelta:
    try:
        return timedelta(milliseconds=read_integer(value))
    except OverflowError:
        raise expected_error("a shorter duration") from None


def _read_statuses(value: Any) -> dict[str, str | None]:
    for key, status in read_object(value).items():
        if not isinstance(key, str) or not isinstance(status, str | None):
            raise expected_error("a string or null for each name")
    return dict(value)


def document_to_wire(document: Document) -> Any:
    """The JSON itself, or a reference to where it is kept."""
    if document.text is None:
        return {_REFERENCE: {"key": document.key, "size": document.size}}
    value, _ = _parse(document.text.lstrip())
    return {_LITERAL: value} if _is_wrapped(value) else value


def document_from_wire(value: Any) -> Document:
    """The inverse of ``document_to_wire``; JSON that stands here comes back in compact form."""
    if not _is_wrapped(value):
        return _inline_document(value)
    if _LITERAL in value:
        return _inline_document(value[_LITERAL])
    reference = value[_REFERENCE]
    if not isinstance(reference, Mapping):
        raise expected_error("a reference with key and size")
    return Document(key=read_text(reference.get("key")), size=read_integer(reference.get("size")))


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and not _WRAPPERS.isdisjoint(value)


_WRAPPERS = frozenset({_REFERENCE, _LITERAL})


def _inline_document(value: Any) -> Document:
    try:
        written = _compact(value)
        size = len(written.encode())
    except UnicodeEncodeError:
        # Half a surrogate pair has no bytes of its own; its escape has.
        written = _compact_ascii(value)
        size = len(written)
    except (TypeError, ValueError, RecursionError):
        raise expected_error("a JSON value") from None
    return Document(text=written, size=size)


STRING = ValueKind(name="string", decode=read_text)
INTEGER = ValueKind(name="integer", decode=read_integer)
NUMBER = ValueKind(name="number", decode=_read_number)
MOMENT = ValueKind(name="milliseconds since epoch", decode=from_ms, encode=to_ms)
DURATION = ValueKind(name="milliseconds", decode=_read_duration, encode=_duration_ms)
STATUSES = ValueKind(name="object", decode=_read_statuses, encode=dict, placeholder={})
DOCUMENT = ValueKind(
    name="JSON", decode=document_from_wire, encode=document_to_wire, accepts_null=True
)


def nullable_decoder(kind: ValueKind) -> Callable[[Any], Any]:
    """The kind's reader, for a place where a null says that there is no value."""
    if kind.accepts_null:
        return kind.decode
    decode = kind.decode
    return lambda value: None if value is None else decode(value)


def list_of(item: ValueKind) -> ValueKind:
    """A list of one kind, a tuple in Python."""
    encode, decode_item = item.encode, item.decode

    def decode(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise expected_error("a list")
        items = []
        for index, each in enumerate(value):
            try:
                items.append(decode_item(each))
            except UsageError as wrong:
                raise nested_error(f"[{index}]", wrong) from None
        return tuple(items)

    return ValueKind(
        name=f"list of {item.name}s",
        decode=decode,
        encode=list if encode is None else lambda items: [encode(each) for each in items],
        placeholder=(),
        inner_docs=tuple(replace(part, name=f"[]{part.name}") for part in item.inner_docs),
    )
