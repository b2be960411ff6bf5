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
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"), make_task("b", "a"), make_task("c"))
        await stage.complete(id_of("c"))
        await stage.dispatch()

        await stage.canceller.cancel_job(job_id(), by="anna", reason="wrong day")

        job = await stage.job()
        assert await stage.states() == {
            "a": TaskState.CANCELLED,
            "b": TaskState.CANCELLED,
            "c": TaskState.COMPLETED,
        }
        assert job.state is JobState.CANCELLED
        assert job.intents == ()
        assert (job.cancel.by, job.cancel.reason) == ("anna", "wrong day")
        assert await stage.job_event_types() == ["Job Created", "Job Cancelled"]
        assert (await stage.task("a")).cancel.reason == "wrong day"


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_runs_is_asked_to_end_and_the_job_waits_for_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"), make_task("b", "a"))
        claimed = await stage.claim(id_of("a"))

        await stage.canceller.cancel_job(job_id(), by="anna")

        row = await stage.task("a")
        assert row.state is TaskState.PROCESSING
        assert row.cancel.by == "anna"
        assert row.lease.fence == claimed.fence
        assert (await stage.job()).state is JobState.RUNNING
        assert (await stage.task("b")).state is TaskState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_outcome_that_was_faster_stands(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"), make_task("b", "a"))
        await stage.complete(id_of("a"))

        await stage.canceller.cancel_job(job_id(), by="anna")

        assert await stage.states() == {"a": TaskState.COMPLETED, "b": TaskState.CANCELLED}
        assert (await stage.job()).state is JobState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_job_that_has_ended_cannot_be_cancelled(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"))
        await stage.finish()

        with pytest.raises(CommandRefused, match="the job is completed"):
            await stage.canceller.cancel_job(job_id(), by="anna")
        with pytest.raises(NotFound):
            await stage.canceller.cancel_job("job-none", by="anna")

        assert (await stage.job()).cancel is None


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_cancelling_twice_is_the_same_as_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"))
        await stage.claim(id_of("a"))

        await stage.canceller.cancel_job(job_id(), by="anna")
        await stage.canceller.cancel_job(job_id(), by="ben")

        assert (await stage.job()).cancel.by == "anna"
        assert (await stage.task("a")).cancel.by == "anna"


@scenario
async def test_a_cancellation_that_was_left_half_way_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"), make_task("b", "a"))
        dying = stage.with_ports(ledger=_DiesAfter(backend.ledger, commits=1))
        with pytest.raises(_Died):
            await dying.canceller.cancel_job(job_id(), by="anna")
        (intent,) = (await stage.job()).intents
        assert intent.kind is IntentKind.CANCEL
        assert (await stage.task("a")).state is TaskState.PENDING

        await stage.canceller.cancel_job(job_id(), by="ben")

        assert (await stage.job()).state is JobState.CANCELLED
        assert (await stage.job()).intents == ()
        assert (await stage.task("a")).cancel.by == "anna"


@scenario
async def test_a_job_that_is_half_created_is_cancelled_whole(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = ServiceHarness(backend)
        dying = stage.with_ports(ledger=_DiesAfter(backend.ledger, commits=2))
        with pytest.raises(_Died):
            await dying.submit(make_task("a"), make_task("b", "a"), make_task("c"))
        assert len(await stage.states()) < 3

        await stage.canceller.cancel_job(job_id(), by="anna")

        assert list((await stage.states()).values()) == [TaskState.CANCELLED] * 3
        assert (await stage.job()).state is JobState.CANCELLED
        assert (await stage.job()).intents == ()


@scenario
async def test_a_cancellation_that_was_left_half_way_is_finished_by_the_sweeper(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"), make_task("b", "a"))
        dying = stage.with_ports(ledger=_DiesAfter(backend.ledger, commits=2))
        with pytest.raises(_Died):
            await dying.canceller.cancel_job(job_id(), by="anna", reason="late")

        repairs = await stage.sweeper.sweep()
        await stage.dispatch()

        assert repairs.intents_finished == 1
        assert (await stage.job()).state is JobState.CANCELLED
        assert (await stage.task("b")).cancel.reason == "late"


@scenario
async def test_a_job_that_changes_all_the_time_is_cancelled_task_by_task(tmp_path: Path) -> None:
    async with open_backend("atomic memory", tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"), make_task("b", "a"))
        busy = stage.with_ports(ledger=_NeverAllAtOnce(backend.ledger))

        await busy.canceller.cancel_job(job_id(), by="anna")

        assert set((await stage.states()).values()) == {TaskState.CANCELLED}
        assert (await stage.job()).state is JobState.CANCELLED
        assert (await stage.job()).intents == ()


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
