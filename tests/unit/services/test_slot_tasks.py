"""Tasks in child slots: what is stored, what is reported, and what is given back."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from longshore.core.claims import Room
from longshore.core.definitions.definition import Definition, Isolation, RunnerKind
from longshore.core.events.types import TaskHeartbeat
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendRejected, BackendUnavailable
from longshore.ports.child_slots import SlotTask
from longshore.ports.output import Stream
from longshore.ports.runner import RunnerBroken
from longshore.testing.flaky_port import FlakyPort
from longshore.testing.simulated_slots import Behaviour, ChildCrash, SimulatedTask, TaskError
from tests.unit.services.harness import (
    BACKENDS,
    DIRECT,
    LEASE,
    NO_WAIT,
    RESULT_LIMIT_BYTES,
    SECOND,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.slot_worker import (
    HANGS,
    MILLISECOND,
    SlotWorker,
    call,
    lasts,
    prints,
    put_definitions,
)

MINUTE = timedelta(minutes=1)
BOTH = pytest.mark.parametrize("name", ["pooled", "forked"])
ALL = pytest.mark.parametrize("kind", BACKENDS)
COMPLETED, PENDING, CANCELLED = TaskState.COMPLETED, TaskState.PENDING, TaskState.CANCELLED


@asynccontextmanager
async def slot_worker(
    kind: str = "atomic memory", tmp_path: Path = Path(), *, ports: Any = None, **definition: Any
) -> AsyncIterator[SlotWorker]:
    """A worker that has not started. ``ports`` are made from the backend."""
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await put_definitions(harness, **definition)
        if ports is not None:
            harness = harness.with_ports(**ports(backend))
        yield SlotWorker(harness)


async def _until_completed(harness: ServiceHarness, *keys: str) -> None:
    """Let time pass until tasks have completed: outcomes of busy slots wait for others."""
    while {(await harness.states())[key] for key in keys} != {COMPLETED}:
        await harness.advance(5 * MILLISECOND)


# Outcomes ---------------------------------------------------------------------------------------


@ALL
@BOTH
@scenario
async def test_a_task_completes_with_its_result(kind: str, name: str, tmp_path: Path) -> None:
    async with slot_worker(kind, tmp_path) as worker:
        harness = worker.harness
        await harness.submit(call("a", name=name), call("b", "a", name=name))
        async with worker.at_work():
            await harness.advance(SECOND)
            await harness.dispatch()
            await harness.advance(SECOND)

        states = await harness.states()
        assert (states["a"], states["b"]) == (COMPLETED, COMPLETED)
        row = await harness.task("b")
        assert await harness.documents.load(row.result) == "late"
        assert (row.attempt, row.attempts_used, row.last_output) == (1, 0, None)
        assert harness.runner.specs == []


@ALL
@scenario
async def test_a_task_gets_the_results_of_its_parents_wherever_they_ran(
    kind: str, tmp_path: Path
) -> None:
    received: dict[str, str | None] = {}

    async def notes(task: SimulatedTask) -> str:
        received[task.spec.task_id] = task.spec.dependency_outputs
        return "null"

    async with slot_worker(kind, tmp_path) as worker:
        harness = worker.harness
        worker.behaviours |= {"both": notes, "own": notes, "none": notes}
        await harness.submit(
            call("elsewhere"),
            call("here"),
            call("none"),
            call("own", "here"),
            call("both", "elsewhere", "here"),
        )
        await harness.complete(task_id("elsewhere"), {"ä": 1})
        await harness.dispatch()
        async with worker.at_work():
            for _ in range(2):
                await harness.advance(SECOND)
                await harness.dispatch()

    assert received[task_id("none")] is None
    assert json.loads(received[task_id("own")] or "") == {"here": "late"}
    assert json.loads(received[task_id("both")] or "") == {"elsewhere": {"ä": 1}, "here": "late"}


@BOTH
@scenario
async def test_output_is_stored_before_the_outcome_is_committed(name: str) -> None:
    output: list[FlakyPort] = []

    def ports(backend: Any) -> dict[str, Any]:
        output.append(FlakyPort(backend.output, "append", times=None))
        return {"output": output[0]}

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness
        worker.behaviours["a"] = prints("text")
        await harness.submit(call("a", name=name))
        async with worker.at_work():
            await harness.advance(5 * SECOND)
            before = await harness.task("a")
            output[0].recover()
            await harness.advance(2 * SECOND)

        row = await harness.task("a")
        (chunk,) = await harness.backend.output.read(task_id("a"))
        assert before.state is TaskState.PROCESSING
        assert (row.state, row.last_output) == (COMPLETED, 1)
        assert chunk.stream in (Stream.STDOUT, Stream.LOST)


@scenario
async def test_files_are_stored_before_the_outcome_and_their_folder_is_released(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    (folder / "artifacts").mkdir(parents=True)
    (folder / "artifacts" / "file").write_text("content")

    async def writes(task: SimulatedTask) -> str:
        task.folder = folder
        return "1"

    async with slot_worker() as worker:
        harness = worker.harness
        worker.behaviours["a"] = writes
        await harness.submit(call("a"))
        async with worker.at_work():
            await harness.advance(SECOND)

        assert (await harness.task("a")).state is COMPLETED
        assert any("file" in key for key in await harness.backend.blobs.list_keys(""))
        assert worker.slots.released_folders == [folder]


@scenario
async def test_a_large_result_is_stored_and_one_that_is_too_large_fails() -> None:
    async with slot_worker() as worker:
        harness = worker.harness

        async def returns(task: SimulatedTask) -> str:
            size = 2 if task.spec.task_id.endswith("b") else 1
            return json.dumps("x" * (RESULT_LIMIT_BYTES * size // 2 + 10))

        worker.behaviours |= {"a": returns, "b": returns}
        await harness.submit(call("a"), call("b", maxAttempts=1))
        async with worker.at_work():
            await harness.advance(SECOND)

        row, too_large = await harness.task("a"), await harness.task("b")
        assert len(await harness.documents.load(row.result)) == RESULT_LIMIT_BYTES // 2 + 10
        assert too_large.failure is not None
        assert too_large.failure.category is ErrorCategory.PARSE


@BOTH
@scenario
async def test_a_failure_and_a_crash_use_an_attempt(name: str) -> None:
    async def fails(task: SimulatedTask) -> str:
        await task.print(b"before")
        raise TaskError(Failure(category=ErrorCategory.NETWORK, message="no line"))

    async def crashes(task: SimulatedTask) -> str:
        await task.sleep(MILLISECOND)
        raise ChildCrash

    async with slot_worker() as worker:
        harness = worker.harness
        worker.behaviours |= {"a": fails, "b": crashes}
        await harness.submit(call("a", name=name), call("b", name=name), call("c", name=name))
        async with worker.at_work(concurrency=1):
            await harness.advance(100 * MILLISECOND)
            failed, crashed = await harness.task("a"), await harness.task("b")

        assert (failed.attempts_used, failed.failure.message) == (1, "no line")
        assert failed.last_output == 1
        assert (crashed.attempts_used, crashed.failure.category) == (1, ErrorCategory.CRASH)
        assert (await harness.task("c")).state is COMPLETED


@scenario
async def test_an_error_of_the_worker_while_it_finishes_a_task_is_a_failed_attempt() -> None:
    def ports(backend: Any) -> dict[str, Any]:
        return {"blobs": FlakyPort(backend.blobs, "put", RuntimeError("broken"), times=1)}

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness

        async def returns(_: SimulatedTask) -> str:
            return json.dumps("x" * (RESULT_LIMIT_BYTES // 2))

        worker.behaviours["a"] = returns
        await harness.submit(call("a"))
        async with worker.at_work():
            await harness.advance(SECOND)
            failed = await harness.task("a")
            await harness.advance(MINUTE)

        assert failed.attempts_used == 1
        assert "the worker failed: RuntimeError: broken" in failed.failure.message
        assert (await harness.task("a")).state is COMPLETED


@pytest.mark.parametrize(("failures", "state"), [(5, COMPLETED), (6, TaskState.FAILED)])
@scenario
async def test_a_task_whose_definition_cannot_be_read_is_not_run_elsewhere(
    failures: int, state: TaskState
) -> None:
    async with slot_worker() as worker:
        await worker.harness.submit(call("a", maxAttempts=1))
        definitions = FlakyPort(worker.harness.backend.definitions, "get", times=failures)
        worker.harness = harness = worker.harness.with_ports(definitions=definitions)
        async with worker.at_work():
            await harness.advance(5 * SECOND)

        row = await harness.task("a")
        assert harness.runner.specs == []
        assert row.state is state
        assert row.failure is None or row.failure.category is ErrorCategory.NETWORK


@scenario
async def test_an_error_of_the_worker_while_it_prepares_a_task_is_a_failed_attempt() -> None:
    ledger: list[FlakyPort] = []

    def ports(backend: Any) -> dict[str, Any]:
        ledger.append(FlakyPort(backend.ledger, "get_tasks", RuntimeError("broken"), times=0))
        return {"ledger": ledger[0]}

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness
        await harness.submit(call("a"), call("b", "a"))
        await harness.complete(task_id("a"))
        await harness.dispatch()
        ledger[0].fail_always()
        async with worker.at_work():
            await harness.advance(SECOND)
            failed = await harness.task("b")
            ledger[0].recover()
            await harness.advance(MINUTE)

        assert "the worker failed: RuntimeError: broken" in failed.failure.message
        assert (await harness.task("b")).state is COMPLETED


class _RejectingSource:
    """A source that cannot store results."""

    def __init__(self, source: Any, kind: type) -> None:
        self._source = source
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def turn(self, worker: Any, commands: Any, **options: Any) -> Any:
        bad = [isinstance(item.command, self._kind) for item in commands]
        good = [item for item, is_bad in zip(commands, bad, strict=True) if not is_bad]
        turn = await self._source.turn(worker, good, **options)
        rest = iter(turn.answers)
        answers = [BackendRejected("too large") if is_bad else next(rest) for is_bad in bad]
        return replace(turn, answers=answers)


@scenario
async def test_an_outcome_that_cannot_be_stored_is_a_failed_attempt() -> None:
    def ports(backend: Any) -> dict[str, Any]:
        return {"source": _RejectingSource(backend.source, c.Complete)}

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness
        worker.behaviours["a"] = prints("text")
        await harness.submit(call("a", maxAttempts=1))
        async with worker.at_work():
            await harness.advance(SECOND)

        row = await harness.task("a")
        assert (row.state, row.last_output) == (TaskState.FAILED, 1)
        assert "the worker failed: BackendRejected: too large" in row.failure.message


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize("leases", [1.0, 1.3, 1.6, 1.9])
@scenario
async def test_output_is_named_when_log_and_ledger_are_back_after_longer_than_a_lease(
    kind: str, leases: float, tmp_path: Path
) -> None:
    flaky: list[FlakyPort] = []

    def ports(backend: Any) -> dict[str, Any]:
        flaky.append(FlakyPort(backend.output, "append", times=0, after_write=True))
        flaky.append(FlakyPort(backend.ledger, "commit", times=0))
        flaky.append(FlakyPort(flaky[1], "get_task", times=0))
        return {"output": flaky[0], "ledger": flaky[2]}

    async with slot_worker(kind, tmp_path, ports=ports) as worker:
        harness = worker.harness

        async def sleeps_and_prints(task: SimulatedTask) -> str:
            await task.sleep(SECOND)
            await task.print(b"text")
            return "1"

        worker.behaviours["a"] = sleeps_and_prints
        await harness.submit(call("a"))
        async with worker.at_work():
            await harness.advance(500 * MILLISECOND)
            for port in flaky:
                port.fail_always()
            await harness.advance(LEASE.duration * leases)
            for port in flaky:
                port.recover()
            await harness.advance(20 * SECOND)

        row = await harness.task("a")
        assert (row.state, row.attempt, row.last_output) == (COMPLETED, 1, 1)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_short_outcome_survives_an_outage_of_a_ledger(kind: str, tmp_path: Path) -> None:
    ledger: list[FlakyPort] = []

    def ports(backend: Any) -> dict[str, Any]:
        ledger.append(FlakyPort(backend.ledger, "commit", times=0))
        return {"ledger": ledger[0]}

    async with slot_worker(kind, tmp_path, ports=ports) as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(SECOND)
        await harness.submit(call("a"))
        async with worker.at_work():
            await harness.advance(500 * MILLISECOND)
            ledger[0].fail_always()
            await harness.advance(LEASE.duration / 2)
            ledger[0].recover()
            await harness.advance(5 * SECOND)

        row = await harness.task("a")
        assert (row.state, row.attempt) == (COMPLETED, 1)


@scenario
async def test_the_output_of_a_task_whose_result_cannot_be_stored_is_complete() -> None:
    def ports(backend: Any) -> dict[str, Any]:
        return {"blobs": FlakyPort(backend.blobs, "put", times=None)}

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness

        async def prints_and_returns(task: SimulatedTask) -> str:
            await task.print(b"text")
            return json.dumps("x" * 100_000)

        worker.behaviours["a"] = prints_and_returns
        await harness.submit(call("a", maxAttempts=1))
        async with worker.at_work():
            await harness.advance(2 * LEASE.duration)

        row = await harness.task("a")
        assert (row.state, row.last_output) == (TaskState.FAILED, 1)


@ALL
@scenario
async def test_an_outcome_under_a_lost_lease_is_refused_and_the_worker_goes_on(
    kind: str, tmp_path: Path
) -> None:
    async with slot_worker(kind, tmp_path) as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(SECOND)
        await harness.submit(call("a"), call("b", delay=10))
        async with worker.at_work():
            await harness.advance(500 * MILLISECOND)
            await harness.end_lease("a")
            other = await harness.claim(task_id("a"), "worker-2")
            await harness.advance(SECOND)
            assert await harness.task("a") == other
            await harness.advance(10 * SECOND)
        assert (await harness.task("b")).state is COMPLETED


@scenario
async def test_a_step_that_cannot_be_stored_ends_the_attempt_and_costs_none() -> None:
    blobs: list[FlakyPort] = []

    def ports(backend: Any) -> dict[str, Any]:
        blobs.append(FlakyPort(backend.blobs, "put", times=None))
        return {"blobs": blobs[0]}

    async def saves(task: SimulatedTask) -> str:
        await task.save_step("one", 1)
        return "1"

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness
        worker.behaviours["a"] = saves
        await harness.submit(call("a"))
        async with worker.at_work():
            await harness.advance(10 * SECOND)
            failed = await harness.task("a")
            blobs[0].recover()
            await harness.advance(MINUTE)

        row = await harness.task("a")
        assert failed.attempt >= 1
        assert "Task Released" in await harness.event_types("a")
        assert (row.state, row.attempts_used) == (COMPLETED, 0)


@scenario
async def test_the_next_attempt_gets_the_saved_steps() -> None:
    seen: list[str | None] = []

    async def saves_and_crashes(task: SimulatedTask) -> str:
        seen.append(task.spec.checkpoints)
        if task.spec.attempt == 1:
            await task.save_step("one", 1)
            await task.save_step("two", 2)
            raise ChildCrash
        return "1"

    async with slot_worker() as worker:
        harness = worker.harness
        worker.behaviours["a"] = saves_and_crashes
        await harness.submit(call("a"))
        async with worker.at_work():
            await harness.advance(MINUTE)

        first, second = seen
        assert first is None
        assert json.loads(second or "") == {"one": 1, "two": 2}


@scenario
async def test_output_is_not_read_faster_than_it_is_stored() -> None:
    release = asyncio.Event()

    class SlowOutput:
        def __init__(self, port: Any) -> None:
            self._port = port

        def __getattr__(self, name: str) -> Any:
            return getattr(self._port, name)

        async def append(self, *arguments: Any) -> Any:
            await release.wait()
            return await self._port.append(*arguments)

    async def floods(task: SimulatedTask) -> str:
        for _ in range(1_000):
            await task.print(b"x" * 10_000)
            await task.sleep(MILLISECOND)
        return "1"

    async with slot_worker(ports=lambda backend: {"output": SlowOutput(backend.output)}) as worker:
        harness = worker.harness
        worker.behaviours["a"] = floods
        await harness.submit(call("a"))
        async with worker.at_work() as running:
            await harness.advance(SECOND)
            (task,) = running._attempts._current.values()
            waiting = len(task.reports.waiting)
            release.set()
            await harness.advance(2 * SECOND)

        row = await harness.task("a")
        assert waiting <= 100
        assert (row.state, row.last_output) == (COMPLETED, 1_000)


# Stops ------------------------------------------------------------------------------------------


async def _teach(worker: SlotWorker) -> None:
    """Let the worker learn that tasks of the definition are short."""
    await worker.harness.submit(call("short"), request_id="lesson")
    await worker.harness.advance(SECOND)
    worker.begun.clear()


@BOTH
@scenario
async def test_a_running_task_is_cancelled(name: str) -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        worker.behaviours["a"] = prints("started", MINUTE)
        await harness.submit(call("a", name=name))
        async with worker.at_work():
            await harness.advance(SECOND)
            await harness.operator_commands.cancel_task(TENANT, task_id("a"), by="ann")
            await harness.advance(SECOND)

            row = await harness.task("a")
            assert worker.running == []
        assert (row.state, row.last_output) == (CANCELLED, 1)


@BOTH
@scenario
async def test_a_slot_is_used_again_after_a_cancelled_task_has_returned(name: str) -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(3 * SECOND, deaf=True)
        await harness.submit(call("a", name=name), call("b", name=name, delay=10))
        async with worker.at_work(concurrency=1):
            await harness.advance(SECOND)
            await harness.operator_commands.cancel_task(TENANT, task_id("a"), by="ann")
            await harness.advance(12 * SECOND)

        states = await harness.states()
        assert (states["a"], states["b"]) == (CANCELLED, COMPLETED)


@scenario
async def test_a_claimed_task_is_cancelled_before_it_begins_and_the_others_run() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        async with worker.at_work(concurrency=1):
            await _teach(worker)
            worker.behaviours["a"] = lasts(40 * MILLISECOND)
            await harness.submit(call("a"), call("b"), call("c"))
            await harness.advance(5 * MILLISECOND)
            claimed = await harness.states()
            await harness.operator_commands.cancel_task(TENANT, task_id("b"), by="ann")
            await harness.advance(SECOND)

        states = await harness.states()
        assert claimed["b"] is TaskState.PROCESSING
        assert (states["a"], states["b"], states["c"]) == (COMPLETED, CANCELLED, COMPLETED)
        assert worker.begun == ["a", "c"]


@scenario
async def test_a_task_that_waits_for_a_slot_is_cancelled() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        opened = asyncio.Event()
        worker._before_open = opened.wait
        await harness.submit(call("a"))
        async with worker.at_work():
            await harness.advance(SECOND)
            await harness.operator_commands.cancel_task(TENANT, task_id("a"), by="ann")
            await harness.advance(SECOND)
            assert (await harness.task("a")).state is CANCELLED
            opened.set()
            await harness.advance(SECOND)

        assert worker.begun == []


@BOTH
@pytest.mark.parametrize("deaf", [False, True])
@scenario
async def test_a_task_that_takes_too_long_times_out(name: str, *, deaf: bool) -> None:
    async with slot_worker(timeout=2 * SECOND) as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(MINUTE, deaf=deaf)
        await harness.submit(call("a", name=name))
        async with worker.at_work():
            await harness.advance(timedelta(seconds=1.9))
            assert worker.running == ["a"]
            await harness.advance(LEASE.kill_grace + SECOND)

        row = await harness.task("a")
        (timed_out,) = [
            event for event in await harness.history("a") if event.type == "Task Timeout"
        ]
        assert row.state is TaskState.FAILED
        assert timed_out.body.signal == ("SIGKILL" if deaf else "SIGTERM")


@scenario
async def test_a_short_timeout_is_noticed_while_a_task_with_a_long_one_runs() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        fields = {"timeout": SECOND, "overridable": ("function",)}
        definition = Definition(name="hasty", runner=RunnerKind.PYTHON, **fields)
        await harness.backend.definitions.put(TENANT, definition)
        worker.behaviours |= {"a": HANGS, "b": HANGS}
        await harness.submit(call("a", name="forked"), call("b", name="hasty", delay=10))
        async with worker.at_work():
            await harness.advance(15 * SECOND)

            assert worker.running == ["a"]
            assert (await harness.task("b")).state is TaskState.FAILED


@scenario
async def test_a_worker_does_nothing_while_a_task_that_timed_out_has_its_grace_period() -> None:
    async with slot_worker(timeout=SECOND) as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(MINUTE, deaf=True)
        await harness.submit(call("a"))
        async with worker.at_work() as running:
            await harness.advance(2 * SECOND)
            slot_tasks, actions = running._attempts, []
            act = slot_tasks._act
            slot_tasks._act = lambda: (actions.append(1), act())
            await harness.advance(2 * SECOND)

            assert len(actions) < 5


@ALL
@BOTH
@scenario
async def test_a_task_whose_lease_was_ended_is_killed_and_nothing_is_reported(
    kind: str, name: str, tmp_path: Path
) -> None:
    async with slot_worker(kind, tmp_path) as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(timedelta(hours=1), deaf=True)
        await harness.submit(call("a", name=name))
        async with worker.at_work():
            await harness.advance(SECOND)
            await harness.end_lease("a")
            other = await harness.claim(task_id("a"), "worker-2")
            await harness.advance(LEASE.renew_every)

            assert worker.running == []
            assert await harness.task("a") == other


@BOTH
@scenario
async def test_a_task_is_killed_in_time_if_its_lease_cannot_be_renewed(name: str) -> None:
    source: list[FlakyPort] = []

    def ports(backend: Any) -> dict[str, Any]:
        source.append(FlakyPort(backend.source, "turn", times=0))
        return {"source": source[0]}

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(timedelta(hours=1), deaf=True)
        await harness.submit(call("a", name=name))
        async with worker.at_work():
            await harness.advance(SECOND)
            source[0].fail_always()
            await harness.advance(LEASE.trusted_for - 2 * SECOND)
            assert worker.running == ["a"]
            await harness.advance(2 * SECOND)
            assert worker.running == []
            source[0].recover()
            await harness.advance(2 * SECOND)

        assert (await harness.task("a")).attempts_used == 1


@scenario
async def test_a_task_that_is_given_too_late_is_released() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        opened = asyncio.Event()
        worker._before_open = opened.wait
        await harness.submit(call("a"))
        async with worker.at_work() as running:
            await harness.advance(SECOND)
            running._attempts.renew = AsyncMock(return_value=True)
            await harness.advance(LEASE.trusted_for)
            opened.set()
            await harness.advance(NO_WAIT)

            (released,) = [e for e in await harness.history("a") if e.type == "Task Released"]
            assert released.body.attempt_number == 1
            assert (await harness.task("a")).attempts_used == 0


@ALL
@scenario
async def test_the_next_attempt_begins_when_the_one_whose_lease_was_lost_has_ended(
    kind: str, tmp_path: Path
) -> None:
    output: list[FlakyPort] = []

    def ports(backend: Any) -> dict[str, Any]:
        output.append(FlakyPort(backend.output, "append", times=None))
        return {"output": output[0]}

    async with slot_worker(kind, tmp_path, ports=ports) as worker:
        harness = worker.harness
        worker.behaviours["a"] = prints("text")
        await harness.submit(call("a"))
        async with worker.at_work():
            await harness.advance(SECOND)
            await harness.end_lease("a")
            await harness.advance(SECOND)
            assert worker.begun == ["a"]
            output[0].recover()
            await harness.advance(5 * SECOND)

        row = await harness.task("a")
        assert (row.state, row.attempt, worker.begun) == (COMPLETED, 2, ["a", "a"])


class SlowLedger:
    """A ledger whose rows are read when ``readable`` is set."""

    def __init__(self) -> None:
        self.readable = asyncio.Event()
        self.readable.set()

    def ports(self, backend: Any) -> dict[str, Any]:
        self._ledger = backend.ledger
        return {"ledger": self}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def get_tasks(self, task_ids: Any) -> Any:
        await self.readable.wait()
        return await self._ledger.get_tasks(task_ids)


@scenario
async def test_a_task_that_is_prepared_while_the_worker_stops_is_released() -> None:
    ledger = SlowLedger()
    async with slot_worker(ports=ledger.ports) as worker:
        harness = worker.harness
        await harness.submit(call("a"), call("b", "a"))
        await harness.complete(task_id("a"))
        await harness.dispatch()
        ledger.readable.clear()
        async with worker.at_work() as running:
            await harness.advance(SECOND)
            running.stop()
            ledger.readable.set()
            await harness.advance(SECOND)

        row = await harness.task("b")
        assert (row.state, row.attempt, worker.begun) == (PENDING, 1, [])


# Turns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DIRECT)
@scenario
async def test_the_tasks_of_a_wide_job_share_turns(kind: str, tmp_path: Path) -> None:
    source: list[FlakyPort] = []

    def ports(backend: Any) -> dict[str, Any]:
        source.append(FlakyPort(backend.source, "turn", times=0))
        return {"source": source[0]}

    async with slot_worker(kind, tmp_path, ports=ports) as worker:
        wide = [f"w{number}" for number in range(60)]
        await worker.harness.submit(
            call("first"), *(call(key, "first") for key in wide), call("last", *wide)
        )
        async with worker.at_work(concurrency=2):
            await _until_completed(worker.harness, "last")

        # Tasks of a millisecond are claimed for five milliseconds and for two slots.
        assert source[0].calls <= len(wide) / 4


# Slots ------------------------------------------------------------------------------------------


@ALL
@scenario
async def test_what_waits_behind_a_slow_task_is_given_back(kind: str, tmp_path: Path) -> None:
    async with slot_worker(kind, tmp_path) as worker:
        harness = worker.harness
        async with worker.at_work(concurrency=1):
            await _teach(worker)
            worker.behaviours["a"] = lasts(MINUTE)
            await harness.submit(call("a"), call("b"), call("c"))
            await harness.advance(10 * MILLISECOND)
            await harness.advance(timedelta(seconds=1))
            rows = [await harness.task(key) for key in "bc"]

            assert worker.running == ["a"]
            assert [row.state for row in rows] == [PENDING, PENDING]
            assert [row.attempts_used for row in rows] == [0, 0]


@scenario
async def test_what_waits_behind_a_slow_task_runs_in_a_free_slot() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        async with worker.at_work(concurrency=2):
            await _teach(worker)
            keys = [f"t{number}" for number in range(10)]
            worker.behaviours["t0"] = lasts(MINUTE)
            await harness.submit(*(call(key) for key in keys))
            await _until_completed(harness, *keys[1:])

            assert worker.running == ["t0"]
            assert sorted(worker.begun) == keys


class _GenerousSource:
    """A source that claims one task more than there is room for, once."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._is_generous = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def turn(self, worker: Any, commands: Any, *, turn_id: str, room: Any) -> Any:
        slots = room.slots if room else 0
        if not slots and self._is_generous:
            room = Room(slots=1)
        answer = await self._source.turn(worker, commands, turn_id=turn_id, room=room)
        self._is_generous = self._is_generous and not (room and answer.claimed and not slots)
        return answer


