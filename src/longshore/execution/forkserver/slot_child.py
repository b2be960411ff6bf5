"""The child of a slot: takes tasks from the slot's socket and calls their functions.

A child of a pool takes one task after another. It ends by itself if a task has left a thread or a
process behind, which then ends with it, and when it has become old. In ``fork`` it takes one task.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from longshore.core.definitions.definition import Isolation
from longshore.core.ids import traceparent_of
from longshore.execution.attempt_settings import python_settings
from longshore.execution.forkserver.child import TaskEnvironment, exit_process, set_thread_reset
from longshore.execution.linux import become_subreaper, has_children, set_process_name
from longshore.execution.protocol import (
    ATTEMPT_VARIABLE,
    TASK_VARIABLE,
    TRACE_VARIABLE,
    ChildMessage,
)
from longshore.execution.runners.channel import (
    encode_message,
    require_confirmation,
    write_all,
)
from longshore.execution.runners.context import Context
from longshore.execution.runners.executor import (
    EXIT_FAILED,
    EXIT_OK,
    call_function,
    describe_error,
    encode_result,
    write_traceback,
)
from longshore.execution.slot_page import SlotPage
from longshore.execution.slot_protocol import (
    RECORD_LIMIT_BYTES,
    FileRecord,
    Frame,
    OutcomeFrame,
    ReportFrame,
    TaskRecord,
    TooLateFrame,
    decode_record,
    encode,
    encode_boundary,
    encode_frame,
)

_OUTPUT, _ERRORS = 1, 2
_TASK_VARIABLE, _ATTEMPT_VARIABLE = TASK_VARIABLE.encode(), ATTEMPT_VARIABLE.encode()
_TRACE_VARIABLE = TRACE_VARIABLE.encode()
FOLDER_MODE = 0o700
_REPLY_BYTES = 64 * 1024
# A fork costs as much as a hundred tasks: with these limits it is about one percent of the work,
# and memory that tasks leak is returned.
_MAX_TASKS = 10_000
_MAX_GROWTH_KIB = 128 * 1024
_GROWTH_CHECK_TASKS = 64
WARMUP_RUNS = 10
"""More runs than the interpreter needs before it specialises a function."""
_decode_at_start = json.JSONDecoder().raw_decode


class SlotFiles(NamedTuple):
    """The child's ends of a slot's files."""

    tasks: int
    replies: int
    reports: int
    output: int
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """What the worker decides about the children of a slot."""

    isolation: str = ""
    token: str = ""  # of the boundaries in the output, as hexadecimal digits
    work_folder: str = ""  # contains the folders of attempts
    child_folder: str = ""  # the working directory of the slot's children
    keep_folders: bool = False
    page: int = 0  # the index of the slot's page


class _RunningTask:
    """What the context of a task uses: see ``runners.context.ReportSink``; thread-safe."""

    __slots__ = ("_child", "_record", "has_folder")

    def __init__(self, child: SlotChild, record: TaskRecord) -> None:
        self._child = child
        self._record = record
        self.has_folder = False

    def send(self, kind: ChildMessage, **content: Any) -> None:
        message = encode_message(kind, content)
        self._child.send(ReportFrame(self._record.number, self._record.fence, message))

    def report_step(self, name: str, result: Any) -> None:
        with self._child.request_lock:
            self.send("step", name=name, result=result)
            while reply := self._child.replies.recv(_REPLY_BYTES):
                number, content = json.loads(reply)
                # A reply to an earlier child or task of this slot is of no interest.
                if number == self._record.number:
                    break
            else:
                content = None
        require_confirmation(name, content)

    def create_folder(self) -> str:
        """Create the attempt's folder, in a pool. Returns its path."""
        path = f"{self._child.work_folder}/{self._record.task_id}.{self._record.attempt}"
        if not self.has_folder:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, FOLDER_MODE)
            self.has_folder = True
        return path


