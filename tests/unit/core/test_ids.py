"""What ids look like, and that the same thing always has the same one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.ids import (
    REQUEST_ID_LIMIT,
    check_request_id,
    is_name,
    is_task_id,
    job_id_of,
    split_task_id,
    task_id_of,
)
from longshore.errors import UsageError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KEYS = st.text("abcXYZ019_-", min_size=1, max_size=128)


def test_a_job_id_is_a_hash_that_never_changes() -> None:
    # The rows of every installation hang on this.
    assert job_id_of("acme", "request-1") == "job-r7uorwzo23anxwrve5deodfj"


@given(TEXTS, TEXTS)
def test_a_job_id_has_no_underscore_and_fits_a_name(tenant: str, request_id: str) -> None:
    assert re.fullmatch(r"job-[a-z2-7]{24}", job_id_of(tenant, request_id))


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_two_requests_have_the_same_job_only_if_they_are_the_same(
    tenant: str, request_id: str, other_tenant: str, other_id: str
) -> None:
    same = (tenant, request_id) == (other_tenant, other_id)

    assert (job_id_of(tenant, request_id) == job_id_of(other_tenant, other_id)) == same


def test_letters_that_move_from_the_tenant_to_the_request_make_another_job() -> None:
    assert job_id_of("ab", "c") != job_id_of("a", "bc")


@given(TEXTS, KEYS)
def test_a_task_id_comes_apart_into_what_it_was_made_of(request_id: str, key: str) -> None:
    job_id = job_id_of("acme", request_id)

    task_id = task_id_of(job_id, key)

    assert split_task_id(task_id) == (job_id, key)
    assert is_task_id(task_id)


def test_what_is_no_task_id_comes_apart_without_a_key() -> None:
    assert split_task_id("job-a") == ("job-a", "")


@pytest.mark.parametrize("text", ["a", "A-b_9", "x" * 256])
def test_a_well_formed_task_id_is_one(text: str) -> None:
    assert is_task_id(text)


@pytest.mark.parametrize("text", ["", "x" * 257, "a b", "a\n", "ä", "a/b", None, 7, b"a", ["a"]])
def test_anything_else_is_not_a_task_id(text: object) -> None:
    assert not is_task_id(text)


@pytest.mark.parametrize("text", ["a", "A-b_9", "x" * 64])
def test_a_well_formed_name_is_one(text: str) -> None:
    assert is_name(text)


@pytest.mark.parametrize("text", ["", "x" * 65, "a.b", "a\n", None, 7])
def test_anything_else_is_not_a_name(text: object) -> None:
    assert not is_name(text)


@pytest.mark.parametrize("text", ["a", "order 66: größe", "x" * REQUEST_ID_LIMIT])
def test_a_printable_text_can_mark_a_request(text: str) -> None:
    check_request_id(text)


@pytest.mark.parametrize("text", ["", "x" * (REQUEST_ID_LIMIT + 1), "a\nb", "\ud800", None, 7])
def test_anything_else_cannot_mark_a_request(text: object) -> None:
    with pytest.raises(UsageError, match="1 to 256 printable characters"):
        check_request_id(text)