@scenario
async def test_a_task_without_a_slot_is_released_while_slots_use_every_unit() -> None:
    def ports(backend: Any) -> dict[str, Any]:
        return {"source": _GenerousSource(backend.source)}

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(MINUTE)
        await harness.submit(call("a"))
        async with worker.at_work(concurrency=1):
            await harness.advance(SECOND)
            await harness.submit(make_task("b"), request_id="later")
            await harness.advance(LEASE.duration)
            waiting = await harness.task("b", "later")

            assert waiting.fence > 0
            assert (waiting.state, waiting.attempts_used) == (PENDING, 0)
            assert harness.runner.specs == []

            await harness.advance(2 * MINUTE)
            row = await harness.task("b", "later")
            assert row.state is COMPLETED


@ALL
@scenario
async def test_a_task_that_is_claimed_with_the_outcome_of_another_begins_at_once(
    kind: str, tmp_path: Path
) -> None:
    async with slot_worker(kind, tmp_path) as worker:
        harness = worker.harness
        await harness.submit(make_task("a"), make_task("b"), make_task("c"))
        async with worker.at_work(concurrency=1):
            await harness.advance(MINUTE)

        rows = [await harness.task(key) for key in "abc"]
        assert [(row.state, row.attempt) for row in rows] == [(COMPLETED, 1)] * 3


