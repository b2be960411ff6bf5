"""``worker.run_as``: tasks of each tenant run as a user of their own. These tests need root."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import longshore
from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import Isolation, ResourceLimits
from longshore.errors import UsageError
from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.host.task_users import TaskUser, TaskUsers
from tests.execution.attempts import running_attempt
from tests.execution.conftest import (
    a_call,
    a_script,
    output_text,
    run_attempt,
    scenario,
    wait_until,
)
from tests.execution.process_tree import all_idle
from tests.interfaces import command_line
from tests.interfaces.command_line import TIMEOUT_S, Cli, is_alive

ACME, OTHER = 64_001, 64_002
RUN_AS = {"LONGSHORE_WORKER_RUN_AS": f"{ACME},other={OTHER}"}
IS_ROOT = os.geteuid() == 0
if os.environ.get("CI") and not IS_ROOT:  # noqa: TID251
    raise RuntimeError("CI must run these tests as root")
pytestmark = pytest.mark.skipif(not IS_ROOT, reason="NOT TESTED: worker.run_as needs root")
# Large packages of the tests, which no task needs.
NOT_NEEDED = ("boto*", "cfn*", "claude_agent_sdk*", "moto*", "mypy*", "pip", "sympy", "__pycache__")
needs_python = pytest.mark.skipif(
    not Path("/usr/bin/python3").exists() or shutil.which("setpriv") is None,
    reason="needs setpriv, and a Python that every user can start",
)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike those of pytest."""
    path = Path(tempfile.mkdtemp(prefix="longshore-run-as-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def make_environment(folder: Path, *, is_copy: bool = False) -> str:
    """An environment of the system's Python with the packages of this one; its interpreter.

    Args:
        is_copy: Copy the packages, because other users cannot read them where they are.
    """
    make = ("/usr/bin/python3", "-m", "venv", "--without-pip", str(folder))
    subprocess.run(make, check=True, timeout=TIMEOUT_S)
    (packages,) = folder.glob("lib/python3*/site-packages")
    paths = [path for path in sys.path if path.endswith(("site-packages", "src"))]
    if is_copy:
        ignored = shutil.ignore_patterns(*NOT_NEEDED)
        for path in paths:
            shutil.copytree(path, packages, symlinks=True, ignore=ignored, dirs_exist_ok=True)
    else:
        (packages / "longshore.pth").write_text("\n".join(paths))
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    """An interpreter that tasks can start: this one, unless it is in a home folder."""
    with open_folder() as folder:
        try:
            TaskUsers([str(ACME)]).check_python({})
            yield sys.executable
        except UsageError:
            yield make_environment(folder / "venv", is_copy=True)


@pytest.fixture(autouse=True)
def _with_python(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr(command_line, "LONGSHORE", (python, "-m", "longshore"))


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as path:
        yield path


@pytest.fixture
def runner(folder: Path) -> ProcessRunner:
    data = folder / "data"
    data.mkdir(mode=0o700)
    users = TaskUsers([f"acme={ACME}", f"other={OTHER}"])
    return ProcessRunner(data, {"PATH": "/usr/bin:/bin"}, SystemClock(), users=users)


async def printed(runner: ProcessRunner, script: str, **fields: Any) -> str:
    await runner.open()
    ending, reports = await run_attempt(runner, a_script(f"exec 2>&1; {script}", **fields))
    assert ending.failure is None, ending.failure
    return output_text(reports)


@scenario
async def test_a_command_runs_as_the_user_of_its_tenant_alone(runner: ProcessRunner) -> None:
    script = (
        "id -u; id -g; id -G; grep -E '^(Cap(Inh|Prm|Eff|Amb)|Uid|Gid):' /proc/self/status;"
        " stat -c '%u %g %a' . input.json; echo $HOME $USER; pwd; echo by name > /dev/stdout"
    )

    acme = await printed(runner, script)
    other = await printed(runner, "id -u; id -G", task_id="job-b_b", tenant="other")

    lines = acme.splitlines()
    zero, four = "0" * 16, "\t".join([str(ACME)] * 4)
    assert lines[:3] == [str(ACME)] * 3
    assert lines[3:5] == [f"Uid:\t{four}", f"Gid:\t{four}"]
    assert lines[5:9] == [f"Cap{name}:\t{zero}" for name in ("Inh", "Prm", "Eff", "Amb")]
    assert lines[9:11] == [f"{ACME} {ACME} 700", f"{ACME} {ACME} 600"]
    assert lines[11] == f"{lines[12]} {ACME}"
    assert lines[13:] == ["by name"]
    assert other.splitlines() == [str(OTHER)] * 2


@scenario
async def test_a_command_has_the_groups_of_its_user(runner: ProcessRunner, folder: Path) -> None:
    fields = {"name": "acme", "home": str(folder), "shell": "/bin/x"}
    user = TaskUser(uid=ACME, gid=ACME, groups=(7, 9), **fields)
    assert runner.users is not None
    runner.users._users["acme"] = user

    text = await printed(runner, "id -G; echo $HOME $USER $LOGNAME $SHELL")

    assert text.splitlines() == [f"{ACME} 7 9", f"{folder} acme acme /bin/x"]


@pytest.mark.parametrize("pty", [False, True])
@scenario
async def test_a_function_and_a_terminal_belong_to_the_user(
    runner: ProcessRunner, pty: bool
) -> None:
    await runner.open()
    definition = {"isolation": Isolation.FORK, "pty": pty}
    spec = a_call("", input={"function": "os:getresuid", "args": []}, definition=definition)

    ending, _ = await run_attempt(runner, spec)
    terminal = await printed(runner, "[ -t 1 ] && echo x > /dev/tty", definition={"pty": True})

    assert ending.result == [ACME] * 3
    assert terminal.strip() == "x"


@scenario
async def test_a_tenant_without_a_user_is_refused(runner: ProcessRunner) -> None:
    await runner.open()

    with pytest.raises(UsageError, match="no user for tasks of the tenant 'third'"):
        await run_attempt(runner, a_script("true", tenant="third"))


@scenario
async def test_a_task_reads_neither_the_data_folder_nor_a_task_of_another_user(
    runner: ProcessRunner,
) -> None:
    await runner.open()
    secret = runner.folder / "longshore.db"
    secret.write_text("hidden")
    secret.chmod(0o666)
    waiting = a_script("echo hidden > note; chmod 777 note; echo ready; sleep 1000")
    async with running_attempt(runner, waiting) as attempt:
        await wait_until(lambda: (attempt.folder / "note").exists())
        paths = (runner.folder, secret, attempt.folder, attempt.folder / "note")
        paths = (*paths, attempt.folder.parent, f"/proc/{attempt.process_id}/environ")
        paths = (*paths, f"/proc/{os.getpid()}/environ")
        reads = "; ".join(f"cat {path} || ls {path}" for path in paths)
        kill = f"kill -9 {attempt.process_id} || echo not killed"

        seen = await printed(runner, f"{reads}; {kill}; true", task_id="job-b_b", tenant="other")

        assert "hidden" not in seen
        assert "not killed" in seen
        assert seen.count("Permission denied") >= len(paths)
        assert is_alive(attempt.process_id)
    assert stat.S_IMODE(runner.folder.stat().st_mode) == 0o700


@scenario
async def test_the_reaper_ends_processes_that_have_changed_their_user(
    runner: ProcessRunner, folder: Path
) -> None:
    sleep = folder / "sleep"
    shutil.copy("/bin/sleep", sleep)
    sleep.chmod(0o4755)  # it runs as root
    await runner.open()
    await run_attempt(runner, a_script("true"))
    script = (
        f"setsid {sleep} 1000 & echo $!; until grep -q sleep /proc/$!/comm; do :; done;"
        f" grep -h ^Uid: /proc/$!/status; setsid sh -c '{sleep} 1000' & true"
    )

    text = await printed(runner, script)

    process_id, uids = text.splitlines()
    assert uids.split()[1:] == [str(ACME), "0", "0", "0"]
    assert not is_alive(int(process_id))
    await wait_until(lambda: all_idle(runner))


@scenario
async def test_a_killed_reaper_takes_the_child_of_another_user_with_it(
    runner: ProcessRunner,
) -> None:
    await runner.open()
    spec = a_script("exec sleep 1000")
    async with running_attempt(runner, spec) as attempt:
        await wait_until(lambda: os.stat(f"/proc/{attempt.process_id}").st_uid == ACME)
        reaper = int(Path(f"/proc/{attempt.process_id}/stat").read_text().split(") ")[1].split()[1])
        os.kill(reaper, signal.SIGSTOP)
        # Otherwise this process ends what a reaper has left.
        os.kill(runner.forkserver.process_id or 0, signal.SIGKILL)
        os.kill(reaper, signal.SIGKILL)

        await wait_until(lambda: not is_alive(attempt.process_id))
        ending = await attempt.ending()

    assert ending.failure is not None


@scenario
async def test_too_many_processes_of_another_user_are_ended(runner: ProcessRunner) -> None:
    await runner.open()
    limits = {"resources": ResourceLimits(processes=20)}
    script = "for i in $(seq 100); do setsid sleep 1000 & done; wait"

    ending, _ = await run_attempt(runner, a_script(script, definition=limits))

    assert ending.failure is not None
    assert "more than 20 processes" in ending.failure.message
    await wait_until(lambda: all_idle(runner))


@scenario
async def test_agents_own_their_workspace_and_the_repositories_of_their_tenant(
    runner: ProcessRunner,
) -> None:
    await runner.open()
    spec = a_script("true")
    from dataclasses import replace

    from longshore.core.definitions.definition import RunnerKind

    definition = replace(spec.definition, runner=RunnerKind.AGENT)
    agent = replace(spec, definition=definition)
    user = runner.users.of("acme") if runner.users else None

    access = runner._encode(agent, runner._folder / "x", {}, user)["agent"]

    for path in (access["workspace"], access["repositories"]):
        about = os.stat(path)
        assert (about.st_uid, stat.S_IMODE(about.st_mode)) == (ACME, 0o700)
        assert runner.folder not in Path(path).parents


def test_the_folder_of_tasks_must_be_reachable_and_our_own(folder: Path) -> None:
    users = TaskUsers([str(ACME)])
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    foreign = folder / "foreign"
    foreign.mkdir()
    os.chown(foreign, ACME, ACME)

    with pytest.raises(UsageError, match=f"chmod o.x {closed}"):
        users.open_folder(closed / "data-tasks")
    with pytest.raises(UsageError, match="belongs to another user"):
        users.open_folder(foreign)


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        ("no-such-user-here", "useradd --system no-such-user-here"),
        ("root", "must not run as 'root'"),
        ("0", "must not run as '0'"),
    ],
)
def test_a_user_that_is_not_suitable_is_refused_at_the_start(
    folder: Path, user: str, problem: str
) -> None:
    ended = Cli(folder)("worker", "--burst", env={"LONGSHORE_WORKER_RUN_AS": user})

    assert ended.code == 2
    assert problem in ended.err


@needs_python
def test_a_user_that_cannot_start_python_is_refused_at_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folder / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setattr(
        command_line, "LONGSHORE", (make_environment(home / "venv"), "-m", "longshore")
    )

    ended = Cli(folder)("worker", "--burst", env=RUN_AS)

    assert ended.code == 2
    message = " ".join(ended.err.split())
    assert f"tasks of the user '{ACME}' cannot start {home}/venv/bin/python" in message
    assert "PermissionError" in message
    assert "install Python and longshore in a folder that every user can read" in message


@needs_python
def test_a_user_that_cannot_import_longshore_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "longshore").symlink_to(Path(longshore.__file__).parent)
    packages = [path for path in sys.path if path.endswith("site-packages")]
    environment = {"PYTHONPATH": ":".join([str(closed), *packages])}

    with pytest.raises(UsageError, match="No module named 'longshore'"):
        TaskUsers([str(ACME)]).check_python(environment)


