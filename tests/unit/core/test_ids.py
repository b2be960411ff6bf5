"""What ids look like, and that the same thing always has the same one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.ids import (
    JOB_PREFIX,
    REQUEST_ID_LIMIT,
    REQUEST_PREFIX,
    check_request_id,
    format_id,
    is_name,
    is_task_id,
    job_id_of,
    new_request_id,
    parse_id,
    split_task_id,
    task_id_of,
    traceparent_of,
)
from longshore.errors import UsageError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KEYS = st.text("abcXYZ019_-", min_size=1, max_size=128)
NUMBERS = st.integers(0, 2**120 - 1)
TIMES = st.integers(0, 2**48 - 1)
BITS = st.integers(0, 2**72 - 1)


def test_a_job_id_is_a_hash_that_never_changes() -> None:
    # The rows of every installation hang on this.
    assert job_id_of("acme", "request-1") == "job-hh4fp24s47mp3jagndmuuv0f"


@given(TEXTS, TEXTS)
def test_a_job_id_has_no_underscore_and_fits_a_name(tenant: str, request_id: str) -> None:
    assert re.fullmatch(r"job-[0-9a-v]{24}", job_id_of(tenant, request_id))


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_two_requests_have_the_same_job_only_if_they_are_the_same(
    tenant: str, request_id: str, other_tenant: str, other_id: str
) -> None:
    same = (tenant, request_id) == (other_tenant, other_id)

    assert (job_id_of(tenant, request_id) == job_id_of(other_tenant, other_id)) == same


def test_letters_that_move_from_the_tenant_to_the_request_make_another_job() -> None:
    assert job_id_of("ab", "c") != job_id_of("a", "bc")


@given(NUMBERS)
def test_the_number_of_an_id_is_read_back(number: int) -> None:
    text = format_id(JOB_PREFIX, number)

    assert re.fullmatch(r"job-[0-9a-v]{24}", text)
    assert parse_id(JOB_PREFIX, text) == number
    assert parse_id(REQUEST_PREFIX, text) is None


@given(NUMBERS, NUMBERS)
def test_ids_sort_like_their_numbers(first: int, second: int) -> None:
    texts = [format_id(JOB_PREFIX, number) for number in (first, second)]

    assert (texts[0] < texts[1]) == (first < second)


@pytest.mark.parametrize(
    "digits", ["", "0" * 23, "0" * 25, "w" + "0" * 23, "A" * 24, "_" + "0" * 23, "0" * 24 + "\n"]
)
def test_a_text_of_another_form_has_no_number(digits: str) -> None:
    assert parse_id(JOB_PREFIX, JOB_PREFIX + digits) is None
    assert parse_id(JOB_PREFIX, digits) is None


@given(TIMES, BITS)
def test_a_request_id_that_was_drawn_has_its_time_and_its_random_bits(ms: int, bits: int) -> None:
    drawn = parse_id(REQUEST_PREFIX, new_request_id(ms, bits))

    assert drawn is not None
    assert divmod(drawn, 2**72) == (ms, bits)


@given(TIMES, BITS, st.sampled_from(["acme", "other"]))
def test_the_job_of_a_drawn_request_has_its_time_and_a_hash(
    ms: int, bits: int, tenant: str
) -> None:
    number = parse_id(JOB_PREFIX, job_id_of(tenant, new_request_id(ms, bits)))

    assert number is not None
    assert number >> 72 == ms
    assert number & (2**72 - 1) != bits


def test_the_same_drawn_request_of_two_tenants_is_two_jobs() -> None:
    request_id = new_request_id(1, 2)

    assert job_id_of("acme", request_id) != job_id_of("other", request_id)


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


def test_each_attempt_has_a_trace_context_of_its_own_in_the_trace_of_its_job() -> None:
    job_id = job_id_of("acme", "a request")
    contexts = [
        traceparent_of(job, f"{job}_{key}", attempt)
        for job in (job_id, job_id_of("acme", "another"), "job-a")
        for key in ("a", "b")
        for attempt in (1, 2)
    ]
    traces, spans = ([text.split("-")[part] for text in contexts] for part in (1, 2))

    assert all(re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", text) for text in contexts)
    assert [len(set(traces[start : start + 4])) for start in (0, 4, 8)] == [1, 1, 1]
    assert (len(set(traces)), len(set(spans))) == (3, 12)
    assert contexts[0] == traceparent_of(job_id, f"{job_id}_a", 1)
    assert "0" * 16 not in spans
