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

from longshore.core.sanitise import sanitise_prompt_input

INPUT, TASKS, STEPS = "input", "tasks", "steps"
ROOTS: Final = (INPUT, TASKS, STEPS)

_PLACE = re.compile(r"(?P<plain>\\)?\{\{(?P<inside>[^{}\n]{0,500})\}\}")
_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_SECTIONS = "role|task|input|context|result|feedback|previous_output|checks|answer"
_OF_SECTIONS = re.compile(rf"<(?=/?(?:{_SECTIONS})\b)", re.IGNORECASE)


class UnknownPlace(ValueError):
    """A place of a template for which there is no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a template may name, as far as it is known when it is written."""

    steps: Sequence[str] = ()  # the earlier ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What the places of a template stand for."""

    input: Any = None
    tasks: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, Any] = field(default_factory=dict)


def problems_of_template(template: str, sources: Sources) -> list[str]:
    """What is wrong with a template, as far as it can be known without values."""
    return [
        problem
        for place in _places(template)
        if (problem := _problem_of(place, sources)) is not None
    ]


def _problem_of(place: str, sources: Sources) -> str | None:
    if not _PATH.fullmatch(place):
        return (
            f"{{{{{place}}}}} is no place: write it like {{{{ input.topic }}}},"
            " or \\{{ for braces that stay"
        )
    root, *rest = place.split(".")
    if root not in ROOTS:
        return f"{{{{ {place} }}}} names nothing: begin with {', '.join(ROOTS[:-1])} or {STEPS}"
    if root == STEPS and (not rest or rest[0] not in sources.steps):
        earlier = ", ".join(sources.steps) or "there is none"
        return f"{{{{ {place} }}}} names no earlier step: {earlier}"
    if root == TASKS and not rest:
        return f"{{{{ {place} }}}} names no task: write it like {{{{ tasks.scrape.title }}}}"
    return None


def filled(template: str, values: Values) -> str:
    """The template with a value in each place.

    Raises:
        UnknownPlace: there is none for one of them.
    """

    def value(found: re.Match[str]) -> str:
        if found["plain"]:
            return found[0][1:]
        return _shown(_value_at(found["inside"].strip(), values))

    return _PLACE.sub(value, template)


def _value_at(place: str, values: Values) -> Any:
    root, *rest = place.split(".")
    known = {INPUT: values.input, TASKS: values.tasks, STEPS: values.steps}
    if root not in known:
        message = f"{{{{ {place} }}}} in the prompt names nothing: begin with {', '.join(ROOTS)}"
        raise UnknownPlace(message)
    found, path = known[root], root
    for part in rest:
        inner = _inside(found, part)
        if inner is _NOTHING:
            there = ", ".join(sorted(map(str, found))[:20]) if isinstance(found, Mapping) else ""
            message = f"the prompt needs {path}.{part}, and {path} has {there or 'no such thing'}"
            raise UnknownPlace(message)
        found, path = inner, f"{path}.{part}"
    return found


_NOTHING = object()


def _inside(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, _NOTHING)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return _NOTHING


def _places(template: str) -> Iterator[str]:
    for found in _PLACE.finditer(template):
        if not found["plain"]:
            yield found["inside"].strip()


def _shown(value: Any) -> str:
    """A value from outside as it may stand in a prompt."""
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    return _OF_SECTIONS.sub("&lt;", sanitise_prompt_input(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one step is asked for."""

    template: str
    values: Values
    role: str = ""
    checks: Sequence[str] = ()
    schema: bool = False  # whether the answer has a given shape
    feedback: str | None = None
    previous_output: Any = None


def prompt_for(request: Request) -> str:
    """The whole prompt of a step.

    Raises:
        UnknownPlace: its template names something that is not there.
    """
    return "\n\n".join(_sections(request))


def _sections(request: Request) -> Iterator[str]:
    values = request.values
    named = {place.split(".")[0] for place in _places(request.template)}
    if request.role:
        yield _section("role", request.role.strip())
    yield _section("task", filled(request.template, values).strip())
    if values.input not in (None, {}) and INPUT not in named:
        yield _section("input", _shown(values.input))
    if values.tasks and TASKS not in named:
        yield _section("context", "\n".join(_results("task", values.tasks)))
    if values.steps and STEPS not in named:
        yield _section("context", "\n".join(_results("step", values.steps)))
    if request.feedback is not None:
        yield from _revision(request)
    if request.checks:
        yield _section("checks", "\n".join(f"- {check.strip()}" for check in request.checks))
    yield _section("answer", _ANSWER_WITH_SCHEMA if request.schema else _ANSWER)


def revision_prompt(request: Request) -> str:
    """What goes on in a conversation whose result a reviewer sent back."""
    revision = "\n\n".join(_revision(request))
    answer = _section("answer", _ANSWER_WITH_SCHEMA if request.schema else _ANSWER)
    return f"{_SENT_BACK}\n\n{revision}\n\n{answer}"


def _revision(request: Request) -> Iterator[str]:
    yield _section("previous_output", _shown(request.previous_output))
    yield _section("feedback", _shown(request.feedback))


def _results(kind: str, results: Mapping[str, Any]) -> Iterator[str]:
    for name, result in results.items():
        yield f'<result of="{kind} {name}">\n{_shown(result)}\n</result>'


def _section(name: str, text: str) -> str:
    return f"<{name}>\n{text}\n</{name}>"


_ANSWER = "Your last message is the result: only that, no remarks on how you got there."
_ANSWER_WITH_SCHEMA = "Hand in the result by the StructuredOutput tool, once, in its shape."
_SENT_BACK = "A reviewer looked at your result and wants it changed as the feedback says."

CONTINUE: Final = (
    "The process that you worked in was interrupted. What is above has happened; go on from there,"
    " and do not repeat what is done. If it is not known how a tool call ended, find out what it"
    " has changed before you do anything again."
)
"""What a conversation goes on with after a crash."""


def repair_prompt(problems: Sequence[str]) -> str:
    """What is said when a result has not the shape that it must have."""
    told = "\n".join(f"- {_shown(problem)}" for problem in problems)
    return (
        "Your result does not have the required shape:\n"
        f"{told}\n"
        "Hand it in again by the StructuredOutput tool, with all fields as they must be."
    )