class SlotChild:
    """The children of a slot: prepared once by their reaper, then forked one after another.

    A forked process pays most when it first writes to its memory, so everything that is the same
    for every child is done before the fork.

    Args:
        close_fds: What a child closes: the files that only its reaper needs.
    """

    def __init__(
        self, settings: SlotSettings, files: SlotFiles, page: SlotPage, close_fds: Sequence[int]
    ) -> None:
        self._settings = settings
        self.work_folder = settings.work_folder
        self._files = files
        self._page = page
        self._close_fds = close_fds
        self._token = bytes.fromhex(settings.token)
        self._in_pool = settings.isolation == Isolation.POOL
        self._buffer = memoryview(bytearray(RECORD_LIMIT_BYTES + 1))
        self._send_lock = threading.Lock()
        self.request_lock = threading.Lock()
        self._tasks = socket.socket(fileno=files.tasks)
        self.replies = socket.socket(fileno=files.replies)
        self._environment = TaskEnvironment(settings.child_folder)

    def run(self, generation: int) -> NoReturn:
        """Take tasks and execute them; never returns."""
        self._begin(generation)
        set_process_name(b"longshore-pool" if self._in_pool else b"longshore-task")
        if self._in_pool:
            self._serve_pool()
        exit_process(self._serve_one())

    def _begin(self, generation: int) -> None:
        """Make this process a child."""
        set_thread_reset(enabled=True)
        self._generation = generation
        self._process_id = os.getpid()
        os.dup2(self._files.output, _OUTPUT)
        os.dup2(self._files.errors, _ERRORS)
        for file in self._close_fds:
            os.close(file)

    def send(self, frame: Frame) -> None:
        """Send a frame to the worker."""
        data = encode_frame(frame)
        with self._send_lock:
            write_all(self._files.reports, data)

    def _next_task(self) -> TaskRecord:
        """Wait for a task that may begin, and record that it has begun. Exits if there is none."""
        while True:
            size = self._tasks.recv_into(self._buffer)
            if not size:
                exit_process(EXIT_OK)  # the worker has ended
            record = decode_record(self._buffer[:size])
            if record.generation != self._generation:
                continue
            if isinstance(record, FileRecord):
                record = _read_record(record.path)
            if self._page.begin(record.number, record.fence):
                return record
            self.send(TooLateFrame(record.number, record.fence))

    def _serve_one(self) -> int:
        """Execute one task. Returns the exit code."""
        record = self._next_task()
        self._tasks.close()
        frame = self._execute(record)
        self.send(frame)
        return EXIT_OK if frame.error is None else EXIT_FAILED

    def _serve_pool(self) -> NoReturn:
        # Processes that a task leaves behind become children of this one, which can then see them.
        become_subreaper()
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        streams = sys.stdout, sys.stderr
        peak_kib = _peak_kib()
        for count in range(1, _MAX_TASKS + 1):
            record = self._next_task()
            frame = self._execute(record)
            if (sys.stdout, sys.stderr) != streams:
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                sys.stdout, sys.stderr = streams
            self._end_output(record.number)
            frame.child_ends = threading.active_count() > 1 or has_children()
            self.send(frame)
            self._page.finish()
            if frame.child_ends:
                os._exit(EXIT_OK)  # a thread that was left would delay an orderly exit
            os.fchdir(folder)
            if not count % _GROWTH_CHECK_TASKS and _peak_kib() - peak_kib > _MAX_GROWTH_KIB:
                break
        exit_process(EXIT_OK)

    def _end_output(self, number: int) -> None:
        """Write out what the task has printed, and the boundary after it."""
        if self._in_pool:
            boundary = encode_boundary(self._token, number)
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(self._files.output, boundary)
            os.write(self._files.errors, boundary)
            # The task may have closed or redirected its standard streams.
            os.dup2(self._files.output, _OUTPUT)
            os.dup2(self._files.errors, _ERRORS)

    def _execute(self, record: TaskRecord) -> OutcomeFrame:
        """Execute a task and return how it ended."""
        task = _RunningTask(self, record)
        started_ns = time.monotonic_ns()
        result = error = None
        try:
            result = copy_context().run(self._call, record, task)
        except BaseException as raised:  # noqa: BLE001 - the edge of the process: it is reported
            with contextlib.suppress(OSError, ValueError):
                write_traceback(raised)
            error = describe_error(raised)
        if os.getpid() != self._process_id:
            # A fork of the task that returned or raised: it must not act as the child.
            exit_process(EXIT_OK if error is None else EXIT_FAILED)
        return OutcomeFrame(
            record.number,
            record.fence,
            time.monotonic_ns() - started_ns,
            task.has_folder,
            False,
            None if result is None else result.encode(),
            error,
        )

    def _call(self, record: TaskRecord, task: _RunningTask) -> str:
        """Call the function. Returns its result as JSON."""
        settings = python_settings(_decode_definition(record.definition), _decode(record.input))
        variables: dict[bytes, bytes] = {}
        create_folder: Callable[[], str] | None = task.create_folder
        if not self._in_pool:
            variables[_TASK_VARIABLE] = record.task_id.encode()
            variables[_ATTEMPT_VARIABLE] = b"%d" % record.attempt
            if TRACE_VARIABLE not in {**self._environment.base, **(settings.get("env") or {})}:
                trace = traceparent_of(record.job_id, record.task_id, record.attempt)
                variables[_TRACE_VARIABLE] = trace.encode()
            create_folder = None
        self._environment.apply(variables, settings.get("env"))
        spec = {
            "folder": self._settings.child_folder,
            "settings": settings,
            "task_id": record.task_id,
            "job_id": record.job_id,
            "attempt": record.attempt,
            "dependency_outputs": _decode(record.dependency_outputs) or {},
            "checkpoints": _decode(record.checkpoints) or {},
            "feedback": record.feedback,
            "previous_output": _decode(record.previous_output),
        }
        result = call_function(spec, Context(spec, task, create_folder=create_folder))
        return "null" if result is None else encode_result(result)

    def warm_up(self, task: TaskRecord) -> None:
        """Do what a child does, and restore the process."""
        self.replies.send(encode(task))
        self._begin(0)
        self._serve_one()
        self._environment.apply({}, None)
        self._environment.end_slot()
        self.replies.close()
        self._page.close()


