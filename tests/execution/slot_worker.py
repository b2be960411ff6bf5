"""A worker process of its own, for tests that stop or kill it.

``python -m tests.execution.slot_worker FOLDER ISOLATION FUNCTION DEADLINE_MS [FAILPOINT]`` opens a
slot, trusts its lease for so long, gives a task, and prints one line for each event. At the
failpoint it kills itself.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from longshore.adapters.shared.failpoints import arm
from longshore.core.definitions.definition import Isolation
from longshore.execution.slot_page import clock_ns
from longshore.ports.child_slots import ChildEnding, SlotOutcome
from longshore.ports.runner import ChildReport, OutputReport
from longshore.testing.contracts.child_slots import SlotRecorder
from tests.execution.process_tree import reaper_of_slot
from tests.execution.slots import a_task, harness


class _PrintingRecorder(SlotRecorder):
    def report(self, slot: int, number: int, report: ChildReport) -> None:
        super().report(slot, number, report)
        if isinstance(report, OutputReport):
            _print(f"output {report.data.decode().split()[0]}")

    def outcome(self, slot: int, outcome: SlotOutcome) -> None:
        super().outcome(slot, outcome)
        _print(f"outcome {outcome.number}")

    def child_ended(self, slot: int, ending: ChildEnding) -> None:
        super().child_ended(slot, ending)
        _print(f"ended {ending.cause} {ending.begun} {list(ending.not_begun)}")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _main(folder: Path, isolation: Isolation, function: str, deadline_ms: int) -> None:
    async with harness(folder, _PrintingRecorder()) as here:
        slot = await here.slots.open_slot(isolation)
        _print(f"reaper {await reaper_of_slot(here.slots, slot)}")
        _print(f"forkserver {here.forkserver.process_id}")
        here.slots.trust_until(slot, clock_ns() + deadline_ms * 1_000_000)
        here.slots.give(slot, a_task(function, isolation=isolation))
        if isolation is Isolation.POOL:
            here.slots.give(slot, a_task("echo", number=2))
        await here.recorder.until(lambda: here.recorder.endings)


async def _reach_all(folder: Path, isolation: Isolation) -> None:
    """Use everything that has a failpoint."""
    async with harness(folder) as here:
        slot = await here.open(isolation)
        await here.run(slot, a_task("echo", "x" * 100_000, isolation=isolation))
        await here.run(slot, a_task("steps", "one", number=2, isolation=isolation))
        here.slots.replace(slot)
        await here.recorder.until(lambda: here.recorder.endings)
        task = a_task("hides_a_process_and_waits", number=3, isolation=isolation)
        await here.give_and_wait(slot, task)
        _print(f"output {here.recorder.text(3).strip()}")
        here.slots.kill(slot, grace=timedelta(0))
        await here.recorder.until(lambda: len(here.recorder.endings) == 2)


def main() -> None:
    """See the module."""
    folder, isolation, function, deadline_ms, *failpoint = sys.argv[1:]
    _print(f"worker {os.getpid()}")
    if not failpoint:
        asyncio.run(_main(Path(folder), Isolation(isolation), function, int(deadline_ms)))
        return

    def kill_at(point: str) -> None:
        if point == failpoint[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    arm(kill_at)
    asyncio.run(_reach_all(Path(folder), Isolation(isolation)))


if __name__ == "__main__":
    main()
