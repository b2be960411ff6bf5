"""Valid job documents, and the problems of the others."""

import json
import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.core.budgets import NO_BUDGET, Budget
from longshore.core.definitions.definition import NO_DEFINITION
from longshore.core.document_reader import MAX_DEPTH
from longshore.core.jobs.submission import (
    MAX_ATTEMPTS,
    MAX_DELAY,
    JobRequest,
    TaskRequest,
    builtin_refused,
    canonical_hash,
    canonical_text,
    read_job,
    referenced_definitions,
    unknown_definition,
)
from longshore.core.tasks.states import Priority
from longshore.errors import InvalidJob, Problem

LIMIT = 100
SURROGATE = "\ud800"


def a_task(**fields: Any) -> dict[str, Any]:
    return {"taskId": "a", "name": "command", **fields}


def a_job(*tasks: Any, **fields: Any) -> dict[str, Any]:
    return {"tasks": list(tasks) or [a_task()], **fields}


def problems_in(document: Any, *, limit: int = LIMIT) -> dict[str, str]:
    """Messages by path; a document that is read fails the test."""
    with pytest.raises(InvalidJob) as caught:
        read_job(document, limit=limit)
    return {problem.path: problem.message for problem in caught.value.problems}


def nested(levels: int, inside: Any = 1) -> Any:
    value = inside
    for _ in range(levels):
        value = [value]
    return value


def test_a_task_with_everything_is_read_field_by_field() -> None:
    task = a_task(
        dependsOn=["b"],
        input={"argv": ["ls"]},
        queue="fast",
        priority="high",
        delay=1.5,
        maxAttempts=MAX_ATTEMPTS,
    )

    other = {"taskId": "b", "name": "own"}
    request = read_job(a_job(task, other, name="nightly", budget={"usd": 5}), limit=2)

    assert request == JobRequest(
        name="nightly",
        budget=Budget(usd=5.0),
        tasks=(
            TaskRequest(
                key="a",
                definition="command",
                parents=("b",),
                input={"argv": ["ls"]},
                queue="fast",
                priority=Priority.HIGH,
                delay=timedelta(seconds=1.5),
                max_attempts=MAX_ATTEMPTS,
            ),
            TaskRequest(key="b", definition="own"),
        ),
    )


def test_a_job_may_name_its_app() -> None:
    assert read_job(a_job(app="shop"), limit=1).app == "shop"
    assert read_job(a_job(), limit=1).app is None
    with pytest.raises(InvalidJob, match=r"app: expected a name"):
        read_job(a_job(app="a/b"), limit=1)


def test_a_job_without_a_budget_may_spend_what_it_will() -> None:
    assert read_job(a_job(), limit=1).budget == NO_BUDGET
    assert read_job(a_job(budget=1.5), limit=1).budget == Budget(usd=1.5)


@pytest.mark.parametrize("budget", [0, "5", {"euro": 1}, {"tokens": 1.5}, {}], ids=repr)
def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    assert "each above 0" in problems_in(a_job(budget=budget))["budget"]


def test_fields_that_are_null_count_as_left_out() -> None:
    fields = ("dependsOn", "input", "queue", "priority", "delay", "runAt", "maxAttempts")

    request = read_job(a_job(a_task(**dict.fromkeys(fields)), name=None), limit=LIMIT)

    assert request == JobRequest(tasks=(TaskRequest(key="a", definition="command"),))


@pytest.mark.parametrize(
    "value",
    [
        "2030-01-31T12:00:00Z",
        "2030-01-31T14:00:00+02:00",
        datetime(2030, 1, 31, 12, tzinfo=UTC),
        datetime(2030, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))),
    ],
    ids=["zulu", "offset", "moment", "moment elsewhere"],
)
def test_a_moment_is_read_in_any_zone(value: Any) -> None:
    request = read_job(a_job(a_task(runAt=value)), limit=LIMIT)

    assert request.tasks[0].run_at == datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert request.tasks[0].run_at.tzinfo is UTC


@pytest.mark.parametrize("value", [[], None, "tasks", 3, [a_task()]], ids=repr)
def test_what_is_no_object_is_no_job(value: Any) -> None:
    assert problems_in(value) == {"": "expected an object with a list 'tasks'"}


@pytest.mark.parametrize("value", [None, {}, "a", 3], ids=repr)
def test_a_job_needs_a_list_of_tasks(value: Any) -> None:
    assert problems_in({"tasks": value}) == {"tasks": "expected a list of tasks"}


def test_a_job_without_tasks_is_refused() -> None:
    assert problems_in({"tasks": []}) == {"tasks": "there must be at least one task"}


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ({"maxAttempts": 1}, {"maxAttempts": True}, "maxAttempts"),
        ({"delay": 1}, {"delay": True}, "delay"),
        ({"queue": "a b"}, {"queue": "a b"}, "queue"),
        ({"priority": "low"}, {"priority": "lowest"}, "priority"),
        ({"runAt": "2030-01-31T12:00:00Z"}, {"runAt": "2030-01-31"}, "runAt"),
        ({}, {"name": "a b"}, "name"),
    ],
)
def test_an_option_is_checked_also_if_it_resembles_that_of_the_task_before(
    first: dict[str, Any], second: dict[str, Any], problem: str
) -> None:
    problems = problems_in(a_job(a_task(**first), a_task(**{"taskId": "b", **second})))

    assert f"tasks[1].{problem}" in problems


