"""SIGTERM while twenty tasks run: nothing is lost, nothing is done twice, the drain is short."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from longshore.adapters.sqlite.write_lock import WriteLock
from longshore.core.events.event import Event
from longshore.core.tasks.states import TaskState
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.settings import Settings, load_settings
from longshore.wiring.services import Services, open_services
from tests.acceptance.conftest import wait_until
from tests.acceptance.history_checks import read_checked_history, starts
from tests.interfaces.command_line import TIMEOUT_S, Cli, is_alive, send_signal

RUNNING = 20
QUICK = 8  # of them end while the worker drains
# Says that it begins, then waits for the one line that lets one attempt through.
_WORK = 'echo "$$" >> "$1.begun"; read line < "$1.gate"; echo "$LONGSHORE_ATTEMPT" >> "$1.ended"'
_IGNORES_SIGTERM = f"trap '' TERM; {_WORK}"


@dataclass
class Work:
    """Tasks that begin, wait at a gate, and note how far they came."""

    folder: Path
    keys: list[str] = field(default_factory=list)
    _gates: list[int] = field(default_factory=list)

    def document(self, count: int, *, script: str = _WORK) -> dict[str, Any]:
        self.keys = [f"t{number}" for number in range(count)]
        for key in self.keys:
            os.mkfifo(self.folder / f"{key}.gate")
        return {
            "tasks": [
                {
                    "taskId": key,
                    "name": "command",
                    "input": {"argv": ["sh", "-c", script, "sh", str(self.folder / key)]},
                    "maxAttempts": 1,  # a release must not use it up
                }
                for key in self.keys
            ]
        }

    def let_through(self, *keys: str) -> None:
        """One attempt of each, now or whenever it comes to the gate."""
        for key in keys:
            # Open both ways and left open: the line waits for its reader.
            gate = os.open(self.folder / f"{key}.gate", os.O_RDWR)
            self._gates.append(gate)
            os.write(gate, b"go\n")

    def close(self) -> None:
        while self._gates:
            os.close(self._gates.pop())

    def begun(self, key: str) -> list[int]:
        """Process ids, one for each attempt that began."""
        return [int(line) for line in self._lines(f"{key}.begun")]

    def ended(self, key: str) -> list[str]:
        """Numbers of the attempts that came to their end."""
        return self._lines(f"{key}.ended")

    def all_begun(self, times: int, *keys: str) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return all(len(self.begun(key)) >= times for key in keys)

        return look

    def _lines(self, name: str) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.folder / name).read_text().splitlines()
        return []


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    folder = tmp_path / "marks"
    folder.mkdir()
    work = Work(folder)
    yield work
    work.close()


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def settings(cli: Cli) -> Settings:
    return load_settings({"data_dir": cli.folder / ".longshore"}, environ={})


@contextmanager
def start_worker(cli: Cli, *, grace: str, concurrency: int = RUNNING) -> Iterator[subprocess.Popen]:
    """A worker that is ready, as a user starts it; killed at the end if it is still there."""
    (cli.folder / "longshore.toml").write_text(f'[worker]\ndrain_grace = "{grace}"\n')
    with cli.start("worker", "--concurrency", str(concurrency)) as process:
        try:
            assert process.stdout.readline().startswith("worker ")
            yield process
        finally:
            process.kill()


def wait_for_words(process: subprocess.Popen, words: str) -> None:
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"it ended without saying {words!r}")


async def wait_until_all_end(services: Services, job_id: str) -> None:
    async def look() -> bool:
        job = await services.backend.ledger.get_job(job_id)
        return job is not None and job.state.terminal

    await wait_until(look)


def event_types(history: list[Event]) -> list[str]:
    return [event.type for event in history if event.type != "Task Heartbeat"]


ONE_ATTEMPT = ["Task Pending", "Task Processing Started", "Task Completed"]
RELEASED = ["Task Pending", "Task Processing Started", "Task Released"]


def test_a_signal_during_twenty_tasks_lets_them_finish_and_none_begins_any_more(
    cli: Cli, settings: Settings, work: Work
) -> None:
    async def scenario() -> None:
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", work.document(RUNNING + 5))
            running, waiting = work.keys[:RUNNING], work.keys[RUNNING:]
            with start_worker(cli, grace="1h") as worker:
                await wait_until(work.all_begun(1, *running))
                send_signal(worker, signal.SIGTERM)
                wait_for_words(worker, f"for {RUNNING} running tasks")
                work.let_through(*work.keys)
                assert worker.wait(TIMEOUT_S) == 0
            assert [key for key in waiting if work.begun(key)] == []

            with start_worker(cli, grace="1h"):
                await wait_until_all_end(services, accepted.job.id)

            for key in work.keys:
                _, history = await read_checked_history(
                    services.backend, f"{accepted.job.id}_{key}"
                )
                assert event_types(history) == ONE_ATTEMPT
                assert len(work.begun(key)) == 1
                assert work.ended(key) == ["1"]

    asyncio.run(scenario())


def test_what_does_not_finish_in_the_grace_period_is_started_by_another_worker(
    cli: Cli, settings: Settings, work: Work
) -> None:
    async def scenario() -> None:
        async with open_services(settings) as services:
            accepted = await services.producer.submit("default", "r", work.document(RUNNING))
            quick, slow = work.keys[:QUICK], work.keys[QUICK:]
            with start_worker(cli, grace="6s") as first:
                await wait_until(work.all_begun(1, *work.keys))
                with start_worker(cli, grace="1h"):
                    send_signal(first, signal.SIGTERM)
                    wait_for_words(first, f"for {RUNNING} running tasks")
                    work.let_through(*quick)
                    await wait_until(work.all_begun(2, *slow))
                    assert first.wait(TIMEOUT_S) == 0
                    work.let_through(*slow)
                    await wait_until_all_end(services, accepted.job.id)

            for key in quick:
                _, history = await read_checked_history(
                    services.backend, f"{accepted.job.id}_{key}"
                )
                assert event_types(history) == ONE_ATTEMPT
                assert (len(work.begun(key)), work.ended(key)) == (1, ["1"])
            delays = []
            for key in slow:
                row, history = await read_checked_history(
                    services.backend, f"{accepted.job.id}_{key}"
                )
                assert event_types(history) == [
                    *RELEASED,
                    "Task Processing Started",
                    "Task Completed",
                ]
                assert (len(work.begun(key)), work.ended(key)) == (2, ["2"])
                assert row.attempts_used == 0
                item, two = (event.body for event in starts(history))
                (released,) = (event for event in history if event.type == "Task Released")
                assert item.process_id == first.pid != two.process_id
                delays.append((two.started_at - released.at).total_seconds())
            print(f"started elsewhere after {median(delays):.3f} s, {max(delays):.3f} s at most")  # noqa: T201 - figures

    asyncio.run(scenario())


def test_a_second_signal_ends_the_worker_and_its_tasks_without_waiting_for_the_grace(
    cli: Cli, settings: Settings, work: Work
) -> None:
    async def scenario() -> None:
        async with open_services(settings) as services:
            document = work.document(RUNNING, script=_IGNORES_SIGTERM)
            accepted = await services.producer.submit("default", "r", document)
            with start_worker(cli, grace="1h") as worker:
                await wait_until(work.all_begun(1, *work.keys))
                send_signal(worker, signal.SIGTERM)
                wait_for_words(worker, f"for {RUNNING} running tasks")
                send_signal(worker, signal.SIGTERM)
                assert worker.wait(TIMEOUT_S) == 128 + signal.SIGTERM

            for key in work.keys:
                (child,) = work.begun(key)
                assert not is_alive(child)
                row, history = await read_checked_history(
                    services.backend, f"{accepted.job.id}_{key}"
                )
                assert event_types(history) == RELEASED
                assert (row.state, row.attempts_used) == (TaskState.PENDING, 0)

            work.let_through(*work.keys)
            with start_worker(cli, grace="1h"):
                await wait_until_all_end(services, accepted.job.id)
            assert [work.ended(key) for key in work.keys] == [["2"]] * RUNNING

    asyncio.run(scenario())


_SHORT = """
[worker]
drain_grace = "0s"
kill_grace = "0s"
skew_margin = "0s"
renew_every = "200ms"
extend_by = "1s"
"""


@pytest.mark.parametrize("command", ["worker", "run"])
def test_a_stop_that_can_store_nothing_ends_at_its_last_deadline(cli: Cli, command: str) -> None:
    (cli.folder / "longshore.toml").write_text(_SHORT)
    begun = cli.make_fifo("begun")
    argv = ["sh", "-c", 'echo > "$0"; exec sleep 99', str(begun)]
    if command == "worker":
        job = {"tasks": [{"taskId": "a", "name": "command", "input": {"argv": argv}}]}
        (cli.folder / "job.json").write_text(json.dumps(job))
        assert cli("submit", "job.json").code == 0
    with cli.start(command, *(["--", *argv] if command == "run" else [])) as process:
        begun.read_text()
        # As of a process that hangs while it commits.
        with closing(WriteLock(cli.folder / ".longshore")) as lock, lock:
            send_signal(process, signal.SIGTERM)

            assert process.wait(TIMEOUT_S) == ExitCode.STOP_OVERDUE
        assert "longshore: not stopped after" in process.stderr.read()


def test_a_worker_whose_data_folder_was_removed_ends_and_says_so(cli: Cli) -> None:
    with start_worker(cli, grace="1h") as worker:
        shutil.rmtree(cli.folder / ".longshore")

        assert worker.wait(TIMEOUT_S) == ExitCode.BACKEND
        assert "was removed or replaced; ending this process" in worker.stderr.read()
