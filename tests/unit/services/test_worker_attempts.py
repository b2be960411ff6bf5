"""What comes of an attempt: results, failures, timeouts, and errors of the store."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.documents import INLINE_LIMIT_BYTES
from longshore.core.events.types import Usage
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from longshore.ports.runner import UsageReport
from longshore.testing.fake_runner import Script, fails, prints, succeeds
from longshore.testing.flaky_port import FlakyPort
from longshore.testing.worker_registry import FakeWorkerRegistry
from tests.unit.services.harness import (
    BACKENDS,
    RESULT_LIMIT_BYTES,
    SECOND,
    TENANT,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.samples import HANGS, MINUTE, STUBBORN


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_result_is_kept_with_all_that_is_to_be_known_of_the_attempt(
    kind: str, tmp_path: Path
) -> None:
    usage = Usage(input_tokens=5, turns=1)
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        says = [
            UsageReport(Usage(turns=1)),
            prints("hello"),
            timedelta(seconds=3),
            UsageReport(usage),
        ]
        harness.runner.set_scripts("a", Script(reports=says, ending=succeeds({"answer": 42})))

        async with harness.running_worker():
            # The worker waits for a task: this is no part of the attempt.
            await harness.advance(timedelta(milliseconds=700))
            await harness.submit(make_task())
            await harness.advance(timedelta(seconds=5))

        row = await harness.task("a")
        assert row.state is TaskState.COMPLETED
        assert await harness.documents.load(row.result) == {"answer": 42}
        assert row.ran_for == timedelta(seconds=3)
        assert row.usage == usage
        assert row.last_output == 1
        assert row.exit_code == 0
        assert harness.worker_registry.children == {}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_large_result_is_stored_before_the_outcome_and_comes_back_whole(
    kind: str, tmp_path: Path
) -> None:
    large = "x" * INLINE_LIMIT_BYTES * 2
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(ending=succeeds(large)))
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)

        row = await harness.task("a")
        assert row.result is not None
        assert row.result.text is None
        assert await harness.documents.load(row.result) == large


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    "result", ["x" * RESULT_LIMIT_BYTES, float("nan"), "\ud800"], ids=["large", "nan", "surrogate"]
)
@scenario
async def test_a_result_that_cannot_be_kept_fails_the_task(
    kind: str, result: Any, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(ending=succeeds(result)))
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)

        row = await harness.task("a")
        assert row.state is TaskState.FAILED
        assert row.failure is not None
        assert row.failure.category is ErrorCategory.PARSE


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_passing_failure_is_tried_again_when_it_is_due(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(ending=fails()), Script())
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=0.499))
            waiting, begun = await harness.task("a"), len(harness.runner.specs)
            await harness.advance(timedelta(seconds=0.001))

        assert waiting.state is TaskState.PENDING
        assert waiting.failure is not None
        assert waiting.failure.category is ErrorCategory.NETWORK
        assert waiting.attempts_used == 1
        assert (begun, len(harness.runner.specs)) == (1, 2)
        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert [spec.attempt for spec in harness.runner.specs] == [1, 2]
        assert await harness.event_types("a") == [
            "Task Pending",
            "Task Processing Started",
            "Task Processing Failed",
            "Task Processing Started",
            "Task Completed",
        ]
        assert (await harness.source.depth("default")).hidden == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_is_not_retried_before_the_time_that_the_server_requested(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        limited = fails(ErrorCategory.RATE_LIMIT, retry_after=MINUTE)
        harness.runner.set_scripts("a", Script(ending=limited), Script())
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(MINUTE)
            early = len(harness.runner.specs)
            await harness.advance(SECOND)

        row = await harness.task("a")
        assert (early, len(harness.runner.specs)) == (1, 2)
        assert (row.state, row.attempts_used) == (TaskState.COMPLETED, 0)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_final_failure_ends_the_task(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(ending=fails(ErrorCategory.VALIDATION)))
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(MINUTE)

        assert (await harness.task("a")).state is TaskState.FAILED
        assert len(harness.runner.specs) == 1
        assert (await harness.event_types("a"))[-1] == "Task Failed"


FINAL = ("auth", "validation", "parse", "not-found", "programming", "exit-code", "unknown")
MAY_PASS = ("timeout", "network", "rate-limit", "server-error", "crash", "out-of-memory")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_category_of_a_failure_decides_whether_there_is_another_attempt(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        for category in ErrorCategory:
            harness.runner.set_scripts(category.value, Script(ending=fails(category)), Script())
        await harness.submit(*(make_task(category.value) for category in ErrorCategory))

        async with harness.running_worker():
            await harness.advance(MINUTE)

        states = await harness.states()
        assert sorted(states) == sorted((*FINAL, *MAY_PASS))
        for category in FINAL:
            assert states[category] is TaskState.FAILED
            assert (await harness.event_types(category))[-1] == "Task Failed"
        for category in MAY_PASS:
            first = (await harness.history(category))[2]
            assert states[category] is TaskState.COMPLETED
            assert first.type == "Task Processing Failed"
            assert first.body.error_category == category


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_may_decide_itself_whether_there_is_another_attempt(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        again = fails(ErrorCategory.VALIDATION, retry=True, retry_after=MINUTE)
        harness.runner.set_scripts("retry", Script(ending=again), Script())
        harness.runner.set_scripts("fail", Script(ending=fails(retry=False)), Script())
        await harness.submit(make_task("retry"), make_task("fail"))

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=59))
            early = await harness.states()
            await harness.advance(timedelta(seconds=2))

        assert early == {"retry": TaskState.PENDING, "fail": TaskState.FAILED}
        assert (await harness.task("retry")).state is TaskState.COMPLETED
        assert (await harness.task("fail")).attempt == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_fails_when_its_attempts_are_used_up(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(ending=fails()))
        await harness.submit(make_task(maxAttempts=4))

        async with harness.running_worker():
            await harness.advance(timedelta(minutes=5))

        last = (await harness.history("a"))[-1].body
        assert len(harness.runner.specs) == 4
        assert (await harness.task("a")).state is TaskState.FAILED
        assert (last.retry_count, last.source, last.error_category) == (4, "worker", "network")


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("script", "signal", "seconds"),
    [(HANGS, "SIGTERM", 60), (STUBBORN, "SIGKILL", 65)],
    ids=["obeys", "ignores"],
)
@scenario
async def test_a_timeout_records_the_signal_and_the_duration(
    kind: str, script: Script, signal: str, seconds: int, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", script)
        await harness.submit(make_task())

        async with harness.running_worker(context={"timeout": MINUTE}):
            await harness.advance(timedelta(seconds=70))

        notices = (await harness.history("a"))[-1]
        assert notices.type == "Task Timeout"
        assert notices.body.signal == signal
        assert notices.body.timeout == MINUTE
        assert notices.body.elapsed == timedelta(seconds=seconds)
        assert (await harness.task("a")).state is TaskState.FAILED
        assert harness.runner.alive == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_definition_has_its_own_timeout_and_may_ask_for_another_try(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        slow = Definition(
            name="slow",
            runner=RunnerKind.COMMAND,
            overridable=("argv",),
            timeout=MINUTE,
            retry_on_timeout=True,
        )
        await backend.definitions.put(TENANT, slow)
        harness.runner.set_scripts("a", HANGS, Script())
        await harness.submit(make_task(name="slow"))

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=59))
            early = len(harness.runner.specs)
            await harness.advance(timedelta(seconds=10))

        assert early == 1
        assert harness.runner.specs[0].definition.name == "slow"
        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert "Task Processing Failed" in await harness.event_types("a")


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("port", "method", "after"),
    [("ledger", "commit", False), ("ledger", "commit", True), ("blobs", "put", False)],
    ids=["ledger", "answers lost", "blobs"],
)
@scenario
async def test_finished_work_survives_an_outage_of_the_store(
    kind: str, port: str, method: str, after: bool, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[SECOND], ending=succeeds("x" * 5000)))
        if port == "ledger" and backend.source is not None:
            port, method = "source", "turn"
        flaky = FlakyPort(getattr(backend, port), method, times=0, after_write=after)
        await harness.submit(make_task())

        async with harness.with_ports(**{port: flaky}).running_worker():
            await harness.advance(timedelta(seconds=0.5))
            flaky.fail_always()
            await harness.advance(timedelta(seconds=20))
            flaky.recover()
            await harness.advance(MINUTE)

        row = await harness.task("a")
        assert flaky.failures >= 6
        assert len(harness.runner.specs) == 1
        assert row.state is TaskState.COMPLETED
        assert await harness.documents.load(row.result) == "x" * 5000
        assert (await harness.event_types("a")).count("Task Completed") == 1
        assert (await harness.source.depth("default")).hidden == 0


class FullDiskRegistry(FakeWorkerRegistry):
    """A presence that cannot write anything down."""

    def record_child(self, worker_id: str, process_id: int) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_child_that_cannot_be_noted_down_is_not_left_alive(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend, worker_registry=FullDiskRegistry())
        harness.runner.set_scripts("a", HANGS)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)

        assert len(harness.runner.children) == 1
        assert harness.runner.alive == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_is_cancelled_kills_its_children(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS)
        harness.runner.set_scripts("b", STUBBORN)
        await harness.submit(make_task("a"), make_task("b"))
        running = asyncio.ensure_future(harness.worker().run())
        await harness.advance(SECOND)

        running.cancel()
        await harness.advance(SECOND)

        assert running.cancelled()
        assert len(harness.runner.children) == 2
        assert harness.runner.alive == []
