"""The plan of an agent task, read from its definition's options and validated.

A plan is validated when its definition is submitted, so that a mistake does not show only in a
failed attempt, and again in the child. A plan is a sequence of steps; options beside the steps are
the defaults of every step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from longshore.core.agents.prompts import template_problems
from longshore.core.agents.repositories import transport_of, validate_ref
from longshore.core.budgets import NO_BUDGET, Budget, read_budget
from longshore.core.document_reader import (
    DocumentReader,
    choice_reader,
    expected,
    integer_reader,
    join_path,
    read_flag,
    read_name,
)
from longshore.core.ids import is_name
from longshore.core.text.durations import format_duration, parse_duration
from longshore.errors import Problem

DEFAULT_TURNS: Final = 30
DEFAULT_TIMEOUT: Final = timedelta(minutes=5)
MIN_TIMEOUT: Final = timedelta(seconds=1)
MAX_TIMEOUT: Final = timedelta(hours=24)
RESULT_FILE: Final = "task-result.json"
DEFAULT_STEP: Final = "task"
BYPASS_PERMISSIONS: Final = "bypassPermissions"
PERMISSION_MODES: Final = ("dontAsk", "default", "acceptEdits", "plan", BYPASS_PERMISSIONS)

_MAX_STEPS = 50
_MAX_TURNS = 1_000
_MAX_TOOLS = 200
_MAX_TEXT_CHARACTERS = 100_000
_MAX_NAME_CHARACTERS = 200
# A name, and the calls of it that are allowed: Bash(git diff *).
_TOOL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}(\([^()\n]{1,500}\))?")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_START_TIME = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStep:
    """A part of the work: one conversation, one result."""

    name: str
    prompt: str
    output_schema: Mapping[str, Any] | None = None
    output_file: str = RESULT_FILE
    max_turns: int = DEFAULT_TURNS
    tools: tuple[str, ...] = ()
    timeout: timedelta = DEFAULT_TIMEOUT
    budget: Budget = NO_BUDGET

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools that the model sees, without the allowed calls."""
        return tuple(dict.fromkeys(tool.partition("(")[0] for tool in self.tools))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """The git repository in which the agent works."""

    url: str
    ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """An agent task without its input."""

    steps: tuple[AgentStep, ...]
    role: str = ""
    checks: tuple[str, ...] = ()
    model: str | None = None
    fallback_model: str | None = None
    permission_mode: str = PERMISSION_MODES[0]
    mcp_servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    folder: str | None = None
    repository: Repository | None = None
    sandbox: bool = False
    budget: Budget = NO_BUDGET  # of the whole task, in all its attempts

    @property
    def max_duration(self) -> timedelta:
        """The longest time of an attempt: of its steps and its start."""
        return sum((step.timeout for step in self.steps), _START_TIME)


def read_plan(options: Mapping[str, Any]) -> tuple[AgentPlan | None, list[Problem]]:
    """Returns the plan in a definition's options, or None and all problems of the options."""
    reader = _PlanReader()
    plan = reader.plan(options)
    return (None if reader.problems else plan), reader.problems


def timeout_problems(plan: AgentPlan, timeout: timedelta | None) -> list[Problem]:
    """Returns a problem if an attempt's timeout is shorter than its steps together."""
    needed = sum((step.timeout for step in plan.steps), timedelta())
    if timeout is None or timeout >= needed:
        return []
    message = (
        f"{format_duration(timeout)} is less than its steps may take together,"
        f" {format_duration(needed)}: raise this timeout, or lower those of the steps"
    )
    return [Problem(path="timeout", message=message)]


_SHARED_FIELDS = ("outputSchema", "outputFile", "maxTurns", "tools", "timeout")
_STEP_FIELDS = ("name", "prompt", "budget", *_SHARED_FIELDS)
_PLAN_FIELDS = (
    *("role", "prompt", "steps", "checks", "model", "fallbackModel", "permissionMode"),
    *("mcpServers", "folder", "repository", "sandbox", "budget", *_SHARED_FIELDS),
)


