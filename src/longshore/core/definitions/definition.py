"""Definitions: named, versioned recipes for kinds of tasks.

A definition is written once per version and never changed, so a job keeps what it was started with.
``builtin`` ones exist without being written: ``command`` and ``python`` take everything from the
task's input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from longshore.core.definitions.resources import UNLIMITED, Isolation, ResourceLimits
from longshore.core.health import HealthThresholds
from longshore.core.ids import is_name
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.states import Priority


class RunnerKind(StrEnum):
    """What executes an attempt in its child process."""

    COMMAND = "command"
    PYTHON = "python"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """How one kind of task is run."""

    name: str
    runner: RunnerKind
    version: int = 0  # 0: not stored, built in
    options: dict[str, Any] = field(default_factory=dict)  # what the runner needs
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
    pty: bool = False  # output goes through a terminal, as some programs want it
    health: HealthThresholds | None = None  # None: the installation's thresholds

    def __post_init__(self) -> None:
        if not is_name(self.name):
            message = f"name must match [A-Za-z0-9_-]{{1,64}}, not {self.name!r}"
            raise ValueError(message)
        if not is_name(self.queue):
            message = f"queue must match [A-Za-z0-9_-]{{1,64}}, not {self.queue!r}"
            raise ValueError(message)
        if self.timeout is not None and self.timeout <= timedelta(0):
            message = "timeout must be longer than nothing"
            raise ValueError(message)
        if self.isolation is Isolation.POOL and (
            self.runner is not RunnerKind.PYTHON or self.pty or self.resources != UNLIMITED
        ):
            message = "isolation 'pool' is for python tasks without limits and without a terminal"
            raise ValueError(message)
        if self.runner is RunnerKind.AGENT and (self.isolation is not Isolation.FORK or self.pty):
            # Its credential comes with the order, and must not come to lie in a file.
            message = "an agent is run with isolation 'fork' and without a terminal"
            raise ValueError(message)


BUILTIN_DEFINITIONS: dict[str, Definition] = {
    kind.value: Definition(name=kind.value, runner=kind)
    for kind in (RunnerKind.COMMAND, RunnerKind.PYTHON)
}
