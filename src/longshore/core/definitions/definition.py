"""Definitions: named, versioned descriptions of kinds of tasks.

A version of a definition never changes, so a job keeps what it was started with. The built-in
definitions ``command`` and ``python`` are not stored: they take everything from the task's input.

Who may submit writes the input, who may define writes the options. An input sets only the options
that its definition names in ``overridable``, and arguments of a function that the options do not
set. The submit checks it, so that all problems are listed, and the child, so that no row can get
around it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from longshore.core.document_reader import expected
from longshore.core.health import HealthThresholds
from longshore.core.ids import NAME_PATTERN, is_name
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.states import Priority
from longshore.errors import Problem


class RunnerKind(StrEnum):
    """What executes an attempt in its child process."""

    COMMAND = "command"
    PYTHON = "python"
    AGENT = "agent"


class Isolation(StrEnum):
    """How an attempt gets its process."""

    FORK = "fork"  # one child per attempt, forked from a process that has everything loaded
    POOL = "pool"  # one child for many attempts of small trusted functions
    SPAWN = "spawn"  # one child per attempt, started cold


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """What an attempt may use; None: no limit.

    The kernel enforces most limits per process. The reaper of the attempt enforces the limits of
    memory and processes, on all its processes together.
    """

    cpu: timedelta | None = None  # of each process, in whole seconds
    memory_bytes: int | None = None  # of all processes of the attempt together
    open_files: int | None = None  # of each process
    file_bytes: int | None = None  # of each file that is written
    processes: int | None = None  # at a time; None: the limit of the worker

    def __post_init__(self) -> None:
        if self.cpu is not None and self.cpu < timedelta(seconds=1):
            raise ValueError("cpu must be at least one second")
        for name, minimum in _MINIMUMS.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ValueError(f"{name} must be at least {minimum}")


# No child can start below these; a smaller number has a wrong unit.
_MINIMUMS = {"memory_bytes": 16 * 1024 * 1024, "open_files": 16, "file_bytes": 1, "processes": 1}
UNLIMITED = ResourceLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """How one kind of task is run."""

    name: str
    runner: RunnerKind
    version: int = 0  # 0: not stored, built in
    options: dict[str, Any] = field(default_factory=dict)  # of the runner
    overridable: tuple[str, ...] = ()  # options that an input may set
    description: str = ""
    queue: str = "default"
    priority: Priority = Priority.NORMAL
    timeout: timedelta | None = None  # None: the worker's default
    retry: RetryPolicy | None = None  # None: the installation's default
    retry_on_timeout: bool = False
    retryable_exit_codes: tuple[int, ...] = ()
    requires_review: bool = False
    isolation: Isolation = Isolation.FORK
    resources: ResourceLimits = UNLIMITED
    pty: bool = False  # output goes through a terminal, which some programs require
    health: HealthThresholds | None = None  # None: the installation's thresholds

    @property
    def content(self) -> Any:
        """Everything but the version, to compare two versions."""
        return _content(self)

    @property
    def secrets(self) -> dict[str, str]:
        """The names of the secrets that its tasks get, by environment variable."""
        variables = self.options.get("env")
        if not isinstance(variables, dict):
            return {}
        return {
            variable: value["from"]
            for variable, value in variables.items()
            if isinstance(value, dict) and "from" in value
        }

    def __post_init__(self) -> None:
        for field_name, value in (("name", self.name), ("queue", self.queue)):
            if not is_name(value):
                raise ValueError(f"{field_name} must match {NAME_PATTERN.pattern}, not {value!r}")
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise ValueError("timeout must be greater than zero")
        if self.isolation is Isolation.POOL and (
            self.runner is not RunnerKind.PYTHON
            or self.pty
            or self.resources != UNLIMITED
            or self.secrets
        ):
            message = (
                "isolation 'pool' is for python tasks without limits, without secrets and without a"
                " terminal"
            )
            raise ValueError(message)
        if self.runner is RunnerKind.AGENT and (self.isolation is not Isolation.FORK or self.pty):
            # Its credential is sent with the attempt, and must not be stored in a file.
            raise ValueError("an agent is run with isolation 'fork' and without a terminal")


_content = attrgetter(*[item.name for item in fields(Definition) if item.name != "version"])


def unlisted_secrets(definition: Definition, listed: Collection[str]) -> list[Problem]:
    """Returns a problem for each secret of the definition that no worker may give to a task."""
    return [
        Problem(
            f"options.env.{variable}",
            f"tasks may not get the secret {name!r} from a worker; to allow it, add its name to the"
            " setting worker.task_secrets",
        )
        for variable, name in definition.secrets.items()
        if name not in listed
    ]


NO_DEFINITION = "no definition is called {!r}; see `longshore definitions list`"
"""The problem of a task that names a definition that does not exist."""
OPTION_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "command": ("argv", "env", "cwd"),
    "python": ("function", "args", "kwargs", "path", "env"),
}
"""The options of a runner that an input can contain. The input of an agent contains none."""
_WITH_MEMBERS = ("env", "kwargs")
_ARGUMENTS = ("args", "kwargs")
BUILTIN_DEFINITIONS: dict[str, Definition] = {
    kind.value: Definition(name=kind.value, runner=kind, overridable=OPTION_NAMES[kind])
    for kind in (RunnerKind.COMMAND, RunnerKind.PYTHON)
}


def merge_input(
    runner: str,
    options: Mapping[str, Any],
    overridable: Collection[str],
    task_input: Mapping[str, Any],
) -> tuple[dict[str, Any], list[str]]:
    """Returns the options with those of an input, and the names of options that it must not set.

    Variables and keyword arguments are combined one by one.
    """
    merged, refused = dict(options), []
    for name in OPTION_NAMES.get(runner, ()):
        if name not in task_input:
            continue
        value, own = task_input[name], options.get(name)
        is_free = name in overridable or (name in _ARGUMENTS and name not in options)
        merged[name] = value
        if name in _WITH_MEMBERS and isinstance(value, dict) and isinstance(own or {}, dict):
            merged[name] = {**(own or {}), **value}
            if not is_free:
                refused += [
                    f"{name}.{member}"
                    for member in value
                    if f"{name}.{member}" not in overridable
                    and (name not in _ARGUMENTS or member in (own or {}))
                ]
        elif not is_free:
            refused.append(name)
    return merged, refused


def override_problem(definition: str, name: str) -> str:
    """Returns why an input must not set an option, and what to do."""
    return (
        f"the definition {definition!r} does not let the input set it: leave it out, or add"
        f" {name!r} to the definition's `overridable`"
    )


def read_overridable(runner: str, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the options that a definition lets an input set.

    Raises:
        ValueError: the runner has no such option.
    """
    options = OPTION_NAMES.get(runner, ())
    if names and not options:
        raise ValueError("the input of an agent sets no options")
    for name in names:
        option, _, member = name.partition(".")
        if option not in options or (name != option and not (member and option in _WITH_MEMBERS)):
            members = [f"{option}.NAME" for option in options if option in _WITH_MEMBERS]
            raise expected(f"some of {', '.join((*options, *members))}", name)
    return tuple(names)
