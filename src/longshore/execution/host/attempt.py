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
import stat
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from longshore.adapters.shared.failpoints import reach
from longshore.core.agents.transcripts import entry_id, new_entries
from longshore.core.definitions.definition import RunnerKind
from longshore.core.documents import EncodedJson
from longshore.core.tasks.failures import (
    ErrorCategory,
    Failure,
    error_text,
    failure_of_exit,
    failure_of_silent_exit,
    failure_of_too_many_processes,
)
from longshore.core.text.json_bounds import JsonBytes
from longshore.core.text.known_secrets import KnownSecrets
from longshore.errors import BackendUnavailable
from longshore.execution.host.folder_cleaner import FolderCleaner
from longshore.execution.host.forkserver_client import NOT_STARTED, ForkedReaper
from longshore.execution.host.pipes import open_reading, open_writing
from longshore.execution.host.report_decoder import (
    PARSED_ON_LOOP_BYTES,
    decode_failure,
    decode_report,
    is_too_long,
    parse_long_message,
    parse_message,
)
from longshore.execution.host.task_users import TaskUser
from longshore.execution.process_table import rss_bytes_of
from longshore.execution.protocol import (
    AGENT_FOLDER,
    KILL_MESSAGES,
    SMALL_LINE_BYTES,
    ChildStatus,
    KillCause,
)
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