def test_tasks_are_read_alike_alone_and_together() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"queue": "fast"},
        {"queue": "fast"},
        {"queue": "fast", "delay": 1},
        {"queue": "fast", "delay": 1.0, "priority": "low"},
        {"priority": "low", "maxAttempts": 1},
        {"name": "own"},
    ]
    tasks = [a_task(**{"taskId": f"t{n}", **fields}) for n, fields in enumerate(options)]

    alone = [read_job(a_job(task), limit=1).tasks[0] for task in tasks]

    assert list(read_job(a_job(*tasks), limit=LIMIT).tasks) == alone


def test_a_job_may_have_as_many_tasks_as_the_limit_says_and_no_more() -> None:
    tasks = [a_task(taskId=f"t{number}") for number in range(4)]

    request = read_job(a_job(*tasks[:3]), limit=3)
    problems = problems_in(a_job(*tasks), limit=3)

    assert len(request.tasks) == 3
    assert list(problems) == ["tasks"]


def test_every_problem_is_reported_at_once_with_its_path() -> None:
    document = {
        "nmae": "typo",
        "name": "",
        "tasks": [
            {"taskId": "a", "name": "command", "dependsOn": ["b"], "inputs": {}},
            {"taskId": "b", "name": "com mand", "dependsOn": ["a", "missing"]},
            {"taskId": "a b", "priority": "urgent", "maxAttempts": 0},
            "c",
        ],
    }

    problems = problems_in(document)

    assert set(problems) == {
        "nmae",
        "name",
        "tasks[0].inputs",
        "tasks[1].name",
        "tasks[1].dependsOn[1]",
        "tasks[2].name",
        "tasks[2].taskId",
        "tasks[2].priority",
        "tasks[2].maxAttempts",
        "tasks[3]",
        "tasks[3].taskId",
        "tasks[0].dependsOn[0]",
    }
    assert "a -> b -> a" in problems["tasks[0].dependsOn[0]"]


WRONG = [
    ("taskId", 3),
    ("taskId", "a b"),
    ("taskId", "ä"),
    ("taskId", "a" * 129),
    ("name", None),
    ("name", 3),
    ("name", "no/slash"),
    ("name", "n" * 65),
    ("dependsOn", "a"),
    ("dependsOn", [3]),
    ("queue", "no queue"),
    ("priority", "HIGH"),
    ("priority", 1),
    ("delay", "1"),
    ("delay", True),
    ("delay", -1),
    ("delay", MAX_DELAY.total_seconds() + 1),
    ("delay", float("nan")),
    ("runAt", "tomorrow"),
    ("runAt", 3),
    ("runAt", "2030-01-31T12:00:00"),
    ("runAt", "9999-12-31T23:59:59-01:00"),
    ("runAt", "0001-01-01T00:00:00+01:00"),
    ("maxAttempts", 0),
    ("maxAttempts", MAX_ATTEMPTS + 1),
    ("maxAttempts", True),
    ("maxAttempts", 1.0),
    ("maxAttempts", 10**5000),
    ("input", float("inf")),
    ("input", {"a": [float("nan")]}),
    ("input", {1: "a"}),
    ("input", {"a": SURROGATE}),
    ("input", {SURROGATE: "a"}),
    ("input", {"a": b"bytes"}),
    ("input", {"a": datetime(2030, 1, 1, tzinfo=UTC)}),
    ("input", 10**5000),
    ("input", nested(MAX_DEPTH + 1)),
]


@pytest.mark.parametrize(
    ("field", "value"), WRONG, ids=[f"{field}-{index}" for index, (field, _) in enumerate(WRONG)]
)
def test_a_field_with_a_wrong_value_is_named(field: str, value: Any) -> None:
    problems = problems_in(a_job(a_task(**{field: value})))

    assert list(problems) == [f"tasks[0].{field}"]
    assert len(problems[f"tasks[0].{field}"]) < 400


def test_a_delay_and_a_time_together_are_refused() -> None:
    task = a_task(delay=1, runAt="2030-01-31T12:00:00Z")

    assert problems_in(a_job(task)) == {
        "tasks[0].runAt": "give either 'delay' or 'runAt', not both"
    }


@pytest.mark.parametrize("name", ["", "x" * 201, "two\nlines", 3], ids=repr)
def test_the_name_of_a_job_is_a_line_of_text(name: Any) -> None:
    assert list(problems_in(a_job(name=name))) == ["name"]


def test_an_input_as_deep_as_allowed_is_read() -> None:
    request = read_job(a_job(a_task(input=nested(MAX_DEPTH))), limit=LIMIT)

    assert request.tasks[0].input == nested(MAX_DEPTH)


def test_an_input_that_contains_itself_is_refused() -> None:
    cycle: list[Any] = [1]
    cycle += [cycle, cycle]

    assert list(problems_in(a_job(a_task(input=cycle)))) == ["tasks[0].input"]


