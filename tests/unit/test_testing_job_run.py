"""A job runs to its end inside a test: no process, no file, no waiting."""

import asyncio
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

import longshore
from longshore import testing
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import Fail, InvalidJob, Retry, TaskFailedError, UsageError
from longshore.testing.memory import ledger as memory_ledger
from tests.interfaces.python_tasks import Total, count, fetch, total

HOUR = timedelta(hours=1)


@longshore.task
def double(number: int) -> int:
    print("doubling", number)  # noqa: T201 - its output
    return 2 * number


@longshore.task
def add(numbers: list[int]) -> int:
    return sum(numbers)


def test_a_call_gives_its_result() -> None:
    ran = testing.run(double.of(4))

    assert ran.result == 8
    assert ran.state is JobState.COMPLETED
    assert ran.attempts == {"double": 1}
    assert ran.output == {"double": "doubling 4\n"}
    assert [event.type for event in ran.events][-1] == "Job Completed"


def test_results_go_from_task_to_task_and_come_back_typed() -> None:
    ran = testing.run(total.of({"a": fetch.of("a", 2), "b": ["x"]}))

    assert ran.result == Total(3, {"a": 2, "b": 1})
    assert ran.results["fetch"] == ["a/0", "a/1"]


def test_many_calls_fan_out_and_in() -> None:
    ran = testing.run(add.of([double.of(number) for number in range(100)]))

    assert ran.result == 9900
    assert len(ran.results) == 101


def test_several_calls_give_a_list() -> None:
    assert testing.run([double.of(1), double.of(2)]).result == [2, 4]
    assert testing.run([double.of(1)]).result == [2]


def test_an_async_function_runs_to_its_end() -> None:
    assert testing.run(count.of(["a", "b"])).result == 2


def test_a_function_runs_in_the_thread_and_with_the_objects_of_the_test() -> None:
    seen: list[Any] = []

    @longshore.task
    def look() -> None:
        seen.append((threading.current_thread(), os.getpid()))

    testing.run(look.of())

    assert seen == [(threading.current_thread(), os.getpid())]


def test_waits_take_no_time() -> None:
    calls = []

    @longshore.task(max_attempts=4)
    def stubborn() -> int:
        calls.append(longshore.current().attempt)
        if len(calls) < 4:
            raise Retry("not yet", after=24 * 3600)
        return 1

    ran = testing.run(stubborn.of().with_options(delay="366d"))

    assert ran.result == 1
    assert calls == [1, 2, 3, 4]
    assert ran.elapsed >= timedelta(days=369)


def test_steps_are_kept_from_attempt_to_attempt() -> None:
    done = []

    @longshore.task
    def steps() -> list[int]:
        step = longshore.current().step
        results = [step(name, lambda name=name: done.append(name) or len(done)) for name in "ab"]
        if longshore.current().attempt == 1:
            raise ConnectionError
        return results

    ran = testing.run(steps.of())

    assert ran.result == [1, 2]
    assert done == ["a", "b"]
    assert ran.attempts == {"steps": 2}


def test_async_steps_are_kept_too() -> None:
    async def work(value: int) -> int:
        return value

    @longshore.task
    async def steps() -> list[int]:
        step = longshore.current().astep
        return list(await asyncio.gather(*(step(str(n), lambda n=n: work(n)) for n in range(3))))

    assert testing.run(steps.of()).result == [0, 1, 2]


def test_a_failure_names_the_task_and_has_what_it_raised_as_its_cause() -> None:
    @longshore.task
    def broken() -> int:
        message = "no such city"
        raise Fail(message, category="not-found")

    ran = testing.run(add.of([double.of(1), broken.of()]))

    with pytest.raises(TaskFailedError, match="no such city") as failed:
        _ = ran.result
    assert ran.state is JobState.FAILED
    assert failed.value.task_id.endswith("_broken")
    assert failed.value.category == "not-found"
    assert isinstance(failed.value.__cause__, Fail)
    assert ran.errors == {"broken": failed.value.__cause__}
    assert ran.results == {"double": 2}
    assert ran.attempts == {"double": 1, "broken": 1, "add": 0}
    assert "Fail: no such city" in ran.output["broken"]


def test_a_transient_error_is_retried_until_the_attempts_are_used_up() -> None:
    @longshore.task(max_attempts=5)
    def offline() -> int:
        raise ConnectionError

    ran = testing.run(offline.of())

    assert ran.attempts == {"offline": 5}
    assert timedelta(seconds=5) < ran.elapsed < HOUR
    with pytest.raises(TaskFailedError, match="network"):
        _ = ran.result


@pytest.mark.timeout(20)
@pytest.mark.parametrize("headers", [{}, {"retry-after": "1800"}], ids=["no wait", "a wait"])
def test_a_task_that_is_always_rate_limited_ends(headers: dict[str, str]) -> None:
    @longshore.task(max_attempts=3)
    def limited() -> None:
        request = httpx2.Request("GET", "http://model.example")
        httpx2.Response(429, headers=headers, request=request).raise_for_status()

    ran = testing.run(limited.of())

    with pytest.raises(TaskFailedError, match="rate-limit"):
        _ = ran.result
    assert ran.elapsed < 30 * HOUR
    assert (ran.attempts["limited"] == 3) == (not headers)


