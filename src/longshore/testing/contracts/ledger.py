"""The contract of the ``Ledger``; its clauses stand by subject in the modules beside this one.

Every backend is held to ``LedgerContract`` and to one of ``AtomicLedgerContract`` and
``SingleChangeLedgerContract``; one that several processes share, to ``LedgerSharedContract`` too,
and one with a queue, to ``QueuedLedgerContract``.
"""

from __future__ import annotations

from itertools import cycle

from longshore.core.tasks import commands as c
from longshore.errors import VersionConflict
from longshore.testing.contracts.ledger_backlogs import FailedClauses, ParkedClauses
from longshore.testing.contracts.ledger_commits import (
    AtomicLedgerContract,
    CommitClauses,
    MessageClauses,
    RowClauses,
    SingleChangeLedgerContract,
)
from longshore.testing.contracts.ledger_listings import (
    JobFilterClauses,
    JobListingClauses,
    TaskListingClauses,
)
from longshore.testing.contracts.ledger_sweeps import (
    FindClauses,
    SweepClauses,
    UnqueuedClauses,
    WakeClauses,
)
from longshore.testing.contracts.ledger_unreported import (
    UnnotifiedDependentClauses,
    UnrecordedEndClauses,
    UnreportedEndClauses,
)
from longshore.testing.contracts.samples import (
    apply_command,
    claim,
    commit,
    commit_job,
    events_of,
    leased_task,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import (
    CALLERS,
    Opener,
    PortContract,
    clause,
    gather_all,
)

__all__ = [
    "AtomicLedgerContract",
    "LedgerContract",
    "LedgerSharedContract",
    "QueuedLedgerContract",
    "SingleChangeLedgerContract",
]


class LedgerContract(
    RowClauses,
    CommitClauses,
    TaskListingClauses,
    JobListingClauses,
    JobFilterClauses,
    FindClauses,
    SweepClauses,
    UnrecordedEndClauses,
    UnnotifiedDependentClauses,
    UnreportedEndClauses,
    FailedClauses,
    ParkedClauses,
    WakeClauses,
):
    """What holds for every ledger."""


class QueuedLedgerContract(MessageClauses, UnqueuedClauses):
    """What holds for a ledger whose commits enqueue messages."""


class LedgerSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_a_commit_of_one_instance_is_read_by_another(self, open_backend: Opener) -> None:
        async with open_backend() as first, open_backend() as second:
            for number in range(self.rounds):
                created = await commit(first, new_task(f"t{number}", number=number))

                assert await second.ledger.get_task(created.id) == created
                assert await second.ledger.get_tasks([created.id]) == [created]
                assert await events_of(second, created) == 1

    @clause
    async def test_a_row_that_was_read_and_then_changed_by_another_is_read_afresh(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            row = await commit(first, new_task())
            for turn in range(self.rounds):
                changer, reader = (first, second) if turn % 2 else (second, first)
                assert await changer.ledger.get_task(row.id) == row
                assert await reader.ledger.get_task(row.id) == row
                release = c.Release(fence=row.fence, reason="again")
                row = await commit(
                    changer, apply_command(row, release) if row.lease else claim(row)
                )

                assert await reader.ledger.get_task(row.id) == row
                assert await reader.ledger.get_tasks([row.id]) == [row]
                assert await changer.ledger.get_task(row.id) == row

    @clause
    async def test_of_many_in_two_instances_who_change_one_version_exactly_one_wins(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            for number in range(self.rounds):
                pending = await commit(first, new_task(f"t{number}", number=number))
                claims = [claim(pending, worker=f"w{caller}") for caller in range(CALLERS)]
                ledgers = cycle([first.ledger, second.ledger])

                answers = await gather_all(
                    ledger.commit(change) for ledger, change in zip(ledgers, claims, strict=False)
                )

                winners = [n for n, answer in enumerate(answers) if isinstance(answer, tuple)]
                assert len(winners) == 1
                assert len([a for a in answers if type(a) is VersionConflict]) == CALLERS - 1
                assert await first.ledger.get_task(pending.id) == claims[winners[0]].row
                assert await events_of(second, pending) == 2

    @clause
    async def test_the_same_change_through_another_instance_is_success_and_written_once(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            created = new_task()
            await first.ledger.commit(created)

            await second.ledger.commit(created)

            assert await events_of(second, created.row) == 1

    @clause
    async def test_rows_and_events_are_there_after_a_restart(self, open_backend: Opener) -> None:
        async with open_backend() as before:
            row = await leased_task(before)
            job = await commit_job(before, new_job())
            epoch = before.ledger.epoch

        async with open_backend() as again:
            assert await again.ledger.get_task(row.id) == row
            assert await again.ledger.get_job(job.id) == job
            assert await events_of(again, row) == row.last_sequence
            assert again.ledger.epoch >= epoch

    @clause
    async def test_a_commit_goes_on_from_the_version_before_a_restart(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as before:
            row = await leased_task(before)

        async with open_backend() as again:
            released = apply_command(row, c.Release(fence=row.fence, reason="the worker stops"))
            await commit(again, released)

            assert await again.ledger.get_task(row.id) == released.row
