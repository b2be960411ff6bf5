"""Who helps an agent: another model, a server of tools, an agent below it; all of them counted."""

import json
import sys
from pathlib import Path

import pytest

from longshore.core.tasks.states import TaskState
from tests.agents.harness import KEY, MODEL, AgentHarness, scenario
from verification.messages_api import Request, Script, error, text, tool_use
from verification.messages_api.script import ReadyStep

MISSING = "claude-of-tomorrow"
# A server of one tool, which says with what it was started.
MCP_SERVER = """
import json, os, sys
about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
         "serverInfo": {"name": "clock", "version": "1"}}
tool = {"name": "chime", "description": "Chimes.", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    block = {"text": f"chimed {dict(os.environ)}", "type": "text"}
    answers = {"initialize": about, "tools/list": {"tools": [tool]},
               "tools/call": {"content": [block]}}
    if "id" in asked:
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": answers.get(asked["method"], {})}
        print(json.dumps(answer), flush=True)
"""


@scenario
async def test_a_fallback_model_an_mcp_server_and_a_subagent_are_used_and_counted(
    harness: AgentHarness, tmp_path: Path
) -> None:
    application = tmp_path / "clock.py"
    application.write_text(MCP_SERVER)
    below = {"description": "Count", "prompt": "Count it.", "subagent_type": "general-purpose"}
    steps = iter([tool_use("mcp__clock__chime", {}), tool_use("Agent", below), text("Done.")])

    def answer(request: Request) -> ReadyStep:
        return error(404) if request.model == MISSING else next(steps)

    harness.api.set_script([Script.of(answer, agents=[text("Counted.")])])
    options = {
        "prompt": "Do it.",
        "model": MISSING,
        "fallbackModel": MODEL,
        "tools": ["Agent", "mcp__clock__chime"],
        "mcpServers": {"clock": {"command": sys.executable, "args": [str(application)]}},
    }
    await harness.define(options=options)
    await harness.submit()

    row = await harness.wait_finished()

    assert row.state is TaskState.COMPLETED, row.failure
    # It waited for its subagent: there is one result, the last message.
    assert await harness.result() == "Done."
    refused = [item for item in harness.requests() if item.model == MISSING]
    requested = [item for item in harness.requests() if item.model == MODEL]
    assert refused
    assert [item.agent_id is None for item in requested] == [True, True, False, True]
    chimed = json.dumps(requested[1].messages)
    assert "chimed" in chimed
    assert KEY not in chimed
    assert "Counted." in json.dumps(requested[3].messages)
    # All four are paid for; turns are the agent's own.
    assert (row.usage.input_tokens, row.usage.turns) == (400, 3)
    (traced,) = await harness.trace()
    assert [item["kind"] for item in traced["subagents"]] == ["general-purpose"]
    assert traced["costUsd"] == pytest.approx(row.usage.cost_usd)
    # The gateway's answers are those that the SDK reports.
    assert any(turn["costUsd"] for turn in traced["turns"])
