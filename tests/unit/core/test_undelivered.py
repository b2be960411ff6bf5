"""Undelivered events: their facts and their stored form."""

import json
from dataclasses import replace
from typing import Any

import pytest

from longshore.core.undelivered import (
    UndeliveredEvent,
    UndeliveredFacts,
    id_of_key,
    key_of_id,
    undelivered_from_json,
    undelivered_to_json,
)
from longshore.errors import UsageError
from tests.factories import NOON, SECOND

ENVELOPE = {
    "detail-type": "log-event",
    "detail": {
        "eventType": "Task Completed",
        "entityType": "TASK",
        "entityId": "job-abc_a",
        "tenantId": "acme",
        "timestamp": int((NOON - SECOND).timestamp() * 1000),
    },
}


def a_letter(body: Any = ENVELOPE, message_id: str = "message-1") -> UndeliveredEvent:
    text = body if isinstance(body, str) else json.dumps(body)
    return UndeliveredEvent(
        message_id=message_id, sent_at=NOON, body=text, source="history", reason="too often"
    )


def test_the_facts_are_those_that_can_be_read() -> None:
    assert a_letter().facts() == UndeliveredFacts(
        event_type="Task Completed",
        detail_type="log-event",
        entity="TASK#job-abc_a",
        tenant="acme",
        at=NOON - SECOND,
    )


@pytest.mark.parametrize(
    "body",
    ["nonsense", "[]", "{}", '{"detail": 7}', '{"detail": {"entityId": "", "timestamp": "soon"}}'],
)
def test_of_what_cannot_be_read_only_that_it_came_is_known(body: str) -> None:
    assert a_letter(body).facts() == UndeliveredFacts(
        event_type="unknown", detail_type="unknown", entity="unknown", tenant=None, at=NOON
    )


def test_ids_are_in_the_order_of_time_and_name_a_place_below_one_folder() -> None:
    letter = a_letter(message_id="../../a b")

    assert letter.id.startswith(f"{int(NOON.timestamp() * 1000):015d}-")
    assert letter.key.startswith("undelivered/")
    assert "/" not in letter.id
    assert (id_of_key(letter.key), key_of_id(letter.id)) == (letter.id, letter.key)


def test_a_stored_record_is_read_unchanged() -> None:
    stored = replace(a_letter(), notified=("slack", "webhook"))

    assert undelivered_from_json(undelivered_to_json(stored)) == stored


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "format 1"),
        ({"messageId": None}, "an undelivered event"),
        ({"sentAt": "soon"}, "an undelivered event"),
        ({"notified": 7}, "notified: expected a list"),
    ],
)
def test_what_is_not_what_was_kept_is_refused(change: dict[str, Any], problem: str) -> None:
    document = json.loads(undelivered_to_json(a_letter())) | change

    with pytest.raises(UsageError, match=problem):
        undelivered_from_json(json.dumps(document).encode())


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(UsageError, match="expected JSON"):
        undelivered_from_json(b"nonsense")
