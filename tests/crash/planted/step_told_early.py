"""The child is told that its step is kept before it is."""

from typing import Any

from longshore.ports.runner import RunningAttempt
from longshore.services.worker.attempt import Attempt

_kept = Attempt._keep_step


async def _told_early(self: Attempt, child: RunningAttempt, name: str, result: Any) -> None:
    await child.step_kept(name)
    await _kept(self, child, name, result)


Attempt._keep_step = _told_early