@pytest.mark.parametrize("field", ["name", "queue", "priority", "delay", "runAt", "maxAttempts"])
@pytest.mark.parametrize(
    "value", [nested(5000), "x" * 100_000, {"k" * 100_000: 1}], ids=["deep", "long", "long key"]
)
def test_the_problem_of_a_value_of_any_size_is_short(field: str, value: Any) -> None:
    problems = problems_in(a_job(a_task(**{field: value})))

    assert list(problems) == [f"tasks[0].{field}"]
    assert len(problems[f"tasks[0].{field}"]) < 400


def test_an_unknown_field_of_any_length_has_a_short_path() -> None:
    problems = problems_in(a_job(a_task(**{"x" * 100_000: 1})))

    assert [len(path) < 100 for path in problems] == [True]


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
TASK_LIKE = st.dictionaries(
    st.sampled_from(
        [
            *("taskId", "name", "dependsOn", "input", "queue", "priority", "delay", "runAt"),
            *("maxAttempts", "else"),
        ]
    ),
    JSON_LIKE
    | st.sampled_from(["a", "b", "command", "high", 1, ["a"], ["b"], "2030-01-01T00:00:00Z"]),
)
JOB_LIKE = JSON_LIKE | st.fixed_dictionaries(
    {}, optional={"tasks": JSON_LIKE | st.lists(TASK_LIKE | JSON_LIKE), "name": JSON_LIKE}
)


@given(JOB_LIKE)
def test_any_document_is_read_or_refused_as_a_job_and_nothing_else(document: Any) -> None:
    referenced_definitions(document)
    try:
        request = read_job(document, limit=3)
    except InvalidJob as error:
        refused: InvalidJob | None = error
    else:
        refused = None

    if refused is not None:
        assert refused.problems
        assert str(refused)
    else:
        assert 0 < len(request.tasks) <= 3
        assert json.loads(canonical_text(document))["tasks"]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def shuffled(value: Any, chance: random.Random) -> Any:
    match value:
        case dict():
            items = [(key, shuffled(inner, chance)) for key, inner in value.items()]
            chance.shuffle(items)
            return dict(items)
        case list():
            return [shuffled(inner, chance) for inner in value]
    return value


@given(PLAIN, st.randoms(use_true_random=False))
def test_the_order_of_fields_does_not_change_the_hash(document: Any, chance: random.Random) -> None:
    assert canonical_hash(shuffled(document, chance)) == canonical_hash(document)


@given(PLAIN, PLAIN)
def test_two_documents_that_differ_have_two_hashes(item: Any, other: Any) -> None:
    same = json.dumps(item, sort_keys=True) == json.dumps(other, sort_keys=True)

    assert (canonical_hash(item) == canonical_hash(other)) is same


def test_the_order_of_a_list_changes_the_hash() -> None:
    assert canonical_hash([1, 2]) != canonical_hash([2, 1])


def test_a_document_with_a_moment_has_a_hash_and_a_text_that_reads_the_same() -> None:
    document = a_job(a_task(runAt=datetime(2030, 1, 31, 12, tzinfo=UTC)))

    again = json.loads(canonical_text(document))

    assert read_job(again, limit=LIMIT) == read_job(document, limit=LIMIT)
    assert canonical_hash(again) == canonical_hash(document)


def test_definitions_are_found_also_in_a_job_that_is_not_valid() -> None:
    document = {
        "tasks": [
            {"name": "one", "input": [3]},
            "no task",
            {"name": "not a name"},
            {"name": ["one"]},
            {"name": "two", "taskId": 3},
            {"name": "one"},
        ]
    }

    assert referenced_definitions(document) == [
        (0, "one", [3]),
        (4, "two", None),
        (5, "one", None),
    ]


def test_a_built_in_definition_that_is_switched_off_is_a_problem_with_its_remedy() -> None:
    problem = builtin_refused(2, "command")

    assert problem.path == "tasks[2].name"
    assert "'command' is switched off for the API" in problem.message
    assert "name a stored definition" in problem.message


@pytest.mark.parametrize("document", [None, [], {}, {"tasks": 3}], ids=repr)
def test_what_is_no_job_names_no_definitions(document: Any) -> None:
    assert referenced_definitions(document) == []


def test_added_tasks_may_depend_on_those_that_are_there() -> None:
    added = read_job(
        {"tasks": [{"taskId": "b", "name": "command", "dependsOn": ["a"]}]},
        limit=2,
        existing=("a",),
    )

    assert [(task.key, task.parents) for task in added.tasks] == [("b", ("a",))]


def test_only_tasks_can_be_added_and_none_that_is_there() -> None:
    with pytest.raises(InvalidJob) as caught:
        read_job(
            {"tasks": [{"taskId": "a", "name": "command"}], "name": "x"}, limit=5, existing=("a",)
        )

    assert [problem.path for problem in caught.value.problems] == ["name", "tasks[0].taskId"]


def test_the_problem_of_an_unknown_definition_names_the_task() -> None:
    assert unknown_definition(3, "fetsh") == Problem(
        path="tasks[3].name", message=NO_DEFINITION.format("fetsh")
    )