@scenario
async def test_a_child_of_a_pool_serves_one_tenant_after_the_other() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        tasks = {"tasks": [call("a"), call("b")]}
        async with worker.at_work(concurrency=1):
            for number, tenant in enumerate((TENANT, "other", TENANT)):
                await harness.producer.submit(tenant, f"request-{number}", tasks)
            await harness.advance(SECOND)

        assert sorted(worker.begun) == ["a", "a", "a", "b", "b", "b"]
        for tenant in (TENANT, "other"):
            page = await harness.backend.ledger.list_tasks(tenant)
            assert {row.state for row in page.items} == {COMPLETED}


@scenario
async def test_a_tenant_does_not_wait_for_the_backlog_of_another() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        backlog = {"tasks": [call(f"t{number}") for number in range(1_000)]}
        await harness.producer.submit(TENANT, "backlog", backlog)
        async with worker.at_work(concurrency=1):
            await _until_begun(worker, "t100")
            await harness.producer.submit("other", "late", {"tasks": [call("a"), call("b")]})
            await _until_begun(worker, "b")

        assert "t800" not in worker.begun
        rows = (await harness.backend.ledger.list_tasks("other")).items
        assert [row.attempt for row in rows] == [1, 1]


async def _until_begun(worker: SlotWorker, key: str) -> None:
    while key not in worker.begun:
        await worker.harness.advance(5 * MILLISECOND)


