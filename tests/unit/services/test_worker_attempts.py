"""What comes of an attempt: results, failures, timeouts, cancellations, steps, and trouble."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.memory.backend import memory_backend
from longshore.core import commands as c
from longshore.core.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.failures import ErrorCategory
from longshore.core.states import TaskState
from longshore.core.values import INLINE_LIMIT_BYTES
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.runner import StepDone, Used
from longshore.services.worker.attempt import Attempt
from longshore.testing.flaky import Flaky
from longshore.testing.presence import FakePresence
from longshore.testing.runner import Script, fails, prints, succeeds
from tests.unit.services.ports import Interposed
from tests.unit.services.stage import (
    IN_MEMORY,
    LEASE,
    NO_WAIT,
    RESULT_LIMIT_BYTES,
    SECOND,
    TENANT,
    Stage,
    a_task,
    opened,
    scenario,
    task_id,
)

HANGS = Script(ending=None)
STUBBORN = Script(ending=None, ignores_sigterm=True)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("kind", IN_MEMORY)
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


@pytest.mark.parametrize("kind", IN_MEMORY)
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


@pytest.mark.parametrize(
    "result", ["x" * RESULT_LIMIT_BYTES, float("nan"), "\ud800"], ids=["large", "nan", "surrogate"]
)
@scenario
async def test_a_result_that_cannot_be_kept_fails_the_task(result: Any, tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(ending=succeeds(result)))
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)

        row = await stage.task("a")
        assert row.state is TaskState.FAILED
        assert row.failure is not None
        assert row.failure.category is ErrorCategory.PARSE


@pytest.mark.parametrize("kind", IN_MEMORY)
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


@scenario
async def test_a_task_is_not_tried_before_the_server_said(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
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


@pytest.mark.parametrize("kind", IN_MEMORY)
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


@pytest.mark.parametrize("kind", IN_MEMORY)
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


@pytest.mark.parametrize("kind", IN_MEMORY)
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


@scenario
async def test_a_definition_has_its_own_timeout_and_may_ask_for_another_try(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
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


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_cancelled_task_is_killed_at_once_and_its_end_confirmed(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[prints("x")], ending=None))
        await stage.submit(a_task("a"), a_task("b"))
        stage.runner.plays("b", HANGS)

        async with stage.working() as worker:
            await stage.passes(SECOND)
            await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann", reason="enough"))
            await stage.passes(NO_WAIT)
            running = worker.running

        last = (await stage.history("a"))[-1]
        assert stage.runner.children[0].signals == ["SIGTERM"]
        assert stage.runner.children[0].ended_at == SECOND
        assert running == [task_id("b")]
        assert (await stage.task("a")).state is TaskState.CANCELLED
        assert last.type == "Task Cancelled"
        assert (last.body.by, last.body.last_output) == ("ann", 1)


@scenario
async def test_a_cancelled_task_that_ignores_the_request_is_killed_for_good(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", STUBBORN)
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)
            await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))
            await stage.passes(LEASE.kill_grace)

            assert stage.runner.children[0].signals == ["SIGTERM", "SIGKILL"]
            assert (await stage.task("a")).state is TaskState.CANCELLED


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_cancellation_that_comes_with_the_claim_is_not_missed(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())

        async def somebody_cancels() -> None:
            await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))
            await asyncio.sleep(0.01)  # the worker hears of it before it hears of its claim

        ledger = Interposed(backend.ledger, "commit", after=somebody_cancels)
        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(NO_WAIT)
            await asyncio.sleep(0.02)
            await stage.passes(NO_WAIT)

            assert (await stage.task("a")).state is TaskState.CANCELLED
            assert stage.runner.alive == []


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_claim_whose_answer_was_lost_while_it_was_cancelled_is_not_run(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())

        async def somebody_cancels() -> None:
            await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))

        interposed = Interposed(backend.ledger, "commit", after=somebody_cancels)
        ledger = Flaky(interposed, "commit", after_the_write=True)
        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(SECOND)

            assert ledger.failures == 1
            assert (await stage.task("a")).state is TaskState.CANCELLED
            assert stage.runner.alive == []


@scenario
async def test_an_attempt_whose_row_says_from_the_start_that_it_is_cancelled_ends_so(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())
        await stage.claim(task_id("a"))
        row = await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))

        await Attempt(stage.tools(), row, stage.clock.elapsed()).run()

        assert (await stage.task("a")).state is TaskState.CANCELLED
        assert stage.runner.alive == []


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_an_outcome_that_is_faster_than_the_cancellation_stands(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[SECOND], ending=succeeds(1)))
        await stage.submit(a_task())

        async def somebody_cancels() -> None:
            await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))

        # The first commit is the claim, the second the outcome.
        ledger = Interposed(backend.ledger, "commit", before=somebody_cancels, at=2)
        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(timedelta(seconds=2))

        row = await stage.task("a")
        assert row.state is TaskState.COMPLETED
        assert row.cancel is None
        assert await stage.documents.load(row.result) == 1


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_second_attempt_gets_the_steps_that_were_finished(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays(
            "a",
            Script(says=[StepDone("one", {"n": 1}), StepDone("two", None)], ending=fails()),
            Script(says=[StepDone("three", "x" * 5000)], ending=fails()),
            Script(),
        )
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(MINUTE)

        assert [order.checkpoints for order in stage.runner.orders] == [
            {},
            {"one": {"n": 1}, "two": None},
            {"one": {"n": 1}, "two": None, "three": "x" * 5000},
        ]
        assert [child.steps_kept for child in stage.runner.children] == [
            ["one", "two"],
            ["three"],
            [],
        ]


@scenario
async def test_steps_are_kept_through_renewals_and_cancellations_of_others(
    tmp_path: Path,
) -> None:
    steps = [item for n in range(5) for item in (StepDone(f"s{n}", n), timedelta(seconds=19))]
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=steps, ending=fails()), Script())
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(timedelta(minutes=3))

        assert stage.runner.orders[1].checkpoints == {f"s{n}": n for n in range(5)}


@pytest.mark.parametrize(("port", "method"), [("blobs", "put"), ("ledger", "commit")])
@scenario
async def test_a_step_that_cannot_be_kept_ends_the_attempt_and_costs_none(
    port: str, method: str, tmp_path: Path
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[SECOND, StepDone("one", 1)]), Script())
        flaky = Flaky(getattr(backend, port), method, times=0)
        await stage.submit(a_task())

        async with stage.with_ports(**{port: flaky}).working():
            await stage.passes(timedelta(seconds=0.5))
            flaky.breaks()
            await stage.passes(timedelta(seconds=4))
            alive = stage.runner.alive
            flaky.mend()
            await stage.passes(timedelta(seconds=10))

        row = await stage.task("a")
        assert flaky.failures >= 6
        assert alive == []
        assert stage.runner.children[0].steps_kept == []
        assert row.state is TaskState.COMPLETED
        assert (row.attempt, row.attempts_used) == (2, 0)
        assert "Task Released" in await stage.told("a")


@scenario
async def test_a_step_is_not_acknowledged_before_it_is_kept(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[StepDone("one", 1)]))
        await stage.submit(a_task())
        seen: list[Any] = []

        async def look() -> None:
            seen.append(
                (stage.runner.children[0].steps_kept[:], (await stage.task("a")).checkpoint)
            )

        ledger = Interposed(backend.ledger, "commit", before=look, at=2)
        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(SECOND)

        assert seen == [([], None)]
        assert stage.runner.children[0].steps_kept == ["one"]


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_results_of_the_parents_reach_the_child(kind: str, tmp_path: Path) -> None:
    large = ["x" * INLINE_LIMIT_BYTES]
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(
            a_task("a"), a_task("b"), a_task("c", "a", "b", input={"argv": ["x"]}), a_task("d")
        )
        await stage.complete(task_id("a"), large)
        await stage.complete(task_id("b"), {"n": 1})
        await stage.dispatch()

        async with stage.working():
            await stage.passes(SECOND)

        order = next(order for order in stage.runner.orders if order.key == "c")
        assert order.dependency_outputs == {"a": large, "b": {"n": 1}}
        assert order.input == {"argv": ["x"]}


@scenario
async def test_an_order_says_all_that_the_child_needs(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)

        (order,) = stage.runner.orders
        row = await stage.task("a")
        assert (order.task_id, order.job_id, order.key) == (row.id, row.spec.job_id, "a")
        assert (order.tenant, order.attempt, order.fence) == (TENANT, 1, row.fence)
        assert order.definition.name == "command"
        assert order.timeout == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("error", "state", "category"),
    [
        (UsageError("no such command"), TaskState.FAILED, ErrorCategory.VALIDATION),
        (BackendUnavailable("no processes"), TaskState.PENDING, ErrorCategory.NETWORK),
    ],
    ids=["never", "not now"],
)
@scenario
async def test_a_child_that_cannot_be_started_is_a_failure_of_the_attempt(
    error: Any, state: TaskState, category: ErrorCategory, tmp_path: Path
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(refused=error), HANGS)
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(timedelta(seconds=0.1))
            row = await stage.task("a")

        assert row.state is state
        assert row.failure is not None
        assert row.failure.category is category


@scenario
async def test_what_a_task_needs_is_looked_for_again_when_the_store_is_out_of_reach(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task(input={"argv": ["x" * 5000]}))
        blobs = Flaky(backend.blobs, "get", times=3)

        async with stage.with_ports(blobs=blobs).working():
            await stage.passes(timedelta(seconds=5))

        assert blobs.failures == 3
        assert (await stage.task("a")).attempt == 1
        assert (await stage.task("a")).state is TaskState.COMPLETED


@scenario
async def test_a_task_whose_definition_is_lost_fails_with_a_reason(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await backend.definitions.put(TENANT, Definition(name="own", runner=RunnerKind.COMMAND))
        await stage.submit(a_task(name="own"))
        empty = memory_backend(stage.clock).definitions

        async with stage.with_ports(definitions=empty).working():
            await stage.passes(SECOND)

        row = await stage.task("a")
        assert row.state is TaskState.FAILED
        assert row.failure is not None
        assert "own" in row.failure.message


@pytest.mark.parametrize("kind", IN_MEMORY)
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


@scenario
async def test_a_child_that_cannot_be_noted_down_is_not_left_alive(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend, presence=NoRoom())
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)

        assert len(stage.runner.children) == 1
        assert stage.runner.alive == []


@scenario
async def test_a_worker_that_is_cancelled_kills_its_children(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
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
