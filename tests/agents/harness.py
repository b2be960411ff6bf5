"""Agent tasks with a real worker, the real SDK and CLI, and a scripted model."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from longshore.core.agents.plan import DEFAULT_STEP
from longshore.core.agents.transcripts import session_id
from longshore.core.definitions.reader import read_definition
from longshore.core.events.event import Event
from longshore.core.ids import task_id_of
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.execution.process_table import descendants, is_alive
from longshore.services.worker.worker import Worker
from longshore.settings import load_settings
from longshore.wiring.services import Services, open_services
from tests.acceptance.conftest import wait_until
from tests.acceptance.history_checks import read_checked_history
from verification.messages_api import MessagesApi, Request, repeated_requests
from verification.messages_api.script import ScriptSource

TENANT = "default"
KEY = "sk-ant-the-real-key-of-this-test"
MODEL = "claude-sonnet-5-5"
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "score": {"type": "integer"}},
    "required": ["title", "score"],
    "additionalProperties": False,
}
FAILED = ("Task Processing Failed", "Task Failed", "Task Timeout")
_requests = itertools.count(1)


def scenario(test_body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test; with a ``harness``, in the event loop of the harness."""

    @wraps(test_body)
    def test(**options: Any) -> None:
        runner = getattr(options.get("harness"), "runner", None)
        (runner.run if runner else asyncio.run)(test_body(**options))

    return test


