"""Of many who claim a task at once exactly one gets it, round after round.

``LONGSHORE_TEST_CLAIM_ROUNDS=500`` makes as many rounds as one likes; a few of them take long.
"""

import asyncio
import os
from pathlib import Path

from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.ledger import DynamoLedger
from longshore.adapters.aws.names import Names
from longshore.core import commands as c
from longshore.core.rows import TaskRow
from longshore.errors import VersionConflict
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import after, claim, new_task
from tests.aws.backends import names_in
from tests.aws.standin import stand_in

CLAIMERS = 16
WAYS = 4  # clients with connections of their own, as processes have
ROUNDS = int(os.environ.get("LONGSHORE_TEST_CLAIM_ROUNDS", "25"))  # noqa: TID251


async def claimed(ledger: DynamoLedger, pending: TaskRow, worker: str) -> TaskRow | None:
    """The row that this claimer made; None if another was faster."""
    change = claim(pending, worker=worker)
    try:
        await ledger.commit(change)
    except VersionConflict:
        return None
    return change.row


async def rounds_on(ways: list[Aws], names: Names, clock: FakeClock) -> list[int]:
    """The fences under which the task was held, one a round."""
    ledgers = [DynamoLedger(ways[place % WAYS], names, clock) for place in range(CLAIMERS)]
    created = new_task()
    await ledgers[0].commit(created)
    pending, fences = created.row, []
    for number in range(ROUNDS):
        tries = [
            claimed(ledger, pending, f"worker-{number}.{place}")
            for place, ledger in enumerate(ledgers)
        ]
        (won,) = [row for row in await asyncio.gather(*tries) if row is not None]
        assert await ledgers[-1].task(won.id) == won
        fences.append(won.fence)
        released = after(won, c.Release(fence=won.fence, reason="once more", last_output=None))
        await ledgers[number % CLAIMERS].commit(released)
        pending = released.row
    return fences


def test_exactly_one_of_sixteen_claimers_wins_in_each_round(tmp_path: Path) -> None:
    async def play() -> list[int]:
        clock = FakeClock()
        ways = [Aws(stand_in().place) for _ in range(WAYS)]
        try:
            names = await names_in(ways[0], tmp_path, (), ())
            return await rounds_on(ways, names, clock)
        finally:
            for aws in ways:
                await aws.close()

    fences = asyncio.run(play())

    assert len(fences) == ROUNDS
    assert fences == sorted(set(fences))
