"""Calls become a job: each call one task, each call in an argument a dependency."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import longshore
from longshore.core.jobs.submission import read_job
from longshore.errors import UsageError
from longshore.interfaces.python.calls import Call, CallGraph, prepare_job
from tests.interfaces.python_tasks import anything, count, fetch, total


def document_of(*calls: Call[Any]) -> dict[str, Any]:
    document = CallGraph.from_calls(calls).document()
    read_job(document, limit=10_000)
    return document


def keys_of(*calls: Call[Any]) -> list[str]:
    return [task["taskId"] for task in document_of(*calls)["tasks"]]


def test_one_call_is_a_job_of_one_task() -> None:
    assert document_of(fetch.of("a")) == {
        "name": "fetch",
        "tasks": [
            {"taskId": "fetch", "name": fetch.name, "input": {"kwargs": {"url": "a"}}},
        ],
    }


def test_a_call_in_an_argument_is_a_dependency_and_listed_first() -> None:
    first, second = document_of(count.of(fetch.of("a")))["tasks"]

    assert first["taskId"] == "fetch"
    assert second["dependsOn"] == ["fetch"]
    assert second["input"] == {"kwargs": {"pages": {"$longshore.result": "fetch"}}}


def test_calls_are_found_in_lists_and_dicts_beside_other_values() -> None:
    sites = {"a": fetch.of("a"), "b": [fetch.of("b"), ("x", fetch.of("c"))], "c": ["page"]}

    *_, last = document_of(total.of(sites))["tasks"]

    assert last["dependsOn"] == ["fetch-1", "fetch-2", "fetch-3"]
    assert last["input"]["kwargs"]["sites"] == {
        "a": {"$longshore.result": "fetch-1"},
        "b": [{"$longshore.result": "fetch-2"}, ["x", {"$longshore.result": "fetch-3"}]],
        "c": ["page"],
    }


def test_a_call_that_is_used_twice_is_one_task() -> None:
    pages = fetch.of("a")

    tasks = document_of(total.of({"a": pages, "b": pages}), count.of(pages))["tasks"]

    assert [task["taskId"] for task in tasks] == ["fetch", "total", "count"]
    assert tasks[1]["dependsOn"] == ["fetch"]


def test_two_calls_with_the_same_arguments_are_two_tasks() -> None:
    assert keys_of(fetch.of("a"), fetch.of("a")) == ["fetch-1", "fetch-2"]


def test_keys_are_the_same_each_time() -> None:
    def build() -> list[str]:
        return keys_of(total.of({site: fetch.of(site) for site in "abc"}), count.of([]))

    assert build() == build() == ["fetch-1", "fetch-2", "fetch-3", "total", "count"]


def test_a_key_can_be_set_and_generated_keys_avoid_it() -> None:
    calls = [
        fetch.of("a").with_options(key="fetch-1"),
        fetch.of("b"),
        fetch.of("c"),
        count.of([]).with_options(key="total"),
        total.of({}),
    ]

    assert keys_of(*calls) == ["fetch-1", "fetch-2", "fetch-3", "total", "total-1"]


def test_a_key_that_two_calls_set_is_refused() -> None:
    calls = [fetch.of("a").with_options(key="x"), fetch.of("b").with_options(key="x")]

    with pytest.raises(UsageError, match="2 tasks of the job have the key 'x'"):
        CallGraph.from_calls(calls)


def test_a_function_name_that_is_not_a_valid_key_is_converted() -> None:
    def größe() -> int:
        return 1

    long = longshore.task(größe)
    long.__name__ = "größe" * 50

    assert keys_of(long.of()) == [("gr__e" * 50)[:100]]


def test_a_call_can_wait_for_another_without_its_result() -> None:
    load = fetch.of("a")

    *_, last = document_of(count.of(load).with_options(after=[load, fetch.of("b")]))["tasks"]

    assert last["dependsOn"] == ["fetch-1", "fetch-2"]


def test_options_of_a_call_are_set_on_its_task() -> None:
    moment = datetime(2030, 1, 31, 12, tzinfo=UTC)
    call = fetch.of("a").with_options(queue="slow", priority="low", max_attempts=1, delay="5m")

    (task,) = document_of(call)["tasks"]
    (timed,) = document_of(fetch.of("a").with_options(run_at=moment))["tasks"]

    assert {name: task[name] for name in ("queue", "priority", "maxAttempts", "delay")} == {
        "queue": "slow",
        "priority": "low",
        "maxAttempts": 1,
        "delay": 300,
    }
    assert timed["runAt"] == "2030-01-31T12:00:00+00:00"


def test_with_options_returns_a_new_call_and_does_not_change_the_old_one() -> None:
    call = fetch.of("a").with_options(queue="slow")

    other = call.with_options(key="x")

    assert (call.key, call.options) == (None, {"queue": "slow"})
    assert (other.key, other.options) == ("x", {"queue": "slow"})
    assert call != other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "two words"}, "is not a key: use 1 to 128"),
        ({"key": ""}, "is not a key: use 1 to 128"),
        ({"delay": "soon"}, "delay: 'soon' is not a duration"),
        ({"run_at": datetime(2030, 1, 1)}, "with a time zone"),  # noqa: DTZ001 - the point
        ({"run_at": "tomorrow"}, "with a time zone"),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "either `delay` or `run_at`"),
        ({"after": ["fetch"]}, "expected a call"),
    ],
)
def test_invalid_options_of_a_call_are_refused_when_they_are_set(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        fetch.of("a").with_options(**options)


@pytest.mark.parametrize("work", [5, "fetch", fetch, [5], []])
def test_a_value_that_is_not_a_call_cannot_be_submitted(work: Any) -> None:
    with pytest.raises(UsageError, match=r"expected a call|no task to submit"):
        prepare_job(work, {})


def test_a_call_shows_what_it_would_do() -> None:
    assert repr(count.of(fetch.of("a", 2))) == "count.of(pages=fetch.of(url='a', depth=2))"


def test_a_chain_of_thousands_of_calls_is_an_ordinary_job() -> None:
    call = anything.of(0)
    for _ in range(5_000):
        call = anything.of(call)

    tasks = document_of(call)["tasks"]

    assert len(tasks) == 5_001
    assert tasks[-1]["dependsOn"] == ["anything-5000"]


def test_options_of_a_job_apply_to_tasks_that_do_not_set_them() -> None:
    pages = fetch.of("a").with_options(queue="own")
    ready = prepare_job(count.of(pages), {"queue": "all", "priority": "high", "name": "night"})

    first, second = ready.document["tasks"]

    assert ready.document["name"] == "night"
    assert (first["queue"], first["priority"]) == ("own", "high")
    assert (second["queue"], second["priority"]) == ("all", "high")


def test_a_job_begins_late_with_its_roots() -> None:
    timed = fetch.of("b").with_options(delay=1)
    ready = prepare_job(total.of({"a": fetch.of("a"), "b": timed}), {"delay": timedelta(minutes=1)})

    first, second, last = ready.document["tasks"]

    assert (first["delay"], second["delay"]) == (60, 1)
    assert "delay" not in last


def test_a_document_is_sent_unchanged_except_for_the_options() -> None:
    document = {"name": "mine", "tasks": [{"taskId": "a", "name": "command"}, "broken"]}

    ready = prepare_job(document, {"priority": "low"})

    assert ready.document == {
        "name": "mine",
        "tasks": [{"taskId": "a", "name": "command", "priority": "low"}, "broken"],
    }
    assert prepare_job({"tasks": None}, {"name": "x"}).document == {"tasks": None, "name": "x"}
    assert document["tasks"][0] == {"taskId": "a", "name": "command"}


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"no option is called 'prio'; the options are queue, priority"
    ):
        prepare_job(fetch.of("a"), {"prio": "low"})


def test_two_functions_with_one_name_are_refused() -> None:
    twin = longshore.task(name=fetch.name, queue="other")(count.__wrapped__)
    twin.definition = lambda: fetch.definition(in_process=True)

    with pytest.raises(UsageError, match="two task functions are named"):
        prepare_job([fetch.of("a"), twin.of([])], {})


def test_every_definition_that_a_job_needs_goes_with_it_once() -> None:
    ready = prepare_job(total.of({"a": fetch.of("a"), "b": fetch.of("b")}), {})

    assert [definition.name for definition in ready.definitions] == [fetch.name, total.name]