class AgentHarness:
    """A worker in this process and a scripted model, with queries for their results."""

    def __init__(self, services: Services, api: MessagesApi, folder: Path) -> None:
        self.services = services
        self.api = api
        self.folder = folder
        self.runner: asyncio.Runner | None = None
        self.job_id = ""
        self._workers: list[tuple[Worker, asyncio.Future[None]]] = []
        self._dispatching: asyncio.Future[None] | None = None

    async def define(self, name: str = "agent-task", /, **fields: Any) -> None:
        """Store a definition; ``options`` are the agent's."""
        retry = {"base": "10ms", "cap": "10ms", "maxAttempts": 2}
        document = {"name": name, "runner": "agent", "retry": retry, **fields}
        await self.services.backend.definitions.put(TENANT, read_definition(document))

    async def submit(self, *tasks: dict[str, Any], **more_: Any) -> None:
        """Submit a job, by default with one task."""
        options = list(tasks) or [{"taskId": "a", "name": "agent-task"}]
        request = f"request-{next(_requests)}"
        accepted = await self.services.producer.submit(TENANT, request, {"tasks": options, **more_})
        self.job_id = accepted.job.id

    def start_worker(self) -> Worker:
        """Start another worker."""
        worker = self.services.worker()
        self._workers.append((worker, asyncio.ensure_future(worker.run())))
        if self._dispatching is None:
            self._dispatching = asyncio.ensure_future(self.services.dispatcher.run())
        return worker

    async def close(self) -> None:
        for worker, running in self._workers:
            worker.stop()
            worker.release_all()
            await running
        if self._dispatching is not None:
            self._dispatching.cancel()
            await asyncio.gather(self._dispatching, return_exceptions=True)

    def task_id(self, key: str = "a") -> str:
        return task_id_of(self.job_id, key)

    async def wait_finished(self, *keys: str) -> TaskRow:
        """Wait until these tasks have ended or are in review. Returns the row of the last."""
        keys = keys or ("a",)

        async def look() -> bool:
            states = await self.services.backend.ledger.task_states(self.job_id)
            return all(states[key].terminal or states[key] is TaskState.IN_REVIEW for key in keys)

        await wait_until(look)
        return await self.row(keys[-1])

    async def wait_attempt_finished(self, number: int, key: str = "a") -> TaskRow:
        """Wait until this attempt has ended. Returns the row."""

        async def look() -> TaskRow | None:
            row = await self.row(key)
            return row if row.attempt > number or (row.attempt and row.lease is None) else None

        match = await wait_until(look)
        assert isinstance(match, TaskRow)
        return match

    async def row(self, key: str = "a") -> TaskRow:
        match = await self.services.backend.ledger.get_task(self.task_id(key))
        assert match is not None
        return match

    async def result(self, key: str = "a") -> Any:
        return await self.services.documents.load((await self.row(key)).result)

    async def history(self, key: str = "a") -> tuple[TaskRow, list[Event]]:
        return await read_checked_history(self.services.backend, self.task_id(key))

    async def failures(self, key: str = "a") -> list[tuple[str, str]]:
        """Returns the category and message of each failed attempt, in order."""
        _, history = await self.history(key)
        return [
            (getattr(event.body, "error_category", "timeout"), getattr(event.body, "error", ""))
            for event in history
            if event.type in FAILED
        ]

    async def output(self, key: str = "a") -> str:
        entries = await self.services.backend.output.read(self.task_id(key))
        return b"".join(entry.data for entry in entries).decode()

    async def file(self, name: str, *, key: str = "a", attempt: int = 1) -> bytes:
        """Returns a stored file of an attempt."""
        stored = f"task/logs/{self.task_id(key)}/attempt-{attempt}/{name}"
        return await self.services.backend.blobs.get(stored)

    async def trace(self, *, key: str = "a", attempt: int = 1) -> list[dict[str, Any]]:
        """Returns the traced steps of an attempt."""
        document = json.loads(
            await self.file("traces/session_trace.json", key=key, attempt=attempt)
        )
        steps: list[dict[str, Any]] = document["steps"]
        return steps

    def requests(self, key: str = "a", *, step: str = DEFAULT_STEP) -> list[Request]:
        """Returns the model requests of a step of a task, in all attempts."""
        session = session_id(self.task_id(key), step)
        return [request for request in self.api.requests if request.session_id == session]

    def repeated_requests(
        self, key: str = "a", *, step: str = DEFAULT_STEP
    ) -> list[tuple[Request, Request]]:
        """Returns each request for an answer that had arrived, with the request that got it."""
        return repeated_requests(self.requests(key, step=step))

    @property
    def work_folder(self) -> Path:
        return self.folder / "data" / "work"

    def files(self, key: str = "a") -> Path:
        """Returns the agent's working directory."""
        return self.work_folder / f"{self.task_id(key)}.agent" / "files"

    def child(self, key: str = "a") -> int:
        """Returns the process id of a task's running attempt."""
        running = [
            item for worker, _ in self._workers for item in worker._attempts._current.values()
        ]
        (match,) = [item for item in running if item.claimed.task_id == self.task_id(key)]
        return 0 if match.child is None else match.child.process_id

    def process_tree(self, key: str = "a") -> dict[int, str]:
        """Returns the child and its descendants with their names."""
        child = self.child(key)
        return {item: process_name(item) for item in (child, *descendants(child))}

    def kill_child(self, key: str = "a") -> None:
        """Send SIGKILL to the child only."""
        os.kill(self.child(key), signal.SIGKILL)


def process_name(process_id: int) -> str:
    """Returns the name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{process_id}/comm").read_text().strip()
    except OSError:
        return ""


def survivors(family: Mapping[int, str]) -> dict[int, str]:
    """Returns the processes that are alive."""
    return {item: name for item, name in family.items() if is_alive(item)}


@asynccontextmanager
async def open_harness(
    folder: Path,
    scripted: ScriptSource = (),
    *,
    flags: Mapping[str, Any] | None = None,
    with_worker: bool = True,
) -> AsyncIterator[AgentHarness]:
    """Yields a harness on SQLite; ``flags`` are settings."""
    async with (
        MessagesApi(scripted) as api,
        open_services(load_settings(settings_for(folder, api.url, flags))) as services,
    ):
        harness = AgentHarness(services, api, folder)
        if with_worker:
            harness.start_worker()
        try:
            yield harness
        finally:
            await harness.close()


def settings_for(folder: Path, url: str, flags: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings of a worker for agents."""
    return {
        "data_dir": str(folder / "data"),
        "worker.kill_grace": "2s",
        "worker.concurrency": 2,
        "agent.api_key": KEY,
        "agent.base_url": url,
        "agent.model": MODEL,
        "agent.retries": 0,
        # Once for all attempts of a harness.
        "agent.preload": True,
        **(flags or {}),
    }
