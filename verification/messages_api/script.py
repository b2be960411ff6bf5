"""Scripts: the responses of the fake Messages API, as readable values.

A script is a list of steps. Each request takes the next one and the last one repeats, so
``[error(529), text("ok")]`` fails once and then works, and ``[error(500)]`` never works. A step may
also be a function of the request that gives a step. Where several conversations come to one place,
``Script.of(..., when="word")`` is taken by those whose first prompt has that word in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

if TYPE_CHECKING:
    from verification.messages_api.requests import Request

STRUCTURED_OUTPUT = "StructuredOutput"
"""The tool by which an agent hands in a result that has a schema."""

ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""What the API calls an error of a status; ``api_error`` for every other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The usage that a response reports, in tokens."""

    input_tokens: int = 100
    output_tokens: int = 10
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )


NO_USAGE = Usage(input_tokens=0, output_tokens=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock:
    """A block of text in an answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBlock:
    """A block of thinking in an answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A block that asks for a tool; its id is made up when the answer is sent, unless given."""

    name: str
    input: Mapping[str, Any]
    id: str | None = None


Block = TextBlock | ThinkingBlock | ToolCall


class DeliveryOptions(TypedDict, total=False):
    """How a step of any kind may be delivered."""

    headers: Mapping[str, str]
    delay_s: float
    gate: str


class AnswerOptions(DeliveryOptions, total=False):
    """How an answer may be delivered, and what else may be in it."""

    event_delay_s: float
    usage: Usage
    stop_reason: str
    thinking: str
    preamble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery:
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0  # before the first byte
    gate: str | None = None  # not before the test has released it


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(_Delivery):
    """A message of the model."""

    blocks: tuple[Block, ...]
    stop_reason: str = "end_turn"
    usage: Usage = field(default_factory=Usage)
    event_delay_s: float = 0.0  # after each event of the stream
    message_id: str | None = None  # None: a new one for each request


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpError(_Delivery):
    """A refusal by status, with the API's own error body."""

    status: int
    error_type: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw(_Delivery):
    """Any body at all: a proxy's page, broken JSON."""

    status: int
    body: str
    content_type: str


class AnswerFault(StrEnum):
    """How an answer breaks off."""

    SILENCE = "silence"
    RESET = "reset"
    END = "end"
    ERROR_EVENT = "error event"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenAnswer(_Delivery):
    """An answer that never becomes whole."""

    fault: AnswerFault
    after: int | None  # events of the stream before it breaks; None: not even the headers come
    answer: Answer
    error_type: str = "api_error"
    message: str = ""


ReadyStep = Answer | HttpError | Raw | BrokenAnswer
Step = ReadyStep | Callable[["Request"], ReadyStep]
Condition = Callable[["Request"], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Steps, and which requests take them. All conditions that are given must hold."""

    steps: tuple[Step, ...]
    when: str | Condition | None = None  # a word of the first prompt, or a function of the request
    prompt: str | None = None  # a word of the last prompt
    session: str | None = None
    agents: tuple[Script, ...] = ()  # for the subagents of a conversation that took this script
    per_session: bool = False  # each session walks it from the start, instead of all together

    @classmethod
    def of(
        cls,
        *steps: Step,
        when: str | Condition | None = None,
        prompt: str | None = None,
        session: str | None = None,
        agents: ScriptSource = (),
        per_session: bool = False,
    ) -> Script:
        """A script of these steps, which only some requests take."""
        return cls(
            steps=steps,
            when=when,
            prompt=prompt,
            session=session,
            agents=as_scripts(agents),
            per_session=per_session,
        )

    def matches(self, request: Request) -> bool:
        """Whether this request is to be answered from here."""
        if self.session is not None and request.session_id != self.session:
            return False
        if self.prompt is not None and not has_word(request.prompt, self.prompt):
            return False
        if callable(self.when):
            return self.when(request)
        return self.when is None or has_word(request.first_prompt, self.when)


ScriptSource = Sequence["Step | Script"]
"""What a scenario may be given: the steps of one script, or several scripts."""


def as_scripts(source: ScriptSource, *, agents: ScriptSource = ()) -> tuple[Script, ...]:
    """Scripts as they are; bare steps, which must stand together, as one script for everybody."""
    scripts = tuple(entry for entry in source if isinstance(entry, Script))
    steps = tuple(entry for entry in source if not isinstance(entry, Script))
    if scripts and (steps or agents):
        message = "give either steps (and agents), or scripts that have their own"
        raise ValueError(message)
    if not steps:
        return scripts
    return (Script(steps=steps, agents=as_scripts(agents)),)


def text(text: str = "ok", **options: Unpack[AnswerOptions]) -> Answer:
    """A plain answer."""
    return _answer((TextBlock(text=text),), "end_turn", options)


def tool_use(name: str, input: Mapping[str, Any], **options: Unpack[AnswerOptions]) -> Answer:
    """A call of one tool; ``say`` is what the model says before it."""
    return _answer((ToolCall(name=name, input=input),), "tool_use", options)


def tool_uses(*calls: tuple[str, Mapping[str, Any]], **options: Unpack[AnswerOptions]) -> Answer:
    """Calls of several tools in one answer."""
    blocks = tuple(ToolCall(name=name, input=fields) for name, fields in calls)
    return _answer(blocks, "tool_use", options)


def structured(value: Mapping[str, Any], **options: Unpack[AnswerOptions]) -> Answer:
    """What a model does that was given an output schema: it hands its result in."""
    return tool_use(STRUCTURED_OUTPUT, value, **options)


def error(
    status: int,
    message: str | None = None,
    *,
    error_type: str | None = None,
    **options: Unpack[DeliveryOptions],
) -> HttpError:
    """A refusal by status; ``headers={"retry-after": "30"}`` says for how long."""
    kind = error_type or ERROR_TYPES.get(status, "api_error")
    return HttpError(
        status=status, error_type=kind, message=message or f"scripted {kind}", **options
    )


def raw(
    status: int, body: str, *, content_type: str = "text/html", **options: Unpack[DeliveryOptions]
) -> Raw:
    """Any body at all."""
    return Raw(status=status, body=body, content_type=content_type, **options)


def hang(**options: Unpack[DeliveryOptions]) -> BrokenAnswer:
    """Never answer: not even the headers come."""
    return BrokenAnswer(fault=AnswerFault.SILENCE, after=None, answer=text(), **options)


def stall(
    after: int = 4, *, of: Answer | None = None, **options: Unpack[DeliveryOptions]
) -> BrokenAnswer:
    """Begin an answer and fall silent after some events of its stream."""
    return BrokenAnswer(fault=AnswerFault.SILENCE, after=after, answer=of or text(), **options)


def reset(
    after: int | None = None, *, of: Answer | None = None, **options: Unpack[DeliveryOptions]
) -> BrokenAnswer:
    """Reset the connection, at once or after some events of the stream."""
    return BrokenAnswer(fault=AnswerFault.RESET, after=after, answer=of or text(), **options)


def truncate(
    after: int = 4, *, of: Answer | None = None, **options: Unpack[DeliveryOptions]
) -> BrokenAnswer:
    """End the stream in good order, but without the end of the message."""
    return BrokenAnswer(fault=AnswerFault.END, after=after, answer=of or text(), **options)


def sse_error(
    error_type: str = "overloaded_error",
    message: str = "Overloaded",
    *,
    after: int = 1,
    of: Answer | None = None,
    **options: Unpack[DeliveryOptions],
) -> BrokenAnswer:
    """Begin an answer (status 200), then send an error event in its stream."""
    return BrokenAnswer(
        fault=AnswerFault.ERROR_EVENT,
        after=after,
        answer=of or text(),
        error_type=error_type,
        message=message,
        **options,
    )


def has_word(text: str, word: str) -> bool:
    """Whether a text contains the word by itself: ``scrape-store`` does not contain ``store``."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def _answer(blocks: tuple[Block, ...], stop_reason: str, options: AnswerOptions) -> Answer:
    thinking, output = options.get("thinking"), options.get("preamble")
    before: list[Block] = [ThinkingBlock(text=thinking)] if thinking else []
    if output:
        before.append(TextBlock(text=output))
    return Answer(
        blocks=(*before, *blocks),
        stop_reason=options.get("stop_reason", stop_reason),
        usage=options.get("usage", Usage()),
        event_delay_s=options.get("event_delay_s", 0.0),
        headers=options.get("headers", {}),
        delay_s=options.get("delay_s", 0.0),
        gate=options.get("gate"),
    )
