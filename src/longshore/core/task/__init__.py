"""The task aggregate: rows and commands in, changes or refusals out."""

from longshore.core.task.life import apply, create
from longshore.core.task.step import Decision, TaskChange

__all__ = ["Decision", "TaskChange", "apply", "create"]
