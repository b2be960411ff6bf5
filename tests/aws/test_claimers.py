"""Exactly one of many concurrent claims of a task succeeds, in every round.

``LONGSHORE_TEST_CLAIM_ROUNDS=500`` makes as many rounds as one likes; a few of them take long.
"""

import asyncio
import os
from pathlib import Path

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.adapters.aws.names import Names
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import TaskRow
from longshore.errors import VersionConflict
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import apply_command, claim, new_task
from tests.aws.backends import installation_names
from tests.aws.stand_in import stand_in

CLAIMERS = 16
CONNECTIONS = 4  # clients with connections of their own, as processes have
ROUNDS = int(os.environ.get("LONGSHORE_TEST_CLAIM_ROUNDS", "25"))  # noqa: TID251


async def claimed(ledger: DynamoLedger, pending: TaskRow, worker: str) -> TaskRow | None:
    """The row that this claimer committed; None if another was faster."""
    change = claim(pending, worker=worker)
    try:
        await ledger.commit(change)
    except VersionConflict:
        return None
    return change.row


async def rounds_on(connections: list[AwsClient], names: Names, clock: FakeClock) -> list[int]:
    """The fences of the claimed task, one for each round."""
    ledgers = [
        DynamoLedger(connections[index % CONNECTIONS], names, clock) for index in range(CLAIMERS)
    ]
    created = new_task()
    await ledgers[0].commit(created)
    pending, fences = created.row, []
    for number in range(ROUNDS):
        tries = [
            claimed(ledger, pending, f"worker-{number}.{index}")
            for index, ledger in enumerate(ledgers)
        ]
        (won,) = [row for row in await asyncio.gather(*tries) if row is not None]
        assert await ledgers[-1].get_task(won.id) == won
        fences.append(won.fence)
        released = apply_command(
            won, c.Release(fence=won.fence, reason="once more", last_output=None)
        )
        await ledgers[number % CLAIMERS].commit(released)
        pending = released.row
    return fences


def test_exactly_one_of_sixteen_claimers_wins_in_each_round(tmp_path: Path) -> None:
    async def run() -> list[int]:
        clock = FakeClock()
        connections = [AwsClient(stand_in().client_options) for _ in range(CONNECTIONS)]
        try:
            names = await installation_names(connections[0], tmp_path, (), ())
            return await rounds_on(connections, names, clock)
        finally:
            for aws in connections:
                await aws.close()

    fences = asyncio.run(run())

    assert len(fences) == ROUNDS
    assert fences == sorted(set(fences))
