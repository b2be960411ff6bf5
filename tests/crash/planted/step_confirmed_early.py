"""The child gets the confirmation of a step before its result is saved."""

from typing import Any

from longshore.ports.runner import RunningAttempt
from longshore.services.worker.attempt import Attempt

_save_step = Attempt._store_checkpoint


async def _confirm_early(self: Attempt, child: RunningAttempt, name: str, result: Any) -> None:
    await child.confirm_step(name)
    await _save_step(self, child, name, result)


Attempt._store_checkpoint = _confirm_early
