"""The contract of ``ChildSlots``.

It runs over real processes and simulated ones, so a suite says what a task is, how time passes, and
what was recorded as begun. Tasks are calls of functions:

- ``echo(value)`` returns the value.
- ``waits()`` and ``ignores_sigterm()`` print ``ready`` and do not return.
- ``stops_when_asked()`` prints ``ready`` and returns after SIGTERM.
- ``steps(*names)`` saves a step for each name.
- ``reports()`` sends a ``ProgressReport`` and a line of its log.
- ``exits(code)`` ends its process.
- ``raises(message)`` fails.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import pytest

from longshore.core.definitions.definition import Isolation, ResourceLimits, RunnerKind
from longshore.core.documents import EncodedJson
from longshore.core.tasks.failures import ErrorCategory
from longshore.ports.child_slots import (
    ChildEndCause,
    ChildEnding,
    ChildSlots,
    SlotOutcome,
    SlotTask,
)
from longshore.ports.output import Stream
from longshore.ports.runner import ChildReport, OutputReport, ProgressReport, StepReport

BOTH = (Isolation.POOL, Isolation.FORK)
NO_GRACE = timedelta(0)
GRACE = timedelta(milliseconds=50)
LONG = timedelta(minutes=1)
ONE_HOUR_NS = 3_600 * 10**9
_SOON_NS = 50_000_000


@dataclass
class SlotRecorder:
    """See ``ports.child_slots.SlotListener``; confirms steps unless ``confirm`` is False.

    It checks that every task has one event that is its last.
    """

    outcomes: dict[int, SlotOutcome] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)
    outputs: dict[tuple[int, Stream], bytes] = field(default_factory=dict)
    reports: list[tuple[int, ChildReport]] = field(default_factory=list)
    endings: list[ChildEnding] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    confirm: bool = True
    slots: ChildSlots | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def outcome(self, slot: int, outcome: SlotOutcome) -> None:
        assert outcome.number not in self.accounted
        self.outcomes[outcome.number] = outcome
        self.sequence.append(outcome.number)
        self.changed.set()

    def too_late(self, slot: int, number: int) -> None:
        assert number not in self.accounted
        self.late.append(number)
        self.changed.set()

    def report(self, slot: int, number: int, report: ChildReport) -> None:
        assert number not in self.accounted
        if isinstance(report, OutputReport):
            before = self.outputs.get((number, report.stream), b"")
            self.outputs[number, report.stream] = before + report.data
        else:
            self.reports.append((number, report))
        if isinstance(report, StepReport) and self.confirm and self.slots is not None:
            self.slots.confirm_step(slot, number, report.name)
        self.changed.set()

    def child_ended(self, slot: int, ending: ChildEnding) -> None:
        named = {*ending.not_begun, *([] if ending.begun is None else [ending.begun])}
        assert not named & self.accounted
        self.endings.append(ending)
        self.changed.set()

    @property
    def accounted(self) -> set[int]:
        """The numbers of all tasks with an event that is their last."""
        begun = {item.begun for item in self.endings if item.begun is not None}
        not_begun = {number for item in self.endings for number in item.not_begun}
        return {*self.outcomes, *self.late, *begun, *not_begun}

    def text(self, number: int, stream: Stream = Stream.STDOUT) -> str:
        return self.outputs.get((number, stream), b"").decode()

    def result(self, number: int) -> Any:
        outcome = self.outcomes[number]
        assert outcome.failure is None, outcome.failure
        assert outcome.result is not None
        if isinstance(outcome.result, EncodedJson):
            return outcome.result.decode()
        return json.loads(outcome.result)

    async def until(self, condition: Callable[[], object]) -> None:
        """Return when an event has made the condition true; the scenario's limit fails the test."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()


