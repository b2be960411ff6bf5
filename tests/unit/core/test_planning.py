"""From a request to rows: everything a submit writes, decided before anything is written."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Definition, RunnerKind
from longshore.core.documents import INLINE_LIMIT_BYTES, Document, make_document
from longshore.core.ids import task_id_of
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.jobs.planning import (
    PlanTarget,
    SubmissionPlan,
    initial_target,
    plan_tasks,
)
from longshore.core.jobs.submission import TaskRequest
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.states import Priority
from tests.factories import JOB_ID, NOON, a_job_spec

RETRY = RetryPolicy(max_attempts=5)
OWN = Definition(
    name="own",
    runner=RunnerKind.PYTHON,
    version=7,
    queue="slow",
    priority=Priority.LOW,
    retry=RetryPolicy(max_attempts=2, base=timedelta(seconds=9)),
    retry_on_timeout=True,
    requires_review=True,
)
DEFINITIONS = {**BUILTIN_DEFINITIONS, "own": OWN}


def a_request(key: str = "a", *parents: str, **fields: Any) -> TaskRequest:
    return TaskRequest(**{"key": key, "definition": "command", "parents": parents, **fields})


def planned(*requests: TaskRequest) -> SubmissionPlan:
    return plan_tasks(initial_target(a_job_spec()), requests, DEFINITIONS, retry=RETRY)


def value_in(document: Document | None, blobs: tuple[tuple[str, bytes], ...]) -> Any:
    assert document is not None
    return json.loads(document.text if document.text is not None else dict(blobs)[document.key])


def test_numbers_follow_the_request_and_each_task_awaits_its_parents() -> None:
    plan = planned(a_request("d", "b", "c"), a_request("a"), a_request("b", "a"), a_request("c"))

    assert [task.spec.key for task in plan.tasks] == ["d", "a", "b", "c"]
    assert [task.spec.number for task in plan.tasks] == [0, 1, 2, 3]
    assert [task.awaits for task in plan.tasks] == [
        NumberSet([2, 3]),
        NO_NUMBERS,
        NumberSet([1]),
        NO_NUMBERS,
    ]
    assert plan.roots == ["a", "c"]
    assert plan.graph.parents == ((2, 3), (), (1,), ())
    assert plan.graph.keys == ("d", "a", "b", "c")
    assert plan.graph.names == ("command",) * 4


def test_each_task_knows_its_parents_and_its_dependents_by_key() -> None:
    plan = planned(a_request("a"), a_request("b", "a"), a_request("c", "a", "b"))
    specs = [task.spec for task in plan.tasks]

    assert specs[0].parents is None
    assert value_in(specs[0].dependents, plan.blobs) == ["b", "c"]
    assert value_in(specs[1].parents, plan.blobs) == ["a"]
    assert value_in(specs[2].parents, plan.blobs) == ["a", "b"]
    assert specs[2].dependents is None


def test_a_task_belongs_to_its_job() -> None:
    job = a_job_spec()
    (task,) = planned(a_request("a")).tasks

    assert task.spec.id == task_id_of(JOB_ID, "a")
    assert (task.spec.job_id, task.spec.tenant, task.spec.app) == (job.id, job.tenant, job.app)
    assert task.spec.created_at == job.created_at


def test_what_the_request_leaves_open_the_definition_says() -> None:
    (task,) = planned(a_request(definition="own")).tasks

    assert (task.spec.definition, task.spec.definition_version) == ("own", 7)
    assert task.spec.queue == "slow"
    assert task.spec.priority is Priority.LOW
    assert task.spec.retry == OWN.retry
    assert task.spec.retry_on_timeout
    assert task.spec.requires_review


def test_the_request_overrides_the_definition() -> None:
    request = a_request(definition="own", queue="fast", priority=Priority.HIGH, max_attempts=9)

    (task,) = planned(request).tasks

    assert task.spec.queue == "fast"
    assert task.spec.priority is Priority.HIGH
    assert task.spec.retry == replace(OWN.retry, max_attempts=9)


def test_a_definition_that_says_nothing_of_retries_gets_the_installation_s() -> None:
    (plain, own) = planned(a_request("a"), a_request("b", max_attempts=1)).tasks

    assert plain.spec.retry == RETRY
    assert own.spec.retry == replace(RETRY, max_attempts=1)


def test_a_delay_counts_from_the_submit_and_a_time_is_taken_as_it_is() -> None:
    at = datetime(2031, 1, 1, tzinfo=UTC)
    plan = planned(
        a_request("a"), a_request("b", delay=timedelta(minutes=5)), a_request("c", run_at=at)
    )

    assert [task.spec.not_before for task in plan.tasks] == [None, NOON + timedelta(minutes=5), at]


def test_a_large_input_goes_to_a_blob_and_the_row_refers_to_it() -> None:
    large = {"text": "x" * INLINE_LIMIT_BYTES}

    plan = planned(a_request("a", input=large), a_request("b", input={"small": True}))
    big, small = (task.spec.input for task in plan.tasks)

    assert big is not None
    assert big.text is None
    assert [key for key, _ in plan.blobs] == [big.key]
    assert value_in(big, plan.blobs) == large
    assert big.size == len(plan.blobs[0][1])
    assert small == Document(text='{"small":true}', size=14)
    assert [summary.input for summary in plan.summaries] == [big, small]


def test_two_bodies_under_one_request_id_keep_their_blobs_apart() -> None:
    large = a_request("a", input="x" * INLINE_LIMIT_BYTES)
    specs = [a_job_spec(body_hash=letter * 64) for letter in "ab"]

    item, other = (
        plan_tasks(initial_target(spec), [large], DEFINITIONS, retry=RETRY).blobs for spec in specs
    )

    assert item[0][0] != other[0][0]


def test_a_task_with_very_many_dependents_lists_them_in_a_blob() -> None:
    keys = [f"child-{number}" for number in range(200)]

    plan = planned(a_request("root"), *(a_request(key, "root") for key in keys))

    assert plan.tasks[0].spec.dependents.text is None
    assert value_in(plan.tasks[0].spec.dependents, plan.blobs) == keys


def test_summaries_describe_the_requested_tasks() -> None:
    plan = planned(a_request("a"), a_request("b", "a", definition="own"))

    summaries = [(item.key, item.name, item.depends_on, item.input) for item in plan.summaries]
    assert summaries == [("a", "command", (), None), ("b", "own", ("a",), None)]


def test_the_same_request_gives_the_same_plan() -> None:
    requests = (a_request("a", input="x" * 2000), a_request("b", "a", definition="own"))

    assert planned(*requests) == planned(*requests)


@given(st.integers(INLINE_LIMIT_BYTES - 4, INLINE_LIMIT_BYTES + 1))
def test_a_document_up_to_the_limit_is_stored_in_the_row(size: int) -> None:
    value = "x" * (size - 2)  # with its two quotes

    document, data = make_document(value, "place")

    assert document.size == size
    if size <= INLINE_LIMIT_BYTES:
        assert (document.text, document.key, data) == (json.dumps(value), None, None)
    else:
        assert (document.text, document.key, data) == (None, "place", json.dumps(value).encode())


def test_a_short_text_that_is_not_ascii_is_measured_in_bytes() -> None:
    document, data = make_document("ü", "place")

    assert (document, data) == (Document(text='"ü"', size=4), None)


def test_a_document_is_measured_in_bytes_and_not_in_characters() -> None:
    document, data = make_document("ü" * 600, "place")

    assert document.size == 1202
    assert data is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1, 2}], ids=repr)
def test_what_json_cannot_carry_is_no_document(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        make_document(value, "place")


def test_added_tasks_continue_where_the_job_ends_and_await_only_what_has_not_completed() -> None:
    first = planned(a_request("a"), a_request("b", "a"))
    later = NOON + timedelta(hours=1)
    site = PlanTarget(
        job=a_job_spec(),
        requested_at=later,
        body_hash="f" * 64,
        graph=first.graph,
        completed=NumberSet([0]),
    )
    requests = (a_request("c", "a"), a_request("d", "a", "b", "c", delay=timedelta(seconds=5)))

    plan = plan_tasks(site, requests, DEFINITIONS, retry=RETRY)

    assert [task.spec.number for task in plan.tasks] == [2, 3]
    assert [task.awaits for task in plan.tasks] == [NO_NUMBERS, NumberSet([1, 2])]
    assert plan.graph.keys == ("a", "b", "c", "d")
    assert plan.graph.parents == ((), (0,), (0,), (0, 1, 2))
    assert [summary.key for summary in plan.summaries] == ["c", "d"]
    assert {task.spec.created_at for task in plan.tasks} == {later}
    assert plan.tasks[1].spec.not_before == later + timedelta(seconds=5)
    assert value_in(plan.tasks[0].spec.dependents, plan.blobs) == ["d"]
