"""The file of a trace: there while the agent works, whole when it is over, its owner's alone."""

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any, cast

import pytest
from claude_agent_sdk import TextBlock, ToolUseBlock

from longshore.core.agents.trace import TRACE_FILE
from longshore.execution.runners.agent.tracing import AgentTracer, write_trace
from tests.agents.tracing_samples import RecordingReports, assistant_message, result_message


@pytest.fixture
def reports() -> RecordingReports:
    return RecordingReports()


def attempt_trace(folder: Path, reports: RecordingReports, summaries: list[str]) -> AgentTracer:
    return AgentTracer(str(folder), reports.send, reports.now, summaries.append)


def read(folder: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((folder / TRACE_FILE).read_text()))


def test_a_trace_is_written_while_the_step_runs_and_at_its_end(
    tmp_path: Path, reports: RecordingReports
) -> None:
    summaries: list[str] = []
    traces = attempt_trace(tmp_path, reports, summaries)

    with traces.trace_step("look", session_id="s1"):
        traces.on_message(assistant_message(TextBlock("hi")))
        half = read(tmp_path)
        traces.on_message(result_message(terminal_reason="completed"))
    with traces.trace_step("write", resumed=True):
        traces.finish("timeout", "timed out after 60 s")

    assert [(step["step"], step["end"]) for step in half["steps"]] == [("look", None)]
    whole = read(tmp_path)
    assert whole["version"] == 1
    ends = [(step["step"], step["end"]["how"], step["resumed"]) for step in whole["steps"]]
    assert ends == [("look", "completed", False), ("write", "timeout", True)]
    assert [line.split(" after ")[0] for line in summaries] == ["look: completed", "write: timeout"]
    assert not any("after" in line for line in reports.lines)


def test_an_interrupted_step_leaves_its_trace(tmp_path: Path, reports: RecordingReports) -> None:
    summaries: list[str] = []

    def broken_off() -> None:
        traces = attempt_trace(tmp_path, reports, summaries)
        with traces.trace_step("look"):
            traces.on_message(assistant_message(ToolUseBlock("t1", "Bash", {"command": "make"})))
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        broken_off()

    (step,) = read(tmp_path)["steps"]
    assert (step["end"]["how"], step["tools"][0]["outcome"]) == ("interrupted", "interrupted")
    assert summaries[0].startswith("look: interrupted after ")


def test_a_trace_that_cannot_be_written_fails_no_step(
    tmp_path: Path, reports: RecordingReports
) -> None:
    summaries: list[str] = []
    (tmp_path / "traces").write_text("in the way")

    traces = attempt_trace(tmp_path, reports, summaries)

    with traces.trace_step("look"):
        traces.on_message(assistant_message(TextBlock("hi")))

    assert reports.lines[0] == "look: hi"
    assert "could not follow" not in "".join(reports.lines)


def test_the_trace_file_is_private_and_written_atomically(tmp_path: Path) -> None:
    write_trace(str(tmp_path), [{"step": "one \ud800"}])
    path = tmp_path / TRACE_FILE
    first = path.read_bytes()

    with pytest.raises(TypeError):
        write_trace(str(tmp_path), [{"step": object()}])

    assert path.read_bytes() == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == [path.name]


def test_a_link_that_the_agent_created_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "attempt"
    folder.mkdir()
    (folder / ".session_trace.json").symlink_to(victim)

    write_trace(str(folder), [])

    assert victim.read_text() == "precious"
    assert read(folder) == {"version": 1, "steps": []}