@dataclass
class SlotsHarness:
    """Slots, and what the worker has learned from them."""

    slots: ChildSlots
    recorder: SlotRecorder
    now_ns: Callable[[], int]
    begun: Callable[[], object]  # the numbers and fences that are recorded

    async def open(self, isolation: Isolation = Isolation.POOL, *, trusted: bool = True) -> int:
        slot = await self.slots.open_slot(isolation)
        if trusted:
            self.slots.trust_until(slot, self.now_ns() + ONE_HOUR_NS)
        return slot

    async def until(self, condition: Callable[[], object]) -> None:
        """Let time pass until an event has made the condition true."""
        await self.recorder.until(condition)

    async def run(self, slot: int, task: SlotTask) -> SlotOutcome:
        """Give a task and wait for its outcome."""
        assert self.slots.give(slot, task)
        await self.until(lambda: task.number in self.recorder.accounted)
        return self.recorder.outcomes[task.number]

    async def give_and_wait(self, slot: int, task: SlotTask) -> None:
        """Give a task and wait until it has printed something."""
        assert self.slots.give(slot, task)
        await self.until(lambda: self.recorder.text(task.number))


def _clause(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a scenario with open slots, once for each kind of slot."""

    @wraps(scenario)
    def test(self: ChildSlotsContract, tmp_path: Path, isolation: Isolation) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(self.limit_s), self.open_slots(tmp_path) as here:
                await scenario(self, here, isolation)

        asyncio.run(bounded())

    del test.__wrapped__  # pytest reads the parameters of this one
    return test


@pytest.mark.parametrize("isolation", BOTH)
class ChildSlotsContract:
    """What holds for all slots."""

    limit_s: ClassVar[float] = 60

    def open_slots(self, tmp_path: Path) -> AbstractAsyncContextManager[SlotsHarness]:
        """The slots that are held to the contract."""
        raise NotImplementedError

    def make_task(self, function: str, *args: Any, number: int = 1, **fields: Any) -> SlotTask:
        """A call of a function; ``isolation`` is one of the fields."""
        raise NotImplementedError

    async def _begin(
        self, here: SlotsHarness, slot: int, function: str, isolation: Isolation
    ) -> list[int]:
        """Let task 1 run; in a pool, 2 and 3 wait behind it. Returns those that wait."""
        await here.give_and_wait(slot, self.make_task(function, isolation=isolation))
        behind = [2, 3] if isolation is Isolation.POOL else []
        for number in behind:
            assert here.slots.give(slot, self.make_task("echo", number=number))
        return behind

    async def _check_usable(self, here: SlotsHarness, slot: int, isolation: Isolation) -> None:
        await here.run(slot, self.make_task("echo", "again", number=9, isolation=isolation))
        assert here.recorder.result(9) == "again"

    @_clause
    async def test_tasks_run_in_the_order_in_which_they_are_given(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        for number in range(1, 21):
            task = self.make_task("echo", number, number=number, isolation=isolation)
            if isolation is Isolation.POOL:
                assert here.slots.give(slot, task)
            else:
                await here.run(slot, task)
        await here.until(lambda: len(here.recorder.outcomes) == 20)

        assert here.recorder.sequence == list(range(1, 21))
        assert [here.recorder.result(number) for number in range(1, 21)] == list(range(1, 21))
        assert here.begun() == {(number, 7) for number in range(1, 21)}
        assert here.recorder.endings == []

    @_clause
    async def test_only_a_pool_has_several_tasks(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        assert here.slots.give(slot, self.make_task("echo", isolation=isolation))
        more = here.slots.give(slot, self.make_task("echo", number=2, isolation=isolation))
        await here.until(lambda: 1 in here.recorder.outcomes)

        assert more is (isolation is Isolation.POOL)

    @_clause
    async def test_a_failure_is_an_outcome(self, here: SlotsHarness, isolation: Isolation) -> None:
        slot = await here.open(isolation)
        outcome = await here.run(slot, self.make_task("raises", "broken", isolation=isolation))

        assert outcome.result is None
        assert outcome.failure is not None
        assert "broken" in outcome.failure.message
        await self._check_usable(here, slot, isolation)

    @_clause
    async def test_a_step_waits_until_it_is_confirmed(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        here.recorder.confirm = False
        slot = await here.open(isolation)
        assert here.slots.give(slot, self.make_task("steps", "one", isolation=isolation))
        await here.until(lambda: (1, StepReport("one", "ONE")) in here.recorder.reports)
        here.slots.confirm_step(slot, 99, "one")  # of another task
        assert not here.recorder.accounted
        here.slots.confirm_step(slot, 1, "one")
        await here.until(lambda: 1 in here.recorder.outcomes)

        assert here.recorder.result(1) == ["ONE"]

    @_clause
    async def test_reports_arrive_before_the_outcome(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        await here.run(slot, self.make_task("reports", isolation=isolation))

        assert here.recorder.reports == [(1, ProgressReport(1, 2, "halves"))]
        assert here.recorder.text(1, Stream.LOG) == "a line\n"

    @_clause
    async def test_what_was_not_begun_is_taken_back_and_runs_elsewhere(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot, other = await here.open(isolation), await here.open(isolation)
        behind = await self._begin(here, slot, "waits", isolation)

        assert list(here.slots.take_back(slot)) == behind
        assert list(here.slots.take_back(slot)) == []
        for number in behind or [2]:
            await here.run(other, self.make_task("echo", number=number, isolation=isolation))
        assert 1 not in here.recorder.accounted

    @_clause
    async def test_nothing_begins_before_the_lease_is_trusted(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation, trusted=False)
        assert here.slots.give(slot, self.make_task("echo", isolation=isolation))
        await here.until(lambda: here.recorder.late)
        here.slots.trust_until(slot, here.now_ns() + ONE_HOUR_NS)
        await here.run(slot, self.make_task("echo", number=2, isolation=isolation))

        assert here.recorder.late == [1]
        assert here.begun() == {(2, 7)}

    @_clause
    async def test_a_task_is_killed_when_its_lease_is_no_longer_trusted(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        behind = await self._begin(here, slot, "waits", isolation)
        here.slots.trust_until(slot, here.now_ns() + _SOON_NS)
        await here.until(lambda: here.recorder.endings)

        (ending,) = here.recorder.endings
        assert (ending.cause, ending.begun) == (ChildEndCause.DEADLINE, 1)
        assert sorted(ending.not_begun) == behind
        assert ending.failure is not None
        assert not ending.slot_closed

    @_clause
    async def test_a_deadline_that_is_moved_in_time_kills_nothing(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        await self._begin(here, slot, "stops_when_asked", isolation)
        here.slots.trust_until(slot, here.now_ns() + 10**10)
        here.slots.trust_until(slot, here.now_ns() + ONE_HOUR_NS)
        here.slots.kill(slot, grace=LONG)
        await here.until(lambda: 1 in here.recorder.accounted)

        assert 1 in here.recorder.outcomes

    @_clause
    async def test_the_process_of_a_running_task_is_known(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        await self._begin(here, slot, "waits", isolation)

        assert here.slots.process_id(slot) > 0

    @pytest.mark.parametrize(
        "changes",
        [
            {"isolation": Isolation.SPAWN},
            {"isolation": Isolation.FORK, "pty": True},
            {"isolation": Isolation.FORK, "resources": ResourceLimits(open_files=50)},
            {"isolation": Isolation.FORK, "runner": RunnerKind.COMMAND},
        ],
        ids=["spawn", "terminal", "limits", "command"],
    )
    def test_a_task_that_needs_a_runner_is_refused(
        self, tmp_path: Path, isolation: Isolation, changes: dict[str, Any]
    ) -> None:
        async def scenario() -> None:
            async with self.open_slots(tmp_path) as here:
                slot = await here.open(isolation)
                task = self.make_task("echo", isolation=isolation)
                definition = replace(task.definition, **changes)
                with pytest.raises(ValueError, match="cannot run in slot"):
                    here.slots.give(slot, replace(task, definition=definition))

        asyncio.run(scenario())

    @_clause
    async def test_a_task_needs_a_slot_of_its_kind(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        (other,) = set(BOTH) - {isolation}
        slot = await here.open(other)
        with pytest.raises(ValueError, match="cannot run in slot"):
            here.slots.give(slot, self.make_task("echo", isolation=isolation))

    @_clause
    async def test_a_child_of_a_pool_serves_one_tenant(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        await here.run(slot, self.make_task("echo", isolation=isolation))
        other = self.make_task("echo", number=4, tenant="other", isolation=isolation)
        if isolation is Isolation.FORK:
            await here.run(slot, other)
            return
        with pytest.raises(ValueError, match="another tenant"):
            here.slots.give(slot, other)
        assert here.slots.give(slot, self.make_task("echo", number=3))
        here.slots.replace(slot)
        assert not here.slots.give(slot, other)
        process_id = here.slots.process_id(slot)
        await here.until(lambda: here.recorder.endings)
        await here.run(slot, other)

        assert here.recorder.endings[0].cause is ChildEndCause.REPLACED
        assert here.recorder.sequence == [1, 3, 4]
        assert here.slots.process_id(slot) != process_id

    @_clause
    async def test_a_task_number_is_given_once_at_a_time(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        await self._begin(here, slot, "waits", isolation)
        if isolation is Isolation.POOL:
            with pytest.raises(ValueError, match="already has task 1"):
                here.slots.give(slot, self.make_task("echo"))
        else:
            assert not here.slots.give(slot, self.make_task("echo", isolation=isolation))

    @_clause
    async def test_a_killed_task_gets_sigterm_and_those_behind_it_are_taken_back(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        behind = await self._begin(here, slot, "waits", isolation)

        assert list(here.slots.kill(slot, grace=LONG)) == behind
        assert not here.slots.give(slot, self.make_task("echo", number=4, isolation=isolation))
        assert list(here.slots.kill(slot, grace=LONG)) == []
        await here.until(lambda: here.recorder.endings)

        (ending,) = here.recorder.endings
        assert (ending.cause, ending.begun, ending.not_begun) == (ChildEndCause.KILLED, 1, ())
        assert ending.signal == "SIGTERM"
        assert ending.failure is not None
        await self._check_usable(here, slot, isolation)

    @_clause
    async def test_a_task_that_ignores_sigterm_is_killed_after_the_grace_period(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        await self._begin(here, slot, "ignores_sigterm", isolation)
        here.slots.kill(slot, grace=LONG)
        here.slots.kill(slot, grace=GRACE)
        await here.until(lambda: here.recorder.endings)

        (ending,) = here.recorder.endings
        assert (ending.cause, ending.signal) == (ChildEndCause.KILLED, "SIGKILL")

    @_clause
    async def test_a_task_that_ends_within_the_grace_period_has_an_outcome(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        await self._begin(here, slot, "stops_when_asked", isolation)
        here.slots.kill(slot, grace=LONG)
        await here.until(lambda: here.recorder.outcomes)
        if isolation is Isolation.POOL:
            await here.until(lambda: here.recorder.endings)

        causes = [(item.cause, item.begun) for item in here.recorder.endings]
        assert causes == ([(ChildEndCause.KILLED, None)] if isolation is Isolation.POOL else [])
        await self._check_usable(here, slot, isolation)

    @_clause
    async def test_an_idle_child_can_be_killed(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        assert list(here.slots.kill(slot, grace=LONG)) == []
        await here.until(lambda: here.recorder.endings)

        assert here.recorder.endings[0].cause is ChildEndCause.KILLED
        await self._check_usable(here, slot, isolation)

    @_clause
    async def test_a_child_that_ends_without_an_outcome_has_crashed(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        assert here.slots.give(slot, self.make_task("exits", 5, isolation=isolation))
        if isolation is Isolation.POOL:
            assert here.slots.give(slot, self.make_task("echo", number=2))
        await here.until(lambda: here.recorder.endings)

        (ending,) = here.recorder.endings
        behind = (2,) if isolation is Isolation.POOL else ()
        assert (ending.cause, ending.begun) == (ChildEndCause.CRASHED, 1)
        assert ending.not_begun == behind
        assert ending.failure is not None
        assert ending.failure.category is ErrorCategory.CRASH
        await self._check_usable(here, slot, isolation)

    @_clause
    async def test_closing_accounts_for_every_task(
        self, here: SlotsHarness, isolation: Isolation
    ) -> None:
        slot = await here.open(isolation)
        behind = await self._begin(here, slot, "waits", isolation)
        await here.slots.close()

        (ending,) = here.recorder.endings
        assert (ending.begun, sorted(ending.not_begun)) == (1, behind)
        assert ending.slot_closed