@scenario
async def test_tasks_are_released_while_no_slot_can_be_opened() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        worker.open_errors += [BackendUnavailable("no process")] * 2
        await harness.submit(call("a"))
        async with worker.at_work():
            await harness.advance(timedelta(seconds=1.5))
            released = [e.type for e in await harness.history("a")].count("Task Released")
            await harness.advance(10 * SECOND)

        row = await harness.task("a")
        assert released >= 1
        assert (row.state, row.attempts_used) == (COMPLETED, 0)


@scenario
async def test_a_worker_that_can_open_no_slot_any_more_ends_with_the_reason() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        worker.open_errors += [BackendUnavailable("no process"), RunnerBroken("exit code 3")]
        await harness.submit(call("a"))
        running = harness.worker("w", context={"make_slots": worker.make_slots}).run()

        with pytest.raises(RunnerBroken, match="exit code 3"):
            await harness.advance_until_done(running)

        released = (await harness.history("a"))[-1]
        assert (released.type, released.body.reason) == ("Task Released", "exit code 3")
        assert (await harness.task("a")).attempts_used == 0
        assert harness.worker_registry.calls[-1] == ("deregister", "w")


@scenario
async def test_a_task_that_cannot_be_written_for_its_slot_is_released_and_runs_later() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        async with worker.at_work(concurrency=2):
            give, failed = worker.slots.give, []

            def give_when_there_is_room(slot: int, task: SlotTask) -> bool:
                if not failed:
                    failed.append(task.task_id)
                    raise OSError(errno.ENOSPC, "No space left on device")
                return give(slot, task)

            worker.slots.give = give_when_there_is_room
            await harness.submit(call("a"), call("b"))
            await harness.advance(10 * SECOND)

        rows = [await harness.task(key) for key in ("a", "b")]
        histories = {row.id: [e.type for e in await harness.history(row.spec.key)] for row in rows}
        assert [(row.state, row.attempts_used) for row in rows] == [(COMPLETED, 0)] * 2
        assert [id_ for id_, types in histories.items() if "Task Released" in types] == failed


