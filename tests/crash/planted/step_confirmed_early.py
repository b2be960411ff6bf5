"""The child gets the confirmation of a step before its result is saved."""

import asyncio
from typing import Any

from longshore.adapters.shared.failpoints import reach
from longshore.ports.runner import StepReport
from longshore.services.worker.attempts import Attempts

_save_step = Attempts._store_checkpoint


async def _confirm_early(self: Attempts, attempt: Any, step: StepReport, reports: Any) -> None:
    await attempt.child.confirm_step(step.name)
    # The child has noted the confirmation when it prints: a worker that is killed before would kill
    # the child, and nothing would be seen of the fault.
    while not attempt.child._reports:
        await asyncio.sleep(0)
    reach("planted.step_confirmed")
    await _save_step(self, attempt, step, reports)


Attempts._store_checkpoint = _confirm_early
