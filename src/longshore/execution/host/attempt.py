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
import socket
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
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
from longshore.errors import BackendUnavailable
from longshore.execution.host.folder_cleaner import FolderCleaner
from longshore.execution.host.forkserver_client import NOT_STARTED, ForkServerClient
from longshore.execution.host.pipes import ChildPipes
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
from longshore.execution.slot_page import PAGE_BYTES, SlotPage
from longshore.execution.slot_protocol import ATTEMPT, LineDecoder
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import (
    AttemptEnding,
    AttemptSpec,
    ChildReport,
    ConversationReport,
    OutputReport,
)

_MAX_WAITING_REPORTS = 64
_READ_BYTES = 64 * 1024
# More than a pipe can hold: what comes after so many reads was not written by the child.
_MAX_READS_AT_END = 64
_MAX_TRANSCRIPT_BYTES = 256 * 1024 * 1024


class AttemptSlot:
    """A slot whose children take one attempt each. Its files come and go with the attempt, so that
    another process that holds them open has nothing of a later attempt.

    Args:
        on_free: Called when nothing of an attempt is left, and the slot can be used again.
    """

    def __init__(self, on_free: Callable[[AttemptSlot], None]) -> None:
        self._on_free = on_free
        self._resources = contextlib.ExitStack()
        self._attempt: ProcessAttempt | None = None
        self._generation = 1
        self._is_closed = False

    async def open(self, forkserver: ForkServerClient) -> None:
        """Request its reaper.

        Raises:
            OSError: there are not enough files.
            BackendUnavailable: no process can be forked.
        """
        with contextlib.ExitStack() as theirs:
            page_file = os.memfd_create("longshore-slot-page")
            theirs.callback(os.close, page_file)
            os.posix_fallocate(page_file, 0, PAGE_BYTES)
            self.page = SlotPage(page_file)
            self._resources.callback(self.page.close)
            self._tasks, tasks_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._resources.enter_context(self._tasks).setblocking(False)
            theirs.enter_context(tasks_end)
            try:
                self.reaper = await forkserver.fork_reaper(
                    self._handle_status, self.page, slot={}, fds=(tasks_end.fileno(), page_file)
                )
            except BaseException:
                self._resources.close()
                raise

    def give(
        self, attempt: ProcessAttempt, spec: bytes, child_ends: Sequence[int], deadline_ns: int
    ) -> bool:
        """Give an attempt to the child. Returns False if the reaper has ended."""
        if self._is_closed:
            return False
        self.page.memory_bytes = attempt.spec.definition.resources.memory_bytes or 0
        self.page.deadline_ns = deadline_ns
        # Its child may be alive a moment longer than the reaper.
        if not self.reaper.request(ReaperRequest.WAKE, 0):
            return False
        with open(os.memfd_create("longshore-spec"), "wb", buffering=0) as file:
            file.write(spec)
            packet = ATTEMPT.pack(self._generation, attempt.spec.fence)
            try:
                socket.send_fds(self._tasks, [packet], [file.fileno(), *child_ends])
            except OSError:
                return False
        self._attempt = attempt
        return True

    def request(self, request: ReaperRequest) -> None:
        """Request the end of the child or, with ``KILL``, of everything that it has started."""
        self.reaper.request(request, self._generation)

    def close(self) -> None:
        """Make the reaper kill the child and end; its attempt learns nothing more."""
        self._attempt = None
        self.reaper.end()

    def _handle_status(self, status: ChildStatus) -> None:
        if not status.ended:
            return  # the reaper has started
        attempt, self._attempt = self._attempt, None
        self._generation += 1
        self.page.deadline_ns = self.page.memory_bytes = 0
        if status.cause is KillCause.LOST:
            self._is_closed = True
            self._resources.close()
        elif attempt is not None:
            self._on_free(self)
        if attempt is not None:
            attempt.handle_end(status)


