"""Events that were not delivered to a consumer: how they are identified, stored and reported.

The event bus and the queues of consumers give up after some tries. What they could not deliver
arrives as a message whose body is the event, or anything else that was sent. It is stored as it
was received, so that it can be published again when the consumer is repaired.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from longshore.core.documents import safe_name
from longshore.core.events.codec import (
    WireObject,
    expected_error,
    from_ms,
    nested_error,
    read_object,
    to_ms,
)
from longshore.errors import UsageError

KEY_PREFIX = "undelivered/"
"""Prefix of the blob keys of undelivered events."""

_FILE = ".json"
_FORMAT = 1
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredEvent:
    """A message with an event that was not delivered, as it was received."""

    message_id: str
    sent_at: datetime
    body: str
    source: str  # the consumer or the queue
    reason: str
    notified: tuple[str, ...] = ()  # names of the channels that were notified

    @property
    def id(self) -> str:
        """The id under which it is stored; ids sort by time."""
        return f"{to_ms(self.sent_at):015d}-{safe_name(self.message_id.replace('/', '_'))}"

    @property
    def key(self) -> str:
        """Its blob key."""
        return f"{KEY_PREFIX}{self.id}{_FILE}"

    def facts(self) -> UndeliveredFacts:
        """Returns what the message says about the event."""
        envelope = _object(self.body)
        detail = _mapping(envelope.get("detail"))
        kind, name = detail.get("entityType"), detail.get("entityId")
        return UndeliveredFacts(
            event_type=_text_or_unknown(detail.get("eventType")),
            detail_type=_text_or_unknown(envelope.get("detail-type")),
            entity=f"{kind}#{name}" if isinstance(name, str) and name else _UNKNOWN,
            tenant=detail["tenantId"] if isinstance(detail.get("tenantId"), str) else None,
            at=_moment(detail.get("timestamp")) or self.sent_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredFacts:
    """The subject of an undelivered event; ``unknown`` if its message does not say."""

    event_type: str
    detail_type: str
    entity: str
    tenant: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredNotice:
    """Undelivered events of one tenant, to be sent to one channel."""

    tenant: str
    at: datetime
    events: tuple[UndeliveredEvent, ...]


def id_of_key(key: str) -> str:
    """Returns the id of the undelivered event with this blob key."""
    return key.removeprefix(KEY_PREFIX).removesuffix(_FILE)


def key_of_id(event_id: str) -> str:
    """Returns the blob key of an undelivered event."""
    return f"{KEY_PREFIX}{event_id}{_FILE}"


_EVENT = WireObject(UndeliveredEvent)


def undelivered_to_json(event: UndeliveredEvent) -> bytes:
    """Returns the event in its stored form."""
    document = {"format": _FORMAT, **_EVENT.write(event)}
    return json.dumps(document, separators=(",", ":")).encode()


def undelivered_from_json(data: bytes) -> UndeliveredEvent:
    """Returns the event that ``undelivered_to_json`` wrote.

    Raises:
        UsageError: the data is not such an event.
    """
    try:
        document = read_object(json.loads(data))
        if document.get("format") != _FORMAT:
            raise expected_error(f"format {_FORMAT}")
        event: UndeliveredEvent = _EVENT.read(document)
    except (ValueError, RecursionError) as error:
        raise UsageError("an undelivered event: expected JSON") from error
    except UsageError as error:
        raise nested_error("an undelivered event", error) from None
    return event


def _object(body: str) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text_or_unknown(value: Any) -> str:
    return value if isinstance(value, str) and value else _UNKNOWN


def _moment(value: Any) -> datetime | None:
    try:
        return from_ms(value)
    except UsageError:
        return None
