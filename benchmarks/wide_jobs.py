"""A job of one task, then all the others but one at once, then the last: 1 → n-2 → 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.counters import Counts, counted
from benchmarks.probes import Probe
from benchmarks.stub import without_children
from benchmarks.system import TENANT, TRUE, drain, open_system
from longshore.core.ids import task_id_of
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import JobState
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.transitions import Transitions
from longshore.settings import load_settings
from longshore.testing.worker_registry import FakeWorkerRegistry
from longshore.wiring.services import Services

_FIRST, _LAST = "first", "last"
_NO_TIME = timedelta(0)
_LEASE = timedelta(minutes=10)
_BROKEN = Failure(category=ErrorCategory.UNKNOWN, message="as configured", retry=False)


def wide(size: int) -> list[dict[str, Any]]:
    """The tasks of such a job."""
    middle = [f"t{number}" for number in range(1, size - 1)]
    return [
        {"taskId": _FIRST, **TRUE},
        *({"taskId": key, "dependsOn": [_FIRST], **TRUE} for key in middle),
        {"taskId": _LAST, "dependsOn": middle, **TRUE},
    ]


async def run_wide(folder: Path, window: Probe, *, size: int, slots: int) -> None:
    """Have one brought to its end by the real services, without children."""
    with without_children():
        async with open_system(folder, concurrency=slots) as services:
            await services.producer.submit(TENANT, "wide", {"tasks": wide(size)})
            await drain(services, window)


async def dispatched(
    backend: Backend,
    folder: Path,
    window: Probe,
    *,
    size: int,
    at_once: int = 1,
    fails: bool = False,
) -> Counts:
    """End its tasks by hand, so many before each dispatch; what the dispatcher read and wrote.

    With ``fails`` all in the middle fail, and the last never runs.
    """
    settings = load_settings({"data_dir": folder}, environ={}, cwd=folder)
    beside = Services(settings=settings, backend=backend, worker_registry=FakeWorkerRegistry())
    counts = Counts()
    watched = replace(beside, backend=counted(backend, counts))
    accepted = await beside.producer.submit(TENANT, f"wide-{size}", {"tasks": wide(size)})
    job = _ManualDispatch(beside.transitions, watched.dispatcher, accepted.job.id, window)
    keys = [task["taskId"] for task in wide(size)]
    await job.end(keys[:1])
    for start in range(1, size - 1, at_once):
        await job.end(keys[start : min(start + at_once, size - 1)], fails=fails)
    if not fails:
        await job.end(keys[-1:])
    row = await backend.ledger.get_job(accepted.job.id)
    assert row is not None
    assert row.state is (JobState.FAILED if fails else JobState.COMPLETED), row.state
    return counts


@dataclass(frozen=True, slots=True)
class _ManualDispatch:
    transitions: Transitions
    dispatcher: Dispatcher
    job_id: str
    window: Probe

    async def end(self, keys: Sequence[str], *, fails: bool = False) -> None:
        """Claim and end these tasks, then look on while it is dispatched."""
        for key in keys:
            task_id = task_id_of(self.job_id, key)
            claim = c.Claim(worker_id="w", process_id=1, lease_duration=_LEASE)
            claimed = await self.transitions.apply_to_task(task_id, claim)
            await self.transitions.apply_to_task(
                task_id, _outcome(claimed.fence, fails=fails), row=claimed
            )
        with self.window:
            while await self.dispatcher.step(_NO_TIME):
                pass


def _outcome(fence: int, *, fails: bool) -> c.Command:
    if fails:
        return c.AttemptFailed(fence=fence, failure=_BROKEN, duration=_NO_TIME, jitter=0.0)
    return c.Complete(fence=fence, result=None, duration=_NO_TIME)
