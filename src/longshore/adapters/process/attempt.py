"""A child at work: its streams, its channel, its end.

Everything is bounded. What the child prints faster than it can be stored waits in the pipe; a line
on the channel has a size limit; and once the child itself has ended, whoever else still holds its
pipes gets a moment to let go and is then killed with the rest of the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

from longshore.adapters.process.table import group_members, rss_bytes_of
from longshore.core.definition import RunnerKind
from longshore.core.events.types import Activity, Usage
from longshore.core.failures import ErrorCategory, Failure, error_text, failure_of_exit
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import Active, Ending, Printed, Report, StepDone, Used, WorkOrder

_PIECE_BYTES = 64 * 1024
_WAITING_PIECES = 64
_LINE_LIMIT_BYTES = 64 * 1024 * 1024
_DRAIN = timedelta(seconds=1)


class ProcessAttempt:
    """See ``ports.runner.RunningAttempt``."""

    def __init__(
        self,
        order: WorkOrder,
        process: asyncio.subprocess.Process,
        *,
        channel: int,
        replies: int,
        clean: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._order = order
        self._process = process
        self._channel = channel
        self._replies = replies
        self._clean = clean
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue(_WAITING_PIECES)
        self._result: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._stopped_by: str | None = None
        self._over = asyncio.Event()

    @property
    def process_id(self) -> int:
        return self._process.pid

    async def listen(self) -> None:
        """Begin to read what the child says."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LINE_LIMIT_BYTES)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._channel, "rb", 0)
        )
        self._reading = [
            asyncio.ensure_future(self._read_stream(self._process.stdout, Stream.STDOUT)),
            asyncio.ensure_future(self._read_stream(self._process.stderr, Stream.STDERR)),
            asyncio.ensure_future(self._read_channel(reader)),
        ]
        self._watching = asyncio.ensure_future(self._watch(transport))

    async def _read_stream(self, reader: asyncio.StreamReader | None, stream: Stream) -> None:
        if reader is not None:
            while piece := await reader.read(_PIECE_BYTES):
                await self._reports.put(Printed(stream, piece))

    async def _read_channel(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ValueError, asyncio.LimitOverrunError):
            while line := await reader.readline():
                try:
                    said = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # somebody else wrote into the pipe: no message of ours
                if isinstance(said, dict):
                    await self._heard(said)

    async def _heard(self, said: dict[str, Any]) -> None:
        match said.get("type"):
            case "result":
                self._result = said
            case "error":
                self._error = said
            case "activity":
                activity = Activity(
                    type=str(said.get("activity", "waiting")),
                    step_name=said.get("step"),
                    timestamp=self._clock.now(),
                )
                await self._reports.put(Active(activity))
            case "step":
                await self._reports.put(StepDone(str(said.get("name")), said.get("result")))
            case "usage":
                await self._reports.put(Used(_usage(said)))
            case "log":
                text = f"{said.get('text', '')}\n"
                await self._reports.put(Printed(Stream.LOG, text.encode(errors="replace")))

    async def _watch(self, channel: asyncio.ReadTransport) -> None:
        await self._process.wait()
        # Whoever of the group still lives may hold the pipes: it has outlived its attempt.
        _signal_group(self.process_id, signal.SIGKILL)
        _, unread = await asyncio.wait(self._reading, timeout=_DRAIN.total_seconds())
        for reading in unread:
            reading.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        channel.close()
        os.close(self._replies)
        self._clean()
        self._over.set()
        await self._reports.put(None)

    async def reports(self) -> AsyncIterator[Report]:
        while (report := await self._reports.get()) is not None:
            yield report

    async def step_kept(self, name: str) -> None:
        line = json.dumps({"kept": name}) + "\n"
        with contextlib.suppress(BrokenPipeError):
            os.write(self._replies, line.encode())

    async def ending(self) -> Ending:
        await self._over.wait()
        code = self._process.returncode
        ended_by = signal.Signals(-code).name if code is not None and code < 0 else None
        exit_code = code if code is not None and code >= 0 else None
        if self._error is not None:
            failure = _failure_said(self._error)
        elif self._result is not None and code == 0:
            return Ending(result=self._result.get("value"), exit_code=0)
        elif code == 0 and self._order.definition.runner is RunnerKind.COMMAND:
            return Ending(result={"exitCode": 0}, exit_code=0)
        elif code == 0:
            failure = Failure(
                category=ErrorCategory.CRASH, message="the child ended without a result"
            )
        else:
            failure = failure_of_exit(
                exit_code,
                -code if code is not None and code < 0 else None,
                retryable_codes=self._order.definition.retryable_exit_codes,
            )
        return Ending(failure=failure, exit_code=exit_code, signal=ended_by)

    async def stop(self, *, grace: timedelta) -> str:
        if not self._over.is_set():
            if self._stopped_by is None:
                self._stopped_by = signal.SIGTERM.name
                _signal_group(self.process_id, signal.SIGTERM)
            # A second caller may be less patient than the first.
            try:
                await asyncio.wait_for(self._gone(), grace.total_seconds())
            except TimeoutError:
                self._stopped_by = signal.SIGKILL.name
                _signal_group(self.process_id, signal.SIGKILL)
        await self._over.wait()
        return self._stopped_by or signal.SIGTERM.name

    async def _gone(self) -> None:
        await self._process.wait()

    def rss_bytes(self) -> int:
        return rss_bytes_of(self.process_id)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    if number is signal.SIGKILL:
        for process_id in group_members(leader):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, number)


def _usage(said: dict[str, Any]) -> Usage:
    return Usage(
        input_tokens=int(said.get("inputTokens", 0)),
        output_tokens=int(said.get("outputTokens", 0)),
        cache_read_tokens=int(said.get("cacheReadTokens", 0)),
        turns=int(said.get("turns", 0)),
        cost_usd=float(said.get("costUsd", 0.0)),
    )


def _failure_said(said: dict[str, Any]) -> Failure:
    try:
        category = ErrorCategory(str(said.get("category")))
    except ValueError:
        category = ErrorCategory.UNKNOWN
    after = said.get("retryAfter")
    return Failure(
        category=category,
        message=error_text(str(said.get("message", ""))),
        error_type=said.get("errorType"),
        exit_code=said.get("exitCode"),
        retry=said.get("retry"),
        retry_after=timedelta(seconds=after) if isinstance(after, int | float) else None,
    )
