"""Readers see what a task in a real child reports and stores."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.settings import Settings
from longshore.wiring.services import Services, open_services
from tests.acceptance.conftest import open_services_on, wait_until

ROOT = Path(__file__).parents[2]
CHILDREN = "tests.execution.context_functions"


BACKENDS = pytest.mark.parametrize("backend", ["memory", "sqlite"])


def make_call(name: str, **fields: Any) -> dict[str, Any]:
    options = {"function": f"{CHILDREN}:{name}", "path": [str(ROOT)]}
    return {"tasks": [{"taskId": "t", "name": "python", "input": options, **fields}]}


class RunningTask:
    """A worker of this process, while a task of its own is looked at."""

    def __init__(self, services: Services, job: dict[str, Any]) -> None:
        self.services = services
        self.backend = services.backend
        self._job = job
        self.task_id = ""

    async def __aenter__(self) -> "RunningTask":
        accepted = await self.services.producer.submit("default", "r", self._job)
        self.task_id = f"{accepted.job.id}_t"
        self._worker = self.services.worker()
        self._running = asyncio.ensure_future(self._worker.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._worker.stop()
        await self._running

    async def row(self) -> TaskRow:
        row = await self.backend.ledger.get_task(self.task_id)
        assert row is not None
        return row

    async def ends(self) -> TaskRow:
        async def over() -> bool:
            return (await self.row()).state.terminal

        await wait_until(over)
        return await self.row()

    async def prints(self, text: bytes) -> None:
        async def there() -> bool:
            entries = await self.backend.output.read(self.task_id)
            return text in b"".join(entry.data for entry in entries)

        await wait_until(there)

    async def stored(self) -> dict[str, bytes]:
        prefix = f"task/logs/{self.task_id}/attempt-1/"
        keys = await self.backend.blobs.list_keys(prefix)
        return {key.removeprefix(prefix): await self.backend.blobs.get(key) for key in keys}


STORED = {
    "artifacts/all/report.csv": b"1,2\n",
    "artifacts/report.csv": b"1,2\n",
    "logs/summary.log": b"one half is done\n",
}


def test_reports_of_a_task_are_in_its_output_and_its_files_are_stored(settings: Settings) -> None:
    async def scenario() -> str:
        async with (
            open_services(settings) as services,
            RunningTask(services, make_call("reports_everything")) as task,
        ):
            row = await task.ends()

            assert row.state is TaskState.COMPLETED
            assert await task.stored() == STORED
            return task.task_id

    task_id = asyncio.run(scenario())
    assert list((settings.data_dir / "work").rglob("report.csv")) == []
    logs = subprocess.run(
        [sys.executable, "-m", "longshore", "logs", task_id, "--data-dir", settings.data_dir],
        capture_output=True,
        text=True,
        check=True,
    )
    assert logs.stdout == "begin\nprogress: 1 of 2 (50%), halves\nsummary: one half is done\n"


@BACKENDS
def test_what_a_task_left_that_died_is_kept(backend: str, settings: Settings) -> None:
    job = make_call("reports_everything_and_dies", maxAttempts=1)

    async def scenario() -> None:
        async with (
            open_services_on(backend, settings) as services,
            RunningTask(services, job) as task,
        ):
            row = await task.ends()

            assert row.state is TaskState.FAILED
            assert row.failure is not None
            assert row.failure.peak_rss_bytes
            assert await task.stored() == STORED

    asyncio.run(scenario())


@BACKENDS
def test_folders_stay_if_the_setting_requires_it(backend: str, settings: Settings) -> None:
    worker = replace(settings.worker, keep_work_dirs=True)
    keeping = replace(settings, worker=worker)

    async def scenario() -> None:
        async with (
            open_services_on(backend, keeping) as services,
            RunningTask(services, make_call("reports_everything")) as task,
        ):
            await task.ends()

            work = settings.data_dir / "work" / f"{task.task_id}.1"
            assert (work / "logs" / "summary.log").read_text() == "one half is done\n"
            assert (work / "artifacts" / "report.csv").exists()

    asyncio.run(scenario())


@BACKENDS
def test_a_cancelled_task_that_looks_may_tidy_up_before_it_is_gone(
    backend: str, settings: Settings
) -> None:
    async def scenario() -> None:
        async with (
            open_services_on(backend, settings) as services,
            RunningTask(services, make_call("polls_cancelled")) as task,
        ):
            await task.prints(b"ready False\n")
            await services.transitions.apply_to_task(task.task_id, c.RequestCancel(by="ann"))
            row = await task.ends()

            assert row.state is TaskState.CANCELLED
            assert row.checkpoint is not None
            assert (await services.documents.load_key(row.checkpoint))["step"] == "tidied"
            await task.prints(b"ready False\ntidied up\n")

    asyncio.run(scenario())
