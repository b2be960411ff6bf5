"""A sandbox that was asked for: there is one and nobody gets out of it, or nothing is run."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longshore.core.agents.plan import AgentPlan
from longshore.core.tasks.error_categories import ErrorCategory
from longshore.core.tasks.failures import FailureRaised
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
            if (found := shutil.which(name)) is not None:
                (self.programs / name).symlink_to(found)

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
        made = SandboxMachine(Path(folder))
        monkeypatch.setenv("PATH", str(made.programs))
        yield made


@scenario
async def test_a_sandbox_is_refused_where_there_is_none_and_kept_to_where_there_is_one(
    machine: SandboxMachine,
) -> None:
    async with open_harness(machine.folder, flags={"agent.allow_bypass": True}) as stage:
        await check_missing_is_refused(stage)
        machine.install("bwrap", BWRAP)
        machine.install("socat", SOCAT)
        await check_nobody_gets_out(stage, machine)
        machine.install("socat", BROKEN)
        await check_nothing_runs_without(stage, machine)


async def define(stage: AgentHarness, key: str, **options: Any) -> None:
    given = {"prompt": f"Work: {key} .", "tools": ["Bash"], "sandbox": True, **options}
    await stage.define(key, options=given)


async def check_missing_is_refused(stage: AgentHarness) -> None:
    await define(stage, "missing")
    await stage.submit({"taskId": "missing", "name": "missing"})

    row = await stage.wait_finished("missing")

    assert (row.state, row.attempt) == (TaskState.FAILED, 1)
    ((category, said),) = await stage.failures("missing")
    assert category == "not-found"
    assert "asks for a sandbox, which needs bwrap and socat" in said
    assert stage.api.requests == []


async def check_nobody_gets_out(stage: AgentHarness, machine: SandboxMachine) -> None:
    out = {"command": f"touch {machine.file('out')}", "dangerouslyDisableSandbox": True}
    stage.api.set_script(
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
    await define(stage, "listed", tools=["Bash(git *)"])
    await define(stage, "bypass", permissionMode="bypassPermissions")
    await stage.submit({"taskId": listed, "name": "listed"}, {"taskId": "bypass", "name": "bypass"})

    await stage.wait_finished(listed, "bypass")

    _, unlisted, git = [request.tool_results for request in stage.requests(listed)]
    assert unlisted[0].is_error
    assert not machine.file("unlisted").exists()
    assert "git version" in git[0].text, git
    assert "git --version" in machine.sandbox_log
    _, asked = stage.requests("bypass")
    ran = machine.file("out").exists()
    assert ran == ("touch" in machine.sandbox_log), asked.tool_results
    left = {path.name for path in stage.work_folder.iterdir()}
    assert {name for name in left if not name.startswith("job-")} == set()


async def check_nothing_runs_without(stage: AgentHarness, machine: SandboxMachine) -> None:
    stage.api.set_script(
        [tool_use("Bash", {"command": f"touch {machine.file('without')}"}), text("done")]
    )
    await define(stage, "without")
    await stage.submit({"taskId": "without", "name": "without"})

    await stage.wait_finished("without")

    (told,) = stage.requests("without")[1].tool_results
    assert told.is_error
    assert "Sandbox is required" in told.text
    assert not machine.file("without").exists()


@pytest.mark.parametrize(
    ("installed", "folder", "said"),
    [
        ((), "/data", "needs bwrap and socat on"),
        (("bwrap",), "/data", "needs socat on"),
        (("socat",), "/data", "needs bwrap on"),
        (("bwrap", "socat"), f"/{'d' * 60}", "too long for its sockets"),
    ],
)
def test_what_is_missing_for_a_sandbox_is_named(
    machine: SandboxMachine, installed: tuple[str, ...], folder: str, said: str
) -> None:
    for name in installed:
        machine.install(name, BROKEN)

    with pytest.raises(FailureRaised, match=said) as refused:
        check_prerequisites(access(folder), AgentPlan(steps=(), sandbox=True))

    assert refused.value.failure.category is ErrorCategory.NOT_FOUND
    check_prerequisites(access(folder), AgentPlan(steps=(), sandbox=False))


def access(folder: str) -> dict[str, Any]:
    workspace = os.path.join(folder, "work", "job-0123456789abcdef_a.agent")
    return {"credential": {"kind": "api_key", "secret": "sk"}, "workspace": workspace}
