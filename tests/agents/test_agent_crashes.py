"""A killed child: the next attempt continues and pays for nothing twice."""

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
async def test_an_agent_killed_at_five_points_resumes_and_repeats_no_request(
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
    async with open_harness(tmp_path, script, flags={"agent.cli_path": cli.path}) as harness:
        retry = {"base": "10ms", "cap": "10ms", "maxAttempts": KILLS + 1}
        await harness.define(options={"steps": STEPS, "tools": ["Bash"]}, retry=retry)
        await harness.submit()

        # Before the first request.
        await cli.wait_held("start", 1)
        assert harness.api.requests == []
        await kill_attempt(harness, 1, among="claude-held")

        # While a tool runs.
        await wait_for_file(harness.files() / "begun")
        await kill_attempt(harness, 2, among="bash")

        # While the model answers.
        await harness.api.wait_until(lambda: len(harness.requests(step="outline")) == 2)
        check_continues(harness)
        await harness.api.wait_for_state(Far.SILENT)
        await kill_attempt(harness, 3, among="claude")

        # The answer has arrived, but the CLI has not printed the result.
        await cli.wait_held("result", 4)
        await kill_attempt(harness, 4, among="claude")

        # Between two steps: the stored answer was used without a request.
        await cli.wait_held("start", 5)
        assert len(harness.requests(step="outline")) == 3
        await kill_attempt(harness, 5, among="claude-held")

        row = await harness.wait_finished()
        assert row.state is TaskState.COMPLETED, row.failure
        assert await harness.result() == "A text on tides."
        assert "outline: using the answer of an earlier attempt" in await harness.output()
        (written,) = harness.requests(step="write")
        assert "<task>\nWrite about Tides.\n</task>" in written.first_prompt
        assert len(harness.requests(step="outline")) == 3
        assert harness.repeated_requests(step="outline") == []
        last = KILLS + 1
        assert json.loads(await harness.file("artifacts/task-result.json", attempt=last)) == GOOD
        assert not harness.files().exists()
        await check_everything_is_counted_once(harness)


async def kill_attempt(harness: AgentHarness, attempt: int, *, among: str) -> None:
    """Kill the child only; all its descendants end with the attempt."""
    family = harness.process_tree()
    assert among in family.values(), family
    harness.kill_child()
    await harness.wait_attempt_finished(attempt)
    assert survivors(family) == {}


def check_continues(harness: AgentHarness) -> None:
    """The model learns of the interrupted tool, whose changes are still there."""
    first, second = harness.requests(step="outline")
    assert "interrupted" not in first.prompt
    reported = json.dumps(second.messages)
    assert "Tool call interrupted" in reported
    assert "outcome is unknown" in reported
    assert "The process that you worked in was interrupted" in second.prompt
    assert (harness.files() / "kept").exists()


async def check_everything_is_counted_once(harness: AgentHarness) -> None:
    """Every answer and every attempt is counted once."""
    row = await harness.row()
    spent = harness.api.usage_of()
    assert (row.usage.input_tokens, row.usage.output_tokens) == (
        spent.input_tokens,
        spent.output_tokens,
    )
    assert row.usage.turns == 3
    item = LIST_PRICES.cost_usd(MODEL, TokenCounts(input=100, output=10))
    assert row.usage.cost_usd == pytest.approx(3 * item)
    assert (row.attempt, row.attempts_used) == (KILLS + 1, KILLS)
    failures = await harness.failures()
    assert [category for category, _ in failures] == ["crash"] * KILLS
    assert all("SIGKILL" in message for _, message in failures)