def as_user(*arguments: str, folder: Path, flags: tuple[str, ...] = ()) -> Any:
    """Run a program as a user with some capabilities."""
    command = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", f"--groups={OTHER},7", *flags]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


CHANGES_USER = """
import sys
from longshore.execution.host.task_users import TaskUser, TaskUsers
from longshore.execution.linux import become_user
from longshore.errors import UsageError
import os
try:
    user = TaskUsers(["{user}"]).of("x")
except UsageError as error:
    sys.exit(str(error))
become_user(user.uid, user.gid, user.groups)
print(os.getresuid(), os.getgroups())
print(open("/proc/self/status").read())
try:
    os.setuid(0)
except PermissionError:
    print("no way back")
"""


def _changes_user(folder: Path, *flags: str) -> Any:
    program = folder / "changes_user.py"
    program.write_text(CHANGES_USER.format(user=ACME))
    return as_user(sys.executable, str(program), folder=folder, flags=flags)


@needs_python
def test_a_worker_that_may_not_change_users_is_refused(folder: Path) -> None:
    ended = _changes_user(folder)

    assert ended.returncode == 1
    assert "start it as root, or with the capabilities that it lacks (CAP_CHOWN" in ended.stderr


@needs_python
def test_a_worker_with_capabilities_can_change_users_and_its_tasks_cannot(folder: Path) -> None:
    names = "chown,dac_override,fowner,kill,setgid,setuid"
    added = ",".join(f"+{name}" for name in names.split(","))

    ended = _changes_user(folder, f"--inh-caps={added}", f"--ambient-caps={added}")

    assert ended.returncode == 0, ended.stderr
    assert f"({ACME}, {ACME}, {ACME}) []" in ended.stdout
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert f"{name}:\t{'0' * 16}" in ended.stdout
    assert "no way back" in ended.stdout


