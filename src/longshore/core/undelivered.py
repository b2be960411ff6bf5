"""Events that did not get to whoever should hear of them: how they are known, kept and told.

The bus gives up after some tries, and a consumer's queue after some receives; what could not be
read is no better off. All of it comes as a message whose body is the event as it travelled, or
whatever else somebody has sent. It is kept as it came, so that it can be brought out again when
its reader has been mended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from longshore.core.documents import safe_name
from longshore.core.events.wire import (
    expected_error,
    from_ms,
    nested_error,
    read_object,
    read_text,
    to_ms,
)
from longshore.errors import UsageError

KEY_PREFIX = "undelivered/"
"""What the keys of all that is kept begin with."""

_FILE = ".json"
_FORMAT = 1
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredEvent:
    """A message that holds an event which was not delivered, as it came."""

    message_id: str
    sent_at: datetime
    body: str
    source: str  # where it should have gone, or where it lay
    reason: str

    @property
    def id(self) -> str:
        """By which it is kept; in the order of time."""
        return f"{to_ms(self.sent_at):015d}-{safe_name(self.message_id.replace('/', '_'))}"

    @property
    def key(self) -> str:
        """Where it is kept."""
        return f"{KEY_PREFIX}{self.id}{_FILE}"

    def facts(self) -> UndeliveredFacts:
        """What can be told of the event, as far as it can be read."""
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
    """What an undelivered event is about; ``unknown`` where it does not say."""

    event_type: str
    detail_type: str
    entity: str
    tenant: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredNotice:
    """Undelivered events of one tenant, of which one channel is to be told."""

    tenant: str
    at: datetime
    events: tuple[UndeliveredEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredRecord:
    """An undelivered event, and who was told of it."""

    event: UndeliveredEvent
    notified: frozenset[str] = frozenset()  # names of channels


def id_of_key(key: str) -> str:
    """The id of what is kept under this key."""
    return key.removeprefix(KEY_PREFIX).removesuffix(_FILE)


def key_of_id(letter_id: str) -> str:
    """The inverse of ``id_of_key``."""
    return f"{KEY_PREFIX}{letter_id}{_FILE}"


def record_to_json(record: UndeliveredRecord) -> bytes:
    """As it is kept."""
    letter = record.event
    document = {
        "format": _FORMAT,
        "messageId": letter.message_id,
        "sentAt": to_ms(letter.sent_at),
        "source": letter.source,
        "reason": letter.reason,
        "notified": sorted(record.notified),
        "body": letter.body,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def record_from_json(data: bytes) -> UndeliveredRecord:
    """The inverse of ``record_to_json``.

    Raises:
        UsageError: it is not what that wrote.
    """
    try:
        document = read_object(json.loads(data))
        if document.get("format") != _FORMAT:
            raise expected_error(f"format {_FORMAT}")
        return UndeliveredRecord(
            event=UndeliveredEvent(
                message_id=read_text(document.get("messageId")),
                sent_at=from_ms(document.get("sentAt")),
                body=read_text(document.get("body")),
                source=read_text(document.get("source")),
                reason=read_text(document.get("reason")),
            ),
            notified=frozenset(read_text(name) for name in document.get("notified") or ()),
        )
    except (ValueError, TypeError, RecursionError) as error:
        message = "an undelivered event: expected JSON"
        raise UsageError(message) from error
    except UsageError as wrong:
        raise nested_error("an undelivered event", wrong) from None


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
