"""A machine without processes: workers are here until a test says that they died."""

from __future__ import annotations

from collections.abc import Sequence

from longshore.errors import UsageError


class FakeWorkerRegistry:
    """See ``ports.worker_registry.WorkerRegistry``; what was asked of it is kept in ``calls``."""

    def __init__(self, *, leading: bool = True) -> None:
        self.leading = leading
        self.calls: list[tuple[str, str]] = []
        self.children: dict[str, list[int]] = {}  # by worker, those that were not forgotten
        self.begun: dict[str, set[tuple[int, int]]] = {}  # by dead worker
        self._alive: dict[str, bool] = {}  # False: its process has ended
        self._queues: dict[str, tuple[str, ...]] = {}

    def kill(self, worker_id: str) -> None:
        """The worker's process ends without a word; it need not have been seen before."""
        self._alive[worker_id] = False

    def register(self, worker_id: str, queues: Sequence[str]) -> None:
        if worker_id in self._alive:
            message = f"a worker called {worker_id!r} was here before; choose another id"
            raise UsageError(message)
        self._alive[worker_id] = True
        self._queues[worker_id] = tuple(queues)
        self._record("register", worker_id)

    def deregister(self, worker_id: str) -> None:
        self._alive.pop(worker_id, None)
        self.children.pop(worker_id, None)
        self.begun.pop(worker_id, None)
        self._record("deregister", worker_id)

    def lock_descriptors(self, worker_id: str) -> tuple[int, ...]:
        return ()

    def record_child(self, worker_id: str, process_id: int) -> None:
        self.children.setdefault(worker_id, []).append(process_id)

    def forget_child(self, worker_id: str, process_id: int) -> None:
        if process_id in self.children.get(worker_id, []):
            self.children[worker_id].remove(process_id)

    def is_dead(self, worker_id: str) -> bool:
        return self._alive.get(worker_id) is False

    def reap(self, worker_id: str) -> None:
        self._record("reap", worker_id)

    def begun_tasks(self, worker_id: str) -> set[tuple[int, int]] | None:
        return self.begun.get(worker_id)

    def acquire_role(self, role: str) -> bool:
        return self.leading

    def dead_workers(self) -> list[str]:
        return [worker_id for worker_id, here in self._alive.items() if not here]

    def live_workers(self) -> dict[str, tuple[str, ...]]:
        return {
            worker_id: self._queues[worker_id] for worker_id, here in self._alive.items() if here
        }

    def _record(self, call: str, worker_id: str) -> None:
        self.calls.append((call, worker_id))
