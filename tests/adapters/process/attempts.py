"""An attempt that does not outlive its test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from longshore.adapters.process.attempt import ProcessAttempt
from longshore.adapters.process.runner import ProcessRunner
from longshore.ports.runner import WorkOrder
from tests.adapters.process.conftest import NO_GRACE


@asynccontextmanager
async def started(runner: ProcessRunner, order: WorkOrder) -> AsyncIterator[ProcessAttempt]:
    attempt = await runner.start(order)
    try:
        yield attempt
    finally:
        await attempt.stop(grace=NO_GRACE)
