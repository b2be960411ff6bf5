"""Who is here and who is gone is what the kernel says, and of the dead nothing is left running."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.errors import UsageError
from longshore.execution.host.registry import FileWorkerRegistry, page_path
from longshore.execution.process_table import is_alive, start_time_of
from longshore.execution.slot_page import SlotPage, clock_ns, open_page_file

# Executes commands line by line and answers; it exits when its input ends.
_WORKER = """
import json, os, subprocess, sys
from pathlib import Path
from longshore.execution.host.registry import FileWorkerRegistry

registry = FileWorkerRegistry(Path(sys.argv[1]))
for line in sys.stdin:
    method, *arguments = json.loads(line)
    if method == "start":
        child = subprocess.Popen(["sh", "-c", arguments[0]], start_new_session=True,
            stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        answer = child.pid
    else:
        try:
            answer = getattr(registry, method)(*arguments)
        except Exception as error:
            answer = type(error).__name__
    print(json.dumps(answer), flush=True)
os._exit(0)
"""


class RegistryProcess:
    """A process with a presence of its own."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.children: list[int] = []

    def call(self, method: str, *arguments: object) -> object:
        self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start_child(self, script: str) -> int:
        """Returns a child that leads its own group, once it is ready."""
        self.children.append(self.call("start", script))
        return self.children[-1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Callable[[], RegistryProcess]]:
    processes: list[RegistryProcess] = []

    def start() -> RegistryProcess:
        processes.append(RegistryProcess(tmp_path))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        for child in process.children:
            if is_alive(child):
                os.killpg(child, signal.SIGKILL)


@pytest.fixture
def registry(tmp_path: Path) -> FileWorkerRegistry:
    return FileWorkerRegistry(tmp_path)


SLEEPING_SCRIPT = "echo ready; sleep 1000"


def test_a_worker_is_alive_until_its_process_ends_and_dead_from_then_on(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess]
) -> None:
    process = another()
    process.call("register", "w", ["default"])

    here = registry.is_dead("w"), registry.live_workers(), registry.dead_workers()
    process.kill()

    assert here == (False, {"w": ("default",)}, [])
    assert registry.is_dead("w")
    assert registry.live_workers() == {}
    assert registry.dead_workers() == ["w"]


def test_a_process_s_own_worker_is_alive(registry: FileWorkerRegistry) -> None:
    registry.register("w", ["default"])

    assert not registry.is_dead("w")
    assert registry.live_workers() == {"w": ("default",)}


def test_the_queues_of_a_worker_are_known_before_and_after_its_children(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess]
) -> None:
    process = another()
    process.call("register", "w", ["fast", "slow"])
    seen = [registry.live_workers()]
    child = process.start_child(SLEEPING_SCRIPT)
    process.call("record_child", "w", child)
    seen.append(registry.live_workers())
    process.call("forget_child", "w", child)
    seen.append(registry.live_workers())

    assert seen == [{"w": ("fast", "slow")}] * 3


def test_an_unregistered_worker_is_neither_alive_nor_dead(registry: FileWorkerRegistry) -> None:
    assert not registry.is_dead("elsewhere")
    registry.reap("elsewhere")
    registry.deregister("elsewhere")


def test_leaving_is_silent(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess]
) -> None:
    process = another()
    process.call("register", "w", ["default"])

    process.call("deregister", "w")
    process.kill()

    assert not registry.is_dead("w")
    assert (registry.dead_workers(), registry.live_workers()) == ([], {})


def test_what_a_worker_had_begun_is_known_until_it_is_deregistered(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess]
) -> None:
    process = another()
    process.call("register", "w", ["default"])
    path = page_path(registry.data_folder, "w")
    file = open_page_file(str(path), 1)
    page = SlotPage(file)
    os.close(file)
    page.format()
    page.deadline_ns = clock_ns() + 10**12
    page.begin(7, 3)
    page.close()
    process.kill()

    assert registry.begun_tasks("w") == {(7, 3)}
    registry.deregister("w")
    assert not path.exists()
    assert registry.begun_tasks("w") is None


def test_a_dead_worker_is_found_again_until_its_record_is_removed(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess], tmp_path: Path
) -> None:
    process = another()
    process.call("register", "w", ["default"])
    process.kill()
    page = page_path(tmp_path, "w")
    page.mkdir()  # cannot be unlinked: deregistering ends here

    with pytest.raises(OSError, match="directory"):
        registry.deregister("w")

    assert registry.dead_workers() == ["w"]
    page.rmdir()


def test_a_name_is_taken_while_its_worker_is_here_and_until_it_is_cleared_away(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess], tmp_path: Path
) -> None:
    process = another()
    process.call("register", "w", ["default"])

    with pytest.raises(UsageError):
        registry.register("w", ["default"])
    process.kill()
    with pytest.raises(UsageError):
        registry.register("w", ["default"])
    registry.deregister("w")
    registry.register("w", ["default"])

    assert registry.live_workers() == {"w": ("default",)}
    assert sorted(os.listdir(tmp_path / "workers")) == ["w.lock"]


def test_a_worker_keeps_its_id_when_another_one_requests_it(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess]
) -> None:
    registry.register("w", ["default"])
    process = another()

    answer = process.call("register", "w", ["default"])

    assert answer == "UsageError"
    assert process.call("is_dead", "w") is False
    assert registry.live_workers() == {"w": ("default",)}


