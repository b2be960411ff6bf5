"""What counts as the result of a step that has a schema, and what happens to what does not."""

import json

from longshore.core.states import TaskState
from longshore.testing.messages_api import Script, structured, text
from tests.agents.stage import SCHEMA, Stage, scenario

GOOD = {"title": "Tides", "score": 7}
NONE_AT_ALL = "[structured-output-enforce]"


@scenario
async def test_a_result_that_came_dressed_up_is_taken_as_it_was_meant(stage: Stage) -> None:
    stage.api.play(
        [
            Script.of(text(f"Here:\n```json\n{json.dumps({'output': GOOD})}\n```"), when="wrapped"),
            Script.of(text(json.dumps(json.dumps(GOOD))), when="stringified"),
        ]
    )
    for name in ("wrapped", "stringified"):
        await stage.define(name, options={"prompt": f"Do it {name}.", "outputSchema": SCHEMA})
    await stage.submit(*({"taskId": name, "name": name} for name in ("wrapped", "stringified")))

    await stage.over("wrapped", "stringified")

    for key in ("wrapped", "stringified"):
        assert await stage.result(key) == GOOD, (await stage.row(key)).failure
        # The command line asks for it once more by itself; we do not.
        assert [NONE_AT_ALL in one.prompt for one in stage.requests(key)] == [False, True]


@scenario
async def test_who_hands_in_nothing_is_asked_once_to_put_it_right(stage: Stage) -> None:
    stage.api.play([text("Seven."), text("I said seven."), structured(GOOD)])
    await stage.define(options={"prompt": "Do it.", "outputSchema": SCHEMA})
    await stage.submit()

    row = await stage.over()

    assert row.state is TaskState.COMPLETED, row.failure
    assert await stage.result() == GOOD
    *_, repair = stage.requests()
    assert "does not have the required shape" in repair.prompt
    assert "Seven." in json.dumps(repair.messages)
    assert stage.asked_again() == []
    assert row.usage.turns == len(stage.requests()) == 3
    assert "nothing was handed in" in await stage.output()


@scenario
async def test_a_schema_that_is_never_met_fails_the_attempt_after_one_repair(stage: Stage) -> None:
    stage.api.play([structured({"title": "Tides", "score": "seven"})])
    await stage.define(options={"prompt": "Do it.", "outputSchema": SCHEMA})
    await stage.submit()

    row = await stage.over()

    assert row.state is TaskState.FAILED
    first, second = await stage.failures()
    assert first[0] == second[0] == "parse"
    assert "/score: must be integer" in first[1]
    *_, last = stage.requests()
    said = [text for role, text in last.conversation if role == "user" and "required shape" in text]
    assert len(said) == row.attempts_used == 2
    assert all("/score: must be integer" in text for text in said)
    assert stage.asked_again() == []


@scenario
async def test_an_empty_answer_is_asked_for_again_too(stage: Stage) -> None:
    stage.api.play([text(""), text(""), text("Seven.")])
    await stage.define(options={"prompt": "Do it."})
    await stage.submit()

    row = await stage.over()

    assert row.state is TaskState.COMPLETED, row.failure
    assert await stage.result() == "Seven."
    assert "Your last message is empty" in stage.requests()[-1].prompt


@scenario
async def test_a_refusal_of_the_model_is_final(stage: Stage) -> None:
    stage.api.play([text("I cannot do that.", stop_reason="refusal")])
    await stage.define(options={"prompt": "Do it."})
    await stage.submit()

    row = await stage.over()

    assert row.state is TaskState.FAILED
    ((category, said),) = await stage.failures()
    assert category == "validation"
    assert "refused" in said
