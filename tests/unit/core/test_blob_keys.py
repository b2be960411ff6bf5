"""What a blob may be called, and that our own names are such and never meet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.blob_keys import (
    KEY_LIMIT_BYTES,
    checked_key,
    submitted_document,
    task_document,
)
from longshore.errors import UsageError

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)


@pytest.mark.parametrize(
    "key", ["a", "jobs/a/input.json", "a b/ü", "...", ".a/..b", "a" * KEY_LIMIT_BYTES]
)
def test_a_key_comes_back_as_it_is(key: str) -> None:
    assert checked_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/./b",
        "a/../b",
        "a\nb",
        "a\0b",
        "\ud800",
        "a" * (KEY_LIMIT_BYTES + 1),
        "ü" * (KEY_LIMIT_BYTES // 2 + 1),
    ],
    ids=repr,
)
def test_what_is_no_key_is_refused_in_a_short_sentence(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_key(key)

    assert len(str(caught.value)) < 600


@given(NAMES, NAMES)
def test_our_own_names_are_keys(key: str, name: str) -> None:
    checked_key(submitted_document("job-a", "0" * 64, f"{key}/{name}"))
    checked_key(task_document("job-a", key, f"steps/{name}"))


def test_two_bodies_of_one_job_have_two_places() -> None:
    one = submitted_document("job-a", "a" * 64, "a/input")
    other = submitted_document("job-a", "b" * 64, "a/input")

    assert one != other


@given(NAMES, NAMES, NAMES)
def test_what_was_submitted_never_meets_what_a_task_made(key: str, name: str, hash_: str) -> None:
    assert submitted_document("job-a", hash_, f"{key}/{name}") != task_document("job-a", key, name)


def test_two_tasks_and_two_names_have_their_own_places() -> None:
    places = {
        task_document("job-a", "a", "result-1"),
        task_document("job-a", "a", "result-2"),
        task_document("job-a", "b", "result-1"),
        task_document("job-b", "a", "result-1"),
    }

    assert len(places) == 4
