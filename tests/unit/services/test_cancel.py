"""A cancelled job ends with all that runs or would run, also when its canceller dies half way."""

from pathlib import Path
from typing import Any

import pytest

from longshore.core.tasks.rows import IntentKind
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import CommandRefused, NotFound, VersionConflict
from tests.unit.services.harness import (
    BACKENDS,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.harness import task_id as id_of


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_waits_is_cancelled_at_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"), make_task("c"))
        await harness.complete(id_of("c"))
        await harness.dispatch()

        await harness.operator_commands.cancel_job(job_id(), by="anna", reason="wrong day")

        job = await harness.job()
        assert await harness.states() == {
            "a": TaskState.CANCELLED,
            "b": TaskState.CANCELLED,
            "c": TaskState.COMPLETED,
        }
        assert job.state is JobState.CANCELLED
        assert job.intents == ()
        assert (job.cancel.by, job.cancel.reason) == ("anna", "wrong day")
        assert await harness.job_event_types() == ["Job Created", "Job Cancelled"]
        assert (await harness.task("a")).cancel.reason == "wrong day"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_runs_is_asked_to_end_and_the_job_waits_for_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        claimed = await harness.claim(id_of("a"))

        await harness.operator_commands.cancel_job(job_id(), by="anna")

        row = await harness.task("a")
        assert row.state is TaskState.PROCESSING
        assert row.cancel.by == "anna"
        assert row.lease.fence == claimed.fence
        assert (await harness.job()).state is JobState.RUNNING
        assert (await harness.task("b")).state is TaskState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_outcome_that_was_committed_first_stays(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        await harness.complete(id_of("a"))

        await harness.operator_commands.cancel_job(job_id(), by="anna")

        assert await harness.states() == {"a": TaskState.COMPLETED, "b": TaskState.CANCELLED}
        assert (await harness.job()).state is JobState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_that_has_ended_cannot_be_cancelled(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))
        await harness.finish()

        with pytest.raises(CommandRefused, match="the job is completed"):
            await harness.operator_commands.cancel_job(job_id(), by="anna")
        with pytest.raises(NotFound):
            await harness.operator_commands.cancel_job("job-none", by="anna")

        assert (await harness.job()).cancel is None


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_cancelling_twice_is_the_same_as_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"))
        await harness.claim(id_of("a"))

        await harness.operator_commands.cancel_job(job_id(), by="anna")
        await harness.operator_commands.cancel_job(job_id(), by="ben")

        assert (await harness.job()).cancel.by == "anna"
        assert (await harness.task("a")).cancel.by == "anna"


@scenario
async def test_a_cancellation_that_was_left_half_way_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        dying = harness.with_ports(ledger=_DiesAfter(backend.ledger, commits=1))
        with pytest.raises(_Died):
            await dying.operator_commands.cancel_job(job_id(), by="anna")
        (intent,) = (await harness.job()).intents
        assert intent.kind is IntentKind.CANCEL
        assert (await harness.task("a")).state is TaskState.PENDING

        await harness.operator_commands.cancel_job(job_id(), by="ben")

        assert (await harness.job()).state is JobState.CANCELLED
        assert (await harness.job()).intents == ()
        assert (await harness.task("a")).cancel.by == "anna"


@scenario
async def test_a_job_that_is_half_created_is_cancelled_whole(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        dying = harness.with_ports(ledger=_DiesAfter(backend.ledger, commits=2))
        with pytest.raises(_Died):
            await dying.submit(make_task("a"), make_task("b", "a"), make_task("c"))
        assert len(await harness.states()) < 3

        await harness.operator_commands.cancel_job(job_id(), by="anna")

        assert list((await harness.states()).values()) == [TaskState.CANCELLED] * 3
        assert (await harness.job()).state is JobState.CANCELLED
        assert (await harness.job()).intents == ()


@scenario
async def test_a_cancellation_that_was_left_half_way_is_finished_by_the_sweeper(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        dying = harness.with_ports(ledger=_DiesAfter(backend.ledger, commits=2))
        with pytest.raises(_Died):
            await dying.operator_commands.cancel_job(job_id(), by="anna", reason="late")

        repairs = await harness.sweeper.sweep()
        await harness.dispatch()

        assert repairs["intents_finished"] == 1
        assert (await harness.job()).state is JobState.CANCELLED
        assert (await harness.task("b")).cancel.reason == "late"


@scenario
async def test_a_job_that_changes_all_the_time_is_cancelled_task_by_task(tmp_path: Path) -> None:
    async with open_backend("atomic memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b", "a"))
        busy = harness.with_ports(ledger=_NeverAllAtOnce(backend.ledger))

        await busy.operator_commands.cancel_job(job_id(), by="anna")

        assert set((await harness.states()).values()) == {TaskState.CANCELLED}
        assert (await harness.job()).state is JobState.CANCELLED
        assert (await harness.job()).intents == ()


class _Died(Exception):
    """The process of the canceller is gone."""


class _Ledger:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _DiesAfter(_Ledger):
    def __init__(self, inner: Any, *, commits: int) -> None:
        super().__init__(inner)
        self._left = commits

    async def commit(self, *changes: Any) -> Any:
        if not self._left:
            raise _Died
        self._left -= 1
        return await self._inner.commit(*changes)


class _NeverAllAtOnce(_Ledger):
    async def commit(self, *changes: Any) -> Any:
        if len(changes) > 1:
            raise VersionConflict(changes[0].row.id, changes[0].expected_version)
        return await self._inner.commit(*changes)
