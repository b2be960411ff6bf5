"""A worker's side of slots for tests: records every event of its slots."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Definition, Isolation
from longshore.execution.host.folder_cleaner import FolderCleaner
from longshore.execution.host.forkserver_client import ForkServerClient
from longshore.execution.host.slots import ProcessSlots
from longshore.execution.slot_page import clock_ns
from longshore.ports.child_slots import ChildEnding, SlotOutcome, SlotTask
from longshore.ports.output import Stream
from longshore.ports.runner import ChildReport, StepReport

ROOT = str(Path(__file__).parents[3])
FUNCTIONS = "tests.execution.slot_functions"
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
ONE_HOUR_NS = 3_600 * 10**9
BOTH = (Isolation.POOL, Isolation.FORK)
DEFINITIONS: dict[Isolation, Definition] = {
    isolation: replace(BUILTIN_DEFINITIONS["python"], isolation=isolation, options={"path": [ROOT]})
    for isolation in BOTH
}


def a_task(name: str, *args: Any, number: int = 1, **fields: Any) -> SlotTask:
    """A call of a function of ``slot_functions``."""
    task_input = {"function": f"{FUNCTIONS}:{name}", "args": args, **fields.pop("options", {})}
    values = {
        "number": number,
        "fence": 7,
        "tenant": "acme",
        "task_id": f"job-a_{number}",
        "job_id": "job-a",
        "attempt": 1,
        "definition": DEFINITIONS[fields.pop("isolation", Isolation.POOL)],
        "input": json.dumps(task_input),
        **fields,
    }
    return SlotTask(**values)


@dataclass
class Recorder:
    """See ``ports.child_slots.SlotListener``; confirms steps unless ``confirm`` is False."""

    outcomes: dict[int, SlotOutcome] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)
    outputs: dict[tuple[int, Stream], bytes] = field(default_factory=dict)
    reports: list[tuple[int, ChildReport]] = field(default_factory=list)
    endings: list[ChildEnding] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    confirm: bool = True
    slots: ProcessSlots | None = None
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

    def output(self, slot: int, number: int, stream: Stream, data: bytes) -> None:
        assert number not in self.accounted
        self.outputs[number, stream] = self.outputs.get((number, stream), b"") + data
        self.changed.set()

    def report(self, slot: int, number: int, report: ChildReport) -> None:
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
        return json.loads(outcome.result)

    async def until(self, condition: Callable[[], object]) -> None:
        """Return when an event has made the condition true; the scenario's limit fails the test."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()


@dataclass
class Harness:
    """Slots with a fork server of their own."""

    slots: ProcessSlots
    recorder: Recorder
    forkserver: ForkServerClient
    page_path: Path

    async def open(self, isolation: Isolation = Isolation.POOL, *, trusted: bool = True) -> int:
        slot = await self.slots.open_slot(isolation)
        if trusted:
            self.slots.trust_until(slot, clock_ns() + ONE_HOUR_NS)
        return slot

    async def run(self, slot: int, task: SlotTask) -> SlotOutcome:
        """Give a task and wait for its outcome."""
        assert self.slots.give(slot, task)
        await self.recorder.until(lambda: task.number in self.recorder.accounted)
        return self.recorder.outcomes[task.number]

    async def give_and_wait(self, slot: int, task: SlotTask) -> None:
        """Give a task and wait until it has printed something."""
        assert self.slots.give(slot, task)
        await self.recorder.until(lambda: self.recorder.text(task.number))


@asynccontextmanager
async def harness(folder: Path, recorder: Recorder | None = None) -> AsyncIterator[Harness]:
    forkserver = ForkServerClient(ENVIRONMENT)
    cleaner = FolderCleaner(keep=False)
    recorder = recorder or Recorder()
    page_path = folder / "w1.begun"
    slots = ProcessSlots(
        forkserver,
        recorder,
        SystemClock(),
        folder=folder / "work",
        page_path=page_path,
        cleaner=cleaner,
    )
    recorder.slots = slots
    try:
        yield Harness(slots, recorder, forkserver, page_path)
    finally:
        await slots.close()
        await forkserver.close()
        await cleaner.close()
