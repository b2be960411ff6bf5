"""Presence: whether the process of a worker on this machine still exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class WorkerRegistry(Protocol):
    """What a worker leaves behind for others to know it by.

    Silence proves nothing, so only certainty counts: ``gone`` says True only where the operating
    system itself vouches that the process has ended.
    """

    def register(self, worker_id: str, queues: Sequence[str]) -> None:
        """From now until this process ends, the worker is here and serves these queues.

        Raises:
            UsageError: another process is here under that id.
        """
        ...

    def deregister(self, worker_id: str) -> None:
        """The worker has given back all it held and ends in good order."""
        ...

    def lock_descriptors(self, worker_id: str) -> tuple[int, ...]:
        """Files that keep the worker present; for those who end its children when it is gone.

        As long as one of them has such a file open, the worker is not ``gone``.
        """
        ...

    def record_child(self, worker_id: str, process_id: int) -> None:
        """The worker has started a child that leads its own process group."""
        ...

    def forget_child(self, worker_id: str, process_id: int) -> None:
        """The child has ended, and nothing of its group is left."""
        ...

    def is_dead(self, worker_id: str) -> bool:
        """Whether the worker's process is known to have ended without leaving."""
        ...

    def reap(self, worker_id: str) -> None:
        """Kill what is left of a worker that is gone. When this returns, nothing of it runs."""
        ...

    def acquire_role(self, role: str) -> bool:
        """Whether this process is the one that fills a role now.

        At most one process of the machine is, and it stays so until it ends; then the next that
        asks is. A hint for saving work, not a lock: two that fill a role at once do no harm.
        """
        ...

    def dead_workers(self) -> list[str]:
        """Ids of all workers that are gone and not yet cleared away."""
        ...

    def live_workers(self) -> dict[str, tuple[str, ...]]:
        """The workers that are here now, and the queues each of them serves."""
        ...
