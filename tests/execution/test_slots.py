"""Children of slots: what a task sees, what it sends, and how it ends."""

import asyncio
import json
import os
import shutil
import socket
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.core.definitions.definition import Isolation
from longshore.core.ids import traceparent_of
from longshore.core.tasks.failures import ErrorCategory
from longshore.errors import BackendUnavailable, UsageError
from longshore.execution.host import slots
from longshore.execution.host.report_decoder import parse_long_message
from longshore.execution.slot_page import begun_tasks, clock_ns, read_boot_id
from longshore.ports.child_slots import ChildEndCause
from longshore.ports.output import Stream
from longshore.ports.runner import StepReport, SummaryReport
from longshore.testing.contracts.child_slots import BOTH, ONE_HOUR_NS
from tests.execution.conftest import scenario, wait_until
from tests.execution.process_tree import reaper_of_slot
from tests.execution.slots import DEFINITIONS, ENVIRONMENT, ROOT, Harness, a_task, harness
from tests.interfaces.command_line import is_alive

NO_GRACE = timedelta(0)


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_task_has_its_result_as_json(tmp_path: Path, isolation: Isolation) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        for number, value in enumerate([None, 3, "ü", {"a": [1.5]}, 2**80], start=1):
            outcome = await here.run(
                slot, a_task("echo", value, number=number, isolation=isolation)
            )

            assert here.recorder.result(number) == value
            assert outcome.duration_ns > 0


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_task_whose_input_sets_what_the_definition_does_not_allow_is_not_executed(
    tmp_path: Path, isolation: Isolation
) -> None:
    definition = replace(DEFINITIONS[isolation], overridable=("env.A",))
    task = replace(a_task("echo", 1, isolation=isolation), definition=definition)
    async with harness(tmp_path) as here:
        outcome = await here.run(await here.open(isolation), task)

    assert outcome.failure is not None
    assert outcome.failure.category is ErrorCategory.VALIDATION
    assert "the input sets 'function', which the definition" in outcome.failure.message


