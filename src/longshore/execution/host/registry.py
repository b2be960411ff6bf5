"""Worker presence by file locks: the kernel releases a lock when its process ends.

Each worker holds a lock on ``workers/ID.lock`` while it is alive. The first line of the file names
the queues that the worker serves; the following lines record the process groups that it starts and
that end. Its fork server and the reapers of its attempts hold the lock too, until no process of an
attempt is alive. So a process that can take the lock knows that the worker and its attempts have
ended. It still kills what is left of the worker's children, in case the reapers were killed as well
(only a process with the same process id *and* the same start time), and removes the file.

The process that looks for dead workers does it often. It lists the folder only if the folder was
changed since.

A lock belongs to this machine's kernel, so it works across containers that share the folder. A data
folder on a network file system is refused elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from longshore.adapters.shared.failpoints import reach
from longshore.errors import UsageError
from longshore.execution.process_table import group_members, start_time_of
from longshore.execution.slot_page import begun_tasks, read_boot_id

_FOLDER_NAME = "workers"
_FOLDER_MODE = 0o700
_QUEUES_PREFIX = "serves "
_SETTLED_NS = 1_000_000_000
_KILL_TIMEOUT = timedelta(seconds=3)
_KILL_INTERVAL_S = 0.002


def page_path(data_folder: Path, worker_id: str) -> Path:
    """The file in which the child slots of a worker record what was begun."""
    return data_folder / _FOLDER_NAME / f"{worker_id}.begun"


@dataclass(slots=True)
class _RegisteredWorker:
    """A worker of this process."""

    lock: int
    header_length: int  # the length in bytes of the first line
    children: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False, repr=False)
class FileWorkerRegistry:
    """See ``ports.worker_registry.WorkerRegistry``."""

    data_folder: Path
    _workers: dict[str, _RegisteredWorker] = field(default_factory=dict)
    _role_locks: dict[str, int] = field(default_factory=dict)
    _role_files: dict[str, int] = field(default_factory=dict)  # of roles of other processes
    _listed: tuple[int, list[str]] = (0, [])  # the change of the folder, the other workers

    def register(self, worker_id: str, queues: Sequence[str]) -> None:
        self._folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        path = self._lock_path(worker_id)
        # Locked before it gets its name: an unlocked file would look like a worker that has ended.
        draft = path.with_suffix(f".{os.getpid()}-draft")
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        lock = os.open(draft, flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            header_length = os.write(lock, f"{_QUEUES_PREFIX}{' '.join(queues)}\n".encode())
            reach("worker.locked")
            _publish_lock(draft, path)
            reach("worker.lock_published")
        except (FileExistsError, BlockingIOError):
            os.close(lock)
            message = f"the worker id {worker_id!r} is already used; choose another id"
            raise UsageError(message) from None
        finally:
            draft.unlink(missing_ok=True)
        self._workers[worker_id] = _RegisteredWorker(lock, header_length)
        reach("worker.registered")

    def deregister(self, worker_id: str) -> None:
        reach("worker.deregistering")
        # In this order: if this process dies in between, the lock of a dead worker is found again.
        page_path(self.data_folder, worker_id).unlink(missing_ok=True)
        self._lock_path(worker_id).unlink(missing_ok=True)
        reach("worker.deregistered")
        if (worker := self._workers.pop(worker_id, None)) is not None:
            os.close(worker.lock)

    def lock_descriptors(self, worker_id: str) -> tuple[int, ...]:
        # The lock belongs to the open file, so a process that inherits the descriptor holds it too.
        worker = self._workers.get(worker_id)
        return (worker.lock,) if worker else ()

    def record_child(self, worker_id: str, process_id: int) -> None:
        worker = self._workers[worker_id]
        worker.children.add(process_id)
        line = f"+{process_id} {start_time_of(process_id) or ''}\n"
        reach("worker.child_recording")
        os.write(worker.lock, line.encode())
        reach("worker.child_recorded")

    def forget_child(self, worker_id: str, process_id: int) -> None:
        worker = self._workers[worker_id]
        worker.children.discard(process_id)
        reach("worker.child_removing")
        os.write(worker.lock, f"-{process_id}\n".encode())
        if not worker.children:
            os.ftruncate(worker.lock, worker.header_length)
        reach("worker.child_removed")

    def is_dead(self, worker_id: str) -> bool:
        if worker_id in self._workers:
            return False
        try:
            lock = os.open(self._lock_path(worker_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # a remote worker, or one that deregistered
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    def reap(self, worker_id: str) -> None:
        reach("worker.dead_reaping")
        children: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self._lock_path(worker_id).read_text().splitlines():
                process_id, _, started = line[1:].partition(" ")
                if line.startswith("+"):
                    children[process_id] = started
                elif line.startswith("-"):
                    children.pop(process_id, None)
        for process_id, started in children.items():
            _kill_group(int(process_id), start_time=started)
        reach("worker.dead_reaped")

    def begun_tasks(self, worker_id: str) -> frozenset[tuple[int, int]] | None:
        try:
            content = page_path(self.data_folder, worker_id).read_bytes()
        except FileNotFoundError:
            return None
        return begun_tasks(content, read_boot_id())

    def acquire_role(self, role: str) -> bool:
        if role in self._role_locks:
            return True
        if (lock := self._role_files.get(role)) is None:
            self._folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            lock = self._role_files[role] = os.open(self._folder / f"{role}.role", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._role_locks[role] = self._role_files.pop(role)
        reach("worker.role_acquired")
        return True

    def dead_workers(self) -> list[str]:
        if not self._role_locks:
            return [worker_id for worker_id in self._worker_ids() if self.is_dead(worker_id)]
        changed_ns, others = self._listed
        latest_ns = os.stat(self._folder).st_mtime_ns
        # Two changes within a tick of the kernel's clock have the same time.
        if latest_ns != changed_ns or time.time_ns() - latest_ns < _SETTLED_NS:
            others = [item for item in self._worker_ids() if item not in self._workers]
            self._listed = latest_ns, others
        return [worker_id for worker_id in others if self.is_dead(worker_id)]

    def live_workers(self) -> dict[str, tuple[str, ...]]:
        workers = {}
        for worker_id in self._worker_ids():
            with contextlib.suppress(FileNotFoundError):  # it has deregistered since
                if not self.is_dead(worker_id):
                    header, _, _ = self._lock_path(worker_id).read_text().partition("\n")
                    workers[worker_id] = tuple(header.removeprefix(_QUEUES_PREFIX).split())
        return workers

    def _worker_ids(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(".lock") for name in names if name.endswith(".lock"))

    def close(self) -> None:
        """Release every role."""
        for files in (self._role_locks, self._role_files):
            while files:
                os.close(files.popitem()[1])

    @property
    def _folder(self) -> Path:
        return self.data_folder / _FOLDER_NAME

    def _lock_path(self, worker_id: str) -> Path:
        return self._folder / f"{worker_id}.lock"


def _publish_lock(draft: Path, path: Path) -> None:
    """Give the locked draft its final name.

    Raises:
        FileExistsError: another worker has that name.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links: two workers that choose one name at once may collide.
        if path.exists():
            raise FileExistsError(path) from None
        draft.rename(path)


def _kill_group(group_id: int, *, start_time: str) -> None:
    """Kill every process whose session or group is ``group_id``, and wait for their end.

    The wait is bounded, because a process that hangs in a system call ends only when the call
    returns.

    Args:
        start_time: When the group's leader started; if its process id has been reused since,
            nothing is done.
    """
    if start_time_of(group_id) not in (None, start_time):
        return
    # A process that was just forking may have left another: look again until none is left. Without
    # a live member the number may have been reused for another group.
    deadline = time.monotonic() + _KILL_TIMEOUT.total_seconds()
    while (members := group_members(group_id)) and time.monotonic() < deadline:
        _kill(os.killpg, group_id)
        for process_id in members:
            _kill(os.kill, process_id)
        time.sleep(_KILL_INTERVAL_S)  # noqa: TID251 - the caller waits for the end


def _kill(send: Callable[[int, int], None], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(number, signal.SIGKILL)
