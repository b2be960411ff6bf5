"""The child gets the confirmation of a step before its result is saved."""

import asyncio

from longshore.adapters.shared.failpoints import reach
from longshore.execution.host.attempt import ProcessAttempt
from longshore.ports.runner import StepReport
from longshore.services.worker.attempt import Attempt

_save_step = Attempt._store_checkpoint


async def _confirm_early(self: Attempt, child: ProcessAttempt, step: StepReport) -> None:
    await child.confirm_step(step.name)
    # The child has noted the confirmation when it prints: a worker that is killed before would kill
    # the child, and nothing would be seen of the fault.
    while not child._reports:
        await asyncio.sleep(0)
    reach("planted.step_confirmed")
    await _save_step(self, child, step)


Attempt._store_checkpoint = _confirm_early
