"""One cache, many attempts: at once, killed in the middle, out of time; and how git itself runs."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from longshore.core.agents.repositories import cache_name
from longshore.core.tasks.failures import ErrorCategory, failure_of
from longshore.execution.process_table import descendants
from longshore.execution.runners.agent.git import Git, GitFailed
from tests.agents.git_repositories import (
    Origin,
    RequestGate,
    WorkspaceMachine,
    fresh_git,
    install_program,
    serve_repository,
)

ATTEMPT = """
import sys, time
from pathlib import Path
from longshore.execution.runners.agent.git import Git
from longshore.execution.runners.agent.workspace import Workspace
cache, url, into = sys.argv[1:]
git = Git(deadline=time.monotonic() + 60)
space = Workspace.open(
    Path(cache), url, "main", Path(into), git=git,
    allow_local=True, on_progress=print,
)
print(space.commit)
"""


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    created = Origin(tmp_path / "remotes" / "origin.git")
    created.commit({"a.txt": b"one\n"})
    return created


@pytest.fixture
def machine(tmp_path: Path) -> WorkspaceMachine:
    return WorkspaceMachine(tmp_path / "machine")


def _attempt(machine: WorkspaceMachine, url: str) -> subprocess.Popen[str]:
    position = machine.new_attempt_folder() / "workspace"
    return subprocess.Popen(
        [sys.executable, "-c", ATTEMPT, str(machine.cache), url, str(position)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _kill(process_ids: list[int]) -> None:
    for process_id in process_ids:
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)


def test_of_several_processes_that_need_a_repository_at_once_one_clones_it(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    commit = origin.commit({"a.txt": b"two\n"})
    attempts = [_attempt(machine, origin.url) for _ in range(3)]

    message = [attempt.communicate(timeout=60) for attempt in attempts]

    assert [attempt.returncode for attempt in attempts] == [0, 0, 0], message
    assert [text.split()[-1] for text, _ in message] == [commit] * 3
    assert sum(f"cloning {origin.url}" in text for text, _ in message) == 1
    files = [machine.root / f"attempt-{number}" / "workspace/a.txt" for number in (1, 2, 3)]
    assert [file.read_bytes() for file in files] == [b"two\n"] * 3


def test_a_clone_that_was_killed_half_way_is_never_taken_for_whole(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    gate = RequestGate("/git-upload-pack")
    with serve_repository(origin.path, gate=gate) as url:
        attempt = _attempt(machine, url)
        assert gate.reached.wait(60)
        orphans = list(descendants(attempt.pid))
        attempt.kill()
        attempt.communicate(timeout=60)
        try:
            # Its git runs until it is killed, and no other attempt writes until then.
            with pytest.raises(TimeoutError, match="another attempt was fetching"):
                machine.open(url, git=fresh_git(0.1))
        finally:
            _kill(orphans)
        assert list(machine.cache.glob("*.partial"))
        assert not list(machine.cache.glob("*.git"))
        gate.opened.set()

        space = machine.open(url, git=fresh_git(30))

    assert orphans
    assert (space.folder / "a.txt").read_bytes() == b"one\n"
    assert not list(machine.cache.glob("*.partial"))


def test_leftovers_of_a_killed_fetch_are_removed(origin: Origin, machine: WorkspaceMachine) -> None:
    machine.open(origin.url)
    position = machine.cache / f"{cache_name(origin.url)}.git"
    left = ["packed-refs.lock", "refs/heads/main.lock", "HEAD.lock", "objects/pack/tmp_pack_x"]
    for name in left:
        (position / name).parent.mkdir(parents=True, exist_ok=True)
        (position / name).write_bytes(b"half")
    commit = origin.commit({"a.txt": b"two\n"})

    assert machine.open(origin.url).commit == commit
    assert [name for name in left if (position / name).exists()] == []


def test_the_lock_of_a_cache_that_was_deleted_meanwhile_is_none(
    origin: Origin, machine: WorkspaceMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    files: list[Path] = []

    def lock_and_lose(number: int, how: int) -> None:
        real(number, how)
        files.extend(machine.cache.glob("*.lock"))
        if len(files) == 1:
            files[0].unlink()

    monkeypatch.setattr(fcntl, "flock", lock_and_lose)

    machine.open(origin.url)

    assert len(files) == 2
    assert files[0].exists()


def test_attempts_that_wait_have_what_was_pushed_meanwhile(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    gate = RequestGate("/info/refs")
    gate.opened.set()
    with serve_repository(origin.path, gate=gate) as url, ThreadPoolExecutor(4) as threads:
        machine.open(url)
        gate.opened.clear()
        gate.reached.clear()
        first = threads.submit(machine.open, url)
        assert gate.reached.wait(60)
        others = [threads.submit(machine.open, url) for _ in range(3)]
        while sum("waiting" in line for line in machine.progress) < 3:
            assert not first.done()
        commit = origin.commit({"a.txt": b"two\n"})
        gate.opened.set()
        opened = [other.result(60).commit for other in others]

    assert opened == [commit] * 3


def test_git_ends_at_the_deadline_and_another_attempt_can_fetch(
    origin: Origin, machine: WorkspaceMachine
) -> None:
    gate = RequestGate("/info/refs")
    with serve_repository(origin.path, gate=gate) as url:
        began, others = time.monotonic(), set(descendants(os.getpid()))
        with pytest.raises(TimeoutError, match="did not finish before the deadline") as caught:
            machine.open(url, git=fresh_git(0.3))
        assert time.monotonic() - began < 20
        assert set(descendants(os.getpid())) <= others
        gate.opened.set()

        assert machine.open(url, git=fresh_git(30)).commit
    assert failure_of(caught.value).category is ErrorCategory.TIMEOUT


def test_git_finds_nothing_of_the_machine_or_the_process_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_DIR", "GIT_EXTERNAL_DIFF", "GIT_SSH", "SSH_ASKPASS", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "/tmp/trap")
    path = install_program(tmp_path / "bin", "git", "env")
    fields = {"PATH": path, "https_proxy": "http://proxy", "SECRET": "x", "GIT_TRACE": "1"}

    message = Git(deadline=time.monotonic() + 60, environment=fields).run(
        "x", operation="asking", repository=tmp_path
    )

    actual = dict(line.split("=", 1) for line in message.decode().splitlines() if "=" in line)
    ours = {name for name in actual if name not in ("PWD", "SHLVL", "OLDPWD", "_")}
    assert ours == {
        *("PATH", "https_proxy", "HOME", "LC_ALL", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_GLOBAL"),
        *("GIT_ATTR_NOSYSTEM", "GIT_TERMINAL_PROMPT", "GIT_OPTIONAL_LOCKS", "GIT_DIR"),
        *("GIT_NO_REPLACE_OBJECTS", "GIT_LFS_SKIP_SMUDGE", "GIT_SSH_VARIANT", "GIT_SSH_COMMAND"),
        "GIT_ALLOW_PROTOCOL",
    }
    assert actual["GIT_DIR"] == str(tmp_path)
    assert actual["GIT_ALLOW_PROTOCOL"] == "none"


def test_git_is_killed_with_everything_that_it_started(tmp_path: Path) -> None:
    path = install_program(tmp_path / "bin", "git", "sleep 100 & echo $!")
    quick = Git(deadline=time.monotonic() + 60, environment={"PATH": path})

    left_behind = int(quick.run("x", operation="asking", repository=tmp_path))

    with pytest.raises(ProcessLookupError):
        _wait_for_end(left_behind)
    path = install_program(tmp_path / "bin", "git", "while :; do echo flood >&2; done")
    with pytest.raises(TimeoutError):
        fresh_git(0.2, PATH=path).run("x", operation="asking", repository=tmp_path)
    path = install_program(tmp_path / "bin", "git", "kill -9 $$")
    with pytest.raises(GitFailed, match="signal 9") as caught:
        fresh_git(60, PATH=path).run("x", operation="asking", repository=tmp_path)
    assert failure_of(caught.value).category is ErrorCategory.CRASH


def _wait_for_end(process_id: int) -> None:
    """Raises when there is no such process any more; it is not ours to wait for."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        os.kill(process_id, 0)
        state = Path(f"/proc/{process_id}/stat")
        if sys.platform == "linux" and state.read_text().split()[2] == "Z":
            raise ProcessLookupError