@scenario
async def test_a_worker_that_can_write_no_task_for_a_slot_stops_when_asked() -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        async with worker.at_work():
            worker.slots.give = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
            await harness.submit(call("a"))
            await harness.advance(20 * SECOND)

        row = await harness.task("a")
        assert (row.state, row.attempts_used, worker.slots.give.called) == (PENDING, 0, True)


@scenario
async def test_a_task_that_is_prepared_while_no_slot_can_be_opened_runs_later() -> None:
    ledger = SlowLedger()
    async with slot_worker(ports=ledger.ports) as worker:
        harness = worker.harness
        await harness.submit(call("a"), call("b", "a"), call("c"))
        await harness.complete(task_id("a"))
        await harness.dispatch()
        ledger.readable.clear()
        worker.open_errors += [BackendUnavailable("no process")] * 2
        async with worker.at_work(concurrency=2):
            await harness.advance(timedelta(seconds=1.5))
            ledger.readable.set()
            await harness.advance(10 * SECOND)

        released = [[e.type for e in await harness.history(key)] for key in ("b", "c")]
        assert [types.count("Task Released") > 0 for types in released] == [False, True]
        assert [(await harness.task(key)).state for key in ("b", "c")] == [COMPLETED, COMPLETED]


@pytest.mark.parametrize("isolation", [Isolation.POOL, Isolation.FORK])
@scenario
async def test_tasks_of_a_slot_that_is_lost_run_in_another(isolation: Isolation) -> None:
    name = "pooled" if isolation is Isolation.POOL else "forked"
    async with slot_worker() as worker:
        harness = worker.harness
        async with worker.at_work(concurrency=1):
            await _teach(worker)
            worker.behaviours["a"] = prints("started", 40 * MILLISECOND)
            await harness.submit(call("a", name=name), call("b", name=name))
            await harness.advance(5 * MILLISECOND)
            for slot in [*worker.slots._slots]:
                worker.slots.lose(slot)
            await _until_completed(harness, "a", "b")

        (failed,) = [e for e in await harness.history("a") if e.type == "Task Processing Failed"]
        assert "the child ended: lost" in failed.body.error
        assert [(await harness.task(key)).attempt for key in "ab"] == [2, 1]


