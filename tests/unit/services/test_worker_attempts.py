"""What comes of an attempt: results, failures, timeouts, and trouble on the way."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.failures import ErrorCategory
from longshore.core.states import TaskState
from longshore.core.values import INLINE_LIMIT_BYTES
from longshore.ports.runner import Used
from longshore.testing.flaky import Flaky
from longshore.testing.presence import FakePresence
from longshore.testing.runner import Script, fails, prints, succeeds
from tests.unit.services.samples import HANGS, MINUTE, STUBBORN
from tests.unit.services.stage import (
    BACKENDS,
    RESULT_LIMIT_BYTES,
    SECOND,
    TENANT,
    Stage,
    a_task,
    opened,
    scenario,
)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_result_is_kept_with_all_that_is_to_be_known_of_the_attempt(
    kind: str, tmp_path: Path
) -> None:
    usage = Usage(input_tokens=5, turns=1)
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        says = [Used(Usage(turns=1)), prints("hello"), timedelta(seconds=3), Used(usage)]
        stage.runner.plays("a", Script(says=says, ending=succeeds({"answer": 42})))
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(timedelta(seconds=5))

        row = await stage.task("a")
        assert row.state is TaskState.COMPLETED
        assert await stage.documents.load(row.result) == {"answer": 42}
        assert row.ran_for == timedelta(seconds=3)
        assert row.usage == usage
        assert row.last_output == 1
        assert row.exit_code == 0
        assert stage.presence.children == {}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_large_result_is_stored_before_the_outcome_and_comes_back_whole(
    kind: str, tmp_path: Path
) -> None:
    large = "x" * INLINE_LIMIT_BYTES * 2
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(ending=succeeds(large)))
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)

        row = await stage.task("a")
        assert row.result is not None
        assert not row.result.inline
        assert await stage.documents.load(row.result) == large


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    "result", ["x" * RESULT_LIMIT_BYTES, float("nan"), "\ud800"], ids=["large", "nan", "surrogate"]
)
@scenario
async def test_a_result_that_cannot_be_kept_fails_the_task(
    kind: str, result: Any, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(ending=succeeds(result)))
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)

        row = await stage.task("a")
        assert row.state is TaskState.FAILED
        assert row.failure is not None
        assert row.failure.category is ErrorCategory.PARSE


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_passing_failure_is_tried_again_when_it_is_due(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(ending=fails()), Script())
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(timedelta(seconds=0.499))
            waiting, begun = await stage.task("a"), len(stage.runner.orders)
            await stage.passes(timedelta(seconds=0.001))

        assert waiting.state is TaskState.PENDING
        assert waiting.failure is not None
        assert waiting.failure.category is ErrorCategory.NETWORK
        assert waiting.attempts_used == 1
        assert (begun, len(stage.runner.orders)) == (1, 2)
        assert (await stage.task("a")).state is TaskState.COMPLETED
        assert [order.attempt for order in stage.runner.orders] == [1, 2]
        assert await stage.told("a") == [
            "Task Pending",
            "Task Processing Started",
            "Task Processing Failed",
            "Task Processing Started",
            "Task Completed",
        ]
        assert (await backend.queue.depth("default")).hidden == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_is_not_tried_before_the_server_said(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        limited = fails(ErrorCategory.RATE_LIMIT, retry_after=MINUTE)
        stage.runner.plays("a", Script(ending=limited), Script())
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(MINUTE)
            early = len(stage.runner.orders)
            await stage.passes(SECOND)

        row = await stage.task("a")
        assert (early, len(stage.runner.orders)) == (1, 2)
        assert (row.state, row.attempts_used) == (TaskState.COMPLETED, 0)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_final_failure_ends_the_task(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(ending=fails(ErrorCategory.VALIDATION)))
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(MINUTE)

        assert (await stage.task("a")).state is TaskState.FAILED
        assert len(stage.runner.orders) == 1
        assert (await stage.told("a"))[-1] == "Task Failed"


FINAL = ("auth", "validation", "parse", "not-found", "programming", "exit-code", "unknown")
MAY_PASS = ("timeout", "network", "rate-limit", "server-error", "crash", "out-of-memory")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_category_of_a_failure_decides_whether_there_is_another_attempt(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        for category in ErrorCategory:
            stage.runner.plays(category.value, Script(ending=fails(category)), Script())
        await stage.submit(*(a_task(category.value) for category in ErrorCategory))

        async with stage.working():
            await stage.passes(MINUTE)

        states = await stage.states()
        assert sorted(states) == sorted((*FINAL, *MAY_PASS))
        for category in FINAL:
            assert states[category] is TaskState.FAILED
            assert (await stage.told(category))[-1] == "Task Failed"
        for category in MAY_PASS:
            first = (await stage.history(category))[2]
            assert states[category] is TaskState.COMPLETED
            assert first.type == "Task Processing Failed"
            assert first.body.error_category == category


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_may_decide_itself_whether_there_is_another_attempt(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        again = fails(ErrorCategory.VALIDATION, retry=True, retry_after=MINUTE)
        stage.runner.plays("retry", Script(ending=again), Script())
        stage.runner.plays("fail", Script(ending=fails(retry=False)), Script())
        await stage.submit(a_task("retry"), a_task("fail"))

        async with stage.working():
            await stage.passes(timedelta(seconds=59))
            early = await stage.states()
            await stage.passes(timedelta(seconds=2))

        assert early == {"retry": TaskState.PENDING, "fail": TaskState.FAILED}
        assert (await stage.task("retry")).state is TaskState.COMPLETED
        assert (await stage.task("fail")).attempt == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_fails_when_its_attempts_are_used_up(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(ending=fails()))
        await stage.submit(a_task(maxAttempts=4))

        async with stage.working():
            await stage.passes(timedelta(minutes=5))

        last = (await stage.history("a"))[-1].body
        assert len(stage.runner.orders) == 4
        assert (await stage.task("a")).state is TaskState.FAILED
        assert (last.retry_count, last.source, last.error_category) == (4, "worker", "network")


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("script", "signal", "seconds"),
    [(HANGS, "SIGTERM", 60), (STUBBORN, "SIGKILL", 65)],
    ids=["obeys", "ignores"],
)
@scenario
async def test_a_timeout_tells_which_signal_ended_the_attempt_and_how_long_it_ran(
    kind: str, script: Script, signal: str, seconds: int, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", script)
        await stage.submit(a_task())

        async with stage.working(tools={"timeout": MINUTE}):
            await stage.passes(timedelta(seconds=70))

        told = (await stage.history("a"))[-1]
        assert told.type == "Task Timeout"
        assert told.body.signal == signal
        assert told.body.timeout == MINUTE
        assert told.body.elapsed == timedelta(seconds=seconds)
        assert (await stage.task("a")).state is TaskState.FAILED
        assert stage.runner.alive == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_definition_has_its_own_timeout_and_may_ask_for_another_try(
    kind: str,
    tmp_path: Path,
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        slow = Definition(
            name="slow", runner=RunnerKind.COMMAND, timeout=MINUTE, retry_on_timeout=True
        )
        await backend.definitions.put(TENANT, slow)
        stage.runner.plays("a", HANGS, Script())
        await stage.submit(a_task(name="slow"))

        async with stage.working():
            await stage.passes(timedelta(seconds=59))
            early = len(stage.runner.orders)
            await stage.passes(timedelta(seconds=10))

        assert early == 1
        assert stage.runner.orders[0].definition.name == "slow"
        assert (await stage.task("a")).state is TaskState.COMPLETED
        assert "Task Processing Failed" in await stage.told("a")


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
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[SECOND], ending=succeeds("x" * 5000)))
        flaky = Flaky(getattr(backend, port), method, times=0, after_the_write=after)
        await stage.submit(a_task())

        async with stage.with_ports(**{port: flaky}).working():
            await stage.passes(timedelta(seconds=0.5))
            flaky.breaks()
            await stage.passes(timedelta(seconds=20))
            flaky.mend()
            await stage.passes(MINUTE)

        row = await stage.task("a")
        assert flaky.failures >= 6
        assert len(stage.runner.orders) == 1
        assert row.state is TaskState.COMPLETED
        assert await stage.documents.load(row.result) == "x" * 5000
        assert (await stage.told("a")).count("Task Completed") == 1
        assert (await backend.queue.depth("default")).hidden == 0


class NoRoom(FakePresence):
    """A presence that cannot write anything down."""

    def note_child(self, worker_id: str, process_id: int) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_child_that_cannot_be_noted_down_is_not_left_alive(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend, presence=NoRoom())
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)

        assert len(stage.runner.children) == 1
        assert stage.runner.alive == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_is_cancelled_kills_its_children(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        stage.runner.plays("b", STUBBORN)
        await stage.submit(a_task("a"), a_task("b"))
        running = asyncio.ensure_future(stage.worker().run())
        await stage.passes(SECOND)

        running.cancel()
        await stage.passes(SECOND)

        assert running.cancelled()
        assert len(stage.runner.children) == 2
        assert stage.runner.alive == []
