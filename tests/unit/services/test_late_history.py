"""Where events come later than their row, that one is not there yet is no answer."""

from typing import Any

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.event import Event
from longshore.core.tasks.states import TaskState
from longshore.errors import CommandRefused, OutcomeUnknown, VersionConflict
from longshore.ports.backend import Backend
from longshore.services.operator_commands import OperatorCommands
from longshore.testing.clock import FakeClock
from longshore.testing.memory.backend import memory_backend
from tests.unit.services.harness import TENANT, ServiceHarness, job_id, make_task, scenario, task_id

NEVER = 10**6


class LateEventLog:
    """An event log in which nothing has arrived for the first looks."""

    def __init__(self, backend: Backend, looks: int) -> None:
        self._log = backend.events
        self._looks = looks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def history(self, *arguments: Any, **named: Any) -> list[Event]:
        self._looks -= 1
        return [] if self._looks >= 0 else await self._log.history(*arguments, **named)


async def in_review(looks: int) -> tuple[ServiceHarness, OperatorCommands]:
    """A task whose first attempt is in review, and a reviewer to whom its history comes late."""
    backend = memory_backend(FakeClock())
    own = Definition(
        name="reviewed", runner=RunnerKind.COMMAND, overridable=("argv",), requires_review=True
    )
    await backend.definitions.put(TENANT, own)
    harness = ServiceHarness(backend)
    await harness.submit(make_task(name="reviewed"))
    await harness.complete(task_id("a"))
    late = harness.with_ports(events=LateEventLog(backend, looks))
    return harness, late.operator_commands


async def approved_twice(looks: int) -> TaskState:
    """A task's state, for a reviewer who approves it again because the answer was lost."""
    harness, reviewing = await in_review(looks)
    for _ in range(2):
        approval = reviewing.approve(TENANT, task_id("a"), by="ann", attempt=1)
        row = await harness.advance_until_done(approval)
    return row.state


@scenario
async def test_what_was_not_decided_yet_is_refused_without_the_history() -> None:
    harness, reviewing = await in_review(looks=NEVER)
    with pytest.raises(CommandRefused, match="feedback must"):
        await harness.advance_until_done(
            reviewing.revise(TENANT, task_id("a"), by="ann", feedback="")
        )


@scenario
async def test_a_decision_is_waited_for_until_its_event_is_there() -> None:
    assert await approved_twice(looks=3) is TaskState.COMPLETED


@scenario
async def test_a_decision_whose_event_does_not_come_is_not_denied() -> None:
    with pytest.raises(OutcomeUnknown, match="not readable yet"):
        await approved_twice(looks=NEVER)


class LossyLedger:
    """A ledger whose library asks again when the answer of a resume is lost, and others were
    faster."""

    def __init__(self, backend: Backend) -> None:
        self._ledger = backend.ledger
        self._lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def commit(self, *changes: Any) -> Any:
        answer = await self._ledger.commit(*changes)
        if self._lost or changes[0].row.id != job_id() or changes[0].row.round == 1:
            return answer
        self._lost = True
        conflict = VersionConflict(changes[0].row.id, changes[0].expected_version)
        conflict.maybe_committed = True
        raise conflict


@pytest.mark.parametrize("looks", [0, 3])
def test_a_resume_that_was_made_is_never_denied(looks: int) -> None:
    @scenario
    async def run_scenario() -> None:
        backend = memory_backend(FakeClock())
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.fail(task_id("a"))
        await harness.dispatch()
        late = harness.with_ports(ledger=LossyLedger(backend), events=LateEventLog(backend, looks))

        resume = late.operator_commands.resume(job_id(), [task_id("a")], by="ann")
        resumed = await harness.advance_until_done(resume)

        assert list(resumed.refused) == []
        assert [event for event in await harness.job_event_types() if event == "Job Resumed"] == [
            "Job Resumed"
        ]

    run_scenario()
