"""A machine without processes: workers are here until a test says that they died."""

from __future__ import annotations

from collections.abc import Sequence

from longshore.errors import UsageError


class FakePresence:
    """See ``ports.presence.Presence``; what was asked of it is kept in ``calls``."""

    def __init__(self, *, leading: bool = True) -> None:
        self.leading = leading
        self.calls: list[tuple[str, str]] = []
        self.children: dict[str, list[int]] = {}  # by worker, those that were not forgotten
        self._here: dict[str, bool] = {}  # False: its process has ended
        self._serves: dict[str, tuple[str, ...]] = {}

    def dies(self, worker_id: str) -> None:
        """The worker's process ends without a word; it need not have been seen before."""
        self._here[worker_id] = False

    def appear(self, worker_id: str, queues: Sequence[str]) -> None:
        if worker_id in self._here:
            message = f"a worker called {worker_id!r} was here before; choose another id"
            raise UsageError(message)
        self._here[worker_id] = True
        self._serves[worker_id] = tuple(queues)
        self._note("appear", worker_id)

    def leave(self, worker_id: str) -> None:
        self._here.pop(worker_id, None)
        self.children.pop(worker_id, None)
        self._note("leave", worker_id)

    def held_by(self, worker_id: str) -> tuple[int, ...]:
        return ()

    def note_child(self, worker_id: str, process_id: int) -> None:
        self.children.setdefault(worker_id, []).append(process_id)

    def forget_child(self, worker_id: str, process_id: int) -> None:
        if process_id in self.children.get(worker_id, []):
            self.children[worker_id].remove(process_id)

    def gone(self, worker_id: str) -> bool:
        return self._here.get(worker_id) is False

    def clear(self, worker_id: str) -> None:
        self._note("clear", worker_id)

    def leads(self, role: str) -> bool:
        return self.leading

    def absent(self) -> list[str]:
        return [worker_id for worker_id, here in self._here.items() if not here]

    def present(self) -> dict[str, tuple[str, ...]]:
        return {
            worker_id: self._serves[worker_id] for worker_id, here in self._here.items() if here
        }

    def _note(self, call: str, worker_id: str) -> None:
        self.calls.append((call, worker_id))
