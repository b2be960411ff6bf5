"""The ledger's clauses about several changes in one commit, for ledgers of either kind."""

from __future__ import annotations

import pytest

from longshore.core.queues import message_body
from longshore.errors import UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.testing.contracts.samples import (
    carry_out,
    commit,
    drain,
    events_of,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import CALLERS, PortContract, clause, gather_all


class AtomicLedgerContract(PortContract):
    """A ledger that takes several changes in one step."""

    @clause
    async def test_it_is_atomic(self, backend: Backend) -> None:
        assert backend.ledger.atomic is True

    @clause
    async def test_several_changes_are_committed_with_their_events_and_messages(
        self, backend: Backend
    ) -> None:
        job, tasks = new_job(), [new_task(f"t{number}", number=number) for number in range(300)]

        await carry_out(backend, await backend.ledger.commit(job, *tasks))

        assert await backend.ledger.get_job(job.row.id) == job.row
        assert await backend.ledger.get_tasks([t.row.id for t in tasks]) == [t.row for t in tasks]
        assert await events_of(backend, tasks[299].row) == 1
        assert sorted(await drain(backend)) == sorted(message_body(t.row.id) for t in tasks)

    @clause
    async def test_one_conflict_and_nothing_of_all_changes_is_written(
        self, backend: Backend
    ) -> None:
        taken = await commit(backend, new_task("taken"))
        await drain(backend)
        fresh = new_task("fresh")

        with pytest.raises(VersionConflict) as refused:
            await backend.ledger.commit(fresh, new_task("taken"), new_job())

        assert refused.value.row_id == taken.id
        assert await backend.ledger.get_task(fresh.row.id) is None
        assert await backend.ledger.get_job("job-one") is None
        assert await events_of(backend, fresh.row) == 0
        assert await drain(backend) == []

    @clause
    async def test_the_same_changes_again_are_success_and_written_once(
        self, backend: Backend
    ) -> None:
        changes = (new_job(), new_task("a"), new_task("b"))
        await backend.ledger.commit(*changes)

        await carry_out(backend, await backend.ledger.commit(*changes))

        assert await events_of(backend, changes[1].row) == 1
        assert sorted(await drain(backend)) == [
            message_body("job-one_a"),
            message_body("job-one_b"),
        ]

    @clause
    async def test_of_many_who_commit_overlapping_changes_exactly_one_wins(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds):
            groups = [
                (new_task(f"own{number}-{caller}"), new_task(f"common{number}"))
                for caller in range(CALLERS)
            ]

            answers = await gather_all(backend.ledger.commit(*group) for group in groups)

            winners = [n for n, answer in enumerate(answers) if isinstance(answer, tuple)]
            assert len(winners) == 1
            rows = await backend.ledger.get_tasks([own.row.id for own, _ in groups])
            assert rows == [groups[winners[0]][0].row]


class SingleChangeLedgerContract(PortContract):
    """A ledger that takes one change at a time."""

    @clause
    async def test_it_is_not_atomic(self, backend: Backend) -> None:
        assert backend.ledger.atomic is False

    @clause
    async def test_several_changes_are_refused_and_nothing_is_written(
        self, backend: Backend
    ) -> None:
        with pytest.raises(UsageError):
            await backend.ledger.commit(new_task("a"), new_task("b"))

        assert await backend.ledger.get_tasks(["job-one_a", "job-one_b"]) == []
