"""The child is killed in the middle of it: the next attempt goes on, and pays for nothing twice."""

import json
import os
from pathlib import Path

import pytest

from longshore.core.agents.prices import LIST_PRICES, TokenCounts
from longshore.core.tasks.states import TaskState
from tests.agents.harness import MODEL, SCHEMA, AgentHarness, open_harness, scenario, survivors
from tests.agents.held_cli import HeldCli, wait_for_file
from verification.messages_api import RequestState as Far
from verification.messages_api import Script, stall, structured, text, tool_use

GOOD = {"title": "Tides", "score": 7}
KILLS = 5
STEPS = [
    {"name": "outline", "prompt": "Outline it.", "outputSchema": SCHEMA},
    {"name": "write", "prompt": "Write about {{ steps.outline.title }}."},
]


@scenario
async def test_a_child_killed_at_five_points_is_gone_on_with_and_nothing_is_asked_twice(
    tmp_path: Path,
) -> None:
    cli = HeldCli(tmp_path / "cli")
    for where, number in (("start", 1), ("result", 4), ("start", 5)):
        cli.hold(where, number)
    os.mkfifo(tmp_path / "never")
    script = [
        Script.of(
            tool_use(
                "Bash", {"command": f"echo > kept; echo > begun; read nothing < {tmp_path}/never"}
            ),
            stall(),
            structured(GOOD),
            when="Outline",
        ),
        Script.of(text("A text on tides."), when="Write"),
    ]
    async with open_harness(tmp_path, script, flags={"agent.cli_path": cli.path}) as stage:
        retry = {"base": "10ms", "cap": "10ms", "maxAttempts": KILLS + 1}
        await stage.define(options={"steps": STEPS, "tools": ["Bash"]}, retry=retry)
        await stage.submit()

        # Before the first request.
        await cli.wait_held("start", 1)
        assert stage.api.requests == []
        await kill_attempt(stage, 1, among="claude-held")

        # While a tool runs.
        await wait_for_file(stage.files() / "begun")
        await kill_attempt(stage, 2, among="bash")

        # While the model answers.
        await stage.api.wait_for_state(Far.SILENT)
        check_goes_on(stage)
        await kill_attempt(stage, 3, among="claude")

        # With its answer in hand, before the result is told.
        await cli.wait_held("result", 4)
        await kill_attempt(stage, 4, among="claude")

        # Between two steps: the answer is there, and so nobody was asked.
        await cli.wait_held("start", 5)
        assert len(stage.requests(step="outline")) == 3
        await kill_attempt(stage, 5, among="claude-held")

        row = await stage.wait_finished()
        assert row.state is TaskState.COMPLETED, row.failure
        assert await stage.result() == "A text on tides."
        assert "outline: using the answer of an earlier attempt" in await stage.output()
        (written,) = stage.requests(step="write")
        assert "<task>\nWrite about Tides.\n</task>" in written.first_prompt
        assert len(stage.requests(step="outline")) == 3
        assert stage.repeated_requests(step="outline") == []
        last = KILLS + 1
        assert json.loads(await stage.file("artifacts/task-result.json", attempt=last)) == GOOD
        assert not stage.files().exists()
        await check_all_is_counted(stage)


async def kill_attempt(stage: AgentHarness, attempt: int, *, among: str) -> None:
    """Kill the child and nobody else; with the attempt everybody below it ends."""
    family = stage.process_tree()
    assert among in family.values(), family
    stage.kill_child()
    await stage.wait_attempt_finished(attempt)
    assert survivors(family) == {}


def check_goes_on(stage: AgentHarness) -> None:
    """The tool that was killed is told of, and what it had done is there."""
    first, second = stage.requests(step="outline")
    assert "interrupted" not in first.prompt
    told = json.dumps(second.messages)
    assert "Tool call interrupted" in told
    assert "outcome is unknown" in told
    assert "The process that you worked in was interrupted" in second.prompt
    assert (stage.files() / "kept").exists()


async def check_all_is_counted(stage: AgentHarness) -> None:
    """Every answer that came was counted, and once; so was every attempt."""
    row = await stage.row()
    spent = stage.api.usage_of()
    assert (row.usage.input_tokens, row.usage.output_tokens) == (
        spent.input_tokens,
        spent.output_tokens,
    )
    assert row.usage.turns == 3
    one = LIST_PRICES.cost_usd(MODEL, TokenCounts(input=100, output=10))
    assert row.usage.cost_usd == pytest.approx(3 * one)
    assert (row.attempt, row.attempts_used) == (KILLS + 1, KILLS)
    failures = await stage.failures()
    assert [category for category, _ in failures] == ["crash"] * KILLS
    assert all("SIGKILL" in said for _, said in failures)
