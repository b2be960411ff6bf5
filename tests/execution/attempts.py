"""An attempt that does not outlive its test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from longshore.execution.host.attempt import ProcessAttempt
from longshore.execution.host.launcher import ProcessRunner
from longshore.ports.runner import AttemptSpec
from tests.execution.conftest import NEVER_NS, NO_GRACE


@asynccontextmanager
async def running_attempt(
    runner: ProcessRunner, spec: AttemptSpec
) -> AsyncIterator[ProcessAttempt]:
    attempt = await runner.start(spec, deadline_ns=NEVER_NS)
    try:
        yield attempt
    finally:
        await attempt.stop(grace=NO_GRACE)
