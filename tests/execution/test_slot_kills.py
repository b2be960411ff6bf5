"""If a process is killed or stopped, nothing of an attempt survives and no task is lost."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.definitions.definition import Isolation
from longshore.core.tasks.failures import ErrorCategory
from longshore.errors import BackendUnavailable, UsageError
from longshore.execution.host.forkserver_client import ForkServerClient
from longshore.execution.process_table import descendants
from longshore.execution.slot_page import begun_tasks, clock_ns, read_boot_id
from longshore.ports.child_slots import ChildEndCause
from longshore.ports.output import Stream
from longshore.ports.runner import RunnerBroken
from longshore.testing.contracts.child_slots import BOTH
from tests.execution.conftest import scenario, wait_until
from tests.execution.process_tree import reaper_of_slot
from tests.execution.slots import Harness, a_task, harness
from tests.interfaces.command_line import is_alive
from verification.crash.failpoint_ports import SLOT_FAILPOINTS

ROOT = Path(__file__).parents[2]
GRACE = timedelta(milliseconds=100)
LONG = timedelta(minutes=5)


async def _begin(here: Harness, slot: int, name: str, isolation: Isolation) -> None:
    """Begin a task that waits; in a pool give two more."""
    await here.give_and_wait(slot, a_task(name, isolation=isolation))
    if isolation is Isolation.POOL:
        for number in (2, 3):
            assert here.slots.give(slot, a_task("echo", number=number))


def _behind(isolation: Isolation) -> list[int]:
    return [2, 3] if isolation is Isolation.POOL else []


async def _process(here: Harness, slot: int, which: str) -> int:
    process_id = {
        "child": here.slots.process_id(slot),
        "reaper": await reaper_of_slot(here.slots, slot),
        "fork server": here.forkserver.process_id,
    }[which]
    assert process_id
    return process_id


@pytest.mark.parametrize("which", ["child", "reaper", "fork server"])
@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_nothing_survives_the_kill_of_a_process(
    tmp_path: Path, isolation: Isolation, which: str
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        await _begin(here, slot, "hides_a_process_and_waits", isolation)
        hidden, child = int(here.recorder.text(1)), here.slots.process_id(slot)
        assert is_alive(hidden)

        os.kill(await _process(here, slot, which), signal.SIGKILL)
        await here.recorder.until(lambda: here.recorder.endings)

        assert not is_alive(hidden)
        assert not is_alive(child)
        (ending,) = here.recorder.endings
        lost = which != "child"
        assert ending.cause is (ChildEndCause.LOST if lost else ChildEndCause.CRASHED)
        assert (ending.begun, sorted(ending.not_begun)) == (1, _behind(isolation))
        assert ending.slot_closed is lost
        assert ending.failure is not None
        assert ending.failure.category is ErrorCategory.CRASH
        assert ending.failure.retryable
        again = await here.open(isolation) if lost else slot
        await here.run(again, a_task("echo", 9, number=9, isolation=isolation))


@pytest.mark.parametrize("which", ["child", "reaper", "fork server"])
@scenario
async def test_the_files_of_a_task_outlive_its_reaper(tmp_path: Path, which: str) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(Isolation.FORK)
        assert here.slots.give(slot, a_task("writes_and_waits", isolation=Isolation.FORK))
        await here.recorder.until(lambda: "ready" in here.recorder.text(1))

        os.kill(await _process(here, slot, which), signal.SIGKILL)
        await here.recorder.until(lambda: here.recorder.endings)

        (ending,) = here.recorder.endings
        assert ending.folder is not None
        assert (ending.folder / "note").read_text() == "content"


@pytest.mark.parametrize("which", ["child", "reaper", "fork server"])
@scenario
async def test_every_task_is_accounted_for_once_whenever_a_process_is_killed(
    tmp_path: Path, which: str
) -> None:
    chance = random.Random(which)
    async with harness(tmp_path) as here:
        slot, total = await here.open(), 0
        for _ in range(12):
            ended = len(here.recorder.endings)
            finished = len(here.recorder.outcomes) + chance.randrange(40)
            for _ in range(50):
                total += here.slots.give(slot, a_task("echo", total, number=total + 1))
            await here.recorder.until(
                lambda finished=finished: len(here.recorder.outcomes) >= finished
            )
            await wait_until(lambda slot=slot: here.slots.process_id(slot))
            os.kill(await _process(here, slot, which), signal.SIGKILL)
            await here.recorder.until(lambda ended=ended: len(here.recorder.endings) > ended)
            if which != "child":
                slot = await here.open()
        await here.recorder.until(lambda: len(here.recorder.accounted) == total)

        begun = begun_tasks(here.page_path.read_bytes(), read_boot_id())
        assert begun is not None
        lost = {(item.begun, 7) for item in here.recorder.endings if item.begun is not None}
        assert lost <= begun
        not_begun = {number for item in here.recorder.endings for number in item.not_begun}
        assert not not_begun & {number for number, _ in begun}


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_task_can_see_that_it_is_cancelled(tmp_path: Path, isolation: Isolation) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        await _begin(here, slot, "stops_when_asked", isolation)

        here.slots.kill(slot, grace=LONG)
        await here.recorder.until(lambda: here.recorder.outcomes)

        assert here.recorder.result(1) == "False True"
        if isolation is Isolation.POOL:
            await here.recorder.until(lambda: here.recorder.endings)
            (ending,) = here.recorder.endings
            assert (ending.cause, ending.begun) == (ChildEndCause.KILLED, None)
        await here.run(slot, a_task("echo", number=4, isolation=isolation))


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_task_is_killed_when_its_lease_is_no_longer_trusted(
    tmp_path: Path, isolation: Isolation
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        await _begin(here, slot, "hides_a_process_and_waits", isolation)
        hidden = int(here.recorder.text(1))

        here.slots.trust_until(slot, clock_ns() + 50_000_000)
        await here.recorder.until(lambda: here.recorder.endings)

        assert not is_alive(hidden)
        (ending,) = here.recorder.endings
        assert (ending.cause, ending.begun) == (ChildEndCause.DEADLINE, 1)
        assert sorted(ending.not_begun) == _behind(isolation)
        assert ending.failure is not None
        assert "lease" in ending.failure.message


@pytest.mark.parametrize(
    "name",
    [
        "writes_garbage text",
        "writes_garbage length",
        "writes_garbage content",
        "writes_garbage size",
        "forges",
    ],
)
@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_child_that_sends_garbage_is_killed_and_replaced(
    tmp_path: Path, isolation: Isolation, name: str
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        function, _, kind = name.partition(" ")
        task = (
            a_task("forges_an_outcome", 2, 7, isolation=isolation)
            if function == "forges"
            else a_task(function, kind, isolation=isolation)
        )
        assert here.slots.give(slot, task)
        if isolation is Isolation.POOL:
            assert here.slots.give(slot, a_task("echo", number=2))
        await here.recorder.until(lambda: here.recorder.endings or here.recorder.reports)

        assert here.recorder.reports == []
        (ending,) = here.recorder.endings
        assert (ending.cause, ending.begun) == (ChildEndCause.INVALID_REPORT, 1)
        assert list(ending.not_begun) == _behind(isolation)[:1]
        assert here.recorder.outcomes == {}
        await here.run(slot, a_task("echo", number=3, isolation=isolation))


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_child_with_too_many_processes_is_ended(
    tmp_path: Path, isolation: Isolation
) -> None:
    async with harness(tmp_path, max_processes=50) as here:
        slot = await here.open(isolation)
        function = {
            "function": "tests.execution.misbehaving_functions:fork_bomb",
            "kwargs": {"detached": True},
        }
        bomb = a_task("fork_bomb", 200, isolation=isolation, options=function)
        assert here.slots.give(slot, bomb)
        await wait_until(lambda: here.recorder.endings)

        ending = here.recorder.endings[0]
        assert (ending.cause, ending.begun) == (ChildEndCause.PROCESSES, 1)
        assert ending.failure is not None
        assert ending.failure.category is ErrorCategory.PROGRAMMING
        assert "more than 50 processes" in ending.failure.message
        assert len(descendants(await reaper_of_slot(here.slots, slot))) == 1
        outcome = await here.run(slot, a_task("echo", "next", number=2, isolation=isolation))
        assert outcome.result == '"next"'


@pytest.mark.parametrize(
    ("function", "args", "signal_name", "exit_code"),
    [
        ("exits", [5], None, 5),
        ("exits", [0], None, 0),
        ("kills_its_process", [], "SIGKILL", None),
        ("closes_its_files", [], None, os.EX_SOFTWARE),
    ],
)
@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_child_that_ends_without_an_outcome_has_crashed(
    tmp_path: Path,
    isolation: Isolation,
    function: str,
    args: list[int],
    signal_name: str | None,
    exit_code: int | None,
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        assert here.slots.give(slot, a_task(function, *args, isolation=isolation))
        await here.recorder.until(lambda: here.recorder.endings)

        (ending,) = here.recorder.endings
        assert (ending.cause, ending.begun) == (ChildEndCause.CRASHED, 1)
        assert ending.failure is not None
        assert (ending.signal, ending.failure.exit_code) == (signal_name, exit_code)
        assert ending.failure.category is ErrorCategory.CRASH
        assert ending.folder is None
        await here.run(slot, a_task("echo", number=2, isolation=isolation))


@scenario
async def test_a_fork_that_ends_otherwise_than_it_reported_has_crashed(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(Isolation.FORK)
        task = a_task("exits_badly_after_its_result", isolation=Isolation.FORK)
        assert here.slots.give(slot, task)
        await here.recorder.until(lambda: here.recorder.endings)

        failure = here.recorder.endings[0].failure
        assert failure is not None
        assert failure.exit_code == 3
        assert here.recorder.outcomes == {}


@scenario
async def test_output_before_a_crash_is_complete(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        here.slots.pause_output(slot)
        assert here.slots.give(slot, a_task("writes_zeros", 60_000))
        assert here.slots.give(slot, a_task("kills_its_process", number=2))
        await here.recorder.until(lambda: here.recorder.endings)

        assert here.recorder.outputs[1, Stream.STDOUT] == b"\0" * 60_000
        assert list(here.recorder.outcomes) == [1]
        assert here.recorder.endings[0].begun == 2


@scenario
async def test_modules_that_cannot_be_loaded_are_reported(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        here.slots.forkserver = ForkServerClient({}, modules=["no_such_module"])
        with pytest.raises(UsageError, match="no_such_module"):
            await here.slots.open_slot(Isolation.POOL)
        here.slots.forkserver = here.forkserver
        slot = await here.open()
        await here.run(slot, a_task("echo"))


@scenario
async def test_a_fork_server_that_ends_while_it_loads_is_started_three_times(
    tmp_path: Path,
) -> None:
    module = tmp_path / "ends_at_import.py"
    module.write_text("import os\nos._exit(3)\n")
    client = ForkServerClient({"PYTHONPATH": str(tmp_path)}, modules=["ends_at_import"])
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match=r"loaded ends_at_import: exit code 3$"):
            await client.open()
    module.write_text("")
    await client.open()  # and those before count no more
    await client.close()
    module.write_text("import os\nos.kill(os.getpid(), 9)\n")
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match=r"ends_at_import: signal 9$"):
            await client.open()
    with pytest.raises(RunnerBroken, match=r"ends_at_import: signal 9, 3 times in a row$"):
        await client.open()
    await client.close()


@contextmanager
def _worker(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.execution.slot_worker", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def _read_until(process: subprocess.Popen[str], word: str) -> dict[str, str]:
    """The lines of the worker up to the one that begins with the word."""
    lines: dict[str, str] = {}
    assert process.stdout is not None
    for line in process.stdout:
        name, _, rest = line.strip().partition(" ")
        lines[name] = rest
        if name == word:
            return lines
    raise AssertionError(lines)


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_stopped_worker_does_not_keep_its_child_alive(
    tmp_path: Path, isolation: Isolation
) -> None:
    arguments = (str(tmp_path), isolation.value, "hides_a_process_and_waits", "3000")
    with _worker(*arguments) as process:
        lines = _read_until(process, "output")
        hidden, reaper = int(lines["output"]), int(lines["reaper"])
        os.kill(process.pid, signal.SIGSTOP)
        assert is_alive(hidden)

        await wait_until(lambda: not is_alive(hidden))
        # The worker is still stopped, and the next child waits.
        await wait_until(lambda: len(descendants(reaper)) == 1)
        os.kill(process.pid, signal.SIGCONT)
        behind = "[2]" if isolation is Isolation.POOL else "[]"
        assert _read_until(process, "ended")["ended"] == f"deadline 1 {behind}"


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_nothing_survives_a_killed_worker_but_the_record_of_what_was_begun(
    tmp_path: Path, isolation: Isolation
) -> None:
    arguments = (str(tmp_path), isolation.value, "hides_a_process_and_waits", "600000")
    with _worker(*arguments) as process:
        lines = _read_until(process, "output")
        processes = [int(lines[name]) for name in ("output", "reaper", "forkserver")]
        below = descendants(int(lines["forkserver"])).keys()
        assert set(processes[:2]) <= below

        os.kill(process.pid, signal.SIGKILL)
        await wait_until(lambda: not any(map(is_alive, {*below, *processes})))

    content = (tmp_path / "w1.begun").read_bytes()
    assert begun_tasks(content, read_boot_id()) == {(1, 7)}


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_reaper_imports_nothing_that_a_task_has_left(
    tmp_path: Path, isolation: Isolation
) -> None:
    arguments = (str(tmp_path), isolation.value, "leaves_a_module_and_waits", "600000")
    with _worker(*arguments) as process:
        _read_until(process, "output")
        os.kill(process.pid, signal.SIGKILL)
    imported = tmp_path / "work" / "imported"
    await wait_until(lambda: not list(imported.parent.glob("slot-*")) or imported.exists())
    assert not imported.exists()


@pytest.mark.parametrize("failpoint", SLOT_FAILPOINTS)
@scenario
async def test_nothing_survives_a_worker_that_is_killed_at_a_failpoint(
    tmp_path: Path, failpoint: str
) -> None:
    isolation = random.Random(failpoint).choice(BOTH)
    with _worker(str(tmp_path), isolation.value, "", "0", failpoint) as process:
        assert process.stdout is not None
        output, _ = process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL, output
    hidden = [int(line.split()[1]) for line in output.splitlines() if line.startswith("output")]
    await wait_until(lambda: not any(map(is_alive, hidden)))
    marker = f"slot-{process.pid}-"

    def working_in_slot() -> bool:
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdigit() and marker in os.readlink(f"/proc/{entry}/cwd"):
                    return True
        return False

    await wait_until(lambda: not working_in_slot())
    if (tmp_path / "work").exists():
        await wait_until(lambda: not list((tmp_path / "work").glob("slot-*")))
