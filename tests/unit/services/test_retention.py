"""Jobs are removed whole, some time after their end, and their request ids are remembered."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.errors import BackendUnavailable, JobRemoved, NotFound, UsageError
from longshore.services import retention
from longshore.services.retention import JobRetention
from longshore.testing.contracts.retention import OTHER_EVENTS_AGE
from longshore.testing.contracts.samples import append_event
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.harness import (
    BACKENDS,
    REQUEST,
    SECOND,
    TENANT,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)

DAY = timedelta(days=1)
RETENTION = 10 * DAY
LARGE = {"input": "x" * 5_000}


def retention_of(harness: ServiceHarness, **ports: Any) -> JobRetention:
    return JobRetention(backend=harness.with_ports(**ports).backend, keep_for=RETENTION)


async def ended_job(harness: ServiceHarness) -> None:
    await harness.submit(make_task(**LARGE))
    await harness.finish()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_sweeper_removes_a_job_when_it_was_kept_long_enough(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await ended_job(harness)
        sweeper = harness.build_sweeper(retention=retention_of(harness))

        harness.clock.advance(RETENTION - SECOND)
        await sweeper.sweep()
        before = await backend.ledger.get_job(job_id())
        harness.clock.advance(SECOND)
        await sweeper.sweep()

        assert before is not None
        assert await backend.ledger.get_job(job_id()) is None
        assert await backend.ledger.get_task(task_id("a")) is None
        assert await backend.blobs.list_keys("jobs/") == []
        with pytest.raises(NotFound):
            await harness.operator_commands.resume(job_id(), [task_id("a")], by="ann")


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_zero_keeps_jobs(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await ended_job(harness)

        harness.clock.advance(100 * RETENTION)
        await harness.sweeper.sweep()

        assert await backend.ledger.get_job(job_id()) is not None


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_request_id_is_refused_for_as_long_again_and_then_runs_again(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await ended_job(harness)
        job_retention = retention_of(harness)
        harness.clock.advance(RETENTION)
        await job_retention.remove_expired()

        harness.clock.advance(RETENTION - SECOND)
        await job_retention.remove_expired()
        with pytest.raises(JobRemoved, match=f"{REQUEST!r} has ended and was removed"):
            await harness.submit(make_task(**LARGE))
        assert await backend.ledger.get_job(job_id()) is None
        harness.clock.advance(SECOND)
        await job_retention.remove_expired()
        left = await backend.blobs.list_keys("jobs/")
        accepted = await harness.submit(make_task(**LARGE))

        assert left == []  # of the refused submit
        assert accepted.created


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_a_crash_between_the_two_steps_leaves_is_removed_later(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await ended_job(harness)
        harness.clock.advance(RETENTION)
        dying = FlakyPort(backend.retention, "remove_remains")

        with pytest.raises(BackendUnavailable):
            await retention_of(harness, retention=dying).remove_expired()
        left = await backend.blobs.list_keys("jobs/")
        # Also where jobs are kept: an operator may have removed them.
        await harness.sweeper.sweep()

        assert await backend.ledger.get_job(job_id()) is None
        assert left
        assert await backend.blobs.list_keys("jobs/") == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_operator_removes_old_jobs_of_the_own_tenant_in_several_calls(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 2)
    monkeypatch.setattr(retention, "_JOBS_OF_A_CALL", 4)
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        for number in range(5):
            await harness.submit(make_task(), request_id=f"old-{number}")
        other = await harness.producer.submit("other", REQUEST, {"tasks": [make_task()]})
        await harness.complete(f"{other.job.id}_a")
        await harness.finish()
        await harness.submit(make_task(), request_id="running")
        job_retention = retention_of(harness)
        harness.clock.advance(DAY)

        counted = await job_retention.prune(TENANT, DAY, dry_run=True)
        younger = await job_retention.prune(TENANT, DAY + SECOND, dry_run=True)
        calls = [await job_retention.prune(TENANT, DAY) for _ in range(3)]

        assert (counted, younger) == ((5, False), (0, False))
        assert calls == [(4, True), (1, False), (0, False)]
        rest = await backend.ledger.list_jobs(TENANT)
        assert [row.id for row in rest.items] == [job_id("running")]
        assert len((await backend.ledger.list_jobs("other")).items) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_sweeper_removes_old_events_that_belong_to_no_job(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        for _ in range(2):
            await append_event(backend, tenant=TENANT, now=harness.clock.now())
        job_retention = replace(
            retention_of(harness), keep_for=timedelta(0), keep_other_events_for=OTHER_EVENTS_AGE
        )
        sweeper = harness.build_sweeper(retention=job_retention)

        harness.clock.advance(OTHER_EVENTS_AGE - SECOND)
        await sweeper.sweep()
        early = await backend.events.history(TENANT, "QUEUE#default")
        harness.clock.advance(2 * SECOND)
        await sweeper.sweep()
        late = await backend.events.history(TENANT, "QUEUE#default")

        assert len(early) == 2
        assert [event.sequence for event in late] in ([2], [])


@scenario
async def test_a_backend_without_retention_keeps_its_jobs(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        job_retention = retention_of(harness, retention=None)

        await job_retention.remove_expired()
        with pytest.raises(UsageError, match="cannot remove jobs"):
            await job_retention.prune(TENANT, DAY)
