"""Definitions: named, versioned descriptions of kinds of tasks.

A version of a definition never changes, so a job keeps what it was started with. The built-in
definitions ``command`` and ``python`` are not stored: they take everything from the task's input.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Any

from longshore.core.definitions.overrides import OPTION_NAMES
from longshore.core.health import HealthThresholds
from longshore.core.ids import NAME_PATTERN, is_name
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.states import Priority


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

    The kernel enforces most limits per process. The reaper of the attempt enforces the memory
    limit on all its processes together.
    """

    cpu: timedelta | None = None  # of each process, in whole seconds
    memory_bytes: int | None = None  # of all processes of the attempt together
    open_files: int | None = None  # of each process
    file_bytes: int | None = None  # of each file that is written

    def __post_init__(self) -> None:
        if self.cpu is not None and self.cpu < timedelta(seconds=1):
            raise ValueError("cpu must be at least one second")
        for name, minimum in _MINIMUMS.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ValueError(f"{name} must be at least {minimum}")


# No child can start below these; a smaller number has a wrong unit.
_MINIMUMS = {"memory_bytes": 16 * 1024 * 1024, "open_files": 16, "file_bytes": 1}
UNLIMITED = ResourceLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """How one kind of task is run."""

    name: str
    runner: RunnerKind
    version: int = 0  # 0: not stored, built in
    options: dict[str, Any] = field(default_factory=dict)  # of the runner
    overridable: tuple[str, ...] = ()  # options that an input may set; see ``overrides``
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

    def __post_init__(self) -> None:
        for field_name, value in (("name", self.name), ("queue", self.queue)):
            if not is_name(value):
                raise ValueError(f"{field_name} must match {NAME_PATTERN.pattern}, not {value!r}")
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise ValueError("timeout must be greater than zero")
        if self.isolation is Isolation.POOL and (
            self.runner is not RunnerKind.PYTHON or self.pty or self.resources != UNLIMITED
        ):
            message = "isolation 'pool' is for python tasks without limits and without a terminal"
            raise ValueError(message)
        if self.runner is RunnerKind.AGENT and (self.isolation is not Isolation.FORK or self.pty):
            # Its credential is sent with the attempt, and must not be stored in a file.
            raise ValueError("an agent is run with isolation 'fork' and without a terminal")


_content = attrgetter(*[item.name for item in fields(Definition) if item.name != "version"])
NO_DEFINITION = "no definition is called {!r}; see `longshore definitions list`"
"""The problem of a task that names a definition that does not exist."""
BUILTIN_DEFINITIONS: dict[str, Definition] = {
    kind.value: Definition(name=kind.value, runner=kind, overridable=OPTION_NAMES[kind])
    for kind in (RunnerKind.COMMAND, RunnerKind.PYTHON)
}
