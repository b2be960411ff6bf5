"""Attempts as child processes, each started cold, in a session and a folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from longshore.adapters.process.attempt import ChildStreams, ProcessAttempt
from longshore.core.child_places import (
    ATTEMPT_VARIABLE,
    CHANNEL_NUMBER,
    CHANNEL_VARIABLE,
    DEPENDENCIES_VARIABLE,
    INPUT_VARIABLE,
    TASK_VARIABLE,
)
from longshore.core.definition import RunnerKind
from longshore.errors import BackendUnavailable, UsageError
from longshore.ports.clock import Clock
from longshore.ports.runner import WorkOrder

_FOLDER_MODE = 0o700
_INPUT, _DEPENDENCIES = "input.json", "dependencies.json"


class ProcessRunner:
    """See ``ports.runner.Runner``."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        clock: Clock,
        *,
        keep_folders: bool = False,
    ) -> None:
        self._clock = clock
        self._folder = folder / "work"
        self._environment = dict(environment)
        self._keep_folders = keep_folders

    async def start(self, order: WorkOrder) -> ProcessAttempt:
        settings = _checked(order)
        folder = self._folder / order.task_id / f"attempt-{order.attempt}"
        try:
            return await self._started(order, settings, folder)
        except (OSError, ValueError) as error:
            self._cleaner(folder)()
            if isinstance(error, ValueError):
                raise UsageError(str(error)) from error
            message = f"no child could be started: {error}"
            raise BackendUnavailable(message) from error

    async def _started(
        self, order: WorkOrder, settings: dict[str, Any], folder: Path
    ) -> ProcessAttempt:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            channel_in, channel_out = _pipe(reads=ours, writes=theirs)
            replies_in, replies_out = _pipe(reads=theirs, writes=ours)
            order_file = _write_order(order, folder, channel=channel_out, replies=replies_in)
            transport, streams = await asyncio.get_running_loop().subprocess_exec(
                ChildStreams,
                sys.executable,
                "-m",
                "longshore.runners",
                str(order_file),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(channel_out, replies_in),
                start_new_session=True,
                env=self._variables(order, settings, folder),
                cwd=folder,
            )
            ours.pop_all()  # they are the attempt's now
            attempt = ProcessAttempt(
                order,
                transport,
                streams,
                channel=channel_in,
                replies=replies_out,
                clean=self._cleaner(folder),
                clock=self._clock,
            )
        await attempt.listen()
        return attempt

    def _variables(
        self, order: WorkOrder, settings: dict[str, Any], folder: Path
    ) -> dict[str, str]:
        return {
            **self._environment,
            **settings.get("env", {}),
            "PWD": str(folder),
            TASK_VARIABLE: order.task_id,
            ATTEMPT_VARIABLE: str(order.attempt),
            INPUT_VARIABLE: str(folder / _INPUT),
            DEPENDENCIES_VARIABLE: str(folder / _DEPENDENCIES),
            CHANNEL_VARIABLE: str(CHANNEL_NUMBER),
        }

    def _cleaner(self, folder: Path) -> Callable[[], None]:
        def clean() -> None:
            if not self._keep_folders:
                shutil.rmtree(folder, ignore_errors=True)
                with contextlib.suppress(OSError):
                    folder.parent.rmdir()

        return clean


def _pipe(*, reads: contextlib.ExitStack, writes: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe, and who is to close which end."""
    reading, writing = os.pipe()
    reads.callback(os.close, reading)
    writes.callback(os.close, writing)
    return reading, writing


def _checked(order: WorkOrder) -> dict[str, Any]:
    """What the runner is told: the definition's options, and the task's input over them."""
    settings = {**order.definition.options, **(_mapping(order.input))}
    if order.definition.runner is RunnerKind.COMMAND:
        argv = settings.get("argv")
        if not isinstance(argv, list) or not argv or not all(isinstance(a, str) for a in argv):
            message = "a command needs 'argv': a list of texts, the program first"
            raise UsageError(message)
        if any("\0" in argument for argument in argv):
            message = "'argv' must not contain NUL characters"
            raise UsageError(message)
    elif not isinstance(settings.get("function"), str) or ":" not in settings["function"]:
        message = "a python task needs 'function': 'package.module:name'"
        raise UsageError(message)
    environment = settings.get("env", {})
    if not isinstance(environment, dict) or not all(
        isinstance(text, str) and "\0" not in name + text and "=" not in name
        for name, text in environment.items()
    ):
        message = "'env' must be an object of texts"
        raise UsageError(message)
    return settings


def _mapping(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        message = "the input must be an object"
        raise UsageError(message)
    return value


def _order_document(order: WorkOrder) -> dict[str, Any]:
    return {
        "parent": os.getpid(),
        "runner": order.definition.runner.value,
        "options": order.definition.options,
        "task_id": order.task_id,
        "job_id": order.job_id,
        "attempt": order.attempt,
        "input": order.input,
        "dependency_outputs": dict(order.dependency_outputs),
        "checkpoints": dict(order.checkpoints),
        "feedback": order.feedback,
        "previous_output": order.previous_output,
    }


def _write_order(order: WorkOrder, folder: Path, *, channel: int, replies: int) -> Path:
    """The order, in the attempt's folder, in files that only their owner can read."""
    folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    path = folder / "order.json"
    document = {**_order_document(order), "channel": channel, "replies": replies}
    _write_private(folder / _INPUT, order.input)
    _write_private(folder / _DEPENDENCIES, dict(order.dependency_outputs))
    _write_private(path, document)
    return path


def _write_private(path: Path, value: Any) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(opened, "wb") as file:
        file.write(json.dumps(value).encode())
