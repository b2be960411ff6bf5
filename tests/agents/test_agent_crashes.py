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
    async with open_harness(tmp_path, script, flags={"agent.cli_path": cli.path}) as harness_:
        retry = {"base": "10ms", "cap": "10ms", "maxAttempts": KILLS + 1}
        await harness_.define(options={"steps": STEPS, "tools": ["Bash"]}, retry=retry)
        await harness_.submit()

        # Before the first request.
        await cli.wait_held("start", 1)
        assert harness_.api.requests == []
        await kill_attempt(harness_, 1, among="claude-held")

        # While a tool runs.
        await wait_for_file(harness_.files() / "begun")
        await kill_attempt(harness_, 2, among="bash")

        # While the model answers.
        await harness_.api.wait_for_state(Far.SILENT)
        check_goes_on(harness_)
        await kill_attempt(harness_, 3, among="claude")

        # With its answer in hand, before the result is told.
        await cli.wait_held("result", 4)
        await kill_attempt(harness_, 4, among="claude")

        # Between two steps: the answer is there, and so nobody was asked.
        await cli.wait_held("start", 5)
        assert len(harness_.requests(step="outline")) == 3
        await kill_attempt(harness_, 5, among="claude-held")

        row = await harness_.wait_finished()
        assert row.state is TaskState.COMPLETED, row.failure
        assert await harness_.result() == "A text on tides."
        assert "outline: using the answer of an earlier attempt" in await harness_.output()
        (written,) = harness_.requests(step="write")
        assert "<task>\nWrite about Tides.\n</task>" in written.first_prompt
        assert len(harness_.requests(step="outline")) == 3
        assert harness_.repeated_requests(step="outline") == []
        last = KILLS + 1
        assert json.loads(await harness_.file("artifacts/task-result.json", attempt=last)) == GOOD
        assert not harness_.files().exists()
        await check_all_is_counted(harness_)


async def kill_attempt(harness_: AgentHarness, attempt: int, *, among: str) -> None:
    """Kill the child and nobody else; with the attempt everybody below it ends."""
    family = harness_.process_tree()
    assert among in family.values(), family
    harness_.kill_child()
    await harness_.wait_attempt_finished(attempt)
    assert survivors(family) == {}


def check_goes_on(harness_: AgentHarness) -> None:
    """The tool that was killed is told of, and what it had done is there."""
    first, second = harness_.requests(step="outline")
    assert "interrupted" not in first.prompt
    reported = json.dumps(second.messages)
    assert "Tool call interrupted" in reported
    assert "outcome is unknown" in reported
    assert "The process that you worked in was interrupted" in second.prompt
    assert (harness_.files() / "kept").exists()


async def check_all_is_counted(harness_: AgentHarness) -> None:
    """Every answer that came was counted, and once; so was every attempt."""
    row = await harness_.row()
    spent = harness_.api.usage_of()
    assert (row.usage.input_tokens, row.usage.output_tokens) == (
        spent.input_tokens,
        spent.output_tokens,
    )
    assert row.usage.turns == 3
    item = LIST_PRICES.cost_usd(MODEL, TokenCounts(input=100, output=10))
    assert row.usage.cost_usd == pytest.approx(3 * item)
    assert (row.attempt, row.attempts_used) == (KILLS + 1, KILLS)
    failures = await harness_.failures()
    assert [category for category, _ in failures] == ["crash"] * KILLS
    assert all("SIGKILL" in message for _, message in failures)
