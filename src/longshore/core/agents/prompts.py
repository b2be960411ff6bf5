"""What an agent is told: templates with places for values, and the sections around them.

A place is written ``{{ input.topic }}``. It may name ``input``, the result of a task that this one
depends on (``tasks.scrape.title``), or of an earlier step (``steps.outline.chapters``); a
backslash before the braces leaves them as they are. A template is gone through once: what stands
in a value is text, however much it looks like a place. What a template does not name comes in a
section of its own, so that no input is silently left out.

Values come from outside. Nothing unseen stays in them, and none can end its section early.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from longshore.core.text.sanitise import sanitise_prompt_input

INPUT, TASKS, STEPS = "input", "tasks", "steps"
ROOTS: Final = (INPUT, TASKS, STEPS)

_PLACEHOLDER = re.compile(r"(?P<plain>\\)?\{\{(?P<inside>[^{}\n]{0,500})\}\}")
_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_SECTIONS = "role|task|input|context|result|feedback|previous_output|checks|answer"
_SECTION_TAG = re.compile(rf"<(?=/?(?:{_SECTIONS})\b)", re.IGNORECASE)


class UnknownPlaceholder(ValueError):
    """A place of a template for which there is no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSources:
    """What a template may name, as far as it is known when it is written."""

    steps: Sequence[str] = ()  # the earlier ones


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptValues:
    """What the places of a template stand for."""

    input: Any = None
    tasks: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, Any] = field(default_factory=dict)


def template_problems(template: str, sources: PromptSources) -> list[str]:
    """What is wrong with a template, as far as it can be known without values."""
    return [
        problem
        for place in _placeholders(template)
        if (problem := _placeholder_problem(place, sources)) is not None
    ]


def _placeholder_problem(placeholder: str, sources: PromptSources) -> str | None:
    if not _PATH.fullmatch(placeholder):
        return (
            f"{{{{{placeholder}}}}} is no place: write it like {{{{ input.topic }}}},"
            " or \\{{ for braces that stay"
        )
    root, *rest = placeholder.split(".")
    if root not in ROOTS:
        return (
            f"{{{{ {placeholder} }}}} names nothing: begin with {', '.join(ROOTS[:-1])} or {STEPS}"
        )
    if root == STEPS and (not rest or rest[0] not in sources.steps):
        earlier = ", ".join(sources.steps) or "there is none"
        return f"{{{{ {placeholder} }}}} names no earlier step: {earlier}"
    if root == TASKS and not rest:
        return f"{{{{ {placeholder} }}}} names no task: write it like {{{{ tasks.scrape.title }}}}"
    return None


def fill_template(template: str, values: PromptValues) -> str:
    """The template with a value in each place.

    Raises:
        UnknownPlace: there is none for one of them.
    """

    def value(found: re.Match[str]) -> str:
        if found["plain"]:
            return found[0][1:]
        return _escape_value(_value_at(found["inside"].strip(), values))

    return _PLACEHOLDER.sub(value, template)


def _value_at(placeholder: str, values: PromptValues) -> Any:
    root, *rest = placeholder.split(".")
    known = {INPUT: values.input, TASKS: values.tasks, STEPS: values.steps}
    if root not in known:
        message = (
            f"{{{{ {placeholder} }}}} in the prompt names nothing: begin with {', '.join(ROOTS)}"
        )
        raise UnknownPlaceholder(message)
    found, path = known[root], root
    for part in rest:
        inner = _child_value(found, part)
        if inner is _MISSING:
            there = ", ".join(sorted(map(str, found))[:20]) if isinstance(found, Mapping) else ""
            message = f"the prompt needs {path}.{part}, and {path} has {there or 'no such thing'}"
            raise UnknownPlaceholder(message)
        found, path = inner, f"{path}.{part}"
    return found


_MISSING = object()


def _child_value(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, _MISSING)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return _MISSING


def _placeholders(template: str) -> Iterator[str]:
    for found in _PLACEHOLDER.finditer(template):
        if not found["plain"]:
            yield found["inside"].strip()


def _escape_value(value: Any) -> str:
    """A value from outside as it may stand in a prompt."""
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    return _SECTION_TAG.sub("&lt;", sanitise_prompt_input(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """What one step is asked for."""

    template: str
    values: PromptValues
    role: str = ""
    checks: Sequence[str] = ()
    has_schema: bool = False  # whether the answer has a given shape
    feedback: str | None = None
    previous_output: Any = None


def prompt_for(request: PromptRequest) -> str:
    """The whole prompt of a step.

    Raises:
        UnknownPlace: its template names something that is not there.
    """
    return "\n\n".join(_sections(request))


def _sections(request: PromptRequest) -> Iterator[str]:
    values = request.values
    named = {place.split(".")[0] for place in _placeholders(request.template)}
    if request.role:
        yield _section("role", request.role.strip())
    yield _section("task", fill_template(request.template, values).strip())
    if values.input not in (None, {}) and INPUT not in named:
        yield _section("input", _escape_value(values.input))
    if values.tasks and TASKS not in named:
        yield _section("context", "\n".join(_results("task", values.tasks)))
    if values.steps and STEPS not in named:
        yield _section("context", "\n".join(_results("step", values.steps)))
    if request.feedback is not None:
        yield from _revision(request)
    if request.checks:
        yield _section("checks", "\n".join(f"- {check.strip()}" for check in request.checks))
    yield _section("answer", _ANSWER_WITH_SCHEMA if request.has_schema else _ANSWER)


def revision_prompt(request: PromptRequest) -> str:
    """What goes on in a conversation whose result a reviewer sent back."""
    revision = "\n\n".join(_revision(request))
    answer = _section("answer", _ANSWER_WITH_SCHEMA if request.has_schema else _ANSWER)
    return f"{_REVISION_INTRO}\n\n{revision}\n\n{answer}"


def _revision(request: PromptRequest) -> Iterator[str]:
    yield _section("previous_output", _escape_value(request.previous_output))
    yield _section("feedback", _escape_value(request.feedback))


def _results(kind: str, results: Mapping[str, Any]) -> Iterator[str]:
    for name, result in results.items():
        yield f'<result of="{kind} {name}">\n{_escape_value(result)}\n</result>'


def _section(name: str, text: str) -> str:
    return f"<{name}>\n{text}\n</{name}>"


_ANSWER = "Your last message is the result: only that, no remarks on how you got there."
_ANSWER_WITH_SCHEMA = "Hand in the result by the StructuredOutput tool, once, in its shape."
_REVISION_INTRO = "A reviewer looked at your result and wants it changed as the feedback says."

CONTINUE_PROMPT: Final = (
    "The process that you worked in was interrupted. What is above has happened; go on from there,"
    " and do not repeat what is done. If it is not known how a tool call ended, find out what it"
    " has changed before you do anything again."
)
"""What a conversation goes on with after a crash."""


def repair_prompt(problems: Sequence[str]) -> str:
    """What is said when a result has not the shape that it must have."""
    told = "\n".join(f"- {_escape_value(problem)}" for problem in problems)
    return (
        "Your result does not have the required shape:\n"
        f"{told}\n"
        "Hand it in again by the StructuredOutput tool, with all fields as they must be."
    )
