"""What counts as the result of a step that has a schema, and what happens to what does not."""

import json

from longshore.core.tasks.states import TaskState
from tests.agents.harness import SCHEMA, AgentHarness, scenario
from verification.messages_api import Script, structured, text

GOOD = {"title": "Tides", "score": 7}
NONE_AT_ALL = "[structured-output-enforce]"


@scenario
async def test_a_wrapped_result_is_unwrapped(
    harness: AgentHarness,
) -> None:
    harness.api.set_script(
        [
            Script.of(text(f"Here:\n```json\n{json.dumps({'output': GOOD})}\n```"), when="wrapped"),
            Script.of(text(json.dumps(json.dumps(GOOD))), when="stringified"),
        ]
    )
    for name in ("wrapped", "stringified"):
        await harness.define(name, options={"prompt": f"Do it {name}.", "outputSchema": SCHEMA})
    await harness.submit(*({"taskId": name, "name": name} for name in ("wrapped", "stringified")))

    await harness.wait_finished("wrapped", "stringified")

    for key in ("wrapped", "stringified"):
        assert await harness.result(key) == GOOD, (await harness.row(key)).failure
        # The command line asks for it once more by itself; we do not.
        assert [NONE_AT_ALL in item.prompt for item in harness.requests(key)] == [False, True]


@scenario
async def test_an_agent_without_a_result_gets_one_turn_to_repair_it(harness: AgentHarness) -> None:
    harness.api.set_script([text("Seven."), text("Still seven."), structured(GOOD)])
    await harness.define(options={"prompt": "Do it.", "outputSchema": SCHEMA})
    await harness.submit()

    row = await harness.wait_finished()

    assert row.state is TaskState.COMPLETED, row.failure
    assert await harness.result() == GOOD
    *_, repair = harness.requests()
    assert "does not have the required format" in repair.prompt
    assert "Seven." in json.dumps(repair.messages)
    assert harness.repeated_requests() == []
    assert row.usage.turns == len(harness.requests()) == 3
    assert "the answer contains no result" in await harness.output()


@scenario
async def test_a_schema_that_is_never_met_fails_the_attempt_after_one_repair(
    harness: AgentHarness,
) -> None:
    harness.api.set_script([structured({"title": "Tides", "score": "seven"})])
    await harness.define(options={"prompt": "Do it.", "outputSchema": SCHEMA})
    await harness.submit()

    row = await harness.wait_finished()

    assert row.state is TaskState.FAILED
    first, second = await harness.failures()
    assert first[0] == second[0] == "parse"
    assert "/score: must be integer" in first[1]
    *_, last = harness.requests()
    prompts = [text for role, text in last.conversation if role == "user"]
    message = [text for text in prompts if "required format" in text]
    assert len(message) == row.attempts_used == 2
    assert all("/score: must be integer" in text for text in message)
    assert harness.repeated_requests() == []


@scenario
async def test_an_empty_answer_is_asked_for_again_too(harness: AgentHarness) -> None:
    harness.api.set_script([text(""), text(""), text("Seven.")])
    await harness.define(options={"prompt": "Do it."})
    await harness.submit()

    row = await harness.wait_finished()

    assert row.state is TaskState.COMPLETED, row.failure
    assert await harness.result() == "Seven."
    assert "Your last message is empty" in harness.requests()[-1].prompt


@scenario
async def test_a_refusal_of_the_model_is_final(harness: AgentHarness) -> None:
    harness.api.set_script([text("I cannot do that.", stop_reason="refusal")])
    await harness.define(options={"prompt": "Do it."})
    await harness.submit()

    row = await harness.wait_finished()

    assert row.state is TaskState.FAILED
    ((category, message),) = await harness.failures()
    assert category == "validation"
    assert "refused" in message