class _PlanReader(DocumentReader):
    def plan(self, options: Mapping[str, Any]) -> AgentPlan:
        def get(name: str, read: Callable[[Any], Any], default: Any = None) -> Any:
            return self.field(options, name, "", read, default)

        self.reject_unknown(options, _PLAN_FIELDS, "")
        return AgentPlan(
            steps=self._steps(options),
            role=get("role", _text, ""),
            checks=get("checks", _texts, ()),
            model=get("model", _label),
            fallback_model=get("fallbackModel", _label),
            permission_mode=get("permissionMode", _permission_mode, PERMISSION_MODES[0]),
            mcp_servers=get("mcpServers", _servers, {}),
            folder=get("folder", _folder),
            repository=self._repository(options),
            sandbox=get("sandbox", read_flag, False),
            budget=get("budget", read_budget, NO_BUDGET),
        )

    def _steps(self, options: Mapping[str, Any]) -> tuple[AgentStep, ...]:
        documents = options.get("steps")
        shared = {name: options[name] for name in _SHARED_FIELDS if name in options}
        if documents is None:
            prompt = {"prompt": options["prompt"]} if "prompt" in options else {}
            return (self._step({"name": DEFAULT_STEP, **prompt, **shared}, "", earlier=()),)
        if not isinstance(documents, list) or not 1 <= len(documents) <= _MAX_STEPS:
            self.add("steps", f"expected a list of 1 to {_MAX_STEPS} steps")
            return ()
        if "prompt" in options:
            self.add("prompt", "expected either 'prompt' or 'steps', each of which has its own")
        steps: list[AgentStep] = []
        for index, document in enumerate(documents):
            path = f"steps[{index}]"
            if not isinstance(document, Mapping):
                self.add(path, "expected an object with 'name' and 'prompt'")
                continue
            earlier = tuple(step.name for step in steps)
            step = self._step({**shared, **document}, path, earlier=earlier)
            if step.name in earlier:
                self.add(f"{path}.name", f"{step.name!r} is there twice")
            elif any(step.output_file == other.output_file for other in steps):
                if "outputFile" in document:
                    self.add(f"{path}.outputFile", f"{step.output_file!r} is another step's too")
                step = replace(step, output_file=f"{step.name}.json")
            steps.append(step)
        return tuple(steps)

    def _step(
        self, document: Mapping[str, Any], path: str, *, earlier: tuple[str, ...]
    ) -> AgentStep:
        def get(name: str, read: Callable[[Any], Any], default: Any = None) -> Any:
            return self.field(document, name, path, read, default)

        self.reject_unknown(document, _STEP_FIELDS, path)
        name = self.read(document.get("name"), join_path(path, "name"), read_name, "")
        if "prompt" not in document:
            self.add(join_path(path, "prompt"), "missing: say what the agent has to do")
        prompt = get("prompt", _text, "")
        for problem in template_problems(prompt, earlier):
            self.add(join_path(path, "prompt"), problem)
        return AgentStep(
            name=name,
            prompt=prompt,
            output_schema=get("outputSchema", _schema),
            output_file=get("outputFile", _file, RESULT_FILE),
            max_turns=get("maxTurns", integer_reader(1, _MAX_TURNS), DEFAULT_TURNS),
            tools=get("tools", _tools, ()),
            timeout=get("timeout", _timeout, DEFAULT_TIMEOUT),
            budget=get("budget", read_budget, NO_BUDGET),
        )

    def _repository(self, options: Mapping[str, Any]) -> Repository | None:
        document = options.get("repository")
        if document is None:
            return None
        if isinstance(document, str):
            document = {"url": document}
        if not isinstance(document, Mapping) or not isinstance(document.get("url"), str):
            self.add("repository", "expected an address, or an object with 'url' and 'ref'")
            return None
        self.reject_unknown(document, ("url", "ref"), "repository")
        if options.get("folder") is not None:
            self.add("folder", "expected either 'folder' or 'repository'")
        ref = self.field(document, "ref", "repository", _ref)
        url = self.field(document, "url", "repository", _address, "")
        return Repository(url=url, ref=ref)


def _expect(condition: bool, what: str) -> None:  # noqa: FBT001
    if not condition:
        raise expected(what)


def _ref(value: Any) -> str:
    return validate_ref(_label(value))


def _address(value: str) -> str:
    # The worker decides whether a repository of its own machine is allowed.
    transport_of(value, local=True)
    return value


def _is_text(value: Any, limit: int) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= limit


def _text(value: Any) -> str:
    limit = _MAX_TEXT_CHARACTERS
    _expect(_is_text(value, limit), f"text of 1 to {limit:,} characters")
    return str(value)


def _texts(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    _expect(isinstance(texts, list), "a list of texts")
    return tuple(_text(text) for text in texts)


def _label(value: Any) -> str:
    limit = _MAX_NAME_CHARACTERS
    _expect(_is_text(value, limit), f"a name of 1 to {limit} characters")
    return str(value)


_permission_mode = choice_reader({mode: mode for mode in PERMISSION_MODES})


def _servers(value: Any) -> dict[str, Mapping[str, Any]]:
    valid = isinstance(value, Mapping) and all(
        is_name(name) and isinstance(server, Mapping) and ("command" in server) != ("url" in server)
        for name, server in value.items()
    )
    _expect(valid, "servers by their names, each with 'command' or 'url'")
    return dict(value)


def _folder(value: Any) -> str:
    valid = isinstance(value, str) and value.startswith("/") and "\0" not in value
    _expect(valid, "the full path of a folder on the worker's machine")
    return str(value)


def _schema(value: Any) -> dict[str, Any]:
    # The API accepts no other root; a list has to be a property of an object.
    valid = isinstance(value, Mapping) and value.get("type") == "object"
    _expect(valid, 'a JSON Schema with "type": "object" at its root')
    return dict(value)


def _file(value: Any) -> str:
    valid = isinstance(value, str) and _FILE.fullmatch(value) is not None
    _expect(valid, "a file name like task-result.json, without folders")
    return str(value)


def _tools(value: Any) -> tuple[str, ...]:
    valid = (
        isinstance(value, list)
        and len(value) <= _MAX_TOOLS
        and all(isinstance(tool, str) and _TOOL.fullmatch(tool) for tool in value)
    )
    _expect(valid, "a list of tools like Read or Bash(git diff *); an empty one means no tool")
    return tuple(value)


def _timeout(value: Any) -> timedelta:
    timeout = parse_duration(value)
    bounds = f"{format_duration(MIN_TIMEOUT)} to {format_duration(MAX_TIMEOUT)}"
    _expect(MIN_TIMEOUT <= timeout <= MAX_TIMEOUT, f"a time from {bounds}")
    return timeout
