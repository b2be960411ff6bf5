"""A decorated function is still a function, and knows what a worker has to know."""

import asyncio
import contextlib
import inspect
import json
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

import longshore
from longshore.core.definitions.definition import Definition, Isolation, ResourceLimits, RunnerKind
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.failures import ErrorCategory, category_of
from longshore.core.tasks.states import Priority
from longshore.errors import InvalidInput, TaskCancelledError, TaskFailedError, UsageError
from longshore.interfaces.python.functions import NOT_PLAIN
from tests.interfaces import python_tasks
from tests.interfaces.python_tasks import Page, Total, anything, count, fetch, total, visit

ROOT = Path(__file__).parents[2]


class Size(IntEnum):
    SMALL = 1


def test_calling_a_task_calls_its_function() -> None:
    assert fetch("a", depth=2) == ["a/0", "a/1"]
    assert asyncio.run(count(["a"])) == 1


def test_a_task_looks_like_its_function() -> None:
    assert fetch.__name__ == "fetch"
    assert inspect.getdoc(fetch).startswith("Fetch the pages")
    assert list(inspect.signature(fetch).parameters) == ["url", "depth"]
    assert repr(fetch) == "<task tests.interfaces.python_tasks:fetch>"


def test_a_task_without_options_is_defined_by_its_import_path_and_docstring() -> None:
    assert fetch.definition() == Definition(
        name="tests-interfaces-python_tasks-fetch",
        runner=RunnerKind.PYTHON,
        options={
            "function": "tests.interfaces.python_tasks:fetch",
            "typed": True,
            "path": [str(ROOT)],
        },
        description="Fetch the pages of a site.",
    )


def test_a_function_in_a_class_is_found_by_its_whole_name() -> None:
    import_path = python_tasks.Shop.sell.definition().options["function"]

    assert import_path == "tests.interfaces.python_tasks:Shop.sell"


def test_options_are_those_of_the_definition() -> None:
    @longshore.task(
        name="sorting",
        queue="slow",
        priority="low",
        timeout=timedelta(minutes=5),
        max_attempts=7,
        retry={"base": "2s", "cap": 60},
        retry_on_timeout=True,
        isolation="spawn",
        resources={"cpu": "1m", "memory_bytes": 2**30, "open_files": 100},
        requires_review=True,
        description="Sorts.",
    )
    def sort(items: list[int]) -> list[int]:
        return sorted(items)

    definition = sort.definition(in_process=True)

    assert definition == Definition(
        name="sorting",
        runner=RunnerKind.PYTHON,
        options=definition.options,
        queue="slow",
        priority=Priority.LOW,
        timeout=timedelta(minutes=5),
        retry=RetryPolicy(max_attempts=7, base=timedelta(seconds=2), cap=timedelta(minutes=1)),
        retry_on_timeout=True,
        isolation=Isolation.SPAWN,
        resources=ResourceLimits(cpu=timedelta(minutes=1), memory_bytes=2**30, open_files=100),
        requires_review=True,
        description="Sorts.",
    )


def test_an_option_that_is_none_counts_as_not_set() -> None:
    task = longshore.task(timeout=None, retry=None, name=None)(fetch.__wrapped__)

    assert task.definition(in_process=True).timeout is None
    assert task.name == "tests-interfaces-python_tasks-fetch"


