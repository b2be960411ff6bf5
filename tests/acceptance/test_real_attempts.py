"""An attempt in a real child has the same outcome as a scripted one, on each backend."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.event import Event
from longshore.core.tasks import commands as c
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.ports.output import OutputChunk, Stream
from longshore.services.worker.worker import Worker
from longshore.settings import load_settings
from longshore.wiring.services import Services
from tests.acceptance.attempt_tasks import SECRET
from tests.acceptance.conftest import open_services_on, wait_until
from tests.acceptance.history_checks import read_checked_history

BACKENDS = pytest.mark.parametrize("backend", ["memory", "sqlite"])
ROOT = str(Path(__file__).parents[2])
TASKS = "tests.acceptance.attempt_tasks"
SOON = timedelta(milliseconds=10)
GRACE = timedelta(milliseconds=200)
QUICK = Definition(
    name="quick",
    runner=RunnerKind.PYTHON,
    overridable=("function", "path"),
    retry=RetryPolicy(base=SOON, cap=SOON, max_attempts=2),
)
SHORT = Definition(
    name="short",
    runner=RunnerKind.PYTHON,
    overridable=("function", "path"),
    timeout=timedelta(seconds=1.5),
)


def scenario(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @wraps(function)
    def test(**arguments: Any) -> None:
        asyncio.run(function(**arguments))

    return test


class RunningJob:
    """A worker of this process on a backend, and what it has done."""

    def __init__(self, services: Services, worker: Worker, job_id: str) -> None:
        self.services = services
        self.worker = worker
        self._job_id = job_id

    async def history(self, key: str) -> tuple[TaskRow, list[Event]]:
        return await read_checked_history(self.services.backend, f"{self._job_id}_{key}")

    async def output(self, key: str) -> list[OutputChunk]:
        return await self.services.backend.output.read(f"{self._job_id}_{key}")

    async def result(self, key: str) -> Any:
        row, _ = await self.history(key)
        return await self.services.documents.load(row.result)

    async def wait_until_ended(self, *keys: str) -> None:
        """Return when these tasks have ended; without keys, all of them."""

        async def look() -> bool:
            states = await self.services.backend.ledger.task_states(self._job_id)
            return all(states[key].terminal for key in keys or states)

        await wait_until(look)

    async def release(self, key: str) -> None:
        """Return when the task has no lease any more."""

        async def look() -> bool:
            row = await self.services.backend.ledger.get_task(f"{self._job_id}_{key}")
            return row is not None and row.lease is None

        await wait_until(look)

    async def command(self, key: str, command: c.Command) -> None:
        await self.services.transitions.apply_to_task(f"{self._job_id}_{key}", command)


@asynccontextmanager
async def at_work(backend: str, folder: Path, *tasks: dict[str, Any]) -> AsyncIterator[RunningJob]:
    flags = {"data_dir": folder, "worker.kill_grace": "200ms"}
    async with open_services_on(backend, load_settings(flags)) as services:
        for definition in (QUICK, SHORT):
            await services.backend.definitions.put("default", definition)
        accepted = await services.producer.submit("default", "r", {"tasks": list(tasks)})
        worker = services.worker()
        running = asyncio.ensure_future(worker.run())
        try:
            yield RunningJob(services, worker, accepted.job.id)
        finally:
            worker.stop()
            worker.release_all()
            await running


def make_call(function: str, name: str = "quick", /, **kwargs: Any) -> dict[str, Any]:
    called = {"function": f"{TASKS}:{function}", "path": [ROOT], "kwargs": kwargs}
    return {"taskId": function, "name": name, "input": called}


async def begins(begun: Path) -> list[int]:
    """The processes of an attempt that waits, as soon as it does."""

    async def look() -> bool:
        return begun.exists()

    await wait_until(look)
    processes = [int(number) for number in begun.read_text().split()]
    assert len(processes) == len(alive(*processes)) == 2
    return processes


def alive(*process_ids: int) -> list[int]:
    """Those of them that are there, but for zombies."""
    result = []
    for process_id in process_ids:
        with suppress(FileNotFoundError, ProcessLookupError):
            state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
            result += [process_id] if state != "Z" else []
    return result


def event_types(history: list[Event]) -> list[str]:
    return [event.type.removeprefix("Task ") for event in history]


ONCE = ["Pending", "Processing Started", "Completed"]
TWICE = ["Pending", "Processing Started", "Processing Failed", "Processing Started", "Completed"]
FOR_GOOD = ["Pending", "Processing Started", "Failed"]
IN_THE_END = [*TWICE[:-1], "Failed"]
ENDS = {
    "gives": (ONCE, None),
    "hangs_up_once": (TWICE, "network"),
    "asks_for_another_attempt": (TWICE, "unknown"),
    "gives_up": (FOR_GOOD, "network"),
    "gets_it_wrong": (FOR_GOOD, "validation"),
    "ends_without_a_word": (IN_THE_END, "crash"),
    "is_killed": (IN_THE_END, "crash"),
}


@BACKENDS
@scenario
async def test_each_way_in_which_a_child_ends_has_its_outcome(backend: str, tmp_path: Path) -> None:
    async with at_work(backend, tmp_path, *map(make_call, ENDS)) as installation:
        await installation.wait_until_ended()

        for name, (events, category) in ENDS.items():
            _, history = await installation.history(name)
            failed = [event.body for event in history if "Failed" in event.type]
            assert event_types(history) == events, name
            assert {body.error_category for body in failed} == ({category} if category else set())
        assert await installation.result("gives") == [1, 2]
        assert await installation.result("hangs_up_once") == 2
        assert await installation.result("asks_for_another_attempt") == 2
        row, history = await installation.history("gets_it_wrong")
        assert "login failed" in history[-1].body.error
        assert SECRET not in f"{row}{history}"


@BACKENDS
@scenario
async def test_a_child_has_a_session_a_private_folder_and_no_more_of_the_worker_than_it_may(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", SECRET)
    task = make_call("looks_around", note="for the child alone")
    async with at_work(backend, tmp_path, task) as installation:
        await installation.wait_until_ended()
        seen = await installation.result("looks_around")

    assert seen["session"]
    assert seen["mode"] == 0o700
    assert seen["note"] == "for the child alone"
    assert "for the child alone" not in seen["argv"]
    assert seen["files"] == []
    assert SECRET not in seen["environment"].values()
    assert not Path(seen["folder"]).exists()


@BACKENDS
@scenario
async def test_what_a_child_prints_is_kept_with_its_stream_its_time_and_its_place(
    backend: str, tmp_path: Path
) -> None:
    async with at_work(backend, tmp_path, make_call("prints_on_both_streams")) as installation:
        began = installation.services.backend.clock.now()
        await installation.wait_until_ended()
        entries = await installation.output("prints_on_both_streams")
        row, _ = await installation.history("prints_on_both_streams")
        ended = installation.services.backend.clock.now()

    for stream, start in ((Stream.STDOUT, b"out"), (Stream.STDERR, b"err")):
        printed = b"".join(entry.data for entry in entries if entry.stream is stream)
        assert printed == b"".join(b"%b %d\n" % (start, number) for number in range(3))
    assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
    assert row.last_output == len(entries)
    assert all(began <= entry.at <= ended for entry in entries)


@BACKENDS
@pytest.mark.parametrize("stubborn", [False, True], ids=["obeys", "ignores"])
@scenario
async def test_an_attempt_whose_time_is_up_is_ended_with_all_its_processes(
    backend: str, stubborn: bool, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    task = make_call("waits", "short", begun=str(begun), stubborn=stubborn)
    async with at_work(backend, tmp_path, task) as installation:
        processes = await begins(begun)
        await installation.wait_until_ended()
        row, history = await installation.history("waits")

        last = history[-1]
        assert (row.state, last.type) == (TaskState.FAILED, "Task Timeout")
        assert last.body.signal == ("SIGKILL" if stubborn else "SIGTERM")
        assert last.body.timeout == SHORT.timeout
        assert last.body.elapsed >= SHORT.timeout + (GRACE if stubborn else timedelta(0))
        assert alive(*processes) == []


@BACKENDS
@scenario
async def test_a_cancelled_attempt_is_ended_with_all_its_processes(
    backend: str, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    async with at_work(backend, tmp_path, make_call("waits", begun=str(begun))) as installation:
        processes = await begins(begun)
        await installation.command("waits", c.RequestCancel(by="ann"))
        await installation.wait_until_ended()

        row, history = await installation.history("waits")
        assert (row.state, event_types(history)[-1]) == (TaskState.CANCELLED, "Cancelled")
        assert alive(*processes) == []


@BACKENDS
@scenario
async def test_an_attempt_that_is_given_back_leaves_no_process_and_costs_none(
    backend: str, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    async with at_work(backend, tmp_path, make_call("waits", begun=str(begun))) as installation:
        processes = await begins(begun)
        installation.worker.stop()
        installation.worker.release_all()

        await installation.release("waits")
        row, history = await installation.history("waits")
        assert event_types(history)[-1] == "Released"
        assert (row.state, row.attempt, row.attempts_used) == (TaskState.PENDING, 1, 0)
        assert alive(*processes) == []