@scenario
async def test_tasks_of_a_pool_begin_in_the_order_in_which_they_are_given(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        for number in range(1, 101):
            assert here.slots.give(slot, a_task("process_id", number=number))
        await here.recorder.until(lambda: len(here.recorder.outcomes) == 100)

        assert here.recorder.sequence == list(range(1, 101))
        processes = {here.recorder.result(number) for number in range(1, 101)}
        assert processes == {here.slots.process_id(slot)}


@scenario
async def test_each_task_of_a_fork_has_its_own_process(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(Isolation.FORK)
        processes = []
        for number in range(1, 6):
            task = a_task("process_id", number=number, isolation=Isolation.FORK)
            outcome = await here.run(slot, task)
            processes.append(here.recorder.result(number))

            assert not is_alive(processes[-1])
            assert outcome.peak_rss_bytes
            assert here.recorder.endings == []

        assert len(set(processes)) == 5


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_every_byte_of_output_belongs_to_its_task(
    tmp_path: Path, isolation: Isolation
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        for number in range(1, 11):
            task = a_task("prints", f"of {number}", number=number, isolation=isolation)
            if not here.slots.give(slot, task):
                await here.recorder.until(
                    lambda number=number: number - 1 in here.recorder.outcomes
                )
                assert here.slots.give(slot, task)
        await here.recorder.until(lambda: len(here.recorder.outcomes) == 10)

        for number in range(1, 11):
            kinds = ("python", "raw", "command")
            lines = "".join(f"{kind} of {number}\n" for kind in kinds)
            assert here.recorder.text(number) == f"{lines}unflushed of {number}"
            assert here.recorder.text(number, Stream.STDERR) == f"errors of {number}\n"


@scenario
async def test_output_that_begins_like_a_boundary_is_output(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        for number, count in enumerate((1, 15, 16, 30_000), start=1):
            await here.run(slot, a_task("writes_zeros", count, number=number))
            assert here.recorder.outputs[number, Stream.STDOUT] == b"\0" * count


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_an_error_has_its_category_and_traceback(
    tmp_path: Path, isolation: Isolation
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        outcome = await here.run(slot, a_task("raises", "hung up", isolation=isolation))

        assert outcome.failure is not None
        assert outcome.failure.category is ErrorCategory.NETWORK
        assert outcome.failure.message == "hung up"
        assert "ConnectionResetError: hung up" in here.recorder.text(1, Stream.STDERR)


@pytest.mark.parametrize(
    ("task_input", "message"),
    [
        ("[]", "the input must be an object"),
        ("{}", "a python task needs 'function'"),
        ('{"function":"a:b","env":{"A":1}}', "'env' must be an object"),
        ('{"function":"tests.execution.slot_functions:missing"}', "missing"),
    ],
)
@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_settings_that_cannot_be_executed_are_a_failure(
    tmp_path: Path, isolation: Isolation, task_input: str, message: str
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        outcome = await here.run(slot, a_task("", input=task_input, isolation=isolation))

        assert outcome.failure is not None
        assert message in outcome.failure.message
        assert not outcome.failure.retryable


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_result_that_is_not_json_is_a_failure(tmp_path: Path, isolation: Isolation) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        options = {"function": "builtins:set"}
        outcome = await here.run(slot, a_task("", options=options, isolation=isolation))

        assert outcome.failure is not None
        assert "the result cannot be stored as JSON" in outcome.failure.message


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_task_gets_all_that_is_known_about_it(tmp_path: Path, isolation: Isolation) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        task = a_task(
            "context_of_task",
            attempt=3,
            dependency_outputs='{"a":1}',
            feedback="again",
            previous_output="[2]",
            isolation=isolation,
        )
        await here.run(slot, task)

        expected = ["job-a_1", "job-a", 3, {"a": 1}, "again", [2]]
        assert here.recorder.result(1) == expected


@pytest.mark.parametrize("isolation", BOTH)
@pytest.mark.parametrize("size", [60_000, 70_000, 5_000_000])
@scenario
async def test_a_large_input_arrives_and_its_file_is_removed(
    tmp_path: Path, isolation: Isolation, size: int
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        for number in (1, 2):
            await here.run(slot, a_task("echo", "x" * size, number=number, isolation=isolation))
            assert here.recorder.result(number) == "x" * size

        assert list(tmp_path.glob("work/*.task")) == []


@scenario
async def test_a_long_step_is_parsed_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()

    def parse(line: bytes) -> Any:
        threads.add(threading.current_thread())
        return parse_long_message(line)

    monkeypatch.setattr(slots, "parse_long_message", parse)
    async with harness(tmp_path) as here:
        await here.run(await here.open(), a_task("long_step", 300_000))

        assert here.recorder.result(1) == 300_000
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_step_is_stored_before_the_task_continues(
    tmp_path: Path, isolation: Isolation
) -> None:
    async with harness(tmp_path) as here:
        here.recorder.confirm = False
        slot = await here.open(isolation)
        task = a_task("steps", "one", "two", checkpoints='{"two":"stored"}', isolation=isolation)
        assert here.slots.give(slot, task)
        if isolation is Isolation.POOL:
            # A reply does not wait behind tasks.
            assert here.slots.give(slot, a_task("echo", number=2))
        is_step = (1, StepReport("one", "ONE"))
        await here.recorder.until(lambda: is_step in here.recorder.reports)
        assert here.recorder.outcomes == {}
        here.slots.confirm_step(slot, 99, "one")  # of another task
        here.slots.confirm_step(slot, 1, "one")
        await here.recorder.until(lambda: 1 in here.recorder.outcomes)

        assert here.recorder.result(1) == ["ONE", "stored"]


@scenario
async def test_a_pool_creates_a_folder_only_if_the_task_uses_it(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        without = await here.run(slot, a_task("folder_and_cwd", False))
        used = await here.run(slot, a_task("folder_and_cwd", True, number=2))
        await here.run(slot, a_task("summarises", number=3))
        await here.run(slot, a_task("stores", "content", number=4))

        assert without.folder is None
        folder = tmp_path / "work" / "job-a_2.1"
        assert used.folder == folder
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "note").read_text() == "content"
        summary = here.recorder.outcomes[3].folder
        assert summary is not None
        assert (summary / "logs" / "summary.log").read_text() == "one line\n"
        assert (3, SummaryReport("one line")) in here.recorder.reports
        artifacts = here.recorder.outcomes[4].folder
        assert artifacts is not None
        assert (artifacts / "artifacts" / "file").read_text() == "content"
        # The working directory is one folder of the child.
        directories = {tuple(here.recorder.result(number)) for number in (1, 2)}
        ((directory, variable),) = directories
        assert directory == variable != str(folder)
        here.slots.release_folder(folder)
        await wait_until(lambda: not folder.exists())
    await wait_until(lambda: not Path(directory).exists())


@scenario
async def test_each_task_of_a_fork_works_in_its_own_folder(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(Isolation.FORK)
        task = a_task("folder_and_cwd", True, isolation=Isolation.FORK)
        outcome = await here.run(slot, task)

        folder = tmp_path / "work" / "job-a_1.1"
        assert outcome.folder == folder
        assert (folder / "note").read_text() == "content"
        assert folder.stat().st_mode & 0o777 == 0o700
        directory, variable = here.recorder.result(1)
        assert directory == variable
        await here.run(slot, a_task("surroundings", number=2, isolation=Isolation.FORK))
        assert here.recorder.result(2)[:2] == [None, "job-a_2"]


@pytest.mark.parametrize("change", ["write", "remove", "protect"])
@scenario
async def test_each_task_of_a_fork_begins_in_an_empty_folder(tmp_path: Path, change: str) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(Isolation.FORK)
        options = {"isolation": Isolation.FORK}
        changing = await here.run(slot, a_task("changes_its_folder", change, **options))
        for number in (2, 3):
            task = a_task("changes_its_folder", "", number=number, **options)
            outcome = await here.run(slot, task)
            assert (here.recorder.result(number), outcome.folder) == ([], None)
        await here.run(slot, a_task("changes_its_folder", "write", number=4, **options))
        await here.run(slot, a_task("folder_and_cwd", False, number=5, **options))

        assert here.recorder.result(4) == []
        assert (changing.folder is None) is (change == "remove")
        work = Path(here.recorder.result(5)[0])
        assert work.stat().st_mode & 0o777 == 0o700
    await wait_until(lambda: not work.exists())


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_fork_of_a_task_knows_that_its_threads_are_gone(
    tmp_path: Path, isolation: Isolation
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        await here.run(slot, a_task("threads_in_a_fork", isolation=isolation))

        assert here.recorder.result(1) == [2, 1]


@scenario
async def test_a_task_of_a_pool_finds_the_process_as_the_one_before_did(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        for number, options in ((1, {"env": {"LEFT": "0", "PATH": "/"}}), (4, {})):
            task = a_task("changes_its_surroundings", number=number, options=options)
            await here.run(slot, task)
            await here.run(slot, a_task("surroundings", number=number + 1))
            await here.run(slot, a_task("folder_and_cwd", False, number=number + 2))

            assert here.recorder.result(number + 1) == [None, None, ENVIRONMENT["PATH"]]
            assert here.recorder.text(number + 1) == "seen"
            directory, variable = here.recorder.result(number + 2)
            assert directory == variable
        assert here.recorder.endings == []


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_task_has_only_its_slots_files_open(tmp_path: Path, isolation: Isolation) -> None:
    async with harness(tmp_path) as here:
        await here.open(Isolation.POOL)
        slot = await here.open(isolation)
        await here.run(slot, a_task("open_files", isolation=isolation))

        files = here.recorder.result(1)
        pipes = [name for name in files if name.startswith("pipe:")]
        sockets = [name for name in files if name.startswith("socket:")]
        others = {name for name in files if not name.startswith(("pipe:", "socket:"))}
        assert len(set(pipes)) == 3
        assert len(sockets) == (2 if isolation is Isolation.POOL else 1)
        folders = {name for name in others if f"/slot-{os.getpid()}-" in name}
        assert others - folders <= {os.devnull, str(here.page_path)}
        assert len(folders) == (1 if isolation is Isolation.POOL else 0)


@scenario
async def test_what_was_not_begun_is_taken_back_under_load(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        # A fixed number, as a child that is faster than this process leaves nothing to take back.
        rounds, size, back = 20, 50, []
        for first in range(1, rounds * size, size):
            for number in range(first, first + size):
                assert here.slots.give(slot, a_task("echo", number, number=number))
            back += here.slots.take_back(slot)
            await asyncio.sleep(0)
        await here.recorder.until(lambda: len(here.recorder.outcomes) + len(back) == rounds * size)

        assert not set(back) & set(here.recorder.outcomes)
        assert all(here.recorder.result(number) == number for number in here.recorder.outcomes)
        assert here.recorder.sequence == sorted(here.recorder.sequence)


@scenario
async def test_a_task_after_one_that_was_taken_back_has_its_definition(
    tmp_path: Path,
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        await here.give_and_wait(slot, a_task("waits_for", str(tmp_path / "end")))
        other = replace(DEFINITIONS[Isolation.POOL], name="other")
        assert here.slots.give(slot, a_task("echo", 2, number=2, definition=other))
        assert here.slots.take_back(slot) == [2]
        (tmp_path / "end").touch()
        await here.run(slot, a_task("echo", 3, number=3, definition=other))

        assert here.recorder.result(3) == 3


class _ChildBetweenTwoReads:
    """The child's end of the socket: the child takes what a worker has not read at once."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.reads = 0

    def recv(self, *arguments: int) -> bytes:
        self.reads += 1
        if self.reads > 1:
            raise BlockingIOError
        return self._end.recv(*arguments)


@scenario
async def test_a_child_that_takes_a_task_while_the_one_before_is_taken_back_has_its_definition(
    tmp_path: Path,
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        await here.give_and_wait(slot, a_task("waits_for", str(tmp_path / "end")))
        options = {"path": [ROOT], "function": "builtins:str"}
        other = replace(DEFINITIONS[Isolation.POOL], name="other", options=options)
        for number in (2, 3):
            task_input = json.dumps({"args": [number]})
            task = a_task("", number=number, definition=other, input=task_input)
            assert here.slots.give(slot, task)
        reaper = here.slots._slots[slot].reaper
        end = reaper.tasks_end
        reaper.tasks_end = _ChildBetweenTwoReads(end)  # type: ignore[assignment]
        assert here.slots.take_back(slot) == [2]
        reaper.tasks_end = end
        (tmp_path / "end").touch()
        await here.recorder.until(lambda: 3 in here.recorder.accounted)

        assert here.recorder.result(3) == "3"


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_nothing_begins_before_the_lease_is_trusted(
    tmp_path: Path, isolation: Isolation
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation, trusted=False)
        assert here.slots.give(slot, a_task("echo", isolation=isolation))
        if isolation is Isolation.POOL:
            assert here.slots.give(slot, a_task("prints", "x", number=2))
        await here.recorder.until(lambda: 1 in here.recorder.accounted)
        await here.recorder.until(
            lambda: isolation is Isolation.FORK or 2 in here.recorder.accounted
        )
        assert here.recorder.late == [1, 2][: 1 + (isolation is Isolation.POOL)]
        here.slots.trust_until(slot, clock_ns() + ONE_HOUR_NS)
        await here.run(slot, a_task("prints", "three", number=3, isolation=isolation))

        assert here.recorder.text(2) == ""
        assert here.recorder.text(3).startswith("python three\n")
        begun = begun_tasks(here.page_path.read_bytes(), read_boot_id())
        assert begun == {(3, 7)}


@pytest.mark.parametrize("name", ["leaves_a_thread", "leaves_a_process"])
@scenario
async def test_a_child_of_a_pool_that_was_left_unclean_is_replaced(
    tmp_path: Path, name: str
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        await here.run(slot, a_task("process_id"))
        assert here.slots.give(slot, a_task(name, number=2))
        assert here.slots.give(slot, a_task("process_id", number=3))
        await here.recorder.until(lambda: 2 in here.recorder.outcomes)
        alive_at_outcome = is_alive(here.recorder.result(2))
        await here.recorder.until(lambda: here.recorder.endings or 3 in here.recorder.outcomes)

        assert not alive_at_outcome
        # Only an outcome that waits for the end of its child has the peak memory.
        assert here.recorder.outcomes[2].peak_rss_bytes
        (ending,) = here.recorder.endings
        assert ending.cause is ChildEndCause.RETIRED
        assert (ending.begun, ending.not_begun) == (None, (3,))
        assert not here.recorder.accounted - {1, 2, 3}
        await here.run(slot, a_task("process_id", number=4))
        assert here.recorder.result(4) != here.recorder.result(1)


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_fork_of_a_task_does_not_act_as_the_child(
    tmp_path: Path, isolation: Isolation, fail: bool
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        await here.run(slot, a_task("forks_and_both_return", fail, isolation=isolation))
        await here.run(slot, a_task("echo", 2, number=2, isolation=isolation))

        assert [here.recorder.result(number) for number in (1, 2)] == ["parent", 2]
        assert here.recorder.endings == []


@scenario
async def test_a_child_of_a_pool_that_has_grown_is_replaced(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        await here.run(slot, a_task("grows", 200))
        for number in range(2, 70):
            here.slots.give(slot, a_task("echo", number=number))
        await here.recorder.until(lambda: here.recorder.endings)

        (ending,) = here.recorder.endings
        assert (ending.cause, ending.begun) == (ChildEndCause.RETIRED, None)
        assert len(here.recorder.outcomes) == 64
        assert (ending.peak_rss_bytes or 0) > 200 * 2**20


async def _fill(here: Harness, slot: int) -> list[int]:
    """Give tasks until the slot takes no more. Returns their numbers."""
    numbers: list[int] = []
    while here.slots.give(slot, a_task("echo", "x" * 10_000, number=len(numbers) + 2)):
        numbers.append(len(numbers) + 2)
    return numbers


@scenario
async def test_a_full_queue_refuses_tasks_and_nothing_blocks(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        await here.give_and_wait(slot, a_task("waits_for", str(tmp_path / "end")))
        numbers = await _fill(here, slot)
        here.slots.replace(slot)
        (tmp_path / "end").touch()
        await here.recorder.until(lambda: here.recorder.endings)

        assert sorted(here.recorder.outcomes) == [1, *numbers]
        assert here.recorder.endings[0].cause is ChildEndCause.REPLACED


@scenario
async def test_a_replacement_is_not_lost_with_tasks_that_are_taken_back(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open()
        await here.give_and_wait(slot, a_task("waits_for", str(tmp_path / "end")))
        assert here.slots.give(slot, a_task("echo", number=2))
        here.slots.replace(slot)
        assert here.slots.take_back(slot) == [2]
        (tmp_path / "end").touch()
        await here.recorder.until(lambda: here.recorder.endings)

        assert here.recorder.endings[0].cause is ChildEndCause.REPLACED
        assert list(here.recorder.outcomes) == [1]


@scenario
async def test_output_waits_in_the_pipe_while_it_is_paused(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slot, other = await here.open(), await here.open()
        here.slots.pause_output(slot)
        assert here.slots.give(slot, a_task("writes_zeros", 1_000_000))
        await here.run(other, a_task("echo", number=2))
        assert here.recorder.outputs == {}
        here.slots.resume_output(slot)
        await here.recorder.until(lambda: 1 in here.recorder.outcomes)

        assert here.recorder.outputs[1, Stream.STDOUT] == b"\0" * 1_000_000


@scenario
async def test_slots_are_independent_and_their_number_is_used_again(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        slots = [await here.open(isolation) for isolation in (*BOTH, *BOTH)]
        for number, slot in enumerate(slots, start=1):
            isolation = BOTH[slot % 2]
            assert here.slots.give(slot, a_task("echo", number, number=number, isolation=isolation))
        await here.recorder.until(lambda: len(here.recorder.outcomes) == 4)

        assert slots == [0, 1, 2, 3]
        assert [here.recorder.result(number) for number in (1, 2, 3, 4)] == [1, 2, 3, 4]


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("isolation", "total"), [(Isolation.POOL, 1000), (Isolation.FORK, 60)])
@scenario
async def test_no_descriptor_is_left_open(tmp_path: Path, isolation: Isolation, total: int) -> None:
    async with harness(tmp_path) as here:
        await here.open(isolation)
        await here.run(0, a_task("open_files", isolation=isolation))
        before, in_child = _open_descriptors(), len(here.recorder.result(1))
        for number in range(2, total):
            await here.run(0, a_task("echo", number=number, isolation=isolation))
        for number in (total, total + 1):
            here.slots.kill(0, grace=NO_GRACE)
            await here.recorder.until(
                lambda number=number: len(here.recorder.endings) > number - total
            )
        await here.run(0, a_task("open_files", number=total + 2, isolation=isolation))

        assert _open_descriptors() == before
        assert len(here.recorder.result(total + 2)) == in_child
        reaper = await reaper_of_slot(here.slots, 0)
        in_reaper = len(os.listdir(f"/proc/{reaper}/fd"))
        assert in_reaper < in_child + 8
    assert _open_descriptors() < before


@scenario
async def test_closing_removes_the_page_file(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        await here.open()
        assert here.page_path.exists()
        assert here.page_path.stat().st_mode & 0o777 == 0o600
    assert not here.page_path.exists()


@scenario
async def test_a_slot_is_refused_where_there_is_no_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness(tmp_path) as here:
        client = "longshore.execution.host.forkserver_client.sys"
        monkeypatch.setattr(client, SimpleNamespace(platform="darwin"))
        with pytest.raises(UsageError, match="on Linux only"):
            await here.slots.open_slot(Isolation.POOL)


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_slot_without_a_folder_for_its_child_is_not_opened(
    tmp_path: Path, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness(tmp_path) as here:
        with monkeypatch.context() as patch:
            patch.setattr("longshore.execution.host.slots.secrets.token_hex", lambda _: "no/folder")
            with pytest.raises(BackendUnavailable, match=r"folder.*: No such file or directory"):
                await here.open(isolation)

        slot = await here.open(isolation)
        await here.run(slot, a_task("echo", 1, isolation=isolation))


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_a_slot_that_can_have_no_other_child_closes_and_returns_its_task(
    tmp_path: Path, isolation: Isolation
) -> None:
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        await here.run(slot, a_task("echo", isolation=isolation))
        shutil.rmtree(here.slots.folder)
        endings, number = here.recorder.endings, 1
        # The next child may have been forked before.
        while not (endings and endings[-1].slot_closed):
            number += 1
            task = a_task("kills_its_process", number=number, isolation=isolation)
            assert here.slots.give(slot, task)
            await here.until(partial(lambda last: last in here.recorder.accounted, number))

        assert (endings[-1].begun, list(endings[-1].not_begun)) == (None, [number])
        slot = await here.open(isolation)
        await here.run(slot, a_task("echo", number=number + 1, isolation=isolation))


@pytest.mark.parametrize("isolation", BOTH)
@scenario
async def test_each_task_has_a_trace_context_of_its_own(
    tmp_path: Path, isolation: Isolation
) -> None:
    own = traceparent_of("job-a", "job-a_1", 1)
    async with harness(tmp_path) as here:
        slot = await here.open(isolation)
        first = await here.run(slot, a_task("traces", isolation=isolation))
        second = await here.run(slot, a_task("traces", number=2, isolation=isolation))
        options = {"env": {"TRACEPARENT": "that of the caller"}}
        task = a_task("traces", number=3, isolation=isolation, options=options)
        third = await here.run(slot, task)

    in_variable = own if isolation is Isolation.FORK else None
    assert json.loads(first.result or "") == [own, in_variable]
    assert second.result != first.result
    assert json.loads(third.result or "")[1] == "that of the caller"