def warm_up_slots(times: int) -> None:
    """Execute a task that does nothing, ``times`` times, with its reports discarded.

    The interpreter caches in memory what it meets (the method a name resolves to, the type an
    instruction gets). Children share caches filled before the fork; a cache filled in the child
    copies a memory page.
    """
    null_fd = os.open(os.devnull, os.O_RDWR)
    settings = SlotSettings(isolation=Isolation.FORK, child_folder=os.getcwd())
    definition = '{"options":{"function":"os:getpid","path":[]},"overridable":[]}'
    task = TaskRecord(0, 1, 1, definition, "a", "a", 1, "null")
    for _ in range(times):
        near, far = socket.socketpair()
        page = SlotPage(-1)
        page.deadline_ns = 2**63 - 1
        files = SlotFiles(far.detach(), near.detach(), null_fd, _OUTPUT, _ERRORS)
        SlotChild(settings, files, page, close_fds=(os.dup(null_fd),)).warm_up(task)
    os.close(null_fd)


def _decode(text: str | None) -> Any:
    """Returns the value of a JSON text; None without one."""
    if text is None:
        return None
    try:
        # What is stored has no whitespace around it: this is half of what `loads` costs.
        value, end = _decode_at_start(text)
    except ValueError:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


# The tasks of a child have few definitions.
_decode_definition = lru_cache(_decode)


def _read_record(path: str) -> TaskRecord:
    with open(path, "rb") as file:
        record = decode_record(file.read())
    if not isinstance(record, TaskRecord):
        raise TypeError(f"{path} does not contain a task")
    return record


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