def test_policies_may_be_given_as_they_are() -> None:
    task = longshore.task(
        retry=RetryPolicy(max_attempts=2),
        resources=ResourceLimits(open_files=50),
        priority=Priority.HIGH,
    )(fetch.__wrapped__)

    definition = task.definition(in_process=True)

    assert definition.retry == RetryPolicy(max_attempts=2)
    assert definition.resources == ResourceLimits(open_files=50)
    assert definition.priority is Priority.HIGH


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "two words"}, "expected a name"),
        ({"queue": ""}, "expected a name"),
        ({"priority": "urgent"}, "one of high, normal, low"),
        ({"timeout": "soon"}, "not a duration"),
        ({"timeout": 0}, "must be greater than zero"),
        ({"max_attempts": 0}, "max_attempts must be at least 1"),
        ({"max_attempts": "3"}, "a whole number"),
        ({"retry": {"tries": 3}}, "some of max_attempts, base, cap"),
        ({"retry": 3}, "some of max_attempts, base, cap"),
        ({"resources": {"memory_bytes": 1}}, "memory_bytes must be at least"),
        ({"isolation": "thread"}, "one of fork, pool, spawn"),
        ({"isolation": "pool", "resources": {"open_files": 50}}, "isolation 'pool'"),
        ({"requires_review": 1}, "true or false"),
        ({"description": 5}, "expected text"),
        ({"retries": 3}, "no option is called 'retries'"),
    ],
)
def test_an_invalid_option_is_refused_where_the_function_is_defined(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        longshore.task(**options)(fetch.__wrapped__)

    assert "'fetch'" in str(refused.value)


def test_only_functions_that_give_one_result_are_tasks() -> None:
    def numbers() -> Any:
        yield 1

    async def more() -> Any:
        yield 1

    for wrong in (numbers, more, Page, 5, fetch):
        with pytest.raises(UsageError, match="cannot be a task"):
            longshore.task(wrong)


def test_a_long_name_is_shortened_and_stays_unique() -> None:
    names = set()
    for number in range(3):
        task = longshore.task(fetch.__wrapped__)
        task.__module__ = f"a_package_with_a_long_name.number_{number}." + "x" * 60
        names.add(task.name)

    assert len(names) == 3
    assert all(len(name) == 64 and name.endswith(tuple("0123456789abcdef")) for name in names)


def test_functions_of_one_name_in_two_modules_are_two_definitions() -> None:
    first, second = longshore.task(fetch.__wrapped__), longshore.task(fetch.__wrapped__)
    second.__module__ = "elsewhere"

    assert first.name != second.name


def test_a_call_given_to_the_function_itself_is_refused() -> None:
    with pytest.raises(UsageError, match=r"count\.of\(\.\.\.\) makes a task"):
        count(fetch.of("a"))
    with pytest.raises(UsageError, match=r"count\.of"):
        count(pages=fetch.of("a"))


def test_all_invalid_arguments_are_reported_together_when_a_call_is_built() -> None:
    with pytest.raises(InvalidInput) as refused:
        fetch.of(5, depth="many")

    assert refused.value.task == "fetch"
    assert [problem.partition(":")[0] for problem in refused.value.problems] == ["url", "depth"]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'url'"),
        (("a",), {"deep": 1}, "unexpected keyword argument 'deep'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (({"$longshore.result": "x"},), {}, "url: Input should be a valid string"),
    ],
)
def test_arguments_that_do_not_fit_the_signature_are_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        fetch.of(*args, **kwargs)

    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "cannot be written as JSON"),
        ({"a": {"$longshore.result": "x"}}, "must not contain '\\$longshore.result'"),
        ([[fetch.of("a"), object()]], "cannot be written as JSON"),
        ([{1: fetch.of("a")}], "cannot be a key"),
        ([{"$longshore.result": fetch.of("a")}], "cannot be a key"),
    ],
)
def test_an_argument_that_json_cannot_represent_is_refused(value: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        anything.of(value)


def test_an_argument_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(InvalidInput, match="JSON"):
        anything.of(endless)


def test_the_error_does_not_contain_the_value_of_an_argument() -> None:
    with pytest.raises(InvalidInput) as refused:
        count.of(["fine", {"password": "hunter2"}])

    assert "hunter2" not in str(refused.value)
    assert "pages[1]" in str(refused.value)


def test_a_function_runs_with_arguments_that_came_as_json() -> None:
    assert fetch.run_with({"url": "a"}) == ["a/0"]
    assert count.run_with({"pages": ["a", "b"]}) == 2


def test_arguments_and_results_are_equal_after_a_round_trip_through_json() -> None:
    page = Page(url="a", fetched_at=datetime(2030, 1, 7, tzinfo=UTC))

    call = visit.of(page, "x", "y", weight="1.5")
    written = visit.run_with(call.arguments)

    assert call.arguments == {
        "page": {"url": "a", "fetched_at": "2030-01-07T00:00:00Z"},
        "tags": ["x", "y"],
        "weights": {"weight": 1.5},
    }
    assert visit.load_result(written) == page
    assert total.load_result(total.run_with({"sites": {"a": ["1"]}})) == Total(1, {"a": 1})


class _Text(str):
    pass


@given(
    hint=st.sampled_from([int, bool, str, float, type(None), Size]),
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text()
    | st.characters(categories=["Cs"])
    | st.sampled_from([Size.SMALL, _Text("text")]),
)
def test_a_plain_value_is_read_and_written_as_pydantic_does(hint: Any, value: Any) -> None:
    def function(value: Any) -> Any:
        return value

    function.__annotations__ = {"value": hint, "return": hint}
    task = longshore.task(function)
    adapter = TypeAdapter(hint)
    for call, pydantic in (
        (
            lambda: task._signature.load_arguments({"value": value}).args[0],
            lambda: adapter.validate_json(json.dumps(value)),
        ),
        (
            lambda: task._signature.dump_result(value),
            lambda: adapter.dump_python(adapter.validate_python(value), mode="json"),
        ),
    ):
        expected = _outcome(pydantic)
        actual = _outcome(call)
        assert (type(actual), repr(actual)) == (type(expected), repr(expected))


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (InvalidInput, TypeError, ValueError):
        return ValueError()


def test_a_function_without_annotations_takes_and_returns_json_values() -> None:
    assert anything.run_with(anything.of([1, {"a": None}]).arguments) == [1, {"a": None}]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({}, "url is missing"),
        ({"url": "a", "size": 1}, "there is no parameter 'size'"),
        ({"url": 5}, "url: Input should be a valid string"),
    ],
)
def test_arguments_are_checked_again_where_the_function_runs(
    written: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        fetch.run_with(written)

    assert category_of(refused.value) is ErrorCategory.VALIDATION


def test_a_result_of_the_wrong_type_is_a_programming_error() -> None:
    def wrong(url: str, depth: int = 1) -> Any:
        return "no list"

    with pytest.raises(TypeError, match=r"'fetch' must return list\[str\]: result: ") as refused:
        fetch.run_with({"url": "a"}, replacement=wrong)
    with pytest.raises(TypeError, match="'anything' cannot be written as JSON"):
        anything.run_with({"value": 1}, replacement=lambda value: object())

    assert category_of(refused.value) is ErrorCategory.PROGRAMMING


def test_a_stored_result_that_no_longer_fits_the_function_is_an_error() -> None:
    with pytest.raises(UsageError, match="the stored result does not match what 'fetch' returns"):
        fetch.load_result(5)


def test_an_annotation_that_cannot_be_read_is_an_error_when_a_call_is_built() -> None:
    @longshore.task
    def broken(value: "Nowhere") -> None:  # noqa: F821 - the point
        return None

    with pytest.raises(UsageError, match="annotations of 'broken' cannot be read"):
        broken.of(1)


def test_a_parameter_type_that_json_cannot_represent_is_refused() -> None:
    class Socket:
        pass

    def send(value: Socket) -> None:
        return None

    with pytest.raises(UsageError, match="'value' of 'send' cannot be passed to a worker: Socket"):
        longshore.task(send).of(Socket())


def test_a_task_can_be_made_ready_before_a_process_forks() -> None:
    task, plain = longshore.task(visit.__wrapped__), longshore.task(fetch.__wrapped__)

    task.prebuild()
    plain.prebuild()

    assert ("_signature" in vars(task), "_signature" in vars(plain)) == (True, False)


_VALUES = [
    *(None, True, 1, 1.0, 1.5, -(2**70), 2**53 + 1, float("nan"), "a", "é", "half \ud800", b"a"),
    *([], [1], [1.0], ["a"], [None], (1,), {1}, {"a": 1}, Size.SMALL, Path("a")),
    *(datetime(2026, 1, 1, tzinfo=UTC), object()),
]
_HINTS = [int, float, str, bool, None, int | None, int | str, float | str, list[int], list[None]]


@pytest.mark.parametrize("hint", [*_HINTS, list[str] | None, list[int] | list[str], list[float]])
def test_what_needs_no_pydantic_is_read_and_written_as_by_pydantic(hint: Any) -> None:
    def give(argument: Any = 0) -> Any:
        return value if argument == 0 else argument

    def outcome(task: Any, arguments: dict[str, Any]) -> str:
        try:
            return repr(task.run_with(arguments))
        except (InvalidInput, TypeError) as error:
            return f"{type(error).__name__}: {error}"

    give.__annotations__ = {"argument": hint, "return": hint}
    plain, checked = longshore.task(give), longshore.task(give)
    vars(checked)["_plain"] = NOT_PLAIN
    for value in _VALUES:
        calls: list[dict[str, Any]] = [{}]
        with contextlib.suppress(TypeError):
            read = json.loads(json.dumps(value))
            calls += [{"argument": read}, {"argument": read, "other": 1}, {"other": read}]
        for arguments in calls:
            assert outcome(plain, arguments) == outcome(checked, arguments), (value, arguments)


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("fetch", ["url: wrong"]),
        TaskFailedError("job-a_b", "network", "refused", "longshore logs job-a_b"),
        TaskCancelledError("job-a_b", "cancelled", "cancelled by user", "longshore logs job-a_b"),
    ],
)
def test_errors_say_all_they_know_and_survive_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own

    assert vars(again) == vars(error)
    assert str(again) == str(error)
    assert all(part in str(error) for part in error.args if isinstance(part, str))
