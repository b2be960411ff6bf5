"""Agent tasks as they are run: real worker, real SDK, real command line, and a scripted model."""

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

from longshore.adapters.process.table import alive
from longshore.core.agents.plan import ONLY_STEP
from longshore.core.agents.transcripts import session_id
from longshore.core.events.event import Event
from longshore.core.ids import task_id_of
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.interfaces.definition_documents import read_definition
from longshore.runners.keeper.kernel import descendants
from longshore.services.worker.worker import Worker
from longshore.settings import load_settings
from longshore.testing.messages_api import MessagesApi, Request, asked_again
from longshore.testing.messages_api.script import Scripted
from longshore.wiring import Services, wired
from tests.acceptance.conftest import until
from tests.acceptance.histories import audited

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


def scenario(play: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine; one that is given a ``stage`` plays in the loop of that."""

    @wraps(play)
    def test(**given: Any) -> None:
        runner = getattr(given.get("stage"), "runner", None)
        (runner.run if runner else asyncio.run)(play(**given))

    return test


class Stage:
    """A worker of this process, a model that plays a script, and what came of it."""

    def __init__(self, services: Services, api: MessagesApi, folder: Path) -> None:
        self.services = services
        self.api = api
        self.folder = folder
        self.runner: asyncio.Runner | None = None
        self.job_id = ""
        self._workers: list[tuple[Worker, asyncio.Future[None]]] = []
        self._dispatching: asyncio.Future[None] | None = None

    async def define(self, name: str = "agent-task", /, **fields: Any) -> None:
        """Make a definition; ``options`` are the agent's."""
        retry = {"base": "10ms", "cap": "10ms", "maxAttempts": 2}
        document = {"name": name, "runner": "agent", "retry": retry, **fields}
        await self.services.backend.definitions.put(TENANT, read_definition(document))

    async def submit(self, *tasks: dict[str, Any], **more: Any) -> None:
        """Hand in a job, by default of one task."""
        given = list(tasks) or [{"taskId": "a", "name": "agent-task"}]
        request = f"request-{next(_requests)}"
        accepted = await self.services.producer.submit(TENANT, request, {"tasks": given, **more})
        self.job_id = accepted.job.id

    def work(self) -> Worker:
        """Let one more worker begin."""
        worker = self.services.worker()
        self._workers.append((worker, asyncio.ensure_future(worker.run())))
        if self._dispatching is None:
            self._dispatching = asyncio.ensure_future(self.services.dispatcher.run())
        return worker

    async def close(self) -> None:
        for worker, running in self._workers:
            worker.stop()
            worker.end_all()
            await running
        if self._dispatching is not None:
            self._dispatching.cancel()
            await asyncio.gather(self._dispatching, return_exceptions=True)

    def id_of(self, key: str = "a") -> str:
        return task_id_of(self.job_id, key)

    async def over(self, *keys: str) -> TaskRow:
        """Return when these tasks have ended or are in review; the last one's row."""
        keys = keys or ("a",)

        async def look() -> bool:
            states = await self.services.backend.ledger.task_states(self.job_id)
            return all(states[key].terminal or states[key] is TaskState.IN_REVIEW for key in keys)

        await until(look)
        return await self.row(keys[-1])

    async def attempt_over(self, number: int, key: str = "a") -> TaskRow:
        """Return when this attempt has ended, whatever comes after it; the row then."""

        async def look() -> TaskRow | None:
            row = await self.row(key)
            return row if row.attempt > number or (row.attempt and row.lease is None) else None

        found = await until(look)
        assert isinstance(found, TaskRow)
        return found

    async def row(self, key: str = "a") -> TaskRow:
        found = await self.services.backend.ledger.task(self.id_of(key))
        assert found is not None
        return found

    async def result(self, key: str = "a") -> Any:
        return await self.services.documents.load((await self.row(key)).result)

    async def history(self, key: str = "a") -> tuple[TaskRow, list[Event]]:
        return await audited(self.services.backend, self.id_of(key))

    async def failures(self, key: str = "a") -> list[tuple[str, str]]:
        """The category and the text of each attempt that failed, in order."""
        _, history = await self.history(key)
        return [
            (getattr(event.body, "error_category", "timeout"), getattr(event.body, "error", ""))
            for event in history
            if event.type in FAILED
        ]

    async def output(self, key: str = "a") -> str:
        entries = await self.services.backend.output.read(self.id_of(key))
        return b"".join(entry.data for entry in entries).decode()

    async def file(self, name: str, *, key: str = "a", attempt: int = 1) -> bytes:
        """A file that was kept of an attempt."""
        kept = f"task/logs/{self.id_of(key)}/attempt-{attempt}/{name}"
        return await self.services.backend.blobs.get(kept)

    async def trace(self, *, key: str = "a", attempt: int = 1) -> list[dict[str, Any]]:
        """What was traced of an attempt, step by step."""
        document = json.loads(
            await self.file("traces/session_trace.json", key=key, attempt=attempt)
        )
        steps: list[dict[str, Any]] = document["steps"]
        return steps

    def requests(self, key: str = "a", *, step: str = ONLY_STEP) -> list[Request]:
        """What the model was asked by a step of a task, in all attempts."""
        session = session_id(self.id_of(key), step)
        return [request for request in self.api.requests if request.session_id == session]

    def asked_again(
        self, key: str = "a", *, step: str = ONLY_STEP
    ) -> list[tuple[Request, Request]]:
        """Each request for an answer that had been given, with the one that got it."""
        return asked_again(self.requests(key, step=step))

    @property
    def work_folder(self) -> Path:
        return self.folder / "data" / "work"

    def files(self, key: str = "a") -> Path:
        """Where the agent works."""
        return self.work_folder / f"{self.id_of(key)}.agent" / "files"

    def child(self, key: str = "a") -> int:
        """The process that carries out the attempt of a task."""
        running = [attempt for worker, _ in self._workers for attempt in worker._running]
        (found,) = [attempt for attempt in running if attempt.task_id == self.id_of(key)]
        return found.renewal().process_id

    def family(self, key: str = "a") -> dict[int, str]:
        """That process and all below it, with their names."""
        child = self.child(key)
        return {one: name_of(one) for one in (child, *descendants(child))}

    def kill_child(self, key: str = "a") -> None:
        """SIGKILL to the child, and to nobody else."""
        os.kill(self.child(key), signal.SIGKILL)


def name_of(process_id: int) -> str:
    """What a process is called; nothing, if it is gone."""
    try:
        return Path(f"/proc/{process_id}/comm").read_text().strip()
    except OSError:
        return ""


def left_of(family: Mapping[int, str]) -> dict[int, str]:
    """Those who still live."""
    return {one: name for one, name in family.items() if alive(one)}


@asynccontextmanager
async def on_stage(
    folder: Path,
    scripted: Scripted = (),
    *,
    flags: Mapping[str, Any] | None = None,
    works: bool = True,
) -> AsyncIterator[Stage]:
    """A stage on SQLite; ``flags`` are settings."""
    async with (
        MessagesApi(scripted) as api,
        wired(load_settings(settings_for(folder, api.url, flags))) as services,
    ):
        stage = Stage(services, api, folder)
        if works:
            stage.work()
        try:
            yield stage
        finally:
            await stage.close()


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
        # Once for all attempts of a stage.
        "agent.preload": True,
        **(flags or {}),
    }