@scenario
async def test_leases_are_renewed_while_the_output_of_a_lost_slot_is_stored() -> None:
    output: list[FlakyPort] = []

    def ports(backend: Any) -> dict[str, Any]:
        output.append(FlakyPort(backend.output, "append", times=None))
        return {"output": output[0]}

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness
        worker.behaviours |= {"a": prints("started", MINUTE), "b": lasts(2 * MINUTE)}
        await harness.submit(call("a"), call("b", name="forked"))
        async with worker.at_work():
            await harness.advance(SECOND)
            (slot,) = [n for n, s in worker.slots._slots.items() if s._isolation is Isolation.POOL]
            worker.slots.lose(slot)
            await harness.advance(LEASE.duration + LEASE.skew_margin)
            row = await harness.task("b")
            assert worker.running == ["b"]
            assert row.lease is not None
            assert row.lease.heartbeats > 0
            output[0].recover()


@scenario
async def test_children_that_retire_are_replaced() -> None:
    async def retires(task: SimulatedTask) -> str:
        task.child_retires = True
        await task.sleep(MILLISECOND)
        return "1"

    async with slot_worker() as worker:
        harness = worker.harness
        async with worker.at_work(concurrency=1):
            await _teach(worker)
            keys = [f"t{number}" for number in range(12)]
            worker.behaviours |= dict.fromkeys(keys[::3], retires)
            await harness.submit(*(call(key) for key in keys))
            await _until_completed(harness, *keys)

        assert sorted(worker.begun) == sorted(keys)


