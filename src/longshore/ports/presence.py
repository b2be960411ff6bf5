"""Presence: whether the process of a worker on this machine still exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Presence(Protocol):
    """What a worker leaves behind for others to know it by.

    Silence proves nothing, so only certainty counts: ``gone`` says True only where the operating
    system itself vouches that the process has ended.
    """

    def appear(self, worker_id: str, queues: Sequence[str]) -> None:
        """From now until this process ends, the worker is here and serves these queues.

        Raises:
            UsageError: another process is here under that id.
        """
        ...

    def leave(self, worker_id: str) -> None:
        """The worker has given back all it held and ends in good order."""
        ...

    def held_by(self, worker_id: str) -> tuple[int, ...]:
        """Files that keep the worker present; for those who end its children when it is gone.

        As long as one of them has such a file open, the worker is not ``gone``.
        """
        ...

    def note_child(self, worker_id: str, process_id: int) -> None:
        """The worker has started a child that leads its own process group."""
        ...

    def forget_child(self, worker_id: str, process_id: int) -> None:
        """The child has ended, and nothing of its group is left."""
        ...

    def gone(self, worker_id: str) -> bool:
        """Whether the worker's process is known to have ended without leaving."""
        ...

    def clear(self, worker_id: str) -> None:
        """Kill what is left of a worker that is gone. When this returns, nothing of it runs."""
        ...

    def leads(self, role: str) -> bool:
        """Whether this process is the one that fills a role now.

        At most one process of the machine is, and it stays so until it ends; then the next that
        asks is. A hint for saving work, not a lock: two that fill a role at once do no harm.
        """
        ...

    def absent(self) -> list[str]:
        """Ids of all workers that are gone and not yet cleared away."""
        ...

    def present(self) -> dict[str, tuple[str, ...]]:
        """The workers that are here now, and the queues each of them serves."""
        ...