@dataclass(eq=False, repr=False)
class ProcessAttempt:
    """See ``ports.runner.RunningAttempt``. The pipes are closed here."""

    spec: AttemptSpec
    slot: AttemptSlot
    pipes: ChildPipes
    _: KW_ONLY
    folder: Path
    cleaner: FolderCleaner
    clock: Clock
    process_id: int = 0
    _reports_closed: bool = False  # the consumer has stopped reading
    _result: dict[str, Any] | None = None
    _failure: Failure | None = None
    _stopped_by: str | None = None
    _is_reading: bool = False
    _replies: int | None = None

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self._exited: asyncio.Future[ChildStatus] = loop.create_future()  # nothing is left of it
        self._finished = asyncio.Event()
        self._reports: deque[ChildReport] = deque()
        self._changed = asyncio.Event()
        self._lines = LineDecoder()
        self._replies = self.pipes.replies
        self._readers: dict[int, Callable[[bytes], None]] = {
            self.pipes.channel: self._handle_lines,
            self.pipes.output: lambda data: self._report(OutputReport(Stream.STDOUT, data)),
        }
        if self.pipes.errors is not None:
            self._readers[self.pipes.errors] = lambda data: self._report(
                OutputReport(Stream.STDERR, data)
            )
        # The ids of the entries that are stored or were reported, by conversation.
        self._reported_ids = defaultdict[str, set[str]](set)
        for name, conversation in self.spec.conversations.items():
            for entries in (conversation.earlier_entries, conversation.entries):
                self._reported_ids[name] |= set(map(entry_id, entries))

    def set_reading(self, *, reading: bool) -> None:
        """Read what the child sends, or let it wait when it prints."""
        if reading != self._is_reading:
            self._is_reading = reading
            loop = asyncio.get_running_loop()
            for file in self._readers:
                if reading:
                    loop.add_reader(file, self._read, file)
                else:
                    loop.remove_reader(file)

    def abandon(self) -> None:
        """Kill the child, which may not have begun, and release its pipes without an ending."""
        if not self._exited.done():
            self.slot.close()
        self._close_pipes()

    def _read(self, file: int) -> bool:
        """Read a chunk. Returns whether there was any."""
        try:
            data = os.read(file, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # a terminal ends with an error when its last user has closed it
        if not data:
            asyncio.get_running_loop().remove_reader(file)
            del self._readers[file]
            os.close(file)
            return False
        self._readers[file](data)
        if len(self._reports) >= _MAX_WAITING_REPORTS:
            self.set_reading(reading=False)
        return True

    def _handle_lines(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if line is None:
                message = f"a message on the channel is longer than {LINE_LIMIT_BYTES} bytes"
                self._failure = Failure(category=ErrorCategory.PARSE, message=message)
            elif (parsed := parse_message(line)) is not None:
                self._handle_message(parsed)

    def _handle_message(self, message: dict[str, Any]) -> None:
        match message.get("type"):
            case "begun" if not self.begun.done():
                self.process_id = message["pid"]
                self.begun.set_result(None)
            case "result":
                self._result = message
            case "error":
                self._failure = decode_failure(message)
            case _:
                if (report := decode_report(message, now=self.clock.now())) is not None:
                    if isinstance(report, ConversationReport):
                        reported_ids = self._reported_ids[report.conversation]
                        reported_ids.update(map(entry_id, report.entries))
                    self._report(report)

    def _report(self, report: ChildReport) -> None:
        if not self._reports_closed:
            self._reports.append(report)
            self._changed.set()

    def handle_end(self, status: ChildStatus) -> None:
        """Nothing is left of the child: read what it has written."""
        self._exited.set_result(status)
        self.set_reading(reading=False)
        for file in list(self._readers):
            for _ in range(_MAX_READS_AT_END):
                if not self._read(file):
                    break
        self._handle_lines(b"\n")
        self._close_pipes()
        reach("attempt.child_ended")
        if not self.begun.done():
            self.begun.set_exception(BackendUnavailable(self.slot.reaper.error or NOT_STARTED))
        if self.spec.definition.runner is RunnerKind.AGENT:
            self._reporting = asyncio.ensure_future(self._report_unreported_transcripts())
        else:
            self._finish()

    def _finish(self) -> None:
        self._finished.set()
        self._changed.set()

    async def _report_unreported_transcripts(self) -> None:
        try:
            for report in await asyncio.to_thread(self._read_unreported):
                self._report(report)
        finally:
            self._finish()

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
        self.set_reading(reading=False)
        while self._readers:
            os.close(self._readers.popitem()[0])
        if self._replies is not None:
            os.close(self._replies)
            # The descriptor may be reused for another file from here on.
            self._replies = None

    async def reports(self) -> AsyncIterator[ChildReport]:
        try:
            while True:
                self._changed.clear()
                while self._reports:
                    report = self._reports.popleft()
                    if len(self._reports) <= _MAX_WAITING_REPORTS // 2:
                        self.set_reading(reading=not self._exited.done())
                    yield report
                if self._finished.is_set():
                    return
                await self._changed.wait()
        finally:
            self._reports_closed = True
            self._reports.clear()
            self.set_reading(reading=not self._exited.done())

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
        status = self._exited.result()
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
                self.slot.request(ReaperRequest.TERMINATE)
            # A second caller may pass a shorter grace period than the first.
            await asyncio.wait((self._exited,), timeout=grace.total_seconds())
            if not self._exited.done():
                self._stopped_by = signal.SIGKILL.name
                reach("attempt.child_killing")
                self.slot.request(ReaperRequest.KILL)
        await self._finished.wait()
        return self._stopped_by or signal.SIGTERM.name

    def trust_until(self, deadline_ns: int) -> None:
        if not self._exited.done():
            self.slot.reaper.trust_until(deadline_ns)

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
