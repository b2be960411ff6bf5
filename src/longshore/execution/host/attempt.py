"""A running child: its output streams, its channel, its ending.

Everything is bounded. Output that is printed faster than it can be stored waits in the pipe; a line
on the channel has a size limit; and once the attempt has ended, a process outside the attempt that
still holds its pipes open is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import KW_ONLY, InitVar, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from longshore.adapters.shared.failpoints import reach
from longshore.core.agents.transcripts import entry_id, new_entries
from longshore.core.definitions.definition import ResourceLimits, RunnerKind
from longshore.core.tasks.failures import (
    ErrorCategory,
    Failure,
    failure_of_exit,
    failure_of_silent_exit,
)
from longshore.execution.host.folder_cleaner import FolderCleaner
from longshore.execution.host.forkserver_client import ForkedChild
from longshore.execution.host.pipes import ChildPipes, PipeReader, write_all
from longshore.execution.host.report_decoder import decode_failure, decode_report, parse_message
from longshore.execution.process_table import rss_bytes_of
from longshore.execution.protocol import (
    AGENT_FOLDER,
    KILL_MESSAGES,
    LINE_LIMIT_BYTES,
    ChildStatus,
    KillCause,
    ReaperRequest,
)
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import (
    AttemptEnding,
    AttemptSpec,
    ChildReport,
    ConversationReport,
    OutputReport,
)

_REPORT_QUEUE_SIZE = 64
_DRAIN_INTERVAL = timedelta(seconds=1)
_DRAIN_TIMEOUT = timedelta(seconds=30)
# More than a pipe and a reader can hold: the child did not print what comes after so many.
_MAX_CHUNKS_AFTER_EXIT = 64
_MAX_TRANSCRIPT_BYTES = 256 * 1024 * 1024


@dataclass(eq=False, repr=False)
class ProcessAttempt:
    """See ``ports.runner.RunningAttempt``. The pipes are closed here."""

    spec: AttemptSpec
    child: ForkedChild
    pipes: InitVar[ChildPipes]
    _: KW_ONLY
    folder: Path
    cleaner: FolderCleaner
    clock: Clock
    _chunks_read: int = 0
    _queue_was_full: bool = False  # a report has had to wait for its reader
    _reports_closed: bool = False  # the consumer has stopped reading
    _result: dict[str, Any] | None = None
    _failure: Failure | None = None
    _stopped_by: str | None = None

    def __post_init__(self, pipes: ChildPipes) -> None:
        self._output, self._channel = PipeReader(pipes.output), PipeReader(pipes.channel)
        self._errors = None if pipes.errors is None else PipeReader(pipes.errors)
        self._replies: int | None = pipes.replies
        self._readers: list[asyncio.Task[None]] = []
        self._reports: asyncio.Queue[ChildReport | None] = asyncio.Queue(_REPORT_QUEUE_SIZE)
        self._finished = asyncio.Event()
        # The ids of the entries that are stored or were reported, by conversation.
        self._reported_ids = defaultdict[str, set[str]](set)
        for name, conversation in self.spec.conversations.items():
            for entries in (conversation.earlier_entries, conversation.entries):
                self._reported_ids[name] |= set(map(entry_id, entries))

    @property
    def process_id(self) -> int:
        return self.child.started.result()

    def start_reading(self) -> None:
        """Start reading the child's pipes; the child may not exist yet."""
        readers = [self._read_stream(self._output, Stream.STDOUT), self._read_channel()]
        if self._errors is not None:
            readers.append(self._read_stream(self._errors, Stream.STDERR))
        self._readers = [asyncio.ensure_future(reader) for reader in readers]
        self._exit_watch = asyncio.ensure_future(self._wait_for_exit())

    async def send_spec(self, data: bytes) -> None:
        """Send the child its spec; call this once."""
        if self._replies is not None:
            await write_all(self._replies, data, reader_gone=self.child.exited)

    def abandon(self) -> None:
        """Kill the child, which may not have started, and release its pipes without an ending."""
        self.child.abandon()
        for task in (*self._readers, self._exit_watch):
            task.cancel()
        self._close_pipes()

    async def _read_stream(self, end: PipeReader, stream: Stream) -> None:
        chunks_left = _MAX_CHUNKS_AFTER_EXIT
        while chunks_left > 0:
            if not (chunk := await end.read()):
                return
            self._chunks_read += 1
            chunks_left -= self.child.exited.done()
            await self._report(OutputReport(stream, chunk))

    async def _read_channel(self) -> None:
        async for line in self._channel.lines(limit_bytes=LINE_LIMIT_BYTES):
            if line is None:
                message = f"a message on the channel is longer than {LINE_LIMIT_BYTES} bytes"
                self._failure = Failure(category=ErrorCategory.PARSE, message=message)
            elif (parsed := parse_message(line)) is not None:
                await self._handle_message(parsed)

    async def _handle_message(self, message: dict[str, Any]) -> None:
        match message.get("type"):
            case "result":
                self._result = message
            case "error":
                self._failure = decode_failure(message)
            case _:
                if (report := decode_report(message, now=self.clock.now())) is not None:
                    if isinstance(report, ConversationReport):
                        reported_ids = self._reported_ids[report.conversation]
                        reported_ids.update(map(entry_id, report.entries))
                    await self._report(report)

    async def _report(self, report: ChildReport) -> None:
        if not self._reports_closed:
            self._queue_was_full = self._queue_was_full or self._reports.full()
            await self._reports.put(report)

    async def _wait_for_exit(self) -> None:
        # The reaper reports the exit only when no process of the attempt is alive.
        await asyncio.wait((self.child.exited,))
        await self._drain()
        await self._report_unreported_transcripts()
        self._close_pipes()
        reach("attempt.child_ended")
        self._finished.set()
        if not self._reports_closed:
            await self._reports.put(None)

    async def _drain(self) -> None:
        """Read what is left in the pipes, but do not wait for a process that holds them open.

        All that the child printed can be read at once; only a full queue delays it, and then the
        store is slow.
        """
        time_left = _DRAIN_TIMEOUT
        while unread := [reading for reading in self._readers if not reading.done()]:
            before, self._queue_was_full = self._chunks_read, self._reports.full()
            await asyncio.wait(unread, timeout=_DRAIN_INTERVAL.total_seconds())
            time_left = (
                _DRAIN_TIMEOUT if self._chunks_read > before else time_left - _DRAIN_INTERVAL
            )
            if not self._queue_was_full or time_left <= timedelta(0):
                break
        for reading in self._readers:
            reading.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _report_unreported_transcripts(self) -> None:
        if self.spec.definition.runner is RunnerKind.AGENT:
            for report in await asyncio.to_thread(self._read_unreported):
                await self._report(report)

    def _read_unreported(self) -> list[ConversationReport]:
        """Returns the conversation entries that a killed agent had written but not reported.

        The agent's CLI writes each entry to a file before the child reports it. So the next attempt
        need not request and pay for these entries again.
        """
        reports = []
        for path in sorted((self.folder / AGENT_FOLDER).glob("**/projects/*/*.jsonl")):
            with contextlib.suppress(OSError):
                if path.is_symlink() or path.stat().st_size > _MAX_TRANSCRIPT_BYTES:
                    continue
                entries = list(new_entries(path.read_bytes(), self._reported_ids[path.stem]))
                if entries:
                    reports.append(ConversationReport(path.stem, entries))
        return reports

    def _close_pipes(self) -> None:
        for end in (self._output, self._errors, self._channel):
            if end is not None:
                end.close()
        if self._replies is not None:
            os.close(self._replies)
            # The descriptor may be reused for another file from here on.
            self._replies = None

    async def reports(self) -> AsyncIterator[ChildReport]:
        try:
            while (report := await self._reports.get()) is not None:
                yield report
        finally:
            self._reports_closed = True
            while not self._reports.empty():
                self._reports.get_nowait()

    async def confirm_step(self, name: str) -> None:
        self._reply({"stored": name})

    async def answer_spend_request(self, number: int, *, refusal: str | None) -> None:
        self._reply({"request": number, "refusal": refusal})

    def _reply(self, document: dict[str, Any]) -> None:
        if self._replies is not None:
            line = json.dumps(document) + "\n"
            reach("attempt.step_answering")
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._replies, line.encode())
            reach("attempt.step_answered")

    async def ending(self) -> AttemptEnding:
        await self._finished.wait()
        status = self.child.exited.result()
        lost = status.cause is KillCause.LOST
        code = None if lost else os.waitstatus_to_exitcode(status.wait_status)
        build = partial(AttemptEnding, peak_rss_bytes=status.peak_bytes or None)
        if code == 0 and self._failure is None:
            if self._result is not None:
                return build(result=self._result.get("value"), exit_code=0)
            if self.spec.definition.runner is RunnerKind.COMMAND:
                return build(result={"exitCode": 0}, exit_code=0)
        if status.cause is not KillCause.NONE:
            return build(failure=_failure_by_reaper(status, self.spec.definition.resources))
        failure = self._failure_of_exit(code, status.peak_bytes or None)
        return build(
            failure=self._failure or failure, exit_code=failure.exit_code, signal=failure.signal
        )

    def _failure_of_exit(self, code: int | None, peak_rss_bytes: int | None) -> Failure:
        definition = self.spec.definition
        if definition.runner is not RunnerKind.COMMAND:
            return failure_of_silent_exit(code, peak_rss_bytes=peak_rss_bytes)
        if code == 0:
            return Failure(category=ErrorCategory.UNKNOWN, message="", exit_code=code)
        return failure_of_exit(
            code,
            None,
            retryable_codes=definition.retryable_exit_codes,
            peak_rss_bytes=peak_rss_bytes,
        )

    async def stop(self, *, grace: timedelta) -> str:
        if not self._finished.is_set():
            if self._stopped_by is None:
                self._stopped_by = signal.SIGTERM.name
                reach("attempt.child_stopping")
                self.child.signal(ReaperRequest.TERMINATE)
            # A second caller may pass a shorter grace period than the first.
            await asyncio.wait((self.child.exited,), timeout=grace.total_seconds())
            if not self.child.exited.done():
                self._stopped_by = signal.SIGKILL.name
                reach("attempt.child_killing")
                self.child.signal(ReaperRequest.KILL)
        await self._finished.wait()
        return self._stopped_by or signal.SIGTERM.name

    def trust_until(self, deadline_ns: int) -> None:
        self.child.trust_until(deadline_ns)

    def rss_bytes(self) -> int:
        return rss_bytes_of(self.process_id)

    async def close(self) -> None:
        with contextlib.suppress(OSError):
            if not os.listdir(self.folder):
                await self.cleaner.remove_soon(self.folder)
                return
        await self.cleaner.remove(self.folder)


def _failure_by_reaper(status: ChildStatus, limits: ResourceLimits) -> Failure:
    if status.cause is KillCause.MEMORY:
        used, limit = status.peak_bytes // 2**20, (limits.memory_bytes or 0) // 2**20
        message = f"used {used} MB of memory; its definition allows {limit} MB"
        return Failure(category=ErrorCategory.OUT_OF_MEMORY, message=message)
    return Failure(category=ErrorCategory.CRASH, message=KILL_MESSAGES[status.cause])
