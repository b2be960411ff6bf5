"""A stored conversation is continued, and its final answer is used."""

import json
from typing import Any

import pytest

from longshore.core.agents.transcripts import (
    StoredAnswer,
    entry_id,
    final_answer,
    merge_entries,
    new_entries,
    session_id,
    tool_request_ids,
)

PROMPT = {"type": "user", "uuid": "p", "message": {"role": "user", "content": "do it"}}


def assistant(*blocks: Any, stop: str | None = "end_turn", **more_: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"content": list(blocks), "stop_reason": stop}, **more_}


def called(name: str, tool_input: Any = None, *, number: str = "t1") -> dict[str, Any]:
    block = {"type": "tool_use", "id": number, "name": name, "input": tool_input or {}}
    return assistant(block, stop="tool_use")


def tool_result(number: str = "t1", *, failed: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": number, "is_error": failed}
    return {"type": "user", "message": {"content": [block]}}


TEXT_MESSAGE = assistant({"type": "text", "text": "the "}, {"type": "text", "text": "end"})


def test_the_requested_tools_are_those_of_the_model_s_messages() -> None:
    entries = [PROMPT, called("Bash"), tool_result(), called("Read", number="t2"), TEXT_MESSAGE]

    assert tool_request_ids(entries) == {"t1", "t2"}


def test_a_session_belongs_to_its_task_and_step_for_ever() -> None:
    first = session_id("job_a", "task")

    assert first == session_id("job_a", "task")
    assert len({first, session_id("job_a", "b"), session_id("job_", "atask")}) == 3
    assert [len(part) for part in first.split("-")] == [8, 4, 4, 4, 12]


@pytest.mark.parametrize(
    ("entries", "answer"),
    [
        ([], None),
        ([PROMPT], None),
        ([PROMPT, TEXT_MESSAGE], StoredAnswer(text="the end")),
        ([PROMPT, TEXT_MESSAGE, {"type": "last-prompt"}], StoredAnswer(text="the end")),
        ([PROMPT, TEXT_MESSAGE, PROMPT], None),
        ([PROMPT, assistant({"type": "text", "text": "half"}, stop=None)], None),
        ([PROMPT, called("Bash")], None),
        ([PROMPT, called("Bash"), tool_result()], None),
        ([PROMPT, called("StructuredOutput", {"a": 1})], None),
        ([PROMPT, called("StructuredOutput", {"a": 1}), tool_result(failed=True)], None),
        (
            [PROMPT, called("StructuredOutput", {"a": 1}), tool_result()],
            StoredAnswer(structured={"a": 1}),
        ),
        (
            [PROMPT, TEXT_MESSAGE, {**tool_result("x"), "isSidechain": True}],
            StoredAnswer(text="the end"),
        ),
        ([{"type": "assistant", "message": None}], None),
        ([{"type": "assistant", "message": {"content": "hm", "stop_reason": "end_turn"}}],
         StoredAnswer(text="hm")),
        ([{"type": "assistant", "message": {"content": 3, "stop_reason": "end_turn"}}],
         StoredAnswer(text="")),
    ],
)  # fmt: skip
def test_an_answer_is_found_if_the_conversation_ends_with_one(
    entries: list[dict[str, Any]], answer: StoredAnswer | None
) -> None:
    assert final_answer(entries) == answer


def test_lines_that_are_known_or_broken_are_passed_over() -> None:
    lines = [{"uuid": "a", "type": "x"}, {"uuid": "b", "type": "x"}, {"type": "no id"}]
    data = b"\n".join(json.dumps(line).encode() for line in lines) + b'\n[1]\n{"uuid": "c", "ty'

    assert list(new_entries(data, {"a"})) == lines[1:]
    assert list(new_entries(data, {"a", "b", entry_id({"type": "no id"})})) == []


def test_parts_are_put_together_in_order_and_each_entry_once() -> None:
    a, b, c = ({"uuid": name} for name in "abc")

    assert merge_entries([[a, b], [b], [c, a]]) == [a, b, c]
