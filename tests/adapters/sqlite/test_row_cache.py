"""What is remembered of tasks is never older than what this process could have read."""

import asyncio
import contextlib
from pathlib import Path

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.ledger import TaskRowCache
from longshore.adapters.system import SystemClock
from longshore.core.tasks.states import TaskState
from longshore.testing.contracts.samples import claim, commit, new_task
from tests.execution.conftest import scenario
from tests.factories import a_spec, a_task

SPELL = 1


def test_the_row_that_was_kept_longest_ago_makes_room() -> None:
    cache = TaskRowCache(limit=2)
    first, second, third = (a_task(spec=a_spec(key)) for key in ("a", "b", "c"))
    for row in (first, second, first, third):
        cache.put(row, SPELL)

    assert cache.get(first.id) == (first, SPELL)
    assert cache.get(second.id) is None
    assert cache.get(third.id) == (third, SPELL)


def test_a_task_that_has_ended_is_forgotten() -> None:
    cache = TaskRowCache()
    cache.put(a_task(state=TaskState.PROCESSING), SPELL)

    cache.put(a_task(state=TaskState.COMPLETED), SPELL)

    assert cache.get(a_task().id) is None


def test_an_answer_that_comes_late_does_not_bring_an_older_row_back() -> None:
    cache = TaskRowCache()
    read = a_task(version=7)
    cache.put(read, SPELL)

    cache.put(a_task(version=6), SPELL)

    assert cache.get(read.id) == (read, SPELL)


@scenario
async def test_a_row_that_another_wrote_is_read_after_a_turn_of_our_own(tmp_path: Path) -> None:
    async with (
        sqlite_backend(tmp_path, SystemClock()) as ours,
        sqlite_backend(tmp_path, SystemClock()) as other,
    ):
        row = await commit(ours, new_task())
        assert await ours.ledger.get_task(row.id) == row
        claimed = await commit(other, claim(row))
        await commit(ours, new_task("b", number=1))

        assert await ours.ledger.get_task(row.id) == claimed


@scenario
async def test_a_commit_whose_caller_gave_up_is_seen_all_the_same(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, SystemClock()) as backend:
        row = await commit(backend, new_task())
        assert await backend.ledger.get_task(row.id) == row
        claimed = claim(row)
        committing = asyncio.ensure_future(backend.ledger.commit(claimed))
        await asyncio.sleep(0)
        committing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await committing
        await commit(backend, new_task("b", number=1))

        assert await backend.ledger.get_task(row.id) == claimed.row
