"""Requests: what the stand-in was sent, kept with what became of it.

A test asks here what a model would have seen: the prompt, the results of tools, the system text, by
which credential and in which session. ``repeats`` is the question that matters after a crash:
whether an answer was paid for twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from verification.messages_api.script import Usage

SESSION_HEADER = "x-claude-code-session-id"
AGENT_HEADER = "x-claude-code-agent-id"
# What the CLI adds for the model about its environment and the tokens left: it is not a prompt, and
# it differs from run to run.
_REMINDER = re.compile(r"\s*<system-reminder>.*?</system-reminder>\s*", re.DOTALL)

ConversationBlock = tuple[str, str]
"""Returns the role, and the block as text."""


class RequestState(StrEnum):
    """How far a request has come."""

    RECEIVED = "received"
    SILENT = "silent"  # all was sent that will be sent, and the connection is open
    ANSWERED = "answered"  # the whole answer is on its way
    REFUSED = "refused"  # by a status, or by a body that is no message
    BROKEN = "broken"  # broken off by the script
    ABANDONED = "abandoned"  # the client disconnected before the response was complete


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What came back from a tool."""

    tool_use_id: str
    text: str
    is_error: bool


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request, and what became of it."""

    number: int  # from 1, over all scenarios
    scenario: str
    method: str
    path: str
    query: str
    headers: Mapping[str, str] = field(repr=False)  # names in lower case
    body: Mapping[str, Any] = field(repr=False)
    received_at_s: float  # on a clock that only counts
    state: RequestState = RequestState.RECEIVED
    usage: Usage | None = None  # of the answer, once it is whole
    answer: Mapping[str, Any] | None = field(default=None, repr=False)  # the message, once whole

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return str(self.body.get("model", ""))

    @property
    def session_id(self) -> str | None:
        """The session of the CLI; its subagents have the same."""
        return self.headers.get(SESSION_HEADER)

    @property
    def agent_id(self) -> str | None:
        """Which subagent asks; None for the agent itself."""
        return self.headers.get(AGENT_HEADER)

    @property
    def credential(self) -> str | None:
        """The key or the token that the request came with."""
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return self.headers.get("x-api-key") or bearer or None

    @property
    def tools(self) -> list[str]:
        """The names of the tools that the model may use."""
        return [str(tool.get("name", tool.get("type"))) for tool in self.body.get("tools", ())]

    @property
    def system(self) -> str:
        """The system text, in one."""
        return "\n".join(_text_of(block) for block in _blocks(self.body.get("system", "")))

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation as it was sent."""
        result: Sequence[Mapping[str, Any]] = self.body.get("messages", ())
        return result

    @property
    def first_prompt(self) -> str:
        """The first prompt, without the CLI's reminders."""
        return next((text for text in map(_text_in, self._user_messages()) if text), "")

    @property
    def prompt(self) -> str:
        """The last prompt."""
        return next((text for text in map(_text_in, reversed(self._user_messages())) if text), "")

    @property
    def tool_results(self) -> list[ToolResult]:
        """The results in the last message: what the tools gave that were asked for just before."""
        last = self._user_messages()[-1:]
        return [
            ToolResult(
                tool_use_id=str(block.get("tool_use_id", "")),
                text="\n".join(_text_of(part) for part in _blocks(block.get("content", ""))),
                is_error=bool(block.get("is_error", False)),
            )
            for message in last
            for block in _blocks(message.get("content", ""))
            if block.get("type") == "tool_result"
        ]

    @property
    def conversation(self) -> list[ConversationBlock]:
        """The whole conversation, block by block, without the parts that differ between runs."""
        return [
            (str(message.get("role", "")), json.dumps(_normalized(block), sort_keys=True))
            for message in self.messages
            for block in _blocks(message.get("content", ""))
            if block.get("type") != "text" or _text_of(block)
        ]

    def repeats(self, earlier: Request) -> bool:
        """Whether this asks what ``earlier`` has been given a whole answer to.

        It does when it continues the same conversation without the answer.
        """
        if earlier is self or earlier.state is not RequestState.ANSWERED:
            return False
        requested, now = earlier.conversation, self.conversation
        if now[: len(requested)] != requested:
            return False
        return (
            now[len(requested) : len(requested) + 1] == [] or now[len(requested)][0] != "assistant"
        )

    def document(self) -> dict[str, Any]:
        """Returns the request as JSON, for another process."""
        return {
            "number": self.number,
            "scenario": self.scenario,
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "headers": dict(self.headers),
            "body": self.body,
            "state": self.state.value,
            "model": self.model,
            "sessionId": self.session_id,
            "agentId": self.agent_id,
            "firstPrompt": self.first_prompt,
            "prompt": self.prompt,
            "receivedAtS": self.received_at_s,
        }

    def _user_messages(self) -> list[Mapping[str, Any]]:
        return [message for message in self.messages if message.get("role") == "user"]


def repeated_requests(requests: Sequence[Request]) -> list[tuple[Request, Request]]:
    """Each request that asks for an answer given before, with the one that got it."""
    return [
        (later, earlier)
        for index, later in enumerate(requests)
        for earlier in requests[:index]
        if later.repeats(earlier)
    ]


def _text_in(message: Mapping[str, Any]) -> str:
    texts = (_text_of(block) for block in _blocks(message.get("content", "")))
    return "\n".join(text for text in texts if text)


def _blocks(content: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    elif isinstance(content, Sequence):
        yield from (block for block in content if isinstance(block, Mapping))


def _text_of(block: Mapping[str, Any]) -> str:
    return _REMINDER.sub("", str(block.get("text", ""))) if block.get("type") == "text" else ""


def _normalized(value: Any) -> Any:
    if isinstance(value, str):
        return _REMINDER.sub("", value)
    if isinstance(value, Mapping):
        # Marks for the cache wander through a conversation as it grows.
        return {name: _normalized(item) for name, item in value.items() if name != "cache_control"}
    return [_normalized(item) for item in value] if isinstance(value, list) else value
