"""A child at work: its streams, its channel, its end.

Everything is bounded. What the child prints faster than it can be stored waits in the pipe; a line
on the channel has a size limit; and once the child itself has ended, the rest of its group is
killed, and whoever else still holds its pipes is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

from longshore.adapters.process.killing import kill_group, signal_group
from longshore.adapters.process.said import failure_in, message_in, report_in
from longshore.adapters.process.table import rss_bytes_of
from longshore.core.definition import RunnerKind
from longshore.core.failures import ErrorCategory, Failure, failure_of_exit
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import Ending, Printed, Report, WorkOrder

_PIECE_BYTES = 64 * 1024
_WAITING_PIECES = 64
_LINE_LIMIT_BYTES = 64 * 1024 * 1024
_DRAIN = timedelta(seconds=1)
_SLOWEST_READER = timedelta(seconds=30)
# More than a pipe and a reader can hold: what comes after so many was not printed by the child.
_PIECES_LEFT_AT_THE_END = 64


class ChildStreams(SubprocessStreamProtocol):
    """The child's streams; knows of its end also while somebody else holds its pipes.

    ``Process.wait`` does not: it returns when the pipes are closed too.
    """

    def __init__(self) -> None:
        super().__init__(limit=_PIECE_BYTES, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class ProcessAttempt:
    """See ``ports.runner.RunningAttempt``.

    ``channel`` and ``replies`` are our ends of the two pipes; they are closed here.
    """

    def __init__(
        self,
        order: WorkOrder,
        transport: asyncio.SubprocessTransport,
        streams: ChildStreams,
        *,
        channel: int,
        replies: int,
        clean: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._order = order
        self._transport = transport
        self._streams = streams
        self._process_id = transport.get_pid()
        self._channel = os.fdopen(channel, "rb", 0)
        # A child that never reads its replies must not block us.
        os.set_blocking(replies, False)
        self._replies: int | None = replies
        self._clean = clean
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue(_WAITING_PIECES)
        self._pieces_read = 0
        self._held_up = False  # a report has had to wait for its reader
        self._unheard = False  # nobody wants the reports any more
        self._result: dict[str, Any] | None = None
        self._failure: Failure | None = None
        self._stopped_by: str | None = None
        self._over = asyncio.Event()

    @property
    def process_id(self) -> int:
        return self._process_id

    async def listen(self) -> None:
        """Begin to read what the child says."""
        reader = asyncio.StreamReader(limit=_LINE_LIMIT_BYTES)
        try:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), self._channel
            )
        except BaseException:
            signal_group(self.process_id, signal.SIGKILL)
            self._channel.close()
            self._let_go()
            self._clean()
            raise
        self._reading = [
            asyncio.ensure_future(self._read_stream(self._streams.stdout, Stream.STDOUT)),
            asyncio.ensure_future(self._read_stream(self._streams.stderr, Stream.STDERR)),
            asyncio.ensure_future(self._read_channel(reader)),
        ]
        self._watching = asyncio.ensure_future(self._watch(transport))

    async def _read_stream(self, reader: asyncio.StreamReader | None, stream: Stream) -> None:
        left = _PIECES_LEFT_AT_THE_END
        while reader is not None and left > 0:
            if not (piece := await reader.read(_PIECE_BYTES)):
                return
            self._pieces_read += 1
            left -= self._streams.exited.is_set()
            await self._report(Printed(stream, piece))

    async def _read_channel(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                message = f"a message of more than {_LINE_LIMIT_BYTES} bytes on the channel"
                self._failure = Failure(category=ErrorCategory.PARSE, message=message)
                continue
            if not line:
                return
            if (said := message_in(line)) is not None:
                await self._heard(said)

    async def _heard(self, said: dict[str, Any]) -> None:
        match said.get("type"):
            case "result":
                self._result = said
            case "error":
                self._failure = failure_in(said)
            case _:
                if (report := report_in(said, now=self._clock.now())) is not None:
                    await self._report(report)

    async def _report(self, report: Report) -> None:
        if not self._unheard:
            self._held_up = self._held_up or self._reports.full()
            await self._reports.put(report)

    async def _watch(self, channel: asyncio.ReadTransport) -> None:
        await self._streams.exited.wait()
        # Whoever of the group still lives has outlived its attempt.
        await _aside(lambda: kill_group(self.process_id))
        await self._drain()
        channel.close()
        self._let_go()
        await _aside(self._clean)
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

    def _let_go(self) -> None:
        self._transport.close()
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
        if self._replies is not None:
            line = json.dumps({"kept": name}) + "\n"
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._replies, line.encode())

    async def ending(self) -> Ending:
        await self._over.wait()
        code = self._transport.get_returncode()
        if code == 0 and self._failure is None:
            if self._result is not None:
                return Ending(result=self._result.get("value"), exit_code=0)
            if self._order.definition.runner is RunnerKind.COMMAND:
                return Ending(result={"exitCode": 0}, exit_code=0)
        failure = self._failure_of_exit(code)
        return Ending(
            failure=self._failure or failure, exit_code=failure.exit_code, signal=failure.signal
        )

    def _failure_of_exit(self, code: int | None) -> Failure:
        definition = self._order.definition
        if definition.runner is not RunnerKind.COMMAND and code is not None and code >= 0:
            # Whoever calls a function reports its error: this one died without a word.
            message = f"the process ended with exit code {code} and without a word"
            return Failure(category=ErrorCategory.CRASH, message=message, exit_code=code)
        if code == 0:
            return Failure(category=ErrorCategory.UNKNOWN, message="", exit_code=code)
        return failure_of_exit(code, None, retryable_codes=definition.retryable_exit_codes)

    async def stop(self, *, grace: timedelta) -> str:
        if not self._over.is_set():
            if self._stopped_by is None:
                self._stopped_by = signal.SIGTERM.name
                self._signal(signal.SIGTERM)
            # A second caller may be less patient than the first.
            try:
                await asyncio.wait_for(self._streams.exited.wait(), grace.total_seconds())
            except TimeoutError:
                self._stopped_by = signal.SIGKILL.name
                self._signal(signal.SIGKILL)
        await self._over.wait()
        return self._stopped_by or signal.SIGTERM.name

    def _signal(self, number: signal.Signals) -> None:
        # After its end the number may have gone to somebody else.
        if not self._streams.exited.is_set():
            signal_group(self.process_id, number)

    def rss_bytes(self) -> int:
        return rss_bytes_of(self.process_id)


async def _aside(work: Callable[[], None]) -> None:
    """Do what may block in a thread; if there is none to be had, it still has to be done."""
    try:
        await asyncio.to_thread(work)
    except RuntimeError:
        work()