def test_a_long_chain_of_awaits_does_not_move_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = memory_ledger.MemoryLedger.commit

    async def long_chain(*arguments: Any, **options: Any) -> Any:
        for _ in range(200):
            await asyncio.sleep(0)
        return await commit(*arguments, **options)

    monkeypatch.setattr(memory_ledger.MemoryLedger, "commit", long_chain)

    @longshore.task(max_attempts=3)
    def offline() -> int:
        raise ConnectionError

    ran = testing.run(offline.of())

    assert ran.attempts == {"offline": 3}
    assert ran.elapsed < HOUR


def test_the_first_attempts_can_be_made_to_fail() -> None:
    failures = [TimeoutError("slow"), ConnectionError("gone")]

    ran = testing.run(add.of([double.of(3)]), failures={"double": failures})

    assert ran.result == 6
    assert ran.attempts == {"double": 3, "add": 1}
    assert ran.output["double"].endswith("doubling 3\n")


def test_another_function_can_stand_in_and_is_held_to_the_same_types() -> None:
    ran = testing.run(add.of([double.of(3)]), replacements={"double": lambda number: number * 100})
    wrong = testing.run(double.of(3), replacements={"double": lambda number: "many"})

    assert ran.result == 300
    with pytest.raises(TaskFailedError, match="'double' must return int"):
        _ = wrong.result


def test_a_stand_in_for_a_task_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no task 'triple', but double"):
        testing.run(double.of(3), replacements={"triple": double})
    with pytest.raises(UsageError, match="no task 'triple'"):
        testing.run(double.of(3), failures={"triple": []})


def test_a_document_runs_its_python_tasks() -> None:
    before = list(sys.path)
    document = {
        "tasks": [
            {
                "taskId": "join",
                "name": "python",
                "input": {"function": "posixpath:join", "args": ["a", "b"], "path": ["/nowhere"]},
            },
        ]
    }

    ran = testing.run(document)

    assert ran.result == "a/b"
    assert sys.path == before


def test_a_document_that_ends_in_several_tasks_gives_all_of_them() -> None:
    tasks = [
        {"taskId": key, "name": "python", "input": {"function": "operator:neg", "args": [n]}}
        for n, key in enumerate("ab")
    ]

    assert testing.run({"tasks": tasks}).result == [0, -1]


def test_a_command_needs_a_stand_in() -> None:
    document = {"tasks": [{"taskId": "ls", "name": "command", "input": {"argv": ["ls"]}}]}

    with pytest.raises(TaskFailedError, match=r"replacements=\{'ls': …\}"):
        _ = testing.run(document).result
    assert testing.run(document, replacements={"ls": lambda: "files"}).result == "files"


def test_a_document_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidJob, match="no definition is called 'missing'"):
        testing.run({"tasks": [{"taskId": "a", "name": "missing"}]})


def test_a_result_that_waits_for_review_is_not_there() -> None:
    reviewed = longshore.task(requires_review=True)(double.__wrapped__)

    ran = testing.run(add.of([reviewed.of(1)]))

    assert ran.tasks["double"].state is TaskState.IN_REVIEW
    with pytest.raises(UsageError, match="'add' has no result: it is waiting"):
        _ = ran.result


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    threads = threading.active_count()
    folders = []

    @longshore.task
    def write() -> None:
        Path("file").write_text("x")
        folders.append(Path.cwd())
        longshore.current().artifact("file")
        longshore.current().summary("wrote it")

    ran = testing.run(write.of())

    assert ran.state is JobState.COMPLETED
    assert "wrote it" in ran.output["write"]
    assert Path.cwd() == tmp_path
    assert list(tmp_path.iterdir()) == []
    assert not folders[0].exists()
    assert threading.active_count() == threads
    with pytest.raises(LookupError):
        longshore.current()


@pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.skip.Exception])
def test_what_is_meant_for_the_test_goes_through(error: type[BaseException]) -> None:
    threads = threading.active_count()

    @longshore.task
    def stop() -> None:
        raise error

    with pytest.raises(error):
        testing.run(add.of([double.of(1), stop.of()]))

    assert threading.active_count() == threads


def test_a_task_that_exits_has_failed() -> None:
    @longshore.task
    def leave() -> None:
        sys.exit(3)

    with pytest.raises(TaskFailedError, match="exit-code"):
        _ = testing.run(leave.of()).result


def test_a_result_that_json_cannot_carry_is_a_failure() -> None:
    @longshore.task
    def endless() -> float:
        return float("inf")

    with pytest.raises(TaskFailedError, match="not JSON compliant"):
        _ = testing.run(endless.of()).result


def test_it_can_be_used_where_an_event_loop_runs() -> None:
    async def scenario() -> int:
        return testing.run(count.of(["a"])).result

    assert asyncio.run(scenario()) == 1


def test_the_same_job_goes_the_same_way_each_time() -> None:
    def history() -> list[Any]:
        ran = testing.run(add.of([double.of(1)]), failures={"double": [TimeoutError()]})
        return [(event.type, event.at, event.sequence) for event in ran.events]

    assert history() == history()


def test_output_includes_bytes_and_the_other_stream() -> None:
    @longshore.task
    def talk() -> None:
        sys.stdout.buffer.write(b"bytes\n")
        print("words", file=sys.stderr)  # noqa: T201 - its output
        longshore.current().log("logged")

    assert testing.run(talk.of()).output == {"talk": "bytes\nwords\nlogged\n"}


def test_only_what_is_there_can_be_taken_from_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = testing.walk