# Drains -----------------------------------------------------------------------------------------


@ALL
@scenario
async def test_a_worker_that_stops_finishes_what_has_begun_and_releases_the_rest(
    kind: str, tmp_path: Path
) -> None:
    async with slot_worker(kind, tmp_path) as worker:
        harness = worker.harness
        async with worker.at_work(concurrency=1) as running:
            await _teach(worker)
            worker.behaviours["a"] = lasts(40 * MILLISECOND)
            await harness.submit(call("a"), call("b"), call("c"))
            await harness.advance(5 * MILLISECOND)
            running.stop()
            await harness.advance(SECOND)

        states = await harness.states()
        assert (states["a"], states["b"], states["c"]) == (COMPLETED, PENDING, PENDING)
        assert worker.begun == ["a"]
        assert (await harness.task("b")).attempts_used == 0


@BOTH
@scenario
async def test_the_heartbeats_of_a_slots_task_have_the_process_id_of_its_child(name: str) -> None:
    async with slot_worker(timeout=MINUTE * 5) as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(3 * LEASE.duration)
        await harness.submit(call("a", name=name))
        async with worker.at_work():
            await harness.advance(2 * LEASE.duration)
            process_id = worker.slots.process_id(0)
            bodies = [event.body for event in await harness.history("a")]
            await harness.advance(2 * LEASE.duration)

    beats = [body for body in bodies if isinstance(body, TaskHeartbeat)]
    assert beats
    assert process_id
    assert {beat.process_id for beat in beats} == {process_id}


