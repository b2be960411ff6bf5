"""The plan of an agent task: what its definition's options say, read and checked.

Read where a definition comes in, so that nobody finds out from a failed attempt what is wrong with
it, and again in the child, which trusts nobody. A plan is steps in order; what stands beside them
holds for every step that does not say otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from longshore.core.agents.prompts import PromptSources, template_problems
from longshore.core.agents.repositories import parse_address, validate_ref
from longshore.core.budgets import NO_BUDGET, Budget, read_budget
from longshore.core.document_reader import (
    DocumentReader,
    Problem,
    expected,
    integer_reader,
    join_path,
    read_flag,
    read_name,
)
from longshore.core.ids import is_name
from longshore.core.text.durations import format_duration, parse_duration

DEFAULT_TURNS: Final = 30
DEFAULT_TIMEOUT: Final = timedelta(minutes=5)
MIN_TIMEOUT: Final = timedelta(seconds=1)
MAX_TIMEOUT: Final = timedelta(minutes=15)
RESULT_FILE: Final = "task-result.json"
DEFAULT_STEP: Final = "task"
BYPASS_PERMISSIONS: Final = "bypassPermissions"
PERMISSION_MODES: Final = ("dontAsk", "default", "acceptEdits", "plan", BYPASS_PERMISSIONS)

_MAX_STEPS = 50
_MAX_TURNS = 1_000
_MAX_TOOLS = 200
_MAX_TEXT_CHARACTERS = 100_000
_MAX_NAME_CHARACTERS = 200
# A name, and what of it is allowed: Bash(git diff *).
_TOOL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}(\([^()\n]{1,500}\))?")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_START_TIME = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStep:
    """One part of the work: one conversation, one result."""

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
        """The tools that exist for the model, without what of them is allowed."""
        return tuple(dict.fromkeys(tool.partition("(")[0] for tool in self.tools))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Where the work is done: a commit of a git repository."""

    url: str
    ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """All that an agent task is told, but for its input."""

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
        """What an attempt needs at most: its steps, and starting."""
        return sum((step.timeout for step in self.steps), _START_TIME)


def read_plan(options: Mapping[str, Any]) -> tuple[AgentPlan | None, list[Problem]]:
    """The plan that the options of a definition describe, and everything that is wrong with it."""
    reader = _PlanReader()
    plan = reader.plan(options)
    return (None if reader.problems else plan), reader.problems


