"""Who is here and who is gone is what the kernel says, and of the dead nothing is left running."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.adapters.process.presence import FilePresence
from longshore.adapters.process.table import alive, start_time_of
from longshore.errors import UsageError

# Does what it is told, line by line, and answers; it dies without a word when its input ends.
_WORKER = """
import json, os, subprocess, sys
from pathlib import Path
from longshore.adapters.process.presence import FilePresence

presence = FilePresence(Path(sys.argv[1]))
for line in sys.stdin:
    method, *arguments = json.loads(line)
    if method == "start":
        child = subprocess.Popen(["sh", "-c", arguments[0]], start_new_session=True,
            stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        answer = child.pid
    else:
        try:
            answer = getattr(presence, method)(*arguments)
        except Exception as error:
            answer = type(error).__name__
    print(json.dumps(answer), flush=True)
os._exit(0)
"""


class Process:
    """A process with a presence of its own."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.children: list[int] = []

    def does(self, method: str, *arguments: object) -> object:
        self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def starts(self, script: str) -> int:
        """A child that leads its own group, once it has said that it is ready."""
        self.children.append(self.does("start", script))
        return self.children[-1]

    def dies(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Callable[[], Process]]:
    processes: list[Process] = []

    def start() -> Process:
        processes.append(Process(tmp_path))
        return processes[-1]

    yield start
    for process in processes:
        process.dies()
        for child in process.children:
            if alive(child):
                os.killpg(child, signal.SIGKILL)


@pytest.fixture
def presence(tmp_path: Path) -> FilePresence:
    return FilePresence(tmp_path)


LASTING = "echo ready; sleep 1000"


def test_a_worker_is_here_until_its_process_ends_and_gone_from_then_on(
    presence: FilePresence, another: Callable[[], Process]
) -> None:
    process = another()
    process.does("appear", "w", ["default"])

    here = presence.gone("w"), presence.present(), presence.absent()
    process.dies()

    assert here == (False, {"w": ("default",)}, [])
    assert presence.gone("w")
    assert presence.present() == {}
    assert presence.absent() == ["w"]


def test_one_s_own_worker_is_here(presence: FilePresence) -> None:
    presence.appear("w", ["default"])

    assert not presence.gone("w")
    assert presence.present() == {"w": ("default",)}


def test_the_queues_of_a_worker_are_known_before_and_after_its_children(
    presence: FilePresence, another: Callable[[], Process]
) -> None:
    process = another()
    process.does("appear", "w", ["fast", "slow"])
    seen = [presence.present()]
    child = process.starts(LASTING)
    process.does("note_child", "w", child)
    seen.append(presence.present())
    process.does("forget_child", "w", child)
    seen.append(presence.present())

    assert seen == [{"w": ("fast", "slow")}] * 3


def test_nothing_is_known_of_a_worker_that_was_never_here(presence: FilePresence) -> None:
    assert not presence.gone("elsewhere")
    presence.clear("elsewhere")
    presence.leave("elsewhere")


def test_leaving_is_silent(presence: FilePresence, another: Callable[[], Process]) -> None:
    process = another()
    process.does("appear", "w", ["default"])

    process.does("leave", "w")
    process.dies()

    assert not presence.gone("w")
    assert (presence.absent(), presence.present()) == ([], {})


def test_a_name_is_taken_while_its_worker_is_here_and_until_it_is_cleared_away(
    presence: FilePresence, another: Callable[[], Process], tmp_path: Path
) -> None:
    process = another()
    process.does("appear", "w", ["default"])

    with pytest.raises(UsageError):
        presence.appear("w", ["default"])
    process.dies()
    with pytest.raises(UsageError):
        presence.appear("w", ["default"])
    presence.leave("w")
    presence.appear("w", ["default"])

    assert presence.present() == {"w": ("default",)}
    assert os.listdir(tmp_path / "workers") == ["w.lock"]


def test_a_refused_name_stays_with_the_one_who_has_it(
    presence: FilePresence, another: Callable[[], Process]
) -> None:
    presence.appear("w", ["default"])
    process = another()

    answer = process.does("appear", "w", ["default"])

    assert answer == "UsageError"
    assert process.does("gone", "w") is False
    assert presence.present() == {"w": ("default",)}


def test_clearing_kills_the_children_of_a_dead_worker_and_their_children(
    presence: FilePresence, another: Callable[[], Process]
) -> None:
    process = another()
    process.does("appear", "w", ["default"])
    script = "trap '' TERM; sleep 1000 & sleep 1000 & echo ready; wait"
    child = process.starts(script)
    process.does("note_child", "w", child)
    process.dies()
    group = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _in_group(pid, child)]

    before = [alive(pid) for pid in group]
    presence.clear("w")
    after = [alive(pid) for pid in group]

    assert before == [True, True, True]
    assert after == [False, False, False]


