"""The worker registry: which workers of this machine are alive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class WorkerRegistry(Protocol):
    """The workers of this machine, alive or dead.

    A silent worker may be alive: ``is_dead`` returns True only if the operating system guarantees
    that the process has ended.
    """

    def register(self, worker_id: str, queues: Sequence[str]) -> None:
        """Register a worker of this process and its queues, until this process ends.

        Raises:
            UsageError: another process has registered that id.
        """
        ...

    def deregister(self, worker_id: str) -> None:
        """The worker has no leases any more and exits, or is dead. May be repeated."""
        ...

    def lock_descriptors(self, worker_id: str) -> tuple[int, ...]:
        """Returns the open lock files of the worker, for its reapers.

        While a process has one of these files open, the worker does not count as dead.
        """
        ...

    def record_child(self, worker_id: str, process_id: int) -> None:
        """Record a child of the worker that leads its own process group."""
        ...

    def forget_child(self, worker_id: str, process_id: int) -> None:
        """Forget a child whose process group has ended."""
        ...

    def is_dead(self, worker_id: str) -> bool:
        """Whether the worker's process has certainly ended without deregistering."""
        ...

    def reap(self, worker_id: str) -> None:
        """Kill the remaining processes of a dead worker; none runs when this returns."""
        ...

    def begun_tasks(self, worker_id: str) -> Collection[tuple[int, int]] | None:
        """Returns the tasks that a dead worker had begun in its child slots: their numbers, as in
        ``ports.child_slots``, and fences. None: unknown."""
        ...

    def acquire_role(self, role: str) -> bool:
        """Returns True if this process has the role.

        At most one process of the machine has it, until it ends; then the next caller gets it. The
        role only saves work and is not a lock: two processes with one role do no harm.
        """
        ...

    def dead_workers(self) -> list[str]:
        """Returns the ids of dead workers that were not reaped yet."""
        ...

    def live_workers(self) -> dict[str, tuple[str, ...]]:
        """Returns the live workers with their queues."""
        ...