@dataclass(eq=False, repr=False)
class ProcessAttempt:
    """See ``ports.runner.RunningAttempt``.

    Args:
        on_free: Called with the slot's reaper when nothing of the attempt is left, and the slot can
            be used again.
    """

    spec: AttemptSpec
    _: KW_ONLY
    on_free: Callable[[ForkedReaper], None]
    folder: Path
    cleaner: FolderCleaner
    clock: Clock
    max_processes: int = 0  # 0: no limit
    user: TaskUser | None = None  # as which it runs; None: as the user of this process
    secrets: KnownSecrets | None = None  # masked in everything that the child sends
    process_id: int = 0
    _reaper: ForkedReaper | None = None
    _status: ChildStatus | None = None  # None: the child has not ended
    _result: dict[str, Any] | None = None
    _failure: Failure | None = None
    _is_reading: bool = False
    _reports_closed: bool = False  # the consumer has stopped reading
    _lines: LineDecoder = field(default_factory=lambda: LineDecoder(is_too_long))
    _unparsed: deque[bytearray] = field(default_factory=deque)  # a long line, and those after it
    _parsing: asyncio.Task[None] | None = None
    _held_back: dict[Stream, bytes] = field(default_factory=dict)  # may begin a secret
    _readers: dict[int, Callable[[bytes], None]] = field(default_factory=dict)
    _files: ExitStack = field(default_factory=ExitStack)
    # What the consumer has not read; None: nothing follows.
    _reports: asyncio.Queue[ChildReport | None] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[ChildStatus] = loop.create_future()  # and its reports are read
        # The ids of the entries that are stored or were reported, by conversation.
        self._reported_ids = defaultdict[str, set[str]](set)
        for name, conversation in self.spec.conversations.items():
            for entries in (conversation.earlier_entries, conversation.entries):
                self._reported_ids[name] |= set(map(entry_id, entries))

    def open_pipes(self, theirs: ExitStack) -> tuple[int, int, int, int]:
        """Open its pipes. Returns the child's ends, which ``theirs`` closes."""
        files, pty = self._files, self.spec.definition.pty
        output, child_output = open_reading(files, theirs, pty=pty)
        # On a terminal, output and errors are one stream.
        errors, child_errors = (output, child_output) if pty else open_reading(files, theirs)
        channel, child_channel = open_reading(files, theirs)
        self._replies, child_replies = open_writing(files, theirs)
        self._readers = {
            channel: self._handle_lines,
            errors: partial(self._handle_output, Stream.STDERR),
            output: partial(self._handle_output, Stream.STDOUT),
        }
        return child_output, child_errors, child_channel, child_replies

    def start_in(
        self, reaper: ForkedReaper, spec: bytes, child_ends: Sequence[int], deadline_ns: int
    ) -> None:
        """Give the attempt to the child of a slot.

        Its files come and go with the attempt, so that another process that holds them open has
        nothing of a later attempt.

        Raises:
            OSError: there are not enough files, or the slot's reaper has ended.
        """
        self._reaper = reaper
        reaper.on_status = self._handle_status
        reaper.page.memory_bytes = self.spec.definition.resources.memory_bytes or 0
        reaper.page.max_processes = self.max_processes
        reaper.page.deadline_ns = deadline_ns
        # Its child may be alive a moment longer than the reaper.
        if not reaper.wake():
            raise BrokenPipeError(NOT_STARTED)
        with open(os.memfd_create("longshore-spec"), "wb", buffering=0) as file:
            file.write(spec)
            packet = ATTEMPT.pack(reaper.generation, self.spec.fence)
            socket.send_fds(reaper.tasks, [packet], [file.fileno(), *child_ends])
        self.set_reading(reading=True)

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
        if self._reaper is not None and self._status is None:
            self._reaper.abandon()
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
            return False
        self._readers[file](data)
        if self._parsing is not None or self._reports.qsize() >= _MAX_WAITING_REPORTS:
            self.set_reading(reading=False)
        return True

    def _handle_output(self, stream: Stream, data: bytes) -> None:
        if self.secrets is not None:
            data, self._held_back[stream] = self.secrets.mask_part(
                self._held_back.get(stream, b"") + data
            )
        if data:
            self._report(OutputReport(stream, data))

    def _parse(self, line: JsonBytes) -> dict[str, Any] | None:
        message = parse_message(line)
        if message is not None and self.secrets is not None:
            self.secrets.mask_json(message)
        return message

    def _parse_long(self, line: bytearray) -> dict[str, Any] | None:
        if len(line) <= PARSED_ON_LOOP_BYTES:
            return self._parse(line)
        text = line if self.secrets is None else self.secrets.mask_data(line)
        return parse_long_message(text)

    def _handle_lines(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if line is None:
                message = (
                    f"a message on the channel is longer than {SMALL_LINE_BYTES} bytes, and is too"
                    " long for its type, with which a long one must begin, or follows a long result"
                )
                self._fail(message)
            elif self._parsing is not None:
                self._unparsed.append(line)
            elif len(line) > PARSED_ON_LOOP_BYTES:
                self._unparsed.append(line)
                self._parsing = asyncio.ensure_future(self._parse_long_lines())
            elif (parsed := self._parse(line)) is not None:
                self._handle_message(parsed)

    def _fail(self, message: str) -> None:
        self._failure = Failure(category=ErrorCategory.PARSE, message=error_text(message))

    async def _parse_long_lines(self) -> None:
        """Parse a long line in a thread, and then, in their order, those that came after it."""
        while self._unparsed:
            line = self._unparsed.popleft()
            try:
                parsed = await asyncio.to_thread(self._parse_long, line)
            except ValueError as error:
                self._fail(str(error))
                continue
            if parsed is not None:
                self._handle_message(parsed)
        self._parsing = None
        # Else it is read on when the long report was stored: there is one in memory at a time.
        if self._reports.empty():
            self.set_reading(reading=self._status is None)

    def _handle_message(self, message: dict[str, Any]) -> None:
        match message.get("type"):
            case "begun" if not self.begun.done():
                self.process_id = message["pid"]
                self.begun.set_result(None)
            case "result":
                self._result = message
                if isinstance(message.get("value"), EncodedJson):
                    # It is kept until the child has ended: there is no memory for another one.
                    self._lines.refuses = lambda line: len(line) > SMALL_LINE_BYTES
            case "error":
                self._failure = decode_failure(message)
            case _:
                if (report := decode_report(message, now=self.clock.now())) is not None:
                    if isinstance(report, ConversationReport):
                        reported_ids = self._reported_ids[report.conversation]
                        ids = message.get("ids")  # of entries that stay encoded
                        if isinstance(report.entries, EncodedJson):
                            reported_ids.update(ids or ())
                        else:
                            reported_ids.update(map(entry_id, report.entries))
                    self._report(report)

    def _report(self, report: ChildReport) -> None:
        if not self._reports_closed:
            self._reports.put_nowait(report)

    def _handle_status(self, status: ChildStatus) -> None:
        if not status.ended:
            return  # the reaper has started
        reaper, self._status = self._reaper, status
        self.set_reading(reading=False)
        if reaper is not None and status.cause is not KillCause.LOST:
            reaper.page.deadline_ns = reaper.page.memory_bytes = reaper.page.max_processes = 0
            reaper.on_status = None
            self.on_free(reaper)
        # Nothing is left of the child: read what it has written.
        for file in list(self._readers):
            for _ in range(_MAX_READS_AT_END):
                if not self._read(file):
                    break
        self._handle_lines(b"\n")
        for stream, data in self._held_back.items():
            if data and self.secrets is not None:
                self._report(OutputReport(stream, self.secrets.mask_end(data)))
        self._close_pipes()
        reach("attempt.child_ended")
        if not self.begun.done():
            error = reaper.error if reaper is not None else ""
            self.begun.set_exception(BackendUnavailable(error or NOT_STARTED))
        if self._parsing is not None or self.spec.definition.runner is RunnerKind.AGENT:
            self._reporting = asyncio.ensure_future(self._report_rest(status))
        else:
            self._finish(status)

    def _finish(self, status: ChildStatus) -> None:
        self._ended.set_result(status)
        self._reports.put_nowait(None)

    async def _report_rest(self, status: ChildStatus) -> None:
        try:
            if self._parsing is not None:
                await self._parsing
            if self.spec.definition.runner is RunnerKind.AGENT:
                for report in await asyncio.to_thread(self._read_unreported):
                    self._report(report)
        finally:
            self._finish(status)

    def _read_unreported(self) -> list[ConversationReport]:
        """Returns the conversation entries that a killed agent had written but not reported.

        The agent's CLI writes each entry to a file before the child reports it. So the next attempt
        need not request and pay for these entries again.
        """
        reports = []
        for path in sorted((self.folder / AGENT_FOLDER).glob("**/projects/*/*.jsonl")):
            with contextlib.suppress(OSError):
                data = self._read_transcript(path)
                entries = list(new_entries(data, self._reported_ids[path.stem]))
                if entries:
                    reports.append(ConversationReport(path.stem, entries))
        return reports

    def _read_transcript(self, path: Path) -> bytes:
        """Returns the content of a file that the task has written; empty if it is something else.

        The task may have put a link in its way, also to what only the worker can read.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags), "rb") as file:
            about = os.fstat(file.fileno())
            is_own = self.user is None or about.st_uid == self.user.uid
            is_read = is_own and stat.S_ISREG(about.st_mode)
            return file.read() if is_read and about.st_size <= _MAX_TRANSCRIPT_BYTES else b""

    def _close_pipes(self) -> None:
        self.set_reading(reading=False)
        self._readers.clear()
        self._files.close()

    async def reports(self) -> AsyncIterator[ChildReport]:
        try:
            while (report := await self._reports.get()) is not None:
                yield report
                del report
                if self._parsing is None and self._reports.qsize() <= _MAX_WAITING_REPORTS // 2:
                    self.set_reading(reading=self._status is None)
        finally:
            self._reports_closed = True
            self._reports = asyncio.Queue()
            self.set_reading(reading=self._status is None)

    async def confirm_step(self, name: str) -> None:
        self._reply({"stored": name})

    async def answer_spend_request(self, number: int, *, refusal: str | None) -> None:
        self._reply({"request": number, "refusal": refusal})

    def _reply(self, document: dict[str, Any]) -> None:
        if self._status is None:
            line = json.dumps(document) + "\n"
            reach("attempt.step_answering")
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._replies, line.encode())
            reach("attempt.step_answered")

    async def ending(self) -> AttemptEnding:
        status, definition = await asyncio.shield(self._ended), self.spec.definition
        peak = status.peak_bytes or None
        build = partial(AttemptEnding, peak_rss_bytes=peak)
        code = os.waitstatus_to_exitcode(status.wait_status)
        if code == 0 and self._failure is None:
            if definition.runner is RunnerKind.COMMAND:
                self._result = self._result or {"value": {"exitCode": 0}}
            if self._result is not None:
                return build(result=self._result.get("value"))
        if status.cause is not KillCause.NONE:
            return build(failure=self._failure_by_reaper(status))
        if definition.runner is RunnerKind.COMMAND and code != 0:
            codes = definition.retryable_exit_codes
            failure = failure_of_exit(code, retryable_codes=codes, peak_rss_bytes=peak)
        else:
            failure = failure_of_silent_exit(code, peak_rss_bytes=peak)
        return build(failure=self._failure or failure)

    def _failure_by_reaper(self, status: ChildStatus) -> Failure:
        if status.cause is KillCause.MEMORY:
            allowed = self.spec.definition.resources.memory_bytes or 0
            used, limit = status.peak_bytes // 2**20, allowed // 2**20
            message = f"used {used} MB of memory; its definition allows {limit} MB"
            return Failure(category=ErrorCategory.OUT_OF_MEMORY, message=message)
        if status.cause is KillCause.PROCESSES:
            return failure_of_too_many_processes(self.max_processes)
        return Failure(category=ErrorCategory.CRASH, message=KILL_MESSAGES[status.cause])

    async def stop(self, *, grace: timedelta) -> str:
        if self._reaper is not None and self._status is None:
            reach("attempt.child_stopping")
            self._reaper.end_child(self._reaper.generation, grace)
        status = await asyncio.shield(self._ended)
        was_killed = os.WTERMSIG(status.wait_status) == signal.SIGKILL
        return (signal.SIGKILL if was_killed else signal.SIGTERM).name

    def trust_until(self, deadline_ns: int) -> None:
        if self._reaper is not None and self._status is None:
            self._reaper.trust_until(deadline_ns)

    def rss_bytes(self) -> int:
        return rss_bytes_of(self.process_id)

    async def close(self) -> None:
        await self.cleaner.remove(self.folder)
