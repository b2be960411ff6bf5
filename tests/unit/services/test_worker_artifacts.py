"""What an attempt leaves is stored before its end is recorded, and never costs the outcome."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.tasks import commands as c
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from longshore.ports.output import Stream
from longshore.ports.runner import SummaryReport
from longshore.services.worker.context import ArtifactPolicy
from longshore.testing.fake_runner import FakeRunner, Script, fails, prints, succeeds
from longshore.testing.flaky_port import FlakyPort
from longshore.testing.worker_registry import FakeWorkerRegistry
from tests.unit.services.harness import (
    BACKENDS,
    NO_WAIT,
    SECOND,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort, record_calls
from tests.unit.services.samples import MINUTE

FILES = {"artifacts/a.csv": "1,2", "traces/t.json": "{}", "logs/summary.log": "fine\n"}
LEAVES = Script(files=FILES)
PREFIX = f"task/logs/{task_id('a')}/attempt-1/"


def make_harness(
    backend: Backend, tmp_path: Path, *scripts: Script, **options: Any
) -> ServiceHarness:
    """A process whose children have folders."""
    harness = ServiceHarness(backend, **options)
    harness.runner = FakeRunner(harness.clock, folder=tmp_path / "work")
    harness.runner.set_scripts("a", *scripts)
    return harness


async def stored(backend: Backend) -> list[str]:
    return [key.removeprefix(PREFIX) for key in await backend.blobs.list_keys("task/logs/")]


async def log_lines(backend: Backend) -> list[str]:
    entries = await backend.output.read(task_id("a"))
    return [entry.data.decode() for entry in entries if entry.stream is Stream.LOG]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_files_are_stored_before_the_outcome_and_the_folder_goes_after(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        harness = make_harness(watched, tmp_path, LEAVES)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(NO_WAIT)

        (child,) = harness.runner.children
        options = sorted(FILES)
        writes = [call for call in calls if call in ("blobs.put", "ledger.commit")]
        assert await stored(backend) == options
        assert await backend.blobs.get(f"{PREFIX}artifacts/a.csv") == b"1,2"
        assert writes[-4:] == ["blobs.put"] * 3 + ["ledger.commit"]
        assert child.folder is not None
        assert child.closed
        assert not child.folder.exists()


HANGS_WITH_FILES = Script(files=FILES, ending=None)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("script", "command", "state"),
    [
        (Script(files=FILES, ending=fails()), None, TaskState.PENDING),
        (HANGS_WITH_FILES, None, TaskState.FAILED),
        (HANGS_WITH_FILES, c.RequestCancel(by="ann"), TaskState.CANCELLED),
    ],
    ids=["failed", "timed out", "cancelled"],
)
@scenario
async def test_files_of_an_attempt_that_came_to_nothing_are_stored_too(
    kind: str, script: Script, command: Any, state: TaskState, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = make_harness(backend, tmp_path, script)
        await harness.submit(make_task())

        async with harness.running_worker(context={"timeout": MINUTE}):
            await harness.advance(timedelta(milliseconds=1))
            if command is not None:
                await harness.transitions.apply_to_task(task_id("a"), command)
            elif script is HANGS_WITH_FILES:
                await harness.advance(MINUTE)
            await harness.advance(NO_WAIT)
            row = await harness.task("a")

        assert row.state is state
        assert await stored(backend) == sorted(FILES)
        assert harness.runner.children[0].closed


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_stops_releases_at_once_and_logs_which_files_are_missing(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = make_harness(backend, tmp_path, HANGS_WITH_FILES)
        await harness.submit(make_task())

        async with harness.running_worker() as worker:
            await harness.advance(NO_WAIT)
            worker.stop()
            worker.release_all()
            await harness.advance(NO_WAIT)
            row = await harness.task("a")

        assert (row.state, row.attempts_used) == (TaskState.PENDING, 0)
        assert await stored(backend) == []
        assert await log_lines(backend) == [
            "longshore: files that are not stored: all, the worker had no time left\n"
        ]
        assert row.last_output == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_stops_does_not_store_a_summary_either(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[SummaryReport("one")], ending=None))
        await harness.submit(make_task())

        async with harness.running_worker() as worker:
            await harness.advance(NO_WAIT)
            worker.stop()
            worker.release_all()
            await harness.advance(NO_WAIT)

        assert await stored(backend) == []
        assert "no time left" in (await log_lines(backend))[-1]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_attempt_whose_time_was_up_stays_so_when_the_worker_stops_meanwhile(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = make_harness(backend, tmp_path, HANGS_WITH_FILES)
        await harness.submit(make_task())

        async def for_ever() -> None:
            worker.release_all()
            await asyncio.Event().wait()

        blobs = InterposedPort(backend.blobs, "put", before=for_ever)
        storing = harness.with_ports(blobs=blobs)
        async with storing.running_worker(context={"timeout": SECOND}) as worker:
            await harness.advance(SECOND)

        assert (await harness.event_types("a"))[-1] == "Task Timeout"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_finished_work_is_reported_although_the_worker_stops_while_its_files_are_stored(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = make_harness(backend, tmp_path, LEAVES)
        await harness.submit(make_task())
        storing = asyncio.Event()

        async def for_ever() -> None:
            storing.set()
            await asyncio.Event().wait()

        blobs = InterposedPort(backend.blobs, "put", before=for_ever)
        async with harness.with_ports(blobs=blobs).running_worker() as worker:
            await storing.wait()
            worker.release_all()
            await harness.advance(NO_WAIT)

        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert await stored(backend) == []
        assert "no time left" in (await log_lines(backend))[-1]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("command", [None, c.RequestCancel(by="ann")], ids=["late", "cancelled"])
@scenario
async def test_the_time_to_store_files_is_not_the_attempt_s(
    kind: str, command: Any, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        script = Script(reports=[timedelta(seconds=50)], files=FILES)
        harness = make_harness(backend, tmp_path, script)
        await harness.submit(make_task())

        async def slow() -> None:
            if command is not None:
                await harness.transitions.apply_to_task(task_id("a"), command)
            await harness.clock.sleep(timedelta(seconds=15))

        blobs = InterposedPort(backend.blobs, "put", before=slow)
        async with harness.with_ports(blobs=blobs).running_worker(context={"timeout": MINUTE}):
            await harness.advance(timedelta(seconds=65))

        row = await harness.task("a")
        assert row.state is TaskState.COMPLETED
        assert row.ran_for == timedelta(seconds=50)
        assert await stored(backend) == sorted(FILES)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_files_survive_a_short_outage_of_the_store(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = make_harness(backend, tmp_path, LEAVES)
        await harness.submit(make_task())
        blobs = FlakyPort(backend.blobs, "put", times=5)

        async with harness.with_ports(blobs=blobs).running_worker():
            await harness.advance(timedelta(seconds=5))

        assert blobs.failures == 5
        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert await stored(backend) == sorted(FILES)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_long_outage_of_the_store_costs_the_files_and_not_the_outcome(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = make_harness(backend, tmp_path, LEAVES)
        await harness.submit(make_task())
        blobs = FlakyPort(backend.blobs, "put", times=None)

        async with harness.with_ports(blobs=blobs).running_worker():
            await harness.advance(timedelta(seconds=40))

        row = await harness.task("a")
        assert (row.state, row.attempt) == (TaskState.COMPLETED, 1)
        assert "the store could not be reached" in (await log_lines(backend))[-1]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_is_left_out_is_the_last_line_of_the_output(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        script = Script(reports=[prints("hello")], files=FILES)
        harness = make_harness(backend, tmp_path, script)
        await harness.submit(make_task())

        async with harness.running_worker(context={"artifacts": ArtifactPolicy(limit_files=2)}):
            await harness.advance(NO_WAIT)

        row = await harness.task("a")
        entries = await backend.output.read(task_id("a"))
        last = entries[-1].data.decode()
        assert last == (
            "longshore: files that are not stored: artifacts/a.csv (more than 2 files)\n"
        )
        assert (row.last_output, entries[-1].end) == (2, 2)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_summary_is_kept_of_an_attempt_without_a_folder(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts(
            "a", Script(reports=[SummaryReport("one"), SummaryReport("two")])
        )
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)

        assert await backend.blobs.get(f"{PREFIX}logs/summary.log") == b"one\ntwo\n"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_no_files_are_kept_of_an_attempt_whose_lease_is_lost(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = make_harness(backend, tmp_path, HANGS_WITH_FILES)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)
            await harness.end_lease("a")
            await harness.claim(task_id("a"), "other")
            await harness.advance(timedelta(seconds=30))

        assert harness.runner.alive == []
        assert harness.runner.children[0].closed
        assert await stored(backend) == []


class FullDiskRegistry(FakeWorkerRegistry):
    """A presence that cannot write anything down."""

    def record_child(self, worker_id: str, process_id: int) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_child_that_was_never_supervised_leaves_no_folder(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = make_harness(
            backend, tmp_path, HANGS_WITH_FILES, worker_registry=FullDiskRegistry()
        )
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)

        (child,) = harness.runner.children
        assert child.closed


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_is_cancelled_while_it_stores_files_lets_go_of_everything(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = make_harness(backend, tmp_path, Script(files=FILES, ending=succeeds(1)))
        await harness.submit(make_task())
        storing = asyncio.Event()

        async def for_ever() -> None:
            storing.set()
            await asyncio.Event().wait()

        blobs = InterposedPort(backend.blobs, "put", before=for_ever)
        running = asyncio.ensure_future(harness.with_ports(blobs=blobs).worker().run())
        await storing.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        assert harness.runner.children[0].closed
        assert (await harness.task("a")).state is TaskState.PROCESSING
