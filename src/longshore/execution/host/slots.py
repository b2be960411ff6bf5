"""The worker's side of its child slots; see ``ports.child_slots`` and ``execution.slot_protocol``.

A task costs the worker one packet down and its share of three reads up: nothing is created for it,
neither a coroutine nor a future, a thread, a file or a log record. Everything happens in callbacks
of the event loop, and nothing blocks.

A slot has a *generation*, the number of its child. When its reaper reports the end of a child, all
that the child has written is in the pipes. The worker reads it, accounts for every task that it has
given, and only then gives tasks to the next generation; so no byte can belong to another child.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.adapters.shared.failpoints import reach
from longshore.core.definitions.definition import Definition, Isolation
from longshore.core.documents import EncodedJson
from longshore.core.tasks.failures import (
    ErrorCategory,
    Failure,
    error_text,
    failure_of_silent_exit,
    failure_of_too_many_processes,
)
from longshore.errors import BackendUnavailable
from longshore.execution.host.folder_cleaner import FolderCleaner
from longshore.execution.host.forkserver_client import ForkServerClient
from longshore.execution.host.pipes import open_reading, open_sockets
from longshore.execution.host.report_decoder import (
    PARSED_ON_LOOP_BYTES,
    check_json,
    decode_failure,
    decode_report,
    is_too_long,
    parse_long_message,
    parse_message,
)
from longshore.execution.protocol import KILL_MESSAGES, ChildStatus, KillCause
from longshore.execution.slot_page import SlotPage, open_page_file
from longshore.execution.slot_protocol import (
    RECORD_LIMIT_BYTES,
    TOKEN_BYTES,
    FileRecord,
    Frame,
    FrameDecoder,
    InvalidFrame,
    OutcomeFrame,
    OutputSplitter,
    ReportFrame,
    TaskRecord,
    TooLateFrame,
    decode_record,
    encode,
)
from longshore.ports.child_slots import (
    ChildEndCause,
    ChildEnding,
    SlotListener,
    SlotOutcome,
    SlotTask,
    runs_in_slot,
)
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import OutputReport

_READ_BYTES = 64 * 1024
# More than a pipe can hold: what comes after so many reads was not written by the child.
_MAX_READS_AT_END = 64
_FOLDER_MODE = 0o700
_MAX_DEFINITIONS = 1000
# The output of a shorter task is read together with its outcome.
_FOLLOW_AFTER_S = 0.02
_NO_GRACE = timedelta(0)
_SEND_BUFFER_BYTES = 4 * 1024 * 1024
_MESSAGES = {
    **KILL_MESSAGES,
    ChildEndCause.INVALID_REPORT: "the attempt sent an invalid report to the worker",
}


class ProcessSlots:
    """See ``ports.child_slots.ChildSlots``.

    Args:
        folder: Contains the folders of attempts and children.
        page_path: The file that records what was begun; it outlives a kill of all processes, and is
            removed by ``close``.
        max_processes: How many processes a child may be, with those that it starts; 0: no limit.
    """

    def __init__(
        self,
        forkserver: ForkServerClient,
        listener: SlotListener,
        clock: Clock,
        *,
        folder: Path,
        page_path: Path,
        cleaner: FolderCleaner,
        max_processes: int = 0,
    ) -> None:
        self.forkserver = forkserver
        self.listener = listener
        self.clock = clock
        self.cleaner = cleaner
        self.max_processes = max_processes
        self.folder = folder
        self._page_path = page_path
        self._slots: dict[int, _ChildSlot] = {}
        self._opening: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def open_slot(self, isolation: Isolation) -> int:
        taken = self._slots.keys() | self._opening
        number = next(item for item in range(sys.maxsize) if item not in taken)
        self._opening.add(number)
        try:
            await self.forkserver.open()
            self.folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            slot = _ChildSlot(self, number, isolation)
            try:
                reach("slot.opening")
                await slot.open(self._page_path)
                reach("slot.opened")
            except BaseException:
                slot.release()
                raise
        except OSError as error:
            raise BackendUnavailable(f"cannot open a slot for children: {error}") from error
        finally:
            self._opening.discard(number)
        self._slots[number] = slot
        return number

    def give(self, slot: int, task: SlotTask) -> bool:
        if self._timer is None:
            self._follow_later()
        return self._slots[slot].give(task)

    def _follow_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_FOLLOW_AFTER_S, self._follow_output)

    def _follow_output(self) -> None:
        """Follow the output of tasks that take long; see ``_ChildSlot.follow_output``."""
        self._timer = None
        busy = [slot.follow_output() for slot in self._slots.values()]
        if any(busy):
            self._follow_later()

    def take_back(self, slot: int) -> Sequence[int]:
        return self._slots[slot].take_back()

    def kill(self, slot: int, *, grace: timedelta) -> Sequence[int]:
        return self._slots[slot].kill(grace)

    def replace(self, slot: int) -> None:
        self._slots[slot].replace()

    def trust_until(self, slot: int, deadline_ns: int) -> None:
        self._slots[slot].reaper.trust_until(deadline_ns)

    def confirm_step(self, slot: int, number: int, name: str) -> None:
        self._slots[slot].reply(number, {"stored": name})

    def pause_output(self, slot: int) -> None:
        self._slots[slot].stop_reading_output()

    def resume_output(self, slot: int) -> None:
        self._slots[slot].start_reading_output()

    def process_id(self, slot: int) -> int:
        return self._slots[slot].page.child_pid

    def release_folder(self, folder: Path) -> None:
        self.cleaner.remove_later(folder)

    def forget(self, slot: _ChildSlot) -> None:
        """Remove a slot that is closed."""
        self._slots.pop(slot.number, None)

    async def close(self) -> None:
        slots = list(self._slots.values())
        for slot in slots:
            slot.close()
        await asyncio.gather(*(slot.closed for slot in slots))
        if self._timer is not None:
            self._timer.cancel()
        reach("slot.page_removing")
        self._page_path.unlink(missing_ok=True)
        reach("slot.page_removed")


@dataclass(slots=True, eq=False)
class _GivenTask:
    """A task that was given to a child and is not finished."""

    task: SlotTask
    file: str | None  # contains its record
    open_streams: int  # whose boundary has not been read; in fork there are no boundaries
    frame: OutcomeFrame | None = None
    parsing: asyncio.Task[None] | None = None  # of a long report


@dataclass(slots=True, eq=False)
class _OutputPipe:
    """The worker's end of a slot's standard output or error."""

    file: int
    stream: Stream
    splitter: OutputSplitter
    # Those whose boundary has not been read, in sequence.
    tasks: deque[int] = field(default_factory=deque)


class _ChildSlot:
    """One slot."""

    def __init__(self, slots: ProcessSlots, number: int, isolation: Isolation) -> None:
        self.number = number
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._slots = slots
        self._listener = slots.listener
        self._isolation = isolation
        self._in_pool = isolation is Isolation.POOL
        self._resources = contextlib.ExitStack()
        # No process has used the name before, so nothing can be left in it.
        self._child_folder = f"{slots.folder}/slot-{os.getpid()}-{secrets.token_hex(8)}"
        self._token = b"\0" + secrets.token_bytes(TOKEN_BYTES - 1)
        self._definitions: dict[int, tuple[Definition, str]] = {}  # as JSON, by their identity
        self._output_paused = False
        self._output_followed = False
        self._has_reported = False  # since the output was last considered
        self._closing = False
        self._set_generation(1)

    def _set_generation(self, generation: int) -> None:
        """Forget the child that has ended; this is the number of the next one."""
        self._generation = generation
        self._unfinished: dict[int, _GivenTask] = {}
        self._unreported: deque[int] = deque()  # without an outcome, in sequence
        self._decoder = FrameDecoder()
        self._tenant: str | None = None
        self._ending: ChildEndCause | None = None

    # Opening and closing.

    async def open(self, page_path: Path) -> None:
        """Have a reaper forked that holds the child's ends of the slot's files.

        Raises:
            OSError: there are not enough files.
            UsageError: a module cannot be loaded.
            BackendUnavailable: no process can be forked.
        """
        with contextlib.ExitStack() as theirs:
            ours = self._resources
            page_file = open_page_file(str(page_path), self.number + 1)
            theirs.callback(os.close, page_file)
            self.page = SlotPage(page_file, self.number)
            self.page.format()
            self.page.max_processes = self._slots.max_processes
            self._replies, replies_end = open_sockets(ours, theirs)
            self._reports, reports_end = open_reading(ours, theirs)
            output, output_end = open_reading(ours, theirs)
            errors, errors_end = open_reading(ours, theirs)
            self._outputs = (
                _OutputPipe(output, Stream.STDOUT, OutputSplitter(self._token)),
                _OutputPipe(errors, Stream.STDERR, OutputSplitter(self._token)),
            )
            settings = {
                "isolation": self._isolation,
                "token": self._token.hex(),
                "work_folder": str(self._slots.folder),
                "child_folder": self._child_folder,
                "keep_folders": self._slots.cleaner.keep,
                "page": self.number,
            }
            self.reaper = await self._slots.forkserver.fork_reaper(
                self.page,
                self._handle_status,
                slot=settings,
                fds=(replies_end.fileno(), reports_end, output_end, errors_end, page_file),
            )
        self.reaper.tasks.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._resources.callback(self.reaper.abandon)
        # If this is cancelled, the reaper may still report its start.
        await asyncio.shield(self._started)
        self._loop.add_reader(self._reports, self._read_reports)
        self._resources.callback(self._loop.remove_reader, self._reports)

    def close(self) -> None:
        """Make the reaper kill the child and end; ``closed`` is done when it has."""
        if not self._closing:
            self._closing = True
            self._ending = ChildEndCause.KILLED
            reach("slot.closing")
            self.reaper.end()

    def release(self) -> None:
        """Close all files."""
        self._set_followed(followed=False)
        self._resources.close()

    # Tasks.

    def give(self, task: SlotTask) -> bool:
        number = task.number
        if self._ending is not None or self._closing or (self._unfinished and not self._in_pool):
            return False
        if number in self._unfinished:
            raise ValueError(f"slot {self.number} already has task {number}")
        if task.tenant != self._tenant and self._in_pool:
            if self._tenant is not None:
                message = f"the child of slot {self.number} has served another tenant: replace it"
                raise ValueError(message)
            self._tenant = task.tenant
        packet = encode(
            TaskRecord(
                self._generation,
                number,
                task.fence,
                self._definition_text(task.definition),
                task.task_id,
                task.job_id,
                task.attempt,
                task.input,
                task.dependency_outputs,
                task.checkpoints,
                task.feedback,
                task.previous_output,
            )
        )
        file = None
        if len(packet) > RECORD_LIMIT_BYTES:
            file = self._write_record(number, packet)
            packet = encode(FileRecord(self._generation, number, file))
        reach("slot.task_giving")
        try:
            self.reaper.tasks.send(packet)
        except OSError:
            _remove_file(file)
            return False
        reach("slot.task_given")
        streams = len(self._outputs) if self._in_pool else 0
        self._unfinished[number] = _GivenTask(task, file, streams)
        self._unreported.append(number)
        for pipe in self._outputs:
            pipe.tasks.append(number)
        return True

    def _definition_text(self, definition: Definition) -> str:
        # The value has a reference to the definition, so its identity is not used again.
        entry = self._definitions.get(id(definition))
        if entry is None:
            if not runs_in_slot(definition) or definition.isolation is not self._isolation:
                raise ValueError(f"tasks of {definition.name!r} cannot run in slot {self.number}")
            if len(self._definitions) >= _MAX_DEFINITIONS:
                self._definitions.clear()
            fields = {"options": definition.options, "overridable": definition.overridable}
            entry = self._definitions[id(definition)] = (definition, json.dumps(fields))
        return entry[1]

    def _write_record(self, number: int, packet: bytes) -> str:
        path = f"{self._child_folder}.{self._generation}.{number}.task"
        reach("slot.record_writing")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(packet)
        reach("slot.record_written")
        return path

    def take_back(self) -> list[int]:
        numbers: list[int] = []
        reach("slot.tasks_taking_back")
        while True:
            try:
                packet = self.reaper.tasks_end.recv(RECORD_LIMIT_BYTES + 1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            record = decode_record(packet)
            if record.generation == self._generation:
                numbers.append(record.number)
        reach("slot.tasks_taken_back")
        if numbers:
            self._remove_unbegun(numbers)
        return numbers

    def _remove_unbegun(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            _remove_file(self._unfinished.pop(number).file)
        self._unreported = deque(item for item in self._unreported if item in self._unfinished)
        for pipe in self._outputs:
            pipe.tasks = deque(item for item in pipe.tasks if item in self._unfinished)
        self._end_when_done()

    def kill(self, grace: timedelta) -> list[int]:
        numbers = self.take_back()
        self._ending = ChildEndCause.KILLED
        reach("slot.child_stopping")
        self._end_child(grace if self._unfinished else _NO_GRACE)
        return numbers

    def _end_child(self, grace: timedelta = _NO_GRACE) -> None:
        self.reaper.end_child(self._generation, grace)

    def replace(self) -> None:
        if self._ending is None:
            self._ending = ChildEndCause.REPLACED
            reach("slot.child_replacing")
            self._end_when_done()

    def _end_when_done(self) -> None:
        """End a child that has nothing more to do, if it has to be ended."""
        is_done = self._ending is ChildEndCause.REPLACED and not self._unfinished
        if is_done or self._ending is ChildEndCause.KILLED:
            self._end_child()

    def reply(self, number: int, content: dict[str, Any]) -> None:
        """Answer a request of a task; the answer is lost if the task has ended."""
        reach("slot.step_answering")
        with contextlib.suppress(OSError):
            self._replies.send(json.dumps([number, content]).encode())
        reach("slot.step_answered")

    # What the child sends.

    def follow_output(self) -> bool:
        """Read the output as it comes, if the slot has been silent since the last call.

        Most tasks are short: their output is read with their outcome. If each boundary woke the
        worker, a small task would cost it three times as much. Returns whether the slot has tasks.
        """
        if self._unfinished and not self._has_reported and not self._output_paused:
            self._set_followed(followed=True)
        self._has_reported = False
        return bool(self._unfinished)

    def start_reading_output(self) -> None:
        self._output_paused = False
        self._set_followed(followed=True)

    def stop_reading_output(self) -> None:
        self._output_paused = True
        self._set_followed(followed=False)

    def _set_followed(self, *, followed: bool) -> None:
        if followed != self._output_followed:
            self._output_followed = followed
            for pipe in self._outputs:
                if followed:
                    self._loop.add_reader(pipe.file, self._read_output, pipe)
                else:
                    self._loop.remove_reader(pipe.file)

    def _read(self, file: int) -> bytes:
        """Returns what can be read now; empty if there is nothing."""
        try:
            data = os.read(file, _READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self._loop.remove_reader(file)  # no process has the other end any more
        return data

    def _read_output(self, pipe: _OutputPipe) -> bool:
        """Read a chunk. Returns whether there was any."""
        data = self._read(pipe.file)
        for part, boundary in pipe.splitter.feed(data) if data else ():
            if part:
                self._handle_output(pipe, part)
            if boundary is None:
                continue
            if not pipe.tasks or pipe.tasks[0] != boundary:
                self._reject()
                break
            pipe.tasks.popleft()
            entry = self._unfinished[boundary]
            entry.open_streams -= 1
            if not entry.open_streams and entry.frame is not None:
                self._finish(entry, entry.frame)
        return bool(data)

    def _handle_output(self, pipe: _OutputPipe, data: bytes) -> None:
        # Without a task the child itself has printed something while it started or ended.
        if pipe.tasks:
            self._listener.report(self.number, pipe.tasks[0], OutputReport(pipe.stream, data))

    def _read_reports(self) -> bool:
        """Read a chunk of frames. Returns whether there was any."""
        data = self._read(self._reports)
        if data and self._ending is not ChildEndCause.INVALID_REPORT:
            self._has_reported = True
            try:
                for frame in self._decoder.feed(data):
                    self._handle_frame(frame)
            except InvalidFrame:
                self._reject()
            if self._in_pool and not self._output_paused:
                self._set_followed(followed=False)
                for pipe in self._outputs:
                    while self._has_ended(pipe) and self._read_output(pipe):
                        pass
        return bool(data)

    def _has_ended(self, pipe: _OutputPipe) -> bool:
        """Whether the task whose output comes next has ended, so that all of it can be read."""
        if not pipe.tasks or self._ending is ChildEndCause.INVALID_REPORT:
            return False
        return self._unfinished[pipe.tasks[0]].frame is not None

    def _handle_frame(self, frame: Frame) -> None:
        if isinstance(frame, ReportFrame):
            self._handle_report(frame)
            return
        entry = self._unfinished.get(frame.number)
        if (
            entry is None
            or entry.task.fence != frame.fence
            or self._unreported.popleft() != frame.number
        ):
            raise InvalidFrame(f"an outcome of task {frame.number}, which this child does not run")
        if isinstance(frame, TooLateFrame):
            self._remove_unbegun((frame.number,))
            self._listener.too_late(self.number, frame.number)
            return
        entry.frame = frame
        if not entry.open_streams:
            self._finish(entry, frame)

    def _handle_report(self, frame: ReportFrame) -> None:
        entry = self._unfinished.get(frame.number)
        # A thread that a task has left behind may still send something.
        if entry is None or entry.frame is not None or entry.task.fence != frame.fence:
            return
        # A task waits for the answer to its long report, a step, before it sends another one.
        is_long = len(frame.message) > PARSED_ON_LOOP_BYTES
        if is_too_long(frame.message) or (is_long and entry.parsing is not None):
            error = "a report that is too long, or that did not wait for an answer"
            raise InvalidFrame(error)
        if is_long:
            entry.parsing = self._loop.create_task(self._parse_report(entry, frame))
        else:
            self._report(frame.number, parse_message(frame.message))

    async def _parse_report(self, entry: _GivenTask, frame: ReportFrame) -> None:
        try:
            message = await asyncio.to_thread(parse_long_message, frame.message)
        except ValueError:
            message = None
        entry.parsing = None
        # If the task has ended meanwhile, nothing waits for the answer.
        if self._unfinished.get(frame.number) is entry and entry.frame is None:
            try:
                self._report(frame.number, message)
            except InvalidFrame:
                self._reject()

    def _report(self, number: int, message: dict[str, Any] | None) -> None:
        if message is None:
            error = "a report that is not a JSON object"
            raise InvalidFrame(error)
        report = decode_report(message, now=self._slots.clock.now())
        if report is not None:
            self._listener.report(self.number, number, report)

    def _finish(self, entry: _GivenTask, frame: OutcomeFrame) -> None:
        """Hand over how a task ended, unless its child has to end first."""
        if frame.child_ends or not self._in_pool:
            return
        del self._unfinished[frame.number]
        _remove_file(entry.file)
        self._listener.outcome(self.number, self._outcome(entry.task, frame))
        self._end_when_done()

    def _outcome(self, task: SlotTask, frame: OutcomeFrame) -> SlotOutcome:
        failure = None if frame.error is None else decode_failure(frame.error)
        folder = self._folder_of(task) if frame.has_folder else None
        result: str | EncodedJson | None = None
        if frame.result is not None and len(frame.result) > PARSED_ON_LOOP_BYTES:
            result = EncodedJson(frame.result, check_json)
        elif frame.result is not None:
            try:
                check_json(frame.result)
                result = frame.result.decode()
            except ValueError as error:
                failure = Failure(category=ErrorCategory.PARSE, message=error_text(str(error)))
        return SlotOutcome(frame.number, result, failure, frame.duration_ns, folder)

    def _folder_of(self, task: SlotTask) -> Path:
        return self._slots.folder / f"{task.task_id}.{task.attempt}"

    def _folder_left(self, status: ChildStatus) -> str:
        """Returns the working directory of the child that has ended, if it has changed it."""
        left = f"{self._child_folder}.{self._generation}"
        # A reaper that was killed may not have renamed it.
        was_renamed = status.cause is not KillCause.LOST or os.path.exists(left)
        return left if was_renamed else self._child_folder

    def _folder_left_by(self, task: SlotTask, status: ChildStatus) -> Path | None:
        """Returns the folder in which the task has left something; None if there is none."""
        if self._in_pool:
            folder = self._folder_of(task)
            return folder if folder.is_dir() else None
        left = self._folder_left(status)
        if not os.access(left, os.F_OK):
            return None
        try:
            return Path(left).rename(self._folder_of(task))
        except OSError:  # the name is taken
            return Path(left)

    def _reject(self) -> None:
        """Kill a child that does not keep to the protocol; nothing more is accepted from it."""
        self._ending = ChildEndCause.INVALID_REPORT
        self._end_child()

    # The end of a child.

    def _handle_status(self, status: ChildStatus) -> None:
        if self._started.done():
            self._handle_end(status)
        elif status.ended:
            cause = os.strerror(status.wait_status)
            error = self.reaper.error or f"the folder of a child cannot be made: {cause}"
            self._started.set_exception(BackendUnavailable(error))
            self.reaper.abandon()
        else:
            self._started.set_result(None)

    def _handle_end(self, status: ChildStatus) -> None:
        lost = status.cause is KillCause.LOST
        self._closing = self._closing or lost
        self._drain()
        reach("slot.child_ended")
        ending, outcomes = self._account(status)
        folder = self._folder_left(status)
        self._set_generation(self.reaper.generation)
        for pipe in self._outputs:
            pipe.tasks.clear()
            pipe.splitter = OutputSplitter(self._token)
        if lost:
            self._slots.forget(self)
            self.release()
            self.closed.set_result(None)
        if self._in_pool or lost:
            self._slots.release_folder(Path(folder))
        for outcome in outcomes:
            self._listener.outcome(self.number, outcome)
        if ending is not None:
            self._listener.child_ended(self.number, ending)

    def _drain(self) -> None:
        """Read all that the child has written; it has ended."""
        for _ in range(_MAX_READS_AT_END):
            if not self._read_reports():
                break
        for pipe in self._outputs:
            for _ in range(_MAX_READS_AT_END):
                if not self._read_output(pipe):
                    break
            if rest := pipe.splitter.flush():
                self._handle_output(pipe, rest)

    def _account(self, status: ChildStatus) -> tuple[ChildEnding | None, list[SlotOutcome]]:
        """Returns how the child ended, and the outcomes of its tasks that waited for that.

        There is no ending in ``fork`` if its task has an outcome.
        """
        not_begun = tuple(self.take_back())
        code = os.waitstatus_to_exitcode(status.wait_status)
        finished: list[SlotOutcome] = []
        begun: SlotTask | None = None
        last_begun = self.page.last_begun
        for entry in self._unfinished.values():
            outcome = self._outcome_at_end(entry, status, code)
            if outcome is not None:
                finished.append(outcome)
            elif last_begun == (entry.task.number, entry.task.fence):
                begun = entry.task
            else:
                # The child, or the next one, had taken it from the socket and not begun it.
                not_begun = (*not_begun, entry.task.number)
            _remove_file(entry.file)
        if finished and not self._in_pool and not self._closing:
            return None, finished
        cause = self._cause_of(status, code, begun)
        peak = status.peak_bytes or None
        exit_failure = self._exit_failure(cause, code, peak)
        ending = ChildEnding(
            cause=cause,
            begun=None if begun is None else begun.number,
            not_begun=not_begun,
            failure=None if begun is None else exit_failure,
            folder=None if begun is None else self._folder_left_by(begun, status),
            signal=exit_failure.signal,
            peak_rss_bytes=peak,
            slot_closed=status.cause is KillCause.LOST,
        )
        return ending, finished

    def _outcome_at_end(
        self, entry: _GivenTask, status: ChildStatus, code: int
    ) -> SlotOutcome | None:
        """Returns the outcome that the task has reported."""
        frame = entry.frame
        # A child of a fork may have ended otherwise than it has reported.
        if frame is None or (not self._in_pool and frame.error is None and code != 0):
            return None
        outcome = self._outcome(entry.task, frame)
        if not self._in_pool:
            outcome.folder = self._folder_left_by(entry.task, status)
        outcome.peak_rss_bytes = status.peak_bytes or None
        return outcome

    def _cause_of(self, status: ChildStatus, code: int, begun: SlotTask | None) -> ChildEndCause:
        if self._ending is not None:
            return self._ending
        if status.cause is not KillCause.NONE:
            return ChildEndCause(status.cause)
        return ChildEndCause.RETIRED if code == 0 and begun is None else ChildEndCause.CRASHED

    def _exit_failure(self, cause: ChildEndCause, code: int, peak_bytes: int | None) -> Failure:
        if cause is ChildEndCause.PROCESSES:
            return failure_of_too_many_processes(self._slots.max_processes)
        if cause in _MESSAGES:
            return Failure(category=ErrorCategory.CRASH, message=_MESSAGES[cause])
        return failure_of_silent_exit(code, peak_rss_bytes=peak_bytes)


def _remove_file(path: str | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            os.unlink(path)
