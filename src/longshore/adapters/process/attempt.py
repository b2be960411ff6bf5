"""A child at work: its streams, its channel, its end.

Everything is bounded. What the child prints faster than it can be stored waits in the pipe; a line
on the channel has a size limit; and once the attempt is over, whoever else holds its pipes (it may
have handed them to somebody outside) is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.adapters.process.cleaning import Cleaner
from longshore.adapters.process.keeper import Child, Ended, Keeper
from longshore.adapters.process.pipes import ReadingEnd, write_all
from longshore.adapters.process.said import failure_in, message_in, report_in
from longshore.adapters.process.table import rss_bytes_of
from longshore.adapters.process.transcripts import Transcripts
from longshore.core.child_limits import Limits
from longshore.core.definition import RunnerKind
from longshore.core.failures import ErrorCategory, Failure, failure_of_exit
from longshore.core.keeper_words import Cause
from longshore.failpoints import reach
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import Conversed, Ending, Printed, Report, WorkOrder

_WAITING_PIECES = 64
_LINE_LIMIT_BYTES = 64 * 1024 * 1024
_DRAIN = timedelta(seconds=1)
_SLOWEST_READER = timedelta(seconds=30)
# More than a pipe and a reader can hold: what comes after so many was not printed by the child.
_PIECES_LEFT_AT_THE_END = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """Our ends of what leads to a child."""

    output: int
    errors: int | None  # None: output and errors are one terminal
    channel: int
    replies: int


class ProcessAttempt:
    """See ``ports.runner.RunningAttempt``. The pipes are closed here."""

    def __init__(
        self,
        order: WorkOrder,
        keeper: Keeper,
        child: Child,
        pipes: Pipes,
        *,
        folder: Path,
        cleaner: Cleaner,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._order = order
        self._keeper = keeper
        self._child = child
        self._output = ReadingEnd(pipes.output)
        self._errors = None if pipes.errors is None else ReadingEnd(pipes.errors)
        self._channel = ReadingEnd(pipes.channel)
        self._replies: int | None = pipes.replies
        self.folder = folder
        self._cleaner = cleaner
        self._reading: list[asyncio.Task[None]] = []
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue(_WAITING_PIECES)
        self._transcripts = Transcripts(order.sessions)
        self._pieces_read = 0
        self._held_up = False  # a report has had to wait for its reader
        self._unheard = False  # nobody wants the reports any more
        self._result: dict[str, Any] | None = None
        self._failure: Failure | None = None
        self._stopped_by: str | None = None
        self._over = asyncio.Event()

    @property
    def process_id(self) -> int:
        return self._child.started.result()

    def listen(self) -> None:
        """Begin to read what the child says, though it may not be there yet."""
        wanted = [self._read_stream(self._output, Stream.STDOUT), self._read_channel()]
        if self._errors is not None:
            wanted.append(self._read_stream(self._errors, Stream.STDERR))
        self._reading = [asyncio.ensure_future(one) for one in wanted]
        self._watching = asyncio.ensure_future(self._watch())

    async def write(self, order: bytes) -> None:
        """Tell the child what to do; once."""
        if self._replies is not None:
            await write_all(self._replies, order, reader=self._child.ended)

    def give_up(self) -> None:
        """Instead of all the rest: the child is not wanted any more, or never came."""
        self._keeper.give_up(self._child)
        for task in (*self._reading, self._watching):
            task.cancel()
        self._let_go()

    async def _read_stream(self, end: ReadingEnd, stream: Stream) -> None:
        left = _PIECES_LEFT_AT_THE_END
        while left > 0:
            if not (piece := await end.read()):
                return
            self._pieces_read += 1
            left -= self._child.ended.done()
            await self._report(Printed(stream, piece))

    async def _read_channel(self) -> None:
        async for line in self._channel.lines(longest=_LINE_LIMIT_BYTES):
            if line is None:
                message = f"a message of more than {_LINE_LIMIT_BYTES} bytes on the channel"
                self._failure = Failure(category=ErrorCategory.PARSE, message=message)
            elif (said := message_in(line)) is not None:
                await self._heard(said)

    async def _heard(self, said: dict[str, Any]) -> None:
        match said.get("type"):
            case "result":
                self._result = said
            case "error":
                self._failure = failure_in(said)
            case _:
                if (report := report_in(said, now=self._clock.now())) is not None:
                    if isinstance(report, Conversed):
                        self._transcripts.note(report)
                    await self._report(report)

    async def _report(self, report: Report) -> None:
        if not self._unheard:
            self._held_up = self._held_up or self._reports.full()
            await self._reports.put(report)

    async def _watch(self) -> None:
        # Nothing of the attempt lives any more: its guard has seen to that.
        await asyncio.wait((self._child.ended,))
        await self._drain()
        await self._report_what_is_left()
        self._let_go()
        reach("attempt.child_ended")
        self._over.set()
        if not self._unheard:
            await self._reports.put(None)

    async def _drain(self) -> None:
        """Read what is left in the pipes, but do not wait for somebody who holds them open.

        All that the child printed is there to be read at once; only a full queue can hold it up,
        and then it is the store that is slow.
        """
        patience = _SLOWEST_READER
        while unread := [reading for reading in self._reading if not reading.done()]:
            before, self._held_up = self._pieces_read, self._reports.full()
            await asyncio.wait(unread, timeout=_DRAIN.total_seconds())
            patience = _SLOWEST_READER if self._pieces_read > before else patience - _DRAIN
            if not self._held_up or patience <= timedelta(0):
                break
        for reading in self._reading:
            reading.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def _report_what_is_left(self) -> None:
        """What an agent had written of its conversations when it was killed, and not said."""
        if self._order.definition.runner is RunnerKind.AGENT:
            for report in await asyncio.to_thread(self._transcripts.left_in, self.folder):
                await self._report(report)

    def _let_go(self) -> None:
        for end in (self._output, self._errors, self._channel):
            if end is not None:
                end.close()
        if self._replies is not None:
            os.close(self._replies)
            # Its number may belong to another file from now on.
            self._replies = None

    async def reports(self) -> AsyncIterator[Report]:
        try:
            while (report := await self._reports.get()) is not None:
                yield report
        finally:
            self._unheard = True
            while not self._reports.empty():
                self._reports.get_nowait()

    async def step_kept(self, name: str) -> None:
        self._reply({"kept": name})

    async def answer(self, number: int, *, stop: str | None) -> None:
        self._reply({"asked": number, "stop": stop})

    def _reply(self, document: dict[str, Any]) -> None:
        if self._replies is not None:
            line = json.dumps(document) + "\n"
            reach("attempt.step_answering")
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._replies, line.encode())
            reach("attempt.step_answered")

    async def ending(self) -> Ending:
        await self._over.wait()
        ended = self._child.ended.result()
        code = ended.code
        if code == 0 and self._failure is None:
            if self._result is not None:
                return self._ended(result=self._result.get("value"), exit_code=0)
            if self._order.definition.runner is RunnerKind.COMMAND:
                return self._ended(result={"exitCode": 0}, exit_code=0)
        if ended.cause is not Cause.NONE:
            return self._ended(failure=_failure_by_guard(ended, self._order.definition.limits))
        failure = self._failure_of_exit(code)
        return self._ended(
            failure=self._failure or failure, exit_code=failure.exit_code, signal=failure.signal
        )

    def _ended(self, **fields: Any) -> Ending:
        return Ending(peak_rss_bytes=self._child.ended.result().peak_rss_bytes, **fields)

    def _failure_of_exit(self, code: int | None) -> Failure:
        definition = self._order.definition
        if definition.runner is not RunnerKind.COMMAND and code is not None and code >= 0:
            # Whoever calls a function reports its error: this one died without a word.
            message = f"the process ended with exit code {code} and without a word"
            return Failure(category=ErrorCategory.CRASH, message=message, exit_code=code)
        if code == 0:
            return Failure(category=ErrorCategory.UNKNOWN, message="", exit_code=code)
        return failure_of_exit(
            code,
            None,
            retryable_codes=definition.retryable_exit_codes,
            peak_rss_bytes=self._child.ended.result().peak_rss_bytes,
        )

    async def stop(self, *, grace: timedelta) -> str:
        if not self._over.is_set():
            if self._stopped_by is None:
                self._stopped_by = signal.SIGTERM.name
                reach("attempt.child_stopping")
                self._keeper.signal(self._child, kill=False)
            # A second caller may be less patient than the first.
            await asyncio.wait((self._child.ended,), timeout=grace.total_seconds())
            if not self._child.ended.done():
                self._stopped_by = signal.SIGKILL.name
                reach("attempt.child_killing")
                self._keeper.signal(self._child, kill=True)
        await self._over.wait()
        return self._stopped_by or signal.SIGTERM.name

    def rss_bytes(self) -> int:
        return rss_bytes_of(self.process_id)

    async def close(self) -> None:
        with contextlib.suppress(OSError):
            if not os.listdir(self.folder):
                await self._cleaner.remove_soon(self.folder)
                return
        await self._cleaner.remove(self.folder)


def _failure_by_guard(ended: Ended, limits: Limits) -> Failure:
    if ended.cause is Cause.MEMORY:
        used, limit = ((size or 0) // 2**20 for size in (ended.peak_rss_bytes, limits.memory_bytes))
        message = f"used {used} MB of memory, of {limit} MB that its definition allows"
        return Failure(category=ErrorCategory.OUT_OF_MEMORY, message=message)
    message = "the process that watched over the attempt was killed, and the attempt with it"
    return Failure(category=ErrorCategory.CRASH, message=message)
