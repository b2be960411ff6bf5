"""Messages worn out until they are dead, or lost on their way."""

from typing import Any

from longshore.core.maximums import RECEIVE_LIMIT
from longshore.ports.task_queue import OutgoingMessage
from tests.unit.services.harness import NO_WAIT, SECOND, ServiceHarness


async def send(
    harness: ServiceHarness, *bodies: str, queue: str = "default", **fields: Any
) -> None:
    await harness.backend.queue.send(
        [OutgoingMessage(queue=queue, body=body, **fields) for body in bodies]
    )


async def exhaust_receives(harness: ServiceHarness, *queues: str) -> None:
    """Receive every message until it is dead, as workers do that die before they can act."""
    for _ in range(RECEIVE_LIMIT + 1):
        await harness.backend.queue.receive(
            queues or ("default",), limit=1000, hidden_for=SECOND, wait=NO_WAIT
        )
        harness.clock.advance(SECOND)


async def lose_messages(harness: ServiceHarness) -> None:
    """Receive and drop every visible message without acting on it."""
    result = await harness.backend.queue.receive(
        ["default"], limit=10_000, hidden_for=SECOND, wait=NO_WAIT
    )
    await harness.backend.queue.delete([message.receipt for message in result])
