"""Steps are kept before they are acknowledged, and the next attempt gets them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.states import TaskState
from longshore.ports.runner import StepDone
from longshore.testing.flaky import Flaky
from longshore.testing.runner import Script, fails
from tests.unit.services.ports import Interposed
from tests.unit.services.samples import MINUTE
from tests.unit.services.stage import BACKENDS, SECOND, Stage, a_task, opened, scenario


@pytest.mark.parametrize("kind", BACKENDS)
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


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_steps_are_kept_through_renewals_and_cancellations_of_others(
    kind: str,
    tmp_path: Path,
) -> None:
    steps = [item for n in range(5) for item in (StepDone(f"s{n}", n), timedelta(seconds=19))]
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=steps, ending=fails()), Script())
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(timedelta(minutes=3))

        assert stage.runner.orders[1].checkpoints == {f"s{n}": n for n in range(5)}


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(("port", "method"), [("blobs", "put"), ("ledger", "commit")])
@scenario
async def test_a_step_that_cannot_be_kept_ends_the_attempt_and_costs_none(
    kind: str, port: str, method: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
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


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_step_is_not_acknowledged_before_it_is_kept(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
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
