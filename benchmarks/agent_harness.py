"""A place where agents work for nothing: a stand-in of the model's API, and a worker that asks it.

Each of them is a process of its own, so that what one of them costs is not counted for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import worker_process
from benchmarks.agent_question import KEY, MODEL, PROMPT
from benchmarks.system import TENANT, open_system, submit
from longshore.core.agents.trace import TRACE_FILE
from longshore.core.definitions.reader import read_definition
from longshore.core.ids import task_id_of
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.wiring.services import Services

_DEFINITION = "ask"
_READY_WITHIN_S = 30.0
_POLL_S = 0.005


@contextlib.contextmanager
def fake_model(folder: Path, *steps: dict[str, Any]) -> Iterator[str]:
    """A stand-in for the Messages API that answers all clients with these steps; yields its URL."""
    script, port = folder / "script.json", folder / "port"
    script.write_text(json.dumps({"scripts": [{"steps": list(steps), "perSession": True}]}))
    argv = ("-m", "verification.messages_api", "--script", script, "--port-file", port)
    process = subprocess.Popen(
        [sys.executable, *map(str, argv)], cwd=worker_process.ROOT, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + _READY_WITHIN_S
        while not port.exists():
            assert process.poll() is None, "the stand-in ended"
            assert time.monotonic() < deadline, "the stand-in is not ready"
            time.sleep(_POLL_S)
        yield f"http://127.0.0.1:{port.read_text().strip()}"
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHarness:
    """A worker that is ready for agents."""

    services: Services
    worker_pid: int  # its process id

    async def submit(self, name: str, tasks: int = 1) -> list[str]:
        """Hand in one job; the ids of its tasks."""
        accepted = await submit(self.services, name, *[{"name": _DEFINITION}] * tasks)
        return [task_id_of(accepted.job.id, f"t{number}") for number in range(tasks)]

    async def wait_completed(self, task_id: str) -> TaskRow:
        """Return when the task has completed."""
        while (row := await self._row(task_id)).state is not TaskState.COMPLETED:
            assert not row.state.terminal, row.failure
            await asyncio.sleep(_POLL_S)
        return row

    async def _row(self, task_id: str) -> TaskRow:
        row = await self.services.backend.ledger.get_task(task_id)
        assert row is not None
        return row

    async def query_times(self, task_id: str) -> tuple[float, float]:
        """When the SDK's query began and ended, by what was traced of the only step."""
        name = f"task/logs/{task_id}/attempt-1/{TRACE_FILE}"
        (step,) = json.loads(await self.services.backend.blobs.get(name))["steps"]
        began, ended = (datetime.fromisoformat(step[name]) for name in ("startedAt", "endedAt"))
        return began.timestamp(), ended.timestamp()


@contextlib.asynccontextmanager
async def start_harness(
    folder: Path, url: str, *, allowed: Sequence[str] = (), **settings: str
) -> AsyncIterator[AgentHarness]:
    """A worker for agents on ``folder``."""
    options = {"prompt": PROMPT, "tools": list(allowed)}
    definition = read_definition({"name": _DEFINITION, "runner": "agent", "options": options})
    starting = worker_process.run_worker_process(
        folder,
        LONGSHORE_AGENT_API_KEY=KEY,
        LONGSHORE_AGENT_BASE_URL=url,
        LONGSHORE_AGENT_MODEL=MODEL,
        **settings,
    )
    async with open_system(folder) as services:
        await services.backend.definitions.put(TENANT, definition)
        worker = await asyncio.to_thread(starting.__enter__)
        try:
            yield AgentHarness(services=services, worker_pid=worker)
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)
