"""The ledger's clauses about single rows: what was committed is what is read."""

from __future__ import annotations

from dataclasses import fields, replace

from longshore.core.tasks.changes import Change
from longshore.ports.backend import Backend
from longshore.testing.contracts.full_rows import full_job_row, full_task_row
from longshore.testing.contracts.samples import commit, leased_task, left_at_default, new_task
from longshore.testing.contracts.suite import PortContract, clause


class RowClauses(PortContract):
    """What is committed is what is read."""

    @clause
    async def test_a_row_that_does_not_exist_is_none(self, backend: Backend) -> None:
        assert await backend.ledger.get_task("job-one_a") is None
        assert await backend.ledger.get_job("job-one") is None

    @clause
    async def test_a_created_task_is_read_as_it_was_committed(self, backend: Backend) -> None:
        created = await commit(backend, new_task())

        assert await backend.ledger.get_task(created.id) == created

    @clause
    async def test_every_field_of_a_task_is_kept(self, backend: Backend) -> None:
        row = full_task_row()
        parts = (row, row.spec, row.lease, row.failure, row.usage)
        assert [name for part in parts for name in left_at_default(part)] == []

        await backend.ledger.commit(Change(row=row, expected_version=0))

        kept = await backend.ledger.get_task(row.id)
        for field in fields(row):
            assert getattr(kept, field.name) == getattr(row, field.name), field.name

    @clause
    async def test_every_field_of_a_job_of_ten_thousand_tasks_is_kept(
        self, backend: Backend
    ) -> None:
        row = full_job_row()
        assert left_at_default(row) + left_at_default(row.spec) == []

        await backend.ledger.commit(Change(row=row, expected_version=0))

        kept = await backend.ledger.get_job(row.id)
        for field in fields(row):
            assert getattr(kept, field.name) == getattr(row, field.name), field.name

    @clause
    async def test_every_field_of_a_task_can_be_taken_back(self, backend: Backend) -> None:
        row = full_task_row()
        bare = replace(new_task("full").row, spec=row.spec, version=2)
        await backend.ledger.commit(Change(row=row, expected_version=0))

        await backend.ledger.commit(Change(row=bare, expected_version=1))

        assert await backend.ledger.get_task(row.id) == bare

    @clause
    async def test_a_later_commit_replaces_the_row(self, backend: Backend) -> None:
        claimed = await leased_task(backend)

        assert await backend.ledger.get_task(claimed.id) == claimed

    @clause
    async def test_rows_come_in_the_requested_order_without_missing_ones(
        self, backend: Backend
    ) -> None:
        made = {key: await commit(backend, new_task(key)) for key in ("a", "b", "c")}

        rows = await backend.ledger.get_tasks(
            ["job-one_c", "job-one_none", "job-one_a", "job-one_b"]
        )

        assert rows == [made["c"], made["a"], made["b"]]

    @clause
    async def test_an_empty_request_gives_no_rows(self, backend: Backend) -> None:
        await commit(backend, new_task())

        assert await backend.ledger.get_tasks([]) == []

    @clause
    async def test_thousands_of_rows_can_be_requested(self, backend: Backend) -> None:
        created = await commit(backend, new_task("t4999"))

        rows = await backend.ledger.get_tasks([f"job-one_t{number}" for number in range(5_000)])

        assert rows == [created]