def test_reaping_kills_the_children_of_a_dead_worker_and_their_children(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess]
) -> None:
    process = another()
    process.call("register", "w", ["default"])
    script = "trap '' TERM; sleep 1000 & sleep 1000 & echo ready; wait"
    child = process.start_child(script)
    process.call("record_child", "w", child)
    process.kill()
    group = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _in_group(pid, child)]

    before = [is_alive(pid) for pid in group]
    registry.reap("w")
    after = [is_alive(pid) for pid in group]

    assert before == [True, True, True]
    assert after == [False, False, False]


def _in_group(process_id: str, group: int) -> bool:
    try:
        return os.getpgid(int(process_id)) == group
    except ProcessLookupError:
        return False


def test_reaping_kills_the_processes_that_a_dead_child_left(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess]
) -> None:
    process = another()
    process.call("register", "w", ["default"])
    child = process.start_child("sleep 1000 & echo ready; wait")
    process.call("record_child", "w", child)
    (orphan,) = [
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit() and int(pid) != child and _in_group(pid, child)
    ]
    os.kill(child, signal.SIGKILL)
    process.kill()

    registry.reap("w")

    assert not is_alive(orphan)


@pytest.mark.parametrize("leader_is_alive", [True, False])
def test_reaping_kills_processes_of_a_child_s_session_in_other_groups(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess], leader_is_alive: bool
) -> None:
    process = another()
    process.call("register", "w", ["default"])
    # With job control each one in the background gets a group, and all stay in the session.
    child = process.start_child("exec bash -c 'set -m; sleep 1000 & echo ready; wait'")
    process.call("record_child", "w", child)
    (apart,) = [
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit() and _in_session(pid, child) and not _in_group(pid, child)
    ]
    if not leader_is_alive:
        os.kill(child, signal.SIGKILL)
    process.kill()

    before = is_alive(apart)
    registry.reap("w")
    after = is_alive(apart)
    if after:
        os.kill(apart, signal.SIGKILL)

    assert (before, after) == (True, False)


def _in_session(process_id: str, session: int) -> bool:
    try:
        return os.getsid(int(process_id)) == session
    except ProcessLookupError:
        return False


def test_a_child_that_was_forgotten_is_left_alone(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess]
) -> None:
    process = another()
    process.call("register", "w", ["default"])
    forgotten, noted = process.start_child(SLEEPING_SCRIPT), process.start_child(SLEEPING_SCRIPT)
    for child in (forgotten, noted):
        process.call("record_child", "w", child)
    process.call("forget_child", "w", forgotten)
    process.kill()

    registry.reap("w")

    assert is_alive(forgotten)
    assert not is_alive(noted)


def test_a_reused_process_id_is_not_killed(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess], tmp_path: Path
) -> None:
    process = another()
    process.call("register", "w", ["default"])
    child = process.start_child(SLEEPING_SCRIPT)
    process.call("record_child", "w", child)
    process.kill()
    lock = tmp_path / "workers" / "w.lock"
    started = start_time_of(child)
    assert started is not None
    lock.write_text(lock.read_text().replace(f" {started}\n", f" {int(started) - 1}\n"))

    registry.reap("w")

    assert is_alive(child)


def test_one_process_of_the_machine_has_a_role_until_it_ends(
    registry: FileWorkerRegistry, another: Callable[[], RegistryProcess]
) -> None:
    process = another()

    first = process.call("acquire_role", "dispatcher"), registry.acquire_role("dispatcher")
    other_role = registry.acquire_role("sweeper")
    process.kill()
    after = registry.acquire_role("dispatcher"), registry.acquire_role("dispatcher")

    assert first == (True, False)
    assert other_role
    assert after == (True, True)


def test_the_process_with_a_role_finds_each_dead_worker_and_lists_the_folder_only_if_it_changed(
    registry: FileWorkerRegistry,
    another: Callable[[], RegistryProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listings: list[object] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listings.append(path) or listdir(path))
    assert registry.acquire_role("sweeper")
    registry.register("ours", ["default"])
    moments = itertools.count(1_000_000)

    def dead_workers_later() -> list[str]:
        # A change that has just been made may not be the last one with its time.
        moment = next(moments)
        os.utime(tmp_path / "workers", (moment, moment))
        dead = registry.dead_workers()
        listings.clear()
        for _ in range(3):
            assert registry.dead_workers() == dead
        assert not listings
        return dead

    assert dead_workers_later() == []
    for worker_id in ("first", "second"):
        process = another()
        process.call("register", worker_id, ["default"])
        assert registry.dead_workers() == []
        assert listings
        assert dead_workers_later() == []
        process.kill()
        assert registry.dead_workers() == [worker_id]
        registry.deregister(worker_id)
        assert registry.dead_workers() == dead_workers_later() == []


def test_a_process_that_waits_for_a_role_opens_its_file_once(
    registry: FileWorkerRegistry,
    another: Callable[[], RegistryProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = another()
    process.call("acquire_role", "sweeper")
    assert not registry.acquire_role("sweeper")
    monkeypatch.setattr(os, "open", None)

    assert not registry.acquire_role("sweeper")
    process.kill()
    assert registry.acquire_role("sweeper")


def test_a_released_role_can_be_acquired_by_another_process(tmp_path: Path) -> None:
    item, other = FileWorkerRegistry(tmp_path), FileWorkerRegistry(tmp_path)

    assert item.acquire_role("dispatcher")
    assert not other.acquire_role("dispatcher")
    item.close()
    assert other.acquire_role("dispatcher")
    other.close()
