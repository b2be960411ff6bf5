"""Messages worn out until they are dead, or lost on their way."""

from typing import Any

from longshore.core.limits import RECEIVE_LIMIT
from longshore.ports.queue import Outgoing
from tests.unit.services.stage import NO_WAIT, SECOND, Stage


async def send(stage: Stage, *bodies: str, queue: str = "default", **fields: Any) -> None:
    await stage.backend.queue.send([Outgoing(queue=queue, body=body, **fields) for body in bodies])


async def wear_out(stage: Stage, *queues: str) -> None:
    """Receive whatever is there until it is dead, as workers do that die before they can act."""
    for _ in range(RECEIVE_LIMIT + 1):
        await stage.backend.queue.receive(
            queues or ("default",), limit=1000, hidden_for=SECOND, wait=NO_WAIT
        )
        stage.clock.advance(SECOND)


async def lose_messages(stage: Stage) -> None:
    """Whatever could be received now is gone, and nobody has acted on it."""
    found = await stage.backend.queue.receive(
        ["default"], limit=10_000, hidden_for=SECOND, wait=NO_WAIT
    )
    await stage.backend.queue.delete([message.receipt for message in found])
