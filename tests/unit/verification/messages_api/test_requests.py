"""What a test reads from the requests that the stand-in was sent."""

import pytest

from tests.unit.verification.messages_api.client import AGENT, SESSION, request
from verification.messages_api import Request, RequestState, ToolResult, repeated_requests

REMINDER = {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>\n"}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _answered(*messages: tuple[str, object]) -> Request:
    received = request(*messages)
    received.state = RequestState.ANSWERED
    return received


def test_the_first_and_the_last_prompt_are_distinguished() -> None:
    received = request(("user", "begin"), ("assistant", "done"), ("user", "Go on."))

    assert (received.first_prompt, received.prompt) == ("begin", "Go on.")


def test_the_reminders_of_the_cli_are_no_part_of_a_prompt() -> None:
    received = request(
        ("user", [REMINDER, _text("do it")]), ("assistant", "ok"), ("user", [REMINDER])
    )

    assert (received.first_prompt, received.prompt) == ("do it", "do it")


def test_a_request_without_a_prompt_has_an_empty_one() -> None:
    assert (request().first_prompt, request().prompt, request().tool_results) == ("", "", [])


def test_results_of_tools_are_those_of_the_last_message() -> None:
    old = {"type": "tool_result", "tool_use_id": "t1", "content": "old"}
    new = {
        "type": "tool_result",
        "tool_use_id": "t2",
        "content": [_text("hi\n\n<system-reminder>9 tokens left</system-reminder>")],
        "is_error": True,
    }

    received = request(("user", [old]), ("assistant", "more"), ("user", [new]))

    assert received.tool_results == [ToolResult(tool_use_id="t2", text="hi", is_error=True)]


def test_the_system_text_is_read_in_both_forms() -> None:
    assert request(system="be kind").system == "be kind"
    assert request(system=[_text("be kind"), _text("be brief")]).system == "be kind\nbe brief"


def test_headers_say_who_asks() -> None:
    received = request(headers={SESSION: "s1", AGENT: "a1", "x-api-key": "key"}, model="m")

    assert (received.session_id, received.agent_id, received.credential, received.model) == (
        "s1",
        "a1",
        "key",
        "m",
    )


def test_a_token_is_a_credential_too() -> None:
    assert request(headers={"authorization": "Bearer token"}).credential == "token"
    assert request().credential is None


def test_tools_are_known_by_name_or_kind() -> None:
    received = request(tools=[{"name": "Bash"}, {"type": "web_search"}])

    assert received.tools == ["Bash", "web_search"]


def test_the_same_question_after_a_whole_answer_asks_again() -> None:
    first, second = _answered(("user", "do it")), request(("user", "do it"))

    assert repeated_requests([first, second]) == [(second, first)]


def test_a_question_that_continues_without_the_answer_asks_again() -> None:
    first = _answered(("user", "do it"))

    assert request(("user", "do it"), ("user", "Go on.")).repeats(first)
    assert request(("user", [_text("do it"), _text("Go on.")])).repeats(first)


def test_a_question_that_has_the_answer_in_it_does_not_ask_again() -> None:
    first = _answered(("user", "do it"))

    goes_on = request(("user", "do it"), ("assistant", "half"), ("user", "Go on."))

    assert not goes_on.repeats(first)


def test_another_question_does_not_ask_again() -> None:
    assert not request(("user", "do that")).repeats(_answered(("user", "do it")))


@pytest.mark.parametrize(
    "state", [state for state in RequestState if state is not RequestState.ANSWERED]
)
def test_a_request_that_was_not_answered_completely_may_be_repeated(state: RequestState) -> None:
    first = request(("user", "do it"))
    first.state = state

    assert not request(("user", "do it")).repeats(first)


def test_reminders_and_marks_for_the_cache_make_no_other_question() -> None:
    marked = {**_text("do it"), "cache_control": {"type": "ephemeral"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": "hi<system-reminder>9</system-reminder>",
    }
    again = {**result, "content": "hi<system-reminder>8</system-reminder>"}
    first = _answered(("user", [REMINDER, marked]), ("assistant", "x"), ("user", [result]))

    second = request(("user", [_text("do it")]), ("assistant", "x"), ("user", [again]))

    assert second.repeats(first)