def timeout_problems(plan: AgentPlan, timeout: timedelta | None) -> list[Problem]:
    """Whether an attempt's time is enough for all of its steps."""
    needed = sum((step.timeout for step in plan.steps), timedelta())
    if timeout is None or timeout >= needed:
        return []
    message = (
        f"{format_duration(timeout)} is less than its steps may take together,"
        f" {format_duration(needed)}: allow more here, or give the steps less"
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
        self.reject_unknown(options, _PLAN_FIELDS, "")
        return AgentPlan(
            steps=self._steps(options),
            role=self.field(options, "role", "", _text, ""),
            checks=self.field(options, "checks", "", _texts, ()),
            model=self.field(options, "model", "", _label),
            fallback_model=self.field(options, "fallbackModel", "", _label),
            permission_mode=self.field(
                options, "permissionMode", "", _permission_mode, PERMISSION_MODES[0]
            ),
            mcp_servers=self.field(options, "mcpServers", "", _servers, {}),
            folder=self.field(options, "folder", "", _folder),
            repository=self._repository(options),
            sandbox=self.field(options, "sandbox", "", read_flag, False),
            budget=self.field(options, "budget", "", read_budget, NO_BUDGET),
        )

    def _steps(self, options: Mapping[str, Any]) -> tuple[AgentStep, ...]:
        given = options.get("steps")
        if given is None:
            known = {name: options[name] for name in ("prompt", *_SHARED_FIELDS) if name in options}
            return (self._step({"name": DEFAULT_STEP, **known}, "", earlier=()),)
        if not isinstance(given, list) or not 1 <= len(given) <= _MAX_STEPS:
            self.add("steps", f"expected a list of 1 to {_MAX_STEPS} steps")
            return ()
        if "prompt" in options:
            self.add("prompt", "expected either 'prompt' or 'steps', each of which has its own")
        shared = {name: options[name] for name in _SHARED_FIELDS if name in options}
        steps: list[AgentStep] = []
        for index, one in enumerate(given):
            path = f"steps[{index}]"
            if not isinstance(one, Mapping):
                self.add(path, "expected an object with 'name' and 'prompt'")
                continue
            earlier = tuple(step.name for step in steps)
            step = self._step({**shared, **one}, path, earlier=earlier)
            if step.name in earlier:
                self.add(join_path(path, "name"), f"{step.name!r} is there twice")
            elif any(step.output_file == other.output_file for other in steps):
                step = self._assign_file(step, one, path)
            steps.append(step)
        return tuple(steps)

    def _assign_file(self, step: AgentStep, document: Mapping[str, Any], path: str) -> AgentStep:
        if "outputFile" in document:
            self.add(join_path(path, "outputFile"), f"{step.output_file!r} is another step's too")
        return replace(step, output_file=f"{step.name}.json")

    def _step(
        self, document: Mapping[str, Any], path: str, *, earlier: tuple[str, ...]
    ) -> AgentStep:
        self.reject_unknown(document, _STEP_FIELDS, path)
        name = self.read(document.get("name"), join_path(path, "name"), read_name, "")
        prompt = self.field(document, "prompt", path, _text)
        if prompt is None:
            if "prompt" not in document:
                self.add(join_path(path, "prompt"), "missing: say what the agent has to do")
        else:
            for problem in template_problems(prompt, PromptSources(steps=earlier)):
                self.add(join_path(path, "prompt"), problem)
        return AgentStep(
            name=name,
            prompt=prompt or "",
            output_schema=self.field(document, "outputSchema", path, _schema),
            output_file=self.field(document, "outputFile", path, _file, RESULT_FILE),
            max_turns=self.field(
                document, "maxTurns", path, integer_reader(1, _MAX_TURNS), DEFAULT_TURNS
            ),
            tools=self.field(document, "tools", path, _tools, ()),
            timeout=self.field(document, "timeout", path, _timeout, DEFAULT_TIMEOUT),
            budget=self.field(document, "budget", path, read_budget, NO_BUDGET),
        )

    def _repository(self, options: Mapping[str, Any]) -> Repository | None:
        given = options.get("repository")
        if given is None:
            return None
        if isinstance(given, str):
            given = {"url": given}
        if not isinstance(given, Mapping) or not isinstance(given.get("url"), str):
            self.add("repository", "expected an address, or an object with 'url' and 'ref'")
            return None
        self.reject_unknown(given, ("url", "ref"), "repository")
        if options.get("folder") is not None:
            self.add("folder", "expected either 'folder' or 'repository'")
        ref = self.field(given, "ref", "repository", _ref)
        url = self.field(given, "url", "repository", _address, "")
        return Repository(url=url, ref=ref)


def _ref(value: Any) -> str:
    return validate_ref(_label(value))


def _address(value: str) -> str:
    # Whether one of this machine is allowed, the worker knows.
    parse_address(value, local=True)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_TEXT_CHARACTERS:
        raise expected(f"text of 1 to {_MAX_TEXT_CHARACTERS:,} characters")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_text(value),)
    if not isinstance(value, list):
        raise expected("a list of texts")
    return tuple(_text(one) for one in value)


def _label(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_NAME_CHARACTERS:
        raise expected(f"a name of 1 to {_MAX_NAME_CHARACTERS} characters")
    return value


def _permission_mode(value: Any) -> str:
    if value not in PERMISSION_MODES:
        raise expected(f"one of {', '.join(PERMISSION_MODES)}")
    return str(value)


def _servers(value: Any) -> dict[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping) or not all(
        is_name(name) and isinstance(one, Mapping) and ("command" in one) != ("url" in one)
        for name, one in value.items()
    ):
        raise expected("servers by their names, each with 'command' or 'url'")
    return dict(value)


def _folder(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise expected("the full path of a folder on the worker's machine")
    return value


def _schema(value: Any) -> dict[str, Any]:
    # The API takes no other root; a list goes inside one.
    if not isinstance(value, Mapping) or value.get("type") != "object":
        raise expected('a JSON Schema with "type": "object" at its root')
    return dict(value)


def _file(value: Any) -> str:
    if not isinstance(value, str) or not _FILE.fullmatch(value):
        raise expected("a file name like task-result.json, without folders")
    return value


def _tools(value: Any) -> tuple[str, ...]:
    if (
        not isinstance(value, list)
        or len(value) > _MAX_TOOLS
        or not all(isinstance(tool, str) and _TOOL.fullmatch(tool) for tool in value)
    ):
        raise expected("a list of tools like Read or Bash(git diff *); an empty one means no tool")
    return tuple(value)


def _timeout(value: Any) -> timedelta:
    timeout = parse_duration(value)
    if not MIN_TIMEOUT <= timeout <= MAX_TIMEOUT:
        raise expected(
            f"a time from {format_duration(MIN_TIMEOUT)} to {format_duration(MAX_TIMEOUT)}"
        )
    return timeout