@BOTH
@scenario
async def test_a_bug_in_a_renewal_of_slots_does_not_end_the_renewing(name: str) -> None:
    async with slot_worker(timeout=MINUTE * 5) as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(3 * LEASE.duration)
        await harness.submit(call("a", name=name))
        async with worker.at_work():
            await harness.advance(SECOND)
            process_id = worker.slots.process_id
            slots = cast("Any", worker.slots)
            slots.process_id = Mock(side_effect=[ValueError("a bug"), *[process_id(0)] * 100])
            await harness.advance(4 * LEASE.duration)

        assert slots.process_id.call_count > 1
        row = await harness.task("a")
        assert (row.state, row.attempt) == (COMPLETED, 1)


@pytest.mark.parametrize("stops_at", [500 * MILLISECOND, 2 * SECOND], ids=["before", "after"])
@pytest.mark.parametrize("behaviour", [lasts(SECOND), prints("text", SECOND)])
@scenario
async def test_a_worker_that_stops_reports_its_last_outcome_through_an_outage(
    behaviour: Behaviour, stops_at: timedelta
) -> None:
    source: list[FlakyPort] = []

    def ports(backend: Any) -> dict[str, Any]:
        source.append(FlakyPort(backend.source, "turn", times=0))
        return {"source": source[0]}

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness
        worker.behaviours["a"] = behaviour
        await harness.submit(call("a"))
        async with worker.at_work() as running:
            await harness.advance(100 * MILLISECOND)
            source[0].fail_always()
            await harness.advance(stops_at - 100 * MILLISECOND)
            running.stop()
            await harness.advance(5 * SECOND)
            source[0].recover()
            await harness.advance(5 * SECOND)

        assert (await harness.task("a")).state is COMPLETED


@scenario
async def test_a_worker_that_is_stopped_at_once_reports_a_task_that_has_ended() -> None:
    output: list[FlakyPort] = []

    async def fails(task: SimulatedTask) -> str:
        await task.print(b"before")
        raise TaskError(Failure(category=ErrorCategory.NETWORK, message="no line"))

    def ports(backend: Any) -> dict[str, Any]:
        output.append(FlakyPort(backend.output, "append", times=None))
        return {"output": output[0]}

    async with slot_worker(ports=ports) as worker:
        harness = worker.harness
        worker.behaviours |= {"a": prints("text"), "b": fails}
        await harness.submit(call("a"), call("b"))
        async with worker.at_work() as running:
            await harness.advance(SECOND)
            running.stop()
            running.release_all()
            output[0].recover()
            await harness.advance(2 * SECOND)

        assert (await harness.task("a")).state is COMPLETED
        assert (await harness.task("b")).attempts_used == 1


@BOTH
@scenario
async def test_a_worker_that_is_stopped_at_once_gives_no_grace_period(name: str) -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        worker.behaviours["a"] = lasts(MINUTE, deaf=True)
        await harness.submit(call("a", name=name))
        async with worker.at_work() as running:
            await harness.advance(SECOND)
            running.stop()
            running.release_all()
            running.kill_children()
            await harness.advance(NO_WAIT)

            assert worker.running == []
            row = await harness.task("a")
        assert (row.state, row.attempts_used) == (PENDING, 0)


@BOTH
@scenario
async def test_a_task_that_outlasts_the_drain_is_released_with_its_output(name: str) -> None:
    async with slot_worker() as worker:
        harness = worker.harness
        worker.behaviours["a"] = prints("text", timedelta(hours=1))
        await harness.submit(call("a", name=name))
        async with worker.at_work() as running:
            await harness.advance(SECOND)
            running.stop()
            await harness.advance(timedelta(seconds=31))

        row = await harness.task("a")
        assert (row.state, row.attempts_used, row.last_output) == (PENDING, 0, 1)
