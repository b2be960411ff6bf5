"""Attempts as child processes, each in a session and a folder of its own, below the keeper."""

from __future__ import annotations

import contextlib
import json
import os
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.adapters.process.attempt import Pipes, ProcessAttempt
from longshore.adapters.process.cleaning import Cleaner
from longshore.adapters.process.keeper import Keeper
from longshore.core.agents.plan import read_plan
from longshore.core.child_limits import Isolation, Limits
from longshore.core.child_places import (
    ATTEMPT_VARIABLE,
    CHANNEL_NUMBER,
    CHANNEL_VARIABLE,
    DEPENDENCIES_VARIABLE,
    INPUT_VARIABLE,
    TASK_VARIABLE,
)
from longshore.core.definition import Definition, RunnerKind
from longshore.errors import BackendUnavailable, UsageError
from longshore.failpoints import reach
from longshore.ports.clock import Clock
from longshore.ports.runner import WorkOrder

_FOLDER_MODE = 0o700
_INPUT, _DEPENDENCIES = "input.json", "dependencies.json"


# The files of an agent whose task failed, or rests: for whoever resumes it or allows more.
_FORSAKEN_AFTER = timedelta(days=30)


class ProcessRunner:
    """See ``ports.runner.Runner``.

    ``modules`` are loaded before any child is started; ``held`` names files that stay open as long
    as anything of an attempt lives; ``agent`` is what only agents are told: how to reach their
    model, and what they may do here.

    ``agent_modules`` take a second and much memory to load. So agents have a keeper of their own,
    which has them loaded, and which nobody pays for before the first agent; with ``preload`` it is
    there from the beginning.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        clock: Clock,
        *,
        keep_folders: bool = False,
        agent: Mapping[str, Any] | None = None,
        modules: Sequence[str] = (),
        agent_modules: Sequence[str] = (),
        preload: bool = False,
        held: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self._clock = clock
        self._folder = folder / "work"
        self._environment = dict(environment)
        self._agent = dict(agent or {})
        self._cleaner = Cleaner(keep=keep_folders)
        self.keeper = Keeper(environment, modules=modules, held=held)
        self.agent_keeper = self.keeper
        if agent_modules:
            self.agent_keeper = Keeper(environment, modules=agent_modules, held=held)
        self._preload = preload

    async def open(self) -> None:
        before = self._clock.now() - _FORSAKEN_AFTER
        await self._cleaner.remove_forsaken(self._folder, "*.agent", before=before)
        await self.keeper.open()
        if self._preload:
            await self.agent_keeper.open()

    async def close(self) -> None:
        await self.agent_keeper.close()
        await self.keeper.close()
        await self._cleaner.close()

    async def start(self, order: WorkOrder) -> ProcessAttempt:
        settings = _checked(order)
        folder = self._folder / f"{order.task_id}.{order.attempt}"
        await self._cleaner.spare(folder)
        try:
            return await self._started(order, settings, folder)
        except BaseException as error:
            self._cleaner.remove_now(folder)
            if isinstance(error, OSError):
                message = f"no child could be started: {error}"
                raise BackendUnavailable(message) from error
            raise

    async def _started(
        self, order: WorkOrder, settings: dict[str, Any], folder: Path
    ) -> ProcessAttempt:
        definition = order.definition
        keeper = await self._keeper_for(definition)
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            pty = definition.pty
            output, to_output = _terminal(ours, theirs) if pty else _pipe(reads=ours, writes=theirs)
            errors, to_errors = (None, to_output) if pty else _pipe(reads=ours, writes=theirs)
            channel, to_channel = _pipe(reads=ours, writes=theirs)
            from_replies, replies = _pipe(reads=theirs, writes=ours)
            # A child that never reads its replies must not block us.
            os.set_blocking(replies, False)
            reach("attempt.child_asked_for")
            child = await keeper.start(
                (to_output, to_errors, to_channel, from_replies),
                isolation=definition.isolation,
                memory_bytes=definition.limits.memory_bytes,
            )
            theirs.close()  # so that there is an end to what nobody is left to read
            ours.pop_all()  # they are the attempt's now
        attempt = ProcessAttempt(
            order,
            keeper,
            child,
            Pipes(output=output, errors=errors, channel=channel, replies=replies),
            folder=folder,
            cleaner=self._cleaner,
            clock=self._clock,
        )
        # All this while it is being forked.
        attempt.listen()
        try:
            _prepare(folder, order)
            document = _document(order, folder, self._variables(order, settings, folder))
            if definition.runner is RunnerKind.AGENT:
                document |= self._for_agent(order)
            await attempt.write(json.dumps(document).encode() + b"\n")
            reach("attempt.order_written")
            await child.started
        except BaseException:
            attempt.give_up()
            raise
        reach("attempt.child_started")
        return attempt

    async def _keeper_for(self, definition: Definition) -> Keeper:
        cold = definition.isolation is Isolation.SPAWN
        if definition.runner is not RunnerKind.AGENT or cold:
            return self.keeper
        try:
            await self.agent_keeper.open()
        except UsageError:
            # They cannot be loaded: the child will find that out for itself, and say it.
            return self.keeper
        return self.agent_keeper

    def _variables(
        self, order: WorkOrder, settings: dict[str, Any], folder: Path
    ) -> dict[str, str]:
        return {
            **self._environment,
            **settings.get("env", {}),
            "PWD": str(folder),
            TASK_VARIABLE: order.task_id,
            ATTEMPT_VARIABLE: str(order.attempt),
            CHANNEL_VARIABLE: str(CHANNEL_NUMBER),
            **(_places(folder) if order.definition.runner is RunnerKind.COMMAND else {}),
        }

    def _for_agent(self, order: WorkOrder) -> dict[str, Any]:
        """What an agent is told besides; the files that it works on outlive its attempts."""
        places = {
            "workspace": str(self._folder / f"{order.task_id}.agent"),
            "repositories": str(self._folder.parent / "repositories"),
        }
        return {
            "agent": {**self._agent, **places},
            "revision": order.revision,
            "budgeted": order.budgeted,
            "sessions": {name: asdict(session) for name, session in order.sessions.items()},
        }


def _pipe(*, reads: contextlib.ExitStack, writes: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe, and who is to close which end."""
    reading, writing = os.pipe()
    reads.callback(os.close, reading)
    writes.callback(os.close, writing)
    return reading, writing


