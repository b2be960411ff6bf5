"""An agent's sandbox: it is enforced, or the task fails and runs nothing."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longshore.core.agents.plan import AgentPlan
from longshore.core.tasks.failures import ErrorCategory, FailureRaised
from longshore.core.tasks.states import TaskState
from longshore.execution.runners.agent.session import check_prerequisites
from tests.agents.harness import AgentHarness, open_harness, scenario
from verification.messages_api import Script, text, tool_use

PROGRAMS = ("bash", "sh", "git", "touch", "cat", "env", "uname", "dirname", "basename", "mkdir")
# Does what it was asked to run, and writes down that it was asked. Real ones are in no test's
# surroundings for certain, and what they do inside is theirs to test.
BWRAP = """#!{python}
import os, sys
given = sys.argv[1:]
with open("{folder}/sandboxed", "a") as file:
    file.write(repr(given) + "\\n")
if "--" in given:
    command = given[given.index("--") + 1 :]
    os.execvp(command[0], command)
"""
SOCAT = """#!{python}
import signal, socket, sys
(place,) = [word for word in sys.argv if word.startswith("UNIX-LISTEN:")]
listening = socket.socket(socket.AF_UNIX)
listening.bind(place.partition(":")[2].partition(",")[0])
listening.listen()
signal.pause()
"""
BROKEN = "#!/bin/sh\nexit 1\n"


class SandboxMachine:
    """Programs that a worker finds, and no others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name in PROGRAMS:
            if (result := shutil.which(name)) is not None:
                (self.programs / name).symlink_to(result)

    def install(self, name: str, program: str) -> None:
        path = self.programs / name
        path.write_text(program.format(python=sys.executable, folder=self.folder))
        path.chmod(0o755)

    def file(self, name: str) -> Path:
        return self.folder / name

    @property
    def sandbox_log(self) -> str:
        """All that was run inside."""
        return self.file("sandboxed").read_text()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxMachine]:
    # Not pytest's own folder: its path is longer than that of a socket may be.
    with tempfile.TemporaryDirectory(prefix="ls", dir="/tmp") as folder:
        created = SandboxMachine(Path(folder))
        monkeypatch.setenv("PATH", str(created.programs))
        yield created


@scenario
async def test_a_sandbox_is_enforced_where_available_and_fails_the_task_elsewhere(
    machine: SandboxMachine,
) -> None:
    async with open_harness(machine.folder, flags={"agent.allow_bypass": True}) as harness:
        await check_missing_is_refused(harness)
        machine.install("bwrap", BWRAP)
        machine.install("socat", SOCAT)
        await check_sandbox_is_enforced(harness, machine)
        machine.install("socat", BROKEN)
        await check_nothing_runs_without(harness, machine)


async def define(harness: AgentHarness, key: str, **options: Any) -> None:
    fields = {"prompt": f"Work: {key} .", "tools": ["Bash"], "sandbox": True, **options}
    await harness.define(key, options=fields)


async def check_missing_is_refused(harness: AgentHarness) -> None:
    await define(harness, "missing")
    await harness.submit({"taskId": "missing", "name": "missing"})

    row = await harness.wait_finished("missing")

    assert (row.state, row.attempt) == (TaskState.FAILED, 1)
    ((category, message),) = await harness.failures("missing")
    assert category == "not-found"
    assert "asks for a sandbox, which needs bwrap and socat" in message
    assert harness.api.requests == []


async def check_sandbox_is_enforced(harness: AgentHarness, machine: SandboxMachine) -> None:
    out = {"command": f"touch {machine.file('out')}", "dangerouslyDisableSandbox": True}
    harness.api.set_script(
        [
            Script.of(
                tool_use("Bash", {"command": f"touch {machine.file('unlisted')}"}),
                tool_use("Bash", {"command": "git --version"}),
                text("done"),
                when="listed",
            ),
            Script.of(tool_use("Bash", out), text("done"), when="bypass"),
        ]
    )
    # The longest name that a task can have makes no path too long.
    listed = f"listed-{'x' * 50}"
    await define(harness, "listed", tools=["Bash(git *)"])
    await define(harness, "bypass", permissionMode="bypassPermissions")
    await harness.submit(
        {"taskId": listed, "name": "listed"}, {"taskId": "bypass", "name": "bypass"}
    )

    await harness.wait_finished(listed, "bypass")

    _, unlisted, git = [request.tool_results for request in harness.requests(listed)]
    assert unlisted[0].is_error
    assert not machine.file("unlisted").exists()
    assert "git version" in git[0].text, git
    assert "git --version" in machine.sandbox_log
    _, requested = harness.requests("bypass")
    ran = machine.file("out").exists()
    assert ran == ("touch" in machine.sandbox_log), requested.tool_results
    left = {path.name for path in harness.work_folder.iterdir()}
    assert {name for name in left if not name.startswith("job-")} == set()


async def check_nothing_runs_without(harness: AgentHarness, machine: SandboxMachine) -> None:
    harness.api.set_script(
        [tool_use("Bash", {"command": f"touch {machine.file('without')}"}), text("done")]
    )
    await define(harness, "without")
    await harness.submit({"taskId": "without", "name": "without"})

    await harness.wait_finished("without")

    (reported,) = harness.requests("without")[1].tool_results
    assert reported.is_error
    assert "Sandbox is required" in reported.text
    assert not machine.file("without").exists()


@pytest.mark.parametrize(
    ("installed", "folder", "message"),
    [
        ((), "/data", "needs bwrap and socat on"),
        (("bwrap",), "/data", "needs socat on"),
        (("socat",), "/data", "needs bwrap on"),
        (("bwrap", "socat"), f"/{'d' * 60}", "too long for its sockets"),
    ],
)
def test_missing_programs_of_the_sandbox_are_named(
    machine: SandboxMachine, installed: tuple[str, ...], folder: str, message: str
) -> None:
    for name in installed:
        machine.install(name, BROKEN)

    with pytest.raises(FailureRaised, match=message) as refused:
        check_prerequisites(access(folder), AgentPlan(steps=(), sandbox=True))

    assert refused.value.failure.category is ErrorCategory.NOT_FOUND
    check_prerequisites(access(folder), AgentPlan(steps=(), sandbox=False))


def access(folder: str) -> dict[str, Any]:
    workspace = os.path.join(folder, "work", "job-0123456789abcdef_a.agent")
    return {"credential": {"kind": "api_key", "secret": "sk"}, "workspace": workspace}
