"""The content of a message, and that no message can do harm."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.queues import (
    BODY_LIMIT_CHARACTERS,
    MalformedMessage,
    message_body,
    parse_message,
)

TASK_IDS = st.from_regex(r"[A-Za-z0-9_-]{1,256}", fullmatch=True)


@given(TASK_IDS)
def test_a_message_names_its_task(task_id: str) -> None:
    assert json.loads(message_body(task_id)) == {"requestId": task_id}
    assert parse_message(message_body(task_id)) == task_id


def test_other_content_of_a_message_is_ignored() -> None:
    assert parse_message('{"priority": [1, {}], "requestId": "job-1_a"}') == "job-1_a"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ('{"requestId": ' + "9" * 5_000 + "}", "not JSON"),
        ("[]", "not a JSON object"),
        ('"job-1_a"', "not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "requestId must match [A-Za-z0-9_-]{1,256}"),
        ('{"requestId": 7}', "requestId must match [A-Za-z0-9_-]{1,256}"),
        ('{"requestId": "a b"}', "requestId must match [A-Za-z0-9_-]{1,256}"),
        ('{"requestId": "a\\n"}', "requestId must match [A-Za-z0-9_-]{1,256}"),
    ],
    ids=lambda text: text[:30],
)
def test_a_message_that_names_no_task_says_why(body: str, reason: str) -> None:
    malformed = parse_message(body)

    assert malformed == MalformedMessage(reason, body[:200])


def test_a_message_is_read_up_to_the_limit_and_not_beyond() -> None:
    longest = message_body("a").ljust(BODY_LIMIT_CHARACTERS)

    too_long = parse_message(longest + " ")

    assert parse_message(longest) == "a"
    assert isinstance(too_long, MalformedMessage)
    assert too_long.reason == f"longer than {BODY_LIMIT_CHARACTERS} characters"
    assert len(too_long.excerpt) == 200


@given(st.text(max_size=300))
def test_no_text_at_all_makes_reading_fail(body: str) -> None:
    assert isinstance(parse_message(body), str | MalformedMessage)
