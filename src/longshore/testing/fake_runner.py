"""A runner without processes: children that follow a script.

A script says what the child prints and reports, how long it takes and how it ends; one without an
ending runs until it is stopped. Specs and ends are stored, so a test can check who was started with
what, and when it was dead.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.errors import LongshoreError
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import (
    AttemptEnding,
    AttemptSpec,
    ChildReport,
    OutputReport,
    SpendRequest,
    StepReport,
)


def succeeds(result: Any = None) -> AttemptEnding:
    """An end with a result."""
    return AttemptEnding(result=result)


def fails(category: ErrorCategory = ErrorCategory.NETWORK, **fields: Any) -> AttemptEnding:
    """An end with a failure."""
    failure = Failure(category=category, message=f"broke by {category.value}", **fields)
    return AttemptEnding(failure=failure)


def prints(text: str, stream: Stream = Stream.STDOUT) -> OutputReport:
    """A piece of output."""
    return OutputReport(stream, text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a child does."""

    reports: Sequence[ChildReport | timedelta] = ()  # a duration: nothing for so long
    ending: AttemptEnding | None = field(default_factory=succeeds)  # None: only when it is stopped
    ignores_sigterm: bool = False
    start_error: LongshoreError | None = None  # raised instead of starting
    files: Mapping[str, str] = field(default_factory=dict)  # files in its folder, by their paths


class FakeRunner:
    """See ``ports.runner.Runner``. Scripts are by the task's key, one an attempt.

    Args:
        folder: Where children get folders of their own; without it they have none.
    """

    def __init__(
        self, clock: Clock, *, default: Script | None = None, folder: Path | None = None
    ) -> None:
        self._clock = clock
        self._folder = folder
        self._default = default or Script()
        self._scripts: dict[str, list[Script]] = {}
        self._process_ids = count(1_000)
        self.specs: list[AttemptSpec] = []
        self.children: list[FakeChild] = []

    def set_scripts(self, key: str, *scripts: Script) -> None:
        """The task called ``key`` goes so: a script for each attempt, the last for all others."""
        self._scripts[key] = list(scripts)

    async def open(self) -> None:
        """Nothing to get ready."""

    async def close(self) -> None:
        """Nothing is left."""

    async def start(self, spec: AttemptSpec, *, deadline_ns: int) -> FakeChild:
        self.specs.append(spec)
        scripts = self._scripts.get(spec.key) or [self._default]
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        if script.start_error is not None:
            raise script.start_error
        folder = self._folder and self._folder / f"{spec.task_id}.{spec.attempt}"
        child = FakeChild(
            spec,
            script,
            self._clock,
            process_id=next(self._process_ids),
            deadline_ns=deadline_ns,
            folder=folder,
        )
        self.children.append(child)
        return child

    @property
    def alive(self) -> list[str]:
        """Keys of the tasks whose children are alive."""
        return [child.spec.key for child in self.children if child.alive]


class FakeChild:
    """See ``ports.runner.RunningAttempt``."""

    def __init__(
        self,
        spec: AttemptSpec,
        script: Script,
        clock: Clock,
        *,
        process_id: int,
        deadline_ns: int,
        folder: Path | None = None,
    ) -> None:
        self.spec = spec
        self.deadline_ns = deadline_ns
        self.folder = folder
        self.closed = False
        self.signals: list[str] = []  # those it was sent
        self.saved_steps: list[str] = []
        self.answers: list[tuple[int, str | None]] = []  # to what it asked to spend
        self.stopped: str | None = None
        self.ended_at: timedelta | None = None  # on the clock's ``elapsed``
        self._script = script
        self._clock = clock
        self._process_id = process_id
        self._reports: asyncio.Queue[ChildReport | None] = asyncio.Queue()
        self._step_saved = asyncio.Event()
        self._finished = asyncio.Event()
        self._write_files()
        self._task = asyncio.ensure_future(self._run_script())

    @property
    def process_id(self) -> int:
        return self._process_id

    @property
    def alive(self) -> bool:
        """Whether it is still at work."""
        return self.ended_at is None

    def _write_files(self) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True)
            for name, text in self._script.files.items():
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")

    async def _run_script(self) -> None:
        for item in self._script.reports:
            if isinstance(item, timedelta):
                await self._clock.sleep(item)
                continue
            self._reports.put_nowait(item)
            if isinstance(item, StepReport | SpendRequest):
                # Like a real child: it continues when the step is confirmed.
                await self._step_saved.wait()
                self._step_saved.clear()
                if self.stopped is not None:
                    self._script = replace(self._script, ending=fails(ErrorCategory.VALIDATION))
                    break
        if self._script.ending is None:
            await self._finished.wait()
        self._end()

    def _end(self) -> None:
        if self.alive:
            self.ended_at = self._clock.elapsed()
            self._finished.set()
            self._reports.put_nowait(None)

    async def reports(self) -> AsyncIterator[ChildReport]:
        while (report := await self._reports.get()) is not None:
            yield report

    async def confirm_step(self, name: str) -> None:
        self.saved_steps.append(name)
        self._step_saved.set()

    async def answer_spend_request(self, number: int, *, refusal: str | None) -> None:
        self.answers.append((number, refusal))
        self.stopped = refusal
        self._step_saved.set()

    async def ending(self) -> AttemptEnding:
        await self._finished.wait()
        return self._script.ending or AttemptEnding()

    async def stop(self, *, grace: timedelta) -> str:
        if self.alive:
            self.signals.append(signal.SIGTERM.name)
            if self._script.ignores_sigterm:
                await self._wait_out_grace(grace)
            self._task.cancel()
            self._end()
        return self.signals[-1] if self.signals else signal.SIGTERM.name

    async def _wait_out_grace(self, grace: timedelta) -> None:
        patience = asyncio.ensure_future(self._clock.sleep(grace))
        over = asyncio.ensure_future(self._finished.wait())
        try:
            await asyncio.wait((patience, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            patience.cancel()
            over.cancel()
        if self.alive:
            self.signals.append(signal.SIGKILL.name)

    def trust_until(self, deadline_ns: int) -> None:
        self.deadline_ns = deadline_ns

    def rss_bytes(self) -> int:
        return 0

    async def close(self) -> None:
        self.closed = True
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
