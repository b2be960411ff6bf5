"""What a blob may be called, and that our own names are such and never meet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.documents import (
    KEY_LIMIT_BYTES,
    attempt_file_key,
    conversation_part_key,
    job_blob_prefixes,
    safe_name,
    submitted_document_key,
    task_document_key,
    validate_key,
)
from longshore.errors import UsageError

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)


@pytest.mark.parametrize(
    "key", ["a", "jobs/a/input.json", "a b/ü", "...", ".a/..b", "a" * KEY_LIMIT_BYTES]
)
def test_a_key_comes_back_as_it_is(key: str) -> None:
    assert validate_key(key) == key


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
        validate_key(key)

    assert len(str(caught.value)) < 600


@given(NAMES, NAMES)
def test_our_own_names_are_keys(key: str, name: str) -> None:
    validate_key(submitted_document_key("job-a", "0" * 64, f"{key}/{name}"))
    validate_key(task_document_key("job-a", key, f"steps/{name}"))


def test_two_bodies_of_one_job_have_two_places() -> None:
    key = submitted_document_key("job-a", "a" * 64, "a/input")
    other = submitted_document_key("job-a", "b" * 64, "a/input")

    assert key != other


@given(NAMES, NAMES, NAMES)
def test_what_was_submitted_never_meets_what_a_task_made(key: str, name: str, hash_: str) -> None:
    assert submitted_document_key("job-a", hash_, f"{key}/{name}") != task_document_key(
        "job-a", key, name
    )


def test_two_tasks_and_two_names_have_their_own_places() -> None:
    places = {
        task_document_key("job-a", "a", "result-1"),
        task_document_key("job-a", "a", "result-2"),
        task_document_key("job-a", "b", "result-1"),
        task_document_key("job-b", "a", "result-1"),
    }

    assert len(places) == 4


def test_files_of_two_attempts_have_two_places_below_their_task() -> None:
    assert (
        attempt_file_key("job-a_b", 2, "artifacts/c") == "task/logs/job-a_b/attempt-2/artifacts/c"
    )
    assert not attempt_file_key("job-a_b", 12, "x").startswith(attempt_file_key("job-a_b", 1, ""))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a", "a"),
        ("a/b c/ü.csv", "a/b c/ü.csv"),
        ("...", "..."),
        ("/a/b/", "a/b"),
        ("./a//b/.", "a/b"),
    ],
)
def test_an_ordinary_path_keeps_its_name(path: str, name: str) -> None:
    assert safe_name(path) == name


@pytest.mark.parametrize("path", ["", "/", "..", "a/../b", "a\nb", "\udcff", "\x1b[31m", "x" * 601])
def test_a_path_that_has_to_be_changed_is_marked(path: str) -> None:
    assert "~" in safe_name(path)


@given(st.text())
def test_every_path_has_a_safe_name_that_stays_as_it_is(path: str) -> None:
    name = safe_name(path)

    assert validate_key(attempt_file_key("x" * 256, 10**9, name)).endswith(name)
    assert ".." not in name.split("/")
    assert safe_name(name) == name


@given(st.lists(st.sampled_from(["a", "_", "..", "\n", "\r"]), max_size=3), st.text(max_size=3))
def test_two_paths_that_would_look_the_same_have_two_names(parts: list[str], end: str) -> None:
    path = "/".join(["a", *parts, f"{end}z"])
    other = path.replace("\n", "\t").replace("..", "\v")

    assert (safe_name(path) == safe_name(other)) == (path == other)


def test_parts_of_conversations_stand_in_the_order_in_which_they_came() -> None:
    places = [(1, 2), (1, 10), (2, 1), (10, 1)]
    keys = [conversation_part_key("job-1", "a", attempt=key, number=two) for key, two in places]

    assert keys == sorted(keys)
    assert all(key.startswith(conversation_part_key("job-1", "a")) for key in keys)
    assert [validate_key(key) for key in keys] == keys


def test_the_prefixes_of_a_job_have_its_blobs_and_those_of_no_other() -> None:
    prefixes = job_blob_prefixes("job-a")

    for key in (
        "jobs/job-a/tasks/x/input.json",
        "events/job-a/1-payload.json",
        "events/job-a_x/1-payload.json",
        attempt_file_key("job-a_x", 1, "artifacts/report"),
    ):
        assert key.startswith(prefixes)
    for key in ("jobs/job-ab/x", "events/job-ab/x", attempt_file_key("job-ab_x", 1, "y")):
        assert not key.startswith(prefixes)