def _in_group(process_id: str, group: int) -> bool:
    try:
        return os.getpgid(int(process_id)) == group
    except ProcessLookupError:
        return False


def test_clearing_kills_what_a_dead_child_has_left(
    presence: FilePresence, another: Callable[[], Process]
) -> None:
    process = another()
    process.does("appear", "w", ["default"])
    child = process.starts("sleep 1000 & echo ready; wait")
    process.does("note_child", "w", child)
    (orphan,) = [
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit() and int(pid) != child and _in_group(pid, child)
    ]
    os.kill(child, signal.SIGKILL)
    process.dies()

    presence.clear("w")

    assert not alive(orphan)


@pytest.mark.parametrize("leader_lives", [True, False])
def test_clearing_kills_those_of_a_child_s_session_who_have_a_group_of_their_own(
    presence: FilePresence, another: Callable[[], Process], leader_lives: bool
) -> None:
    process = another()
    process.does("appear", "w", ["default"])
    # With job control each one in the background gets a group, and all stay in the session.
    child = process.starts("exec bash -c 'set -m; sleep 1000 & echo ready; wait'")
    process.does("note_child", "w", child)
    (apart,) = [
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit() and _in_session(pid, child) and not _in_group(pid, child)
    ]
    if not leader_lives:
        os.kill(child, signal.SIGKILL)
    process.dies()

    before = alive(apart)
    presence.clear("w")
    after = alive(apart)
    if after:
        os.kill(apart, signal.SIGKILL)

    assert (before, after) == (True, False)


def _in_session(process_id: str, session: int) -> bool:
    try:
        return os.getsid(int(process_id)) == session
    except ProcessLookupError:
        return False


def test_a_child_that_was_forgotten_is_left_alone(
    presence: FilePresence, another: Callable[[], Process]
) -> None:
    process = another()
    process.does("appear", "w", ["default"])
    forgotten, noted = process.starts(LASTING), process.starts(LASTING)
    for child in (forgotten, noted):
        process.does("note_child", "w", child)
    process.does("forget_child", "w", forgotten)
    process.dies()

    presence.clear("w")

    assert alive(forgotten)
    assert not alive(noted)


def test_a_number_that_has_gone_to_somebody_else_is_left_alone(
    presence: FilePresence, another: Callable[[], Process], tmp_path: Path
) -> None:
    process = another()
    process.does("appear", "w", ["default"])
    child = process.starts(LASTING)
    process.does("note_child", "w", child)
    process.dies()
    lock = tmp_path / "workers" / "w.lock"
    started = start_time_of(child)
    assert started is not None
    lock.write_text(lock.read_text().replace(f" {started}\n", f" {int(started) - 1}\n"))

    presence.clear("w")

    assert alive(child)


def test_one_process_of_the_machine_fills_a_role_and_the_next_when_it_ends(
    presence: FilePresence, another: Callable[[], Process]
) -> None:
    process = another()

    first = process.does("leads", "dispatcher"), presence.leads("dispatcher")
    other_role = presence.leads("sweeper")
    process.dies()
    after = presence.leads("dispatcher"), presence.leads("dispatcher")

    assert first == (True, False)
    assert other_role
    assert after == (True, True)


def test_a_role_that_is_given_up_can_be_filled_by_another(tmp_path: Path) -> None:
    one, other = FilePresence(tmp_path), FilePresence(tmp_path)

    assert one.leads("dispatcher")
    assert not other.leads("dispatcher")
    one.close()
    assert other.leads("dispatcher")
    other.close()