def _terminal(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """A terminal, seen from outside and from inside."""
    outside, inside = os.openpty()
    ours.callback(os.close, outside)
    theirs.callback(os.close, inside)
    # As it was printed: no carriage return before the newline.
    modes = termios.tcgetattr(inside)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(inside, termios.TCSANOW, modes)
    return outside, inside


def _checked(order: WorkOrder) -> dict[str, Any]:
    """What the runner is told: the definition's options, and the task's input over them."""
    if order.definition.runner is RunnerKind.AGENT:
        # Its input is what it is told about, never how it is run.
        plan, problems = read_plan(order.definition.options)
        if plan is None:
            told = "; ".join(f"{problem.path}: {problem.message}" for problem in problems)
            message = f"the definition of this agent is wrong: {told}"
            raise UsageError(message)
        return {}
    settings = {**order.definition.options, **(_mapping(order.input))}
    if order.definition.runner is RunnerKind.COMMAND:
        argv = settings.get("argv")
        if not isinstance(argv, list) or not argv or not all(isinstance(a, str) for a in argv):
            message = "a command needs 'argv': a list of texts, the program first"
            raise UsageError(message)
        if not all(_can_be_passed(argument) for argument in argv):
            message = "'argv' must not contain NUL or half characters"
            raise UsageError(message)
    elif not isinstance(settings.get("function"), str) or ":" not in settings["function"]:
        message = "a python task needs 'function': 'package.module:name'"
        raise UsageError(message)
    environment = settings.get("env", {})
    if not isinstance(environment, dict) or not all(
        isinstance(text, str) and _can_be_passed(name + text) and "=" not in name
        for name, text in environment.items()
    ):
        message = "'env' must be an object of texts"
        raise UsageError(message)
    return settings


def _can_be_passed(text: str) -> bool:
    """Whether the kernel takes it as an argument or a variable."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _mapping(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        message = "the input must be an object"
        raise UsageError(message)
    return value


def _limits_of(limits: Limits) -> dict[str, int | None]:
    described = asdict(limits)
    cpu = described.pop("cpu")
    return {**described, "cpu_s": None if cpu is None else int(cpu.total_seconds())}


def _places(folder: Path) -> dict[str, str]:
    """Where a command finds what a function is given by its context."""
    return {
        INPUT_VARIABLE: str(folder / _INPUT),
        DEPENDENCIES_VARIABLE: str(folder / _DEPENDENCIES),
    }


def _prepare(folder: Path, order: WorkOrder) -> None:
    """The attempt's folder, with what a command is to find in it; only its owner can read it."""
    _make(folder)
    reach("attempt.folder_made")
    if order.definition.runner is RunnerKind.COMMAND:
        _write_private(folder / _INPUT, order.input)
        _write_private(folder / _DEPENDENCIES, dict(order.dependency_outputs))


def _document(order: WorkOrder, folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """The order as the child gets it."""
    definition = order.definition
    return {
        "runner": definition.runner.value,
        "isolation": definition.isolation.value,
        "limits": _limits_of(definition.limits),
        "pty": definition.pty,
        "options": definition.options,
        "folder": str(folder),
        "environment": environment,
        "task_id": order.task_id,
        "job_id": order.job_id,
        "attempt": order.attempt,
        "input": order.input,
        "dependency_outputs": dict(order.dependency_outputs),
        "checkpoints": dict(order.checkpoints),
        "feedback": order.feedback,
        "previous_output": order.previous_output,
    }


def _make(folder: Path) -> None:
    try:
        os.mkdir(folder, _FOLDER_MODE)
    except FileNotFoundError:
        folder.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        os.mkdir(folder, _FOLDER_MODE)
    except FileExistsError:
        pass


def _write_private(path: Path, value: Any) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(opened, "wb") as file:
        file.write(json.dumps(value).encode())
