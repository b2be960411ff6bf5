"""The worker stores what its children print, and records no outcome before its output is stored."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.errors import BackendRejected
from longshore.ports.output import OutputChunk, Stream
from longshore.testing.fake_runner import Script, fails, prints
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    NO_WAIT,
    SECOND,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)


async def stored(harness: ServiceHarness, task_id: str) -> list[OutputChunk]:
    return await harness.backend.output.read(task_id, limit=10_000)


def covered(entries: Sequence[OutputChunk]) -> list[int]:
    """The sequences that the entries stand for, in order."""
    return [number for entry in entries for number in range(entry.sequence, entry.end + 1)]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_attempts_of_a_task_keep_their_output_apart(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts(
            "a",
            Script(reports=[prints("one"), prints("two", Stream.STDERR)], ending=fails()),
            Script(reports=[prints("three")]),
        )
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=5))

        entries = await stored(harness, task_id("a"))
        assert [(entry.attempt, entry.sequence, entry.data) for entry in entries] == [
            (1, 1, b"one"),
            (1, 2, b"two"),
            (2, 1, b"three"),
        ]
        history = await harness.history("a")
        assert [getattr(event.body, "last_output", None) for event in history] == [
            None,
            None,
            2,
            None,
            1,
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_output_is_stored_before_the_outcome_is_committed(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        log = FlakyPort(backend.output, "append", times=5)
        harness.runner.set_scripts("a", Script(reports=[prints("last words")]))
        await harness.submit(make_task())

        async with harness.with_ports(output=log).running_worker():
            await harness.advance(NO_WAIT)
            early = await harness.event_types("a"), await stored(harness, task_id("a"))
            await harness.advance(timedelta(seconds=3))

        assert early == (["Task Pending", "Task Processing Started"], [])
        assert [entry.data for entry in await stored(harness, task_id("a"))] == [b"last words"]
        assert (await harness.event_types("a"))[-1] == "Task Completed"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_log_that_is_down_for_a_while_holds_up_the_outcome_and_does_not_cost_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        log = FlakyPort(backend.output, "append", times=None)
        harness.runner.set_scripts("a", Script(reports=[prints("x"), SECOND, prints("y")]))
        await harness.submit(make_task())

        async with harness.with_ports(output=log).running_worker():
            await harness.advance(timedelta(seconds=19))
            log.recover()
            await harness.advance(SECOND)

        row = await harness.task("a")
        assert (await harness.event_types("a"))[-1] == "Task Completed"
        assert (row.attempt, row.last_output) == (1, 2)
        assert covered(await stored(harness, task_id("a"))) == [1, 2]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("error", [None, BackendRejected("denied")], ids=["away", "denied"])
@scenario
async def test_a_log_that_stays_down_costs_no_outcome_and_less_output_is_named(
    kind: str, error: BackendRejected | None, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        log = FlakyPort(backend.output, "append", error, times=None, skip=1)
        says = [prints("x"), timedelta(seconds=2), prints("y")]
        harness.runner.set_scripts("a", Script(reports=says))
        await harness.submit(make_task())

        async with harness.with_ports(output=log).running_worker():
            await harness.advance(timedelta(minutes=2))

        row = await harness.task("a")
        assert (await harness.event_types("a"))[-1] == "Task Completed"
        assert (row.attempt, row.last_output) == (1, 1)
        assert covered(await stored(harness, task_id("a"))) == [1]


@pytest.mark.parametrize("leases", [1.0, 1.3, 1.6, 1.9, 2.3, 2.7])
@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_what_a_log_kept_without_an_answer_is_named_when_everything_is_back(
    kind: str, leases: float, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        log = FlakyPort(backend.output, "append", times=None, after_write=True)
        ledger = FlakyPort(backend.ledger, "commit", times=None, skip=1)
        reads = FlakyPort(ledger, "get_task", times=None, skip=1)
        harness.runner.set_scripts("a", Script(reports=[prints("x")]))
        await harness.submit(make_task())

        async with harness.with_ports(output=log, ledger=reads).running_worker():
            # As long as a worker insists on storing output, and longer.
            await harness.advance(LEASE.duration * leases)
            kept_already = covered(await stored(harness, task_id("a")))
            log.recover()
            ledger.recover()
            reads.recover()
            await harness.advance(timedelta(seconds=20))

        row = await harness.task("a")
        assert kept_already == [1]
        assert (await harness.event_types("a"))[-1] == "Task Completed"
        assert (row.attempt, row.last_output) == (1, 1)
