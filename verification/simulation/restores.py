"""Backups of the simulated store, and what becomes of a store that is restored from one.

A backup copies the rows at one moment and the blobs later; meanwhile the run continues, and
retention must not remove blobs. After the run the backup is restored: workers of another machine
finish what was open. The audit then finds what is missing, and no fence may have been issued by the
store that was backed up.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from longshore.adapters.shared.waiters import Waiters
from longshore.core.events import types as e
from longshore.ports.backend import Backend
from verification.simulation.faults import Fault
from verification.simulation.monitor import observe_commits
from verification.simulation.processes import Fleet, Machine
from verification.simulation.simulation import START, Simulation

_MAX_COPY_S = 20.0
_SECOND = timedelta(seconds=1)
_WORKERS = 2


@dataclass(slots=True)
class SimulatedBackup:
    """A backup of the store of a run, which has a task source of its own."""

    _simulation: Simulation
    _copy: Backend | None = None
    _blobs: dict[str, bytes] | None = None

    def begin(self) -> None:
        """Copy the rows now, and the blobs later."""
        simulation = self._simulation
        if simulation.backend.retention is not None:
            _internals(simulation.backend.retention).paused = True
        self._copy_rows()
        simulation.record("backup", "rows are copied")
        delay = simulation.random_for("backup").random() * _MAX_COPY_S
        simulation.call_at(simulation.time() + delay, self._copy_blobs)

    def _copy_rows(self) -> None:
        live = self._simulation.backend
        store, output = _internals(live.source).store, _internals(live.output)
        clock = live.clock
        shared: dict[int, Any] = {id(clock): clock}
        for waiters in (store.event_waiters, store.row_waiters, output._waiters):
            shared[id(waiters)] = Waiters(clock)
        commit = store.__dict__.pop("commit")  # the monitors', of this store
        try:
            self._copy = deepcopy(live, shared)
        finally:
            store.commit = commit

    def _copy_blobs(self) -> None:
        """Copy the blobs that are there now."""
        live = self._simulation.backend
        self._blobs = dict(_internals(live.blobs)._blobs)
        if live.retention is not None:
            _internals(live.retention).paused = False
        self._simulation.record("backup", "blobs are copied")

    async def restore(self) -> tuple[Simulation, Fleet, Machine] | None:
        """A calm run on the restored store; None: no backup was made."""
        before = self._simulation
        if self._copy is None or self._blobs is None:
            return None
        before.record("restore", "begins")
        restored = Simulation(
            before.seed,
            before.settings,
            atomic=True,
            without=frozenset(Fault),
            intervals=before.intervals,
        )
        copy = self._copy
        _internals(copy.blobs)._blobs = dict(self._blobs)
        if copy.retention is not None:
            _internals(copy.retention).paused = False
        _internals(copy.source).store.epoch = _epoch_at(before)
        observe_commits(copy)
        restored.backend = replace(copy)
        restored.uses_slots = before.uses_slots
        restored.faults.end()
        machine = Machine(restored, "restored")
        fleet = Fleet(restored, [machine], workers=_WORKERS, watchers=0)
        operator = fleet.new_process(machine, "restore")
        await operator.services.sweeper.end_all_leases()
        operator.end()
        fleet.start()
        return restored, fleet, machine

    def repeated_fences(self, restored: Simulation) -> list[str]:
        """Tasks of the restored store whose fences the first store has issued after the backup."""
        assert self._copy is not None
        first, second = _fences(self._simulation.backend), _fences(restored.backend)
        # Both stores have the claims from before the backup.
        return [
            task_id
            for task_id, claims in second.items()
            for fence, at in claims.items()
            if first.get(task_id, {}).get(fence, at) != at
        ]


def _epoch_at(simulation: Simulation) -> int:
    """Like that of a real restore: from the clock."""
    return (simulation.clock.now() - START) // _SECOND + 1


def _fences(backend: Backend) -> dict[str, dict[int, object]]:
    """The fences of each task, and when each was issued."""
    fences: dict[str, dict[int, object]] = {}
    for event in _internals(backend.source).store.events:
        if event is not None and isinstance(event.body, e.TaskProcessingStarted):
            fences.setdefault(event.entity_id, {})[event.body.fence] = event.at
    return fences


def _internals(port: object) -> Any:
    """A port of the memory backend, with what is in it."""
    return port
