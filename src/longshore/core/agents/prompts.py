"""Builds the prompts of an agent: templates with placeholders, and the sections around them.

A placeholder is written ``{{ input.topic }}``. It may name ``input``, the result of a task on which
this one depends (``tasks.scrape.title``), or of an earlier step (``steps.outline.chapters``); a
backslash before the braces leaves them as they are. A template is expanded once: a value that
contains braces stays text. Values that a template does not name get a section of their own, so that
no input is silently omitted.

Values come from outside: invisible characters are removed, and no value can end its section early.
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
    """A placeholder of a template has no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptValues:
    """The values for the placeholders of a template."""

    input: Any = None
    tasks: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, Any] = field(default_factory=dict)


def template_problems(template: str, earlier_steps: Sequence[str]) -> list[str]:
    """Returns the problems of a template that show without values."""
    return [
        problem
        for placeholder in _placeholders(template)
        if (problem := _placeholder_problem(placeholder, earlier_steps)) is not None
    ]


def _placeholder_problem(placeholder: str, earlier_steps: Sequence[str]) -> str | None:
    if not _PATH.fullmatch(placeholder):
        return (
            f"{{{{{placeholder}}}}} is not a placeholder: write it like {{{{ input.topic }}}},"
            " or \\{{ for literal braces"
        )
    root, *rest = placeholder.split(".")
    if root not in ROOTS:
        return (
            f"{{{{ {placeholder} }}}} names nothing: start with {', '.join(ROOTS[:-1])} or {STEPS}"
        )
    if root == STEPS and (not rest or rest[0] not in earlier_steps):
        earlier = ", ".join(earlier_steps) or "there is none"
        return f"{{{{ {placeholder} }}}} names no earlier step: {earlier}"
    if root == TASKS and not rest:
        return f"{{{{ {placeholder} }}}} names no task: write it like {{{{ tasks.scrape.title }}}}"
    return None


def fill_template(template: str, values: PromptValues) -> str:
    """Returns the template with the values of its placeholders.

    Raises:
        UnknownPlaceholder: a placeholder has no value.
    """

    def value(match: re.Match[str]) -> str:
        if match["plain"]:
            return match[0][1:]
        return _escape_value(_value_at(match["inside"].strip(), values))

    return _PLACEHOLDER.sub(value, template)


def _value_at(placeholder: str, values: PromptValues) -> Any:
    path, *rest = placeholder.split(".")
    value: Any = getattr(values, path)  # one of ROOTS, as ``template_problems`` has checked
    for part in rest:
        child = _child_value(value, part)
        if child is _MISSING:
            names = ", ".join(sorted(map(str, value))[:20]) if isinstance(value, Mapping) else ""
            message = f"the prompt needs {path}.{part}, and {path} has {names or 'no such field'}"
            raise UnknownPlaceholder(message)
        value, path = child, f"{path}.{part}"
    return value


_MISSING = object()


def _child_value(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, _MISSING)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return _MISSING


def _placeholders(template: str) -> Iterator[str]:
    for match in _PLACEHOLDER.finditer(template):
        if not match["plain"]:
            yield match["inside"].strip()


def _escape_value(value: Any) -> str:
    """Returns an external value as text that is safe in a prompt."""
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    return _SECTION_TAG.sub("&lt;", sanitise_prompt_input(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """The parts of a step's prompt."""

    template: str
    values: PromptValues
    role: str = ""
    checks: Sequence[str] = ()
    has_schema: bool = False  # whether the result must match a schema
    feedback: str | None = None
    previous_output: Any = None


def prompt_for(request: PromptRequest) -> str:
    """Returns the whole prompt of a step.

    Raises:
        UnknownPlaceholder: a placeholder of its template has no value.
    """
    return "\n\n".join(_sections(request))


def _sections(request: PromptRequest) -> Iterator[str]:
    values = request.values
    named = {placeholder.split(".")[0] for placeholder in _placeholders(request.template)}
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
    """Returns the prompt that continues a conversation whose result a reviewer sent back."""
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
_ANSWER_WITH_SCHEMA = "Return the result with the StructuredOutput tool, once, in its format."
_REVISION_INTRO = "A reviewer has read your result and wants it changed as the feedback says."

CONTINUE_PROMPT: Final = (
    "The process that you worked in was interrupted. Everything above has happened; continue from"
    " there, and do not repeat what is done. If the outcome of a tool call is unknown, find out"
    " what it has changed before you do anything again."
)
"""Continues a conversation after a crash."""


def repair_prompt(problems: Sequence[str]) -> str:
    """Returns the prompt for a result that does not match its schema."""
    listed = "\n".join(f"- {_escape_value(problem)}" for problem in problems)
    return (
        f"Your result does not have the required format:\n{listed}\n"
        "Return it again with the StructuredOutput tool, with all fields as the schema requires."
    )