def test_what_a_task_leaves_is_stored_but_no_link_to_what_it_cannot_read(folder: Path) -> None:
    cli = Cli(folder)
    hidden = folder / "hidden"
    hidden.write_text("not for tasks")
    hidden.chmod(0o600)
    script = (
        f"mkdir artifacts; cd artifacts; echo mine > own; ln -s {hidden} link; ln -s own near;"
        f" ln {hidden} hard; mkfifo pipe; ln -s {folder} dir; id -u; true"
    )
    task = {"taskId": "a", "name": "command", "input": {"argv": ["sh", "-c", script]}}
    pool = {"name": "pooled", "runner": "python", "isolation": "pool"}
    pool["options"] = {"function": "os:getuid"}
    job = {"definitions": [pool], "tasks": [task, {"taskId": "b", "name": "pooled"}]}
    submitted = cli("submit", "-", "-o", "json", stdin=json.dumps(job))

    worked = cli("worker", "--burst", env=RUN_AS)
    logs = cli("logs", submitted.json["jobId"])
    stored = [path.read_bytes() for path in (folder / ".longshore").rglob("*") if path.is_file()]

    assert worked.code == 0, worked.err
    assert str(ACME) in logs.out
    assert "link (a link that leads out of artifacts)" in logs.out + logs.err
    assert any(b"mine\n" in content for content in stored)
    assert not any(b"not for tasks" in content for content in stored)
    tasks = {item["taskId"]: item for item in cli("tasks", "-o", "json").json["tasks"]}
    assert {item["status"] for item in tasks.values()} == {"completed"}
    events = cli("events", f"{submitted.json['jobId']}_b", "-o", "json").json
    assert events[-1]["properties"]["output"] == ACME
    assert list((folder / ".longshore-tasks").iterdir()) == []
