"""The credential is used but not visible: in no process, file or message."""

import json
import logging
import os
from pathlib import Path

import pytest

from longshore.core.tasks.states import TaskState
from longshore.execution.process_table import descendants
from tests.agents.harness import KEY, AgentHarness, open_harness, scenario
from tests.agents.held_cli import wait_for_file
from verification.messages_api import error, text, tool_use


@scenario
async def test_the_credential_is_not_visible_while_an_agent_works_or_afterwards(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    never, home = tmp_path / "never", tmp_path / "home"
    os.mkfifo(never)
    home.mkdir()
    script = [
        tool_use("Bash", {"command": f"env > seen; echo > begun; read nothing < {never}"}),
        # An upstream that repeats what it was shown, in words and in a header.
        error(500, f"not with {KEY}", headers={"x-you-sent": KEY}),
        text("done"),
    ]
    flags = {"agent.api_key": None, "log_level": "debug"}
    async with open_harness(home, script, flags=flags) as harness:
        await harness.define(options={"prompt": "Do it.", "tools": ["Bash"]})
        await harness.submit()
        await wait_for_file(harness.files() / "begun")

        processes = check_processes()
        assert {"claude", "bash", "longshore-task"} <= processes
        check_files(home)
        assert list(home.rglob("*.jsonl"))  # it had all that there is to look into
        never.write_text("go on\n")
        row = await harness.wait_finished()

        assert row.state is TaskState.COMPLETED, row.failure
        assert row.attempt == 2
        assert {request.credential for request in harness.requests()} == {KEY}
        await check_events(harness)
        check_files(home)
    printed = capfd.readouterr()
    assert caplog.text
    assert KEY not in f"{caplog.text} {printed.out} {printed.err}"


def check_processes() -> set[str]:
    """Look at what every process below this one was started with; their names."""
    names = set()
    for item in descendants(os.getpid()):
        folder = Path(f"/proc/{item}")
        started_with = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
        name = (folder / "comm").read_text().strip()
        assert KEY.encode() not in started_with, name
        names.add(name)
    return names


def check_files(folder: Path) -> None:
    """Look into every file: the store, what was kept of attempts, the agent's own home."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in paths if KEY.encode() in path.read_bytes()] == []


async def check_events(harness: AgentHarness) -> None:
    _, history = await harness.history()
    ((_, message),) = await harness.failures()
    # The API repeated the credential; the attempt's token replaces it.
    assert "message: not with " in message
    traces = [await harness.trace(attempt=attempt) for attempt in (1, 2)]
    stored = [await harness.file("logs/summary.log", attempt=attempt) for attempt in (1, 2)]
    reported = (
        f"{history} {await harness.output()} {json.dumps(traces)} {stored} {await harness.row()}"
    )
    assert KEY not in reported
