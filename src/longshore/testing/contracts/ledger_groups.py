"""The ledger's clauses about several changes in one commit, for ledgers of either kind."""

from __future__ import annotations

import pytest

from longshore.core.messages import body_for
from longshore.errors import UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.testing.contracts.samples import (
    carry_out,
    commit,
    empty,
    events_of,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import CALLERS, PortContract, at_once, clause


class AtomicLedgerContract(PortContract):
    """A ledger that takes several changes in one step."""

    @clause
    async def test_it_says_so(self, backend: Backend) -> None:
        assert backend.ledger.atomic is True

    @clause
    async def test_several_changes_are_committed_with_their_events_and_rings(
        self, backend: Backend
    ) -> None:
        job, tasks = new_job(), [new_task(f"t{number}", number=number) for number in range(300)]

        await carry_out(backend, await backend.ledger.commit(job, *tasks))

        assert await backend.ledger.job(job.row.id) == job.row
        assert await backend.ledger.tasks([t.row.id for t in tasks]) == [t.row for t in tasks]
        assert await events_of(backend, tasks[299].row) == 1
        assert sorted(await empty(backend)) == sorted(body_for(t.row.id) for t in tasks)

    @clause
    async def test_one_conflict_and_nothing_of_all_changes_is_written(
        self, backend: Backend
    ) -> None:
        taken = await commit(backend, new_task("taken"))
        await empty(backend)
        fresh = new_task("fresh")

        with pytest.raises(VersionConflict) as refused:
            await backend.ledger.commit(fresh, new_task("taken"), new_job())

        assert refused.value.row_id == taken.id
        assert await backend.ledger.task(fresh.row.id) is None
        assert await backend.ledger.job("job-one") is None
        assert await events_of(backend, fresh.row) == 0
        assert await empty(backend) == []

    @clause
    async def test_the_same_changes_again_are_success_and_written_once(
        self, backend: Backend
    ) -> None:
        changes = (new_job(), new_task("a"), new_task("b"))
        await backend.ledger.commit(*changes)

        await carry_out(backend, await backend.ledger.commit(*changes))

        assert await events_of(backend, changes[1].row) == 1
        assert sorted(await empty(backend)) == [body_for("job-one_a"), body_for("job-one_b")]

    @clause
    async def test_of_many_who_commit_overlapping_changes_exactly_one_wins(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds):
            groups = [
                (new_task(f"own{number}-{caller}"), new_task(f"common{number}"))
                for caller in range(CALLERS)
            ]

            answers = await at_once(backend.ledger.commit(*group) for group in groups)

            winners = [n for n, answer in enumerate(answers) if isinstance(answer, tuple)]
            assert len(winners) == 1
            rows = await backend.ledger.tasks([own.row.id for own, _ in groups])
            assert rows == [groups[winners[0]][0].row]


class SingleChangeLedgerContract(PortContract):
    """A ledger that takes one change at a time."""

    @clause
    async def test_it_says_so(self, backend: Backend) -> None:
        assert backend.ledger.atomic is False

    @clause
    async def test_several_changes_are_refused_and_nothing_is_written(
        self, backend: Backend
    ) -> None:
        with pytest.raises(UsageError):
            await backend.ledger.commit(new_task("a"), new_task("b"))

        assert await backend.ledger.tasks(["job-one_a", "job-one_b"]) == []
