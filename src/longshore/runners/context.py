"""What a running task may ask of Longshore: steps that are kept, progress, a word in the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from longshore.runners.channel import Channel

ResultT = TypeVar("ResultT")


class Context:
    """The attempt that is being carried out, seen from inside."""

    def __init__(self, order: Mapping[str, Any], channel: Channel) -> None:
        self.task_id: str = order["task_id"]
        self.job_id: str = order["job_id"]
        self.attempt: int = order["attempt"]
        self.dependency_outputs: Mapping[str, Any] = order["dependency_outputs"]
        self.feedback: str | None = order["feedback"]
        self.previous_output: Any = order["previous_output"]
        self._steps = dict(order["checkpoints"])
        self._channel = channel

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this task: give it to services that tell repeats apart."""
        return self.task_id

    def step(self, name: str, work: Callable[[], ResultT]) -> ResultT:
        """Do a part of the work once: a later attempt gets the kept result instead."""
        if name not in self._steps:
            self._channel.say("activity", activity="step_running", step=name)
            result = work()
            self._channel.step(name, result)
            self._steps[name] = result
        return self._steps[name]  # type: ignore[no-any-return]

    def log(self, text: str) -> None:
        """A line in the task's output that did not come from ``print``."""
        self._channel.say("log", text=str(text))


_current: ContextVar[Context] = ContextVar("longshore_context")


def current() -> Context:
    """The context of the attempt that this code runs in.

    Raises:
        LookupError: it does not run inside a task.
    """
    return _current.get()


def enter(context: Context) -> None:
    """Make a context the current one of this process."""
    _current.set(context)
