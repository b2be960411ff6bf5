"""Steps are kept before they are acknowledged, and the next attempt gets them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.tasks.states import TaskState
from longshore.ports.runner import StepReport
from longshore.testing.fake_runner import Script, fails
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    SECOND,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.port_wrappers import InterposedPort
from tests.unit.services.samples import MINUTE


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_second_attempt_gets_the_steps_that_were_finished(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts(
            "a",
            Script(reports=[StepReport("one", {"n": 1}), StepReport("two", None)], ending=fails()),
            Script(reports=[StepReport("three", "x" * 5000)], ending=fails()),
            Script(),
        )
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(MINUTE)

        assert [spec.checkpoints for spec in harness.runner.specs] == [
            {},
            {"one": {"n": 1}, "two": None},
            {"one": {"n": 1}, "two": None, "three": "x" * 5000},
        ]
        assert [child.saved_steps for child in harness.runner.children] == [
            ["one", "two"],
            ["three"],
            [],
        ]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_steps_are_kept_through_renewals_and_cancellations_of_others(
    kind: str,
    tmp_path: Path,
) -> None:
    steps = [item for n in range(5) for item in (StepReport(f"s{n}", n), timedelta(seconds=19))]
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=steps, ending=fails()), Script())
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(timedelta(minutes=3))

        assert harness.runner.specs[1].checkpoints == {f"s{n}": n for n in range(5)}


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize(("port", "method"), [("blobs", "put"), ("ledger", "commit")])
@scenario
async def test_a_step_that_cannot_be_kept_ends_the_attempt_and_costs_none(
    kind: str, port: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[SECOND, StepReport("one", 1)]), Script())
        flaky = FlakyPort(getattr(backend, port), method, times=0)
        await harness.submit(make_task())

        async with harness.with_ports(**{port: flaky}).running_worker():
            await harness.advance(timedelta(seconds=0.5))
            flaky.fail_always()
            await harness.advance(timedelta(seconds=4))
            alive = harness.runner.alive
            flaky.recover()
            await harness.advance(timedelta(seconds=10))

        row = await harness.task("a")
        assert flaky.failures >= 6
        assert alive == []
        assert harness.runner.children[0].saved_steps == []
        assert row.state is TaskState.COMPLETED
        assert (row.attempt, row.attempts_used) == (2, 0)
        assert "Task Released" in await harness.event_types("a")


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_step_is_not_acknowledged_before_it_is_kept(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[StepReport("one", 1)]))
        await harness.submit(make_task())
        seen: list[Any] = []

        async def look() -> None:
            seen.append(
                (harness.runner.children[0].saved_steps[:], (await harness.task("a")).checkpoint)
            )

        ledger = InterposedPort(backend.ledger, "commit", before=look, at=2)
        async with harness.with_ports(ledger=ledger).running_worker():
            await harness.advance(SECOND)

        assert seen == [([], None)]
        assert harness.runner.children[0].saved_steps == ["one"]
