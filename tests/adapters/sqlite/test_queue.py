"""What only the SQLite queue promises: a receiver that goes away hides nothing from the others."""

import asyncio
from datetime import timedelta
from pathlib import Path

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.ports.backend import Backend
from longshore.ports.task_queue import Message, OutgoingMessage
from longshore.testing.clock import FakeClock

_ROUNDS = 60


async def _receive(backend: Backend) -> list[Message]:
    return await backend.queue.receive(
        ["default"], limit=1, hidden_for=timedelta(hours=1), wait=timedelta(seconds=20)
    )


async def _given_up(backend: Backend, *, turns: int) -> list[Message]:
    """What a receiver got that was given up after so many turns of the event loop."""
    receive = asyncio.create_task(_receive(backend))
    for _ in range(turns):
        await asyncio.sleep(0)
    receive.cancel()
    (answer,) = await asyncio.gather(receive, return_exceptions=True)
    return answer if isinstance(answer, list) else []


def test_what_was_taken_for_a_receiver_that_was_given_up_is_seen_again_at_once(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(15), sqlite_backend(tmp_path, FakeClock()) as backend:
            for number in range(_ROUNDS):
                await backend.queue.send([OutgoingMessage(queue="default", body=str(number))])

                # Given up a little later each time, to meet every step of the receiver.
                messages = await _given_up(backend, turns=number % 12) or await _receive(backend)

                assert [message.body for message in messages] == [str(number)]
                await backend.queue.delete([message.receipt for message in messages])

    asyncio.run(scenario())
