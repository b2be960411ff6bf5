"""A worker's side of slots for tests: records every event of its slots."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import BUILTIN_DEFINITIONS, Definition, Isolation
from longshore.execution.host.folder_cleaner import FolderCleaner
from longshore.execution.host.forkserver_client import ForkServerClient
from longshore.execution.host.slots import ProcessSlots
from longshore.execution.slot_page import begun_tasks, clock_ns, read_boot_id
from longshore.ports.child_slots import SlotTask
from longshore.testing.contracts.child_slots import BOTH, SlotRecorder, SlotsHarness

ROOT = str(Path(__file__).parents[3])
FUNCTIONS = "tests.execution.slot_functions"
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
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
class Harness(SlotsHarness):
    """Slots with a fork server of their own."""

    slots: ProcessSlots
    forkserver: ForkServerClient
    page_path: Path


@asynccontextmanager
async def harness(
    folder: Path, recorder: SlotRecorder | None = None, *, max_processes: int = 0
) -> AsyncIterator[Harness]:
    forkserver = ForkServerClient(ENVIRONMENT)
    cleaner = FolderCleaner(keep=False)
    recorder = recorder or SlotRecorder()
    page_path = folder / "w1.begun"
    slots = ProcessSlots(
        forkserver,
        recorder,
        SystemClock(),
        folder=folder / "work",
        page_path=page_path,
        cleaner=cleaner,
        max_processes=max_processes,
    )
    recorder.slots = slots
    try:
        yield Harness(
            slots,
            recorder,
            now_ns=clock_ns,
            begun=lambda: begun_tasks(page_path.read_bytes(), read_boot_id()),
            forkserver=forkserver,
            page_path=page_path,
        )
    finally:
        await slots.close()
        await forkserver.close()
        await cleaner.close()
