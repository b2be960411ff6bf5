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
from benchmarks.system import TENANT, submit, system
from longshore.core.agents.trace import FILE
from longshore.core.ids import task_id_of
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.interfaces.definition_documents import read_definition
from longshore.wiring import Services

_ASK = "ask"
_READY_WITHIN_S = 30.0
_LOOK_S = 0.005


@contextlib.contextmanager
def model(folder: Path, *steps: dict[str, Any]) -> Iterator[str]:
    """A stand-in of the Messages API that plays these steps to everybody; gives its address."""
    script, port = folder / "script.json", folder / "port"
    script.write_text(json.dumps({"scripts": [{"steps": list(steps), "eachSession": True}]}))
    argv = ("-m", "longshore.testing.messages_api", "--script", script, "--port-file", port)
    process = subprocess.Popen(
        [sys.executable, *map(str, argv)], cwd=worker_process.ROOT, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + _READY_WITHIN_S
        while not port.exists():
            assert process.poll() is None, "the stand-in ended"
            assert time.monotonic() < deadline, "the stand-in is not ready"
            time.sleep(_LOOK_S)
        yield f"http://127.0.0.1:{port.read_text().strip()}"
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A worker that is ready for agents."""

    services: Services
    worker: int  # its process id

    async def begin(self, name: str, tasks: int = 1) -> list[str]:
        """Hand in one job; the ids of its tasks."""
        accepted = await submit(self.services, name, *[{"name": _ASK}] * tasks)
        return [task_id_of(accepted.job.id, f"t{number}") for number in range(tasks)]

    async def completed(self, task_id: str) -> TaskRow:
        """Return when the task has completed."""
        while (row := await self._row(task_id)).state is not TaskState.COMPLETED:
            assert not row.state.terminal, row.failure
            await asyncio.sleep(_LOOK_S)
        return row

    async def _row(self, task_id: str) -> TaskRow:
        row = await self.services.backend.ledger.task(task_id)
        assert row is not None
        return row

    async def query_times(self, task_id: str) -> tuple[float, float]:
        """When the SDK's query began and ended, by what was traced of the only step."""
        name = f"task/logs/{task_id}/attempt-1/{FILE}"
        (step,) = json.loads(await self.services.backend.blobs.get(name))["steps"]
        began, ended = (datetime.fromisoformat(step[name]) for name in ("startedAt", "endedAt"))
        return began.timestamp(), ended.timestamp()


@contextlib.asynccontextmanager
async def staged(
    folder: Path, url: str, *, tools: Sequence[str] = (), **settings: str
) -> AsyncIterator[Stage]:
    """A worker for agents on ``folder``."""
    options = {"prompt": PROMPT, "tools": list(tools)}
    definition = read_definition({"name": _ASK, "runner": "agent", "options": options})
    starting = worker_process.started(
        folder,
        LONGSHORE_AGENT_API_KEY=KEY,
        LONGSHORE_AGENT_BASE_URL=url,
        LONGSHORE_AGENT_MODEL=MODEL,
        **settings,
    )
    async with system(folder) as services:
        await services.backend.definitions.put(TENANT, definition)
        worker = await asyncio.to_thread(starting.__enter__)
        try:
            yield Stage(services=services, worker=worker)
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)
